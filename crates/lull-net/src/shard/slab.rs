//! Slots with generations: an index that was freed and used again is told apart from its former self.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// A table of values under small indices. Generations lie apart from the values: checking an id touches a few bytes of
/// a dense array, and a value can begin on a cache line.
///
/// Low indices are used first, and slots at the end that are free go, so that a crowd that has left is given back.
#[derive(Debug)]
pub(super) struct Slab<T> {
    generations: Vec<u32>,
    values: Vec<Option<T>>,
    /// Free slots, lowest first. Those beyond the end of `values` mean nothing.
    free: BinaryHeap<Reverse<u32>>,
    len: usize,
    /// Slots of the present allocation that were ever used: the kernel has given memory for them.
    touched: usize,
    reserved: usize,
    /// A number above the generation of every slot that was given back.
    generation_min: u32,
}

/// Fewer slots than this are not worth giving back.
const SLOTS_KEPT: usize = 256;

impl<T> Slab<T> {
    /// A table that will not move as it grows to `capacity` values. The reservation is address space; the kernel gives
    /// memory when a slot is first used.
    pub(super) fn with_capacity(capacity: usize) -> Slab<T> {
        Slab {
            generations: Vec::new(),
            values: Vec::with_capacity(capacity),
            free: BinaryHeap::new(),
            len: 0,
            touched: 0,
            reserved: capacity,
            generation_min: 1,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Memory that the slots hold, used or not, in bytes; not what the values hold elsewhere.
    pub(super) fn memory_bytes(&self) -> usize {
        self.touched * size_of::<Option<T>>() + (self.generations.capacity() + self.free.capacity()) * size_of::<u32>()
    }

    pub(super) fn insert(&mut self, value: T) -> u32 {
        self.len += 1;
        if let Some(Reverse(index)) = self.free.pop()
            && let Some(slot) = self.values.get_mut(index as usize)
        {
            *slot = Some(value);
            return index;
        }
        self.free.clear();
        self.generations.push(self.generation_min);
        self.values.push(Some(value));
        self.touched = self.touched.max(self.values.len());
        (self.values.len() - 1) as u32
    }

    pub(super) fn remove(&mut self, index: u32) -> Option<T> {
        let value = self.values.get_mut(index as usize)?.take()?;
        let generation = &mut self.generations[index as usize];
        *generation = generation.wrapping_add(1).max(1);
        self.len -= 1;
        self.free.push(Reverse(index));
        while self.values.pop_if(|slot| slot.is_none()).is_some() {
            self.generation_min = self.generation_min.max(self.generations.pop().unwrap_or(0));
        }
        if self.touched > SLOTS_KEPT && self.values.len() * 4 < self.touched {
            self.give_back();
        }
        Some(value)
    }

    /// Moves what is left to fresh memory, so that the memory of what has left goes back to the system.
    #[cold]
    fn give_back(&mut self) {
        let mut values = Vec::with_capacity(self.reserved.max(self.values.len()));
        values.append(&mut self.values);
        self.values = values;
        self.touched = self.values.len();
        self.generations.shrink_to_fit();
        let slots = self.values.len() as u32;
        self.free.retain(|&Reverse(index)| index < slots);
        self.free.shrink_to_fit();
    }

    #[inline]
    pub(super) fn get(&self, index: u32) -> Option<&T> {
        self.values.get(index as usize)?.as_ref()
    }

    #[inline]
    pub(super) fn get_mut(&mut self, index: u32) -> Option<&mut T> {
        self.values.get_mut(index as usize)?.as_mut()
    }

    /// The generation of a slot, 0 if it never existed.
    #[inline]
    pub(super) fn generation(&self, index: u32) -> u32 {
        self.generations.get(index as usize).copied().unwrap_or(0)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        self.values.iter().enumerate().filter_map(|(index, value)| Some((index as u32, value.as_ref()?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reused_slot_has_another_generation() {
        let mut slab = Slab::with_capacity(4);
        let first = slab.insert("a");
        let generation = slab.generation(first);
        assert_eq!(slab.remove(first), Some("a"));
        assert_eq!(slab.remove(first), None);
        let second = slab.insert("b");
        assert_eq!(first, second);
        assert_ne!(generation, slab.generation(second));
        assert_eq!((slab.len(), slab.get(second)), (1, Some(&"b")));
    }

    #[test]
    fn a_crowd_that_left_is_given_back_and_its_ids_stay_void() {
        let mut slab = Slab::with_capacity(100);
        let mut ids: Vec<(u32, u32)> = Vec::new();
        for round in 0..3 {
            let before = ids.len();
            for value in 0..10_000 {
                let index = slab.insert(value);
                ids.push((index, slab.generation(index)));
            }
            let full = slab.memory_bytes();
            // One of the first stays, as a client does that outlives the crowd.
            let stays = ids[before + 5];
            for &(index, _) in &ids[before..] {
                if index != stays.0 {
                    assert!(slab.remove(index).is_some());
                }
            }
            assert_eq!(slab.len(), 1);
            assert!(slab.memory_bytes() * 20 < full, "{} of {full} bytes stay", slab.memory_bytes());
            assert!(slab.get(stays.0).is_some());
            slab.remove(stays.0);
            assert!(ids.iter().all(|&(index, generation)| slab.generation(index) != generation), "round {round}");
        }
        let mut all: Vec<_> = ids.clone();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), ids.len(), "no id was given twice");
    }
}
