//! Decides when each connection sends: by an arrival process per connection, or by the answers in a closed loop. It
//! does no I/O and reads no clock.
//!
//! As in mutilate, each connection has an arrival process of its own at its share of the rate. While a connection has
//! as many requests outstanding as allowed, its process stops at the next intended time. When an answer makes room, the
//! requests that have become due meanwhile are sent with the times at which they were due. So the requests that wait on
//! a connection are one number instead of a queue, and an overloaded run needs no memory.

use std::collections::VecDeque;

use super::Pace;
use super::dist::{Arrivals, Rng, mix};

/// A request to send now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Due {
    /// The connection that sends it.
    pub connection: u32,
    /// The time at which it was meant to be sent. The latency counts from here.
    pub intended_ns: u64,
    /// The time from which it could be sent, which is later than intended if the connection was waiting for an answer.
    /// The time from here to the sending is the generator's lag.
    pub eligible_ns: u64,
}

/// Returns the seed of the arrivals in the `run`th run of a client with the seed `seed`. Each run has other arrivals,
/// and runs of different modes that have the same number have the same ones.
pub(super) fn seed_of_run(seed: u64, run: u32) -> u64 {
    mix(seed ^ 0x6c6f6164 ^ u64::from(run) << 32)
}

/// The place of a connection in the schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// In the heap, until its next intended time.
    Heap,
    /// In the list of connections that may send at once.
    Ready,
    /// Nowhere, because it waits for an answer, or to come up.
    Parked,
}

#[derive(Clone, Copy, Debug)]
struct Line {
    due_ns: u64,
    outstanding: u16,
    up: bool,
    place: Place,
}

/// The schedule of one run of one client.
#[derive(Debug)]
pub struct Schedule {
    /// The arrivals, or `None` in a closed loop.
    arrivals: Option<Arrivals>,
    mean_gap_ns: f64,
    depth: u16,
    lines: Vec<Line>,
    heap: Heap,
    ready: VecDeque<(u32, u64)>,
    rng: Rng,
    outstanding: u64,
}

impl Schedule {
    /// Makes a schedule for `connections` connections, all of them down, that starts at `start_ns`.
    pub fn new(load: &Pace, connections: usize, start_ns: u64, seed: u64) -> Schedule {
        let mut rng = Rng::new(seed);
        let (arrivals, mean_gap_ns) = match *load {
            // The rate may be tiny. A gap of a century is as good as an infinite one.
            Pace::Open { qps, arrivals, .. } => {
                (Some(arrivals), (1e9 * connections as f64 / qps.max(1e-9)).min(3e18 / 64.0))
            }
            Pace::Closed { .. } | Pace::Preload { .. } => (None, 0.0),
        };
        let lines = (0..connections)
            .map(|_| Line {
                due_ns: arrivals.map_or(start_ns, |arrivals| {
                    start_ns.saturating_add((arrivals.first_gap(&mut rng) * mean_gap_ns) as u64)
                }),
                outstanding: 0,
                up: false,
                place: Place::Parked,
            })
            .collect();
        Schedule {
            arrivals,
            mean_gap_ns,
            depth: load.depth(),
            lines,
            heap: Heap(Vec::with_capacity(connections)),
            ready: VecDeque::new(),
            rng,
            outstanding: 0,
        }
    }

    /// Returns the number of requests outstanding over all connections.
    #[inline]
    pub fn outstanding(&self) -> u64 {
        self.outstanding
    }

    /// Returns when [`Schedule::next`] will have something: 0 means at once, and `u64::MAX` not before an answer.
    #[inline]
    pub fn next_due_ns(&self) -> u64 {
        if self.ready.is_empty() { self.heap.0.first().map_or(u64::MAX, |entry| entry.0) } else { 0 }
    }

    /// Returns the next request that is due at `now_ns`. It counts as outstanding from here on.
    #[inline]
    pub fn next(&mut self, now_ns: u64) -> Option<Due> {
        while let Some((connection, eligible_ns)) = self.ready.pop_front() {
            let line = &mut self.lines[connection as usize];
            line.place = Place::Parked;
            if !line.up || line.outstanding >= self.depth {
                continue;
            }
            let intended_ns = if self.arrivals.is_some() { line.due_ns } else { now_ns };
            line.outstanding += 1;
            self.outstanding += 1;
            if self.arrivals.is_some() {
                self.lines[connection as usize].due_ns = self.following(intended_ns);
                self.place(connection, now_ns, eligible_ns);
            }
            return Some(Due { connection, intended_ns, eligible_ns });
        }
        while let Some(&(intended_ns, connection)) = self.heap.0.first() {
            if intended_ns > now_ns {
                return None;
            }
            let line = &mut self.lines[connection as usize];
            if !line.up || line.outstanding >= self.depth {
                line.place = Place::Parked;
                self.heap.pop();
                continue;
            }
            line.outstanding += 1;
            self.outstanding += 1;
            let due_ns = self.following(intended_ns);
            self.lines[connection as usize].due_ns = due_ns;
            self.heap.replace_first((due_ns, connection));
            return Some(Due { connection, intended_ns, eligible_ns: intended_ns });
        }
        None
    }

    /// Handles an answer: the connection may send again.
    #[inline]
    pub fn completed(&mut self, connection: u32, now_ns: u64) {
        let line = &mut self.lines[connection as usize];
        debug_assert!(line.outstanding > 0, "an answer to nothing");
        line.outstanding -= 1;
        self.outstanding -= 1;
        if self.arrivals.is_none() {
            self.ready.push_back((connection, now_ns));
        } else if line.place == Place::Parked {
            self.place(connection, now_ns, now_ns);
        }
    }

    /// Handles a connection that has come up: its requests may be sent.
    pub fn up(&mut self, connection: u32, now_ns: u64) {
        let depth = self.depth;
        let line = &mut self.lines[connection as usize];
        if line.up {
            return;
        }
        line.up = true;
        if self.arrivals.is_none() {
            let free = depth - line.outstanding;
            self.ready.extend((0..free).map(|_| (connection, now_ns)));
        } else if line.place == Place::Parked {
            self.place(connection, now_ns, now_ns);
        }
    }

    /// Handles a connection that is gone with its outstanding requests. Returns their number.
    pub fn down(&mut self, connection: u32) -> u64 {
        let line = &mut self.lines[connection as usize];
        line.up = false;
        let lost = u64::from(std::mem::take(&mut line.outstanding));
        self.outstanding -= lost;
        lost
    }

    /// Returns about how many requests were due before `until_ns` and have not been sent.
    pub fn backlog(&self, until_ns: u64) -> u64 {
        if self.arrivals.is_none() {
            return 0;
        }
        let late = self.lines.iter().filter(|line| line.due_ns < until_ns);
        late.map(|line| 1 + ((until_ns - line.due_ns) as f64 / self.mean_gap_ns) as u64).sum()
    }

    #[inline]
    fn following(&mut self, due_ns: u64) -> u64 {
        // In a closed loop the gap is not used.
        let gap = self.arrivals.map_or(0.0, |arrivals| arrivals.gap(&mut self.rng) * self.mean_gap_ns);
        due_ns.saturating_add(gap as u64)
    }

    /// Places a parked connection by its next intended time.
    fn place(&mut self, connection: u32, now_ns: u64, eligible_ns: u64) {
        let line = &mut self.lines[connection as usize];
        if !line.up || line.outstanding >= self.depth {
            return;
        }
        if line.due_ns <= now_ns {
            line.place = Place::Ready;
            self.ready.push_back((connection, eligible_ns.max(line.due_ns)));
        } else {
            line.place = Place::Heap;
            self.heap.push((line.due_ns, connection));
        }
    }
}

/// A four-way heap, earliest first. It has half the levels of a binary heap, and the children of a node share a cache
/// line.
#[derive(Debug)]
struct Heap(Vec<(u64, u32)>);

const WAYS: usize = 4;

impl Heap {
    fn push(&mut self, entry: (u64, u32)) {
        self.0.push(entry);
        let mut at = self.0.len() - 1;
        while at > 0 {
            let parent = (at - 1) / WAYS;
            if self.0[parent] <= entry {
                break;
            }
            self.0[at] = self.0[parent];
            at = parent;
        }
        self.0[at] = entry;
    }

    fn pop(&mut self) {
        if let Some(last) = self.0.pop()
            && !self.0.is_empty()
        {
            self.replace_first(last);
        }
    }

    /// Puts `entry` in the place of the first and moves it down to its place.
    #[inline]
    fn replace_first(&mut self, entry: (u64, u32)) {
        let heap = &mut self.0[..];
        let mut at = 0;
        loop {
            let first_child = at * WAYS + 1;
            let Some(children) = heap.get(first_child..heap.len().min(first_child + WAYS)) else { break };
            let mut least = 0;
            for index in 1..children.len() {
                if children[index].0 < children[least].0 {
                    least = index;
                }
            }
            let Some(child) = children.get(least).copied().filter(|child| child.0 < entry.0) else { break };
            heap[at] = child;
            at = first_child + least;
        }
        heap[at] = entry;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all_up(load: Pace, connections: u32) -> Schedule {
        let mut schedule = Schedule::new(&load, connections as usize, 0, 42);
        for connection in 0..connections {
            schedule.up(connection, 0);
        }
        schedule
    }

    #[test]
    fn open_loop_keeps_the_rate_and_the_order() {
        for arrivals in [Arrivals::Exponential, Arrivals::Facebook, Arrivals::Fixed] {
            let mut schedule = all_up(Pace::Open { qps: 100_000.0, arrivals, depth: 1 }, 1000);
            let (mut last, mut sent) = (0, 0);
            for now_ns in (0..1_000_000_000u64).step_by(5_000) {
                while let Some(due) = schedule.next(now_ns) {
                    assert!(due.intended_ns >= last && due.intended_ns <= now_ns);
                    assert_eq!(due.eligible_ns, due.intended_ns);
                    last = due.intended_ns;
                    sent += 1;
                    schedule.completed(due.connection, now_ns);
                }
            }
            assert!((97_000..103_000).contains(&sent), "{arrivals:?}: {sent}");
        }
    }

    #[test]
    fn a_blocked_connection_keeps_its_intended_times() {
        let mut schedule = all_up(Pace::Open { qps: 1e6, arrivals: Arrivals::Fixed, depth: 2 }, 1);
        let first = schedule.next(5_000).expect("due");
        let second = schedule.next(5_000).expect("due");
        assert_eq!(second.intended_ns - first.intended_ns, 1000);
        assert_eq!(schedule.next(5_000), None);
        assert_eq!((schedule.outstanding(), schedule.next_due_ns()), (2, u64::MAX));
        assert!((2..=4).contains(&schedule.backlog(5_000)));
        schedule.completed(0, 9_000);
        let third = schedule.next(9_500).expect("due");
        assert_eq!((third.intended_ns, third.eligible_ns), (second.intended_ns + 1000, 9_000));
        assert_eq!(schedule.next(9_500), None);
    }

    #[test]
    fn a_lost_connection_comes_back_with_what_was_due() {
        let mut schedule = all_up(Pace::Open { qps: 1e6, arrivals: Arrivals::Fixed, depth: 1 }, 1);
        let first = schedule.next(1_000).expect("due");
        assert_eq!(schedule.down(0), 1);
        assert_eq!((schedule.next(50_000), schedule.outstanding()), (None, 0));
        schedule.up(0, 60_000);
        let again = schedule.next(60_000).expect("due");
        assert_eq!((again.intended_ns, again.eligible_ns), (first.intended_ns + 1000, 60_000));
    }

    #[test]
    fn closed_loop_keeps_the_depth() {
        let mut schedule = all_up(Pace::Closed { depth: 3 }, 2);
        let burst: Vec<u32> = std::iter::from_fn(|| schedule.next(7)).map(|due| due.connection).collect();
        assert_eq!(burst, [0, 0, 0, 1, 1, 1]);
        schedule.completed(1, 9);
        assert_eq!(schedule.next(10), Some(Due { connection: 1, intended_ns: 10, eligible_ns: 9 }));
        assert_eq!(schedule.next(10), None);
        assert_eq!(schedule.down(0), 3);
        schedule.up(0, 20);
        assert_eq!(std::iter::from_fn(|| schedule.next(20)).count(), 3);
    }

    #[test]
    fn the_heap_sorts() {
        let mut rng = Rng::new(1);
        let mut heap = Heap(Vec::new());
        for _ in 0..1000 {
            heap.push((rng.below(500), 0));
        }
        let mut last = 0;
        while let Some(first) = heap.0.first().copied() {
            assert!(first.0 >= last);
            last = first.0;
            heap.pop();
        }
    }
}
