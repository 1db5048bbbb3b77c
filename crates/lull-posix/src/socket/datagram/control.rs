//! Ancillary data of datagrams: the own address that one came to or comes from, and how long each of several is.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use libc::c_int;
use lull_net::Received;

use crate::{Errno, Result, kernel};

/// `cmsghdr`: length, level, type; what follows is aligned to eight bytes.
const HEADER_BYTES: usize = size_of::<libc::cmsghdr>();
const ALIGN: usize = size_of::<usize>();
/// `in_pktinfo`: interface, address to send from, address that it came to.
const V4_BYTES: usize = 12;
/// `in6_pktinfo`: address, interface.
const V6_BYTES: usize = 20;

/// What the program asked for.
#[derive(Debug, Default)]
pub(super) struct Wanted {
    v4: AtomicBool,
    v6: AtomicBool,
}

impl Wanted {
    /// Reads what was set on the placeholder.
    pub(super) fn renew(&self, fd: c_int) {
        let flag = |level, name| kernel::int_option(fd, level, name).is_ok_and(|value| value != 0);
        self.v4.store(flag(libc::SOL_IP, libc::IP_PKTINFO), Relaxed);
        self.v6.store(flag(libc::SOL_IPV6, libc::IPV6_RECVPKTINFO), Relaxed);
    }

    /// Writes what was asked for about a datagram. Returns how many bytes it took, and MSG_CTRUNC if there was too little room.
    pub(super) fn write(&self, received: &Received, room: &mut [u8]) -> (usize, c_int) {
        let mut writer = Writer { room, used: 0, flags: 0 };
        if let Some(each_bytes) = received.each_bytes {
            // It has the size of an int (`udp_cmsg_recv`).
            writer.put(libc::SOL_UDP, libc::UDP_GRO, &c_int::from(each_bytes).to_ne_bytes());
        }
        self.write_address(received.to, &mut writer);
        (writer.used, writer.flags)
    }

    /// The own address that a datagram came to. The interface is none of the kernel's, so its number is 0.
    fn write_address(&self, to: IpAddr, writer: &mut Writer<'_>) {
        if let IpAddr::V4(to) = to
            && self.v4.load(Relaxed)
        {
            let mut info = [0; V4_BYTES];
            info[4..8].copy_from_slice(&to.octets());
            info[8..].copy_from_slice(&to.octets());
            writer.put(libc::SOL_IP, libc::IP_PKTINFO, &info);
        }
        if self.v6.load(Relaxed) {
            let to = match to {
                IpAddr::V4(to) => to.to_ipv6_mapped(),
                IpAddr::V6(to) => to,
            };
            let mut info = [0; V6_BYTES];
            info[..16].copy_from_slice(&to.octets());
            writer.put(libc::SOL_IPV6, libc::IPV6_PKTINFO, &info);
        }
    }
}

struct Writer<'a> {
    room: &'a mut [u8],
    used: usize,
    flags: c_int,
}

impl Writer<'_> {
    /// `put_cmsg`: what does not fit is cut off, and that is said.
    fn put(&mut self, level: c_int, kind: c_int, data: &[u8]) {
        let room = &mut self.room[self.used..];
        if room.len() < HEADER_BYTES {
            self.flags |= libc::MSG_CTRUNC;
            return;
        }
        let whole = HEADER_BYTES + data.len();
        let length = whole.min(room.len());
        if length < whole {
            self.flags |= libc::MSG_CTRUNC;
        }
        room[..8].copy_from_slice(&length.to_ne_bytes());
        room[8..12].copy_from_slice(&level.to_ne_bytes());
        room[12..16].copy_from_slice(&kind.to_ne_bytes());
        room[HEADER_BYTES..length].copy_from_slice(&data[..length - HEADER_BYTES]);
        self.used += whole.next_multiple_of(ALIGN).min(room.len());
    }
}

/// How a datagram is to be sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Asked {
    /// The own address that it is to come from.
    pub(super) from: Option<IpAddr>,
    /// How long each of several datagrams is that are sent at once; 0: it is one.
    pub(super) each_bytes: u16,
}

/// What the ancillary data of a datagram say (`udp_cmsg_send`, `ip_cmsg_send`), on a socket that has `each_bytes` for
/// UDP_SEGMENT. Whatever else they say is refused: it would be done by nobody.
pub(super) fn asked(mut control: &[u8], each_bytes: u16) -> Result<Asked> {
    const INVALID: Errno = Errno::new(libc::EINVAL);
    let mut asked = Asked { from: None, each_bytes };
    while control.len() >= HEADER_BYTES {
        let (header, _) = control.split_at(HEADER_BYTES);
        let number = |at: usize| c_int::from_ne_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
        let length = usize::from_ne_bytes(*header.first_chunk().ok_or(INVALID)?);
        let data = control.get(HEADER_BYTES..length).ok_or(INVALID)?;
        let said = match (number(8), number(12)) {
            (libc::SOL_IP, libc::IP_PKTINFO) => {
                let info: &[u8; V4_BYTES] = data.try_into().map_err(|_| INVALID)?;
                IpAddr::V4(Ipv4Addr::new(info[4], info[5], info[6], info[7]))
            }
            (libc::SOL_IPV6, libc::IPV6_PKTINFO) => {
                let info: &[u8; V6_BYTES] = data.try_into().map_err(|_| INVALID)?;
                IpAddr::V6(Ipv6Addr::from(*info.first_chunk::<16>().ok_or(INVALID)?)).to_canonical()
            }
            (libc::SOL_UDP, libc::UDP_SEGMENT) => {
                asked.each_bytes = u16::from_ne_bytes(data.try_into().map_err(|_| INVALID)?);
                control = control.get(length.next_multiple_of(ALIGN)..).unwrap_or(&[]);
                continue;
            }
            _ => return Err(INVALID),
        };
        asked.from = Some(said).filter(|said| !said.is_unspecified());
        control = control.get(length.next_multiple_of(ALIGN)..).unwrap_or(&[]);
    }
    Ok(asked)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is written about a datagram that came to an address.
    fn written(wanted: &Wanted, to: IpAddr, room: &mut [u8]) -> (usize, c_int) {
        let mut writer = Writer { room, used: 0, flags: 0 };
        wanted.write_address(to, &mut writer);
        (writer.used, writer.flags)
    }

    fn from(said: Option<IpAddr>) -> Result<Asked> {
        Ok(Asked { from: said, each_bytes: 0 })
    }

    fn both() -> Wanted {
        Wanted { v4: AtomicBool::new(true), v6: AtomicBool::new(true) }
    }

    #[test]
    fn what_is_written_about_a_datagram_says_where_its_answer_comes_from() {
        let mut room = [0xff; 128];
        for text in ["10.0.0.2", "fd00::2"] {
            let to: IpAddr = text.parse().unwrap();
            let (used, flags) = written(&both(), to, &mut room);
            assert_eq!((used, flags), (if to.is_ipv4() { 32 + 40 } else { 40 }, 0));
            assert_eq!(asked(&room[..used], 0), from(Some(to)));
        }
        assert_eq!(written(&Wanted::default(), "10.0.0.2".parse().unwrap(), &mut room), (0, 0));
    }

    #[test]
    fn too_little_room_is_said() {
        let to = "10.0.0.2".parse().unwrap();
        let only_v4 = Wanted { v4: AtomicBool::new(true), ..Wanted::default() };
        assert_eq!(written(&only_v4, to, &mut [0; 8]), (0, libc::MSG_CTRUNC));
        let mut room = [0; 20];
        assert_eq!(written(&only_v4, to, &mut room), (20, libc::MSG_CTRUNC));
        assert_eq!(room[0], 20, "the header says how much is there");
    }

    #[test]
    fn what_nobody_would_do_is_refused() {
        let mut room = [0; 24];
        room[..8].copy_from_slice(&20_usize.to_ne_bytes());
        room[12] = libc::IP_TTL as u8;
        assert_eq!(asked(&room, 0), Err(Errno::new(libc::EINVAL)));
        room[..8].copy_from_slice(&100_usize.to_ne_bytes());
        assert_eq!(asked(&room, 0), Err(Errno::new(libc::EINVAL)), "longer than there is");
        assert_eq!(asked(&[0; 8], 0), from(None), "shorter than a header");
    }
    #[test]
    fn the_length_of_each_datagram_is_two_bytes_and_beside_the_address() {
        let mut room = [0; 128];
        let to: IpAddr = "10.0.0.2".parse().unwrap();
        let (used, _) = written(&both(), to, &mut room);
        let mut writer = Writer { room: &mut room[used..], used: 0, flags: 0 };
        writer.put(libc::SOL_UDP, libc::UDP_SEGMENT, &500_u16.to_ne_bytes());
        let all = used + writer.used;
        assert_eq!(asked(&room[..all], 9), Ok(Asked { from: Some(to), each_bytes: 500 }));
        assert_eq!(asked(&[], 9), Ok(Asked { from: None, each_bytes: 9 }), "the socket's own");
        let mut writer = Writer { room: &mut room, used: 0, flags: 0 };
        writer.put(libc::SOL_UDP, libc::UDP_SEGMENT, &500_u32.to_ne_bytes());
        assert_eq!(asked(&room[..24], 0), Err(Errno::new(libc::EINVAL)), "it is no int");
    }
}
