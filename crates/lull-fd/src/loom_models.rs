//! The table of open files under loom.
//!
//! A file holds a cell of loom's, which is written when the file is made and when it is dropped. So loom reports a
//! reader for which the table does not order the first write before it and the second one after it. There are two
//! numbers and two places.

use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicU32, Ordering};
use loom::thread;

use crate::files::{Files, Open};

/// The value of a file that was dropped.
const GONE: u32 = 0;

struct File {
    value: UnsafeCell<u32>,
    dropped: &'static AtomicU32,
}

// SAFETY: this is the claim about the table that is tested here: the value is only read while there is a reference.
unsafe impl Sync for File {}

impl File {
    fn read(&self) -> u32 {
        // SAFETY: as above; loom reports an access beside a write.
        self.value.with(|value| unsafe { *value })
    }
}

impl Drop for File {
    fn drop(&mut self) {
        // SAFETY: as above.
        self.value.with_mut(|value| unsafe { *value = GONE });
        self.dropped.fetch_add(1, Ordering::Relaxed);
    }
}

/// A table, and how many of its files were dropped.
#[derive(Clone, Copy)]
struct World {
    files: &'static Files<File>,
    dropped: &'static AtomicU32,
}

impl World {
    fn new() -> World {
        World { files: Box::leak(Box::default()), dropped: Box::leak(Box::new(AtomicU32::new(0))) }
    }

    fn open(&self, value: u32) -> Option<Open<File>> {
        self.files.open(File { value: UnsafeCell::new(value), dropped: self.dropped })
    }

    /// Makes the number name a new file, and closes the one that it named before.
    fn install(&self, number: i32, value: u32) {
        let file = self.open(value).expect("there is a place");
        drop(self.files.install(number, file).unwrap_or_else(|_| panic!("the number is in the table")));
    }

    fn read(&self, number: i32) -> Option<u32> {
        self.files.get(number).map(|file| file.read())
    }

    fn dropped(&self) -> u32 {
        self.dropped.load(Ordering::Relaxed)
    }
}

fn check(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(model);
}

#[test]
fn loom_a_number_that_is_closed_and_used_again_is_never_read_as_what_it_was() {
    check(3, || {
        let world = World::new();
        world.install(0, 1);
        let looker = thread::spawn(move || {
            let seen = world.read(0);
            assert!(seen.is_none_or(|value| value == 1), "{seen:?}");
        });
        drop(world.files.take(0));
        // The new file may get the place that the first one had.
        world.install(1, 2);
        assert_eq!(world.read(1), Some(2));
        looker.join().unwrap();
        assert_eq!(world.dropped(), 1);
    });
}

#[test]
fn loom_a_number_that_dup2_gives_another_meaning_is_one_of_the_two() {
    check(3, || {
        let world = World::new();
        world.install(0, 1);
        let looker = thread::spawn(move || {
            let seen = world.read(0);
            assert!(matches!(seen, Some(1 | 2)), "{seen:?}");
        });
        world.install(0, 2);
        looker.join().unwrap();
        assert_eq!((world.read(0), world.dropped()), (Some(2), 1));
    });
}

#[test]
fn loom_two_who_close_one_number_close_its_file_once() {
    check(3, || {
        let world = World::new();
        world.install(0, 1);
        let duplicate = world.files.get(0).unwrap();
        drop(world.files.install(1, duplicate).unwrap_or_else(|_| panic!("the number is in the table")));
        let other = thread::spawn(move || {
            let file = world.files.take(1);
            assert_eq!(file.as_ref().map(|file| file.read()), Some(1));
        });
        let file = world.files.take(0);
        assert_eq!(file.map(|file| file.read()), Some(1), "dup gave it two numbers");
        other.join().unwrap();
        assert_eq!(world.dropped(), 1, "by whoever was last");
    });
}

/// A place may leave the free list and come back while another thread is about to take it (ABA). That thread must not
/// believe what it has read of the list before.
#[test]
fn loom_a_free_place_is_given_to_one_only() {
    check(3, || {
        let world = World::new();
        // Both places are free and were used before.
        drop([world.open(1).unwrap(), world.open(2).unwrap()]);
        let other = thread::spawn(move || world.open(3).map(|file| (file.read(), file)));
        let first = world.open(4);
        let second = world.open(5);
        drop(first);
        let read = |file: &Option<Open<File>>| file.as_ref().map(|file| file.read());
        let third = world.open(6);
        let others = other.join().unwrap();
        assert_eq!(others.as_ref().map(|(_, file)| file.read()), others.as_ref().map(|(value, _)| *value));
        if let Some(value) = read(&second) {
            assert_eq!(value, 5);
        }
        if let Some(value) = read(&third) {
            assert_eq!(value, 6);
        }
        let held = [others.is_some(), second.is_some(), third.is_some()].into_iter().filter(|held| *held).count();
        assert_eq!(held, 2, "two places, and as many files");
    });
}

#[test]
fn loom_two_who_make_the_first_places_get_one_each() {
    check(3, || {
        let world = World::new();
        let other = thread::spawn(move || world.install(0, 1));
        world.install(1, 2);
        other.join().unwrap();
        assert_eq!((world.read(0), world.read(1)), (Some(1), Some(2)));
    });
}
