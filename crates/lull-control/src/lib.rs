//! The control socket: how `lull show`, `lull stat` and `lull set` talk to a process that runs lull's user plane.
//!
//! Linux's own plane answers over netlink; a process with a plane of its own answers over a unix socket that belongs to
//! its owner alone. There is one schema ([`schema`]), which every such process speaks and to which later parts of the
//! user plane add fields. Three types to know:
//!
//! - [`Offer`]: the server's side; a process makes one for its [`lull_host::Host`] and keeps it for as long as it serves;
//! - [`Client`]: one connection to such a process;
//! - [`schema::Request`] and [`schema::Answer`]: what passes between them, a line of JSON each way.
//!
//! The modules in the order that a request meets them: [`place`] (where sockets lie, and which processes have one),
//! [`client`] (and [`Program`], the processes of one), [`schema`], [`server`], `host` (the answers of a host), `change` (settings put in force, all or none), `group` (groups of CPUs).
//! [`slo`] chooses timeouts for an objective, by the same requests.
//!
//! # Example
//!
//! ```
//! use lull_control::schema::{Answer, Request};
//! use lull_control::{Client, Offer, place::Places};
//! use lull_host::{Host, HostConfig};
//!
//! # let directory = std::env::temp_dir().join(format!("lull-control-doc-{}", std::process::id()));
//! let places = Places::only(&directory);
//! let host = Host::new(HostConfig::default())?;
//! let offer = Offer::start(&host, "an example", &places)?;
//!
//! let mut client = Client::connect(std::process::id(), &places)?;
//! let Answer::Shown(shown) = client.ask(&Request::Show)? else { panic!("asked for a show") };
//! assert_eq!((shown.pid, shown.service.as_str()), (std::process::id(), "an example"));
//! drop(offer);
//! assert!(Client::connect(std::process::id(), &places).is_err());
//! # std::fs::remove_dir_all(&directory)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![deny(unsafe_code)]

mod change;
pub mod client;
mod error;
mod group;
mod host;
mod peer;
pub mod place;
mod program;
mod reach;
pub mod schema;
pub mod server;
pub mod slo;

pub use client::Client;
pub use error::Error;
pub use program::Program;
pub use server::Offer;
