//! A network namespace of our own, without privileges: where the lab and the tests make their interfaces.

use std::io;
use std::mem;
use std::os::fd::{AsRawFd, OwnedFd};

use crate::device::DeviceError;
use crate::eventfd::owned;

/// Moves into a fresh network namespace and brings its `lo` up. Root moves the calling thread (and threads it spawns
/// later) with the network namespace alone; anyone else gets a user namespace around it and is root in there.
///
/// The namespace ends with its last thread.
///
/// # Errors
/// [`DeviceError::Os`] when the kernel forbids it, or, for the user namespace, when the process already has more than
/// one thread: `unshare(2)` with `CLONE_NEWUSER` takes a single-threaded process only.
pub fn enter_private() -> Result<(), DeviceError> {
    // SAFETY: no arguments, cannot fail.
    let (uid, gid) = unsafe { (libc::geteuid(), libc::getegid()) };
    if uid != 0 || unshare(libc::CLONE_NEWNET).is_err() {
        enter_user_namespace(uid, gid)?;
    }
    loopback_up()
}

fn enter_user_namespace(uid: libc::uid_t, gid: libc::gid_t) -> Result<(), DeviceError> {
    let threads = thread_count();
    if threads > 1 {
        return Err(failed(
            format!("enter a user namespace with {threads} threads running"),
            "call this first thing in main, before any thread is started",
            io::Error::from_raw_os_error(libc::EINVAL),
        ));
    }
    let remedy = "allow unprivileged user namespaces (sysctl kernel.unprivileged_userns_clone=1, \
                  kernel.apparmor_restrict_unprivileged_userns=0, user.max_user_namespaces), or run as root";
    unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWNET)
        .map_err(|source| failed("enter a user and a network namespace".to_owned(), remedy, source))?;
    // The kernel takes a gid map from the unprivileged only once setgroups is denied (user_namespaces(7)).
    for (file, content) in
        [("setgroups", "deny".to_owned()), ("uid_map", format!("0 {uid} 1")), ("gid_map", format!("0 {gid} 1"))]
    {
        let path = format!("/proc/self/{file}");
        std::fs::write(&path, content)
            .map_err(|source| failed(format!("write {path}"), "mount /proc writable", source))?;
    }
    Ok(())
}

fn unshare(flags: libc::c_int) -> io::Result<()> {
    // SAFETY: takes flags only; it changes the namespaces of this thread, which is what the caller asked for.
    if unsafe { libc::unshare(flags) } < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Threads of this process; 1 if /proc does not tell, and the kernel then has the last word.
fn thread_count() -> usize {
    std::fs::read_dir("/proc/self/task").map_or(1, Iterator::count)
}

fn loopback_up() -> Result<(), DeviceError> {
    control_socket(libc::AF_INET)
        .and_then(|socket| set_interface_up(&socket, "lo"))
        .map_err(|source| failed("bring up lo".to_owned(), "the namespace needs CAP_NET_ADMIN", source))
}

fn failed(what: String, remedy: &'static str, source: io::Error) -> DeviceError {
    DeviceError::Os { device: "network namespace".to_owned(), what, remedy, source }
}

/// A socket to do interface ioctls on, in the namespace of the calling thread.
pub(crate) fn control_socket(family: libc::c_int) -> io::Result<OwnedFd> {
    // SAFETY: no pointers are passed; the result is checked below.
    let fd = unsafe { libc::socket(family, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
    // SAFETY: `owned` checks `fd`, and nobody else has it.
    unsafe { owned(fd) }
}

/// An `ifreq` for the interface `name`, the rest zero.
///
/// # Errors
/// `InvalidInput` if the name does not fit with its terminating zero.
pub(crate) fn request(name: &str) -> io::Result<libc::ifreq> {
    // SAFETY: a C structure of integers and arrays, for which zero is a value.
    let mut request: libc::ifreq = unsafe { mem::zeroed() };
    if name.len() >= request.ifr_name.len() {
        return Err(io::Error::from(io::ErrorKind::InvalidInput));
    }
    for (slot, byte) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *slot = byte as libc::c_char;
    }
    Ok(request)
}

/// One ioctl on an `ifreq`.
pub(crate) fn ifreq_ioctl(fd: &impl AsRawFd, what: libc::c_ulong, request: &mut libc::ifreq) -> io::Result<()> {
    // SAFETY: every request passed here is one that reads or writes an `ifreq`, which outlives the call.
    let done = unsafe { libc::ioctl(fd.as_raw_fd(), what as libc::Ioctl, std::ptr::from_mut(request)) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Sets `IFF_UP`.
pub(crate) fn set_interface_up(socket: &OwnedFd, name: &str) -> io::Result<()> {
    let mut request = request(name)?;
    ifreq_ioctl(socket, libc::SIOCGIFFLAGS, &mut request)?;
    // SAFETY: SIOCGIFFLAGS has filled in this member.
    let flags = unsafe { request.ifr_ifru.ifru_flags };
    request.ifr_ifru.ifru_flags = flags | libc::IFF_UP as libc::c_short;
    ifreq_ioctl(socket, libc::SIOCSIFFLAGS, &mut request)
}
