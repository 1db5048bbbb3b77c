//! Connections of a listener that more processes ask for than there are queues of the NIC.
//!
//! Linux has one accept queue for all that inherited a listener: whichever process asks next has the next connection. lull's is in the
//! process that has the queue of the NIC. So `listen` makes a pool, a pair of the kernel's sockets that all processes inherit. Those
//! without a queue take connections out of it; what they get is a socket of the kernel's, between which and the connection its owner
//! passes on what comes, as for the child of a server that forks (`inherit.rs`). From when the first such process asks, the owner
//! gives every connection to the pool, and takes those that it gets itself back whole: it may be the one that does not ask just now,
//! as where a lock of the program's says whose turn it is.
//!
//! A process without a queue takes the owner's when that has ended.

mod kernels_half;
mod owner;
mod passed_on;

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use libc::c_int;
use lull_net::lull_nic::own;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};

use super::Listener;
use crate::errno::WOULD_BLOCK;
use crate::files::{self, File, Open};
use crate::flows::End;
use crate::{Errno, Flows, Result, cancel, claimed, engine, flows, inherit, kernel, signals};

pub(crate) use kernels_half::begin_to_give;
pub(crate) use owner::{forget, has_listener, is_anothers, is_being_closed, leave_untaken, serve_a_child};
pub(super) use owner::{serve, serve_on};
pub(crate) use passed_on::{ends_for_exec, ends_unless_used, goes_on_after_exec, outstay, used_by_another};

/// The ends of a listener's pool.
pub(crate) struct Pool {
    takes: OwnedFd,
    /// Shared with the thread that gives, so that a child has it once.
    gives: Arc<OwnedFd>,
    /// What this process uses to wait for a connection.
    watch: OnceLock<Watch>,
    /// The process has been told to look whether a queue is free.
    looks: AtomicBool,
}

struct Watch {
    /// A context of the kernel's that is readable when a connection may be there.
    context: OwnedFd,
    /// Duplicates of it, by the listener's numbers that were added to a context of the program's: the kernel keeps members by number,
    /// and the listener is one under each. The first number has none, since it goes by `context` itself.
    by_number: Mutex<Vec<(c_int, Option<OwnedFd>)>>,
    /// Processes that have queues, for one that has none.
    owners: Mutex<Vec<OwnedFd>>,
}

/// What another process needs in order to have a listener as well: which process called `listen`, the ends of its pool,
/// and the socket that it listens by.
pub(crate) struct ForAnother<'a> {
    pub(crate) called_in: u32,
    pub(crate) ends: [BorrowedFd<'a>; 2],
    pub(crate) backlog: u32,
    pub(crate) bound: SocketAddr,
    pub(crate) domain: c_int,
}

/// What was taken out of a pool.
pub(super) enum Taken {
    /// A connection of the kernel's.
    Kernels(c_int),
    /// A connection of this process's own.
    Own(Open, SocketAddr),
    /// A number that another process passes a connection on to.
    Passed(c_int, SocketAddr),
}

/// What another process passes on.
pub(crate) enum Passed {
    /// The end of a relay that is offered.
    Relay,
    /// A connection of the kernel's.
    Kernels,
}

/// The next connection that another process passes on by the end of a pair; `None` once that process has ended.
pub(crate) fn next_passed(takes: c_int) -> Result<Option<(Passed, OwnedFd)>> {
    Ok(Message::next(&kernel::borrow(takes))?.map(|(message, socket)| {
        let passed = if message.connection == KERNELS { Passed::Kernels } else { Passed::Relay };
        (passed, socket)
    }))
}

/// Sets on a number the flags that `accept4` was given.
pub(crate) fn flagged(number: c_int, flags: c_int) -> Result<()> {
    let nonblocking = if flags & libc::SOCK_NONBLOCK != 0 { libc::O_NONBLOCK } else { 0 };
    kernel::fcntl(number, libc::F_SETFL, (libc::O_RDWR | nonblocking) as usize)?;
    let cloexec = if flags & libc::SOCK_CLOEXEC != 0 { libc::FD_CLOEXEC } else { 0 };
    kernel::fcntl(number, libc::F_SETFD, cloexec as usize).map(drop)
}

/// Waits until one of the kernel's descriptors is as it says; false if the time is over first.
pub(crate) fn wait_in_kernel_for(
    members: impl IntoIterator<Item = (c_int, c_int)>,
    timeout: Option<Duration>,
) -> Result<bool> {
    /// How often a thread looks whether it is to be cancelled, where nothing can end its wait.
    const LOOKS_APART: Duration = Duration::from_millis(10);
    // By this descriptor its wait is ended. On Linux a call that waits takes no number, so this one does without if
    // none is free.
    let called = new_context().ok();
    let call = called.as_ref().map_or(-1, AsRawFd::as_raw_fd);
    let entries = members.into_iter().chain([(call, libc::POLLIN.into())]);
    let mut polled: Vec<libc::pollfd> = entries
        .filter(|(fd, _)| *fd >= 0)
        .map(|(fd, events)| libc::pollfd { fd, events: events as i16, revents: 0 })
        .collect();
    // A time limit that lies too far ahead to be told means none.
    let until = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
    loop {
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        let within = match called {
            Some(_) => left,
            None => Some(left.map_or(LOOKS_APART, |left| left.min(LOOKS_APART))),
        };
        let timeout_ns = within.map_or(-1, |within| i64::try_from(within.as_nanos()).unwrap_or(i64::MAX));
        let wait = || signals::wait_in_kernel(|mask| kernel::poll(&mut polled, timeout_ns, Some(mask)));
        let count = signals::or_restarts(cancel::waits_there(call, wait), timeout)?;
        if count > 0 || within == left {
            return Ok(count > 0);
        }
    }
}

/// Waits until a descriptor of the kernel's is readable, for at most so long. Unlike a call of the kernel's that waits, this is over
/// when a signal comes.
pub(crate) fn wait_in_kernel(fd: c_int, timeout: Option<Duration>) -> Result<()> {
    if wait_in_kernel_for([(fd, libc::EPOLLIN)], timeout)? { Ok(()) } else { Err(WOULD_BLOCK) }
}

/// Tells the processes that give to the pool of the end `takes` that a process without a queue asks.
pub(crate) fn asks_at(takes: c_int) {
    if let Some(flows) = flows::of_the_program() {
        flows.asks();
    }
    // An error means only that it has been told before, as nothing else is written to this end.
    let _ = kernel::shutdown(takes, libc::SHUT_WR);
}

/// A child closes an end of a pool that it has from its parent.
pub(crate) fn leave(end: c_int) {
    own::unmark(end);
    kernel::discard(end);
}

/// Whether no process takes anything out of a pool any more.
fn is_hung_up(gives: &OwnedFd) -> bool {
    const NOW: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut [PollFd::new(gives, PollFlags::empty())], Some(&NOW)) == Ok(1)
}

impl Pool {
    /// A pool at which nobody waits.
    pub(crate) fn new() -> Result<Pool> {
        own::begin();
        let pair = || socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
        let (takes, gives) = own::made(pair).map_err(errno)?;
        Ok(Pool::of(takes, gives))
    }

    /// The pool whose ends these are.
    pub(crate) fn of(takes: OwnedFd, gives: OwnedFd) -> Pool {
        Pool { takes, gives: Arc::new(gives), watch: OnceLock::new(), looks: AtomicBool::new(false) }
    }

    /// The pool's ends. From now on they stay open in a program that is executed.
    pub(super) fn hand_on(&self) -> Option<[End; 2]> {
        let end = |end: &OwnedFd| {
            let number = end.as_raw_fd();
            kernel::fcntl(number, libc::F_SETFD, 0).ok()?;
            Some(End { number, inode: kernel::inode(number).ok()? })
        };
        Some([end(&self.takes)?, end(self.gives.as_ref())?])
    }

    /// Called when no program was executed after all.
    pub(super) fn keep_here(&self) {
        for end in [&self.takes, self.gives.as_ref()] {
            // It is open, and takes the flag.
            let _ = kernel::fcntl(end.as_raw_fd(), libc::F_SETFD, libc::FD_CLOEXEC as usize);
        }
    }

    /// The pool that the process handed on before it executed this program, if its ends are open.
    pub(super) fn handed_on(ends: [End; 2]) -> Option<Pool> {
        if ends.iter().any(|end| kernel::inode(end.number) != Ok(end.inode)) {
            return None;
        }
        let [takes, gives] = ends.map(|end| {
            own::mark(end.number);
            // It is open, and takes the flag.
            let _ = kernel::fcntl(end.number, libc::F_SETFD, libc::FD_CLOEXEC as usize);
            // SAFETY: it is the end that was handed on, and nobody in this process has it yet.
            #[allow(unsafe_code)]
            unsafe {
                OwnedFd::from_raw_fd(end.number)
            }
        });
        Some(Pool::of(takes, gives))
    }

    /// The end that connections are taken out of, and the end that they are put into.
    pub(crate) fn ends(&self) -> [BorrowedFd<'_>; 2] {
        [self.takes.as_fd(), self.gives.as_fd()]
    }

    /// The end that connections are taken out of.
    pub(crate) fn takes(&self) -> BorrowedFd<'_> {
        self.takes.as_fd()
    }

    fn watch(&self) -> Result<&Watch> {
        if let Some(watch) = self.watch.get() {
            return Ok(watch);
        }
        let context = new_context()?;
        kernel::add_member(context.as_fd(), self.takes.as_fd(), libc::EPOLLIN as u32, 0)?;
        Ok(self.watch.get_or_init(|| Watch { context, by_number: Mutex::default(), owners: Mutex::default() }))
    }

    /// Tells the owners that a process without a queue asks. It stays told: who begins to own one later hears it at once.
    fn asks(&self) {
        asks_at(self.takes.as_raw_fd());
    }

    /// Says that this process is done with the pool. Returns whether another process has it.
    pub(super) fn leaves_another(self) -> bool {
        let Pool { takes, gives, watch, .. } = self;
        drop((takes, watch));
        !is_hung_up(&gives)
    }

    /// The next connection, if one waits.
    pub(super) fn take(&self, domain: c_int, flags: c_int) -> Result<Option<Taken>> {
        loop {
            // Without a free number the connection waits for a later call (`__sys_accept4_file`).
            kernel::discard(kernel::duplicate(self.takes.as_raw_fd(), 0, true)?);
            let (message, socket) = match Message::next(&self.takes) {
                Ok(Some(next)) => next,
                Ok(None) => return Ok(None),
                Err(error) if error.number() == libc::EAGAIN => return Ok(None),
                // A queue may be free as well.
                Err(LOOK) => {
                    self.looks.store(true, Ordering::Release);
                    return Ok(None);
                }
                Err(error) => return Err(error),
            };
            if message.connection == KERNELS {
                let number = socket.into_raw_fd();
                flagged(number, flags)?;
                return Ok(Some(Taken::Kernels(number)));
            }
            if message.process == std::process::id() {
                if let Some((own, peer)) = owner::taken_back(message.connection) {
                    return Ok(Some(Taken::Own(own, peer)));
                }
                continue;
            }
            // The number is the program's now.
            let number = socket.into_raw_fd();
            let passed = inherit::adopt(number, domain).and_then(|peer| {
                flagged(number, flags)?;
                Ok(peer)
            });
            match passed {
                Ok(peer) => return Ok(Some(Taken::Passed(number, peer))),
                // Its owner has ended meanwhile.
                Err(_) => kernel::discard(number),
            }
        }
    }
}

impl Listener {
    /// What another process needs in order to have the pool as well.
    pub(crate) fn for_another(&self) -> Option<ForAnother<'_>> {
        let pool = self.pool.as_ref().filter(|_| !self.stopped.load(Ordering::Relaxed))?;
        let (called_in, backlog, bound, domain) = (self.called_in, self.backlog(), self.bound, self.domain);
        Some(ForAnother { called_in, ends: pool.ends(), backlog, bound, domain })
    }

    /// Whether another process has it, which is asked when this one is done with it.
    pub(super) fn is_anothers(&mut self) -> bool {
        self.pool.take().map_or_else(|| self.is_inherited(), Pool::leaves_another)
    }

    /// Its pool, where more than one process may ask for connections: this one has inherited it, or a child has it from here. So has one
    /// that was without a queue.
    pub(super) fn shared(&self) -> Option<&Pool> {
        self.pool.as_ref().filter(|_| self.is_inherited() || self.has_heirs.load(Ordering::Acquire))
    }

    /// This process, which made the listener, has no queue. A child that asked first gives connections to the pool; else it waits until
    /// whoever has the queue ends, and has what comes to its half of the kernel's meanwhile.
    pub(super) fn waits_for_a_queue(&self) {
        if claimed::others_have_all() {
            self.has_heirs.store(true, Ordering::Release);
        }
    }

    /// Others that have queues ask as well: all of them give to the pool what they do not accept soon.
    pub(super) fn is_everybodys(&self) {
        self.shared().inspect(|pool| pool.asks());
    }

    /// A child that has inherited the listener has closed it, and does not use it again.
    pub(crate) fn leaves_the_pool(&self) {
        self.pool.iter().flat_map(Pool::ends).for_each(|end| leave(end.as_raw_fd()));
    }

    /// The pool, for a child that has inherited the listener from a process whose engine runs, and asks.
    pub(crate) fn pool_of_a_child(&self) -> Option<&Pool> {
        self.pool.as_ref().inspect(|pool| pool.asks())
    }

    /// The kernel's descriptor that tells when a connection may be in the pool.
    pub(crate) fn pool_context(&self) -> Option<c_int> {
        // By this the process that made the listener learns whether it shares it.
        let has_queue = self.real().is_ok();
        let pool = self.shared()?;
        let watch = pool.watch().ok()?;
        if !has_queue {
            pool.asks();
            if locked(&watch.owners).is_empty() {
                self.has_a_queue_by_now(watch);
            }
        }
        Some(watch.context.as_raw_fd())
    }

    /// As [`Listener::pool_context`], for an epoll context that the listener is added to by this number.
    pub(crate) fn pool_member(&self, number: c_int) -> Option<c_int> {
        let context = self.pool_context()?;
        let mut by_number = locked(&self.shared()?.watch.get()?.by_number);
        if !by_number.iter().any(|(known, _)| *known == number) {
            let duplicate = if by_number.is_empty() { None } else { Some(kernel::kept_duplicate(context).ok()?) };
            by_number.push((number, duplicate));
        }
        drop(by_number);
        self.pool_member_if_any(number)
    }

    /// What [`Listener::pool_member`] has told before: the listener may never have been added by this number.
    pub(crate) fn pool_member_if_any(&self, number: c_int) -> Option<c_int> {
        let watch = self.shared()?.watch.get()?;
        let by_number = locked(&watch.by_number);
        let (_, duplicate) = by_number.iter().find(|(known, _)| *known == number)?;
        Some(duplicate.as_ref().unwrap_or(&watch.context).as_raw_fd())
    }

    /// Has the context tell of the end of those who have queues, and returns who they are.
    fn watch_owners(&self, watch: &Watch, flows: &Flows) -> Vec<libc::pid_t> {
        let holders: Vec<_> = flows.holders().collect();
        let mut owners = locked(&watch.owners);
        owners.clear();
        // A process in another PID namespace has no number here.
        for process in holders.iter().filter(|process| **process > 0) {
            // A process that has ended by now has no queue any more.
            let Ok(owner) = kernel::pidfd_open(*process) else { continue };
            let added = kernel::add_member(watch.context.as_fd(), owner.as_fd(), libc::EPOLLIN as u32, 0);
            if added.is_ok() {
                owners.push(owner);
            }
        }
        holders
    }

    /// Whether this process has a queue by now: it takes that of an owner that has ended.
    pub(super) fn takes_over(&self) -> bool {
        let Some(Ok(watch)) = self.shared().map(Pool::watch) else { return false };
        let has_ended = |owner: &OwnedFd| kernel::is_readable(owner.as_raw_fd());
        let is_told = self.shared().is_some_and(|pool| pool.looks.swap(false, Ordering::AcqRel));
        if !is_told && !locked(&watch.owners).iter().any(has_ended) {
            return false;
        }
        self.has_a_queue_by_now(watch)
    }

    /// Asks for a queue again, until there is one or all who have them are watched.
    fn has_a_queue_by_now(&self, watch: &Watch) -> bool {
        /// Each of them may end between two looks. If nobody has a queue, something else is wrong, and has been
        /// reported.
        const TRIES: usize = 16;
        let Some(flows) = flows::of_the_program() else { return false };
        for _ in 0..TRIES {
            let watched = self.watch_owners(watch, flows);
            // This comes after the watching begins: if a process ended before it was watched, nothing tells that its
            // queue is free.
            engine::may_start_again();
            if self.real().is_ok() {
                locked(&watch.owners).clear();
                return true;
            }
            if !watched.is_empty() && flows.holders().eq(watched) {
                return false;
            }
        }
        false
    }

    /// Waits until a connection may be there, for a process without a queue; false if the time is over first.
    pub(super) fn wait_without_queue(&self, kernels: Option<c_int>, timeout: Option<Duration>) -> Result<bool> {
        let Some(pool) = self.pool_context() else { return Err(Errno::new(libc::ENETDOWN)) };
        wait_in_kernel_for([Some(pool), kernels].into_iter().flatten().map(|fd| (fd, libc::EPOLLIN)), timeout)
    }
}

/// A context of lull's own that is the kernel's.
pub(crate) fn new_context() -> Result<OwnedFd> {
    // SAFETY: it was just made, and nobody else has it.
    #[allow(unsafe_code)]
    own::made(|| kernel::epoll_create(libc::EPOLL_CLOEXEC).map(|number| unsafe { OwnedFd::from_raw_fd(number) }))
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Every operation leaves what is inside complete.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn errno(error: rustix::io::Errno) -> Errno {
    Errno::new(error.raw_os_error())
}

/// Stands for a connection of the kernel's, in the place of what one is called.
const KERNELS: u64 = u64::MAX;
/// Stands there in place of a connection. A process that takes it looks whether the process that gave has ended.
const NONE: u64 = u64::MAX - 1;
/// The error for a call that finds this message.
pub(crate) const LOOK: Errno = Errno::new(libc::EOWNERDEAD);

/// A process that waits at the pool of one that has ended notices it by this, if there is nothing else to take out.
pub(crate) fn have_them_look(takes: c_int, gives: c_int) {
    if kernel::unread(takes) == Ok(0) {
        let message = Message { process: std::process::id(), connection: NONE }.bytes();
        // There is room, or it has ended meanwhile.
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        let _ = kernel::sendmsg(gives, &[IoSlice::new(&message)], &[], &[], flags);
    }
}

/// A pool at which others may wait for a queue that this process has.
pub(crate) struct Waited {
    takes: OwnedFd,
    gives: Arc<OwnedFd>,
}

impl Waited {
    /// The queues are free: one of those who wait looks for them.
    pub(crate) fn have_them_look(&self) {
        have_them_look(self.takes.as_raw_fd(), self.gives.as_raw_fd());
    }
}

/// The pools of this process's listeners. Without a free number for one, whoever waits there goes on to wait.
pub(crate) fn others_wait_at() -> Vec<Waited> {
    let of = |file: Open| match &*file {
        File::Listener(listener) => {
            let pool = listener.shared()?;
            let takes = kernel::kept_duplicate(pool.takes.as_raw_fd()).ok()?;
            Some(Waited { takes, gives: Arc::clone(&pool.gives) })
        }
        _ => None,
    };
    files::numbers().filter_map(files::get).filter_map(of).collect()
}

/// A connection in a pool: whose it is, and what it is called there. The end of a relay comes along, or the kernel's socket.
struct Message {
    process: u32,
    connection: u64,
}

const MESSAGE_BYTES: usize = size_of::<u32>() + size_of::<u64>();

impl Message {
    fn bytes(&self) -> [u8; MESSAGE_BYTES] {
        let mut bytes = [0; MESSAGE_BYTES];
        let (process, connection) = bytes.split_at_mut(size_of::<u32>());
        process.copy_from_slice(&self.process.to_le_bytes());
        connection.copy_from_slice(&self.connection.to_le_bytes());
        bytes
    }

    fn send(&self, gives: &OwnedFd, socket: &impl AsFd) -> rustix::io::Result<()> {
        self.send_as(gives, socket, SendFlags::empty())
    }

    fn send_as(&self, gives: &OwnedFd, socket: &impl AsFd, flags: SendFlags) -> rustix::io::Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let descriptors = [socket.as_fd()];
        // The message has room for one descriptor.
        control.push(SendAncillaryMessage::ScmRights(&descriptors));
        sendmsg(gives, &[IoSlice::new(&self.bytes())], &mut control, flags | SendFlags::NOSIGNAL).map(drop)
    }

    /// The next message; `None` at the end of them. [`LOOK`] is one without a connection.
    fn next(takes: &impl AsFd) -> Result<Option<(Message, OwnedFd)>> {
        let mut bytes = [0; MESSAGE_BYTES];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
        let got = match recvmsg(takes, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags) {
            Ok(got) => got.bytes,
            Err(error) => return Err(errno(error)),
        };
        let socket = control.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut rights) => rights.next(),
            _ => None,
        });
        let (process, connection) = bytes.split_at(size_of::<u32>());
        let number = |bytes: &[u8]| bytes.iter().rev().fold(0_u64, |all, byte| all << 8 | u64::from(*byte));
        let message = Message { process: number(process) as u32, connection: number(connection) };
        if got == MESSAGE_BYTES && message.connection == NONE {
            return Err(LOOK);
        }
        // Another thread has taken the last free number: the connection is lost, as is one that its peer resets.
        if got == MESSAGE_BYTES {
            socket.map(|socket| Some((message, socket))).ok_or(Errno::new(libc::EMFILE))
        } else {
            Ok(None)
        }
    }
}

fn to_io(error: Errno) -> std::io::Error {
    std::io::Error::from_raw_os_error(error.number())
}
