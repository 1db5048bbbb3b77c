//! Transmit queues (§16) as the host runs them: senders with an [`Intake`] behind a shard's lock, a [`TxSide`] whose
//! NAPI is an instance of a [`Host`], and the pollers, NAPI threads and interrupt threads of that host.
//!
//! The device is a wire of the model's. It orders nothing, and its far end finds a frame once the doorbell has rung for
//! it. What is in the intake is published relaxed, so that only the queue's word orders it. If a frame stays behind,
//! the far end sleeps for ever, which loom reports as a deadlock. If two threads run the queue at once, one finds the
//! drain locked, which is a panic.

use std::collections::VecDeque;
use std::sync::{Arc, MutexGuard, PoisonError};

use loom::sync::Mutex;
use loom::thread::{self, JoinHandle};
use lull_core::{GroupConfig, NapiSettings, Threaded};
use lull_host::{Delivery, GroupId, GroupOptions, Host, HostConfig, NapiBinding};
use lull_nic::{Doorbell, Frame, IrqLine, IrqSink, TxQueue};
use lull_qdisc::Kind;

use super::{Waiter, builder};
use crate::ready_list::Wake;
use crate::transmit::{Intake, Ring, RingRoom, TxSide};

/// This is more preemptions than any model has room for.
const ALL: usize = u8::MAX as usize;
/// How many frames a visit takes at most.
const WEIGHT: u32 = 4;

/// A device's ring with `slots` slots and a room interrupt. A step under its lock is a single one to the models, as
/// they do not see that lock.
#[derive(Clone)]
struct Wire {
    slots: usize,
    on: Arc<std::sync::Mutex<OnWire>>,
    /// The far end sleeps here until there is something.
    arrives: Waiter,
}

#[derive(Default)]
struct OnWire {
    staged: Vec<Frame>,
    rung: VecDeque<Frame>,
    armed: bool,
    sink: Option<Arc<dyn IrqSink>>,
}

impl Wire {
    fn lock(&self) -> MutexGuard<'_, OnWire> {
        self.on.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Raises the interrupt if there is room and somebody waits for it.
    fn look(&self, mut on: MutexGuard<'_, OnWire>) {
        let raises = on.staged.len() + on.rung.len() < self.slots && std::mem::take(&mut on.armed);
        let sink = on.sink.clone().filter(|_| raises);
        drop(on);
        if let Some(sink) = sink {
            sink.raise();
        }
    }

    /// Takes the next frame at the far end.
    fn take(&self) -> Option<Frame> {
        let mut on = self.lock();
        let frame = on.rung.pop_front()?;
        self.look(on);
        Some(frame)
    }
}

impl TxQueue for Wire {
    fn transmit(&mut self, frame: Frame) -> Result<(), Frame> {
        if self.free_slots() == 0 {
            return Err(frame);
        }
        self.lock().staged.push(frame);
        Ok(())
    }

    fn doorbell(&mut self) -> Doorbell {
        let staged = std::mem::take(&mut self.lock().staged);
        if !staged.is_empty() {
            self.lock().rung.extend(staged);
            self.arrives.wake();
        }
        Doorbell::Done
    }

    fn free_slots(&self) -> usize {
        let on = self.lock();
        self.slots - on.staged.len() - on.rung.len()
    }
}

impl IrqLine for Wire {
    fn connect(&self, sink: Arc<dyn IrqSink>) {
        self.lock().sink = Some(sink);
    }

    fn mask(&self) {
        self.lock().armed = false;
    }

    fn unmask(&self) {
        let mut on = self.lock();
        on.armed = true;
        self.look(on);
    }
}

/// A shard whose senders share a transmit queue.
struct Queue {
    delivery: Arc<Delivery>,
    side: Arc<TxSide>,
    /// The shard's lock protects the intake here.
    shard: Mutex<Intake>,
    room_came: Waiter,
}

/// It is told when there is room in the intake.
struct RoomCame(Waiter);

impl IrqSink for RoomCame {
    fn raise(&self) {
        self.0.wake();
    }
}

impl Queue {
    /// Sends a frame, as [`crate::queue::Queue`] does: a sender that finds no room unmasks the room interrupt under the
    /// lock, and looks again when it was raised.
    fn send(&self, number: u8) {
        loop {
            {
                let mut intake = self.shard.lock().unwrap();
                if intake.free_slots() != 0 {
                    assert!(intake.transmit(Frame::copy_from(&[number; 60])).is_ok(), "there was room");
                    let _ = intake.doorbell();
                    break;
                }
                self.side.room().unmask();
            }
            self.room_came.sleep();
        }
        self.side.kick(&self.delivery);
    }
}

/// One transmit queue, and the far end of its wire.
struct World {
    host: Host,
    napi: u32,
    queue: Arc<Queue>,
    wire: Wire,
    arrived: Vec<u8>,
    explores: bool,
}

impl World {
    /// A world whose ring has `ring_slots` slots, on a host with `cpus` CPUs.
    fn new(ring_slots: usize, cpus: usize) -> World {
        let config = HostConfig { cpus: vec![None; cpus], napis_max: 1, ..HostConfig::default() };
        let host = Host::of_a_model(config).unwrap();
        let wire = Wire { slots: ring_slots, on: Arc::default(), arrives: Waiter::new() };
        let (side, intake) = TxSide::new(Kind::NoQueue, 1500, u32::MAX, Arc::new(wire.clone()));
        let device = host.add_device("wire-tx", 1, true);
        let irq = Arc::new(RingRoom::new(&side));
        let napi = host.add_napi(NapiBinding { device, queue: 0, cpu: 0, irq, receiver: side.clone() }).unwrap();
        side.bind(napi);
        side.put_ring(Ring { tx: Box::new(wire.clone()), unsent: false });
        host.enable(napi).unwrap();
        let room_came = Waiter::new();
        side.room().connect(Arc::new(RoomCame(room_came.clone())));
        let queue = Arc::new(Queue { delivery: host.delivery(), side, shard: Mutex::new(intake), room_came });
        World { host, napi, queue, wire, arrived: Vec::new(), explores: false }
    }

    /// Makes a group of these CPUs that polls the queue, and rests as soon as it finds nothing.
    fn grouped(&self, cpus: &[u16]) -> GroupId {
        let group = self.group(cpus);
        self.host.group_add(group, self.napi, WEIGHT).unwrap();
        group
    }

    fn group(&self, cpus: &[u16]) -> GroupId {
        let config = GroupConfig { rest_ns: Some(0), ..GroupConfig::default() };
        let group =
            self.host.new_group(GroupOptions { config, oversubscribe: true, ..GroupOptions::default() }).unwrap();
        cpus.iter().for_each(|cpu| self.host.group_attach(group, *cpu).unwrap());
        group
    }

    /// Starts a sender of these frames.
    fn sender(&self, numbers: &'static [u8]) -> JoinHandle<()> {
        let queue = self.queue.clone();
        thread::spawn(move || numbers.iter().for_each(|number| queue.send(*number)))
    }

    /// Takes a frame at the far end, if its doorbell has rung.
    fn take(&mut self) -> bool {
        let frame = self.wire.take();
        self.arrived.extend(frame.as_ref().map(|frame| frame.data()[0]));
        frame.is_some()
    }

    /// Takes this many frames at the far end.
    fn take_all(&mut self, frames: usize) {
        while self.arrived.len() < frames {
            while self.take() {}
            if self.arrived.len() < frames {
                self.wire.arrives.sleep();
            }
        }
    }

    /// Has the poller of a group send frame 0 and rest.
    fn at_rest(&mut self) {
        self.queue.send(0);
        self.take_all(1);
        self.arrived.clear();
    }

    /// From here on loom explores nothing: what follows happens in one way.
    fn is_explored(&mut self) {
        if std::mem::take(&mut self.explores) {
            loom::stop_exploring();
        }
    }

    /// Ends the contexts. Every frame has arrived once, and those of each sender in their order.
    fn ends(mut self, senders: &[&[u8]]) {
        self.is_explored();
        let World { host, wire, mut arrived, .. } = self;
        drop(host);
        arrived.extend(std::iter::from_fn(|| wire.take()).map(|frame| frame.data()[0]));
        for sent in senders {
            let theirs: Vec<u8> = arrived.iter().copied().filter(|number| sent.contains(number)).collect();
            assert_eq!(theirs, *sent, "I15: a frame is lost, doubled or overtaken");
        }
        assert_eq!(arrived.len(), senders.iter().map(|sent| sent.len()).sum::<usize>());
    }
}

/// Explores what happens in `body`. The world is set up in one way, and ends in one.
fn check(
    preemptions: usize,
    set_up: impl Fn() -> World + Sync + Send + 'static,
    body: impl Fn(World) + Sync + Send + 'static,
) {
    let mut builder = builder(preemptions);
    builder.expect_explicit_explore = true;
    builder.check(move || {
        let mut world = set_up();
        world.explores = true;
        loom::explore();
        body(world);
    });
}

/// There are only senders. When they have sent, everything is sent. All interleavings.
#[test]
fn loom_tx_two_senders_of_whom_one_runs() {
    check(
        ALL,
        || World::new(4, 1),
        |mut world| {
            let other = world.sender(&[2]);
            world.queue.send(1);
            other.join().unwrap();
            while world.take() {}
            assert_eq!(world.arrived.len(), 2, "I15: a frame stays in the intake, and nobody runs");
            world.ends(&[&[1], &[2]]);
        },
    );
}

/// As above, with two frames of one of them. Three preemptions.
#[test]
fn loom_tx_a_sender_of_two_frames_against_another() {
    check(
        3,
        || World::new(4, 1),
        |mut world| {
            let other = world.sender(&[2, 3]);
            world.queue.send(1);
            other.join().unwrap();
            while world.take() {}
            assert_eq!(world.arrived.len(), 3, "I15: a frame stays in the intake, and nobody runs");
            world.ends(&[&[1], &[2, 3]]);
        },
    );
}

/// A ring of one frame is full, and a frame waits in the intake. The next frames wait for the ring's room interrupt,
/// which the transmit queue's NAPI gets in the interrupt thread, and for that of the intake. One preemption.
#[test]
fn loom_tx_room_comes_while_it_is_asked_for() {
    check(
        1,
        || {
            let world = World::new(1, 1);
            world.host.start_irq_thread(0).unwrap();
            (1..=3).for_each(|number| world.queue.send(number));
            world
        },
        |mut world| {
            let sender = world.sender(&[4, 5]);
            world.take_all(2);
            world.is_explored();
            world.take_all(5);
            sender.join().unwrap();
            world.ends(&[&[1, 2, 3, 4, 5]]);
        },
    );
}

/// The ring has room for one frame, and the interrupt thread wakes a NAPI thread. Two preemptions.
#[test]
fn loom_tx_room_comes_for_a_napi_thread() {
    check(
        2,
        || {
            let world = World::new(1, 1);
            let threaded = NapiSettings { threaded: Threaded::On, ..NapiSettings::default() };
            world.host.set_napi(world.napi, &threaded).unwrap();
            world.host.start_irq_thread(0).unwrap();
            world
        },
        |mut world| {
            let sender = world.sender(&[1, 2]);
            world.take_all(2);
            sender.join().unwrap();
            world.ends(&[&[1, 2]]);
        },
    );
}

/// A sender sends while the poller drains, rings and rests. Two preemptions.
#[test]
fn loom_tx_a_sender_against_a_poller_that_rests() {
    check(
        2,
        || {
            let mut world = World::new(4, 1);
            world.grouped(&[0]);
            world.at_rest();
            world
        },
        |mut world| {
            world.queue.send(1);
            world.queue.send(2);
            world.take_all(2);
            world.ends(&[&[1, 2]]);
        },
    );
}

/// The ring of a group's queue is full. The poller rests, and the ring's room interrupt ends the rest. Two preemptions.
#[test]
fn loom_tx_room_ends_a_rest() {
    check(
        2,
        || {
            let mut world = World::new(1, 1);
            world.grouped(&[0]);
            world.at_rest();
            world
        },
        |mut world| {
            let sender = world.sender(&[1, 2]);
            world.take_all(2);
            sender.join().unwrap();
            world.ends(&[&[1, 2]]);
        },
    );
}

/// A queue enters a group while a sender sends. One preemption.
#[test]
fn loom_tx_a_queue_enters_a_group() {
    check(
        1,
        || World::new(4, 1),
        |mut world| {
            let sender = world.sender(&[1]);
            let group = world.group(&[0]);
            world.host.group_add(group, world.napi, WEIGHT).unwrap();
            sender.join().unwrap();
            world.take_all(1);
            world.ends(&[&[1]]);
        },
    );
}

/// A queue leaves its group while a sender sends. Two preemptions.
#[test]
fn loom_tx_a_queue_leaves_its_group() {
    check(
        2,
        || {
            let mut world = World::new(4, 1);
            world.grouped(&[0]);
            world.at_rest();
            world
        },
        |mut world| {
            let sender = world.sender(&[1]);
            world.host.group_remove(GroupId::from_index(0), world.napi).unwrap();
            sender.join().unwrap();
            world.take_all(1);
            world.ends(&[&[1]]);
        },
    );
}

/// A poller that may hold a doorbell back is detached, and another goes on. Two preemptions.
#[test]
fn loom_tx_a_poller_with_a_doorbell_is_detached() {
    check(
        2,
        || {
            let mut world = World::new(4, 2);
            world.grouped(&[0, 1]);
            world.at_rest();
            world
        },
        |mut world| {
            world.queue.send(1);
            world.host.group_detach(GroupId::from_index(0), 0).unwrap();
            world.take_all(1);
            world.ends(&[&[1]]);
        },
    );
}
