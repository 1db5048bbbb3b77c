//! Doorbells that a group's poller holds back: which of its transmit queues have frames on the ring that the device was not
//! told of, and when it is told.
//!
//! A doorbell is a write to the device, or a system call; that one serves many frames is what a group gains by
//! transmitting. It rings when enough frames or bytes wait for it, when two drains found nothing more and senders are
//! not busy, and when the ring is full. It rings when the first frame has waited for 5 us (a pass over many members can
//! be long, so drains alone bound nothing), or will have before the poller looks at the clock again
//! ([`crate::group::poller`] knows how long visits take). And it always rings before the poller stops looking, that is
//! before it parks, rests, sleeps, runs softirqs, lets others run, or ends, and when the member leaves (I14, I15).

/// Frames after which a doorbell is not held back any longer.
pub const DOORBELL_FRAMES_MAX: u32 = 32;
/// Bytes after which a doorbell is not held back any longer: what 100 Gbit/s send in 5 us.
pub const DOORBELL_BYTES_MAX: u32 = 62_500;
/// Passes without another frame after which a doorbell is not held back any longer, unless frames come so close to each
/// other that the next is worth waiting for: the last came less than [`DOORBELL_AGE_NS`] after the one before. A pass
/// is short, so that without this exception each frame of a busy sender would have a doorbell of its own.
pub const DOORBELL_EMPTY_MAX: u32 = 2;
/// The longest time for which a doorbell is held back, in nanoseconds. A visit that takes longer than expected can add
/// to it.
pub const DOORBELL_AGE_NS: u64 = 5_000;

/// Why a doorbell rings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// [`DOORBELL_FRAMES_MAX`].
    Frames,
    /// [`DOORBELL_BYTES_MAX`].
    Bytes,
    /// [`DOORBELL_EMPTY_MAX`].
    Empty,
    /// [`DOORBELL_AGE_NS`]: the first frame is that old, or will be before the poller looks again.
    Age,
    /// The ring is full, and only a doorbell makes room.
    Room,
    /// The poller stops looking.
    Stops,
}

/// A member with frames for which no doorbell rang yet, as the poller that sent the last of them knows it.
#[derive(Clone, Copy, Debug)]
struct Held {
    slot: u16,
    since_ns: u64,
    empty_passes: u32,
    /// The next frame is expected soon.
    is_busy: bool,
    /// The doorbell rings now, for this reason.
    due: Option<Why>,
}

/// The frames on a member's ring for which no doorbell rang yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unrung {
    pub(crate) frames: u32,
    pub(crate) bytes: u32,
    /// When the first of them was sent.
    pub(crate) since_ns: u64,
    /// The last came less than [`DOORBELL_AGE_NS`] after the one before.
    pub(crate) is_busy: bool,
}

/// The members for whose doorbells a poller answers.
///
/// Another poller may visit one of them. If it leaves frames for which no doorbell rang, it answers for the doorbell,
/// too, from then on, and rings for all frames. So a poller that comes to ring takes the claim, and the member's count
/// may tell it that nothing is left to do; one that finds the claim taken leaves the doorbell to its holder.
#[derive(Debug, Default)]
pub(crate) struct HeldDoorbells(Vec<Held>);

impl HeldDoorbells {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// A visit of the member leaves frames for which no doorbell rang; `sent` says whether it sent some itself.
    pub(crate) fn left(&mut self, slot: u16, unrung: Unrung, sent: bool, ring_is_full: bool) {
        let index = self.0.iter().position(|held| held.slot == slot).unwrap_or_else(|| {
            self.0.push(Held { slot, since_ns: unrung.since_ns, empty_passes: 0, is_busy: false, due: None });
            self.0.len() - 1
        });
        let held = &mut self.0[index];
        // Others may have rung since, and sent.
        (held.since_ns, held.is_busy) = (unrung.since_ns, unrung.is_busy);
        if sent {
            // The present pass will end, and it was not an empty one.
            held.empty_passes = 0;
        }
        held.due = match () {
            () if ring_is_full => Some(Why::Room),
            () if unrung.frames >= DOORBELL_FRAMES_MAX => Some(Why::Frames),
            () if unrung.bytes >= DOORBELL_BYTES_MAX => Some(Why::Bytes),
            () => held.due,
        };
    }

    /// A pass has ended: the members on which it sent nothing come closer to their doorbell.
    pub(crate) fn pass_ended(&mut self) {
        for held in &mut self.0 {
            held.empty_passes += 1;
            // The count begins at the end of the pass in which the last frame was sent.
            if held.empty_passes > DOORBELL_EMPTY_MAX && !held.is_busy {
                held.due = held.due.or(Some(Why::Empty));
            }
        }
    }

    /// When the oldest frame for which no doorbell rang was sent.
    #[inline]
    pub(crate) fn oldest_ns(&self) -> Option<u64> {
        self.0.iter().map(|held| held.since_ns).min()
    }

    /// Takes one that is due by `by_ns` off the list, which is when the poller looks again; [`u64::MAX`] takes any,
    /// because the poller stops looking.
    #[inline]
    pub(crate) fn take(&mut self, by_ns: u64) -> Option<(u16, Why)> {
        if self.0.is_empty() {
            return None;
        }
        self.take_due(by_ns)
    }

    fn take_due(&mut self, by_ns: u64) -> Option<(u16, Why)> {
        let why = |held: &Held| {
            let old = by_ns.saturating_sub(held.since_ns) >= DOORBELL_AGE_NS;
            held.due.or(old.then_some(if by_ns == u64::MAX { Why::Stops } else { Why::Age }))
        };
        let index = self.0.iter().position(|held| why(held).is_some())?;
        let held = self.0.swap_remove(index);
        why(&held).map(|why| (held.slot, why))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const NOW: u64 = 1_000_000;

    fn unrung(frames: u32, bytes: u32) -> Unrung {
        Unrung { frames, bytes, since_ns: NOW, is_busy: false }
    }

    fn one(frames: u32, bytes: u32, full: bool) -> HeldDoorbells {
        let mut held = HeldDoorbells::default();
        held.left(7, unrung(frames, bytes), true, full);
        held
    }

    #[test]
    fn it_rings_at_its_limits_and_before_that_only_for_whoever_stops() {
        assert_eq!(one(31, 61_000, false).take(NOW), None);
        assert_eq!(one(1, 60, false).take(u64::MAX), Some((7, Why::Stops)));
        assert_eq!(one(32, 60, false).take(NOW), Some((7, Why::Frames)));
        assert_eq!(one(1, 65_000, false).take(NOW), Some((7, Why::Bytes)));
        assert_eq!(one(1, 60, true).take(NOW), Some((7, Why::Room)));
        assert_eq!(one(1, 60, false).take(NOW + DOORBELL_AGE_NS), Some((7, Why::Age)));
    }

    #[test]
    fn it_rings_after_two_drains_that_found_nothing_and_frames_that_come_begin_the_count_anew() {
        let mut held = one(1, 60, false);
        held.pass_ended();
        held.pass_ended();
        assert_eq!(held.take(NOW), None, "the first of these sent the frame");
        held.left(7, unrung(2, 120), true, false);
        held.pass_ended();
        held.pass_ended();
        assert_eq!(held.take(NOW), None);
        held.pass_ended();
        assert_eq!((held.take(NOW), held.take(u64::MAX)), (Some((7, Why::Empty)), None));
    }

    #[test]
    fn a_visit_that_sends_nothing_does_not_begin_the_count_anew() {
        let mut held = one(1, 60, false);
        for _ in 0..3 {
            held.left(7, unrung(1, 60), false, false);
            assert_eq!(held.take(NOW), None);
            held.pass_ended();
        }
        assert_eq!(held.take(NOW), Some((7, Why::Empty)));
    }

    #[test]
    fn where_frames_follow_each_other_closely_only_its_age_ends_the_wait() {
        let mut held = one(1, 60, false);
        held.left(7, Unrung { is_busy: true, ..unrung(2, 120) }, true, false);
        (0..100).for_each(|_| held.pass_ended());
        assert_eq!(held.take(NOW + DOORBELL_AGE_NS - 1), None);
        assert_eq!(held.take(NOW + DOORBELL_AGE_NS), Some((7, Why::Age)));
    }

    #[test]
    fn the_age_is_that_of_the_first_frame() {
        let mut held = one(1, 60, false);
        held.left(7, unrung(2, 120), true, false);
        assert_eq!(held.take(NOW + DOORBELL_AGE_NS), Some((7, Why::Age)));
    }
}
