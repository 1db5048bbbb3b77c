//! `setsockopt`, `getsockopt`.
//!
//! An option that lull acts upon is kept here, and handed on to accepted connections as Linux does. Every other option is
//! set on a socket of the kernel's, which says whether it can be, and read back from it.

mod acted;
pub(super) mod buffers;
pub(super) mod egress;
pub(crate) mod refused;
pub(crate) mod steer;
mod tcp_info;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use libc::c_int;
use lull_net::TcpStream;

use self::acted::Acted;
pub(super) use self::acted::int;
use self::buffers::Buffers;
use self::egress::Egress;
use super::{Listener, Stream};
use crate::files::{self, File};
use crate::{Errno, Result, inherit, kernel};

/// Level and name.
pub(super) type Name = (c_int, c_int);
type Values = HashMap<Name, Vec<u8>>;

/// The options of one socket.
#[derive(Default)]
pub(crate) struct Options {
    acted: Acted,
    /// What its listener was given, by name, and how frames leave by that, and how much it holds.
    inherited: Arc<Values>,
    inherited_egress: Egress,
    inherited_buffers: Buffers,
    /// What it was given itself.
    own: Mutex<Values>,
    /// SO_RCVLOWAT as it is in force; 0 is 1.
    low_water: AtomicU32,
}

/// What it is set to is the kernel's to say, and in force here.
const LOW_WATER: Name = (libc::SOL_SOCKET, libc::SO_RCVLOWAT);

/// Options that a connection has from its listener, by the values that a socket of the kernel's has for them.
const INHERITED: [Name; 24] = [
    (libc::SOL_SOCKET, libc::SO_BUSY_POLL),
    (libc::SOL_SOCKET, libc::SO_PREFER_BUSY_POLL),
    (libc::SOL_SOCKET, libc::SO_BUSY_POLL_BUDGET),
    (libc::SOL_SOCKET, libc::SO_RCVBUF),
    (libc::SOL_SOCKET, libc::SO_SNDBUF),
    buffers::LOCKS,
    // But not SO_PRIORITY (`sk_clone`).
    egress::PACING,
    (libc::SOL_SOCKET, libc::SO_REUSEADDR),
    (libc::SOL_SOCKET, libc::SO_REUSEPORT),
    (libc::SOL_SOCKET, libc::SO_BROADCAST),
    (libc::SOL_SOCKET, libc::SO_DONTROUTE),
    LOW_WATER,
    (libc::SOL_SOCKET, libc::SO_OOBINLINE),
    (libc::IPPROTO_TCP, libc::TCP_DEFER_ACCEPT),
    (libc::IPPROTO_TCP, libc::TCP_LINGER2),
    (libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT),
    (libc::IPPROTO_TCP, libc::TCP_SYNCNT),
    (libc::IPPROTO_TCP, libc::TCP_WINDOW_CLAMP),
    (libc::SOL_IP, libc::IP_MTU_DISCOVER),
    (libc::SOL_IP, libc::IP_RECVERR),
    egress::IP[0][0],
    egress::IP[0][1],
    egress::IP[1][0],
    egress::IP[1][1],
];

/// The options of busy polling: the kernel judges their values, and lull's socket has them.
pub(super) const BUSY: [Name; 3] = [
    (libc::SOL_SOCKET, libc::SO_BUSY_POLL),
    (libc::SOL_SOCKET, libc::SO_PREFER_BUSY_POLL),
    (libc::SOL_SOCKET, libc::SO_BUSY_POLL_BUDGET),
];

/// Sets SO_BUSY_POLL or one of its kin, which the kernel's socket has taken: the value is within the limits, and there was the
/// right to it.
macro_rules! set_busy {
    ($name:expr, $value:expr, $socket:expr) => {{
        let (socket, value): (_, c_int) = ($socket, $value);
        let _ = match $name.1 {
            libc::SO_BUSY_POLL => socket.set_busy_poll(value.unsigned_abs()),
            libc::SO_PREFER_BUSY_POLL => socket.set_prefer_busy_poll(value != 0, true),
            _ => socket.set_busy_poll_budget(value.unsigned_abs(), true),
        };
    }};
}
pub(super) use set_busy;

impl Options {
    /// What the program has set on a socket of the kernel's that becomes lull's, and has it to itself: what lull only stores is read
    /// from there, but for how it busy polls, when it is readable, how its frames leave, and how much it holds.
    pub(crate) fn of_placeholder(fd: c_int) -> Options {
        let [usecs, prefer, budget] = BUSY;
        let [[class, hops], [class_v6, hops_v6]] = egress::IP;
        let leaves = [egress::PRIORITY, egress::PACING, class, hops, class_v6, hops_v6];
        Options::read(fd, &[&[usecs, prefer, budget, LOW_WATER], &leaves[..], &buffers::ALL].concat())
    }

    /// As [`Options::of_placeholder`], of a listener, whose connections have all of it.
    pub(crate) fn of_listener(fd: c_int) -> Options {
        Options::read(fd, &INHERITED)
    }

    fn read(fd: c_int, names: &[Name]) -> Options {
        let mut inherited = Values::new();
        for &(level, name) in names {
            if let Some(value) = value_of(fd, (level, name)) {
                inherited.insert((level, name), value);
            }
        }
        Options::with(Acted::of_placeholder(fd), Arc::new(inherited))
    }

    /// What a connection has of its listener (`inet_csk_clone_lock`).
    pub(crate) fn inherited(&self) -> Options {
        let own = self.own();
        if own.is_empty() {
            return Options {
                acted: self.acted.clone(),
                inherited: self.inherited.clone(),
                inherited_egress: self.inherited_egress,
                inherited_buffers: self.inherited_buffers,
                ..Options::default()
            };
        }
        let mut all = (*self.inherited).clone();
        all.extend(own.iter().map(|(name, value)| (*name, value.clone())));
        Options::with(self.acted.clone(), Arc::new(all))
    }

    fn with(acted: Acted, inherited: Arc<Values>) -> Options {
        let inherited_egress = Egress::of(|name| inherited.get(&name).cloned());
        let inherited_buffers = Buffers::of(|name| inherited.get(&name).cloned());
        Options { acted, inherited, inherited_egress, inherited_buffers, ..Options::default() }
    }

    fn own(&self) -> MutexGuard<'_, Values> {
        // A map operation is whole or not.
        self.own.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts what was set before there was a connection in force on it.
    pub(crate) fn apply(&self, stream: &TcpStream) {
        self.acted.apply(stream);
        // Every socket has a mark, and most have one byte.
        if self.stored(LOW_WATER).and_then(|value| int(&value).ok()).is_some_and(|bytes| bytes > 1) {
            self.put_low_water(stream);
        }
        self.busy().for_each(|(name, value)| set_busy!(name, value, stream));
        let egress = self.egress();
        if egress != Egress::default() {
            egress.put(stream);
        }
        let buffers = self.buffers();
        if buffers != Buffers::default() {
            buffers.put(stream);
        }
    }

    /// How much it holds.
    pub(super) fn buffers(&self) -> Buffers {
        if self.own().is_empty() { self.inherited_buffers } else { Buffers::of(|name| self.stored(name)) }
    }

    /// How its frames are to leave.
    fn egress(&self) -> Egress {
        if self.own().is_empty() { self.inherited_egress } else { Egress::of(|name| self.stored(name)) }
    }

    /// Puts SO_RCVLOWAT in force, if it was set. A connection that is over needs none.
    fn put_low_water(&self, stream: &TcpStream) {
        let Some(bytes) = self.stored(LOW_WATER).and_then(|value| int(&value).ok()) else { return };
        self.low_water.store(bytes as u32, Ordering::Relaxed);
        let _ = stream.set_low_water(bytes as u32);
    }

    /// How many bytes a read that blocks waits for, at least.
    #[inline]
    pub(crate) fn low_water(&self) -> usize {
        self.low_water.load(Ordering::Relaxed) as usize
    }

    /// The options of busy polling that were set. What never was is the mode's.
    pub(super) fn busy(&self) -> impl Iterator<Item = (Name, c_int)> + '_ {
        let value = |name| self.stored(name).and_then(|value| int(&value).ok()).filter(|value| *value != 0);
        BUSY.into_iter().filter_map(move |name| Some((name, value(name)?)))
    }

    /// Those that lull acts upon.
    pub(super) fn acted(&self) -> &Acted {
        &self.acted
    }

    /// SO_LINGER with a time that is not zero.
    pub(crate) fn linger(&self) -> Option<Duration> {
        self.acted.linger()
    }

    /// SO_RCVTIMEO.
    pub(crate) fn receive_timeout(&self) -> Option<Duration> {
        self.acted.receive_timeout.get()
    }

    /// SO_SNDTIMEO.
    pub(crate) fn send_timeout(&self) -> Option<Duration> {
        self.acted.send_timeout.get()
    }

    fn stored(&self, name: Name) -> Option<Vec<u8>> {
        self.own().get(&name).or_else(|| self.inherited.get(&name)).cloned()
    }
}

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
            if INHERITED.contains(&changed) {
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
            if (level, name) == LOW_WATER {
                stream.options.put_low_water(&stream.stream);
            }
            Ok(())
        }
        File::Datagram(datagram) => datagram.set_option(fd, level, name, value),
        File::Epoll(_) => Err(Errno::new(libc::ENOTSOCK)),
    }
}

/// An option without effect here: a socket of the kernel's says whether it can be set, and to what. That is the placeholder where
/// it is the program's socket again if the connection fails, so that it has the option then. An accepted connection shares its
/// placeholder with others.
#[cold]
fn store(stream: &Stream, fd: c_int, (level, name): Name, value: &[u8]) -> Result<()> {
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
    // Some can be set and not read.
    if let Ok(length) = length {
        read.truncate(length);
        // Another type of service is another priority (`__ip_sock_set_tos`).
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

/// The longest value of an option that is stored by itself.
const VALUE_BYTES: usize = 8;

/// The value that a socket of the kernel's has.
fn value_of(fd: c_int, (level, name): Name) -> Option<Vec<u8>> {
    let mut value = [0; VALUE_BYTES];
    let length = kernel::getsockopt(fd, level, name, &mut value).ok()?;
    Some(value[..length.min(VALUE_BYTES)].to_vec())
}

/// `getsockopt` on a number that is lull's: how many bytes were written to `value`. Nothing if the placeholder has the
/// answer.
pub fn getsockopt(fd: c_int, level: c_int, name: c_int, value: &mut [u8]) -> Option<Result<usize>> {
    if let Some(answer) = inherit::getsockopt(fd, level, name, value) {
        return Some(answer);
    }
    let file = files::get_to_send(fd)?;
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
            None => {
                let stored = stream.options.stored((level, name))?;
                if (level, name) == egress::PACING { egress::answer(stored, value.len()) } else { stored }
            }
        },
        File::Datagram(datagram) => match datagram.option(fd, level, name)? {
            Ok(answer) => answer.to_ne_bytes().to_vec(),
            Err(error) => return Some(Err(error)),
        },
        File::Epoll(_) => return None,
    };
    Some(Ok(written(&answer, value)))
}

/// Writes an option's value, as much of it as there is room for; how much that is.
pub(crate) fn written(answer: &[u8], value: &mut [u8]) -> usize {
    let length = answer.len().min(value.len());
    value[..length].copy_from_slice(&answer[..length]);
    length
}

fn listener_answer(listener: &Listener, level: c_int, name: c_int) -> Option<Vec<u8>> {
    match (level, name) {
        // The placeholder of one that is lull's alone does not listen.
        (libc::SOL_SOCKET, libc::SO_ACCEPTCONN) => {
            let listens = !listener.stopped.load(Ordering::Acquire);
            Some(i32::from(listens).to_ne_bytes().to_vec())
        }
        _ => None,
    }
}
