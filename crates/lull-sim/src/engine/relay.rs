//! A hypervisor's relay between its NIC and a guest's: the device's queue (tun) and the thread that empties it (vhost).
//!
//! The hypervisor's NAPI (softirq or thread) forwards every frame into the device's queue, and drops it if that is
//! full. The vhost thread copies one frame after the other into the guest's ring while that has room, interrupts the
//! guest if its NAPI has asked for it, and sleeps when there is nothing to copy or no room. A guest that has made room
//! wakes it (a kick, which is an exit).

use std::collections::VecDeque;

use crate::engine::cpus::Cpus;
use crate::engine::env::Env;
use crate::engine::flood::Flood;
use crate::engine::id::{CpuId, QueueId, ThreadId};
use crate::engine::nic::{Nic, Packet, Queue};
use crate::world::RelaySpec;

/// What the vhost thread sleeps for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waits {
    /// It does not sleep.
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

    /// Whether this queue is the hypervisor's, whose frames are forwarded.
    pub(crate) fn forwards(&self, queue: QueueId) -> bool {
        queue != self.guest_queue()
    }

    /// Returns what forwarding a frame of this queue costs.
    pub(crate) fn forward_cost_ns(&self, nic: &Nic, queue: QueueId) -> u64 {
        u64::from(self.spec.forward_ns) + self.lock_ns(nic, queue)
    }

    /// Returns what the lock of the device's queue costs: the CPU waits for all that are forwarding except `own`.
    fn lock_ns(&self, nic: &Nic, own: QueueId) -> u64 {
        let forwards = |&(index, queue): &(QueueId, &Queue)| {
            index != self.guest_queue() && index != own && !queue.poll.batch.is_empty()
        };
        nic.queues.rows().filter(forwards).count() as u64 * u64::from(self.spec.lock_ns)
    }

    /// The hypervisor's stack hands a frame to the guest's device.
    pub(crate) fn forward(&mut self, env: &mut Env, cpus: &mut Cpus, packet: Packet, cpu: CpuId) {
        if self.frames.len() >= self.spec.queue_frames as usize {
            env.tally.counts.dropped += 1;
            return;
        }
        self.frames.push_back(packet);
        if self.waits == Waits::Frames {
            self.waits = Waits::No;
            cpus.wake(env, self.thread, cpu);
        }
    }

    /// Returns what copying the next frame costs, or what the thread has to wait for.
    pub(crate) fn next_ns(&self, env: &Env, nic: &Nic, flood: Option<&Flood>) -> Result<u64, Waits> {
        let Some(packet) = self.frames.front() else { return Err(Waits::Frames) };
        let guest = &nic.queues[self.guest_queue()];
        if guest.ring.len() as u32 >= guest.spec.ring_packets {
            return Err(Waits::Room);
        }
        let bytes = flood.map_or(0, |flood| flood.packet_bytes(packet.part));
        let copy_ns = u64::from(self.spec.copy_ns) + self.lock_ns(nic, self.guest_queue());
        Ok(copy_ns + u64::from(bytes) * u64::from(env.world.costs.copy_byte_ps) / 1_000)
    }

    /// Returns what interrupting the guest for the copied frame costs, if its NAPI waits for an interrupt.
    pub(crate) fn signal_ns(&self, nic: &Nic) -> Option<u64> {
        nic.queues[self.guest_queue()].rx.armed.then_some(u64::from(self.spec.signal_ns))
    }

    /// A frame was copied, and the guest signalled if it waits: the interrupt comes at the end of that.
    pub(crate) fn copied(&mut self, env: &mut Env, cpus: &mut Cpus, nic: &mut Nic) {
        let Some(packet) = self.frames.pop_front() else { return };
        let _ = nic.packet_arrives(env, cpus, self.guest_queue(), packet);
    }

    /// A poll of the guest's ring has ended on the guest's CPU: it refills the ring when half of it is empty, and kicks
    /// vhost if that waits for room.
    pub(crate) fn guest_polled(&mut self, env: &mut Env, cpus: &mut Cpus, nic: &Nic, queue: QueueId, cpu: CpuId) {
        let q = &nic.queues[queue];
        if self.guest_queue() != queue || self.waits != Waits::Room || 2 * q.ring.len() as u32 > q.spec.ring_packets {
            return;
        }
        self.waits = Waits::No;
        cpus[cpu].debt_ns += cpus.vm_exit_ns();
        cpus.wake(env, self.thread, cpu);
    }
}
