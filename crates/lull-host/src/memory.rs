//! Memory that was freed, given back to the system.
#![allow(unsafe_code)]

/// Gives what the allocator holds free back to the system, as far as it consists of whole pages. It takes milliseconds
/// when there is much: it is for the time after a crowd of connections has gone.
///
/// glibc keeps freed memory for later unless it lies at the heap's end; other C libraries need no telling, and there this
/// does nothing.
pub fn give_back_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: malloc_trim takes its own locks and touches free memory only.
    unsafe {
        libc::malloc_trim(0);
    }
}
