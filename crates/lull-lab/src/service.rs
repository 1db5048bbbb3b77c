//! The memcached service: N worker threads, each with one epoll context. It is one program over a `plane::Plane`,
//! lull's own stack or the kernel's, so that what a comparison of the two shows is the plane.
//!
//! | module | holds |
//! | --- | --- |
//! | `plane` | what a worker stands on: sockets, and waiting for them |
//! | `own`, `kernel` | the two planes |
//! | `steer` | which worker gets a connection, where all listen on all queues |
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

/// What a service bounds of its clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Connections of a worker; further clients are told so and closed.
    pub connections_max: usize,
    /// How long a connection may ask for nothing before it is closed; `None` keeps it for ever.
    pub idle_timeout: Option<Duration>,
    /// Whether silent clients are probed, and closed when they are gone (`SO_KEEPALIVE`).
    pub keepalive: bool,
}

impl Default for Limits {
    /// Nothing is bounded, as suits clients that are the lab's own.
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
    /// Starts one worker per CPU that takes interrupts of `network`, each with one epoll context, listening on
    /// `address` for the connections of that CPU's queues.
    ///
    /// # Errors
    /// The address is in use or not the network's; a thread or its descriptors cannot be made.
    pub fn on_network(
        network: &Network,
        address: SocketAddr,
        store: Arc<Store>,
        limits: Limits,
    ) -> io::Result<OwnService> {
        Service::start(Own::planes(network, address)?, store, limits)
    }

    /// As [`OwnService::on_network`], but every worker listens on every queue, and `steer` chooses who gets a connection. The
    /// counts tell how many came by a queue of their worker's.
    ///
    /// # Errors
    /// As [`OwnService::on_network`].
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
    /// `network`: a second service beside one whose CPU takes the queues' interrupts.
    ///
    /// # Errors
    /// As [`OwnService::on_network`].
    pub fn on_cpu(
        network: &Network,
        cpu: u16,
        address: SocketAddr,
        store: Arc<Store>,
        limits: Limits,
    ) -> io::Result<OwnService> {
        Service::start(vec![Own::on_cpu(network, cpu, address)?], store, limits)
    }

    /// The workers' epoll contexts.
    pub fn epolls(&self) -> impl Iterator<Item = &Epoll> {
        self.workers.iter().map(|worker| &worker.control.epoll)
    }
}

impl KernelService {
    /// Starts one worker per core, each listening on `address` (`SO_REUSEPORT`), in the network namespace of the
    /// calling thread.
    ///
    /// # Errors
    /// The address is in use or no device's; a thread or its descriptors cannot be made.
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

    /// The application's half of a mode: how the contexts poll, how long the workers wait, and SO_BUSY_POLL.
    ///
    /// # Errors
    /// A value that the kernel refuses, or would.
    pub fn set_mode(&self, mode: &Mode) -> io::Result<()> {
        for worker in &self.workers {
            let wait = worker.control.set_mode(mode)?.timeout();
            self.shared.wait_ms.store(wait.map_or(0, |wait| wait.as_millis() as u64), Ordering::Release);
        }
        self.shared.busy_poll_usecs.store(u64::from(mode.socket_busy_poll_usecs), Ordering::Release);
        // Whoever waits in the old way comes back and waits in the new one.
        self.workers.iter().for_each(|worker| worker.control.notify());
        Ok(())
    }

    /// How many events a worker takes from epoll at a time, 1 to [`EVENTS_MAX`]: what its other packets, and other
    /// applications on its queues, may have to wait for.
    ///
    /// # Errors
    /// A number outside these limits.
    pub fn set_events_max(&self, events_max: usize) -> io::Result<()> {
        if !(1..=EVENTS_MAX).contains(&events_max) {
            let what = format!("cannot take {events_max} events at a time: use 1 to {EVENTS_MAX}");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        }
        self.shared.events_max.store(events_max, Ordering::Relaxed);
        // Whoever waits with the old limit comes back and waits with the new one.
        self.workers.iter().for_each(|worker| worker.control.notify());
        Ok(())
    }

    /// The workers' threads, by the kernel's ids.
    pub fn tids(&self) -> Vec<i32> {
        self.workers.iter().map(|worker| worker.tid).collect()
    }
}

impl<C: Control> Drop for Service<C> {
    /// Ends the workers: connections are closed.
    fn drop(&mut self) {
        self.shared.stopping.store(true, Ordering::Release);
        for worker in self.workers.drain(..) {
            worker.control.notify();
            // A worker that panicked has said so on stderr.
            let _ = worker.join.join();
        }
    }
}
