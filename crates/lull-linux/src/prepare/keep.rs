//! Keeps what was prepared for as long as somebody watches a device. Steps that a driver takes back (idpf does so with
//! rings and coalescing at a soft reset, others when XDP is attached) are done again. The latency that CPUs may take to
//! wake is held, as it lasts only as long as a process has its file open.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Write;

use super::interrupts::found_again;
use super::step::{Outcome, Step};
use crate::ethtool::Ethtool;
use crate::overwritten::{Overwritten, Target};
use crate::session::Session;
use crate::state::{State, Store, Term};

/// What a watcher holds of a preparation.
#[derive(Default)]
pub(crate) struct Keeping {
    /// The file that bounds the latency, and what was written into it.
    latency: Option<(String, File)>,
    /// What was refused and has been reported.
    told: BTreeSet<String>,
    /// What became of steps that were done again, by the step and what it wrote, where that was something else.
    settled: BTreeMap<(String, String), String>,
}

impl Keeping {
    /// Does again what is not as it was prepared, and reports that to `log`.
    pub(crate) fn look(&mut self, session: &mut Session, reason: &str, log: &mut dyn FnMut(&str)) {
        // Whoever applies reports that the device has vanished.
        if session.name_now().is_err() {
            return;
        }
        // The watcher has the device's lock.
        self.find_interrupts(session, log);
        let session = &*session;
        let (device, machine) = (session.store().clone(), session.store().of_machine());
        // Whoever applies or undoes reports a state that cannot be used.
        let prepared = |store: &Store| store.load().ok().flatten().map_or_else(Vec::new, kept);
        let mut ethtool = Ethtool::new(session.device());
        self.steps(&prepared(&device), session, &mut ethtool, reason, log);
        let of_machine = prepared(&machine);
        self.hold_latency(&of_machine, session, log);
        if of_machine.iter().any(|done| is_undone(done, session, &mut ethtool))
            // Somebody who is undoing it at the moment has the lock.
            && let Ok(_lock) = machine.lock(Term::Moment)
        {
            self.steps(&prepared(&machine), session, &mut ethtool, reason, log);
        }
    }

    /// Records which numbers the interrupts of the prepared queues have now, and what those had, as a driver that sets
    /// its queues up anew may be given others.
    fn find_interrupts(&mut self, session: &mut Session, log: &mut dyn FnMut(&str)) {
        let Ok(Some(mut state)) = session.store().load() else { return };
        if state.prepared.iter().all(|done| done.interrupt.is_none()) {
            return;
        }
        let Ok(snapshot) = session.snapshot() else { return };
        let found = found_again(&state.prepared, &snapshot, session.roots());
        if found != state.prepared {
            state.prepared = found;
            if let Err(error) = session.store().save(&state)
                && self.told.insert("interrupts".to_owned())
            {
                log(&error.to_string());
            }
        }
    }

    fn steps(
        &mut self,
        prepared: &[Overwritten],
        session: &Session,
        ethtool: &mut Ethtool,
        reason: &str,
        log: &mut dyn FnMut(&str),
    ) {
        for done in prepared {
            let Some(step) = step_of(done, session) else { continue };
            let written = (step.what.clone(), step.to.clone());
            let settled = self.settled.get(&written).or(done.settled.as_ref());
            let report = step.look(settled.map(String::as_str), ethtool, session.roots());
            if report.outcome != Outcome::Changed {
                continue;
            }
            let report = step.carry_out(report, ethtool, session.roots());
            let from = report.from.unwrap_or_default();
            match report.outcome {
                Outcome::Changed => {
                    let became = report.became.as_ref().map_or_else(String::new, |it| format!(", which became {it}"));
                    log(&format!("again, after {reason}: {}: {from} -> {}{became}", step.what, step.to));
                    match report.became {
                        Some(became) => self.settled.insert(written, became),
                        None => self.settled.remove(&written),
                    };
                }
                Outcome::Refused(why) | Outcome::Lacking(why) if self.told.insert(step.what.clone()) => {
                    log(&format!("after {reason}: {} is {from} and not {}: {why}", step.what, step.to));
                }
                _ => {}
            }
        }
    }

    /// Opens the file once it has been prepared, and closes it when that was undone.
    fn hold_latency(&mut self, prepared: &[Overwritten], session: &Session, log: &mut dyn FnMut(&str)) {
        let wanted =
            prepared.iter().find(|done| done.target == Target::CpuDmaLatency).and_then(|done| done.set.clone());
        if self.latency.as_ref().map(|(held, _)| held) == wanted.as_ref() {
            return;
        }
        self.latency = None;
        let Some(wanted) = wanted else { return log("the wake-up latency of CPUs is not held any more") };
        let path = session.roots().dev("cpu_dma_latency");
        // The kernel takes a binary number of four bytes (`cpu_latency_qos_write`).
        let opened = File::options().write(true).open(&path).and_then(|mut file| {
            let us: i32 = wanted.parse().map_err(std::io::Error::other)?;
            file.write_all(&us.to_ne_bytes()).map(|()| file)
        });
        match opened {
            Ok(file) => {
                log(&format!("CPUs wake up within {wanted} us while this lasts ({})", path.display()));
                self.latency = Some((wanted, file));
            }
            Err(error) if self.told.insert(wanted) => log(&format!("cannot hold {}: {error}", path.display())),
            Err(_) => {}
        }
    }
}

/// What is kept of a device. The number of its queues belongs to the running program (`run --one-napi queues`), not to
/// the preparation.
fn kept(state: State) -> Vec<Overwritten> {
    let programs = state.queues.map(|queues| Target::Ethtool(queues.knob));
    state.prepared.into_iter().filter(|done| Some(&done.target) != programs.as_ref()).collect()
}

/// The step that does it again. There is none for what is held, and for files of a device that cannot be seen here.
fn step_of(done: &Overwritten, session: &Session) -> Option<Step> {
    let unseen = done.target.is_of_a_device() && !session.device().has_its_files(session.roots());
    if unseen || done.target == Target::CpuDmaLatency {
        return None;
    }
    let step = Step::new(done.what.clone(), Ok(done.target.clone()), done.set.clone()?);
    Some(Step { interrupt: done.interrupt.clone(), ..step })
}

fn is_undone(done: &Overwritten, session: &Session, ethtool: &mut Ethtool) -> bool {
    let mut look = |step: Step| step.look(done.settled.as_deref(), ethtool, session.roots());
    step_of(done, session).is_some_and(|step| look(step).outcome == Outcome::Changed)
}

#[cfg(test)]
#[path = "../../tests/tree/mod.rs"]
pub(super) mod tree;
#[cfg(test)]
use crate::{Options, Roots};

#[cfg(test)]
mod tests {

    use std::fs;
    use std::io::Read;
    use std::os::unix::fs::OpenOptionsExt;

    use super::super::steps::of_interrupt;
    use super::super::{Profile, prepare, unprepare};
    use super::tree::Tree;
    use super::*;
    use crate::device::QueueKey;
    use crate::ethtool::Knob;
    use crate::overwritten::Interrupt;
    use crate::state::FormerQueues;

    const MASK: &str = "sys/class/net/lo/queues/rx-0/rps_cpus";
    /// The mask before it was prepared.
    const ALL: &str = "0000,0000000f";
    const TIMERS: &str = "proc/sys/kernel/timer_migration";

    #[test]
    fn every_step_that_was_taken_back_is_done_again() {
        let tree = Tree::new("again");
        let profile = Profile::parse("[device]\nrps-cpus = \"\"\n[machine]\ntimer-migration = 0", "test").unwrap();
        prepare(&mut tree.session(), &profile, false).unwrap();
        let (mut session, mut keeping, mut said) = (tree.session(), Keeping::default(), Vec::new());
        let mut look =
            |keeping: &mut Keeping| keeping.look(&mut session, "a reset", &mut |line| said.push(line.to_owned()));
        look(&mut keeping);
        tree.write(MASK, "f\n");
        tree.write(TIMERS, "1\n");
        look(&mut keeping);
        assert_eq!((tree.read(MASK), tree.read(TIMERS)), ("0".to_owned(), "0".to_owned()));
        assert_eq!(said.len(), 2, "{said:?}");
        assert!(said[0].contains("after a reset: RPS of rx-0: f -> 0"), "{said:?}");
        // What the driver had put there does not become the original.
        unprepare(&mut tree.session(), false).unwrap();
        assert_eq!((tree.read(MASK), tree.read(TIMERS)), (ALL.to_owned(), "1".to_owned()));
        let mut look = |keeping: &mut Keeping| keeping.look(&mut session, "a reset", &mut |line| panic!("{line}"));
        look(&mut keeping);
        assert_eq!(tree.read(MASK), ALL, "what was undone is not kept");
    }

    #[test]
    fn what_the_kernel_made_of_a_value_is_left_at_that() {
        const FLOWS: &str = "sys/class/net/lo/queues/rx-0/rps_flow_cnt";
        let tree = Tree::new("rounded");
        let profile = Profile::parse("[device]\nrfs-flows = 1000", "test").unwrap();
        prepare(&mut tree.session(), &profile, false).unwrap();
        let store = tree.session().store().clone();
        let mut state = store.load().unwrap().unwrap();
        state.prepared[0].settled = Some("1024".to_owned());
        store.save(&state).unwrap();
        tree.write(FLOWS, "1024\n");
        let again = prepare(&mut tree.session(), &profile, false).unwrap();
        assert_eq!((&again[0].outcome, tree.read(FLOWS).as_str()), (&Outcome::Already, "1024"));
        Keeping::default().look(&mut tree.session(), "a read-back", &mut |line| panic!("{line}"));
        // A value of the driver's own is something else.
        tree.write(FLOWS, "0\n");
        let mut said = Vec::new();
        Keeping::default().look(&mut tree.session(), "a reset", &mut |line| said.push(line.to_owned()));
        assert_eq!((said.len(), tree.read(FLOWS).as_str()), (1, "1000"));
        // Another profile's value is written, whatever it is.
        tree.write(FLOWS, "1024\n");
        let other = Profile::parse("[device]\nrfs-flows = 500", "test").unwrap();
        prepare(&mut tree.session(), &other, false).unwrap();
        assert_eq!(tree.read(FLOWS), "500");
    }

    /// Interrupt 44 is what the first queue of `lo` has, and was prepared.
    fn with_an_interrupt(test: &str) -> Tree {
        let tree = Tree::new(test);
        tree.write("proc/irq/default_smp_affinity", "f\n");
        interrupt(&tree, 44, "eth0-rx-0", "1\n");
        let queue = QueueKey::Rx(0);
        let session = tree.session();
        let done = Overwritten {
            target: Target::of_interrupt(44),
            what: of_interrupt(44, queue),
            former: "0-3".to_owned(),
            set: Some("1".to_owned()),
            settled: None,
            interrupt: Some(Interrupt::of(44, queue, session.roots())),
        };
        let store = session.store();
        let mut state = store.empty();
        state.prepared.push(done);
        store.save(&state).unwrap();
        tree
    }

    fn interrupt(tree: &Tree, number: u32, name: &str, cpus: &str) {
        tree.write(&format!("proc/irq/{number}/{name}/none"), "");
        tree.write(&format!("proc/irq/{number}/smp_affinity_list"), cpus);
    }

    #[test]
    fn an_interrupt_that_is_another_devices_now_keeps_its_cpus() {
        let tree = with_an_interrupt("another's interrupt");
        fs::remove_dir_all(tree.0.join("proc/irq/44")).unwrap();
        interrupt(&tree, 44, "nvme0q1", "2\n");
        Keeping::default().look(&mut tree.session(), "a reset", &mut |line| panic!("{line}"));
        assert_eq!(tree.read("proc/irq/44/smp_affinity_list"), "2");
        let reports = unprepare(&mut tree.session(), false).unwrap();
        assert!(matches!(&reports[0].outcome, Outcome::Lacking(why) if why.contains("nvme0q1")), "{reports:?}");
        assert_eq!(tree.read("proc/irq/44/smp_affinity_list"), "2");
        assert!(unprepare(&mut tree.session(), false).unwrap().is_empty(), "what it had is gone with it");
    }

    #[test]
    fn an_interrupt_without_a_name_is_known_by_its_number() {
        let tree = with_an_interrupt("nobody's interrupt");
        // This is as it is while the device is down.
        fs::remove_dir_all(tree.0.join("proc/irq/44/eth0-rx-0")).unwrap();
        unprepare(&mut tree.session(), false).unwrap();
        assert_eq!(tree.read("proc/irq/44/smp_affinity_list"), "0-3");
    }

    #[test]
    fn the_number_of_queues_is_a_running_programs() {
        let tree = Tree::new("queues of a run");
        let done = |target: Target| Overwritten {
            target,
            what: String::new(),
            former: "4".to_owned(),
            set: Some("2".to_owned()),
            settled: None,
            interrupt: None,
        };
        let (queues, ring) = (done(Target::Ethtool(Knob::RxQueues)), done(Target::Ethtool(Knob::RxRing)));
        let mut state = tree.session().store().empty();
        state.prepared = vec![queues, ring.clone()];
        assert_eq!(kept(state.clone()), state.prepared);
        state.queues = Some(FormerQueues { knob: Knob::RxQueues, former: 2 });
        assert_eq!(kept(state), [ring]);
    }

    #[test]
    fn another_profile_is_what_is_kept() {
        let tree = Tree::new("another");
        for mask in ["", "0-1"] {
            let profile = Profile::parse(&format!("[device]\nrps-cpus = \"{mask}\""), "test").unwrap();
            prepare(&mut tree.session(), &profile, false).unwrap();
        }
        tree.write(MASK, "f\n");
        Keeping::default().look(&mut tree.session(), "a reset", &mut |_| {});
        assert_eq!(tree.read(MASK), "3");
        unprepare(&mut tree.session(), false).unwrap();
        assert_eq!(tree.read(MASK), ALL);
    }

    #[test]
    fn the_latency_of_cpus_is_held_while_somebody_watches_and_it_is_asked_for() {
        let tree = Tree::new("latency");
        fs::create_dir_all(tree.0.join("dev")).unwrap();
        let path = tree.0.join("dev/cpu_dma_latency");
        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        // A pipe stands in for the kernel. Its reader finds the end as soon as nobody holds it.
        let mut kernel = fs::OpenOptions::new();
        let mut kernel = kernel.read(true).custom_flags(libc::O_NONBLOCK).open(&path).unwrap();
        let profile = Profile::parse("[machine]\ncpu-dma-latency-us = 7", "test").unwrap();
        let reports = prepare(&mut tree.session(), &profile, false).unwrap();
        assert!(matches!(&reports[0].outcome, Outcome::Held(who) if who.contains("--watch")), "{reports:?}");

        let (mut keeping, mut said) = (Keeping::default(), Vec::new());
        for _ in 0..2 {
            keeping.look(&mut tree.session(), "a read-back", &mut |line| said.push(line.to_owned()));
        }
        assert!(said.len() == 1 && said[0].contains("within 7 us"), "{said:?}");
        let mut held = [0; 16];
        assert_eq!(kernel.read(&mut held).unwrap(), 4);
        assert_eq!(held[..4], 7i32.to_ne_bytes());
        let still = kernel.read(&mut held).unwrap_err();
        assert_eq!(still.kind(), std::io::ErrorKind::WouldBlock, "it is held open");
        unprepare(&mut tree.session(), false).unwrap();
        keeping.look(&mut tree.session(), "a read-back", &mut |line| said.push(line.to_owned()));
        assert!(said[1].contains("not held any more"), "{said:?}");
        assert_eq!(kernel.read(&mut held).unwrap(), 0, "it was let go");
    }
}
