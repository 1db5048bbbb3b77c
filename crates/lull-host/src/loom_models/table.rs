//! The table of instances, whose slots serve one instance after another: an old index never leads to a successor, nothing
//! that is raised or started is lost, and who removes an instance has it alone.
//!
//! What belongs to an instance is in one of loom's cells here: whoever looked it up reads the cell, and whoever removed it
//! writes it. A removal that does not wait for those who look is a race, which loom reports.

use loom::sync::Arc as Shared;
use loom::thread;
use lull_core::{Completion, Cx, DisableClaim, NapiSettings, Polled, Schedule};
use std::sync::{Arc, Weak};

use super::{Bed, check};
use crate::deadlines::{Deadlines, NEVER};
use crate::raised::Raised;
use crate::seat::{IRQ_THREAD, Seat};
use crate::sync::{AtomicBool, AtomicU32, AtomicU64, Ordering, UnsafeCell};
use crate::table::{Removable, Table};
use crate::timed::{Listed, Timed};

const NOBODY: u32 = u32::MAX;

/// Its interrupt comes to CPU 0.
struct Instance {
    me: Weak<Instance>,
    index: u32,
    /// Read by those who looked it up, written by who removed it.
    own: UnsafeCell<u32>,
    removed: AtomicBool,
    /// A packet that its device has put into the ring.
    packet: AtomicBool,
    timer_ns: AtomicU64,
    napi: lull_core::Napi,
}

// SAFETY: the cell is what the models are about: loom reports two accesses that are not ordered.
unsafe impl Sync for Instance {}

impl Instance {
    /// Into the slot that is the longest free.
    fn put_into(table: &Table<Instance>) -> Arc<Instance> {
        let index = table.reserve().expect("a free slot");
        let instance = Arc::new_cyclic(|me| Instance {
            me: me.clone(),
            index,
            own: UnsafeCell::new(index),
            removed: AtomicBool::new(false),
            packet: AtomicBool::new(false),
            timer_ns: AtomicU64::new(NEVER),
            napi: lull_core::Napi::new(index),
        });
        table.fill(index, 0, instance.clone());
        instance
    }

    /// Somebody who looked it up uses it.
    fn used(&self) {
        // SAFETY: loom checks that nobody writes it.
        self.own.with(|own| assert_eq!(unsafe { *own }, self.index, "a removed instance is used"));
    }

    /// As a host does it: nobody is left who could use it.
    fn remove_from(self: &Arc<Self>, table: &Table<Instance>, let_go: impl FnOnce()) {
        table.remove(self.index, self, || {
            let_go();
            // SAFETY: loom checks that nobody else reads or writes it.
            self.own.with_mut(|own| unsafe { *own = NOBODY });
        });
    }
}

impl Removable for Instance {
    fn is_removed(&self) -> bool {
        self.removed.load(Ordering::Acquire)
    }

    fn announce_removal(&self) {
        self.removed.store(true, Ordering::Release);
    }
}

impl Timed for Instance {
    fn to_keep(&self) -> Option<Arc<Instance>> {
        self.me.upgrade()
    }

    fn cpu(&self) -> u16 {
        0
    }

    fn deadline_on(&self, _: u16) -> u64 {
        self.timer_ns.load(Ordering::Relaxed)
    }
}

/// One slot: every instance but the first is a successor.
fn one_slot() -> (Arc<Table<Instance>>, Arc<Instance>) {
    let table = Arc::new(Table::new(1));
    let first = Instance::put_into(&table);
    (table, first)
}

/// Two threads look up what they know the index of, while the instance is removed and its slot given to another. Three
/// preemptions.
#[test]
fn loom_table_an_index_leads_to_its_own_instance_or_nowhere() {
    check(3, || {
        let (table, first) = one_slot();
        let old = first.index;
        let known = Shared::new(AtomicU32::new(old));
        let lookers: Vec<_> = (0..2)
            .map(|_| {
                let (table, known) = (table.clone(), known.clone());
                thread::spawn(move || {
                    let index = known.load(Ordering::Acquire);
                    let found = table.find(index);
                    if let Some(found) = &found {
                        assert_eq!(found.index, index, "the index of another");
                        found.used();
                    }
                    assert!(found.is_some() || index == old, "a successor was filled before its index was told");
                })
            })
            .collect();
        first.remove_from(&table, || ());
        assert!(table.find(old).is_none());
        let second = Instance::put_into(&table);
        known.store(second.index, Ordering::Release);
        assert!(table.find(second.index).is_some() && table.find(old).is_none());
        lookers.into_iter().for_each(|looker| looker.join().expect("a looker"));
    });
}

/// The interrupts of an instance that is being removed, of its successor in the slot, and the thread that takes them: what
/// the successor's device announces is seen, though its place may be on the list already. Three preemptions.
#[test]
fn loom_table_the_interrupt_of_a_successor_arrives() {
    check(3, || {
        struct World {
            table: Arc<Table<Instance>>,
            raised: Raised,
            seat: Seat,
            irq: Bed,
        }
        impl World {
            /// As a device's line does it.
            fn raise(&self, instance: &Instance) {
                if !instance.is_removed()
                    && self.table.push_raised(&self.raised, instance.index)
                    && let Some(holder) = self.seat.raise()
                {
                    assert_eq!(holder, IRQ_THREAD);
                    self.irq.wake();
                }
            }
        }
        let (table, first) = one_slot();
        let world = Shared::new(World { table, raised: Raised::new(), seat: Seat::new(), irq: Bed::new() });
        let line = {
            let (world, first) = (world.clone(), first.clone());
            thread::spawn(move || world.raise(&first))
        };
        let holder = {
            let (world, old) = (world.clone(), first.index);
            thread::spawn(move || {
                let mut is_seen = false;
                while !is_seen {
                    world.irq.park();
                    assert!(world.seat.take(IRQ_THREAD));
                    loop {
                        world.seat.begin();
                        world.table.take_raised(&world.raised, |found| {
                            found.used();
                            is_seen |= found.index != old && found.packet.load(Ordering::Relaxed);
                        });
                        if world.seat.pass(IRQ_THREAD) {
                            break;
                        }
                    }
                }
            })
        };
        first.remove_from(&world.table, || ());
        let second = Instance::put_into(&world.table);
        second.packet.store(true, Ordering::Relaxed);
        world.raise(&second);
        line.join().expect("the line");
        holder.join().expect("the holder");
    });
}

/// Softirq of an interrupt, with the state machine of the core, against disable and removal: who became the owner finds
/// the instance for as long as it owns it, and nobody else's instance by it. Three preemptions.
#[test]
fn loom_table_an_owner_finds_its_instance_until_it_lets_go() {
    check(3, || {
        let (table, first) = one_slot();
        first.napi.enable(lull_core::NAPI_ID_MIN, Some(&NapiSettings::default()));
        let raised = Shared::new(Raised::new());
        assert!(table.push_raised(&raised, first.index));
        let softirq = {
            let (table, raised) = (table.clone(), raised.clone());
            thread::spawn(move || {
                let cx = Cx::new(0, 1);
                let mut owner = None;
                table.take_raised(&raised, |found| {
                    if let Schedule::Owned(owned) = found.napi.schedule(&cx) {
                        owner = Some(owned);
                    }
                });
                let Some(owner) = owner else { return };
                let found = table.find(owner.napi()).expect("a disable waits for the owner");
                found.used();
                // A disable that waits asks for a poll that finds nothing.
                match found.napi.softirq_polled(owner, 0, false, &cx, |_| ()) {
                    Polled::Completed(Completion::Released(release)) => drop(release.settle(&found.napi, &cx)),
                    Polled::Completed(Completion::Again(owner) | Completion::Kept(owner)) | Polled::Repoll(owner) => {
                        unreachable!("nothing else happened to {owner:?}")
                    }
                }
            })
        };
        first.napi.disable_begin();
        while first.napi.disable_claim() == DisableClaim::Owned {
            thread::yield_now();
        }
        first.napi.disable_end(&Cx::new(0, 1));
        first.remove_from(&table, || ());
        let second = Instance::put_into(&table);
        second.used();
        softirq.join().expect("softirq");
        // An interrupt that was still on the list is taken, and nobody was found by it.
        assert!(table.push_raised(&raised, second.index));
    });
}

/// When the timer of a model is due.
const TIMER_NS: u64 = 50;

/// CPU 1, which polls an instance of CPU 0.
struct OtherCpu {
    listed: Listed<Instance>,
    deadlines: Deadlines,
}

impl OtherCpu {
    fn new() -> OtherCpu {
        OtherCpu { listed: Listed::new(1), deadlines: Deadlines::new() }
    }

    fn starts_timer(&self, instance: &Instance) {
        instance.timer_ns.store(TIMER_NS, Ordering::Relaxed);
        self.listed.timer_started(instance, TIMER_NS, &self.deadlines);
    }
}

/// An instance gets its first timer on another CPU while two others look that CPU's deadlines up: the timer is known in the
/// end. Three preemptions.
#[test]
fn loom_table_a_timer_on_another_cpu_is_known_to_it() {
    check(3, || {
        let (_table, instance) = one_slot();
        let cpu = Shared::new(OtherCpu::new());
        let lookers: Vec<_> = (0..2)
            .map(|_| {
                let cpu = cpu.clone();
                thread::spawn(move || cpu.listed.earliest_ns(&cpu.deadlines))
            })
            .collect();
        cpu.starts_timer(&instance);
        lookers.into_iter().for_each(|looker| assert!(looker.join().expect("a looker") >= TIMER_NS));
        assert!(cpu.deadlines.earliest_ns() <= TIMER_NS, "a timer that nobody knows of");
    });
}

/// Somebody who still has an instance starts its timer on another CPU while it is removed: that CPU has it neither for ever
/// nor in the way of the successor. Unbounded.
#[test]
fn loom_table_a_timer_keeps_no_removed_instance() {
    loom::model(|| {
        let (table, first) = one_slot();
        let cpu = Shared::new(OtherCpu::new());
        let starter = {
            let (cpu, first) = (cpu.clone(), first.clone());
            thread::spawn(move || cpu.starts_timer(&first))
        };
        first.remove_from(&table, || cpu.listed.take(&first));
        let second = Instance::put_into(&table);
        cpu.starts_timer(&second);
        starter.join().expect("the starter");
        let listed: Vec<u32> = cpu.listed.all().iter().map(|instance| instance.index).collect();
        assert_eq!(listed, [second.index]);
    });
}
