//! Interference: what delivery and application cost each other through the caches of their core.
//!
//! A core has a clock of *touched bytes*, which runs as packets and requests are worked on. Two effects are computed from it:
//!
//! - **Waiting goes cold.** A request is delivered at one reading of the clock and served at a later one. What was touched in
//!   between has pushed its socket and its data out of the nearer caches, in proportion until `capacity` is reached:
//!   `cold_request_ns * min(1, distance / capacity)`.
//! - **Interruption goes cold.** Delivery that breaks into a running application leaves both with each other's lines: delivery
//!   pays `broken_packet_ns` a packet, and the application pays `broken_request_ns` for a request that was broken into.
//!
//! The published cycles say that this is memory and not work: base to fullbusy at saturation costs 15 % fewer cycles for the
//! same instructions.

/// Parameters of interference.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CacheSpec {
    /// Added to a request whose data has gone wholly cold while it waited.
    pub cold_request_ns: u32,
    /// Requests that have to be worked on in between until that is so.
    pub capacity_requests: u32,
    /// Added to every packet that is delivered by breaking into a thread that has work in hand.
    pub broken_packet_ns: u32,
    /// Added to a thread's work each time it is broken into.
    pub broken_thread_ns: u32,
}

impl CacheSpec {
    /// What a request pays that was delivered at reading `delivered` of its core's clock and is served at `now`.
    #[inline]
    pub fn waited_ns(&self, delivered: u64, now: u64) -> u32 {
        if self.capacity_requests == 0 {
            return 0;
        }
        let distance = now.saturating_sub(delivered).min(u64::from(self.capacity_requests));
        (u64::from(self.cold_request_ns) * distance / u64::from(self.capacity_requests)) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_price_of_waiting_is_proportional_and_bounded() {
        let spec = CacheSpec { cold_request_ns: 1_000, capacity_requests: 100, ..CacheSpec::default() };
        assert_eq!(spec.waited_ns(50, 50), 0);
        assert_eq!(spec.waited_ns(50, 60), 100);
        assert_eq!(spec.waited_ns(50, 5_000), 1_000);
        assert_eq!(CacheSpec::default().waited_ns(0, 5_000), 0);
    }
}
