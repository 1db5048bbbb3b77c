//! Busy polling by poll and select (`do_poll` and `do_select` in fs/select.c, `sock_poll`).
//!
//! They busy poll while the sysctl `busy_poll` is not 0, through those of their sockets whose SO_BUSY_POLL is not 0:
//!
//! ```text
//! look at every descriptor, each such socket polled for one round first
//! found something, or the timeout is over   return; a timeout of zero has had its one look, and no more
//! no such socket among them                 sleep
//! for `busy_poll` microseconds              look again
//! then                                      sleep; after it, no look polls any more
//! ```

use crate::settings::Sysctl;

const NS_PER_US: u64 = 1_000;

/// One call of poll or select.
#[derive(Debug)]
pub struct PollBusy {
    usecs: u32,
    /// Looks still poll (`busy_flag`).
    polls: bool,
    began_ns: Option<u64>,
}

impl PollBusy {
    /// Begins a call.
    pub fn begin(sysctl: &Sysctl) -> PollBusy {
        PollBusy { usecs: sysctl.busy_poll_usecs, polls: sysctl.busy_poll_usecs != 0, began_ns: None }
    }

    /// Whether the next look polls each socket that may be, for one round.
    pub fn polls(&self) -> bool {
        self.polls
    }

    /// A look found nothing, and there is time left. `any`: a socket that may busy poll is among the descriptors. Returns
    /// whether to look again at once; otherwise the call sleeps.
    pub fn looks_again(&mut self, any: bool, now_ns: u64) -> bool {
        self.polls = self.polls && any && {
            let began_ns = *self.began_ns.get_or_insert(now_ns);
            now_ns <= began_ns.saturating_add(u64::from(self.usecs) * NS_PER_US)
        };
        self.polls
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn with(busy_poll_usecs: u32) -> PollBusy {
        PollBusy::begin(&Sysctl { busy_poll_usecs, ..Sysctl::default() })
    }

    #[test]
    fn without_the_sysctl_no_look_polls() {
        let mut call = with(0);
        assert!(!call.polls() && !call.looks_again(true, 0) && !call.polls());
    }

    #[test]
    fn looks_are_repeated_for_the_sysctls_time_and_sleep_ends_them() {
        let mut call = with(50);
        assert!(call.polls());
        assert!(call.looks_again(true, 1_000) && call.looks_again(true, 51_000));
        assert!(!call.looks_again(true, 51_001), "the time is over");
        assert!(!call.polls() && !call.looks_again(true, 51_002), "nor after the sleep");
    }

    #[test]
    fn without_a_socket_that_may_be_polled_the_first_look_is_the_last_before_the_sleep() {
        let mut call = with(50);
        assert!(call.polls(), "what is among the descriptors is known only after a look");
        assert!(!call.looks_again(false, 0) && !call.polls());
    }
}
