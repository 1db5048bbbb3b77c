//! What a connection makes of a segment before smoltcp sees it.

use smoltcp::socket::tcp::State;

use super::connection::{Connection, Flags};
use super::counters::StackCounters;
use super::isn::Secret;
use super::mend;
use super::options::Offer;
use super::paws::Timestamps;
use super::segment::{Arrived, Segment};
use super::wire::{ACK, FIN, RST, SYN, seq_lt};

/// What becomes of a segment for an open connection.
pub(super) enum Judged {
    /// smoltcp gets it.
    Fits,
    /// PAWS refuses it.
    Old,
    /// It is a reset that is not in the window.
    StrayReset,
    /// A stranger may have sent it, so the peer is asked.
    Doubtful,
    /// It brings data that nobody will read.
    Unwanted,
}

impl Connection {
    /// Judges a segment for an open connection, and mends what smoltcp would misread.
    #[inline]
    pub(super) fn judge(&mut self, arrived: &mut Arrived<'_>, counters: &mut StackCounters, now_ns: u64) -> Judged {
        if self.is_from_before(&arrived.segment, now_ns) {
            return Judged::Old;
        }
        if self.is_a_strangers(&arrived.segment) {
            return Judged::Doubtful;
        }
        if let (Some(timestamps), Some(option)) = (&mut self.timestamps, arrived.segment.timestamp)
            && !timestamps.is_old(option.value, now_ns)
        {
            timestamps.take(option, self.rcv_ack, arrived, now_ns);
        }
        let judged = match arrived.segment.flags & RST {
            0 => self.judge_usual(arrived, counters, now_ns),
            _ => self.judge_reset(arrived),
        };
        if matches!(judged, Judged::Fits) && self.flags.contains(Flags::PROBING) {
            self.flags.remove(Flags::PROBING);
            self.socket_mut().set_keep_alive(None);
        }
        judged
    }

    /// Whether PAWS refuses a segment. A reset is believed all the same (RFC 7323 section 5.2): its number is exact.
    #[inline]
    fn is_from_before(&self, segment: &Segment, now_ns: u64) -> bool {
        let (Some(timestamps), Some(option)) = (&self.timestamps, segment.timestamp) else { return false };
        segment.flags & RST == 0 && timestamps.is_old(option.value, now_ns)
    }

    /// Whether it is a SYN (RFC 5961 section 4.2), or an acknowledgement of what was not sent or of what was acknowledged long ago
    /// (section 5.2). smoltcp is silent to the SYN of a client that has restarted and took the same port, and believes the
    /// acknowledgement of data that only lies in its buffer. Its timestamp is not believed either (`tcp_ack`).
    #[inline]
    fn is_a_strangers(&self, segment: &Segment) -> bool {
        let unsent = seq_lt(self.snd_nxt, segment.ack);
        let syn = segment.flags & SYN != 0;
        segment.flags & RST == 0 && (syn || unsent || seq_lt(segment.ack, self.snd_una) && self.is_too_old(segment.ack))
    }

    /// RFC 5961 section 3.2: smoltcp believes a reset anywhere in the window, which a stranger can guess.
    #[inline]
    fn judge_reset(&self, arrived: &mut Arrived<'_>) -> Judged {
        match arrived.segment.seq.wrapping_sub(self.rcv_nxt()) {
            0 if self.socket().recv_capacity() > 0 => {
                mend::reset_with_a_reason(arrived);
                Judged::Fits
            }
            off if (off as usize) < self.socket().recv_capacity() => Judged::Doubtful,
            _ => Judged::StrayReset,
        }
    }

    #[inline]
    fn judge_usual(&mut self, arrived: &mut Arrived<'_>, counters: &mut StackCounters, now_ns: u64) -> Judged {
        if self.flags.contains(Flags::FIN_RECEIVED) {
            mend::behind_the_end(self, arrived);
        }
        let stale = seq_lt(arrived.segment.ack, self.snd_una);
        if stale {
            let mended = mend::stale_ack(self, arrived);
            counters.tcp_stale_acks += u64::from(mended);
        } else {
            mend::at_closed_window(self, arrived);
            self.peer_window = arrived.segment.window;
        }
        self.note_data(&arrived.segment, now_ns);
        if self.takes_no_more(&arrived.segment) {
            return Judged::Unwanted;
        }
        if arrived.segment.flags & FIN != 0 {
            mend::fin_beyond_the_window(self, arrived);
            self.note_early_fin(&arrived.segment);
        }
        Judged::Fits
    }

    /// Notes what the answer to our SYN agrees to.
    pub(super) fn note_answer(&mut self, arrived: &Arrived<'_>, secret: &Secret, now_ns: u64) {
        let is_refused = arrived.segment.flags & ACK != 0 && arrived.segment.ack != self.snd_nxt;
        if arrived.segment.flags & SYN == 0 || is_refused {
            return;
        }
        let offer = Offer::read(arrived.options());
        self.set_scales(self.rcv_scale(), offer.window_scale);
        // The window field of a SYN is not scaled. A window that is open stays open.
        let window = arrived.segment.window;
        self.peer_window = (window >> (self.scales >> 4)).max(window.min(1));
        self.note_offer(&offer);
        if self.socket().state() == State::SynSent {
            self.rcv_ack = arrived.segment.seq.wrapping_add(1);
        }
        let sent = self.socket().timestamp_enabled();
        let recent = offer.timestamp.filter(|_| sent).map(|(value, _)| value);
        let offset = secret.timestamp_offset(&self.flow);
        self.timestamps = recent.map(|recent| Timestamps::new(offset, recent, now_ns));
    }
}
