//! The program's process exits, and lull does for its sockets what the kernel does for its own.
//!
//! Linux closes what a process leaves open, and goes on to deliver what was written to any connection, for as long as TCP tries.
//! lull's stack ends with the process. So a process that calls `exit`, or returns from `main`, closes its sockets, and stays until
//! the peers have everything, or take nothing of it for a while; those that have not are reset. One that ends at once (`_exit`, a signal)
//! sends what its threads still hold back, and leaves its peers to others (`left_open.rs`); one that is killed has no time for either.
#![allow(unsafe_code)]

use std::sync::Once;
use std::time::{Duration, Instant};

use libc::{c_int, pid_t};
use lull_fd::say;
use lull_net::Network;

use crate::files::File;
use crate::leaving::{self, LOOKS_APART_MAX, NO_PROGRESS};
use crate::{claimed, elsewhere, engine, files, husk, record, signals, socket};

/// How long it stays at the longest.
const AT_MOST: Duration = Duration::from_secs(60);
/// How long it stays for a process that is about to listen. nginx kills a worker that has not ended a second and a half after it was
/// told to.
const LISTENS_SOON: Duration = Duration::from_secs(3);
/// The process exits, and nothing of the program's runs any more but its other threads.
pub fn at_exit() {
    leaving::begins();
    // What a child has of this is its parent's.
    let Some(engine) = engine::running().filter(|_| husk::is_engines_process()) else { return };
    lull_net::about_to_wait();
    signals::ask_no_more();
    signals::section(close_all);
    loop {
        socket::outstay(stays);
        stay_for_undelivered(&engine.network);
        to_who_listens(LISTENS_SOON);
        // Meanwhile more may have come for others.
        if socket::ends_unless_used() {
            break;
        }
    }
    socket::leave_untaken();
    to_who_listens(LISTENS_SOON);
    // What a thread of the program's still waits at, and what is kept for a child whose end was not noticed yet.
    engine.network.shut_held();
    stay_for_undelivered(&engine.network);
    // What has something to be read, what nobody has accepted, and what was not delivered.
    engine.network.end_all();
    elsewhere::others().inspect(|others| others.ends(socket::is_anothers));
    claimed::leave_to_others();
    // What the C library calls at the end of a process, it has called before this.
    record::write();
    leaving::is_over();
}

/// The process is about to end at once (`_exit`), or may be: what its threads have written, and hold back until their batches are over,
/// leaves. On Linux it had left when it was written.
pub fn before_end() {
    let Some(engine) = engine::running().filter(|_| husk::is_engines_process()) else { return };
    // A handler sends what the thread holds back that it has interrupted, as a write to a socket would, and leaves the rest.
    if signals::may_begin_call() && (lull_net::holds_back() || !signals::is_in_handler()) {
        signals::section(|| engine.network.let_go());
    }
}

/// The program ends by `abort`, or the stack does, in a thread of its own or inside of a call: what the program's thread holds back leaves.
pub fn before_abort() {
    // A thread that holds nothing back may be lull's, and hold a lock.
    if lull_net::holds_back() {
        before_end();
    }
}

/// The calling thread sends itself a signal, whose default action may end the process (uvicorn does so when it was told to end): that is
/// an exit as well.
pub fn before_own_signal(signal: c_int) {
    if engine::running().is_some() && husk::is_engines_process() && signals::ends_us(signal) {
        at_exit();
        signals::ends_us_again(signal);
    } else {
        before_end();
    }
}

/// The program signals a process, or by a number that is not above 0 a group of them. Who is signalled may know by it that the program
/// has answered its peers, as who waits for it does, and may end it.
pub fn before_signal(to: pid_t, signal: c_int) {
    match to {
        _ if to == process() => before_own_signal(signal),
        ..=0 => before_end(),
        _ => crate::about_to_wait(),
    }
}

/// The program signals a thread of its own process.
pub fn before_signal_to_thread(thread: pid_t, signal: c_int) {
    // SAFETY: a number.
    if thread == unsafe { libc::gettid() } { before_own_signal(signal) } else { before_end() }
}

/// The program signals a thread of a process, which may be its own.
pub fn before_signal_to_thread_of(to: pid_t, thread: pid_t, signal: c_int) {
    if to == process() { before_signal_to_thread(thread, signal) } else { before_signal(to, signal) }
}

fn process() -> pid_t {
    std::process::id() as pid_t
}

/// Makes sure that nobody else has to wait for what this process stays for: what the program has written goes out, and
/// what it has open of the kernel's is closed.
fn stays() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: `exit` does the same later, and waits for no lock of another thread's either.
        unsafe { fcloseall() };
        signals::section(files::close_kernels);
    });
}

unsafe extern "C" {
    /// Of the C library: writes what stands in its streams.
    fn fcloseall() -> c_int;
}

fn stay_for_undelivered(network: &Network) {
    if network.undelivered() > 0 {
        stays();
    }
    let (began, mut last_progress) = (Instant::now(), Instant::now());
    let (mut left, mut apart) = (network.undelivered(), Duration::from_micros(100));
    while left > 0 && last_progress.elapsed() < NO_PROGRESS && began.elapsed() < AT_MOST {
        std::thread::sleep(apart);
        apart = (apart * 2).min(LOOKS_APART_MAX);
        let now = network.undelivered();
        if now != left {
            (left, last_progress) = (now, Instant::now());
        }
    }
    if left > 0 {
        say::line(format_args!(
            "process {} ends, and peers have not taken the last {left} bytes: they are reset",
            std::process::id()
        ));
    }
}

/// Gives what nobody has accepted to a process that listens, if there are others and one listens within `at_most`;
/// otherwise it is kept for whoever listens next. If nobody will, the peers are told.
pub(crate) fn to_who_listens(at_most: Duration) {
    let Some(engine) = engine::running() else { return };
    let began = Instant::now();
    let others_are_there = || elsewhere::others().is_some_and(|others| others.are_there());
    while engine.network.handing_on() > 0 && others_are_there() && began.elapsed() < at_most {
        std::thread::sleep(LOOKS_APART_MAX);
    }
    engine.network.end_handing_on();
}

/// Contexts stay: another thread may wait in one.
fn close_all() {
    for number in files::numbers() {
        if files::get(number).is_some_and(|file| matches!(*file, File::Stream(_) | File::Listener(_))) {
            drop(files::end(number));
        }
    }
}
