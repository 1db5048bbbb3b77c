//! Listening sockets: who may take a SYN, how many may wait, and the ports of TCP and UDP.

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use foldhash::fast::FixedState;
use lull_bpf::Chooser;
use lull_core::settings::WEIGHT_DEFAULT;

use super::error::NetError;
use super::half_open::Handshake;
use super::socket::{ListenOptions, Ready};

/// A connection that nobody has accepted yet, with what both sides have said at its beginning.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waiting {
    /// In the slab of connections.
    pub(super) index: u32,
    pub(super) handshake: Handshake,
}

/// How many SYNs may come before the first of their clients is answered: those of one poll. A program that
/// speaks first may never hear of a client whose SYN was answered by a cookie and whose acknowledgement found the accept queue full:
/// nothing is sent again then. Linux answers local clients one by one, which leaves it room for the next.
const HALF_OPENS_AT_ONCE: usize = WEIGHT_DEFAULT as usize;

/// A listening socket.
#[derive(Debug)]
pub(super) struct Listener {
    pub(super) local: SocketAddr,
    pub(super) options: ListenOptions,
    /// Established connections that nobody has accepted yet.
    pub(super) accepted: VecDeque<Waiting>,
    /// How many were accepted so far.
    pub(super) taken: u64,
    /// Connections in SYN-RECEIVED.
    pub(super) half_open: usize,
    /// Until then an acknowledgement may be that of a cookie.
    pub(super) cookies_until_ns: u64,
    pub(super) ready: Ready,
    /// Shut down for reading: it takes no more connections.
    pub(super) stopped: bool,
}

impl Listener {
    /// `sk_acceptq_is_full`: more than the backlog, so that one more than it fits.
    pub(super) fn is_full(&self) -> bool {
        self.accepted.len() > self.options.backlog
    }

    /// Connections in SYN-RECEIVED, at most: Linux bounds them by the backlog (`inet_csk_reqsk_queue_is_full`), and here
    /// a limit of their own does as well. But as many as may come together are not fewer where the backlog is.
    pub(super) fn half_opens_max(&self) -> usize {
        self.options.backlog.max(HALF_OPENS_AT_ONCE).min(self.options.syn_backlog)
    }
}

/// With which other sockets a socket shares its address. Two share one if both say the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Sharing {
    /// Packets are spread over those that say so (SO_REUSEPORT).
    pub(super) spread: bool,
    /// Packets go to whoever was bound last (SO_REUSEADDR of UDP).
    pub(super) last: bool,
}

impl Sharing {
    fn with(self, other: Sharing) -> bool {
        self.spread && other.spread || self.last && other.last
    }
}

/// A socket bound to a port.
#[derive(Clone, Copy, Debug)]
pub(super) struct Binding {
    pub(super) index: u32,
    /// Unspecified: any own address.
    pub(super) ip: IpAddr,
    pub(super) sharing: Sharing,
    pub(super) v6_only: bool,
    /// It has a peer and is found by its 4-tuple instead. The port stays taken.
    pub(super) connected: bool,
}

impl Binding {
    fn takes(&self, ip: IpAddr) -> bool {
        self.ip == ip || self.is_wild_for(ip)
    }

    fn is_found(&self, ip: IpAddr) -> bool {
        !self.connected && self.takes(ip)
    }

    /// How well it fits an address that it takes (`compute_score`).
    fn score(&self, ip: IpAddr) -> u8 {
        2 * u8::from(self.ip == ip) + u8::from(self.ip.is_ipv4() == ip.is_ipv4())
    }

    fn is_wild_for(&self, ip: IpAddr) -> bool {
        self.ip.is_unspecified() && (self.ip.is_ipv4() == ip.is_ipv4() || self.ip.is_ipv6() && !self.v6_only)
    }

    fn overlaps(&self, other: &Binding) -> bool {
        self.takes(other.ip) || other.takes(self.ip)
    }
}

/// The sockets of one port.
#[derive(Debug, Default)]
struct Port {
    /// In the order in which they were bound; of those that packets are spread over, the last one takes the place of one that
    /// leaves (`__reuseport_detach_sock`).
    bound: Vec<Binding>,
    /// What chooses among the sockets of an address that packets are spread over (a reuseport group), until the last one leaves.
    programs: Vec<(IpAddr, Arc<Chooser>)>,
}

impl Port {
    fn group(&self, ip: IpAddr) -> impl DoubleEndedIterator<Item = (usize, &Binding)> {
        self.bound.iter().enumerate().filter(move |(_, binding)| binding.sharing.spread && binding.ip == ip)
    }

    fn unbind(&mut self, index: u32) {
        let Some(at) = self.bound.iter().position(|binding| binding.index == index) else { return };
        let left = self.bound[at];
        let last = self.group(left.ip).next_back().map(|(last, _)| last);
        match last {
            Some(last) if left.sharing.spread && last > at => {
                self.bound[at] = self.bound[last];
                self.bound.remove(last);
            }
            _ => {
                self.bound.remove(at);
            }
        }
        if self.group(left.ip).next().is_none() {
            self.programs.retain(|(ip, _)| *ip != left.ip);
        }
    }

    /// The socket that the program of `ip`'s group chooses: `None` without a program, and for a number that no socket has
    /// (`reuseport_select_sock`).
    fn steered(&self, ip: IpAddr, run: impl FnOnce(&Chooser) -> u32) -> Option<u32> {
        let (_, program) = self.programs.iter().find(|(of, _)| *of == ip)?;
        let (_, chosen) = self.group(ip).nth(run(program) as usize)?;
        (!chosen.connected).then_some(chosen.index)
    }
}

/// Who is bound to which port. The application chooses the ports, so their hash needs no secret.
#[derive(Debug, Default)]
pub(super) struct PortTable(HashMap<u16, Port, FixedState>);

impl PortTable {
    /// Binds a socket, unless another one has the address and they do not both say that they share it.
    pub(super) fn bind(&mut self, port: u16, binding: Binding) -> Result<(), NetError> {
        let bound = &mut self.0.entry(port).or_default().bound;
        if bound.iter().any(|other| other.overlaps(&binding) && !other.sharing.with(binding.sharing)) {
            return Err(NetError::AddressInUse);
        }
        bound.push(binding);
        Ok(())
    }

    pub(super) fn unbind(&mut self, port: u16, index: u32) {
        if let Some(of_port) = self.0.get_mut(&port) {
            of_port.unbind(index);
            if of_port.bound.is_empty() {
                self.0.remove(&port);
            }
        }
    }

    /// Attaches a program to the reuseport group of a socket, in place of the one that it has; without one, takes that away.
    ///
    /// # Errors
    /// [`NetError::Invalid`]: packets are not spread over the socket and others (`reuseport_attach_prog`).
    /// [`NetError::NoProgram`]: there is none to take away (`reuseport_detach_prog`).
    pub(super) fn set_program(&mut self, port: u16, index: u32, program: Option<Arc<Chooser>>) -> Result<(), NetError> {
        let of_port = self.0.get_mut(&port).ok_or(NetError::Invalid)?;
        let ip = of_port.bound.iter().find(|binding| binding.index == index && binding.sharing.spread).map(|b| b.ip);
        let ip = ip.ok_or(NetError::Invalid)?;
        let before = of_port.programs.iter().position(|(of, _)| *of == ip);
        match (program, before) {
            (Some(program), Some(at)) => of_port.programs[at].1 = program,
            (Some(program), None) => of_port.programs.push((ip, program)),
            (None, Some(at)) => {
                of_port.programs.remove(at);
            }
            (None, None) => return Err(NetError::NoProgram),
        }
        Ok(())
    }

    pub(super) fn set_connected(&mut self, port: u16, index: u32, connected: bool) {
        let bound = self.0.get_mut(&port).into_iter().flat_map(|port| &mut port.bound);
        for binding in bound.filter(|binding| binding.index == index) {
            binding.connected = connected;
        }
    }

    pub(super) fn is_bound(&self, port: u16) -> bool {
        self.0.contains_key(&port)
    }

    pub(super) fn is_free(&self, port: u16) -> bool {
        !self.0.contains_key(&port)
    }

    /// The sockets that each get a copy of a packet to several stations (`__udp_is_mcast_sock`): one with a peer has an own address, and
    /// none of them.
    pub(super) fn all(&self, ip: IpAddr, port: u16) -> impl Iterator<Item = u32> {
        let bound = self.0.get(&port).into_iter().flat_map(|port| &port.bound);
        bound.filter(move |binding| binding.is_found(ip)).map(|binding| binding.index)
    }

    /// The socket for a packet to `ip`: one bound to exactly that address comes before one bound to any of its family, and that before
    /// one bound to any of both families; among equals the one that was bound last, and if packets are spread over it and others, a program that was attached to them chooses
    /// (`steer` runs it on the packet), or else `hash` (`udp4_lib_lookup2`).
    pub(super) fn find(
        &self,
        ip: IpAddr,
        port: u16,
        steer: impl FnOnce(&Chooser) -> u32,
        hash: impl FnOnce() -> u64,
    ) -> Option<u32> {
        let of_port = self.0.get(&port)?;
        let bound = &of_port.bound;
        if let [only] = bound.as_slice() {
            return only.is_found(ip).then_some(only.index);
        }
        let best = bound.iter().filter(|binding| binding.is_found(ip)).map(|binding| binding.score(ip)).max()?;
        let candidates = || bound.iter().filter(|binding| binding.is_found(ip) && binding.score(ip) == best);
        let last = candidates().next_back()?;
        if !last.sharing.spread {
            return Some(last.index);
        }
        if let Some(index) = of_port.steered(last.ip, steer) {
            return Some(index);
        }
        let spread = || candidates().filter(|binding| binding.sharing.spread);
        let count = spread().count() as u64;
        let choice = if count > 1 { hash() % count } else { 0 };
        spread().nth(choice as usize).map(|binding| binding.index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn binding(index: u32, ip: &str, spread: bool) -> Binding {
        let sharing = Sharing { spread, last: false };
        Binding { index, ip: ip.parse().unwrap(), sharing, v6_only: false, connected: false }
    }

    #[test]
    fn exact_before_any_and_conflicts_are_refused() {
        let mut table = PortTable::default();
        table.bind(80, binding(0, "0.0.0.0", true)).unwrap();
        table.bind(80, binding(1, "10.0.0.1", true)).unwrap();
        assert_eq!(table.bind(80, binding(2, "10.0.0.1", false)), Err(NetError::AddressInUse));
        assert_eq!(table.find("10.0.0.1".parse().unwrap(), 80, |_| 0, || 0), Some(1));
        assert_eq!(table.find("10.0.0.9".parse().unwrap(), 80, |_| 0, || 0), Some(0));
        table.unbind(80, 1);
        assert_eq!(table.find("10.0.0.1".parse().unwrap(), 80, |_| 0, || 0), Some(0));
        assert_eq!(table.find("10.0.0.1".parse().unwrap(), 81, |_| 0, || 0), None);
    }

    #[test]
    fn any_ipv6_takes_ipv4_unless_told_otherwise() {
        let mut table = PortTable::default();
        table.bind(80, binding(0, "::", false)).unwrap();
        assert_eq!(table.find("10.0.0.1".parse().unwrap(), 80, |_| 0, || 0), Some(0));
        assert_eq!(table.bind(80, binding(1, "0.0.0.0", false)), Err(NetError::AddressInUse));
        table.bind(81, Binding { v6_only: true, ..binding(0, "::", false) }).unwrap();
        assert_eq!(table.find("10.0.0.1".parse().unwrap(), 81, |_| 0, || 0), None);
    }

    #[test]
    fn of_those_that_share_without_spreading_the_last_one_hears_everything() {
        let mut table = PortTable::default();
        let ip = "10.0.0.1".parse().unwrap();
        let sharing = Sharing { spread: false, last: true };
        for index in 0..3 {
            table.bind(80, Binding { sharing, ..binding(index, "0.0.0.0", false) }).unwrap();
        }
        assert_eq!((0..3).map(|h| table.find(ip, 80, |_| 0, || h)).collect::<Vec<_>>(), [Some(2); 3]);
        assert_eq!(table.bind(80, binding(3, "0.0.0.0", true)), Err(NetError::AddressInUse), "it says something else");
        table.unbind(80, 2);
        assert_eq!(table.find(ip, 80, |_| 0, || 0), Some(1));
    }

    #[test]
    fn sharers_are_chosen_by_the_hash() {
        let mut table = PortTable::default();
        for index in 0..3 {
            table.bind(80, binding(index, "0.0.0.0", true)).unwrap();
        }
        let ip = "10.0.0.1".parse().unwrap();
        assert_eq!((0..3).map(|h| table.find(ip, 80, |_| 0, || h)).collect::<Vec<_>>(), [Some(0), Some(1), Some(2)]);
    }

    /// `compute_score`: `sk_family == PF_INET`.
    #[test]
    fn one_bound_to_any_of_its_family_comes_before_one_bound_to_any_of_both() {
        for order in [["0.0.0.0", "::"], ["::", "0.0.0.0"]] {
            let mut table = PortTable::default();
            order.iter().zip(0..).for_each(|(ip, index)| table.bind(80, binding(index, ip, true)).unwrap());
            for hash in 0..4 {
                let found = |ip: &str| table.find(ip.parse().unwrap(), 80, |_| 0, || hash).map(|at| order[at as usize]);
                assert_eq!([found("10.0.0.1"), found("fd00::1")], [Some("0.0.0.0"), Some("::")]);
            }
            table.bind(80, binding(2, "10.0.0.1", true)).unwrap();
            assert_eq!(table.find("10.0.0.1".parse().unwrap(), 80, |_| 0, || 0), Some(2));
            table.unbind(80, 2);
            table.unbind(80, order.iter().position(|ip| *ip == "0.0.0.0").unwrap() as u32);
            assert!(table.find("10.0.0.1".parse().unwrap(), 80, |_| 0, || 0).is_some(), "it takes both");
        }
    }

    #[test]
    fn a_program_chooses_by_the_order_of_binding_and_the_last_fills_a_hole() {
        let mut table = PortTable::default();
        let ip = "10.0.0.1".parse().unwrap();
        for index in 0..4 {
            table.bind(80, binding(index, "0.0.0.0", true)).unwrap();
        }
        table.bind(80, binding(9, "10.0.0.2", true)).unwrap();
        let program = Arc::new(Chooser::from(lull_bpf::Program::parse("1,6 0 0 0").unwrap()));
        table.set_program(80, 2, Some(program.clone())).unwrap();
        let chosen = |table: &PortTable| (0..5).map(|nth| table.find(ip, 80, |_| nth, || 2)).collect::<Vec<_>>();
        assert_eq!(chosen(&table), [0, 1, 2, 3, 2].map(Some), "a number that nobody has leaves it to the hash");
        let other = table.find("10.0.0.2".parse().unwrap(), 80, |_| unreachable!("it has no program"), || 0);
        assert_eq!(other, Some(9));
        table.unbind(80, 1);
        assert_eq!(chosen(&table), [0, 3, 2, 2, 2].map(Some));
        table.unbind(80, 2);
        assert_eq!(chosen(&table)[..2], [0, 3].map(Some));
        table.set_program(80, 0, None).unwrap();
        assert_eq!(table.find(ip, 80, |_| unreachable!("it is detached"), || 1), Some(3));
        assert_eq!(table.set_program(80, 0, None), Err(NetError::NoProgram));
        assert_eq!(table.set_program(81, 0, Some(program.clone())), Err(NetError::Invalid));

        table.set_program(80, 0, Some(program)).unwrap();
        table.unbind(80, 0);
        table.unbind(80, 3);
        table.bind(80, binding(5, "0.0.0.0", true)).unwrap();
        table.bind(80, binding(6, "0.0.0.0", true)).unwrap();
        assert_eq!(table.find(ip, 80, |_| unreachable!("it went with the last socket"), || 1), Some(6));
    }

    #[test]
    fn a_socket_that_shares_with_nobody_takes_no_program() {
        let mut table = PortTable::default();
        table.bind(80, binding(0, "0.0.0.0", false)).unwrap();
        let program = Arc::new(Chooser::from(lull_bpf::Program::parse("1,6 0 0 0").unwrap()));
        assert_eq!(table.set_program(80, 0, Some(program)), Err(NetError::Invalid));
        assert_eq!(table.set_program(80, 0, None), Err(NetError::Invalid));
    }
}
