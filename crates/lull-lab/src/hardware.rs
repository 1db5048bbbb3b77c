//! The processor's own counters of cycles and instructions (`perf_event_open`). Some machines of a kind have them,
//! others of the same kind hide them, and some kernels refuse them. The lab asks once, uses them if they count, and
//! says so if they do not.

use std::io;
use std::sync::OnceLock;

use perf_event::events::Hardware;
use perf_event::{Builder, Counter};

/// The counts, in user and kernel mode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HardwareCounts {
    /// Cycles that the processor spent.
    pub cycles: u64,
    /// Instructions that it retired.
    pub instructions: u64,
}

/// Counters of some threads, which start when they are opened.
pub struct HardwareCounters(Vec<[Counter; 2]>);

impl HardwareCounters {
    /// Counts the threads of these kernel ids from now on. Returns `None` if the hardware does not count.
    pub fn open(threads: &[i32]) -> Option<HardwareCounters> {
        availability().ok()?;
        HardwareCounters::try_open(threads).ok()
    }

    fn try_open(threads: &[i32]) -> io::Result<HardwareCounters> {
        let open = |event: Hardware, tid: i32| {
            let mut counter = Builder::new(event).observe_pid(tid).any_cpu().include_kernel().build()?;
            counter.enable()?;
            Ok::<Counter, io::Error>(counter)
        };
        let both = |tid: &i32| Ok([open(Hardware::CPU_CYCLES, *tid)?, open(Hardware::INSTRUCTIONS, *tid)?]);
        threads.iter().map(both).collect::<io::Result<Vec<_>>>().map(HardwareCounters)
    }

    /// Returns the counts so far.
    pub fn read(&mut self) -> Option<HardwareCounts> {
        let mut sum = HardwareCounts::default();
        for [cycles, instructions] in &mut self.0 {
            sum.cycles += cycles.read().ok()?;
            sum.instructions += instructions.read().ok()?;
        }
        Some(sum)
    }
}

/// Whether the hardware counts here, for this process.
///
/// # Errors
///
/// The error is the reason, as part of a sentence.
pub fn availability() -> Result<(), &'static str> {
    static AVAILABLE: OnceLock<Result<(), String>> = OnceLock::new();
    AVAILABLE.get_or_init(probe).as_ref().copied().map_err(String::as_str)
}

/// Opens the counters on the calling thread and checks whether work moves them, because under some hypervisors they
/// open and stand still.
fn probe() -> Result<(), String> {
    let mut counters = HardwareCounters::try_open(&[0]).map_err(|error| refusal(&error))?;
    crate::speed::work();
    match counters.read() {
        Some(counts) if counts.cycles > 0 && counts.instructions > 0 => Ok(()),
        _ => Err("they open and count nothing, as under some hypervisors".to_owned()),
    }
}

fn refusal(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::PermissionDenied => {
            let paranoid = std::fs::read_to_string("/proc/sys/kernel/perf_event_paranoid").unwrap_or_default();
            format!(
                "the kernel refuses them: kernel.perf_event_paranoid is {}, and it takes 1 or less, or CAP_PERFMON",
                paranoid.trim()
            )
        }
        // ENOENT means that the processor has no such event, as far as this machine shows it.
        io::ErrorKind::NotFound | io::ErrorKind::Unsupported => "this machine has none, or hides them".to_owned(),
        _ => format!("perf_event_open: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_count_or_it_is_said_why_not() {
        let opened = HardwareCounters::open(&[0]);
        assert_eq!(opened.is_some(), availability().is_ok());
        match opened {
            Some(mut counters) => {
                let before = counters.read().unwrap();
                crate::speed::work();
                let after = counters.read().unwrap();
                assert!(
                    after.cycles > before.cycles && after.instructions > before.instructions,
                    "{before:?} {after:?}"
                );
            }
            None => assert!(!availability().unwrap_err().is_empty()),
        }
        assert!(refusal(&io::ErrorKind::PermissionDenied.into()).contains("perf_event_paranoid"));
    }
}
