//! The properties of an AF_XDP responder in a world file, and what can be asked of it.

use lull_core::{Mode, Threaded};
use lull_units::time_text;

use crate::costs::Costs;
use crate::world::Traffic;

/// Packets per round of busy polling, as AF_XDP programs ask for.
pub(super) const BUSY_BUDGET: u32 = 64;
/// A twin sends at least this often, because once a second would leave nothing to count.
const TWIN_PER_S_MIN: f64 = 10.0;

/// How the program waits for frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// It waits in `epoll_wait` (`service.wait = "epoll"`, the default).
    Epoll,
    /// It looks at its ring in user space (`service.wait = "spin"`).
    Spin,
}

/// An AF_XDP responder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AfXdp {
    /// How it waits.
    pub wait: Wait,
    /// Whether a thread on a core of its own makes the calls that busy poll (`service.polling = "separate"`).
    pub separate: bool,
    /// Frames that it takes at a time (`service.batch`).
    pub batch: u32,
    /// Whether its clients are twins, and how long a twin is busy after each answer, in nanoseconds (`service.client =
    /// "twin"`, `service.client_delay`).
    pub twin_delay_ns: Option<u32>,
}

impl AfXdp {
    /// Checks whether it can be run in a mode.
    pub(super) fn can_run(&self, mode: &Mode, (cores, workers): (u16, u16)) -> Result<(), String> {
        match self.wait {
            Wait::Epoll if mode.socket_busy_poll_usecs != 0 => Err(format!(
                "{mode} busy polls in receive calls, and the simulated responder waits in epoll: leave {mode} out, or \
                 describe one that looks at its ring (wait = \"spin\")"
            )),
            Wait::Epoll => Ok(()),
            Wait::Spin if mode.epoll.prefer_busy_poll || mode.epoll.busy_poll_usecs != 0 => Err(format!(
                "{mode} acts in epoll_wait, which the simulated responder never calls (wait = \"spin\"): leave {mode} \
                 out; what its own calls can do is busyread"
            )),
            Wait::Spin => {
                let needed = match mode.napi.threaded {
                    Threaded::Off => 0,
                    // A NAPI thread that sleeps may share its core with others; one that spins may not.
                    Threaded::On => 1,
                    Threaded::BusyPoll => workers,
                };
                if cores.saturating_sub(workers) >= needed {
                    return Ok(());
                }
                Err(format!(
                    "{mode} takes {needed} of machine.cores besides the {workers} on which workers spin, since a NAPI \
                     thread would wait behind them: leave {mode} out, or add cores"
                ))
            }
        }
    }

    /// Checks whether its clients can offer this load.
    pub(super) fn can_offer(&self, traffic: Traffic) -> Result<(), String> {
        match (self.twin_delay_ns, traffic) {
            (Some(_), Traffic::Open { per_s }) if per_s >= TWIN_PER_S_MIN => Ok(()),
            (Some(_), Traffic::Open { .. }) => {
                Err(format!("a twin client sends {TWIN_PER_S_MIN} frames a second at the least: ask for more"))
            }
            (Some(_), _) => Err("a twin client sends at a fixed rate and has no maximum, nor shares of one: ask for \
                                 loads in frames per second, such as 32K"
                .to_owned()),
            (None, _) => Ok(()),
        }
    }

    /// Returns what its program sets on its sockets for a mode that busy polls in their calls.
    pub(super) fn socket_options(&self, mode: &Mode) -> String {
        let whose = if self.separate {
            "and a thread on a core of its own makes their calls"
        } else {
            "and makes their calls itself"
        };
        format!(
            "the program sets on its AF_XDP sockets: SO_BUSY_POLL {}, SO_PREFER_BUSY_POLL 1, SO_BUSY_POLL_BUDGET \
             {BUSY_BUDGET}, {whose}",
            mode.socket_busy_poll_usecs
        )
    }

    /// Describes it, for a line that describes the world.
    pub(super) fn describe(&self, costs: &Costs) -> String {
        let text = |ns: u32| time_text(u64::from(ns));
        let wait = match (self.wait, self.separate) {
            (Wait::Epoll, _) => "waiting in epoll",
            (Wait::Spin, false) => "spinning",
            (Wait::Spin, true) => "spinning, polled for by other cores",
        };
        let clients = match self.twin_delay_ns {
            None => String::new(),
            Some(delay_ns) => format!(", twin clients with {} of delay", text(delay_ns)),
        };
        format!(
            "AF_XDP responder {wait}{clients}, {} to receive, {} to handle, {} to send",
            text(costs.rx_request_ns),
            text(costs.recv_take_ns),
            text(costs.send_ns)
        )
    }
}
