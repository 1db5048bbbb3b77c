//! `liblull_preload.so`, for unmodified programs. On the kernel plane it gives their epoll contexts and sockets
//! busy-poll parameters when they are made; on the user plane it takes the calls on their sockets to lull's own stack.
//!
//! `lull run` starts a program with this library in `LD_PRELOAD`. The library holds no delivery logic. On the kernel
//! plane the kernel delivers, and this library only sets what the kernel has knobs for, at the moment when the object
//! with the knob is made. The user plane (`lull run --nic`) is announced by `LULL_USER_PLANE` in the environment. There
//! `lull-posix` does the work of a call: a shim here decodes the C arguments, asks it, and sets `errno`.
//!
//! | module | what is in there |
//! | --- | --- |
//! | `taken_over` | how a function is taken over |
//! | `real` | the C library's own functions, looked up once at load |
//! | `data`, `number` | reading and writing; `close`, `dup`, `fcntl`, `ioctl` on lull's numbers; `getifaddrs` |
//! | `new` | calls that give out numbers, where what a number stood for before is forgotten; `close_range` |
//! | `system_call` | `syscall`, for calls by number; there is no io_uring |
//! | `exec` | programs that execute another one; `vfork` |
//! | `stream` | `fdopen`, `dprintf`, `fclose`: what the C library reads and writes by itself becomes the kernel's |
//! | `poll`, `signal` | `poll`, `select`; when handlers of signals run; `raise`, `kill`, `_exit`; `pthread_cancel` |
//! | `answer` | results in the form that C expects |
//! | `epoll` | `epoll_create`, `epoll_create1`: EPIOCSPARAMS; `epoll_ctl`, `epoll_wait` and kin: waits that are polled for |
//! | `socket` | `socket`, `accept`, `accept4`: busy-poll options, if asked for; `listen`: the choice among listeners |
//!
//! The work on the kernel plane is done in `lull-fd`, which needs no preloading to be tested. [`lull_fd::config`] lists
//! what the environment may ask for.
//!
//! # What it promises
//!
//! - A call on a number that is not lull's, which one look at a word tells, goes straight to the C library's function.
//! - A call that is not changed goes straight to the C library's function, and `errno` is what that function left.
//! - If something fails (before Linux 6.9 there is no EPIOCSPARAMS; a budget above 64 takes a right), the program runs
//!   as without the library.
//! - On the kernel plane there is no allocation, no lock and no thread, so that everything is safe in signal handlers
//!   and after `fork`.
//!
//! # What it cannot do
//!
//! - Statically linked programs, Go programs, and programs with file capabilities or set-user-ID do not load it; `lull
//!   attach` sets their parameters from outside. The library cannot be built for a static C library (musl with
//!   `crt-static`).
//! - Descriptors that come in other ways (`io_uring`, `SCM_RIGHTS` of kernel sockets, calls past the C library) are not
//!   seen.
//! - `poll` and `select` busy poll only while the sysctl `net.core.busy_poll` is not 0 (`net_busy_loop_on` in
//!   `do_poll`); a blocking `recv` busy polls with SO_BUSY_POLL alone (`sk_busy_loop`).

mod answer;
mod data;
mod epoll;
mod exec;
mod new;
mod number;
mod poll;
mod real;
mod signal;
mod socket;
mod stream;
mod system_call;
mod taken_over;

use core::ffi::CStr;

use lull_fd::Config;
use lull_fd::config::Wrong;
use lull_fd::linux::{KeptError as Errno, set_error};
use lull_fd::say;

/// The settings that the environment asks for.
static CONFIG: Config = Config::new();

/// Runs when the library is loaded, before the program's `main`.
#[used]
// SAFETY: the section holds pointers to functions of this type; the loader calls each once.
#[unsafe(link_section = ".init_array")]
static AT_LOAD: extern "C" fn() = at_load;

extern "C" fn at_load() {
    let _errno = Errno::keep();
    real::look_up_all();
    say::remember_stderr();
    read_environment();
    lull_posix::start::at_load();
}

/// Runs when the program exits, after the functions that the program itself has registered for its exit.
#[used]
// SAFETY: as above.
#[unsafe(link_section = ".fini_array")]
static AT_EXIT: extern "C" fn() = at_exit;

extern "C" fn at_exit() {
    lull_posix::leave::at_exit();
}

fn read_environment() {
    if variable(c"LULL_QUIET").is_some() {
        say::quiet();
    }
    if let Err(Wrong { name, may_be }) = CONFIG.read(variable) {
        say::once(format_args!(
            "{} is not {may_be}: nothing is set, the program runs as without lull",
            name.to_str().unwrap_or_default()
        ));
    }
}

fn variable(name: &'static CStr) -> Option<&'static [u8]> {
    // SAFETY: the name ends with a zero. While libraries are loaded no other thread changes the environment, and what
    // `getenv` returned is read before this library's initialiser returns.
    unsafe {
        let value = libc::getenv(name.as_ptr());
        (!value.is_null()).then(|| CStr::from_ptr(value).to_bytes())
    }
}
