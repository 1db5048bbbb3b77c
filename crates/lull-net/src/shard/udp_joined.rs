//! Sockets that take several datagrams of one flow as one (UDP_GRO). Joining itself is in `gro/datagrams.rs`.

use lull_bpf::Chooser;
use lull_nic::Frame;

use super::demux::{self, Inbound, Packet};
use super::error::NetError;
use super::flow::{FlowKey, Owner};
use super::socket::SocketId;
use super::stack::Stack;
use super::steer::Steered;
use super::wire::{self, be16};

impl Stack {
    /// Says whether the socket takes several datagrams of one flow as one from now on (UDP_GRO). What it holds unread
    /// stays as it is, as on Linux.
    ///
    /// # Errors
    /// [`NetError::InvalidSocket`].
    pub fn udp_set_gro(&mut self, id: SocketId, on: bool) -> Result<(), NetError> {
        let socket = self.udp_mut(id)?;
        let before = std::mem::replace(&mut socket.joins, on);
        self.udp_joiners = self.udp_joiners + u32::from(on) - u32::from(before);
        Ok(())
    }

    /// Whether a received frame is a datagram for a socket that takes several as one (`udp4_gro_lookup_skb`).
    #[inline]
    pub fn joins_datagrams(&self, frame: &Frame) -> bool {
        self.udp_joiners != 0 && self.is_for_a_joiner(frame)
    }

    #[cold]
    fn is_for_a_joiner(&self, frame: &Frame) -> bool {
        let Ok(Inbound::Ip(packet)) = demux::classify(frame, self.port.mac, &self.locals, false) else { return false };
        let Some(ports) = frame.data()[packet.l4..packet.end].get(..wire::UDP) else { return false };
        packet.protocol == wire::PROTOCOL_UDP
            && self
                .udp_socket_for(frame, &packet, be16(ports, 2), be16(ports, 0))
                .and_then(|index| self.udps.get(index))
                .is_some_and(|socket| socket.joins)
    }

    /// The socket that a datagram to `port` is for.
    pub(super) fn udp_socket_for(&self, frame: &Frame, packet: &Packet, port: u16, source_port: u16) -> Option<u32> {
        let (own, peer) = (packet.destination, packet.source);
        let flow = FlowKey::new(wire::PROTOCOL_UDP, own, port, peer, source_port);
        if let Some(&Owner::Udp(index)) = self.flows.get(&flow) {
            return Some(index);
        }
        let steer = |program: &Chooser| program.run(&Steered::new(frame, packet, self.config.place));
        self.udp_ports.find(own, port, steer, || self.secret.hash(3, &flow))
    }
}
