//! The device that smoltcp sees: one received packet, and a way out for one connection.

use std::collections::VecDeque;
use std::num::NonZeroUsize;

use lull_nic::{Checksum, Frame, FramePool, Segmentation, TxQueue};
use smoltcp::iface::{Config as InterfaceConfig, Interface};
use smoltcp::phy::{self, ChecksumCapabilities, DeviceCapabilities, Medium, PacketMeta};
use smoltcp::time::Instant;
use smoltcp::wire::HardwareAddress;

use super::clock::instant;
use super::counters::StackCounters;
use super::options;
use super::sender::Sender;
use super::wire::{self, IpFields, Mac};

/// What an interface is told about the device; the same for all connections of a shard.
#[derive(Clone, Copy, Debug)]
pub(super) struct Port {
    pub(super) mac: Mac,
    pub(super) mtu_bytes: usize,
    pub(super) tx_checksum_offload: bool,
    pub(super) tx_segmentation_offload: bool,
}

/// The last segment that a connection sent.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sent {
    /// Sequence number behind it.
    pub(super) seq_end: u32,
    /// What it acknowledged.
    pub(super) ack: u32,
    /// Its window field.
    pub(super) window: u16,
    pub(super) flags: u8,
    /// It has data, a SYN or a FIN.
    pub(super) occupied: bool,
}

impl Sent {
    #[inline]
    fn read(tcp: &[u8]) -> Sent {
        let flags = tcp[13];
        let payload = tcp.len() - usize::from(tcp[12] >> 4) * 4;
        let occupied = payload as u32 + u32::from(flags & wire::SYN != 0) + u32::from(flags & wire::FIN != 0);
        Sent {
            seq_end: wire::be32(tcp, 4).wrapping_add(occupied),
            ack: wire::be32(tcp, 8),
            window: wire::be16(tcp, 14),
            flags,
            occupied: occupied > 0,
        }
    }
}

/// What is corrected in the segments that smoltcp writes for a connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Corrections {
    /// What bare acknowledgements are numbered with ([`Connection::acceptable_seq`]).
    ///
    /// [`Connection::acceptable_seq`]: super::connection::Connection::acceptable_seq
    pub(super) acceptable_seq: u32,
    pub(super) windows: Windows,
}

/// How the windows that smoltcp offers are corrected, in a byte. smoltcp goes by the buffer that it has, which may grow
/// ([`grow`]).
///
/// [`grow`]: super::grow
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Windows(u8);

impl Windows {
    const SCALED: u8 = 128;

    /// Both ends have agreed on a scale of `agreed`, and smoltcp has one of `smoltcps`.
    pub(super) fn new(agreed: u8, smoltcps: u8) -> Windows {
        Windows((agreed - smoltcps) | if smoltcps > 0 { Windows::SCALED } else { 0 })
    }

    /// By how much more they are scaled than smoltcp scales them.
    fn shift(self) -> u8 {
        self.0 & !Windows::SCALED
    }

    /// smoltcp scales them itself, and takes only what lies in the window that it has offered last. The edge of that
    /// window may lie before an earlier edge, by less than a unit of the scale; so a unit less is offered.
    fn unit(self) -> u16 {
        (self.0 / Windows::SCALED).into()
    }
}

/// Why nothing could be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refused {
    /// The transmit ring is full.
    RingFull,
    /// The next hop's Ethernet address is not known.
    NoNeighbour,
}

/// Frames on their way from this shard to itself, each with the own Ethernet address at both ends.
pub(super) type Looped = VecDeque<Frame>;

/// How the frames of a connection leave.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Leaving {
    pub(super) sender: lull_nic::frame::Sender,
    pub(super) ip: IpFields,
}

/// The way out.
pub(super) struct Exit<'a> {
    pub(super) port: Port,
    pub(super) next_hop: Option<Mac>,
    /// Whose segments these are, and what their IP headers say.
    leaving: Leaving,
    corrections: Corrections,
    pub(super) tx: &'a mut dyn TxQueue,
    /// Where frames to own addresses go.
    looped: &'a mut Looped,
    pub(super) pool: &'a mut FramePool,
    /// Frames that left by the device, or were looped.
    pub(super) frames: u32,
    by_device: u32,
    pub(super) dropped: u32,
    pub(super) last: Sent,
    pub(super) refused: Option<Refused>,
    /// Who is in charge of what is lost, and the time.
    pub(super) sender: Option<(Box<Sender>, u64)>,
    /// The peer's window is closed: what was sent before leaves again, to probe it.
    pub(super) probes: bool,
    /// How many segments smoltcp would have sent again.
    pub(super) swallowed: u32,
}

/// One packet in, any number out.
pub(super) struct Shim<'p, 'a> {
    packet: Option<&'p [u8]>,
    pub(super) exit: Exit<'a>,
}

impl<'p, 'a> Shim<'p, 'a> {
    #[inline]
    pub(super) fn new(
        packet: Option<&'p [u8]>,
        port: Port,
        (next_hop, leaving): (Option<Mac>, Leaving),
        corrections: Corrections,
        tx: &'a mut dyn TxQueue,
        looped: &'a mut Looped,
        pool: &'a mut FramePool,
    ) -> Shim<'p, 'a> {
        let exit = Exit {
            port,
            next_hop,
            leaving,
            corrections,
            tx,
            looped,
            pool,
            frames: 0,
            by_device: 0,
            dropped: 0,
            last: Sent::default(),
            refused: None,
            sender: None,
            probes: false,
            swallowed: 0,
        };
        Shim { packet, exit }
    }
}

pub(super) struct RxToken<'p>(&'p [u8]);

impl phy::RxToken for RxToken<'_> {
    #[inline]
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        f(self.0)
    }
}

pub(super) struct TxToken<'s, 'a> {
    exit: &'s mut Exit<'a>,
    segmentation: Segmentation,
}

impl<'s, 'a> TxToken<'s, 'a> {
    #[inline]
    fn new(exit: &'s mut Exit<'a>) -> TxToken<'s, 'a> {
        TxToken { exit, segmentation: Segmentation::None }
    }
}

impl phy::TxToken for TxToken<'_, '_> {
    #[inline]
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, f: F) -> R {
        let TxToken { exit, segmentation } = self;
        let mut frame = wire::frame_of(exit.pool, len);
        let result = f(frame.data_mut());
        frame.set_segmentation(segmentation);
        exit.send(frame);
        result
    }

    #[inline]
    fn set_meta(&mut self, meta: PacketMeta) {
        if let Some(mss_bytes) = meta.segmentation_offload_size {
            self.segmentation = Segmentation::Tcp { mss_bytes: mss_bytes.get() };
        }
    }
}

impl Corrections {
    /// Corrects a segment, and says what it is then.
    #[inline(always)]
    fn apply(self, tcp: &mut [u8]) -> Sent {
        let mut sent = Sent::read(tcp);
        if sent.flags == wire::ACK && !sent.occupied && wire::be32(tcp, 4) != self.acceptable_seq {
            wire::put32(tcp, 4, self.acceptable_seq);
            sent.seq_end = self.acceptable_seq;
        }
        if self.windows == Windows::default() {
            return sent;
        }
        if sent.flags & wire::SYN == 0 {
            sent.window = sent.window.saturating_sub(self.windows.unit()) >> self.windows.shift();
            wire::put16(tcp, 14, sent.window);
        } else {
            // The window field of a SYN is never scaled (RFC 7323 section 2.2).
            options::raise_window_scale(tcp, self.windows.shift());
        }
        sent
    }
}

impl Exit<'_> {
    /// Takes a TCP packet as smoltcp wrote it. Every byte of it is written: smoltcp fills headers, options and payload.
    fn send(&mut self, mut frame: Frame) {
        let packet = frame.data_mut();
        let v4 = packet[0] >> 4 == 4;
        let l4 = if v4 { wire::IPV4 } else { wire::IPV6 };
        let tcp = &mut packet[l4..];
        if self.sender.is_some() && self.swallows(tcp) {
            self.pool.recycle(frame);
            return;
        }
        self.last = self.corrections.apply(tcp);
        if self.leaving.ip != IpFields::default() {
            wire::put_ip_fields(packet, self.leaving.ip);
        }
        let addresses = if v4 { 12..20 } else { 8..40 };
        let pseudo = wire::pseudo_sum_of(&packet[addresses], wire::PROTOCOL_TCP, packet.len() - l4);
        if self.port.tx_checksum_offload {
            // The field holds the pseudo header's sum, to which the device adds the rest (`CHECKSUM_PARTIAL`).
            packet[l4 + 16..l4 + 18].copy_from_slice(&wire::fold(pseudo).to_ne_bytes());
            frame.set_checksum(Checksum::Partial);
        } else {
            // smoltcp left the field zero: its own sum takes several times as long.
            wire::put_checksum(&mut packet[l4..], 16, pseudo);
        }
        let Some(next_hop) = self.next_hop else {
            // Only an immediate reply can come here without an address; the peer's retransmission brings it about
            // again.
            self.dropped += 1;
            self.pool.recycle(frame);
            return;
        };
        let ethertype = if v4 { wire::ETHERTYPE_IPV4 } else { wire::ETHERTYPE_IPV6 };
        wire::push_ethernet(&mut frame, next_hop, self.port.mac, ethertype);
        if next_hop == self.port.mac {
            self.looped.push_back(frame);
            self.frames += 1;
            return;
        }
        frame.set_sender(self.leaving.sender);
        match self.tx.transmit(frame) {
            Ok(()) => {
                self.frames += 1;
                self.by_device += 1;
            }
            Err(frame) => {
                self.dropped += 1;
                self.pool.recycle(frame);
            }
        }
    }

    /// Whether a segment does not leave, because somebody else is in charge of what it repeats.
    #[cold]
    fn swallows(&mut self, tcp: &[u8]) -> bool {
        let Some((sender, now_ns)) = &mut self.sender else { return false };
        let (seq, has_fin) = (wire::be32(tcp, 4), tcp[13] & wire::FIN != 0);
        let payload = &tcp[usize::from(tcp[12] >> 4) * 4..];
        let is_data = !payload.is_empty() || has_fin;
        // A probe of a closed window is a byte that does not count as sent, or repeats what was.
        let end = seq.wrapping_add(payload.len() as u32);
        let probes = self.probes && (payload.len() < 2 || !wire::seq_lt(sender.next(), end));
        if !is_data || probes || sender.is_probe(seq) || tcp[13] & (wire::SYN | wire::RST) != 0 {
            return false;
        }
        let leaves = sender.takes(seq, payload, has_fin, *now_ns);
        self.swallowed += u32::from(!leaves);
        !leaves
    }

    /// Takes a packet in which nothing has to be corrected.
    pub(super) fn sends_as_it_is(&mut self, mut frame: Frame) {
        let packet = frame.data_mut();
        let l4 = if packet[0] >> 4 == 4 { wire::IPV4 } else { wire::IPV6 };
        // As smoltcp leaves it.
        wire::put16(packet, l4 + 16, 0);
        self.corrections.windows = Windows::default();
        self.send(frame);
    }

    /// Whether something can leave now.
    pub(super) fn has_room(&mut self) -> bool {
        if self.next_hop.is_none() {
            self.refused = Some(Refused::NoNeighbour);
        } else if self.next_hop != Some(self.port.mac) && self.tx.room_for(self.leaving.sender) == 0 {
            self.refused = Some(Refused::RingFull);
        }
        self.refused.is_none()
    }

    /// Counts what went out.
    #[inline]
    pub(super) fn count(&self, counters: &mut StackCounters) {
        counters.tx_frames += u64::from(self.by_device);
        counters.tx_dropped += u64::from(self.dropped);
    }
}

impl<'a> phy::Device for Shim<'_, 'a> {
    type RxToken<'s>
        = RxToken<'s>
    where
        Self: 's;
    type TxToken<'s>
        = TxToken<'s, 'a>
    where
        Self: 's;

    /// Both tokens, whatever the ring holds: a full transmit ring must not stop reception.
    #[inline]
    fn receive(&mut self, _now: Instant) -> Option<(RxToken<'_>, TxToken<'_, 'a>)> {
        Some((RxToken(self.packet.take()?), TxToken::new(&mut self.exit)))
    }

    /// `None` leaves the segment with its connection, which then waits for the ring or for the neighbour.
    #[inline]
    fn transmit(&mut self, _now: Instant) -> Option<TxToken<'_, 'a>> {
        let exit = &mut self.exit;
        exit.has_room().then(|| TxToken::new(exit))
    }

    #[inline]
    fn capabilities(&self) -> DeviceCapabilities {
        capabilities(self.exit.port)
    }
}

/// Takes one packet and keeps the answer to itself.
pub(super) struct Rehearsal<'p> {
    port: Port,
    packet: Option<&'p [u8]>,
    pub(super) answer: Option<Sent>,
}

impl<'p> Rehearsal<'p> {
    pub(super) fn new(port: Port, packet: &'p [u8]) -> Rehearsal<'p> {
        Rehearsal { port, packet: Some(packet), answer: None }
    }
}

pub(super) struct AnswerToken<'s>(&'s mut Option<Sent>);

impl phy::TxToken for AnswerToken<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, f: F) -> R {
        // An IPv6 header and the longest TCP header are 100 bytes, and there is no data.
        let mut packet = [0; 128];
        let result = f(&mut packet[..len]);
        let l4 = if packet[0] >> 4 == 4 { wire::IPV4 } else { wire::IPV6 };
        *self.0 = Some(Sent::read(&packet[l4..len]));
        result
    }
}

impl<'p> phy::Device for Rehearsal<'p> {
    type RxToken<'s>
        = RxToken<'p>
    where
        Self: 's;
    type TxToken<'s>
        = AnswerToken<'s>
    where
        Self: 's;

    fn receive(&mut self, _now: Instant) -> Option<(RxToken<'p>, AnswerToken<'_>)> {
        Some((RxToken(self.packet.take()?), AnswerToken(&mut self.answer)))
    }

    fn transmit(&mut self, _now: Instant) -> Option<AnswerToken<'_>> {
        Some(AnswerToken(&mut self.answer))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        capabilities(self.port)
    }
}

/// Received checksums were checked before smoltcp sees a packet, and those of what it sends are filled in behind it.
pub(super) fn capabilities(port: Port) -> DeviceCapabilities {
    let mut checksum = ChecksumCapabilities::ignored();
    checksum.ipv4 = phy::Checksum::Tx;
    let mut capabilities = DeviceCapabilities::default();
    capabilities.medium = Medium::Ip;
    capabilities.max_transmission_unit = port.mtu_bytes;
    capabilities.checksum = checksum;
    if port.tx_segmentation_offload {
        // The longest packet that IP's length can say. Over IPv6 smoltcp takes one above the MTU for one that it would have to
        // fragment, and drops it.
        capabilities.segmentation.tcpv4 = NonZeroUsize::new(usize::from(u16::MAX));
    }
    capabilities
}

/// Makes interfaces: a device that never has anything.
pub(super) struct NoDevice(pub(super) Port);

impl phy::Device for NoDevice {
    type RxToken<'s> = RxToken<'s>;
    type TxToken<'s> = NoToken;

    fn receive(&mut self, _now: Instant) -> Option<(RxToken<'_>, NoToken)> {
        None
    }

    fn transmit(&mut self, _now: Instant) -> Option<NoToken> {
        None
    }

    fn capabilities(&self) -> DeviceCapabilities {
        capabilities(self.0)
    }
}

/// Cannot be had.
pub(super) enum NoToken {}

impl phy::TxToken for NoToken {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, _len: usize, _f: F) -> R {
        match self {}
    }
}

/// An interface whose first connection draws the number that `random_seed` was made for.
pub(super) fn interface(port: Port, random_seed: u64, now_ns: u64) -> Interface {
    let mut config = InterfaceConfig::new(HardwareAddress::Ip);
    config.random_seed = random_seed;
    let mut interface = Interface::new(config, &mut NoDevice(port), instant(now_ns));
    // Addresses are checked by the demux. smoltcp would hold two and search them for every packet.
    interface.set_any_ip(true);
    interface
}
