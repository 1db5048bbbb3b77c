//! How a socket's frames leave: SO_PRIORITY, which IP_TOS sets as well, and SO_MAX_PACING_RATE, by which lull's queueing discipline
//! goes; and what their IP headers say. A socket of the kernel's judges and keeps the values.

use std::io;
use std::sync::Once;

use libc::c_int;
use lull_fd::say;
use lull_net::{HOP_LIMIT, IpFields, Qdisc, TcpStream, UdpSocket};

use super::{Name, int, value_of};
use crate::engine;

pub(super) const PRIORITY: Name = (libc::SOL_SOCKET, libc::SO_PRIORITY);
pub(super) const PACING: Name = (libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE);
pub(super) const TOS: Name = (libc::SOL_IP, libc::IP_TOS);
/// Traffic class and hop limit, over IPv4 and over IPv6.
pub(super) const IP: [[Name; 2]; 2] = [
    [TOS, (libc::SOL_IP, libc::IP_TTL)],
    [(libc::SOL_IPV6, libc::IPV6_TCLASS), (libc::SOL_IPV6, libc::IPV6_UNICAST_HOPS)],
];

/// Whether an option changes how frames leave.
pub(in crate::socket) fn concerns(name: Name) -> bool {
    [PRIORITY, PACING].contains(&name) || IP.as_flattened().contains(&name)
}

/// What a socket asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::socket) struct Egress {
    priority: u8,
    bytes_per_s: Option<u64>,
    /// First over IPv4, then over IPv6.
    ip: [IpFields; 2],
}

impl Egress {
    /// From the values that `getsockopt` gives out; `None` for one that was never set.
    pub(super) fn of(value: impl Fn(Name) -> Option<Vec<u8>>) -> Egress {
        // `pfifo_fast` looks at no more of it (TC_PRIO_MAX).
        let priority = value(PRIORITY).and_then(|value| int(&value).ok()).map_or(0, |value| (value & 15) as u8);
        let bytes_per_s = value(PACING).and_then(|value| rate(&value));
        // The stack's own values stand for what was never set, and for what nobody may set.
        let byte = |name, unset| {
            value(name).and_then(|value| int(&value).ok()).and_then(|value| u8::try_from(value).ok()).unwrap_or(unset)
        };
        let ip = IP.map(|[class, hops]| IpFields::new(byte(class, 0), byte(hops, HOP_LIMIT)));
        Egress { priority, bytes_per_s, ip }
    }

    /// As a socket of the kernel's has them.
    pub(in crate::socket) fn of_placeholder(fd: c_int) -> Egress {
        Egress::of(|name| value_of(fd, name))
    }

    /// Puts it in force. The kernel has said that the program may; a socket that is over needs none of it.
    pub(in crate::socket) fn put(self, socket: &impl Leaves) {
        let _ = socket.put(self);
        if self.bytes_per_s.is_some() && engine::engine().is_ok_and(|engine| engine.network.qdisc() != Qdisc::Fq) {
            static SAID: Once = Once::new();
            SAID.call_once(|| {
                say::line(format_args!(
                    "the program paces its sockets (SO_MAX_PACING_RATE), which needs --qdisc fq: they are not paced"
                ))
            });
        }
    }
}

/// SO_MAX_PACING_RATE in bytes a second, if it bounds anything.
fn rate(value: &[u8]) -> Option<u64> {
    match (value.first_chunk::<8>(), value.first_chunk::<4>()) {
        (Some(long), _) => Some(u64::from_ne_bytes(*long)).filter(|rate| *rate != u64::MAX),
        (None, Some(short)) => Some(u64::from(u32::from_ne_bytes(*short))).filter(|rate| *rate != u64::from(u32::MAX)),
        (None, None) => None,
    }
    // A rate of zero lets a frame through now and then (`fq_dequeue`), as the lowest rate does.
    .map(|rate| rate.max(1))
}

/// SO_MAX_PACING_RATE as a call with room for so many bytes gets it: what does not fit is as much as fits.
pub(super) fn answer(value: Vec<u8>, room: usize) -> Vec<u8> {
    match value.first_chunk::<8>() {
        Some(long) if room < 8 => u32::try_from(u64::from_ne_bytes(*long)).unwrap_or(u32::MAX).to_ne_bytes().to_vec(),
        _ => value,
    }
}

/// A socket of lull's to which this applies.
pub(in crate::socket) trait Leaves {
    fn put(&self, egress: Egress) -> io::Result<()>;
}

macro_rules! leaves {
    ($($socket:ty),*) => {$(
        impl Leaves for $socket {
            fn put(&self, egress: Egress) -> io::Result<()> {
                self.set_priority(egress.priority, true)?;
                self.set_max_pacing_rate(egress.bytes_per_s)?;
                let [v4, v6] = egress.ip;
                self.set_ip_fields(false, v4)?;
                self.set_ip_fields(true, v6)
            }
        }
    )*};
}
leaves!(TcpStream, UdpSocket);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_bounds_unless_it_is_all_ones_and_none_is_nothing_at_all() {
        assert_eq!(rate(&u64::MAX.to_ne_bytes()), None);
        assert_eq!(rate(&u32::MAX.to_ne_bytes()), None);
        assert_eq!(rate(&5_000_000_000_u64.to_ne_bytes()), Some(5_000_000_000));
        assert_eq!(rate(&7_u32.to_ne_bytes()), Some(7));
        assert_eq!(rate(&0_u64.to_ne_bytes()), Some(1));
    }

    #[test]
    fn a_short_answer_to_a_high_rate_is_as_much_as_fits() {
        let high = 5_000_000_000_u64.to_ne_bytes().to_vec();
        assert_eq!(answer(high.clone(), 8), high);
        assert_eq!(answer(high, 4), u32::MAX.to_ne_bytes());
        assert_eq!(answer(1_000_u64.to_ne_bytes().to_vec(), 4), 1_000_u32.to_ne_bytes());
    }
}
