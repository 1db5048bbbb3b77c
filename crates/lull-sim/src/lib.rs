//! The delivery state machine under virtual time: a simulated world around `lull-core`.
//!
//! A run is a [`World`] and a seed, and replays bit for bit on any machine: virtual nanoseconds, one seeded generator
//! per component, no wall clock, no threads inside a run, no hash-map order, no logarithm of the system's. Every
//! delivery rule is the core's own; this crate executes the core's step machines as `lull-host` does on real threads,
//! and gives each step a cost.
//!
//! Three types to know:
//!
//! - [`World`]: CPUs, queues, epoll contexts, workers, connections, costs: what there is;
//! - [`Sim`]: a world in time;
//! - [`Outcome`]: what a run counted.
//!
//! The modules in the order that a request meets them:
//!
//! | module | what |
//! | --- | --- |
//! | [`world`] | the description of a world |
//! | [`costs`] | what work costs in it |
//! | [`engine`] | a world in time: what a request passes on its way, part by part |
//! | [`random`] | random worlds above the engine: generator, script, invariants, shrinking, timeline |
//! | [`published`], [`params`], [`fit`] | published tables as worlds, and their calibration |
//! | [`groups`] | busy-polling CPU groups on more cores than most machines have |
//! | [`worldfile`], [`profile`] | a machine and a service from a file |
//! | [`instructions`] | what a query takes of them, from what it makes the cores do |
//! | [`calibration`] | a world file from measurements of a machine |
//! | [`predict`] | what it does in a mode under a load |
//! | [`tune`] | the mode and timeout for an objective |
//! | [`control`] | a controller that keeps an objective under changing load, and its score |
//!
//! # Example: the same service interrupt-driven and suspended
//!
//! ```
//! use lull_core::Mode;
//! use lull_sim::{Traffic, Sim, World};
//!
//! let run = |mode: &str| {
//!     let mode: Mode = mode.parse().expect("a mode");
//!     let world = World::epoll_service(1, &mode, 64, Traffic::Open { per_s: 50_000.0 });
//!     Sim::new(&world, 1).run().expect("within its bounds")
//! };
//! let (base, suspended) = (run("base"), run("suspend20"));
//! assert!(base.counts.irqs > 1_000 && suspended.counts.irqs < 100);
//! assert_eq!(run("base").digest, base.digest);
//! ```
#![forbid(unsafe_code)]

pub mod calibration;
pub mod control;
pub mod costs;
pub mod engine;
pub mod fit;
pub mod groups;
pub mod instructions;
pub mod params;
pub mod predict;
pub mod profile;
pub mod published;
pub mod random;
pub mod tune;
mod units;
pub mod world;
pub mod worldfile;

pub use costs::Costs;
pub use engine::cache::CacheSpec;
pub use engine::error::RunError;
pub use engine::faults::FaultSpec;
pub use engine::metrics::{Counts, CpuUse, Latencies, Outcome};
pub use engine::sim::Sim;
pub use engine::{agenda, cache, dim, faults, metrics, rng, sim, traffic, transition};
pub use predict::{Job, Offered, PredictError};
pub use world::{
    ConnectionsSpec, ContextSpec, CoresSpec, FloodSpec, GeneratorSpec, GroupMemberSpec, GroupSpec, ModerationSpec,
    NetSpec, PeerKind, PeerSpec, Period, QueueSpec, Receive, RelaySpec, SecondSpec, SenderSpec, SocketSpec, TraceSpec,
    Traffic, Transmit, UpstreamSpec, UserHost, VcpuSpec, WorkerSpec, World, XskSpec, XskThreadSpec, XskWait,
};
pub use worldfile::{WorldFile, WorldFileError};
