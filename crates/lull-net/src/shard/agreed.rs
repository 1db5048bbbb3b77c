//! What both ends of a connection have agreed on by their SYNs: how long segments are, whether acknowledgements are selective, and by
//! what windows are scaled.

use super::connection::Connection;
use super::device::{Corrections, Windows};
use super::half_open::window_scale;
use super::options::{MSS_DEFAULT, Offer};

/// A bit in [`Connection::peer_mss`], since no segment is so long: both ends take selective acknowledgements.
pub(super) const SACK: u16 = 1 << 15;

impl Connection {
    /// Notes what the peer's SYN has said.
    pub(super) fn note_offer(&mut self, offer: &Offer) {
        self.peer_mss = offer.mss.unwrap_or(MSS_DEFAULT).min(SACK - 1) | if offer.sack { SACK } else { 0 };
    }

    /// Windows are scaled, if both ends have said so (RFC 7323 section 2.2).
    pub(super) fn set_scales(&mut self, own: u8, peers: Option<u8>) {
        const SCALE_MAX: u8 = 14;
        self.scales = peers.map_or(0, |peers| own | peers.min(SCALE_MAX) << 4);
        self.settle_windows();
    }

    /// Settles how windows are put right, whenever the scale or the receive buffer has changed.
    pub(super) fn settle_windows(&mut self) {
        // Where windows are not scaled at all smoltcp does not scale them either.
        self.windows = match self.rcv_scale() {
            0 => Windows::default(),
            agreed => Windows::new(agreed, window_scale(self.socket().recv_capacity())),
        };
    }

    /// What `rcv_window` is shifted by.
    pub(super) fn rcv_scale(&self) -> u8 {
        self.scales & 15
    }

    /// The peer's window, in bytes.
    pub(super) fn peer_window_bytes(&self) -> usize {
        usize::from(self.peer_window) << (self.scales >> 4)
    }

    /// What is put right in what smoltcp sends, when the peer has acknowledged `acked`.
    #[inline]
    pub(super) fn corrections(&self, acked: u32) -> Corrections {
        Corrections { acceptable_seq: self.acceptable_seq(acked), windows: self.windows }
    }
}
