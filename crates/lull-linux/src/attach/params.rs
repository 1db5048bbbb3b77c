//! The busy-poll parameters of an epoll context, and how they are set in a running program.

use std::fmt;
use std::os::fd::{AsFd, OwnedFd};

use lull_core::EpollParams;
use serde::{Deserialize, Serialize};

use super::tree::Member;
use crate::error::{Error, Result};
use crate::os;

/// The busy-poll parameters of an epoll context, as they are in files and reports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Params {
    /// How long `epoll_wait` busy polls, in microseconds.
    pub busy_poll_usecs: u32,
    /// How many packets a poll takes; 0 stands for the kernel's 8.
    pub busy_poll_budget: u32,
    /// Whether busy polling is preferred to interrupts.
    pub prefer_busy_poll: bool,
}

impl From<EpollParams> for Params {
    fn from(params: EpollParams) -> Params {
        Params {
            busy_poll_usecs: params.busy_poll_usecs,
            busy_poll_budget: params.busy_poll_budget,
            prefer_busy_poll: params.prefer_busy_poll,
        }
    }
}

impl From<Params> for EpollParams {
    fn from(params: Params) -> EpollParams {
        EpollParams {
            busy_poll_usecs: params.busy_poll_usecs,
            busy_poll_budget: params.busy_poll_budget,
            prefer_busy_poll: params.prefer_busy_poll,
        }
    }
}

impl fmt::Display for Params {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let prefer = if self.prefer_busy_poll { "prefer" } else { "not preferred" };
        write!(f, "usecs {}, budget {}, {prefer}", self.busy_poll_usecs, self.busy_poll_budget)
    }
}

/// A duplicate of one context, with its parameters; `None` if it has gone.
///
/// # Errors
/// The kernel's refusal.
fn duplicate(member: &Member, fd: i32) -> Result<Option<(OwnedFd, EpollParams)>> {
    let epoll = match member.process.duplicate(fd) {
        Ok(epoll) => epoll,
        Err(_) if member.has_ended() => return Ok(None),
        Err(error) if error.errno() == Some(libc::EBADF) => return Ok(None),
        Err(error) => return Err(error),
    };
    // The number may stand for another kind of file since it was listed; only an epoll context answers this.
    let params = os::epoll_params(epoll.as_fd()).ok();
    Ok(params.map(|params| (epoll, params)))
}

/// The parameters of one context; `None` if it has gone.
///
/// # Errors
/// The kernel's refusal.
pub(super) fn params_of(member: &Member, fd: i32) -> Result<Option<Params>> {
    Ok(duplicate(member, fd)?.map(|(_, params)| params.into()))
}

/// Sets the parameters of one context through a duplicate, which is closed when this returns. Returns false if the
/// context has gone.
///
/// # Errors
/// The kernel's refusal.
pub(super) fn set_params(member: &Member, fd: i32, params: &EpollParams) -> Result<bool> {
    let Some((epoll, _)) = duplicate(member, fd)? else { return Ok(false) };
    os::set_epoll_params(epoll.as_fd(), params).map_err(|error| {
        let what = format!("set the busy-poll parameters of descriptor {fd} of process {}", member.pid);
        match error.raw_os_error() {
            Some(libc::EPERM) => Error::Os {
                what,
                remedy: "a budget above 64 needs CAP_NET_ADMIN: run it as root, or give at most 64".to_owned(),
                source: error,
                said: None,
            },
            _ => Error::os(what, "the values may be beyond this kernel's limits", error),
        }
    })?;
    Ok(true)
}
