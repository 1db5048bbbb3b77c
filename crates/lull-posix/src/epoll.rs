//! Epoll over both worlds.
//!
//! The context that the program asked for is the kernel's, under the program's number, and holds the kernel's members.
//! With its first member of lull's it gets a context of lull's beside it, which has the kernel's as one more source. A
//! thread that waits then waits in lull's, and is told of both.

mod ctl;
mod move_in;
mod nested;
mod params;
mod parts;
mod wait;

use std::collections::{HashMap, HashSet};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use libc::{c_int, epoll_event};
use lull_net::lull_core::EpollParams;
use lull_net::lull_nic::Afresh;
use lull_net::{Epoll, Interest};

use crate::files::{self, File};
use crate::{Errno, Result, engine, kernel};

pub use ctl::epoll_ctl;
pub(crate) use move_in::{becomes_kernels, becomes_lulls, has_a_pool, is_the_kernels};
pub(crate) use wait::bits;
pub use wait::epoll_wait;

/// What a member was added with.
#[derive(Clone, Copy)]
struct Added {
    events: u32,
    data: u64,
    /// A one-shot in parts that was reported, and was not changed since.
    disarmed: bool,
}

impl From<epoll_event> for Added {
    fn from(event: epoll_event) -> Added {
        Added { events: event.events, data: event.u64, disarmed: false }
    }
}

/// A listener that was added.
struct Listening {
    /// [`Listener::open`](crate::socket::Listener).
    open: Weak<()>,
    added: Added,
}

/// A listener by [`Listener::id`](crate::socket::Listener), and the number that it was added by.
type AddedBy = (u64, c_int);

/// An epoll context of the program's.
pub(crate) struct EpollFile {
    mixed: OnceLock<Mixed>,
    /// The kernel's members, as the program added them: one that becomes lull's later has to move.
    kernels: Mutex<HashMap<c_int, Added>>,
    /// Held by a thread that moves one of them to lull's half.
    moving: Mutex<()>,
    /// The listeners: other processes may begin to ask for their connections later.
    listeners: Mutex<HashMap<AddedBy, Listening>>,
    /// Those of them that were added while another process had the NIC.
    idle: Mutex<HashSet<AddedBy>>,
    /// Whether a member in parts was ever added, and whether one that is told of once only ([`parts`]).
    has_parts: AtomicBool,
    has_one_shot_parts: AtomicBool,
    /// What the program has set by EPIOCSPARAMS; otherwise lull's half has the mode's.
    params: Mutex<Option<EpollParams>>,
    /// The numbers of contexts that were added to this one, and whether there are any.
    inside: Mutex<Vec<c_int>>,
    has_inside: AtomicBool,
    /// It is inside another context, or was polled.
    watched: AtomicBool,
    /// Threads that wait in the kernel's context alone.
    waiting_there: AtomicUsize,
    /// What calls them out of there: a descriptor that is always readable, a member while it is needed.
    call: Mutex<Option<OwnedFd>>,
}

/// The half of a context that it has once there is a member of lull's.
struct Mixed {
    epoll: Epoll,
    /// A duplicate of the program's number, which may be closed while a thread waits.
    kernel: OwnedFd,
    /// What the kernel's context is called in lull's; no member's data has this value.
    kernel_key: AtomicU64,
    /// Tells those who watch the kernel's context of lull's members.
    bell: OnceLock<nested::Bell>,
    /// When it last had an event, by the engine's clock, in a mode that keeps polling.
    event_ns: AtomicU64,
}

/// The data of [`EpollFile::call`] in the kernel's context.
const CALL: u64 = kernel::IGNORED_DATA;
/// The first [`Mixed::kernel_key`].
const KERNEL_KEY: u64 = 0xa96c_756c_6c00_0002;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What is inside is changed by whole operations.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The numbers of the contexts that were made, for a socket that has to move. Some are closed by now.
static CONTEXTS: Afresh<Mutex<Vec<c_int>>> = Afresh::new();

fn contexts() -> MutexGuard<'static, Vec<c_int>> {
    lock(CONTEXTS.get_or_init(|| Mutex::new(files::contexts())))
}

/// In any child of `fork`, where they are looked for anew.
pub(crate) fn forget_contexts() {
    CONTEXTS.forget();
}

/// `epoll_create1`.
pub fn epoll_create(flags: c_int) -> Result<c_int> {
    let fd = kernel::epoll_create(flags)?;
    if !engine::is_engaged() {
        return Ok(fd);
    }
    enter(fd, HashMap::new()).inspect_err(|_| kernel::discard(fd))?;
    Ok(fd)
}

/// A member of a context that came about without lull's knowledge.
pub(crate) struct Adopted {
    pub(crate) number: c_int,
    events: u32,
    data: u64,
}

impl Adopted {
    /// The members of a context, as far as the kernel tells (`/proc/self/fdinfo`).
    pub(crate) fn members(epfd: c_int) -> Vec<Adopted> {
        let told = std::fs::read_to_string(format!("/proc/self/fdinfo/{epfd}")).unwrap_or_default();
        told.lines().filter_map(Adopted::of_fdinfo).collect()
    }

    /// A line of it (`ep_show_fdinfo`), if it names a member.
    fn of_fdinfo(line: &str) -> Option<Adopted> {
        let mut words = line.strip_prefix("tfd:")?.split_whitespace();
        let number = words.next()?.parse().ok()?;
        let mut named = |name| words.next().filter(|word| *word == name).and_then(|_| words.next());
        let events = u32::from_str_radix(named("events:")?, 16).ok()?;
        Some(Adopted { number, events, data: u64::from_str_radix(named("data:")?, 16).ok()? })
    }

    pub(crate) fn event(&self) -> epoll_event {
        epoll_event { events: self.events, u64: self.data }
    }
}

/// A context of the kernel's is one of the program's for both worlds from here on, with what is on it.
pub(crate) fn adopt(fd: c_int, members: &[Adopted]) -> Result<()> {
    enter(fd, members.iter().map(|member| (member.number, member.event().into())).collect())
}

fn enter(fd: c_int, kernels: HashMap<c_int, Added>) -> Result<()> {
    let file = EpollFile {
        mixed: OnceLock::new(),
        kernels: Mutex::new(kernels),
        moving: Mutex::new(()),
        listeners: Mutex::default(),
        idle: Mutex::default(),
        has_parts: AtomicBool::new(false),
        has_one_shot_parts: AtomicBool::new(false),
        params: Mutex::new(None),
        inside: Mutex::default(),
        has_inside: AtomicBool::new(false),
        watched: AtomicBool::new(false),
        waiting_there: AtomicUsize::new(0),
        call: Mutex::new(None),
    };
    files::put(fd, File::Epoll(file))?;
    is_called(fd);
    Ok(())
}

/// A context is known by this number, too.
pub(crate) fn is_called(fd: c_int) {
    let mut contexts = contexts();
    contexts.retain(|&other| other != fd && files::is_lull(other));
    contexts.push(fd);
}

impl EpollFile {
    /// Returns lull's half, and makes it now if there was none. `epfd` is the program's number.
    fn mixed(&self, epfd: c_int) -> Result<&Mixed> {
        if let Some(mixed) = self.mixed.get() {
            return Ok(mixed);
        }
        let engine = engine::engine()?;
        let epoll = Epoll::new(&engine.host);
        // A mode's parameters are within the limits.
        let _ = epoll.set_mode(&engine.mode).map_err(|_| Errno::new(libc::EINVAL))?;
        let kernel = kernel::kept_duplicate(epfd)?;
        epoll.add_fd(kernel.as_fd(), KERNEL_KEY, Interest::READABLE)?;
        let made = Mixed {
            epoll,
            kernel,
            kernel_key: AtomicU64::new(KERNEL_KEY),
            bell: OnceLock::new(),
            event_ns: AtomicU64::new(0),
        };
        let mixed = self.mixed.get_or_init(|| made);
        self.take_params_over(mixed)?;
        self.becomes_mixed(mixed)?;
        self.call_out(mixed)?;
        Ok(mixed)
    }

    /// Calls those out who wait in the kernel's context alone. Whoever begins to wait there after this sees the other half.
    fn call_out(&self, mixed: &Mixed) -> Result<()> {
        let mut call = lock(&self.call);
        // A waiter counts itself and then looks for the other half; this looks at the count after making it.
        std::sync::atomic::fence(Ordering::SeqCst);
        if call.is_some() || self.waiting_there.load(Ordering::SeqCst) == 0 {
            return Ok(());
        }
        *call = Some(kernel::call_out_of(mixed.kernel.as_fd())?);
        Ok(())
    }

    /// The last of those who were called out has come.
    fn call_is_over(&self) {
        let mut call = lock(&self.call);
        if self.waiting_there.load(Ordering::SeqCst) == 0 {
            // Closed, it leaves the context.
            drop(call.take());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicI32;

    use super::*;
    use crate::files::tests::{says_its_number, until_it_waits};
    use crate::fork::tests::in_a_child;

    #[test]
    fn a_child_has_the_contexts_of_before_and_waits_for_no_thread_of_its_parents() {
        // No call of this process's is about that number.
        const NUMBER: c_int = 1 << 19;
        enter(NUMBER, HashMap::new()).unwrap();
        let _held = contexts();
        assert!(in_a_child(|| contexts().contains(&NUMBER)));
        drop(files::end(NUMBER));
    }

    /// Another thread looks for what is to move when this one has asked whose it is, and before it is noted.
    #[test]
    fn what_is_added_while_it_becomes_lulls_is_added_as_that() {
        let [outer, inner] = [(); 2].map(|()| kernel::epoll_create(libc::EPOLL_CLOEXEC).unwrap());
        adopt(outer, &[]).unwrap();
        let file = files::get(outer).unwrap();
        let File::Epoll(context) = &*file else { unreachable!() };
        let thread = AtomicI32::new(0);
        std::thread::scope(|scope| {
            let kernels = lock(&context.kernels);
            let event = epoll_event { events: libc::EPOLLIN as u32, u64: 0 };
            let thread = &thread;
            let adds = scope.spawn(move || {
                says_its_number(thread);
                epoll_ctl(outer, libc::EPOLL_CTL_ADD, inner, Some(event))
            });
            until_it_waits(thread, || adds.is_finished());
            adopt(inner, &[]).unwrap();
            drop(kernels);
            adds.join().unwrap().unwrap();
        });
        assert!(lock(&context.inside).contains(&inner) && !lock(&context.kernels).contains_key(&inner));
        drop(file);
        [outer, inner].into_iter().for_each(|number| files::close(number).unwrap());
    }
}
