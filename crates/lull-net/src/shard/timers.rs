//! One deadline per connection, in a hierarchical timing wheel of 1 ms ticks.
//!
//! A wheel rather than a heap: a request sets a deadline 10 ms away (the delayed ACK), its response replaces that by
//! one a second away (the retransmission), and so on thousands of times a second per connection. A heap would keep
//! every superseded entry until it expires. Here a connection has one node, and moving it to a *later* time costs one
//! store: the node stays where it is and is moved when its slot comes up.

const LEVELS: usize = 6;
const SLOTS_LOG2: u32 = 6;
const SLOTS: usize = 1 << SLOTS_LOG2;
const NIL: u32 = u32::MAX;
const UNLINKED: u64 = u64::MAX;
/// Nanoseconds of one tick. Deadlines are rounded up to it: the shortest of them, the delayed ACK, is 10 ms.
pub(super) const TICK_NS: u64 = 1_000_000;
/// A deadline that never comes.
pub(super) const NEVER_NS: u64 = u64::MAX;
/// The farthest deadline that the wheel holds exactly (2 years); farther ones come up early and are put back.
const HORIZON_TICKS: u64 = 1 << (LEVELS as u32 * SLOTS_LOG2 - 1);

/// Half a cache line, and never parts of two.
#[derive(Clone, Copy, Debug)]
#[repr(align(32))]
struct Node {
    /// The deadline in force. It may be later than `at`; then the node is moved when `at` comes.
    wanted_ns: u64,
    /// The tick whose slot holds the node, or `UNLINKED`.
    at: u64,
    next: u32,
    prev: u32,
    level: u8,
    slot: u8,
}

/// Nodes for which room is always kept.
const NODES_KEPT: usize = 256;

const IDLE: Node = Node { wanted_ns: NEVER_NS, at: UNLINKED, next: NIL, prev: NIL, level: 0, slot: 0 };

/// The deadlines of a slab's entries, by their index.
#[derive(Debug)]
pub(super) struct Timers {
    nodes: Vec<Node>,
    heads: [[u32; SLOTS]; LEVELS],
    occupied: [u64; LEVELS],
    /// Ticks that have passed; no node's `at` is before it.
    elapsed: u64,
    /// No node's deadline is before this tick. It is asked for after every call into the stack, so it is kept, not looked for:
    /// linking lowers it, and only [`Timers::pop_due`] and [`Timers::remove`] raise it.
    first: u64,
}

impl Timers {
    pub(super) fn new() -> Timers {
        Timers { nodes: Vec::new(), heads: [[NIL; SLOTS]; LEVELS], occupied: [0; LEVELS], elapsed: 0, first: UNLINKED }
    }

    /// Sets the deadline of `index`; [`NEVER_NS`] cancels it.
    #[inline]
    pub(super) fn set(&mut self, index: u32, wanted_ns: u64) {
        if index as usize >= self.nodes.len() {
            if wanted_ns == NEVER_NS {
                return;
            }
            self.nodes.resize(index as usize + 1, IDLE);
        }
        let node = &mut self.nodes[index as usize];
        node.wanted_ns = wanted_ns;
        if wanted_ns == NEVER_NS {
            // Left in its slot: an idle connection that is used again soon costs no list operation.
            return;
        }
        let tick = wanted_ns.div_ceil(TICK_NS);
        if tick < node.at {
            self.unlink(index);
            self.link(index, tick);
        }
    }

    /// Touches the node of `index`.
    #[inline]
    pub(super) fn warm(&self, index: u32) {
        std::hint::black_box(self.nodes.get(index as usize).map(|node| node.at));
    }

    /// Forgets `index`, whose slab slot is being freed.
    pub(super) fn remove(&mut self, index: u32) {
        if (index as usize) < self.nodes.len() {
            self.unlink(index);
            self.find_first();
            self.nodes[index as usize].wanted_ns = NEVER_NS;
            while self.nodes.pop_if(|node| node.at == UNLINKED && node.wanted_ns == NEVER_NS).is_some() {}
            if self.nodes.capacity() > NODES_KEPT && self.nodes.len() * 4 < self.nodes.capacity() {
                self.nodes.shrink_to(self.nodes.len() * 2);
            }
        }
    }

    /// Memory of the nodes, in bytes.
    pub(super) fn memory_bytes(&self) -> usize {
        self.nodes.capacity() * size_of::<Node>()
    }

    /// Takes an index whose deadline has passed, or says that there is none. Its deadline is cleared.
    pub(super) fn pop_due(&mut self, now_ns: u64) -> Option<u32> {
        let now = now_ns / TICK_NS;
        while let Some((tick, level, slot)) = self.next_slot() {
            if tick > now {
                break;
            }
            self.elapsed = self.elapsed.max(tick);
            let index = self.heads[level][slot];
            let node = self.nodes[index as usize];
            self.unlink(index);
            if node.wanted_ns == NEVER_NS {
                continue;
            }
            let wanted = node.wanted_ns.div_ceil(TICK_NS);
            if wanted <= now {
                self.nodes[index as usize].wanted_ns = NEVER_NS;
                return Some(index);
            }
            self.link(index, wanted);
        }
        self.elapsed = self.elapsed.max(now);
        self.find_first();
        None
    }

    fn find_first(&mut self) {
        self.first = self.next_slot().map_or(UNLINKED, |(tick, _, _)| tick);
    }

    /// The earliest time at which [`Timers::pop_due`] may have something, in nanoseconds, or [`NEVER_NS`]. May be early,
    /// never late.
    #[inline]
    pub(super) fn next_deadline_ns(&self) -> u64 {
        self.first.saturating_mul(TICK_NS)
    }

    fn link(&mut self, index: u32, tick: u64) {
        let tick = tick.clamp(self.elapsed, self.elapsed + HORIZON_TICKS);
        self.first = self.first.min(tick);
        // The highest bit in which the tick differs from the present decides the level: below it, the slot is ahead.
        let differing = (self.elapsed ^ tick) | (SLOTS as u64 - 1);
        let level = (((63 - differing.leading_zeros()) / SLOTS_LOG2) as usize).min(LEVELS - 1);
        let slot = ((tick >> (level as u32 * SLOTS_LOG2)) as usize) & (SLOTS - 1);
        let head = self.heads[level][slot];
        let node = &mut self.nodes[index as usize];
        (node.at, node.level, node.slot, node.next, node.prev) = (tick, level as u8, slot as u8, head, NIL);
        if head != NIL {
            self.nodes[head as usize].prev = index;
        }
        self.heads[level][slot] = index;
        self.occupied[level] |= 1 << slot;
    }

    fn unlink(&mut self, index: u32) {
        let node = self.nodes[index as usize];
        if node.at == UNLINKED {
            return;
        }
        let (level, slot) = (node.level as usize, node.slot as usize);
        if node.prev == NIL {
            self.heads[level][slot] = node.next;
            if node.next == NIL {
                self.occupied[level] &= !(1 << slot);
            }
        } else {
            self.nodes[node.prev as usize].next = node.next;
        }
        if node.next != NIL {
            self.nodes[node.next as usize].prev = node.prev;
        }
        self.nodes[index as usize].at = UNLINKED;
    }

    /// The first occupied slot: its first tick, level and number. Of equal ticks the highest level comes first, because
    /// its nodes still have to be spread over the lower ones.
    fn next_slot(&self) -> Option<(u64, usize, usize)> {
        let mut best: Option<(u64, usize, usize)> = None;
        for level in 0..LEVELS {
            let occupied = self.occupied[level];
            if occupied == 0 {
                continue;
            }
            let shift = level as u32 * SLOTS_LOG2;
            let here = ((self.elapsed >> shift) as usize) & (SLOTS - 1);
            let ahead = occupied.rotate_right(here as u32).trailing_zeros() as usize;
            let slot = (here + ahead) & (SLOTS - 1);
            let start = (self.elapsed >> shift) << shift;
            let tick = (start + ((ahead as u64) << shift)).max(self.elapsed);
            if best.is_none_or(|(first, _, _)| tick <= first) {
                best = Some((tick, level, slot));
            }
        }
        best
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drain(timers: &mut Timers, now_ns: u64) -> Vec<u32> {
        let mut due = Vec::new();
        while let Some(index) = timers.pop_due(now_ns) {
            due.push(index);
        }
        due.sort_unstable();
        due
    }

    #[test]
    fn a_later_deadline_waits_and_an_earlier_one_moves() {
        let mut timers = Timers::new();
        timers.set(0, 10 * TICK_NS);
        timers.set(0, 1000 * TICK_NS);
        assert!(drain(&mut timers, 999 * TICK_NS).is_empty());
        timers.set(0, 1005 * TICK_NS);
        timers.set(0, 1001 * TICK_NS);
        assert_eq!(drain(&mut timers, 1001 * TICK_NS), [0]);
        assert!(drain(&mut timers, 1 << 50).is_empty());
    }

    #[test]
    fn agrees_with_a_sorted_list() {
        let mut state = 7u64;
        let mut random = move |bound: u64| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) % bound
        };
        let mut timers = Timers::new();
        let mut model = [NEVER_NS; 50];
        let mut now = 0;
        for _ in 0..20_000 {
            match random(3) {
                0 => {
                    let index = random(50) as u32;
                    let span = [20, 5_000, 300_000, 90_000_000][random(4) as usize];
                    model[index as usize] = now + random(span) * TICK_NS;
                    timers.set(index, model[index as usize]);
                }
                1 => {
                    let index = random(50) as u32;
                    model[index as usize] = NEVER_NS;
                    timers.remove(index);
                }
                _ => {
                    let step = [3, 700, 40_000][random(3) as usize];
                    now += random(step) * TICK_NS;
                    let expected: Vec<u32> = (0..50).filter(|&i| model[i as usize] <= now).collect();
                    assert_eq!(drain(&mut timers, now), expected);
                    for index in expected {
                        model[index as usize] = NEVER_NS;
                    }
                }
            }
            if model.iter().all(|&at| at == NEVER_NS) && timers.nodes.is_empty() {
                assert_eq!(timers.next_deadline_ns(), NEVER_NS);
            }
            if let Some(first) = model.iter().copied().filter(|&at| at != NEVER_NS).min() {
                assert!(timers.next_deadline_ns() <= first.max(now));
            }
        }
    }
}
