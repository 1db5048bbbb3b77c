//! Keeping what was prepared for as long as somebody watches a device: steps that a driver takes back (idpf does so with
//! rings and coalescing at a soft reset, others when XDP is attached) are done again, and the latency that CPUs may take
//! to wake is held, which lasts only as long as a process has its file open.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Write;

use super::step::{Outcome, Step};
use crate::ethtool::Ethtool;
use crate::overwritten::{Overwritten, Target};
use crate::session::Session;
use crate::state::{Store, Term};

/// What a watcher holds of a preparation.
#[derive(Default)]
pub(crate) struct Keeping {
    /// The file that bounds the latency, and what was written into it.
    latency: Option<(String, File)>,
    /// What was refused and said already.
    told: BTreeSet<String>,
}

impl Keeping {
    /// Does again what is not as it was prepared, and tells `log` so.
    pub(crate) fn look(&mut self, session: &mut Session, reason: &str, log: &mut dyn FnMut(&str)) {
        // One that has vanished is told by whoever applies.
        if session.name_now().is_err() {
            return;
        }
        let session = &*session;
        let (device, machine) = (session.store().clone(), session.store().of_machine());
        // A state that cannot be used is told by whoever applies or undoes.
        let prepared = |store: &Store| store.load().ok().flatten().map_or_else(Vec::new, |state| state.prepared);
        let mut ethtool = Ethtool::new(session.device());
        // The watcher has the device's lock.
        self.steps(&prepared(&device), session, &mut ethtool, reason, log);
        let of_machine = prepared(&machine);
        self.hold_latency(&of_machine, session, log);
        if of_machine.iter().any(|done| is_undone(done, session, &mut ethtool))
            // Somebody who undoes it just now has the lock.
            && let Ok(_lock) = machine.lock(Term::Moment)
        {
            self.steps(&prepared(&machine), session, &mut ethtool, reason, log);
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
            let report = step.look(ethtool, session.roots());
            if report.outcome != Outcome::Changed {
                continue;
            }
            let report = step.carry_out(report, ethtool, session.roots());
            let from = report.from.unwrap_or_default();
            match report.outcome {
                Outcome::Changed => log(&format!("again, after {reason}: {}: {from} -> {}", step.what, step.to)),
                Outcome::Refused(why) | Outcome::Lacking(why) if self.told.insert(step.what.clone()) => {
                    log(&format!("after {reason}: {} is {from} and not {}: {why}", step.what, step.to));
                }
                _ => {}
            }
        }
    }

    /// Opens the file once it was asked for, and closes it when that was undone.
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

/// The step that does it again; nothing for what is held, and for files of a device that are not to be seen here.
fn step_of(done: &Overwritten, session: &Session) -> Option<Step> {
    let unseen = done.target.is_of_a_device() && !session.device().has_its_files(session.roots());
    if unseen || done.target == Target::CpuDmaLatency {
        return None;
    }
    Some(Step { what: done.what.clone(), target: Ok(done.target.clone()), to: done.set.clone()? })
}

fn is_undone(done: &Overwritten, session: &Session, ethtool: &mut Ethtool) -> bool {
    step_of(done, session).is_some_and(|step| step.look(ethtool, session.roots()).outcome == Outcome::Changed)
}

#[cfg(test)]
#[path = "../../tests/tree/mod.rs"]
mod tree;
#[cfg(test)]
use crate::{Options, Roots};

#[cfg(test)]
mod tests {

    use std::fs;
    use std::io::Read;
    use std::os::unix::fs::OpenOptionsExt;

    use super::super::{Profile, prepare, unprepare};
    use super::tree::Tree;
    use super::*;

    const MASK: &str = "sys/class/net/lo/queues/rx-0/rps_cpus";
    /// What the mask was before it was prepared.
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
        // The originals are not what the driver had put there.
        unprepare(&mut tree.session(), false).unwrap();
        assert_eq!((tree.read(MASK), tree.read(TIMERS)), (ALL.to_owned(), "1".to_owned()));
        let mut look = |keeping: &mut Keeping| keeping.look(&mut session, "a reset", &mut |line| panic!("{line}"));
        look(&mut keeping);
        assert_eq!(tree.read(MASK), ALL, "what was undone is not kept");
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
        // A pipe in place of the kernel: its reader finds the end as soon as nobody holds it.
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
