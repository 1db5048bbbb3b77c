//! Runs of a transmit queue, step by step, by senders, the queue's NAPI and a group's pollers; and below them the
//! doorbell, the wire and the room interrupt.

use lull_core::group::Transmitted;
use lull_core::tx::{Enqueued, TxDrain, TxEnd, TxSent};
use lull_qdisc::Packet;

use super::{INTAKE_FRAMES, TransmitQueue, TxFrame};
use crate::engine::agenda::Event;
use crate::engine::cpu::Irq;
use crate::engine::cpus::Cpus;
use crate::engine::env::Env;
use crate::engine::id::{ConnId, CpuId, QueueId};
use crate::engine::nic::Nic;
use crate::engine::recorder::Whom;
use crate::engine::sim::Sim;
use crate::engine::transition::Transition;

/// A sender's run that is under way.
#[derive(Debug)]
pub(super) struct SenderRun {
    drain: TxDrain,
    sent: Transmitted,
    /// The CPU that pays for it.
    cpu: CpuId,
    /// The flow whose send call makes it; `None` if no send call does.
    flow: Option<u64>,
    /// When its batch is on the ring.
    ends_ns: u64,
}

/// A run of the NAPI's poll that is under way.
pub(super) type PolledRun = (TxDrain, Transmitted);

impl Sim {
    fn transmit(&mut self, queue: QueueId) -> &mut TransmitQueue {
        match &mut self.nic.queues[queue].transmit {
            Some(transmit) => transmit,
            None => unreachable!("queue {queue} does not transmit"),
        }
    }

    /// A worker on `cpu` has served a request, and writes the answer.
    pub(crate) fn answers(&mut self, conn: ConnId, cpu: CpuId) {
        if let Some(queue) = self.clients.answer(&mut self.env, &self.nic, conn, cpu) {
            let (flow, bytes) = (u64::from(conn.raw()), self.transmit(queue).spec.frame_bytes);
            self.frame_enters(queue, Packet { bytes, flow, ..Packet::new(Some(conn)) }, cpu);
        }
    }

    /// A sender on `cpu` pushes a frame.
    pub(crate) fn frame_enters(&mut self, queue: QueueId, packet: Packet<TxFrame>, cpu: CpuId) {
        let now_ns = self.env.now_ns;
        let tx = self.transmit(queue);
        tx.enqueued += 1;
        if tx.down || tx.intake.len() == INTAKE_FRAMES {
            tx.dropped += 1;
            return self.answers_lost([packet.frame]);
        }
        let flow = packet.flow;
        tx.intake.push_back(packet);
        self.nic.queues[queue].noticed(now_ns);
        self.kick(queue, flow, cpu);
    }

    fn kick(&mut self, queue: QueueId, flow: u64, cpu: CpuId) {
        let enqueued = self.transmit(queue).word.enqueued();
        self.env.tally.transitions += 1;
        let transition = match enqueued {
            Enqueued::Run(run) => {
                self.run_begins(queue, TxDrain::new(run), Some(flow), cpu);
                Transition::TxRun
            }
            Enqueued::Noted => Transition::TxNoted,
            Enqueued::Group => {
                let member = self.nic.queues[queue].group;
                if let Some((group, slot)) = member
                    && let Some(wake) = self.nic.groups.table[group].group.enqueued(slot, &self.env.cx(cpu))
                {
                    self.nic.groups.wake(&mut self.env, &mut self.cpus, group, &wake, cpu);
                }
                Transition::TxGroup
            }
        };
        self.env.note(cpu, Whom::Queue(queue), transition);
        self.nic.group_notices(&mut self.env, &mut self.cpus, queue);
    }

    /// The runner looks, and takes up a batch. Returns the batch, and what it costs.
    fn takes_batch(&mut self, queue: QueueId, budget: u32) -> (Transmitted, u64) {
        let (now_ns, mut lost) = (self.env.now_ns, Vec::new());
        self.nic.queues[queue].looked_at(now_ns);
        let sent = self.transmit(queue).batch(budget, now_ns, &mut lost);
        self.answers_lost(lost);
        (sent, u64::from(sent.frames) * u64::from(self.env.world.costs.tx_frame_ns))
    }

    /// Begins a sender's run: its CPU works for all who have sent.
    fn run_begins(&mut self, queue: QueueId, drain: TxDrain, flow: Option<u64>, cpu: CpuId) {
        let budget = drain.look(&self.transmit(queue).word);
        let (sent, cost_ns) = self.takes_batch(queue, budget);
        let cost_ns = cost_ns + u64::from(self.env.world.costs.doorbell_ns);
        self.cpus[cpu].debt_ns += cost_ns;
        let ends_ns = self.env.now_ns + cost_ns;
        let tx = self.transmit(queue);
        tx.note_trapped(flow, cost_ns);
        tx.run = Some(SenderRun { drain, sent, cpu, flow, ends_ns });
        self.env.agenda.push(ends_ns, Event::TxRun { queue });
    }

    /// Returns how long the batch takes that a send call of this flow on `cpu` is moving to the ring; `None` if the
    /// call does not run any more.
    pub(crate) fn send_call_runs_ns(&self, queue: QueueId, flow: u64, cpu: CpuId) -> Option<u64> {
        let run = self.nic.queues[queue].transmit.as_ref()?.run.as_ref()?;
        (run.flow == Some(flow) && run.cpu == cpu).then(|| run.ends_ns.saturating_sub(self.env.now_ns))
    }

    /// A batch of a sender's run is on the ring.
    pub(crate) fn run_goes_on(&mut self, queue: QueueId) {
        let Some(SenderRun { drain, sent, cpu, flow, .. }) = self.transmit(queue).run.take() else { return };
        match self.batch_ends(queue, drain, sent, cpu) {
            TxSent::Again(again) => self.run_begins(queue, again, flow, cpu),
            TxSent::Ended(TxEnd::Schedule) => self.cpus.interrupt(&mut self.env, cpu, Irq::Device(queue)),
            TxSent::Ended(end) => self.run_ended(queue, end),
        }
    }

    /// Ends a batch outside of groups: its doorbell rings.
    fn batch_ends(&mut self, queue: QueueId, drain: TxDrain, sent: Transmitted, cpu: CpuId) -> TxSent {
        let now_ns = self.env.now_ns;
        self.transmit(queue).commit(sent.left, now_ns);
        self.rings(queue);
        self.env.tally.transitions += 1;
        let end = drain.sent(&self.transmit(queue).word, sent.frames, sent.left);
        let transition = match &end {
            TxSent::Again(_) => Transition::TxAgain,
            TxSent::Ended(TxEnd::Idle) => Transition::TxIdle,
            TxSent::Ended(TxEnd::Schedule) => Transition::TxQuota,
            TxSent::Ended(TxEnd::Room) => Transition::TxRoom,
            TxSent::Ended(TxEnd::Until { .. }) => Transition::TxUntil,
        };
        self.env.note(cpu, Whom::Queue(queue), transition);
        end
    }

    /// Says who comes back for what a run has left, except for one that has used up its quota.
    fn run_ended(&mut self, queue: QueueId, end: TxEnd) {
        match end {
            TxEnd::Idle | TxEnd::Schedule => {}
            TxEnd::Room => {
                self.nic.queues[queue].tx.armed = true;
                self.nic.room(&mut self.env, &mut self.cpus, queue);
            }
            TxEnd::Until { until_ns } => {
                self.transmit(queue).due_ns = Some(until_ns);
                self.env.agenda.push(until_ns.max(self.env.now_ns), Event::TxDue { queue });
            }
        }
    }

    /// Frames that the discipline held back are due (`qdisc_watchdog`).
    pub(crate) fn transmit_due(&mut self, queue: QueueId) {
        let now_ns = self.env.now_ns;
        if self.transmit(queue).due_ns.take_if(|due_ns| *due_ns <= now_ns).is_some() {
            let cpu = self.nic.queues[queue].cpu();
            self.cpus.interrupt(&mut self.env, cpu, Irq::Device(queue));
        }
    }

    /// The queue's NAPI is polled, or the last run of a member that leaves is made; either is a run. Returns its cost.
    pub(in crate::engine) fn transmit_poll_begins(&mut self, queue: QueueId) -> u64 {
        let owed = self.transmit(queue).leaves.take();
        let run = match owed {
            Some(run) => run,
            None => match self.transmit(queue).word.begin() {
                Enqueued::Run(run) => run,
                // The current runner looks again.
                Enqueued::Noted => return 0,
                Enqueued::Group => unreachable!("I10: the NAPI of a member is polled by another"),
            },
        };
        self.transmit_polls(queue, TxDrain::new(run))
    }

    fn transmit_polls(&mut self, queue: QueueId, drain: TxDrain) -> u64 {
        let budget = drain.look(&self.transmit(queue).word);
        let (sent, cost_ns) = self.takes_batch(queue, budget);
        self.transmit(queue).polling = Some((drain, sent));
        cost_ns + u64::from(self.env.world.costs.doorbell_ns)
    }

    /// A batch of the NAPI's run is on the ring. Returns the cost of the next, or `None` if the run is over.
    pub(in crate::engine) fn transmit_poll_goes_on(&mut self, queue: QueueId, cpu: CpuId) -> Option<u64> {
        let (drain, sent) = self.transmit(queue).polling.take()?;
        let end = self.batch_ends(queue, drain, sent, cpu);
        let poll = &mut self.nic.queues[queue].poll;
        // The budget does not bound a run, but its own quota does. A full budget would mean that there is more.
        poll.work = (poll.work + sent.frames).min(poll.budget.saturating_sub(1));
        match end {
            TxSent::Again(again) => return Some(self.transmit_polls(queue, again)),
            TxSent::Ended(TxEnd::Schedule) => poll.work = poll.budget,
            TxSent::Ended(end) => self.run_ended(queue, end),
        }
        None
    }

    /// A poller of a group begins a visit. Returns what it sends, and the cost.
    pub(crate) fn transmit_visit_begins(&mut self, queue: QueueId, budget: u32) -> (Transmitted, u64) {
        self.transmit(queue).word.look();
        self.takes_batch(queue, budget)
    }

    /// The frames of a visit are on the ring; the doorbell is held back.
    pub(crate) fn transmit_visit_ends(&mut self, queue: QueueId, sent: &Transmitted) {
        let now_ns = self.env.now_ns;
        self.transmit(queue).commit(sent.left, now_ns);
    }

    /// Rings the doorbell. Returns for how many frames.
    pub(crate) fn rings(&mut self, queue: QueueId) -> u32 {
        let now_ns = self.env.now_ns;
        let doorbell_ns = u64::from(self.env.world.costs.doorbell_ns);
        let tx = self.transmit(queue);
        let frames = tx.unrung();
        tx.note_doorbell(now_ns.saturating_sub(doorbell_ns));
        (tx.rung, tx.unrung_since_ns) = (tx.ring.len() as u32, None);
        let counts = &mut self.env.tally.counts;
        counts.rung_frames += u64::from(frames);
        counts.doorbells += u64::from(frames > 0);
        self.wire_goes_on(queue);
        frames
    }

    fn wire_goes_on(&mut self, queue: QueueId) {
        let now_ns = self.env.now_ns;
        let tx = self.transmit(queue);
        if !tx.on_wire && tx.rung > 0 {
            tx.on_wire = true;
            let at_ns = now_ns + u64::from(tx.spec.frame_wire_ns);
            self.env.agenda.push(at_ns, Event::TxDone { queue });
        }
    }

    /// A frame has left.
    pub(crate) fn frame_left(&mut self, queue: QueueId) {
        let tx = self.transmit(queue);
        tx.on_wire = false;
        // A reset may have removed the frame.
        if tx.rung > 0
            && let Some(frame) = tx.ring.pop_front()
        {
            (tx.rung, tx.sent) = (tx.rung - 1, tx.sent + 1);
            if let Some(queue) = tx.spec.reaped_by.map(QueueId::new) {
                let at_ns = self.env.now_ns + u64::from(self.env.world.net.tx_done_ns);
                self.env.agenda.push(at_ns, Event::TxDone { queue });
            }
            if let Some(conn) = frame {
                self.clients.answer_leaves(&mut self.env, conn);
            }
        }
        self.wire_goes_on(queue);
        self.nic.room(&mut self.env, &mut self.cpus, queue);
        self.nic.group_notices(&mut self.env, &mut self.cpus, queue);
    }

    /// Clients whose answers were dropped ask again.
    fn answers_lost(&mut self, lost: impl IntoIterator<Item = TxFrame>) {
        for frame in lost {
            self.env.tally.counts.tx_dropped += 1;
            if let Some(conn) = frame {
                self.clients.answer_lost(&mut self.env, conn);
            }
        }
    }

    /// A queue was taken down: the frames that wait in it are dropped, and with a reset also those on its ring.
    pub(crate) fn transmit_flush(&mut self, queue: QueueId, reset: bool) {
        if self.nic.queues[queue].transmit.is_some() {
            let lost = self.transmit(queue).flush(reset);
            self.answers_lost(lost);
        }
    }

    /// The queue goes down, so that what comes from now on is dropped, or up again.
    pub(crate) fn transmit_goes(&mut self, queue: QueueId, down: bool) {
        if let Some(tx) = &mut self.nic.queues[queue].transmit {
            tx.down = down;
        }
    }

    /// Makes a group the runner of this transmit queue. Returns false if somebody runs it.
    pub(crate) fn transmit_enters(&mut self, queue: QueueId) -> bool {
        self.transmit(queue).word.group_enter().is_ok()
    }

    /// The group was refused: what came meanwhile is sent.
    pub(crate) fn transmit_stays(&mut self, queue: QueueId, cpu: CpuId) {
        let run = self.transmit(queue).word.group_leave();
        self.run_begins(queue, TxDrain::new(run), None, cpu);
    }
}

impl Nic {
    /// The room interrupt, which is raised once if it is armed, frames wait for room, and there is some.
    pub(crate) fn room(&mut self, env: &mut Env, cpus: &mut Cpus, queue: QueueId) {
        let q = &mut self.queues[queue];
        let waits = q.transmit.as_ref().is_some_and(|tx| tx.blocked && tx.has_room());
        if waits && std::mem::take(&mut q.tx.armed) {
            let cpu = q.cpu();
            cpus.interrupt(env, cpu, Irq::Device(queue));
        }
    }

    /// A transmit queue is not a member any more, so a last run is owed.
    pub(crate) fn transmit_leaves(&mut self, queue: QueueId) {
        if let Some(tx) = &mut self.queues[queue].transmit {
            tx.leaves = Some(tx.word.group_leave());
        }
    }
}
