//! How deeply an idle CPU sleeps, and the idle time that its governor expects.

/// How deeply an idle CPU sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IdleState {
    Shallow,
    Deep,
}

/// How many idle times the governor remembers.
const IDLE_HISTORY: usize = 8;

/// The idle governor. It expects the median of the last eight idle times, or the time to the next timer if that is
/// shorter (the two inputs of the kernel's menu governor).
#[derive(Debug)]
pub(crate) struct Idle {
    history_ns: [u64; IDLE_HISTORY],
    next: usize,
    pub(crate) state: IdleState,
}

impl Idle {
    pub(super) fn new() -> Idle {
        Idle { history_ns: [0; IDLE_HISTORY], next: 0, state: IdleState::Shallow }
    }

    pub(super) fn note(&mut self, idle_ns: u64) {
        self.history_ns[self.next] = idle_ns;
        self.next = (self.next + 1) % IDLE_HISTORY;
    }

    pub(super) fn expected_ns(&self, timer_ns: Option<u64>) -> u64 {
        let mut sorted = self.history_ns;
        sorted.sort_unstable();
        let middle_ns = sorted[IDLE_HISTORY / 2];
        timer_ns.map_or(middle_ns, |timer_ns| middle_ns.min(timer_ns))
    }
}
