//! What tests of one process have to know of each other. A program that one of them starts has the descriptors of all
//! others until it is executed, and so keeps a lock that another test has just given back.

use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

static STARTING: RwLock<()> = RwLock::new(());

/// Held while a program is started.
pub(crate) fn a_program() -> RwLockWriteGuard<'static, ()> {
    STARTING.write().unwrap_or_else(PoisonError::into_inner)
}

/// Held by a test in which nobody else may have a lock.
pub(crate) fn no_program() -> RwLockReadGuard<'static, ()> {
    STARTING.read().unwrap_or_else(PoisonError::into_inner)
}
