//! TCP and UDP sockets and epoll on NAPI shards.
//!
//! A [`Network`] is a device whose queues are NAPI instances of a [`lull_host::Host`], each with a TCP/IP stack of its own
//! (a shard) behind one lock. On it stand sockets with the shape of `std::net` and an epoll with the shape of Linux's,
//! busy-poll parameters included. Three types to know: [`Network`], [`TcpStream`] (with [`TcpListener`] and [`UdpSocket`]), and
//! [`Epoll`].
//!
//! What the signatures show of the crates below stands here too, and those crates are `lull_net::lull_core`, `lull_host` and
//! `lull_nic`, so that one dependency is enough.
//!
//! # Beside another event loop
//!
//! These sockets are no descriptors of the kernel, so they have no `AsFd`, and mio or tokio cannot watch them. The bridge goes the
//! other way: an [`Epoll`] watches kernel descriptors too ([`Epoll::add_fd`]: a listener of the kernel, a timerfd, an eventfd,
//! an epoll of another loop), and a [`Notifier`] wakes its thread from any other, a tokio task for instance. The other direction
//! is a thread that waits here and hands over through the other loop's own means, a channel or an eventfd.
//!
//! The modules in the order that a packet meets them: `queue` (a shard behind its lock, polled by NAPI), [`shard`] (demux,
//! neighbours, TCP, UDP, ICMP), `ready` (who waits for a socket), [`epoll`], [`socket`], [`network`], `mode`
//! (a delivery mode on both).
//!
//! # Example: an echo server over the in-memory NIC
//!
//! Both ends are networks of ours here; any other device, or the kernel on the far end of a TAP, does as well.
//!
//! ```
//! use std::io::{Read, Write};
//! use std::sync::Arc;
//! use std::time::Duration;
//! use lull_net::lull_nic::mem::{self, MemConfig};
//! use lull_net::{Epoll, Host, HostConfig, Interest, Network, NetworkConfig, TcpListener, TcpStream, Worker};
//!
//! let (server_port, client_port) = mem::pair(MemConfig::default());
//! let host = Host::new(HostConfig { cpus: vec![None, None], ..HostConfig::default() })?;
//! let network = |port, address: &str, cpu| {
//!     let addresses = vec![(address.parse().unwrap(), 24)];
//!     Network::new(&host, Arc::new(port), NetworkConfig { addresses, cpus: vec![cpu], ..NetworkConfig::default() })
//! };
//! let server = network(server_port, "10.0.0.2", 0)?;
//! let client = network(client_port, "10.0.0.1", 1)?;
//!
//! let listener = TcpListener::bind(&server, "10.0.0.2:7")?;
//! let worker = Worker::new(&host, 0)?;
//! let echo = std::thread::spawn(move || -> std::io::Result<()> {
//!     let epoll = Epoll::new(worker.host());
//!     listener.set_nonblocking(true);
//!     epoll.add(&listener, 0, Interest::READABLE)?;
//!     let mut events = Vec::new();
//!     epoll.wait(&worker, &mut events, 16, Some(Duration::from_secs(10)))?;
//!     let (mut stream, _peer) = listener.accept()?;
//!     epoll.add(&stream, 1, Interest::READABLE)?;
//!     let mut buffer = [0; 1024];
//!     loop {
//!         events.clear();
//!         epoll.wait(&worker, &mut events, 16, Some(Duration::from_secs(10)))?;
//!         match stream.read(&mut buffer)? {
//!             0 => return Ok(()),
//!             count => stream.write_all(&buffer[..count])?,
//!         }
//!     }
//! });
//!
//! let mut stream = TcpStream::connect(&client, "10.0.0.2:7")?;
//! stream.write_all(b"hello")?;
//! let mut reply = [0; 5];
//! stream.read_exact(&mut reply)?;
//! assert_eq!(&reply, b"hello");
//! drop(stream);
//! echo.join().unwrap()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]
// The loom models check the protocols alone; what they protect stays out of that build.
#![cfg_attr(loom, allow(dead_code))]

#[cfg(not(loom))]
pub mod epoll;
mod level;
#[cfg(all(test, loom))]
mod loom_models;
#[cfg(not(loom))]
mod mode;
#[cfg(not(loom))]
pub mod network;
#[cfg(not(loom))]
mod queue;
#[cfg(not(loom))]
mod ready;
mod ready_list;
#[cfg(not(loom))]
pub mod shard;
#[cfg(not(loom))]
pub mod socket;
mod sync;

#[cfg(not(loom))]
pub use lull_core::{self, AppPolicy, EpollOptions, EpollParams, Mode, ModeError, NapiSettings, SettingError, Sysctl};
#[cfg(not(loom))]
pub use lull_host::{self, Host, HostConfig, HostError, Worker};
#[cfg(not(loom))]
pub use lull_nic::{self, Device};

#[cfg(not(loom))]
pub use epoll::{Epoll, EpollStats, Event, Interest, Notifier};
#[cfg(not(loom))]
pub use mode::{AppHalf, NeedsEpoll};
#[cfg(not(loom))]
pub use network::{Cork, Network, NetworkConfig, NetworkError};
#[cfg(not(loom))]
pub use shard::{Ready, Shutdown};
#[cfg(not(loom))]
pub use socket::{Source, TcpListener, TcpStream, UdpSocket};
