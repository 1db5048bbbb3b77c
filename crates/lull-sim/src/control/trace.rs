//! Load that changes: phases of different shapes, one after the other.

use std::fmt;

use lull_units::rate_text;

use crate::rng::{Component, Stream};

/// How often rates are changed within a phase, in nanoseconds.
pub(crate) const TICK_NS: u64 = 5_000_000;
/// How long a phase of a random trace is, in nanoseconds.
pub const PHASE_NS: u64 = 5_000_000_000;

/// How the load behaves in a phase.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Shape {
    /// It is constant.
    Steady,
    /// It changes evenly to this many requests per second.
    Ramp {
        /// At the end of the phase.
        to_per_s: f64,
    },
    /// It comes in bursts of `on` ticks of 5 ms, with nothing for `off` ticks between them; the rate is the mean.
    Bursts {
        /// Ticks with load.
        on: u32,
        /// Ticks without.
        off: u32,
    },
    /// Another program's packets arrive on the first queue as well.
    Neighbour {
        /// Its packets per second.
        packets_per_s: f64,
    },
    /// Only the first of the queues has load; the others go idle.
    OneQueue,
    /// A few requests now and then.
    Idle,
}

/// A part of a trace.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Phase {
    /// How the load behaves.
    pub shape: Shape,
    /// Requests per second, at the beginning of the phase or as its mean.
    pub per_s: f64,
    /// How long it lasts, in nanoseconds.
    pub length_ns: u64,
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rate = |per_s: f64| rate_text(per_s.round());
        match self.shape {
            Shape::Steady => write!(f, "steady {}", rate(self.per_s)),
            Shape::Ramp { to_per_s } => write!(f, "ramp {} to {}", rate(self.per_s), rate(to_per_s)),
            Shape::Bursts { on, off } => {
                write!(f, "bursts {} ({} ms of {})", rate(self.per_s), 5 * on, 5 * (on + off))
            }
            Shape::Neighbour { packets_per_s } => {
                write!(f, "neighbour {} beside {}", rate(packets_per_s), rate(self.per_s))
            }
            Shape::OneQueue => write!(f, "one queue {}", rate(self.per_s)),
            Shape::Idle => write!(f, "idle {}", rate(self.per_s)),
        }
    }
}

/// Load over time.
#[derive(Clone, Debug, PartialEq)]
pub struct Trace {
    /// Its phases, in order.
    pub phases: Vec<Phase>,
}

/// The load at a moment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Rates {
    /// Requests per second over all connections.
    pub(crate) per_s: f64,
    /// Whether only the first queue has them.
    pub(crate) one_queue: bool,
    /// Packets of another program, per second.
    pub(crate) noise_per_s: f64,
}

impl Trace {
    /// Makes a random trace for a service that answers `max_per_s` at the most, on this many queues.
    pub fn random(seed: u64, max_per_s: f64, queues: u16) -> Trace {
        let mut rng = Stream::new(seed, Component::Background, 1);
        let phases = 3 + rng.below(3);
        // It is between 1 and 75 % of the maximum, and its logarithm is evenly distributed.
        let level = |rng: &mut Stream| max_per_s * libm::pow(0.75 / 0.01, rng.unit()) * 0.01;
        let phase = |rng: &mut Stream| {
            let per_s = level(rng);
            let shape = match rng.below(6) {
                0 | 1 => Shape::Steady,
                2 => Shape::Ramp { to_per_s: level(rng) },
                3 => {
                    let (on, off) = (1 + rng.below(4), 1 + rng.below(4));
                    // The burst itself stays below the maximum.
                    let most = 0.75 * max_per_s * f64::from(on) / f64::from(on + off);
                    return Phase { shape: Shape::Bursts { on, off }, per_s: per_s.min(most), length_ns: PHASE_NS };
                }
                4 => Shape::Neighbour { packets_per_s: level(rng) / 2.0 },
                _ if queues > 1 && rng.chance(0.5) => {
                    let per_s = per_s / f64::from(queues);
                    return Phase { shape: Shape::OneQueue, per_s, length_ns: PHASE_NS };
                }
                _ => return Phase { shape: Shape::Idle, per_s: 1.0 + 50.0 * rng.unit(), length_ns: PHASE_NS },
            };
            let per_s = if let Shape::Neighbour { .. } = shape { per_s / 2.0 } else { per_s };
            Phase { shape, per_s, length_ns: PHASE_NS }
        };
        Trace { phases: (0..phases).map(|_| phase(&mut rng)).collect() }
    }

    /// How long it lasts, in nanoseconds.
    pub fn length_ns(&self) -> u64 {
        self.phases.iter().map(|phase| phase.length_ns).sum()
    }

    /// Returns the phase at a time since the beginning, and when that phase began.
    pub(crate) fn phase_at(&self, at_ns: u64) -> Option<(usize, u64)> {
        let mut begin_ns = 0;
        for (index, phase) in self.phases.iter().enumerate() {
            if at_ns < begin_ns + phase.length_ns {
                return Some((index, begin_ns));
            }
            begin_ns += phase.length_ns;
        }
        None
    }

    /// Returns the load at a time since the beginning.
    pub(crate) fn rates_at(&self, at_ns: u64) -> Rates {
        let Some((index, begin_ns)) = self.phase_at(at_ns) else {
            return Rates { per_s: 0.0, one_queue: false, noise_per_s: 0.0 };
        };
        let phase = &self.phases[index];
        let since_ns = at_ns - begin_ns;
        let mut rates = Rates { per_s: phase.per_s, one_queue: false, noise_per_s: 0.0 };
        match phase.shape {
            Shape::Steady | Shape::Idle => {}
            Shape::Ramp { to_per_s } => {
                rates.per_s += (to_per_s - phase.per_s) * since_ns as f64 / phase.length_ns as f64;
            }
            Shape::Bursts { on, off } => {
                let within = (since_ns / TICK_NS) % u64::from(on + off) < u64::from(on);
                rates.per_s = if within { phase.per_s * f64::from(on + off) / f64::from(on) } else { 0.0 };
            }
            Shape::Neighbour { packets_per_s } => rates.noise_per_s = packets_per_s,
            Shape::OneQueue => rates.one_queue = true,
        }
        rates
    }
}
