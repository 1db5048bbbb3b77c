//! Queues of AF_XDP that the launcher gives out to the processes of its program.
//!
//! The socket of such a queue takes memory once, that of the process that starts it; what the next process needs is a new one,
//! which only the launcher has the privileges to open. So a process that has claimed queues asks for them here, over a pair of
//! connected sockets that all processes of the program share: those that ask take turns ([`crate::Flows::alone`]).

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};

use lull_net::lull_nic::xdp::XdpSetup;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    SocketFlags, SocketType, send, sendmsg, socketpair,
};
use serde::{Deserialize, Serialize};

use crate::kernel;

/// Queues that can be given out at once: a message carries 253 descriptors (`SCM_MAX_FD`), and some are the device's.
pub const QUEUES_MAX: usize = 240;
const DESCRIPTORS_MAX: usize = 253;
/// More than any message has.
const BYTES_MAX: usize = 8192;
/// How long an answer may take: the launcher may be waiting for a queue that the kernel has not taken back yet.
const PATIENCE: Timespec = Timespec { tv_sec: 30, tv_nsec: 0 };

/// What a process asks for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// The queues that it has claimed.
    pub queues: Vec<usize>,
    /// Which process it is: an answer that nobody waited for is told from one's own by it.
    pid: u32,
}

#[derive(Debug, Serialize, Deserialize)]
struct Answer {
    to: u32,
    /// What [`XdpSetup::parts`] says, or why there is nothing.
    setup: Result<String, String>,
}

/// The launcher's end and the program's.
///
/// # Errors
/// The process is out of descriptors.
pub fn ends() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}

/// The next request, if there is one.
pub fn next_request(depot: BorrowedFd<'_>) -> Option<Request> {
    loop {
        let mut bytes = [0; BYTES_MAX];
        let (length, _) = rustix::net::recv(depot, &mut bytes[..], RecvFlags::DONTWAIT).ok()?;
        if length == 0 {
            return None;
        }
        // What is none comes from no process that lull is loaded in.
        if let Ok(request) = serde_json::from_slice(&bytes[..length]) {
            return Some(request);
        }
    }
}

/// Answers a request with a device of its queues, or with the reason why there is none.
///
/// # Errors
/// No process of the program is left.
pub fn answer(depot: BorrowedFd<'_>, request: &Request, given: Result<&XdpSetup, String>) -> io::Result<()> {
    let (setup, descriptors) = match given {
        Ok(setup) => {
            let (text, descriptors) = setup.parts();
            (Ok(text), descriptors)
        }
        Err(why) => (Err(why), Vec::new()),
    };
    let bytes = serde_json::to_vec(&Answer { to: request.pid, setup })?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(&descriptors)) {
        return Err(io::Error::other(format!("{} descriptors do not fit into a message", descriptors.len())));
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    sendmsg(depot, &[IoSlice::new(&bytes)], &mut control, flags)?;
    Ok(())
}

/// Asks for queues that this process has claimed. No other process asks meanwhile.
pub(crate) fn ask(depot: BorrowedFd<'_>, queues: &[u32]) -> Result<XdpSetup, String> {
    let gone = "the launcher has ended, and only it can open the NIC: run the program under a new one";
    let request = Request { queues: queues.iter().map(|queue| *queue as usize).collect(), pid: std::process::id() };
    let bytes = serde_json::to_vec(&request).map_err(|error| error.to_string())?;
    send(depot, &bytes, SendFlags::NOSIGNAL).map_err(|_| gone.to_owned())?;
    loop {
        let readable = poll(&mut [PollFd::new(&depot, PollFlags::IN)], Some(&PATIENCE));
        if readable.is_ok_and(|count| count == 0) {
            return Err(format!("the launcher has not answered for {} seconds: is it stopped?", PATIENCE.tv_sec));
        }
        let (bytes, descriptors) = match received(depot) {
            Ok((bytes, _)) if bytes.is_empty() => return Err(gone.to_owned()),
            // It has ended before it read what it was asked.
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Err(gone.to_owned()),
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => continue,
            Err(error) => return Err(format!("cannot take what the launcher gives: {error}")),
            Ok(received) => received,
        };
        let answer: Answer = serde_json::from_slice(&bytes).map_err(|error| error.to_string())?;
        if answer.to == request.pid {
            let text = answer.setup?;
            return XdpSetup::from_parts(&text, descriptors)
                .ok_or_else(|| format!("'{text}' is no AF_XDP device that this library understands"));
        }
        // Whoever asked for it has died meanwhile.
    }
}

/// A message with its descriptors; nothing, without an error, if the other end is gone.
fn received(depot: BorrowedFd<'_>) -> io::Result<(Vec<u8>, Vec<OwnedFd>)> {
    let mut bytes = vec![0; BYTES_MAX];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let parts = &mut [IoSliceMut::new(&mut bytes)];
    let (length, flags, descriptors) = kernel::receive_with_descriptors(depot, parts, &mut control)?;
    if flags.contains(ReturnFlags::CTRUNC) {
        return Err(io::Error::from_raw_os_error(libc::EMFILE));
    }
    bytes.truncate(length);
    Ok((bytes, descriptors))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn an_answer_to_another_is_passed_over_and_a_refusal_is_told_in_words() {
        let (launchers, programs) = ends().unwrap();
        let asking = std::thread::spawn(move || {
            let first = ask(programs.as_fd(), &[1, 3]).unwrap_err();
            (first, ask(programs.as_fd(), &[2]).unwrap_err())
        });
        poll(&mut [PollFd::new(&launchers, PollFlags::IN)], None).unwrap();
        let request = next_request(launchers.as_fd()).unwrap();
        assert_eq!(request.queues, [1, 3]);
        assert_eq!(next_request(launchers.as_fd()), None);
        let others = Request { pid: request.pid + 1, ..request.clone() };
        answer(launchers.as_fd(), &others, Err("not yours".to_owned())).unwrap();
        answer(launchers.as_fd(), &request, Err("there is none".to_owned())).unwrap();
        poll(&mut [PollFd::new(&launchers, PollFlags::IN)], None).unwrap();
        drop(launchers);
        let (refused, gone) = asking.join().unwrap();
        assert_eq!(refused, "there is none");
        assert!(gone.contains("the launcher has ended"), "{gone}");
    }
}
