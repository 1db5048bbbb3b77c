//! A receiver that counts, devices to go with it, and a host around them.

#![allow(dead_code)]

use std::collections::BTreeMap;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use lull_core::{BusyEnd, BusyPlan, NapiSettings, Owner, state};
use lull_host::{
    Delivery, DeviceId, HandoffGuard, HandoffLock, Host, HostConfig, NapiBinding, Receiver, Shard, Sleep, TryPoll,
    Waker, Woke, Worker,
};
use lull_nic::mem::{self, MemConfig, MemPort};
use lull_nic::{Device, Frame, FramePool, IrqLine, IrqSink, RxQueue, TxQueue};

/// How long anything may take that has to happen at all. Far more than it takes on any machine.
pub const LONG: Duration = Duration::from_secs(120);

/// Waits until `condition` holds.
#[track_caller]
pub fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < LONG, "waited {LONG:?} for: {what}");
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// Waits until the threads that deliver have nothing to do: each sleeps, and the interrupt threads have their seats.
#[track_caller]
pub fn await_standing_by(host: &Host) {
    eventually("the delivering threads to sleep", || host.threads().iter().all(|thread| is_asleep(thread.tid)));
}

/// Whether a thread of this process sleeps.
pub fn is_asleep(tid: i32) -> bool {
    // "tid (name) state ...", where a name may hold anything but the last parenthesis.
    let stat = std::fs::read_to_string(format!("/proc/self/task/{tid}/stat")).unwrap_or_default();
    stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('S'))
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Inside {
    rx: Box<dyn RxQueue>,
    pool: FramePool,
    is_down: bool,
    /// Calls and polls, counted by whoever holds the lock: nothing but the lock orders them, so that a thread sanitizer
    /// sees a lock that does not.
    entered: u64,
}

impl Shard for Inside {
    fn take_down(&mut self) {
        self.is_down = true;
    }
}

/// What stands above a queue here: it counts what it gets, and who polled it.
pub struct Counting {
    lock: HandoffLock<Inside>,
    delivered: AtomicU64,
    wakers: Mutex<Vec<Waker>>,
    /// Polls that found packets, by the name of the thread.
    by: Mutex<BTreeMap<String, u64>>,
    handed: AtomicU64,
    /// What happens during the next poll that takes packets.
    during_poll: Mutex<Option<Box<dyn FnOnce() + Send>>>,
    /// The next poll that takes packets, or the next call of `timers`, panics if it is in a thread of this name.
    panics: Mutex<Option<(&'static str, String)>>,
}

impl Counting {
    pub fn new(rx: Box<dyn RxQueue>) -> Arc<Counting> {
        Arc::new(Counting {
            lock: HandoffLock::new(Inside { rx, pool: FramePool::new(256), is_down: false, entered: 0 }),
            delivered: AtomicU64::new(0),
            wakers: Mutex::new(Vec::new()),
            by: Mutex::new(BTreeMap::new()),
            handed: AtomicU64::new(0),
            during_poll: Mutex::new(None),
            panics: Mutex::new(None),
        })
    }

    pub fn delivered(&self) -> u64 {
        self.delivered.load(Ordering::Acquire)
    }

    /// Who delivered, in the order of their names.
    pub fn deliverers(&self) -> Vec<String> {
        lock(&self.by).keys().cloned().collect()
    }

    pub fn forget_deliverers(&self) {
        lock(&self.by).clear();
    }

    /// Times that softirq left its ownership with whoever held the lock.
    pub fn handed(&self) -> u64 {
        self.handed.load(Ordering::Acquire)
    }

    pub fn wakes(&self, worker: &Worker) {
        lock(&self.wakers).push(worker.waker());
    }

    pub fn wake_all(&self) {
        lock(&self.wakers).iter().for_each(Waker::wake);
    }

    /// Holds the lock meanwhile, as a socket call does.
    pub fn call(&self, host: &Delivery, during: impl FnOnce()) {
        let mut guard = self.lock.lock();
        guard.entered += 1;
        during();
        self.unlock(host, guard);
    }

    /// The next call of this kind (`poll` for one that takes packets, or `timers`) panics, if it is in a thread whose name
    /// begins so.
    pub fn panic_in(&self, call: &'static str, thread: &str) {
        *lock(&self.panics) = Some((call, thread.to_owned()));
    }

    /// Has something happen during the next poll that takes packets.
    pub fn during_poll(&self, happens: impl FnOnce() + Send + 'static) {
        *lock(&self.during_poll) = Some(Box::new(happens));
    }

    fn panics_in(&self, call: &str) -> bool {
        let thread = std::thread::current();
        let mut panics = lock(&self.panics);
        let is_due = |(wanted, name): &(&str, String)| {
            *wanted == call && thread.name().unwrap_or("?").starts_with(name.as_str())
        };
        panics.take_if(|panics| is_due(panics)).is_some()
    }

    fn poll_inside(&self, inside: &mut Inside, budget: u32) -> u32 {
        inside.entered += 1;
        let work = inside.rx.poll(budget as usize, &mut inside.pool, &mut |frame, pool| pool.recycle(frame)) as u32;
        assert!(!inside.is_down, "nobody polls a queue that is down");
        if work > 0 && self.panics_in("poll") {
            panic!("a bug above one queue");
        }
        if work > 0 {
            let happens = lock(&self.during_poll).take();
            happens.into_iter().for_each(|happens| happens());
            let thread = std::thread::current();
            *lock(&self.by).entry(thread.name().unwrap_or("?").to_owned()).or_default() += 1;
            self.delivered.fetch_add(u64::from(work), Ordering::AcqRel);
            self.wake_all();
        }
        work
    }

    fn unlock(&self, host: &Delivery, guard: HandoffGuard<'_, Inside>) {
        host.unlock(guard, |inside, budget| self.poll_inside(inside, budget));
    }

    /// Whether its shard was taken down; whoever waits for the queue was woken then.
    pub fn is_down(&self, host: &Delivery) -> bool {
        let guard = self.lock.lock();
        let is_down = guard.is_down;
        self.unlock(host, guard);
        is_down
    }
}

impl Receiver for Counting {
    fn try_poll(&self, host: &Delivery, owner: Owner, cpu: u16, budget: u32) -> TryPoll {
        let Some((mut guard, owner)) = self.lock.lock_or_park(owner, cpu) else {
            self.handed.fetch_add(1, Ordering::Release);
            return TryPoll::Handed;
        };
        let work = self.poll_inside(&mut guard, budget);
        self.unlock(host, guard);
        TryPoll::Polled(owner, work)
    }

    fn poll_if_free(&self, host: &Delivery, budget: u32) -> Option<u32> {
        let mut guard = self.lock.try_lock()?;
        let work = self.poll_inside(&mut guard, budget);
        self.unlock(host, guard);
        Some(work)
    }

    fn poll(&self, host: &Delivery, budget: u32) -> u32 {
        let mut guard = self.lock.lock();
        let work = self.poll_inside(&mut guard, budget);
        self.unlock(host, guard);
        work
    }

    fn timers(&self, _host: &Delivery, _now_ns: u64) -> bool {
        if self.panics_in("timers") {
            panic!("a bug in timers");
        }
        true
    }

    fn failed(&self, host: &Delivery) {
        let mut guard = self.lock.lock();
        guard.take_down();
        self.unlock(host, guard);
        self.wake_all();
    }
}

/// A queue that has been made an instance, enabled.
pub struct Bound {
    pub host: Host,
    pub device: DeviceId,
    pub napi: u32,
    pub id: u32,
    pub queue: Arc<Counting>,
}

impl Bound {
    pub fn new(host: &Host, cpu: u16, rx: Box<dyn RxQueue>, irq: Arc<dyn IrqLine>) -> Bound {
        Bound::on_device(host, cpu, rx, irq, true)
    }

    /// `persistent`: the device keeps its queues' settings and ids over a disable.
    pub fn on_device(host: &Host, cpu: u16, rx: Box<dyn RxQueue>, irq: Arc<dyn IrqLine>, persistent: bool) -> Bound {
        let device = host.add_device("test0", 1, persistent);
        Bound::on_known_device(host, device, cpu, rx, irq)
    }

    /// The only queue of a device that the host knows.
    pub fn on_known_device(
        host: &Host,
        device: DeviceId,
        cpu: u16,
        rx: Box<dyn RxQueue>,
        irq: Arc<dyn IrqLine>,
    ) -> Bound {
        let queue = Counting::new(rx);
        let binding = NapiBinding { device, queue: 0, cpu, irq, receiver: queue.clone() };
        let napi = host.add_napi(binding).unwrap();
        let id = host.enable(napi).unwrap();
        Bound { host: host.clone(), device, napi, id, queue }
    }

    pub fn set(&self, settings: NapiSettings) {
        self.host.set_napi(self.napi, &settings).unwrap();
    }

    pub fn stats(&self) -> lull_core::Stats {
        self.host.napi_stats(self.napi)
    }

    pub fn delivered(&self) -> u64 {
        self.queue.delivered()
    }

    #[track_caller]
    pub fn await_delivered(&self, count: u64) {
        eventually(&format!("{count} packets"), || self.delivered() >= count);
        assert_eq!(self.delivered(), count);
    }

    /// Whether somebody owns the instance.
    pub fn is_owned(&self) -> bool {
        let napis = self.host.napis();
        napis.iter().any(|napi| napi.index == self.napi && napi.state.has(state::SCHED))
    }

    /// Waits until nobody owns the instance and what its last completion owed is done: the interrupt unmasked, or the
    /// timer started.
    #[track_caller]
    pub fn await_released(&self) {
        eventually("the instance's release", || !self.is_owned());
        // Whoever completed it does what is owed before it sleeps.
        await_standing_by(&self.host);
    }

    pub fn plan(&self, end: BusyEnd) -> BusyPlan {
        BusyPlan { napi_id: self.id, prefer: true, budget: 8, end, catch_up: false }
    }
}

/// A host with one CPU and one queue of the in-memory device.
pub struct World {
    pub host: Host,
    pub bound: Bound,
    pub client: Client,
}

impl World {
    pub fn new() -> World {
        World::with(HostConfig::default())
    }

    pub fn with(config: HostConfig) -> World {
        let host = Host::new(config).unwrap();
        let (bound, client) = mem_queue(&host, 0);
        // The threads that stand by go to sleep first, so that the counters start from rest.
        eventually("the threads to stand by", || host.cpu_stats(0).syscalls >= 2);
        World { host, bound, client }
    }
}

/// The other end of the wire.
#[derive(Clone)]
pub struct Client {
    tx: Arc<Mutex<Box<dyn TxQueue>>>,
    ports: Arc<(MemPort, MemPort)>,
}

impl Client {
    /// Sends this many frames; false if the ring is full before.
    pub fn send(&self, frames: usize) -> bool {
        let mut tx = lock(&self.tx);
        let all = (0..frames).all(|_| tx.transmit(Frame::copy_from(&[0; 64])).is_ok());
        tx.doorbell();
        all
    }
}

pub fn mem_queue(host: &Host, cpu: u16) -> (Bound, Client) {
    let (service, client) = mem::pair(MemConfig::default());
    let (ours, theirs) = (service.take_queue(0).unwrap(), client.take_queue(0).unwrap());
    let bound = Bound::new(host, cpu, ours.rx, ours.irq);
    (bound, Client { tx: Arc::new(Mutex::new(theirs.tx)), ports: Arc::new((service, client)) })
}

/// Sleeps until `count` packets are there. Returns how the last sleep ended.
pub fn sleep_for(worker: &Worker, bound: &Bound, count: u64) -> Woke {
    worker.turn().sleep(&Sleep { until_ns: None, fd: None }, &mut || bound.delivered() >= count)
}

/// A thread of this name with a worker on `cpu`, whom the queue wakes.
pub fn worker_thread(
    bound: &Bound,
    cpu: u16,
    name: &str,
    body: impl FnOnce(&Worker) + Send + 'static,
) -> std::thread::JoinHandle<()> {
    let worker = Worker::new(&bound.host, cpu).unwrap();
    bound.queue.wakes(&worker);
    std::thread::Builder::new().name(name.to_owned()).spawn(move || body(&worker)).unwrap()
}

/// A thread that sleeps until `count` packets are there; returns once it is in its sleep.
pub fn sleeping_thread(bound: &Bound, cpu: u16, name: &str, count: u64) -> std::thread::JoinHandle<()> {
    let asleep = Arc::new(AtomicBool::new(false));
    let (told, queue) = (asleep.clone(), bound.queue.clone());
    let before = bound.host.cpu_stats(cpu).syscalls;
    let thread = worker_thread(bound, cpu, name, move |worker| {
        let woke = worker.turn().sleep(&Sleep { until_ns: None, fd: None }, &mut || {
            told.store(true, Ordering::Release);
            queue.delivered() >= count
        });
        assert_eq!(woke, Woke::Ready);
    });
    eventually("the worker to sleep", || asleep.load(Ordering::Acquire) && bound.host.cpu_stats(cpu).syscalls > before);
    thread
}

// ---- a device that always has work ----

/// While it is on, every poll takes its whole budget.
pub struct Flood {
    on: AtomicBool,
    armed: AtomicBool,
    sink: Mutex<Option<Arc<dyn IrqSink>>>,
}

impl Flood {
    pub fn new() -> Arc<Flood> {
        Arc::new(Flood { on: AtomicBool::new(false), armed: AtomicBool::new(false), sink: Mutex::new(None) })
    }

    pub fn start(&self) {
        self.on.store(true, Ordering::SeqCst);
        self.raise();
    }

    pub fn stop(&self) {
        self.on.store(false, Ordering::SeqCst);
    }

    fn raise(&self) {
        if self.on.load(Ordering::SeqCst) && self.armed.swap(false, Ordering::SeqCst) {
            let sink = lock(&self.sink).clone();
            sink.expect("connected before it is unmasked").raise();
        }
    }
}

pub struct FloodLine(pub Arc<Flood>);

impl IrqLine for FloodLine {
    fn connect(&self, sink: Arc<dyn IrqSink>) {
        *lock(&self.0.sink) = Some(sink);
    }

    fn mask(&self) {
        self.0.armed.store(false, Ordering::SeqCst);
    }

    fn unmask(&self) {
        self.0.armed.store(true, Ordering::SeqCst);
        self.0.raise();
    }
}

pub struct FloodRx(pub Arc<Flood>);

impl RxQueue for FloodRx {
    fn poll(&mut self, budget: usize, _: &mut FramePool, _: &mut dyn FnMut(Frame, &mut FramePool)) -> usize {
        if self.0.on.load(Ordering::SeqCst) { budget } else { 0 }
    }
}

/// As [`FloodRx`], but it takes one packet more than it may.
pub struct GreedyRx(pub Arc<Flood>);

impl RxQueue for GreedyRx {
    fn poll(&mut self, budget: usize, _: &mut FramePool, _: &mut dyn FnMut(Frame, &mut FramePool)) -> usize {
        if self.0.on.load(Ordering::SeqCst) { budget + 1 } else { 0 }
    }
}

// ---- a device whose interrupt is a descriptor ----

/// A semaphore of the kernel: one count per frame.
pub struct FdDevice(OwnedFd);

impl FdDevice {
    pub fn new() -> Arc<FdDevice> {
        use rustix::event::{EventfdFlags, eventfd};
        Arc::new(FdDevice(eventfd(0, EventfdFlags::SEMAPHORE | EventfdFlags::NONBLOCK).unwrap()))
    }

    pub fn send(&self, frames: u64) {
        rustix::io::write(&self.0, &frames.to_ne_bytes()).unwrap();
    }

    /// Puts another file under the descriptor's number: every watch on the former one ends.
    pub fn delete(&self) {
        use rustix::event::{EventfdFlags, eventfd};
        let other = eventfd(0, EventfdFlags::SEMAPHORE | EventfdFlags::NONBLOCK).unwrap();
        // SAFETY: both descriptors are open and ours; the number stays that of `self.0`, whatever file is behind it.
        let replaced = unsafe { libc::dup2(other.as_raw_fd(), self.0.as_raw_fd()) };
        assert_eq!(replaced, self.0.as_raw_fd());
    }
}

pub struct FdLine(pub Arc<FdDevice>);

impl IrqLine for FdLine {
    fn connect(&self, _: Arc<dyn IrqSink>) {}
    fn mask(&self) {}
    fn unmask(&self) {}
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.0.0.as_fd())
    }
}

pub struct FdRx(pub Arc<FdDevice>);

impl RxQueue for FdRx {
    fn poll(&mut self, budget: usize, pool: &mut FramePool, deliver: &mut dyn FnMut(Frame, &mut FramePool)) -> usize {
        let mut one = [0; 8];
        let taken = (0..budget).take_while(|_| rustix::io::read(&self.0.0, &mut one).is_ok()).count();
        (0..taken).for_each(|_| {
            let frame = pool.alloc();
            deliver(frame, pool);
        });
        taken
    }
}

pub fn fd_queue(host: &Host, cpu: u16) -> (Bound, Arc<FdDevice>) {
    let device = FdDevice::new();
    let bound = Bound::new(host, cpu, Box::new(FdRx(device.clone())), Arc::new(FdLine(device.clone())));
    (bound, device)
}
