//! A device with a TCP/IP stack: its queues as NAPI instances, each with a shard.

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
/// Keep one for as long as its sockets are used: with the last clone the network goes down. Its sockets then fail with
/// ENETDOWN, and calls and contexts that wait for one are woken to say so. Connections that are open are not closed towards their
/// peers; close them first.
#[derive(Clone)]
pub struct Network(Arc<Inner>);

struct Inner {
    host: Host,
    delivery: Arc<Delivery>,
    device: Arc<dyn Device>,
    known: Known,
    /// The device's own coalescing, in force unless a mode asks for another.
    moderation: Moderation,
    queues: Vec<Arc<Queue>>,
    neighbours: Arc<Neighbours>,
    next_queue: AtomicUsize,
    /// What a group of CPUs has to poll with, and the group that polls now.
    group_cpus: Option<GroupCpus>,
    group: Mutex<Option<(GroupId, GroupPolling)>>,
    /// Held while a mode is put in force.
    changing: Mutex<()>,
    /// The discipline that was asked for, and the transmit queues that have one.
    qdisc: Option<Kind>,
    transmit: Mutex<Option<transmit::Transmit>>,
    /// Whether the queues are enabled. Held while they become so or cease to be.
    enabled: Mutex<bool>,
    /// Held while the device's MTU is read and the queues are told of it.
    heeding: Mutex<()>,
    /// Device events, handled by a thread of their own: they may be told in the middle of a poll.
    /// The control thread ends when the sender goes.
    events: Arc<Mutex<Option<Sender<DeviceEvent>>>>,
}

/// The network's half of a mode.
struct InForce {
    /// Of each queue.
    settings: Vec<NapiSettings>,
    moderation: Moderation,
    group: Option<GroupPolling>,
}

/// A device that the host knows, with the instances of its queues. They are disabled when it is dropped, and the host
/// forgets them: whoever connects again and again takes no more room than the first time.
struct Known {
    host: Host,
    device_id: DeviceId,
}

impl Drop for Known {
    fn drop(&mut self) {
        // Refused only where an operator enabled or removed it by hand, past the network.
        let _ = self.host.remove_device(self.device_id);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // The sender is put in and taken out whole.
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

impl Network {
    /// Takes all queues of `device`, makes each a NAPI instance of `host` with a shard, and enables them.
    ///
    /// # Errors
    /// A queue that is taken, a CPU that does not exist, a setting out of its limits. Addresses and gateways are looked at before
    /// a queue is taken ([`NetworkConfig::check`]).
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
        // Watched first: nobody else would tell of a reset that comes while the queues are enabled.
        network.watch_device()?;
        // It may have changed since the stacks were made.
        network.0.heed_mtu();
        network.0.enable_all()?;
        Ok(network)
    }

    /// After a reset the queues are disabled and enabled again, as a driver does; settings and ids persist.
    fn watch_device(&self) -> Result<(), NetworkError> {
        let (sender, receiver) = mpsc::channel::<DeviceEvent>();
        let inner = Arc::downgrade(&self.0);
        let control = move || {
            while let Ok(event) = receiver.recv() {
                let Some(inner) = inner.upgrade() else { return };
                match event {
                    DeviceEvent::Reset => inner.reset_all(),
                    // Nothing comes any more: connections end by their own timeouts, and who sends hears of it.
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
            // Without a network there is nobody to tell.
            if let Some(sender) = &*lock(&events) {
                let _ = sender.send(event);
            }
        }));
        Ok(())
    }

    /// The host.
    pub fn host(&self) -> &Host {
        &self.0.host
    }

    /// The device.
    pub fn device(&self) -> &Arc<dyn Device> {
        &self.0.device
    }

    /// The device as the host knows it.
    pub fn device_id(&self) -> DeviceId {
        self.0.known.device_id
    }

    /// The neighbour table that all shards read.
    pub fn neighbours(&self) -> &Neighbours {
        &self.0.neighbours
    }

    /// The instances of the queues: places in the host's table.
    pub fn napis(&self) -> Vec<u32> {
        self.0.queues.iter().map(|queue| queue.napi()).collect()
    }

    /// Puts delivery settings in force on every queue (netlink `napi-set`, once per queue).
    ///
    /// # Errors
    /// A setting above its limit.
    pub fn set_napi_all(&self, settings: &NapiSettings) -> Result<(), HostError> {
        self.0.queues.iter().try_for_each(|queue| self.0.host.set_napi(queue.napi(), settings))
    }

    /// Puts the network's half of a mode in force: the settings of every NAPI, the device's coalescing where the mode names it
    /// (its own otherwise), and SO_BUSY_POLL of all sockets, those that are open included, where this changes it.
    ///
    /// What comes back is the application's half, which has to be done as well.
    ///
    /// # Errors
    /// A setting above its limit; a mode that coalesces, on a device that cannot; a thread that cannot be started; a group
    /// without CPUs, or with one that it cannot have.
    pub fn set_mode(&self, mode: &Mode) -> Result<AppHalf, NetworkError> {
        let socket = (mode.socket_busy_poll_usecs != 0).then_some(mode.socket_busy_poll_usecs);
        self.set_delivery(&mode.napi, socket, mode.rx_usecs, mode.group)?;
        Ok(AppHalf::of(mode))
    }

    /// A refused mode leaves things as they were: what can be refused is looked at first, and what was changed before somebody
    /// refused all the same is put back.
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
            // It was in force, so nobody refuses it, but for a group whose CPUs somebody else has taken meanwhile.
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
            // Refused only where an operator removed it already.
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

    /// Sends what is held back on any queue until a batch is over, whichever thread has written it; the calling thread's batch is over
    /// with that, and what it writes from now on leaves at once. For a process that ends, or may.
    pub fn let_go(&self) {
        crate::batch::ends();
        self.0.queues.iter().for_each(|queue| queue.let_go(&self.0.delivery));
    }

    /// What peers have not acknowledged of connections that were closed: bytes, and one for each end of a stream. A process that
    /// ends while this is not 0 loses it, where Linux's kernel would go on.
    pub fn undelivered(&self) -> u64 {
        let undelivered = |queue: &Arc<Queue>| queue.with(&self.0.delivery, |inside, _| inside.stack.undelivered());
        self.0.queues.iter().map(undelivered).sum()
    }

    /// How many connections that nobody has accepted wait for another process, since their listener is closed
    /// ([`Elsewhere::takes_over`](crate::Elsewhere::takes_over)).
    pub fn handing_on(&self) -> usize {
        let waiting = |queue: &Arc<Queue>| queue.with(&self.0.delivery, |inside, _| inside.stack.handing_on());
        self.0.queues.iter().map(waiting).sum()
    }

    /// Those that [`Network::handing_on`] counts are kept for who listens next, or reset
    /// ([`Elsewhere::keeps`](crate::Elsewhere::keeps)).
    pub fn end_handing_on(&self) {
        for queue in &self.0.queues {
            queue.with(&self.0.delivery, |inside, now_ns| {
                inside.call(now_ns, |stack, io| stack.end_handing_on(io));
            });
        }
    }

    /// Takes what another network's [`Elsewhere::keeps`](crate::Elsewhere::keeps) has kept, if somebody listens here now; and what was
    /// for whoever had this network's queues before. What nobody listens for here goes on as if this network had had it.
    pub fn take_over(&self, frame: Frame) {
        self.0.queues[0].with(&self.0.delivery, |inside, now_ns| {
            inside.call(now_ns, |stack, io| stack.take_kept(frame, io));
        });
    }

    /// Whether a connection has this port of its own, or had it and keeps it (TIME-WAIT): for who chooses a port that a `connect` shall
    /// find free. It looks through all connections.
    pub fn has_connections_from(&self, port: u16) -> bool {
        self.0
            .queues
            .iter()
            .any(|queue| queue.with(&self.0.delivery, |inside, _| inside.stack.has_connections_from(port)))
    }

    /// Ends the sending of connections that a socket still has, as closing it would; [`Network::undelivered`] counts them then. For a
    /// process that ends.
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

    /// What the stacks counted, one per shard.
    pub fn stack_counters(&self) -> Vec<StackCounters> {
        let counters = |queue: &Arc<Queue>| queue.with(&self.0.delivery, |inside, _| inside.stack.counters());
        self.0.queues.iter().map(counters).collect()
    }

    /// Memory that the shards' connections hold, in bytes.
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

    /// The shards for an outgoing connection, the one whose turn it is first; each chooses ports so that the answers come back to it.
    pub(crate) fn queues_in_turn(&self) -> impl Iterator<Item = &Arc<Queue>> {
        let next = self.0.next_queue.fetch_add(1, Ordering::Relaxed);
        (0..self.0.queues.len()).map(move |step| &self.0.queues[next.wrapping_add(step) % self.0.queues.len()])
    }

    /// The shard for a connection from a port that the program has chosen: the one that takes the port for its own connections, too, so
    /// that no other has the same at the same time.
    ///
    /// # Errors
    /// [`NetError::AddressInUse`]: there is such a connection, on whatever shard. [`NetError::NetworkDown`]: its segments would come to
    /// a shard that is down.
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
        // Where the device cannot tell by which queue a segment comes, any of them may have the connection.
        if is_down && self.0.device.rss_queue(remote, local).is_some() {
            return Err(NetError::NetworkDown);
        }
        own.or(others).ok_or(NetError::NetworkDown)
    }
}

/// See [`Network::cork`].
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

    /// The longest packet of the device may be another one. Whoever has read it tells all queues before the next reads it, so that
    /// none keeps an older one.
    fn heed_mtu(&self) {
        let _alone = lock(&self.heeding);
        let mtu_bytes = self.device.info().mtu_bytes;
        self.queues.iter().for_each(|queue| queue.device_mtu(&self.delivery, mtu_bytes));
    }

    /// Queues that are not enabled yet have nothing to reset.
    fn reset_all(&self) {
        let mut enabled = lock(&self.enabled);
        if *enabled {
            self.disable(&mut enabled);
            // NAPI threads run already, so nothing fails but a queue that a panic took down: it stays down.
            let _ = self.enable(&mut enabled);
        }
    }

    fn enable(&self, enabled: &mut bool) -> Result<(), HostError> {
        *enabled = true;
        let mut result = Ok(());
        // One queue that cannot be (a panic took it down) leaves the others alone.
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
            // Refused only where `enable` failed for this queue.
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
            // Refused only where an operator removed it by hand.
            let _ = self.host.remove_group(group);
        }
        // Nothing is delivered any more: without this, a blocked call would wait for ever.
        self.queues.iter().for_each(|queue| queue.close(&self.delivery));
    }
}

impl fmt::Debug for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Network").field("device", &self.0.device.info()).finish_non_exhaustive()
    }
}
