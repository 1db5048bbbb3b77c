//! Buffers for frames that exceed the ordinary ones of a pool: jumbo frames, and segments above the MTU.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{Chunk, Frame, HEADROOM_BYTES, Origin};

/// Chunks that wait at home at most: as many as a batch of received frames and the one after it hold,
const KEPT_MAX: usize = 256;
/// as long as they are not more than this many bytes together.
const KEPT_BYTES_MAX: usize = 4 << 20;

/// Chunks of one size, which come back from wherever their frames are let go.
#[derive(Debug)]
pub(crate) struct LargeFrames {
    bytes: usize,
    home: Arc<Mutex<Vec<Chunk>>>,
    origin: Arc<Origin>,
}

fn lock(home: &Mutex<Vec<Chunk>>) -> MutexGuard<'_, Vec<Chunk>> {
    // Chunks are put in and taken out whole.
    home.lock().unwrap_or_else(PoisonError::into_inner)
}

impl LargeFrames {
    /// For frames of up to `bytes` bytes.
    pub(crate) fn new(bytes: usize) -> LargeFrames {
        let home: Arc<Mutex<Vec<Chunk>>> = Arc::default();
        let kept = home.clone();
        let kept_max = LargeFrames::kept_max(bytes);
        let origin = Origin::new(move |chunk| {
            let mut home = lock(&kept);
            if home.len() < kept_max {
                home.push(chunk);
            }
        });
        LargeFrames { bytes, home, origin }
    }

    fn kept_max(bytes: usize) -> usize {
        KEPT_MAX.min(KEPT_BYTES_MAX / bytes.max(1))
    }

    /// The longest frame that fits.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// An empty frame.
    pub(crate) fn take(&self) -> Frame {
        let chunk = lock(&self.home).pop();
        chunk.unwrap_or_else(|| Chunk::allocate(HEADROOM_BYTES + self.bytes)).into_frame(&self.origin)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_frame_that_another_thread_dropped_is_taken_again() {
        let large = LargeFrames::new(9018);
        let mut frame = large.take();
        frame.set_len(9018);
        let first = frame.data().as_ptr() as usize;
        let second = large.take();
        assert_ne!(second.data().as_ptr() as usize, first);
        std::thread::spawn(move || drop(frame)).join().unwrap();
        let again = large.take();
        assert_eq!((again.data().as_ptr() as usize, again.capacity(), again.len()), (first, 9018, 0));
    }

    #[test]
    fn what_comes_home_in_excess_is_freed() {
        for (bytes, kept) in [(3000, KEPT_MAX), (65_536, 64)] {
            let large = LargeFrames::new(bytes);
            let frames: Vec<_> = (0..KEPT_MAX + 9).map(|_| large.take()).collect();
            drop(frames);
            assert_eq!(lock(&large.home).len(), kept);
        }
    }
}
