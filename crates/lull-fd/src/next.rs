//! The C library's function of a name that this library defines as well.

use core::ffi::{CStr, c_void};
use core::sync::atomic::{AtomicPtr, Ordering::Relaxed};

/// One function of the C library.
pub struct Next {
    symbol: &'static CStr,
    address: AtomicPtr<c_void>,
}

impl Next {
    /// The function of that name. The name has to end with a zero.
    pub const fn of(symbol: &'static str) -> Next {
        let Ok(symbol) = CStr::from_bytes_with_nul(symbol.as_bytes()) else { panic!("it ends with a zero") };
        Next { symbol, address: AtomicPtr::new(core::ptr::null_mut()) }
    }

    /// Its address; null if it was not looked up yet, or if the C library has no such function.
    #[inline]
    pub fn address(&self) -> *mut c_void {
        self.address.load(Relaxed)
    }

    /// Its address, which is looked up now if it was not before.
    pub fn found(&self) -> *mut c_void {
        if self.address().is_null() {
            self.look_up();
        }
        self.address()
    }

    /// Looks the function up in the libraries that were loaded behind this one.
    #[cold]
    pub fn look_up(&self) {
        // SAFETY: the symbol ends with a zero.
        self.address.store(unsafe { libc::dlsym(libc::RTLD_NEXT, self.symbol.as_ptr()) }, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_is_found_once_it_is_looked_up_and_one_that_is_not_there_never() {
        static GETPID: Next = Next::of("getpid\0");
        static NOWHERE: Next = Next::of("lull_has_no_such_function\0");
        assert!(GETPID.address().is_null());
        let found = GETPID.found();
        assert!(!found.is_null() && GETPID.address() == found);
        // SAFETY: the C library's function has this signature.
        let getpid = unsafe { core::mem::transmute::<*mut c_void, extern "C" fn() -> libc::pid_t>(found) };
        assert_eq!(getpid().unsigned_abs(), std::process::id());
        NOWHERE.look_up();
        assert!(NOWHERE.address().is_null());
    }
}
