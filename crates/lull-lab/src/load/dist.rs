//! Random numbers and the distributions of sizes and inter-arrival times.
//!
//! The Facebook distributions are those of Atikoglu et al., "Workload Analysis of a Large-Scale Key-Value Store"
//! (SIGMETRICS 2012), with the parameters that mutilate uses for `fb_key`, `fb_value` and `fb_ia`.

use std::fmt;
use std::str::FromStr;

/// A seeded generator (xoshiro256++): the same seed gives the same run on every machine.
#[derive(Clone, Debug)]
pub struct Rng([u64; 4]);

/// Does one step of SplitMix64 as a hash, which maps nearby numbers to unrelated ones.
#[inline]
pub fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Returns a number in the open interval (0, 1) from 64 random bits.
#[inline]
pub fn unit(bits: u64) -> f64 {
    ((bits >> 11) as f64 + 0.5) / (1u64 << 53) as f64
}

impl Rng {
    /// Makes a generator for `seed`.
    pub fn new(seed: u64) -> Rng {
        // `mix` is never 0 for all four, which is the one state that xoshiro cannot leave.
        Rng([mix(seed), mix(seed.wrapping_add(1)), mix(seed.wrapping_add(2)), mix(seed.wrapping_add(3))])
    }

    /// Returns 64 random bits.
    #[inline]
    pub fn next_u64(&mut self) -> u64 {
        let state = &mut self.0;
        let result = state[0].wrapping_add(state[3]).rotate_left(23).wrapping_add(state[0]);
        let shifted = state[1] << 17;
        state[2] ^= state[0];
        state[3] ^= state[1];
        state[1] ^= state[2];
        state[0] ^= state[3];
        state[2] ^= shifted;
        state[3] = state[3].rotate_left(45);
        result
    }

    /// Returns a number in the open interval (0, 1).
    #[inline]
    pub fn unit(&mut self) -> f64 {
        unit(self.next_u64())
    }

    /// Returns a number below `bound`, which must not be 0. The bias is below `bound` / 2^64.
    #[inline]
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }
}

/// Value sizes of 0 to 14 bytes and their probabilities (index: size). Larger sizes follow the generalised Pareto.
const FB_VALUE_SMALL: [f64; 15] = [
    0.00536, 0.00047, 0.17820, 0.09239, 0.00018, 0.02740, 0.00065, 0.00606, 0.00023, 0.00837, 0.00837, 0.08989,
    0.00092, 0.00326, 0.01980,
];
const FB_VALUE_LARGE: (f64, f64, f64) = (15.0, 214.476, 0.348238);
const FB_KEY: (f64, f64, f64) = (30.7984, 8.20449, 0.078688);
const FB_IA_SCALE: f64 = 16.0292;
const FB_IA_SHAPE: f64 = 0.154971;

/// A distribution of sizes, in mutilate's notation when parsed or printed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Distribution {
    /// `30` or `fixed:30`.
    Fixed(f64),
    /// `uniform:max`: evenly in 0 to `max`.
    Uniform(f64),
    /// `normal:mean,sd`.
    Normal {
        /// Mean.
        mean: f64,
        /// Standard deviation.
        sd: f64,
    },
    /// `exponential:lambda`.
    Exponential(f64),
    /// `pareto:location,scale,shape`, the generalised Pareto distribution.
    Pareto {
        /// Location: the least value.
        location: f64,
        /// Scale.
        scale: f64,
        /// Shape, not 0.
        shape: f64,
    },
    /// `gev:location,scale,shape`, the generalised extreme value distribution.
    Gev {
        /// Location.
        location: f64,
        /// Scale.
        scale: f64,
        /// Shape, not 0.
        shape: f64,
    },
    /// `fb_key`: Facebook's key sizes.
    FbKey,
    /// `fb_value`: Facebook's value sizes.
    FbValue,
}

impl Distribution {
    /// Draws a value.
    pub fn sample(&self, rng: &mut Rng) -> f64 {
        match *self {
            Distribution::Normal { mean, sd } => {
                let radius = (-2.0 * rng.unit().ln()).sqrt();
                mean + sd * radius * (std::f64::consts::TAU * rng.unit()).cos()
            }
            Distribution::FbValue => {
                let mut left = rng.unit();
                for (size, probability) in FB_VALUE_SMALL.iter().enumerate() {
                    if left < *probability {
                        return size as f64;
                    }
                    left -= probability;
                }
                let (location, scale, shape) = FB_VALUE_LARGE;
                pareto(location, scale, shape, rng.unit())
            }
            Distribution::Fixed(value) => value,
            Distribution::Uniform(max) => max * rng.unit(),
            Distribution::Exponential(lambda) => -rng.unit().ln() / lambda,
            Distribution::Pareto { location, scale, shape } => pareto(location, scale, shape, rng.unit()),
            Distribution::Gev { location, scale, shape } => gev(location, scale, shape, rng.unit()),
            Distribution::FbKey => gev(FB_KEY.0, FB_KEY.1, FB_KEY.2, rng.unit()),
        }
    }
}

fn pareto(location: f64, scale: f64, shape: f64, unit: f64) -> f64 {
    location + scale * (unit.powf(-shape) - 1.0) / shape
}

fn gev(location: f64, scale: f64, shape: f64, unit: f64) -> f64 {
    location + scale * ((-unit.ln()).powf(-shape) - 1.0) / shape
}

impl fmt::Display for Distribution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Distribution::Fixed(value) => write!(f, "{value}"),
            Distribution::Uniform(max) => write!(f, "uniform:{max}"),
            Distribution::Normal { mean, sd } => write!(f, "normal:{mean},{sd}"),
            Distribution::Exponential(lambda) => write!(f, "exponential:{lambda}"),
            Distribution::Pareto { location, scale, shape } => write!(f, "pareto:{location},{scale},{shape}"),
            Distribution::Gev { location, scale, shape } => write!(f, "gev:{location},{scale},{shape}"),
            Distribution::FbKey => f.write_str("fb_key"),
            Distribution::FbValue => f.write_str("fb_value"),
        }
    }
}

/// The text is no distribution.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is no distribution; use a number, fb_key, fb_value, uniform:max, normal:mean,sd, exponential:lambda, \
     pareto:location,scale,shape or gev:location,scale,shape"
)]
pub struct UnknownDistribution(String);

impl FromStr for Distribution {
    type Err = UnknownDistribution;

    fn from_str(text: &str) -> Result<Distribution, UnknownDistribution> {
        parse(text).ok_or_else(|| UnknownDistribution(text.to_owned()))
    }
}

fn parse(text: &str) -> Option<Distribution> {
    match text {
        "fb_key" => return Some(Distribution::FbKey),
        "fb_value" => return Some(Distribution::FbValue),
        _ => {}
    }
    let (name, numbers) = text.split_once(':').unwrap_or(("fixed", text));
    let numbers: Vec<f64> = numbers.split(',').map(|number| number.parse().ok()).collect::<Option<_>>()?;
    if numbers.iter().any(|number| !number.is_finite()) {
        return None;
    }
    Some(match (name, numbers[..].as_ref()) {
        ("fixed", [value]) if *value >= 0.0 => Distribution::Fixed(*value),
        ("uniform", [max]) if *max >= 0.0 => Distribution::Uniform(*max),
        ("normal", [mean, sd]) if *sd >= 0.0 => Distribution::Normal { mean: *mean, sd: *sd },
        ("exponential", [lambda]) if *lambda > 0.0 => Distribution::Exponential(*lambda),
        ("pareto", [location, scale, shape]) if *shape != 0.0 => {
            Distribution::Pareto { location: *location, scale: *scale, shape: *shape }
        }
        ("gev", [location, scale, shape]) if *shape != 0.0 => {
            Distribution::Gev { location: *location, scale: *scale, shape: *shape }
        }
        _ => return None,
    })
}

/// A distribution of the time between two requests of a connection; the rate sets its mean.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Arrivals {
    /// Poisson arrivals, mutilate's default.
    #[default]
    Exponential,
    /// Facebook's `fb_ia`, a generalised Pareto distribution of shape 0.154971: burstier.
    Facebook,
    /// Evenly spaced, with a random phase per connection.
    Fixed,
}

impl Arrivals {
    /// Returns a gap in units of the mean gap.
    #[inline]
    pub fn gap(self, rng: &mut Rng) -> f64 {
        match self {
            Arrivals::Exponential => -rng.unit().ln(),
            // This scale makes the mean 1. That of `fb_ia` itself gives a mean of FB_IA_SCALE / (1 - FB_IA_SHAPE).
            Arrivals::Facebook => pareto(0.0, 1.0 - FB_IA_SHAPE, FB_IA_SHAPE, rng.unit()),
            Arrivals::Fixed => 1.0,
        }
    }

    /// Returns the first gap of a connection.
    #[inline]
    pub fn first_gap(self, rng: &mut Rng) -> f64 {
        if self == Arrivals::Fixed { rng.unit() } else { self.gap(rng) }
    }

    /// Returns the mean gap of the published distribution in microseconds. Only `fb_ia` has one.
    pub fn published_mean_us(self) -> Option<f64> {
        (self == Arrivals::Facebook).then_some(FB_IA_SCALE / (1.0 - FB_IA_SHAPE))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mean(distribution: Distribution, count: usize) -> f64 {
        let mut rng = Rng::new(1);
        (0..count).map(|_| distribution.sample(&mut rng)).sum::<f64>() / count as f64
    }

    #[test]
    fn facebook_sizes_have_the_published_moments() {
        // GEV: location + scale * (gamma(1 - shape) - 1) / shape; gamma(0.921312) = 1.05148.
        let key = mean(Distribution::FbKey, 200_000);
        assert!((key - 36.17).abs() < 0.15, "{key}");
        // 43.38 % below 15 bytes; above, the Pareto's mean is 15 + 214.476 / (1 - 0.348238) = 344.1.
        let mut rng = Rng::new(2);
        let values: Vec<f64> = (0..400_000).map(|_| Distribution::FbValue.sample(&mut rng)).collect();
        let small = values.iter().filter(|value| **value < 15.0).count() as f64 / values.len() as f64;
        let expected: f64 = FB_VALUE_SMALL.iter().sum();
        assert!((small - expected).abs() < 0.003, "{small}");
        let large: Vec<f64> = values.into_iter().filter(|value| *value >= 15.0).collect();
        let large_mean = large.iter().sum::<f64>() / large.len() as f64;
        assert!((large_mean - 344.1).abs() < 12.0, "{large_mean}");
    }

    #[test]
    fn gaps_have_mean_one() {
        for arrivals in [Arrivals::Exponential, Arrivals::Facebook, Arrivals::Fixed] {
            let mut rng = Rng::new(3);
            let sum: f64 = (0..200_000).map(|_| arrivals.gap(&mut rng)).sum();
            assert!((sum / 200_000.0 - 1.0).abs() < 0.02, "{arrivals:?}");
        }
    }

    #[test]
    fn text_round_trips() {
        for text in ["fb_key", "fb_value", "30", "normal:5,2", "pareto:15,214.476,0.348238", "gev:30,8.2,0.07"] {
            assert_eq!(text.parse::<Distribution>().map(|parsed| parsed.to_string()), Ok(text.to_owned()));
        }
        for bad in ["", "fb", "normal:1", "pareto:1,2,0", "-1", "fixed:nan", "gev:a,b,c"] {
            assert!(bad.parse::<Distribution>().is_err(), "{bad}");
        }
    }

    #[test]
    fn bounded_numbers_cover_their_range() {
        let mut rng = Rng::new(4);
        let mut seen = [0u32; 10];
        for _ in 0..10_000 {
            seen[rng.below(10) as usize] += 1;
        }
        assert!(seen.iter().all(|count| (800..1200).contains(count)), "{seen:?}");
    }
}
