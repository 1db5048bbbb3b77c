//! Work on one named device: the device, where its state is kept, and the lock.

use std::path::PathBuf;

use crate::device::{Device, Snapshot};
use crate::error::{Error, Result};
use crate::identity::Node;
use crate::netdev::{Netdev, Policy};
use crate::options::Options;
use crate::roots::Roots;
use crate::state::{Lock, Patience, State, Store, Term};

/// Work on one device.
pub struct Session {
    pub(crate) netdev: Netdev,
    pub(crate) device: Device,
    pub(crate) roots: Roots,
    pub(crate) store: Store,
    lock: Option<Lock>,
}

impl Session {
    /// Looks the device up in the network namespace of this thread.
    ///
    /// # Errors
    /// [`Error::UnknownDevice`].
    pub fn open(device: &str, options: &Options) -> Result<Session> {
        let mut netdev = Netdev::new();
        let roots = options.roots.clone();
        let device = Device::open(device, &mut netdev, &roots)?;
        let store = Store::new(&options.state_dir, &device, &roots)?;
        Ok(Session { netdev, device, roots, store, lock: None })
    }

    /// The device that the session works on.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The roots of `/sys` and `/proc`.
    pub fn roots(&self) -> &Roots {
        &self.roots
    }

    /// The netlink socket that the session works with.
    pub fn netdev(&mut self) -> &mut Netdev {
        &mut self.netdev
    }

    /// What is in force on the device now.
    ///
    /// # Errors
    /// Those of netlink, or [`Error::UnknownDevice`] if the device has vanished.
    pub fn snapshot(&mut self) -> Result<Snapshot> {
        let snapshot = self.device.snapshot(&mut self.netdev, &self.roots)?;
        self.is_named(&snapshot.device);
        Ok(snapshot)
    }

    /// The name that the device has now, for what goes by names. The session uses it from then on.
    ///
    /// # Errors
    /// Those of netlink, or [`Error::UnknownDevice`] if the device has vanished.
    pub(crate) fn name_now(&mut self) -> Result<String> {
        let links = self.netdev.links()?;
        let Some(link) = links.iter().find(|link| link.ifindex == self.device.ifindex) else {
            let there_are = links.into_iter().map(|link| link.name).collect();
            return Err(Error::UnknownDevice { device: self.device.name.clone(), there_are });
        };
        self.is_named(&link.name);
        Ok(link.name.clone())
    }

    fn is_named(&mut self, name: &str) {
        if self.device.name != name {
            name.clone_into(&mut self.device.name);
            self.store = self.store.of(self.device.clone());
        }
    }

    /// The attributes that the kernel's `napi-set` takes.
    ///
    /// # Errors
    /// Those of netlink.
    pub fn policy(&mut self) -> Result<Policy> {
        self.netdev.policy()
    }

    /// What was in force before, if anything was applied.
    ///
    /// # Errors
    /// [`Error::StaleState`].
    pub fn state(&self) -> Result<Option<State>> {
        self.store.load()
    }

    /// The state file of the device.
    pub fn state_file(&self) -> PathBuf {
        self.store.file()
    }

    /// Where this device's state is kept.
    pub(crate) fn store(&self) -> &Store {
        &self.store
    }

    /// Takes the device until the session ends, instead of for each call.
    ///
    /// # Errors
    /// [`Error::Locked`].
    pub fn hold(&mut self) -> Result<()> {
        if self.lock.is_none() {
            self.lock = Some(self.store.lock(Term::Stay)?);
        }
        Ok(())
    }

    /// Takes the device until the session ends. It waits for another lull that works on the device for a moment, and
    /// reports that to `log`.
    ///
    /// # Errors
    /// [`Error::Locked`] when `patience` is at its end, and at once by a lull that stays.
    pub fn wait_for_lock(&mut self, patience: Patience<'_>, log: &mut dyn FnMut(&str)) -> Result<()> {
        if self.lock.is_none() {
            self.lock = Some(self.store.wait_for_lock(patience, log)?);
        }
        Ok(())
    }

    /// Forgets what was in force before, for a device that has vanished together with it.
    ///
    /// # Errors
    /// The state file cannot be removed. A device that is in another network namespace now has not vanished. It keeps
    /// its state, and the error says so.
    pub fn forget(&mut self) -> Result<()> {
        if self.device.node.as_ref().is_some_and(Node::is_there) {
            return Err(Error::Moved { device: self.device.name.clone() });
        }
        let _lock = self.locked()?;
        self.store.remove()
    }

    /// The lock that the session has until it ends, if it has one.
    pub(crate) fn lock(&self) -> Option<&Lock> {
        self.lock.as_ref()
    }

    /// The lock for one call, unless the session has it anyway.
    pub(crate) fn locked(&self) -> Result<Option<Lock>> {
        if self.lock.is_some() { Ok(None) } else { self.store.lock(Term::Moment).map(Some) }
    }
}
