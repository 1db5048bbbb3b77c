//! Interrupts that were raised for a CPU and not yet taken.

use crate::sync::{AtomicBool, AtomicU32, Ordering};

/// End of the list.
const NIL: u32 = u32::MAX;

/// The place of one interrupt on its CPU's list.
#[derive(Debug)]
pub(crate) struct Link {
    /// On the list, or about to be.
    queued: AtomicBool,
    next: AtomicU32,
}

impl Link {
    pub(crate) fn new() -> Link {
        Link { queued: AtomicBool::new(false), next: AtomicU32::new(NIL) }
    }
}

/// The list: a stack of instance indices through [`Link`]. The `queued` flag keeps an interrupt from being on it twice.
#[derive(Debug)]
pub(crate) struct Raised(AtomicU32);

impl Raised {
    pub(crate) fn new() -> Raised {
        Raised(AtomicU32::new(NIL))
    }

    /// Returns false if the interrupt is on the list already: then whoever put it there announces it.
    pub(crate) fn push(&self, index: u32, link: &Link) -> bool {
        if link.queued.swap(true, Ordering::AcqRel) {
            return false;
        }
        let mut head = self.0.load(Ordering::Relaxed);
        loop {
            link.next.store(head, Ordering::Relaxed);
            match self.0.compare_exchange_weak(head, index, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(seen) => head = seen,
            }
        }
    }

    /// Takes the whole list; `next` follows it. If there is nothing to take this costs a load.
    pub(crate) fn take(&self) -> Option<u32> {
        if self.0.load(Ordering::Acquire) == NIL {
            return None;
        }
        let head = self.0.swap(NIL, Ordering::AcqRel);
        (head != NIL).then_some(head)
    }

    /// Takes an interrupt off the list that [`Raised::take`] returned; it may be raised again from now on.
    pub(crate) fn next(link: &Link) -> Option<u32> {
        let next = link.next.load(Ordering::Relaxed);
        // This is a swap, which acquires what a second raise published that found the flag set and left its work to us.
        link.queued.swap(false, Ordering::AcqRel);
        (next != NIL).then_some(next)
    }
}
