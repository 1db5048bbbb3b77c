//! Who wants to hear of a device's events.

use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

use crate::device::DeviceEvent;

type Watcher = Arc<dyn Fn(DeviceEvent) + Send + Sync>;

/// The watchers of one device.
#[derive(Default)]
pub(crate) struct Watchers(RwLock<Vec<Watcher>>);

impl fmt::Debug for Watchers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Watchers")
    }
}

impl Watchers {
    pub(crate) fn add(&self, watcher: Box<dyn Fn(DeviceEvent) + Send + Sync>) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).push(Arc::from(watcher));
    }

    /// Tells them all, with no lock held, so that a watcher may use the device.
    pub(crate) fn tell(&self, event: DeviceEvent) {
        let watchers = self.0.read().unwrap_or_else(PoisonError::into_inner).clone();
        for watcher in watchers {
            watcher(event);
        }
    }
}
