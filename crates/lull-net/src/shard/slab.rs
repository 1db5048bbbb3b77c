//! Slots with generations: an index that was freed and used again is told apart from its former self.

/// A table of values under small indices.
#[derive(Debug)]
pub(super) struct Slab<T> {
    entries: Vec<Entry<T>>,
    free: Vec<u32>,
}

#[derive(Debug)]
struct Entry<T> {
    generation: u32,
    value: Option<T>,
}

impl<T> Slab<T> {
    /// A table that will not move before it holds more than `capacity` values. The reservation is address space; the
    /// kernel gives memory when a slot is first used.
    pub(super) fn with_capacity(capacity: usize) -> Slab<T> {
        Slab { entries: Vec::with_capacity(capacity), free: Vec::new() }
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    pub(super) fn insert(&mut self, value: T) -> u32 {
        match self.free.pop() {
            Some(index) => {
                self.entries[index as usize].value = Some(value);
                index
            }
            None => {
                self.entries.push(Entry { generation: 1, value: Some(value) });
                (self.entries.len() - 1) as u32
            }
        }
    }

    pub(super) fn remove(&mut self, index: u32) -> Option<T> {
        let entry = self.entries.get_mut(index as usize)?;
        let value = entry.value.take()?;
        entry.generation = entry.generation.wrapping_add(1).max(1);
        self.free.push(index);
        Some(value)
    }

    #[inline]
    pub(super) fn get(&self, index: u32) -> Option<&T> {
        self.entries.get(index as usize)?.value.as_ref()
    }

    #[inline]
    pub(super) fn get_mut(&mut self, index: u32) -> Option<&mut T> {
        self.entries.get_mut(index as usize)?.value.as_mut()
    }

    /// The generation of a slot, 0 if it never existed.
    #[inline]
    pub(super) fn generation(&self, index: u32) -> u32 {
        self.entries.get(index as usize).map_or(0, |entry| entry.generation)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        self.entries.iter().enumerate().filter_map(|(index, entry)| Some((index as u32, entry.value.as_ref()?)))
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
}
