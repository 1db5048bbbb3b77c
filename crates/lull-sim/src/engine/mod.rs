//! The simulated world in time: CPUs, the NIC, threads and their programs, load, and the loop that takes one appointment
//! after the other.
//!
//! What there is comes from a [`crate::World`]; every delivery rule is `lull-core`'s. Nothing here knows of world files,
//! published tables or random worlds: those stand above.
//!
//! [`sim::Sim`] owns the parts; what concerns one part alone is that part's own method, and what crosses parts is a step of
//! `Sim`, in the file of the part at which it begins. In the order in which a request meets them:
//!
//! | module | what |
//! | --- | --- |
//! | [`sim`], `build` | the run, and how a world becomes one |
//! | [`agenda`], `slots` | the queue of events; which alarm is whose |
//! | [`id`] | indices, each of a type of its own |
//! | `client` | load, connections, network and client latency |
//! | `flood` | a flood of datagrams, the wire, and the sinks' sockets |
//! | `guest`, `relay`, `vcpu` | a hypervisor between the NIC and a guest |
//! | `nic`, [`dim`] | rings, completion queues, arming; adaptive moderation |
//! | `cpu`, `idle` | hard interrupt above softirq above thread above idle; accounting; the idle governor |
//! | `softirq`, `poll` | `net_rx_action` and `handle_softirqs`; one poll of a queue, in chunks |
//! | `epoll` | contexts: ready lists and waiters; suspend and resume |
//! | `ends`, `socket`, `xsk` | sockets that are no client's: ends of a pair, AF_XDP |
//! | `thread`, `app`, `busy` | the fair scheduler; programs; the busy loop in a thread |
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
pub(crate) mod segment;
pub mod sim;
pub(crate) mod slots;
pub(crate) mod socket;
pub(crate) mod softirq;
pub(crate) mod tally;
pub(crate) mod thread;
pub mod traffic;
pub mod transition;
pub(crate) mod vcpu;
pub(crate) mod xsk;
