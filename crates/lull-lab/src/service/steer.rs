//! Which worker gets a connection, where every worker listens on every queue, as programs of Linux do with SO_REUSEPORT.

use std::sync::atomic::{AtomicU64, Ordering};

pub use lull_net::lull_bpf::steer::Steer;

/// How many connections came by a queue of the worker that serves them.
#[derive(Debug, Default)]
pub struct Silos {
    own: AtomicU64,
    all: AtomicU64,
}

impl Silos {
    pub(super) fn count(&self, own: bool) {
        self.own.fetch_add(u64::from(own), Ordering::Relaxed);
        self.all.fetch_add(1, Ordering::Relaxed);
    }

    /// Connections whose NAPI is their worker's.
    pub fn own(&self) -> u64 {
        self.own.load(Ordering::Relaxed)
    }

    /// All connections.
    pub fn all(&self) -> u64 {
        self.all.load(Ordering::Relaxed)
    }
}
