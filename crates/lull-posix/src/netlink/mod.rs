//! Netlink's `netdev` family for lull's device, to a program that asks the kernel over sockets of its own.
//!
//! A socket of generic netlink stays the kernel's in every respect, and so do its messages, except requests to the
//! family `netdev` about lull's device, which are answered here (`responder`). An answer has to come out of the same
//! socket, in order with the kernel's and so that `poll` and `epoll` tell of it. So for each datagram of an answer the
//! kernel is sent a message that it only acknowledges (NLMSG_NOOP with NLM_F_ACK, whose number names the datagram);
//! whoever receives the acknowledgement gets the datagram in its place.

mod calls;
mod message;
mod plane;
mod responder;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use libc::c_int;
use lull_linux::netdev::Netdev;

pub use self::calls::{buffer, message, readv, recvfrom, recvmsg, sendmsg};
use self::message::{HEADER, Writer, messages, u16_at, u32_at};
use self::responder::{Asker, Family, Outcome, respond};
use crate::{Result, husk, is_engaged, kernel};

/// How long the acknowledgement is that stands for a datagram: two headers and an error.
const STAND_IN_BYTES: usize = 2 * HEADER + 4;
/// Answers that wait to be received; a program that lets more lie has lost the oldest, as with a full receive buffer.
const WAITING_MAX: usize = 256;

const NLMSG_NOOP: u16 = 1;
const NLMSG_ERROR: u16 = 2;
const NLM_F_ACK: u16 = 4;

/// lull's device, as the kernel and its other processes know it.
struct Device {
    /// The index of the interface.
    ifindex: u32,
    /// Says which process has a queue of it ([`crate::Flows`]).
    flows: c_int,
    queues: u32,
}

static DEVICE: OnceLock<Device> = OnceLock::new();

/// The device that requests are answered for from now on. `flows` stays open.
pub(crate) fn serve(ifindex: u32, flows: c_int, queues: usize) {
    let device = Device { ifindex, flows, queues: queues as u32 };
    // Once, as the hand-over.
    let _ = DEVICE.set(device);
}

/// The index of lull's interface, if it is known.
pub(crate) fn ifindex() -> Option<u32> {
    DEVICE.get().map(|device| device.ifindex)
}

/// A socket of generic netlink of the program's.
#[derive(Default)]
struct Socket {
    waiting: Mutex<BTreeMap<u32, Vec<u8>>>,
}

impl Socket {
    fn waiting(&self) -> MutexGuard<'_, BTreeMap<u32, Vec<u8>>> {
        // A map operation is whole or not.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

static SOCKETS: lull_fd::Files<Socket> = lull_fd::Files::new();

/// Whether a number is a socket that may have answers of lull's.
#[inline]
pub fn is_one(fd: c_int) -> bool {
    SOCKETS.contains(fd) && !husk::is_husk()
}

/// The program made a socket: one of generic netlink may be asked for the family `netdev`.
#[inline]
pub fn made(fd: c_int, domain: c_int, protocol: c_int) {
    if domain == libc::AF_NETLINK && protocol == libc::NETLINK_GENERIC && fd >= 0 && is_engaged() {
        note(fd);
    }
}

#[cold]
fn note(fd: c_int) {
    if DEVICE.get().is_none() || ASKS_ITSELF.get() {
        return;
    }
    // Without room in the table it is the kernel's alone.
    if let Some(socket) = SOCKETS.open(Socket::default()) {
        let _ = SOCKETS.install(fd, socket);
    }
}

/// The numbers that may have answers of lull's.
pub(crate) fn numbers() -> impl Iterator<Item = c_int> {
    SOCKETS.numbers()
}

/// The number stands for something else now.
#[inline]
pub(crate) fn forget(fd: c_int) {
    if SOCKETS.contains(fd) {
        drop(SOCKETS.take(fd));
    }
}

/// `to` stands for what `fd` stands for.
pub fn duplicated(fd: c_int, to: c_int) {
    if let Some(socket) = SOCKETS.get(fd) {
        let _ = SOCKETS.install(to, socket);
    }
}

thread_local! {
    /// This thread asks the kernel on lull's own behalf, and not the program's.
    static ASKS_ITSELF: Cell<bool> = const { Cell::new(false) };
}

/// The kernel's family `netdev`, or what stands in for it.
fn family() -> Family {
    static FAMILY: OnceLock<Family> = OnceLock::new();
    *FAMILY.get_or_init(|| {
        ASKS_ITSELF.set(true);
        let id = Netdev::new().family();
        ASKS_ITSELF.set(false);
        Family { id: id.unwrap_or(responder::OWN_FAMILY_ID), is_kernels: id.is_some() }
    })
}

/// The program sends a datagram to the kernel. Nothing if the whole of it is the kernel's, which has not got it yet.
fn send(fd: c_int, datagram: &[u8]) -> Option<Result<usize>> {
    let socket = SOCKETS.get(fd)?;
    let device = DEVICE.get()?;
    let messages = messages(datagram)?;
    let asker = asker(fd);
    let mut plane = plane::Live { device };
    let outcomes: Vec<Outcome> = messages.iter().map(|message| respond(message, family(), asker, &mut plane)).collect();
    if outcomes.iter().all(|outcome| *outcome == Outcome::Kernels) {
        return None;
    }
    let mut sent = Ok(());
    for (message, outcome) in messages.iter().zip(outcomes) {
        sent = sent.and_then(|()| match outcome {
            Outcome::Kernels => kernel::send(fd, message.whole),
            Outcome::Answered(answers) => socket.answer(fd, answers),
            Outcome::AndKernels(answers) => {
                socket.answer(fd, answers)?;
                kernel::send(fd, message.whole)
            }
        });
    }
    Some(sent.map(|()| datagram.len()))
}

/// What the socket is: its port, which it gets now if it has none, and the options that shape its answers.
fn asker(fd: c_int) -> Asker {
    let port = || kernel::getsockname(fd).ok().and_then(|name| u32_at(name.as_bytes(), 4)).unwrap_or_default();
    let mut own = port();
    if own == 0 {
        // As the first `sendmsg` does (`netlink_autobind`); whatever is wrong, that says it.
        let mut any = [0; 12];
        any[..2].copy_from_slice(&(libc::AF_NETLINK as u16).to_ne_bytes());
        let _ = kernel::bind(fd, &any);
        own = port();
    }
    let has = |option| kernel::int_option(fd, libc::SOL_NETLINK, option).is_ok_and(|value| value != 0);
    Asker { port: own, cap_ack: has(libc::NETLINK_CAP_ACK), ext_ack: has(libc::NETLINK_EXT_ACK) }
}

impl Socket {
    /// Has each datagram come out of the socket.
    fn answer(&self, fd: c_int, answers: Vec<Vec<u8>>) -> Result<()> {
        static NEXT: AtomicU32 = AtomicU32::new(0x6c75_6c6c);
        for answer in answers {
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let mut waiting = self.waiting();
            waiting.insert(number, answer);
            if waiting.len() > WAITING_MAX {
                waiting.pop_first();
            }
            drop(waiting);
            let sent = kernel::send(fd, &Writer::new(NLMSG_NOOP, NLM_F_ACK, number, 0).end());
            sent.inspect_err(|_| drop(self.waiting().remove(&number)))?;
        }
        Ok(())
    }
}

/// The number of the datagram that an acknowledgement stands for, if it is one.
fn stands_for(received: &[u8]) -> Option<u32> {
    let is_stand_in = received.len() == STAND_IN_BYTES
        && u16_at(received, 4) == Some(NLMSG_ERROR)
        && u32_at(received, HEADER) == Some(0)
        && u16_at(received, HEADER + 8) == Some(NLMSG_NOOP);
    is_stand_in.then(|| u32_at(received, 8)).flatten()
}

/// The datagram that what was received stands for: it is the program's in its place. One that was only peeked at stays.
fn received(fd: c_int, received: &[u8], peeked: bool) -> Option<Vec<u8>> {
    let number = stands_for(received)?;
    let socket = SOCKETS.get(fd)?;
    let mut waiting = socket.waiting();
    if peeked { waiting.get(&number).cloned() } else { waiting.remove(&number) }
}

/// Whether what the program will receive next may stand for a datagram of lull's.
fn is_next(fd: c_int) -> bool {
    let Some(socket) = SOCKETS.get(fd).filter(|socket| !socket.waiting().is_empty()) else { return false };
    let mut next = [0; STAND_IN_BYTES + 1];
    let Ok(length) = kernel::recv(fd, &mut next, libc::MSG_PEEK | libc::MSG_DONTWAIT) else { return false };
    let waiting = socket.waiting();
    stands_for(&next[..length.min(next.len())]).is_some_and(|number| waiting.contains_key(&number))
}

/// What `sendmsg` says to an address: a port other than the kernel's own is another process's.
fn is_to_kernel(address: &[u8]) -> bool {
    address.is_empty() || u32_at(address, 4) == Some(0)
}
