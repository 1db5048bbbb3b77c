//! A process whose main thread ends alone (`pthread_exit`) goes on until its last thread has ended, and exits with 0 then (glibc's
//! `start_thread`). lull's threads are none of the program's, so they see to that themselves: else they would keep it for ever.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::thread;
use std::time::Duration;

use libc::c_int;
use lull_fd::say;
use lull_net::lull_host::ThreadUse;

use crate::engine;
use crate::kernel::{self, NoSignals};

/// How long threads that have ended may be taken to go on. The kernel tells nobody of the end of another's thread.
const LOOK: Duration = Duration::from_millis(100);

/// The size of the stack on which the process exits: what the program has asked to be run then is its own.
const STACK_BYTES: usize = 2 << 20;

/// The calling thread is the main one. What a thread has by a key is destroyed when it ends, and not when the process exits.
pub(crate) fn begins_as_main() {
    let mut key = 0;
    // SAFETY: room for a key. Its value is never read, and is not null, since of null nobody is told.
    unsafe {
        if libc::pthread_key_create(&raw mut key, Some(main_ends)) == 0 {
            libc::pthread_setspecific(key, (&raw const MARK).cast());
        }
    }
}

static MARK: u8 = 0;

extern "C" fn main_ends(_: *mut c_void) {
    ends(|| std::process::exit(0));
}

/// The calling thread ends by the system call, of which the C library knows nothing. If it is the main one, its status is that of the
/// process, which ends without an exit.
pub fn ends_by_number(status: c_int) {
    // SAFETY: a number.
    ends(move || unsafe { libc::_exit(status) });
}

/// The calling thread ends by itself. If it is the main one, the process is to `exit` when the others have ended.
fn ends(exit: impl FnOnce() + Send + 'static) {
    // SAFETY: numbers.
    let is_main = unsafe { libc::gettid() == libc::getpid() };
    if !is_main || !crate::is_involved() {
        return;
    }
    // They are the program's threads' to take, until there is none.
    let no_signals = NoSignals::begin();
    let last = thread::Builder::new().name("lull-last".to_owned()).stack_size(STACK_BYTES);
    let ends_after_the_last = move || {
        while !is_last().unwrap_or(false) {
            thread::sleep(LOOK);
        }
        // It is a thread of the program's from now on.
        kernel::name_thread(c"last");
        drop(no_signals);
        exit();
    };
    if let Err(error) = last.spawn(ends_after_the_last) {
        say::line(format_args!("process {} will not end with its last thread: {error}", std::process::id()));
    }
}

/// Whether no thread of the program's is left. Nothing is known without /proc.
fn is_last() -> std::io::Result<bool> {
    let delivers: Vec<ThreadUse> = engine::running().map_or_else(Vec::new, |engine| engine.network.host().threads());
    for entry in std::fs::read_dir("/proc/self/task")? {
        let entry = entry?;
        let delivers = delivers.iter().any(|thread| entry.file_name().to_str() == Some(&thread.tid.to_string()));
        // One that has ended meanwhile is not there any more.
        if !delivers && std::fs::read(entry.path().join("stat")).is_ok_and(|stat| is_the_programs(&stat)) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Whether a line of `/proc/PID/task/TID/stat` is of a thread of the program's that has not ended, if it is none that delivers:
/// `TID (NAME) STATE ...`, where the name may have parentheses of its own.
fn is_the_programs(stat: &[u8]) -> bool {
    let (begin, end) = (stat.iter().position(|byte| *byte == b'('), stat.iter().rposition(|byte| *byte == b')'));
    let (Some(begin), Some(end)) = (begin, end) else { return true };
    let has_ended = matches!(stat.get(end + 2), Some(b'Z' | b'X'));
    !has_ended && !stat[begin + 1..].starts_with(b"lull-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_of_lulls_and_those_that_have_ended_keep_no_process() {
        assert!(is_the_programs(b"7 (worker) S 1 2"));
        assert!(is_the_programs(b"7 () Z (lull-) R 1 2"), "a name of the program's own");
        assert!(!is_the_programs(b"7 (main) Z 1 2") && !is_the_programs(b"7 (main) X 1 2"));
        assert!(!is_the_programs(b"7 (lull-control) S 1 2"));
        assert!(!is_last().unwrap(), "the thread of this test goes on");
    }
}
