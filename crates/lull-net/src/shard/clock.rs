//! smoltcp's clock, which is not ours, and the times that are kept by it.

use smoltcp::time::{Duration, Instant};

/// smoltcp's clock runs this many times as fast as ours. Its shortest retransmission timeout is a second of its own, as
/// RFC 6298 section 2.4 asks for; by our clock, the loss of a last segment, behind which nothing comes, would stall a
/// connection for as long. Linux waits for 200 ms and the round trip (`TCP_RTO_MIN`), and a peer may put an
/// acknowledgement off for 200 ms (`TCP_DELACK_MAX`).
const CLOCK_RATE: u64 = 4;

/// What smoltcp counts, in our time.
const TICK_NS: u64 = 1000 / CLOCK_RATE;

/// The time as smoltcp has it.
#[inline]
pub(super) fn instant(now_ns: u64) -> Instant {
    Instant::from_micros((now_ns / TICK_NS) as i64)
}

/// When that is.
#[inline]
pub(super) fn instant_ns(at: Instant) -> u64 {
    (at.total_micros() as u64).saturating_mul(TICK_NS)
}

/// How long `ns` nanoseconds of ours are by smoltcp's clock.
pub(super) const fn duration(ns: u64) -> Duration {
    Duration::from_micros(ns / TICK_NS)
}

/// The shortest retransmission timeout: smoltcp's `RTTE_MIN_RTO`, by its clock.
pub(super) const RTO_NS_MIN: u64 = 250_000_000;
const _: () = assert!(duration(RTO_NS_MIN).total_millis() == 1000);

/// How long an acknowledgement waits for data to travel with, where there is reason to think that some will come
/// ([`Flags::ANSWERS`](super::connection::Flags); Linux's `TCP_DELACK_MIN`). smoltcp's own 10 ms would send one of its own for every
/// request of a server that is 10 ms behind.
pub(super) const ACK_DELAY_NS: u64 = 40_000_000;
/// How long a peer may put an acknowledgement off (`TCP_DELACK_MAX`).
pub(super) const ACK_DELAY_NS_MAX: u64 = 200_000_000;

/// [`ACK_DELAY_NS`] by smoltcp's clock.
pub(super) const ACK_DELAY: Duration = duration(ACK_DELAY_NS);
