//! The four instructions, emulated where they stand: the sleeper's thread is single-stepped, and a handler of SIGTRAP decodes what it
//! is about to execute. One of the four it carries out itself and steps over, so that it makes no difference whether this CPU has it,
//! and whether a hypervisor skips it. A process of its own does this, because the handler is the process's.
#![allow(unsafe_code)]

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize};

use super::{Instructions, Monitor};
use crate::clock::read_cycles;
use crate::parker::{ON_FUTEX, Parker, SleepCounters};

const LINE_BYTES: usize = 64;
const KHZ: u64 = 1_000_000;
/// The trap flag: a trap after each instruction.
const STEPS: i64 = 0x100;

/// When the waker stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
enum Wakes {
    /// Not for the sake of these instructions.
    Never,
    BeforeTheWatch,
    AfterTheWatchBegan,
    BeforeTheWait,
    DuringTheWait,
}

// What the handler and the test agree on. One sleeper at a time.
static STEPPING: AtomicBool = AtomicBool::new(false);
static WAKES: AtomicU32 = AtomicU32::new(0);
/// Waits that are to end for no reason.
static EARLY: AtomicU32 = AtomicU32::new(0);
static ASKED: AtomicBool = AtomicBool::new(false);
static WOKEN: AtomicBool = AtomicBool::new(false);
static ARMED: AtomicUsize = AtomicUsize::new(0);
static LINE: [AtomicU64; LINE_BYTES / 8] = [const { AtomicU64::new(0) }; LINE_BYTES / 8];
static WATCHES: AtomicU32 = AtomicU32::new(0);
static WAITS: AtomicU32 = AtomicU32::new(0);
static BY_UMWAIT: AtomicU32 = AtomicU32::new(0);
/// Waits whose registers say something else than they should.
static WRONG: AtomicU32 = AtomicU32::new(0);

fn line(word: usize) -> [u64; LINE_BYTES / 8] {
    let first = (word & !(LINE_BYTES - 1)) as *const AtomicU64;
    // SAFETY: the line of a word that lives is mapped, and whoever writes there meanwhile does so with whole words, or is not looked at
    // by anybody who would mind.
    std::array::from_fn(|index| unsafe { (*first.add(index)).load(SeqCst) })
}

fn has_changed() -> bool {
    line(ARMED.load(SeqCst)).iter().zip(&LINE).any(|(now, then)| *now != then.load(SeqCst))
}

/// Lets the waker store, and waits until it has.
fn ask(at: Wakes) {
    if WAKES.load(SeqCst) == at as u32 && !ASKED.swap(true, SeqCst) {
        while !WOKEN.load(SeqCst) {
            std::thread::yield_now();
        }
    }
}

fn watch(word: usize) {
    ask(Wakes::BeforeTheWatch);
    ARMED.store(word, SeqCst);
    line(word).iter().zip(&LINE).for_each(|(now, then)| then.store(*now, SeqCst));
    WATCHES.fetch_add(1, SeqCst);
    ask(Wakes::AfterTheWatchBegan);
}

fn wait(until: u64) {
    WAITS.fetch_add(1, SeqCst);
    ask(Wakes::BeforeTheWait);
    if EARLY.load(SeqCst) != 0 {
        EARLY.fetch_sub(1, SeqCst);
        return;
    }
    if WAKES.load(SeqCst) == Wakes::DuringTheWait as u32 {
        ASKED.store(true, SeqCst);
    }
    while !has_changed() && read_cycles() < until {
        std::thread::yield_now();
    }
}

extern "C" fn trapped(_: i32, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel gives a handler the context of the thread that it interrupts.
    let registers = unsafe { &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs };
    let register = |of: i32| registers[of as usize];
    let low = |of: i32| register(of) as u32;
    let at = register(libc::REG_RIP) as *const u8;
    // SAFETY: this is where the thread goes on, so there is an instruction; the longest of ours has four bytes, and none is looked at
    // before those before it say that it is one of them.
    let byte = |index: usize| unsafe { at.add(index).read() };
    let expect = |holds: bool| {
        WRONG.fetch_add(u32::from(!holds), SeqCst);
    };
    // Register operands are numbered as RAX, RCX, RDX, RBX ...
    let operand = |modrm: u8| {
        let by_number = [libc::REG_RAX, libc::REG_RCX, libc::REG_RDX, libc::REG_RBX];
        by_number.get(usize::from(modrm & 7)).copied()
    };
    let is_six_of_register = |modrm: u8| modrm >> 3 == 0b11_110;
    let length = match byte(0) {
        0xf3 | 0xf2 if byte(1) == 0x0f && byte(2) == 0xae && is_six_of_register(byte(3)) => {
            BY_UMWAIT.fetch_add(1, SeqCst);
            match (byte(0), operand(byte(3))) {
                (0xf3, Some(operand)) => watch(register(operand) as usize),
                (_, Some(operand)) => {
                    expect(low(operand) == 1);
                    wait(u64::from(low(libc::REG_RDX)) << 32 | u64::from(low(libc::REG_RAX)));
                }
                _ => expect(false),
            }
            4
        }
        0x0f if byte(1) == 0x01 && byte(2) == 0xfa => {
            expect(low(libc::REG_RCX) == 0 && low(libc::REG_RDX) == 0);
            watch(register(libc::REG_RAX) as usize);
            3
        }
        0x0f if byte(1) == 0x01 && byte(2) == 0xfb => {
            expect(low(libc::REG_RCX) == 2 && low(libc::REG_RAX) == 0xf0);
            wait(read_cycles() + u64::from(low(libc::REG_RBX)));
            3
        }
        _ => 0,
    };
    registers[libc::REG_RIP as usize] += length;
    let flags = &mut registers[libc::REG_EFL as usize];
    *flags = if STEPPING.load(Relaxed) { *flags | STEPS } else { *flags & !STEPS };
}

/// What one sleep came to.
#[derive(Debug, PartialEq, Eq)]
struct Slept {
    watches: u32,
    waits: u32,
    /// System calls of the sleeper and of whoever woke it.
    syscalls: u64,
}

/// A parker on lines of its own: what else is changed beside it ends no wait.
#[repr(align(64))]
struct Alone(Parker);

/// A sleeper that may watch for so many cycles, the first of whose waits end early, and a waker.
fn sleep(by: Instructions, wakes: Wakes, early: u32, most_cycles: u64) -> Slept {
    for counter in [&WATCHES, &WAITS, &BY_UMWAIT, &WRONG] {
        counter.store(0, SeqCst);
    }
    WAKES.store(wakes as u32, SeqCst);
    EARLY.store(early, SeqCst);
    ASKED.store(false, SeqCst);
    WOKEN.store(false, SeqCst);
    let (alone, counters) = (Arc::new(Alone(Parker::new().unwrap())), Arc::new(SleepCounters::default()));
    let waker = {
        let (alone, counters) = (alone.clone(), counters.clone());
        std::thread::spawn(move || {
            let parker = &alone.0;
            let now = || match wakes {
                Wakes::Never => parker.word().load(SeqCst) == ON_FUTEX,
                _ => ASKED.load(SeqCst),
            };
            while !now() {
                std::thread::yield_now();
            }
            let woke = parker.wake(&counters);
            WOKEN.store(true, SeqCst);
            woke
        })
    };
    let parker = &alone.0;
    let monitor = Monitor { by, most_cycles, khz: KHZ };
    STEPPING.store(true, SeqCst);
    // SAFETY: its handler is installed, and returns.
    unsafe { libc::raise(libc::SIGTRAP) };
    parker.park_watching(None, &monitor, &counters);
    STEPPING.store(false, SeqCst);
    assert!(waker.join().unwrap(), "somebody slept");
    assert_eq!(WRONG.load(SeqCst), 0, "{by:?}: operands");
    let (watches, waits) = (WATCHES.load(SeqCst), WAITS.load(SeqCst));
    let by_umwait = if by == Instructions::Umwait { watches + waits } else { 0 };
    assert_eq!(BY_UMWAIT.load(SeqCst), by_umwait, "{by:?}");
    assert_eq!(ARMED.load(SeqCst), parker.word().as_ptr() as usize, "the word that the waker writes is watched");
    assert_eq!(parker.word().load(SeqCst), 0, "it runs");
    Slept { watches, waits, syscalls: counters.syscalls.load(SeqCst) }
}

fn every_sleep() {
    // SAFETY: all zeroes are an action without flags and an empty mask.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = trapped as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO;
    // SAFETY: the handler uses atomics, its context and sched_yield.
    assert_eq!(unsafe { libc::sigaction(libc::SIGTRAP, &raw const action, std::ptr::null_mut()) }, 0);
    const EVER: u64 = u64::MAX;
    for by in [Instructions::Umwait, Instructions::Mwaitx] {
        let slept = |watches, waits, syscalls| Slept { watches, waits, syscalls };
        assert_eq!(sleep(by, Wakes::BeforeTheWatch, 0, EVER), slept(1, 0, 0), "{by:?}: looks after it was armed");
        assert_eq!(sleep(by, Wakes::AfterTheWatchBegan, 0, EVER), slept(1, 0, 0), "{by:?}: looks before it waits");
        assert_eq!(sleep(by, Wakes::BeforeTheWait, 0, EVER), slept(2, 1, 0), "{by:?}: the wait ends at once");
        assert_eq!(sleep(by, Wakes::DuringTheWait, 0, EVER), slept(2, 1, 0), "{by:?}: the store ends it");
        assert_eq!(sleep(by, Wakes::DuringTheWait, 3, EVER), slept(5, 4, 0), "{by:?}: comes again");
        // Its time may be up before the first wait, on a machine that is busy: a call to sleep, and one to wake.
        let over = sleep(by, Wakes::Never, 0, 20_000_000);
        assert!(over.watches == over.waits + 1 && over.syscalls == 2, "{by:?}: {over:?}");
        assert_eq!(sleep(by, Wakes::Never, 0, 0), slept(1, 0, 2), "{by:?}");
    }
    println!("every sleep ended");
}

#[test]
fn a_sleeper_that_watches_its_word_is_woken_by_a_store_alone_and_sleeps_in_the_kernel_when_time_is_up() {
    const CHILD: &str = "LULL_TEST_EMULATES_MONITORS";
    if std::env::var_os(CHILD).is_some() {
        return every_sleep();
    }
    let name = "a_sleeper_that_watches_its_word_is_woken_by_a_store_alone_and_sleeps_in_the_kernel_when_time_is_up";
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args([&format!("monitor::emulated::{name}"), "--exact", "--nocapture"]).env(CHILD, "1");
    let output = child.output().unwrap();
    let (said, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && said.contains("every sleep ended"), "{said}{errors}");
}

#[test]
fn a_wake_up_that_was_kept_is_not_watched_for() {
    let (parker, counters) = (Parker::new().unwrap(), SleepCounters::default());
    assert!(!parker.wake(&counters), "nobody sleeps");
    // None of the instructions is executed.
    let monitor = Monitor { by: Instructions::Umwait, most_cycles: u64::MAX, khz: KHZ };
    parker.park_watching(None, &monitor, &counters);
    assert_eq!((parker.word().load(SeqCst), counters.syscalls.load(SeqCst)), (0, 0));
}
