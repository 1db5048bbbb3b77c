//! Where `/sys`, `/proc` and `/dev` are. They can be others, so that what is machine-wide is tested on a copy.

use std::fs;
use std::io;
use std::path::PathBuf;

/// The roots of the file systems in which the kernel shows its state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Roots {
    /// `/sys`.
    pub sys: PathBuf,
    /// `/proc`.
    pub proc: PathBuf,
}

impl Default for Roots {
    fn default() -> Roots {
        Roots { sys: "/sys".into(), proc: "/proc".into() }
    }
}

impl Roots {
    /// A file below `/sys`.
    pub fn sys(&self, path: &str) -> PathBuf {
        self.sys.join(path)
    }

    /// A file below `/proc`.
    pub fn proc(&self, path: &str) -> PathBuf {
        self.proc.join(path)
    }

    /// A file below `/dev`, which lies beside `/sys`.
    pub fn dev(&self, path: &str) -> PathBuf {
        self.sys.with_file_name("dev").join(path)
    }

    /// The content of a file below `/sys`, without its line end.
    ///
    /// # Errors
    /// Those of reading.
    pub fn read_sys(&self, path: &str) -> io::Result<String> {
        Ok(fs::read_to_string(self.sys(path))?.trim_end().to_owned())
    }

    /// The content of a file below `/proc`, without its line end.
    ///
    /// # Errors
    /// Those of reading.
    pub fn read_proc(&self, path: &str) -> io::Result<String> {
        Ok(fs::read_to_string(self.proc(path))?.trim_end().to_owned())
    }

    /// A number in a file below `/proc`. There is nothing if there is no such file or number.
    pub fn number(&self, proc_path: &str) -> Option<u64> {
        self.read_proc(proc_path).ok()?.parse().ok()
    }
}
