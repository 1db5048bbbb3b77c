//! Interference: what delivery and application cost each other through the caches of their core.
//!
//! The published cycles say that it is memory and not work: base to fullbusy at saturation costs 15 % fewer cycles for
//! the same instructions. A core has a clock that counts the requests it worked on. Two effects are computed from it:
//!
//! - **Waiting goes cold.** A connection is touched when its acknowledgement, its request, and its turn in the
//!   application come. What the core worked on since the last touch has pushed the connection's data out of the nearer
//!   caches: a touch after `d` requests costs `(1 - exp(-d / capacity))` of its full cold price.
//! - **Interruption goes cold.** Delivery that breaks into a running thread pays for each packet, and the thread pays
//!   when it goes on.
//! - **Crossing caches.** A connection that a core of another L3 touched last has to be fetched from there: delivery
//!   pays for it when the worker runs behind another L3, and the worker pays when delivery did.

/// Parameters of interference.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CacheSpec {
    /// Added to the delivery of a packet whose connection has gone cold.
    pub cold_packet_ns: u32,
    /// Added to serving a request whose data has gone cold since its delivery.
    pub cold_request_ns: u32,
    /// How many requests have to be worked on in between until 63 % of a connection's data is cold. In a world with a
    /// flood it is KiB of datagrams received in between, and `cold_request_ns` is added to a receive call for each
    /// frame of its datagram.
    pub capacity_requests: u32,
    /// Added to every packet whose delivery interrupts a thread.
    pub broken_packet_ns: u32,
    /// Added to a thread's work each time delivery has interrupted it.
    pub broken_thread_ns: u32,
    /// Added to the delivery of a packet whose connection was last touched behind another L3.
    pub cross_packet_ns: u32,
    /// Added to every packet that a CPU of another NUMA node than the queue's takes off the ring.
    pub remote_packet_ns: u32,
    /// Added to serving a request whose connection was last touched behind another L3.
    pub cross_request_ns: u32,
}

/// How cold a connection is, by the number of requests since its last touch, in 1/1024.
#[derive(Clone, Debug)]
pub(crate) struct Coldness(Vec<u16>);

/// Multiples of the capacity after which everything is cold.
const CAPACITIES_MAX: u32 = 6;

impl Coldness {
    pub(crate) fn new(spec: &CacheSpec) -> Coldness {
        let capacity = f64::from(spec.capacity_requests.max(1));
        let count = spec.capacity_requests.max(1) * CAPACITIES_MAX;
        let cold = |distance: u32| 1_024.0 * (1.0 - libm::exp(-f64::from(distance) / capacity));
        Coldness((0..=count).map(|distance| cold(distance) as u16).collect())
    }

    /// Returns how much of `full_ns` a touch costs after `distance` requests.
    #[inline]
    pub(crate) fn of(&self, full_ns: u32, distance: u64) -> u64 {
        let index = (distance as usize).min(self.0.len() - 1);
        u64::from(full_ns) * u64::from(self.0[index]) / 1_024
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_price_of_waiting_grows_with_what_was_touched_and_is_bounded() {
        let cold = Coldness::new(&CacheSpec { capacity_requests: 40, ..CacheSpec::default() });
        assert_eq!(cold.of(1_000, 0), 0);
        let (short, capacity, long) = (cold.of(1_000, 10), cold.of(1_000, 40), cold.of(1_000, 1_000_000));
        assert!(short > 200 && short < 230, "{short}");
        assert!((630..634).contains(&capacity), "{capacity}");
        assert!(long <= 1_000 && long > 990, "{long}");
    }
}
