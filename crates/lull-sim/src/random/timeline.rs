//! A readable run: a line for each event, with its time, its CPU, and its subject.

use std::fmt;

use lull_core::event::EventKind;

use crate::engine::id::Id;
use crate::engine::recorder::{Entry, What, Whom, is_of_group};
use crate::random::plan::Plan;
use crate::random::run::WorldOutcome;
use crate::random::script::Step;

/// The last events of a run.
#[derive(Debug)]
pub struct Timeline {
    lines: Vec<String>,
    /// How many events came before these.
    pub left_out: u64,
    /// How the run went.
    pub outcome: WorldOutcome,
}

impl Plan {
    /// Runs the plan and shows its last `limit` events.
    pub fn timeline(&self, limit: usize) -> Timeline {
        let (outcome, (kept, total)) = self.run_keeping(limit);
        let left_out = total - kept.len() as u64;
        let mut lines: Vec<String> = Vec::with_capacity(kept.len());
        let mut packets = (0, None);
        for (index, entry) in kept.iter().enumerate() {
            if let What::Packet(queue) = entry.what {
                // Consecutive packets of one queue are shown in one line.
                packets = if packets.1 == Some(queue) { (packets.0 + 1, Some(queue)) } else { (1, Some(queue)) };
                if let Some(Entry { what: What::Packet(next), .. }) = kept.get(index + 1)
                    && *next == queue
                {
                    continue;
                }
                let what = format!("{} in the ring", lull_units::counted(packets.0, "packet"));
                lines.push(line(entry, &format!("queue {queue}"), &what));
                packets = (0, None);
                continue;
            }
            lines.push(tell(entry, &self.script));
        }
        Timeline { lines, left_out, outcome }
    }
}

impl fmt::Display for Timeline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.left_out > 0 {
            writeln!(f, "... {} events before these (--limit shows more)", self.left_out)?;
        }
        self.lines.iter().try_for_each(|line| writeln!(f, "{line}"))
    }
}

fn line(entry: &Entry, whom: &str, what: &str) -> String {
    let (ms, ns) = (entry.at_ns / 1_000_000, entry.at_ns % 1_000_000);
    format!("{ms:>6}.{ns:06} ms  cpu {}  {whom:<10} {what}", entry.cpu)
}

fn tell(entry: &Entry, script: &[Step]) -> String {
    match entry.what {
        What::Core(napi, kind) => {
            let whom = match kind {
                _ if napi == u32::MAX => "softirq".to_owned(),
                kind if is_of_group(kind) => format!("group {napi}"),
                _ => format!("queue {napi}"),
            };
            line(entry, &whom, &event(kind))
        }
        What::Note(whom, transition) => {
            let whom = match whom {
                Whom::Queue(queue) => format!("queue {queue}"),
                Whom::Context(context) => format!("context {context}"),
                Whom::Group(group) => format!("group {group}"),
            };
            line(entry, &whom, transition.name())
        }
        What::Packet(queue) => line(entry, &format!("queue {queue}"), "a packet in the ring"),
        What::Step(step) => line(entry, "script", &script[step.place()].action.to_string()),
        What::Skipped(step) => line(entry, "script", &format!("not possible now: {}", script[step.place()].action)),
    }
}

fn event(kind: EventKind) -> String {
    let text = match kind {
        EventKind::Irq => "interrupt",
        EventKind::Mask => "interrupt masked",
        EventKind::Unmask => "interrupt unmasked",
        EventKind::Schedule { missed: false } => "scheduled",
        EventKind::Schedule { missed: true } => "scheduled, but owned: MISSED",
        EventKind::Refused => "schedule refused: a disable is pending",
        EventKind::PollBegin { budget } => return format!("poll begins, budget {budget}"),
        EventKind::PollEnd { work } => return format!("poll ends, {work} packets"),
        EventKind::Repoll => "full budget: poll again",
        EventKind::Yield => "full budget: yields to a preferring poller",
        EventKind::YieldToDisable => "full budget: yields to a disable",
        EventKind::Kept => "completion does nothing: a busy poller owns it",
        EventKind::Again => "completed, MISSED: scheduled again",
        EventKind::Complete { rearm: true } => "completed and released: interrupt",
        EventKind::Complete { rearm: false } => "completed and released: deferred",
        EventKind::TimerArm { deadline_ns } => {
            return format!("timer started, due at {}.{:06} ms", deadline_ns / 1_000_000, deadline_ns % 1_000_000);
        }
        EventKind::TimerFire { late_ns, swallowed } => {
            let end = if swallowed { ", and is swallowed: owned" } else { "" };
            return format!("timer fires {late_ns} ns late{end}");
        }
        EventKind::Suspend => "suspended",
        EventKind::Resume { scheduled: true } => "resumed: scheduled",
        EventKind::Resume { scheduled: false } => "resumed: nothing to do, or owned",
        EventKind::BusyBegin => "busy poll begins",
        EventKind::BusyAcquire { owned: true, .. } => "busy poller owns it",
        EventKind::BusyAcquire { owned: false, prefer: true } => "busy poller lost: PREFER set",
        EventKind::BusyAcquire { owned: false, prefer: false } => "busy poller lost",
        EventKind::Park => "full budget at the stop: parked",
        EventKind::HandOver => "full budget at the stop: to softirq",
        EventKind::BusyEnd => "busy poll ends",
        EventKind::ThreadWake => "goes to its thread",
        EventKind::ThreadRound { busy: false } => "thread takes a round",
        EventKind::ThreadRound { busy: true } => "thread takes a round and busy polls",
        EventKind::TimeSqueeze => "out of budget or time",
        EventKind::Ksoftirqd => "the rest is left to ksoftirqd",
        EventKind::Drop { frames } => return format!("{frames} dropped"),
        EventKind::GroupEnter => "enters a group",
        EventKind::GroupLeave => "leaves its group",
        EventKind::GroupClaim { stray: false } => "a poller of the group visits it",
        EventKind::GroupClaim { stray: true } => "a poller visits it that is not its home",
        EventKind::DryRun => "a poller walks its path without a packet",
        EventKind::GroupRelease => "the visit ends",
        EventKind::GroupStalled { age_ns } => return format!("a visit is seen to last for {age_ns} ns"),
        EventKind::GroupWake { cpu } => return format!("wakes its poller on cpu {cpu}"),
        EventKind::GroupPark => "a poller parks",
        EventKind::GroupRest => "the last poller rests",
        EventKind::GroupRestEnd => "the rest ends",
        EventKind::Doorbell { frames, why } => return format!("its doorbell rings for {frames} frames: {why:?}"),
        EventKind::Disable => "disabled",
        EventKind::Enable => "enabled",
        other => return format!("{other:?}"),
    };
    text.to_owned()
}
