//! Error numbers as results: the error type of every call.

use std::fmt;
use std::io;

use libc::c_int;

/// An error number of Linux, as a call leaves it in `errno`.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Errno(c_int);

/// There is nothing now, for a socket that does not wait.
pub(crate) const WOULD_BLOCK: Errno = Errno::new(libc::EAGAIN);

impl Errno {
    /// The error with this number.
    pub const fn new(number: c_int) -> Errno {
        Errno(number)
    }

    /// Its number.
    pub const fn number(self) -> c_int {
        self.0
    }

    /// The error of a system call that has just failed in this thread.
    pub fn last() -> Errno {
        Errno::from(io::Error::last_os_error())
    }
}

impl From<io::Error> for Errno {
    /// An error without a number is one of input and output in general.
    fn from(error: io::Error) -> Errno {
        Errno(error.raw_os_error().unwrap_or(libc::EIO))
    }
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Errno({}: {self})", self.0)
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        io::Error::from_raw_os_error(self.0).fmt(f)
    }
}

impl std::error::Error for Errno {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_of_the_system_keeps_its_number() {
        let error = Errno::from(io::Error::from_raw_os_error(libc::ENOTCONN));
        assert_eq!(error, Errno::new(libc::ENOTCONN));
        assert_eq!(Errno::from(io::Error::other("no number")).number(), libc::EIO);
        assert!(format!("{error:?}").contains("107"), "{error:?}");
    }
}
