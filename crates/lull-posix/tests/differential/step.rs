//! From a step of a program to calls: what it means for the files that there are. The first side decides.
//!
//! What a program does not do, and why (each rule is named where it stands; `datagrams` has those of UDP):
//! - "one waiter": see `run`.
//! - "room": no more is on its way in a direction of a connection than the smallest buffers hold, and less than half of lull's,
//!   which SO_RCVLOWAT is cut to (docs/user_plane.md, Limits). How much a full buffer takes is each system's own affair.
//! - "answers between messages": `sendmmsg` has one message for a peer that has closed. On loopback that one's reset comes before the
//!   second message, and on a network when it comes.
//! - "backlog": no peer connects beyond a listener's backlog. The SYN is dropped then, and comes again a second later.
//! - "one queue": at a listener in both worlds one connection waits at a time, as each world has a queue of its own.
//! - "own address": a program does not connect to its own address of lull's (docs/user_plane.md, Limits).
//! - "fresh": a socket that neither listens nor is connected is not duplicated, nor shut down (docs/user_plane.md, Limits).
//! - "one number": a datagram socket with several numbers is no member of a context, and one that is a member gets no second number:
//!   if it is in both worlds, closing the one that it was added by leaves two members, one of each world.
//! - "polled": a number that a thread waits for in `poll` is not closed meanwhile: "the result is unspecified" (select(2)). Nor is
//!   one at which it waits for several messages: Linux takes all of them from the file that the number was, and here the number
//!   is looked up for each.
//! - "ports of connections": a port is asked for a second time only while its listener is open. Connections that it left hold
//!   the port on Linux, and here they do not.
//! - "worlds": a socket that is bound to an address of one world is not connected to the other, which no route leads to.
//! - "nothing": who asks for no bytes does not wait. On Linux whatever wakes such a call ends it.
//! - "several messages": `recvmmsg` waits for its first message alone. What fails while it waits for a later one, be it a signal,
//!   is the socket's error afterwards on Linux.
//! - "what is left": a socket whose connection or listening has ended is not asked for its name, and a connection that is over
//!   is not bound, nor told whether it is IPv6's alone.
//! - "two edges": a socket in both worlds is no edge-triggered member, since each half has edges of its own.
//! - "one-shot moves": a one-shot member is a socket that is connected or listens: which the kernel has reported already is not
//!   known when it becomes lull's.
//! - "handed back": a member of a context is not connected (again), nor does it listen again: where a connection fails the socket
//!   is the kernel's again, and leaves lull's half of the context.
//! - "time": `connect` has no timeout, which one side may meet and the other not.
//! - "late options": no option of a listener is set while connections wait to be accepted. On Linux those have the options that it
//!   had when they came, and here those that it has when they are accepted (docs/user_plane.md, Limits).
//! - "low water": a socket at which a thread waits for SO_RCVLOWAT's bytes is not shut down: on Linux that wakes who waits, who
//!   takes what is there (docs/user_plane.md, Limits).
//! - "pipes": bytes are moved between pipes and connections alone, by `splice` and `sendfile`; with other sockets lull refuses
//!   (docs/user_plane.md, Limits). A number at which that waits is as one that is polled.
//! - "names": what is no socket is polled by POLLIN and its kin, and not by POLLRDNORM: some files never say that, and Linux does not
//!   wake who waits for a context so.
//! - "look": see `machine`.
//! - "one segment": while a thread waits, peers send what one segment carries. A reader is woken by the first of several.

use std::net::Ipv4Addr;

use libc::c_int;

use super::ancillary;
use super::call::{Call, Slot};
use super::machine::KERNELS_PEER;
use super::peers::{Peer, state};
use super::program::{At, Op, Pick, ROOM_BYTES, Step, To};
use super::run::{Kind, PeerPair, Result, Run};

/// Rule "one segment".
const SEGMENT_BYTES: usize = 1000;
/// A port at which nobody listens.
pub const REFUSING_PORT: u16 = 1;
/// An address that is nobody's (RFC 5737).
const FOREIGN: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);

const SOCKETS: &[Kind] = &[Kind::Listener, Kind::Stream, Kind::Stream, Kind::Fresh, Kind::Datagram];
const FILES: &[Kind] = &[Kind::Listener, Kind::Stream, Kind::Stream, Kind::Fresh, Kind::Eventfd, Kind::Datagram];

impl Run<'_> {
    /// Does a step, if there is what it needs.
    pub fn step(&mut self, step: &Step) -> Result<()> {
        self.try_step(step.by_second, &step.op).map(drop)
    }

    /// `None`: there is nothing to do it on.
    fn try_step(&mut self, by: bool, op: &Op) -> Result<Option<Slot>> {
        use Kind::{Eventfd, Fresh, Listener, Stream};
        match op {
            Op::Serve { domain, at, nonblocking, backlog } => self.serve(by, *domain, at, *nonblocking, *backlog),
            Op::Arrive { pick, in_kernel, flags } => {
                let Some(slot) = self.pick(*pick, &[Listener]) else { return Ok(None) };
                if self.kind(slot) == Listener {
                    self.peer_connect(slot, *in_kernel)?;
                }
                self.call(by, Call::Accept { slot, flags: *flags })
            }
            Op::Depart { domain, nonblocking, in_kernel } => self.depart(by, *domain, *nonblocking, *in_kernel),
            Op::Socket { domain, flags } => self.call(by, Call::Socket { domain: *domain, flags: *flags }),
            Op::Eventfd => self.call(by, Call::Eventfd),
            Op::EpollCreate => self.call(by, Call::EpollCreate),
            Op::Bind { pick, at } => match self.pick(*pick, &[Fresh]) {
                // Rules "handed back" and "what is left".
                Some(slot) if self.file(slot).is_spent && self.file(slot).is_member => Ok(None),
                Some(slot) if self.kind(slot) == Stream && is_over(self.fd(0, slot)) => Ok(None),
                Some(slot) => self.bind(by, slot, at),
                None => Ok(None),
            },
            Op::Connect { pick, to } => match self.pick(*pick, &[Fresh, Stream]) {
                Some(slot) if self.is_one_of_several(slot) || self.file(slot).is_member => Ok(None),
                Some(slot) => self.connect(by, slot, to),
                None => Ok(None),
            },
            Op::Send { pick, sizes, flags } => match self.pick(*pick, &[Stream]) {
                Some(slot) => self.send(by, slot, sizes, *flags),
                None => Ok(None),
            },
            Op::Dup2 { pick, to } => {
                match (self.not_fresh(*pick, &[Listener, Stream]), self.pick(*to, &[Stream, Eventfd])) {
                    // Rule "polled".
                    (Some(slot), Some(to)) if self.slots[to].open && !self.is_polled(to) => {
                        self.call(by, Call::Dup2 { slot, to })
                    }
                    _ => Ok(None),
                }
            }
            Op::EpollCtl { context, pick, what, events } => {
                let context = self.pick(*context, &[Kind::Epoll]);
                let member = self.pick(*pick, &[Listener, Stream, Stream, Fresh, Eventfd, Kind::Epoll, Kind::Datagram]);
                match (context, member) {
                    // Rule "one number".
                    (Some(_), Some(member)) if self.kind(member) == Kind::Datagram && self.file(member).numbers > 1 => {
                        Ok(None)
                    }
                    (Some(slot), Some(member)) if !self.file(member).is_spent => {
                        let mut events = self.watched_for(member, *events);
                        // Rules "two edges" and "one-shot moves".
                        if self.bound(member).is_some_and(|(_, ip)| ip.is_unspecified()) {
                            events &= !libc::EPOLLET as u32;
                        }
                        if self.kind(member) == Fresh {
                            events &= !libc::EPOLLONESHOT as u32;
                        }
                        // Rule "room again" of `datagrams`.
                        if self.kind(member) == Kind::Datagram && self.file(slot).is_member {
                            events &= !libc::EPOLLOUT as u32;
                        }
                        if self.file(member).hears_of_room {
                            events &= !libc::EPOLLET as u32;
                        }
                        self.call(by, Call::EpollCtl { slot, what: *what, member, events })
                    }
                    _ => Ok(None),
                }
            }
            Op::MoveIn { pick, size, way } => {
                let slot = self.stream(*pick);
                match slot.and_then(|slot| Some((slot, self.data(slot, &[*size])?.concat()))) {
                    Some((slot, data)) => self.call(by, Call::MoveIn { slot, data, way: *way }),
                    None => Ok(None),
                }
            }
            Op::SendMany { pick, sizes, flags } => match self.pick(*pick, &[Stream]) {
                Some(slot) => self.send_many(by, slot, sizes, *flags),
                None => Ok(None),
            },
            Op::Signal { restarts } => self.signal(usize::from(by), *restarts).map(|()| None),
            Op::SendMessage { pick, sizes, control, flags } => {
                let slot = self.stream(*pick);
                match slot.and_then(|slot| Some((slot, self.data(slot, sizes)?))) {
                    Some((slot, data)) => {
                        let bytes = ancillary::bytes(control, Ipv4Addr::LOCALHOST);
                        let (to, control) = ("nobody".to_owned(), control.clone());
                        let given = [(Vec::new(), bytes.clone()), (Vec::new(), bytes)];
                        self.call_with(by, Call::SendTo { slot, to, data, control, flags: *flags }, given)
                    }
                    None => Ok(None),
                }
            }
            Op::Poll { members, timeout_ms, by_select } => self.poll(by, members, *timeout_ms, *by_select),
            Op::Fork { picks } => {
                let mut closes: Vec<Slot> =
                    picks.iter().filter_map(|pick| self.pick(*pick, &[Stream, Listener])).collect();
                closes.retain(|slot| self.slots[*slot].open);
                closes.sort_unstable();
                closes.dedup();
                self.call(false, Call::Fork { closes })
            }
            // To an accepted connection's name it would be its listener, whose queue nobody looked at (rule "backlog").
            Op::PeerConnect { pick, in_kernel } => match self.pick(*pick, &[Listener]) {
                Some(slot) if self.kind(slot) == Listener => self.peer_connect(slot, *in_kernel).map(|()| None),
                _ => Ok(None),
            },
            Op::PeerListen { .. }
            | Op::PeerAccept { .. }
            | Op::PeerSend { .. }
            | Op::PeerRecv { .. }
            | Op::PeerShutdown { .. }
            | Op::PeerClose { .. } => self.peers_step(op).map(|()| None),
            Op::Datagrams(op) => self.datagram_step(by, op),
            Op::Close { pick } if self.pick(*pick, FILES).is_some_and(|slot| self.is_polled(slot)) => Ok(None),
            _ => match self.plain(op) {
                Some(call) => self.call(by, call),
                None => Ok(None),
            },
        }
    }

    /// Calls on one number.
    fn plain(&self, op: &Op) -> Option<Call> {
        use Kind::{Fresh, Listener, Stream};
        Some(match *op {
            Op::Listen { pick, backlog } => {
                let slot = self.pick(pick, &[Fresh, Listener]).filter(|slot| {
                    !(self.is_one_of_several(*slot) || self.file(*slot).is_spent && self.file(*slot).is_member)
                })?;
                Call::Listen { slot, backlog }
            }
            Op::Accept { pick, flags } => Call::Accept { slot: self.pick(pick, &[Listener])?, flags },
            Op::Recv { pick, ref sizes, flags } => {
                let slot = self.pick(pick, &[Stream])?;
                // Rule "nothing".
                let flags = match flags {
                    Some(flags) if sizes.iter().sum::<usize>() == 0 => Some(flags | libc::MSG_DONTWAIT),
                    flags => flags,
                };
                Call::Recv { slot, sizes: sizes.clone(), flags }
            }
            Op::RecvMany { pick, ref sizes, flags, timeout } => {
                let slot = self.pick(pick, &[Stream])?;
                // Rule "nothing".
                let flags = if sizes.contains(&0) { flags | libc::MSG_DONTWAIT } else { flags };
                // Rule "several messages".
                let flags = if sizes.len() > 1 { flags | libc::MSG_WAITFORONE } else { flags };
                Call::RecvMany { slot, sizes: sizes.clone(), flags, timeout }
            }
            Op::RecvMessage { pick, ref sizes, room, flags } => {
                // Rule "nothing".
                let now = if sizes.iter().sum::<usize>() == 0 { libc::MSG_DONTWAIT } else { 0 };
                Call::RecvFrom { slot: self.stream(pick)?, sizes: sizes.clone(), room, flags: flags | now }
            }
            Op::MoveOut { pick, size, way } => Call::MoveOut { slot: self.stream(pick)?, size, way },
            Op::Queue { pick, request } => Call::Queue { slot: self.pick(pick, SOCKETS)?, request },
            Op::SetLinger { pick, on, seconds } => {
                let value = [c_int::from(on), seconds].map(c_int::to_ne_bytes).concat();
                Call::SetOption { slot: self.to_be_set(pick)?, level: libc::SOL_SOCKET, name: libc::SO_LINGER, value }
            }
            Op::Shutdown { pick, how } => {
                let slot = self.not_fresh(pick, &[Stream, Listener])?;
                Call::Shutdown { slot: Some(slot).filter(|slot| !self.is_waited_at_for_more(*slot))?, how }
            }
            Op::Close { pick } => Call::Close { slot: self.pick(pick, FILES)? },
            // Rule "one number".
            Op::Dup { pick } => {
                let is_one = |slot: &Slot| self.kind(*slot) == Kind::Datagram && self.file(*slot).is_member;
                Call::Dup { slot: self.not_fresh(pick, FILES).filter(|slot| !is_one(slot))? }
            }
            Op::GetFlags { pick } => Call::GetFlags { slot: self.pick(pick, SOCKETS)? },
            Op::SetNonblocking { pick, on, by_ioctl } => {
                let slot = self.pick(pick, SOCKETS)?;
                let flags = if on { libc::O_NONBLOCK } else { 0 };
                if by_ioctl { Call::Fionbio { slot, on } } else { Call::SetFlags { slot, flags } }
            }
            // Rule "what is left".
            Op::SetOption { pick, option: (libc::SOL_IPV6, libc::IPV6_V6ONLY), .. } if self.is_left(pick) => {
                return None;
            }
            Op::SetOption { pick, option: (level, name), value, bytes } => {
                let mut value = i64::from(value).to_ne_bytes().to_vec();
                value.truncate(bytes);
                Call::SetOption { slot: self.to_be_set(pick)?, level, name, value }
            }
            Op::SetTimeout { pick, name, us } => {
                let value = [us.div_euclid(1_000_000), us.rem_euclid(1_000_000)].map(i64::to_ne_bytes).concat();
                Call::SetOption { slot: self.to_be_set(pick)?, level: libc::SOL_SOCKET, name, value }
            }
            Op::GetOption { pick, option: (level, name) } => {
                Call::GetOption { slot: self.pick(pick, SOCKETS)?, level, name, room: 4 }
            }
            // Rule "what is left".
            Op::Name { pick, of_peer } => {
                let slot = self.pick(pick, SOCKETS).filter(|slot| !self.file(*slot).is_spent)?;
                Call::Name { slot, of_peer }
            }
            Op::EpollWait { pick, timeout_ms } => {
                Call::EpollWait { slot: self.pick(pick, &[Kind::Epoll])?, max: 64, timeout_ms }
            }
            _ => return None,
        })
    }

    /// Rule "pipes": bytes are moved between pipes and connections alone.
    fn stream(&self, pick: Pick) -> Option<Slot> {
        self.pick(Pick { any: false, ..pick }, &[Kind::Stream])
    }

    pub fn pick(&self, pick: Pick, kinds: &[Kind]) -> Option<Slot> {
        let all = 0..self.slots.len();
        let suits = |slot: &Slot| self.slots[*slot].open && kinds.contains(&self.kind(*slot));
        // What is done to datagram sockets has rules of its own.
        let all = all.filter(|slot| self.kind(*slot) != Kind::Datagram || kinds.contains(&Kind::Datagram));
        let of = |slots: Vec<Slot>| slots.get(usize::from(pick.nth) % slots.len().max(1)).copied();
        if pick.any { of(all.collect()) } else { of(all.filter(suits).collect()) }
    }

    /// Rule "late options".
    fn to_be_set(&self, pick: Pick) -> Option<Slot> {
        let waits = |slot: Slot| self.kind(slot) == Kind::Listener && accept_queue(self.fd(0, slot)).0 > 0;
        self.pick(pick, SOCKETS).filter(|slot| !waits(*slot))
    }

    /// Whether it is a connection that is over.
    fn is_left(&self, pick: Pick) -> bool {
        self.to_be_set(pick).is_none_or(|slot| self.kind(slot) == Kind::Stream && is_over(self.fd(0, slot)))
    }

    /// Rule "low water".
    fn is_waited_at_for_more(&self, slot: Slot) -> bool {
        let low_water = self.machine(0).getsockopt(self.fd(0, slot), libc::SOL_SOCKET, libc::SO_RCVLOWAT, 4);
        self.is_waited_at(slot) && low_water.is_ok_and(|bytes| bytes != 1_i32.to_ne_bytes())
    }

    /// Rule "fresh".
    fn not_fresh(&self, pick: Pick, kinds: &[Kind]) -> Option<Slot> {
        self.pick(pick, kinds).filter(|slot| self.kind(*slot) != Kind::Fresh && !self.is_bare(*slot))
    }

    /// Rule "fresh", for what was a listener.
    fn is_one_of_several(&self, slot: Slot) -> bool {
        let file = self.slots[slot].file;
        let others = self.slots.iter().filter(|other| other.open && other.file == file);
        self.kind(slot) == Kind::Fresh && others.count() > 1
    }

    fn serve(&mut self, by: bool, domain: c_int, at: &At, nonblocking: bool, backlog: c_int) -> Result<Option<Slot>> {
        let flags = if nonblocking { libc::SOCK_NONBLOCK } else { 0 };
        let Some(slot) = self.call(by, Call::Socket { domain, flags })? else { return Ok(None) };
        self.nodelay(slot)?;
        self.bind(by, slot, at)?;
        self.call(by, Call::Listen { slot, backlog })
    }

    /// Most programs answer at once; with Nagle's algorithm each step may take 40 ms.
    fn nodelay(&mut self, slot: Slot) -> Result<()> {
        let value = 1_i32.to_ne_bytes().to_vec();
        let (level, name) = (libc::IPPROTO_TCP, libc::TCP_NODELAY);
        self.call(false, Call::SetOption { slot, level, name, value }).map(drop)
    }

    pub fn bind(&mut self, by: bool, slot: Slot, at: &At) -> Result<Option<Slot>> {
        let own = [0, 1].map(|side| self.machine(side).own());
        let same = |ip: Ipv4Addr| [self.address(slot, ip, 0), self.address(slot, ip, 0)];
        let wrong = self.wrong_family(slot);
        let (words, addresses) = match at {
            At::Own => ("own:0".to_owned(), own.map(|ip| self.address(slot, ip, 0))),
            At::Wildcard => ("any:0".to_owned(), same(Ipv4Addr::UNSPECIFIED)),
            At::Loopback => ("127.0.0.1:0".to_owned(), same(Ipv4Addr::LOCALHOST)),
            At::Foreign => (format!("{FOREIGN}:0"), same(FOREIGN)),
            At::WrongFamily => ("an address of the other family".to_owned(), [wrong.clone(), wrong]),
            At::Short => ("half an address".to_owned(), own.map(|ip| self.address(slot, ip, 0)[..8].to_vec())),
            At::OwnPortOf(pick) => {
                // Rule "ports of connections".
                let of = self.pick(*pick, &[Kind::Listener]).filter(|of| self.kind(*of) == Kind::Listener);
                let Some((of, (ports, ip))) = of.and_then(|of| Some((of, self.bound(of)?))) else { return Ok(None) };
                let own = if ip.is_loopback() { [ip, ip] } else { own };
                (format!("own:port of s{of}"), [0, 1].map(|side| self.address(slot, own[side], ports[side])))
            }
        };
        self.call_at(by, Call::Bind { slot, at: words }, addresses)
    }

    fn connect(&mut self, by: bool, slot: Slot, to: &To) -> Result<Option<Slot>> {
        let (words, addresses) = match to {
            To::Listener(nth) => {
                let Some(nth) = usize::from(*nth).checked_rem(self.listeners.len()) else { return Ok(None) };
                let (sides, in_kernel) = &self.listeners[nth];
                if self.is_of_the_other_world(slot, *in_kernel) {
                    return Ok(None);
                }
                let at = |side: usize| self.address(slot, self.machine(side).peer(*in_kernel), sides[side].port());
                (format!("listener {nth} of the peers"), [at(0), at(1)])
            }
            To::Refused { in_kernel } if self.is_of_the_other_world(slot, *in_kernel) => return Ok(None),
            To::Refused { in_kernel } => {
                let at = |side: usize| self.address(slot, self.machine(side).peer(*in_kernel), REFUSING_PORT);
                ("a port of the peers at which nobody listens".to_owned(), [at(0), at(1)])
            }
            To::WrongFamily => {
                let wrong = self.wrong_family(slot);
                ("an address of the other family".to_owned(), [wrong.clone(), wrong])
            }
            To::Short => (
                "half an address".to_owned(),
                [0, 1].map(|side| self.address(slot, self.machine(side).peer(false), 1)[..8].to_vec()),
            ),
        };
        self.call_at(by, Call::Connect { slot, to: words }, addresses)
    }

    /// Rule "worlds".
    fn is_of_the_other_world(&self, slot: Slot, in_kernel: bool) -> bool {
        match self.bound(slot) {
            Some((_, ip)) if !ip.is_unspecified() => ip.is_loopback() != in_kernel,
            _ => false,
        }
    }

    fn depart(&mut self, by: bool, domain: c_int, nonblocking: bool, in_kernel: bool) -> Result<Option<Slot>> {
        let nth = match self.listeners.iter().position(|(_, kernels)| *kernels == in_kernel) {
            Some(nth) => nth,
            None => self.peer_listen(in_kernel),
        };
        let flags = if nonblocking { libc::SOCK_NONBLOCK } else { 0 };
        let Some(slot) = self.call(by, Call::Socket { domain, flags })? else { return Ok(None) };
        self.nodelay(slot)?;
        self.connect(by, slot, &To::Listener(nth as u8))?;
        self.peer_accept(nth)?;
        Ok(Some(slot))
    }

    fn send(&mut self, by: bool, slot: Slot, sizes: &[usize], flags: Option<c_int>) -> Result<Option<Slot>> {
        match self.data(slot, sizes) {
            Some(data) => self.call(by, Call::Send { slot, data, flags }),
            None => Ok(None),
        }
    }

    fn send_many(&mut self, by: bool, slot: Slot, sizes: &[usize], flags: c_int) -> Result<Option<Slot>> {
        // Rule "answers between messages".
        let has_ended = state(self.machine(0), self.fd(0, slot)).0 & libc::EPOLLRDHUP as u32 != 0;
        let sizes = if has_ended { &sizes[..sizes.len().min(1)] } else { sizes };
        match self.data(slot, sizes) {
            Some(data) => self.call(by, Call::SendMany { slot, data, flags }),
            None => Ok(None),
        }
    }

    /// Rule "room": data of these sizes, if there is room for it.
    fn data(&self, slot: Slot, sizes: &[usize]) -> Option<Vec<Vec<u8>>> {
        let wanted: usize = sizes.iter().sum();
        let unread = match self.peer_of(slot) {
            Some(peer) => self.peers[peer].as_ref().map_or(0, |peer| peer.sides[0].state().1),
            None => self.files[self.slots[slot].file].sent,
        };
        if unread + wanted > ROOM_BYTES {
            return None;
        }
        let mut next = self.steps() as u8;
        let mut data = |size: usize| {
            (0..size)
                .map(|_| {
                    next = next.wrapping_add(1);
                    next
                })
                .collect::<Vec<u8>>()
        };
        Some(sizes.iter().map(|size| data(*size)).collect())
    }

    fn poll(&mut self, by: bool, members: &[(Pick, i16)], timeout_ms: c_int, by_select: bool) -> Result<Option<Slot>> {
        use Kind::{Eventfd, Fresh, Listener, Stream};
        let member = |(pick, events): &(Pick, i16)| {
            Some((self.pick(*pick, &[Listener, Stream, Stream, Fresh, Eventfd, Kind::Epoll, Kind::Datagram])?, *events))
        };
        let mut members: Vec<(Slot, i16)> = members.iter().filter_map(member).collect();
        // Rule "names".
        for (slot, events) in &mut members {
            if !SOCKETS.contains(&self.kind(*slot)) {
                *events &= libc::POLLIN | libc::POLLOUT | libc::POLLPRI | libc::POLLRDHUP;
            }
        }
        if by_select {
            // A set has a number once, and none that is not open.
            members.retain(|(slot, _)| self.slots[*slot].open);
            return self.call(by, Call::Select { members, timeout_ms });
        }
        self.call(by, Call::Poll { members, timeout_ms })
    }

    fn peer_connect(&mut self, slot: Slot, in_kernel: bool) -> Result<()> {
        let Some((ports, ip)) = self.bound(slot) else { return Ok(()) };
        let in_kernel = match ip {
            Ipv4Addr::UNSPECIFIED => in_kernel,
            ip => ip == Ipv4Addr::LOCALHOST,
        };
        let (waiting, most) = accept_queue(self.fd(0, slot));
        // Rules "backlog" and "one queue".
        if waiting > most || ip.is_unspecified() && waiting > 0 {
            return Ok(());
        }
        let sides = [0, 1].map(|side| self.machine(side).peer_connect(ports[side], in_kernel));
        self.peers.push(Some(PeerPair { sides, sent: 0 }));
        let what =
            format!("{} connects to s{slot}{}", self.peers.len() - 1, if in_kernel { " in the kernel" } else { "" });
        self.peers_do(&what, [(), ()])
    }

    fn peer_listen(&mut self, in_kernel: bool) -> usize {
        let sides = [0, 1].map(|side| self.machine(side).peer_listen(in_kernel));
        self.listeners.push((sides, in_kernel));
        self.tell(format!(
            "peer: listener {}{}",
            self.listeners.len() - 1,
            if in_kernel { " in the kernel" } else { "" }
        ));
        self.listeners.len() - 1
    }

    fn peer_accept(&mut self, nth: usize) -> Result<()> {
        let accepted = [0, 1].map(|side| self.listeners[nth].0[side].accept());
        let errors = [0, 1].map(|side| accepted[side].as_ref().err().copied());
        let what = format!("listener {nth} accepts {}", self.peers.len());
        if let [Ok(left), Ok(right)] = accepted {
            self.peers.push(Some(PeerPair { sides: [left, right], sent: 0 }));
        }
        self.peers_do(&what, errors)
    }

    fn peers_step(&mut self, op: &Op) -> Result<()> {
        match *op {
            Op::PeerListen { in_kernel } => {
                self.peer_listen(in_kernel);
                Ok(())
            }
            Op::PeerAccept { nth } => match usize::from(nth).checked_rem(self.listeners.len()) {
                Some(nth) => self.peer_accept(nth),
                None => Ok(()),
            },
            Op::PeerSend { nth, size } => self.peer_send(nth, size),
            Op::PeerRecv { nth, size } => self.with_peer(nth, &format!("receives {size}"), |peer| peer.recv(size)),
            Op::PeerShutdown { nth, how } => {
                self.with_peer(nth, &format!("shuts down {how}"), |peer| peer.shutdown(how))
            }
            Op::PeerClose { nth, reset } => {
                let Some(nth) = self.open_peer(nth) else { return Ok(()) };
                let peer = self.peers[nth].take();
                if let Some(peer) = peer.as_ref().filter(|_| reset) {
                    peer.sides.iter().for_each(Peer::reset_on_close);
                }
                drop(peer);
                self.peers_do(&format!("{nth} closes{}", if reset { " and resets" } else { "" }), [(), ()])
            }
            _ => Ok(()),
        }
    }

    fn open_peer(&self, nth: u8) -> Option<usize> {
        let open: Vec<usize> = (0..self.peers.len()).filter(|nth| self.peers[*nth].is_some()).collect();
        Some(open[usize::from(nth).checked_rem(open.len())?])
    }

    fn with_peer<R: std::fmt::Debug + PartialEq>(
        &mut self,
        nth: u8,
        what: &str,
        act: impl Fn(&Peer) -> R,
    ) -> Result<()> {
        let Some(nth) = self.open_peer(nth) else { return Ok(()) };
        let Some(peer) = &self.peers[nth] else { return Ok(()) };
        let results = [act(&peer.sides[0]), act(&peer.sides[1])];
        self.peers_do(&format!("{nth} {what}"), results)
    }

    fn peer_send(&mut self, nth: u8, size: usize) -> Result<()> {
        let Some(open) = self.open_peer(nth) else { return Ok(()) };
        // Rules "one segment" and "room".
        let size = if self.is_anybody_waiting() { size.min(SEGMENT_BYTES) } else { size };
        let reader = (0..self.slots.len()).find(|slot| self.slots[*slot].open && self.peer_of(*slot) == Some(open));
        let sent = self.peers[open].as_ref().map_or(0, |peer| peer.sent);
        let unread = reader.map_or(sent, |slot| self.machine(0).unread(self.fd(0, slot)));
        if unread + size > ROOM_BYTES {
            return Ok(());
        }
        if let Some(peer) = &mut self.peers[open] {
            peer.sent += size;
        }
        let mut next = self.steps() as u8;
        let data: Vec<u8> = (0..size)
            .map(|_| {
                next = next.wrapping_sub(3);
                next
            })
            .collect();
        self.with_peer(nth, &format!("sends {size}"), |peer| peer.send(&data))
    }
}

/// Connections that wait to be accepted, and the backlog (`tcp_get_info`, which has them in fields for something else).
fn accept_queue(fd: c_int) -> (u32, u32) {
    let info = tcp_info(fd);
    let field = |at: usize| u32::from_ne_bytes(info[at..at + 4].try_into().unwrap());
    (field(24), field(28))
}

/// Whether the kernel's connection is over (`TCP_CLOSE`).
fn is_over(fd: c_int) -> bool {
    tcp_info(fd)[0] == 7
}

/// The first fields of TCP_INFO; zeroes for what is no TCP socket.
fn tcp_info(fd: c_int) -> [u8; 32] {
    let mut info = [0; 32];
    let mut length = info.len() as libc::socklen_t;
    // SAFETY: room for the first fields, and its size.
    unsafe { libc::getsockopt(fd, libc::IPPROTO_TCP, libc::TCP_INFO, info.as_mut_ptr().cast(), &raw mut length) };
    info
}

// The kernel's peers are on an address that no program binds.
const _: () = assert!(!matches!(KERNELS_PEER.octets(), [127, 0, 0, 1]));
