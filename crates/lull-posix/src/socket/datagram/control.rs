//! Ancillary data of datagrams: when one came, the own address that it came to or comes from, what its IP header says, and how long
//! each of several is.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, SystemTime};

use libc::c_int;
use lull_net::{Received, SendOptions};

use crate::socket::options::Name;
use crate::{Errno, Result, kernel};

/// `cmsghdr`: length, level, type; what follows is aligned to eight bytes.
const HEADER_BYTES: usize = size_of::<libc::cmsghdr>();
const ALIGN: usize = size_of::<usize>();
/// `in_pktinfo`: interface, address to send from, address that it came to.
const V4_BYTES: usize = 12;
/// `in6_pktinfo`: address, interface.
const V6_BYTES: usize = 20;

/// The options that ask for such data, for IPv4 and for IPv6 each time.
const ADDRESS: [Name; 2] = [(libc::SOL_IP, libc::IP_PKTINFO), (libc::SOL_IPV6, libc::IPV6_RECVPKTINFO)];
const HOP_LIMIT: [Name; 2] = [(libc::SOL_IP, libc::IP_RECVTTL), (libc::SOL_IPV6, libc::IPV6_RECVHOPLIMIT)];
const TRAFFIC_CLASS: [Name; 2] = [(libc::SOL_IP, libc::IP_RECVTOS), (libc::SOL_IPV6, libc::IPV6_RECVTCLASS)];

/// The options that ask when a datagram came, in microseconds and in nanoseconds. The kernel has at most one of the two
/// set (`sock_set_timestamp`).
const TIMESTAMP: [Name; 2] = [(libc::SOL_SOCKET, libc::SO_TIMESTAMP), (libc::SOL_SOCKET, libc::SO_TIMESTAMPNS)];

/// Whether an option is one of them.
pub(super) fn concerns(name: Name) -> bool {
    [ADDRESS, HOP_LIMIT, TRAFFIC_CLASS, TIMESTAMP].as_flattened().contains(&name)
}

/// Whether a socket of the kernel's has an option on.
pub(super) fn is_on(fd: c_int, (level, name): Name) -> bool {
    kernel::int_option(fd, level, name).is_ok_and(|value| value != 0)
}

/// Whether each kind was asked for, over IPv4 and over IPv6.
#[derive(Debug, Default)]
struct Flags([AtomicBool; 2]);

impl Flags {
    /// As the placeholder has it set.
    fn renew(&self, fd: c_int, names: [Name; 2]) {
        self.0.iter().zip(names).for_each(|(flag, name)| flag.store(is_on(fd, name), Relaxed));
    }

    fn is_set(&self, is_v6: bool) -> bool {
        self.0[usize::from(is_v6)].load(Relaxed)
    }
}

/// Which ancillary data the program asked for.
#[derive(Debug, Default)]
pub(super) struct Wanted {
    address: Flags,
    hop_limit: Flags,
    traffic_class: Flags,
    /// The time of arrival in microseconds, and in nanoseconds.
    timestamp: Flags,
}

impl Wanted {
    /// Reads what was set on the placeholder.
    pub(super) fn renew(&self, fd: c_int) {
        self.address.renew(fd, ADDRESS);
        self.hop_limit.renew(fd, HOP_LIMIT);
        self.traffic_class.renew(fd, TRAFFIC_CLASS);
        self.timestamp.renew(fd, TIMESTAMP);
    }

    /// Writes what was asked for about a datagram. Returns how many bytes it took, and MSG_CTRUNC if there was too little room.
    pub(super) fn write(&self, received: &Received, room: &mut [u8]) -> (usize, c_int) {
        let mut writer = Writer::new(room);
        // In the order that `udp_recvmsg` writes them in.
        self.write_timestamp(received.waited_ns, &mut writer);
        if let Some(each_bytes) = received.each_bytes {
            // It has the size of an int (`udp_cmsg_recv`).
            writer.put(libc::SOL_UDP, libc::UDP_GRO, &c_int::from(each_bytes).to_ne_bytes());
        }
        self.write_header((received.to, received.own), (received.traffic_class, received.hop_limit), &mut writer);
        (writer.used, writer.flags)
    }

    /// When it came, by the clock of the day: seconds and what is beyond them (`__sock_recv_timestamp`).
    pub(super) fn write_timestamp(&self, waited_ns: u64, writer: &mut Writer<'_>) {
        let [micros, nanos] = [false, true].map(|nanos| self.timestamp.is_set(nanos));
        if !micros && !nanos {
            return;
        }
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let came = now.saturating_sub(Duration::from_nanos(waited_ns));
        let beyond = if nanos { came.subsec_nanos() } else { came.subsec_micros() };
        let kind = if nanos { libc::SO_TIMESTAMPNS } else { libc::SO_TIMESTAMP };
        let data = [came.as_secs().to_ne_bytes(), u64::from(beyond).to_ne_bytes()].concat();
        writer.put(libc::SOL_SOCKET, kind, &data);
    }

    /// What a packet's IP header says: where it came to and which own address an answer comes from, its class and its hop limit.
    pub(super) fn write_header(
        &self,
        (to, own): (IpAddr, IpAddr),
        (class, hop_limit): (u8, u8),
        writer: &mut Writer<'_>,
    ) {
        self.write_address(to, own, writer);
        // Ints but for one byte of IPv4's class (`ip_cmsg_recv_tos`).
        let is_v6 = to.is_ipv6();
        if self.hop_limit.is_set(is_v6) {
            let [v4, v6] = [(libc::SOL_IP, libc::IP_TTL), (libc::SOL_IPV6, libc::IPV6_HOPLIMIT)];
            let (level, kind) = if is_v6 { v6 } else { v4 };
            writer.put(level, kind, &c_int::from(hop_limit).to_ne_bytes());
        }
        if self.traffic_class.is_set(is_v6) {
            match is_v6 {
                true => writer.put(libc::SOL_IPV6, libc::IPV6_TCLASS, &c_int::from(class).to_ne_bytes()),
                false => writer.put(libc::SOL_IP, libc::IP_TOS, &[class]),
            }
        }
    }

    /// The address that a datagram came to, and the own one that an answer comes from. The interface is none of the kernel's, so its
    /// number is 0.
    fn write_address(&self, to: IpAddr, own: IpAddr, writer: &mut Writer<'_>) {
        if self.address.is_set(true) {
            let to = match to {
                IpAddr::V4(to) => to.to_ipv6_mapped(),
                IpAddr::V6(to) => to,
            };
            let mut info = [0; V6_BYTES];
            info[..16].copy_from_slice(&to.octets());
            writer.put(libc::SOL_IPV6, libc::IPV6_PKTINFO, &info);
        }
        if let (IpAddr::V4(to), IpAddr::V4(own)) = (to, own)
            && self.address.is_set(false)
        {
            let mut info = [0; V4_BYTES];
            info[4..8].copy_from_slice(&own.octets());
            info[8..].copy_from_slice(&to.octets());
            writer.put(libc::SOL_IP, libc::IP_PKTINFO, &info);
        }
    }
}

/// Writes ancillary data as long as there is room.
pub(in crate::socket) struct Writer<'a> {
    room: &'a mut [u8],
    /// How many bytes were written.
    pub(in crate::socket) used: usize,
    /// MSG_CTRUNC, if something did not fit.
    pub(in crate::socket) flags: c_int,
}

impl<'a> Writer<'a> {
    pub(in crate::socket) fn new(room: &'a mut [u8]) -> Writer<'a> {
        Writer { room, used: 0, flags: 0 }
    }

    /// As `put_cmsg` does: what does not fit is cut off, and the flags say so.
    pub(in crate::socket) fn put(&mut self, level: c_int, kind: c_int, data: &[u8]) {
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

/// What the ancillary data of a datagram say that leaves over IPv6 or over IPv4 (`udp_cmsg_send`, and `ip6_datagram_send_ctl` or
/// `ip_cmsg_send`), on a socket that has `each_bytes` for UDP_SEGMENT. What nothing would act on is refused.
pub(super) fn asked(control: &[u8], each_bytes: u16, domain: c_int, over_v6: bool) -> Result<SendOptions> {
    let mut asked = SendOptions { each_bytes, ..SendOptions::default() };
    for said in headers(control) {
        let (level, kind, data) = said?;
        let [v4, v6] = &mut asked.ip;
        match (level, kind) {
            (libc::SOL_IP, libc::IP_PKTINFO) if !over_v6 => {
                let info: &[u8; V4_BYTES] = data.try_into().map_err(|_| INVALID)?;
                asked.from = specified(IpAddr::V4(Ipv4Addr::new(info[4], info[5], info[6], info[7])));
            }
            (libc::SOL_IPV6, libc::IPV6_PKTINFO) if domain == libc::AF_INET6 => {
                let info: &[u8; V6_BYTES] = data.first_chunk().ok_or(INVALID)?;
                let from = Ipv6Addr::from(*info.first_chunk::<16>().ok_or(INVALID)?);
                if !over_v6 && from.to_ipv4_mapped().is_none() {
                    return Err(INVALID);
                }
                asked.from = specified(from.to_canonical());
            }
            (libc::SOL_UDP, libc::UDP_SEGMENT) => {
                asked.each_bytes = u16::from_ne_bytes(data.try_into().map_err(|_| INVALID)?);
            }
            (libc::SOL_IP, libc::IP_TTL) if !over_v6 => {
                v4.hop_limit = Some(byte(data).filter(|limit| *limit != 0).ok_or(INVALID)?);
            }
            (libc::SOL_IP, libc::IP_TOS) if !over_v6 => {
                v4.traffic_class = Some(if let [class] = data { *class } else { byte(data).ok_or(INVALID)? });
            }
            (libc::SOL_IPV6, libc::IPV6_HOPLIMIT) if over_v6 => {
                v6.hop_limit = byte_or_sockets(data)?;
            }
            (libc::SOL_IPV6, libc::IPV6_TCLASS) if over_v6 => {
                v6.traffic_class = byte_or_sockets(data)?;
            }
            (libc::SOL_SOCKET, kind) => said_of_any_socket(kind)?,
            (libc::SOL_UDP, _) => return Err(INVALID),
            (libc::SOL_IP, _) if !over_v6 => return Err(INVALID),
            (libc::SOL_IPV6, _) if over_v6 => return Err(INVALID),
            // Data of another protocol are ignored.
            _ => {}
        }
    }
    Ok(asked)
}

/// Whether the ancillary data of a connection's message are some that Linux takes (`sock_cmsg_send`).
pub(in crate::socket) fn check_of_stream(control: &[u8]) -> Result<()> {
    headers(control).try_for_each(|said| match said? {
        (libc::SOL_SOCKET, kind, _) => said_of_any_socket(kind),
        _ => Ok(()),
    })
}

/// What any socket may be told: what is for Unix sockets does nothing elsewhere (`__sock_cmsg_send`).
fn said_of_any_socket(kind: c_int) -> Result<()> {
    if matches!(kind, libc::SCM_RIGHTS | libc::SCM_CREDENTIALS) { Ok(()) } else { Err(INVALID) }
}

/// Level, type and data of each of them, up to the first that is malformed (`for_each_cmsghdr`, `CMSG_OK`).
fn headers(mut control: &[u8]) -> impl Iterator<Item = Result<(c_int, c_int, &[u8])>> {
    std::iter::from_fn(move || {
        let (header, _) = control.split_at_checked(HEADER_BYTES)?;
        let number = |at: usize| c_int::from_ne_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
        let length = usize::from_ne_bytes(*header.first_chunk()?);
        let data = control.get(HEADER_BYTES..length);
        let next = data.and_then(|_| control.get(length.next_multiple_of(ALIGN)..));
        control = next.unwrap_or(&[]);
        Some(data.map(|data| (number(8), number(12), data)).ok_or(INVALID))
    })
}

const INVALID: Errno = Errno::new(libc::EINVAL);

fn specified(address: IpAddr) -> Option<IpAddr> {
    Some(address).filter(|address| !address.is_unspecified())
}

/// Reads an int that a byte can hold.
fn byte(data: &[u8]) -> Option<u8> {
    u8::try_from(c_int::from_ne_bytes(data.try_into().ok()?)).ok()
}

/// Reads the same, but -1 stands for the socket's own value (`ip6_datagram_send_ctl`).
fn byte_or_sockets(data: &[u8]) -> Result<Option<u8>> {
    if data == (-1 as c_int).to_ne_bytes() {
        return Ok(None);
    }
    byte(data).map(Some).ok_or(INVALID)
}

#[cfg(test)]
mod tests {
    use lull_net::IpFields;

    use super::*;

    /// What is written about a datagram that came to an address.
    fn written(wanted: &Wanted, to: IpAddr, room: &mut [u8]) -> (usize, c_int) {
        let mut writer = Writer { room, used: 0, flags: 0 };
        wanted.write_address(to, to, &mut writer);
        (writer.used, writer.flags)
    }

    fn from(said: Option<IpAddr>) -> Result<SendOptions> {
        Ok(SendOptions { from: said, ..SendOptions::default() })
    }

    fn both() -> Wanted {
        Wanted { address: Flags([true, true].map(AtomicBool::new)), ..Wanted::default() }
    }

    #[test]
    fn what_is_written_about_a_datagram_says_where_its_answer_comes_from() {
        let mut room = [0xff; 128];
        for text in ["10.0.0.2", "fd00::2"] {
            let to: IpAddr = text.parse().unwrap();
            let (used, flags) = written(&both(), to, &mut room);
            assert_eq!((used, flags), (if to.is_ipv4() { 32 + 40 } else { 40 }, 0));
            assert_eq!(asked(&room[..used], 0, libc::AF_INET6, to.is_ipv6()), from(Some(to)));
        }
        assert_eq!(written(&Wanted::default(), "10.0.0.2".parse().unwrap(), &mut room), (0, 0));
    }

    #[test]
    fn an_answer_to_what_was_sent_to_everybody_comes_from_an_own_address() {
        let mut room = [0xff; 128];
        let (everybody, own): (IpAddr, IpAddr) = ("10.0.0.255".parse().unwrap(), "10.0.0.2".parse().unwrap());
        let only_v4 = Wanted { address: Flags([true, false].map(AtomicBool::new)), ..Wanted::default() };
        let mut writer = Writer { room: &mut room, used: 0, flags: 0 };
        only_v4.write_address(everybody, own, &mut writer);
        let used = writer.used;
        assert_eq!(room[HEADER_BYTES..][4..12], [10, 0, 0, 2, 10, 0, 0, 255]);
        assert_eq!(asked(&room[..used], 0, libc::AF_INET, false), from(Some(own)));
    }

    #[test]
    fn too_little_room_is_said() {
        let to = "10.0.0.2".parse().unwrap();
        let only_v4 = Wanted { address: Flags([true, false].map(AtomicBool::new)), ..Wanted::default() };
        assert_eq!(written(&only_v4, to, &mut [0; 8]), (0, libc::MSG_CTRUNC));
        let mut room = [0; 20];
        assert_eq!(written(&only_v4, to, &mut room), (20, libc::MSG_CTRUNC));
        assert_eq!(room[0], 20, "the header says how much is there");
    }

    #[test]
    fn what_nobody_would_do_is_refused() {
        let mut room = [0; 24];
        room[..8].copy_from_slice(&20_usize.to_ne_bytes());
        room[12] = libc::IP_RETOPTS as u8;
        assert_eq!(asked(&room, 0, libc::AF_INET, false), Err(Errno::new(libc::EINVAL)));
        room[..8].copy_from_slice(&100_usize.to_ne_bytes());
        assert_eq!(asked(&room, 0, libc::AF_INET, false), Err(Errno::new(libc::EINVAL)), "longer than there is");
        assert_eq!(asked(&[0; 8], 0, libc::AF_INET, false), from(None), "shorter than a header");
    }

    /// What the ancillary data of one message ask for.
    fn asked_by(level: c_int, kind: c_int, data: &[u8]) -> Result<[IpFields; 2]> {
        let mut room = [0; 64];
        let mut writer = Writer { room: &mut room, used: 0, flags: 0 };
        writer.put(level, kind, data);
        let used = writer.used;
        let (domain, over_v6) = if level == libc::SOL_IPV6 { (libc::AF_INET6, true) } else { (libc::AF_INET, false) };
        asked(&room[..used], 0, domain, over_v6).map(|asked| asked.ip)
    }

    #[test]
    fn hop_limits_and_classes_have_linuxs_lengths_and_bounds() {
        let int = |value: c_int| value.to_ne_bytes();
        let v4 = |fields| Ok([fields, IpFields::default()]);
        let v6 = |fields| Ok([IpFields::default(), fields]);
        let hops = |hop_limit| IpFields { hop_limit, traffic_class: None };
        let class = |traffic_class| IpFields { traffic_class, hop_limit: None };
        assert_eq!(asked_by(libc::SOL_IP, libc::IP_TTL, &int(255)), v4(hops(Some(255))));
        assert_eq!(asked_by(libc::SOL_IP, libc::IP_TTL, &int(0)), Err(INVALID));
        assert_eq!(asked_by(libc::SOL_IP, libc::IP_TTL, &int(256)), Err(INVALID));
        assert_eq!(asked_by(libc::SOL_IP, libc::IP_TTL, &[9]), Err(INVALID), "it is an int");
        assert_eq!(asked_by(libc::SOL_IP, libc::IP_TOS, &[0xb8]), v4(class(Some(0xb8))));
        assert_eq!(asked_by(libc::SOL_IP, libc::IP_TOS, &int(0)), v4(class(Some(0))));
        assert_eq!(asked_by(libc::SOL_IP, libc::IP_TOS, &int(-1)), Err(INVALID));
        assert_eq!(asked_by(libc::SOL_IPV6, libc::IPV6_HOPLIMIT, &int(0)), v6(hops(Some(0))));
        assert_eq!(asked_by(libc::SOL_IPV6, libc::IPV6_HOPLIMIT, &int(-1)), v6(hops(None)));
        assert_eq!(asked_by(libc::SOL_IPV6, libc::IPV6_HOPLIMIT, &int(-2)), Err(INVALID));
        assert_eq!(asked_by(libc::SOL_IPV6, libc::IPV6_TCLASS, &int(0xb8)), v6(class(Some(0xb8))));
        assert_eq!(asked_by(libc::SOL_IPV6, libc::IPV6_TCLASS, &[9]), Err(INVALID));
    }

    #[test]
    fn the_length_of_each_datagram_is_two_bytes_and_beside_the_address() {
        let mut room = [0; 128];
        let to: IpAddr = "10.0.0.2".parse().unwrap();
        let (used, _) = written(&both(), to, &mut room);
        let mut writer = Writer { room: &mut room[used..], used: 0, flags: 0 };
        writer.put(libc::SOL_UDP, libc::UDP_SEGMENT, &500_u16.to_ne_bytes());
        let all = used + writer.used;
        assert_eq!(
            asked(&room[..all], 9, libc::AF_INET6, false),
            Ok(SendOptions { from: Some(to), each_bytes: 500, ..SendOptions::default() })
        );
        assert_eq!(
            asked(&[], 9, libc::AF_INET6, false),
            Ok(SendOptions { each_bytes: 9, ..SendOptions::default() }),
            "the socket's own"
        );
        let mut writer = Writer { room: &mut room, used: 0, flags: 0 };
        writer.put(libc::SOL_UDP, libc::UDP_SEGMENT, &500_u32.to_ne_bytes());
        assert_eq!(asked(&room[..24], 0, libc::AF_INET, false), Err(Errno::new(libc::EINVAL)), "it is no int");
    }
}
