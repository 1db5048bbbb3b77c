//! What clients send: the gaps between the requests of a connection, and the sizes of frames.
//!
//! The published runs were loaded by mutilate with `-i fb_ia -K fb_key -V fb_value -u 0.03`, which are distributions
//! that were measured at Facebook (Atikoglu et al., SIGMETRICS 2012): gaps and most values follow a generalised Pareto
//! distribution. Sizes matter only to adaptive moderation, which compares bytes before packets and interrupts.

use crate::engine::agenda::PacketKind;
use crate::engine::rng::Stream;

/// A generalised Pareto distribution.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GeneralizedPareto {
    /// The least value.
    pub location: f64,
    /// Its scale, in the unit of the value.
    pub scale: f64,
    /// Its shape: how heavy the tail is. It is not 0, and below 1, because otherwise there is no mean.
    pub shape: f64,
}

impl GeneralizedPareto {
    /// Makes the distribution with this mean and shape that begins at 0.
    pub fn with_mean(mean: f64, shape: f64) -> GeneralizedPareto {
        GeneralizedPareto { location: 0.0, scale: mean * (1.0 - shape), shape }
    }

    /// Returns the distribution of the time to the next event for an observer who comes at a random moment to a stream
    /// of events with these gaps. The gaps have to begin at 0.
    pub fn residual(&self) -> GeneralizedPareto {
        let rest = 1.0 - self.shape;
        GeneralizedPareto { location: 0.0, scale: self.scale / rest, shape: self.shape / rest }
    }

    /// Draws a value.
    #[inline]
    pub fn draw(&self, rng: &mut Stream) -> f64 {
        // This is U^-shape, by a logarithm and an exponential, which is cheaper than a power.
        let power = libm::expm1(self.shape * rng.exponential(1.0));
        self.location + self.scale * power / self.shape
    }
}

/// Sizes of frames, in bytes with all headers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum FrameSizes {
    /// All frames have the same size.
    Same(u32),
    /// The sizes of a key-value service.
    KeyValue(KeyValueSizes),
}

/// Frames of a key-value service: requests carry a key, answers a value; a share of requests are updates, which carry
/// the value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct KeyValueSizes {
    /// A pure acknowledgement.
    pub ack: u32,
    /// A request without a value.
    pub request: u32,
    /// An answer without its value.
    pub answer: u32,
    /// Share of requests that carry the value, in 1/1024.
    pub update_share: u32,
    /// Share of values that are small, in 1/1024.
    pub small_share: u32,
    /// Bytes of a small value.
    pub small: u32,
    /// The other values, in bytes.
    pub value: GeneralizedPareto,
}

impl KeyValueSizes {
    /// mutilate's `fb_key` and `fb_value` with 3 % updates over TCP with timestamps. 44 % of `fb_value` are a table of
    /// values below 15 bytes with a mean of 5.
    pub const FACEBOOK: KeyValueSizes = KeyValueSizes {
        ack: 66,
        request: 108,
        answer: 118,
        update_share: 31,
        small_share: 452,
        small: 5,
        value: GeneralizedPareto { location: 15.0, scale: 214.476, shape: 0.348_238 },
    };

    fn value(&self, rng: &mut Stream) -> u64 {
        if rng.below(1_024) < self.small_share { u64::from(self.small) } else { self.value.draw(rng) as u64 }
    }
}

impl FrameSizes {
    /// Bytes of a received frame.
    #[inline]
    pub(crate) fn received(&self, kind: PacketKind, rng: &mut Stream) -> u64 {
        match self {
            FrameSizes::Same(bytes) => u64::from(*bytes),
            FrameSizes::KeyValue(sizes) => match kind {
                PacketKind::Ack => u64::from(sizes.ack),
                PacketKind::Request | PacketKind::Message | PacketKind::Frame => {
                    let value = if rng.below(1_024) < sizes.update_share { sizes.value(rng) } else { 0 };
                    u64::from(sizes.request) + value
                }
            },
        }
    }

    /// Bytes of a sent frame.
    #[inline]
    pub(crate) fn sent(&self, rng: &mut Stream) -> u64 {
        match self {
            FrameSizes::Same(bytes) => u64::from(*bytes),
            FrameSizes::KeyValue(sizes) => u64::from(sizes.answer) + sizes.value(rng),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::rng::Component;

    #[test]
    fn gaps_have_the_mean_that_was_asked_for_and_a_heavier_tail_than_an_exponential() {
        let mut rng = Stream::new(3, Component::Load, 0);
        let gaps = GeneralizedPareto::with_mean(1_000.0, 0.154_971);
        let draws: Vec<f64> = (0..400_000).map(|_| gaps.draw(&mut rng)).collect();
        let mean = draws.iter().sum::<f64>() / draws.len() as f64;
        let variance = draws.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / draws.len() as f64;
        assert!((mean - 1_000.0).abs() < 10.0, "{mean}");
        // This is 1 / (1 - 2 shape) times the mean squared.
        assert!((variance / (mean * mean) - 1.449).abs() < 0.08, "{}", variance / (mean * mean));
        // From a random moment on the next event takes (1 + variation) / 2 mean gaps.
        let mean = (0..400_000).map(|_| gaps.residual().draw(&mut rng)).sum::<f64>() / 400_000.0;
        assert!((mean / 1_000.0 - 1.225).abs() < 0.03, "{mean}");
    }

    #[test]
    fn answers_have_the_mean_size_that_the_published_clients_counted() {
        // The clients of a base run at 200K counted 240.2 bytes per query without headers, which take 66 bytes of a
        // frame.
        let mut rng = Stream::new(3, Component::Sizes, 0);
        let sizes = FrameSizes::KeyValue(KeyValueSizes::FACEBOOK);
        let mean = (0..400_000).map(|_| sizes.sent(&mut rng) as f64).sum::<f64>() / 400_000.0;
        assert!((mean - 66.0 - 240.2).abs() < 15.0, "{mean}");
        assert_eq!(FrameSizes::Same(200).received(PacketKind::Ack, &mut rng), 200);
    }
}
