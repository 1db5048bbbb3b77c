//! What a controller may do: which timeouts, how often, and what it falls back to.

use lull_core::{Mode, NapiSettings, Threaded};

use crate::{Bound, Slo, Statistic};

/// The shortest `gro_flush_timeout`, in nanoseconds. Below it a timer costs more than the interrupt that it replaces.
pub const TIMEOUT_NS_MIN: u64 = 5_000;
/// The share of a limit at which the controller aims, in percent.
pub const AIM_PERCENT: u64 = 90;
/// `napi_defer_hard_irqs` of a queue that has a timeout: empty polls for which it stays without its interrupt, as in
/// the published modes.
const DEFER_HARD_IRQS: u32 = 100;
/// The longest `irq_suspend_timeout`, in nanoseconds, as in the published modes.
const SUSPEND_NS_MAX: u64 = 20_000_000;

/// The bounds of a controller.
#[derive(Clone, Debug, PartialEq)]
pub struct Bounds {
    /// Settings of the mode that was asked for. A controller begins with them and falls back to them.
    pub asked: NapiSettings,
    /// Whether interrupts are suspended while the application works.
    pub suspends: bool,
    /// The longest `gro_flush_timeout`, in nanoseconds.
    pub timeout_ns_max: u64,
    /// The longest `irq_suspend_timeout`, in nanoseconds.
    pub suspend_ns_max: u64,
    /// The greatest use of the CPUs, in percent; 100 is no bound.
    pub cpu_percent_max: f64,
}

/// The error for a mode that has no timeout to choose.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "cannot choose the timeouts of mode '{0}' for an objective: it has none that trade CPU for latency; ask for base, \
     deferX or suspendX, such as suspend20"
)]
pub struct NoTimeout(String);

impl Bounds {
    /// The bounds for an objective and the mode to begin with.
    ///
    /// # Errors
    /// The mode is another than base, deferX, suspend0 and suspendX.
    pub fn new(slo: &Slo, mode: &Mode, cpu_percent_max: Option<f64>) -> Result<Bounds, NoTimeout> {
        let has_timeouts = mode.napi.threaded == Threaded::Off
            && mode.group.is_none()
            && mode.rx_usecs.is_none()
            && mode.socket_busy_poll_usecs == 0
            && mode.epoll.busy_poll_usecs == 0
            && mode.app.timeout().is_none()
            && mode.suspends() == mode.epoll.prefer_busy_poll;
        if !has_timeouts {
            return Err(NoTimeout(mode.name().to_owned()));
        }
        let limit_ns = slo.tightest_ns();
        // A packet waits for a whole timeout at the worst, and for half of one on average.
        let timeout_ns = |bound: &Bound| match bound.statistic {
            Statistic::Avg | Statistic::P50 => 2 * bound.limit_ns,
            Statistic::P95 | Statistic::P99 => bound.limit_ns,
        };
        let longest_ns = slo.bounds().iter().map(timeout_ns).min().unwrap_or(limit_ns);
        Ok(Bounds {
            asked: mode.napi,
            suspends: mode.suspends(),
            timeout_ns_max: (longest_ns * AIM_PERCENT / 100).max(TIMEOUT_NS_MIN),
            suspend_ns_max: (4 * limit_ns).clamp(1_000_000, SUSPEND_NS_MAX),
            cpu_percent_max: cpu_percent_max.unwrap_or(100.0),
        })
    }

    /// The timeout to begin with.
    pub(crate) fn first_ns(&self) -> u64 {
        self.asked.gro_flush_timeout_ns.clamp(TIMEOUT_NS_MIN, self.timeout_ns_max)
    }

    /// Settings with these timeouts.
    pub(crate) fn deferred(&self, timeout_ns: u64, suspend_ns: u64) -> NapiSettings {
        NapiSettings {
            defer_hard_irqs: match self.asked.defer_hard_irqs {
                0 => DEFER_HARD_IRQS,
                asked => asked,
            },
            gro_flush_timeout_ns: timeout_ns,
            irq_suspend_timeout_ns: if self.suspends { suspend_ns.max(timeout_ns) } else { 0 },
            threaded: Threaded::Off,
            ..NapiSettings::default()
        }
    }
}
