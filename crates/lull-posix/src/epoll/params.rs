//! EPIOCSPARAMS and EPIOCGPARAMS: a context's busy-poll parameters, of both its halves.

use libc::{c_int, epoll_params};
use lull_core::EpollParams;

use super::{EpollFile, Mixed, lock};
use crate::{Errno, Result, kernel};

impl EpollFile {
    /// EPIOCSPARAMS. The kernel judges the values, which are for its half as well; one that has no such parameters (before
    /// Linux 6.9) leaves both to lull.
    pub(crate) fn set_params(&self, epfd: c_int, params: &epoll_params) -> Result<()> {
        match kernel::set_epoll_params(epfd, params) {
            Err(error) if error.number() == libc::ENOTTY => check(params)?,
            judged => judged?,
        }
        let asked = EpollParams {
            busy_poll_usecs: params.busy_poll_usecs,
            busy_poll_budget: u32::from(params.busy_poll_budget),
            prefer_busy_poll: params.prefer_busy_poll != 0,
        };
        *lock(&self.params) = Some(asked);
        self.mixed.get().map_or(Ok(()), |mixed| self.take_params_over(mixed))
    }

    /// Puts what the program has set in force on lull's half. Whoever makes that half and whoever sets parameters both call it
    /// when they are done, so that the later one sees the other.
    pub(super) fn take_params_over(&self, mixed: &Mixed) -> Result<()> {
        let params = lock(&self.params);
        // The kernel has taken them, so there was the right to a large budget.
        params.map_or(Ok(()), |asked| mixed.epoll.set_busy_poll(&asked, true).map_err(|_| Errno::new(libc::EINVAL)))
    }

    /// EPIOCGPARAMS: of lull's half if there is one, which has the mode's unless the program has set others.
    pub(crate) fn params(&self, epfd: c_int) -> Result<epoll_params> {
        let ours = self.mixed.get().map(|mixed| mixed.epoll.busy_poll());
        let Some(params) = ours.or(*lock(&self.params)) else { return kernel::epoll_params(epfd) };
        Ok(epoll_params {
            busy_poll_usecs: params.busy_poll_usecs,
            // Nobody can set more than its 16 bits hold.
            busy_poll_budget: params.busy_poll_budget as u16,
            prefer_busy_poll: u8::from(params.prefer_busy_poll),
            __pad: 0,
        })
    }
}

/// `ep_eventpoll_bp_ioctl`, for a kernel that does not have it.
fn check(params: &epoll_params) -> Result<()> {
    if params.__pad != 0 || params.prefer_busy_poll > 1 {
        return Err(Errno::new(libc::EINVAL));
    }
    let ours = EpollParams {
        busy_poll_usecs: params.busy_poll_usecs,
        busy_poll_budget: u32::from(params.busy_poll_budget),
        prefer_busy_poll: params.prefer_busy_poll == 1,
    };
    let errno = |error: lull_core::SettingError| match error.errno {
        lull_core::settings::Errno::Permission => libc::EPERM,
        _ => libc::EINVAL,
    };
    ours.check(false).map_err(|error| Errno::new(errno(error)))
}
