//! One connection's state (RFC 9293, as far as an active opener of a request-answer protocol needs it).

use crate::load::checker::Checker;
use crate::load::workload::Query;

/// Nothing is scheduled.
pub(super) const NEVER: u64 = u64::MAX;
/// The least retransmission timeout (Linux's `TCP_RTO_MIN`).
pub(super) const RTO_NS_MIN: u64 = 200_000_000;
/// The largest retransmission timeout, after backing off.
pub(super) const RTO_NS_MAX: u64 = 2_000_000_000;

/// The state of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// There is no connection; a new one is opened at `rto_at`.
    Waiting,
    /// The SYN is sent.
    SynSent,
    /// It is open.
    Established,
    /// The client's FIN is sent, and the acknowledgement of it and the peer's FIN are outstanding.
    FinSent,
    /// It is closed for good.
    Closed,
}

/// A request that has not been answered, in the ring of its connection.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Slot {
    pub intended_ns: u64,
    pub request: Query,
    /// The sequence number behind the request's last byte.
    pub end_seq: u32,
}

#[derive(Clone, Debug)]
pub(super) struct Connection {
    pub state: State,
    pub retries: u8,
    pub duplicate_acks: u8,
    pub port: u16,
    /// The largest payload to send.
    pub mss: u16,
    /// The first sequence number that is not acknowledged. An answer acknowledges its request.
    pub snd_una: u32,
    /// The next sequence number to send.
    pub snd_nxt: u32,
    /// The highest sequence number sent so far.
    pub snd_max: u32,
    /// The sequence number behind the last queued request.
    pub snd_end: u32,
    pub snd_wnd: u32,
    pub rcv_nxt: u32,
    /// Payload received since the last acknowledgement.
    pub unacknowledged: u32,
    /// The number of requests that were answered, followed by the number that were queued. The slots in use are in
    /// between.
    pub answered: u32,
    pub enqueued: u32,
    pub checker: Checker,
    /// When to send again, or to open the connection again.
    pub rto_at: u64,
    /// When to acknowledge at the latest.
    pub ack_at: u64,
    /// When the segment was sent with which the round trip is measured; 0 if none is measured.
    pub timed_at: u64,
    pub timed_seq: u32,
}

impl Connection {
    pub fn new() -> Connection {
        Connection {
            state: State::Waiting,
            retries: 0,
            duplicate_acks: 0,
            port: 0,
            mss: 0,
            snd_una: 0,
            snd_nxt: 0,
            snd_max: 0,
            snd_end: 0,
            snd_wnd: 0,
            rcv_nxt: 0,
            unacknowledged: 0,
            answered: 0,
            enqueued: 0,
            checker: Checker::default(),
            rto_at: NEVER,
            ack_at: NEVER,
            timed_at: 0,
            timed_seq: 0,
        }
    }

    /// Returns the number of bytes sent and not acknowledged.
    #[inline]
    pub fn in_flight(&self) -> u32 {
        self.snd_nxt.wrapping_sub(self.snd_una)
    }

    /// Returns the number of bytes that the peer's window still takes.
    #[inline]
    pub fn room(&self) -> u32 {
        self.snd_wnd.saturating_sub(self.in_flight())
    }

    /// Records that everything before `seq` has arrived. Returns true if that is new.
    #[inline]
    pub fn acknowledge(&mut self, seq: u32) -> bool {
        if !before(self.snd_una, seq) || before(self.snd_max, seq) {
            return false;
        }
        self.snd_una = seq;
        if before(self.snd_nxt, seq) {
            self.snd_nxt = seq;
        }
        self.retries = 0;
        self.duplicate_acks = 0;
        true
    }

    /// Returns the earlier of the two timers.
    pub fn deadline(&self) -> u64 {
        self.rto_at.min(self.ack_at)
    }
}

/// Whether sequence number `a` is before `b`, within half the number space.
#[inline]
pub(super) fn before(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) < 0
}

/// The round-trip time, smoothed over all connections: they share one path (RFC 6298).
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RoundTrip {
    smoothed_ns: u64,
    variation_ns: u64,
}

impl RoundTrip {
    #[inline]
    pub fn sample(&mut self, rtt_ns: u64) {
        if self.smoothed_ns == 0 {
            *self = RoundTrip { smoothed_ns: rtt_ns.max(1), variation_ns: rtt_ns / 2 };
            return;
        }
        let error = self.smoothed_ns.abs_diff(rtt_ns);
        self.variation_ns = (3 * self.variation_ns + error) / 4;
        self.smoothed_ns = (7 * self.smoothed_ns + rtt_ns) / 8;
    }

    /// Returns the timeout after `retries` retransmissions.
    #[inline]
    pub fn timeout_ns(&self, retries: u8) -> u64 {
        let base = (self.smoothed_ns + 4 * self.variation_ns).clamp(RTO_NS_MIN, RTO_NS_MAX);
        (base << retries.min(8)).min(RTO_NS_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequence_numbers_wrap() {
        assert!(before(u32::MAX, 0) && before(0, 1) && !before(1, 1) && !before(2, 1));
        let mut connection = Connection::new();
        connection.snd_una = u32::MAX - 1;
        connection.snd_nxt = u32::MAX;
        connection.snd_max = 5;
        assert!(!connection.acknowledge(6), "beyond what was sent");
        assert!(connection.acknowledge(3), "past a rewound snd_nxt");
        assert_eq!((connection.snd_una, connection.snd_nxt), (3, 3));
        assert!(!connection.acknowledge(3), "old");
    }

    #[test]
    fn the_timeout_backs_off_between_its_limits() {
        let mut round_trip = RoundTrip::default();
        assert_eq!(round_trip.timeout_ns(0), RTO_NS_MIN);
        for _ in 0..100 {
            round_trip.sample(500_000_000);
        }
        assert!((500_000_000..520_000_000).contains(&round_trip.timeout_ns(0)));
        assert_eq!(round_trip.timeout_ns(200), RTO_NS_MAX);
    }
}
