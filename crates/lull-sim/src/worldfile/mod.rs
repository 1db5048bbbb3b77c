//! World files: a machine and a service, described in a short TOML file.
//!
//! ```toml
//! [machine]
//! cores = 8
//! [nic]
//! speed = "100Gbit/s"
//! adaptive = true
//! [network]
//! latency = "25us"
//! [service]
//! kind = "epoll"
//! connections = 4480
//! request_cost = "6.2us"
//! ```
//!
//! Commented examples are in the crate's `worlds` directory ([`EXAMPLES`]). Values carry their units. Whatever is
//! unknown, impossible or without its unit is refused with file, line, key and what is allowed ([`WorldFileError`]);
//! what is left out has the default that [`WorldFile`] names. Costs come from a profile ([`crate::profile`]) and can be
//! overridden one by one.
//!
//! There are three kinds of service: `epoll`, `proxy` (its [`upstream`](WorldFile::upstream)), and `af_xdp`
//! ([`AfXdp`]), whose costs a frame are given part by part and not calibrated.
//!
//! `request_cost` is what was measured, and a measured cost has parts that the simulator charges apart (`epoll_wait`,
//! interference). So it is not put into the world as it stands: [`calibrate`] finds the application's own part with
//! which the simulated service, saturated in `base`, shows the measured figure.

mod af_xdp;
mod build;
pub mod calibrate;
mod check;
mod costs;
mod error;
mod file;
mod group;
mod load;
mod plane;
mod raw;
mod request_cost;
mod resolve;
mod responder;
mod transmit;

use std::path::Path;

pub use self::error::WorldFileError;
pub use self::file::{Bounds, EVENTS_DEFAULT, Second, WorldFile};
pub use self::group::PollingGroup;
pub use self::load::Arrivals;
pub use self::plane::{CALIBRATED_OVER, WorkerCores};
pub use self::request_cost::RequestCost;
pub use self::resolve::WIRE_SHARE_MAX;
pub use self::responder::{AfXdp, Wait};
pub use self::transmit::TransmitQueues;

/// The examples that ship, by name.
pub const EXAMPLES: [(&str, &str); 5] = [
    ("af_xdp.toml", include_str!("../../worlds/af_xdp.toml")),
    ("group.toml", include_str!("../../worlds/group.toml")),
    ("memcached.toml", include_str!("../../worlds/memcached.toml")),
    ("proxy.toml", include_str!("../../worlds/proxy.toml")),
    ("transmit.toml", include_str!("../../worlds/transmit.toml")),
];

/// Longer world files are not read.
const FILE_BYTES_MAX: u64 = 1 << 20;

impl WorldFile {
    /// Reads a file.
    ///
    /// # Errors
    /// See [`WorldFileError`].
    pub fn read(path: &Path) -> Result<WorldFile, WorldFileError> {
        let file = path.display().to_string();
        let unreadable = |error: std::io::Error| WorldFileError {
            file: file.clone(),
            line: 0,
            key: String::new(),
            problem: format!("cannot read the world file: {error}"),
        };
        let bytes = std::fs::metadata(path).map_err(unreadable)?.len();
        if bytes > FILE_BYTES_MAX {
            return Err(unreadable(std::io::Error::other(format!(
                "it has {bytes} bytes, and at most {FILE_BYTES_MAX} are read"
            ))));
        }
        WorldFile::parse(&file, &std::fs::read_to_string(path).map_err(unreadable)?)
    }

    /// Reads the text of a file that is named `file` in errors.
    ///
    /// # Errors
    /// See [`WorldFileError`].
    pub fn parse(file: &str, text: &str) -> Result<WorldFile, WorldFileError> {
        let source = error::Source { file, text };
        let raw = toml::from_str(text).map_err(|error| source.refused(&error))?;
        resolve::resolve(&source, &raw)
    }
}
