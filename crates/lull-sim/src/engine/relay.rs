//! A hypervisor's relay between its NIC and a guest's: the device's queue (tun) and the thread that empties it (vhost).
//!
//! The hypervisor's NAPI (softirq or thread) forwards every frame into the device's queue, and drops what finds it full. The vhost
//! thread copies one frame after the other into the guest's ring while that has room, interrupts the guest if its NAPI asked for
//! it, and sleeps when there is nothing to copy or nowhere to copy to; a guest that has made room wakes it (a kick, which is an exit).

use std::collections::VecDeque;

use crate::engine::id::{CpuId, QueueId, ThreadId};
use crate::engine::nic::{Packet, Queue};
use crate::engine::sim::Sim;
use crate::world::RelaySpec;

/// What the vhost thread sleeps for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waits {
    /// Nothing: it runs.
    No,
    /// A frame in the device's queue.
    Frames,
    /// Room in the guest's ring.
    Room,
}

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Relay {
    pub(crate) spec: RelaySpec,
    pub(crate) frames: VecDeque<Packet>,
    pub(crate) thread: ThreadId,
    pub(crate) waits: Waits,
}

impl Relay {
    pub(crate) fn new(spec: &RelaySpec, thread: ThreadId) -> Relay {
        let frames = VecDeque::with_capacity(spec.queue_frames as usize);
        Relay { spec: spec.clone(), frames, thread, waits: Waits::No }
    }

    /// The guest's queue.
    pub(super) fn guest_queue(&self) -> QueueId {
        QueueId::new(self.spec.guest_queue)
    }
}

impl Sim {
    /// What forwarding a frame costs if this queue is the hypervisor's.
    pub(crate) fn forwards(&self, queue: QueueId) -> Option<u64> {
        let relay = self.guest.relay.as_ref()?;
        (queue != relay.guest_queue()).then(|| u64::from(relay.spec.forward_ns) + self.lock_ns(relay, queue))
    }

    /// What the lock of the device's queue costs whoever takes it: those who are forwarding come before, but for `own`.
    fn lock_ns(&self, relay: &Relay, own: QueueId) -> u64 {
        let forwards = |&(index, queue): &(QueueId, &Queue)| {
            index != relay.guest_queue() && index != own && !queue.poll.batch.is_empty()
        };
        self.nic.queues.rows().filter(forwards).count() as u64 * u64::from(relay.spec.lock_ns)
    }

    /// The hypervisor's stack hands a frame to the guest's device.
    pub(crate) fn forward(&mut self, packet: Packet, cpu: CpuId) {
        let Some(relay) = &mut self.guest.relay else { return };
        if relay.frames.len() >= relay.spec.queue_frames as usize {
            self.tally.counts.dropped += 1;
            return;
        }
        relay.frames.push_back(packet);
        if relay.waits == Waits::Frames {
            relay.waits = Waits::No;
            let thread = relay.thread;
            self.wake(thread, cpu);
        }
    }

    fn guest_ring_is_full(&self, guest_queue: QueueId) -> bool {
        let queue = &self.nic.queues[guest_queue];
        queue.ring.len() as u32 >= queue.spec.ring_packets
    }

    /// What copying the next frame costs, or what the thread has to wait for.
    pub(crate) fn relay_next(&self) -> Result<u64, Waits> {
        let Some(relay) = &self.guest.relay else { return Err(Waits::Frames) };
        let Some(packet) = relay.frames.front() else { return Err(Waits::Frames) };
        if self.guest_ring_is_full(relay.guest_queue()) {
            return Err(Waits::Room);
        }
        let bytes = self.flood.as_ref().map_or(0, |flood| flood.packet_bytes(packet.part));
        let copy_ns = u64::from(relay.spec.copy_ns) + self.lock_ns(relay, relay.guest_queue());
        Ok(copy_ns + u64::from(bytes) * u64::from(self.world.costs.copy_byte_ps) / 1_000)
    }

    /// What interrupting the guest for the frame that was copied costs, if its NAPI waits for an interrupt.
    pub(crate) fn signal_ns(&self) -> Option<u64> {
        let relay = self.guest.relay.as_ref()?;
        self.nic.queues[relay.guest_queue()].rx.armed.then_some(u64::from(relay.spec.signal_ns))
    }

    /// A frame was copied, and the guest signalled if it waits: the interrupt is there at the end of that.
    pub(crate) fn relayed(&mut self) {
        let Some(relay) = &mut self.guest.relay else { return };
        let Some(packet) = relay.frames.pop_front() else { return };
        let queue = relay.guest_queue();
        let _ = self.packet_arrives(queue, packet);
    }

    /// A poll of the guest's ring ended, on its CPU: it fills the ring up when half of it is empty, and kicks whoever waits for that.
    pub(crate) fn guest_polled(&mut self, queue: QueueId, cpu: CpuId) {
        let Some(relay) = &self.guest.relay else { return };
        let q = &self.nic.queues[queue];
        if relay.guest_queue() != queue || relay.waits != Waits::Room || 2 * q.ring.len() as u32 > q.spec.ring_packets {
            return;
        }
        let thread = relay.thread;
        if let Some(relay) = &mut self.guest.relay {
            relay.waits = Waits::No;
        }
        self.cpus[cpu].debt_ns += self.guest.vm_exit_ns();
        self.wake(thread, cpu);
    }
}
