//! Forwarding in NAPI context: the context that polls a device's queue hands its frames to another device, in every
//! delivery mode.
//!
//! | module | holds |
//! | --- | --- |
//! | [`link`] | two devices of lull's that are joined: a frame that comes in at one leaves at the other |
//! | `own` | the joined devices between a generator and a far end, in memory |
//! | `kernel` | Linux's forwarding between two veth pairs, in namespaces of its own |

mod kernel;
pub mod link;
mod own;

use std::time::Instant;

use lull_core::Stats;

use crate::bench::{BenchError, GroupSetup};
use crate::case::{CaseTable, Effort, Measure, Observed, Placed};
use crate::cell::Enforcement;
use crate::flood::sched::SchedStat;
use crate::flood::{FloodMode, NOTHING_SENT};

/// The largest payload of a datagram that fits into one frame.
pub const BYTES_MAX: usize = 1_472;

/// The configuration of the case.
#[derive(Clone, Debug)]
pub struct Forward {
    /// The payloads of the datagrams, in bytes.
    pub bytes: Vec<usize>,
    /// The delivery modes.
    pub modes: Vec<FloodMode>,
    /// Whether Linux forwards, between veth pairs, instead of lull in memory.
    pub kernel: bool,
    /// Datagrams per second. `None` means as many as the generator's core can send.
    pub per_second: Option<f64>,
    /// The core that forwards, then the generator's. If it is empty, the first usable cores are taken.
    pub cores: Vec<usize>,
    /// The pollers of group modes. Without it, there is one on the core that forwards.
    pub group: Option<GroupSetup>,
}

/// The counters at one moment.
#[derive(Clone, Copy, Debug)]
struct Marks {
    at: Instant,
    /// Frames that reached the far end.
    arrived: u64,
    /// Frames lost before they were polled.
    ring: u64,
    /// Frames lost on the way out.
    out: u64,
    delivery: SchedStat,
    /// The number of times that the delivering threads went to sleep, on the kernel's plane.
    delivery_sleeps: u64,
    /// lull's own counters; `None` on the kernel's plane.
    napi: Option<Stats>,
}

impl Forward {
    /// Forwards in every mode, with every size.
    ///
    /// # Errors
    ///
    /// This fails if a size is outside its limits, if the process lacks a right that the case takes, or if a part of it
    /// fails.
    pub fn run(&self, effort: &Effort<'_>) -> Result<CaseTable, BenchError> {
        let invalid = |what: String| Err(BenchError::Invalid(what));
        if self.bytes.is_empty() || self.modes.is_empty() {
            return invalid("cannot forward without a size and a mode: name one of each".to_owned());
        }
        if let Some(bytes) = self.bytes.iter().find(|bytes| !(1..=BYTES_MAX).contains(bytes)) {
            return invalid(format!("cannot forward {bytes} bytes in a frame: use 1 to {BYTES_MAX}"));
        }
        if self.per_second == Some(0.0) {
            return invalid(NOTHING_SENT.to_owned());
        }
        let placed = Placed::new(&self.cores, &["forwarding", "the generator and the far end"])?;
        let mut table = self.table(&placed, effort);
        let per_size = self.modes.len();
        for row in 0..table.rows.len() {
            let refused = self.kernel.then(|| crate::flood::kernel::refusal(&self.modes[row % per_size])).flatten();
            table.rows[row].verdict = refused.map(|reason| Enforcement::Refused { reason });
        }
        table.measure(0..self.bytes.len() * per_size, effort, &mut |row, _| {
            let (bytes, mode) = (self.bytes[row / per_size], &self.modes[row % per_size]);
            match self.kernel {
                true => kernel::measure(self, bytes, mode, &placed.cores, effort),
                false => own::measure(self, bytes, mode, &placed.cores, effort),
            }
        })?;
        Ok(table)
    }

    fn table(&self, placed: &Placed, effort: &Effort<'_>) -> CaseTable {
        let measures = [
            Measure { name: "forwarded_kpps", help: "frames that reached the far end, in thousands a second" },
            Measure { name: "ring_drops_kpps", help: "lost before anybody polled them" },
            Measure { name: "out_drops_kpps", help: "lost on the way out" },
            Measure { name: "delivery_run_percent", help: "time that delivery threads ran" },
            Measure { name: "frames_per_poll", help: "mean over all polls" },
        ];
        let title = "Forwarding in NAPI context: who polls the one device hands its frames to the other.";
        let mut table = CaseTable::new("forward", title, &["bytes", "mode"], &measures);
        let path = if self.kernel { "two veth pairs (kernel plane)" } else { "nic mem to mem" };
        let rate = self.per_second.map_or("as fast as one core sends".to_owned(), |rate| format!("{rate:.0} frames/s"));
        table.set_up = format!("{path}, {rate}; {}", effort.words());
        for bytes in &self.bytes {
            for mode in &self.modes {
                let row = table.row(vec![bytes.to_string(), mode.name().to_owned()]);
                row.short_of_cores.clone_from(&placed.short);
            }
        }
        if self.kernel {
            table.notes.push(
                "On a veth softirq runs on the sender's core: in softirq receive packet steering (RPS) brings it to the core \
                 that forwards, where a threaded row has the NAPI's thread and no RPS. Softirq is nobody's thread, so \
                 delivery_run_percent has ksoftirqd's part only."
                    .to_owned(),
            );
        }
        table
    }
}

/// Returns the measures of a window.
fn observed(before: &Marks, after: &Marks, verdict: Enforcement) -> Observed {
    let seconds = (after.at - before.at).as_secs_f64();
    let kpps = |now: u64, then: u64| Some(now.saturating_sub(then) as f64 / seconds / 1e3);
    let delivery = after.delivery.since(&before.delivery);
    let per_poll = before.napi.zip(after.napi).and_then(|(then, now)| {
        let counted = now - then;
        (counted.polls > 0).then(|| counted.work as f64 / counted.polls as f64)
    });
    Observed {
        values: vec![
            kpps(after.arrived, before.arrived),
            kpps(after.ring, before.ring),
            kpps(after.out, before.out),
            Some(delivery.run_percent(seconds)),
            per_poll,
        ],
        verdict,
        load: None,
    }
}
