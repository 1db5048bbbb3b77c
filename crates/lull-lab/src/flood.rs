//! A flood of datagrams on one core: senders by size and flows, and a sink thread and socket per flow, all on the core
//! that delivers. A delivery mode is judged under overload by how much the sinks still receive, and where the rest is
//! dropped.
//!
//! | module | holds |
//! | --- | --- |
//! | [`mode`] | delivery modes of a flood, softirq with and without real-time interrupt contexts among them |
//! | `senders` | the generator on a ring, and over the kernel's sockets |
//! | `sinks` | what every plane's sinks share: counting, and being told to end |
//! | `sched` | the scheduler's counts of threads: how long they ran, and how long they waited to run |
//! | `own` | lull's own stack, over the in-memory NIC or TAP |
//! | `kernel` | Linux's, over a veth pair between two network namespaces |
//! | [`fairness`] | one flooded member of a group of CPUs, and how long the others wait |
//! | [`crowd`] | more applications that busy poll than cores, against a group of one |

pub mod crowd;
pub mod fairness;
pub(crate) mod kernel;
pub mod mode;
pub(crate) mod own;
pub(crate) mod sched;
pub(crate) mod senders;
mod sinks;

use std::time::Instant;

use lull_core::Stats;
use lull_linux::sched::ThreadPolicy;
use lull_sim::published::udp_stream;

use crate::bench::{BenchError, GroupSetup};
use crate::case::{CaseTable, Effort, Measure, Observed, Placed, Value};
use crate::cell::Enforcement;
use crate::stats::Estimate;

pub use mode::FloodMode;
use sched::SchedStat;

/// The largest payload that a datagram can have.
pub const BYTES_MAX: usize = 65_507;
/// The most flows that are allowed: each is a thread and a socket.
pub const FLOWS_MAX: usize = 1_000;
/// The first port of the sinks.
const PORT_FIRST: u16 = 20_000;
/// The reason why a rate of 0 is refused: the measurement would wait for arrivals, and show nothing.
pub(crate) const NOTHING_SENT: &str =
    "cannot measure what arrives at a rate of 0: use at least 1 a second, or leave --rate out";

/// The stack and the device that the datagrams go through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Path {
    /// lull's own stack behind the in-memory NIC, whose full ring loses frames as a wire does.
    Mem,
    /// lull's own stack behind a TAP; the senders are sockets of the kernel.
    Tap,
    /// Linux's stack behind a veth pair.
    Kernel,
}

/// The configuration of a flood.
#[derive(Clone, Debug)]
pub struct Flood {
    /// The payloads, in bytes.
    pub bytes: Vec<usize>,
    /// The numbers of flows.
    pub flows: Vec<usize>,
    /// The delivery modes.
    pub modes: Vec<FloodMode>,
    /// The stack and the device.
    pub path: Path,
    /// Datagrams per second over all flows. `None` means as many as the generator's core can send.
    pub per_second: Option<f64>,
    /// The core of sinks and delivery, then the generator's. If it is empty, the first usable cores are taken.
    pub cores: Vec<usize>,
    /// The scheduling policy of NAPI threads.
    pub policy: Option<ThreadPolicy>,
    /// The pollers of group modes. Without it, there is one on the sinks' core.
    pub group: Option<GroupSetup>,
}

/// One row.
#[derive(Clone, Copy, Debug)]
struct Cell<'a> {
    bytes: usize,
    flows: usize,
    mode: &'a FloodMode,
}

/// The counters at one moment.
#[derive(Clone, Copy, Debug)]
struct Marks {
    at: Instant,
    /// Datagrams that the sinks received.
    received: u64,
    /// Frames lost before they were polled.
    ring: u64,
    /// Datagrams lost because the socket's buffer was full.
    socket: u64,
    sinks: SchedStat,
    delivery: SchedStat,
    /// The number of times that the delivering threads went to sleep, on the kernel's plane.
    delivery_sleeps: u64,
    /// lull's own counters; `None` on the kernel's plane.
    napi: Option<Stats>,
}

impl Flood {
    /// Floods the sinks in every mode, with every size and number of flows.
    ///
    /// # Errors
    ///
    /// This fails if a size or number is outside its limits, if the process lacks a right that the path takes, or if
    /// sinks or senders fail.
    pub fn run(&self, effort: &Effort<'_>) -> Result<CaseTable, BenchError> {
        self.check()?;
        let placed = Placed::new(&self.cores, &["sinks and delivery", "the generator"])?;
        let cells = self.cells();
        let mut table = self.table(&cells, &placed, effort);
        for (at, cell) in cells.iter().enumerate() {
            if let Some(reason) = self.refusal(cell) {
                table.rows[at].verdict = Some(Enforcement::Refused { reason });
            }
        }
        table.measure(0..cells.len(), effort, &mut |row, _| match self.path {
            Path::Kernel => kernel::measure(self, &cells[row], &placed.cores, effort),
            Path::Mem | Path::Tap => own::measure(self, &cells[row], &placed.cores, effort),
        })?;
        share_of_peak(&cells, &mut table);
        Ok(table)
    }

    fn check(&self) -> Result<(), BenchError> {
        let invalid = |what: String| Err(BenchError::Invalid(what));
        if self.bytes.is_empty() || self.flows.is_empty() || self.modes.is_empty() {
            return invalid("cannot flood without a size, a number of flows and a mode: name one of each".to_owned());
        }
        if let Some(bytes) = self.bytes.iter().find(|bytes| !(1..=BYTES_MAX).contains(bytes)) {
            return invalid(format!("cannot send {bytes} bytes in a datagram: use 1 to {BYTES_MAX}"));
        }
        if let Some(flows) = self.flows.iter().find(|flows| !(1..=FLOWS_MAX).contains(flows)) {
            return invalid(format!("cannot have {flows} flows: use 1 to {FLOWS_MAX}"));
        }
        if self.per_second == Some(0.0) {
            return invalid(NOTHING_SENT.to_owned());
        }
        let pollers = self.policy.is_some() && self.modes.iter().all(|mode| !mode.has_threads());
        if pollers {
            return invalid(
                "cannot use a thread policy without NAPI threads: name threaded or threaded-busy".to_owned(),
            );
        }
        Ok(())
    }

    /// Returns the rows: by size, then flows, then mode.
    fn cells(&self) -> Vec<Cell<'_>> {
        let mut cells = Vec::new();
        for bytes in &self.bytes {
            for flows in &self.flows {
                cells.extend(self.modes.iter().map(|mode| Cell { bytes: *bytes, flows: *flows, mode }));
            }
        }
        cells
    }

    /// Returns why a row is impossible.
    fn refusal(&self, cell: &Cell<'_>) -> Option<String> {
        match self.path {
            Path::Kernel => kernel::refusal(cell.mode),
            Path::Mem => own::refusal(cell.bytes),
            Path::Tap => None,
        }
    }

    fn table(&self, cells: &[Cell<'_>], placed: &Placed, effort: &Effort<'_>) -> CaseTable {
        let measures = [
            Measure { name: "goodput_kpps", help: "datagrams that the sinks got, in thousands a second" },
            Measure { name: "share_of_peak", help: "of this mode's and size's best number of flows" },
            Measure { name: "ring_drops_kpps", help: "lost before anybody polled them" },
            Measure { name: "socket_drops_kpps", help: "lost because the socket was full" },
            Measure { name: "sinks_run_percent", help: "time that the sinks ran, of their core" },
            Measure {
                name: "sinks_wait_us",
                help: "how long a sink that could run waited for the core, per time it ran",
            },
            Measure { name: "delivery_run_percent", help: "time that delivery threads ran" },
            Measure { name: "delivery_wait_us", help: "how long one of them waited for the core" },
        ];
        let title = "A flood of datagrams: a sink thread and socket for each flow, on the core that delivers.";
        let mut table = CaseTable::new("flood", title, &["bytes", "flows", "mode"], &measures);
        let rate =
            self.per_second.map_or("as fast as one core sends".to_owned(), |rate| format!("{rate:.0} datagrams/s"));
        let path = match self.path {
            Path::Mem => "nic mem",
            Path::Tap => "nic tap",
            Path::Kernel => "veth (kernel plane)",
        };
        let policy = self.policy.map_or(String::new(), |policy| format!(", NAPI threads {policy}"));
        table.set_up = format!("{path}, {rate}{policy}; {}", effort.words());
        for cell in cells {
            let keys = vec![cell.bytes.to_string(), cell.flows.to_string(), cell.mode.name().to_owned()];
            let row = table.row(keys);
            row.short_of_cores.clone_from(&placed.short);
            row.values[0].published = published(cell, self.path);
        }
        table.notes = self.notes(&placed.cores);
        table
    }

    fn notes(&self, cores: &[usize]) -> Vec<String> {
        let mut notes = vec![
            "Published is UDP_STREAM into a guest with and without NAPI threads; its vanilla column stands beside softirq \
             that real-time contexts run, as interrupts do, and guest threaded beside threaded."
                .to_owned(),
        ];
        if self.modes.iter().any(FloodMode::is_realtime) {
            notes.extend(sched::throttle_note());
        }
        if self.path == Path::Kernel {
            notes.push(
                "On a veth softirq runs on the sender's core: in softirq receive packet steering (RPS) brings it to the \
                 sinks' core, where a threaded row has the NAPI thread and no RPS."
                    .to_owned(),
            );
        }
        let own_core = |group: &GroupSetup| !group.cores.contains(&cores[0]);
        if self.modes.iter().any(|mode| mode.mode().group.is_some()) {
            notes.push(match self.group.as_ref().is_some_and(own_core) {
                true => "The group's pollers have a core of their own: one more than the other rows.".to_owned(),
                false => "The group's poller is on the sinks' core, a thread among threads.".to_owned(),
            });
        }
        notes
    }
}

/// Returns the published value of a row, in thousands per second.
fn published(cell: &Cell<'_>, path: Path) -> Option<f64> {
    let column = match (cell.mode.name(), path) {
        ("softirq-fifo", _) | ("softirq", Path::Kernel) => "vanilla_kpps",
        ("threaded", _) => "guest_threaded_kpps",
        _ => return None,
    };
    let mut lines = udp_stream::CSV.lines();
    let at = lines.next()?.split(',').position(|name| name == column)?;
    let prefix = format!("{},{},", cell.bytes, cell.flows);
    lines.find(|line| line.starts_with(&prefix))?.split(',').nth(at)?.trim().parse().ok()
}

/// Fills in the ratio of each row's goodput to the best of its mode and size.
fn share_of_peak(cells: &[Cell<'_>], table: &mut CaseTable) {
    let goodput: Vec<_> = table.rows.iter().map(|row| row.values[0]).collect();
    let is_alike = |a: &Cell<'_>, b: &Cell<'_>| (a.bytes, a.mode.name()) == (b.bytes, b.mode.name());
    for (at, cell) in cells.iter().enumerate() {
        let share = |of: &dyn Fn(&Value) -> Option<f64>| {
            let alike = cells.iter().zip(&goodput).filter(|(other, _)| is_alike(cell, other));
            let peak = alike.filter_map(|(_, value)| of(value)).fold(0.0, f64::max);
            of(&goodput[at]).filter(|_| peak > 0.0).map(|value| value / peak)
        };
        let ours = share(&|value| value.ours.map(|ours| ours.value));
        let published = share(&|value| value.published);
        table.rows[at].values[1] = Value { ours: ours.map(Estimate::exact), published, simulated: None };
    }
}

/// Returns the measures of a window.
fn observed(before: &Marks, after: &Marks, verdict: Enforcement) -> Observed {
    let seconds = (after.at - before.at).as_secs_f64();
    let kpps = |now: u64, then: u64| Some(now.saturating_sub(then) as f64 / seconds / 1e3);
    let (sinks, delivery) = (after.sinks.since(&before.sinks), after.delivery.since(&before.delivery));
    Observed {
        values: vec![
            kpps(after.received, before.received),
            None,
            kpps(after.ring, before.ring),
            kpps(after.socket, before.socket),
            Some(sinks.run_percent(seconds)),
            sinks.wait_us(),
            Some(delivery.run_percent(seconds)),
            delivery.wait_us(),
        ],
        verdict,
        load: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_values_stand_beside_what_they_are_of() {
        let value =
            |bytes, flows, mode: &str, path| published(&Cell { bytes, flows, mode: &mode.parse().unwrap() }, path);
        assert_eq!(value(64, 200, "softirq-fifo", Path::Mem), Some(186.0));
        assert_eq!(value(64, 200, "softirq", Path::Kernel), Some(186.0));
        assert_eq!(value(64, 200, "threaded", Path::Mem), Some(688.0));
        assert_eq!(value(64, 200, "softirq", Path::Mem), None, "ordinary threads starve nobody");
        assert_eq!((value(64, 200, "group", Path::Mem), value(65, 200, "threaded", Path::Mem)), (None, None));
    }
}
