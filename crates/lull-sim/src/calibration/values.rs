//! Which keys of a world file calibration finds.

/// A key of a world file that calibration finds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Key {
    /// Its section and name, such as `costs.irq`.
    pub name: &'static str,
    /// Its unit: ns, or a share.
    pub unit: &'static str,
    /// The plausible range.
    pub range: [f64; 2],
    /// Where the search begins if it was not measured.
    pub start: f64,
    /// On which planes the key has a meaning.
    pub planes: Planes,
    /// What it means.
    pub meaning: &'static str,
}

/// Keys for which a micro-benchmark shows an upper bound: it interrupts a thread that computes each time, while a
/// service is often about to sleep, or shares the cache misses with what follows.
const FROM_ABOVE: [&str; 2] = ["costs.irq", "costs.timer_irq"];

/// The planes on which a key has a meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Planes {
    /// On both.
    Both,
    /// On lull's own host.
    User,
    /// On the kernel plane.
    Kernel,
}

impl Key {
    /// Whether its measured value is an upper bound.
    pub(super) fn is_from_above(&self) -> bool {
        FROM_ABOVE.contains(&self.name)
    }

    /// Whether a plane has the key.
    pub fn is_of(&self, user_plane: bool) -> bool {
        self.planes == Planes::Both || (self.planes == Planes::User) == user_plane
    }
}

const fn ns(name: &'static str, range: [f64; 2], start: f64, planes: Planes, meaning: &'static str) -> Key {
    Key { name, unit: "ns", range, start, planes, meaning }
}

use Planes::{Both, Kernel, User};

/// All of them, in the order of the file's sections.
pub const KEYS: [Key; 25] = [
    ns("network.latency", [100.0, 200_000.0], 1_500.0, Both, "there and back, without the server"),
    ns("network.jitter", [0.0, 50_000.0], 300.0, Both, "mean of a random time on top of it"),
    Key {
        name: "network.slow_share",
        unit: "share",
        range: [0.001, 0.2],
        start: 0.012,
        planes: Both,
        meaning: "answers that take longer still, because of what else the machine does",
    },
    ns("network.slow_to", [1_000.0, 5_000_000.0], 30_000.0, Both, "by how much, at the most"),
    ns("load.generator_send", [0.0, 20_000.0], 200.0, Both, "the generator sends a request"),
    ns("load.generator_answer", [0.0, 20_000.0], 200.0, Both, "the generator takes an answer"),
    ns("load.generator_raise", [0.0, 60_000.0], 5_000.0, User, "the generator wakes the server"),
    ns("service.request_cost_own", [50.0, 50_000.0], 500.0, Both, "the application's part of a request"),
    ns("costs.irq", [0.0, 60_000.0], 6_000.0, Both, "an interrupt that interrupts a worker"),
    ns("costs.timer_irq", [0.0, 60_000.0], 6_000.0, Both, "a timer that interrupts a worker"),
    ns("costs.timer_start", [0.0, 10_000.0], 100.0, Both, "starting a timer"),
    ns("costs.timer_late", [0.0, 500_000.0], 15_000.0, User, "how late a timer wakes a worker that sleeps"),
    ns("costs.softirq", [10.0, 5_000.0], 100.0, Kernel, "entering softirq"),
    ns("costs.poll", [5.0, 5_000.0], 60.0, Both, "a poll, whatever it finds"),
    ns("costs.rx_request", [20.0, 10_000.0], 150.0, Both, "receiving a request"),
    ns("costs.wake", [0.0, 30_000.0], 2_000.0, Both, "waking a thread, for the waker"),
    ns("costs.switch", [0.0, 30_000.0], 2_000.0, Both, "switching to a thread"),
    ns("costs.epoll_call", [5.0, 5_000.0], 80.0, Both, "a call of epoll_wait"),
    ns("costs.epoll_sleep", [50.0, 60_000.0], 4_000.0, Both, "going to sleep in it, and coming back"),
    ns("costs.epoll_event", [1.0, 1_000.0], 20.0, Both, "copying an event out"),
    ns("costs.busy_call", [5.0, 5_000.0], 50.0, Both, "entering the busy loop"),
    ns("costs.busy_round", [5.0, 5_000.0], 60.0, Both, "a round of the busy loop without the poll"),
    ns(
        "costs.idle_shallow_exit",
        [100.0, 300_000.0],
        15_000.0,
        Both,
        "from an interrupt out of idle until the worker runs",
    ),
    ns("costs.cold_packet", [0.0, 10_000.0], 50.0, Both, "a packet whose connection has gone cold"),
    ns("costs.cold_request", [0.0, 10_000.0], 100.0, Both, "a request whose connection has gone cold"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_start_is_within_its_range() {
        for key in KEYS {
            assert!((key.range[0]..=key.range[1]).contains(&key.start), "{}", key.name);
        }
        let late = KEYS.iter().find(|key| key.name == "costs.timer_late");
        assert!(late.is_some_and(|key| key.is_of(true) && !key.is_of(false)));
    }
}
