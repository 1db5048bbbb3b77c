//! Adaptive interrupt moderation: the kernel's DIM (`lib/dim/net_dim.c`), which mlx5 and most server NICs use.
//!
//! Every 64 interrupts of a completion queue it compares throughput and interrupt rate with the sample before, and
//! moves one step along a ladder of five moderation profiles, left or right, until it is at a maximum or tired. It
//! reacts to differences of more than 10 %, which at moderate packet rates is within the noise of 64 interrupts. So the
//! profile changes all the time although the load is constant, and this causes most of `base`'s latency at low load.

/// One step of the ladder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moderation {
    /// The period in microseconds, from where [`crate::world::Period`] says, until the interrupt is raised.
    pub usecs: u32,
    /// The number of completions that raises the interrupt at once.
    pub frames: u32,
}

/// The ladder for receive queues whose period starts at each completion (`NET_DIM_RX_CQE_PROFILES`).
pub const RX_CQE: [Moderation; 5] = [
    Moderation { usecs: 2, frames: 256 },
    Moderation { usecs: 8, frames: 128 },
    Moderation { usecs: 16, frames: 64 },
    Moderation { usecs: 32, frames: 64 },
    Moderation { usecs: 64, frames: 64 },
];

/// The ladder for transmit queues whose period starts at each interrupt (`NET_DIM_TX_EQE_PROFILES`).
pub const TX_EQE: [Moderation; 5] = [
    Moderation { usecs: 1, frames: 128 },
    Moderation { usecs: 8, frames: 128 },
    Moderation { usecs: 32, frames: 128 },
    Moderation { usecs: 64, frames: 128 },
    Moderation { usecs: 128, frames: 128 },
];

/// Interrupts per sample (`DIM_NEVENTS`).
const EVENTS_PER_SAMPLE: u64 = 64;
/// Steps after which the walk pauses (`NET_DIM_PARAMS_NUM_PROFILES * 2`).
const TIRED: u32 = 10;
/// The step on which drivers start (`NET_DIM_DEF_PROFILE_CQE`).
const START: usize = 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Walk {
    OnTop,
    Resting,
    Right,
    Left,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trend {
    Same,
    Better,
    Worse,
}

#[derive(Clone, Copy, Debug, Default)]
struct Sample {
    at_ns: u64,
    packets: u64,
    bytes: u64,
    events: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Rates {
    bytes_per_ms: u64,
    packets_per_ms: u64,
    events_per_ms: u64,
}

/// The walk of one completion queue.
#[derive(Clone, Debug)]
pub struct Dim {
    ladder: [Moderation; 5],
    rung: usize,
    walk: Walk,
    steps_right: u32,
    steps_left: u32,
    tired: u32,
    start: Option<Sample>,
    before: Rates,
}

/// Whether two rates differ by more than 10 % of the older one; if that is zero, no difference is significant.
fn significant(now: u64, before: u64) -> bool {
    before != 0 && 100 * now.abs_diff(before) / before > 10
}

impl Dim {
    /// Makes a walk on this ladder, at its start.
    pub fn new(ladder: [Moderation; 5]) -> Dim {
        Dim {
            ladder,
            rung: START,
            walk: Walk::Right,
            steps_right: 0,
            steps_left: 0,
            tired: 0,
            start: None,
            before: Rates::default(),
        }
    }

    /// Returns the moderation in force.
    pub fn moderation(&self) -> Moderation {
        self.ladder[self.rung]
    }

    /// Returns the step on which it is, 0 to 4.
    pub fn rung(&self) -> usize {
        self.rung
    }

    /// To be called after a completion of the NAPI, with the queue's totals so far. Returns true if the moderation has
    /// changed.
    pub fn sample(&mut self, at_ns: u64, packets: u64, bytes: u64, events: u64) -> bool {
        let end = Sample { at_ns, packets, bytes, events };
        let Some(start) = self.start else {
            self.start = Some(end);
            return false;
        };
        if end.events - start.events < EVENTS_PER_SAMPLE || end.at_ns - start.at_ns < 1_000 {
            return false;
        }
        let elapsed_us = (end.at_ns - start.at_ns) / 1_000;
        let per_ms = |count: u64| (count * 1_000).div_ceil(elapsed_us);
        let rates = Rates {
            bytes_per_ms: per_ms(end.bytes - start.bytes),
            packets_per_ms: per_ms(end.packets - start.packets),
            events_per_ms: per_ms(EVENTS_PER_SAMPLE),
        };
        let changed = self.decide(rates);
        // A new profile is measured from the next sample on; the driver applies it in between.
        self.start = if changed { None } else { Some(end) };
        changed
    }

    fn trend(&self, now: Rates) -> Trend {
        let before = self.before;
        let more_is_better = |more: bool| if more { Trend::Better } else { Trend::Worse };
        if before.bytes_per_ms == 0 {
            return if now.bytes_per_ms != 0 { Trend::Better } else { Trend::Same };
        }
        if significant(now.bytes_per_ms, before.bytes_per_ms) {
            return more_is_better(now.bytes_per_ms > before.bytes_per_ms);
        }
        if significant(now.packets_per_ms, before.packets_per_ms) {
            return more_is_better(now.packets_per_ms > before.packets_per_ms);
        }
        if significant(now.events_per_ms, before.events_per_ms) {
            return more_is_better(now.events_per_ms < before.events_per_ms);
        }
        Trend::Same
    }

    fn decide(&mut self, now: Rates) -> bool {
        let (rung, walk) = (self.rung, self.walk);
        match self.walk {
            Walk::OnTop => {
                if self.trend(now) != Trend::Same {
                    self.set_out();
                }
            }
            Walk::Resting => {
                self.tired -= 1;
                if self.tired == 0 {
                    self.set_out();
                }
            }
            Walk::Right | Walk::Left => {
                if self.trend(now) != Trend::Better {
                    self.turn();
                }
                if self.on_top() {
                    self.park(Walk::OnTop);
                } else if self.tired == TIRED {
                    self.park(Walk::Resting);
                } else if !self.step() {
                    self.park(Walk::OnTop);
                }
            }
        }
        if walk != Walk::OnTop || self.walk != Walk::OnTop {
            self.before = now;
        }
        self.rung != rung
    }

    fn turn(&mut self) {
        match self.walk {
            Walk::Right => {
                self.walk = Walk::Left;
                self.steps_left = 0;
            }
            Walk::Left => {
                self.walk = Walk::Right;
                self.steps_right = 0;
            }
            Walk::OnTop | Walk::Resting => {}
        }
    }

    /// Returns whether it has gone one step beyond the maximum and back.
    fn on_top(&self) -> bool {
        match self.walk {
            Walk::OnTop | Walk::Resting => true,
            Walk::Right => self.steps_left > 1 && self.steps_right == 1,
            Walk::Left => self.steps_right > 1 && self.steps_left == 1,
        }
    }

    fn park(&mut self, walk: Walk) {
        self.walk = walk;
        self.steps_right = 0;
        self.steps_left = 0;
        if walk == Walk::OnTop {
            self.tired = 0;
        }
    }

    fn set_out(&mut self) {
        self.walk = if self.rung != 0 { Walk::Left } else { Walk::Right };
        self.step();
    }

    /// Returns false at the end of the ladder.
    fn step(&mut self) -> bool {
        match self.walk {
            Walk::Right if self.rung + 1 < self.ladder.len() => {
                self.rung += 1;
                self.steps_right += 1;
            }
            Walk::Left if self.rung > 0 => {
                self.rung -= 1;
                self.steps_left += 1;
            }
            Walk::Right | Walk::Left => return false,
            Walk::OnTop | Walk::Resting => return true,
        }
        self.tired += 1;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Feeds whole samples: 64 interrupts every `gap_us` with `packets` each.
    fn feed(dim: &mut Dim, state: &mut (u64, u64, u64), gap_us: u64, packets: u64) {
        state.0 += 64 * gap_us * 1_000;
        state.1 += 64 * packets;
        state.2 += 64;
        dim.sample(state.0, state.1, state.1 * 100, state.2);
    }

    #[test]
    fn fewer_interrupts_for_the_same_packets_walk_it_to_the_right_and_it_parks() {
        let mut dim = Dim::new(RX_CQE);
        let mut state = (1, 0, 0);
        dim.sample(1, 0, 0, 0);
        let mut rungs = Vec::new();
        for _ in 0..40 {
            // The gap doubles with each step at the same packet rate, so each step to the right halves the interrupts.
            let gap = 10 << dim.rung();
            feed(&mut dim, &mut state, gap, gap);
            rungs.push(dim.rung());
        }
        assert_eq!(rungs.last(), Some(&4), "{rungs:?}");
        assert_eq!(dim.moderation(), RX_CQE[4]);
    }

    #[test]
    fn a_change_of_load_sets_a_parked_walk_out_again() {
        let mut dim = Dim::new(RX_CQE);
        let mut state = (1, 0, 0);
        dim.sample(1, 0, 0, 0);
        for _ in 0..40 {
            feed(&mut dim, &mut state, 50, 50);
        }
        let parked = dim.rung();
        for _ in 0..4 {
            feed(&mut dim, &mut state, 50, 50);
        }
        assert_eq!(dim.rung(), parked, "a constant load leaves a parked walk where it is");
        let mut moved = false;
        for _ in 0..4 {
            feed(&mut dim, &mut state, 50, 25);
            moved |= dim.rung() != parked;
        }
        assert!(moved);
    }
}
