//! The plane of lull's own stack: one lull CPU and one epoll context for each worker, with the NAPIs of that CPU.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use lull_core::{AppPolicy, Mode};
use lull_host::Worker;
use lull_net::{Cork, Epoll, Event, Interest, Keepalive, ListenOptions, Network, Notifier, TcpListener, TcpStream};

use super::plane::{
    Control, EVENTS_MAX, KEEPALIVE_IDLE, KEEPALIVE_INTERVAL, KEEPALIVE_PROBES, LISTENER, NOTICE, Plane, Stream, Watch,
};
use super::steer::{Silos, Steer};

/// The queues of a network that are on one CPU, with their worker.
pub struct Own {
    network: Network,
    queues: Vec<usize>,
    worker: Worker,
    epoll: Epoll,
    /// One listener per queue: several workers listen on the same address, each on its own queues.
    listeners: Vec<TcpListener>,
    /// Counts connections if all workers listen on all queues.
    silos: Option<Arc<Silos>>,
    events: Vec<Event>,
}

/// Holds the queues' doorbells back. With one queue, which is the usual number of a worker, it takes no memory.
#[expect(dead_code, reason = "the corks are there to be dropped")]
pub enum Corks<'n> {
    One(Cork<'n>),
    Several(Vec<Cork<'n>>),
}

/// Changes the settings of such a worker and wakes it.
pub struct OwnControl {
    pub(super) epoll: Epoll,
    notifier: Notifier,
}

/// The planes of workers, each with its control.
type Planes = Vec<(Own, OwnControl)>;

impl Own {
    /// Makes a plane for each CPU that takes interrupts of `network`, listening on `address` for the connections of all
    /// queues of that CPU.
    pub(super) fn planes(network: &Network, address: SocketAddr) -> io::Result<Planes> {
        let queues_by_cpu = Own::queues_by_cpu(network)?;
        queues_by_cpu.into_iter().map(|(cpu, queues)| Own::new(network, cpu, queues, address)).collect()
    }

    /// Makes a plane for each CPU that takes interrupts of `network`. Each listens on all queues, and `steer` chooses
    /// the worker that gets a connection.
    pub(super) fn steered(network: &Network, address: SocketAddr, steer: &Steer) -> io::Result<(Planes, Arc<Silos>)> {
        let silos = Arc::new(Silos::default());
        let queues_by_cpu = Own::queues_by_cpu(network)?;
        let workers = queues_by_cpu.len();
        // The listeners are bound in the order of the CPUs, because steering programs number them in this order.
        let program = steer.program(u32::try_from(workers).unwrap_or(u32::MAX)).map(|program| Arc::new(program.into()));
        let listeners = TcpListener::bind_group(network, workers, address, listens(), program)?;
        let mut planes = Vec::new();
        for ((cpu, queues), listener) in queues_by_cpu.into_iter().zip(listeners) {
            let (mut plane, control) = Own::with_listeners(network, cpu, queues, vec![listener])?;
            plane.silos = Some(silos.clone());
            planes.push((plane, control));
        }
        Ok((planes, silos))
    }

    fn queues_by_cpu(network: &Network) -> io::Result<BTreeMap<u16, Vec<usize>>> {
        let mut queues_by_cpu: BTreeMap<u16, Vec<usize>> = BTreeMap::new();
        for (queue, napi) in network.napis().into_iter().enumerate() {
            let gone = || io::Error::other("the queue has no NAPI any more");
            let cpu = network.host().napi_cpu(napi).ok_or_else(gone)?;
            queues_by_cpu.entry(cpu).or_default().push(queue);
        }
        Ok(queues_by_cpu)
    }

    /// Makes a plane on one CPU, listening on `address` for the connections of all queues, wherever their interrupts
    /// go.
    pub(super) fn on_cpu(network: &Network, cpu: u16, address: SocketAddr) -> io::Result<(Own, OwnControl)> {
        Own::new(network, cpu, (0..network.napis().len()).collect(), address)
    }

    fn new(network: &Network, cpu: u16, queues: Vec<usize>, address: SocketAddr) -> io::Result<(Own, OwnControl)> {
        let bind = |queue: &usize| TcpListener::bind_with(network, Some(*queue), address, listens());
        let listeners = queues.iter().map(bind).collect::<io::Result<_>>()?;
        Own::with_listeners(network, cpu, queues, listeners)
    }

    fn with_listeners(
        network: &Network,
        cpu: u16,
        queues: Vec<usize>,
        listeners: Vec<TcpListener>,
    ) -> io::Result<(Own, OwnControl)> {
        let host = network.host();
        let worker = Worker::new(host, cpu)?;
        let epoll = Epoll::new(host);
        for listener in &listeners {
            listener.set_nonblocking(true)?;
            epoll.add(listener, LISTENER, Interest::READABLE)?;
        }
        let control = OwnControl { notifier: epoll.notifier(NOTICE), epoll: epoll.clone() };
        let events = Vec::with_capacity(EVENTS_MAX);
        Ok((Own { network: network.clone(), queues, worker, epoll, listeners, silos: None, events }, control))
    }
}

/// The options with which the listeners of all workers share an address.
fn listens() -> ListenOptions {
    ListenOptions { reuse_port: true, nodelay: true, ..ListenOptions::default() }
}

impl Own {
    /// Whether the NAPI with this id belongs to one of the worker's queues.
    fn has_napi(&self, id: u32) -> bool {
        let napis = self.network.napis();
        let of_queue = |queue: &usize| napis.get(*queue).map(|napi| self.network.host().napi_id(*napi));
        self.queues.iter().any(|queue| of_queue(queue) == Some(id))
    }
}

impl Plane for Own {
    type Stream = TcpStream;
    type Batch<'a> = Corks<'a>;

    fn pin(&self) -> io::Result<()> {
        Ok(self.worker.pin_thread()?)
    }

    fn wait(&mut self, keys: &mut Vec<u64>, events_max: usize, timeout: Option<Duration>) {
        self.events.clear();
        // The only possible error is for a maximum of 0.
        let _ = self.epoll.wait(&self.worker, &mut self.events, events_max, timeout);
        keys.extend(self.events.iter().map(|event| event.key));
    }

    fn accept(&self, keepalive: bool) -> io::Result<TcpStream> {
        let mut accepted = Err(io::ErrorKind::WouldBlock.into());
        for listener in &self.listeners {
            accepted = listener.accept();
            if accepted.is_ok() {
                break;
            }
        }
        let (stream, _peer) = accepted?;
        if let Some(silos) = &self.silos {
            silos.count(self.has_napi(stream.incoming_napi_id()));
        }
        stream.set_nonblocking(true)?;
        if keepalive {
            stream.set_keepalive(Some(Keepalive {
                idle_ns: KEEPALIVE_IDLE.as_nanos() as u64,
                interval_ns: KEEPALIVE_INTERVAL.as_nanos() as u64,
                probes: KEEPALIVE_PROBES,
            }))?;
        }
        Ok(stream)
    }

    fn add(&self, stream: &TcpStream, key: u64) -> io::Result<()> {
        self.epoll.add(stream, key, Interest::READABLE)
    }

    fn watch(&self, stream: &TcpStream, key: u64, watch: Watch) -> io::Result<()> {
        let interest = match watch {
            Watch::Input => Interest::READABLE,
            Watch::Room => Interest::WRITABLE,
        };
        self.epoll.modify(stream, key, interest)
    }

    /// Each queue's doorbell rings once for all answers on that queue.
    fn batch(&self) -> Corks<'_> {
        match self.queues[..] {
            [queue] => Corks::One(self.network.cork(queue)),
            _ => Corks::Several(self.queues.iter().map(|queue| self.network.cork(*queue)).collect()),
        }
    }
}

impl Control for OwnControl {
    fn set_mode(&self, mode: &Mode) -> io::Result<AppPolicy> {
        Ok(self.epoll.set_mode(mode)?)
    }

    fn notify(&self) {
        self.notifier.notify();
    }
}

impl Stream for TcpStream {
    fn recv(&self, into: &mut [u8]) -> io::Result<usize> {
        TcpStream::recv(self, into)
    }

    fn send(&self, data: &[u8]) -> io::Result<usize> {
        TcpStream::send(self, data)
    }

    fn touch(&self) {
        std::hint::black_box(self.ready());
    }

    fn set_busy_poll(&self, usecs: u32) -> io::Result<()> {
        Ok(TcpStream::set_busy_poll(self, usecs)?)
    }
}
