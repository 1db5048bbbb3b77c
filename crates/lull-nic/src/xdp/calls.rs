//! Calls on a queue's socket that move no frame.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::shared::Shared;
use super::socket::{kick_rx, napi_id};

/// The calls on a queue's socket that move no frame, for any thread: with [`super::XdpBusyPoll::ByCalls`] they are what busy
/// polls the driver.
#[derive(Clone)]
pub struct XdpCalls {
    shared: Arc<Shared>,
    index: usize,
}

impl XdpCalls {
    pub(super) fn new(shared: &Arc<Shared>, index: usize) -> XdpCalls {
        XdpCalls { shared: shared.clone(), index }
    }

    /// `recvfrom` with MSG_DONTWAIT (`xsk_recvmsg`): busy polls the driver for one round if the socket's options say so and it
    /// has an instance that can be polled.
    pub fn receive(&self) {
        let socket = &self.shared.sockets[self.index];
        // What it brings or not is on the ring; a device that is gone says so elsewhere.
        let _ = kick_rx(&socket.fd);
        socket.calls.fetch_add(1, Ordering::Relaxed);
    }

    /// The kernel's NAPI instance that received frames came from; 0 if none has named one.
    pub fn napi_id(&self) -> u32 {
        napi_id(&self.shared.sockets[self.index].fd)
    }
}

impl std::fmt::Debug for XdpCalls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("XdpCalls").field("device", &self.shared.name).field("queue", &self.index).finish()
    }
}
