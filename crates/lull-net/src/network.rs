//! A device with a TCP/IP stack. Its queues are NAPI instances, each with a shard.

mod config;
mod ending;
mod error;
mod group;
mod stack;
mod transmit;

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex, MutexGuard};

use lull_core::mode::GroupPolling;
use lull_core::{Mode, NapiSettings, SocketBusy, Sysctl};
use lull_host::{Delivery, DeviceId, GroupId, Host, HostError, NapiBinding};
use lull_nic::{Device, DeviceEvent, Frame, Moderation};
use lull_qdisc::Kind;

use crate::mode::AppHalf;
use crate::queue::Queue;
use crate::shard::{Listed, Neighbours, NetError, Place, Stack, StackCounters};
use crate::siblings::{Inbox, Siblings};
pub use config::{GroupCpus, NetworkConfig};
pub use error::NetworkError;
use stack::stack_config;

/// A device with a TCP/IP stack. Clones are the same network.
///
/// Keep one for as long as its sockets are used: the network goes down with its last clone. Its sockets then fail with
/// ENETDOWN, and calls and contexts that wait for one are woken to report that. Open connections are not closed towards
/// their peers, so close them first.
#[derive(Clone)]
pub struct Network(Arc<Inner>);

struct Inner {
    host: Host,
    delivery: Arc<Delivery>,
    device: Arc<dyn Device>,
    known: Known,
    /// The device's own coalescing, which is in force unless a mode asks for another.
    moderation: Moderation,
    queues: Vec<Arc<Queue>>,
    neighbours: Arc<Neighbours>,
    next_queue: AtomicUsize,
    /// The CPUs that a group may poll with.
    group_cpus: Option<GroupCpus>,
    group: Mutex<Option<(GroupId, GroupPolling)>>,
    /// This is held while a mode is put in force.
    changing: Mutex<()>,
    /// The discipline that was asked for.
    qdisc: Option<Kind>,
    transmit: Mutex<Option<transmit::Transmit>>,
    /// Whether the queues are enabled. This is held while they are being enabled or disabled.
    enabled: Mutex<bool>,
    /// This is held while the device's MTU is read and the queues are told of it.
    heeding: Mutex<()>,
    /// Sends device events to a thread that handles them, as a device may report one in the middle of a poll. That
    /// thread ends when the sender is dropped.
    events: Arc<Mutex<Option<Sender<DeviceEvent>>>>,
}

/// The network's half of a mode.
struct InForce {
    /// The settings of each queue.
    settings: Vec<NapiSettings>,
    moderation: Moderation,
    group: Option<GroupPolling>,
}

/// A device that the host knows, with the instances of its queues. When it is dropped, the instances are disabled and
/// the host forgets them, so that a program that makes networks again and again takes no more room than the first time.
struct Known {
    host: Host,
    device_id: DeviceId,
}

impl Drop for Known {
    fn drop(&mut self) {
        // This is refused only if an operator enabled or removed the device by hand, past the network.
        let _ = self.host.remove_device(self.device_id);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What the mutex holds is put in and taken out as a whole.
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

impl Network {
    /// Takes all queues of `device`, makes each a NAPI instance of `host` with a shard, and enables them.
    ///
    /// # Errors
    /// A queue is taken already, a CPU does not exist, or a setting is out of its limits. Addresses and gateways are
    /// checked before a queue is taken ([`NetworkConfig::check`]).
    pub fn new(host: &Host, device: Arc<dyn Device>, config: NetworkConfig) -> Result<Network, NetworkError> {
        config.check()?;
        let info = device.info();
        let moderation = device.moderation();
        let neighbours = Arc::new(Neighbours::default());
        for (ip, mac) in &config.neighbours {
            neighbours.add_permanent(*ip, *mac);
        }
        let known = Known { host: host.clone(), device_id: host.add_device(&info.name, info.queues, true) };
        let device_id = known.device_id;
        host.set_device(device_id, &config.napi)?;
        let mut queues = Vec::new();
        let numbers = config.queue_numbers(&info)?;
        let inboxes: Arc<[Inbox]> = (0..info.queues).map(|_| Inbox::default()).collect();
        for index in 0..info.queues {
            let queue = device.take_queue(index)?;
            let cpu = config.cpus.get(index % config.cpus.len().max(1)).copied().unwrap_or(0);
            let place = Place { queue: index as u32, cpu: u32::from(cpu) };
            let stack = stack_config(host, &device, &config, place)?;
            let refused = |error| NetworkError::Stack { device: info.name.clone(), error };
            let mut stack = Stack::new(stack, neighbours.clone()).map_err(refused)?;
            stack.set_siblings(numbers.as_ref().and_then(|numbers| Siblings::of(index, &inboxes, numbers)));
            let irq = queue.irq.clone();
            let shard =
                Arc::new(Queue::new(stack, queue, host.sysctl().busy_read_usecs, config.gro, (inboxes.clone(), index)));
            let receiver = shard.clone();
            let binding = NapiBinding { device: device_id, queue: index, cpu, irq, receiver };
            let napi = host.add_napi(binding)?;
            shard.bind(host, napi);
            queues.push(shard);
        }
        let network = Network(Arc::new(Inner {
            host: host.clone(),
            delivery: host.delivery(),
            device,
            known,
            moderation,
            queues,
            neighbours,
            next_queue: AtomicUsize::new(0),
            group_cpus: config.group,
            group: Mutex::new(None),
            changing: Mutex::new(()),
            qdisc: config.qdisc,
            transmit: Mutex::new(None),
            enabled: Mutex::new(false),
            heeding: Mutex::new(()),
            events: Arc::new(Mutex::new(None)),
        }));
        network.set_delivery(&config.napi, config.socket_busy_poll_usecs, config.rx_usecs, config.group_polling)?;
        // The device is watched first, as otherwise a reset would go unnoticed that comes while the queues are being
        // enabled.
        network.watch_device()?;
        // The MTU may have changed since the stacks were made.
        network.0.heed_mtu();
        network.0.enable_all()?;
        Ok(network)
    }

    /// Starts the thread that handles the device's events. After a reset the queues are disabled and enabled again, as
    /// a driver does it; settings and ids persist.
    fn watch_device(&self) -> Result<(), NetworkError> {
        let (sender, receiver) = mpsc::channel::<DeviceEvent>();
        let inner = Arc::downgrade(&self.0);
        let control = move || {
            while let Ok(event) = receiver.recv() {
                let Some(inner) = inner.upgrade() else { return };
                match event {
                    DeviceEvent::Reset => inner.reset_all(),
                    // Nothing arrives any more. Connections end by their own timeouts, and sends fail.
                    DeviceEvent::Gone => {
                        inner.disable_all();
                        inner.queues.iter().for_each(|queue| queue.device_gone(&inner.delivery));
                    }
                    DeviceEvent::Mtu => inner.heed_mtu(),
                    DeviceEvent::Link(_) => {}
                }
            }
        };
        let os = |source| HostError::Os { what: "start the device's control thread".to_owned(), source };
        std::thread::Builder::new().name("lull-control".to_owned()).spawn(control).map_err(os)?;
        let events = self.0.events.clone();
        *lock(&events) = Some(sender);
        self.0.device.watch(Box::new(move |event| {
            // Without a network there is nobody who could handle the event.
            if let Some(sender) = &*lock(&events) {
                let _ = sender.send(event);
            }
        }));
        Ok(())
    }

    /// The host of this network.
    pub fn host(&self) -> &Host {
        &self.0.host
    }

    /// The device of this network.
    pub fn device(&self) -> &Arc<dyn Device> {
        &self.0.device
    }

    /// The id by which the host knows the device.
    pub fn device_id(&self) -> DeviceId {
        self.0.known.device_id
    }

    /// The neighbour table that all shards read.
    pub fn neighbours(&self) -> &Neighbours {
        &self.0.neighbours
    }

    /// The NAPI instances of the queues, by their places in the host's table.
    pub fn napis(&self) -> Vec<u32> {
        self.0.queues.iter().map(|queue| queue.napi()).collect()
    }

    /// Puts delivery settings in force on every queue (netlink `napi-set`, once per queue).
    ///
    /// # Errors
    /// A setting is above its limit.
    pub fn set_napi_all(&self, settings: &NapiSettings) -> Result<(), HostError> {
        self.0.queues.iter().try_for_each(|queue| self.0.host.set_napi(queue.napi(), settings))
    }

    /// Puts the network's half of a mode in force: the settings of every NAPI, the device's coalescing if the mode
    /// names it (otherwise the device's own), and SO_BUSY_POLL of all sockets, those that are open included, if the
    /// mode changes it.
    ///
    /// The returned value is the application's half, which has to be done as well.
    ///
    /// A setting is above its limit, the mode coalesces and the device cannot, a thread cannot be started, or a group
    /// has no CPUs or one that it cannot have.
    pub fn set_mode(&self, mode: &Mode) -> Result<AppHalf, NetworkError> {
        let socket = (mode.socket_busy_poll_usecs != 0).then_some(mode.socket_busy_poll_usecs);
        self.set_delivery(&mode.napi, socket, mode.rx_usecs, mode.group)?;
        Ok(AppHalf::of(mode))
    }

    /// Puts the settings in force. A mode that is refused leaves everything as it was: what can be checked is checked
    /// first, and what was changed before a refusal is put back.
    fn set_delivery(
        &self,
        napi: &NapiSettings,
        socket: Option<u32>,
        rx_usecs: Option<u32>,
        group: Option<GroupPolling>,
    ) -> Result<(), NetworkError> {
        let _alone = lock(&self.0.changing);
        napi.check()?;
        self.check_group(group)?;
        let busy_read_usecs = socket.unwrap_or(self.sysctl().busy_read_usecs);
        SocketBusy::new(self.sysctl()).set_usecs(busy_read_usecs)?;
        let settings = vec![*napi; self.0.queues.len()];
        let moderation = rx_usecs.map_or(self.0.moderation, |rx_usecs| Moderation { rx_usecs, rx_frames: 0 });
        let before = self.in_force();
        self.change_to(InForce { settings, moderation, group }).inspect_err(|_| {
            // These settings were in force, so nothing refuses them, except where another group has taken the group's
            // CPUs meanwhile.
            let _ = self.change_to(before);
        })?;
        self.0.queues.iter().for_each(|queue| queue.mode_busy.change(busy_read_usecs));
        Ok(())
    }

    fn in_force(&self) -> InForce {
        let of_host = self.0.host.napis();
        let settings = |queue: &Arc<Queue>| {
            let found = of_host.iter().find(|info| info.index == queue.napi());
            found.map_or_else(NapiSettings::default, |info| info.settings)
        };
        InForce {
            settings: self.0.queues.iter().map(settings).collect(),
            moderation: self.0.device.moderation(),
            group: lock(&self.0.group).map(|(_, polling)| polling),
        }
    }

    fn change_to(&self, wanted: InForce) -> Result<(), NetworkError> {
        let InForce { settings, moderation, group } = wanted;
        let made = self.make_group(group)?;
        let changed = self.change_with(made, &settings, moderation, group);
        if let (Some(id), Err(_)) = (made, &changed) {
            // This is refused only if an operator has removed the group already.
            let _ = self.0.host.remove_group(id);
        }
        changed
    }

    fn change_with(
        &self,
        made: Option<GroupId>,
        settings: &[NapiSettings],
        moderation: Moderation,
        group: Option<GroupPolling>,
    ) -> Result<(), NetworkError> {
        let device = &self.0.device;
        if device.moderation() != moderation {
            device.set_moderation(moderation)?;
        }
        self.leave_other_group(group)?;
        let mut queues = self.0.queues.iter().zip(settings);
        queues.try_for_each(|(queue, settings)| self.0.host.set_napi(queue.napi(), settings))?;
        self.set_qdisc(group)?;
        if let (Some(id), Some(polling)) = (made, group) {
            self.fill_group(id, polling)?;
        }
        Ok(())
    }

    /// Holds back the doorbell of queue `queue` while a batch of events is answered, until the cork is dropped or eight
    /// frames wait: one doorbell then serves them all (Linux's `xmit_more`). Nothing is held back for longer than the
    /// cork lives.
    ///
    /// # Panics
    /// If there is no such queue.
    pub fn cork(&self, queue: usize) -> Cork<'_> {
        self.0.queues[queue].cork();
        Cork { network: self, queue }
    }

    /// Sends what is held back on any queue until a batch is over, whichever thread has written it. This ends the
    /// calling thread's batch, so that what it writes from now on leaves at once. It is for a process that ends, or may
    /// end.
    pub fn let_go(&self) {
        crate::batch::ends();
        self.0.queues.iter().for_each(|queue| queue.let_go(&self.0.delivery));
    }

    /// What peers have not acknowledged of connections that were closed: the bytes, and one for each end of a stream.
    /// If a process ends while this is not 0, that is lost, whereas Linux's kernel would go on sending it.
    pub fn undelivered(&self) -> u64 {
        let undelivered = |queue: &Arc<Queue>| queue.with(&self.0.delivery, |inside, _| inside.stack.undelivered());
        self.0.queues.iter().map(undelivered).sum()
    }

    /// How many connections that nobody has accepted, and whose listener is closed, wait to be taken by another process
    /// ([`Elsewhere::takes_over`](crate::Elsewhere::takes_over)).
    pub fn handing_on(&self) -> usize {
        let waiting = |queue: &Arc<Queue>| queue.with(&self.0.delivery, |inside, _| inside.stack.handing_on());
        self.0.queues.iter().map(waiting).sum()
    }

    /// Has the connections that [`Network::handing_on`] counts kept for a process that listens next
    /// ([`Elsewhere::keeps`](crate::Elsewhere::keeps)), or else resets them.
    pub fn end_handing_on(&self) {
        for queue in &self.0.queues {
            queue.with(&self.0.delivery, |inside, now_ns| {
                inside.call(now_ns, |stack, io| stack.end_handing_on(io));
            });
        }
    }

    /// Takes a frame that another network's [`Elsewhere::keeps`](crate::Elsewhere::keeps) has kept, if a socket listens
    /// for it here now. It also takes frames that were meant for the process that had this network's queues before. A
    /// frame for which nobody listens here is handled as if this network had received it.
    pub fn take_over(&self, frame: Frame) {
        self.0.queues[0].with(&self.0.delivery, |inside, now_ns| {
            inside.call(now_ns, |stack, io| stack.take_kept(frame, io));
        });
    }

    /// Whether a connection has this local port, or had it and keeps it in TIME-WAIT. It is for a caller that chooses a
    /// port which a `connect` is to find free. It looks through all connections.
    pub fn has_connections_from(&self, port: u16) -> bool {
        self.0
            .queues
            .iter()
            .any(|queue| queue.with(&self.0.delivery, |inside, _| inside.stack.has_connections_from(port)))
    }

    /// Ends the sending of connections that a socket still has, as closing the socket would. [`Network::undelivered`]
    /// counts them afterwards. It is for a process that ends.
    pub fn shut_held(&self) {
        for queue in &self.0.queues {
            queue.with(&self.0.delivery, |inside, now_ns| {
                inside.call(now_ns, |stack, io| stack.shut_held(io));
            });
        }
    }

    /// All sockets and connections, one list per shard.
    pub fn sockets(&self) -> Vec<Vec<Listed>> {
        let list = |queue: &Arc<Queue>| queue.with(&self.0.delivery, |inside, _| inside.stack.list());
        self.0.queues.iter().map(list).collect()
    }

    /// What the stacks have counted, one entry per shard.
    pub fn stack_counters(&self) -> Vec<StackCounters> {
        let counters = |queue: &Arc<Queue>| queue.with(&self.0.delivery, |inside, _| inside.stack.counters());
        self.0.queues.iter().map(counters).collect()
    }

    /// How much memory the shards' connections take, in bytes.
    pub fn memory_bytes(&self) -> usize {
        let bytes = |queue: &Arc<Queue>| queue.with(&self.0.delivery, |inside, _| inside.stack.memory_bytes());
        self.0.queues.iter().map(bytes).sum()
    }

    pub(crate) fn queues(&self) -> &[Arc<Queue>] {
        &self.0.queues
    }

    pub(crate) fn queue(&self, index: usize) -> io::Result<&Arc<Queue>> {
        self.queues().get(index).ok_or_else(|| {
            let (device, queues) = (self.0.device.info().name, self.queues().len());
            let what = format!("there is no queue {index}: {device} has {queues}, numbered from 0");
            io::Error::new(io::ErrorKind::InvalidInput, what)
        })
    }

    pub(crate) fn delivery(&self) -> &Arc<Delivery> {
        &self.0.delivery
    }

    pub(crate) fn sysctl(&self) -> &Sysctl {
        self.0.host.sysctl()
    }

    /// The shards for an outgoing connection, in turn. Each of them chooses ports so that the answers come back to it.
    pub(crate) fn queues_in_turn(&self) -> impl Iterator<Item = &Arc<Queue>> {
        let next = self.0.next_queue.fetch_add(1, Ordering::Relaxed);
        (0..self.0.queues.len()).map(move |step| &self.0.queues[next.wrapping_add(step) % self.0.queues.len()])
    }

    /// The shard for a connection from a port that the program has chosen. It is the shard that takes this port for its
    /// own connections, so that no other shard has it at the same time.
    ///
    /// # Errors
    /// [`NetError::AddressInUse`] if there is such a connection, on any shard. [`NetError::NetworkDown`] if its
    /// segments would come to a shard that is down.
    pub(crate) fn queue_between(&self, local: SocketAddr, remote: SocketAddr) -> Result<&Arc<Queue>, NetError> {
        let (mut own, mut others) = (None, None);
        let mut is_down = false;
        for queue in &self.0.queues {
            let ask = |stack: &Stack| (stack.has_connection_between(local, remote), stack.steers(local, remote));
            let asked = queue.with(&self.0.delivery, |inside, _| (ask(&inside.stack), inside.stack.is_down()));
            match asked {
                ((true, _), _) => return Err(NetError::AddressInUse),
                ((_, steers), true) => is_down |= steers,
                ((_, true), false) => own = own.or(Some(queue)),
                ((_, false), false) => others = others.or(Some(queue)),
            }
        }
        // If the device cannot tell by which queue a segment comes, any shard may have the connection.
        if is_down && self.0.device.rss_queue(remote, local).is_some() {
            return Err(NetError::NetworkDown);
        }
        own.or(others).ok_or(NetError::NetworkDown)
    }
}

/// Holds doorbells back until it is dropped; [`Network::cork`] makes one.
#[must_use = "dropping the cork rings the doorbell"]
#[derive(Debug)]
pub struct Cork<'n> {
    network: &'n Network,
    queue: usize,
}

impl Drop for Cork<'_> {
    fn drop(&mut self) {
        self.network.0.queues[self.queue].uncork(&self.network.0.delivery);
    }
}

impl Inner {
    fn enable_all(&self) -> Result<(), HostError> {
        self.enable(&mut lock(&self.enabled))
    }

    fn disable_all(&self) {
        self.disable(&mut lock(&self.enabled));
    }

    /// Heeds the device's MTU, which may have changed. A thread that has read it tells all queues before the next one
    /// reads it, so that no queue keeps an older value.
    fn heed_mtu(&self) {
        let _alone = lock(&self.heeding);
        let mtu_bytes = self.device.info().mtu_bytes;
        self.queues.iter().for_each(|queue| queue.device_mtu(&self.delivery, mtu_bytes));
    }

    /// Resets the queues. If they are not enabled yet, there is nothing to reset.
    fn reset_all(&self) {
        let mut enabled = lock(&self.enabled);
        if *enabled {
            self.disable(&mut enabled);
            // NAPI threads run already, so this fails only for a queue that a panic took down, which stays down.
            let _ = self.enable(&mut enabled);
        }
    }

    fn enable(&self, enabled: &mut bool) -> Result<(), HostError> {
        *enabled = true;
        let mut result = Ok(());
        // A queue that cannot be enabled, because a panic took it down, leaves the others alone.
        for queue in &self.queues {
            match self.host.enable(queue.napi()) {
                Ok(id) => {
                    queue.set_napi_id(id);
                    queue.look_for_room(&self.delivery);
                }
                Err(error) => result = Err(error),
            }
        }
        if let Some(transmit) = &*lock(&self.transmit) {
            transmit.enable();
        }
        result
    }

    fn disable(&self, enabled: &mut bool) {
        if !std::mem::take(enabled) {
            return;
        }
        if let Some(transmit) = &*lock(&self.transmit) {
            transmit.disable();
        }
        for queue in &self.queues {
            // This is refused only if `enable` failed for this queue.
            let _ = self.host.disable(queue.napi());
            queue.set_napi_id(0);
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        drop(lock(&self.events).take());
        self.disable_all();
        if let Some((group, _)) = lock(&self.group).take() {
            // This is refused only if an operator removed the group by hand.
            let _ = self.host.remove_group(group);
        }
        // Nothing is delivered any more, and without this a call that blocks would wait for ever.
        self.queues.iter().for_each(|queue| queue.close(&self.delivery));
    }
}

impl fmt::Debug for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Network").field("device", &self.0.device.info()).finish_non_exhaustive()
    }
}
