//! The control socket, by which `lull show`, `lull stat` and `lull set` talk to a process that runs lull's user plane.
//!
//! Linux's own plane answers over netlink; a process with a plane of its own answers over a unix socket that only its
//! owner may use. There is one schema ([`schema`]), which every such process speaks, and to which further parts of the
//! user plane add fields. There are three types to know:
//!
//! - [`Offer`]: the server's side. A process makes one for its [`lull_host::Host`] and keeps it for as long as it
//!   serves.
//! - [`Client`]: the command's side, for one such process.
//! - [`schema::Request`] and [`schema::Answer`]: the messages between them, each a line of JSON.
//!
//! The modules, in the order in which a request meets them, are [`place`] (where sockets lie, and which processes have
//! one), [`client`] (and [`Program`], the processes of a program), [`schema`], [`server`], `host` (the answers of a
//! host), `change` (settings that are put in force as a whole) and `group` (groups of CPUs). [`slo`] chooses timeouts
//! for an objective, by the same requests.
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
