//! What a child of `fork` leaves behind of what this crate has for a whole process.

/// A child of `fork` forgets what its parent's threads had of the kind in this crate: who watches for room, and the frames that pools left
/// for each other; and closes the parent's sockets of interfaces.
pub fn forget_all() {
    crate::own::close_parents();
    crate::writable::forget_watcher();
    crate::frame::forget_depot();
}
