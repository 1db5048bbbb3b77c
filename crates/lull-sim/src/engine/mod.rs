//! The simulated world in time: CPUs, the NIC, threads and their programs, load, and the loop that takes one
//! appointment after the other.
//!
//! What there is comes from a [`crate::World`]; every delivery rule is `lull-core`'s. Nothing here knows of world
//! files, published tables or random worlds: those stand above.
//!
//! [`sim::Sim`] owns the parts. A step is a method of the part at which it begins, and takes the parts that it crosses
//! into, the environment first: `cpus.interrupt(env, ..)`, `nic.packet_arrives(env, cpus, ..)`. The whole `Sim` is for
//! the dispatcher (`sim`, `segment`), for polls and what they deliver, for programs, and for whoever acts from outside.
//! In the order in which a request meets them:
//!
//! | module | what |
//! | --- | --- |
//! | [`sim`], `build`, `segment` | the run and its parts, how a world becomes one, the end of what a CPU executed |
//! | `env` | what every step needs: time, what is due, the world's description, counts, listeners |
//! | [`agenda`], `slots` | the queue of events; which alarm is whose |
//! | [`id`] | indices, each of a type of its own |
//! | `client` | connections, their traffic, network and client latency |
//! | `flood` | a flood of datagrams, the wire, and the sinks' sockets |
//! | `relay` | a hypervisor between the NIC and a guest |
//! | `nic`, [`dim`] | rings, completion queues, arming; adaptive moderation |
//! | `napi` | the NIC's NAPI instances: schedule, completion, settling, timers, suspend and resume |
//! | `cpu`, `cpus`, `idle` | hard interrupt above softirq above thread above idle; accounting; the idle governor |
//! | `user_host` | CPUs on which lull's own host delivers |
//! | `seats`, `groups` | busy-polling CPU groups: their pollers' threads; what an operator does, who is told of what arrives |
//! | `transmit` | transmit queues with a discipline, and whoever runs them |
//! | `guest`, `vcpu` | a guest's CPU, which is a thread of another |
//! | `softirq`, `poll` | `net_rx_action` and `handle_softirqs`; one poll of a queue, in chunks |
//! | `deliver` | the way of a packet from a poll to its socket, its context and a waiting thread |
//! | `epoll`, `ends`, `socket`, `xsk` | contexts; sockets that are no client's: ends of a pair, AF_XDP |
//! | `thread`, `scheduler` | what threads execute; the fair scheduler |
//! | `program`, `app`, `busy` | programs, which threads run; the busy loop in a thread |
//! | [`cache`] | what delivery and application cost each other |
//! | [`rng`], [`traffic`] | random numbers; gaps and sizes |
//! | [`faults`] | what goes wrong |
//! | `tally`, [`metrics`], [`transition`], `recorder` | what a run counts, and who listens |

pub mod agenda;
pub(crate) mod app;
pub(crate) mod build;
pub(crate) mod busy;
pub mod cache;
pub(crate) mod client;
pub(crate) mod cpu;
pub(crate) mod cpus;
pub(crate) mod deliver;
pub mod dim;
pub(crate) mod ends;
pub(crate) mod env;
pub(crate) mod epoll;
pub mod error;
pub mod faults;
pub(crate) mod flood;
pub(crate) mod groups;
pub(crate) mod guest;
pub mod id;
pub(crate) mod idle;
pub mod metrics;
pub(crate) mod napi;
pub(crate) mod nic;
pub(crate) mod poll;
pub(crate) mod program;
pub(crate) mod recorder;
pub(crate) mod relay;
pub mod rng;
pub(crate) mod scheduler;
pub(crate) mod seats;
pub(crate) mod segment;
pub mod sim;
pub(crate) mod slots;
pub(crate) mod socket;
pub(crate) mod softirq;
pub(crate) mod tally;
pub(crate) mod thread;
pub mod traffic;
pub mod transition;
pub(crate) mod transmit;
pub(crate) mod user_host;
pub(crate) mod vcpu;
pub(crate) mod xsk;
