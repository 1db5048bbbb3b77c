//! Random numbers: one stream for each component, so that a change in one part of a world does not shift the draws of
//! another.
//!
//! A stream's seed is made of the run's seed and the component's number. Logarithms come from `libm`, not from the
//! system, so that a run gives the same bits on every machine.

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

/// The components that draw numbers. The number is part of a run's identity: never reuse one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Component {
    /// When clients send, and on which connections.
    Load = 1,
    /// Service times.
    Application = 2,
    /// Latencies of network and clients.
    Network = 3,
    /// Everything that runs beside the service.
    Background = 4,
    /// The placement of connections on queues.
    Placement = 5,
    /// Random worlds.
    Worlds = 6,
    /// Faults: lateness, stalls, slow polls.
    Faults = 7,
    /// Sizes of frames.
    Sizes = 8,
}

/// A stream of random numbers.
#[derive(Clone, Debug)]
pub struct Stream(Xoshiro256PlusPlus);

impl Stream {
    /// The stream of `component` (its `index`-th instance) in the run of `seed`.
    pub fn new(seed: u64, component: Component, index: u32) -> Stream {
        let mixed = seed
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            .wrapping_add((component as u64) << 32)
            .wrapping_add(u64::from(index));
        Stream(Xoshiro256PlusPlus::seed_from_u64(mixed))
    }

    /// 64 random bits.
    #[inline]
    pub fn bits(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// Uniform in [0, 1).
    #[inline]
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 * (1.0 / 9_007_199_254_740_992.0)
    }

    /// Uniform in 0..`below`. `below` is at least 1.
    #[inline]
    pub fn below(&mut self, below: u32) -> u32 {
        // Multiply and shift: the bias is below 2^-32.
        (((self.bits() >> 32) * u64::from(below)) >> 32) as u32
    }

    /// Whether something of probability `p` happens.
    #[inline]
    pub fn chance(&mut self, p: f64) -> bool {
        self.unit() < p
    }

    /// Returns an exponentially distributed number with this mean.
    #[inline]
    pub fn exponential(&mut self, mean: f64) -> f64 {
        -libm::log(1.0 - self.unit()) * mean
    }

    /// Exponentially distributed nanoseconds with this mean.
    #[inline]
    pub fn exponential_ns(&mut self, mean_ns: f64) -> u64 {
        self.exponential(mean_ns) as u64
    }

    /// Uniform in [low, high), in nanoseconds.
    #[inline]
    pub fn uniform_ns(&mut self, low_ns: f64, high_ns: f64) -> u64 {
        (low_ns + (high_ns - low_ns) * self.unit()) as u64
    }

    /// Returns a gamma-distributed number with this mean and the shape 4 (its standard deviation is half the mean),
    /// which is a sum of exponentials.
    #[inline]
    pub fn gamma4(&mut self, mean: f64) -> f64 {
        let product = (1.0 - self.unit()) * (1.0 - self.unit()) * (1.0 - self.unit()) * (1.0 - self.unit());
        -libm::log(product) * mean * 0.25
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_replay_and_differ_by_seed_component_and_index() {
        let first = |seed, component, index| Stream::new(seed, component, index).bits();
        let reference = first(1, Component::Load, 0);
        assert_eq!(reference, first(1, Component::Load, 0));
        assert_ne!(reference, first(2, Component::Load, 0));
        assert_ne!(reference, first(1, Component::Network, 0));
        assert_ne!(reference, first(1, Component::Load, 1));
    }

    #[test]
    fn means_are_as_asked() {
        let mut stream = Stream::new(7, Component::Load, 0);
        let draws = 200_000;
        let mean = |sum: f64| sum / f64::from(draws);
        let exponential = mean((0..draws).map(|_| stream.exponential(3.0)).sum());
        let gamma = mean((0..draws).map(|_| stream.gamma4(3.0)).sum());
        assert!((exponential - 3.0).abs() < 0.05, "{exponential}");
        assert!((gamma - 3.0).abs() < 0.05, "{gamma}");
        assert!((0..1_000).all(|_| stream.below(7) < 7));
    }
}
