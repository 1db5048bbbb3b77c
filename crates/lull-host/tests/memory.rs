//! The thread that gives memory back. A process of its own, since it looks at all threads of the process and forks.
#![cfg(all(not(loom), target_env = "gnu"))]
#![allow(unsafe_code)]

use std::fs;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use lull_host::{forget_giving_back, give_back_memory};

/// Both tests are about the one thread of this process.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    until_ended();
    alone
}

/// The status of the thread of this process that gives back, if there is one.
fn giving_back() -> Option<String> {
    let tasks = fs::read_dir("/proc/self/task").unwrap();
    // A thread that ends meanwhile has no status any more.
    let statuses = tasks.filter_map(|task| fs::read_to_string(task.ok()?.path().join("status")).ok());
    statuses.into_iter().find(|status| status.contains("Name:\tlull-memory\n"))
}

/// Has memory given back until the thread that does it is seen: it names itself, and on a busy machine its second may be over before
/// anybody has looked.
fn until_giving_back() -> String {
    loop {
        give_back_memory();
        match giving_back() {
            Some(status) => return status,
            None => thread::sleep(Duration::from_millis(1)),
        }
    }
}

fn until_ended() {
    while giving_back().is_some() {
        thread::sleep(Duration::from_millis(10));
    }
}

/// The signals that the calling thread blocks, as the kernel shows them.
fn blocked_here() -> u64 {
    blocked(&fs::read_to_string("/proc/thread-self/status").unwrap())
}

fn blocked(status: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix("SigBlk:")).unwrap();
    u64::from_str_radix(line.trim(), 16).unwrap()
}

/// A program's handler runs in a thread of the program's: one that had let its signals in was the first that the kernel chose.
#[test]
fn the_thread_that_gives_back_runs_no_handler_of_the_program() {
    let _alone = alone();
    let before = blocked_here();
    let of_the_thread = blocked(&until_giving_back());
    // SIGKILL and SIGSTOP cannot be blocked, and the C library keeps those between the ordinary and the real-time ones.
    let let_in: Vec<libc::c_int> = (1..=64).filter(|signal| of_the_thread & (1 << (signal - 1)) == 0).collect();
    let may = |signal: &libc::c_int| {
        [libc::SIGKILL, libc::SIGSTOP].contains(signal) || (32..libc::SIGRTMIN()).contains(signal)
    };
    assert!(let_in.iter().all(may), "it lets in {let_in:?}");
    assert_eq!(blocked_here(), before, "the caller takes its signals as before");
}

#[test]
fn a_child_of_a_process_that_gives_back_gets_a_thread_of_its_own() {
    let _alone = alone();
    until_giving_back();
    // SAFETY: the child is a copy of this thread; the C library mends its allocator in it, and it ends without running what is its
    // parent's.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // A child that never sees one ends all the same, by the signal.
        // SAFETY: as above.
        unsafe { libc::alarm(60) };
        let none = giving_back().is_none();
        forget_giving_back();
        until_giving_back();
        // SAFETY: as above.
        unsafe { libc::_exit(if none { 0 } else { 1 }) };
    }
    let mut status = -1;
    // SAFETY: the child's number, and room for its status.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0);
}
