//! Where a session reads and keeps things.

use std::path::{Path, PathBuf};

use crate::roots::Roots;

/// The directory of state files unless another one is named. `/run` is empty after a boot, just as the settings are
/// gone.
pub const STATE_DIR: &str = "/run/lull";

/// Where a session reads and keeps things.
#[derive(Clone, Debug)]
pub struct Options {
    /// The directory of state files and locks.
    pub state_dir: PathBuf,
    /// `/sys` and `/proc`.
    pub roots: Roots,
}

impl Default for Options {
    fn default() -> Options {
        Options { state_dir: STATE_DIR.into(), roots: Roots::default() }
    }
}

impl Options {
    /// Options with the state files in `state_dir`.
    pub fn in_dir(state_dir: &Path) -> Options {
        Options { state_dir: state_dir.to_owned(), ..Options::default() }
    }
}
