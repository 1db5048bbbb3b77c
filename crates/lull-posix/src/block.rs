//! How a thread waits in a call that is not `epoll_wait`.

use std::cell::RefCell;
use std::time::Duration;

use libc::c_int;
use lull_net::{Epoll, Event, Interest, Source};

use crate::{Errno, Result, engine};

thread_local! {
    /// Contexts of the thread's own, to wait in. One is enough unless a signal handler waits as well.
    static CONTEXTS: RefCell<Vec<Epoll>> = const { RefCell::new(Vec::new()) };
}

const SOURCE: u64 = 0;
const KERNELS: u64 = 1;

/// Waits until a socket is ready, or a descriptor of the kernel's is readable, or `timeout` is over; false if that came
/// first. While it waits, the thread delivers.
pub(crate) fn until_ready(
    source: &impl Source,
    interest: Interest,
    kernels: Option<c_int>,
    timeout: Option<Duration>,
) -> Result<bool> {
    let engine = engine::engine()?;
    let kept = CONTEXTS.try_with(|contexts| contexts.try_borrow_mut().ok()?.pop()).ok().flatten();
    let context = kept.unwrap_or_else(|| Epoll::new(&engine.host));
    context.add(source, SOURCE, interest)?;
    if let Some(fd) = kernels {
        context.add_fd(crate::kernel::borrow(fd), KERNELS, Interest::READABLE)?;
    }
    let mut events = Vec::<Event>::with_capacity(1);
    let cpu = engine.cpu_of(context.napi_id());
    let waited = engine.with_worker(cpu, |worker| context.wait(worker, &mut events, 1, timeout));
    // Closed meanwhile by another thread, it has left the context.
    let _ = context.delete(source);
    if let Some(fd) = kernels {
        let _ = context.delete_fd(crate::kernel::borrow(fd));
    }
    let _ = CONTEXTS.try_with(|contexts| contexts.try_borrow_mut().map(|mut contexts| contexts.push(context)));
    Ok(waited?.map_err(Errno::from)? > 0)
}
