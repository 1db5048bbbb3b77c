//! What a side does in words that are the same on both: numbers, addresses and ports are each machine's own.

use std::net::{IpAddr, Ipv4Addr};

use libc::c_int;
use lull_posix::address;

use super::machine::Machine;

/// One machine's share of a run.
pub struct Side {
    pub machine: Machine,
    /// Ports in the order in which they were seen.
    ports: Vec<u16>,
}

impl Side {
    pub fn new(machine: Machine) -> Side {
        Side { machine, ports: Vec::new() }
    }

    /// An address.
    pub fn name(&mut self, name: &[u8]) -> String {
        let Some(at) = address::parse(name) else { return format!("{name:?}") };
        let ip = whose(self.machine, at.ip()).map_or_else(|| at.ip().to_string(), str::to_owned);
        let port = match at.port() {
            0 => "0".to_owned(),
            port => match self.ports.iter().position(|seen| *seen == port) {
                Some(nth) => format!("p{nth}"),
                None => {
                    self.ports.push(port);
                    format!("p{}", self.ports.len() - 1)
                }
            },
        };
        format!("{ip}:{port} in {} bytes", name.len())
    }
}

/// Whose an address is.
pub fn whose(machine: Machine, ip: IpAddr) -> Option<&'static str> {
    match ip {
        ip if ip.is_unspecified() => Some("any"),
        ip if ip == machine.own() || ip == Ipv4Addr::LOCALHOST => Some("own"),
        ip if ip == machine.peer(false) || ip == machine.peer(true) => Some("peer"),
        _ => None,
    }
}

pub fn brief(value: &impl std::fmt::Debug) -> String {
    let text = format!("{value:?}");
    if text.len() <= 200 { text } else { format!("{}... ({} characters)", &text[..160], text.len()) }
}

pub fn error(number: c_int) -> String {
    std::io::Error::from_raw_os_error(number).to_string()
}

pub fn ready(ready: u32) -> String {
    const NAMES: [(c_int, &str); 7] = [
        (libc::EPOLLIN, "IN"),
        (libc::EPOLLOUT, "OUT"),
        (libc::EPOLLPRI, "PRI"),
        (libc::EPOLLRDHUP, "RDHUP"),
        (libc::EPOLLHUP, "HUP"),
        (libc::EPOLLERR, "ERR"),
        (libc::POLLNVAL as c_int, "NVAL"),
    ];
    let names = NAMES.iter().filter(|(bit, _)| ready & *bit as u32 != 0).map(|(_, name)| *name);
    let names: Vec<&str> = names.collect();
    if names.is_empty() { "nothing".to_owned() } else { names.join("|") }
}
