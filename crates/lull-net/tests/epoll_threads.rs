//! Several threads on one epoll context, and several contexts on one socket: these tests show who is woken.

mod pair;

use std::io::Write;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;

use lull_host::Worker;
use lull_net::{Epoll, Event, Interest, TcpStream};
use pair::{LOST, Pair, until, wait};
use rustix::event::{EventfdFlags, eventfd};

/// The key of the notifier that ends the threads of a test.
const STOP: u64 = u64::MAX;

/// Threads that wait on one context for one event at a time, until they are told to stop.
struct Waiters {
    epoll: Epoll,
    threads: Vec<JoinHandle<()>>,
}

impl Waiters {
    fn start<F: FnMut(Event) + Send + 'static>(
        pair: &Pair,
        count: usize,
        epoll: &Epoll,
        on_event: impl Fn() -> F,
    ) -> Waiters {
        let thread = |_| {
            let (worker, epoll, mut on_event) = (pair.worker(), epoll.clone(), on_event());
            std::thread::spawn(move || serve(&worker, &epoll, &mut on_event))
        };
        Waiters { epoll: epoll.clone(), threads: (0..count).map(thread).collect() }
    }

    fn stop(self) {
        self.epoll.notifier(STOP).notify();
        self.threads.into_iter().for_each(|thread| thread.join().unwrap());
    }
}

fn serve(worker: &Worker, epoll: &Epoll, on_event: &mut impl FnMut(Event)) {
    loop {
        let mut events = Vec::new();
        epoll.wait(worker, &mut events, 1, None).unwrap();
        for event in events {
            if event.key == STOP {
                // A notification is reported once, so this thread notifies the next one.
                epoll.notifier(STOP).notify();
                return;
            }
            on_event(event);
        }
    }
}

/// One thread takes the first connection and is busy with it. The other thread, which sleeps in the same context, takes
/// the second connection.
#[test]
fn a_level_wakes_the_second_thread_while_the_first_is_busy() {
    let pair = Pair::new();
    let listener = pair.listener(7);
    listener.set_nonblocking(true).unwrap();
    let epoll = pair.epoll(&listener, Interest::READABLE);
    let accepted = Arc::new(AtomicUsize::new(0));
    let waiters = Waiters::start(&pair, 2, &epoll, || {
        let (listener, accepted) = (listener.clone(), accepted.clone());
        move |_| {
            if let Ok((_stream, _)) = listener.accept() {
                accepted.fetch_add(1, Ordering::SeqCst);
                until("the other thread accepts", || accepted.load(Ordering::SeqCst) == 2);
            }
        }
    });
    until("both sleep", || epoll.waiting() == 2);
    let _first = pair.connect(7);
    until("the first connection is accepted", || accepted.load(Ordering::SeqCst) == 1);
    let _second = pair.connect(7);
    until("the second connection is accepted", || accepted.load(Ordering::SeqCst) == 2);
    waiters.stop();
}

/// `ep_poll_callback` returns 0 for a context without a waiter, whose thread computes, so that it does not swallow the
/// wake-up.
#[test]
fn exclusive_passes_over_a_context_that_nobody_waits_on() {
    let pair = Pair::new();
    let listener = pair.listener(7);
    let exclusive = Interest::READABLE | Interest::EXCLUSIVE;
    let _computing = pair.epoll(&listener, exclusive);
    let waited_on = pair.epoll(&listener, exclusive);
    let (worker, epoll) = (pair.worker(), waited_on.clone());
    let waiting = std::thread::spawn(move || wait(&epoll, &worker, 8, LOST).len());
    until("it sleeps", || waited_on.waiting() == 1);
    let _client = pair.connect(7);
    assert_eq!(waiting.join().unwrap(), 1);
}

#[test]
fn exclusive_wakes_one_of_several_contexts() {
    const CONTEXTS: usize = 3;
    let pair = Pair::new();
    let listener = pair.listener(7);
    let told = Arc::new(AtomicUsize::new(0));
    let contexts: Vec<Waiters> = (0..CONTEXTS)
        .map(|_| {
            let epoll = pair.epoll(&listener, Interest::READABLE | Interest::EXCLUSIVE | Interest::EDGE);
            Waiters::start(&pair, 1, &epoll, || {
                let told = told.clone();
                move |_| {
                    told.fetch_add(1, Ordering::SeqCst);
                }
            })
        })
        .collect();
    until("all sleep", || contexts.iter().all(|context| context.epoll.waiting() == 1));
    let _client = pair.connect(7);
    until("one is told", || told.load(Ordering::SeqCst) == 1);
    // What the delivery of the connection has put on a ready list is taken before the notification to stop, which comes
    // after it.
    contexts.into_iter().for_each(Waiters::stop);
    assert_eq!(told.load(Ordering::SeqCst), 1);
}

/// The first kernel descriptor is added while threads sleep. Each of its signals is taken by one of them.
#[test]
fn a_kernel_descriptor_wakes_threads_that_slept_before_it_was_added() {
    const ROUNDS: usize = 100;
    let pair = Pair::new();
    let epoll = Epoll::new(&pair.host);
    let descriptor = Arc::new(eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::SEMAPHORE).unwrap());
    let taken = Arc::new(AtomicUsize::new(0));
    let waiters = Waiters::start(&pair, 3, &epoll, || {
        let (descriptor, taken) = (descriptor.clone(), taken.clone());
        move |_| {
            if rustix::io::read(&descriptor, &mut [0u8; 8]).is_ok() {
                taken.fetch_add(1, Ordering::SeqCst);
            }
        }
    });
    until("all sleep", || epoll.waiting() == 3);
    epoll.add_fd(descriptor.as_fd(), 1, Interest::READABLE).unwrap();
    for round in 1..=ROUNDS {
        rustix::io::write(&descriptor, &1u64.to_ne_bytes()).unwrap();
        until("the signal is taken", || taken.load(Ordering::SeqCst) == round);
    }
    waiters.stop();
}

/// A notifier that is used after its context was dropped keeps nothing alive, even if it was used before.
#[test]
fn a_notifier_outlives_its_context() {
    let pair = Pair::new();
    let held = Arc::strong_count(&pair.host.delivery());
    for used_before in [false, true] {
        let epoll = Epoll::new(&pair.host);
        let notifier = epoll.notifier(1);
        if used_before {
            notifier.notify();
        }
        drop(epoll);
        notifier.notify();
        drop(notifier);
        assert_eq!(Arc::strong_count(&pair.host.delivery()), held, "used before: {used_before}");
    }
}

/// Threads on one context read what comes on several connections, sometimes together and sometimes one after the other.
/// Every byte is read, in whatever way an item is reported.
fn stress(how: Interest) {
    const THREADS: usize = 3;
    const CONNECTIONS: usize = 5;
    const ROUNDS: usize = 400;
    let pair = Pair::new();
    let listener = pair.listener(7);
    let epoll = Epoll::new(&pair.host);
    let connected = |key| {
        let client = pair.connect(7);
        // With this, a small write does not wait for the acknowledgement of the one before.
        client.set_nodelay(true).unwrap();
        let (server, _) = listener.accept().unwrap();
        server.set_nonblocking(true).unwrap();
        epoll.add(&server, key as u64, Interest::READABLE | how).unwrap();
        (server, client)
    };
    let (servers, clients): (Vec<TcpStream>, Vec<TcpStream>) = (0..CONNECTIONS).map(connected).unzip();
    let read = Arc::new(AtomicUsize::new(0));
    let waiters = Waiters::start(&pair, THREADS, &epoll, || {
        let (servers, read, epoll) = (servers.clone(), read.clone(), epoll.clone());
        move |event| {
            let server = &servers[event.key as usize];
            let mut buffer = [0; 2];
            // With level-triggered items a part may be left; an edge is reported only once.
            while let Ok(count) = server.recv(&mut buffer) {
                read.fetch_add(count, Ordering::SeqCst);
                if !how.contains(Interest::EDGE) {
                    break;
                }
            }
            if how.contains(Interest::ONESHOT) {
                epoll.modify(server, event.key, Interest::READABLE | how).unwrap();
            }
        }
    });
    let mut sent = 0;
    for round in 0..ROUNDS {
        for offset in 0..=round % CONNECTIONS {
            let count = 1 + (round + offset) % 4;
            (&clients[(round + offset) % CONNECTIONS]).write_all(&[7; 4][..count]).unwrap();
            sent += count;
        }
        // Sometimes the threads sleep when more comes, and sometimes they do not.
        if round % 3 != 0 {
            until("all is read", || read.load(Ordering::SeqCst) == sent);
        }
    }
    until("all is read", || read.load(Ordering::SeqCst) == sent);
    waiters.stop();
}

#[test]
fn several_threads_on_one_context_read_everything_level_triggered() {
    stress(Interest::empty());
}

#[test]
fn several_threads_on_one_context_read_everything_edge_triggered() {
    stress(Interest::EDGE);
}

#[test]
fn several_threads_on_one_context_read_everything_one_shot() {
    stress(Interest::ONESHOT);
}
