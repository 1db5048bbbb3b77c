//! The record of the program's frames, if the launcher asked for one.

use std::fs::File;
use std::sync::Arc;

use lull_net::lull_nic::pcap::Pcap;
use lull_net::lull_nic::{Afresh, Device};

static RECORDED: Afresh<Arc<Pcap<File>>> = Afresh::new();

/// A child of `fork` has a copy of what its parent writes.
pub(crate) fn forget() {
    RECORDED.forget();
}

/// Writes what is buffered of the record, if there is one.
pub(crate) fn write() {
    RECORDED.get().inspect(|record| {
        record.flush();
    });
}

/// Records every frame. What is buffered is written when the program exits; one that is killed loses the last of it.
#[allow(unsafe_code)]
pub(crate) fn of(device: Arc<dyn Device>, file: File) -> Arc<dyn Device> {
    extern "C" fn write_out() {
        write();
    }
    let record = RECORDED.get_or_init(|| Arc::new(Pcap::new(device, file)));
    // SAFETY: the function stays for as long as the process. Without memory to note it, only the end of the record is lost.
    unsafe { libc::atexit(write_out) };
    record.clone()
}
