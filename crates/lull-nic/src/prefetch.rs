//! Bringing memory towards the processor before it is used.
//!
//! A batch touches many objects that are cold, one after the other. Asked for together, their cache misses overlap. A
//! prefetch changes nothing that can be seen and cannot fault, whatever the address; where the processor has none, it is
//! nothing.

const LINE_BYTES: usize = 64;

/// Asks for all cache lines of `value` (not of what it points to).
#[inline(always)]
pub fn prefetch<T: ?Sized>(value: &T) {
    prefetch_bytes(std::ptr::from_ref(value).cast(), size_of_val(value));
}

/// Asks for the cache lines of `bytes` bytes from `start`, which need not be memory of ours.
#[inline(always)]
pub fn prefetch_bytes(start: *const u8, bytes: usize) {
    let end = start.wrapping_add(bytes);
    let mut line = start.map_addr(|address| address & !(LINE_BYTES - 1));
    while line < end {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a prefetch is a hint: it reads nothing that the program can see, and does not fault.
        unsafe {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            _mm_prefetch::<_MM_HINT_T0>(line.cast());
        }
        line = line.wrapping_add(LINE_BYTES);
    }
}
