//! `setsockopt` and `getsockopt`, by what is behind a number.

use std::sync::atomic::Ordering;

use libc::c_int;

use super::acted::Acted;
use super::{
    BUSY, LOW_WATER, Name, UNREAD, VALUE_BYTES, buffers, egress, int, is_inherited, refused, set_busy, steer, tcp_info,
    value_of, written,
};
use crate::files::{self, File};
use crate::socket::{Listener, Stream, getpeername};
use crate::{Errno, Result, inherit, kernel};

/// `setsockopt` on a number that is lull's.
pub fn setsockopt(fd: c_int, level: c_int, name: c_int, value: &[u8]) -> Result<()> {
    if let Some(set) = inherit::setsockopt(fd, level, name, value) {
        return set;
    }
    let file = match files::get_to_send(fd) {
        Some(file) => file,
        None if steer::steers(level, name) => return steer::set_before(fd, (level, name), value),
        None => return Err(Errno::new(libc::EBADF)),
    };
    // The kernel's half of a datagram socket may have the options of IP.
    let theirs = matches!(&*file, File::Datagram(_)) && level != libc::SOL_SOCKET;
    if refused::contains((level, name)) && !theirs {
        return Err(refused::ABSENT);
    }
    match &*file {
        File::Listener(listener) if steer::steers(level, name) => listener.steer(fd, (level, name), value),
        File::Listener(listener) => {
            // It has a socket of the kernel's to itself.
            kernel::setsockopt(fd, level, name, value)?;
            listener.options.acted.set(level, name, value, None).unwrap_or(Ok(()))?;
            let changed = buffers::is_read_as((level, name));
            if is_inherited(changed) {
                let value = value_of(fd, changed).ok_or(Errno::new(libc::EINVAL))?;
                listener.options.own().insert(changed, value);
            }
            if buffers::locks(changed)
                && let Some(locks) = value_of(fd, buffers::LOCKS)
            {
                listener.options.own().insert(buffers::LOCKS, locks);
            }
            Ok(())
        }
        File::Stream(stream) if Acted::contains((level, name)) => {
            if stream.may_be_handed_back() {
                kernel::setsockopt(fd, level, name, value)?;
            }
            stream.options.acted.set(level, name, value, Some(&stream.stream)).unwrap_or(Ok(()))
        }
        File::Stream(stream) => {
            store(stream, fd, (level, name), value)?;
            match (level, name) {
                LOW_WATER => stream.options.put_low_water(&stream.stream),
                UNREAD => stream.options.put_tells_unread(),
                _ => {}
            }
            Ok(())
        }
        File::Datagram(datagram) => datagram.set_option(fd, level, name, value),
        File::Epoll(_) => Err(Errno::new(libc::ENOTSOCK)),
    }
}

/// Sets an option that has no effect here. A socket of the kernel's says whether it can be set, and to what. That
/// socket is the placeholder where it becomes the program's socket again if the connection fails, so that it then has
/// the option. An accepted connection shares its placeholder with others.
#[cold]
fn store(stream: &Stream, fd: c_int, (level, name): Name, value: &[u8]) -> Result<()> {
    // What has a port keeps it (`do_ipv6_setsockopt`).
    if (level, name, stream.domain) == (libc::SOL_IPV6, libc::IPV6_V6ONLY, libc::AF_INET6) {
        return Err(Errno::new(libc::EINVAL));
    }
    let before = stream.options.stored((level, name)).or_else(|| value_of(fd, (level, name)));
    let is_own = stream.may_be_handed_back();
    let asked = if is_own { fd } else { kernel::socket(stream.domain, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0)? };
    let mut read = vec![0; value.len().max(VALUE_BYTES)];
    let set = kernel::setsockopt(asked, level, name, value);
    let (level, name) = buffers::is_read_as((level, name));
    let length = set.and_then(|()| kernel::getsockopt(asked, level, name, &mut read));
    let priority = value_of(asked, egress::PRIORITY);
    let locks = buffers::locks((level, name)).then(|| value_of(asked, buffers::LOCKS)).flatten();
    if !is_own {
        let _ = kernel::close(asked);
    }
    set?;
    if BUSY.contains(&(level, name)) {
        set_busy!((level, name), int(value)?, &stream.stream);
    }
    // Some options can be set but not read.
    if let Ok(length) = length {
        read.truncate(length);
        // Setting the type of service also sets the priority (`__ip_sock_set_tos`).
        if let Some(priority) = priority.filter(|_| (level, name) == egress::TOS && before.as_ref() != Some(&read)) {
            stream.options.own().insert(egress::PRIORITY, priority);
        }
        stream.options.own().insert((level, name), read);
    }
    if let Some(locks) = locks.and_then(|locks| int(&locks).ok()) {
        let before = stream.options.stored(buffers::LOCKS).and_then(|locks| int(&locks).ok()).unwrap_or(0);
        stream.options.own().insert(buffers::LOCKS, (before | locks).to_ne_bytes().to_vec());
    }
    if buffers::concerns((level, name)) {
        stream.options.buffers().put(&stream.stream);
    }
    if egress::concerns((level, name)) {
        stream.options.egress().put(&stream.stream);
    }
    Ok(())
}

/// `getsockopt` on a number that is lull's: how many bytes were written to `value`. Nothing if the placeholder has the
/// answer.
pub fn getsockopt(fd: c_int, level: c_int, name: c_int, value: &mut [u8]) -> Option<Result<usize>> {
    if let Some(answer) = inherit::getsockopt(fd, level, name, value) {
        return Some(answer);
    }
    let file = files::get_to_send(fd)?;
    if (level, name) == (libc::SOL_SOCKET, libc::SO_PEERNAME) {
        return Some(getpeername(fd)?.and_then(|peer| peers_name(&peer, value)));
    }
    let answer = match &*file {
        File::Listener(listener) => listener_answer(listener, level, name)?,
        File::Stream(stream) if (level, name) == (libc::IPPROTO_TCP, libc::TCP_INFO) => {
            match tcp_info::of(&stream.stream, stream.domain) {
                Ok(answer) => answer,
                Err(error) => return Some(Err(error)),
            }
        }
        File::Stream(stream) => match stream.options.acted.answer(level, name, &stream.stream) {
            Some(Ok(answer)) => answer,
            Some(Err(error)) => return Some(Err(error)),
            None => match tcp_info::number(&stream.stream, (level, name)) {
                Some(number) => number.to_ne_bytes().to_vec(),
                None => {
                    let stored = stream.options.stored((level, name))?;
                    if (level, name) == egress::PACING { egress::answer(stored, value.len()) } else { stored }
                }
            },
        },
        File::Datagram(datagram) => match datagram.option(fd, level, name)? {
            Ok(answer) => answer.to_ne_bytes().to_vec(),
            Err(error) => return Some(Err(error)),
        },
        File::Epoll(_) => return None,
    };
    Some(Ok(written(&answer, value)))
}

/// SO_PEERNAME, which is as long as the call has room for (`sk_getsockopt`).
fn peers_name(peer: &[u8], value: &mut [u8]) -> Result<usize> {
    if peer.len() < value.len() { Err(Errno::new(libc::EINVAL)) } else { Ok(written(peer, value)) }
}

fn listener_answer(listener: &Listener, level: c_int, name: c_int) -> Option<Vec<u8>> {
    match (level, name) {
        // The placeholder of a listener that is lull's alone does not listen, and would say so.
        (libc::SOL_SOCKET, libc::SO_ACCEPTCONN) => {
            let listens = !listener.stopped.load(Ordering::Acquire);
            Some(i32::from(listens).to_ne_bytes().to_vec())
        }
        _ => None,
    }
}
