//! What a TCP header says, checked.

use lull_nic::{Checksum, Frame};
use smoltcp::wire::TcpOption;

use super::demux::{CHECKSUM, MALFORMED, Packet, Reason};
use super::flow::FlowKey;
use super::wire::{self, ACK, FIN, PSH, RST, SYN, be16, be32};

/// What a TCP header says.
#[derive(Clone, Copy, Debug)]
pub(super) struct Segment {
    pub(super) source_port: u16,
    pub(super) destination_port: u16,
    pub(super) seq: u32,
    pub(super) ack: u32,
    pub(super) flags: u8,
    pub(super) window: u16,
    /// Payload bytes.
    pub(super) length: usize,
    pub(super) timestamp: Option<TimestampOption>,
}

/// A segment on its way through the stack: whose it is, what it came in, and what its headers say.
pub(super) struct Arrived<'a> {
    pub(super) flow: FlowKey,
    pub(super) frame: &'a mut Frame,
    pub(super) packet: &'a mut Packet,
    pub(super) segment: Segment,
}

impl Arrived<'_> {
    /// The TCP header and what it carries.
    #[inline]
    pub(super) fn tcp(&self) -> &[u8] {
        &self.frame.data()[self.packet.l4..self.packet.end]
    }

    /// As [`Arrived::tcp`], to be written to.
    #[inline]
    pub(super) fn tcp_mut(&mut self) -> &mut [u8] {
        &mut self.frame.data_mut()[self.packet.l4..self.packet.end]
    }

    /// The options of the TCP header.
    pub(super) fn options(&self) -> &[u8] {
        let tcp = self.tcp();
        &tcp[wire::TCP..tcp.len() - self.segment.length]
    }
}

/// Checks a TCP header. The counter is the one that a frame refused here goes to.
#[inline]
pub(super) fn parse(frame: &mut Frame, packet: &Packet) -> Result<Segment, Reason> {
    let tcp = &frame.data()[packet.l4..packet.end];
    if tcp.len() < wire::TCP {
        return Err(MALFORMED);
    }
    let header = usize::from(tcp[12] >> 4) * 4;
    if header < wire::TCP || header > tcp.len() {
        return Err(MALFORMED);
    }
    let (source_port, destination_port) = (be16(tcp, 0), be16(tcp, 2));
    if source_port == 0 || destination_port == 0 {
        return Err(MALFORMED);
    }
    if !packet.trusted && !wire::adds_up(packet.pseudo_sum(), tcp) {
        return Err(CHECKSUM);
    }
    let flags = tcp[13] & (SYN | FIN | RST | ACK | PSH);
    let mut timestamp = usual_place(tcp, header).map(|at| TimestampOption::read(tcp, at));
    if header > wire::TCP && timestamp.is_none() {
        timestamp = match timestamp_of(tcp, header) {
            Ok(timestamp) => timestamp,
            Err(IllFormed) => {
                pad_ill_formed(frame, packet, header);
                timestamp_of(&frame.data()[packet.l4..packet.end], header).map_err(|IllFormed| MALFORMED)?
            }
        };
    }
    let tcp = &frame.data()[packet.l4..packet.end];
    Ok(Segment {
        source_port,
        destination_port,
        seq: be32(tcp, 4),
        ack: be32(tcp, 8),
        flags,
        window: be16(tcp, 14),
        length: tcp.len() - header,
        timestamp,
    })
}

/// An option of a segment is ill-formed.
struct IllFormed;

/// Reads all options as smoltcp does, so that it cannot stumble later, when there is a connection to lose.
fn timestamp_of(tcp: &[u8], header: usize) -> Result<Option<TimestampOption>, IllFormed> {
    let (mut options, mut timestamp) = (&tcp[wire::TCP..header], None);
    while !options.is_empty() {
        let (rest, option) = TcpOption::parse(options).map_err(|_| IllFormed)?;
        match option {
            TcpOption::EndOfList => break,
            TcpOption::TimeStamp { .. } => timestamp = Some(TimestampOption::read(tcp, header - options.len() + 2)),
            _ => {}
        }
        options = rest;
    }
    Ok(timestamp)
}

/// Writes padding over options that have not their length, and over all behind one whose length cannot be: such are ignored, and the
/// segment is taken (`tcp_parse_options`). Its checksum is right again for whoever the frame is passed on to.
#[cold]
fn pad_ill_formed(frame: &mut Frame, packet: &Packet, header: usize) {
    const END: u8 = 0;
    const NOP: u8 = 1;
    let is_to_be_summed = frame.checksum() != Checksum::Partial;
    let tcp = &mut frame.data_mut()[packet.l4..packet.end];
    let mut at = wire::TCP;
    while at < header && tcp[at] != END {
        let length = match tcp[at] {
            NOP => 1,
            _ => tcp[..header].get(at + 1).map_or(0, |length| usize::from(*length)),
        };
        let is_possible = (tcp[at] == NOP || length >= 2) && at + length <= header;
        let end = if is_possible { at + length } else { header };
        if TcpOption::parse(&tcp[at..end]).is_err() {
            tcp[at..end].fill(NOP);
        }
        at = end;
    }
    if is_to_be_summed {
        wire::put16(tcp, 16, 0);
        wire::put_checksum(tcp, 16, packet.pseudo_sum());
    }
}

impl Segment {
    /// The number behind all that it carries, its FIN included.
    #[inline]
    pub(super) fn end(&self) -> u32 {
        self.seq.wrapping_add(self.length as u32).wrapping_add(u32::from(self.flags & FIN != 0))
    }

    /// At most one of SYN, FIN, RST; and everything but a SYN or RST acknowledges.
    #[inline]
    pub(super) fn is_sane(&self) -> bool {
        match self.flags & (SYN | FIN | RST) {
            0 | FIN => self.flags & ACK != 0,
            SYN | RST => true,
            _ => false,
        }
    }
}

/// The timestamp option of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TimestampOption {
    /// The sender's clock.
    pub(super) value: u32,
    /// Ours, as it heard it last.
    pub(super) echo: u32,
    /// Where the value stands, from the TCP header's first byte.
    pub(super) at: u16,
}

impl TimestampOption {
    /// The option behind its kind and length at `at`.
    #[inline]
    pub(super) fn read(tcp: &[u8], at: usize) -> TimestampOption {
        TimestampOption { value: be32(tcp, at), echo: be32(tcp, at + 4), at: at as u16 }
    }
}

/// Where the timestamp option's value stands, if it is written as nearly everybody writes it: alone behind two bytes of
/// padding (RFC 7323 appendix A).
#[inline]
pub(super) fn usual_place(tcp: &[u8], header: usize) -> Option<usize> {
    (header == wire::TCP + 12 && tcp[wire::TCP..wire::TCP + 4] == [1, 1, 8, 10]).then_some(wire::TCP + 4)
}
