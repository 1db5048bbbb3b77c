//! Programs: what the simulated threads do.

pub(crate) mod datagram_sender;
pub(crate) mod epoll_worker;
pub(crate) mod group_leaver;
pub(crate) mod group_poller;
pub(crate) mod ksoftirqd;
pub(crate) mod napi_thread;
pub(crate) mod peer;
pub(crate) mod socket_reader;
pub(crate) mod udp_sink;
pub(crate) mod vhost;
pub(crate) mod xsk_responder;
