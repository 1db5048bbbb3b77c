//! What a device knows of the interface of the host that it is on, and who hears when that changes.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

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
        match self.state() {
            Ok(state) => {
                if self.mtu_bytes.swap(state.mtu_bytes, Ordering::Relaxed) != state.mtu_bytes && !self.gone() {
                    self.watchers.tell(DeviceEvent::Mtu);
                }
                if self.up.swap(state.running, Ordering::Relaxed) != state.running && !self.gone() {
                    self.watchers.tell(DeviceEvent::Link(if state.running { Link::Up } else { Link::Down }));
                }
            }
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENODEV | libc::ENXIO)) => {
                if !self.gone.swap(true, Ordering::Relaxed) {
                    self.watchers.tell(DeviceEvent::Gone);
                }
            }
            // Nothing is known then; the next change asks again.
            Err(_) => {}
        }
    }
}
