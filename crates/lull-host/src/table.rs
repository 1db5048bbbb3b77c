//! The table of a host's instances: where an index leads, for as long as it leads anywhere. It knows nothing of an instance
//! but its index and its CPU.
//!
//! An index is a slot (its low bits) and how often that slot had been given away before. So a slot serves one instance
//! after another. An index of a removed instance that somebody still has leads nowhere, and no index is ever given out
//! twice.
//!
//! Whoever looks an instance up holds its slot for reading until the [`Found`] goes, and whoever fills or clears a slot only
//! ever tries to write: a reader never waits for a writer, so that one thread may look the same slot up twice. A waiting
//! writer is not kept waiting for ever, because a slot that is to be cleared turns new readers away first.

use std::collections::VecDeque;
use std::ops::Deref;
use std::sync::{Arc, TryLockError};

use crate::raised::{Link, Raised};
use crate::sync::{
    AtomicU16, AtomicU32, Mutex, Ordering, RwLock, RwLockReadGuard, RwLockWriteGuard, a_short_while, relock,
};

/// Most slots that a table may have: at least 16 bits of an index count how often its slot was given away.
#[cfg_attr(loom, allow(dead_code))]
pub(crate) const NAPIS_MAX: usize = 1 << 16;

/// The index of no instance.
const VACANT: u32 = u32::MAX;

struct Slot<T> {
    /// Place on its CPU's list of raised interrupts. It belongs to the slot, not to the instance: whoever took the list has
    /// to find the next one behind an instance that was removed meanwhile.
    link: Link,
    /// The one index that leads here. It is a relaxed hint: what is behind the lock decides.
    current: AtomicU32,
    /// The CPU of the last instance that was here.
    cpu: AtomicU16,
    entry: RwLock<Option<Entry<T>>>,
}

/// What is in a slot.
struct Entry<T> {
    index: u32,
    instance: Arc<T>,
}

/// What can be removed while others still have it.
pub(crate) trait Removable {
    /// Whether it is being removed: whoever still has it lets it go.
    fn is_removed(&self) -> bool;

    fn announce_removal(&self);
}

/// An instance that was looked up.
pub(crate) struct Found<'t, T>(RwLockReadGuard<'t, Option<Entry<T>>>);

impl<T> Found<'_, T> {
    #[inline]
    fn entry(&self) -> &Entry<T> {
        match &*self.0 {
            Some(entry) => entry,
            None => unreachable!("made of a slot that is filled, and it cannot be cleared meanwhile"),
        }
    }
}

impl<T> Deref for Found<'_, T> {
    type Target = Arc<T>;

    #[inline]
    fn deref(&self) -> &Arc<T> {
        &self.entry().instance
    }
}

pub(crate) struct Table<T> {
    /// As many as the low bits of an index can say.
    slots: Box<[Slot<T>]>,
    /// How many of them may be used.
    max: usize,
    free: Mutex<Free>,
}

struct Free {
    /// Slots that were ever used: the first ones.
    used: usize,
    /// The next indices of those that are free again, the longest free first.
    again: VecDeque<u32>,
}

impl<T> Table<T> {
    pub(crate) fn new(max: usize) -> Table<T> {
        let slot = |_| Slot {
            link: Link::new(),
            current: AtomicU32::new(VACANT),
            cpu: AtomicU16::new(0),
            entry: RwLock::new(None),
        };
        let slots = (0..max.next_power_of_two()).map(slot).collect();
        Table { slots, max, free: Mutex::new(Free { used: 0, again: VecDeque::new() }) }
    }

    #[cfg_attr(loom, allow(dead_code))]
    pub(crate) fn max(&self) -> usize {
        self.max
    }

    /// The slot of an index.
    #[inline]
    fn slot(&self, index: u32) -> u32 {
        index & (self.slots.len() as u32 - 1)
    }

    #[inline]
    fn slot_of(&self, index: u32) -> &Slot<T> {
        &self.slots[self.slot(index) as usize]
    }

    /// The CPU of the instance, or of the one that came after it if it was removed.
    #[inline]
    #[cfg_attr(loom, allow(dead_code))]
    pub(crate) fn cpu(&self, index: u32) -> u16 {
        self.slot_of(index).cpu.load(Ordering::Relaxed)
    }

    /// The instance, unless it was removed.
    #[inline]
    pub(crate) fn find(&self, index: u32) -> Option<Found<'_, T>> {
        let slot = self.slot_of(index);
        if slot.current.load(Ordering::Relaxed) != index {
            return None;
        }
        read(slot).filter(|found| found.entry().index == index)
    }

    /// Puts the interrupt of the instance with this index on a CPU's list. False if it is there already: whoever put it
    /// there announces it.
    #[inline]
    pub(crate) fn push_raised(&self, raised: &Raised, index: u32) -> bool {
        raised.push(self.slot(index), &self.slot_of(index).link)
    }

    /// Takes all interrupts off a CPU's list; `each` gets their instances, but for those that were removed.
    #[inline]
    pub(crate) fn take_raised(&self, raised: &Raised, mut each: impl FnMut(Found<'_, T>)) {
        let mut at = raised.take();
        while let Some(slot) = at {
            let slot = &self.slots[slot as usize];
            at = Raised::next(&slot.link);
            // The instance is looked up after the link, which acquires what was published before a second raise. If the
            // interrupt was raised by the slot's former instance, the present one is polled once for nothing.
            let Some(instance) = read(slot) else { continue };
            each(instance);
        }
    }

    /// Goes over all instances.
    #[cfg_attr(loom, allow(dead_code))]
    pub(crate) fn iter(&self) -> impl Iterator<Item = Found<'_, T>> {
        let used = relock(&self.free).used;
        self.slots[..used].iter().filter_map(read)
    }

    /// An index that was never given out, of a slot that is free.
    pub(crate) fn reserve(&self) -> Option<u32> {
        let mut free = relock(&self.free);
        if let Some(index) = free.again.pop_front() {
            return Some(index);
        }
        let slot = (free.used < self.max).then_some(free.used as u32)?;
        free.used += 1;
        Some(slot)
    }

    /// Puts an instance, whose interrupt comes to `cpu`, where `index` leads. The index was reserved.
    pub(crate) fn fill(&self, index: u32, cpu: u16, instance: Arc<T>) {
        let slot = self.slot_of(index);
        slot.cpu.store(cpu, Ordering::Relaxed);
        *write(slot) = Some(Entry { index, instance });
        slot.current.store(index, Ordering::Relaxed);
    }

    /// Takes an instance out: its index leads nowhere from now on, and nobody who looked it up still has it. `let_go`
    /// has those let go who know it from elsewhere. Only then may another instance have the slot.
    pub(crate) fn remove(&self, index: u32, instance: &T, let_go: impl FnOnce())
    where
        T: Removable,
    {
        instance.announce_removal();
        let slot = self.slot_of(index);
        slot.current.store(VACANT, Ordering::Relaxed);
        let removed = write(slot).take();
        drop(removed);
        let_go();
        self.release(index);
    }

    /// The slot of an index that was reserved may be filled anew.
    pub(crate) fn release(&self, index: u32) {
        // A slot whose indices have all been given out stays empty for good.
        if let Some(next) = index.checked_add(self.slots.len() as u32).filter(|next| *next != VACANT) {
            relock(&self.free).again.push_back(next);
        }
    }
}

#[inline]
fn read<T>(slot: &Slot<T>) -> Option<Found<'_, T>> {
    // The contents are put in and taken out whole, so a panic elsewhere cannot leave them half-written.
    let guard = slot.entry.read().unwrap_or_else(|poisoned| poisoned.into_inner());
    guard.is_some().then(|| Found(guard))
}

fn write<T>(slot: &Slot<T>) -> RwLockWriteGuard<'_, Option<Entry<T>>> {
    loop {
        match slot.entry.try_write() {
            Ok(guard) => return guard,
            Err(TryLockError::Poisoned(poisoned)) => return poisoned.into_inner(),
            // Somebody looks something up, or is in a poll that began before the disable.
            Err(TryLockError::WouldBlock) => a_short_while(),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn no_index_is_given_out_twice_and_a_slot_that_ran_out_of_them_stays_empty() {
        let table = Table::<()>::new(3);
        let all: Vec<u32> = (0..3).filter_map(|_| table.reserve()).collect();
        assert_eq!(all, [0, 1, 2]);
        assert_eq!(table.reserve(), None, "3 of the 4 slots may be used");
        table.release(1);
        assert_eq!(table.reserve(), Some(5), "slot 1 for the second time");
        table.release(u32::MAX - 4);
        assert_eq!(table.reserve(), None, "the last index of slot 3 is the one of no instance");
        table.release(u32::MAX - 1);
        assert_eq!(table.reserve(), None, "slot 2 has no further index");
    }
}
