//! Open files by their numbers. A look-up takes no lock, files are counted references, and all of this is safe in
//! signal handlers.
//!
//! A number is a word that names an open file; several numbers may name one file (`dup`). A file stays for as long as a
//! number names it or a call uses it, as with Linux's `fget` and `fput`.
//!
//! ```text
//! word of a number   generation | place + 1       0: the number is not of this table
//! word of a place    generation | references      the value is dropped when the references come to 0; then the
//!                                                 generation grows, and the place is free
//! ```
//!
//! A look-up reads the number's word and adds a reference to the place, but only while the place still has that
//! generation and has references. So a place that was freed and filled again is never taken for what it held before.
//! Places are never given back to the allocator, so that a late look-up reads a word and not freed memory.
//!
//! A list of free places changes when a file is put in and when its last reference goes. It is a stack with a count of
//! its changes beside the head, so that a head that has come back (ABA) has another count. Nothing here waits for
//! another thread, so a `fork` at any moment leaves a table that can be used.

use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::ops::Deref;
use std::ptr::null_mut;

use crate::sync::{AtomicPtr, AtomicU32, AtomicU64, Ordering, fence};

/// How many numbers there are: the kernel's own default limit (`fs.nr_open`).
pub const NUMBERS_MAX: usize = if cfg!(loom) { 2 } else { 1 << 20 };
/// Words and places are made in chunks of this size.
const CHUNK_SIZE: usize = if cfg!(loom) { 2 } else { 1 << 10 };
const CHUNKS_MAX: usize = NUMBERS_MAX / CHUNK_SIZE;

/// The table. Keep it in a `static`.
pub struct Files<T: 'static> {
    /// The words, by number.
    words: Chunks<AtomicU64>,
    /// One more than the highest number that has ever named a file. A caller that looks at all numbers, as after each
    /// `fork`, touches no page of the table beyond it.
    numbers_end: AtomicU32,
    places: Chunks<Place<T>>,
    /// How many places were made so far.
    made: AtomicU32,
    /// The first free place plus one, and from bit 32 on the count of changes.
    free: AtomicU64,
}

/// Values by their index, in chunks that are made when the first value of a chunk is used. What is not used takes no
/// memory: a program may allow itself only little of it (RLIMIT_DATA and RLIMIT_AS count even memory that is never
/// touched). A chunk is never freed.
struct Chunks<T> {
    #[cfg(not(loom))]
    chunks: [AtomicPtr<T>; CHUNKS_MAX],
    /// loom's atomics have no constant constructor.
    #[cfg(loom)]
    chunks: Vec<AtomicPtr<T>>,
}

struct Place<T> {
    word: AtomicU64,
    next_free: AtomicU32,
    value: UnsafeCell<MaybeUninit<T>>,
}

// SAFETY: a value is written by the thread that took its place off the free list, and read by those that hold a
// reference, as with `Arc`.
unsafe impl<T: Send + Sync> Sync for Files<T> {}

const REFERENCES: u64 = u32::MAX as u64;

fn generation(word: u64) -> u64 {
    word >> 32
}

/// A reference to an open file.
pub struct Open<T: 'static> {
    files: &'static Files<T>,
    place: u32,
}

impl<T> Default for Files<T> {
    fn default() -> Files<T> {
        Files::new()
    }
}

impl<T> Files<T> {
    /// An empty table.
    #[cfg(not(loom))]
    pub const fn new() -> Files<T> {
        Files {
            words: Chunks::new(),
            numbers_end: AtomicU32::new(0),
            places: Chunks::new(),
            made: AtomicU32::new(0),
            free: AtomicU64::new(0),
        }
    }

    /// An empty table.
    #[cfg(loom)]
    pub fn new() -> Files<T> {
        Files {
            words: Chunks::new(),
            numbers_end: AtomicU32::new(0),
            places: Chunks::new(),
            made: AtomicU32::new(0),
            free: AtomicU64::new(0),
        }
    }

    fn word(&self, number: i32) -> Option<&AtomicU64> {
        self.words.get(usize::try_from(number).ok()?)
    }

    /// Whether the number names a file of this table.
    #[inline]
    pub fn contains(&self, number: i32) -> bool {
        self.word(number).is_some_and(|word| word.load(Ordering::Relaxed) != 0)
    }

    /// The open file that a number names.
    #[inline]
    pub fn get(&'static self, number: i32) -> Option<Open<T>> {
        let word = self.word(number)?;
        let mut name = word.load(Ordering::Acquire);
        while name != 0 {
            let index = name as u32 - 1;
            let place = self.place(index);
            // This load acquires, so that a thread which finds the file gone sees what the number names since.
            let mut now = place.word.load(Ordering::Acquire);
            while generation(now) == generation(name) && now & REFERENCES != 0 {
                match place.word.compare_exchange_weak(now, now + 1, Ordering::Acquire, Ordering::Acquire) {
                    Ok(_) => return Some(Open { files: self, place: index }),
                    Err(other) => now = other,
                }
            }
            // The file has gone meanwhile. By now the number names another file, or none.
            let again = word.load(Ordering::Acquire);
            if again == name {
                return None;
            }
            name = again;
        }
        None
    }

    /// Puts a file into the table, without a number yet. Returns `None` if the table is full.
    pub fn open(&'static self, value: T) -> Option<Open<T>> {
        let index = self.pop_free().or_else(|| self.make())?;
        let place = self.place(index);
        let generation = place.word.load(Ordering::Relaxed) & !REFERENCES;
        // SAFETY: the place was free, and only the thread that took it off the list may write it.
        unsafe { (*place.value.get()).write(value) };
        place.word.store(generation | 1, Ordering::Release);
        Some(Open { files: self, place: index })
    }

    /// Makes the number name this file. Returns the file that it named before, which the caller drops when everything
    /// else is done. If the number is beyond the table, the new file comes back as an error.
    pub fn install(&'static self, number: i32, file: Open<T>) -> Result<Option<Open<T>>, Open<T>> {
        let word = usize::try_from(number).ok().and_then(|number| self.words.made(number, || AtomicU64::new(0)));
        let Some(word) = word else { return Err(file) };
        let end = number as u32 + 1;
        if self.numbers_end.load(Ordering::Relaxed) < end {
            // This happens before the number names the file, so that the child of a `fork` between the two finds it.
            self.numbers_end.fetch_max(end, Ordering::Release);
        }
        let name = file.name();
        std::mem::forget(file);
        let before = word.swap(name, Ordering::AcqRel);
        Ok(self.held_by_number(before))
    }

    /// Makes the number name nothing. Returns the file that it named.
    pub fn take(&'static self, number: i32) -> Option<Open<T>> {
        let word = self.word(number)?;
        // Most numbers that are closed never named a file of this table.
        if word.load(Ordering::Relaxed) == 0 {
            return None;
        }
        self.held_by_number(word.swap(0, Ordering::AcqRel))
    }

    /// Makes the number name nothing, if it names this file. Returns that file.
    pub fn take_if(&'static self, number: i32, file: &Open<T>) -> Option<Open<T>> {
        let name = file.name();
        let taken = self.word(number)?.compare_exchange(name, 0, Ordering::AcqRel, Ordering::Relaxed);
        taken.ok().and_then(|before| self.held_by_number(before))
    }

    /// The reference that a number's word stands for.
    fn held_by_number(&'static self, name: u64) -> Option<Open<T>> {
        (name != 0).then(|| Open { files: self, place: name as u32 - 1 })
    }

    /// The numbers that name a file now, for a caller that looks at all of them.
    pub fn numbers(&self) -> impl Iterator<Item = i32> + '_ {
        let end = self.numbers_end.load(Ordering::Acquire) as i32;
        (0..end).filter(|&number| self.contains(number))
    }

    /// Whether any number names this file now. This looks at all numbers.
    pub fn is_named(&self, file: &Open<T>) -> bool {
        let (end, name) = (self.numbers_end.load(Ordering::Acquire) as i32, file.name());
        (0..end).filter_map(|number| self.word(number)).any(|word| word.load(Ordering::Relaxed) == name)
    }

    fn place(&self, index: u32) -> &Place<T> {
        self.places.get(index as usize).expect("an index is known only after its chunk was made")
    }

    /// Makes a place that was never used before.
    fn make(&self) -> Option<u32> {
        let index = self.made.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |made| {
            ((made as usize) < NUMBERS_MAX).then_some(made + 1)
        });
        let index = index.ok()?;
        self.places.made(index as usize, Place::new).map(|_| index)
    }

    fn pop_free(&self) -> Option<u32> {
        let mut head = self.free.load(Ordering::Acquire);
        loop {
            let index = (head as u32).checked_sub(1)?;
            let next = self.place(index).next_free.load(Ordering::Relaxed);
            let then = (head & !REFERENCES).wrapping_add(1 << 32) | u64::from(next);
            match self.free.compare_exchange_weak(head, then, Ordering::Acquire, Ordering::Acquire) {
                Ok(_) => return Some(index),
                Err(other) => head = other,
            }
        }
    }

    fn push_free(&self, index: u32) {
        let mut head = self.free.load(Ordering::Relaxed);
        loop {
            self.place(index).next_free.store(head as u32, Ordering::Relaxed);
            let then = (head & !REFERENCES).wrapping_add(1 << 32) | u64::from(index + 1);
            match self.free.compare_exchange_weak(head, then, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return,
                Err(other) => head = other,
            }
        }
    }
}

impl<T> Chunks<T> {
    #[cfg(not(loom))]
    const fn new() -> Chunks<T> {
        Chunks { chunks: [const { AtomicPtr::new(null_mut()) }; CHUNKS_MAX] }
    }

    #[cfg(loom)]
    fn new() -> Chunks<T> {
        Chunks { chunks: (0..CHUNKS_MAX).map(|_| AtomicPtr::new(null_mut())).collect() }
    }

    /// The value of an index, if its chunk was made.
    #[inline]
    fn get(&self, index: usize) -> Option<&T> {
        let chunk = self.chunks.get(index / CHUNK_SIZE)?.load(Ordering::Acquire);
        // SAFETY: a chunk that was published has this many values, and is never freed.
        (!chunk.is_null()).then(|| unsafe { &*chunk.add(index % CHUNK_SIZE) })
    }

    /// The value of an index, whose chunk is made if it does not exist. Returns `None` if the index is beyond the last.
    fn made(&self, index: usize, empty: impl Fn() -> T) -> Option<&T> {
        let chunk = self.chunks.get(index / CHUNK_SIZE)?;
        if chunk.load(Ordering::Acquire).is_null() {
            let values: Box<[T]> = (0..CHUNK_SIZE).map(|_| empty()).collect();
            let made = Box::into_raw(values).cast::<T>();
            let published = chunk.compare_exchange(null_mut(), made, Ordering::AcqRel, Ordering::Acquire);
            if published.is_err() {
                // SAFETY: another thread published its chunk first, and this one's was not published.
                drop(unsafe { Box::from_raw(std::ptr::slice_from_raw_parts_mut(made, CHUNK_SIZE)) });
            }
        }
        self.get(index)
    }
}

impl<T> Place<T> {
    fn new() -> Place<T> {
        Place { word: AtomicU64::new(0), next_free: AtomicU32::new(0), value: UnsafeCell::new(MaybeUninit::uninit()) }
    }
}

impl<T> Open<T> {
    fn place(&self) -> &Place<T> {
        self.files.place(self.place)
    }

    /// What the word of a number that names this file is. The generation stays the same while there is a reference.
    fn name(&self) -> u64 {
        self.place().word.load(Ordering::Relaxed) & !REFERENCES | u64::from(self.place + 1)
    }

    /// How many numbers and calls refer to the file, this reference included.
    pub fn references(&self) -> u32 {
        (self.place().word.load(Ordering::Relaxed) & REFERENCES) as u32
    }

    /// Whether both are the same open file.
    pub fn is_same(&self, other: &Open<T>) -> bool {
        self.place == other.place && std::ptr::eq(self.files, other.files)
    }
}

impl<T> Clone for Open<T> {
    fn clone(&self) -> Open<T> {
        self.place().word.fetch_add(1, Ordering::Relaxed);
        Open { files: self.files, place: self.place }
    }
}

impl<T> Deref for Open<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the value is there for as long as there is a reference.
        unsafe { (*self.place().value.get()).assume_init_ref() }
    }
}

impl<T> Drop for Open<T> {
    #[inline]
    fn drop(&mut self) {
        let before = self.place().word.fetch_sub(1, Ordering::Release);
        if before & REFERENCES == 1 {
            fence(Ordering::Acquire);
            self.free(generation(before));
        }
    }
}

impl<T> Open<T> {
    #[cold]
    fn free(&mut self, generation: u64) {
        let place = self.place();
        // SAFETY: this was the last reference, and nobody gets a reference to a place that has none.
        unsafe { (*place.value.get()).assume_init_drop() };
        place.word.store(generation.wrapping_add(1) << 32, Ordering::Release);
        self.files.push_free(self.place);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;

    /// Each use of this macro has a table of its own.
    macro_rules! files {
        ($type:ty) => {{
            static FILES: Files<$type> = Files::new();
            &FILES
        }};
    }

    #[test]
    fn a_file_lives_while_a_number_names_it_or_a_call_uses_it() {
        let files = files!(Arc<()>);
        let value = Arc::new(());
        let opened = files.open(value.clone()).unwrap();
        assert!(files.install(5, opened.clone()).unwrap_or_else(|_| panic!()).is_none());
        assert!(files.install(6, opened).unwrap_or_else(|_| panic!()).is_none());
        assert!(files.get(5).unwrap().is_same(&files.get(6).unwrap()), "as after dup");
        drop(files.take(5));
        let used = files.get(6).unwrap();
        assert!(files.is_named(&used));
        drop(files.take(6));
        assert!(!files.is_named(&used));
        assert!(files.get(5).is_none() && files.get(6).is_none() && files.take(6).is_none());
        assert_eq!(Arc::strong_count(&value), 2, "a call still uses it");
        drop(used);
        assert_eq!(Arc::strong_count(&value), 1);
    }

    #[test]
    fn a_place_that_is_filled_again_is_another_file() {
        let files = files!(u32);
        let first = files.open(1).unwrap();
        let place = first.place;
        files.install(5, first).unwrap_or_else(|_| panic!());
        let name = files.word(5).unwrap().load(Ordering::Relaxed);
        drop(files.take(5));
        let second = files.open(2).unwrap();
        assert_eq!(second.place, place, "the free place is used again");
        // This is what a look-up has that read the number's word before the file was taken.
        files.word(7).unwrap().store(name, Ordering::Relaxed);
        assert!(files.get(7).is_none(), "the name is of the former file");
        files.word(7).unwrap().store(0, Ordering::Relaxed);
        assert_eq!(*second, 2);
    }

    #[test]
    fn a_table_takes_memory_for_what_is_used_alone() {
        let files = files!(u32);
        assert!(size_of_val(files) <= 64 << 10, "{} bytes, which every program has in its data", size_of_val(files));
        assert!(!files.contains(NUMBERS_MAX as i32 - 1) && files.get(5).is_none());
        assert!(
            files.words.chunks.iter().all(|chunk| chunk.load(Ordering::Relaxed).is_null()),
            "a question makes none"
        );
        files.install(NUMBERS_MAX as i32 - 1, files.open(1).unwrap()).unwrap_or_else(|_| panic!());
        let made = files.words.chunks.iter().filter(|chunk| !chunk.load(Ordering::Relaxed).is_null());
        assert_eq!(made.count(), 1);
        assert_eq!(files.get(NUMBERS_MAX as i32 - 1).map(|file| *file), Some(1));
    }

    #[test]
    fn numbers_out_of_range_name_nothing() {
        let files = files!(u32);
        assert!(files.get(-1).is_none() && files.get(NUMBERS_MAX as i32).is_none() && !files.contains(i32::MAX));
        let file = files.open(1).unwrap();
        assert!(files.install(-1, file).is_err());
    }

    #[test]
    fn all_numbers_that_name_a_file_are_listed_in_whatever_order_they_came() {
        let files = files!(u32);
        assert_eq!(files.numbers().count(), 0);
        for number in [300_000, 5, NUMBERS_MAX as i32 - 1, 0, 299_999] {
            files.install(number, files.open(1).unwrap()).unwrap_or_else(|_| panic!());
            assert!(files.numbers().any(|listed| listed == number));
        }
        drop(files.take(300_000));
        assert_eq!(files.numbers().collect::<Vec<_>>(), [0, 5, 299_999, NUMBERS_MAX as i32 - 1]);
    }

    #[test]
    fn who_lists_numbers_looks_no_further_than_the_highest_that_was_used() {
        let files = files!(u32);
        for (number, end) in [(5, 6), (2, 6), (9, 10)] {
            files.install(number, files.open(1).unwrap()).unwrap_or_else(|_| panic!());
            drop(files.take(number));
            assert_eq!(files.numbers_end.load(Ordering::Relaxed), end);
        }
    }

    #[test]
    fn what_a_number_named_before_is_handed_back() {
        let files = files!(u32);
        files.install(5, files.open(1).unwrap()).unwrap_or_else(|_| panic!());
        let before = files.install(5, files.open(2).unwrap()).unwrap_or_else(|_| panic!());
        assert_eq!((before.map(|file| *file), files.get(5).map(|file| *file)), (Some(1), Some(2)));
        let other = files.open(3).unwrap();
        assert!(files.take_if(5, &other).is_none(), "it names another file");
        assert_eq!(files.take_if(5, &files.get(5).unwrap()).map(|file| *file), Some(2));
        assert_eq!(files.numbers().count(), 0);
    }

    #[test]
    fn threads_that_close_and_open_never_see_another_file_under_a_number() {
        let files = files!(usize);
        let stop = Arc::new(AtomicBool::new(false));
        let lookers: Vec<_> = (0..3)
            .map(|_| {
                let stop = stop.clone();
                std::thread::spawn(move || {
                    let mut seen = 0_u64;
                    while !stop.load(Ordering::Relaxed) {
                        for number in 0..4 {
                            if let Some(file) = files.get(number) {
                                assert_eq!(*file % 4, number as usize);
                                seen += 1;
                            }
                        }
                    }
                    seen
                })
            })
            .collect();
        for nth in 0..100_000_usize {
            let file = files.open(nth).unwrap();
            drop(files.install((nth % 4) as i32, file).unwrap_or_else(|_| panic!()));
            drop(files.take(((nth + 2) % 4) as i32));
        }
        stop.store(true, Ordering::Relaxed);
        assert!(lookers.into_iter().map(|looker| looker.join().unwrap()).sum::<u64>() > 0);
        assert!(files.made.load(Ordering::Relaxed) < 16, "places are used again");
    }
}
