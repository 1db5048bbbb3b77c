//! Sets of sequence numbers, as ranges from the first number to behind the last. All of them lie within half of the number space.

use super::wire::seq_lt;

/// From the first to behind the last.
pub(super) type Range = (u32, u32);

/// Ranges in order, none of which touches the next.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Ranges {
    list: Vec<Range>,
    /// How many numbers there are.
    bytes: u32,
}

fn bytes_of((start, end): Range) -> u32 {
    end.wrapping_sub(start)
}

/// The later of two.
pub(super) fn later(a: u32, b: u32) -> u32 {
    if seq_lt(a, b) { b } else { a }
}

/// The earlier of two.
pub(super) fn earlier(a: u32, b: u32) -> u32 {
    if seq_lt(b, a) { b } else { a }
}

impl Ranges {
    pub(super) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// How many ranges there are.
    pub(super) fn count(&self) -> usize {
        self.list.len()
    }

    pub(super) fn clear(&mut self) {
        *self = Ranges::default();
    }

    pub(super) fn first(&self) -> Option<Range> {
        self.list.first().copied()
    }

    /// From the last to the first.
    pub(super) fn backwards(&self) -> impl Iterator<Item = Range> {
        self.list.iter().rev().copied()
    }

    /// How many numbers there are.
    pub(super) fn bytes(&self) -> u32 {
        self.bytes
    }

    /// Whether more than `bytes` of the numbers are `from` or come after it.
    pub(super) fn has_more_from(&self, from: u32, bytes: u32) -> bool {
        let mut there = 0;
        for (start, end) in self.backwards().take_while(|&(_, end)| seq_lt(from, end)) {
            there += bytes_of((later(start, from), end));
            if there > bytes {
                return true;
            }
        }
        false
    }

    /// The parts of a range that are not in the set.
    pub(super) fn gaps_in(&self, (mut start, end): Range) -> Vec<Range> {
        let mut gaps = Vec::new();
        let from = self.list.partition_point(|&(_, behind)| !seq_lt(start, behind));
        for &(first, behind) in &self.list[from..] {
            if !seq_lt(start, end) || !seq_lt(first, end) {
                break;
            }
            if seq_lt(start, first) {
                gaps.push((start, first));
            }
            start = later(start, behind);
        }
        if seq_lt(start, end) {
            gaps.push((start, end));
        }
        gaps
    }

    /// Adds a range.
    pub(super) fn add(&mut self, (mut start, mut end): Range) {
        if !seq_lt(start, end) {
            return;
        }
        let from = self.list.partition_point(|&(_, behind)| seq_lt(behind, start));
        let to = self.list.partition_point(|&(first, _)| !seq_lt(end, first));
        if let Some(touched) = self.list.get(from..to).filter(|touched| !touched.is_empty()) {
            start = earlier(start, touched[0].0);
            end = later(end, touched[touched.len() - 1].1);
        }
        self.replaces(from..to, [(start, end)]);
    }

    /// Takes a range out.
    pub(super) fn remove(&mut self, (start, end): Range) {
        if !seq_lt(start, end) {
            return;
        }
        let from = self.list.partition_point(|&(_, behind)| !seq_lt(start, behind));
        let to = self.list.partition_point(|&(first, _)| seq_lt(first, end));
        if from >= to {
            return;
        }
        let (before, behind) = ((self.list[from].0, start), (end, self.list[to - 1].1));
        self.replaces(from..to, [before, behind].into_iter().filter(|&(start, end)| seq_lt(start, end)));
    }

    /// Takes out all that lies before a number.
    pub(super) fn remove_before(&mut self, number: u32) {
        if let Some((first, _)) = self.first().filter(|&(first, _)| seq_lt(first, number)) {
            self.remove((first, number));
        }
    }

    fn replaces(&mut self, which: std::ops::Range<usize>, by: impl IntoIterator<Item = Range>) {
        let mut more = 0;
        let less: u32 =
            self.list.splice(which, by.into_iter().inspect(|&range| more += bytes_of(range))).map(bytes_of).sum();
        self.bytes = self.bytes + more - less;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SPACE: u32 = 64;

    proptest! {
        /// The ranges say of each number what a plain set says.
        #[test]
        fn ranges_are_a_set(
            base in prop::sample::select(vec![0u32, 1, u32::MAX - 40, 1 << 31]),
            steps in prop::collection::vec((0u8..3, 0..SPACE, 0..SPACE), 1..40),
        ) {
            let at = |offset: u32| base.wrapping_add(offset);
            let (mut ranges, mut set) = (Ranges::default(), [false; SPACE as usize]);
            for (kind, a, b) in steps {
                let (start, end) = (a.min(b), a.max(b));
                match kind {
                    0 => {
                        ranges.add((at(start), at(end)));
                        set[start as usize..end as usize].fill(true);
                    }
                    1 => {
                        ranges.remove((at(start), at(end)));
                        set[start as usize..end as usize].fill(false);
                    }
                    _ => {
                        ranges.remove_before(at(start));
                        set[..start as usize].fill(false);
                    }
                }
                let count = |from: u32| set[from as usize..].iter().filter(|there| **there).count() as u32;
                prop_assert_eq!(ranges.bytes(), count(0));
                for bytes in 0..SPACE {
                    prop_assert_eq!(ranges.has_more_from(at(start), bytes), count(start) > bytes);
                }
                prop_assert_eq!(ranges.is_empty(), count(0) == 0);
                for number in 0..SPACE {
                    let gaps = ranges.gaps_in((at(number), at(number + 1)));
                    prop_assert_eq!(gaps.is_empty(), set[number as usize]);
                }
                let gaps = ranges.gaps_in((at(start), at(end)));
                let missing = set[start as usize..end as usize].iter().filter(|there| !**there).count();
                prop_assert_eq!(gaps.iter().map(|(a, b)| b.wrapping_sub(*a)).sum::<u32>(), missing as u32);
                prop_assert!(gaps.iter().all(|&gap| ranges.gaps_in(gap) == [gap]));
                prop_assert!(ranges.list.windows(2).all(|pair| seq_lt(pair[0].1, pair[1].0)), "{:?}", ranges);
            }
        }
    }
}
