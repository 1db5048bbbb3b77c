//! The interrupts of prepared queues, found again: a driver that sets its queues up anew may be given other numbers, and its
//! former ones may become another device's.

use super::steps::of_interrupt;
use crate::device::{QueueKey, Snapshot};
use crate::overwritten::{Interrupt, Overwritten, Target};
use crate::roots::Roots;

/// The number of a queue's interrupt.
fn number_of(queue: QueueKey, snapshot: &Snapshot) -> Option<u32> {
    Some(snapshot.napis.iter().find(|napi| napi.key == queue)?.irq.as_ref()?.number)
}

/// The records with the names that interrupts have now, where a queue still has the one of then: drivers call them by their
/// device, which may have been renamed.
pub(super) fn named(prepared: &[Overwritten], snapshot: &Snapshot, roots: &Roots) -> Vec<Overwritten> {
    let now = |done: &Overwritten| {
        let (then, number) = done.interrupt.as_ref().zip(done.target.interrupt())?;
        let is_still = number_of(then.queue, snapshot) == Some(number);
        is_still.then(|| Overwritten { interrupt: Some(Interrupt::of(number, then.queue, roots)), ..done.clone() })
    };
    prepared.iter().map(|done| now(done).unwrap_or_else(|| done.clone())).collect()
}

/// The records with the interrupts that the queues have now, and what those have. One that a queue had before has taken its
/// CPUs along.
pub(super) fn found_again(prepared: &[Overwritten], snapshot: &Snapshot, roots: &Roots) -> Vec<Overwritten> {
    let prepared = named(prepared, snapshot, roots);
    let is_still = |done: &Overwritten| {
        done.interrupt.as_ref().zip(done.target.interrupt()).is_some_and(|(it, number)| it.is_still(number, roots))
    };
    let elsewhere = |done: &Overwritten| {
        let then = done.interrupt.as_ref().filter(|it| !it.names.is_empty() && !is_still(done))?;
        let number = number_of(then.queue, snapshot).filter(|number| done.target.interrupt() != Some(*number))?;
        Some(Overwritten {
            target: Target::of_interrupt(number),
            what: of_interrupt(number, then.queue),
            former: roots.read_proc(&format!("irq/{number}/smp_affinity_list")).ok()?,
            set: done.set.clone(),
            settled: None,
            interrupt: Some(Interrupt::of(number, then.queue, roots)),
        })
    };
    let now = |done: &Overwritten| match elsewhere(done) {
        None => Some(done.clone()),
        // What a second `prepare` has recorded is what it had before both.
        Some(found) if prepared.iter().any(|it| it.target == found.target && is_still(it)) => None,
        found => found,
    };
    prepared.iter().filter_map(now).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::device::{Irq, NapiState};

    /// A `/proc` with interrupts, removed with its test.
    struct Machine(Roots);

    impl Machine {
        fn new(test: &str) -> Machine {
            let root = std::env::temp_dir().join(format!("lull-interrupts-{test}-{}", std::process::id()));
            Machine(Roots { sys: root.join("sys"), proc: root })
        }

        fn interrupt(&self, number: u32, name: &str, cpus: &str) {
            let directory = self.0.proc(&format!("irq/{number}"));
            let _ = fs::remove_dir_all(&directory);
            fs::create_dir_all(directory.join(name)).unwrap();
            fs::write(directory.join("smp_affinity_list"), cpus).unwrap();
        }
    }

    impl Drop for Machine {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0.proc);
        }
    }

    /// A device whose first queue has the interrupt of this number.
    fn with(number: u32) -> Snapshot {
        let (key, settings) = (QueueKey::Rx(0), lull_core::NapiSettings::default().into());
        let irq = Some(Irq { number, cpus: None, effective_cpus: None });
        let (thread, unreported) = (None, Default::default());
        Snapshot {
            device: "eth0".to_owned(),
            ifindex: 7,
            driver: None,
            up: true,
            queues_linked: true,
            rx_queues: 1,
            defaults: None,
            napis: vec![NapiState { key, rx: vec![0], tx: vec![], id: 9, irq, thread, settings, unreported }],
        }
    }

    fn prepared(machine: &Machine) -> Overwritten {
        Overwritten {
            target: Target::of_interrupt(44),
            what: of_interrupt(44, QueueKey::Rx(0)),
            former: "0-3".to_owned(),
            set: Some("1".to_owned()),
            settled: None,
            interrupt: Some(Interrupt::of(44, QueueKey::Rx(0), &machine.0)),
        }
    }

    #[test]
    fn an_interrupt_is_found_again_by_its_queue() {
        let machine = Machine::new("queue");
        machine.interrupt(44, "eth0-rx-0", "1");
        let done = prepared(&machine);
        let found = |records: &[Overwritten], number| found_again(records, &with(number), &machine.0);
        assert_eq!(found(std::slice::from_ref(&done), 44), std::slice::from_ref(&done));
        // After a reset the queue has another one, and its number is a disk's.
        machine.interrupt(44, "nvme0q1", "2");
        machine.interrupt(51, "eth0-rx-0", "0-1");
        let moved = found(std::slice::from_ref(&done), 51);
        assert_eq!(moved.len(), 1);
        assert_eq!((&moved[0].target, moved[0].former.as_str()), (&Target::of_interrupt(51), "0-1"));
        assert_eq!((&moved[0].set, &moved[0].interrupt), (&done.set, &done.interrupt));
        assert_eq!(found(&moved, 51), moved, "it is found once");
        // What a second `prepare` has recorded of it stands.
        let recorded = Overwritten { former: "7".to_owned(), ..moved[0].clone() };
        assert_eq!(found(&[done, recorded.clone()], 51), [recorded]);
    }

    #[test]
    fn an_interrupt_of_a_renamed_device_is_the_one_of_then() {
        let machine = Machine::new("renamed");
        machine.interrupt(44, "eth0-rx-0", "1");
        let done = prepared(&machine);
        machine.interrupt(44, "uplink-rx-0", "1");
        let found = found_again(std::slice::from_ref(&done), &with(44), &machine.0);
        assert_eq!((found.len(), found[0].former.as_str()), (1, "0-3"));
        assert_eq!(found[0].interrupt.as_ref().unwrap().another(44, &machine.0), None);
        assert!(done.interrupt.unwrap().another(44, &machine.0).is_some());
    }
}
