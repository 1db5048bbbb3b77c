//! The choice of the worker that gets a connection if every worker listens on every queue, as programs do on Linux with
//! SO_REUSEPORT.

use std::sync::atomic::{AtomicU64, Ordering};

pub use lull_net::lull_bpf::steer::Steer;

/// Counts how many connections came by a queue of the worker that serves them.
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

    /// Returns the number of connections whose NAPI is their worker's.
    pub fn own(&self) -> u64 {
        self.own.load(Ordering::Relaxed)
    }

    /// Returns the number of all connections.
    pub fn all(&self) -> u64 {
        self.all.load(Ordering::Relaxed)
    }
}
