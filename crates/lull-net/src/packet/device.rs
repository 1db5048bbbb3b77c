//! A device whose queues go to packet sockets.

use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use lull_host::{Delivery, DeviceId, Host, HostError, NapiBinding};
use lull_nic::{Device, DeviceEvent, wire};

use super::PacketOptions;
use super::queue::PacketQueue;
use crate::network::NetworkError;

/// A device whose queues go to packet sockets, one each. Clones are the same device, which lives as long as its
/// sockets.
#[derive(Clone)]
pub struct PacketDevice(Arc<Inner>);

pub(super) struct Inner {
    pub(super) host: Host,
    pub(super) delivery: Arc<Delivery>,
    device: Arc<dyn Device>,
    id: DeviceId,
    /// The queues that are bound. This is held while they are being enabled or disabled.
    bound: Mutex<Vec<Arc<PacketQueue>>>,
    /// Sends device events to a thread that handles them, as a device may report one in the middle of a poll. That
    /// thread ends when the sender is dropped.
    events: Arc<Mutex<Option<Sender<DeviceEvent>>>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What the mutex holds is put in and taken out as a whole.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl PacketDevice {
    /// Makes the device known to the host.
    ///
    /// # Errors
    /// No thread for the device's events can be started.
    pub fn new(host: &Host, device: Arc<dyn Device>) -> Result<PacketDevice, NetworkError> {
        let info = device.info();
        let inner = Arc::new(Inner {
            host: host.clone(),
            delivery: host.delivery(),
            id: host.add_device(&info.name, info.queues, true),
            device,
            bound: Mutex::new(Vec::new()),
            events: Arc::new(Mutex::new(None)),
        });
        inner.watch()?;
        Ok(PacketDevice(inner))
    }

    /// The device.
    pub fn device(&self) -> &Arc<dyn Device> {
        &self.0.device
    }

    pub(super) fn inner(&self) -> &Arc<Inner> {
        &self.0
    }
}

impl Inner {
    fn watch(self: &Arc<Inner>) -> Result<(), NetworkError> {
        let (sender, receiver) = mpsc::channel::<DeviceEvent>();
        let inner: Weak<Inner> = Arc::downgrade(self);
        let control = move || {
            while let Ok(event) = receiver.recv() {
                let Some(inner) = inner.upgrade() else { return };
                match event {
                    DeviceEvent::Reset => inner.reset(),
                    DeviceEvent::Gone => lock(&inner.bound).iter().for_each(|queue| inner.close(queue)),
                    DeviceEvent::Link(_) | DeviceEvent::Mtu => {}
                }
            }
        };
        let os = |source| HostError::Os { what: "start the device's control thread".to_owned(), source };
        std::thread::Builder::new().name("lull-control".to_owned()).spawn(control).map_err(os)?;
        *lock(&self.events) = Some(sender);
        let events = self.events.clone();
        self.device.watch(Box::new(move |event| {
            // Without sockets there is nobody who could handle the event.
            if let Some(sender) = &*lock(&events) {
                let _ = sender.send(event);
            }
        }));
        Ok(())
    }

    /// After a reset the queues are disabled and enabled again, as a driver does it; settings and ids persist.
    fn reset(&self) {
        for queue in lock(&self.bound).iter() {
            // This is refused if a panic took the queue down, which then stays down.
            if self.host.disable(queue.napi()).is_ok()
                && let Ok(id) = self.host.enable(queue.napi())
            {
                queue.set_napi_id(id);
                queue.look_for_room(&self.delivery);
            }
        }
    }

    fn close(&self, queue: &PacketQueue) {
        // The queue is disabled already if the device went before the socket.
        let _ = self.host.disable(queue.napi());
        queue.set_napi_id(0);
        queue.close(&self.delivery);
    }

    pub(super) fn bind(
        &self,
        index: usize,
        options: &PacketOptions,
        make: impl FnOnce(lull_nic::Queue) -> PacketQueue,
    ) -> Result<Arc<PacketQueue>, NetworkError> {
        let cpus = self.host.cpus();
        if usize::from(options.cpu) >= cpus {
            return Err(HostError::NoCpu { cpu: options.cpu, cpus }.into());
        }
        let mut bound = lock(&self.bound);
        let queue = self.device.take_queue(index)?;
        let irq = queue.irq.clone();
        let queue = Arc::new(make(queue));
        let binding = NapiBinding { device: self.id, queue: index, cpu: options.cpu, irq, receiver: queue.clone() };
        let napi = self.host.add_napi(binding)?;
        queue.bind(&self.host, napi);
        match self.host.set_napi(napi, &options.napi).and_then(|()| self.host.enable(napi)) {
            Ok(id) => queue.set_napi_id(id),
            Err(error) => {
                // The instance was never enabled, so nothing prevents this.
                let _ = self.host.remove_napi(napi);
                return Err(error.into());
            }
        }
        bound.push(queue.clone());
        Ok(queue)
    }

    /// The longest frame that the device sends: an Ethernet header with a VLAN tag, and the MTU.
    pub(super) fn frame_bytes_max(&self) -> usize {
        wire::ETHERNET + wire::VLAN_TAG + self.device.info().mtu_bytes
    }

    /// Called when the socket is closed.
    pub(super) fn let_go(&self, queue: &Arc<PacketQueue>) {
        let mut bound = lock(&self.bound);
        bound.retain(|other| !Arc::ptr_eq(other, queue));
        self.close(queue);
        // This is refused only if an operator enabled or removed the instance by hand, past the socket.
        let _ = self.host.remove_napi(queue.napi());
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        drop(lock(&self.events).take());
        let _ = self.host.remove_device(self.id);
    }
}

impl std::fmt::Debug for PacketDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PacketDevice").field("device", &self.0.device.info()).finish_non_exhaustive()
    }
}
