//! Initial sequence numbers (RFC 6528): a clock that ticks every 4 us plus a keyed hash of the 4-tuple.
//!
//! smoltcp draws its initial sequence numbers from the generator that is inside its `Interface` and takes only a seed.
//! The generator (sPCG32) is invertible, so that for a wanted number there is a seed whose second output it is; the
//! first is used up by `Interface::new`. With a fresh `Interface` per connection (it owns no memory) the number is
//! ours. Nothing breaks if a later smoltcp draws otherwise: the numbers would be random again. A test tells us.

use std::hash::{Hash, Hasher};

use super::flow::FlowKey;

const MULTIPLIER: u64 = 0xbb2e_fcec_3c39_611d;
const INCREMENT: u64 = 0x7590_ef39;
/// The inverse of `MULTIPLIER` modulo 2^64, by Newton's iteration.
const INVERSE: u64 = {
    let mut inverse = MULTIPLIER;
    let mut round = 0;
    while round < 6 {
        inverse = inverse.wrapping_mul(2u64.wrapping_sub(MULTIPLIER.wrapping_mul(inverse)));
        round += 1;
    }
    inverse
};

fn before(state: u64) -> u64 {
    state.wrapping_sub(INCREMENT).wrapping_mul(INVERSE)
}

/// The seed for which a fresh `Interface` gives its first connection the initial sequence number `isn`.
pub(super) fn seed_for(isn: u32) -> u64 {
    let mut low_bits = 0;
    loop {
        // Top three bits clear: the output is bits 29..61.
        let second = u64::from(isn) << 29 | low_bits;
        let first = before(second);
        let shift = 29 - (first >> 61);
        let output = (first >> shift) as u32;
        // `Interface::new` draws again while the 16-bit IP identification is 0.
        if (output ^ (output >> 16)) as u16 != 0 {
            return before(first);
        }
        low_bits += 1;
    }
}

/// The secret of one shard, or of all that have the same addresses.
#[derive(Debug)]
pub(super) struct Secret {
    k0: u64,
    k1: u64,
    /// When the shard's clock began, by a clock that all have; a multiple of [`EPOCH_STEP_NS`].
    epoch_ns: u64,
}

/// Timestamps count milliseconds by one clock for all these shards, so that one can go on with another's connection.
const EPOCH_STEP_NS: u64 = 1_000_000;

impl Secret {
    pub(super) fn new(seed: u64) -> Secret {
        Secret::common(seed, 0)
    }

    /// The secret of a shard whose numbers others can read: its clock began at `epoch_ns`.
    pub(super) fn common(seed: u64, epoch_ns: u64) -> Secret {
        let mut secret = Secret { k0: mix(seed), k1: mix(seed ^ 0x6a09_e667_f3bc_c908), epoch_ns: 0 };
        secret.set_epoch(epoch_ns);
        secret
    }

    /// When the shard's clock began, as it appears by now.
    pub(super) fn set_epoch(&mut self, epoch_ns: u64) {
        self.epoch_ns = epoch_ns / EPOCH_STEP_NS * EPOCH_STEP_NS;
    }

    /// The time of the clock that all have.
    pub(super) fn common_ns(&self, now_ns: u64) -> u64 {
        now_ns + self.epoch_ns
    }

    /// The initial sequence number for a connection opened now.
    pub(super) fn isn(&self, flow: &FlowKey, now_ns: u64) -> u32 {
        self.hash(0, flow).wrapping_add(self.common_ns(now_ns) / 4000) as u32
    }

    /// A keyed hash for what an outsider must not predict.
    pub(super) fn hash(&self, purpose: u8, value: &impl Hash) -> u64 {
        // The standard library's SipHash-2-4 is deprecated as a map hasher only; it is the keyed one it has.
        #[expect(deprecated)]
        let mut hasher = std::hash::SipHasher::new_with_keys(self.k0, self.k1);
        hasher.write_u8(purpose);
        value.hash(&mut hasher);
        hasher.finish()
    }
}

/// splitmix64's finaliser: spreads a seed over all bits.
pub(super) fn mix(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
