//! The process that has the queue gives connections to a listener's pool, once another one asks.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

use libc::c_int;
use lull_fd::say;
use lull_net::lull_nic::{Afresh, own};
use lull_net::{Interest, Ready, TcpListener, TcpStream, Unaccepted};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, socketpair};

use super::kernels_half::{self, KernelsHalf, rest};
use super::passed_on::{self, PassedOn, Serving, ends, failed_to_execute, goes_on};
use super::{Message, Pool, is_hung_up, locked, to_io};
use crate::block::Wait;
use crate::files::{self, File, Open};
use crate::kernel::NoSignals;
use crate::socket::options::Options;
use crate::socket::{Listener, stream};
use crate::{Errno, elsewhere, engine, inherit, kernel};

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

/// A child of `fork` gives nothing to anybody.
pub(crate) fn forget() {
    GIVEN.forget();
    passed_on::forget();
    kernels_half::forget();
    SERVED.forget();
    SERVED_FOR_CHILDREN.forget();
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

pub(super) fn served() -> MutexGuard<'static, BTreeMap<u32, Weak<OwnedFd>>> {
    locked(SERVED.get_or_init(Mutex::default))
}

fn served_for_children() -> MutexGuard<'static, Vec<OfAChild>> {
    locked(SERVED_FOR_CHILDREN.get_or_init(Mutex::default))
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
        Ok(is_hung_up(&self.gives) || passed_on::is_over())
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

#[cfg(test)]
mod tests {
    use super::kernels_half::tests::one_that_waits;
    use super::passed_on::{ends_for_exec, goes_on_after_exec};
    use super::*;
    use crate::fork::tests::in_a_child;

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
}
