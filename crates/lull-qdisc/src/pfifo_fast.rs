//! `pfifo_fast`: three bands, each of which is a queue. The first band that has a frame is served.
//!
//! A sender that fills its band makes the frames of others in that band be dropped as well; [`fq`](crate::fq) prevents
//! that.

use std::collections::VecDeque;

use crate::{PRIORITY_MAX, Packet};

/// The number of bands (`PFIFO_FAST_BANDS`).
pub const BANDS: usize = 3;
/// Frames that each band holds by default (the device's `tx_queue_len`, `DEFAULT_TX_QUEUE_LEN`).
pub const BAND_FRAMES_MAX: usize = 1000;

/// The band of each priority (`sch_default_prio2band`).
const BAND_OF: [u8; PRIORITY_MAX as usize + 1] = [1, 2, 2, 2, 1, 2, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1];

/// Three bands, by priority.
#[derive(Debug)]
pub struct PfifoFast<F> {
    bands: [VecDeque<Packet<F>>; BANDS],
    band_frames_max: usize,
}

impl<F> PfifoFast<F> {
    /// Three bands, each of which holds at most `band_frames_max` frames.
    pub fn new(band_frames_max: usize) -> PfifoFast<F> {
        PfifoFast { bands: [const { VecDeque::new() }; BANDS], band_frames_max }
    }

    /// Puts a frame behind those of its band.
    ///
    /// # Errors
    /// The frame comes back: its band is full.
    #[inline]
    pub fn enqueue(&mut self, packet: Packet<F>) -> Result<(), Packet<F>> {
        let band = &mut self.bands[usize::from(BAND_OF[usize::from(packet.priority.min(PRIORITY_MAX))])];
        if band.len() >= self.band_frames_max {
            return Err(packet);
        }
        band.push_back(packet);
        Ok(())
    }

    /// The first frame of the first band that has one.
    #[inline]
    pub fn dequeue(&mut self) -> Option<Packet<F>> {
        self.bands.iter_mut().find_map(VecDeque::pop_front)
    }

    /// How many frames it holds.
    pub fn len(&self) -> usize {
        self.bands.iter().map(VecDeque::len).sum()
    }

    /// Whether it holds none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
