//! How often settings may change.

/// Changes that may follow one another without a pause.
pub const CHANGES_AT_ONCE: u32 = 20;
/// Changes a minute that may go on for any time.
pub const CHANGES_PER_MINUTE: u32 = 60;

const REFILL_NS: u64 = 60_000_000_000 / CHANGES_PER_MINUTE as u64;

/// A token bucket of changes: no minute has more of them than [`CHANGES_AT_ONCE`] and [`CHANGES_PER_MINUTE`] together.
#[derive(Clone, Debug)]
pub(crate) struct Allowance {
    left: u32,
    /// When the next change began to grow.
    since_ns: Option<u64>,
}

impl Allowance {
    pub(crate) fn full() -> Allowance {
        Allowance { left: CHANGES_AT_ONCE, since_ns: None }
    }

    /// Takes a change. Returns false if there is none left.
    pub(crate) fn take(&mut self, now_ns: u64) -> bool {
        let since_ns = *self.since_ns.get_or_insert(now_ns);
        let grown = now_ns.saturating_sub(since_ns) / REFILL_NS;
        if grown > 0 {
            self.left = u32::try_from(grown)
                .map_or(CHANGES_AT_ONCE, |grown| (self.left.saturating_add(grown)).min(CHANGES_AT_ONCE));
            self.since_ns = Some(since_ns + grown * REFILL_NS);
        }
        if self.left == CHANGES_AT_ONCE {
            // A full bucket grows no further.
            self.since_ns = Some(now_ns);
        }
        let has = self.left > 0;
        self.left -= u32::from(has);
        has
    }
}
