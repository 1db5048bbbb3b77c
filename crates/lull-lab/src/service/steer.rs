//! Which worker gets a connection, where every worker listens on every queue, as programs of Linux do with SO_REUSEPORT.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use lull_net::lull_cbpf::{Program, steer};

/// What chooses among the workers' listeners.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Steer {
    /// The worker of the queue that the SYN came by.
    Queue,
    /// The worker of the CPU that delivered the SYN.
    Cpu,
    /// The 4-tuple's hash, as without a program.
    Hash,
    /// A program of the operator's.
    Program(Program),
}

impl Steer {
    /// The program for so many workers; none where the hash chooses.
    pub(super) fn program(&self, workers: usize) -> Option<Arc<Program>> {
        let workers = u32::try_from(workers.max(1)).unwrap_or(u32::MAX);
        Some(Arc::new(match self {
            Steer::Queue => steer::by_queue(workers),
            Steer::Cpu => steer::by_cpu(workers),
            Steer::Hash => return None,
            Steer::Program(program) => program.clone(),
        }))
    }
}

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
