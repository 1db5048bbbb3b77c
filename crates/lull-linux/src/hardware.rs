//! Finds out whether this machine's processor counts cycles and instructions for a process. Machines of one kind differ
//! in that, as a hypervisor gives its counters only to some guests, so it is tried and never assumed.

use std::io;

use perf_event::events::Hardware;
use perf_event::{Builder, Counter};

/// The result of trying.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Counters {
    /// Cycles and instructions of user space are counted.
    Counting,
    /// They are not counted.
    Lacking {
        /// The reason.
        reason: String,
        /// What would have counters.
        remedy: &'static str,
    },
}

/// How often the loop that is counted runs: some ten thousand instructions, which take microseconds.
const TURNS: u64 = 10_000;

/// Counts a short loop of this thread.
pub fn counters() -> Counters {
    let counted = (|| {
        let mut cycles = open(Hardware::CPU_CYCLES)?;
        let mut instructions = open(Hardware::INSTRUCTIONS)?;
        std::hint::black_box((0..TURNS).fold(0u64, |sum, turn| std::hint::black_box(sum ^ turn)));
        Ok((cycles.read()?, instructions.read()?))
    })();
    judge(counted)
}

fn open(event: Hardware) -> io::Result<Counter> {
    let mut counter = Builder::new(event).observe_self().any_cpu().build()?;
    counter.enable()?;
    Ok(counter)
}

fn judge(counted: io::Result<(u64, u64)>) -> Counters {
    let elsewhere = "a machine whose processor, or hypervisor, has performance counters for its guests";
    let (reason, remedy) = match counted {
        // A round of the loop takes one instruction at least.
        Ok((cycles, instructions)) if cycles > 0 && instructions >= TURNS => return Counters::Counting,
        Ok((cycles, instructions)) => {
            let reason = format!("they open, and count {cycles} cycles and {instructions} instructions in a loop");
            (reason, elsewhere)
        }
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            (format!("the kernel refuses them: {error}"), "run as root, or `sysctl -w kernel.perf_event_paranoid=2`")
        }
        Err(error) => (format!("the processor shows none here: {error}"), elsewhere),
    };
    Counters::Lacking { reason, remedy }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn asking_gives_an_answer_that_this_machine_stands_by() {
        // Whatever the answer is here, it is the same the second time.
        let (first, second) = (counters(), counters());
        assert_eq!(first == Counters::Counting, second == Counters::Counting, "{first:?}, then {second:?}");
    }

    #[test]
    fn each_way_of_having_none_is_told_apart() {
        let lacking = |counted| match judge(counted) {
            Counters::Lacking { reason, remedy } => format!("{reason}; {remedy}"),
            Counters::Counting => panic!("nothing counted that"),
        };
        assert!(lacking(Err(io::Error::from_raw_os_error(libc::ENOENT))).contains("processor shows none"));
        assert!(lacking(Err(io::Error::from_raw_os_error(libc::EACCES))).contains("perf_event_paranoid"));
        assert!(lacking(Ok((0, 0))).contains("0 cycles"));
        assert!(lacking(Ok((5_000, 3))).contains("3 instructions"));
        assert_eq!(judge(Ok((5_000, TURNS))), Counters::Counting);
    }
}
