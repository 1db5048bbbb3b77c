//! A world file as it is written: keys and their kinds. What values are possible is in [`super::resolve`].

use serde::Deserialize;
use toml::Spanned;

use crate::costs::Costs;
use crate::units::{Count, Frequency, Share, Size, Speed, Time};

/// The whole file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Raw {
    pub(super) machine: Machine,
    pub(super) nic: Nic,
    pub(super) network: Network,
    pub(super) service: Service,
    pub(super) second: Option<Second>,
    #[serde(default)]
    pub(super) costs: RawCosts,
    #[serde(default)]
    pub(super) run: Run,
}

/// `[machine]`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Machine {
    pub(super) cores: Spanned<Count>,
    pub(super) frequency: Option<Spanned<Frequency>>,
    pub(super) idle: Option<Spanned<String>>,
}

/// `[nic]`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Nic {
    pub(super) queues: Option<Spanned<Count>>,
    pub(super) speed: Spanned<Speed>,
    pub(super) adaptive: Option<Spanned<bool>>,
    pub(super) rx_usecs: Option<Spanned<Time>>,
    pub(super) rx_frames: Option<Spanned<Count>>,
    pub(super) tx_usecs: Option<Spanned<Time>>,
    pub(super) tx_frames: Option<Spanned<Count>>,
    pub(super) restart: Option<Spanned<bool>>,
    pub(super) ring: Option<Spanned<Count>>,
    pub(super) rss: Option<Spanned<String>>,
}

/// `[network]`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Network {
    pub(super) latency: Spanned<Time>,
    pub(super) jitter: Option<Spanned<Time>>,
    pub(super) slow_share: Option<Spanned<Share>>,
    pub(super) slow_from: Option<Spanned<Time>>,
    pub(super) slow_to: Option<Spanned<Time>>,
}

/// `[service]`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Service {
    pub(super) kind: Spanned<String>,
    pub(super) workers: Option<Spanned<Count>>,
    pub(super) worker_cores: Option<Spanned<String>>,
    pub(super) connections: Option<Spanned<Count>>,
    pub(super) request_cost: Option<Spanned<Time>>,
    pub(super) request_cost_total: Option<Spanned<Time>>,
    pub(super) user_share: Option<Spanned<Share>>,
    pub(super) random_share: Option<Spanned<Share>>,
    pub(super) events_max: Option<Spanned<Count>>,
    pub(super) poll_after_returns: Option<Spanned<Count>>,
    pub(super) request_size: Option<Spanned<Size>>,
    pub(super) answer_size: Option<Spanned<Size>>,
    pub(super) upstream_latency: Option<Spanned<Time>>,
    pub(super) upstream_jitter: Option<Spanned<Time>>,
    pub(super) wait: Option<Spanned<String>>,
    pub(super) polling: Option<Spanned<String>>,
    pub(super) batch: Option<Spanned<Count>>,
    pub(super) receive_cost: Option<Spanned<Time>>,
    pub(super) handle_cost: Option<Spanned<Time>>,
    pub(super) send_cost: Option<Spanned<Time>>,
    pub(super) client: Option<Spanned<String>>,
    pub(super) client_delay: Option<Spanned<Time>>,
}

/// `[second]`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Second {
    pub(super) connections: Spanned<Count>,
    pub(super) load: Spanned<Count>,
    pub(super) request_cost: Spanned<Time>,
}

/// `[run]`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Run {
    pub(super) warmup: Option<Spanned<Time>>,
    pub(super) events_max: Option<Spanned<Count>>,
    pub(super) memory_max: Option<Spanned<Size>>,
    pub(super) backlog_max: Option<Spanned<Count>>,
}

macro_rules! costs {
    ($($key:ident => $field:ident,)*) => {
        /// `[costs]`: the profile, and what is known better.
        #[derive(Debug, Default, Deserialize)]
        #[serde(deny_unknown_fields)]
        pub(super) struct RawCosts {
            pub(super) profile: Option<Spanned<String>>,
            $($key: Option<Spanned<Time>>,)*
        }

        impl RawCosts {
            /// Puts what is written over `costs`, each value as `check` passes it on; the keys that were written.
            pub(super) fn put_over<E>(
                &self,
                costs: &mut Costs,
                check: impl Fn(&'static str, &Spanned<Time>) -> Result<u32, E>,
            ) -> Result<Vec<&'static str>, E> {
                let mut written = Vec::new();
                $(if let Some(value) = &self.$key {
                    costs.$field = check(stringify!($key), value)?;
                    written.push(stringify!($key));
                })*
                Ok(written)
            }
        }
    };
}

costs! {
    irq => irq_ns,
    timer_irq => timer_irq_ns,
    ipi => ipi_ns,
    softirq => softirq_ns,
    poll => poll_ns,
    rx_request => rx_request_ns,
    rx_ack => rx_ack_ns,
    tx_done => tx_done_ns,
    wake => wake_ns,
    switch => switch_ns,
    epoll_call => epoll_call_ns,
    epoll_sleep => epoll_sleep_ns,
    epoll_event => epoll_event_ns,
    busy_call => busy_call_ns,
    busy_round => busy_round_ns,
    recv_call => recv_call_ns,
    cold_busy => cold_busy_ns,
    tx_frame => tx_frame_ns,
    spin => spin_ns,
    idle_shallow_exit => idle_shallow_exit_ns,
    idle_deep_exit => idle_deep_exit_ns,
    idle_deep_residency => idle_deep_residency_ns,
}
