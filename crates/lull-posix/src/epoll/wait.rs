//! `epoll_wait`.

use std::cell::RefCell;
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use libc::{c_int, epoll_event};
use lull_net::lull_core::POLLED_AFTER_EVENT_NS;
use lull_net::{Event, Ready};

use super::nested::INSIDE_A_CALL;
use super::{CALL, EpollFile, Mixed};
use crate::engine::{self, Engine};
use crate::files::{self, File};
use crate::{Errno, Result, cancel, kernel, signals};

/// Where events are written to: memory of the program's, of which nothing is read before it was written.
pub type Events<'a> = &'a mut [MaybeUninit<epoll_event>];

thread_local! {
    /// Where lull's events are gathered.
    static BATCHES: RefCell<Vec<Vec<Event>>> = const { RefCell::new(Vec::new()) };
}

/// `epoll_wait` and its kin; a timeout of nothing is for ever. Returns how many events were written.
pub fn epoll_wait(epfd: c_int, events: Events<'_>, timeout: Option<Duration>) -> Result<usize> {
    let Some(file) = files::get(epfd) else { return in_kernel(epfd, events, timeout) };
    let File::Epoll(context) = &*file else { return Err(Errno::new(libc::EINVAL)) };
    if events.is_empty() {
        return Err(Errno::new(libc::EINVAL));
    }
    context.look_inside(INSIDE_A_CALL);
    if let Some(mixed) = context.mixed.get() {
        return mixed.wait(context, events, timeout);
    }
    let until = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
    let left = || until.map(|until| until.saturating_duration_since(Instant::now()));
    let mut waits = timeout;
    loop {
        match context.wait_there(epfd, events, waits)? {
            There::Over(count) => return Ok(count),
            There::CalledOut => {
                let mixed = context.mixed.get().ok_or(Errno::new(libc::EINVAL))?;
                return mixed.wait(context, events, left());
            }
            There::NothingOfTheProgram => waits = left(),
        }
    }
}

/// How a wait in the kernel's context alone has ended.
enum There {
    /// With so many events, or because its time was over.
    Over(usize),
    /// The context has another half now.
    CalledOut,
    /// Something of lull's own was there for a moment (`kernel::is_member`).
    NothingOfTheProgram,
}

fn in_kernel(epfd: c_int, events: Events<'_>, timeout: Option<Duration>) -> Result<usize> {
    // Rounded up, so that no wait becomes none.
    let ms =
        timeout.map_or(-1, |timeout| c_int::try_from(timeout.as_nanos().div_ceil(1_000_000)).unwrap_or(c_int::MAX));
    match kernel::epoll_wait(epfd, events, 0, None) {
        Ok(0) if ms != 0 => signals::wait_in_kernel(|mask| kernel::epoll_wait(epfd, events, ms, Some(mask))),
        now => now,
    }
}

impl EpollFile {
    /// Waits in the kernel's context alone.
    fn wait_there(&self, epfd: c_int, events: Events<'_>, timeout: Option<Duration>) -> Result<There> {
        lull_net::about_to_wait();
        self.waiting_there.fetch_add(1, Ordering::SeqCst);
        std::sync::atomic::fence(Ordering::SeqCst);
        let waited = match self.mixed.get() {
            Some(_) => Ok(0),
            None => cancel::waits_there(epfd, || in_kernel(epfd, events, timeout)),
        };
        self.waiting_there.fetch_sub(1, Ordering::SeqCst);
        let is_mixed = self.mixed.get().is_some();
        if is_mixed {
            self.call_is_over();
        }
        let came = waited?;
        let count = without_call(events, came);
        Ok(match self.each_once(events, count) {
            0 if is_mixed => There::CalledOut,
            0 if came > 0 => There::NothingOfTheProgram,
            count => There::Over(count),
        })
    }
}

/// Takes the call to come out of the kernel's context from among the program's events.
fn without_call(events: Events<'_>, count: usize) -> usize {
    let mut kept = 0;
    for nth in 0..count {
        // The kernel wrote `count` of them.
        if kernel::event_data(&events[nth]) != CALL {
            events.swap(kept, nth);
            kept += 1;
        }
    }
    kept
}

impl Mixed {
    fn wait(&self, context: &EpollFile, events: Events<'_>, timeout: Option<Duration>) -> Result<usize> {
        let engine = engine::engine()?;
        let kept = BATCHES.try_with(|batches| batches.try_borrow_mut().ok()?.pop()).ok().flatten();
        let mut batch = kept.unwrap_or_default();
        let waited = self.wait_with(engine, context, &mut batch, events, timeout);
        batch.clear();
        let _ = BATCHES.try_with(|batches| batches.try_borrow_mut().map(|mut batches| batches.push(batch)));
        waited
    }

    fn wait_with(
        &self,
        engine: &Engine,
        context: &EpollFile,
        batch: &mut Vec<Event>,
        events: Events<'_>,
        timeout: Option<Duration>,
    ) -> Result<usize> {
        let cpu = engine.cpu_of(self.epoll.napi_id());
        // Calls for ever, and those that do not wait, read no clock.
        let until =
            timeout.filter(|timeout| !timeout.is_zero()).and_then(|timeout| Instant::now().checked_add(timeout));
        let mut left = timeout;
        loop {
            let slice = match (left, self.longest(engine)) {
                (Some(left), Some(longest)) => Some(left.min(longest)),
                (left, longest) => left.or(longest),
            };
            engine.with_worker(cpu, |worker| {
                self.epoll.wait_unless(worker, batch, events.len(), slice, &signals::is_interrupted)
            })??;
            let count = self.hand_out(context, batch, events)?;
            self.set_bell();
            if count != 0 {
                if engine.mode.app.timeout().is_some() {
                    self.event_ns.store(engine.host.now_ns(), Ordering::Relaxed);
                }
                return Ok(count);
            }
            // Something of the kernel's that another thread took, lull's own bell, or a slice of a longer wait.
            left = until.map(|until| until.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) || timeout == Some(Duration::ZERO) {
                return Ok(0);
            }
        }
    }

    /// How long a context may be left at a time, in a mode that keeps polling (fullbusy): as on the kernel plane, until it has
    /// had no event for a while. A thread that waits beside the busy ones, as memcached's for new connections, would
    /// otherwise take its share of their core for ever.
    fn longest(&self, engine: &Engine) -> Option<Duration> {
        let since_event_ns = || engine.host.now_ns().saturating_sub(self.event_ns.load(Ordering::Relaxed));
        engine.mode.app.timeout().filter(|_| since_event_ns() < POLLED_AFTER_EVENT_NS)
    }

    /// Writes lull's events, and then of the kernel's as many as there is room for.
    fn hand_out(&self, context: &EpollFile, batch: &mut Vec<Event>, events: Events<'_>) -> Result<usize> {
        let kernel_key = self.kernel_key.load(Ordering::Acquire);
        let (mut count, mut kernels) = (0, false);
        for event in batch.drain(..) {
            if event.key == kernel_key {
                kernels = true;
            } else {
                events[count].write(epoll_event { events: bits(event.ready), u64: event.key });
                count += 1;
            }
        }
        if kernels {
            let room = &mut events[count..];
            // A signal that comes just now ends the next wait.
            let got = kernel::epoll_wait(self.kernel.as_raw_fd(), room, 0, None).unwrap_or(0);
            count += without_call(room, got);
        }
        Ok(context.each_once(events, count))
    }
}

/// What is ready, in the bits of epoll and of poll.
pub(crate) fn bits(ready: Ready) -> u32 {
    const MAP: [(Ready, c_int); 6] = [
        (Ready::READABLE, libc::EPOLLIN),
        (Ready::WRITABLE, libc::EPOLLOUT),
        (Ready::PRI, libc::EPOLLPRI),
        (Ready::RDHUP, libc::EPOLLRDHUP),
        (Ready::HUP, libc::EPOLLHUP),
        (Ready::ERR, libc::EPOLLERR),
    ];
    MAP.iter().filter(|(ours, _)| ready.contains(*ours)).fold(0, |all, (_, bit)| all | *bit as u32)
}
