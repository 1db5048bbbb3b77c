//! The plane of lull's own stack: one NAPI, one epoll context and one lull CPU for each worker.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use lull_core::{AppPolicy, Mode};
use lull_host::Worker;
use lull_net::{Cork, Epoll, Event, Interest, Keepalive, ListenOptions, Network, Notifier, TcpListener, TcpStream};

use super::plane::{
    Control, EVENTS_MAX, KEEPALIVE_IDLE, KEEPALIVE_INTERVAL, KEEPALIVE_PROBES, LISTENER, NOTICE, Plane, Stream, Watch,
};

/// One queue of a network with its worker.
pub struct Own {
    network: Network,
    queue: usize,
    worker: Worker,
    epoll: Epoll,
    listener: TcpListener,
    events: Vec<Event>,
}

/// What changes and wakes such a worker.
pub struct OwnControl {
    pub(super) epoll: Epoll,
    notifier: Notifier,
}

impl Own {
    /// A plane for each queue of `network`, on the CPU of that queue's interrupt, each listening on `address` for the
    /// connections of its own queue.
    pub(super) fn planes(network: &Network, address: SocketAddr) -> io::Result<Vec<(Own, OwnControl)>> {
        (0..network.napis().len()).map(|queue| Own::new(network, queue, address)).collect()
    }

    fn new(network: &Network, queue: usize, address: SocketAddr) -> io::Result<(Own, OwnControl)> {
        let host = network.host();
        let cpu = host.napi_cpu(network.napis()[queue]);
        let worker = Worker::new(host, cpu)?;
        let epoll = Epoll::new(host);
        let options = ListenOptions { reuse_port: true, nodelay: true, ..ListenOptions::default() };
        let listener = TcpListener::bind_with(network, Some(queue), address, options)?;
        listener.set_nonblocking(true);
        epoll.add(&listener, LISTENER, Interest::READABLE)?;
        let control = OwnControl { notifier: epoll.notifier(NOTICE), epoll: epoll.clone() };
        let events = Vec::with_capacity(EVENTS_MAX);
        Ok((Own { network: network.clone(), queue, worker, epoll, listener, events }, control))
    }
}

impl Plane for Own {
    type Stream = TcpStream;
    type Batch<'a> = Cork<'a>;

    fn pin(&self) -> io::Result<()> {
        Ok(self.worker.pin_thread()?)
    }

    fn wait(&mut self, keys: &mut Vec<u64>, timeout: Option<Duration>) {
        self.events.clear();
        // The only error is a maximum of 0.
        let _ = self.epoll.wait(&self.worker, &mut self.events, EVENTS_MAX, timeout);
        keys.extend(self.events.iter().map(|event| event.key));
    }

    fn accept(&self, keepalive: bool) -> io::Result<TcpStream> {
        let (stream, _peer) = self.listener.accept()?;
        stream.set_nonblocking(true);
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

    /// The doorbell rings once for all that is answered.
    fn batch(&self) -> Cork<'_> {
        self.network.cork(self.queue)
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
