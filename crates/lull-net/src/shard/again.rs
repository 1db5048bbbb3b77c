//! What was sent again, in the order in which it left, with what of it has come and what is lost once more.
//!
//! The cost of an acknowledgement depends on what it says, and not on how much was sent again, because the peer decides
//! when acknowledgements come, and how many.

use std::collections::{BTreeMap, VecDeque};

use super::ranges::{Range, Ranges, later};

/// From the first byte to behind the last, as places in the stream, which do not wrap around as sequence numbers do.
type Span = (u64, u64);

/// Something that was sent again.
#[derive(Clone, Debug)]
struct Segment {
    span: Span,
    /// What was sent for the first time after this segment begins at this number.
    mark: u32,
    /// How many bytes of it are waited for.
    missing: u32,
    /// All of it has come.
    has_come: bool,
}

/// What was sent again and has not all come.
#[derive(Clone, Debug)]
pub(super) struct SentAgain {
    /// The first number that is not acknowledged, and where in the stream that is.
    una: u32,
    una_at: u64,
    /// The segments in the order in which they left. One of which nothing is waited for stays until it is the first.
    segments: VecDeque<Segment>,
    /// How many have left the front of `segments`.
    gone: u64,
    /// How many of `segments` have come.
    came: u32,
    /// The pieces that are waited for, by where they begin: where each ends, and which segment had it last, counted
    /// from the first that there ever was.
    pieces: BTreeMap<u64, (u64, u64)>,
}

impl SentAgain {
    pub(super) fn new(una: u32) -> SentAgain {
        SentAgain { una, una_at: 0, segments: VecDeque::new(), gone: 0, came: 0, pieces: BTreeMap::new() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.segments.is_empty()
    }

    /// Nothing of it is waited for any longer.
    pub(super) fn clear(&mut self) {
        *self = SentAgain { una_at: self.una_at, ..SentAgain::new(self.una) };
    }

    fn span(&self, (start, end): Range) -> Span {
        let at = |number: u32| self.una_at + u64::from(later(number, self.una).wrapping_sub(self.una));
        (at(start), at(end))
    }

    fn number(&self, at: u64) -> u32 {
        self.una.wrapping_add((at - self.una_at) as u32)
    }

    /// Notes that `range` was sent again when all before `mark` had been sent and the peer had `sacked`. If it was sent
    /// again before, that earlier copy is waited for no longer.
    pub(super) fn sent(&mut self, range: Range, mark: u32, sacked: &Ranges) {
        let span = self.span(range);
        if span.0 == span.1 {
            return;
        }
        self.takes_out(span, false);
        let nth = self.gone + self.segments.len() as u64;
        let mut missing = 0;
        for gap in sacked.gaps_in((self.number(span.0), range.1)) {
            let (start, end) = self.span(gap);
            self.pieces.insert(start, (end, nth));
            missing += (end - start) as u32;
        }
        self.came += u32::from(missing == 0);
        self.segments.push_back(Segment { span, mark, missing, has_come: missing == 0 });
    }

    /// The peer has this range.
    pub(super) fn has_come(&mut self, range: Range) {
        self.takes_out(self.span(range), true);
    }

    /// The peer has everything before `ack`.
    pub(super) fn acknowledged(&mut self, ack: u32) {
        self.has_come((self.una, ack));
        self.una_at += u64::from(ack.wrapping_sub(self.una));
        self.una = ack;
    }

    /// Nothing in this span is waited for any longer; it is taken out from its end to its beginning.
    fn takes_out(&mut self, (start, end): Span, comes: bool) {
        if start >= end {
            return;
        }
        while let Some((&from, &(to, nth))) = self.pieces.range(..end).next_back() {
            #[cfg(test)]
            super::wire::looks::one();
            if to <= start {
                break;
            }
            self.pieces.remove(&from);
            if from < start {
                self.pieces.insert(from, (start, nth));
            }
            if end < to {
                self.pieces.insert(end, (to, nth));
            }
            if let Some(segment) = self.segments.get_mut((nth - self.gone) as usize) {
                segment.missing -= (to.min(end) - from.max(start)) as u32;
                segment.has_come = comes && segment.missing == 0;
                self.came += u32::from(segment.has_come);
            }
        }
    }

    /// Moves to `lost` what is lost once more, as far as that has room, and returns whether there was any. Something is
    /// lost if so many segments that were sent again after it have come, or if `is_behind` says of its mark that enough
    /// has come of what was sent for the first time. If either is true of a segment, it is true of all that left before
    /// it, so only the first one has to be asked about.
    pub(super) fn judge(
        &mut self,
        segments: u32,
        is_behind: impl Fn(u32) -> bool,
        (lost, count_max): (&mut Ranges, usize),
    ) -> bool {
        let (mut found, mut asked) = (false, None);
        while let Some(first) = self.segments.front() {
            #[cfg(test)]
            super::wire::looks::one();
            if first.missing != 0 {
                if lost.count() >= count_max {
                    break;
                }
                let is_lost = self.came >= segments || {
                    // Segments between which nothing new left have the same mark.
                    let before = asked.filter(|&(mark, _)| mark == first.mark);
                    let (mark, answer) = before.unwrap_or_else(|| (first.mark, is_behind(first.mark)));
                    asked = Some((mark, answer));
                    answer
                };
                if !is_lost {
                    break;
                }
                found = true;
                let span = first.span;
                self.first_is_lost(span, lost);
            }
            self.came -= u32::from(self.segments.pop_front().is_some_and(|first| first.has_come));
            self.gone += 1;
        }
        found
    }

    /// What is still waited for of the first, which spans so much.
    fn first_is_lost(&mut self, (start, end): Span, lost: &mut Ranges) {
        let own = self.pieces.range(start..end).filter(|&(_, &(_, nth))| nth == self.gone);
        let own: Vec<Span> = own.map(|(&from, &(to, _))| (from, to)).collect();
        for (from, to) in own {
            self.pieces.remove(&from);
            lost.add((self.number(from), self.number(to)));
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::wire::seq_lt;
    use super::*;

    const SPACE: u32 = 64;

    /// The same by looking at each segment, and at all of them with each acknowledgement.
    #[derive(Default)]
    struct Linear(Vec<(Range, u32, u32)>);

    impl Linear {
        fn judge(&mut self, una: u32, sacked: &Ranges, segments: u32, bytes: u32, lost: &mut Ranges) -> bool {
            let has_come =
                |(start, end): Range| !seq_lt(later(start, una), end) || sacked.gaps_in((start, end)).is_empty();
            let bytes_from = |mark| {
                sacked.backwards().map(|(start, end)| later(end, mark).wrapping_sub(later(start, mark))).sum::<u32>()
            };
            let mut came = 0;
            for (range, _, passed) in self.0.iter_mut().rev() {
                *passed += came;
                range.0 = later(range.0, una);
                came += u32::from(has_come(*range));
            }
            let mut found = false;
            self.0.retain(|&(range, mark, passed)| {
                let is_lost = passed >= segments || bytes_from(mark) > bytes;
                if has_come(range) {
                    return false;
                }
                if is_lost {
                    found = true;
                    sacked.gaps_in(range).into_iter().for_each(|gap| lost.add(gap));
                }
                !is_lost
            });
            found
        }
    }

    proptest! {
        /// What is lost once more is what it was when every segment was looked at.
        #[test]
        fn only_what_is_new_is_looked_at_and_the_same_is_lost(
            base in prop::sample::select(vec![0u32, 1, u32::MAX - 40, 1 << 31]),
            steps in prop::collection::vec((0u8..4, 0..SPACE, 1..9u32, 1..4u32), 1..80),
        ) {
            let (mut again, mut linear) = (SentAgain::new(base), Linear::default());
            let (mut una, mut next) = (base, base.wrapping_add(SPACE / 2));
            let (mut sacked, mut waits) = (Ranges::default(), Ranges::default());
            for (kind, place, length, segments) in steps {
                let start = una.wrapping_add(place % next.wrapping_sub(una).max(1));
                let range = (start, super::super::ranges::earlier(start.wrapping_add(length), next));
                match kind {
                    // What is waited for already, or is there, is not sent again.
                    0 | 1 if sacked.gaps_in(range) == [range] && waits.gaps_in(range) == [range] && seq_lt(start, next) => {
                        again.sent(range, next, &sacked);
                        linear.0.push((range, next, 0));
                        waits.add(range);
                    }
                    2 => {
                        sacked.add(range);
                        again.has_come(range);
                        waits.remove(range);
                    }
                    3 => {
                        (una, next) = (range.1, next.wrapping_add(length));
                        again.acknowledged(una);
                        sacked.remove_before(una);
                        waits.remove_before(una);
                    }
                    _ => next = next.wrapping_add(1),
                }
                let (mut lost, mut lost_by_all) = (Ranges::default(), Ranges::default());
                let bytes = segments * 3;
                let is_behind = |mark| sacked.has_more_from(mark, bytes);
                let found = again.judge(segments, is_behind, (&mut lost, usize::MAX));
                prop_assert_eq!(found, linear.judge(una, &sacked, segments, bytes, &mut lost_by_all));
                prop_assert_eq!(&lost, &lost_by_all);
                prop_assert_eq!(again.is_empty(), linear.0.is_empty());
                lost.backwards().for_each(|range| waits.remove(range));
                let waited: u32 = again.segments.iter().map(|segment| segment.missing).sum();
                prop_assert_eq!(waited, waits.bytes());
            }
        }
    }

    /// A probe is sent again, and counts as lost, before anything tells that it was needed: the later one is waited for.
    #[test]
    fn what_is_sent_again_twice_is_waited_for_once() {
        let (mut again, mut sacked, mut lost) = (SentAgain::new(0), Ranges::default(), Ranges::default());
        for range in [(0, 10), (20, 30), (22, 26), (40, 50)] {
            again.sent(range, 60, &sacked);
        }
        let all = again.segments.iter().map(|segment| segment.missing);
        assert!(all.eq([10, 6, 4, 10]));
        for range in [(22, 26), (40, 50)] {
            sacked.add(range);
            again.has_come(range);
        }
        assert!(again.judge(2, |_| false, (&mut lost, 100)));
        assert!(lost.backwards().eq([(26, 30), (20, 22), (0, 10)]), "{lost:?}");
        assert!(again.is_empty() && again.pieces.is_empty() && again.came == 0);
    }
}
