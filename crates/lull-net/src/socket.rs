//! Sockets with the shape of `std::net`: nonblocking or blocking, any thread may call.
//!
//! A socket is a refcounted open-file object (`Open`), apart from whatever numbers name it: clones are the same socket, as
//! after `dup`. It lives on one shard; a listener may live on several, as a recipe that each shard instantiates.
//!
//! Addresses are given as in `std::net` ([`std::net::ToSocketAddrs`]). A host name among them is resolved by the operating system
//! over its own network, in the calling thread, because this stack has no resolver: give addresses where that will not do.

mod addresses;
mod listener;
mod open;
mod options;
mod tcp;
mod udp;

pub use listener::{Incoming, TcpListener};
pub use open::{Named, Part, Source};
pub use tcp::TcpStream;
pub use udp::UdpSocket;
