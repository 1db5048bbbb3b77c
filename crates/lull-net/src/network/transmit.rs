//! Queueing disciplines of a network's transmit queues (§16). Each queue with a discipline has a second NAPI for
//! sending, on another device of the host, `NAME-tx`.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use lull_core::mode::GroupPolling;
use lull_host::{Delivery, DeviceId, Host, NapiBinding};
use lull_qdisc::Kind;

use super::{Network, NetworkError, lock};
use crate::queue::Queue;
use crate::transmit::{Intake, Ring, RingRoom, TransmitStats, TxSide};

/// How long a queue that loses its discipline may take to send its frames. What is left then (because the wire takes
/// nothing, or a flow is paced) is dropped and counted.
const DRAIN_MAX: Duration = Duration::from_millis(200);

/// The transmit queues with a discipline.
pub(super) struct Transmit {
    host: Host,
    delivery: Arc<Delivery>,
    device_id: DeviceId,
    kind: Kind,
    sides: Vec<Arc<TxSide>>,
}

impl Drop for Transmit {
    fn drop(&mut self) {
        for side in &self.sides {
            // This is refused if the instance is disabled already.
            let _ = self.host.disable(side.napi());
            send_out(side, &self.delivery);
        }
        // This is refused only if an operator enabled an instance by hand, past the network.
        let _ = self.host.remove_device(self.device_id);
    }
}

impl Transmit {
    pub(super) fn enable(&self) {
        for side in &self.sides {
            // This is refused for a queue that a panic took down, which stays down.
            let _ = self.host.enable(side.napi());
            side.look(&self.delivery);
        }
    }

    pub(super) fn disable(&self) {
        for side in &self.sides {
            let _ = self.host.disable(side.napi());
        }
    }

    /// From now on senders run the queues, and send what is in them at once, whatever its rate.
    pub(super) fn end_pacing(&self) {
        self.disable();
        self.sides.iter().for_each(|side| side.end_pacing());
    }

    fn napis(&self) -> Vec<u32> {
        self.sides.iter().map(|side| side.napi()).collect()
    }
}

impl Network {
    /// The discipline of the transmit queues.
    pub fn qdisc(&self) -> Kind {
        lock(&self.0.transmit).as_ref().map_or(Kind::NoQueue, |transmit| transmit.kind)
    }

    /// What the transmit queues have done since they got their discipline, one entry each; empty without a discipline.
    pub fn transmit_stats(&self) -> Vec<TransmitStats> {
        let transmit = lock(&self.0.transmit);
        transmit.iter().flat_map(|transmit| &transmit.sides).map(|side| side.stats()).collect()
    }

    /// The instances of the transmit queues, by their places in the host's table. There are none without a discipline,
    /// as the shards then send themselves.
    pub fn transmit_napis(&self) -> Vec<u32> {
        lock(&self.0.transmit).as_ref().map_or_else(Vec::new, Transmit::napis)
    }

    /// The discipline for a way of polling. A group that sends needs one.
    fn wanted_qdisc(&self, group: Option<GroupPolling>) -> Option<Kind> {
        let by_group = group.is_some_and(|group| group.transmit);
        match self.0.qdisc {
            // This is Linux's default for devices.
            None if by_group => Some(Kind::PfifoFast),
            Some(Kind::NoQueue) if by_group => Some(Kind::NoQueue),
            Some(Kind::NoQueue) | None => None,
            kind => kind,
        }
    }

    /// Puts the discipline in force that belongs to this way of polling. The queues are in no group.
    pub(super) fn set_qdisc(&self, group: Option<GroupPolling>) -> Result<(), NetworkError> {
        let wanted = self.wanted_qdisc(group);
        let enabled = lock(&self.0.enabled);
        let mut current = lock(&self.0.transmit);
        if current.as_ref().map(|transmit| transmit.kind) == wanted {
            return Ok(());
        }
        if let Some(former) = current.take() {
            // Neither a group nor softirq polls the former queues any more. From here on senders run them, and
            // afterwards the shards send themselves.
            former.disable();
            self.0.queues.iter().for_each(|queue| queue.take_back_ring(&self.0.host, &self.0.delivery));
        }
        if let Some(kind) = wanted {
            *current = Some(self.queues_with(kind, *enabled)?);
        }
        Ok(())
    }

    fn queues_with(&self, kind: Kind, enabled: bool) -> Result<Transmit, NetworkError> {
        let (host, info) = (&self.0.host, self.0.device.info());
        let device_id = host.add_device(&format!("{}-tx", info.name), self.0.queues.len(), true);
        let mut transmit =
            Transmit { host: host.clone(), delivery: self.0.delivery.clone(), device_id, kind, sides: Vec::new() };
        let intakes = match self.add_sides(&mut transmit, info.mtu_bytes) {
            Ok(intakes) => intakes,
            Err(error) => {
                // The queues that were made have taken the room interrupts, which are given back.
                drop(transmit);
                self.0.queues.iter().for_each(|queue| queue.hear_of_room(host, &self.0.delivery));
                return Err(error);
            }
        };
        for ((queue, side), intake) in self.0.queues.iter().zip(&transmit.sides).zip(intakes) {
            queue.give_ring(host, &self.0.delivery, side.clone(), intake);
        }
        if enabled {
            transmit.enable();
        }
        Ok(transmit)
    }

    /// Makes the instances, one for each queue.
    fn add_sides(&self, transmit: &mut Transmit, mtu_bytes: usize) -> Result<Vec<Intake>, NetworkError> {
        let (host, delivery) = (&self.0.host, &self.0.delivery);
        let mut intakes = Vec::new();
        for (index, queue) in self.0.queues.iter().enumerate() {
            let (side, intake) = TxSide::new(transmit.kind, mtu_bytes, queue.napi(), queue.room(delivery));
            let cpu = host.napi_cpu(queue.napi()).unwrap_or(0);
            let irq = Arc::new(RingRoom::new(&side));
            let binding = NapiBinding { device: transmit.device_id, queue: index, cpu, irq, receiver: side.clone() };
            side.bind(host.add_napi(binding)?);
            transmit.sides.push(side);
            intakes.push(intake);
        }
        Ok(intakes)
    }
}

/// Runs `change`. A panic in it takes down the queue in which it happens, and the caller goes on with the others.
pub(super) fn contained(change: impl FnOnce()) {
    // The panic was reported already. Dropping a payload of an unknown type could panic once more.
    let _ = catch_unwind(AssertUnwindSafe(change)).map_err(std::mem::forget);
}

/// Sends what waits, as far as the wire takes it in time. Nobody else polls the queue meanwhile.
fn send_out(side: &TxSide, delivery: &Delivery) {
    let began = Instant::now();
    loop {
        contained(|| side.kick(delivery));
        if side.is_empty() || began.elapsed() > DRAIN_MAX {
            return;
        }
        std::thread::sleep(Duration::from_micros(100));
    }
}

impl Queue {
    /// Has the transmit side send for this queue from now on.
    fn give_ring(&self, host: &Host, delivery: &Delivery, side: Arc<TxSide>, intake: Intake) {
        use lull_nic::IrqLine;
        side.room().connect(host.room_sink(self.napi()));
        contained(|| {
            self.with(delivery, |inside, now_ns| {
                let intake = Ring { tx: Box::new(intake), unsent: false };
                side.put_ring(inside.swap_ring(intake, side.room(), Some(side.clone())));
                inside.use_room(now_ns);
            });
            // This runs without the shard's lock, as a run that panics takes the shard down as well.
            side.kick(delivery);
        });
    }

    /// Has this queue send by itself from now on.
    fn take_back_ring(&self, host: &Host, delivery: &Delivery) {
        let Some(side) = self.transmit(delivery) else { return };
        send_out(&side, delivery);
        let ring_room = side.ring_room();
        contained(|| {
            self.with(delivery, |inside, now_ns| {
                // This happens before the ring is the shard's again, as from then on its room interrupt is for the
                // shard.
                ring_room.mask();
                ring_room.connect(host.room_sink(self.napi()));
                if let Some(ring) = side.take_ring(now_ns) {
                    let _ = inside.swap_ring(ring, ring_room, None);
                }
                inside.use_room(now_ns);
            });
        });
    }

    /// Connects the room interrupt to the shard again. It went elsewhere meanwhile, although the queue has kept its
    /// ring.
    fn hear_of_room(&self, host: &Host, delivery: &Delivery) {
        contained(|| {
            self.with(delivery, |inside, now_ns| {
                inside.hear_of_room(host.room_sink(self.napi()));
                inside.use_room(now_ns);
            });
        });
    }
}
