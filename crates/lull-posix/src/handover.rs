//! What the launcher hands on to the program that it starts.
//!
//! The launcher opens the NIC while it has the rights to; the program may have dropped them before its first socket. What the
//! program needs is in a sealed file without a name, whose number is in the environment ([`VARIABLE`]), as JSON. The
//! descriptors in it stand above the numbers that the program counts on, and are inherited over `execve`.

use std::fs::File;
use std::io::{self, Write};
use std::net::IpAddr;
use std::os::fd::{BorrowedFd, OwnedFd, RawFd};
use std::os::unix::fs::FileExt;

use lull_core::AfterResume;
use lull_net::lull_nic::own::FROM_MAX;
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::FdFlags;
use rustix::process::{Resource, Rlimit};
use serde::{Deserialize, Serialize};

/// The environment's variable: the number of the file.
pub const VARIABLE: &str = "LULL_USER_PLANE";
/// More than any hand-over has: a file that is longer is no hand-over.
const BYTES_MAX: u64 = 1 << 20;
/// Numbers that are kept for what is handed on: a descriptor for each queue, and a few.
const NUMBERS_ABOVE: u64 = 300;
/// The highest number that is aimed at: no kernel gives more without being told (`fs.nr_open`).
const NUMBERS_MAX: u64 = 1 << 20;

/// The NIC, open.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Nic {
    /// A TAP: the descriptor of each queue.
    Tap {
        /// The descriptors, by number.
        queues: Vec<RawFd>,
    },
    /// An interface of the host, by AF_XDP, whose queues the launcher gives out.
    Xdp {
        /// How many queues it has.
        queues: usize,
        /// The program's end of [`crate::depot`], by number.
        depot: RawFd,
    },
}

impl Nic {
    /// How many queues it has.
    pub fn queues(&self) -> usize {
        match self {
            Nic::Tap { queues } => queues.len(),
            Nic::Xdp { queues, .. } => *queues,
        }
    }
}

/// What the launcher hands on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HandOver {
    /// The NIC.
    pub nic: Nic,
    /// The ends of each queue's inbox that are read and written (`lull_nic::passing`), if there are several queues that
    /// processes can share.
    #[serde(default)]
    pub inboxes: Vec<(RawFd, RawFd)>,
    /// The two ends, read and written, of the socket that keeps connections for whoever listens next.
    pub lobby: (RawFd, RawFd),
    /// The index of its interface among the kernel's; 0 if nothing is to be asked about it by netlink.
    #[serde(default)]
    pub ifindex: u32,
    /// lull's own addresses, each with the length of its network's prefix.
    pub addresses: Vec<(IpAddr, u8)>,
    /// The routers, at most one for each family.
    #[serde(default)]
    pub gateways: Vec<IpAddr>,
    /// Networks beyond the routers that are reached through lull; everything else that is not in a prefix of `addresses` is the
    /// kernel's.
    #[serde(default)]
    pub routes: Vec<(IpAddr, u8)>,
    /// The ports that are lull's; empty: all. With some, whatever is not bound to one of them is the kernel's.
    #[serde(default)]
    pub ports: Vec<u16>,
    /// The networks whose sources may send; if it is empty, everybody may.
    #[serde(default)]
    pub allowed_sources: Vec<(IpAddr, u8)>,
    /// The delivery mode, by name.
    pub mode: String,
    /// What follows a resume.
    pub after_resume: AfterResume,
    /// A secret that the program's processes share, so that one can go on with a handshake that another began.
    #[serde(default)]
    pub secret: u64,
    /// Memory that is shared with the launcher and with the program's other processes, for [`crate::Flows`].
    pub flows: RawFd,
    /// How long an answer may wait for others of its batch, in nanoseconds ([`lull_net::NetworkConfig::coalesce_ns`]).
    pub coalesce_ns: u64,
    /// The queueing discipline of the transmit queues, by name; none: frames go to the ring at once.
    #[serde(default)]
    pub qdisc: Option<String>,
    /// Every frame goes to this file, as pcap.
    #[serde(default)]
    pub pcap: Option<RawFd>,
    /// Whether the library keeps silent on standard error.
    #[serde(default)]
    pub quiet: bool,
}

/// A hand-over that cannot be taken.
#[derive(Debug, thiserror::Error)]
#[error("cannot take what lull's launcher hands on ({VARIABLE}={number}): {why}")]
pub struct HandOverError {
    number: String,
    why: String,
}

impl HandOver {
    /// A sealed file that holds it.
    ///
    /// # Errors
    /// The system's, from making or writing the file.
    pub fn to_file(&self) -> io::Result<OwnedFd> {
        let file = rustix::fs::memfd_create(c"lull", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        let mut file = File::from(file);
        file.write_all(&serde_json::to_vec(self)?)?;
        let all = SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL;
        rustix::fs::fcntl_add_seals(&file, all)?;
        Ok(file.into())
    }

    /// The hand-over that the environment names, if it names one. The file stays open, for what the program executes.
    ///
    /// # Errors
    /// [`HandOverError`]: the descriptor was closed on the way, or stands for something else.
    pub fn from_environment() -> Result<Option<HandOver>, HandOverError> {
        match std::env::var_os(VARIABLE) {
            None => Ok(None),
            Some(number) => HandOver::numbered(&number.to_string_lossy()).map(Some),
        }
    }

    /// Whether one process has all queues, or none: without inboxes processes cannot pass on what comes to the wrong queue.
    pub fn is_whole(&self) -> bool {
        self.nic.queues() > 1 && self.inboxes.len() != self.nic.queues()
    }

    /// The descriptors that are handed on, by number, the hand-over's own among them.
    pub fn numbers(&self) -> impl Iterator<Item = RawFd> + '_ {
        let of_the_nic = match &self.nic {
            Nic::Tap { queues } => queues.clone(),
            Nic::Xdp { depot, .. } => vec![*depot],
        };
        let inboxes = self.inboxes.iter().chain([&self.lobby]).flat_map(|(reads, writes)| [*reads, *writes]);
        let own = std::env::var(VARIABLE).ok().and_then(|number| number.parse().ok());
        of_the_nic.into_iter().chain(inboxes).chain([self.flows]).chain(self.pcap).chain(own)
    }

    fn numbered(number: &str) -> Result<HandOver, HandOverError> {
        let failed = |why: String| HandOverError { number: number.to_owned(), why };
        let fd: RawFd =
            number.parse().ok().filter(|fd| *fd >= 0).ok_or_else(|| failed("it is no descriptor".to_owned()))?;
        // SAFETY: borrowed for this call only. If the number is closed, or another file's, the calls say so or the seals do.
        let fd = unsafe { BorrowedFd::borrow_raw(fd) };
        let sealed =
            rustix::fs::fcntl_get_seals(fd).is_ok_and(|seals| seals.contains(SealFlags::WRITE | SealFlags::SHRINK));
        if !sealed {
            return Err(failed(
                "the descriptor was closed or used for another file on the way to the program".to_owned(),
            ));
        }
        let read = |error: io::Error| failed(format!("it cannot be read: {error}"));
        let file = File::from(fd.try_clone_to_owned().map_err(read)?);
        let length = file.metadata().map_err(read)?.len();
        if length > BYTES_MAX {
            return Err(failed(format!("it has {length} bytes, which no hand-over has")));
        }
        let mut bytes = vec![0; length as usize];
        file.read_exact_at(&mut bytes, 0).map_err(read)?;
        serde_json::from_slice(&bytes)
            .map_err(|error| failed(format!("it is not what this library understands: {error}")))
    }
}

/// A duplicate of `fd` that what is executed inherits, with a number above those that the program counts on: beyond its limit on
/// open files, so that a loop over its numbers does not close it, or at the end of them where the limit cannot be raised; of a high
/// limit behind [`FROM_MAX`], as all of lull's own.
///
/// # Errors
/// No number is free (EMFILE).
pub fn inheritable(fd: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let before = rustix::process::getrlimit(Resource::Nofile);
    let soft = before.current.unwrap_or(NUMBERS_MAX).min(NUMBERS_MAX);
    let raised = before.maximum.unwrap_or(NUMBERS_MAX).min(soft + NUMBERS_ABOVE);
    // What cannot be raised leaves the end of what there is.
    let _ = rustix::process::setrlimit(Resource::Nofile, Rlimit { current: Some(raised), ..before });
    let from = if raised > soft { soft } else { soft.saturating_sub(NUMBERS_ABOVE) }.min(FROM_MAX);
    let made = rustix::io::fcntl_dupfd_cloexec(fd, RawFd::try_from(from).unwrap_or(RawFd::MAX));
    // It was this before.
    let _ = rustix::process::setrlimit(Resource::Nofile, before);
    let made = made?;
    rustix::io::fcntl_setfd(&made, FdFlags::empty())?;
    Ok(made)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::{AsFd, AsRawFd};

    #[test]
    fn what_is_inherited_stands_above_the_programs_numbers() {
        let file = File::open("/dev/null").unwrap();
        let made = inheritable(file.as_fd()).unwrap();
        let limit = rustix::process::getrlimit(Resource::Nofile);
        let soft = limit.current.unwrap_or(NUMBERS_MAX).min(NUMBERS_MAX) as RawFd;
        assert!(made.as_raw_fd() >= (soft - NUMBERS_ABOVE as RawFd).min(FROM_MAX as RawFd), "{made:?} of {soft}");
        assert!(!rustix::io::fcntl_getfd(&made).unwrap().contains(FdFlags::CLOEXEC));
        assert_eq!(rustix::fs::fstat(&made).unwrap().st_rdev, rustix::fs::fstat(&file).unwrap().st_rdev);
    }

    fn example() -> HandOver {
        HandOver {
            nic: Nic::Tap { queues: vec![1000, 1001] },
            inboxes: vec![(1005, 1006), (1007, 1008)],
            lobby: (1009, 1010),
            ifindex: 7,
            addresses: vec![("10.0.0.2".parse().unwrap(), 24), ("fd00::2".parse().unwrap(), 64)],
            gateways: vec!["10.0.0.1".parse().unwrap()],
            routes: vec![("10.1.0.0".parse().unwrap(), 16)],
            ports: vec![11211],
            allowed_sources: vec![("10.0.0.0".parse().unwrap(), 8)],
            mode: "suspend20".to_owned(),
            after_resume: AfterResume::Deferral,
            secret: 5,
            flows: 1002,
            coalesce_ns: 100_000,
            qdisc: Some("fq".to_owned()),
            pcap: None,
            quiet: true,
        }
    }

    #[test]
    fn what_is_handed_on_arrives_and_cannot_be_changed() {
        let xdp = HandOver { nic: Nic::Xdp { queues: 2, depot: 1003 }, ..example() };
        let file = xdp.to_file().unwrap();
        assert_eq!(HandOver::numbered(&file.as_raw_fd().to_string()).unwrap(), xdp);
        let file = example().to_file().unwrap();
        assert_eq!(HandOver::numbered(&file.as_raw_fd().to_string()).unwrap(), example());
        assert!(File::from(file).write_all(b"{}").is_err(), "it is sealed");
    }

    #[test]
    fn a_number_that_is_no_hand_over_is_named() {
        let other = File::open("/dev/null").unwrap();
        let unsealed = rustix::fs::memfd_create(c"other", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        let numbers = ["x", "-1", "999999"].map(str::to_owned).into_iter();
        for number in numbers.chain([other.as_raw_fd().to_string(), unsealed.as_raw_fd().to_string()]) {
            let said = HandOver::numbered(&number).unwrap_err().to_string();
            assert!(said.contains(&format!("{VARIABLE}={number}")), "{said}");
        }
        let sealed = |text: &[u8]| {
            let file = rustix::fs::memfd_create(c"other", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
            let mut file = File::from(file);
            file.write_all(text).unwrap();
            rustix::fs::fcntl_add_seals(&file, SealFlags::WRITE | SealFlags::SHRINK).unwrap();
            file
        };
        let file = sealed(b"{\"nic\": 5}");
        assert!(HandOver::numbered(&file.as_raw_fd().to_string()).is_err());
    }
}
