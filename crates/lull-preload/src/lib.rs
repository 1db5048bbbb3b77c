//! `liblull_preload.so`, for unmodified programs: on the kernel plane it gives their epoll contexts and sockets busy-poll
//! parameters at birth; on the user plane it takes their sockets' calls to lull's own stack.
//!
//! `lull run` starts a program with this library in `LD_PRELOAD`. It holds no delivery logic. On the kernel plane the kernel
//! delivers, and this only sets what the kernel has knobs for, at the moment when the object that has the knob comes into
//! being. On the user plane (`lull run --nic`), which `LULL_USER_PLANE` in the environment says, what is done with a call is
//! `lull-posix`'s: a shim here decodes the C arguments, asks, and sets `errno`.
//!
//! | module | what is in there |
//! | --- | --- |
//! | `taken_over` | how a function is taken over |
//! | `real` | the C library's own functions, looked up once at load |
//! | `data`, `number` | reading and writing; `close`, `dup`, `fcntl`, `ioctl` on numbers that are lull's; `getifaddrs` |
//! | `new` | calls that give out numbers: what they stood for is forgotten; `close_range` |
//! | `system_call` | `syscall` by number; no io_uring |
//! | `exec` | programs that execute another one; `vfork` |
//! | `stream` | `fdopen`, `dprintf`, `fclose`: what the C library does inside itself is the kernel's |
//! | `poll`, `signal` | `poll`, `select`; when handlers of signals run; `raise`; `pthread_cancel` |
//! | `answer` | results in C's way |
//! | `epoll` | `epoll_create`, `epoll_create1`: EPIOCSPARAMS; `epoll_ctl`, `epoll_wait` and kin: waits that are polled for |
//! | `socket` | `socket`, `accept`, `accept4`: SO_BUSY_POLL and its two companions where asked; `listen`: what chooses among listeners |
//!
//! What it does with the calls is in `lull-fd`, which needs no preloading to be tested; what the environment may ask for stands in
//! [`lull_fd::config`].
//!
//! # What it promises
//!
//! - A number that is not lull's (one look at a word says so) goes straight to the C library's function.
//! - A call that is not changed goes straight to the C library's function; `errno` is what that function left.
//! - Whatever fails (before 6.9 there is no EPIOCSPARAMS; no right to a budget above 64) leaves the program as it would have been.
//! - On the kernel plane no allocation, no lock, no thread: what it does is safe in signal handlers and after `fork`.
//!
//! # What it cannot do
//!
//! - Statically linked programs, Go programs and programs with file capabilities or set-user-ID do not load it: `lull attach`
//!   sets their parameters from outside. A library for a static C library (musl with `crt-static`) cannot be built.
//! - Descriptors that come by other ways (`io_uring`, `SCM_RIGHTS` of kernel sockets, calls past the C library) are not seen.
//! - `poll` and `select` busy poll only while the sysctl `net.core.busy_poll` is not 0 (`net_busy_loop_on` in
//!   `do_poll`); a blocking `recv` does so with SO_BUSY_POLL alone (`sk_busy_loop`).

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

/// What the environment asks for.
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

/// Runs when the program exits, after what it has asked for itself to be run then.
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
    // SAFETY: the name ends with a zero. At load no other thread changes the environment, and what `getenv` returned is
    // read before this library's initialiser returns.
    unsafe {
        let value = libc::getenv(name.as_ptr());
        (!value.is_null()).then(|| CStr::from_ptr(value).to_bytes())
    }
}
