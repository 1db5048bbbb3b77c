//! `pfifo_fast`: three bands, of which the first that has a frame is served, each a queue of its own.
//!
//! A sender that fills its band drops its own frames there; nothing keeps it from filling the band of others, which is what
//! [`fq`](crate::fq) is for.

use std::collections::VecDeque;

use crate::{PRIORITY_MAX, Packet};

/// Bands (`PFIFO_FAST_BANDS`).
pub const BANDS: usize = 3;
/// Frames that each band holds by default (the device's `tx_queue_len`, `DEFAULT_TX_QUEUE_LEN`).
pub const BAND_FRAMES_MAX: usize = 1000;

/// The band of each priority (`sch_default_prio2band`).
const BAND_OF: [u8; PRIORITY_MAX as usize + 1] = [1, 2, 2, 2, 1, 2, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1];

/// Three bands.
#[derive(Debug)]
pub struct PfifoFast<F> {
    bands: [VecDeque<Packet<F>>; BANDS],
    band_frames_max: usize,
}

impl<F> PfifoFast<F> {
    /// Three bands of so many frames each.
    pub fn new(band_frames_max: usize) -> PfifoFast<F> {
        PfifoFast { bands: [const { VecDeque::new() }; BANDS], band_frames_max }
    }

    /// Puts a frame behind those of its band.
    ///
    /// # Errors
    /// The frame: the band is full.
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

    /// Frames in it.
    pub fn len(&self) -> usize {
        self.bands.iter().map(VecDeque::len).sum()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
