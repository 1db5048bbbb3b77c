//! A program on two machines side by side, step by step.
//!
//! After every step both sides settle: what was sent has arrived, and every thread of the program's either has returned or
//! sleeps in its call. So results do not depend on how fast a side is. What is ready, how much could be read and which calls
//! have returned has to be the same on both sides then; a side gets time to come to it.

use std::net::{IpAddr, Ipv4Addr, SocketAddrV4};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use libc::c_int;
use lull_posix::Errno;
use lull_posix::address::{self, Bytes};

use super::ancillary;
use super::call::{Call, Given, Outcome, Slot};
use super::machine::Machine;
use super::peers::{self, Peer, PeerListener};
use super::thread::Thread;
use super::udp_peers::DatagramPair;
use super::watch;
use super::words::{self, Side};

/// What the sides did differently.
pub type Difference = String;
pub type Result<T> = std::result::Result<T, Difference>;

/// What a number stands for, as far as the choice of calls cares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Fresh,
    Listener,
    Stream,
    Epoll,
    Eventfd,
    Datagram,
}

/// An open file of the program's.
pub struct File {
    pub kind: Kind,
    /// Of a socket.
    pub domain: c_int,
    /// Bytes that were written to it.
    pub sent: usize,
    /// Numbers that it has had.
    pub numbers: usize,
    /// It is or was a member of a context.
    pub is_member: bool,
    /// A context with a datagram socket that is asked for room, or with such a context.
    pub hears_of_room: bool,
    /// It listened or was connected, and is no more.
    pub is_spent: bool,
    /// It was shut down, one direction of it at least, whatever was said of that.
    pub is_shut: bool,
    /// A datagram may have begun there that is written in parts.
    pub writes_parts: bool,
    /// Datagrams that came to it, and whether the last one was of the kernel's world.
    pub came: usize,
    pub heard_in: Option<bool>,
}

impl File {
    fn new(kind: Kind, domain: c_int) -> File {
        File {
            kind,
            domain,
            sent: 0,
            numbers: 0,
            is_member: false,
            hears_of_room: false,
            is_spent: false,
            is_shut: false,
            writes_parts: false,
            came: 0,
            heard_in: None,
        }
    }
}

pub struct Named {
    pub open: bool,
    pub file: usize,
    /// On each side.
    fds: [c_int; 2],
}

/// A number that is never open.
const CLOSED: c_int = 900_000;

/// The program's threads on both sides: the first calls from wherever the test runs, unless the call may block.
pub type Threads = [[Thread; 2]; 2];

pub fn new_threads() -> Threads {
    [[Thread::start(), Thread::start()], [Thread::start(), Thread::start()]]
}

/// A timeout in seconds that is over after the run.
pub const NEVER_OVER_S: i64 = 3600;

/// How long a call may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Waits {
    Never,
    ForATime,
    ForEver,
}

pub struct PeerPair {
    pub sides: [Peer; 2],
    /// Bytes that it has sent.
    pub sent: usize,
}

pub struct Run<'t> {
    sides: [Side; 2],
    threads: &'t mut Threads,
    pub slots: Vec<Named>,
    pub files: Vec<File>,
    pub peers: Vec<Option<PeerPair>>,
    pub listeners: Vec<([PeerListener; 2], bool)>,
    pub datagram_peers: Vec<DatagramPair>,
    /// Datagrams that the program has sent.
    pub datagrams_sent: usize,
    /// The calls that have not returned, by thread.
    pending: [Option<Call>; 2],
    newest: Option<Slot>,
    log: Vec<String>,
    limit: Duration,
}

impl<'t> Run<'t> {
    pub fn new(machines: [Machine; 2], threads: &'t mut Threads, limit: Duration) -> Run<'t> {
        Run {
            sides: machines.map(Side::new),
            threads,
            slots: Vec::new(),
            files: Vec::new(),
            peers: Vec::new(),
            listeners: Vec::new(),
            datagram_peers: Vec::new(),
            datagrams_sent: 0,
            pending: [None, None],
            newest: None,
            log: Vec::new(),
            limit,
        }
    }

    pub fn machine(&self, side: usize) -> Machine {
        self.sides[side].machine
    }

    pub fn fd(&self, side: usize, slot: Slot) -> c_int {
        self.slots[slot].fds[side]
    }

    pub fn kind(&self, slot: Slot) -> Kind {
        self.files[self.slots[slot].file].kind
    }

    pub fn is_anybody_waiting(&self) -> bool {
        self.pending.iter().any(Option::is_some)
    }

    /// Whether a thread waits in `poll` for a number, or at it for several messages.
    pub fn is_polled(&self, slot: Slot) -> bool {
        self.pending.iter().flatten().any(|call| match call {
            Call::Poll { members, .. } | Call::Select { members, .. } => {
                members.iter().any(|(member, _)| *member == slot)
            }
            Call::RecvMany { slot: received, sizes, .. } => *received == slot && sizes.len() > 1,
            Call::MoveOut { slot: moved, .. } | Call::MoveIn { slot: moved, .. } => *moved == slot,
            // One in both worlds is looked up by its number.
            Call::Recv { slot: received, .. } | Call::RecvFrom { slot: received, .. } => {
                *received == slot && self.kind(slot) == Kind::Datagram
            }
            _ => false,
        })
    }

    /// Whether a thread waits at the file of a number, or for it in `poll`.
    pub fn is_waited_at(&self, slot: Slot) -> bool {
        let file = Some(self.slots[slot].file);
        self.is_polled(slot) || self.pending.iter().flatten().any(|call| self.waits_on(call) == file)
    }

    /// A call of the program's; what comes back is the number that it made.
    pub fn call(&mut self, by_second: bool, call: Call) -> Result<Option<Slot>> {
        self.call_at(by_second, call, [Vec::new(), Vec::new()])
    }

    /// A call with an address, which is another one on each side.
    pub fn call_at(&mut self, by_second: bool, call: Call, addresses: [Vec<u8>; 2]) -> Result<Option<Slot>> {
        self.call_with(by_second, call, addresses.map(|address| (address, Vec::new())))
    }

    /// A call with an address and with ancillary data, which are others on each side.
    pub fn call_with(&mut self, by_second: bool, call: Call, given: [(Vec<u8>, Vec<u8>); 2]) -> Result<Option<Slot>> {
        self.newest = None;
        let thread = usize::from(by_second);
        let waits = self.waits(&call);
        // Rule "time".
        let hurries = waits == Waits::ForATime && matches!(call, Call::Connect { .. });
        if self.pending[thread].is_some() || hurries || waits != Waits::Never && !self.may_wait(thread, &call) {
            return Ok(None);
        }
        watch::doing(&call, &self.log);
        let [left, right] = given;
        let [left, right] = [(0, left), (1, right)].map(|(side, (address, control))| {
            let fds = self.slots.iter().map(|slot| slot.fds[side]).collect();
            (self.sides[side].machine, Given { call: call.clone(), fds, address, control })
        });
        if waits == Waits::Never && !by_second {
            let outcomes = [left.1.perform(left.0), right.1.perform(right.0)];
            self.returned(&call, outcomes, by_second)?;
        } else {
            for (side, (machine, given)) in [left, right].into_iter().enumerate() {
                self.threads[side][thread].give(Box::new(move || given.perform(machine)));
            }
            self.pending[thread] = Some(call);
            if waits != Waits::ForEver {
                self.until(|run| (0..2).all(|side| run.threads[side][thread].is_done()), "the call does not return")?;
            }
        }
        self.settle()?;
        Ok(self.newest)
    }

    /// Something that the peers do, with the same result on both sides.
    pub fn peers_do<R: std::fmt::Debug + PartialEq>(&mut self, what: &str, results: [R; 2]) -> Result<()> {
        let [left, right] = results;
        self.log.push(format!("peer: {what} -> {}", words::brief(&left)));
        if left != right {
            return Err(format!("peer: {what}: {} and {}", words::brief(&left), words::brief(&right)));
        }
        self.settle()
    }

    fn until(&self, condition: impl Fn(&Self) -> bool, otherwise: &str) -> Result<()> {
        let start = Instant::now();
        while !condition(self) {
            if start.elapsed() > self.limit {
                return Err(format!("{otherwise}: {}", self.threads_in_words()));
            }
            pause(start);
        }
        Ok(())
    }

    fn threads_in_words(&self) -> String {
        let words = |thread: usize| {
            let call = self.pending[thread].as_ref()?;
            let done = |side: usize| match self.threads[side][thread].returned() {
                Some(outcome) => format!("returned {outcome}"),
                None => "waits".to_owned(),
            };
            Some(format!("{call:?} {} and {}", done(0), done(1)))
        };
        (0..2).filter_map(words).collect::<Vec<_>>().join("; ")
    }

    /// Whether a call waits, by the first side's file and the call.
    fn waits(&self, call: &Call) -> Waits {
        let machine = self.sides[0].machine;
        let on_file = |slot: Slot, timeout: c_int| {
            let fd = self.fd(0, slot);
            if machine.get_flags(fd).is_ok_and(|flags| flags & libc::O_NONBLOCK != 0) {
                return Waits::Never;
            }
            // Seconds come first.
            let value = machine.getsockopt(fd, libc::SOL_SOCKET, timeout, 16);
            let is_long = value.as_ref().is_ok_and(|value| value[..8] == NEVER_OVER_S.to_ne_bytes());
            let timed = value.is_ok_and(|value| value != [0; 16]) && !is_long;
            if timed { Waits::ForATime } else { Waits::ForEver }
        };
        const NEVER: c_int = libc::MSG_DONTWAIT | libc::MSG_OOB | libc::MSG_ERRQUEUE;
        match call {
            Call::Recv { flags, .. } | Call::Send { flags, .. } if flags.unwrap_or(0) & NEVER != 0 => Waits::Never,
            Call::RecvFrom { flags, .. } | Call::SendTo { flags, .. } if flags & NEVER != 0 => Waits::Never,
            Call::Connect { slot, .. } if self.kind(*slot) == Kind::Datagram => Waits::Never,
            Call::RecvMany { flags, .. } | Call::SendMany { flags, .. } if flags & NEVER != 0 => Waits::Never,
            Call::Recv { slot, .. }
            | Call::RecvFrom { slot, .. }
            | Call::RecvMany { slot, .. }
            | Call::MoveOut { slot, .. }
            | Call::Accept { slot, .. } => on_file(*slot, libc::SO_RCVTIMEO),
            Call::Send { slot, .. }
            | Call::SendTo { slot, .. }
            | Call::SendMany { slot, .. }
            | Call::MoveIn { slot, .. }
            | Call::Connect { slot, .. } => on_file(*slot, libc::SO_SNDTIMEO),
            Call::EpollWait { timeout_ms, .. } | Call::Poll { timeout_ms, .. } | Call::Select { timeout_ms, .. } => {
                match timeout_ms {
                    0 => Waits::Never,
                    1.. => Waits::ForATime,
                    _ => Waits::ForEver,
                }
            }
            _ => Waits::Never,
        }
    }

    /// Rule "one waiter": of two threads that wait for the same thing Linux wakes one, and which is its own affair. So a thread
    /// does not wait on the file that the other waits on, nor for events beside one that waits.
    fn may_wait(&self, thread: usize, call: &Call) -> bool {
        let Some(other) = &self.pending[1 - thread] else { return true };
        match (self.waits_on(call), self.waits_on(other)) {
            (Some(file), Some(others)) => file != others,
            _ => false,
        }
    }

    /// The file that a call waits on; nothing if it waits for events.
    fn waits_on(&self, call: &Call) -> Option<usize> {
        Self::number_of(call).map(|slot| self.slots[slot].file)
    }

    /// The number that a call waits on; nothing if it waits for events.
    fn number_of(call: &Call) -> Option<Slot> {
        match call {
            Call::Recv { slot, .. }
            | Call::RecvFrom { slot, .. }
            | Call::SendTo { slot, .. }
            | Call::RecvMany { slot, .. }
            | Call::MoveOut { slot, .. }
            | Call::MoveIn { slot, .. }
            | Call::Accept { slot, .. }
            | Call::Send { slot, .. }
            | Call::SendMany { slot, .. }
            | Call::Connect { slot, .. } => Some(*slot),
            _ => None,
        }
    }

    /// A call has returned on both sides.
    fn returned(&mut self, call: &Call, outcomes: [Outcome; 2], by_second: bool) -> Result<()> {
        let [left, right] = &outcomes;
        let words = [self.in_words(0, call, left), self.in_words(1, call, right)];
        let thread = if by_second { "second: " } else { "" };
        self.log.push(format!("{thread}{call:?} -> {}", words[0]));
        if words[0] != words[1] {
            // What was made has to be closed.
            self.note(call, &outcomes);
            return Err(format!("{thread}{call:?}: {} and {}", words[0], words[1]));
        }
        self.note(call, &outcomes);
        Ok(())
    }

    fn note(&mut self, call: &Call, outcomes: &[Outcome; 2]) {
        let fds = [0, 1].map(|side| if let Outcome::Number(fd, _) = outcomes[side] { fd } else { CLOSED });
        let succeeded = !matches!(outcomes[0], Outcome::Failed(_));
        if let Call::Shutdown { slot, .. } = call {
            let file = self.slots[*slot].file;
            self.files[file].is_shut = true;
        }
        match call {
            Call::Send { slot, flags: Some(flags), .. } | Call::SendTo { slot, flags, .. }
                if flags & libc::MSG_MORE != 0 =>
            {
                self.file_mut(*slot).writes_parts = true;
            }
            Call::SetOption { slot, level: libc::SOL_UDP, name: libc::UDP_CORK, .. } => {
                self.file_mut(*slot).writes_parts = true;
            }
            _ => {}
        }
        if fds != [CLOSED; 2] {
            let file = match call {
                Call::Dup { slot } => self.slots[*slot].file,
                _ => {
                    let kind = match call {
                        Call::Accept { .. } => Kind::Stream,
                        Call::EpollCreate => Kind::Epoll,
                        Call::Eventfd => Kind::Eventfd,
                        Call::Datagram { .. } => Kind::Datagram,
                        _ => Kind::Fresh,
                    };
                    let domain = match call {
                        Call::Socket { domain, .. } | Call::Datagram { domain, .. } => *domain,
                        Call::Accept { slot, .. } => self.file(*slot).domain,
                        _ => libc::AF_UNSPEC,
                    };
                    self.files.push(File::new(kind, domain));
                    self.files.len() - 1
                }
            };
            self.files[file].numbers += 1;
            self.newest = Some(self.slots.len());
            self.slots.push(Named { open: true, file, fds });
        }
        match call {
            Call::Close { slot } if succeeded => {
                self.slots[*slot].open = false;
                self.slots[*slot].fds = [CLOSED; 2];
            }
            Call::Dup2 { slot, to } if succeeded => {
                self.slots[*to].file = self.slots[*slot].file;
                self.file_mut(*to).numbers += 1;
            }
            Call::Shutdown { slot, how }
                if succeeded && *how != libc::SHUT_WR && self.kind(*slot) == Kind::Listener =>
            {
                self.file_mut(*slot).kind = Kind::Fresh;
                self.file_mut(*slot).is_spent = true;
            }
            Call::Connect { slot, .. }
                if self.kind(*slot) != Kind::Datagram
                    && [libc::ECONNREFUSED, libc::ECONNABORTED, libc::ECONNRESET, libc::EPIPE]
                        .map(Errno::new)
                        .map(Outcome::Failed)
                        .contains(&outcomes[0]) =>
            {
                self.file_mut(*slot).kind = Kind::Fresh;
                self.file_mut(*slot).is_spent = true;
            }
            Call::Listen { slot, .. } if succeeded => self.file_mut(*slot).kind = Kind::Listener,
            // What is no address has done nothing.
            Call::Connect { slot, .. }
                if self.kind(*slot) == Kind::Fresh
                    && ![libc::EAFNOSUPPORT, libc::EINVAL]
                        .map(Errno::new)
                        .map(Outcome::Failed)
                        .contains(&outcomes[0]) =>
            {
                self.file_mut(*slot).kind = Kind::Stream;
            }
            Call::EpollCtl { slot, member, events, .. } if succeeded => {
                let is_asked = self.kind(*member) == Kind::Datagram && events & libc::EPOLLOUT as u32 != 0;
                self.file_mut(*slot).hears_of_room |= is_asked || self.file(*member).hears_of_room;
                self.file_mut(*member).is_member = true;
            }
            Call::SendTo { .. } => self.datagrams_sent += datagrams(&outcomes[0]),
            Call::Send { slot, .. } | Call::SendMany { slot, .. } | Call::MoveIn { slot, .. } => {
                if self.kind(*slot) == Kind::Datagram {
                    self.datagrams_sent += datagrams(&outcomes[0]);
                }
                self.file_mut(*slot).sent += match &outcomes[0] {
                    Outcome::Count(count) | Outcome::Moved(count, _) => *count,
                    Outcome::Lengths(lengths) => lengths.iter().sum(),
                    _ => 0,
                };
            }
            _ => {}
        }
    }

    pub fn file(&self, slot: Slot) -> &File {
        &self.files[self.slots[slot].file]
    }

    pub fn file_mut(&mut self, slot: Slot) -> &mut File {
        &mut self.files[self.slots[slot].file]
    }

    /// What a side returned, in words that are the same on both.
    fn in_words(&mut self, side: usize, call: &Call, outcome: &Outcome) -> String {
        match outcome {
            Outcome::Failed(error) => words::error(error.number()),
            Outcome::Number(_, peer) if peer.is_empty() => "a number".to_owned(),
            Outcome::Number(fd, peer) => match self.peer_at(side, peer, *fd) {
                Some(nth) => format!("a number, from peer {nth} by {} bytes", peer.len()),
                None => format!("a number, from a peer that is gone, by {} bytes", peer.len()),
            },
            Outcome::Message(data, told) => {
                let from = match address::parse(&told.from) {
                    Some(from) => format!("{} in {} bytes", self.datagram_name(side, from), told.from.len()),
                    None => "nobody".to_owned(),
                };
                let control = ancillary::in_words(self.machine(side), &told.control);
                format!("{} bytes from {from}, {:#x}, {control}: {}", told.bytes, told.flags, words::brief(data))
            }
            Outcome::Name(name) if matches!(call, Call::Name { slot, .. } if self.kind(*slot) == Kind::Datagram) => {
                let length = name.len();
                address::parse(name)
                    .map_or(words::brief(name), |name| format!("{} in {length} bytes", self.datagram_name(side, name)))
            }
            Outcome::Name(name) => {
                let peer = match call {
                    Call::Name { slot, of_peer: true } => self.peer_at(side, name, self.fd(side, *slot)),
                    _ => None,
                };
                peer.map_or_else(|| self.sides[side].name(name), |nth| format!("peer {nth} in {} bytes", name.len()))
            }
            other => words::brief(other),
        }
    }

    /// Waits until both sides have come to rest in the same state.
    pub fn settle(&mut self) -> Result<()> {
        let start = Instant::now();
        loop {
            let over = start.elapsed() > self.limit;
            let threads_agree = (0..2).all(|thread| self.thread_rests(thread));
            let quiet = self.sides.iter().all(|side| side.machine.is_quiet()) && self.unsent() == 0;
            let quiet = quiet && !self.has_fin_on_its_way();
            if threads_agree && quiet {
                // What a context has left for who comes next is told of with what it told already.
                let returned = self.take_if_done(0)? | self.take_if_done(1)?;
                let states = [self.states(0), self.states(1)];
                if states[0] == states[1] {
                    return Ok(());
                }
                if over && !returned {
                    return Err(self.states_in_words(&states));
                }
            } else if over && !threads_agree {
                return Err(format!("threads: {}", self.threads_in_words()));
            } else if over {
                return Err(format!("it does not come to rest ({} bytes unsent)", self.unsent()));
            }
            pause(start);
        }
    }

    /// Whether a thread has returned on both sides, or sleeps in its call on both.
    fn thread_rests(&self, thread: usize) -> bool {
        if self.pending[thread].is_none() {
            return true;
        }
        let [left, right] = [&self.threads[0][thread], &self.threads[1][thread]];
        left.is_done() && right.is_done() || left.is_asleep_inside() && right.is_asleep_inside()
    }

    /// Compares what a call that has returned on both sides told; false if there is none.
    fn take_if_done(&mut self, thread: usize) -> Result<bool> {
        if self.pending[thread].is_none() || !self.threads[0][thread].is_done() {
            return Ok(false);
        }
        let Some(call) = self.pending[thread].take() else { return Ok(false) };
        let mut outcomes = [self.threads[0][thread].take(), self.threads[1][thread].take()];
        for (side, outcome) in outcomes.iter_mut().enumerate() {
            match &call {
                Call::EpollWait { slot, max, .. } => self.add_what_came_behind(side, *slot, *max, outcome),
                Call::Poll { members, .. } | Call::Select { members, .. } => {
                    self.add_what_is_ready_now(side, &call, members, outcome);
                }
                _ => {}
            }
        }
        self.returned(&call, outcomes, thread == 1)?;
        Ok(true)
    }

    /// One thing that happens may be several edges, as a shutdown is one by itself and another when the peer has acknowledged it.
    /// Who waits meanwhile is told of them at once or one after the other, as it comes to run. So they are told together here.
    fn add_what_came_behind(&self, side: usize, slot: Slot, max: usize, outcome: &mut Outcome) {
        let Outcome::Events(events) = outcome else { return };
        // A context that was closed meanwhile has nothing more to tell.
        let Ok(behind) = self.machine(side).epoll_wait(self.fd(side, slot), max, 0) else { return };
        for (key, ready) in behind {
            match events.iter_mut().find(|(told, _)| *told == key) {
                Some((_, told)) => *told |= ready,
                None => events.push((key, ready)),
            }
        }
        events.sort_unstable();
    }

    /// What makes one number ready may make another so just after it, as a listener and a context that has it: who waits for both
    /// is woken by the first. So both are looked at again where everything rests.
    fn add_what_is_ready_now(&self, side: usize, call: &Call, members: &[(Slot, i16)], outcome: &mut Outcome) {
        let Outcome::Ready(ready) = outcome else { return };
        // A number that was closed meanwhile is another's, or nobody's.
        if members.iter().any(|(slot, _)| !self.slots[*slot].open) {
            return;
        }
        let call = match call.clone() {
            Call::Poll { members, .. } => Call::Poll { members, timeout_ms: 0 },
            Call::Select { members, .. } => Call::Select { members, timeout_ms: 0 },
            other => other,
        };
        let fds = self.slots.iter().map(|slot| slot.fds[side]).collect();
        let now = Given { call, fds, address: Vec::new(), control: Vec::new() }.perform(self.machine(side));
        let Outcome::Ready(now) = now else { return };
        for (told, now) in ready.iter_mut().zip(now) {
            *told |= now;
        }
    }

    /// What is ready and how much could be read, of the program's numbers and of the peers.
    fn states(&self, side: usize) -> Vec<(u32, usize)> {
        let machine = self.sides[side].machine;
        let open = self.slots.iter().filter(|slot| slot.open);
        let own = open.map(|slot| peers::state(machine, slot.fds[side]));
        let theirs = self.peers.iter().map(|peer| peer.as_ref().map_or((0, 0), |peer| peer.sides[side].state()));
        own.chain(theirs).chain(self.datagram_peers.iter().map(|peer| peer.state(side))).collect()
    }

    fn states_in_words(&self, states: &[Vec<(u32, usize)>; 2]) -> String {
        let open = self.slots.iter().enumerate();
        let open = open.filter(|(_, slot)| slot.open);
        let names = open.map(|(nth, _)| format!("s{nth}"));
        let names = names.chain((0..self.peers.len()).map(|nth| format!("peer {nth}")));
        let names = names.chain((0..self.datagram_peers.len()).map(|nth| format!("peer d{nth}")));
        let state = |(ready, unread): (u32, usize)| format!("{} with {unread} bytes", words::ready(ready));
        let differs = names.zip(states[0].iter().zip(&states[1])).filter(|(_, (left, right))| left != right);
        let words = differs.map(|(name, (left, right))| format!("{name} is {} and {}", state(*left), state(*right)));
        format!("readiness: {}", words.collect::<Vec<_>>().join("; "))
    }

    /// Bytes that wait for Nagle's algorithm, or, where a segment came late and was sent again, for a congestion window. For how
    /// long they do is each system's own affair, and a close that resets drops them.
    fn unsent(&self) -> usize {
        let of_side = |side: usize| -> usize {
            let machine = self.machine(side);
            let is_open = |fd: c_int| peers::state(machine, fd).0 & libc::POLLHUP as u32 == 0;
            let streams = self.slots.iter().filter(|slot| slot.open && self.files[slot.file].kind == Kind::Stream);
            let own: usize =
                streams.map(|slot| slot.fds[side]).filter(|fd| is_open(*fd)).map(|fd| machine.unsent(fd)).sum();
            let peers = self.peers.iter().flatten().map(|peer| &peer.sides[side]);
            own + peers.map(Peer::unsent).sum::<usize>()
        };
        of_side(0) + of_side(1)
    }

    /// Whether the acknowledgement of a FIN is on its way: on either side it may be delayed, and it is an edge.
    fn has_fin_on_its_way(&self) -> bool {
        (0..2).any(|side| {
            let streams = self.slots.iter().filter(|slot| slot.open && self.files[slot.file].kind == Kind::Stream);
            let mut own = streams.map(|slot| peers::awaits_last_ack(self.machine(side), slot.fds[side]));
            let mut peers = self.peers.iter().flatten().map(|peer| peer.sides[side].awaits_last_ack());
            own.any(|awaits| awaits) || peers.any(|awaits| awaits)
        })
    }

    /// What was done so far.
    pub fn told(&self) -> Vec<String> {
        let waits = |(thread, call): (usize, &Option<Call>)| {
            call.as_ref().map(|call| format!("{}{call:?} waits", if thread == 1 { "second: " } else { "" }))
        };
        let waiting = self.pending.iter().enumerate().filter_map(waits);
        self.log.iter().cloned().chain(waiting).collect()
    }

    /// How many steps were done.
    pub fn steps(&self) -> usize {
        self.log.len()
    }

    /// What a peer does that nobody sees yet.
    pub fn tell(&mut self, what: String) {
        self.log.push(what);
    }

    /// Ends calls that wait, closes everything, and says what the peers see of that.
    pub fn end(&mut self) -> Result<()> {
        for thread in 0..2 {
            self.interrupt(thread)?;
        }
        for slot in 0..self.slots.len() {
            if self.slots[slot].open {
                self.call(false, Call::Close { slot })?;
            }
        }
        Ok(())
    }

    /// A signal to a thread that waits, on both sides. Its handler interrupts the call or restarts it.
    pub fn signal(&mut self, thread: usize, restarts: bool) -> Result<()> {
        let Some(call) = &self.pending[thread] else { return Ok(()) };
        // A number that was closed meanwhile may be another's when the call begins anew.
        if Self::number_of(call).is_some_and(|slot| !self.slots[slot].open) {
            return Ok(());
        }
        let what = if restarts { "restarts" } else { "interrupts" };
        self.log.push(format!("a signal {what} {call:?}"));
        let handled = [0, 1].map(|side| self.threads[side][thread].handled());
        self.threads.iter().for_each(|side| side[thread].signal(restarts));
        self.until(|run| (0..2).all(|side| run.threads[side][thread].handled() > handled[side]), "no signal comes")?;
        self.settle()
    }

    fn interrupt(&mut self, thread: usize) -> Result<()> {
        if self.pending[thread].is_none() {
            return Ok(());
        }
        self.log.push("a signal interrupts the call that waits".to_owned());
        let start = Instant::now();
        while (0..2).any(|side| !self.threads[side][thread].is_done()) {
            if start.elapsed() > self.limit {
                return Err(format!("not interrupted: {}", self.threads_in_words()));
            }
            (0..2)
                .filter(|side| !self.threads[*side][thread].is_done())
                .for_each(|side| self.threads[side][thread].signal(false));
            pause(start);
        }
        self.settle()
    }

    /// The program's port on each side, and its address on the second.
    pub fn bound(&self, slot: Slot) -> Option<([u16; 2], Ipv4Addr)> {
        let name = |side: usize| {
            let name = self.sides[side].machine.name(self.fd(side, slot), false).ok()?;
            address::parse(&name).filter(|at| at.port() != 0)
        };
        let (left, right) = (name(0)?, name(1)?);
        // A wildcard of IPv6 hears IPv4 as well, if it is not told otherwise (rule "no IPv6" of `step`).
        let ip = match right.ip() {
            IpAddr::V4(ip) => ip,
            IpAddr::V6(_) if self.is_v6_only(slot) => return None,
            IpAddr::V6(_) => Ipv4Addr::UNSPECIFIED,
        };
        Some(([left.port(), right.port()], ip))
    }

    /// Whether a socket hears nothing of IPv4.
    fn is_v6_only(&self, slot: Slot) -> bool {
        let only = self.machine(0).getsockopt(self.fd(0, slot), libc::SOL_IPV6, libc::IPV6_V6ONLY, 4);
        only.is_ok_and(|only| only != [0; 4])
    }

    /// An address as a socket has it.
    pub fn address(&self, slot: Slot, ip: Ipv4Addr, port: u16) -> Vec<u8> {
        Bytes::new(SocketAddrV4::new(ip, port).into(), self.file(slot).domain).to_vec()
    }

    /// An address of the family that a socket does not have.
    pub fn wrong_family(&self, slot: Slot) -> Vec<u8> {
        let at = if self.file(slot).domain == libc::AF_INET6 { "127.0.0.9:1" } else { "[::1]:9" };
        Bytes::new(at.parse().unwrap(), libc::AF_UNSPEC).to_vec()
    }

    /// The peer of this name at the other end of a number. A port may be given again that another peer had, or has for a
    /// connection to somewhere else; of those that are connected to nothing any more it is the newest.
    fn peer_at(&self, side: usize, name: &[u8], fd: c_int) -> Option<usize> {
        let at = address::parse(name)?;
        let own = self.machine(side).name(fd, false).ok().and_then(|own| address::parse(&own));
        let is_it = |peer: &Option<PeerPair>| peer.as_ref().is_some_and(|peer| peer.sides[side].name() == Some(at));
        let is_at_its_end = |peer: &Option<PeerPair>| {
            is_it(peer) && own.is_some() && peer.as_ref().and_then(|peer| peer.sides[side].remote()) == own
        };
        self.peers.iter().rposition(is_at_its_end).or_else(|| self.peers.iter().rposition(is_it))
    }

    /// The peer at the other end of a connection of the program's.
    pub fn peer_of(&self, slot: Slot) -> Option<usize> {
        let machine = self.sides[0].machine;
        let name = |fd: c_int, of_peer| machine.name(fd, of_peer).ok().and_then(|name| address::parse(&name));
        let names = |fd: c_int| Some((name(fd, false)?, name(fd, true)?));
        let (own, peers) = names(self.fd(0, slot))?;
        self.peers.iter().position(|peer| {
            let Some(Peer::Kernels(fd)) = peer.as_ref().map(|peer| &peer.sides[0]) else { return false };
            names(fd.as_raw_fd()) == Some((peers, own))
        })
    }
}

impl Drop for Run<'_> {
    /// After a difference things are open still.
    fn drop(&mut self) {
        for thread in 0..2 {
            if self.pending[thread].take().is_none() {
                continue;
            }
            for side in 0..2 {
                let start = Instant::now();
                while !self.threads[side][thread].is_done() && start.elapsed() < Duration::from_secs(2) {
                    self.threads[side][thread].signal(false);
                    pause(start);
                }
                if self.threads[side][thread].is_done() {
                    if let Outcome::Number(fd, _) = self.threads[side][thread].take() {
                        let _ = self.sides[side].machine.close(fd);
                    }
                } else {
                    // It hangs, and is left behind.
                    self.threads[side][thread] = Thread::start();
                }
            }
        }
        for slot in &self.slots {
            for side in 0..2 {
                if slot.fds[side] != CLOSED {
                    let _ = self.sides[side].machine.close(slot.fds[side]);
                }
            }
        }
        // Nothing stays behind in TIME-WAIT: there are more programs than ports.
        self.peers.iter().flatten().flat_map(|peer| &peer.sides).for_each(Peer::reset_on_close);
    }
}

/// How many datagrams a call may have sent.
fn datagrams(outcome: &Outcome) -> usize {
    let of = |bytes: &usize| 1 + bytes / ancillary::EACH_BYTES as usize;
    match outcome {
        Outcome::Count(bytes) => of(bytes),
        Outcome::Lengths(lengths) => lengths.iter().map(of).sum(),
        _ => 1,
    }
}

fn pause(start: Instant) {
    let waited = start.elapsed();
    if waited < Duration::from_micros(300) {
        std::thread::yield_now();
    } else {
        std::thread::sleep((waited / 8).min(Duration::from_millis(5)));
    }
}

pub fn address_of(ip: Ipv4Addr, port: u16) -> Vec<u8> {
    Bytes::new(SocketAddrV4::new(ip, port).into(), libc::AF_INET).to_vec()
}
