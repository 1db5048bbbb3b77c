//! What a program's pointers stand for: buffers, arrays of buffers, addresses, as slices for the length of a call.
//!
//! A pointer that points nowhere faults here, where Linux returns EFAULT, except a null pointer where an object has to
//! be, because to check before each call would cost a system call.
#![allow(unsafe_code)]

use core::mem::{MaybeUninit, size_of};
use core::ptr::NonNull;
use std::io::{IoSlice, IoSliceMut};

use libc::{c_int, c_void, iovec, msghdr, size_t, sockaddr, socklen_t};

use crate::{Errno, Result};

/// The most buffers of one call (`UIO_MAXIOV`).
const BUFFERS_MAX: usize = 1024;
/// Calls with so many buffers need no memory of the heap.
const BUFFERS_FEW: usize = 16;
/// The most bytes of one call (`MAX_RW_COUNT`): of what is asked for beyond them the kernel takes no notice.
const BYTES_MAX: usize = c_int::MAX as usize & !4095;

/// Bytes that the program gives.
///
/// # Safety
/// The program vouches for them, as for any system call; they stay for the length of the call.
pub unsafe fn bytes<'a>(at: *const c_void, length: usize) -> &'a [u8] {
    let at = NonNull::new(at.cast_mut().cast()).unwrap_or(NonNull::dangling());
    // SAFETY: as above.
    unsafe { core::slice::from_raw_parts(at.as_ptr(), length.min(BYTES_MAX)) }
}

/// Bytes that the program takes.
///
/// # Safety
/// As [`bytes`], to be written.
pub unsafe fn bytes_mut<'a>(at: *mut c_void, length: usize) -> &'a mut [u8] {
    let at = NonNull::new(at.cast()).unwrap_or(NonNull::dangling());
    // SAFETY: as above.
    unsafe { core::slice::from_raw_parts_mut(at.as_ptr(), length.min(BYTES_MAX)) }
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

/// The longest address that a call is given (`struct sockaddr_storage`).
const ADDRESS_BYTES_MAX: usize = size_of::<libc::sockaddr_storage>();

/// The address that a call is given (`move_addr_to_kernel`).
///
/// # Safety
/// As [`bytes`].
pub unsafe fn address<'a>(at: *const sockaddr, length: socklen_t) -> Result<&'a [u8]> {
    match length as usize {
        // SAFETY: as above.
        length @ ..=ADDRESS_BYTES_MAX => Ok(unsafe { bytes(at.cast(), length) }),
        // Also one that is below 0.
        _ => Err(Errno::new(libc::EINVAL)),
    }
}

/// How long a message's name is, if there is one; what is behind the longest address is not looked at (`__copy_msghdr`).
pub fn name_of(message: &msghdr) -> Result<usize> {
    let given = if message.msg_name.is_null() { 0 } else { message.msg_namelen };
    c_int::try_from(given).map_err(|_| Errno::new(libc::EINVAL))?;
    Ok((given as usize).min(ADDRESS_BYTES_MAX))
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
    let mut room = BYTES_MAX;
    // SAFETY: the caller vouches for each buffer.
    let slice = |buffer: &iovec| IoSlice::new(unsafe { bytes(buffer.iov_base, take(&mut room, buffer)) });
    if buffers.len() <= BUFFERS_FEW {
        let mut few = [const { MaybeUninit::uninit() }; BUFFERS_FEW];
        for (place, buffer) in few.iter_mut().zip(buffers.iter().map(slice)) {
            place.write(buffer);
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
    let mut room = BYTES_MAX;
    // SAFETY: the caller vouches for each buffer.
    let slice = |buffer: &iovec| IoSliceMut::new(unsafe { bytes_mut(buffer.iov_base, take(&mut room, buffer)) });
    call(&mut buffers.iter().map(slice).collect::<Vec<_>>())
}

/// As many bytes of a buffer as a call has room for.
fn take(room: &mut usize, buffer: &iovec) -> usize {
    let taken = buffer.iov_len.min(*room);
    *room -= taken;
    taken
}

/// The buffers of a call, none of which has a length below 0 (`__import_iovec`).
///
/// # Safety
/// The program vouches for the array.
unsafe fn array<'a>(buffers: *const iovec, given: size_t) -> Result<&'a [iovec]> {
    let buffers = match given {
        0 => return Ok(&[]),
        BUFFERS_MAX.. if given > BUFFERS_MAX => return Err(Errno::new(libc::EINVAL)),
        _ if buffers.is_null() => return Err(Errno::new(libc::EFAULT)),
        // SAFETY: as above.
        _ => unsafe { core::slice::from_raw_parts(buffers, given) },
    };
    if buffers.iter().any(|buffer| isize::try_from(buffer.iov_len).is_err()) {
        return Err(Errno::new(libc::EINVAL));
    }
    Ok(buffers)
}

/// How many buffers a message has: one that has more than a call takes is too long (`__copy_msghdr`).
pub fn buffers_of(message: &msghdr) -> Result<size_t> {
    let given = message.msg_iovlen as size_t;
    if given > BUFFERS_MAX { Err(Errno::new(libc::EMSGSIZE)) } else { Ok(given) }
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

#[cfg(test)]
mod tests {
    use super::*;

    fn buffers(lengths: &[usize]) -> Vec<iovec> {
        lengths.iter().map(|&iov_len| iovec { iov_base: core::ptr::null_mut(), iov_len }).collect()
    }

    /// The lengths that a call gets of buffers that are so long; their bytes are not touched.
    fn got(lengths: &[usize]) -> (Result<Vec<usize>>, Result<Vec<usize>>) {
        let (buffers, mut to_write, mut to_read) = (buffers(lengths), Vec::new(), Vec::new());
        // SAFETY: the call looks at lengths alone.
        let written = unsafe {
            with_slices(buffers.as_ptr(), buffers.len(), |buffers| {
                to_write = buffers.iter().map(|buffer| buffer.len()).collect();
                Ok(0)
            })
        };
        // SAFETY: as above.
        let read = unsafe {
            with_slices_mut(buffers.as_ptr(), buffers.len(), |buffers| {
                to_read = buffers.iter().map(|buffer| buffer.len()).collect();
                Ok(0)
            })
        };
        (written.map(|_| to_write), read.map(|_| to_read))
    }

    #[test]
    fn a_call_takes_two_gigabytes_at_most_of_all_its_buffers() {
        let expected = vec![1, BYTES_MAX - 1, 0];
        assert_eq!(got(&[1, BYTES_MAX, 3]), (Ok(expected.clone()), Ok(expected)));
        let long = [isize::MAX as usize; BUFFERS_FEW + 1];
        let mut expected = vec![0; long.len()];
        expected[0] = BYTES_MAX;
        assert_eq!(got(&long), (Ok(expected.clone()), Ok(expected)));
    }

    #[test]
    fn a_buffer_with_a_length_below_zero_is_not_valid() {
        let invalid = || Err(Errno::new(libc::EINVAL));
        assert_eq!(got(&[1, usize::MAX]), (invalid(), invalid()));
    }
}
