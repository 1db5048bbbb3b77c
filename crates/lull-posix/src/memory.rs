//! What a program's pointers stand for: buffers, arrays of buffers, addresses, as slices for the length of a call.
//!
//! A pointer that points nowhere faults here where Linux returns EFAULT, except for null where an object has to be: to look
//! before each call would cost a system call.
#![allow(unsafe_code)]

use core::mem::{MaybeUninit, size_of};
use core::ptr::NonNull;
use std::io::{IoSlice, IoSliceMut};

use libc::{c_int, c_void, iovec, size_t, sockaddr, socklen_t};

use crate::{Errno, Result};

/// The most buffers of one call (`UIO_MAXIOV`).
const BUFFERS_MAX: usize = 1024;
/// Calls with so many buffers need no memory of the heap.
const BUFFERS_FEW: usize = 16;

/// Bytes that the program gives.
///
/// # Safety
/// The program vouches for them, as for any system call; they stay for the length of the call.
pub unsafe fn bytes<'a>(at: *const c_void, length: usize) -> &'a [u8] {
    let at = NonNull::new(at.cast_mut().cast()).unwrap_or(NonNull::dangling());
    // SAFETY: as above; a slice is no longer than memory is.
    unsafe { core::slice::from_raw_parts(at.as_ptr(), length.min(isize::MAX as usize)) }
}

/// Bytes that the program takes.
///
/// # Safety
/// As [`bytes`], to be written.
pub unsafe fn bytes_mut<'a>(at: *mut c_void, length: usize) -> &'a mut [u8] {
    let at = NonNull::new(at.cast()).unwrap_or(NonNull::dangling());
    // SAFETY: as above.
    unsafe { core::slice::from_raw_parts_mut(at.as_ptr(), length.min(isize::MAX as usize)) }
}

/// As [`bytes`], and none at the null address, whatever the length says.
///
/// # Safety
/// As [`bytes`].
pub unsafe fn if_any<'a>(at: *const c_void, length: usize) -> &'a [u8] {
    // SAFETY: as above.
    unsafe { bytes(at, if at.is_null() { 0 } else { length }) }
}

/// As [`if_any`], to be written.
///
/// # Safety
/// As [`bytes_mut`].
pub unsafe fn if_any_mut<'a>(at: *mut c_void, length: usize) -> &'a mut [u8] {
    // SAFETY: as above.
    unsafe { bytes_mut(at, if at.is_null() { 0 } else { length }) }
}

/// Calls with the program's buffers to write from.
///
/// # Safety
/// As [`bytes`], for each.
pub unsafe fn with_slices(
    buffers: *const iovec,
    given: size_t,
    call: impl FnOnce(&[IoSlice<'_>]) -> Result<usize>,
) -> Result<usize> {
    // SAFETY: the caller vouches for the array.
    let buffers = unsafe { array(buffers, given) }?;
    // SAFETY: the caller vouches for each buffer.
    let slice = |buffer: &iovec| IoSlice::new(unsafe { bytes(buffer.iov_base, buffer.iov_len) });
    if buffers.len() <= BUFFERS_FEW {
        let mut few = [const { MaybeUninit::uninit() }; BUFFERS_FEW];
        for (place, buffer) in few.iter_mut().zip(buffers) {
            place.write(slice(buffer));
        }
        // SAFETY: as many were written as there are buffers, and they need not be dropped.
        return call(unsafe { core::slice::from_raw_parts(few.as_ptr().cast(), buffers.len()) });
    }
    call(&buffers.iter().map(slice).collect::<Vec<_>>())
}

/// Calls with the program's buffers to read into.
///
/// # Safety
/// As [`bytes_mut`], for each.
pub unsafe fn with_slices_mut(
    buffers: *const iovec,
    given: size_t,
    call: impl FnOnce(&mut [IoSliceMut<'_>]) -> Result<usize>,
) -> Result<usize> {
    // SAFETY: the caller vouches for the array.
    let buffers = unsafe { array(buffers, given) }?;
    // SAFETY: the caller vouches for each buffer.
    let slice = |buffer: &iovec| IoSliceMut::new(unsafe { bytes_mut(buffer.iov_base, buffer.iov_len) });
    call(&mut buffers.iter().map(slice).collect::<Vec<_>>())
}

/// # Safety
/// The program vouches for the array.
unsafe fn array<'a>(buffers: *const iovec, given: size_t) -> Result<&'a [iovec]> {
    match given {
        0 => Ok(&[]),
        BUFFERS_MAX.. if given > BUFFERS_MAX => Err(Errno::new(libc::EINVAL)),
        _ if buffers.is_null() => Err(Errno::new(libc::EFAULT)),
        // SAFETY: as above.
        _ => Ok(unsafe { core::slice::from_raw_parts(buffers, given) }),
    }
}

/// Writes an address where the program asked for it: cut off at the room that there is, with its whole length.
///
/// # Safety
/// The program vouches for both pointers.
pub unsafe fn write_address(bytes: &[u8], address: *mut sockaddr, length: *mut socklen_t) -> Result<()> {
    if address.is_null() {
        return Ok(());
    }
    if length.is_null() {
        return Err(Errno::new(libc::EFAULT));
    }
    // SAFETY: as above.
    unsafe {
        let room = c_int::try_from(*length).map_err(|_| Errno::new(libc::EINVAL))? as usize;
        core::ptr::copy_nonoverlapping(bytes.as_ptr(), address.cast::<u8>(), bytes.len().min(room));
        *length = bytes.len() as socklen_t;
    }
    Ok(())
}

/// As [`write_address`], for a call whose only purpose it is.
///
/// # Safety
/// The program vouches for both pointers.
pub unsafe fn write_name(bytes: &[u8], address: *mut sockaddr, length: *mut socklen_t) -> Result<()> {
    if address.is_null() {
        return Err(Errno::new(libc::EFAULT));
    }
    // SAFETY: as above.
    unsafe { write_address(bytes, address, length) }
}

/// An `int` that the program points to.
///
/// # Safety
/// The program vouches for the pointer, if it is not null.
pub unsafe fn int_at<'a>(address: usize) -> Option<&'a mut c_int> {
    const { assert!(size_of::<c_int>() == 4) };
    // SAFETY: as above.
    unsafe { object_at(address) }
}

/// An object that the program points to; any bytes have to be a value of its type.
///
/// # Safety
/// The program vouches for the pointer, if it is not null.
pub unsafe fn object_at<'a, T>(address: usize) -> Option<&'a mut T> {
    // SAFETY: as above.
    unsafe { (address as *mut T).as_mut() }
}
/// `__chk_fail`: a program that would write past its buffer ends, whoever it reads from.
pub fn enough(count: usize, room: usize) {
    if count > room {
        lull_fd::say::line(format_args!("a read of {count} bytes into a buffer of {room}: the program ends"));
        // SAFETY: ends the process.
        unsafe { libc::abort() };
    }
}
