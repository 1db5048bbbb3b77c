//! Draws the parts of a world, kind by kind.

use lull_core::epoll::TimeoutZero;
use lull_core::group::{Budget, Thresholds};
use lull_core::{EpollOptions, EpollParams, GroupConfig, NapiSettings, Threaded, Unpolled};

use crate::engine::dim::Moderation;
use crate::engine::rng::Stream;
use crate::world::{ModerationSpec, Period};
use crate::{Costs, FaultSpec};

pub(super) struct Draw(pub(super) Stream);

impl Draw {
    pub(super) fn chance(&mut self, percent: u32) -> bool {
        self.0.below(100) < percent
    }

    /// Draws a number from `low` to `high`, both included.
    pub(super) fn between(&mut self, low: u32, high: u32) -> u32 {
        low + self.0.below(high - low + 1)
    }

    pub(super) fn one_of<T: Copy>(&mut self, these: &[T]) -> T {
        these[self.0.below(these.len() as u32) as usize]
    }

    pub(super) fn settings(&mut self, threaded: Threaded) -> NapiSettings {
        let defer_hard_irqs = self.one_of(&[0, 0, 1, 1, 2, 3, 5, 20, 100]);
        let gro_us = self.one_of(&[0, 0, 5, 10, 20, 50, 100, 200]);
        let suspend_us = self.one_of(&[0, 0, 50, 200, 500, 1_000, 3_000, 20_000]);
        NapiSettings {
            defer_hard_irqs,
            gro_flush_timeout_ns: gro_us * 1_000,
            irq_suspend_timeout_ns: suspend_us * 1_000,
            threaded,
            // This follows from the timeout, so that what was drawn from a seed before stays the same.
            unpolled: if gro_us >= 100 { Unpolled::Interrupt } else { Unpolled::Deferral },
        }
    }

    pub(super) fn params(&mut self) -> EpollParams {
        EpollParams {
            busy_poll_usecs: self.one_of(&[0, 0, 0, 5, 20, 64]),
            busy_poll_budget: self.one_of(&[0, 1, 2, 4, 8, 16, 64]),
            prefer_busy_poll: self.chance(65),
        }
    }

    pub(super) fn threaded(&mut self) -> Threaded {
        self.one_of(&[Threaded::Off, Threaded::Off, Threaded::Off, Threaded::On, Threaded::On, Threaded::BusyPoll])
    }

    pub(super) fn moderation(&mut self) -> ModerationSpec {
        match self.between(0, 4) {
            0 => ModerationSpec::Adaptive,
            1 => ModerationSpec::Fixed(Moderation { usecs: self.between(1, 40), frames: self.between(1, 64) }),
            _ => ModerationSpec::Off,
        }
    }

    pub(super) fn period(&mut self) -> Period {
        self.one_of(&[Period::Completion, Period::First, Period::Interrupt])
    }

    pub(super) fn options(&mut self) -> EpollOptions {
        if self.chance(60) {
            return EpollOptions::strict_linux();
        }
        EpollOptions {
            resume_on_id_change: self.chance(60),
            poll_after_returns: self.one_of(&[0, 1, 3, 8]),
            timeout_zero: if self.chance(60) { TimeoutZero::PollOnce } else { TimeoutZero::Return },
            every_napi: self.chance(60),
            tour_when_woken: self.chance(60),
            catch_up: self.chance(60),
        }
    }

    pub(super) fn weight(&mut self) -> u32 {
        self.one_of(&[1, 4, 16, 64, 64])
    }

    pub(super) fn group_config(&mut self) -> GroupConfig {
        let percent = |draw: &mut Draw| draw.one_of(&[None, None, None, Some(5), Some(30), Some(100)]);
        GroupConfig {
            rest_ns: self.one_of(&[None, Some(0), Some(5_000), Some(50_000)]),
            budget: Budget { empty_percent: percent(self), total_percent: percent(self) },
            thresholds: self.one_of(&[
                Thresholds::default(),
                Thresholds { wake_above: 20, park_below: 10 },
                Thresholds { wake_above: 100, park_below: 99 },
            ]),
            dry_run: self.one_of(&[false, false, true]),
        }
    }

    pub(super) fn costs(&mut self) -> Costs {
        let mut cost = |low, high| self.between(low, high);
        Costs {
            irq_ns: cost(100, 2_000),
            timer_irq_ns: cost(100, 1_500),
            ipi_ns: cost(100, 1_000),
            softirq_ns: cost(50, 500),
            poll_ns: cost(50, 3_000),
            rx_request_ns: cost(50, 2_000),
            rx_ack_ns: cost(50, 800),
            tx_done_ns: cost(20, 200),
            wake_ns: cost(50, 1_000),
            switch_ns: cost(200, 2_000),
            epoll_call_ns: cost(100, 1_500),
            epoll_sleep_ns: cost(50, 1_500),
            epoll_event_ns: cost(20, 200),
            busy_call_ns: cost(50, 500),
            busy_round_ns: cost(200, 4_000),
            request_sys_ns: cost(200, 6_000),
            request_user_ns: cost(0, 6_000),
            request_random_ns: if cost(0, 3) == 0 { cost(1, 3_000) } else { 0 },
            idle_shallow_exit_ns: cost(100, 2_000),
            idle_deep_exit_ns: cost(2_000, 60_000),
            idle_deep_residency_ns: cost(10_000, 600_000),
            ..Costs::default()
        }
    }

    pub(super) fn faults(&mut self) -> FaultSpec {
        let mut faults = FaultSpec { between_calls_ns: self.between(2_000, 20_000), ..FaultSpec::default() };
        if self.chance(50) {
            faults.timer_late_max_ns = self.one_of(&[500, 5_000, 60_000, 400_000]);
        }
        if self.chance(50) {
            faults.slow_poll_share = self.one_of(&[4, 30, 200]);
            faults.slow_poll_max_ns = self.one_of(&[10_000, 60_000, 300_000]);
        }
        if self.chance(50) {
            faults.tail_max_ns = self.one_of(&[200, 1_000, 8_000]);
        }
        if self.chance(40) {
            faults.settle_late_share = self.one_of(&[4, 30, 300]);
            faults.settle_late_max_ns = self.one_of(&[500, 5_000, 40_000]);
        }
        if self.chance(60) {
            faults.stall_share = self.one_of(&[1, 4, 20]);
            faults.stall_max_ns = self.one_of(&[50_000, 500_000, 4_000_000]);
        }
        faults
    }
}
