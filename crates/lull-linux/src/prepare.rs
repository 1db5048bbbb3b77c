//! The set-up of a machine and a device for low latency, step by step from a profile: queues, rings, coalescing, RPS
//! and RFS, interrupts, and the machine-wide steps that a profile has to name.
//!
//! What a step overwrites is written to a state file before the step is done: the device's own, or one for the machine.
//! What the device or the kernel lacks is reported and is no failure.

mod interrupts;
mod keep;
mod profile;
mod step;
mod steps;

use std::borrow::Borrow;
use std::time::Duration;

pub(crate) use keep::Keeping;
pub use profile::{DEFAULT_PROFILE, DeviceProfile, MachineProfile, Profile};
use step::Step;
pub use step::{Outcome, StepReport};
use steps::{device_steps, machine_steps, queue_steps};

use crate::device::Snapshot;
use crate::error::Result;
use crate::ethtool::Ethtool;
pub use crate::overwritten::{Overwritten, Target};
use crate::roots::Roots;
use crate::session::Session;
use crate::state::{Lock, Patience, State, Store, Term};

/// How long to wait for a lock. A change takes milliseconds.
const LOCK_WAIT: Duration = Duration::from_secs(5);

/// What helps where a file of the machine cannot be seen.
const ELSEWHERE: &str =
    "undo it in the machine's initial network namespace, outside of any container; until then it is kept";

/// Does the steps of a profile.
///
/// # Errors
/// A state file is stale, another lull is at work, or a state file cannot be written. Nothing was changed then. A step
/// that is refused is in the reports.
pub fn prepare(session: &mut Session, profile: &Profile, dry_run: bool) -> Result<Vec<StepReport>> {
    let (device, machine) = (session.store().clone(), session.store().of_machine());
    let mut ethtool = Ethtool::new(session.device());
    let snapshot = session.snapshot()?;
    let in_sysfs = session.device().in_sysfs;
    let roots = session.roots().clone();
    let of_queues = queue_steps(&profile.device);
    let of_device = device_steps(&profile.device, &snapshot, in_sysfs, &roots)?;
    let of_machine = machine_steps(&profile.machine, &roots)?;
    // Every lock is taken before the first change, so that what somebody else has locked is refused as a whole.
    let mut takes = |steps: &[&[Step]], store: &Store| {
        let known = Known::load(store, Some(&snapshot), &roots)?;
        let looked: Vec<_> =
            steps.iter().copied().flatten().map(|step| (look(step, &known.now, &mut ethtool, &roots), step)).collect();
        if dry_run { Ok(None) } else { lock_for(&looked, &known, store) }
    };
    let lock_of_device = takes(&[&of_queues, &of_device], &device)?;
    let lock_of_machine = takes(&[&of_machine], &machine)?;
    let mut reports = Vec::new();
    // The queues come first, as what follows is for the queues that there are then.
    reports.extend(carry_out(of_queues, &device, lock_of_device.as_ref(), &snapshot, &mut ethtool, &roots)?);
    let snapshot = session.snapshot()?;
    let of_device = device_steps(&profile.device, &snapshot, in_sysfs, &roots)?;
    reports.extend(carry_out(of_device, &device, lock_of_device.as_ref(), &snapshot, &mut ethtool, &roots)?);
    reports.extend(carry_out(of_machine, &machine, lock_of_machine.as_ref(), &snapshot, &mut ethtool, &roots)?);
    Ok(reports)
}

/// Gives back what the steps have overwritten, the last first. It does no harm when nothing was prepared.
///
/// # Errors
/// The errors of [`prepare`]. What is refused is in the reports, and stays in the state file.
pub fn unprepare(session: &mut Session, dry_run: bool) -> Result<Vec<StepReport>> {
    let mut ethtool = Ethtool::new(session.device());
    let (device, machine) = (session.store().clone(), session.store().of_machine());
    // Every lock is taken before the first change, and in the order of `prepare`.
    let mut prepared = Vec::new();
    for store in [device, machine] {
        if store.load()?.is_some_and(|state| !state.prepared.is_empty()) {
            let lock = if dry_run { None } else { Some(store.wait_for_lock(Patience::of(LOCK_WAIT), &mut |_| {})?) };
            prepared.push((store, lock));
        }
    }
    let mut reports = Vec::new();
    // The numbers that the prepared interrupts have now. A device that has vanished has none.
    let snapshot = session.snapshot().ok();
    for (store, _lock) in prepared.iter().rev() {
        reports.extend(give_back(store, snapshot.as_ref(), &mut ethtool, session, dry_run)?);
    }
    Ok(reports)
}

/// Gives back what the steps of one store have overwritten, as the store says under the lock.
fn give_back(
    store: &Store,
    snapshot: Option<&Snapshot>,
    ethtool: &mut Ethtool,
    session: &Session,
    dry_run: bool,
) -> Result<Vec<StepReport>> {
    let roots = session.roots();
    let mut state = Known::load(store, snapshot, roots)?.now;
    let mut reports = Vec::new();
    let mut kept = Vec::new();
    for done in state.prepared.iter().rev() {
        if done.target == Target::CpuDmaLatency {
            reports.push(released(done));
            continue;
        }
        let step = Step::new(done.what.clone(), Ok(done.target.clone()), done.former.clone());
        let step = Step { interrupt: done.interrupt.clone(), ..step };
        let mut report = step.look(None, ethtool, roots);
        if let Outcome::Lacking(why) = &report.outcome
            && done.target.may_be_hidden(roots)
            // A file that says that the machine has no such thing is not hidden.
            && !matches!(done.target.read(ethtool, roots), Ok(Some(_)))
        {
            report.outcome = Outcome::Refused(format!("{why}: {ELSEWHERE}"));
        }
        if done.target.is_of_a_device() && !session.device().in_sysfs {
            report.outcome = Outcome::Refused("/sys is that of another network namespace: mount its own".to_owned());
        }
        let report = if dry_run { report } else { step.carry_out(report, ethtool, roots) };
        // What is gone has taken its value along. What was refused is tried again next time.
        if matches!(report.outcome, Outcome::Refused(_)) {
            kept.push(done.clone());
        }
        reports.push(report);
    }
    if !dry_run {
        kept.reverse();
        state.prepared = kept;
        store.save(&state)?;
    }
    Ok(reports)
}

/// Whoever holds it lets go when it is no longer in any state file.
fn released(done: &Overwritten) -> StepReport {
    let (what, from) = (done.what.clone(), done.set.clone());
    StepReport { what, from, to: "not held".to_owned(), became: None, outcome: Outcome::Changed }
}

/// Looks at what a step finds. What became of the same value when it was set before counts as that value.
fn look(step: &Step, before: &State, ethtool: &mut Ethtool, roots: &Roots) -> StepReport {
    let is_known =
        |done: &&Overwritten| step.target.as_ref() == Ok(&done.target) && done.set.as_ref() == Some(&step.to);
    let known = before.prepared.iter().find(is_known);
    step.look(known.and_then(|done| done.settled.as_deref()), ethtool, roots)
}

/// What was in force before.
struct Known {
    /// As it is in the state file.
    recorded: State,
    /// With the interrupts that the queues have now.
    now: State,
}

impl Known {
    fn load(store: &Store, snapshot: Option<&Snapshot>, roots: &Roots) -> Result<Known> {
        let recorded = store.load()?.unwrap_or_else(|| store.empty());
        let mut now = recorded.clone();
        if let Some(snapshot) = snapshot {
            now.prepared = interrupts::found_again(&recorded.prepared, snapshot, roots);
        }
        Ok(Known { recorded, now })
    }
}

/// What steps amount to.
#[derive(PartialEq, Eq)]
enum Work {
    /// There is nothing to change and nothing to remember.
    Nothing,
    /// The state file can have whose the interrupts are. A watcher that has the device is no reason to refuse that, as
    /// the values are remembered.
    Names,
    /// There is something to change, or a value to remember.
    Steps,
}

fn work(looked: &[(StepReport, impl Borrow<Step>)], known: &Known) -> Work {
    let after = remember(known.now.clone(), looked);
    let is_changed = looked.iter().any(|(report, _)| report.outcome == Outcome::Changed);
    if is_changed || values(&after) != values(&known.now) {
        Work::Steps
    } else if after != known.recorded {
        Work::Names
    } else {
        Work::Nothing
    }
}

/// The lock that the work takes, if it takes any.
fn lock_for(looked: &[(StepReport, impl Borrow<Step>)], known: &Known, store: &Store) -> Result<Option<Lock>> {
    match work(looked, known) {
        Work::Nothing => Ok(None),
        Work::Names => Ok(store.lock(Term::Moment).ok()),
        Work::Steps => store.wait_for_lock(Patience::of(LOCK_WAIT), &mut |_| {}).map(Some),
    }
}

/// What is remembered, without whose the interrupts are.
fn values(state: &State) -> Vec<Overwritten> {
    let value = |done: &Overwritten| Overwritten { interrupt: None, settled: None, ..done.clone() };
    state.prepared.iter().map(value).collect()
}

/// Carries steps out, and writes what they overwrite to disk before the first. Without the lock it only looks.
fn carry_out(
    steps: Vec<Step>,
    store: &Store,
    lock: Option<&Lock>,
    snapshot: &Snapshot,
    ethtool: &mut Ethtool,
    roots: &Roots,
) -> Result<Vec<StepReport>> {
    let known = Known::load(store, Some(snapshot), roots)?;
    let looked: Vec<_> = steps.into_iter().map(|step| (look(&step, &known.now, ethtool, roots), step)).collect();
    if lock.is_none() || work(&looked, &known) == Work::Nothing {
        return Ok(looked.into_iter().map(|(report, _)| report).collect());
    }
    let before = known.now;
    let mut state = remember(before.clone(), &looked);
    store.save(&state).map_err(|error| error.left("none of these steps was done"))?;
    let mut reports = Vec::new();
    for (report, step) in looked {
        let report = step.carry_out(report, ethtool, roots);
        // What was not done has nothing to be undone.
        if let (Outcome::Lacking(_) | Outcome::Refused(_), Ok(target)) = (&report.outcome, &step.target) {
            let was_known = before.prepared.iter().any(|done| done.target == *target);
            state.prepared.retain(|done| done.target != *target || was_known);
        } else if let (Outcome::Changed, Ok(target)) = (&report.outcome, &step.target)
            && let Some(done) = state.prepared.iter_mut().find(|done| done.target == *target)
        {
            done.settled = report.became.clone();
        }
        reports.push(report);
    }
    store.save(&state)?;
    Ok(reports)
}

/// Adds what the steps overwrite and what they set. What an earlier prepare has remembered is the original.
fn remember(mut state: State, looked: &[(StepReport, impl Borrow<Step>)]) -> State {
    for (report, step) in looked {
        let step = step.borrow();
        let Ok(target) = &step.target else { continue };
        // What an interrupt had that lost its number, and that no queue has now, is gone with it.
        let was_anothers = |done: &Overwritten| {
            let both = done.interrupt.as_ref().zip(step.interrupt.as_ref());
            both.is_some_and(|(then, now)| then.queue != now.queue && then.is_another(now))
        };
        if report.outcome == Outcome::Changed {
            state.prepared.retain(|done| done.target != *target || !was_anothers(done));
        }
        // What a program that was killed has left is no original (`run --one-napi queues`).
        let before_a_run = state.queues.filter(|queues| *target == Target::Ethtool(queues.knob));
        let former = before_a_run.map(|queues| queues.former.to_string()).or_else(|| report.from.clone());
        let known = state.prepared.iter_mut().find(|done| done.target == *target && !was_anothers(done));
        match (known, &report.outcome) {
            (Some(done), Outcome::Changed | Outcome::Already | Outcome::Held(_)) => {
                if done.set.as_ref() != Some(&step.to) {
                    (done.set, done.settled) = (Some(step.to.clone()), None);
                }
                done.interrupt = step.interrupt.clone();
            }
            (None, Outcome::Changed | Outcome::Held(_)) => state.prepared.push(Overwritten {
                target: target.clone(),
                what: step.what.clone(),
                former: former.unwrap_or_default(),
                set: Some(step.to.clone()),
                settled: None,
                interrupt: step.interrupt.clone(),
            }),
            _ => {}
        }
    }
    state
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::device::QueueKey;
    use crate::ethtool::Knob;
    use crate::options::Options;
    use crate::overwritten::Interrupt;
    use crate::prepare::interrupts::tests::with_interrupts;
    use crate::prepare::keep::tree::Tree;
    use crate::state::FormerQueues;

    #[test]
    fn what_a_killed_run_has_left_is_no_original() {
        let directory = std::env::temp_dir().join(format!("lull-left-queues-{}", std::process::id()));
        let session = Session::open("lo", &Options::in_dir(&directory)).unwrap();
        let mut state = session.store().empty();
        state.queues = Some(FormerQueues { knob: Knob::RxQueues, former: 4 });
        let found = |knob: Knob| {
            let step = Step::new(knob.name().to_owned(), Ok(Target::Ethtool(knob)), "2".to_owned());
            let (what, from, to) = (step.what.clone(), Some("1".to_owned()), step.to.clone());
            (StepReport { what, from, to, became: None, outcome: Outcome::Changed }, step)
        };
        let remembered = remember(state, &[found(Knob::RxQueues), found(Knob::TxQueues)]);
        let former: Vec<&str> = remembered.prepared.iter().map(|done| done.former.as_str()).collect();
        assert_eq!(former, ["4", "1"]);
    }

    #[test]
    fn what_an_interrupt_had_is_not_what_the_next_of_its_number_had() {
        let directory = std::env::temp_dir().join(format!("lull-next-interrupt-{}", std::process::id()));
        let session = Session::open("lo", &Options::in_dir(&directory)).unwrap();
        let found = |queue: u32, name: &str, from: &str| {
            let interrupt = Interrupt { queue: QueueKey::Rx(queue), names: [name.to_owned()].into() };
            let step = Step::new("CPU".to_owned(), Ok(Target::of_interrupt(44)), "1".to_owned());
            let (what, from, to) = (step.what.clone(), Some(from.to_owned()), step.to.clone());
            let report = StepReport { what, from, to, became: None, outcome: Outcome::Changed };
            (report, Step { interrupt: Some(interrupt), ..step })
        };
        let former = |state: &State| state.prepared.iter().map(|done| done.former.clone()).collect::<Vec<_>>();
        let first = remember(session.store().empty(), &[found(0, "eth0-rx-0", "0-3")]);
        assert_eq!(former(&first), ["0-3"]);
        // The driver has requested its interrupts anew, in another order.
        assert_eq!(former(&remember(first.clone(), &[found(1, "eth0-rx-1", "2")])), ["2"]);
        assert_eq!(former(&remember(first, &[found(0, "uplink-rx-0", "1")])), ["0-3"], "the device was renamed");
    }

    #[test]
    fn interrupts_that_got_lulls_cpus_with_their_new_numbers_are_given_those_of_before() {
        let tree = Tree::new("shifted interrupts");
        tree.write("proc/irq/default_smp_affinity", "f\n");
        let interrupt = |number: u32, name: &str, cpus: &str| {
            let _ = fs::remove_dir_all(tree.0.join(format!("proc/irq/{number}")));
            tree.write(&format!("proc/irq/{number}/{name}/none"), "");
            tree.write(&format!("proc/irq/{number}/smp_affinity_list"), cpus);
        };
        let cpus = || [44, 45, 46].map(|number| tree.read(&format!("proc/irq/{number}/smp_affinity_list")));
        let (session, profile) = (tree.session(), Profile::parse("[device]\nirq-cpus = \"1-2\"", "test").unwrap());
        let (store, roots, mut ethtool) = (session.store(), session.roots(), Ethtool::new(session.device()));
        let mut prepare = |numbers: &[u32]| {
            let snapshot = with_interrupts(numbers);
            let steps = device_steps(&profile.device, &snapshot, true, roots).unwrap();
            let lock = store.lock(Term::Moment).unwrap();
            let reports = carry_out(steps, store, Some(&lock), &snapshot, &mut ethtool, roots).unwrap();
            (reports.into_iter().map(|report| report.outcome).collect::<Vec<_>>(), store.load().unwrap().unwrap())
        };
        interrupt(44, "eth0-rx-0", "0-3\n");
        interrupt(45, "eth0-rx-1", "0-3\n");
        assert_eq!(prepare(&[44, 45]).0, [Outcome::Changed, Outcome::Changed]);
        // The driver requests its interrupts anew, and the kernel gives them the CPUs that the NAPIs had.
        interrupt(44, "nvme0q1", "0\n");
        interrupt(45, "eth0-rx-0", "1\n");
        interrupt(46, "eth0-rx-1", "2\n");
        let (outcomes, recorded) = prepare(&[45, 46]);
        assert_eq!(outcomes, [Outcome::Already, Outcome::Already]);
        let formers: Vec<_> = recorded.prepared.iter().map(|it| (it.target.interrupt(), it.former.as_str())).collect();
        assert_eq!(formers, [(Some(45), "0-3"), (Some(46), "0-3")]);
        // The same happens once more, and undoing has to find it.
        interrupt(44, "eth0-rx-0", "1\n");
        interrupt(45, "eth0-rx-1", "2\n");
        interrupt(46, "nvme0q1", "0\n");
        give_back(store, Some(&with_interrupts(&[44, 45])), &mut ethtool, &session, false).unwrap();
        assert_eq!((cpus(), store.load().unwrap()), (["0-3", "0-3", "0"].map(str::to_owned), None));
    }

    #[test]
    fn a_prepared_interrupt_whose_name_is_not_recorded_is_no_reason_for_a_lock_that_a_watcher_has() {
        let tree = Tree::new("beside a watcher");
        tree.write("proc/irq/44/eth0-rx-0/none", "");
        tree.write("proc/irq/44/smp_affinity_list", "1\n");
        let session = tree.session();
        let (store, roots) = (session.store(), session.roots());
        let step = || {
            let interrupt = Interrupt::of(44, QueueKey::Rx(0), roots);
            let step = Step::new("CPU".to_owned(), Ok(Target::of_interrupt(44)), "1".to_owned());
            Step { interrupt: Some(interrupt), ..step }
        };
        let done = Overwritten {
            target: Target::of_interrupt(44),
            what: "CPU".to_owned(),
            former: "0-3".to_owned(),
            set: Some("1".to_owned()),
            settled: None,
            interrupt: None,
        };
        let mut state = store.empty();
        state.prepared.push(done);
        store.save(&state).unwrap();
        let mut ethtool = Ethtool::new(session.device());
        let snapshot = with_interrupts(&[44]);
        let mut again = || {
            let known = Known::load(store, Some(&snapshot), roots).unwrap();
            let steps = [(look(&step(), &known.now, &mut ethtool, roots), step())];
            let lock = lock_for(&steps, &known, store).unwrap();
            carry_out(vec![step()], store, lock.as_ref(), &snapshot, &mut ethtool, roots).unwrap()[0].outcome.clone()
        };
        let watcher = store.lock(Term::Stay).unwrap();
        assert_eq!(again(), Outcome::Already);
        assert_eq!(store.load().unwrap().unwrap(), state);
        drop(watcher);
        assert_eq!(again(), Outcome::Already);
        let now = store.load().unwrap().unwrap().prepared.remove(0);
        assert_eq!((now.former.as_str(), now.interrupt), ("0-3", step().interrupt), "now it is recorded");
    }
}
