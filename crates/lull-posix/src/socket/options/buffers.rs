//! How much a socket holds: SO_SNDBUF, SO_RCVBUF and what goes with them. A socket of the kernel's judges the values, doubles and
//! bounds them; what it says of them afterwards is in force here.
//!
//! Linux counts the memory of packets, lull the bytes in them. What may be written is as much as SO_SNDBUF reads, since Linux's packets
//! are full where much is written. The window is half of what SO_RCVBUF reads, which is what was asked for: Linux begins with the
//! same half (`TCP_DEFAULT_SCALING_RATIO`), and takes more as it sees how full the packets are.

use lull_net::{SendRoom, TcpStream};

use libc::c_int;

use super::{Name, int};
use crate::kernel;

const SEND: Name = (libc::SOL_SOCKET, libc::SO_SNDBUF);
pub(in crate::socket) const RECEIVE: Name = (libc::SOL_SOCKET, libc::SO_RCVBUF);
const UNSENT: Name = (libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT);
/// SO_BUF_LOCK says which of the two buffers the program has set. Linux has it since 5.14; on an older kernel this
/// cannot be known, and neither counts as set.
pub(super) const LOCKS: Name = (libc::SOL_SOCKET, 72);
/// `SOCK_SNDBUF_LOCK`, `SOCK_RCVBUF_LOCK`.
const SEND_LOCK: c_int = 1;
const RECEIVE_LOCK: c_int = 2;

/// All that says how large buffers are.
pub(super) const ALL: [Name; 4] = [SEND, RECEIVE, UNSENT, LOCKS];

/// Whether an option changes how much a socket holds.
pub(in crate::socket) fn concerns(name: Name) -> bool {
    ALL.contains(&is_read_as(name))
}

/// Whether an option locks a buffer by its being set.
pub(super) fn locks(name: Name) -> bool {
    [SEND, RECEIVE].contains(&is_read_as(name))
}

/// The option by which a value is read that another option can only set.
pub(in crate::socket) fn is_read_as(name: Name) -> Name {
    match name {
        (libc::SOL_SOCKET, libc::SO_SNDBUFFORCE) => SEND,
        (libc::SOL_SOCKET, libc::SO_RCVBUFFORCE) => RECEIVE,
        _ => name,
    }
}

/// What a socket asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::socket) struct Buffers {
    /// The receive buffer in bytes; 0 stands for lull's own choice.
    pub(in crate::socket) receive: usize,
    room: SendRoom,
}

impl Buffers {
    /// From the values that `getsockopt` gives out.
    pub(super) fn of(value: impl Fn(Name) -> Option<Vec<u8>>) -> Buffers {
        let number = |name| value(name).and_then(|value| int(&value).ok()).filter(|number| *number > 0).unwrap_or(0);
        let locks = number(LOCKS);
        let locked = |lock, name| if locks & lock != 0 { number(name) as usize } else { 0 };
        let room = SendRoom { bytes: locked(SEND_LOCK, SEND), unsent_bytes: number(UNSENT) as usize };
        Buffers { receive: locked(RECEIVE_LOCK, RECEIVE) / 2, room }
    }

    /// Puts it in force. A connection that is over needs none of it.
    pub(super) fn put(self, stream: &TcpStream) {
        if self.receive != 0 {
            let _ = stream.set_receive_buffer(self.receive);
        }
        let _ = stream.set_send_room(self.room);
    }
}

/// How much lull's half of a datagram socket may hold unread, which is as much as the kernel's half.
pub(in crate::socket) fn receive_buffer(fd: c_int) -> usize {
    kernel::int_option(fd, libc::SOL_SOCKET, libc::SO_RCVBUF).unwrap_or(0).max(0) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(values: &[(Name, c_int)]) -> Buffers {
        Buffers::of(|name| values.iter().find(|(of, _)| *of == name).map(|(_, value)| value.to_ne_bytes().to_vec()))
    }

    #[test]
    fn what_nobody_has_set_bounds_nothing() {
        assert_eq!(of(&[(SEND, 16_384), (RECEIVE, 131_072), (UNSENT, 0), (LOCKS, 0)]), Buffers::default());
        assert_eq!(of(&[(SEND, 16_384), (RECEIVE, 131_072)]), Buffers::default(), "a kernel that does not say");
    }

    #[test]
    fn the_window_is_half_of_what_the_receive_buffer_reads() {
        assert_eq!(of(&[(RECEIVE, 40_000), (LOCKS, 2)]).receive, 20_000);
        assert_eq!(of(&[(RECEIVE, 40_000), (LOCKS, 1)]).receive, 0);
        // The largest buffer that Linux gives to a process with CAP_NET_ADMIN.
        assert_eq!(of(&[(RECEIVE, c_int::MAX - 1), (LOCKS, 2)]).receive, *lull_net::BUFFER_BYTES_RANGE.end());
    }

    #[test]
    fn as_much_may_be_written_as_the_send_buffer_reads() {
        let room = of(&[(SEND, 8_192), (LOCKS, 3), (UNSENT, 7)]).room;
        assert_eq!(room, SendRoom { bytes: 8_192, unsent_bytes: 7 });
        assert_eq!(of(&[(SEND, 8_192), (UNSENT, -1)]).room, SendRoom::default(), "the largest is none");
    }
}
