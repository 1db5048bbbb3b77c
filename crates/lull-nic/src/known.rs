//! What a device knows of the interface of the host that it is on, and who hears when that changes.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::device::{DeviceEvent, Link};
use crate::interface::{self, State};
use crate::watchers::Watchers;

/// An interface as it was when it was last looked at.
pub(crate) struct Known {
    control: OwnedFd,
    ifindex: u32,
    mtu_bytes: AtomicUsize,
    /// It is up, with a carrier.
    up: AtomicBool,
    gone: AtomicBool,
    /// Held while the kernel is asked and until its answer is known: an older answer replaces no newer one.
    asking: Mutex<()>,
    pub(crate) watchers: Watchers,
}

impl Known {
    pub(crate) fn new(control: OwnedFd, ifindex: u32, state: &State) -> Known {
        Known {
            control,
            ifindex,
            mtu_bytes: AtomicUsize::new(state.mtu_bytes),
            up: AtomicBool::new(state.running),
            gone: AtomicBool::new(false),
            asking: Mutex::new(()),
            watchers: Watchers::default(),
        }
    }

    pub(crate) fn mtu_bytes(&self) -> usize {
        self.mtu_bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn gone(&self) -> bool {
        self.gone.load(Ordering::Relaxed)
    }

    /// Whether frames cannot be sent at all.
    pub(crate) fn is_dead(&self) -> bool {
        self.gone() || !self.up.load(Ordering::Relaxed)
    }

    /// The interface as it is now.
    pub(crate) fn state(&self) -> io::Result<State> {
        interface::state(&self.control, self.ifindex)
    }

    /// Asks the kernel how the interface is, and tells the watchers what is new.
    pub(crate) fn look_again(&self) {
        self.look(|| self.state());
    }

    /// As [`Known::look_again`], with `read` in place of the kernel. Several threads may look at once, and the last to
    /// ask has the last word. Whoever found something new tells it, with no lock held, so that a watcher holds up
    /// nobody else and may look again.
    fn look(&self, read: impl FnOnce() -> io::Result<State>) {
        let news = {
            let _alone = self.asking.lock().unwrap_or_else(PoisonError::into_inner);
            self.take_in(read())
        };
        news.into_iter().flatten().for_each(|event| self.watchers.tell(event));
    }

    /// Notes the answer, and returns what is new in it.
    fn take_in(&self, read: io::Result<State>) -> [Option<DeviceEvent>; 2] {
        match read {
            Ok(state) => {
                let link = if state.running { Link::Up } else { Link::Down };
                let is_new = [
                    self.mtu_bytes.swap(state.mtu_bytes, Ordering::Relaxed) != state.mtu_bytes,
                    self.up.swap(state.running, Ordering::Relaxed) != state.running,
                ];
                let [mtu, up] = is_new.map(|is_new| is_new && !self.gone());
                [mtu.then_some(DeviceEvent::Mtu), up.then_some(DeviceEvent::Link(link))]
            }
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENODEV | libc::ENXIO)) => {
                [(!self.gone.swap(true, Ordering::Relaxed)).then_some(DeviceEvent::Gone), None]
            }
            // Nothing is known then; the next change asks again.
            Err(_) => [None, None],
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::fs::File;
    use std::sync::Arc;

    use super::*;

    fn state(mtu_bytes: usize, running: bool) -> State {
        State { name: "x0".to_owned(), mtu_bytes, mac: [0; 6], running }
    }

    fn known() -> (Known, Arc<Mutex<Vec<DeviceEvent>>>) {
        let known = Known::new(File::open("/dev/null").unwrap().into(), 1, &state(1500, true));
        let told = Arc::new(Mutex::new(Vec::new()));
        let tells = told.clone();
        known.watchers.add(Box::new(move |event| tells.lock().unwrap().push(event)));
        (known, told)
    }

    /// The turn of other threads, of whom nobody can say whether they wait for what this one has.
    fn others_turn(is_over: impl Fn() -> bool) {
        (0..10_000).take_while(|_| !is_over()).for_each(|_| std::thread::yield_now());
    }

    #[test]
    fn who_reads_an_interface_later_has_the_last_word_also_where_who_read_before_is_slow() {
        let (known, told) = known();
        let (reads, done) = (AtomicBool::new(false), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                known.look(|| {
                    let before = state(1500, true);
                    reads.store(true, Ordering::Release);
                    others_turn(|| done.load(Ordering::Acquire));
                    Ok(before)
                });
            });
            while !reads.load(Ordering::Acquire) {
                std::thread::yield_now();
            }
            known.look(|| Ok(state(1400, false)));
            done.store(true, Ordering::Release);
        });
        assert_eq!((known.mtu_bytes(), known.is_dead()), (1400, true));
        assert_eq!(*told.lock().unwrap(), [DeviceEvent::Mtu, DeviceEvent::Link(Link::Down)]);
    }

    #[test]
    fn a_watcher_may_look_again() {
        let (known, told) = known();
        let (known, looks) = (Arc::new(known), AtomicBool::new(false));
        let again = Arc::downgrade(&known);
        known.watchers.add(Box::new(move |_| {
            if !looks.swap(true, Ordering::Relaxed) {
                again.upgrade().unwrap().look(|| Ok(state(1300, true)));
            }
        }));
        known.look(|| Ok(state(1400, true)));
        assert_eq!((known.mtu_bytes(), told.lock().unwrap().len()), (1300, 2));
    }
}
