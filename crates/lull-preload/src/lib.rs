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
//! | `engage` | whether this process is on the user plane |
//! | `data`, `number` | reading and writing; `close`, `dup`, `fcntl`, `ioctl` on numbers that are lull's |
//! | `new` | calls that give out numbers: what they stood for is forgotten; `close_range` |
//! | `system_call` | `syscall` by number; no io_uring |
//! | `poll`, `signal` | `poll`, `select`; when handlers of signals run |
//! | `answer` | results in C's way |
//! | `epoll` | `epoll_create`, `epoll_create1`: EPIOCSPARAMS; `epoll_ctl`, `epoll_wait` and kin: waits that are polled for |
//! | `socket` | `socket`, `accept`, `accept4`: SO_BUSY_POLL and its two companions where asked |
//!
//! What it does with the calls is in `lull-fd`, which needs no preloading to be tested.
//!
//! # Environment
//!
//! | variable | meaning |
//! | --- | --- |
//! | `LULL_EPOLL_USECS` | `busy_poll_usecs` of every epoll context, microseconds, 0 to 2^31-1 |
//! | `LULL_EPOLL_BUDGET` | `busy_poll_budget`, packets, 0 to 65535; above 64 takes CAP_NET_ADMIN |
//! | `LULL_EPOLL_PREFER` | `prefer_busy_poll`, 0 or 1 |
//! | `LULL_EPOLL_TIMEOUT_MS` | the mode keeps polling: the kernel polls this long at a time, milliseconds, 1 to 1000 |
//! | `LULL_NO_LIFT` | 1: calls with timeout 0 are left alone |
//! | `LULL_EVENTS_MAX` | the most events that a call of `epoll_wait` returns, 1 to 2^20 |
//! | `LULL_SOCKET_BUSY_POLL` | SO_BUSY_POLL of every IPv4 and IPv6 socket, microseconds, 1 to 2^31-1 |
//! | `LULL_SOCKET_BUDGET` | SO_BUSY_POLL_BUDGET, packets, 1 to 65535; takes CAP_NET_ADMIN |
//! | `LULL_SOCKET_PREFER` | SO_PREFER_BUSY_POLL, 0 or 1; 1 takes CAP_NET_ADMIN |
//! | `LULL_QUIET` | set: nothing is said on stderr |
//!
//! With `LULL_EPOLL_TIMEOUT_MS` a context whose sockets have NAPI ids is polled for where the kernel does not do it: a
//! longer wait until 100 ms have passed without an event, then it sleeps; calls with timeout 0 that find nothing again
//! and again for at most a sixteenth of the time. No call takes longer than the program asks for. Without NAPI ids
//! (loopback, a veth whose peer has TSO on) there is nothing to poll, and every call is the C library's.
//! Epoll contexts are left alone unless one of the first three is set (the others are then 0), sockets unless
//! `LULL_SOCKET_BUSY_POLL` is. Children inherit the environment and with it the library. A value outside its limits
//! turns the whole library into a pass-through, and that is said once.
//!
//! # What it promises
//!
//! - A number that is not lull's (one look at a word says so) goes straight to the C library's function.
//! - A call that is not changed goes straight to the C library's function; `errno` is what that function left.
//! - Whatever fails (a kernel before 6.9 has no EPIOCSPARAMS; no right to a budget above 64) leaves the program as it
//!   would have been, and is said once.
//! - On the kernel plane no allocation, no lock, no thread: what it does is safe in signal handlers and after `fork`.
//!
//! # What it cannot do
//!
//! - Statically linked programs, Go programs and programs with file capabilities or set-user-ID do not load it: `lull
//!   attach` sets their parameters from outside. A library for a static C library (musl with `crt-static`) cannot be
//!   built.
//! - Descriptors that come by other ways (`io_uring`, `SCM_RIGHTS`, system calls past the C library) are not seen.
//! - `poll` and `select` busy poll only while the sysctl `net.core.busy_poll` is not 0 (`net_busy_loop_on` in
//!   `do_poll`); a blocking `recv` does so with SO_BUSY_POLL alone (`sk_busy_loop`).

mod answer;
mod data;
mod engage;
mod epoll;
mod netlink;
mod new;
mod number;
mod poll;
mod real;
mod signal;
mod socket;
mod system_call;
mod taken_over;

use core::ffi::CStr;

use lull_fd::Config;
use lull_fd::config::Wrong;
use lull_fd::linux::KeptError as Errno;
use lull_fd::linux::{last_error, set_error};
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
    engage::at_load();
}

fn read_environment() {
    if variable(c"LULL_QUIET").is_some() {
        say::quiet();
    }
    if let Err(Wrong { name, min, max }) = CONFIG.read(variable) {
        say::once(format_args!(
            "{} is not a number from {min} to {max}: nothing is set, the program runs as without lull",
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
