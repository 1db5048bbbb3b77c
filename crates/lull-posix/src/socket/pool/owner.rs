//! The process that has the queue gives connections to a listener's pool, once another one asks.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use libc::c_int;
use lull_fd::say;
use lull_net::lull_nic::{Afresh, own};
use lull_net::{Interest, Ready, TcpListener, TcpStream, Unaccepted};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, socketpair};

use super::{KERNELS, Message, Pool, is_hung_up, locked};
use crate::block::Wait;
use crate::files::{self, File, Open};
use crate::kernel::NoSignals;
use crate::socket::options::Options;
use crate::socket::{Listener, stream, turn};
use crate::{Errno, address, elsewhere, engine, flows, husk, inherit, kernel};

/// A connection of this process's that is in a pool.
struct Given {
    file: Open,
    peer: SocketAddr,
    was: Unaccepted,
}

static GIVEN: Afresh<Mutex<HashMap<u64, Given>>> = Afresh::new();

fn given() -> MutexGuard<'static, HashMap<u64, Given>> {
    locked(GIVEN.get_or_init(Mutex::default))
}

fn take_back(connection: u64) -> Option<Given> {
    given().remove(&connection)
}

/// A connection that nobody has taken out of a pool. Its peer may have reset it, and is told all the same (`inet_getname`).
pub(super) fn taken_back(connection: u64) -> Option<(Open, SocketAddr)> {
    take_back(connection).map(|given| (given.file, given.peer))
}

/// The connections that are passed on to other processes.
#[derive(Default)]
struct Counts {
    /// How many threads may have taken a connection from the stack that is not yet among those that are [`given`].
    giving: usize,
    /// How many connections are given and have not been taken yet.
    offered: usize,
    /// How many connections another process uses.
    used: usize,
    /// How many threads have a listener of this process's in order to give what comes to it.
    serving: usize,
    /// No other process that asks for connections is alive.
    nobody_asks: bool,
    /// This process passes on no more connections.
    ends: bool,
    /// Another program is about to be executed in its place: it passes on nothing meanwhile.
    executes: bool,
    /// How many times a program was to be executed, and was not after all.
    failed_to_execute: u64,
}

static COUNTS: Afresh<Mutex<Counts>> = Afresh::new();

fn counted() -> MutexGuard<'static, Counts> {
    locked(COUNTS.get_or_init(Mutex::default))
}

/// A child of `fork` gives nothing to anybody.
pub(crate) fn forget() {
    GIVEN.forget();
    COUNTS.forget();
    ENDS.forget();
    SERVED.forget();
    SERVED_FOR_CHILDREN.forget();
    KERNELS_SERVED.forget();
}

static CHANGED: Condvar = Condvar::new();

/// How far this process has come with a connection that it passes on.
#[derive(Clone, Copy)]
enum Stage {
    Giving,
    Offered,
    Used,
}

/// A connection that this process passes on or offers, counted for as long as it does.
struct PassedOn {
    stage: Stage,
}

impl PassedOn {
    /// Counts another connection; `None` if the process is about to end.
    fn begin() -> Option<PassedOn> {
        let mut counts = counted();
        if counts.is_over() {
            return None;
        }
        let stage = Stage::Giving;
        *counts.at(stage) += 1;
        Some(PassedOn { stage })
    }

    /// This connection is among those that are [`given`].
    fn is_offered(&mut self) {
        self.comes_to(Stage::Offered, &mut counted());
    }

    /// Another process uses it from now on; false where this one is about to end.
    fn is_taken(&mut self) -> bool {
        let mut counts = counted();
        let may_be = !counts.is_over();
        if may_be {
            self.comes_to(Stage::Used, &mut counts);
        }
        may_be
    }

    fn comes_to(&mut self, stage: Stage, counts: &mut Counts) {
        *counts.at(self.stage) -= 1;
        *counts.at(stage) += 1;
        self.stage = stage;
        CHANGED.notify_all();
    }
}

impl Counts {
    /// Whether nothing more is passed on, for good or while a program is about to be executed.
    fn is_over(&self) -> bool {
        self.ends || self.executes
    }

    fn at(&mut self, stage: Stage) -> &mut usize {
        match stage {
            Stage::Giving => &mut self.giving,
            Stage::Offered => &mut self.offered,
            Stage::Used => &mut self.used,
        }
    }
}

impl Drop for PassedOn {
    fn drop(&mut self) {
        *counted().at(self.stage) -= 1;
        CHANGED.notify_all();
    }
}

/// Counts a connection that another process uses from now on, until what is returned is dropped; none where the process is about to
/// end.
pub(crate) fn used_by_another() -> Option<impl Send + Sync + 'static> {
    let mut passed_on = PassedOn::begin()?;
    passed_on.is_taken().then_some(passed_on)
}

/// The program's process exits. It stays for as long as other processes use connections that it passes on to them, or live to take
/// more, and goes on to pass on new ones: a server that restarts gracefully ends the process that has the queue while others serve.
/// `stays` is called before it waits.
pub(crate) fn outstay(stays: fn()) {
    // In a child this state is a copy of its parent's, and means nothing.
    if engine::running().is_none() || !husk::is_engines_process() {
        return;
    }
    let mut looks = false;
    let mut counts = counted();
    if counts.used + counts.giving + counts.offered > 0 {
        drop(counts);
        stays();
        counts = counted();
    }
    while counts.used > 0 || counts.giving + counts.offered > 0 && !counts.nobody_asks {
        if counts.offered > 0 && !looks {
            looks = true;
            drop(counts);
            look_for_who_asks();
            counts = counted();
        } else {
            counts = changed(counts);
        }
    }
}

fn changed(counts: MutexGuard<'static, Counts>) -> MutexGuard<'static, Counts> {
    CHANGED.wait(counts).unwrap_or_else(PoisonError::into_inner)
}

/// Sees to it that this process is told when no other process that asks is alive.
fn look_for_who_asks() {
    let look = || {
        if let Some(flows) = flows::of_the_program() {
            flows.until_nobody_asks();
        }
        nobody_asks();
    };
    let _no_signals = NoSignals::begin();
    if inherit::thread("lull-askers").spawn(look).is_err() {
        nobody_asks();
    }
}

fn nobody_asks() {
    counted().nobody_asks = true;
    CHANGED.notify_all();
}

/// Ends passing on, if no other process uses a connection of this process's. Returns false if one does. What comes to a
/// listener afterwards stays there, and what has come before is among those that are given.
pub(crate) fn ends_unless_used() -> bool {
    let mut counts = counted();
    if counts.used > 0 {
        return false;
    }
    counts.ends = true;
    while counts.giving > 0 {
        counts = changed(counts);
    }
    true
}

/// A descriptor that is readable once this process passes on no more.
static ENDS: Afresh<crate::Result<OwnedFd>> = Afresh::new();

fn ends() -> Option<&'static OwnedFd> {
    // Without a free number, a thread that waits for connections, or for room, hears of it by the next one.
    ENDS.get_or_init(|| kernel::eventfd(0)).as_ref().ok()
}

/// Called when another program is about to be executed in this process's place. From here on the process passes nothing
/// on: what is offered, and what waits at its listeners once they are closed, is left to whoever listens next. The
/// threads that give have no listener then, and wait whether it comes to that ([`goes_on`]). A thread that does not
/// hear of it is not waited for any longer than that.
pub(crate) fn ends_for_exec(at_most: Duration) {
    // It is made here if there is none, so that a thread that is about to wait for the first time finds it readable.
    let ends = ends();
    let mut counts = counted();
    counts.executes = true;
    if let Some(ends) = ends {
        kernel::add_to_eventfd(ends.as_raw_fd());
    }
    let (began, mut left) = (Instant::now(), at_most);
    while counts.giving + counts.serving > 0 && left > Duration::ZERO {
        counts = CHANGED.wait_timeout(counts, left).unwrap_or_else(PoisonError::into_inner).0;
        left = at_most.saturating_sub(began.elapsed());
    }
    drop(counts);
    leave_untaken();
}

/// Called when no program was executed after all. Connections of listeners that listen again are passed on again.
pub(crate) fn goes_on_after_exec() {
    let mut counts = counted();
    counts.executes = false;
    counts.failed_to_execute += 1;
    ENDS.get().into_iter().flatten().for_each(|ends| kernel::empty_eventfd(ends.as_raw_fd()));
    CHANGED.notify_all();
}

fn failed_to_execute() -> u64 {
    counted().failed_to_execute
}

/// Called by a thread that has stopped giving connections; `failed` is how often executing a program had failed when it
/// began. Waits until no program is about to be executed. Returns whether the thread goes on, because executing one has
/// failed since.
fn goes_on(failed: u64) -> bool {
    let mut counts = counted();
    while counts.executes {
        counts = changed(counts);
    }
    counts.failed_to_execute != failed && !counts.ends
}

/// A thread that has a listener of this process's, for as long as this lives.
struct Serving;

impl Serving {
    fn begin() -> Serving {
        counted().serving += 1;
        Serving
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        counted().serving -= 1;
        CHANGED.notify_all();
    }
}

/// What is offered and nobody has taken is left to who listens next: this process passes on no more.
pub(crate) fn leave_untaken() {
    let given = std::mem::take(&mut *given());
    given.into_values().for_each(Given::leave);
}

impl Given {
    fn leave(self) {
        if let File::Stream(stream) = &*self.file {
            // A connection that is over has nobody to be left to.
            let _ = stream.stream.leave(self.was);
        }
    }
}

/// Gives what comes to `real` to the listener's pool from when a process asks that has no queue. It goes on when this process closes
/// the listener, for as long as another one has it, and none that asks has queues of its own.
pub(in crate::socket) fn serve(listener: &Listener, real: &Arc<TcpListener>) {
    let Some(pool) = listener.shared() else { return };
    served().insert(listener.inode, Arc::downgrade(&pool.gives));
    let owner = Owner {
        gives: Arc::clone(&pool.gives),
        bound: listener.bound,
        inode: listener.inode,
        domain: listener.domain,
        options: listener.options.inherited(),
        kernels: None,
        again: Box::new({
            let (bound, inode, asked, heard) = (listener.bound, listener.inode, listener.asked_now(), listener.heard());
            move || {
                let real = TcpListener::bind_with(&engine::engine()?.network, None, bound, asked)?;
                real.set_nonblocking(true)?;
                // The others were told that it no longer listens here.
                elsewhere::others().inspect(|others| others.listens(heard, inode));
                Ok(real)
            }
        }),
    };
    let real = Arc::downgrade(real);
    let _no_signals = NoSignals::begin();
    if let Err(error) = inherit::thread("lull-pool").spawn(move || owner.run(&real)) {
        say::line(format_args!("processes without a queue get no connections of {}: {error}", listener.bound));
    }
}

/// How long a process that shares a listener with others is given to accept what comes to its own queue. On Linux whoever is idle has a
/// connection at once; here it is another process's at the cost of what passes it on.
const SOON: Duration = Duration::from_millis(20);

/// How long this waits for a connection that is already there.
const AT_ONCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

/// How long passing on rests when it has failed.
const TRIES_APART: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// How often a listener that this process has closed, and other processes have, is looked at.
const LOOKS_APART: Timespec = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };

/// This process has closed a listener that it has passed on. lull's half listens on, so that nothing is refused, until a process
/// with queues of its own listens in its stead, or none has the listener any more. To one without a queue the pool's thread gives what
/// comes.
pub(in crate::socket) fn serve_on(listener: &Listener, pool: &Pool, real: &Arc<TcpListener>) {
    let (gives, real) = (Arc::clone(&pool.gives), Arc::clone(real));
    let inode = listener.inode;
    let others = elsewhere::others();
    // If this process has all queues, no other process gets one.
    let apart = others.is_some_and(|others| others.may_have_queues()).then_some(&LOOKS_APART);
    let run = move || {
        let is_anothers = || others.is_some_and(|others| others.listens_in_our_stead(inode));
        while !is_hung_up(&gives) && !is_anothers() {
            // An error here is just what this looks for.
            let _ = poll(&mut [PollFd::new(&gives, PollFlags::empty())], apart);
        }
        // If the pool's thread has the listener, that thread goes on.
        if let (Ok(closed), Some(others)) = (Arc::try_unwrap(real), others) {
            drop(closed);
            others.listens_no_more(inode, !is_hung_up(&gives));
        }
    };
    let _no_signals = NoSignals::begin();
    // Without such a thread the listener is closed here.
    let _ = inherit::thread("lull-pool").spawn(run);
}

/// Gives what comes to `real` to a child that has made this listener, and so what comes to the kernel's half of it, until nobody has
/// the other end of `gives`.
///
/// `again` makes the listener anew, by the kernel's socket.
pub(crate) fn serve_a_child(
    gives: OwnedFd,
    kernels: OwnedFd,
    real: TcpListener,
    bound: SocketAddr,
    again: impl Fn(c_int) -> crate::Result<TcpListener> + Send + Sync + 'static,
) -> io::Result<()> {
    let number = kernels.as_raw_fd();
    let owner = Owner {
        gives: Arc::new(gives),
        bound,
        inode: kernel::inode(number).map_err(to_io)?,
        domain: kernel::int_option(number, libc::SOL_SOCKET, libc::SO_DOMAIN).map_err(to_io)?,
        options: Options::of_listener(number),
        kernels: Some(Mutex::new(KernelsHalf::new(kernels))),
        again: Box::new(move || again(number)),
    };
    let mut children = served_for_children();
    children.retain(|(_, gives)| gives.strong_count() > 0);
    children.push((bound.port(), Arc::downgrade(&owner.gives)));
    drop(children);
    let run = move || {
        let mut listening = Some(real);
        while let Some(real) = listening {
            let failed = failed_to_execute();
            {
                let _serving = Serving::begin();
                owner.pass_on(&real, || false);
                // It is dropped before the owner's end of the pool, by which a `bind` knows that the port is free.
                drop(real);
            }
            listening = goes_on(failed).then(|| owner.listens_again()).flatten();
        }
    };
    inherit::thread("lull-pool").spawn(run).map(drop)
}

/// Whether nobody has a listener at a port any more that a child made, and the thread that serves it has not heard of it yet.
pub(crate) fn is_being_closed(port: u16) -> bool {
    let served = served_for_children();
    served.iter().any(|(at, gives)| *at == port && gives.upgrade().is_some_and(|gives| is_hung_up(&gives)))
}

/// Pools that this process gives to, by the sockets that stand behind their listeners.
static SERVED: Afresh<Mutex<BTreeMap<u32, Weak<OwnedFd>>>> = Afresh::new();
/// The pool of a listener that a child made, by its port.
type OfAChild = (u16, Weak<OwnedFd>);
static SERVED_FOR_CHILDREN: Afresh<Mutex<Vec<OfAChild>>> = Afresh::new();
/// The pools of the kernel's halves.
static KERNELS_SERVED: Afresh<Mutex<BTreeSet<u32>>> = Afresh::new();

fn served() -> MutexGuard<'static, BTreeMap<u32, Weak<OwnedFd>>> {
    locked(SERVED.get_or_init(Mutex::default))
}

fn served_for_children() -> MutexGuard<'static, Vec<OfAChild>> {
    locked(SERVED_FOR_CHILDREN.get_or_init(Mutex::default))
}

fn kernels_served() -> MutexGuard<'static, BTreeSet<u32>> {
    locked(KERNELS_SERVED.get_or_init(Mutex::default))
}

/// Whether another process has a listener by whose pool this one gives.
pub(crate) fn is_anothers(listener: u32) -> bool {
    served().get(&listener).and_then(Weak::upgrade).is_some_and(|gives| !is_hung_up(&gives))
}

/// Whether this process has a listener.
pub(crate) fn has_listener(inode: u32) -> bool {
    let is_it = |file: Open| matches!(&*file, File::Listener(listener) if listener.inode == inode);
    files::numbers().filter_map(files::get).any(is_it)
}

/// A child asks for the connections of a listener of this process's, which may not have asked for any itself, and may have closed it:
/// it is among what is `held` for the child then. What comes to the kernel's half goes to the pool as well, until nobody takes
/// anything out of that.
pub(crate) fn begin_to_give<'a>(kernels: OwnedFd, mut held: impl Iterator<Item = &'a Open>) -> io::Result<()> {
    let inode = kernel::inode(kernels.as_raw_fd()).map_err(to_io)?;
    let is_it = |file: &Open| matches!(&**file, File::Listener(listener) if listener.inode == inode);
    let open = files::numbers().filter_map(files::get).find(is_it);
    let (mut gives, mut listens) = (None, Ok(()));
    let file = open.as_ref().or_else(|| held.find(|file| is_it(file)));
    if let Some(File::Listener(listener)) = file.map(|file| &**file) {
        listens = listener.real().map(drop).map_err(to_io);
        gives = listener.shared().map(|pool| Arc::clone(&pool.gives));
    }
    drop(open);
    let gives = gives.or_else(|| served().get(&inode).and_then(Weak::upgrade));
    if let Some(gives) = gives.filter(|_| is_listening(&kernels)) {
        give_what_comes_to(kernels, inode, gives)?;
    }
    listens
}

fn give_what_comes_to(kernels: OwnedFd, inode: u32, gives: Arc<OwnedFd>) -> io::Result<()> {
    let name = kernel::getsockname(kernels.as_raw_fd()).map_err(to_io)?;
    let bound = address::parse(name.as_bytes()).ok_or(io::ErrorKind::InvalidInput)?;
    if !kernels_served().insert(inode) {
        return Ok(());
    }
    let run = move || {
        let (mut half, mut is_said) = (KernelsHalf::new(kernels), false);
        while half.may_have_any() {
            let mut polled = [PollFd::new(&half.listener, PollFlags::IN), PollFd::new(&gives, PollFlags::empty())];
            // One that is at hand is not waited for.
            let within = half.at_hand.is_some().then_some(&AT_ONCE);
            if poll(&mut polled, within).is_ok() && !polled[1].revents().is_empty() {
                break;
            }
            half.give_or_rest(&gives, bound, &mut is_said);
        }
        kernels_served().remove(&inode);
    };
    let started = inherit::thread("lull-pool").spawn(run);
    started.map(drop).inspect_err(|_| {
        kernels_served().remove(&inode);
    })
}

/// The kernel's socket behind a listener. Connections that come to it are given, too.
struct KernelsHalf {
    listener: OwnedFd,
    /// A connection that was accepted there and could not be given yet. If nobody takes any more, it is closed.
    at_hand: Option<OwnedFd>,
}

impl KernelsHalf {
    fn new(listener: OwnedFd) -> KernelsHalf {
        KernelsHalf { listener, at_hand: None }
    }

    fn may_have_any(&self) -> bool {
        self.at_hand.is_some() || is_listening(&self.listener)
    }

    /// Gives a connection, if there is one. Returns whether there was. While every process is busy it waits here, as a
    /// descriptor of lull's own.
    fn give(&mut self, gives: &OwnedFd) -> io::Result<bool> {
        if self.at_hand.is_none() {
            self.at_hand = self.accepted()?;
        }
        let Some(connection) = &self.at_hand else { return Ok(false) };
        Message { process: std::process::id(), connection: KERNELS }.send(gives, connection)?;
        self.at_hand = None;
        Ok(true)
    }

    /// A connection that waits there. If no number is free, it goes on waiting.
    #[allow(unsafe_code)]
    fn accepted(&self) -> io::Result<Option<OwnedFd>> {
        let accept = || turn::accept(self.listener.as_raw_fd(), libc::SOCK_CLOEXEC);
        let gone = [libc::EWOULDBLOCK, libc::ECONNABORTED, libc::EINTR];
        // SAFETY: the kernel has just made it, and nobody else has it.
        match own::made_for_no_child(|| accept().map(|(number, _)| unsafe { OwnedFd::from_raw_fd(number) })) {
            Ok(connection) => Ok(Some(connection)),
            // Another process has taken the connection, or its peer has reset it.
            Err(error) if gone.contains(&error.number()) => Ok(None),
            Err(error) => Err(to_io(error)),
        }
    }

    /// As [`KernelsHalf::give`], which is tried again later where it fails.
    fn give_or_rest(&mut self, gives: &OwnedFd, bound: SocketAddr, is_said: &mut bool) {
        match self.give(gives) {
            Ok(was_one) => *is_said &= !was_one,
            Err(error) => rest(gives, bound, &error, is_said),
        }
    }
}

/// The descriptors that passing on needs are not to be had. Connections wait where this process may accept them, and
/// passing on is tried again later.
fn rest(gives: &OwnedFd, bound: SocketAddr, error: &io::Error, is_said: &mut bool) {
    if is_hung_up(gives) {
        return;
    }
    if !std::mem::replace(is_said, true) {
        let process = std::process::id();
        say::line(format_args!("connections of {bound} wait until process {process} can pass them on: {error}"));
    }
    // A hang-up ends this wait.
    let _ = poll(&mut [PollFd::new(gives, PollFlags::empty())], Some(&TRIES_APART));
}

struct Owner {
    /// The kernel's socket, where what comes to that is given as well. It is closed before `gives`, by whose end others know that it is.
    kernels: Option<Mutex<KernelsHalf>>,
    gives: Arc<OwnedFd>,
    bound: SocketAddr,
    inode: u32,
    domain: c_int,
    options: Options,
    /// Makes the listener anew if it was closed for a program that then could not be executed.
    again: Box<dyn Fn() -> crate::Result<TcpListener> + Send + Sync>,
}

impl Owner {
    fn run(&self, real: &Weak<TcpListener>) {
        // This lasts until another process asks, or no process has the listener any more.
        while poll(&mut [PollFd::new(&self.gives, PollFlags::RDHUP)], None).is_err() {}
        let mut failed = failed_to_execute();
        self.give_while_it_listens(|| real.upgrade());
        // If the program has the listener again, that one has a thread of its own.
        while goes_on(failed) && (real.strong_count() > 0 || !has_listener(self.inode)) {
            failed = failed_to_execute();
            self.give_while_it_listens(|| real.upgrade().or_else(|| self.listens_again().map(Arc::new)));
        }
        // This comes last: the process may be about to end, and to say the same of all listeners that are served.
        let mut served = served();
        if served.get(&self.inode).is_some_and(|gives| gives.as_ptr() == Arc::as_ptr(&self.gives)) {
            served.remove(&self.inode);
        }
    }

    /// Makes the listener anew, for the others that still have it.
    fn listens_again(&self) -> Option<TcpListener> {
        let are_there = !is_hung_up(&self.gives);
        let said = |error: &Errno| {
            say::line(format_args!(
                "process {} does not listen at {} again for others, since it failed to execute a program: {error}",
                std::process::id(),
                self.bound
            ));
        };
        are_there.then(|| (self.again)().inspect_err(said).ok()).flatten()
    }

    fn give_while_it_listens(&self, real: impl FnOnce() -> Option<Arc<TcpListener>>) {
        // It is dropped after the listener.
        let _serving = Serving::begin();
        let real = real();
        // The program has closed it here, and others that ask have queues of their own: new connections come to those.
        let is_over = |real: &Arc<TcpListener>| Arc::strong_count(real) == 1 && self.is_shared_by_queues();
        real.iter().for_each(|real| self.pass_on(real, || is_over(real)));
        if let (Some(real), Some(others)) = (real, elsewhere::others()) {
            drop(real);
            others.listens_no_more(self.inode, !is_hung_up(&self.gives));
        }
    }

    /// Whether the other processes that ask for its connections have queues of their own.
    fn is_shared_by_queues(&self) -> bool {
        elsewhere::others().is_some_and(|others| others.share(self.inode))
    }

    /// Passes connections on until nobody is left to give one to, or `is_over`, which is asked whenever a connection
    /// has come. Where all that ask have queues of their own, what has just come is left to the program's own call.
    fn pass_on(&self, real: &TcpListener, is_over: impl Fn() -> bool) {
        let (mut due, mut is_said) = (0, false);
        while !is_over() {
            // Counted before it is taken, so that a process that ends never does so between the two.
            let Some(passed_on) = PassedOn::begin() else { break };
            if due == 0 && self.is_shared_by_queues() {
                drop(passed_on);
                match self.wait_until_due(real, &mut is_said) {
                    Ok(Some(count)) => due = count,
                    Ok(None) | Err(_) => break,
                }
                continue;
            }
            due = due.saturating_sub(1);
            if !real.ready().intersects(Ready::READABLE | Ready::ERR | Ready::HUP) {
                drop(passed_on);
                match self.wait(real, &mut is_said) {
                    Ok(false) => continue,
                    // No process has the listener any more, or there is no engine.
                    Ok(true) | Err(_) => break,
                }
            }
            // Before the connection is taken: without a free number it stays where this process accepts it once it can.
            // A child that is forked then would keep an end open beside whoever takes it.
            let pair = || socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None);
            let given = match own::made_for_no_child(pair) {
                Ok(ends) => match real.accept_for_another() {
                    Ok((stream, peer, was)) => self.give(stream, peer, was, passed_on, ends),
                    // The program has accepted it, or its peer has reset it meanwhile.
                    Err(error)
                        if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::ConnectionAborted) =>
                    {
                        continue;
                    }
                    // The listener was shut down.
                    Err(_) => break,
                },
                Err(error) => {
                    drop(passed_on);
                    Err(error.into())
                }
            };
            match given {
                Ok(()) => is_said = false,
                // No process has it any more: what it was left by is over with this.
                Err(_) if is_hung_up(&self.gives) => break,
                Err(error) => rest(&self.gives, self.bound, &error, &mut is_said),
            }
            // Its peer has reset it meanwhile.
        }
    }

    /// Waits until connections have not been accepted for [`SOON`], and returns how many; none if there is nobody left to give them to.
    fn wait_until_due(&self, real: &TcpListener, is_said: &mut bool) -> crate::Result<Option<u64>> {
        loop {
            if self.wait(real, is_said)? {
                return Ok(None);
            }
            let (taken, wait) = real.arrivals()?;
            std::thread::sleep(SOON);
            let (taken_since, _) = real.arrivals()?;
            let due = (taken + wait as u64).saturating_sub(taken_since);
            if due > 0 {
                return Ok(Some(due));
            }
        }
    }

    /// Waits for a connection; true if there is nobody left to give it to, or this process passes on no more.
    fn wait(&self, real: &TcpListener, is_said: &mut bool) -> crate::Result<bool> {
        let wait = Wait::new()?;
        wait.add(real, Interest::READABLE, || Interest::READABLE)?;
        let number = self.gives.as_raw_fd();
        // A hang-up is reported even if no event is asked for.
        wait.add_kernels(number, Interest::empty(), Interest::empty)?;
        let ends = ends();
        if let Some(ends) = ends {
            wait.add_kernels(ends.as_raw_fd(), Interest::READABLE, || Interest::READABLE)?;
        }
        let mut half = self.kernels.as_ref().map(locked).filter(|half| half.may_have_any());
        if let Some(half) = &half {
            wait.add_kernels(half.listener.as_raw_fd(), Interest::READABLE, || Interest::READABLE)?;
        }
        // One that is at hand is not waited for.
        let is_at_hand = half.as_ref().is_some_and(|half| half.at_hand.is_some());
        let waited = wait.wait(is_at_hand.then_some(Duration::ZERO));
        wait.remove(real);
        wait.remove_kernels(number);
        if let Some(ends) = ends {
            wait.remove_kernels(ends.as_raw_fd());
        }
        if let Some(half) = &mut half {
            wait.remove_kernels(half.listener.as_raw_fd());
            half.give_or_rest(&self.gives, self.bound, is_said);
        }
        waited?;
        Ok(is_hung_up(&self.gives) || counted().is_over())
    }

    /// Gives a connection, which is passed on by the first of a pair's ends, and left to who listens where that fails.
    fn give(
        &self,
        stream: TcpStream,
        peer: SocketAddr,
        was: Unaccepted,
        mut passed_on: PassedOn,
        (mine, theirs): (OwnedFd, OwnedFd),
    ) -> io::Result<()> {
        static CONNECTIONS: AtomicU64 = AtomicU64::new(0);
        let connection = CONNECTIONS.fetch_add(1, Ordering::Relaxed);
        let file = stream::accepted(self.domain, self.options.inherited(), stream, peer, 0).map_err(to_io)?;
        let file = files::open(File::Stream(file)).map_err(to_io)?;
        given().insert(connection, Given { file, peer, was });
        passed_on.is_offered();
        let offered = inherit::offer(mine, move |is_taken| {
            if !is_taken {
                drop(take_back(connection));
                return None;
            }
            // A process that is about to end leaves this connection to others, with all those that nobody has taken.
            let is_used = passed_on.is_taken();
            is_used.then(|| take_back(connection)).flatten().map(|given| (given.file, passed_on))
        });
        // While every process is busy it waits here, and later connections in the stack.
        let message = Message { process: std::process::id(), connection };
        let sent = offered.and_then(|()| sent_unless_it_ends(&message, &self.gives, &theirs).map_err(io::Error::from));
        if !matches!(sent, Ok(true))
            && let Some(given) = take_back(connection)
        {
            given.leave();
        }
        sent.map(drop)
    }
}

/// Sends a connection once there is room for it; false where this process passes on no more before there is.
fn sent_unless_it_ends(message: &Message, gives: &OwnedFd, socket: &OwnedFd) -> rustix::io::Result<bool> {
    let Some(ends) = ends() else { return message.send(gives, socket).map(|()| true) };
    loop {
        match message.send_as(gives, socket, SendFlags::DONTWAIT) {
            Err(rustix::io::Errno::AGAIN) => {}
            sent => return sent.map(|()| true),
        }
        let mut polled = [PollFd::new(gives, PollFlags::OUT), PollFd::new(ends, PollFlags::IN)];
        if poll(&mut polled, None).is_ok() && !polled[1].revents().is_empty() {
            return Ok(false);
        }
    }
}

fn is_listening(socket: &OwnedFd) -> bool {
    kernel::int_option(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_ACCEPTCONN) == Ok(1)
}

fn to_io(error: Errno) -> io::Error {
    io::Error::from_raw_os_error(error.number())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fork::tests::in_a_child;
    use std::sync::atomic::AtomicBool;
    use std::thread::{scope, yield_now};

    /// A listener of the kernel's at which a connection waits, and a pool that it can be given to.
    fn one_that_waits() -> (KernelsHalf, std::net::TcpStream, (OwnedFd, OwnedFd)) {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let pool = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        (KernelsHalf::new(listener.into()), client, pool)
    }

    /// The limit of open files is `soft` from now on.
    fn limited_to(soft: u64) -> bool {
        let limit = rustix::process::Resource::Nofile;
        let before = rustix::process::getrlimit(limit);
        rustix::process::setrlimit(limit, rustix::process::Rlimit { current: Some(soft), ..before }).is_ok()
    }

    fn is_its_peers((message, socket): &(Message, OwnedFd), client: &std::net::TcpStream) -> bool {
        let name = kernel::getpeername(socket.as_raw_fd()).ok().and_then(|name| address::parse(name.as_bytes()));
        message.connection == KERNELS && name.is_some_and(|name| client.local_addr().is_ok_and(|own| own == name))
    }

    #[test]
    fn a_connection_of_the_kernels_waits_until_there_is_a_number_for_it() {
        let (mut half, client, (takes, gives)) = one_that_waits();
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(u64::MAX);
        assert!(in_a_child(|| {
            // Standard input, output and error have these.
            let is_refused = limited_to(3) && half.give(&gives).is_err_and(|e| e.raw_os_error() == Some(libc::EMFILE));
            let is_given = limited_to(limit) && half.give(&gives).is_ok_and(|was_one| was_one);
            let next = Message::next(&takes).ok().flatten();
            is_refused && is_given && next.is_some_and(|next| is_its_peers(&next, &client))
        }));
    }

    /// Without a capability a user has as many descriptors on their way as one process may have open (`too_many_unix_fds`).
    #[test]
    #[allow(unsafe_code)]
    fn a_connection_of_the_kernels_that_cannot_be_sent_stays_at_hand_until_it_can() {
        let (mut half, client, (takes, gives)) = one_that_waits();
        /// Nobody else has this number.
        const NOBODY_ELSE: libc::uid_t = 61_357;
        assert!(in_a_child(|| {
            // SAFETY: numbers only.
            unsafe {
                if libc::geteuid() == 0 && libc::setresuid(NOBODY_ELSE, NOBODY_ELSE, NOBODY_ELSE) != 0 {
                    return false;
                }
            }
            let Ok(free) = kernel::duplicate(gives.as_raw_fd(), 0, true) else { return false };
            let most = free as u64 + 8;
            let filler = Message { process: 0, connection: 7 };
            let is_full = limited_to(most)
                && (0..2 * most).any(|_| filler.send(&gives, &takes) == Err(rustix::io::Errno::TOOMANYREFS));
            let is_refused = half.give(&gives).is_err() && half.at_hand.is_some();
            let took = (0..8).all(|_| Message::next(&takes).is_ok_and(|next| next.is_some()));
            let is_given = half.give(&gives).is_ok_and(|was_one| was_one) && half.at_hand.is_none();
            let next = std::iter::from_fn(|| Message::next(&takes).ok().flatten()).last();
            is_full && is_refused && took && is_given && next.is_some_and(|next| is_its_peers(&next, &client))
        }));
    }

    #[test]
    fn a_thread_that_waits_for_connections_or_room_hears_of_an_exec_whichever_comes_first() {
        let (_, client, (_takes, gives)) = one_that_waits();
        let client = OwnedFd::from(client);
        assert!(in_a_child(|| {
            forget();
            ends_for_exec(Duration::ZERO);
            let is_told = || ends().is_some_and(|ends| kernel::is_readable(ends.as_raw_fd()));
            if !is_told() {
                return false;
            }
            let message = Message { process: 0, connection: 7 };
            let fills = || rustix::net::send(&gives, &message.bytes(), SendFlags::DONTWAIT).is_ok();
            while fills() {}
            let is_sent = sent_unless_it_ends(&message, &gives, &client);
            goes_on_after_exec();
            is_sent == Ok(false) && !is_told()
        }));
    }

    /// A connection that a thread has taken from the stack is nobody's to leave until it is given.
    #[test]
    fn a_process_that_ends_waits_for_what_is_being_given_and_ends_nothing_that_is_used() {
        let mut used = used_by_another();
        assert!(used.is_some() && !ends_unless_used());
        used = None;
        drop(used);
        let mut passed_on = PassedOn::begin().unwrap();
        let offered = AtomicBool::new(false);
        scope(|scope| {
            let ends = scope.spawn(|| (ends_unless_used(), offered.load(Ordering::Acquire)));
            while !counted().ends {
                yield_now();
            }
            // One that does not wait is done by now.
            (0..1000).for_each(|_| yield_now());
            assert!(PassedOn::begin().is_none(), "no more is taken");
            offered.store(true, Ordering::Release);
            passed_on.is_offered();
            assert_eq!(ends.join().unwrap(), (true, true));
        });
        assert!(!passed_on.is_taken(), "it is left to who listens");
        drop(passed_on);
        assert_eq!({ counted().offered }, 0);
        forget();
    }
}
