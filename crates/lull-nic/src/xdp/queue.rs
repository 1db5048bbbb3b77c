//! A queue: its halves, and its two interrupts.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use super::home::Home;
use super::receive::XdpRx;
use super::ring::holds_any;
use super::send::XdpTx;
use super::shared::Shared;
use crate::device::{IrqLine, IrqSink, Queue};
use crate::frame::Origin;

pub(super) fn new(shared: &Arc<Shared>, index: usize, home: Arc<Home>, origin: Arc<Origin>) -> Queue {
    Queue {
        index,
        rx: Box::new(XdpRx::new(shared, index, home, origin)),
        tx: Box::new(XdpTx::new(shared, index)),
        irq: Arc::new(XdpIrq { shared: shared.clone(), index }),
        tx_irq: Arc::new(XdpRoom { shared: shared.clone(), index }),
    }
}

/// The kernel's interrupt: the socket, which is readable while the receive ring holds something. It never is again once
/// the interface is gone.
struct XdpIrq {
    shared: Arc<Shared>,
    index: usize,
}

impl IrqLine for XdpIrq {
    fn connect(&self, _sink: Arc<dyn IrqSink>) {}

    fn mask(&self) {}

    fn unmask(&self) {}

    /// The ring says, unless the kernel has to be asked to poll the driver.
    fn pending(&self) -> Option<bool> {
        let socket = &self.shared.sockets[self.index];
        let rx = &socket.rings.rx;
        if holds_any(rx.producer(), rx.consumer()) {
            return Some(true);
        }
        if socket.is_busy_polled() { None } else { Some(false) }
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.shared.sockets[self.index].fd.as_fd())
    }
}

/// The room interrupt. The kernel announces neither completions nor that a full device has room again, so the device's
/// thread looks while the line is armed (`watch.rs`).
struct XdpRoom {
    shared: Arc<Shared>,
    index: usize,
}

impl IrqLine for XdpRoom {
    fn connect(&self, sink: Arc<dyn IrqSink>) {
        self.shared.sockets[self.index].room.connect(sink);
    }

    fn mask(&self) {
        self.shared.sockets[self.index].room.vector.mask();
    }

    fn unmask(&self) {
        let socket = &self.shared.sockets[self.index];
        if socket.room.vector.unmask(|| self.shared.has_room(socket)) {
            socket.room.fire();
        } else if socket.room.vector.is_armed() {
            self.shared.wake_watch();
        }
    }
}
