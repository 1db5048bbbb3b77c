//! Timestamps (RFC 7323 section 3) and what they protect from: segments of a former turn of the sequence numbers (PAWS,
//! section 5). smoltcp writes and echoes the option but checks nothing, so the checks are here.

use std::cell::Cell;

use super::flow::FlowKey;
use super::isn::Secret;
use super::segment::{Arrived, TimestampOption};
use super::wire::{RST, put32, seq_lt};

/// A timestamp that has not moved for so long may have wrapped (`TCP_PAWS_24DAYS`).
const IDLE_S_MAX: u32 = 24 * 24 * 60 * 60;
/// By how much the values of two packets may differ of which one overtook the other (`TCP_PAWS_WINDOW`).
const WINDOW: i32 = 1;
/// Low bits of a cookie's timestamp that hold the SYN's options (`TSBITS`, `TS_OPT_WSCALE_MASK`, `TS_OPT_SACK`).
const COOKIE_BITS: u32 = 6;
const COOKIE_SCALE: u32 = 0x0f;
const COOKIE_SACK: u32 = 0x10;

thread_local! {
    /// What smoltcp writes into the option: its generator is a function without an argument.
    static VALUE: Cell<u32> = const { Cell::new(0) };
}

/// What smoltcp calls for the value of the option.
pub(super) fn value_of_the_call() -> u32 {
    VALUE.get()
}

/// The timestamps of a connection whose both sides send them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Timestamps {
    /// Added to our clock: a stranger shall not see how long this machine is up.
    offset: u32,
    /// The peer's value that is echoed (TS.Recent).
    recent: u32,
    /// When it was taken, in seconds.
    recent_s: u32,
}

/// Our clock, which counts milliseconds.
pub(super) fn clock(now_ns: u64) -> u32 {
    (now_ns / 1_000_000) as u32
}

fn seconds(now_ns: u64) -> u32 {
    (now_ns / 1_000_000_000) as u32
}

impl Timestamps {
    pub(super) fn new(offset: u32, recent: u32, now_ns: u64) -> Timestamps {
        Timestamps { offset, recent, recent_s: seconds(now_ns) }
    }

    /// The value for a segment that is sent now, and its echo.
    pub(super) fn option(&self, now_ns: u64) -> (u32, u32) {
        (clock(now_ns).wrapping_add(self.offset), self.recent)
    }

    /// How long ago our clock said what a segment echoes, in its milliseconds and no less than one.
    pub(super) fn echoed_after_ns(&self, echo: u32, now_ns: u64) -> u64 {
        let ago_ms = clock(now_ns).wrapping_add(self.offset).wrapping_sub(echo);
        u64::from(ago_ms.clamp(1, 60_000)) * 1_000_000
    }

    /// Tells smoltcp the value for what it sends in this call.
    #[inline]
    pub(super) fn announce(&self, now_ns: u64) {
        VALUE.set(clock(now_ns).wrapping_add(self.offset));
    }

    /// PAWS (`tcp_paws_check`): whether a segment with this value is from before.
    #[inline]
    pub(super) fn is_old(&self, value: u32, now_ns: u64) -> bool {
        (self.recent.wrapping_sub(value) as i32) > WINDOW && !self.is_stale(now_ns)
    }

    /// The peer's clock may have gone half-way round since it was taken.
    #[inline]
    fn is_stale(&self, now_ns: u64) -> bool {
        seconds(now_ns).wrapping_sub(self.recent_s) >= IDLE_S_MAX
    }

    /// Whether a new connection with this value is newer than the old one, whose timestamps these are (RFC 6191).
    pub(super) fn is_newer(&self, value: u32) -> bool {
        seq_lt(self.recent, value)
    }

    /// Takes the value of a segment into TS.Recent, or has smoltcp echo the former value again. The value to echo is
    /// that of the last segment that advanced the window (RFC 7323 section 4.3, `tcp_replace_ts_recent`), but smoltcp
    /// would echo whatever came last.
    #[inline]
    pub(super) fn take(&mut self, option: TimestampOption, rcv_ack: u32, arrived: &mut Arrived<'_>, now_ns: u64) {
        let segment = &arrived.segment;
        let end = segment.seq.wrapping_add(segment.length as u32);
        let advances = !seq_lt(rcv_ack, segment.seq) && !seq_lt(end, rcv_ack) && segment.flags & RST == 0;
        if advances && (!seq_lt(option.value, self.recent) || self.is_stale(now_ns)) {
            (self.recent, self.recent_s) = (option.value, seconds(now_ns));
        } else {
            put32(arrived.tcp_mut(), option.at.into(), self.recent);
        }
    }
}

impl Secret {
    /// What is added to the shard's clock for this pair of addresses (`secure_tcp_ts_off`).
    pub(super) fn timestamp_offset(&self, flow: &FlowKey) -> u32 {
        let hash = self.hash(5, &(flow.local().ip(), flow.remote().ip())) as u32;
        hash.wrapping_add(self.epoch())
    }

    /// The shard's clock at its beginning, by the clock that all have.
    fn epoch(&self) -> u32 {
        clock(self.common_ns(0))
    }

    /// The value of the shard's clock for the SYN-ACK of a cookie, with what the cookie has no room for in its low bits
    /// (`cookie_init_timestamp`), by the clock that all have: another shard reads them.
    pub(super) fn cookie_value(&self, window_scale: Option<u8>, sack: bool, now_ns: u64) -> u32 {
        let now = clock(now_ns).wrapping_add(self.epoch());
        cookie_value(window_scale, sack, now).wrapping_sub(self.epoch())
    }

    /// Window scale and SACK from the echo of such a value (`cookie_timestamp_decode`).
    pub(super) fn cookie_options(&self, flow: &FlowKey, echo: u32) -> (Option<u8>, bool) {
        cookie_options(echo.wrapping_sub(self.timestamp_offset(flow)).wrapping_add(self.epoch()))
    }
}

fn cookie_value(window_scale: Option<u8>, sack: bool, now: u32) -> u32 {
    let options = window_scale.map_or(COOKIE_SCALE, u32::from) | if sack { COOKIE_SACK } else { 0 };
    let value = now >> COOKIE_BITS << COOKIE_BITS | options;
    if value > now { value.wrapping_sub(1 << COOKIE_BITS) } else { value }
}

fn cookie_options(value: u32) -> (Option<u8>, bool) {
    let scale = value & COOKIE_SCALE;
    ((scale != COOKIE_SCALE).then_some(scale as u8), value & COOKIE_SACK != 0)
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::sync::Arc;

    use lull_nic::Frame;

    use super::super::elsewhere::{Elsewhere, HandedOn};
    use super::super::isn::mix;
    use super::super::stack::Stack;
    use super::*;
    use crate::shard::StackConfig;

    const DAY_NS: u64 = 86_400_000_000_000;

    /// Stacks elsewhere that take nothing.
    #[derive(Debug)]
    struct Others;

    impl Elsewhere for Others {
        fn secret(&self) -> u64 {
            7
        }
        fn queues(&self) -> &[u32] {
            &[0]
        }
        fn takes_stranger(&self, _syn: Option<SocketAddr>, _frame: &Frame) -> bool {
            false
        }
        fn takes_last_acknowledgement(&self, _frame: &Frame) -> bool {
            false
        }
        fn takes_over(&self, _local: SocketAddr, _frame: &Frame) -> HandedOn {
            HandedOn::Nobody
        }
        fn copy_to_all(&self, _frame: &Frame) {}
    }

    /// It is a thousandth faster than that of the others, against which it is held each second.
    #[test]
    fn a_stack_whose_clock_runs_fast_tells_the_time_that_all_tell() {
        const EPOCH_NS: u64 = 5_000_000_000;
        let flow = FlowKey::new(6, "10.0.0.2".parse().unwrap(), 80, "10.0.0.1".parse().unwrap(), 4000);
        let value = |secret: &Secret, now_ns| Timestamps::new(secret.timestamp_offset(&flow), 0, 0).option(now_ns).0;
        let others = Secret::common(mix(Others.secret()), EPOCH_NS);
        let elsewhere: Arc<dyn Elsewhere> = Arc::new(Others);
        let stack = |elsewhere| {
            let config = StackConfig { elsewhere, ..StackConfig::new([2, 0, 0, 0, 0, 1]) };
            Stack::new(config, Arc::default()).unwrap()
        };
        let mut stack_among_others = stack(Some(elsewhere));
        let mut looks = 0;
        for ms in 0..60_000 {
            let (others_now_ns, now_ns) = (ms * 1_000_000, ms * 1_001_000);
            stack_among_others.keep_time(now_ns, || {
                looks += 1;
                EPOCH_NS + others_now_ns - now_ns
            });
            let apart = value(&stack_among_others.secret, now_ns).wrapping_sub(value(&others, others_now_ns)) as i32;
            assert!((-1..=2).contains(&apart), "{apart} after {ms} ms");
        }
        assert_eq!(looks, 60);
        stack(None).keep_time(u64::MAX - 1, || unreachable!("nobody else tells the time of its connections"));
    }

    #[test]
    fn values_before_the_recent_one_are_old_for_24_days() {
        for recent in [5000, 3, 0, u32::MAX] {
            let timestamps = Timestamps::new(0, recent, DAY_NS);
            let old = |behind: u32, now_ns| timestamps.is_old(recent.wrapping_sub(behind), now_ns);
            assert!(!old(0, DAY_NS) && !old(1, DAY_NS), "two packets of one tick");
            assert!(old(2, DAY_NS) && old(1 << 30, DAY_NS));
            assert!(!old(1u32.wrapping_neg(), DAY_NS), "newer");
            assert!(old(2, 24 * DAY_NS) && !old(2, 25 * DAY_NS));
        }
    }

    #[test]
    fn a_cookie_value_brings_its_options_back_and_is_not_of_the_future() {
        for now_ms in [1u64, 63, 64, 1000, u64::from(u32::MAX)] {
            for options in [(None, false), (Some(0), true), (Some(14), false), (None, true)] {
                let value = cookie_value(options.0, options.1, now_ms as u32);
                assert_eq!(cookie_options(value), options);
                assert!(!seq_lt(now_ms as u32, value));
            }
        }
    }

    /// Their clocks began at different times. A peer drops what goes back by more than a millisecond.
    #[test]
    fn a_shard_goes_on_with_the_timestamps_of_another() {
        let flow = FlowKey::new(6, "10.0.0.2".parse().unwrap(), 80, "10.0.0.1".parse().unwrap(), 4000);
        let shards = [0, 37_000_000, 63_999_999, 5_000_000_000].map(|epoch_ns| (epoch_ns, Secret::common(7, epoch_ns)));
        let at_ns = 10_000_000_000;
        let value = |(epoch_ns, secret): &(u64, Secret)| {
            Timestamps::new(secret.timestamp_offset(&flow), 0, 0).option(at_ns - epoch_ns).0
        };
        for first in &shards {
            let told = first.1.cookie_value(Some(7), true, at_ns - first.0);
            let told = told.wrapping_add(first.1.timestamp_offset(&flow));
            for second in &shards {
                assert!(!seq_lt(value(second).wrapping_add(1), value(first)), "{first:?} {second:?}");
                assert!(!seq_lt(value(second).wrapping_add(1), told), "{first:?} {second:?}");
                assert_eq!(second.1.cookie_options(&flow, told), (Some(7), true));
            }
        }
    }
}
