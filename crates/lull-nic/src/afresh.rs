//! A value that a process has once, and that a child of `fork` which goes on without its parent's threads makes anew.
//!
//! The child has copies of its parent's locks, which nobody will ever release, and none of its threads. So what those
//! threads worked on is not mended in the child: it is left where it is, and made again.

use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, TryLockError};

/// A value for a `static`, made where it is first wanted. [`Afresh::forget`] leaves it to whoever has a reference, for ever.
#[derive(Debug)]
pub struct Afresh<T: 'static>(AtomicPtr<T>);

impl<T: Send + Sync> Afresh<T> {
    /// Makes a place without a value.
    pub const fn new() -> Afresh<T> {
        Afresh(AtomicPtr::new(null_mut()))
    }

    /// Returns the value, if there is one.
    #[inline]
    pub fn get(&self) -> Option<&'static T> {
        // SAFETY: null, or a leaked value that another thread may read, which the acquire makes visible.
        unsafe { self.0.load(Ordering::Acquire).as_ref() }
    }

    /// Returns the value, and makes it first if there is none. If several threads make one at the same time, all get
    /// that of the first.
    pub fn get_or_init(&self, make: impl FnOnce() -> T) -> &'static T {
        if let Some(value) = self.get() {
            return value;
        }
        let made = Box::into_raw(Box::new(make()));
        match self.0.compare_exchange(null_mut(), made, Ordering::AcqRel, Ordering::Acquire) {
            // SAFETY: it was just leaked, and nothing ever frees it.
            Ok(_) => unsafe { &*made },
            Err(other) => {
                // SAFETY: nobody else has heard of it.
                drop(unsafe { Box::from_raw(made) });
                // SAFETY: a leaked value, which the acquire makes visible.
                unsafe { &*other }
            }
        }
    }

    /// Forgets the value: whoever asks next makes another.
    pub fn forget(&self) {
        self.0.store(null_mut(), Ordering::Release);
    }
}

impl<T: Send> Afresh<Mutex<T>> {
    /// For a child of `fork` that goes on with its parent's value: forgets it only if a thread of the parent's was just
    /// changing it.
    pub fn forget_if_held(&self) {
        if self.get().is_some_and(|value| matches!(value.try_lock(), Err(TryLockError::WouldBlock))) {
            self.forget();
        }
    }
}

impl<T: Send + Sync> Default for Afresh<T> {
    fn default() -> Afresh<T> {
        Afresh::new()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_one_for_all_until_it_is_forgotten_and_who_has_it_keeps_it() {
        static VALUE: Afresh<Mutex<u32>> = Afresh::new();
        assert!(VALUE.get().is_none());
        let first = VALUE.get_or_init(|| Mutex::new(1));
        assert!(std::ptr::eq(first, VALUE.get_or_init(|| unreachable!("there is one"))));
        let held = first.lock().unwrap();
        VALUE.forget();
        assert!(VALUE.get().is_none());
        *VALUE.get_or_init(Mutex::default).lock().unwrap() = 2;
        assert_eq!(
            (*held, *VALUE.get().unwrap().lock().unwrap()),
            (1, 2),
            "a lock that nobody releases is not waited for"
        );
    }

    #[test]
    fn a_value_stays_unless_somebody_is_changing_it() {
        static VALUE: Afresh<Mutex<u32>> = Afresh::new();
        VALUE.forget_if_held();
        let first = VALUE.get_or_init(|| Mutex::new(1));
        VALUE.forget_if_held();
        assert!(VALUE.get().is_some_and(|value| std::ptr::eq(value, first)));
        let _held = first.lock().unwrap();
        VALUE.forget_if_held();
        assert!(VALUE.get().is_none());
    }
}
