//! A single-threaded TCP/IP stack for one shard: one NAPI's queue.
//!
//! No clock, no thread, no lock: time and the transmit ring come in with every call ([`Io`]), frames go out through it,
//! and what became ready is appended to a list of [`Change`]s. Whoever owns the shard serialises the calls and rings
//! the doorbell.
//!
//! A received frame passes these modules in order:
//!
//! | module | what it does |
//! | --- | --- |
//! | `demux` | checks Ethernet and IP headers, decides whether the packet may be anybody's |
//! | `resolve`, `neighbour` | ARP and neighbour discovery; one table for all shards |
//! | `icmp` with `quoted`, `pmtu` with `narrow`; `udp`, `udp_socket`, `udp_joined`, `udp_send`, `udp_errors` | answered, heeded or queued by our own code |
//! | `segment`, `tcp`, `judge`, `paws`, `mend`, `challenge` | checks the segment, finds its connection, mends what smoltcp would misread |
//! | `opening`, `listener` | a connection begins |
//! | `half_open`, `half_open_input`, `cookies`, `options` | a handshake before there is a socket, and without any memory |
//! | `connection` with `asked`, `agreed` | what is kept of it beside smoltcp's socket, what few have of that, and what both ends agreed on |
//! | `device`, `clock` | hands exactly one packet to smoltcp, and takes what it sends; the time as smoltcp has it |
//! | `route`, `sources`, `egress` | which way a packet leaves; from which address; how, by its socket's priority and rate, and what its IP header says |
//! | `grow` | when a connection gets larger buffers, or smaller ones |
//! | `resize`, `drain` | how: it moves to another socket of smoltcp, with what the old one held |
//! | `reassembly`, `fragment_input`, `fragment` | packets that come, and datagrams that leave, in several parts |
//! | `output` | polls smoltcp for segments; waits for the ring, the neighbour, the time |
//! | `recovery` with `sender`, `scoreboard`, `again`, `ranges`, `cubic` | what is lost, and when it leaves again |
//! | `ending`, `time_wait`, `ended` | a connection ends, and what is left of it |
//! | `elsewhere`, `pass_on` | what belongs to nobody here goes to other stacks with the same addresses, and what they claim gives way |
//! | `hand_on`, `handing_on` | what nobody accepted goes to another stack that listens, now or later |
//! | `timers` | one deadline per connection |
//! | `sockets_open`, `sockets`, `sockets_options` | the calls of the application |
//!
//! smoltcp is the TCP state machine: one `Interface` per shard and one `SocketSet` *per connection*, because its sets
//! are searched linearly and a packet that no socket claims is answered from whatever set was asked. Every frame costs
//! the same at ten connections and at ten thousand.
//!
//! A stated limit, inherited from smoltcp 0.14: the urgent pointer is ignored, so that urgent data is part of the stream.
//!
//! ```
//! use std::sync::Arc;
//! use lull_net::shard::{Neighbours, Stack, StackConfig, ListenOptions};
//!
//! let mut config = StackConfig::new([2, 0, 0, 0, 0, 1]);
//! config.addresses = vec![("10.0.0.1".parse().unwrap(), 24)];
//! let mut stack = Stack::new(config, Arc::new(Neighbours::default())).unwrap();
//! let listener = stack.tcp_listen("0.0.0.0:80".parse().unwrap(), ListenOptions::default()).unwrap();
//! assert!(stack.ready(listener).unwrap().is_empty());
//! ```
#![forbid(unsafe_code)]

mod again;
mod agreed;
mod answers;
mod asked;
mod challenge;
mod clock;
mod coalesce;
mod config;
mod connection;
mod cookies;
mod cork;
mod counters;
mod cubic;
mod demux;
mod device;
mod drain;
mod egress;
mod elsewhere;
mod ended;
mod ending;
mod error;
mod flow;
mod fragment;
mod fragment_input;
mod gro;
mod grow;
mod half_open;
mod half_open_input;
mod hand_on;
mod handing_on;
mod held_back;
mod icmp;
mod isn;
mod judge;
mod listener;
mod listing;
mod looped;
mod mend;
mod narrow;
mod neighbour;
mod opening;
mod options;
mod output;
mod pass_on;
mod paws;
mod pmtu;
mod queues;
mod quoted;
mod ranges;
mod reassembly;
mod recovery;
mod requests;
mod resize;
mod resolve;
mod route;
mod scoreboard;
mod segment;
mod sender;
mod slab;
mod socket;
mod sockets;
mod sockets_open;
mod sockets_options;
mod sources;
mod stack;
mod steer;
mod tcp;
mod time_wait;
mod timers;
mod udp;
mod udp_errors;
mod udp_joined;
mod udp_send;
mod udp_socket;
mod warm;
mod wire;

pub use asked::SendRoom;
pub use config::{
    BUFFER_BYTES, BUFFER_BYTES_RANGE, BufferGrowth, COALESCE_NS, EPHEMERAL_PORTS, MTU_BYTES_MAX, MTU_BYTES_MIN,
    OutOfLimits, Place, StackConfig, Steering, SynCookies, Timeouts, is_on_link, refused_address,
};
pub use counters::StackCounters;
pub use egress::{PRIORITY_MAX, PRIORITY_PRIVILEGED_MAX};
pub use elsewhere::{Elsewhere, HandedOn};
pub use error::NetError;
pub use fragment::PathMtuDiscovery;
pub use gro::Gro;
pub use hand_on::{Unaccepted, addresses_of};
pub use held_back::{Batch, SHARED_FRAMES_MAX};
pub use listing::Listed;
pub use neighbour::{NEIGHBOURS_MAX, Neighbours};
pub use queues::TcpInfo;
pub use socket::{
    Change, ConnectOptions, Keepalive, ListenOptions, Ready, Received, SOMAXCONN, SendOptions, Shutdown, SocketId,
    SocketKind, UdpOptions,
};
pub use stack::{Io, Stack};
pub use udp_errors::ReceivedError;
pub use wire::{HOP_LIMIT, IpFields};
