//! The device's thread: it sleeps until the interface changes, or somebody waits for room in a transmit ring.

use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use super::shared::Shared;
use crate::eventfd::writable;
use crate::interface::drain;

/// How long the first look for room waits, and the longest that a later one does. Each waits twice as long as the one
/// before: a device that stays full costs a thousand looks a second at most.
const FIRST_LOOK: Duration = Duration::from_micros(20);
const LAST_LOOK: Duration = Duration::from_millis(1);

/// The thread, which ends when this is dropped.
pub(super) struct Watch {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    pub(super) fn start(shared: &Arc<Shared>) -> std::io::Result<Watch> {
        let watching = shared.clone();
        let thread = std::thread::Builder::new().name("lull-nic-xdp".to_owned()).spawn(move || run(&watching))?;
        Ok(Watch { shared: shared.clone(), thread: Some(thread) })
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.shared.stop_watch();
        // A watcher called from the thread may drop the device; the thread then ends by itself.
        if let Some(thread) = self.thread.take()
            && thread.thread().id() != std::thread::current().id()
        {
            // Err: a watcher panicked, and the panic hook has reported it.
            let _ = thread.join();
        }
    }
}

fn run(shared: &Shared) {
    let mut look = FIRST_LOOK;
    while !shared.is_watch_stopped() {
        let waited_for = shared.sockets.iter().any(|socket| socket.room.vector.is_armed());
        wait(shared, waited_for.then_some(look));
        if shared.wake.clear() {
            look = FIRST_LOOK;
        }
        if drain(&shared.events) {
            shared.look_again();
        }
        for socket in shared.sockets.iter().filter(|socket| socket.room.vector.is_armed()) {
            if socket.is_stuck() && !shared.is_dead() {
                // In copy mode asking whether there is room makes the kernel go on sending (`xsk_poll`).
                writable(socket.fd.as_fd());
            }
            if shared.has_room(socket) && socket.room.vector.take() {
                socket.room.fire();
            }
        }
        look = (look * 2).min(LAST_LOOK);
    }
}

/// Waits until the interface changes, the thread is woken, or `timeout` has passed.
fn wait(shared: &Shared, timeout: Option<Duration>) {
    let entry = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    let mut entries = [entry(shared.events.as_raw_fd()), entry(shared.wake.as_fd().as_raw_fd())];
    let spec = timeout.map(|timeout| libc::timespec { tv_sec: 0, tv_nsec: timeout.subsec_nanos().into() });
    let spec = spec.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: both entries and `spec` outlive the call. A call that a signal ends is a look too many.
    unsafe { libc::ppoll(entries.as_mut_ptr(), entries.len() as libc::nfds_t, spec, std::ptr::null()) };
}
