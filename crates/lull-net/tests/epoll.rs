//! Epoll as Linux has it: level, edge, one-shot, hang-ups, kernel descriptors, suspension. `epoll_threads.rs` has
//! several threads and contexts.

mod pair;

use std::io::{ErrorKind, Write};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use lull_core::{EpollOptions, EpollParams, NapiSettings};
use lull_host::Worker;
use lull_net::{Epoll, Interest, ListenOptions, Named, Ready, Shutdown, TcpListener, TcpStream};
use pair::{LOST, Pair, SERVER, until, wait};
use rustix::event::{EventfdFlags, eventfd};

const SOON: Duration = Duration::from_millis(30);

fn send(mut stream: &lull_net::TcpStream, data: &[u8]) {
    stream.write_all(data).unwrap();
}

#[test]
fn level_triggered_reports_for_as_long_as_there_is_something() {
    let pair = Pair::new();
    let (server, client) = pair.connected(7);
    let (worker, epoll) = (pair.worker(), pair.epoll(&server, Interest::READABLE));
    assert!(wait(&epoll, &worker, 8, SOON).is_empty());
    send(&client, b"abcd");
    for _ in 0..3 {
        let events = wait(&epoll, &worker, 8, LOST);
        assert_eq!((events.len(), events[0].key, events[0].ready), (1, 1, Ready::READABLE));
    }
    let mut buffer = [0; 3];
    assert_eq!(server.recv(&mut buffer).unwrap(), 3);
    assert_eq!(wait(&epoll, &worker, 8, LOST).len(), 1, "one byte is left");
    assert_eq!(server.recv(&mut buffer).unwrap(), 1);
    assert!(wait(&epoll, &worker, 8, SOON).is_empty());
}

#[test]
fn edge_triggered_reports_once_per_arrival_even_if_something_is_left() {
    let pair = Pair::new();
    let (server, client) = pair.connected(7);
    let (worker, epoll) = (pair.worker(), pair.epoll(&server, Interest::READABLE | Interest::EDGE));
    for _ in 0..2 {
        send(&client, b"x");
        assert_eq!(wait(&epoll, &worker, 8, LOST).len(), 1);
        assert!(wait(&epoll, &worker, 8, SOON).is_empty(), "told already");
    }
}

/// Data that arrive wake an item that asked for urgent data, of which there are none. A waiter in a context outside is
/// not told of them.
#[test]
fn who_watches_a_context_hears_of_what_it_would_report_alone() {
    let pair = Pair::new();
    let ((first, first_peer), (second, second_peer)) = (pair.connected(7), pair.connected(8));
    let epoll = pair.epoll(&first, Interest::PRI);
    let told = Arc::new(AtomicUsize::new(0));
    let count = told.clone();
    epoll.on_edge(Box::new(move || {
        count.fetch_add(1, Ordering::SeqCst);
    }));
    let arrives = |stream: &TcpStream, peer: &TcpStream, bytes: usize| {
        send(peer, b"x");
        // The edge is told under the lock under which the data arrive.
        until("it has come", || stream.unread().unwrap() == bytes);
        told.swap(0, Ordering::SeqCst)
    };
    assert_eq!(arrives(&first, &first_peer, 1), 0, "there is nothing urgent");
    epoll.add(&second, 2, Interest::READABLE).unwrap();
    assert_eq!(arrives(&second, &second_peer, 1), 1);
    assert_eq!(arrives(&first, &first_peer, 2), 1, "the other one is still ready, and an outer edge is one");
}

#[test]
fn one_shot_reports_once_until_it_is_modified() {
    let pair = Pair::new();
    let (server, client) = pair.connected(7);
    let (worker, epoll) = (pair.worker(), pair.epoll(&server, Interest::READABLE | Interest::ONESHOT));
    send(&client, b"x");
    assert_eq!(wait(&epoll, &worker, 8, LOST).len(), 1);
    send(&client, b"y");
    until("it has come", || server.unread().unwrap() == 2);
    assert!(wait(&epoll, &worker, 8, Duration::ZERO).is_empty(), "off");
    epoll.modify(&server, 9, Interest::READABLE | Interest::ONESHOT).unwrap();
    assert_eq!(wait(&epoll, &worker, 8, LOST)[0].key, 9, "what is there already is reported");
}

#[test]
fn a_socket_is_in_the_set_once_under_each_of_its_names() {
    let pair = Pair::new();
    let (server, client) = pair.connected(7);
    let (worker, epoll) = (pair.worker(), pair.epoll(&server, Interest::READABLE));
    let named = Named(&server, 5);
    epoll.add(&named, 9, Interest::WRITABLE | Interest::ONESHOT).unwrap();
    assert_eq!(epoll.add(&Named(&server, 5), 9, Interest::WRITABLE).unwrap_err().kind(), ErrorKind::AlreadyExists);
    assert_eq!(wait(&epoll, &worker, 8, LOST).iter().map(|event| event.key).collect::<Vec<_>>(), [9]);
    send(&client, b"x");
    until("data", || server.ready().contains(Ready::READABLE));
    assert_eq!(wait(&epoll, &worker, 8, LOST).iter().map(|event| event.key).collect::<Vec<_>>(), [1], "9 is off");
    epoll.delete(&server).unwrap();
    epoll.modify(&named, 9, Interest::READABLE).unwrap();
    assert_eq!(wait(&epoll, &worker, 8, LOST).iter().map(|event| event.key).collect::<Vec<_>>(), [9]);
    epoll.add(&server, 1, Interest::RDHUP).unwrap();
    let mut taken = epoll.take_out(&server);
    taken.sort_by_key(|(name, ..)| *name);
    assert_eq!(taken, [(0, 1, Interest::RDHUP), (5, 9, Interest::READABLE)]);
    assert_eq!(epoll.delete(&named).unwrap_err().kind(), ErrorKind::NotFound);
    epoll.add(&named, 9, Interest::READABLE).unwrap();
    drop(server);
    assert!(wait(&epoll, &worker, 8, Duration::ZERO).is_empty(), "closed, it has left under all its names");
}

#[test]
fn what_is_ready_when_a_socket_is_added_is_reported() {
    let pair = Pair::new();
    let (server, client) = pair.connected(7);
    send(&client, b"x");
    until("data", || server.ready().contains(Ready::READABLE));
    let epoll = pair.epoll(&server, Interest::READABLE | Interest::WRITABLE);
    assert_eq!(wait(&epoll, &pair.worker(), 8, LOST)[0].ready, Ready::READABLE | Ready::WRITABLE);
}

#[test]
fn add_modify_and_delete_refuse_as_epoll_ctl_does() {
    let pair = Pair::new();
    let (server, client) = pair.connected(7);
    let epoll = pair.epoll(&server, Interest::READABLE);
    assert_eq!(epoll.add(&server.clone(), 2, Interest::READABLE).unwrap_err().kind(), ErrorKind::AlreadyExists);
    assert_eq!(epoll.modify(&client, 2, Interest::READABLE).unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(epoll.delete(&client).unwrap_err().kind(), ErrorKind::NotFound);
    let exclusive = Interest::READABLE | Interest::EXCLUSIVE;
    for refused in [Interest::ONESHOT, Interest::RDHUP] {
        assert_eq!(epoll.add(&client, 2, exclusive | refused).unwrap_err().kind(), ErrorKind::InvalidInput);
    }
    assert_eq!(epoll.modify(&server, 2, exclusive).unwrap_err().kind(), ErrorKind::InvalidInput);
    assert_eq!(epoll.wait(&pair.worker(), &mut Vec::new(), 0, None).unwrap_err().kind(), ErrorKind::InvalidInput);
    epoll.delete(&server).unwrap();
    send(&client, b"x");
    until("it has come", || server.unread().unwrap() == 1);
    assert!(wait(&epoll, &pair.worker(), 8, Duration::ZERO).is_empty());
}

#[test]
fn half_close_hang_up_and_error() {
    let pair = Pair::new();
    let (server, client) = pair.connected(7);
    let worker = pair.worker();
    let epoll = pair.epoll(&server, Interest::RDHUP);
    client.shutdown(Shutdown::Write).unwrap();
    assert!(wait(&epoll, &worker, 8, LOST)[0].ready.contains(Ready::RDHUP));
    server.shutdown(Shutdown::Write).unwrap();
    until("hang-up", || wait(&epoll, &worker, 8, LOST)[0].ready.contains(Ready::HUP));

    // A reset is an error, which is reported even if nobody asked for it.
    let (server, client) = pair.connected(8);
    let epoll = pair.epoll(&server, Interest::WRITABLE | Interest::EDGE);
    assert!(!wait(&epoll, &worker, 8, LOST).is_empty());
    client.set_reset_on_close(true).unwrap();
    drop(client);
    let events = wait(&epoll, &worker, 8, LOST);
    assert!(events[0].ready.contains(Ready::ERR | Ready::HUP), "{events:?}");
    assert_eq!(server.take_error().unwrap().unwrap().kind(), ErrorKind::ConnectionReset);
}

#[test]
fn a_closed_socket_leaves_the_set_and_a_closed_set_leaves_the_socket() {
    let pair = Pair::new();
    let (server, client) = pair.connected(7);
    let worker = pair.worker();
    let epoll = pair.epoll(&server, Interest::READABLE);
    send(&client, b"x");
    until("data", || server.ready().contains(Ready::READABLE));
    let second = pair.epoll(&server, Interest::READABLE);
    drop(second);
    drop(server);
    assert!(wait(&epoll, &worker, 8, SOON).is_empty());
}

#[test]
fn kernel_descriptors_and_sockets_in_one_set_starve_neither() {
    let pair = Pair::new();
    let (server, client) = pair.connected(7);
    let worker = pair.worker();
    let epoll = pair.epoll(&server, Interest::READABLE);
    let descriptor = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
    epoll.add_fd(descriptor.as_fd(), 2, Interest::READABLE).unwrap();
    assert!(wait(&epoll, &worker, 8, SOON).is_empty());
    // A kernel descriptor ends a sleep.
    let writer = descriptor.try_clone().unwrap();
    let writing = std::thread::spawn(move || {
        std::thread::sleep(SOON);
        rustix::io::write(&writer, &1u64.to_ne_bytes()).unwrap();
    });
    assert_eq!(wait(&epoll, &worker, 8, LOST)[0].key, 2);
    writing.join().unwrap();
    // Both stay ready for ever, and with room for one event they take turns.
    send(&client, b"x");
    until("data", || server.ready().contains(Ready::READABLE));
    let mut seen = [0; 3];
    for _ in 0..200 {
        seen[wait(&epoll, &worker, 1, LOST)[0].key as usize] += 1;
        std::thread::sleep(Duration::from_micros(60));
    }
    assert!(seen[1] > 20 && seen[2] > 20, "{seen:?}");
    epoll.modify_fd(descriptor.as_fd(), 5, Interest::READABLE).unwrap();
    epoll.delete_fd(descriptor.as_fd()).unwrap();
    assert_eq!(wait(&epoll, &worker, 8, LOST)[0].key, 1);
}

#[test]
fn a_notifier_ends_a_wait_from_another_thread() {
    let pair = Pair::new();
    let (worker, epoll) = (pair.worker(), Epoll::new(&pair.host));
    let notifier = epoll.notifier(77);
    let other = notifier.clone();
    let notifying = std::thread::spawn(move || {
        std::thread::sleep(SOON);
        other.notify();
    });
    assert_eq!(wait(&epoll, &worker, 8, LOST)[0].key, 77);
    notifying.join().unwrap();
    assert!(wait(&epoll, &worker, 8, SOON).is_empty(), "once per notification");
    notifier.notify();
    assert_eq!(wait(&epoll, &worker, 8, Duration::ZERO)[0].key, 77, "kept for the next wait");
}

/// The settings of the `suspend` modes. A suspension that nobody ends lasts longer than any test.
fn suspending() -> NapiSettings {
    NapiSettings {
        defer_hard_irqs: 3,
        gro_flush_timeout_ns: 5_000_000,
        irq_suspend_timeout_ns: 3_600_000_000_000,
        ..NapiSettings::default()
    }
}

#[test]
fn a_context_that_prefers_busy_polling_suspends_and_resumes_its_napi() {
    let pair = Pair::with(1, |device| device, suspending());
    let (server, client) = pair.connected(7);
    let worker = pair.worker();
    let epoll = Epoll::new(&pair.host);
    let params = EpollParams { busy_poll_budget: 64, prefer_busy_poll: true, ..EpollParams::default() };
    epoll.set_busy_poll(&params, false).unwrap();
    epoll.add(&server, 1, Interest::READABLE).unwrap();
    assert_eq!(epoll.napi_id(), server.incoming_napi_id(), "noted by the add");
    let napi = pair.server.napis()[0];
    let mut buffer = [0; 8];
    let mut irqs = 0;
    // The thread that delivered a packet may complete it late, and then the timer of that deferral has the instance
    // when the context comes to poll it. As a busy machine may hold that thread up, this is tried several times.
    let resumed = (0..50).any(|_| {
        for _ in 0..3 {
            let suspends = pair.host.napi_stats(napi).suspends;
            send(&client, b"x");
            assert_eq!(wait(&epoll, &worker, 8, LOST).len(), 1);
            assert_eq!(pair.host.napi_stats(napi).suspends, suspends + 1);
            server.recv(&mut buffer).unwrap();
        }
        // That thread would win against the busy poller.
        until("nobody owns the instance", || !pair.host.napis()[0].state.has(lull_core::state::SCHED));
        irqs = pair.host.napi_irqs(napi);
        let before = pair.host.napi_stats(napi);
        assert!(wait(&epoll, &worker, 8, Duration::from_millis(1)).is_empty());
        let after = pair.host.napi_stats(napi) - before;
        assert!(after.busy_polls <= 2 && after.resumes <= 1, "{after:?}");
        (after.busy_polls, after.resumes) == (2, 1)
    });
    assert!(resumed, "not once there were one round and the stop's poll, and then the resume");
    // The deferral runs out, and the interrupt is back. The waiter may find a packet before its interrupt was taken.
    until("an interrupt is taken", || {
        until("the interrupt is unmasked", || {
            assert!(wait(&epoll, &worker, 8, Duration::from_millis(10)).is_empty());
            !pair.host.napis()[0].state.has(lull_core::state::SCHED)
        });
        send(&client, b"x");
        assert_eq!(wait(&epoll, &worker, 8, LOST).len(), 1);
        server.recv(&mut buffer).unwrap();
        pair.host.napi_irqs(napi) > irqs
    });
}

#[test]
fn while_suspended_packets_wait_for_the_application() {
    let pair = Pair::with(1, |device| device, suspending());
    let (server, client) = pair.connected(7);
    let worker = pair.worker();
    let epoll = Epoll::new(&pair.host);
    let params = EpollParams { busy_poll_budget: 64, prefer_busy_poll: true, ..EpollParams::default() };
    epoll.set_busy_poll(&params, false).unwrap();
    epoll.add(&server, 1, Interest::READABLE).unwrap();
    let napi = pair.server.napis()[0];
    let state = || (pair.host.napi_stats(napi).polls, pair.host.napi_irqs(napi));
    let answered = |byte| {
        send(&client, byte);
        assert_eq!(wait(&epoll, &worker, 8, LOST).len(), 1);
        server.recv(&mut [0; 8]).unwrap();
    };
    // The thread that polled the first packet may complete after the suspension began, and the timer of its deferral
    // then ends the suspension, as in Linux. As a busy machine may hold that thread up, this is tried with several
    // packets.
    let held = (0..50).any(|_| {
        answered(b"x");
        until("nobody owns the instance", || !pair.host.napis()[0].state.has(lull_core::state::SCHED));
        let before = state();
        // While the application computes, nothing interrupts it.
        send(&client, b"y");
        std::thread::sleep(Duration::from_millis(50));
        let held = state() == before && !server.ready().contains(Ready::READABLE);
        // When it comes back it busy polls.
        assert_eq!(wait(&epoll, &worker, 8, LOST).len(), 1);
        server.recv(&mut [0; 8]).unwrap();
        held && state().1 == before.1
    });
    assert!(held, "no packet waited");
}

#[test]
fn a_freed_context_resumes_what_it_suspended() {
    let pair = Pair::with(1, |device| device, suspending());
    let (server, client) = pair.connected(7);
    let worker = pair.worker();
    let epoll = Epoll::new(&pair.host);
    let params = EpollParams { prefer_busy_poll: true, ..EpollParams::default() };
    epoll.set_busy_poll(&params, false).unwrap();
    epoll.add(&server, 1, Interest::READABLE).unwrap();
    send(&client, b"x");
    assert_eq!(wait(&epoll, &worker, 8, LOST).len(), 1);
    drop(epoll);
    send(&client, b"y");
    until("delivery without a context", || {
        let mut buffer = [0; 8];
        server.peek(&mut buffer).unwrap() == 2
    });
}

/// With `every_napi` a context suspends each NAPI that its sockets are on, and polls each when it comes back (§13 edges
/// 14 and 15). The timeouts are longer than the test.
#[test]
fn a_context_on_four_napis_suspends_and_polls_each() {
    const NAPIS: usize = 4;
    let options = EpollOptions { every_napi: true, ..EpollOptions::strict_linux() };
    let settings = NapiSettings { irq_suspend_timeout_ns: 1_000_000_000_000, ..suspending() };
    let pair = Pair::with_options(NAPIS, |device| device, settings, options);
    let listener = pair.listener(7);
    let mut pairs: Vec<(TcpStream, TcpStream)> = Vec::new();
    while pairs.len() < NAPIS {
        let client = pair.connect(7);
        let (server, _) = listener.accept().unwrap();
        if pairs.iter().all(|(other, _)| other.incoming_napi_id() != server.incoming_napi_id()) {
            pairs.push((server, client));
        }
    }
    let (worker, epoll) = (pair.worker(), Epoll::new(&pair.host));
    let params = EpollParams { busy_poll_budget: 64, prefer_busy_poll: true, ..EpollParams::default() };
    epoll.set_busy_poll(&params, false).unwrap();
    for (key, (server, _)) in pairs.iter().enumerate() {
        server.set_nonblocking(true).unwrap();
        epoll.add(server, key as u64, Interest::READABLE | Interest::EDGE).unwrap();
    }
    let suspends = || pair.server.napis().iter().map(|napi| pair.host.napi_stats(*napi).suspends).collect::<Vec<_>>();
    let mut read = [0; NAPIS];
    for round in 1..=20 {
        // Packets that come while the application computes wait for it, on whichever NAPI they come.
        pairs.iter().for_each(|(_, client)| send(client, b"x"));
        let mut returns = 0;
        while read != [round; NAPIS] {
            for event in wait(&epoll, &worker, 8, LOST) {
                let key = event.key as usize;
                read[key] += pairs[key].0.recv(&mut [0; 8]).unwrap_or(0);
            }
            returns += 1;
        }
        assert!(returns <= NAPIS, "{returns} returns for an event on each NAPI");
        assert!(suspends().iter().all(|count| *count >= round as u64), "{:?} in round {round}", suspends());
    }
}

/// With `every_napi`, events of several NAPIs are returned in turn: the first event on its NAPI has waited longest.
#[test]
fn events_of_several_napis_are_returned_in_turn() {
    for (every_napi, expected) in [(true, [0, 2, 1, 3]), (false, [0, 1, 2, 3])] {
        let options = EpollOptions { every_napi, ..EpollOptions::strict_linux() };
        let pair = Pair::with_options(2, |device| device, NapiSettings::default(), options);
        let listener = pair.listener(7);
        let mut of_napi: [Vec<(TcpStream, TcpStream)>; 2] = [Vec::new(), Vec::new()];
        let mut first = None;
        while of_napi.iter().any(|pairs| pairs.len() < 2) {
            let client = pair.connect(7);
            let (server, _) = listener.accept().unwrap();
            let is_other = *first.get_or_insert(server.incoming_napi_id()) != server.incoming_napi_id();
            of_napi[usize::from(is_other)].push((server, client));
        }
        let (worker, epoll) = (pair.worker(), Epoll::new(&pair.host));
        let pairs = of_napi.iter().flat_map(|pairs| &pairs[..2]);
        for (key, (server, client)) in pairs.enumerate() {
            send(client, b"x");
            until("it is there", || server.peek(&mut [0; 8]).unwrap() == 1);
            epoll.add(server, key as u64, Interest::READABLE).unwrap();
        }
        let keys: Vec<u64> = wait(&epoll, &worker, 8, LOST).iter().map(|event| event.key).collect();
        assert_eq!(keys, expected, "every_napi {every_napi}");
    }
}

#[test]
fn one_listener_over_all_shards_and_one_per_shard() {
    let pair = Pair::with(2, |device| device, NapiSettings::default());
    let listener = pair.listener(7);
    let options = ListenOptions { reuse_port: true, ..ListenOptions::default() };
    let address = std::net::SocketAddr::new(SERVER.parse().unwrap(), 8);
    let own: Vec<_> =
        (0..2).map(|queue| TcpListener::bind_with(&pair.server, Some(queue), address, options).unwrap()).collect();
    let worker = pair.worker();
    let epoll = Epoll::new(&pair.host);
    epoll.add(&listener, 0, Interest::READABLE).unwrap();
    listener.set_nonblocking(true).unwrap();
    own.iter().for_each(|listener| listener.set_nonblocking(true).unwrap());
    let clients: Vec<_> = (0..16).map(|_| pair.connect(7)).collect();
    let mut ids = std::collections::BTreeSet::new();
    let mut accepted = 0;
    until("all are accepted", || {
        wait(&epoll, &worker, 8, SOON);
        while let Ok((stream, _)) = listener.accept() {
            ids.insert(stream.incoming_napi_id());
            accepted += 1;
        }
        accepted == clients.len()
    });
    assert_eq!(ids.len(), 2, "connections came in by both queues");
    let clients: Vec<_> = (0..16).map(|_| pair.connect(8)).collect();
    let mut shares = [0, 0];
    until("all are accepted", || {
        for (listener, share) in own.iter().zip(&mut shares) {
            while let Ok((stream, _)) = listener.accept() {
                let napi = pair.host.napi_by_id(stream.incoming_napi_id()).unwrap();
                assert_eq!(
                    napi,
                    pair.server.napis()[usize::from(*share != usize::MAX && pair.server.napis()[1] == napi)]
                );
                *share += 1;
            }
        }
        shares.iter().sum::<usize>() == clients.len()
    });
    assert!(shares[0] > 0 && shares[1] > 0, "{shares:?}");
}

#[test]
fn more_threads_may_wait_than_a_cpu_has_places_for() {
    let pair = Pair::new();
    let listener = pair.listener(7);
    let connected = |_| {
        let client = pair.connect(7);
        (listener.accept().unwrap().0, client)
    };
    let pairs: Vec<_> = (0..70).map(connected).collect();
    std::thread::scope(|scope| {
        let waits = |(server, _): &(TcpStream, TcpStream)| {
            let (worker, epoll) = (pair.worker(), Epoll::new(&pair.host));
            epoll.add(server, 1, Interest::READABLE).unwrap();
            scope.spawn(move || wait(&epoll, &worker, 8, LOST).len())
        };
        let waiting: Vec<_> = pairs.iter().map(waits).collect();
        pairs.iter().for_each(|(_, client)| send(client, b"x"));
        waiting.into_iter().for_each(|thread| assert_eq!(thread.join().unwrap(), 1));
    });
    assert!(Worker::new(&pair.host, 99).is_err_and(|error| error.to_string().contains("99")));
}
