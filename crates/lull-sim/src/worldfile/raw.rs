//! A world file as it is written: keys and their types. [`super::resolve`] has the values that are possible.

use serde::Deserialize;
use toml::Spanned;

use crate::costs::Costs;
use crate::engine::cache::CacheSpec;
use crate::units::{Count, Frequency, Share, Size, Speed, Time};

/// The whole file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Raw {
    pub(super) machine: Machine,
    pub(super) nic: Nic,
    pub(super) network: Network,
    pub(super) service: Service,
    #[serde(default)]
    pub(super) load: Load,
    pub(super) group: Option<Group>,
    pub(super) transmit: Option<Transmit>,
    pub(super) second: Option<Second>,
    pub(super) instructions: Option<RawInstructions>,
    #[serde(default)]
    pub(super) costs: RawCosts,
    #[serde(default)]
    pub(super) run: Run,
}

impl Raw {
    /// Whether the file describes an AF_XDP responder.
    pub(super) fn is_af_xdp(&self) -> bool {
        self.service.kind.get_ref() == "af_xdp"
    }
}

/// `[machine]`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Machine {
    pub(super) cores: Spanned<Count>,
    pub(super) frequency: Option<Spanned<Frequency>>,
    pub(super) idle: Option<Spanned<String>>,
    pub(super) l3_cores: Option<Spanned<Count>>,
    pub(super) plane: Option<Spanned<String>>,
    pub(super) after_resume: Option<Spanned<String>>,
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
    pub(super) spread: Option<Spanned<Vec<u32>>>,
    pub(super) driver: Option<Spanned<String>>,
    pub(super) calibrated: Option<Spanned<String>>,
    pub(super) tx_completions: Option<bool>,
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
    pub(super) request_cost_own: Option<Spanned<Time>>,
    pub(super) user_share: Option<Spanned<Share>>,
    pub(super) random_share: Option<Spanned<Share>>,
    pub(super) events_max: Option<Spanned<Count>>,
    pub(super) answers_together: Option<Spanned<Count>>,
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

/// `[load]`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Load {
    pub(super) arrivals: Option<Spanned<String>>,
    pub(super) trace: Option<Spanned<String>>,
    pub(super) sizes: Option<Spanned<String>>,
    pub(super) acks: Option<Spanned<bool>>,
    pub(super) generator_send: Option<Spanned<Time>>,
    pub(super) generator_answer: Option<Spanned<Time>>,
    pub(super) generator_raise: Option<Spanned<Time>>,
}

/// `[group]`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Group {
    pub(super) cpus: Spanned<String>,
    pub(super) queues: Option<Spanned<String>>,
    pub(super) cycles: Option<Spanned<Share>>,
    pub(super) cycles_total: Option<Spanned<Share>>,
    pub(super) wake_above: Option<Spanned<Share>>,
    pub(super) park_below: Option<Spanned<Share>>,
    pub(super) dry_run: Option<bool>,
}

/// `[transmit]`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Transmit {
    pub(super) qdisc: Spanned<String>,
    pub(super) ring: Option<Spanned<Count>>,
    pub(super) limit: Option<Spanned<Count>>,
    pub(super) flow_limit: Option<Spanned<Count>>,
}

/// `[second]`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Second {
    pub(super) connections: Spanned<Count>,
    pub(super) load: Spanned<Count>,
    pub(super) request_cost: Spanned<Time>,
}

/// `[instructions]`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawInstructions {
    pub(super) request: Spanned<Count>,
    pub(super) poll: Spanned<Count>,
    pub(super) interrupt: Option<Spanned<Count>>,
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

/// The costs that `[costs]` overrides.
pub(super) struct Over<'a> {
    pub(super) costs: &'a mut Costs,
    pub(super) cache: &'a mut CacheSpec,
}

macro_rules! costs {
    ($($key:ident => $($place:ident).+,)*) => {
        /// `[costs]`: the profile, and costs that are known better.
        #[derive(Debug, Default, Deserialize)]
        #[serde(deny_unknown_fields)]
        pub(super) struct RawCosts {
            pub(super) profile: Option<Spanned<String>>,
            pub(super) cache_requests: Option<Spanned<Count>>,
            $($key: Option<Spanned<Time>>,)*
        }

        impl RawCosts {
            /// Puts the given values into `costs`, each as `check` returns it; returns the keys that were given.
            pub(super) fn put_over<E>(
                &self,
                over: &mut Over<'_>,
                check: impl Fn(&'static str, &Spanned<Time>) -> Result<u32, E>,
            ) -> Result<Vec<&'static str>, E> {
                let mut written = Vec::new();
                $(if let Some(value) = &self.$key {
                    over.$($place).+ = check(stringify!($key), value)?;
                    written.push(stringify!($key));
                })*
                Ok(written)
            }
        }
    };
}

costs! {
    irq => costs.irq_ns,
    timer_irq => costs.timer_irq_ns,
    timer_start => costs.timer_start_ns,
    timer_late => costs.timer_late_ns,
    ipi => costs.ipi_ns,
    softirq => costs.softirq_ns,
    poll => costs.poll_ns,
    rx_request => costs.rx_request_ns,
    rx_ack => costs.rx_ack_ns,
    tx_done => costs.tx_done_ns,
    wake => costs.wake_ns,
    switch => costs.switch_ns,
    epoll_call => costs.epoll_call_ns,
    epoll_sleep => costs.epoll_sleep_ns,
    epoll_event => costs.epoll_event_ns,
    busy_call => costs.busy_call_ns,
    busy_round => costs.busy_round_ns,
    recv_call => costs.recv_call_ns,
    cold_busy => costs.cold_busy_ns,
    tx_frame => costs.tx_frame_ns,
    doorbell => costs.doorbell_ns,
    spin => costs.spin_ns,
    group_look => costs.group_look_ns,
    group_pass => costs.group_pass_ns,
    group_claim => costs.group_claim_ns,
    dry_run => costs.dry_run_ns,
    idle_shallow_exit => costs.idle_shallow_exit_ns,
    idle_deep_exit => costs.idle_deep_exit_ns,
    idle_deep_residency => costs.idle_deep_residency_ns,
    cold_packet => cache.cold_packet_ns,
    cold_request => cache.cold_request_ns,
    broken_packet => cache.broken_packet_ns,
    broken_thread => cache.broken_thread_ns,
    cross_packet => cache.cross_packet_ns,
    cross_request => cache.cross_request_ns,
}
