//! What a child of `fork` forgets of the things that this crate has once for a process.

/// To be called in a child of `fork`: forgets what this crate has once for a process and its parent's threads worked on
/// (the thread that watches for room, and the frames that pools left for each other), and closes the parent's sockets
/// on interfaces.
pub fn forget_all() {
    crate::own::close_parents();
    crate::writable::forget_watcher();
    crate::frame::forget_depot();
}
