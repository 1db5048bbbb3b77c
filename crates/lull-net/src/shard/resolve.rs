//! ARP (RFC 826) and neighbour discovery (RFC 4861): answering, learning, and asking for those that packets wait for.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use lull_nic::Frame;
use lull_nic::frame::Sender;
use lull_qdisc::PRIORITY_CONTROL;

use super::demux::{MALFORMED, Packet, Reason};
use super::error::NetError;
use super::neighbour::Turn;
use super::stack::{Io, Stack};
use super::wire::{self, Mac, be16, put16};

const ARP: usize = 28;
const ARP_REQUEST: u16 = 1;
const ARP_REPLY: u16 = 2;
/// Neighbour discovery messages that crossed a router have less (RFC 4861 section 7.1).
const HOP_LIMIT_ON_LINK: u8 = 255;
pub(super) const NEIGHBOUR_SOLICITATION: u8 = 135;
pub(super) const NEIGHBOUR_ADVERTISEMENT: u8 = 136;
const OPTION_SOURCE_ADDRESS: u8 = 1;
const OPTION_TARGET_ADDRESS: u8 = 2;
const NOT_FOR_US: Reason = |counters| &mut counters.drop_neighbour;

impl Stack {
    pub(super) fn arp_input(&mut self, frame: &Frame, io: &mut Io<'_>) -> Result<(), Reason> {
        let arp = frame.data().get(wire::ETHERNET..wire::ETHERNET + ARP).ok_or(MALFORMED)?;
        // Ethernet, IPv4, their address lengths.
        if arp[..6] != [0, 1, 8, 0, 6, 4] {
            return Err(MALFORMED);
        }
        let ip = |at: usize| Ipv4Addr::new(arp[at], arp[at + 1], arp[at + 2], arp[at + 3]);
        let mac = |at: usize| [arp[at], arp[at + 1], arp[at + 2], arp[at + 3], arp[at + 4], arp[at + 5]];
        let (operation, sender_mac, sender, target) = (be16(arp, 6), mac(8), ip(14), ip(24));
        if sender_mac[0] & 1 != 0 || self.is_local(sender.into()) {
            return Err(|counters| &mut counters.drop_martian);
        }
        let unusable = sender.is_unspecified() || !self.on_link(sender.into()) || self.is_broadcast(sender.into());
        // The rule of RFC 826: whoever is in the table is updated; who asks or answers *us* is entered. Like Linux, what is
        // neither for us nor gratuitous does not move an entry within a second of its last change (`arp_process`).
        let for_us = self.is_local(target.into());
        let gratuitous = target == sender && (operation == ARP_REQUEST || mac(18) == sender_mac);
        // A station that says something unasked says it once, to everybody, and the device gives that to one queue.
        if gratuitous && !unusable || operation == ARP_REPLY && for_us {
            self.tell_elsewhere(frame, !gratuitous, io.now_ns);
        }
        let used = !unusable && (for_us || self.neighbours.lookup(sender.into()).is_some());
        if used {
            match gratuitous || operation == ARP_REQUEST && for_us {
                true => self.neighbours.learn(sender.into(), sender_mac, io.now_ns),
                false => self.neighbours.refresh(sender.into(), sender_mac, io.now_ns),
            };
            self.resolved(sender.into(), io);
        }
        match operation {
            ARP_REQUEST if for_us => {
                let reply = self.arp(ARP_REPLY, target, sender_mac, sender, sender_mac, io);
                self.transmit(reply, io);
            }
            ARP_REPLY if for_us => {}
            _ if used => {}
            _ => return Err(NOT_FOR_US),
        }
        self.counters.neighbour_messages += 1;
        Ok(())
    }

    fn arp(
        &mut self,
        operation: u16,
        own: Ipv4Addr,
        target_mac: Mac,
        target: Ipv4Addr,
        to: Mac,
        io: &mut Io<'_>,
    ) -> Frame {
        let mut frame = wire::frame_of(io.pool, ARP);
        frame.set_sender(Sender { priority: PRIORITY_CONTROL, ..Sender::default() });
        let arp = frame.data_mut();
        arp[..6].copy_from_slice(&[0, 1, 8, 0, 6, 4]);
        put16(arp, 6, operation);
        arp[8..14].copy_from_slice(&self.port.mac);
        arp[14..18].copy_from_slice(&own.octets());
        arp[18..24].copy_from_slice(&target_mac);
        arp[24..28].copy_from_slice(&target.octets());
        wire::push_ethernet(&mut frame, to, self.port.mac, wire::ETHERTYPE_ARP);
        frame
    }

    /// A neighbour solicitation or advertisement whose ICMPv6 checksum is checked already.
    pub(super) fn ndisc_input(&mut self, frame: &Frame, packet: &Packet, io: &mut Io<'_>) -> Result<(), Reason> {
        let icmp = &frame.data()[packet.l4..packet.end];
        if packet.hop_limit != HOP_LIMIT_ON_LINK || icmp[1] != 0 || icmp.len() < 24 {
            return Err(MALFORMED);
        }
        let mut octets = [0; 16];
        octets.copy_from_slice(&icmp[8..24]);
        let target = Ipv6Addr::from(octets);
        if target.is_multicast() {
            return Err(MALFORMED);
        }
        let source = packet.source;
        if icmp[0] == NEIGHBOUR_SOLICITATION {
            if !self.is_local(target.into()) {
                return Err(NOT_FOR_US);
            }
            if let Some(mac) = link_address(&icmp[24..], OPTION_SOURCE_ADDRESS)?
                && !source.is_unspecified()
                && self.on_link(source)
            {
                self.learned(source, mac, io);
            }
            // Duplicate address detection asks from nowhere and is answered to everybody (RFC 4861 section 7.2.4).
            let (to, solicited) = match source.is_unspecified() {
                true => (IpAddr::V6(Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1)), 0),
                false => (source, 0x40),
            };
            let reply = self.ndisc(NEIGHBOUR_ADVERTISEMENT, 0x20 | solicited, target, target, to, io);
            match source.is_unspecified() {
                true => self.send_ip(reply, to, io),
                // The answer goes to where the question came from, since it must not have to ask itself.
                false => self.send_frame(reply, packet.source_mac, io),
            }
            self.counters.neighbour_messages += 1;
            return Ok(());
        }
        const SOLICITED: u8 = 0x40;
        const OVERRIDE: u8 = 0x20;
        let Some(mac) = link_address(&icmp[24..], OPTION_TARGET_ADDRESS)? else { return Err(NOT_FOR_US) };
        if self.is_local(target.into()) {
            return Err(|counters| &mut counters.drop_martian);
        }
        if !self.on_link(target.into()) {
            return Err(NOT_FOR_US);
        }
        self.tell_elsewhere(frame, icmp[4] & SOLICITED != 0, io.now_ns);
        // Only what is asked for, by whatever shard, or known is taken (RFC 4861 section 7.2.5), and changed only if it says override.
        let known = self.neighbours.lookup(target.into());
        if known.is_none() && !self.neighbours.is_wanted(target.into()) {
            return Err(NOT_FOR_US);
        }
        if known.is_none() || icmp[4] & OVERRIDE != 0 {
            self.learned(target.into(), mac, io);
        }
        self.counters.neighbour_messages += 1;
        Ok(())
    }

    fn ndisc(&mut self, kind: u8, flags: u8, own: Ipv6Addr, target: Ipv6Addr, to: IpAddr, io: &mut Io<'_>) -> Frame {
        const LENGTH: usize = 32;
        let mut frame = wire::ip_frame(io.pool, own.into(), to, wire::PROTOCOL_ICMPV6, HOP_LIMIT_ON_LINK, LENGTH);
        let icmp = &mut frame.data_mut()[wire::IPV6..];
        icmp[0] = kind;
        icmp[4] = flags;
        icmp[8..24].copy_from_slice(&target.octets());
        icmp[24] = if kind == NEIGHBOUR_SOLICITATION { OPTION_SOURCE_ADDRESS } else { OPTION_TARGET_ADDRESS };
        icmp[25] = 1;
        icmp[26..32].copy_from_slice(&self.port.mac);
        wire::put_checksum(icmp, 2, wire::pseudo_sum(own.into(), to, wire::PROTOCOL_ICMPV6, LENGTH));
        frame
    }

    /// Notes a neighbour and sends what waited for it.
    fn learned(&mut self, ip: IpAddr, mac: Mac, io: &mut Io<'_>) {
        self.neighbours.learn(ip, mac, io.now_ns);
        self.resolved(ip, io);
    }

    /// Notes what a validated packet's source suggests, if the table has nothing better. Saves the request to a peer
    /// that has just shown where it is.
    pub(super) fn suggested(&mut self, ip: IpAddr, mac: Mac, io: &mut Io<'_>) {
        if self.on_link(ip) && self.mac_of(ip).is_none() && self.neighbours.suggest(ip, mac) {
            self.resolved(ip, io);
        }
    }

    fn resolved(&mut self, hop: IpAddr, io: &mut Io<'_>) {
        if self.unresolved.is_empty() {
            return;
        }
        let Some(mac) = self.mac_of(hop) else { return };
        let Some(waiting) = self.unresolved.take(hop) else { return };
        for frame in waiting.frames {
            self.send_frame(frame, mac, io);
        }
        for (index, generation) in waiting.connections {
            if self.connections.generation(index) == generation {
                self.connection_resolved(index, io);
            }
        }
    }

    /// Queues a packet until `hop` is known.
    pub(super) fn wait_with_frame(&mut self, hop: IpAddr, frame: Frame, io: &mut Io<'_>) {
        let spare = match self.unresolved.entry(hop, io.now_ns) {
            Some(waiting) => waiting.push(frame),
            None => Some(frame),
        };
        if let Some(frame) = spare {
            self.counters.drop_unreachable += 1;
            io.pool.recycle(frame);
        }
        self.unresolved_turn(hop, io);
    }

    /// Asks for `hop`, which the table has forgotten, as if something waited for it, because only a shard that waits
    /// takes an answer.
    pub(super) fn wait_for(&mut self, hop: IpAddr, io: &mut Io<'_>) {
        if self.unresolved.entry(hop, io.now_ns).is_some() {
            self.unresolved_turn(hop, io);
        }
    }

    /// Lets a connection wait until `hop` is known. Returns false if too many next hops are waited for.
    pub(super) fn wait_with_connection(&mut self, hop: IpAddr, index: u32, io: &mut Io<'_>) -> bool {
        let generation = self.connections.generation(index);
        let Some(waiting) = self.unresolved.entry(hop, io.now_ns) else { return false };
        waiting.connections.push((index, generation));
        self.unresolved_turn(hop, io);
        true
    }

    /// Looks for news that came by another shard, asks again, gives up.
    pub(super) fn run_unresolved(&mut self, io: &mut Io<'_>) {
        if self.unresolved.is_empty() {
            return;
        }
        let version = self.neighbours.version();
        let news = version != self.neighbours_seen;
        self.neighbours_seen = version;
        for hop in self.unresolved.hops() {
            if news && self.mac_of(hop).is_some() {
                self.resolved(hop, io);
            } else {
                self.unresolved_turn(hop, io);
            }
        }
    }

    fn unresolved_turn(&mut self, hop: IpAddr, io: &mut Io<'_>) {
        match self.unresolved.turn(hop, io.now_ns) {
            Some(Turn::Request(hop)) => self.request(hop, io),
            Some(Turn::Recheck(hop)) => self.resolved(hop, io),
            Some(Turn::GiveUp(waiting)) => {
                for frame in waiting.frames {
                    self.counters.drop_unreachable += 1;
                    self.next_hop_does_not_answer(&frame, io);
                    io.pool.recycle(frame);
                }
                for (index, generation) in waiting.connections {
                    if self.connections.generation(index) == generation {
                        self.connection_unreachable(index, NetError::HostUnreachable, io);
                    }
                }
            }
            None => {}
        }
    }

    /// Asks who has `hop`.
    pub(super) fn request(&mut self, hop: IpAddr, io: &mut Io<'_>) {
        let Some(own) = self.source_for(hop) else { return };
        self.counters.neighbour_requests += 1;
        match (hop, own) {
            (IpAddr::V4(target), IpAddr::V4(own)) => {
                let frame = self.arp(ARP_REQUEST, own, [0; 6], target, wire::BROADCAST, io);
                self.transmit(frame, io);
            }
            (IpAddr::V6(target), IpAddr::V6(own)) => {
                let group = IpAddr::V6(wire::solicited_node(target));
                let frame = self.ndisc(NEIGHBOUR_SOLICITATION, 0, own, target, group, io);
                self.send_ip(frame, group, io);
            }
            _ => unreachable!("source_for keeps the family"),
        }
    }
}

/// The Ethernet address in a neighbour discovery message's options.
fn link_address(mut options: &[u8], wanted: u8) -> Result<Option<Mac>, Reason> {
    while let [kind, length, ..] = options {
        let length = usize::from(*length) * 8;
        // A length of 0 makes the whole message void (RFC 4861 section 4.6).
        let option = options.get(..length).filter(|_| length > 0).ok_or(MALFORMED)?;
        if *kind == wanted {
            return Ok(Some([option[2], option[3], option[4], option[5], option[6], option[7]]));
        }
        options = &options[length..];
    }
    Ok(None)
}
