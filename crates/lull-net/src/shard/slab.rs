//! Slots with generations: an index that was freed and used again is told apart from its former self.

/// A table of values under small indices. Generations lie apart from the values: checking an id touches a few bytes of
/// a dense array, and a value can begin on a cache line.
#[derive(Debug)]
pub(super) struct Slab<T> {
    generations: Vec<u32>,
    values: Vec<Option<T>>,
    free: Vec<u32>,
}

impl<T> Slab<T> {
    /// A table that will not move before it holds more than `capacity` values. The reservation is address space; the
    /// kernel gives memory when a slot is first used.
    pub(super) fn with_capacity(capacity: usize) -> Slab<T> {
        Slab { generations: Vec::new(), values: Vec::with_capacity(capacity), free: Vec::new() }
    }

    pub(super) fn len(&self) -> usize {
        self.values.len() - self.free.len()
    }

    pub(super) fn insert(&mut self, value: T) -> u32 {
        match self.free.pop() {
            Some(index) => {
                self.values[index as usize] = Some(value);
                index
            }
            None => {
                self.generations.push(1);
                self.values.push(Some(value));
                (self.values.len() - 1) as u32
            }
        }
    }

    pub(super) fn remove(&mut self, index: u32) -> Option<T> {
        let value = self.values.get_mut(index as usize)?.take()?;
        let generation = &mut self.generations[index as usize];
        *generation = generation.wrapping_add(1).max(1);
        self.free.push(index);
        Some(value)
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
}
