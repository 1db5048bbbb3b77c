//! The memcached service: N worker threads, each with one epoll context. It is one program over a `plane::Plane`,
//! either lull's own stack or the kernel's, so that a comparison of the two shows only the plane.
//!
//! | module | holds |
//! | --- | --- |
//! | `plane` | what a worker runs on: sockets, and waiting for them |
//! | `own`, `kernel` | the two planes |
//! | `steer` | which worker gets a connection if all listen on all queues |
//! | `worker` | waiting, accepting, reading ahead, answering; limits on connections |
//! | `talk` | one connection: protocol, and replies that wait for room |

mod kernel;
mod own;
mod plane;
mod slots;
mod steer;
mod talk;
mod worker;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use lull_core::Mode;
use lull_net::{Epoll, Network};

use crate::memcached::Store;
use kernel::{Kernel, KernelControl};
use own::{Own, OwnControl};
pub use plane::EVENTS_MAX;
use plane::{Control, Plane};
pub use steer::{Silos, Steer};
use worker::Shared;

/// The limits of a service for its clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The most connections of a worker. Further clients get an error and are closed.
    pub connections_max: usize,
    /// How long a connection may send no request before it is closed. `None` keeps it for ever.
    pub idle_timeout: Option<Duration>,
    /// Whether silent clients are probed, and closed if they are gone (`SO_KEEPALIVE`).
    pub keepalive: bool,
}

impl Default for Limits {
    /// There are no limits, which suits the lab's own clients.
    fn default() -> Limits {
        Limits { connections_max: usize::MAX, idle_timeout: None, keepalive: false }
    }
}

/// A running service.
pub struct Service<C: Control> {
    shared: Arc<Shared>,
    workers: Vec<Running<C>>,
}

/// A service on lull's own stack.
pub type OwnService = Service<OwnControl>;
/// A service on the kernel's stack.
pub type KernelService = Service<KernelControl>;

struct Running<C> {
    join: JoinHandle<()>,
    tid: i32,
    control: C,
}

impl OwnService {
    /// Starts one worker per CPU that takes interrupts of `network`. Each has one epoll context, and listens on
    /// `address` for the connections of that CPU's queues.
    ///
    /// # Errors
    ///
    /// This fails if the address is in use or not the network's, or if a thread or its descriptors cannot be made.
    pub fn on_network(
        network: &Network,
        address: SocketAddr,
        store: Arc<Store>,
        limits: Limits,
    ) -> io::Result<OwnService> {
        Service::start(Own::planes(network, address)?, store, limits)
    }

    /// Does the same as [`OwnService::on_network`], but every worker listens on every queue, and `steer` chooses the
    /// worker that gets a connection. The counts show how many connections came by a queue of their worker's.
    ///
    /// # Errors
    ///
    /// This fails for the same reasons as [`OwnService::on_network`].
    pub fn steered(
        network: &Network,
        address: SocketAddr,
        store: Arc<Store>,
        limits: Limits,
        steer: &Steer,
    ) -> io::Result<(OwnService, Arc<Silos>)> {
        let (planes, silos) = Own::steered(network, address, steer)?;
        Ok((Service::start(planes, store, limits)?, silos))
    }

    /// Starts one worker on `cpu`, with one epoll context, listening on `address` for the connections of all queues of
    /// `network`. This makes a second service beside one whose CPU takes the queues' interrupts.
    ///
    /// # Errors
    ///
    /// This fails for the same reasons as [`OwnService::on_network`].
    pub fn on_cpu(
        network: &Network,
        cpu: u16,
        address: SocketAddr,
        store: Arc<Store>,
        limits: Limits,
    ) -> io::Result<OwnService> {
        Service::start(vec![Own::on_cpu(network, cpu, address)?], store, limits)
    }

    /// Returns the workers' epoll contexts.
    pub fn epolls(&self) -> impl Iterator<Item = &Epoll> {
        self.workers.iter().map(|worker| &worker.control.epoll)
    }
}

impl KernelService {
    /// Starts one worker per core, each listening on `address` (`SO_REUSEPORT`), in the network namespace of the
    /// calling thread.
    ///
    /// # Errors
    ///
    /// This fails if the address is in use or no device has it, or if a thread or its descriptors cannot be made.
    pub fn on_kernel(
        address: SocketAddr,
        cores: &[usize],
        store: Arc<Store>,
        limits: Limits,
    ) -> io::Result<KernelService> {
        Service::start(Kernel::planes(address, cores)?, store, limits)
    }
}

impl<C: Control> Service<C> {
    fn start<P: Plane>(planes: Vec<(P, C)>, store: Arc<Store>, limits: Limits) -> io::Result<Service<C>> {
        let shared = Arc::new(Shared {
            store,
            limits,
            stopping: AtomicBool::new(false),
            wait_ms: AtomicU64::new(0),
            events_max: AtomicUsize::new(EVENTS_MAX),
            busy_poll_usecs: AtomicU64::new(0),
            refusal_told: AtomicBool::new(false),
        });
        let mut service = Service { shared, workers: Vec::new() };
        for (nth, (plane, control)) in planes.into_iter().enumerate() {
            let (join, tid) = worker::start(nth, plane, service.shared.clone())?;
            service.workers.push(Running { join, tid, control });
        }
        Ok(service)
    }

    /// Puts the application's half of a mode in force: how the contexts poll, how long the workers wait, and
    /// SO_BUSY_POLL.
    ///
    /// # Errors
    ///
    /// This fails for a value that the kernel refuses, or would refuse.
    pub fn set_mode(&self, mode: &Mode) -> io::Result<()> {
        for worker in &self.workers {
            let wait = worker.control.set_mode(mode)?.timeout();
            self.shared.wait_ms.store(wait.map_or(0, |wait| wait.as_millis() as u64), Ordering::Release);
        }
        self.shared.busy_poll_usecs.store(u64::from(mode.socket_busy_poll_usecs), Ordering::Release);
        // A worker that waits in the old way returns and waits in the new one.
        self.workers.iter().for_each(|worker| worker.control.notify());
        Ok(())
    }

    /// Sets how many events a worker takes from epoll at a time, 1 to [`EVENTS_MAX`]. Its other packets, and other
    /// applications on its queues, may have to wait for these.
    ///
    /// # Errors
    ///
    /// This fails for a number outside these limits.
    pub fn set_events_max(&self, events_max: usize) -> io::Result<()> {
        if !(1..=EVENTS_MAX).contains(&events_max) {
            let what = format!("cannot take {events_max} events at a time: use 1 to {EVENTS_MAX}");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        }
        self.shared.events_max.store(events_max, Ordering::Relaxed);
        // A worker that waits with the old limit returns and waits with the new one.
        self.workers.iter().for_each(|worker| worker.control.notify());
        Ok(())
    }

    /// Returns the kernel's ids of the workers' threads.
    pub fn tids(&self) -> Vec<i32> {
        self.workers.iter().map(|worker| worker.tid).collect()
    }
}

impl<C: Control> Drop for Service<C> {
    /// Ends the workers, which closes the connections.
    fn drop(&mut self) {
        self.shared.stopping.store(true, Ordering::Release);
        for worker in self.workers.drain(..) {
            worker.control.notify();
            // A worker that panicked has written so to stderr.
            let _ = worker.join.join();
        }
    }
}
