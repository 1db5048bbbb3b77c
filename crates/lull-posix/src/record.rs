//! The record of the program's frames, if the launcher asked for one: a file that the launcher has begun, and that each process with a
//! queue appends whole records to.

use std::fs::File;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lull_fd::say;
use lull_net::lull_nic::pcap::{Pcap, WholeWrites};
use lull_net::lull_nic::{Afresh, Device};

type Recorded = Option<Arc<Pcap<WholeWrites>>>;

static RECORDED: Afresh<Mutex<Recorded>> = Afresh::new();

fn recorded() -> MutexGuard<'static, Recorded> {
    RECORDED.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner)
}

/// A child of `fork` has a copy of what its parent writes.
pub(crate) fn forget() {
    RECORDED.forget();
}

/// The start of an engine has come to nothing: the device that was recorded ends with it.
pub(crate) fn give_up() {
    let given_up = recorded().take();
    drop(given_up);
}

/// Writes what is buffered of the record, if there is one. Another process that is stopped while it writes is not waited for for long.
pub(crate) fn write() {
    const TRIES: usize = 100;
    const APART: Duration = Duration::from_millis(10);
    let Some(record) = recorded().clone() else { return };
    for _ in 0..TRIES {
        if record.flush() || record.error().is_some() {
            return;
        }
        std::thread::sleep(APART);
    }
}

/// Records every frame. What is buffered is written when the program exits; one that is killed, or calls `_exit`, loses the last of it.
#[allow(unsafe_code)]
pub(crate) fn of(device: Arc<dyn Device>, file: File) -> Arc<dyn Device> {
    extern "C" fn write_out() {
        write();
    }
    let record = Arc::new(Pcap::appending(device, WholeWrites::to(file), |line| say::line(format_args!("{line}"))));
    *recorded() = Some(record.clone());
    // SAFETY: the function stays for as long as the process. Without memory to note it, only the end of the record is lost.
    unsafe { libc::atexit(write_out) };
    record
}
