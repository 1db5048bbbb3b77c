//! A wait for a store to a word without the kernel, where the CPU has one that programs may use: UMONITOR and UMWAIT (Intel,
//! WAITPKG), or MONITORX and MWAITX (AMD).
//!
//! The first of a pair tells the core of a cache line; the second stops it until somebody stores to that line, an
//! interrupt comes, or its time is up. It may return for no reason that the program knows of: Linux bounds a UMWAIT
//! (`/sys/devices/system/cpu/umwait_control/max_time`), other words have a part of the line, and a hypervisor may not
//! wait at all. So the waiter comes again until its own time is up. A store between the two instructions ends the wait
//! at once. A store before the first is not seen, so the waiter looks at the word in between ([`ParkWord::watch`]).
//!
//! No machine on which this ran has either pair: only an emulation (the tests below) has tried the instructions, and no
//! gain was measured.

use crate::clock::{Clock, read_cycles};
use crate::parker::ParkWord;
use crate::sync::AtomicU32;

/// How long a sleeper waits before it sleeps in the kernel, in nanoseconds: what a sleep and a wake-up there cost together, several
/// times over. Its core is nobody else's meanwhile.
const WATCHES_NS: u64 = 50_000;

/// Instructions to wait by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Instructions {
    /// UMONITOR and UMWAIT.
    Umwait,
    /// MONITORX and MWAITX.
    Mwaitx,
}

impl Instructions {
    /// Returns what CPUID says, which does not tell whether a hypervisor traps the instructions.
    #[cfg(target_arch = "x86_64")]
    fn of_this_cpu() -> Option<Instructions> {
        use core::arch::x86_64::{__cpuid, __cpuid_count};
        if __cpuid(0).eax >= 7 && __cpuid_count(7, 0).ecx & (1 << 5) != 0 {
            return Some(Instructions::Umwait);
        }
        let has_mwaitx = __cpuid(0x8000_0000).eax >= 0x8000_0001 && __cpuid(0x8000_0001).ecx & (1 << 29) != 0;
        has_mwaitx.then_some(Instructions::Mwaitx)
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn of_this_cpu() -> Option<Instructions> {
        None
    }
}

/// How a sleeper waits before it sleeps in the kernel.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Monitor {
    by: Instructions,
    /// For how many cycles at the most.
    most_cycles: u64,
    khz: u64,
}

impl Monitor {
    /// Returns `None` where the CPU has no such instructions, or where its cycle counter, by which they count, is not
    /// to be trusted.
    pub(crate) fn of_this_machine(clock: &Clock) -> Option<Monitor> {
        let (by, khz) = (Instructions::of_this_cpu()?, clock.tsc_khz()?);
        Some(Monitor { by, most_cycles: cycles(WATCHES_NS, khz), khz })
    }

    /// The sleeper of `word`, which has begun its sleep in this way, waits for a store to the word, but no longer than
    /// `timeout_ns`. Returns `None` if it was woken; otherwise how it is to sleep in the kernel, and how many
    /// nanoseconds of its timeout have passed.
    pub(crate) fn watch(&self, word: &ParkWord, timeout_ns: Option<u64>) -> Option<(u32, u64)> {
        let most = timeout_ns.map_or(self.most_cycles, |ns| cycles(ns, self.khz).min(self.most_cycles));
        let watch = Watch { began: read_cycles(), most };
        let kind = word.watch(
            |word| arm(self.by, word),
            || {
                let now = read_cycles();
                let left = watch.left(now);
                if left != 0 {
                    wait(self.by, now.saturating_add(left), left);
                }
                left != 0
            },
        );
        kind.map(|kind| (kind, watch.passed_ns(read_cycles(), self.khz)))
    }
}

/// A watch that goes on, in cycles.
struct Watch {
    began: u64,
    most: u64,
}

impl Watch {
    /// For how many cycles it is to go on. A counter that is behind where it was has started again, as after a suspend
    /// to RAM, and nobody knows how long that took.
    fn left(&self, now: u64) -> u64 {
        now.checked_sub(self.began).map_or(0, |passed| self.most.saturating_sub(passed))
    }

    /// How long it took. The thread may have had no core for a while.
    fn passed_ns(&self, now: u64, khz: u64) -> u64 {
        let passed = u128::from(now.saturating_sub(self.began)) * 1_000_000 / u128::from(khz.max(1));
        u64::try_from(passed).unwrap_or(u64::MAX)
    }
}

fn cycles(ns: u64, khz: u64) -> u64 {
    u64::try_from(u128::from(ns) * u128::from(khz) / 1_000_000).unwrap_or(u64::MAX)
}

/// The core is told of the word's line. As bytes, because an assembler may want to be told that the CPU has the instruction.
#[cfg(all(target_arch = "x86_64", not(loom)))]
#[allow(unsafe_code)]
fn arm(by: Instructions, word: &AtomicU32) {
    let address = word.as_ptr();
    match by {
        // SAFETY: UMONITOR RAX. The CPU has it, and it reads at most the line, which is mapped.
        Instructions::Umwait => unsafe {
            core::arch::asm!(".byte 0xf3, 0x0f, 0xae, 0xf0", in("rax") address, options(nostack, preserves_flags));
        },
        // SAFETY: MONITORX, of the line at RAX, without extensions (ECX) and hints (EDX). The CPU has it, and it reads at most the line.
        Instructions::Mwaitx => unsafe {
            core::arch::asm!(".byte 0x0f, 0x01, 0xfa", in("rax") address, in("ecx") 0, in("edx") 0, options(nostack, preserves_flags));
        },
    }
}

/// Waits for a store to the line, until the cycle counter says `until`, which is `left` cycles away.
#[cfg(all(target_arch = "x86_64", not(loom)))]
#[allow(unsafe_code)]
fn wait(by: Instructions, until: u64, left: u64) {
    match by {
        // SAFETY: UMWAIT ECX, whose 1 is the lighter of two states (C0.1), until EDX:EAX. The CPU has it; it changes the flags only.
        Instructions::Umwait => unsafe {
            core::arch::asm!(
                ".byte 0xf2, 0x0f, 0xae, 0xf1",
                in("ecx") 1, in("eax") until as u32, in("edx") (until >> 32) as u32,
                options(nostack),
            );
        },
        // SAFETY: MWAITX, for EBX cycles (ECX has bit 1), in C0 (EAX), as Linux has it in its delays. The CPU has it; it changes nothing.
        // RBX, which no operand may name, is as it was afterwards.
        Instructions::Mwaitx => unsafe {
            core::arch::asm!(
                "mov {kept}, rbx",
                "mov ebx, {left:e}",
                ".byte 0x0f, 0x01, 0xfb",
                "mov rbx, {kept}",
                kept = out(reg) _, left = in(reg) left.min(u64::from(u32::MAX)) as u32,
                in("eax") 0xf0, in("ecx") 2,
                options(nostack),
            );
        },
    }
}

#[cfg(not(all(target_arch = "x86_64", not(loom))))]
fn arm(by: Instructions, _word: &AtomicU32) {
    unreachable!("{by:?} on another architecture, or in a model")
}

#[cfg(not(all(target_arch = "x86_64", not(loom))))]
fn wait(by: Instructions, _until: u64, _left: u64) {
    unreachable!("{by:?} on another architecture, or in a model")
}

#[cfg(all(test, not(loom), target_arch = "x86_64"))]
mod emulated;

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_watch_ends_when_its_time_is_up_or_the_cycle_counter_starts_again() {
        let watch = Watch { began: 5_000_000, most: 1_000 };
        assert_eq!([5_000_000, 5_000_400, 5_000_999].map(|now| watch.left(now)), [1_000, 600, 1]);
        assert_eq!([5_001_000, 9_000_000, u64::MAX].map(|now| watch.left(now)), [0, 0, 0]);
        assert_eq!([4_999_999, 100, 0].map(|now| watch.left(now)), [0, 0, 0], "it started again");
    }

    #[test]
    fn what_a_watch_took_is_off_the_timeout_also_where_the_thread_had_no_core() {
        let watch = Watch { began: 5_000_000, most: 150_000 };
        assert_eq!(watch.passed_ns(5_150_000, 3_000_000), 50_000);
        assert_eq!(watch.passed_ns(17_000_000, 3_000_000), 4_000_000, "4 ms without a core");
        assert_eq!(watch.passed_ns(100, 3_000_000), 0);
    }
}
