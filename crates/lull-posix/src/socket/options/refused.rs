//! Options that change what the data are, or who may see them. lull has none of them, and to accept one without giving
//! it effect would deceive the program.

use libc::c_int;

use super::Name;
use crate::{Errno, Result, flags, kernel};

/// What a kernel says that was built without an option (`sk_setsockopt`, `do_tcp_setsockopt`, `do_ip_setsockopt`): programs know
/// what to do without.
pub(super) const ABSENT: Errno = Errno::new(libc::ENOPROTOOPT);

/// `include/uapi/linux/tcp.h`.
const TCP_MD5SIG_EXT: c_int = 32;
const TCP_AO_ADD_KEY: c_int = 38;
const TCP_AO_DEL_KEY: c_int = 39;
const TCP_AO_INFO: c_int = 40;
/// `include/uapi/asm-generic/socket.h`: the number of SO_ATTACH_FILTER for reading.
const SO_GET_FILTER: c_int = libc::SO_ATTACH_FILTER;

/// SO_PEEK_OFF, from where MSG_PEEK reads. It is below 0 if it was not set.
const PEEK_OFF: Name = (libc::SOL_SOCKET, libc::SO_PEEK_OFF);

const REFUSED: [Name; 19] = [
    (libc::SOL_SOCKET, libc::SO_ATTACH_FILTER),
    (libc::SOL_SOCKET, libc::SO_ATTACH_BPF),
    (libc::SOL_SOCKET, libc::SO_LOCK_FILTER),
    (libc::SOL_SOCKET, libc::SO_BINDTODEVICE),
    (libc::SOL_SOCKET, libc::SO_MARK),
    (libc::SOL_SOCKET, libc::SO_TXTIME),
    (libc::SOL_SOCKET, libc::SO_ZEROCOPY),
    (libc::SOL_SOCKET, libc::SO_TIMESTAMPING),
    PEEK_OFF,
    (libc::SOL_IP, libc::IP_TRANSPARENT),
    (libc::SOL_IP, libc::IP_OPTIONS),
    (libc::SOL_IPV6, libc::IPV6_TRANSPARENT),
    (libc::IPPROTO_TCP, libc::TCP_MD5SIG),
    (libc::IPPROTO_TCP, TCP_MD5SIG_EXT),
    (libc::IPPROTO_TCP, libc::TCP_ULP),
    (libc::IPPROTO_TCP, libc::TCP_REPAIR),
    (libc::IPPROTO_TCP, TCP_AO_ADD_KEY),
    (libc::IPPROTO_TCP, TCP_AO_DEL_KEY),
    (libc::IPPROTO_TCP, TCP_AO_INFO),
];

/// Whether an option is one of these.
pub(super) fn contains(name: Name) -> bool {
    REFUSED.contains(&name)
}

/// Those of [`REFUSED`] whose values are numbers, which are 0 if they were not set.
const NUMBERS: [Name; 8] = [
    (libc::SOL_SOCKET, libc::SO_LOCK_FILTER),
    (libc::SOL_SOCKET, libc::SO_MARK),
    (libc::SOL_SOCKET, libc::SO_ZEROCOPY),
    (libc::SOL_SOCKET, libc::SO_TIMESTAMPING),
    (libc::SOL_IP, libc::IP_TRANSPARENT),
    (libc::SOL_IPV6, libc::IPV6_TRANSPARENT),
    (libc::IPPROTO_TCP, libc::TCP_REPAIR),
    // The length of the options that each packet has.
    (libc::SOL_IP, libc::IP_OPTIONS),
];
/// Those of [`REFUSED`] whose values are names, which are empty if they were not set.
const NAMES: [Name; 2] = [(libc::SOL_SOCKET, libc::SO_BINDTODEVICE), (libc::IPPROTO_TCP, libc::TCP_ULP)];

/// Whether a socket of the kernel's, which is about to become lull's, was given one of these. TCP_MD5SIG cannot be read.
pub(crate) fn is_set(fd: c_int) -> bool {
    let length = |(level, name): Name, room: usize| kernel::getsockopt(fd, level, name, &mut [0; 64][..room]);
    // An extended (eBPF) filter cannot be read, and the error says so.
    let filter = length((libc::SOL_SOCKET, SO_GET_FILTER), 0);
    filter.is_ok_and(|instructions| instructions != 0)
        || filter == Err(Errno::new(libc::EACCES))
        || kernel::int_option(fd, PEEK_OFF.0, PEEK_OFF.1).is_ok_and(|from| from >= 0)
        || NAMES.into_iter().any(|name| length(name, 64).is_ok_and(|length| length != 0))
        || NUMBERS.into_iter().any(|(level, name)| kernel::int_option(fd, level, name).is_ok_and(|value| value != 0))
}

/// Refuses to make such a socket lull's.
pub(crate) fn check(fd: c_int) -> Result<()> {
    flags::signals_no_more(fd);
    if is_set(fd) { Err(Errno::new(libc::EOPNOTSUPP)) } else { Ok(()) }
}
