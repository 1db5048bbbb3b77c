//! Resets of a device while its network is being made.

mod pair;
mod wrapped;

use std::io::{Read, Write};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use lull_nic::{Device, IrqLine, IrqSink, Queue};
use pair::Pair;
use wrapped::Wrapped;

/// This line resets the device after its first unmask, which is that of the enabling.
struct ResetsOnce {
    line: Arc<dyn IrqLine>,
    device: Arc<dyn Device>,
    done: AtomicBool,
}

impl IrqLine for ResetsOnce {
    fn connect(&self, sink: Arc<dyn IrqSink>) {
        self.line.connect(sink);
    }

    fn mask(&self) {
        self.line.mask();
    }

    fn unmask(&self) {
        self.line.unmask();
        if !self.done.swap(true, Ordering::AcqRel) {
            self.device.reset().unwrap();
        }
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.line.fd()
    }
}

/// The reset masks the interrupt, and only the network can unmask it again.
#[test]
fn a_reset_while_the_queues_are_enabled_leaves_no_queue_deaf() {
    let wrap = |inner: Arc<dyn Device>| {
        let device = inner.clone();
        let queue = move |mut queue: Queue| {
            queue.irq = Arc::new(ResetsOnce { line: queue.irq, device: device.clone(), done: AtomicBool::new(false) });
            queue
        };
        Arc::new(Wrapped::new(inner, queue)) as Arc<dyn Device>
    };
    let pair = Pair::with(2, wrap, lull_core::NapiSettings::default());
    // SYNs that the reset drops are sent again.
    let (mut server, mut client) = pair.connected(80);
    client.write_all(b"x").unwrap();
    assert_eq!(server.read(&mut [0; 8]).unwrap(), 1);
}
