//! The slots in which a worker keeps its connections.

/// A worker's connections by number, which is the key of their events. Numbers are reused.
pub(super) struct Slots<T> {
    slots: Vec<Option<T>>,
    free: Vec<usize>,
}

impl<T> Slots<T> {
    pub const fn new() -> Slots<T> {
        Slots { slots: Vec::new(), free: Vec::new() }
    }

    /// Returns how many numbers are in use.
    pub fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Reserves a free number. It has to be followed by [`Slots::put`] or [`Slots::release`].
    pub fn reserve(&mut self) -> usize {
        self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() - 1
        })
    }

    /// Releases a number that was reserved and not used.
    pub fn release(&mut self, slot: usize) {
        self.free.push(slot);
        self.give_back();
    }

    /// Keeps a value under a reserved number.
    pub fn put(&mut self, slot: usize, kept: T) {
        self.slots[slot] = Some(kept);
    }

    /// Returns the value. There is none if the event is for a connection that was closed earlier in the same batch.
    pub fn get(&self, slot: usize) -> Option<&T> {
        self.slots.get(slot)?.as_ref()
    }

    /// Does the same as [`Slots::get`].
    pub fn get_mut(&mut self, slot: usize) -> Option<&mut T> {
        self.slots.get_mut(slot)?.as_mut()
    }

    /// Takes the value out, after which its number is free.
    pub fn take(&mut self, slot: usize) -> Option<T> {
        let taken = self.slots.get_mut(slot)?.take();
        if taken.is_some() {
            self.free.push(slot);
            self.give_back();
        }
        taken
    }

    /// Returns the numbers of the values for which `wanted` holds.
    pub fn find(&self, wanted: impl Fn(&T) -> bool) -> Vec<usize> {
        let kept = self.slots.iter().enumerate();
        kept.filter(|(_, slot)| slot.as_ref().is_some_and(&wanted)).map(|(slot, _)| slot).collect()
    }

    /// Frees the memory when no connection is left, because it has the size of the most connections there ever were.
    fn give_back(&mut self) {
        if self.free.len() == self.slots.len() {
            *self = Slots::new();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_used_again_and_only_when_they_are_free() {
        let mut slots = Slots::new();
        let (first, second) = (slots.reserve(), slots.reserve());
        slots.put(first, 'a');
        slots.put(second, 'b');
        assert_eq!((first, second, slots.get(first), slots.get(7)), (0, 1, Some(&'a'), None));
        assert_eq!((slots.take(first), slots.take(first), slots.take(7)), (Some('a'), None, None));
        assert_eq!(slots.reserve(), first, "freed once, and so given out once");
        assert_eq!(slots.reserve(), 2);
        slots.release(2);
        assert_eq!(slots.reserve(), 2);
        assert_eq!(slots.get_mut(second), Some(&mut 'b'));
        assert_eq!((slots.find(|kept| *kept == 'b'), slots.len()), (vec![second], 3));
    }

    #[test]
    fn the_memory_of_past_connections_is_given_back() {
        let mut slots = Slots::new();
        for _ in 0..10_000 {
            let slot = slots.reserve();
            slots.put(slot, [0_u8; 100]);
        }
        assert!((0..10_000).all(|slot| slots.take(slot).is_some()));
        assert_eq!((slots.len(), slots.slots.capacity(), slots.free.capacity()), (0, 0, 0));
    }
}
