//! Delivery modes: named sets of settings, with the names of the published test cases.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::epoll::EpollParams;
use crate::settings::{NapiSettings, Threaded, Unpolled};

/// What a mode asks of the application.
#[must_use = "a mode may ask the application to wait with a timeout: hand `timeout()` to each wait"]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AppPolicy {
    /// Waits in `epoll_wait` without a timeout.
    Blocking,
    /// Waits at most this many milliseconds at a time, so that `epoll_wait` is never left (fullbusy).
    TimeoutMs(u32),
}

/// For how long after its last event a context of an unmodified program is busy polled, on both planes, in a mode whose
/// application [never waits for long](AppPolicy::TimeoutMs). A program whose packets are further apart sleeps between
/// them.
pub const POLLED_AFTER_EVENT_NS: u64 = 100_000_000;

impl AppPolicy {
    /// The timeout of each wait in epoll; `None` is for ever.
    pub fn timeout(self) -> Option<Duration> {
        match self {
            AppPolicy::Blocking => None,
            AppPolicy::TimeoutMs(ms) => Some(Duration::from_millis(u64::from(ms))),
        }
    }
}

/// A named set of delivery settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mode {
    name: String,
    /// Settings of every NAPI.
    pub napi: NapiSettings,
    /// Parameters of every epoll context.
    pub epoll: EpollParams,
    /// SO_BUSY_POLL of every socket, in microseconds.
    pub socket_busy_poll_usecs: u32,
    /// Interrupt coalescing that the mode asks of the NIC, in microseconds (`ethtool -C rx-usecs`); `None` leaves it as
    /// it is. This belongs to the device and not to the NAPI: whoever puts a mode in force applies it, or refuses the
    /// mode.
    pub rx_usecs: Option<u32>,
    /// Whether the NAPIs are polled by a busy-polling CPU group, and how.
    pub group: Option<GroupPolling>,
    /// What the application does.
    pub app: AppPolicy,
}

/// How the CPU group of a mode polls. The machine, and not the mode, says which CPUs it has and what they may spend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupPolling {
    /// The last poller that is awake rests after so many nanoseconds of empty passes; `None`: it never does.
    pub rest_ns: Option<u64>,
    /// Whether the group sends as well (§16): the transmit queues are members, and no application drains them.
    pub transmit: bool,
}

/// Where a mode can be put in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plane {
    /// lull's own stack.
    User,
    /// Linux, by netlink and EPIOCSPARAMS.
    Kernel,
    /// The simulator, with programs that wait in `epoll_wait`.
    Simulated,
}

/// One mode, or one family of them: its name, what it sets, where it works, and how it is explained.
#[derive(Clone, Copy, Debug)]
pub struct CatalogueEntry {
    /// Its name; a closing X stands for microseconds.
    pub form: &'static str,
    /// What it does, in one line.
    pub help: &'static str,
    /// The planes on which it can be put in force.
    pub planes: &'static [Plane],
    /// The first Linux, as major and minor version, that has the settings per NAPI that this needs; `None` if it needs
    /// none.
    pub linux: Option<(u32, u32)>,
    /// Makes the mode of this name; for a family, with this many microseconds.
    make: fn(name: &str, us: u64) -> Option<Mode>,
}

/// Every mode that there is, in the order in which they are listed. Help texts, errors and parsing come from here.
pub const CATALOGUE: [CatalogueEntry; 14] = [
    CatalogueEntry {
        form: "base",
        help: "interrupts, as Linux comes",
        planes: &[Plane::User, Plane::Kernel, Plane::Simulated],
        linux: None,
        make: |name, _| Some(Mode::plain(name)),
    },
    CatalogueEntry {
        form: "deferX",
        help: "after a poll the interrupt stays masked, and the queue is polled every X us up to 100 times",
        planes: &[Plane::User, Plane::Kernel, Plane::Simulated],
        linux: Some((6, 13)),
        make: |name, us| (us != 0).then(|| Mode::deferred(name, us)),
    },
    CatalogueEntry {
        form: "napibusy",
        help: "epoll_wait busy polls for 64 us before it sleeps; interrupts are deferred by 200 us",
        planes: &[Plane::User, Plane::Kernel, Plane::Simulated],
        linux: Some((6, 13)),
        make: |name, _| Some(Mode::deferred(name, 200).preferring(64)),
    },
    CatalogueEntry {
        form: "fullbusy",
        help: "epoll_wait busy polls and never sleeps for longer than 1 ms: the lowest latency, a whole CPU per worker",
        planes: &[Plane::User, Plane::Kernel, Plane::Simulated],
        linux: Some((6, 13)),
        make: |name, _| {
            let mut mode = Mode::deferred(name, 5_000).preferring(1_000);
            mode.app = AppPolicy::TimeoutMs(1);
            Some(mode)
        },
    },
    CatalogueEntry {
        form: "suspend0",
        help: "suspension without deferral, which cannot engage: busy polling where there is work, else interrupts",
        planes: &[Plane::User, Plane::Kernel, Plane::Simulated],
        linux: Some((6, 13)),
        make: |name, _| Some(Mode::plain(name).suspending()),
    },
    CatalogueEntry {
        form: "suspendX",
        help: "no interrupts while the application finds work; deferX when it does not",
        planes: &[Plane::User, Plane::Kernel, Plane::Simulated],
        linux: Some((6, 13)),
        make: |name, us| (us != 0).then(|| Mode::deferred(name, us).suspending()),
    },
    CatalogueEntry {
        form: "threaded",
        help: "a kernel thread per queue polls instead of softirq",
        planes: &[Plane::User, Plane::Kernel, Plane::Simulated],
        linux: Some((6, 17)),
        make: |name, _| Some(Mode::threaded(name, Threaded::On)),
    },
    CatalogueEntry {
        form: "threaded-busy",
        help: "a thread per queue that busy polls for ever, with the interrupt masked: a whole CPU per queue",
        planes: &[Plane::User, Plane::Kernel, Plane::Simulated],
        linux: Some((6, 19)),
        make: |name, _| Some(Mode::threaded(name, Threaded::BusyPoll)),
    },
    CatalogueEntry {
        form: "group",
        help: "a busy-polling group of CPUs receives and sends on all queues: one CPU at low load, more under pressure",
        planes: &[Plane::User],
        linux: None,
        make: |name, _| Some(Mode::grouped(name, None, true)),
    },
    CatalogueEntry {
        form: "group-rx",
        help: "group for receiving only: applications send",
        planes: &[Plane::User],
        linux: None,
        make: |name, _| Some(Mode::grouped(name, None, false)),
    },
    CatalogueEntry {
        form: "groupX",
        help: "group, whose last CPU rests after X us without a packet, with interrupts unmasked",
        planes: &[Plane::User],
        linux: None,
        make: |name, us| (us != 0).then(|| Mode::grouped(name, Some(us), true)),
    },
    CatalogueEntry {
        form: "busyread",
        help: "a socket that receives busy polls for 400 us (SO_BUSY_POLL); interrupts are deferred by 15 us",
        planes: &[Plane::User, Plane::Kernel],
        linux: Some((6, 13)),
        make: |name, _| {
            let mut mode = Mode::deferred(name, 15);
            mode.socket_busy_poll_usecs = 400;
            Some(mode)
        },
    },
    CatalogueEntry {
        form: "longgro",
        help: "a deferral of 20 ms in place of suspension, as the series' FAQ discusses it",
        planes: &[Plane::User, Plane::Kernel, Plane::Simulated],
        linux: Some((6, 13)),
        make: |name, _| Some(Mode::deferred(name, 20_000).preferring(0)),
    },
    CatalogueEntry {
        // The counter-design of the series' FAQ: the NIC's coalescing as the short timeout. Without deferral the interrupt is
        // unmasked after every poll, so suspension cannot engage.
        form: "coalesce-X",
        help: "suspend0 with the NIC's own coalescing of X us as the short timeout",
        planes: &[Plane::User],
        linux: Some((6, 13)),
        make: |name, us| {
            let mut mode = Mode::plain(name).suspending();
            mode.rx_usecs = Some(us.try_into().ok()?);
            Some(mode)
        },
    },
];

impl CatalogueEntry {
    /// The mode of this name, if it is this one or of this family.
    fn make(&self, name: &str) -> Option<Mode> {
        let Some(family) = self.form.strip_suffix('X') else {
            return (self.form == name).then(|| (self.make)(name, 0)).flatten();
        };
        let digits = name.strip_prefix(family)?;
        match digits.parse::<u64>() {
            Ok(us) if us <= TIMEOUT_US_MAX && (us == 0 || !digits.starts_with('0')) => (self.make)(name, us),
            _ => None,
        }
    }
}

/// The names of the modes of `plane`, for a sentence: `base, deferX, ... or longgro`.
pub fn names(plane: Plane) -> String {
    let forms: Vec<_> =
        CATALOGUE.iter().filter(|entry| entry.planes.contains(&plane)).map(|entry| entry.form).collect();
    match forms.split_last() {
        Some((last, most)) if !most.is_empty() => format!("{} or {last}", most.join(", ")),
        _ => forms.concat(),
    }
}

/// A line for each mode of `plane`: its name and what it does.
pub fn help(plane: Plane) -> String {
    let entries = CATALOGUE.iter().filter(|entry| entry.planes.contains(&plane));
    entries.map(|entry| format!("{:<14} {}\n", entry.form, entry.help)).collect::<String>().trim_end().to_owned()
}

/// The twelve cases of the IRQ suspension series (net-next v6), in its order.
pub const PUBLISHED: [&str; 12] = [
    "base",
    "defer10",
    "defer20",
    "defer50",
    "defer200",
    "fullbusy",
    "napibusy",
    "suspend0",
    "suspend10",
    "suspend20",
    "suspend50",
    "suspend200",
];

/// `defer_hard_irqs` of the published cases.
const DEFER_HARD_IRQS: u32 = 100;
/// `irq_suspend_timeout` of the published cases: 20 ms.
const IRQ_SUSPEND_TIMEOUT_NS: u64 = 20_000_000;
/// The longest X of `deferX` and `suspendX`, in microseconds: an hour.
const TIMEOUT_US_MAX: u64 = 3_600_000_000;

impl Mode {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether the mode suspends interrupts while the application works.
    pub fn suspends(&self) -> bool {
        self.napi.irq_suspend_timeout_ns != 0 && self.epoll.prefer_busy_poll
    }

    /// The short timer that the mode leans on, in nanoseconds, if it does.
    pub fn deferral_ns(&self) -> Option<u64> {
        (self.napi.defer_hard_irqs != 0 && self.napi.gro_flush_timeout_ns != 0)
            .then_some(self.napi.gro_flush_timeout_ns)
    }

    /// Whether the mode acts through epoll contexts: without one nobody busy polls or suspends, and what it sets on the NAPIs
    /// only puts packets off.
    pub fn needs_epoll(&self) -> bool {
        self.epoll != EpollParams::default() || self.app != AppPolicy::Blocking
    }

    /// The mode as unmodified programs have it on lull's plane. One whose application [never waits for long](AppPolicy::TimeoutMs)
    /// defers only while a program polls: such programs may sleep, wait elsewhere than in `epoll_wait`, or pass connections on to
    /// others, and every packet would then wait for a timer that is never meant to run out.
    pub fn of_unmodified_programs(mut self) -> Mode {
        if self.app != AppPolicy::Blocking {
            self.napi.unpolled = Unpolled::Interrupt;
        }
        self
    }

    fn plain(name: &str) -> Mode {
        Mode {
            name: name.to_owned(),
            napi: NapiSettings::default(),
            epoll: EpollParams::default(),
            socket_busy_poll_usecs: 0,
            rx_usecs: None,
            group: None,
            app: AppPolicy::Blocking,
        }
    }

    fn grouped(name: &str, rest_us: Option<u64>, transmit: bool) -> Mode {
        let mut mode = Mode::plain(name);
        mode.group = Some(GroupPolling { rest_ns: rest_us.map(|us| us * 1_000), transmit });
        mode
    }

    fn deferred(name: &str, timeout_us: u64) -> Mode {
        let mut mode = Mode::plain(name);
        mode.napi.defer_hard_irqs = DEFER_HARD_IRQS;
        mode.napi.gro_flush_timeout_ns = timeout_us * 1_000;
        mode
    }

    fn threaded(name: &str, kind: Threaded) -> Mode {
        let mut mode = Mode::plain(name);
        mode.napi.threaded = kind;
        mode
    }

    fn suspending(mut self) -> Mode {
        self.napi.irq_suspend_timeout_ns = IRQ_SUSPEND_TIMEOUT_NS;
        self.preferring(0)
    }

    fn preferring(mut self, usecs: u32) -> Mode {
        self.epoll = EpollParams { busy_poll_usecs: usecs, busy_poll_budget: 64, prefer_busy_poll: true };
        self
    }
}

impl FromStr for Mode {
    type Err = ModeError;

    fn from_str(name: &str) -> Result<Mode, ModeError> {
        let found = CATALOGUE.iter().find_map(|entry| entry.make(name));
        found.ok_or_else(|| ModeError { name: name.to_owned() })
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

/// A name that is no mode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModeError {
    name: String,
}

impl fmt::Display for ModeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "no delivery mode is named '{}': use {} (X in microseconds, as in defer20)",
            self.name,
            names(Plane::User)
        )
    }
}

impl std::error::Error for ModeError {}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_published_cases_have_the_published_settings() {
        let row = |name: &str| {
            let mode: Mode = name.parse().unwrap();
            let (napi, epoll) = (mode.napi, mode.epoll);
            (
                napi.defer_hard_irqs,
                napi.gro_flush_timeout_ns / 1_000,
                napi.irq_suspend_timeout_ns / 1_000_000,
                epoll.busy_poll_usecs,
                epoll.busy_poll_budget,
                epoll.prefer_busy_poll,
            )
        };
        assert_eq!(row("base"), (0, 0, 0, 0, 0, false));
        assert_eq!(row("defer10"), (100, 10, 0, 0, 0, false));
        assert_eq!(row("napibusy"), (100, 200, 0, 64, 64, true));
        assert_eq!(row("fullbusy"), (100, 5_000, 0, 1_000, 64, true));
        assert_eq!(row("suspend0"), (0, 0, 20, 0, 64, true));
        assert_eq!(row("suspend20"), (100, 20, 20, 0, 64, true));
        for name in PUBLISHED {
            let mode: Mode = name.parse().unwrap();
            assert_eq!(mode.name(), name);
            assert_eq!(mode.suspends(), name.starts_with("suspend"));
            assert_eq!(mode.needs_epoll(), name != "base" && !name.starts_with("defer"));
            assert_eq!(mode.app.timeout(), (name == "fullbusy").then_some(Duration::from_millis(1)));
        }
    }

    #[test]
    fn the_counter_designs_have_the_settings_of_the_faq() {
        let coalesce: Mode = "coalesce-20".parse().unwrap();
        assert_eq!((coalesce.rx_usecs, coalesce.deferral_ns()), (Some(20), None));
        assert!(coalesce.suspends() && coalesce.epoll.prefer_busy_poll);
        let longgro: Mode = "longgro".parse().unwrap();
        assert_eq!((longgro.deferral_ns(), longgro.suspends()), (Some(20_000_000), false));
        assert!("coalesce-".parse::<Mode>().is_err() && "coalesce-4294967296".parse::<Mode>().is_err());
    }

    #[test]
    fn what_is_listed_is_read_and_what_is_published_is_listed() {
        for entry in CATALOGUE {
            let name = entry.form.replace('X', "50");
            let mode: Mode = name.parse().unwrap();
            assert_eq!(mode.name(), name);
            // A plane is said to have what its settings can express.
            let of_the_nic = mode.rx_usecs.is_some();
            if mode.group.is_some() {
                assert!(!entry.planes.contains(&Plane::Kernel) && entry.linux.is_none(), "Linux has no groups");
                continue;
            }
            assert_eq!(entry.planes.contains(&Plane::Kernel), !of_the_nic, "{name}");
            assert_eq!(entry.linux.is_some(), mode.napi != NapiSettings::default() || of_the_nic, "{name}");
            assert!(help(Plane::User).contains(entry.help), "{name}");
        }
        let listed = |name: &str| CATALOGUE.iter().any(|entry| entry.make(name).is_some());
        assert!(PUBLISHED.iter().all(|name| listed(name)));
        assert!(names(Plane::Kernel).ends_with(" or longgro") && !names(Plane::Simulated).contains("busyread"));
    }

    #[test]
    fn unknown_names_are_refused_with_the_names_that_exist() {
        for bad in ["", "defer", "defer0", "defer-1", "defer05", "suspendx", "deferr20", "defer99999999999", "group0"] {
            let error = bad.parse::<Mode>().unwrap_err().to_string();
            assert!(error.contains(&format!("'{bad}'")) && error.contains("suspendX"), "{error}");
        }
    }
}
