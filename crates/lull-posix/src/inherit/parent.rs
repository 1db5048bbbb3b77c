//! The process that forked: what its children may ask for, and the relays' other ends.
//!
//! Each child that inherited connections has a thread here that answers it, until it has ended; each connection that a child uses has
//! one thread for each direction.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::Builder;

use lull_fd::say;
use lull_net::lull_nic::own;
use lull_net::{Interest, Shutdown, TcpStream};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{RecvFlags, SendFlags, recv, send, shutdown};

use super::{Message, TAKEN, Verb, datagrams, end, id, left, made, names_bytes};
use crate::files::{File, Open};
use crate::kernel::{self, NoSignals};
use crate::socket::pool;
use crate::{Errno, Result, block, leaving};

/// What is passed on at a time.
const CHUNK_BYTES: usize = 32 * 1024;
/// What such a thread needs: it delivers while it waits.
const STACK_BYTES: usize = 1 << 20;

/// Keeps connections and listeners open for a child, until every process that has the other end of `channel` has ended.
pub(super) fn keep(channel: OwnedFd, held: Vec<Open>) {
    let _no_signals = NoSignals::but_of_children();
    let held = held.into_iter().map(|file| (id(&file), file)).collect();
    let run = move || {
        // For as long as the thread lives.
        std::mem::forget(NoSignals::begin());
        serve(&channel, held);
    };
    if let Err(error) = thread("lull-heirs").spawn(run) {
        say::line(format_args!("a child of process {} cannot use connections of lull's: {error}", std::process::id()));
    }
}

pub(crate) fn thread(name: &str) -> Builder {
    Builder::new().name(name.to_owned()).stack_size(STACK_BYTES)
}

fn serve(channel: &OwnedFd, mut held: HashMap<usize, Open>) {
    while let Some((message, descriptors)) = Message::next(end(channel)) {
        let mut descriptors = descriptors.into_iter();
        let started = match (message.verb, descriptors.next(), descriptors.next()) {
            (Verb::Claims, Some(socket), kernels) => match (held.remove(&message.id), kernels) {
                (Some(file), None) if matches!(&*file, File::Datagram(_)) => {
                    // There was no free number for the second one. The child's next call claims it again.
                    held.insert(message.id, file);
                    Err(io::Error::from_raw_os_error(libc::EMFILE))
                }
                (Some(file), None) => Relay::start(file, socket, None),
                (Some(file), Some(kernels)) => datagrams::relay::start(file, socket, kernels, ()),
                (None, _) => Ok(()),
            },
            (Verb::Claims, None, _) => {
                left::is_used(message.id);
                Ok(())
            }
            // It is held for other processes that have the channel.
            (Verb::Leaves, Some(socket), _) => match held.get(&message.id) {
                Some(file) => left::offer(file.clone(), socket),
                None => Ok(()),
            },
            (Verb::Releases, ..) => {
                drop(held.remove(&message.id));
                Ok(())
            }
            (Verb::Listens, Some(gives), Some(kernels)) => made::listen_for_a_child(gives, kernels, message.id),
            (Verb::Connects, Some(socket), Some(kernels)) => made::connect_for_a_child(socket, kernels),
            (Verb::Binds, Some(socket), Some(kernels)) => made::bind_for_a_child(socket, kernels, message.id != 0),
            (Verb::Probes, Some(socket), Some(kernels)) => made::probe_for_a_child(socket, kernels),
            (Verb::Asks, Some(kernels), _) => pool::begin_to_give(kernels, held.values()),
            // There was no free number for them: what the child waits for ends.
            _ => Ok(()),
        };
        if let Err(error) = started {
            say::line(format_args!("a socket cannot be passed on to a child: {error}"));
        }
    }
}

/// Passes the connection that `taken` returns on to whoever takes the other end of `socket`, which it is told of; if nobody does, it
/// is to return none. What comes along with the connection is dropped when that is over.
pub(crate) fn offer<G: Send + Sync + 'static>(
    socket: OwnedFd,
    taken: impl FnOnce(bool) -> Option<(Open, G)> + Send + 'static,
) -> io::Result<()> {
    let run = move || {
        let mut said = [0];
        let is_taken = loop {
            match recv(&socket, &mut said[..], RecvFlags::empty()) {
                Err(rustix::io::Errno::INTR) => {}
                heard => break heard.is_ok_and(|(count, _)| count == 1) && said == [TAKEN],
            }
        };
        // None where this process has taken it itself, or nobody.
        if let Some((file, guard)) = taken(is_taken)
            && let Err(error) = Relay::start(file, socket, Some(Box::new(guard)))
        {
            say::line(format_args!("a connection cannot be passed on to another process: {error}"));
        }
    };
    thread("lull-offer").spawn(run).map(drop)
}

/// Passes a connection on to whoever has the other end of `socket`.
pub(super) fn pass_on(file: Open, socket: OwnedFd) -> io::Result<()> {
    Relay::start(file, socket, None)
}

/// As [`pass_on`], to who knows its names already. What comes along is dropped when that is over.
pub(super) fn pass_on_named<G: Send + Sync + 'static>(file: Open, socket: OwnedFd, guard: G) -> io::Result<()> {
    Relay::new(file, socket, Some(Box::new(guard)))?.begin()
}

/// A connection that a child uses, or its own process by streams.
pub(super) struct Relay {
    file: Open,
    socket: OwnedFd,
    /// The child has closed its end, and `wakes` is readable: who waits for the peer alone has nobody to wait for.
    over: AtomicBool,
    wakes: OwnedFd,
    _guard: Option<Box<dyn Send + Sync>>,
}

impl Relay {
    /// Tells the names first.
    fn start(file: Open, socket: OwnedFd, guard: Option<Box<dyn Send + Sync>>) -> io::Result<()> {
        let relay = Relay::new(file, socket, guard)?;
        let names = names_bytes(relay.stream().local_addr()?, relay.stream().peer_addr()?);
        send(&relay.socket, &names, SendFlags::NOSIGNAL)?;
        relay.begin()
    }

    pub(super) fn new(file: Open, socket: OwnedFd, guard: Option<Box<dyn Send + Sync>>) -> io::Result<Arc<Relay>> {
        own::keep_from_children(&socket);
        let wakes = kernel::eventfd(0).map_err(|error| io::Error::from_raw_os_error(error.number()))?;
        let relay = Relay { file, socket, over: AtomicBool::new(false), wakes, _guard: guard };
        // What the child writes is not held back a second time.
        relay.stream().set_nodelay(true)?;
        Ok(Arc::new(relay))
    }

    pub(super) fn begin(self: Arc<Self>) -> io::Result<()> {
        let other = self.clone();
        thread("lull-relay-out").spawn(move || other.to_the_peer())?;
        thread("lull-relay-in").spawn(move || self.to_the_child()).map(drop)
    }

    pub(super) fn file(&self) -> &Open {
        &self.file
    }

    fn stream(&self) -> &TcpStream {
        match &*self.file {
            File::Stream(stream) => stream.stream(),
            _ => unreachable!("a child claims a connection without a second descriptor"),
        }
    }

    /// Passes on what the peer sends, and the end of it.
    fn to_the_child(&self) {
        let mut chunk = vec![0; CHUNK_BYTES];
        loop {
            match self.stream().recv(&mut chunk) {
                Ok(0) => {
                    // A child that has ended hears nothing.
                    let _ = shutdown(&self.socket, rustix::net::Shutdown::Write);
                    return;
                }
                Ok(count) if self.give(&chunk[..count]).is_ok() => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && !self.over.load(Ordering::Acquire) => {
                    let interest = Interest::READABLE | Interest::RDHUP;
                    if block::until_ready(self.stream(), interest, Some(self.wakes.as_raw_fd()), None).is_err() {
                        return self.fail();
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                // The child has closed its end, or the connection was reset.
                Ok(_) | Err(_) => return self.fail(),
            }
        }
    }

    fn give(&self, mut data: &[u8]) -> rustix::io::Result<()> {
        while !data.is_empty() {
            match send(&self.socket, data, SendFlags::NOSIGNAL) {
                Ok(sent) => data = &data[sent..],
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Neither end has anything more for the other.
    fn fail(&self) {
        // It may have been shut down already.
        let _ = shutdown(&self.socket, rustix::net::Shutdown::Both);
    }

    /// Passes on what the child writes, and the end of it.
    fn to_the_peer(&self) {
        let mut chunk = vec![0; CHUNK_BYTES];
        loop {
            crate::about_to_wait();
            match recv(&self.socket, &mut chunk[..], RecvFlags::empty()) {
                Ok((0, _)) => break,
                Ok((count, _)) => {
                    if self.send(&chunk[..count]).is_err() {
                        self.fail();
                        break;
                    }
                }
                Err(rustix::io::Errno::INTR) => {}
                Err(_) => break,
            }
        }
        // A child that has closed its end says nothing of the connection, which may be others' as well; one that has shut it down does.
        if !self.is_closed(Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) {
            // It may be over already.
            let _ = self.stream().shutdown(Shutdown::Write);
            crate::about_to_wait();
            self.is_closed(None);
        }
        self.over.store(true, Ordering::Release);
        kernel::add_to_eventfd(self.wakes.as_raw_fd());
    }

    /// Whether the child has closed its end, or does within that time.
    fn is_closed(&self, within: Option<&Timespec>) -> bool {
        loop {
            let mut polled = [PollFd::new(&self.socket, PollFlags::empty())];
            match poll(&mut polled, within) {
                Err(rustix::io::Errno::INTR) => {}
                Err(_) => return true,
                Ok(count) => return count > 0,
            }
        }
    }

    /// This process exits, and stays for what a program has written that has closed its end.
    fn keeps_a_process(&self) -> bool {
        leaving::is_begun() && self.is_closed(Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))
    }

    /// The peer is not to take what it has for all.
    fn give_up(&self) -> Result<()> {
        say::line(format_args!(
            "process {} ends, and a peer takes nothing of what is passed on to it: it is reset",
            std::process::id()
        ));
        // One that cannot be is over already.
        let _ = self.stream().set_reset_on_close(true);
        Err(Errno::new(libc::ETIMEDOUT))
    }

    fn send(&self, data: &[u8]) -> Result<()> {
        let mut sent = 0;
        while sent < data.len() {
            match self.stream().send(&data[sent..]) {
                Ok(count) => sent += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let left = self.stream().unacknowledged().ok();
                    let within = Some(leaving::NO_PROGRESS);
                    let is_writable = block::until_ready(self.stream(), Interest::WRITABLE, None, within)?;
                    if !is_writable && left == self.stream().unacknowledged().ok() && self.keeps_a_process() {
                        return self.give_up();
                    }
                }
                Err(error) => return Err(Errno::from(error)),
            }
        }
        Ok(())
    }
}
