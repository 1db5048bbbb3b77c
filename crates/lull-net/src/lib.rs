//! TCP and UDP sockets and epoll on NAPI shards.
//!
//! A [`Network`] is a device whose queues are NAPI instances of a [`lull_host::Host`], each with a TCP/IP stack of its
//! own (a shard) behind one lock. On it stand sockets with the shape of `std::net` and an epoll with the shape of
//! Linux's, busy-poll parameters included. There are three types to know: [`Network`], [`TcpStream`] (with
//! [`TcpListener`] and [`UdpSocket`]), and [`Epoll`].
//!
//! Types of the crates below that appear in signatures are exported here as well, and those crates are
//! `lull_net::lull_core`, `lull_host` and `lull_nic`, so that one dependency is enough.
//!
//! # Beside another event loop
//!
//! These sockets are no descriptors of the kernel, so they have no `AsFd`, and mio or tokio cannot watch them. The
//! bridge goes the other way: an [`Epoll`] watches kernel descriptors as well ([`Epoll::add_fd`]: a listener of the
//! kernel, a timerfd, an eventfd, an epoll of another loop), and a [`Notifier`] wakes its thread from any other, for
//! instance from a tokio task. For the other direction, a thread waits here and passes events on by the other loop's
//! own means, a channel or an eventfd.
//!
//! A section sign in these pages, as in §7, names a section of `docs/napi_semantics.md` in this project's repository,
//! which has the semantics that are implemented ([the file, if these pages were built in a
//! checkout](../../../docs/napi_semantics.md)).
//!
//! The modules, in the order in which a packet meets them, are `queue` (a shard behind its lock, polled by NAPI),
//! `shard` (demux, neighbours, TCP, UDP, ICMP), `ready` with `wakes` (the threads that wait for a socket, and how they
//! are woken), `epoll`, `socket`, `network`, `mode` and `busy_read` (a delivery mode on both), and `transmit` (a
//! queueing discipline between a shard and its ring). Beside them stands `packet` (sockets for whole frames, without a
//! stack). `ready`, `queue`, the open file of a socket and the context of an epoll know one another: a socket informs
//! the contexts that wait for it, and a context takes itself off the wait lists of its sockets.
//!
//! # Example: a service with two workers in the mode suspend20
//!
//! Here both ends are networks of lull's on the in-memory NIC; any other device, or the kernel at the far end of a TAP,
//! does as well. `examples/service.rs` is the same as a whole program, which also runs over TAP.
//!
//! ```
//! use std::io::{Read, Result, Write};
//! use std::sync::Arc;
//! use lull_net::lull_nic::mem::{self, MemConfig};
//! use lull_net::{
//!     Epoll, Host, HostConfig, Interest, ListenOptions, Mode, Network, NetworkConfig, TcpListener, TcpStream, UdpSocket, Worker,
//! };
//! const LISTENER: u64 = 0;
//! const STOP: u64 = 1;
//! const FIRST_STREAM: usize = 2;
//!
//! // A NIC with a queue per worker. A lull CPU for each worker, and one for the client.
//! let (server_port, client_port) = mem::pair(MemConfig { queues: 2, peer_queues: Some(1), ..MemConfig::default() });
//! let host = Host::new(HostConfig { cpus: vec![None; 3], ..HostConfig::default() })?;
//! let config = |address: &str, cpus| {
//!     NetworkConfig { addresses: vec![(address.parse().unwrap(), 24)], cpus, ..NetworkConfig::default() }
//! };
//! let mode: Mode = "suspend20".parse()?;
//! let server = Network::new(&host, Arc::new(server_port), config("10.0.0.2", vec![0, 1]).with_mode(&mode))?;
//! let client = Network::new(&host, Arc::new(client_port), config("10.0.0.1", vec![2]))?;
//!
//! let workers = (0..2).map(|nth| {
//!     let worker = Worker::new(&host, nth)?;
//!     let epoll = Epoll::new(&host);
//!     let policy = epoll.set_mode(&mode)?; // the application's half: parameters, and how long to wait
//!     let options = ListenOptions { reuse_port: true, ..ListenOptions::default() }; // each queue has its own listener
//!     let listener = TcpListener::bind_with(&server, Some(usize::from(nth)), "10.0.0.2:7".parse().unwrap(), options)?;
//!     listener.set_nonblocking(true)?;
//!     epoll.add(&listener, LISTENER, Interest::READABLE)?;
//!     let stop = epoll.notifier(STOP);
//!     let serve = move || -> Result<()> {
//!         let (mut events, mut streams) = (Vec::new(), Vec::<TcpStream>::new());
//!         loop {
//!             events.clear();
//!             epoll.wait(&worker, &mut events, 64, policy.timeout())?;
//!             for event in &events {
//!                 match event.key {
//!                     STOP => return Ok(()),
//!                     LISTENER => {
//!                         let (stream, _peer) = listener.accept()?;
//!                         epoll.add(&stream, (FIRST_STREAM + streams.len()) as u64, Interest::READABLE)?;
//!                         streams.push(stream);
//!                     }
//!                     key => {
//!                         let mut stream = &streams[key as usize - FIRST_STREAM];
//!                         let mut buffer = [0; 1024];
//!                         match stream.read(&mut buffer)? {
//!                             0 => epoll.delete(stream)?,
//!                             count => stream.write_all(&buffer[..count])?,
//!                         }
//!                     }
//!                 }
//!             }
//!         }
//!     };
//!     Ok((stop, std::thread::spawn(serve)))
//! }).collect::<Result<Vec<_>>>()?;
//!
//! // Clients, in calls that block.
//! for _ in 0..8 {
//!     let mut stream = TcpStream::connect(&client, "10.0.0.2:7")?;
//!     stream.write_all(b"hello")?;
//!     let mut reply = [0; 5];
//!     stream.read_exact(&mut reply)?;
//!     assert_eq!(&reply, b"hello");
//! }
//! // A datagram, the other way.
//! let receiver = UdpSocket::bind(&client, "10.0.0.1:53")?;
//! UdpSocket::bind(&server, "10.0.0.2:0")?.send_to(b"datagram", "10.0.0.1:53")?;
//! let mut buffer = [0; 16];
//! assert_eq!(receiver.recv_from(&mut buffer)?.0, 8);
//!
//! for (stop, worker) in workers {
//!     stop.notify();
//!     worker.join().unwrap()?;
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]
// The loom models check only the protocols and the transmit queues; what these protect is not part of that build.
#![cfg_attr(loom, allow(dead_code))]

#[cfg(not(loom))]
mod batch;
#[cfg(not(loom))]
mod busy_read;
#[cfg(not(loom))]
mod epoch;
#[cfg(not(loom))]
mod epoll;
mod intake_room;
mod level;
#[cfg(all(test, loom))]
mod loom_models;
#[cfg(not(loom))]
mod mode;
#[cfg(not(loom))]
mod network;
#[cfg(not(loom))]
mod packet;
#[cfg(not(loom))]
mod queue;
#[cfg(not(loom))]
mod ready;
mod ready_list;
// This module is not part of the API. It is public for the benchmark, the fuzz target and the wire tests, which drive a
// shard without a network: Cargo makes each of them a crate of its own, which sees only what is public. Behind a
// feature they would be skipped wherever it is off, or the crate would depend on itself with it on; and with the
// feature off, nobody would see dead code in here.
#[cfg(not(loom))]
#[doc(hidden)]
pub mod shard;
mod siblings;
#[cfg(not(loom))]
mod socket;
mod sync;
mod transmit;
#[cfg(not(loom))]
mod wakes;

#[cfg(not(loom))]
pub use lull_bpf;
#[cfg(not(loom))]
pub use lull_core::{self, AppPolicy, EpollOptions, EpollParams, Mode, ModeError, NapiSettings, SettingError, Sysctl};
pub use lull_host::{self, Host, HostConfig, HostError, Worker};
#[cfg(not(loom))]
pub use lull_nic::{self, Device};
#[cfg(not(loom))]
pub use lull_qdisc::{self, Kind as Qdisc};
pub use lull_slo;

#[cfg(not(loom))]
pub use batch::{InTurn, about_to_wait, forget_held_back, holds_back, in_turn};
#[cfg(not(loom))]
pub use epoll::{Epoll, EpollStats, Event, Interest, Notifier};
#[cfg(not(loom))]
pub use mode::{AppHalf, NeedsEpoll};
#[cfg(not(loom))]
pub use network::{Cork, GroupCpus, Network, NetworkConfig, NetworkError};
#[cfg(not(loom))]
pub use packet::{PacketCounters, PacketDevice, PacketOptions, PacketSocket};
#[cfg(not(loom))]
pub use queue::CORKED_FRAMES_MAX;
#[cfg(not(loom))]
#[doc(inline)]
pub use shard::{
    BUFFER_BYTES, BUFFER_BYTES_RANGE, BufferGrowth, COALESCE_NS, ConnectOptions, EPHEMERAL_PORTS, Elsewhere, HOP_LIMIT,
    HandedOn, IpFields, Keepalive, Listed, ListenOptions, Neighbours, NetError, OutOfLimits, PathMtuDiscovery, Ready,
    Received, ReceivedError, SOMAXCONN, SendOptions, SendRoom, Shutdown, StackCounters, SynCookies, TcpInfo, Timeouts,
    UdpOptions, Unaccepted, addresses_of,
};
#[cfg(not(loom))]
pub use socket::{Incoming, Named, Part, Source, TcpListener, TcpStream, UdpSocket};
pub use transmit::TransmitStats;
