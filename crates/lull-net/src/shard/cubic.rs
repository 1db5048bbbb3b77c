//! The congestion window of a connection that has lost something: CUBIC (RFC 9438), which is Linux's default, and the proportional
//! rate reduction of a loss (RFC 6937; its slow start part as `tcp_cwnd_reduction` has it).
//!
//! Before the first loss a connection has no congestion window: its transmit buffer is one ([`grow`](super::grow)).

/// The segments that may be on their way at first (RFC 6928).
const INITIAL_SEGMENTS: u32 = 10;
/// Segments per cubic second (RFC 9438 section 5).
const C: f64 = 0.4;
/// What is left of the window when something is lost.
const BETA: f64 = 0.7;
/// How many segments per round trip growth as Reno's may add, for the same share of the path as Reno.
const ALPHA: f64 = 3.0 * (1.0 - BETA) / (1.0 + BETA);

/// A congestion window. Everything is in bytes.
#[derive(Clone, Debug)]
pub(super) struct Cubic {
    mss: u32,
    window: u32,
    ssthresh: u32,
    /// The window when something was last lost.
    w_max: f64,
    /// Reno's window at the same time.
    w_est: f64,
    /// When the window began to grow as it does, and how long until it is `w_max`, in seconds.
    epoch: Option<(u64, f64)>,
    reduction: Option<Reduction>,
}

/// What has left, and arrived, since a loss was seen.
#[derive(Clone, Debug)]
struct Reduction {
    delivered: u64,
    sent: u64,
    in_flight_at_first: u64,
}

impl Cubic {
    /// The window of a connection that has just lost something for the first time, with `in_flight` bytes on their way
    /// where `may_be` might have been. It may send at least what it might at the beginning, however little it has sent
    /// of late, and twice as much where that was not too much.
    pub(super) fn new(in_flight: u32, may_be: u32, mss: u32) -> Cubic {
        let first = INITIAL_SEGMENTS * mss;
        let window = in_flight.max(may_be.clamp(first, 2 * first));
        Cubic { mss, window, ssthresh: u32::MAX, w_max: 0.0, w_est: 0.0, epoch: None, reduction: None }
    }

    /// How much may be on its way.
    pub(super) fn window(&self) -> u32 {
        self.window
    }

    /// The window shrinks however little is on its way, because one that is not used does not grow (RFC 9438 section
    /// 4.6).
    fn shrink(&mut self) {
        let window = f64::from(self.window);
        // A connection that has less than last time leaves room for others (fast convergence).
        self.w_max = if window < self.w_max { window * (1.0 + BETA) / 2.0 } else { window };
        self.ssthresh = ((window * BETA) as u32).max(2 * self.mss);
        self.epoch = None;
    }

    /// Acknowledgements say that something of `in_flight` bytes is lost.
    pub(super) fn lost(&mut self, in_flight: u32) {
        self.shrink();
        self.reduction = Some(Reduction { delivered: 0, sent: 0, in_flight_at_first: in_flight.max(1).into() });
    }

    /// The timer says that something is lost, so all that was on its way has left the network. `anew` says that nothing
    /// has told of this loss before.
    pub(super) fn timed_out(&mut self, anew: bool) {
        if anew {
            self.shrink();
        }
        self.reduction = None;
        self.window = self.mss;
    }

    /// Whether the window is what holds back more, with `in_flight` bytes on their way (`tcp_is_cwnd_limited`).
    pub(super) fn limits(&self, in_flight: u32) -> bool {
        let is_in_slow_start = self.window < self.ssthresh;
        in_flight + 2 * self.mss > self.window || is_in_slow_start && in_flight > self.window / 2
    }

    /// The loss is made good.
    pub(super) fn recovered(&mut self) {
        if self.reduction.take().is_some() {
            self.window = self.ssthresh;
        }
    }

    /// `bytes` have left while a loss is made good.
    pub(super) fn sent(&mut self, bytes: u32) {
        if let Some(reduction) = &mut self.reduction {
            reduction.sent += u64::from(bytes);
        }
    }

    /// `bytes` have arrived. `limits` says that the window is what holds back more.
    pub(super) fn delivered(&mut self, bytes: u32, limits: bool, now_ns: u64, rtt_us: u32) {
        if limits && bytes > 0 && self.reduction.is_none() {
            self.grow(bytes, now_ns, rtt_us);
        }
    }

    /// `bytes` have arrived while a loss is made good, and `in_flight` are still on their way (RFC 6937 section 3).
    /// `goes_well` says that what was missing comes, and nothing more is lost.
    pub(super) fn reduce(&mut self, bytes: u32, in_flight: u32, goes_well: bool) {
        let (ssthresh, mss) = (u64::from(self.ssthresh), u64::from(self.mss));
        let Some(reduction) = &mut self.reduction else { return };
        reduction.delivered += u64::from(bytes);
        let may_send = if u64::from(in_flight) > ssthresh {
            (reduction.delivered * ssthresh).div_ceil(reduction.in_flight_at_first).saturating_sub(reduction.sent)
        } else {
            let limit = reduction.delivered.saturating_sub(reduction.sent).max(bytes.into());
            (limit + if goes_well { mss } else { 0 }).min(ssthresh - u64::from(in_flight))
        };
        // The first lost segment leaves at once, whatever is on its way.
        let at_least = if reduction.sent == 0 { mss } else { 0 };
        self.window = in_flight.saturating_add(may_send.max(at_least) as u32);
    }

    fn grow(&mut self, bytes: u32, now_ns: u64, rtt_us: u32) {
        if self.window < self.ssthresh {
            self.window = self.window.saturating_add(bytes).min(self.ssthresh.max(self.window));
            return;
        }
        let (mss, window) = (f64::from(self.mss), f64::from(self.window));
        let (w_max, w_est) = (&mut self.w_max, &mut self.w_est);
        let (since_ns, k) = *self.epoch.get_or_insert_with(|| {
            *w_est = window;
            *w_max = w_max.max(window);
            (now_ns, ((*w_max - window) / mss / C).cbrt())
        });
        let t = (now_ns.saturating_sub(since_ns) as f64 / 1e9) + f64::from(rtt_us) / 1e6;
        let target = (C * (t - k).powi(3) * mss + *w_max).clamp(window, window * 1.5);
        let alpha = if *w_est < *w_max { ALPHA } else { 1.0 };
        *w_est += alpha * mss * f64::from(bytes) / window;
        let cubic = window + (target - window) * f64::from(bytes) / window;
        self.window = cubic.max(*w_est).min(f64::from(u32::MAX / 4)) as u32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MSS: u32 = 1000;
    const RTT_NS: u64 = 40_000_000;

    /// The window after so many round trips in each of which all of it arrives.
    fn after(cubic: &mut Cubic, round_trips: u64, mut now_ns: u64) -> u64 {
        for _ in 0..round_trips {
            now_ns += RTT_NS;
            let mut left = cubic.window();
            while left > 0 {
                let bytes = left.min(MSS);
                cubic.delivered(bytes, true, now_ns, (RTT_NS / 1000) as u32);
                left -= bytes;
            }
        }
        now_ns
    }

    #[test]
    fn three_tenths_of_the_window_go_with_a_loss_and_it_is_back_when_the_cubic_says() {
        let mut cubic = Cubic::new(1000 * MSS, 0, MSS);
        cubic.lost(1000 * MSS);
        cubic.recovered();
        assert_eq!(cubic.window(), 700 * MSS);
        // K = cbrt(1000 x 0.3 / 0.4) is 9.1 s.
        let now_ns = after(&mut cubic, 110, 0);
        assert!((850 * MSS..990 * MSS).contains(&cubic.window()), "{}", cubic.window());
        after(&mut cubic, 130, now_ns);
        assert!((990 * MSS..1030 * MSS).contains(&cubic.window()), "{}", cubic.window());
    }

    #[test]
    fn a_small_window_grows_as_renos_does() {
        let mut cubic = Cubic::new(10 * MSS, 0, MSS);
        cubic.lost(10 * MSS);
        cubic.recovered();
        assert_eq!(cubic.window(), 7 * MSS);
        after(&mut cubic, 8, 0);
        assert!((10 * MSS..13 * MSS).contains(&cubic.window()), "{}", cubic.window());
    }

    #[test]
    fn a_window_that_is_not_used_does_not_grow() {
        let mut cubic = Cubic::new(10 * MSS, 0, MSS);
        cubic.lost(10 * MSS);
        cubic.recovered();
        for _ in 0..100 {
            cubic.delivered(MSS, false, 1_000_000_000, 40_000);
        }
        assert_eq!(cubic.window(), 7 * MSS);
    }

    #[test]
    fn behind_the_timer_it_begins_with_a_segment_and_doubles_to_seven_tenths() {
        let mut cubic = Cubic::new(100 * MSS, 0, MSS);
        cubic.timed_out(true);
        assert_eq!(cubic.window(), MSS);
        cubic.timed_out(false);
        let now_ns = after(&mut cubic, 3, 0);
        assert_eq!(cubic.window(), 8 * MSS);
        after(&mut cubic, 4, now_ns);
        assert!((70 * MSS..75 * MSS).contains(&cubic.window()), "{}", cubic.window());
    }

    #[test]
    fn what_leaves_while_a_loss_is_made_good_is_a_share_of_what_arrives() {
        let mut cubic = Cubic::new(100 * MSS, 0, MSS);
        cubic.lost(100 * MSS);
        let (mut in_flight, mut sent) = (99 * MSS, 0);
        for _ in 0..90 {
            in_flight -= MSS;
            cubic.reduce(MSS, in_flight, false);
            while in_flight + MSS <= cubic.window() {
                cubic.sent(MSS);
                (in_flight, sent) = (in_flight + MSS, sent + 1);
            }
        }
        assert!((58..=66).contains(&sent), "{sent} of 90");
        cubic.recovered();
        assert_eq!(cubic.window(), 70 * MSS);
    }
}
