//! What is known of each byte that is on its way: the peer has it (RFC 2018), it is lost, or neither.
//!
//! Something is lost when the peer has three segments of what was sent behind it (RFC 6675 section 4, `IsLost`).
//! Something that was sent again is lost once more when the peer has three segments that left after it. A peer that
//! does not selectively acknowledge says with each duplicate of an acknowledgement that one more segment has come, and
//! not which (RFC 6582).

use super::again::SentAgain;
use super::ranges::{Range, Ranges, earlier, later};
use super::wire::seq_lt;

/// How many ranges are kept of a peer at least, however little is on its way.
const RANGES_MIN: usize = 16;

/// How many ranges are kept of a peer at most, since each acknowledgement looks at all of them.
const RANGES_MAX: usize = 512;

/// When the lost data has this many ranges already, what is lost once more is kept back.
const LOST_MAX: usize = 2 * RANGES_MAX;

/// What an acknowledgement says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct News {
    /// How many bytes have come that were not known to have come.
    pub(super) delivered: u32,
    /// Something is lost that was not known to be.
    pub(super) lost: bool,
}

#[derive(Clone, Debug)]
pub(super) struct Scoreboard {
    /// The first that is not acknowledged.
    una: u32,
    /// Behind the last that was sent.
    next: u32,
    mss: u32,
    /// What the peer has behind `una`.
    sacked: Ranges,
    /// What is lost and not sent again yet.
    lost: Ranges,
    /// All that the peer does not have before this number has counted as lost once.
    judged: u32,
    again: SentAgain,
    /// Duplicates of an acknowledgement, from a peer that does not selectively acknowledge.
    duplicates: u32,
}

impl Scoreboard {
    pub(super) fn new(una: u32, next: u32, mss: u32) -> Scoreboard {
        Scoreboard {
            una,
            next,
            mss,
            sacked: Ranges::default(),
            lost: Ranges::default(),
            judged: una,
            again: SentAgain::new(una),
            duplicates: 0,
        }
    }

    pub(super) fn una(&self) -> u32 {
        self.una
    }

    pub(super) fn next(&self) -> u32 {
        self.next
    }

    pub(super) fn set_mss(&mut self, mss: u32) {
        self.mss = mss;
    }

    /// All before this has been sent.
    pub(super) fn sent_to(&mut self, next: u32) {
        self.next = later(self.next, next);
    }

    pub(super) fn is_all_acknowledged(&self) -> bool {
        self.una == self.next
    }

    /// What has left and not come yet, as far as is known (RFC 6675: `pipe`).
    pub(super) fn in_flight(&self) -> u32 {
        let unknown = self.next.wrapping_sub(self.una) - self.sacked.bytes() - self.lost.bytes();
        unknown.saturating_sub(self.duplicates.saturating_mul(self.mss))
    }

    /// Whether the peer is known to have something behind what is missing.
    pub(super) fn has_hole(&self) -> bool {
        !self.sacked.is_empty() || self.duplicates > 0
    }

    /// Whether nothing is known, or suspected, of what is on its way, and nothing of it was sent again.
    pub(super) fn is_clean(&self) -> bool {
        !self.has_hole() && self.lost.is_empty() && self.again.is_empty()
    }

    /// Whether something is lost, or was sent again and is not known to have come.
    pub(super) fn has_sent_again(&self) -> bool {
        !self.lost.is_empty() || !self.again.is_empty()
    }

    /// Where the last range that the peer has begins, if something before it is missing and not judged yet: that may be
    /// lost.
    pub(super) fn first_behind_what_is_missing(&self) -> Option<u32> {
        let (start, _) = self.sacked.backwards().next()?;
        seq_lt(self.judged, start).then_some(start)
    }

    /// What is to be sent again first, at most so many bytes.
    pub(super) fn first_lost(&self, bytes: u32) -> Option<Range> {
        let (start, end) = self.lost.first()?;
        Some((start, earlier(end, start.wrapping_add(bytes))))
    }

    /// Notes that this range has been sent again.
    pub(super) fn sent_again(&mut self, range: Range) {
        self.lost.remove(range);
        self.again.sent(range, self.next, &self.sacked);
    }

    /// Takes an acknowledgement of all before `ack`, which lies in what was sent, and of these ranges. `is_duplicate`
    /// says that it says nothing else. What has `segments` behind it is lost, if a number is given; and what was sent
    /// again is lost once `segments_again` have come that left after it.
    pub(super) fn acknowledged(
        &mut self,
        ack: u32,
        ranges: &[Range],
        is_duplicate: bool,
        (segments, segments_again): (Option<u32>, u32),
    ) -> News {
        let missing = self.next.wrapping_sub(self.una) - self.sacked.bytes();
        let advanced = ack.wrapping_sub(self.una);
        self.una = ack;
        self.judged = later(self.judged, ack);
        // No peer has more ranges than segments were sent. One that says so keeps no more of us busy.
        let count_max = ((self.next.wrapping_sub(self.una) / self.mss) as usize + RANGES_MIN).min(RANGES_MAX);
        for &(start, end) in ranges {
            let (start, end) = (later(start, ack), earlier(end, self.next));
            if seq_lt(start, end) && self.sacked.count() < count_max {
                self.sacked.add((start, end));
                self.again.has_come((start, end));
                self.lost.remove((start, end));
            }
        }
        for ranges in [&mut self.sacked, &mut self.lost] {
            ranges.remove_before(ack);
        }
        self.again.acknowledged(ack);
        let mut delivered = missing - (self.next.wrapping_sub(self.una) - self.sacked.bytes());
        if is_duplicate && advanced == 0 && ranges.is_empty() {
            self.duplicates += 1;
            delivered = self.mss;
        }
        self.duplicates = self.duplicates.saturating_sub(advanced.div_ceil(self.mss));
        let lost = self.judge_again(segments_again) | segments.is_some_and(|segments| self.judge(segments));
        News { delivered, lost }
    }

    /// Judges what was sent once.
    fn judge(&mut self, segments: u32) -> bool {
        let mut edge = None;
        let (mut bytes, mut ranges) = (0, 0);
        for (start, end) in self.sacked.backwards() {
            (bytes, ranges) = (bytes + end.wrapping_sub(start), ranges + 1);
            if bytes > (segments - 1) * self.mss || ranges >= segments {
                edge = Some(start);
                break;
            }
        }
        if self.duplicates >= segments && self.judged == self.una {
            edge = Some(earlier(self.una.wrapping_add(self.mss), self.next));
        }
        edge.is_some_and(|edge| self.is_lost_before(edge))
    }

    /// Judges what was sent again.
    fn judge_again(&mut self, segments: u32) -> bool {
        let (sacked, bytes) = (&self.sacked, (segments - 1) * self.mss);
        self.again.judge(segments, |mark| sacked.has_more_from(mark, bytes), (&mut self.lost, LOST_MAX))
    }

    /// Counts what the peer does not have before `edge` as lost, if it was not judged before. Returns whether there was
    /// any.
    pub(super) fn is_lost_before(&mut self, edge: u32) -> bool {
        if !seq_lt(self.judged, edge) {
            return false;
        }
        let gaps = self.sacked.gaps_in((self.judged, edge));
        self.judged = edge;
        gaps.iter().for_each(|&gap| self.lost.add(gap));
        !gaps.is_empty()
    }

    /// Nothing has come for so long that everything counts as lost that the peer does not have.
    pub(super) fn timed_out(&mut self) {
        // The peer may have thrown away what it said it has (RFC 2018 section 8); that stands first then.
        if self.sacked.first().is_some_and(|(start, _)| start == self.una) {
            self.sacked.clear();
        }
        (self.duplicates, self.judged) = (0, self.next);
        self.again.clear();
        for gap in self.sacked.gaps_in((self.una, self.next)) {
            self.lost.add(gap);
        }
    }

    /// A peer that does not selectively acknowledge has acknowledged a part of what was on its way when a loss was
    /// seen, so the next segment is lost, too.
    pub(super) fn is_partly_acknowledged(&mut self) -> bool {
        self.judged == self.una && self.is_lost_before(earlier(self.una.wrapping_add(self.mss), self.next))
    }

    /// The loss is made good.
    pub(super) fn recovered(&mut self) {
        self.duplicates = 0;
    }

    /// Notes that this range, which counts as sent, has never left.
    pub(super) fn is_still_to_be_sent(&mut self, range: Range) {
        self.lost.add(range);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MSS: u32 = 1000;
    const BY_THREE: (Option<u32>, u32) = (Some(3), 3);

    /// A board on which so many segments were sent, from a number that comes round.
    fn board(segments: u32) -> (Scoreboard, impl Fn(u32) -> u32) {
        let first = u32::MAX - 3999;
        (Scoreboard::new(first, first.wrapping_add(segments * MSS), MSS), move |nth| first.wrapping_add(nth * MSS))
    }

    /// All that is to be sent again, which is sent.
    fn sent_again(board: &mut Scoreboard, at: &impl Fn(u32) -> u32) -> Vec<u32> {
        let mut sent = Vec::new();
        while let Some(range) = board.first_lost(MSS) {
            sent.push(range.0.wrapping_sub(at(0)) / MSS);
            board.sent_again(range);
        }
        sent
    }

    #[test]
    fn a_peer_that_says_it_has_every_other_byte_takes_no_memory() {
        let (mut board, at) = board(100);
        for byte in (1..100 * MSS).step_by(2) {
            let range = (at(0).wrapping_add(byte), at(0).wrapping_add(byte + 1));
            board.acknowledged(at(0), &[range], false, BY_THREE);
            assert!(board.sacked.count() <= 100 + RANGES_MIN && board.lost.count() <= 101 + RANGES_MIN);
        }
    }

    /// Each acknowledgement moves the beginning by a byte, so that no timer runs out, and says something more of the rest.
    #[test]
    fn a_peer_that_acknowledges_byte_by_byte_what_was_sent_again_takes_no_time() {
        use crate::shard::wire::looks;
        const SEGMENTS: u32 = 50_000;
        let (mut board, at) = board(SEGMENTS);
        board.timed_out();
        looks::taken();
        assert_eq!(sent_again(&mut board, &at).len(), SEGMENTS as usize);
        assert!(looks::taken() < u64::from(SEGMENTS) * 32);
        // What is sent then is sent for the first time.
        board.sent_to(at(SEGMENTS + RANGES_MAX as u32));
        looks::taken();
        let byte = |nth: u32, byte: u32| (at(nth).wrapping_add(byte), at(nth).wrapping_add(byte + 1));
        for nth in 0..1000 {
            let ranges = [0, 1, 2].map(|third| byte(SEGMENTS + (3 * nth + third) % RANGES_MAX as u32, 1 + nth / 200));
            board.acknowledged(at(0).wrapping_add(nth), &ranges, false, BY_THREE);
            board.in_flight();
            let looked = looks::taken();
            assert!(looked < 3 * RANGES_MAX as u64, "the acknowledgement {nth} made {looked} looks at what is known");
        }
        assert!(board.sacked.count() == RANGES_MAX && board.has_sent_again());
    }

    /// All that happens to a stream of segments, whatever is lost, overtaken and said twice: nothing is forgotten, and what is counted
    /// adds up.
    #[test]
    fn whatever_happens_all_is_delivered_in_the_end() {
        for seed in 0..200u64 {
            let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
            let mut below = |bound: u64| {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                random % bound
            };
            let (mut board, at) = board(40);
            let mut has = [false; 40];
            let mut under_way: Vec<u32> = (0..40).collect();
            let mut steps = 0;
            while !board.is_all_acknowledged() {
                steps += 1;
                assert!(steps < 4000, "seed {seed}: {board:?}");
                if under_way.is_empty() {
                    board.timed_out();
                } else {
                    let nth = under_way.remove(below(under_way.len().min(3) as u64) as usize);
                    if below(4) == 0 {
                        continue;
                    }
                    has[nth as usize] = true;
                    let una = has.iter().position(|has| !has).unwrap_or(40) as u32;
                    let mut ranges = Vec::new();
                    for segment in (una..40).rev().filter(|segment| has[*segment as usize]).take(3) {
                        ranges.push((at(segment), at(segment + 1)));
                    }
                    board.acknowledged(at(una), &ranges, false, BY_THREE);
                }
                for again in sent_again(&mut board, &at) {
                    under_way.push(again);
                }
                assert!(board.in_flight() <= 40 * MSS);
            }
        }
    }

    #[test]
    fn what_has_three_segments_behind_it_is_lost() {
        let (mut board, at) = board(12);
        assert_eq!(board.acknowledged(at(1), &[], false, BY_THREE), News { delivered: MSS, lost: false });
        for (range, again) in
            [((2, 3), vec![]), ((2, 4), vec![]), ((6, 7), vec![1]), ((6, 8), vec![]), ((6, 9), vec![4, 5])]
        {
            let news = board.acknowledged(at(1), &[(at(range.0), at(range.1))], true, BY_THREE);
            assert_eq!((news.delivered, news.lost), (MSS, !again.is_empty()), "{range:?}");
            assert_eq!(sent_again(&mut board, &at), again, "{range:?}");
        }
        assert_eq!(board.in_flight(), 6 * MSS, "1, 4, 5 again, and 9 to 11");
    }
}
