//! Sockets with the shape of `std::net`. They are blocking or nonblocking, and any thread may call them.
//!
//! A socket is an open-file object with counted references (`Open`), apart from the numbers that name it: clones are
//! the same socket, as after `dup`. It lives on one shard. A listener may live on several shards, on each of which it
//! has a part.
//!
//! Addresses are given as in `std::net` ([`std::net::ToSocketAddrs`]). The operating system resolves a host name over
//! its own network, in the calling thread, because this stack has no resolver. Give addresses where that is not
//! possible.

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
