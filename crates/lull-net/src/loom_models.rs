//! Loom models of the ready list, its waiters and the level, of the room interrupt of a transmit queue's intake, and of
//! transmit queues.
//!
//! A model that loses a wake-up ends with a thread asleep for ever, which loom reports as a deadlock. What the protocol
//! publishes (arrivals) is written and read relaxed, so that only the code under test orders it.
//!
//! Every model says by how many preemptions it is bounded. Loom explores all interleavings within the bound, and all
//! values that a load may return.

mod transmit;

use loom::sync::{Condvar, Mutex};
use loom::thread;
use lull_nic::{IrqLine, IrqSink};

use crate::intake_room::IntakeRoom;
use crate::level::{Level, Masks, Wanted};
use crate::ready_list::{Entry, ReadyList, Taken, Wake};
use crate::sync::{Arc, AtomicBool, AtomicUsize, Ordering};

const READABLE: u32 = 1;
const MASKS: Masks = Masks { always: 0, levels: READABLE };

/// Explores a model with this many preemptions, or with fewer if LULL_LOOM_PREEMPTIONS says so, which is for a quick
/// look.
fn check(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    builder(preemptions).check(model);
}

fn builder(preemptions: usize) -> loom::model::Builder {
    let most = std::env::var("LULL_LOOM_PREEMPTIONS").ok().map(|most| most.parse().expect("a number of preemptions"));
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = most.into_iter().chain([preemptions]).min();
    builder.max_branches = 20_000;
    builder
}

/// A socket and its registration. `arrived` counts what has come, and only the protocol orders it.
struct Socket {
    queued: AtomicBool,
    level: Level,
    wanted: Wanted,
    arrived: AtomicUsize,
}

impl Socket {
    fn new(interest: u32) -> Arc<Socket> {
        Arc::new(Socket {
            queued: AtomicBool::new(false),
            level: Level::new(0),
            wanted: Wanted::new(interest, MASKS),
            arrived: AtomicUsize::new(0),
        })
    }
}

impl Entry for Socket {
    fn queued(&self) -> &AtomicBool {
        &self.queued
    }
}

/// A waiting thread. A wake-up that comes before the sleep is kept.
#[derive(Clone)]
struct Waiter(Arc<(Mutex<bool>, Condvar)>);

impl Waiter {
    fn new() -> Waiter {
        Waiter(Arc::new((Mutex::new(false), Condvar::new())))
    }

    fn sleep(&self) {
        let (woken, condvar) = &*self.0;
        let mut woken = woken.lock().unwrap();
        while !*woken {
            woken = condvar.wait(woken).unwrap();
        }
        *woken = false;
    }
}

impl Wake for Waiter {
    fn wake(&self) {
        *self.0.0.lock().unwrap() = true;
        self.0.1.notify_one();
    }

    fn is_same(&self, other: &Waiter) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

type List = ReadyList<Socket, Waiter>;

/// Delivers something, and informs whoever waits (`Item::fire`).
fn arrive(list: &List, socket: &Arc<Socket>, count: usize) {
    socket.arrived.store(count, Ordering::Relaxed);
    socket.level.set_bits(READABLE);
    if socket.wanted.wants(READABLE) {
        push(list, socket);
    }
}

/// The thread that pushes wakes the waiter. In real delivery this happens after the shard's lock is given back.
fn push(list: &List, socket: &Arc<Socket>) {
    let waiter = list.push(socket);
    waiter.inspect(Waiter::wake);
}

/// Waits for one event, for ever (`epoll_wait`): it calls `report` until that says that an event was taken.
fn wait(list: &List, waiter: &Waiter, mut report: impl FnMut(&Socket) -> Taken) {
    loop {
        let mut reported = false;
        list.take(
            1,
            |_| (),
            |socket| {
                let taken = report(socket);
                reported = taken != Taken::Stale;
                taken
            },
        );
        if reported {
            return;
        }
        while !list.look(waiter) {
            waiter.sleep();
        }
        let _ = list.leave(waiter);
    }
}

/// The item is edge-triggered: a thread that looks for the last time sees all that has arrived.
#[test]
fn loom_an_edge_that_comes_while_the_entry_is_taken_queues_it_again() {
    check(3, || {
        let (list, socket) = (Arc::new(List::new()), Socket::new(READABLE));
        let delivery = {
            let (list, socket) = (list.clone(), socket.clone());
            thread::spawn(move || {
                arrive(&list, &socket, 1);
                arrive(&list, &socket, 2);
            })
        };
        let waiter = Waiter::new();
        let mut seen = 0;
        while seen != 2 {
            wait(&list, &waiter, |socket| {
                if socket.level.bits() & socket.wanted.mask() == 0 {
                    return Taken::Stale;
                }
                seen = socket.arrived.load(Ordering::Relaxed);
                Taken::Once
            });
        }
        delivery.join().unwrap();
    });
}

/// The item is level-triggered, and two arrivals make one edge. The thread that took the first is busy until the second
/// is served, so the other thread has to be woken for it.
#[test]
fn loom_what_is_left_of_a_level_wakes_the_other_waiter() {
    check(2, || {
        let (list, socket) = (Arc::new(List::new()), Socket::new(READABLE));
        let served = Arc::new((Mutex::new(0), Condvar::new()));
        let worker = || {
            let (list, served) = (list.clone(), served.clone());
            move || {
                let waiter = Waiter::new();
                wait(&list, &waiter, |socket| {
                    if socket.level.bits() & socket.wanted.mask() == 0 {
                        return Taken::Stale;
                    }
                    let left = socket.arrived.load(Ordering::Relaxed) - 1;
                    socket.arrived.store(left, Ordering::Relaxed);
                    if left == 0 {
                        socket.level.set_bits(0);
                    }
                    Taken::Again
                });
                let (count, condvar) = &*served;
                let mut count = count.lock().unwrap();
                *count += 1;
                condvar.notify_all();
                while *count < 2 {
                    count = condvar.wait(count).unwrap();
                }
            }
        };
        let threads = [thread::spawn(worker()), thread::spawn(worker())];
        arrive(&list, &socket, 2);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
}

/// A waiter leaves because its time is up, and may be woken in the same moment. Then it takes the event, or the other
/// waiter does.
#[test]
fn loom_a_waiter_that_leaves_takes_what_it_was_woken_for() {
    check(3, || {
        let (list, socket) = (Arc::new(List::new()), Socket::new(READABLE));
        let leaver = {
            let list = list.clone();
            thread::spawn(move || {
                let waiter = Waiter::new();
                let mut took = false;
                let available = list.look(&waiter);
                // The time is up.
                if list.leave(&waiter) || available {
                    list.take(
                        1,
                        |_| (),
                        |_| {
                            took = true;
                            Taken::Once
                        },
                    );
                }
                took
            })
        };
        let stayer = {
            let list = list.clone();
            thread::spawn(move || wait(&list, &Waiter::new(), |_| Taken::Once))
        };
        arrive(&list, &socket, 1);
        if leaver.join().unwrap() {
            arrive(&list, &socket, 2);
        }
        stayer.join().unwrap();
    });
}

/// A one-shot item that is off is turned on again while something arrives. One of the two threads queues it.
#[test]
fn loom_a_one_shot_that_is_turned_on_while_data_arrives_is_reported() {
    check(3, || {
        let (list, socket) = (Arc::new(List::new()), Socket::new(READABLE));
        socket.wanted.turn_off();
        let delivery = {
            let (list, socket) = (list.clone(), socket.clone());
            thread::spawn(move || arrive(&list, &socket, 1))
        };
        let modify = {
            let (list, socket) = (list.clone(), socket.clone());
            thread::spawn(move || {
                list.between_takes(|| socket.wanted.change(READABLE));
                if socket.level.bits() & socket.wanted.mask() != 0 {
                    push(&list, &socket);
                }
            })
        };
        delivery.join().unwrap();
        modify.join().unwrap();
        assert!(list.is_available());
    });
}

/// A context is freed while something arrives. Nothing keeps the entry alive.
#[test]
fn loom_a_freed_context_keeps_no_entry() {
    check(3, || {
        let (list, socket) = (Arc::new(List::new()), Socket::new(READABLE));
        let delivery = {
            let (list, socket) = (list.clone(), socket.clone());
            thread::spawn(move || arrive(&list, &socket, 1))
        };
        list.close();
        delivery.join().unwrap();
        assert_eq!(Arc::strong_count(&socket), 1);
    });
}

/// The sink of the room interrupt: it stands for the shard, which is polled then.
struct Raised(std::sync::Arc<AtomicBool>);

impl IrqSink for Raised {
    fn raise(&self) {
        self.0.swap(true, Ordering::Relaxed);
    }
}

/// Two senders of a shard find no room while the threads that run the transmit queue make room for one and for the
/// other. The shard is polled until both have room. Room is made and found relaxed, and the interrupt orders nothing
/// either. Two preemptions.
#[test]
fn loom_room_that_is_made_while_its_interrupt_is_armed_is_told() {
    check(2, || {
        let raised = std::sync::Arc::new(AtomicBool::new(false));
        let world = Arc::new((IntakeRoom::default(), [AtomicBool::new(false), AtomicBool::new(false)]));
        world.0.connect(std::sync::Arc::new(Raised(raised.clone())));
        let runners: Vec<_> = (0..2)
            .map(|sender| {
                let world = world.clone();
                thread::spawn(move || {
                    world.1[sender].store(true, Ordering::Relaxed);
                    world.0.made();
                })
            })
            .collect();
        let (line, rooms) = &*world;
        let has_room = |sender: &usize| line.look(|| usize::from(rooms[*sender].load(Ordering::Relaxed))) != 0;
        let mut waiting = vec![0, 1];
        loop {
            waiting.retain(|sender| !has_room(sender));
            if waiting.is_empty() {
                break;
            }
            line.unmask();
            while !raised.swap(false, Ordering::Relaxed) {
                thread::yield_now();
            }
        }
        runners.into_iter().for_each(|runner| runner.join().unwrap());
    });
}
