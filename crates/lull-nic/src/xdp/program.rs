//! The XDP program: which frames of a device are lull's. Everything else is passed to the host's network stack.
//!
//! Taken are, untagged, with a priority tag (VLAN 0) or, for a device on a VLAN, with its tag:
//!
//! - ARP whose target is an address that is lull's alone, and neighbour solicitations for one;
//! - IP packets to an address of lull's. One that is taken by port brings TCP and UDP to those ports, and ICMP if the
//!   address is lull's alone. Fragments, and IPv6 with extension headers, have no port that could be read: they are the
//!   host's there.
//!
//! A frame goes to the socket of the queue that it came in by; if there is none, to the host.

use super::asm::Register::{R0, R1, R2, R3, R4, R5, R6, R7, R8, R10};
use super::asm::{Assembler, Instruction, Label, Width};
use crate::wire::{ETHERTYPE_ARP, ETHERTYPE_IPV4, ETHERTYPE_IPV6, ETHERTYPE_SERVICE_VLAN, ETHERTYPE_VLAN};

/// What is known of an address: bits of the value in the address maps.
pub(super) mod address {
    /// The address is not the host's as well: ARP, neighbour discovery and ICMP for it are lull's.
    pub(in super::super) const ALONE: u32 = 1;
    /// Packets of every protocol and port are lull's.
    pub(in super::super) const EVERY_PORT: u32 = 2;
}

/// The maps' descriptors. The keys are in network order; a port's key is made by [`port_key`].
#[derive(Clone, Copy, Debug)]
pub(super) struct Maps {
    /// Queue index to AF_XDP socket.
    pub(super) sockets: i32,
    /// IPv4 address to its bits.
    pub(super) v4: i32,
    /// IPv6 address to its bits.
    pub(super) v6: i32,
    /// Protocol and port to anything.
    pub(super) ports: i32,
}

/// Returned by a program that leaves a frame to the host.
pub(super) const XDP_PASS: i32 = 2;
const MAP_LOOKUP_ELEM: i32 = 1;
const REDIRECT_MAP: i32 = 51;

// Offsets in `struct xdp_md`.
const MD_DATA: i16 = 0;
const MD_DATA_END: i16 = 4;
const MD_RX_QUEUE_INDEX: i16 = 16;

const PROTOCOL_ICMP: i32 = 1;
const PROTOCOL_TCP: i32 = 6;
const PROTOCOL_UDP: i32 = 17;
const PROTOCOL_ICMPV6: i32 = 58;
const NEIGHBOUR_SOLICITATION: i32 = 135;

/// The key of a port in the map of ports.
pub(super) fn port_key(protocol: u8, port: u16) -> [u8; 4] {
    let key = u32::from(protocol) << 16 | u32::from(u16::from_ne_bytes(port.to_be_bytes()));
    key.to_ne_bytes()
}

/// A 16-bit field as a load finds it, which knows nothing of network order.
fn loaded(field: u16) -> i32 {
    i32::from(u16::from_ne_bytes(field.to_be_bytes()))
}

/// A program that takes every frame.
pub(super) fn everything(sockets: i32) -> Vec<Instruction> {
    let mut asm = Assembler::default();
    asm.copy(R6, R1);
    redirect(&mut asm, sockets);
    asm.finish()
}

/// The program that takes what is said above; `vlan` is the device's VLAN, if it is on one.
pub(super) fn addresses(maps: Maps, vlan: Option<u16>) -> Vec<Instruction> {
    let mut asm = Assembler::default();
    let text = &mut Text { pass: asm.label(), take: asm.label(), ports: asm.label(), maps, asm };
    let (ipv4, ipv6, arp) = (text.asm.label(), text.asm.label(), text.asm.label());
    text.ethernet(vlan);
    text.asm.if_equal(R2, loaded(ETHERTYPE_IPV4), ipv4);
    text.asm.if_equal(R2, loaded(ETHERTYPE_ARP), arp);
    text.asm.if_equal(R2, loaded(ETHERTYPE_IPV6), ipv6);
    text.asm.jump(text.pass);
    text.asm.place(arp);
    text.arp();
    text.asm.place(ipv4);
    text.ipv4();
    text.asm.place(ipv6);
    text.ipv6();
    text.asm.place(text.ports);
    text.ports();
    text.asm.place(text.take);
    redirect(&mut text.asm, maps.sockets);
    text.asm.place(text.pass);
    text.asm.set(R0, XDP_PASS);
    text.asm.exit();
    std::mem::take(&mut text.asm).finish()
}

/// Sends the frame to the socket of its queue; the host has it if there is none. R6 is the program's context.
fn redirect(asm: &mut Assembler, sockets: i32) {
    asm.load_map(R1, sockets);
    asm.load(Width::Word, R2, R6, MD_RX_QUEUE_INDEX);
    asm.set(R3, XDP_PASS);
    asm.call(REDIRECT_MAP);
    asm.exit();
}

/// The program's text. R6 is the context, R7 points at the header that is read next, R8 to the frame's end.
struct Text {
    asm: Assembler,
    maps: Maps,
    pass: Label,
    take: Label,
    /// Expects the protocol in R4 and the transport header at R7.
    ports: Label,
}

impl Text {
    /// Passes the frame unless it has `bytes` more from R7 on.
    fn need(&mut self, bytes: i32) {
        self.asm.copy(R1, R7);
        self.asm.add(R1, bytes);
        self.asm.if_greater(R1, R8, self.pass);
    }

    /// R0 = the entry of `map` under the key that ends the stack's first `below` bytes, or 0. Destroys R1 to R5.
    fn look_up(&mut self, map: i32, below: i32) {
        self.asm.load_map(R1, map);
        self.asm.copy(R2, R10);
        self.asm.add(R2, -below);
        self.asm.call(MAP_LOOKUP_ELEM);
    }

    fn look_up_v4(&mut self, offset: i16) {
        self.asm.load(Width::Word, R3, R7, offset);
        self.asm.store(Width::Word, R10, -4, R3);
        self.look_up(self.maps.v4, 4);
    }

    fn look_up_v6(&mut self, offset: i16) {
        for word in 0..4 {
            self.asm.load(Width::Word, R3, R7, offset + 4 * word);
            self.asm.store(Width::Word, R10, -16 + 4 * word, R3);
        }
        self.look_up(self.maps.v6, 16);
    }

    /// Takes the frame if the address behind R0 is lull's alone.
    fn take_if_alone(&mut self) {
        self.asm.load(Width::Word, R3, R0, 0);
        self.asm.if_bits(R3, address::ALONE as i32, self.take);
        self.asm.jump(self.pass);
    }

    /// R2 = the EtherType, R7 behind the Ethernet header and its tag.
    fn ethernet(&mut self, vlan: Option<u16>) {
        const ETHERNET: i32 = 14;
        const TAGGED: i32 = 18;
        let (tagged, done) = (self.asm.label(), self.asm.label());
        self.asm.copy(R6, R1);
        self.asm.load(Width::Word, R7, R6, MD_DATA);
        self.asm.load(Width::Word, R8, R6, MD_DATA_END);
        self.need(ETHERNET);
        self.asm.load(Width::Half, R2, R7, 12);
        self.asm.if_equal(R2, loaded(ETHERTYPE_VLAN), tagged);
        self.asm.if_equal(R2, loaded(ETHERTYPE_SERVICE_VLAN), tagged);
        if vlan.is_some() {
            self.asm.jump(self.pass);
        } else {
            self.asm.add(R7, ETHERNET);
            self.asm.jump(done);
        }
        self.asm.place(tagged);
        self.need(TAGGED);
        self.asm.load(Width::Half, R3, R7, 14);
        self.asm.and(R3, loaded(0x0fff));
        self.asm.if_not_equal(R3, loaded(vlan.unwrap_or(0)), self.pass);
        self.asm.load(Width::Half, R2, R7, 16);
        self.asm.add(R7, TAGGED);
        self.asm.place(done);
    }

    fn arp(&mut self) {
        self.need(28);
        // The target's address: of a request for ours, and of an answer to us.
        self.look_up_v4(24);
        self.asm.if_equal(R0, 0, self.pass);
        self.take_if_alone();
    }

    fn ipv4(&mut self) {
        let icmp = self.asm.label();
        self.need(20);
        self.look_up_v4(16);
        self.asm.if_equal(R0, 0, self.pass);
        self.asm.load(Width::Word, R3, R0, 0);
        self.asm.if_bits(R3, address::EVERY_PORT as i32, self.take);
        self.asm.load(Width::Byte, R4, R7, 9);
        self.asm.if_equal(R4, PROTOCOL_ICMP, icmp);
        // More fragments, or an offset.
        self.asm.load(Width::Half, R5, R7, 6);
        self.asm.if_bits(R5, loaded(0x3fff), self.pass);
        self.asm.load(Width::Byte, R5, R7, 0);
        self.asm.and(R5, 15);
        self.asm.shift_left(R5, 2);
        self.asm.if_less(R5, 20, self.pass);
        self.asm.add_register(R7, R5);
        self.asm.jump(self.ports);
        self.asm.place(icmp);
        self.take_if_alone();
    }

    fn ipv6(&mut self) {
        const IPV6: i32 = 40;
        let (not_ours, icmp) = (self.asm.label(), self.asm.label());
        self.need(IPV6);
        self.look_up_v6(24);
        self.asm.if_equal(R0, 0, not_ours);
        self.asm.load(Width::Word, R3, R0, 0);
        self.asm.if_bits(R3, address::EVERY_PORT as i32, self.take);
        self.asm.load(Width::Byte, R4, R7, 6);
        self.asm.if_equal(R4, PROTOCOL_ICMPV6, icmp);
        self.asm.add(R7, IPV6);
        self.asm.jump(self.ports);
        self.asm.place(icmp);
        self.take_if_alone();
        // A solicitation goes to a group of the address that it asks for (RFC 4861 section 4.3).
        self.asm.place(not_ours);
        self.asm.load(Width::Byte, R4, R7, 6);
        self.asm.if_not_equal(R4, PROTOCOL_ICMPV6, self.pass);
        self.need(IPV6 + 24);
        self.asm.load(Width::Byte, R4, R7, 40);
        self.asm.if_not_equal(R4, NEIGHBOUR_SOLICITATION, self.pass);
        self.look_up_v6(48);
        self.asm.if_equal(R0, 0, self.pass);
        self.take_if_alone();
    }

    fn ports(&mut self) {
        let known = self.asm.label();
        self.asm.if_equal(R4, PROTOCOL_TCP, known);
        self.asm.if_not_equal(R4, PROTOCOL_UDP, self.pass);
        self.asm.place(known);
        self.need(4);
        self.asm.load(Width::Half, R5, R7, 2);
        self.asm.shift_left(R4, 16);
        self.asm.or_register(R4, R5);
        self.asm.store(Width::Word, R10, -4, R4);
        self.look_up(self.maps.ports, 4);
        self.asm.if_equal(R0, 0, self.pass);
    }
}

#[cfg(all(test, not(loom)))]
#[path = "program_tests.rs"]
mod tests;
