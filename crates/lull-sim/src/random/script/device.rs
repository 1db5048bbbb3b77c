//! What is done to the device: queues go down and come back, with or without what was in them, and NAPIs get threads.

use lull_core::event::EventKind;
use lull_core::{DisableClaim, NapiSettings, Threaded, ThreadedOff, state};
use lull_qdisc::Packet;

use super::{DISABLE_RETRY_NS, Progress, Script, THREADED_RETRY_NS};
use crate::engine::agenda::PacketKind;
use crate::engine::id::{CpuId, Id, QueueId, StepId};
use crate::engine::recorder::{What, Whom};
use crate::engine::sim::Sim;
use crate::engine::transition::Transition;

/// How many sockets a step sends from, and the length of their frames.
const SENDERS: u32 = 3;
const SENT_BYTES: u32 = 1_000;

impl Script {
    /// Whether the step may begin: steps that take a queue down or change its thread exclude each other (RTNL).
    pub(super) fn begins(&mut self, sim: &mut Sim, queue: QueueId, before: Progress, step: StepId, cpu: CpuId) -> bool {
        if before != Progress::Fresh {
            return true;
        }
        let busy = std::mem::replace(&mut self.busy[queue], true);
        if busy {
            sim.env.tell(cpu, What::Skipped(step));
        }
        !busy
    }

    pub(super) fn act_thread(
        &mut self,
        sim: &mut Sim,
        queue: QueueId,
        threaded: Threaded,
        before: Progress,
        step: StepId,
        cpu: CpuId,
    ) -> Option<(Progress, u64)> {
        if !self.begins(sim, queue, before, step, cpu) {
            return None;
        }
        if self.kept[queue].is_some() || sim.nic.queues[queue].napi.snapshot().has(state::GROUPED) {
            // A member has no thread of its own (EBUSY).
            self.busy[queue] = false;
            sim.env.tell(cpu, What::Skipped(step));
            return None;
        }
        let settings = NapiSettings { threaded, ..sim.nic.queues[queue].napi.settings() };
        if before == Progress::Fresh {
            let _ = self.config.set_queue(queue.place(), &settings);
            sim.nic.queues[queue].napi.set(&settings);
            self.written(queue, &settings);
        }
        let again = Some((Progress::Waiting(0), THREADED_RETRY_NS));
        let (napi, whom) = (&sim.nic.queues[queue].napi, Whom::Queue(queue));
        match threaded {
            Threaded::Off => {
                if napi.threaded_off() == ThreadedOff::Owned {
                    sim.env.note(cpu, whom, Transition::ThreadedOffWaits);
                    return again;
                }
                if napi.thread_has_round() {
                    return again;
                }
                sim.env.note(cpu, whom, Transition::ThreadedOff);
            }
            Threaded::On => {
                napi.threaded_on(false);
                sim.env.note(cpu, whom, Transition::ThreadedOn);
            }
            Threaded::BusyPoll => {
                napi.threaded_on(true);
                sim.env.note(cpu, whom, Transition::ThreadedBusy);
            }
        }
        self.busy[queue] = false;
        None
    }

    pub(super) fn act_disable(
        &mut self,
        sim: &mut Sim,
        queue: QueueId,
        (down_ns, reset): (u32, bool),
        before: Progress,
        step: StepId,
        cpu: CpuId,
    ) -> Option<(Progress, u64)> {
        if !self.begins(sim, queue, before, step, cpu) {
            return None;
        }
        match before {
            Progress::Down => {
                self.enable(sim, queue, cpu);
                return self.enters_again(sim, queue, 0, cpu);
            }
            Progress::Entering(tried) => return self.enters_again(sim, queue, tried, cpu),
            Progress::Fresh => {
                sim.nic.queues[queue].napi.disable_begin();
                sim.transmit_goes(queue, true);
                sim.group_remove(queue, cpu);
            }
            Progress::Waiting(_) => {}
        }
        let cx = sim.env.cx(cpu);
        let napi = &sim.nic.queues[queue].napi;
        let id = napi.id();
        // Whoever runs the queue ends the run first (dev_deactivate_many).
        if sim.nic.queues[queue].is_run() || napi.disable_claim() == DisableClaim::Owned {
            sim.env.note(cpu, Whom::Queue(queue), Transition::DisableWaits);
            return Some((Progress::Waiting(0), DISABLE_RETRY_NS));
        }
        napi.disable_end(&cx);
        sim.env.note(cpu, Whom::Queue(queue), Transition::DisableClaimed);
        sim.nic.sync_timer(&mut sim.env, &mut sim.cpus, queue);
        sim.nic.shut(&mut sim.env, queue);
        sim.transmit_flush(queue, reset);
        if reset {
            self.flush(sim, queue);
        }
        self.config.disabled(queue.place(), id);
        Some((Progress::Down, u64::from(down_ns)))
    }

    /// Sends frames of three sockets by a transmit queue.
    pub(super) fn act_send(
        &mut self,
        sim: &mut Sim,
        (queue, frames, rate_bytes_per_s): (QueueId, u32, u32),
        step: StepId,
        cpu: CpuId,
    ) {
        if sim.nic.queues[queue].transmit.is_none() {
            sim.env.tell(cpu, What::Skipped(step));
            return;
        }
        let rate_bytes_per_s = (rate_bytes_per_s != 0).then_some(u64::from(rate_bytes_per_s));
        for frame in 0..frames {
            // No connection has such a number.
            let flow = 1 << 32 | u64::from(step.raw()) << 2 | u64::from(frame % SENDERS);
            let priority = (frame % 2 * 7) as u8;
            let packet = Packet { bytes: SENT_BYTES, flow, priority, rate_bytes_per_s, ..Packet::new(None) };
            sim.frame_enters(queue, packet, cpu);
        }
    }

    fn enable(&mut self, sim: &mut Sim, queue: QueueId, cpu: CpuId) {
        let fresh = self.next_id;
        let (id, settings) = self.config.enabled(queue.place(), || fresh);
        let same = id != fresh;
        if !same {
            self.next_id += 1;
        }
        sim.nic.queues[queue].napi.enable(id, Some(&settings));
        self.written(queue, &settings);
        sim.transmit_goes(queue, false);
        sim.env.cx(cpu).emit(queue.raw(), EventKind::Enable);
        sim.env.note(cpu, Whom::Queue(queue), if same { Transition::EnableSameId } else { Transition::EnableNewId });
        sim.nic.set_up(&mut sim.env, &mut sim.cpus, queue);
    }

    /// A reset loses what is in the rings; clients send their requests again.
    fn flush(&mut self, sim: &mut Sim, queue: QueueId) {
        let lost = std::mem::take(&mut sim.nic.queues[queue].ring);
        let q = &mut sim.nic.queues[queue];
        q.flushed += lost.len() as u64;
        q.tx_done = 0;
        q.looked_at(sim.env.now_ns);
        for packet in lost {
            if packet.kind != PacketKind::Request {
                continue;
            }
            if sim.clients.is_datagram(packet.conn) {
                sim.clients.inside -= 1;
            } else {
                sim.clients.send_again(&mut sim.env, packet.conn, packet.kind);
            }
        }
    }
}
