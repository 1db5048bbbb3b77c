//! Finds the interrupts of prepared queues again. A driver that sets its queues up anew may be given other numbers, and
//! its former ones may become another device's.

use super::steps::of_interrupt;
use crate::device::{Irq, QueueKey, Snapshot};
use crate::overwritten::{Interrupt, Overwritten, Target};
use crate::roots::Roots;

/// The number of a queue's interrupt.
fn number_of(queue: QueueKey, snapshot: &Snapshot) -> Option<u32> {
    Some(snapshot.napis.iter().find(|napi| napi.key == queue)?.irq.as_ref()?.number)
}

/// The queue that has the interrupt of this number.
fn queue_of(number: u32, snapshot: &Snapshot) -> Option<QueueKey> {
    let has_it = |irq: &Irq| irq.number == number;
    Some(snapshot.napis.iter().find(|napi| napi.irq.as_ref().is_some_and(has_it))?.key)
}

/// Returns the records with the names that the interrupts have now, where the device still has the recorded one.
/// Drivers name interrupts after their device, which may have been renamed, and after their queues, which may have been
/// grouped in another way.
fn named(prepared: &[Overwritten], snapshot: &Snapshot, roots: &Roots) -> Vec<Overwritten> {
    let is_prepared = |queue| prepared.iter().any(|done| done.interrupt.as_ref().is_some_and(|it| it.queue == queue));
    let now = |done: &Overwritten| {
        let (then, number) = done.interrupt.as_ref().zip(done.target.interrupt())?;
        let queue = match number_of(then.queue, snapshot) {
            Some(now) if now == number => then.queue,
            // The queue has another interrupt now.
            Some(_) => return None,
            // A queue that has a record of its own has brought its interrupt's CPUs along from another number.
            None => queue_of(number, snapshot).filter(|queue| !is_prepared(*queue))?,
        };
        let what = of_interrupt(number, queue);
        Some(Overwritten { what, interrupt: Some(Interrupt::of(number, queue, roots)), ..done.clone() })
    };
    prepared.iter().map(|done| now(done).unwrap_or_else(|| done.clone())).collect()
}

/// The former CPUs of the interrupt that a queue has now in place of the one of `done`. What that one had is gone with
/// it, unless the kernel has given the new one its CPUs (`napi_restore_config`, for drivers with `irq_affinity_auto`),
/// which are lull's then.
fn former_of(done: &Overwritten, target: &Target, now: String) -> String {
    let is_lulls = [&done.set, &done.settled].into_iter().flatten().any(|cpus| target.same(cpus, &now));
    if is_lulls { done.former.clone() } else { now }
}

/// Returns the records with the interrupts that the queues have now, and with what those had before they were prepared.
pub(super) fn found_again(prepared: &[Overwritten], snapshot: &Snapshot, roots: &Roots) -> Vec<Overwritten> {
    let prepared = named(prepared, snapshot, roots);
    let is_still = |done: &Overwritten| {
        done.interrupt.as_ref().zip(done.target.interrupt()).is_some_and(|(it, number)| it.is_still(number, roots))
    };
    let elsewhere = |done: &Overwritten| {
        let then = done.interrupt.as_ref().filter(|it| !it.names.is_empty() && !is_still(done))?;
        let number = number_of(then.queue, snapshot).filter(|number| done.target.interrupt() != Some(*number))?;
        let (target, cpus) =
            (Target::of_interrupt(number), roots.read_proc(&format!("irq/{number}/smp_affinity_list")));
        Some(Overwritten {
            former: former_of(done, &target, cpus.ok()?),
            target,
            what: of_interrupt(number, then.queue),
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
pub(super) mod tests {
    use std::fs;

    use super::*;
    use crate::device::NapiState;

    /// A `/proc` with interrupts, which is removed with its test.
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
        with_interrupts(&[number])
    }

    /// A device whose receive queues have the interrupts of these numbers.
    pub(in super::super) fn with_interrupts(numbers: &[u32]) -> Snapshot {
        let napi = |(queue, &number): (u32, &u32)| {
            let (key, settings) = (QueueKey::Rx(queue), lull_core::NapiSettings::default().into());
            let irq = Some(Irq { number, cpus: None, effective_cpus: None });
            let (thread, unreported) = (None, Default::default());
            NapiState { key, rx: vec![queue], tx: vec![], id: 9 + queue, irq, thread, settings, unreported }
        };
        Snapshot {
            device: "lo".to_owned(),
            ifindex: 1,
            driver: None,
            up: true,
            queues_linked: true,
            rx_queues: numbers.len() as u32,
            defaults: None,
            napis: (0..).zip(numbers).map(napi).collect(),
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
        // After a reset the queue has another interrupt, and its old number is a disk's.
        machine.interrupt(44, "nvme0q1", "2");
        machine.interrupt(51, "eth0-rx-0", "0-1");
        let moved = found(std::slice::from_ref(&done), 51);
        assert_eq!(moved.len(), 1);
        assert_eq!((&moved[0].target, moved[0].former.as_str()), (&Target::of_interrupt(51), "0-1"));
        assert_eq!((&moved[0].set, &moved[0].interrupt), (&done.set, &done.interrupt));
        assert_eq!(found(&moved, 51), moved, "it is found once");
        // What a second `prepare` has recorded of it stays.
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
    #[test]
    fn an_interrupt_that_the_kernel_gave_its_queues_cpus_had_what_the_one_before_had() {
        let machine = Machine::new("restored");
        machine.interrupt(44, "eth0-rx-0", "1");
        let done = prepared(&machine);
        machine.interrupt(44, "nvme0q1", "2");
        machine.interrupt(51, "eth0-rx-0", "1");
        let found = |done: &Overwritten| found_again(std::slice::from_ref(done), &with(51), &machine.0).remove(0);
        assert_eq!((found(&done).target, found(&done).former.as_str()), (Target::of_interrupt(51), "0-3"));
        let settled = Overwritten { set: Some("1-2".to_owned()), settled: Some("1".to_owned()), ..done };
        assert_eq!(found(&settled).former, "0-3", "the kernel had made this of what was set");
    }

    #[test]
    fn an_interrupt_that_the_device_still_has_is_the_one_of_then_although_its_queues_are_grouped_anew() {
        let machine = Machine::new("regrouped");
        machine.interrupt(44, "eth0-rx-4", "1");
        let done =
            Overwritten { interrupt: Some(Interrupt::of(44, QueueKey::Rx(4), &machine.0)), ..prepared(&machine) };
        machine.interrupt(44, "eth0-tx-0", "1");
        let mut regrouped = with_interrupts(&[43, 44]);
        regrouped.napis[1].key = QueueKey::Tx(0);
        let found = found_again(std::slice::from_ref(&done), &regrouped, &machine.0);
        let interrupt = found[0].interrupt.as_ref().unwrap();
        assert_eq!((interrupt.queue, interrupt.another(44, &machine.0)), (QueueKey::Tx(0), None));
        assert_eq!((&found[0].target, found[0].former.as_str()), (&done.target, "0-3"));
        // The first queue has brought its own CPUs along from another number, so what its interrupt had is the
        // original.
        let first = Overwritten { target: Target::of_interrupt(43), former: "2-3".to_owned(), ..prepared(&machine) };
        let names = ["eth0-rx-0".to_owned()].into();
        let first = Overwritten { interrupt: Some(Interrupt { queue: QueueKey::Rx(0), names }), ..first };
        machine.interrupt(44, "eth0-rx-0", "1");
        let found = found_again(&[first, done], &with(44), &machine.0);
        let its = found.iter().filter(|it| it.interrupt.as_ref().unwrap().is_still(44, &machine.0)).collect::<Vec<_>>();
        assert_eq!((its.len(), its[0].former.as_str()), (1, "2-3"));
    }
}
