//! Datagram sockets in programs: what is done with them, and what is not, and why (each rule is named where it stands):
//! - "room": so many datagrams come to a socket or a peer, and so long ones, that the smallest buffers hold them and none is cut up.
//! - "worlds": as for connections, a socket that is bound to an address of one world, or has a peer there, sends nothing to the other
//!   world and has no peer there, and nothing comes to it from there.
//! - "one queue": at a socket in both worlds wait datagrams of one world at a time, as each world has a queue of its own. Who has
//!   some of one world is not connected to the other: they would be left behind.
//! - "nobody's yet": a socket that the kernel gave a port, because it sent by the kernel or nowhere, is the kernel's: nothing comes to it
//!   from lull's world.
//! - "bare": a socket that is the kernel's still, or again, is not duplicated, nor shut down (as rule "fresh" of `step`): a half of
//!   lull's that it gets later would not know of that. Nor is one that was shut down connected, which may make it the kernel's.
//! - "another address": a socket that has lost the port which the kernel chose is not bound to another address than it had. It is another
//!   socket of lull's then, or none.
//! - "moves": what changes whose a socket is, is not done to one at which a thread waits. On Linux that call goes on at what it was
//!   given; here it waits where the socket was.
//! - "the kernel's errors": a socket that is the kernel's is not bound while an error waits at it. The one of lull's that it becomes
//!   does not know of that.
//! - "answers between messages": as in `step`, `sendmmsg` has one message for a peer that is not there. On loopback the answer to that
//!   comes before the second message.
//! - "room again": an edge-triggered member is not asked for room, nor is one of a context that is such a member. Linux tells of it
//!   whenever a datagram has left the machine, which is the device's affair.
//! - "shared ports": a port is asked for a second time only by a socket without SO_REUSEADDR. Which of several that share one hears
//!   what, is another program's test.
//! - "parts": a socket at which a datagram may have begun (MSG_MORE, UDP_CORK) is not shut down, nor is one begun at a socket that was:
//!   on Linux what is written behind the first part is sent all the same (docs/user_plane.md, Limits). Nor is one begun at a socket
//!   that may send to the other world behind it, or asked for how many bytes of memory it takes.
//! - "asked before": IP_PKTINFO is not asked for where a datagram waits. On Linux that has no address to answer from.
//! - "nothing": as in `step`.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use libc::c_int;
use lull_posix::address::{self, Bytes};

use super::ancillary::{self, Piece};
use super::call::{Call, Slot};
use super::datagram_ops::Op;
use super::machine::Machine;
use super::peers::state;
use super::program::{At, Pick, To};
use super::run::{Kind, Result, Run, address_of};
use super::step::REFUSING_PORT;
use super::udp_peers::DatagramPair;
use super::words;

/// Rule "room": datagrams that ever come to a file or to the peers; how long they are stands in `datagram_ops`.
const DATAGRAMS_MAX: usize = 40;

impl Run<'_> {
    /// Does a step with datagram sockets, if there is what it needs.
    pub fn datagram_step(&mut self, by: bool, op: &Op) -> Result<Option<Slot>> {
        match op {
            Op::Socket { domain, flags } => self.call(by, Call::Datagram { domain: *domain, flags: *flags }),
            Op::Open { domain, at, nonblocking, chooses } => {
                self.open_datagram(by, *domain, at, *nonblocking, *chooses)
            }
            Op::Bind { pick, at } => match self.datagram(*pick).filter(|slot| !self.is_waited_at(*slot)) {
                Some(slot) if self.has_an_error_of_the_kernels(slot) => Ok(None),
                Some(slot) => self.bind_datagram(by, slot, at, false),
                None => Ok(None),
            },
            Op::Connect { pick, to } => match self.datagram(*pick).filter(|slot| !self.is_waited_at(*slot)) {
                // Rule "bare".
                Some(slot) if self.file(slot).is_shut => Ok(None),
                Some(slot) => self.connect_datagram(by, slot, to),
                None => Ok(None),
            },
            Op::Disconnect { pick } => match self.datagram(*pick).filter(|slot| !self.is_waited_at(*slot)) {
                Some(slot) => self.call_at(by, Call::Disconnect { slot }, [vec![0; 16], vec![0; 16]]),
                None => Ok(None),
            },
            Op::SendTo { pick, to, sizes, control, flags } => match self.datagram(*pick) {
                Some(slot) => self.send_datagram(by, slot, to.as_ref(), sizes, control, *flags),
                None => Ok(None),
            },
            Op::Send { pick, sizes, flags } => match self.datagram(*pick).filter(|_| self.has_room_at_peers(1)) {
                Some(slot) => {
                    let data = self.datagram_of(sizes);
                    let flags = flags.map(|flags| self.may_be_a_part(slot, flags));
                    self.call(by, Call::Send { slot, data, flags })
                }
                None => Ok(None),
            },
            Op::SendMany { pick, sizes, flags } => {
                match self.datagram(*pick).filter(|_| self.has_room_at_peers(sizes.len())) {
                    Some(slot) => {
                        // Rule "answers between messages".
                        let sizes = if self.is_refused(slot) { &sizes[..sizes.len().min(1)] } else { sizes };
                        let data = self.datagram_of(sizes);
                        self.call(by, Call::SendMany { slot, data, flags: *flags })
                    }
                    None => Ok(None),
                }
            }
            Op::PeerOpen { .. } | Op::PeerSend { .. } | Op::PeerRecv { .. } | Op::PeerClose { .. } => {
                self.datagram_peers_step(op).map(|()| None)
            }
            _ => match self.plain_datagram(op) {
                Some(call) => self.call(by, call),
                None => Ok(None),
            },
        }
    }

    /// Calls on one number.
    fn plain_datagram(&self, op: &Op) -> Option<Call> {
        // Rule "nothing".
        let now_if_nothing = |sizes: &[usize]| if sizes.iter().sum::<usize>() == 0 { libc::MSG_DONTWAIT } else { 0 };
        Some(match *op {
            Op::RecvFrom { pick, ref sizes, room, flags } => Call::RecvFrom {
                slot: self.datagram(pick)?,
                sizes: sizes.clone(),
                room,
                flags: flags | now_if_nothing(sizes),
            },
            Op::Set { pick, option: (libc::SOL_UDP, libc::UDP_CORK), .. } if !self.may_begin(self.datagram(pick)?) => {
                return None;
            }
            // Rule "asked before".
            Op::Set { pick, option: (libc::SOL_IP, libc::IP_PKTINFO), .. }
                if self.is_readable(self.datagram(pick)?) =>
            {
                return None;
            }
            Op::Set { pick, option: (level, name), value } => {
                Call::SetOption { slot: self.datagram(pick)?, level, name, value: value.to_ne_bytes().to_vec() }
            }
            Op::Get { pick, option: (level, name) } => {
                Call::GetOption { slot: self.datagram(pick)?, level, name, room: 4 }
            }
            Op::Recv { pick, ref sizes, flags } => {
                let flags = flags.map(|flags| flags | now_if_nothing(sizes));
                Call::Recv { slot: self.datagram(pick)?, sizes: sizes.clone(), flags }
            }
            Op::RecvMany { pick, ref sizes, flags, timeout } => {
                let flags = if sizes.contains(&0) { flags | libc::MSG_DONTWAIT } else { flags };
                // Rule "several messages" of `step`.
                let flags = if sizes.len() > 1 { flags | libc::MSG_WAITFORONE } else { flags };
                Call::RecvMany { slot: self.datagram(pick)?, sizes: sizes.clone(), flags, timeout }
            }
            Op::Queue { pick, request: libc::TIOCOUTQ } if self.file(self.datagram(pick)?).writes_parts => return None,
            Op::Queue { pick, request } => Call::Queue { slot: self.datagram(pick)?, request },
            // Rule "parts".
            Op::Shutdown { pick, how } => {
                let may_be = |slot: &Slot| !self.is_bare(*slot) && !self.file(*slot).writes_parts;
                Call::Shutdown { slot: self.datagram(pick).filter(may_be)?, how }
            }
            _ => return None,
        })
    }

    fn datagram(&self, pick: Pick) -> Option<Slot> {
        self.pick(Pick { any: false, ..pick }, &[Kind::Datagram])
    }

    /// Rule "bare".
    pub fn is_bare(&self, slot: Slot) -> bool {
        if self.kind(slot) != Kind::Datagram {
            return false;
        }
        match self.machine(1) {
            Machine::Lull => !lull_posix::is_lull(self.fd(1, slot)),
            Machine::Kernel => self.bound(slot).is_none(),
        }
    }

    /// What a socket is bound to on the second side, also one that has lost its port.
    fn own_ip(&self, slot: Slot) -> Option<IpAddr> {
        let name = self.machine(1).name(self.fd(1, slot), false).ok()?;
        address::parse(&name).map(|name| name.ip())
    }

    /// Rule "another address".
    fn may_be_bound(&self, slot: Slot, at: &At) -> bool {
        let name = self.machine(1).name(self.fd(1, slot), false).ok().and_then(|name| address::parse(&name));
        let Some(had) = name.filter(|name| name.port() == 0 && !self.is_bare(slot)) else { return true };
        match at {
            At::Own => had.ip() == self.machine(1).own(),
            At::Wildcard => had.ip().is_unspecified(),
            At::Foreign | At::WrongFamily | At::Short => true,
            At::Loopback | At::OwnPortOf(_) => false,
        }
    }

    /// Whether a socket has a peer where nobody is.
    fn is_refused(&self, slot: Slot) -> bool {
        let name = self.machine(0).name(self.fd(0, slot), true).ok().and_then(|name| address::parse(&name));
        let is_there =
            |to: SocketAddr| self.datagram_peers.iter().any(|peer| peer.sides.is_some() && peer.ports[0] == to.port());
        name.is_some_and(|to| !is_there(to))
    }

    /// Rule "the kernel's errors".
    fn has_an_error_of_the_kernels(&self, slot: Slot) -> bool {
        self.is_bare(slot) && state(self.machine(0), self.fd(0, slot)).0 & libc::EPOLLERR as u32 != 0
    }

    fn is_readable(&self, slot: Slot) -> bool {
        state(self.machine(0), self.fd(0, slot)).0 & libc::EPOLLIN as u32 != 0
    }

    /// Rule "one queue": whether what waits there, if anything, came from the other world.
    fn has_of_the_other_world(&self, slot: Slot, in_kernel: bool) -> bool {
        self.is_readable(slot) && self.file(slot).heard_in == Some(!in_kernel)
    }

    /// The bytes of a datagram in parts. Each is another one.
    fn datagram_of(&self, sizes: &[usize]) -> Vec<Vec<u8>> {
        let mut next = self.steps() as u8;
        let mut byte = || {
            next = next.wrapping_add(7);
            next
        };
        sizes.iter().map(|size| (0..*size).map(|_| byte()).collect()).collect()
    }

    fn open_datagram(
        &mut self,
        by: bool,
        domain: c_int,
        at: &At,
        nonblocking: bool,
        chooses: bool,
    ) -> Result<Option<Slot>> {
        let flags = if nonblocking { libc::SOCK_NONBLOCK } else { 0 };
        let Some(slot) = self.call(by, Call::Datagram { domain, flags })? else { return Ok(None) };
        self.bind_datagram(by, slot, at, chooses)?;
        Ok(Some(slot))
    }

    fn bind_datagram(&mut self, by: bool, slot: Slot, at: &At, chooses: bool) -> Result<Option<Slot>> {
        if !self.may_be_bound(slot, at) {
            return Ok(None);
        }
        let bound = match at {
            At::OwnPortOf(pick) => {
                // Rule "shared ports".
                let option = self.machine(0).getsockopt(self.fd(0, slot), libc::SOL_SOCKET, libc::SO_REUSEADDR, 4);
                let Some(of) = self.datagram(*pick).filter(|of| *of != slot && option == Ok(vec![0; 4])) else {
                    return Ok(None);
                };
                let Some((ports, ip)) = self.bound(of) else { return Ok(None) };
                let own = [0, 1].map(|side| if ip.is_loopback() { ip } else { self.machine(side).own() });
                let addresses = [0, 1].map(|side| self.address(slot, own[side], ports[side]));
                self.call_at(by, Call::Bind { slot, at: format!("own:port of s{of}") }, addresses)?
            }
            At::Own | At::Wildcard | At::Loopback if chooses => {
                let ips = [0, 1].map(|side| match at {
                    At::Own => self.machine(side).own(),
                    At::Wildcard => Ipv4Addr::UNSPECIFIED,
                    _ => Ipv4Addr::LOCALHOST,
                });
                // On loopback both are the kernel's.
                let left = free_port();
                let right = std::iter::repeat_with(free_port).find(|port| *port != left).unwrap_or(left);
                let addresses = [self.address(slot, ips[0], left), self.address(slot, ips[1], right)];
                self.call_at(by, Call::Bind { slot, at: format!("{at:?}, with a port of its own") }, addresses)?
            }
            at => self.bind(by, slot, at)?,
        };
        Ok(bound)
    }

    /// Where a datagram or a `connect` goes on each side, in words; nothing if a rule forbids it.
    fn datagram_to(&self, slot: Slot, to: &To, connects: bool) -> Option<(String, [Vec<u8>; 2])> {
        let (words, in_kernel, ports) = match to {
            To::Listener(nth) => {
                let nth = usize::from(*nth).checked_rem(self.datagram_peers.len())?;
                let peer = &self.datagram_peers[nth];
                (format!("peer d{nth}"), peer.in_kernel, peer.ports)
            }
            To::Refused { in_kernel } => {
                ("a port of the peers where nobody is".to_owned(), *in_kernel, [REFUSING_PORT; 2])
            }
            // It is as good as one of its own.
            To::WrongFamily if self.file(slot).domain == libc::AF_INET6 => {
                let (_, addresses) = self.datagram_to(slot, &To::Refused { in_kernel: false }, connects)?;
                let as_v4 = addresses.map(|to| Bytes::new(address::parse(&to).unwrap(), libc::AF_INET).to_vec());
                return Some(("a port of the peers where nobody is, by IPv4".to_owned(), as_v4));
            }
            To::WrongFamily => {
                let wrong = self.wrong_family(slot);
                return Some(("an address of the other family".to_owned(), [wrong.clone(), wrong]));
            }
            To::Short => {
                let half = |side: usize| self.address(slot, self.machine(side).peer(false), 1)[..8].to_vec();
                return Some(("half an address".to_owned(), [half(0), half(1)]));
            }
        };
        // Rules "worlds" and "one queue".
        let is_elsewhere = self.own_ip(slot).is_some_and(|ip| ip.is_loopback() != in_kernel && !ip.is_unspecified());
        if is_elsewhere || connects && self.has_of_the_other_world(slot, in_kernel) {
            return None;
        }
        let at = |side: usize| self.address(slot, self.machine(side).peer(in_kernel), ports[side]);
        Some((words, [at(0), at(1)]))
    }

    fn connect_datagram(&mut self, by: bool, slot: Slot, to: &To) -> Result<Option<Slot>> {
        match self.datagram_to(slot, to, true) {
            Some((to, addresses)) => self.call_at(by, Call::Connect { slot, to }, addresses),
            None => Ok(None),
        }
    }

    fn send_datagram(
        &mut self,
        by: bool,
        slot: Slot,
        to: Option<&To>,
        sizes: &[usize],
        control: &[Piece],
        flags: c_int,
    ) -> Result<Option<Slot>> {
        // Rules "moves" and "room".
        if self.is_bare(slot) && self.is_waited_at(slot) || !self.has_room_at_peers(1) {
            return Ok(None);
        }
        let (to, addresses) = match to {
            None => ("nobody".to_owned(), [Vec::new(), Vec::new()]),
            Some(to) => match self.datagram_to(slot, to, false) {
                Some(to) => to,
                None => return Ok(None),
            },
        };
        let given = [0, 1].map(|side| {
            let goes_to = address::parse(&addresses[side]).map(|to| to.ip()).or_else(|| self.peer_ip(side, slot));
            let is_kernels = goes_to.is_some_and(|ip| ip.is_loopback());
            let own = if is_kernels { Ipv4Addr::LOCALHOST } else { self.machine(side).own() };
            (addresses[side].clone(), ancillary::bytes(control, own))
        });
        let (data, control) = (self.datagram_of(sizes), control.to_vec());
        let flags = self.may_be_a_part(slot, flags);
        self.call_with(by, Call::SendTo { slot, to, data, control, flags }, given)
    }

    /// Rule "parts".
    fn may_begin(&self, slot: Slot) -> bool {
        !self.file(slot).is_shut && self.own_ip(slot).is_some_and(|ip| !ip.is_unspecified())
    }

    /// Rule "parts".
    fn may_be_a_part(&self, slot: Slot, flags: c_int) -> c_int {
        if self.may_begin(slot) { flags } else { flags & !libc::MSG_MORE }
    }

    fn peer_ip(&self, side: usize, slot: Slot) -> Option<IpAddr> {
        let name = self.machine(side).name(self.fd(side, slot), true).ok()?;
        address::parse(&name).map(|name| name.ip())
    }

    /// Rule "room".
    fn has_room_at_peers(&self, count: usize) -> bool {
        self.datagrams_sent + count <= DATAGRAMS_MAX
    }

    fn datagram_peers_step(&mut self, op: &Op) -> Result<()> {
        match *op {
            Op::PeerOpen { in_kernel } => {
                let pair = DatagramPair::open([self.machine(0), self.machine(1)], in_kernel);
                self.datagram_peers.push(pair);
                let nth = self.datagram_peers.len() - 1;
                self.tell(format!("peer: d{nth} opens{}", if in_kernel { " in the kernel" } else { "" }));
                Ok(())
            }
            Op::PeerSend { nth, pick, size } => match (self.open_datagram_peer(nth), self.datagram(pick)) {
                (Some(nth), Some(slot)) => self.datagram_peer_sends(nth, slot, size),
                _ => Ok(()),
            },
            Op::PeerRecv { nth } => {
                let Some(nth) = self.open_datagram_peer(nth) else { return Ok(()) };
                let received = [0, 1].map(|side| self.datagram_peers[nth].recv(side));
                let words = [0, 1].map(|side| match &received[side] {
                    Ok((data, from)) => Ok((data.clone(), self.datagram_name(side, *from))),
                    Err(error) => Err(*error),
                });
                self.peers_do(&format!("d{nth} receives"), words)
            }
            Op::PeerClose { nth } => {
                let Some(nth) = self.open_datagram_peer(nth) else { return Ok(()) };
                self.datagram_peers[nth].sides = None;
                self.peers_do(&format!("d{nth} closes"), [(), ()])
            }
            _ => Ok(()),
        }
    }

    fn open_datagram_peer(&self, nth: u8) -> Option<usize> {
        let is_open = |nth: &usize| self.datagram_peers[*nth].sides.is_some();
        let open: Vec<usize> = (0..self.datagram_peers.len()).filter(is_open).collect();
        Some(open[usize::from(nth).checked_rem(open.len())?])
    }

    fn datagram_peer_sends(&mut self, nth: usize, slot: Slot, size: usize) -> Result<()> {
        let in_kernel = self.datagram_peers[nth].in_kernel;
        let Some((ports, ip)) = self.bound(slot) else { return Ok(()) };
        // Rules "worlds", "nobody's yet", "one queue" and "room".
        let is_nobodys = !in_kernel && self.is_bare(slot);
        let is_elsewhere = is_nobodys || !ip.is_unspecified() && ip.is_loopback() != in_kernel;
        if is_elsewhere || self.has_of_the_other_world(slot, in_kernel) || self.file(slot).came >= DATAGRAMS_MAX {
            return Ok(());
        }
        let file = self.file_mut(slot);
        file.came += 1;
        file.heard_in = Some(in_kernel);
        let data = self.datagram_of(&[size]).concat();
        let to = |side: usize| {
            let ip = if in_kernel { Ipv4Addr::LOCALHOST } else { self.machine(side).own() };
            SocketAddr::from((ip, ports[side]))
        };
        let sent = [0, 1].map(|side| self.datagram_peers[nth].send(side, &data, to(side)));
        self.peers_do(&format!("d{nth} sends {size} to s{slot}"), sent)
    }

    /// A name in words that are the same on both sides: whose port it is now.
    pub fn datagram_name(&self, side: usize, at: SocketAddr) -> String {
        let machine = self.machine(side);
        let ip = words::whose(machine, at.ip()).unwrap_or("somewhere");
        let peer = || {
            let nth = self.datagram_peers.iter().rposition(|peer| ip == "peer" && peer.ports[side] == at.port())?;
            Some(format!("port of d{nth}"))
        };
        let own = || {
            let has_it = |slot: &Slot| {
                let name = machine.name(self.fd(side, *slot), false).ok();
                self.slots[*slot].open
                    && name.and_then(|name| address::parse(&name)).is_some_and(|own| own.port() == at.port())
            };
            let datagrams = (0..self.slots.len()).filter(|slot| self.kind(*slot) == Kind::Datagram);
            Some(format!("port of s{}", datagrams.into_iter().find(has_it)?))
        };
        let port = match at.port() {
            port @ (0 | REFUSING_PORT) => port.to_string(),
            _ => peer().or_else(own).unwrap_or_else(|| "a port of nobody's".to_owned()),
        };
        format!("{ip}:{port}")
    }

    /// Events that a datagram socket may be watched for.
    pub fn watched_for(&self, slot: Slot, mut events: u32) -> u32 {
        if self.kind(slot) != Kind::Datagram {
            return events;
        }
        // Rules "two edges" and "one-shot moves" of `step`: it is in both worlds, or may come to be.
        if self.bound(slot).is_none_or(|(_, ip)| ip.is_unspecified()) || self.is_member_of_both(slot) {
            events &= !(libc::EPOLLET | libc::EPOLLONESHOT) as u32;
        }
        if events & libc::EPOLLET as u32 != 0 {
            // Rule "room again".
            events &= !libc::EPOLLOUT as u32;
        }
        events
    }

    /// Whether a socket that has a peer was bound to a wildcard.
    fn is_member_of_both(&self, slot: Slot) -> bool {
        self.machine(1).name(self.fd(1, slot), true).is_ok()
    }
}

/// A port that is nobody's, for who chooses one. Another program may be given it meanwhile, which a test would survive.
fn free_port() -> u16 {
    let fd = Machine::Kernel.socket(libc::AF_INET, libc::SOCK_DGRAM).unwrap();
    Machine::Kernel.bind(fd, &address_of(Ipv4Addr::UNSPECIFIED, 0)).unwrap();
    let port = Machine::Kernel.name(fd, false).ok().and_then(|name| address::parse(&name)).unwrap().port();
    Machine::Kernel.close(fd).unwrap();
    port
}
