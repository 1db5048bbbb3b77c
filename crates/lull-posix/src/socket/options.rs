//! `setsockopt`, `getsockopt`.
//!
//! An option that lull acts upon is kept here, and handed on to accepted connections as Linux does. Every other option is
//! set on a socket of the kernel's, which says whether it can be, and read back from it.

mod acted;
pub(super) mod buffers;
pub(super) mod call;
pub(super) mod egress;
pub(crate) mod refused;
pub(crate) mod steer;
mod tcp_info;

use std::collections::HashMap;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use libc::c_int;
use lull_net::TcpStream;

use self::acted::Acted;
pub(super) use self::acted::int;
use self::buffers::Buffers;
use self::egress::Egress;
use crate::kernel;

/// Level and name.
pub(super) type Name = (c_int, c_int);
type Values = HashMap<Name, Vec<u8>>;

/// The options of one socket.
#[derive(Default)]
pub(crate) struct Options {
    acted: Acted,
    /// The options that its listener was given, by name, with what follows from them: how its frames leave, and how
    /// much it holds.
    inherited: Arc<Values>,
    inherited_egress: Egress,
    inherited_buffers: Buffers,
    /// The options that the program has set on it.
    own: Mutex<Values>,
    /// SO_RCVLOWAT as it is in force, where 0 means 1.
    low_water: AtomicU32,
    /// TCP_INQ.
    tells_unread: AtomicBool,
}

/// The kernel's socket says to what values these are set; they are in force here.
const LOW_WATER: Name = (libc::SOL_SOCKET, libc::SO_RCVLOWAT);

/// Messages tell how much is left to be read.
const UNREAD: Name = (libc::IPPROTO_TCP, libc::TCP_INQ);

/// Options that a connection has from its listener, by the values that a socket of the kernel's has for them, beside those of [`STORED`].
const INHERITED: [Name; 24] = [
    UNREAD,
    (libc::SOL_SOCKET, libc::SO_BUSY_POLL),
    (libc::SOL_SOCKET, libc::SO_PREFER_BUSY_POLL),
    (libc::SOL_SOCKET, libc::SO_BUSY_POLL_BUDGET),
    (libc::SOL_SOCKET, libc::SO_RCVBUF),
    (libc::SOL_SOCKET, libc::SO_SNDBUF),
    buffers::LOCKS,
    // SO_PRIORITY is not among them (`sk_clone`).
    egress::PACING,
    (libc::SOL_SOCKET, libc::SO_REUSEADDR),
    (libc::SOL_SOCKET, libc::SO_REUSEPORT),
    (libc::SOL_SOCKET, libc::SO_BROADCAST),
    (libc::SOL_SOCKET, libc::SO_DONTROUTE),
    LOW_WATER,
    (libc::SOL_SOCKET, libc::SO_OOBINLINE),
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

/// Options without effect here that a connection has from its listener as well, by level and by their numbers in the kernel's headers
/// (`asm-generic/socket.h`, `linux/tcp.h`, `linux/in.h`, `linux/in6.h`): `sk_clone_lock` copies a whole socket.
const STORED: [(c_int, &[c_int]); 4] = [
    (libc::SOL_SOCKET, &[1, 11, 29, 35, 40, 41, 43, 45, 63, 64, 74, 75, 82]),
    (libc::IPPROTO_TCP, &[13, 16, 27, 30, 34, 37, 44, 45, 46]),
    (libc::SOL_IP, &[6, 7, 8, 12, 13, 15, 18, 20, 21, 23, 24, 26, 34, 49, 51]),
    (
        libc::SOL_IPV6,
        &[2, 3, 4, 5, 6, 8, 11, 19, 23, 25, 26, 29, 30, 31, 33, 49, 51, 53, 56, 58, 60, 62, 66, 70, 72, 73, 74, 77, 78],
    ),
];

/// Whether a connection has an option from its listener.
fn is_inherited((level, name): Name) -> bool {
    INHERITED.contains(&(level, name)) || STORED.iter().any(|(of, names)| *of == level && names.contains(&name))
}

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
        Options::read(fd, &[&[usecs, prefer, budget, LOW_WATER, UNREAD], &leaves[..], &buffers::ALL].concat())
    }

    /// As [`Options::of_placeholder`], of a listener. Its connections inherit all of it.
    pub(crate) fn of_listener(fd: c_int) -> Options {
        let fresh = kernel::int_option(fd, libc::SOL_SOCKET, libc::SO_DOMAIN)
            .and_then(|domain| kernel::own_socket(domain, libc::SOCK_STREAM));
        let stored = STORED.iter().flat_map(|(level, names)| names.iter().map(|name| (*level, *name)));
        // What every socket has, a connection has by itself.
        let is_set =
            |name: &Name| fresh.as_ref().is_ok_and(|of| value_of(of.as_raw_fd(), *name) != value_of(fd, *name));
        Options::read(fd, &INHERITED.into_iter().chain(stored.filter(is_set)).collect::<Vec<_>>())
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

    /// The options that a connection inherits from its listener (`inet_csk_clone_lock`).
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
        // An operation on the map is either complete or has not happened.
        self.own.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts what was set before there was a connection in force on it.
    pub(crate) fn apply(&self, stream: &TcpStream) {
        self.acted.apply(stream);
        // Every socket has such a low-water mark, and for most it is one byte.
        if self.stored(LOW_WATER).and_then(|value| int(&value).ok()).is_some_and(|bytes| bytes > 1) {
            self.put_low_water(stream);
        }
        self.put_tells_unread();
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

    /// How much the socket holds.
    pub(super) fn buffers(&self) -> Buffers {
        if self.own().is_empty() { self.inherited_buffers } else { Buffers::of(|name| self.stored(name)) }
    }

    /// How the socket's frames are to leave.
    fn egress(&self) -> Egress {
        if self.own().is_empty() { self.inherited_egress } else { Egress::of(|name| self.stored(name)) }
    }

    /// Puts SO_RCVLOWAT in force, if it was set. A connection that is over needs none.
    fn put_low_water(&self, stream: &TcpStream) {
        let Some(bytes) = self.stored(LOW_WATER).and_then(|value| int(&value).ok()) else { return };
        self.low_water.store(bytes as u32, Ordering::Relaxed);
        let _ = stream.set_low_water(bytes as u32);
    }

    /// Puts TCP_INQ in force.
    fn put_tells_unread(&self) {
        let is_on = self.stored(UNREAD).and_then(|value| int(&value).ok()).is_some_and(|value| value != 0);
        self.tells_unread.store(is_on, Ordering::Relaxed);
    }

    /// Whether messages tell how much is left to be read (TCP_INQ).
    #[inline]
    pub(crate) fn tells_unread(&self) -> bool {
        self.tells_unread.load(Ordering::Relaxed)
    }

    /// How many bytes a read that blocks waits for, at least.
    #[inline]
    pub(crate) fn low_water(&self) -> usize {
        self.low_water.load(Ordering::Relaxed) as usize
    }

    /// The options of busy polling that were set. For those that never were, the mode decides.
    pub(super) fn busy(&self) -> impl Iterator<Item = (Name, c_int)> + '_ {
        let value = |name| self.stored(name).and_then(|value| int(&value).ok()).filter(|value| *value != 0);
        BUSY.into_iter().filter_map(move |name| Some((name, value(name)?)))
    }

    /// The options that lull acts upon.
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

/// The longest value of an option that is stored by itself: a name of TCP_CONGESTION (`TCP_CA_NAME_MAX`).
const VALUE_BYTES: usize = 16;

/// The value that a socket of the kernel's has.
fn value_of(fd: c_int, (level, name): Name) -> Option<Vec<u8>> {
    let mut value = [0; VALUE_BYTES];
    let length = kernel::getsockopt(fd, level, name, &mut value).ok()?;
    Some(value[..length.min(VALUE_BYTES)].to_vec())
}

/// Writes an option's value, as much of it as there is room for; how much that is.
pub(crate) fn written(answer: &[u8], value: &mut [u8]) -> usize {
    let length = answer.len().min(value.len());
    value[..length].copy_from_slice(&answer[..length]);
    length
}
