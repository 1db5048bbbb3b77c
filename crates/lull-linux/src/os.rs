//! System calls that no kept crate has: epoll's busy-poll ioctls, the NAPI id of a socket, the cookie of a network
//! namespace, scheduling attributes, and whether two descriptors are one open file.
//!
//! Everything unsafe of this crate is in here.

use std::io;
use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use lull_core::EpollParams;

/// `EPIOCSPARAMS` of `linux/eventpoll.h` (Linux 6.9).
const EPIOCSPARAMS: libc::c_ulong = 0x4008_8a01;
/// `EPIOCGPARAMS`.
const EPIOCGPARAMS: libc::c_ulong = 0x8008_8a02;
/// `SO_INCOMING_NAPI_ID` of `asm-generic/socket.h`.
const SO_INCOMING_NAPI_ID: libc::c_int = 56;
/// `SO_NETNS_COOKIE`.
const SO_NETNS_COOKIE: libc::c_int = 71;
/// `KCMP_FILE`.
const KCMP_FILE: libc::c_int = 0;

/// `struct epoll_params`.
#[repr(C)]
struct RawEpollParams {
    busy_poll_usecs: u32,
    busy_poll_budget: u16,
    prefer_busy_poll: u8,
    pad: u8,
}

fn done(result: libc::c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// The busy-poll parameters of an epoll context (`EPIOCGPARAMS`, Linux 6.9).
///
/// # Errors
/// ENOTTY on older kernels, and for descriptors that are no epoll.
pub fn epoll_params(epoll: BorrowedFd<'_>) -> io::Result<EpollParams> {
    let mut raw = RawEpollParams { busy_poll_usecs: 0, busy_poll_budget: 0, prefer_busy_poll: 0, pad: 0 };
    // SAFETY: the request writes a structure of exactly this layout, which outlives the call.
    done(unsafe { libc::ioctl(epoll.as_raw_fd(), EPIOCGPARAMS as libc::Ioctl, &raw mut raw) })?;
    Ok(EpollParams {
        busy_poll_usecs: raw.busy_poll_usecs,
        busy_poll_budget: u32::from(raw.busy_poll_budget),
        prefer_busy_poll: raw.prefer_busy_poll != 0,
    })
}

/// Sets the busy-poll parameters of an epoll context (`EPIOCSPARAMS`).
///
/// # Errors
/// EINVAL for values out of range, EPERM for a budget above 64 without CAP_NET_ADMIN, ENOTTY before Linux 6.9.
pub fn set_epoll_params(epoll: BorrowedFd<'_>, params: &EpollParams) -> io::Result<()> {
    let invalid = |_| io::Error::from_raw_os_error(libc::EINVAL);
    let raw = RawEpollParams {
        busy_poll_usecs: params.busy_poll_usecs,
        busy_poll_budget: u16::try_from(params.busy_poll_budget).map_err(invalid)?,
        prefer_busy_poll: u8::from(params.prefer_busy_poll),
        pad: 0,
    };
    // SAFETY: the request reads a structure of exactly this layout, which outlives the call.
    done(unsafe { libc::ioctl(epoll.as_raw_fd(), EPIOCSPARAMS as libc::Ioctl, &raw const raw) })
}

fn socket_option<T: Copy + Default>(socket: BorrowedFd<'_>, option: libc::c_int) -> io::Result<T> {
    let mut value = T::default();
    let mut length = size_of::<T>() as libc::socklen_t;
    // SAFETY: `value` has `length` bytes, and every use of this function passes an integer type, for which all bit
    // patterns are values.
    done(unsafe {
        libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, option, (&raw mut value).cast(), &raw mut length)
    })?;
    Ok(value)
}

/// The NAPI that delivered the last packet of a socket; 0 if none is known (`SO_INCOMING_NAPI_ID`, Linux 4.12).
///
/// # Errors
/// ENOTSOCK for other descriptors.
pub fn incoming_napi_id(socket: BorrowedFd<'_>) -> io::Result<u32> {
    socket_option::<u32>(socket, SO_INCOMING_NAPI_ID)
}

/// The network namespace of the calling thread, by a number that is never used again until the next boot
/// (`SO_NETNS_COOKIE`, Linux 5.14).
///
/// # Errors
/// No socket could be made, or the kernel is older.
pub fn netns_cookie() -> io::Result<u64> {
    use rustix::net::{AddressFamily, SocketType, socket};
    let socket = socket(AddressFamily::UNIX, SocketType::DGRAM, None)?;
    socket_option::<u64>(socket.as_fd(), SO_NETNS_COOKIE)
}

/// Whether descriptor `a.1` of process `a.0` and `b.1` of `b.0` are the same open file (`kcmp(2)`).
///
/// # Errors
/// ENOSYS where the kernel has no kcmp, EPERM without the right to inspect one of them.
pub fn same_file(a: (i32, i32), b: (i32, i32)) -> io::Result<bool> {
    // SAFETY: takes numbers only.
    let order =
        unsafe { libc::syscall(libc::SYS_kcmp, a.0, b.0, KCMP_FILE, a.1 as libc::c_ulong, b.1 as libc::c_ulong) };
    if order < 0 { Err(io::Error::last_os_error()) } else { Ok(order == 0) }
}

/// `struct sched_attr` of `linux/sched/types.h`, first published size.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SchedAttr {
    pub size: u32,
    pub policy: u32,
    pub flags: u64,
    pub nice: i32,
    pub priority: u32,
    pub runtime_ns: u64,
    pub deadline_ns: u64,
    pub period_ns: u64,
}

/// `sched_getattr(2)`.
pub(crate) fn sched_attr(pid: i32) -> io::Result<SchedAttr> {
    let mut attr = MaybeUninit::<SchedAttr>::zeroed();
    // SAFETY: the kernel writes at most the size that is passed, which is that of the structure.
    let result =
        unsafe { libc::syscall(libc::SYS_sched_getattr, pid, attr.as_mut_ptr(), size_of::<SchedAttr>(), 0u32) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: integers only, and zero before the kernel wrote.
    Ok(unsafe { attr.assume_init() })
}

/// `sched_setattr(2)`.
pub(crate) fn set_sched_attr(pid: i32, attr: &SchedAttr) -> io::Result<()> {
    let attr = SchedAttr { size: size_of::<SchedAttr>() as u32, ..*attr };
    // SAFETY: the kernel reads `size` bytes, which is that of the structure.
    let result = unsafe { libc::syscall(libc::SYS_sched_setattr, pid, &raw const attr, 0u32) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// `PERF_EVENT_IOC_SET_FILTER` of `linux/perf_event.h`.
const PERF_EVENT_IOC_SET_FILTER: libc::c_ulong = 0x4008_2406;

/// Lets a counter of a tracepoint count only what passes a filter, in the language of `trace/events.rst`.
pub(crate) fn filter_tracepoint(counter: &impl AsRawFd, filter: &std::ffi::CStr) -> io::Result<()> {
    // SAFETY: the request reads a string that ends with a zero and outlives the call.
    done(unsafe { libc::ioctl(counter.as_raw_fd(), PERF_EVENT_IOC_SET_FILTER as libc::Ioctl, filter.as_ptr()) })
}
