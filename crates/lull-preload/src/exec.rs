//! `execve` and its kin, `vfork` and `_Fork`. lull prepares its state before another program replaces this one.
//! `posix_spawn`, `system` and `popen` execute programs in a child inside the C library, which touches nothing of
//! lull's.

use core::ffi::{CStr, c_char, c_void};

use libc::{c_int, pid_t};
use lull_posix::exec::{self, Executing};
use lull_posix::signals::section;
use lull_posix::{files, fork, is_involved};

use crate::taken_over::taken_over;
use crate::{Errno, real};

type Strings = *const *const c_char;

unsafe extern "C" {
    static environ: Strings;
}

/// Makes the call, after lull has prepared its state for it.
///
/// # Safety
/// The program vouches for its path.
unsafe fn executed(
    path: *const c_char,
    environment: Strings,
    begins: impl FnOnce(&CStr) -> Option<Executing>,
    call: impl FnOnce(Strings) -> c_int,
) -> c_int {
    // SAFETY: as above.
    let path = (is_involved() && !path.is_null()).then(|| unsafe { CStr::from_ptr(path) });
    let mut executing = path.and_then(|path| section(|| begins(path)));
    let given = executing.as_mut().map_or(environment, |executing| section(|| executing.environment(environment)));
    let failed = call(given);
    if let Some(executing) = executing {
        let _errno = Errno::keep();
        section(|| executing.failed());
    }
    failed
}

taken_over! {
    fn execve(path: *const c_char, arguments: Strings, environment: Strings) -> c_int {
        let call = |environment: Strings| real::execve(path, arguments, environment);
        executed(path, environment, |path| exec::begins(libc::AT_FDCWD, path), call)
    }

    fn execv(path: *const c_char, arguments: Strings) -> c_int { execve(path, arguments, environ) }

    fn execvp(name: *const c_char, arguments: Strings) -> c_int { execvpe(name, arguments, environ) }

    fn execvpe(name: *const c_char, arguments: Strings, environment: Strings) -> c_int {
        let call = |environment: Strings| real::execvpe(name, arguments, environment);
        executed(name, environment, exec::begins_along_path, call)
    }

    fn fexecve(fd: c_int, arguments: Strings, environment: Strings) -> c_int {
        let call = |environment: Strings| real::fexecve(fd, arguments, environment);
        executed(c"".as_ptr(), environment, |path| exec::begins(fd, path), call)
    }

    fn execveat(at: c_int, path: *const c_char, arguments: Strings, environment: Strings, flags: c_int) -> c_int {
        let call = |environment: Strings| real::execveat(at, path, arguments, environment, flags);
        executed(path, environment, |path| exec::begins(at, path), call)
    }

    /// It calls no handlers of `pthread_atfork`.
    fn _Fork() -> pid_t {
        let child = real::_Fork();
        if child == 0 && is_involved() {
            fork::without_the_c_library();
        }
        child
    }
}

/// The body of a variadic function, whose arguments stand one behind the other, as an array.
type Body = unsafe extern "C-unwind" fn(*const c_char, Strings) -> c_int;

unsafe extern "C-unwind" fn execl_with(path: *const c_char, arguments: Strings) -> c_int {
    // SAFETY: the program vouches for its arguments.
    unsafe { execv(path, arguments) }
}

unsafe extern "C-unwind" fn execlp_with(name: *const c_char, arguments: Strings) -> c_int {
    // SAFETY: as above.
    unsafe { execvp(name, arguments) }
}

unsafe extern "C-unwind" fn execle_with(path: *const c_char, arguments: Strings) -> c_int {
    // SAFETY: as above. The environment stands behind the null pointer that ends the arguments.
    unsafe {
        let end = (0..).find(|&nth| (*arguments.add(nth)).is_null()).unwrap_or(0);
        execve(path, arguments, (*arguments.add(end + 1)).cast())
    }
}

const _: [Body; 3] = [execl_with, execlp_with, execle_with];

lull_fd::variadic! {
    execl => execl_with;
    execlp => execlp_with;
    execle => execle_with;
}

lull_fd::goes_on! {
    /// In the child of a real `vfork`, every call would change what its parent has. So if the parent has anything of
    /// lull's, this is a `fork` in which the parent waits until the child has executed a program or ended. No function
    /// of Rust may call the real `vfork`, since it returns twice through its caller's frame; it is jumped to.
    fn vfork, where which_vfork;
}

extern "C" fn which_vfork() -> *const c_void {
    let _errno = Errno::keep();
    match lull_posix::engine::running().is_some() || files::are_any() {
        true => forked as extern "C-unwind" fn() -> pid_t as *const c_void,
        false => real::vfork_address(),
    }
}

extern "C-unwind" fn forked() -> pid_t {
    fork::that_waits()
}
