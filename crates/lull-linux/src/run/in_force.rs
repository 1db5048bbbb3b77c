//! Tells in one line whether the mode is in force in the program, and why not.
//!
//! Parameters on an epoll context are one half of it. The other is that packets come to sockets on that context from a
//! NAPI of the device that the mode is on. A program that waits in `poll`, or whose sockets know no NAPI, has the
//! parameters and nothing of the mode. So the answer waits for packets, and where none came, that is said at the end.

use rustix::net::{AddressFamily, getpeername, sockopt};

use crate::attach::{Event, Follower, OnContext, is_due};
use crate::os;
use crate::programs::{Process, name_of};
use crate::roots::Roots;

/// The looks before a program without any epoll context is taken for one that waits in another way, as it may still be
/// starting.
const LOOKS_BEFORE_NO_EPOLL: u32 = 8;

/// Whether the mode is in force in a program, as far as it was seen and said.
#[derive(Default)]
pub(super) struct InForce {
    /// The mode, and the device if it was applied to one.
    mode: String,
    device: Option<String>,
    /// The NAPIs of the device.
    napis: Vec<u32>,
    in_force: bool,
    not_in_force: bool,
    had_context: bool,
    looks: u32,
}

impl InForce {
    /// The mode, and the device if it is applied to one.
    pub(super) fn new(mode: &str, device: Option<String>) -> InForce {
        InForce { mode: mode.to_owned(), device, ..InForce::default() }
    }

    /// Whether [`InForce::device_has`] has to be called now, as the NAPIs of the device may be others after a link
    /// flap.
    pub(super) fn wants_napis(&self, events: &[Event]) -> bool {
        self.device.is_some() && !self.in_force && events.iter().any(|event| matches!(event, Event::Sockets(_)))
    }

    /// Sets the NAPIs of the device.
    pub(super) fn device_has(&mut self, napis: Vec<u32>) {
        self.napis = napis;
    }

    /// Takes what a look has found. Returns a line if there is one to say.
    pub(super) fn look(&mut self, follower: &Follower, events: &[Event], roots: &Roots) -> Option<String> {
        self.had_context |= follower.in_force() != 0;
        let line = events.iter().find_map(|event| match event {
            Event::Sockets(on) => self.of_context(on, roots),
            _ => None,
        });
        self.looks = self.looks.saturating_add(1);
        if line.is_none()
            && !(self.in_force || self.not_in_force || self.had_context)
            && self.looks >= LOOKS_BEFORE_NO_EPOLL
            && is_due(self.looks, false)
        {
            return self.of_program(&follower.processes(), roots);
        }
        line
    }

    fn of_context(&mut self, on: &OnContext, roots: &Roots) -> Option<String> {
        let of = |pid| format!("{} (process {pid})", name_of(pid, roots));
        let is_here = |napi: &u32| self.device.is_none() || self.napis.contains(napi);
        let napis: Vec<String> = on.by_napi.keys().filter(|it| is_here(it)).map(u32::to_string).collect();
        if !napis.is_empty() {
            let first = !std::mem::replace(&mut self.in_force, true);
            let which = self.device.as_ref().map_or("the program's half of it is", |_| "both halves are");
            return first.then(|| {
                format!(
                    "{} is in force: {which}; {} descriptor {} hears from NAPI {}",
                    self.mode,
                    of(on.pid),
                    on.fd,
                    napis.join(", ")
                )
            });
        }
        let why = if let Some(first) = on.without_napi.first() {
            format!("connections of {} have no NAPI id, such as descriptor {first}", of(on.pid))
        } else if let (Some(napi), Some(device)) = (on.by_napi.keys().next(), &self.device) {
            format!("the packets of {} come from NAPI {napi}, which is not {device}'s", of(on.pid))
        } else {
            return None;
        };
        let first = !std::mem::replace(&mut self.not_in_force, true) && !self.in_force;
        first.then(|| format!("{} is NOT in force: {why}", self.mode))
    }

    /// Returns a line for a program that has connections and waits for them without epoll.
    fn of_program(&mut self, pids: &[i32], roots: &Roots) -> Option<String> {
        let waits = pids.iter().copied().find(|&pid| has_connection(pid, roots))?;
        self.not_in_force = true;
        Some(format!(
            "{} is NOT in force: {} has connections and no epoll context (it waits in poll, select or recv); such \
             programs can busy poll in recv: `lull run --mode busyread`",
            self.mode,
            name_of(waits, roots)
        ))
    }

    /// Returns at the program's end a line that was not said before.
    pub(super) fn at_end(&self) -> Option<String> {
        let why = match (self.in_force || self.not_in_force, self.had_context) {
            (true, _) => return None,
            (false, true) => {
                "no look found a socket on its epoll contexts that packets from a NAPI had come to (connections that come \
                 and go between two looks are not seen)"
            }
            (false, false) => "the program was never seen with an epoll context of the mode's",
        };
        Some(format!("{} was not seen in force: {why}", self.mode))
    }
}

/// Whether a process has a socket that packets have come to, or that is connected to another machine.
fn has_connection(pid: i32, roots: &Roots) -> bool {
    let Ok(process) = Process::open(pid, roots) else { return false };
    let Ok(entries) = std::fs::read_dir(roots.proc(&format!("{pid}/fd"))) else { return false };
    let is_socket = |entry: &std::fs::DirEntry| {
        std::fs::read_link(entry.path()).is_ok_and(|target| target.to_string_lossy().starts_with("socket:["))
    };
    let numbers = entries.flatten().filter(is_socket);
    numbers.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).any(|fd: i32| {
        let Ok(socket) = process.duplicate(fd) else { return false };
        let internet = |family| family == AddressFamily::INET || family == AddressFamily::INET6;
        sockopt::socket_domain(&socket).is_ok_and(internet)
            && (os::incoming_napi_id(std::os::fd::AsFd::as_fd(&socket)).is_ok_and(|id| id != 0)
                || getpeername(&socket).is_ok_and(|peer| peer.is_some()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn on(napis: &[u32], without: &[i32]) -> OnContext {
        let by_napi = napis.iter().map(|&napi| (napi, vec![9])).collect();
        OnContext { pid: 1, fd: 5, by_napi, without_napi: without.to_vec(), others: 0 }
    }

    #[test]
    fn each_answer_is_said_once_and_the_good_one_goes_last() {
        let roots = Roots::default();
        let mut in_force = InForce::new("suspend20", Some("va".to_owned()));
        in_force.device_has(vec![8193]);
        assert!(in_force.at_end().unwrap().contains("never seen"));
        // What came and went between two looks may have had its packets from a NAPI.
        let had_context = InForce { had_context: true, ..InForce::new("suspend20", None) };
        assert!(had_context.at_end().unwrap().contains("no look found"));
        let said = in_force.of_context(&on(&[], &[7]), &roots).unwrap();
        assert!(said.contains("NOT in force") && said.contains("no NAPI id") && said.contains('7'), "{said}");
        assert_eq!(in_force.of_context(&on(&[], &[7]), &roots), None);
        let said = in_force.of_context(&on(&[8193], &[7]), &roots).unwrap();
        assert!(said.contains("is in force") && said.contains("NAPI 8193"), "{said}");
        assert_eq!(in_force.of_context(&on(&[8193], &[]), &roots), None);
        assert_eq!(in_force.of_context(&on(&[], &[7]), &roots), None, "one context of several is a matter of warnings");
        assert_eq!(in_force.at_end(), None);
    }

    #[test]
    fn packets_of_another_device_do_not_put_the_mode_in_force() {
        let roots = Roots::default();
        let mut in_force = InForce::new("suspend20", Some("va".to_owned()));
        in_force.device_has(vec![8193]);
        let said = in_force.of_context(&on(&[9000], &[]), &roots).unwrap();
        assert!(said.contains("NOT in force") && said.contains("9000") && said.contains("va"), "{said}");
        in_force.device_has(vec![9000]);
        assert!(in_force.of_context(&on(&[9000], &[]), &roots).unwrap().contains("is in force"));
        // Without a device nothing is known about the NAPIs.
        let said = InForce::new("suspend20", None).of_context(&on(&[9000], &[]), &roots).unwrap();
        assert!(said.contains("is in force") && said.contains("the program's half"), "{said}");
    }
}
