//! Busy-polling CPU groups on threads: made, changed under load, refused, and left without a lost packet.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use common::{Bound, Client, World, eventually, mem_queue};
use lull_core::group::{Budget, GroupConfig};
use lull_core::{NapiSettings, Threaded, state};
use lull_host::{GroupError, GroupId, GroupOptions, Host, HostConfig, HostError, NapiChange};

const US: u64 = 1_000;

/// Not pinned, so that the number of the machine's cores does not matter.
fn host(cpus: usize) -> Host {
    Host::new(HostConfig { cpus: vec![None; cpus], ..HostConfig::default() }).unwrap()
}

fn options(rest_ns: Option<u64>) -> GroupOptions {
    let config = GroupConfig { rest_ns, ..GroupConfig::default() };
    GroupOptions { config, oversubscribe: true, ..GroupOptions::default() }
}

fn group(host: &Host, rest_ns: Option<u64>, cpus: &[u16]) -> GroupId {
    let id = host.new_group(options(rest_ns)).unwrap();
    cpus.iter().for_each(|cpu| host.group_attach(id, *cpu).unwrap());
    id
}

fn is_grouped(bound: &Bound) -> bool {
    bound.host.napis().iter().any(|napi| napi.index == bound.napi && napi.state.has(state::GROUPED))
}

fn refusal(result: Result<(), HostError>) -> GroupError {
    match result.unwrap_err() {
        HostError::Group(error) => error,
        other => panic!("not a group's refusal: {other}"),
    }
}

#[test]
fn a_group_of_one_serves_a_queue_and_gives_it_back_to_interrupts() {
    let world = World::new();
    let id = group(&world.host, None, &[0]);
    let mut sent = 0;
    for _ in 0..3 {
        world.host.group_add(id, world.bound.napi, 64).unwrap();
        world.bound.queue.forget_deliverers();
        let irqs = world.host.napi_irqs(world.bound.napi);
        for _ in 0..10 {
            assert!(world.client.send(3));
            sent += 3;
            world.bound.await_delivered(sent);
        }
        assert_eq!(world.bound.queue.deliverers(), ["group/0/0"]);
        assert!(world.host.napi_irqs(world.bound.napi) <= irqs + 1, "masked but for one that was raised before");
        world.host.group_remove(id, world.bound.napi).unwrap();
        world.bound.await_released();
        // The poller has its CPU's seat until it has seen that there is nothing left to poll.
        eventually("the group's end", || world.host.groups()[0].census.awake == 0);
        common::await_standing_by(&world.host);
        world.bound.queue.forget_deliverers();
        assert!(world.client.send(1));
        sent += 1;
        world.bound.await_delivered(sent);
        assert_eq!(world.bound.queue.deliverers(), ["irq/0"]);
        world.bound.await_released();
    }
    assert!(world.bound.stats().group_polls > 0);
}

#[test]
fn a_group_that_rests_burns_nothing_and_its_next_packet_wakes_it() {
    let world = World::new();
    let id = group(&world.host, Some(50 * US), &[0]);
    world.host.group_add(id, world.bound.napi, 64).unwrap();
    let rests = || world.host.groups()[0].pollers[0].info.stats.rests;
    for sent in 1..=50 {
        eventually("the group to rest", || world.host.groups()[0].census.resting);
        let before = rests();
        world.bound.queue.forget_deliverers();
        assert!(world.client.send(1));
        world.bound.await_delivered(sent);
        assert_eq!(world.bound.queue.deliverers(), ["group/0/0"]);
        eventually("another rest", || rests() > before);
    }
    common::await_standing_by(&world.host);
}

#[test]
fn a_members_reset_keeps_its_membership_and_a_removed_one_stays_removed() {
    let world = World::new();
    let id = group(&world.host, Some(50 * US), &[0]);
    world.host.group_add(id, world.bound.napi, 32).unwrap();
    for sent in 1..=20 {
        world.host.disable(world.bound.napi).unwrap();
        assert!(!is_grouped(&world.bound));
        assert!(world.client.send(1));
        world.host.enable(world.bound.napi).unwrap();
        assert!(is_grouped(&world.bound));
        world.bound.await_delivered(sent);
        assert_eq!(world.host.groups()[0].members, [(world.bound.napi, 32)]);
    }
    world.host.group_remove(id, world.bound.napi).unwrap();
    world.host.disable(world.bound.napi).unwrap();
    world.host.enable(world.bound.napi).unwrap();
    assert!(!is_grouped(&world.bound));
}

#[test]
fn a_queue_whose_group_cannot_have_it_back_is_enabled_outside_it() {
    let host = host(1);
    let (bound, client) = mem_queue(&host, 0);
    let enabled = Arc::new(AtomicU64::new(0));
    let told = enabled.clone();
    host.watch(Box::new(move |change| {
        if matches!(change, NapiChange::Enabled { .. }) {
            told.fetch_add(1, Ordering::AcqRel);
        }
    }));
    let id = group(&host, None, &[0]);
    host.group_add(id, bound.napi, 64).unwrap();
    host.disable(bound.napi).unwrap();
    host.group_detach(id, 0).unwrap();
    host.enable(bound.napi).unwrap();
    assert_eq!(enabled.load(Ordering::Acquire), 1);
    assert!(!is_grouped(&bound));
    assert!(client.send(1));
    bound.await_delivered(1);
    assert_eq!(bound.queue.deliverers(), ["irq/0"]);
    assert!(matches!(refusal(host.group_remove(id, bound.napi)), GroupError::NotMember { .. }));
    // It may be added anew.
    host.group_attach(id, 0).unwrap();
    host.group_add(id, bound.napi, 64).unwrap();
    assert!(is_grouped(&bound));
}

/// A queue becomes a member while somebody sets its device: one of the two is refused, and has changed nothing.
#[test]
fn a_device_is_set_when_nobody_else_changes_its_queues() {
    let threaded = NapiSettings { threaded: Threaded::On, ..NapiSettings::default() };
    let host = host(1);
    let (bound, client) = mem_queue(&host, 0);
    let id = group(&host, None, &[0]);
    for sent in 1.. {
        // The poll ends when one waits to make the queue a member, and the other to set its device.
        let (goes_on, waits) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let (may_end, in_poll) = (goes_on.clone(), waits.clone());
        bound.queue.during_poll(move || {
            in_poll.store(true, Ordering::Release);
            eventually("the end of the poll", || may_end.load(Ordering::Acquire));
        });
        assert!(client.send(1));
        eventually("the poll", || waits.load(Ordering::Acquire));
        let tid = AtomicU64::new(0);
        let (added, set) = std::thread::scope(|scope| {
            let adds = scope.spawn(|| host.group_add(id, bound.napi, 64));
            let asks = || host.napis().iter().any(|napi| napi.state.has(state::PREFER_BUSY_POLL));
            eventually("the wish to have the queue", || asks() || adds.is_finished());
            let sets = scope.spawn(|| {
                tid.store(u64::from(lull_host::thread_id().unsigned_abs()), Ordering::Release);
                host.set_device(bound.device, &threaded)
            });
            eventually("the setter", || tid.load(Ordering::Acquire) != 0);
            eventually("the setter to wait", || {
                sets.is_finished() || common::is_asleep(tid.load(Ordering::Acquire) as i32)
            });
            goes_on.store(true, Ordering::Release);
            (adds.join().unwrap(), sets.join().unwrap())
        });
        bound.await_delivered(sent);
        if let Err(owned) = added {
            // The machine was so busy that the group gave up.
            assert!(
                matches!(owned, HostError::Group(GroupError::Owned { .. } | GroupError::Threaded { .. })),
                "{owned}"
            );
            set.unwrap();
            host.set_device(bound.device, &NapiSettings::default()).unwrap();
            continue;
        }
        assert!(matches!(refusal(set), GroupError::Grouped { .. }));
        break;
    }
    host.disable(bound.napi).unwrap();
    host.enable(bound.napi).unwrap();
    assert!(is_grouped(&bound));
    assert_eq!(host.napis()[0].settings.threaded, Threaded::Off);
}

#[test]
fn what_makes_no_sense_is_refused_by_name_and_changes_nothing() {
    let host = host(2);
    let (bound, _client) = mem_queue(&host, 0);
    let id = host.new_group(options(None)).unwrap();
    assert!(matches!(refusal(host.group_add(id, bound.napi, 64)), GroupError::NoPoller { .. }));
    assert!(matches!(refusal(host.group_attach(id, 2)), GroupError::NoCpu { last: 1, .. }));
    assert!(matches!(refusal(host.group_detach(id, 0)), GroupError::NotAttached { .. }));
    host.group_attach(id, 0).unwrap();
    let other = group(&host, None, &[1]);
    assert_eq!(refusal(host.group_attach(other, 0)), GroupError::CpuTaken { group: 1, cpu: 0, by: 0 });
    assert!(matches!(refusal(host.group_add(id, bound.napi, 65)), GroupError::Weight { weight: 65, max: 64 }));
    assert!(matches!(refusal(host.group_remove(id, bound.napi)), GroupError::NotMember { .. }));
    host.group_add(id, bound.napi, 64).unwrap();
    assert_eq!(
        refusal(host.group_add(other, bound.napi, 64)),
        GroupError::NapiTaken { group: 1, napi: bound.napi, by: 0 }
    );
    let threaded = NapiSettings { threaded: Threaded::On, ..NapiSettings::default() };
    assert!(matches!(refusal(host.set_napi(bound.napi, &threaded)), GroupError::Grouped { group: 0, .. }));
    assert!(matches!(refusal(host.set_device(bound.device, &threaded)), GroupError::Grouped { group: 0, .. }));
    assert_eq!(host.napis()[0].settings.threaded, Threaded::Off);
    host.group_remove(id, bound.napi).unwrap();
    host.set_napi(bound.napi, &threaded).unwrap();
    assert!(matches!(refusal(host.group_add(id, bound.napi, 64)), GroupError::Threaded { .. }));
    let nothing = Budget { empty_percent: Some(0), total_percent: None };
    let config = GroupConfig { budget: nothing, ..GroupConfig::default() };
    let refused = host.new_group(GroupOptions { config, ..GroupOptions::default() }).unwrap_err().to_string();
    assert!(refused.contains("budget of 0 %"), "{refused}");
}

#[test]
fn as_many_pollers_as_cores_are_refused_unless_they_are_asked_for() {
    let cores = lull_host::usable_cores().len();
    let host = host(cores);
    let id = host.new_group(GroupOptions::default()).unwrap();
    for cpu in 0..cores as u16 - 1 {
        host.group_attach(id, cpu).unwrap();
    }
    let refused = refusal(host.group_attach(id, cores as u16 - 1));
    assert_eq!(refused, GroupError::Oversubscribed { group: 0, cpu: cores as u16 - 1, pollers: cores, cores });
}

#[test]
fn the_last_cpu_that_is_detached_lets_all_members_go_first() {
    let host = host(2);
    let queues = [mem_queue(&host, 0), mem_queue(&host, 1)];
    let id = group(&host, None, &[0, 1]);
    queues.iter().for_each(|(bound, _)| host.group_add(id, bound.napi, 64).unwrap());
    host.group_detach(id, 0).unwrap();
    assert_eq!(host.groups()[0].members.len(), 2);
    for (bound, client) in &queues {
        assert!(client.send(1));
        bound.await_delivered(1);
        assert_eq!(bound.queue.deliverers(), ["group/0/1"]);
    }
    host.group_detach(id, 1).unwrap();
    assert!(host.groups()[0].members.is_empty() && host.groups()[0].pollers.is_empty());
    for (bound, client) in &queues {
        bound.await_released();
        bound.queue.forget_deliverers();
        assert!(client.send(1));
        bound.await_delivered(2);
        assert!(bound.queue.deliverers()[0].starts_with("irq/"));
    }
    assert!(!host.threads().iter().any(|thread| thread.role.starts_with("group/")), "their threads have ended");
}

#[test]
fn a_poll_that_panics_takes_its_own_queue_down_and_the_group_goes_on() {
    let host = host(1);
    let (bad, bad_client) = mem_queue(&host, 0);
    let (good, good_client) = mem_queue(&host, 0);
    let id = group(&host, None, &[0]);
    host.group_add(id, bad.napi, 64).unwrap();
    host.group_add(id, good.napi, 64).unwrap();
    bad.queue.panic_in("poll", "group/0");
    assert!(bad_client.send(1));
    eventually("the queue to be down", || bad.queue.is_down(&host.delivery()));
    assert!(good_client.send(5));
    good.await_delivered(5);
    eventually("the queue to leave its group", || host.groups()[0].members == [(good.napi, 64)]);
    host.disable(bad.napi).unwrap();
}

#[test]
fn who_disables_a_queue_that_a_panic_took_out_of_its_group_leaves_those_alone_that_came_after_it() {
    for by in [|host: &Host, _: GroupId, napi| host.disable(napi), |host: &Host, id, napi| host.group_remove(id, napi)]
    {
        let host = host(1);
        let (bad, bad_client) = mem_queue(&host, 0);
        let (good, good_client) = mem_queue(&host, 0);
        let id = group(&host, None, &[0]);
        host.group_add(id, bad.napi, 64).unwrap();
        bad.queue.panic_in("poll", "group/0");
        assert!(bad_client.send(1));
        eventually("the queue to leave its group", || host.groups()[0].members.is_empty());
        host.group_add(id, good.napi, 64).unwrap();
        by(&host, id, bad.napi).unwrap();
        assert_eq!(host.groups()[0].members, [(good.napi, 64)]);
        assert!(is_grouped(&good));
        good.queue.forget_deliverers();
        assert!(good_client.send(5));
        good.await_delivered(5);
        assert_eq!(good.queue.deliverers(), ["group/0/0"]);
        host.disable(good.napi).unwrap();
        host.enable(good.napi).unwrap();
        host.group_remove(id, good.napi).unwrap();
    }
}

#[test]
fn a_shard_that_is_held_is_left_to_its_holder_and_visited_again() {
    let host = host(1);
    let (held, held_client) = mem_queue(&host, 0);
    let (free, free_client) = mem_queue(&host, 0);
    let id = group(&host, Some(50 * US), &[0]);
    host.group_add(id, held.napi, 64).unwrap();
    host.group_add(id, free.napi, 64).unwrap();
    held.queue.call(&host.delivery(), || {
        assert!(held_client.send(1) && free_client.send(1));
        free.await_delivered(1);
        eventually("a visit that finds the lock held", || host.groups()[0].pollers[0].info.stats.locked > 0);
        assert_eq!(held.delivered(), 0);
    });
    held.await_delivered(1);
}

/// Frames while CPUs and queues come and go.
fn traffic(client: &Client, sent: &AtomicU64, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        if client.send(1) {
            sent.fetch_add(1, Ordering::Relaxed);
        }
        for _ in 0..sent.load(Ordering::Relaxed) % 3_000 {
            std::hint::spin_loop();
        }
    }
}

#[test]
fn nothing_is_lost_while_cpus_and_queues_come_and_go_under_load() {
    for rest_ns in [None, Some(20 * US)] {
        let host = host(3);
        let queues: Vec<(Bound, Client)> = (0..3).map(|cpu| mem_queue(&host, cpu)).collect();
        let id = group(&host, rest_ns, &[0]);
        let stop = Arc::new(AtomicBool::new(false));
        let sent: Vec<Arc<AtomicU64>> = queues.iter().map(|_| Arc::new(AtomicU64::new(0))).collect();
        std::thread::scope(|scope| {
            for ((_, client), sent) in queues.iter().zip(&sent) {
                let (stop, client) = (stop.clone(), client.clone());
                scope.spawn(move || traffic(&client, sent, &stop));
            }
            for round in 0..60_u16 {
                let napi = queues[usize::from(round % 3)].0.napi;
                host.group_add(id, napi, 1 + u32::from(round % 64)).unwrap();
                let cpu = 1 + round % 2;
                host.group_attach(id, cpu).unwrap();
                if round % 5 == 0 {
                    host.disable(napi).unwrap();
                    host.enable(napi).unwrap();
                }
                std::thread::sleep(std::time::Duration::from_micros(u64::from(round) * 37 % 1_500));
                match round % 3 {
                    0 => host.group_remove(id, napi).unwrap(),
                    // Its members leave with the last CPU.
                    1 => {
                        host.group_detach(id, 0).unwrap();
                        host.group_detach(id, cpu).unwrap();
                        host.group_attach(id, 0).unwrap();
                        continue;
                    }
                    _ => {}
                }
                host.group_detach(id, cpu).unwrap();
                if round % 3 == 2 {
                    host.group_remove(id, napi).unwrap();
                }
            }
            stop.store(true, Ordering::Relaxed);
        });
        for ((bound, _), sent) in queues.iter().zip(&sent) {
            let sent = sent.load(Ordering::Relaxed);
            eventually("all packets", || bound.delivered() == sent);
            assert_eq!(bound.delivered(), sent);
        }
        host.remove_group(id).unwrap();
        assert!(host.groups().is_empty());
        for (bound, client) in &queues {
            let before = bound.delivered();
            assert!(client.send(1));
            bound.await_delivered(before + 1);
        }
    }
}

#[test]
fn edge_g04_a_worker_that_sleeps_is_woken_by_the_poller() {
    for rest_ns in [None, Some(50 * US)] {
        let world = World::new();
        let id = group(&world.host, rest_ns, &[0]);
        world.host.group_add(id, world.bound.napi, 64).unwrap();
        for count in 1..=20 {
            let sleeper = common::sleeping_thread(&world.bound, 0, "sleeper", count);
            assert!(world.client.send(1));
            sleeper.join().unwrap();
        }
        assert_eq!(world.bound.queue.deliverers(), ["group/0/0"]);
    }
}

#[test]
fn edge_g06_a_device_that_goes_takes_its_members_along_and_the_group_stays() {
    let host = host(1);
    let (gone, _) = mem_queue(&host, 0);
    let (stays, client) = mem_queue(&host, 0);
    let id = group(&host, Some(50 * US), &[0]);
    host.group_add(id, gone.napi, 64).unwrap();
    host.group_add(id, stays.napi, 64).unwrap();
    host.disable(gone.napi).unwrap();
    host.remove_device(gone.device).unwrap();
    assert_eq!(host.groups()[0].members, [(stays.napi, 64)]);
    assert!(client.send(1));
    stays.await_delivered(1);
}

#[test]
fn edge_g08_a_reset_during_a_visit_waits_for_that_poll_and_no_longer() {
    let world = World::new();
    let id = group(&world.host, None, &[0]);
    world.host.group_add(id, world.bound.napi, 64).unwrap();
    let (begun, ended) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let (in_poll, over, host) = (begun.clone(), ended.clone(), world.host.clone());
    world.bound.queue.during_poll(move || {
        in_poll.store(true, Ordering::Release);
        eventually("the disable", || host.napis()[0].state.has(lull_core::state::DISABLE));
        // One that does not wait returns meanwhile.
        std::thread::sleep(std::time::Duration::from_millis(20));
        over.store(true, Ordering::Release);
    });
    assert!(world.client.send(1));
    eventually("the poll", || begun.load(Ordering::Acquire));
    world.host.disable(world.bound.napi).unwrap();
    assert!(ended.load(Ordering::Acquire), "nobody polls a disabled instance");
    world.host.enable(world.bound.napi).unwrap();
    assert!(world.client.send(1));
    world.bound.await_delivered(2);
}

/// A device whose interrupt the kernel raises, and which gives no hint: polled in every pass, watched in every rest.
#[test]
fn descriptors_are_served_and_wake_a_group_that_rests() {
    for rest_ns in [None, Some(50 * US)] {
        let host = host(2);
        let (bound, device) = common::fd_queue(&host, 1);
        let id = group(&host, rest_ns, &[0]);
        host.group_add(id, bound.napi, 64).unwrap();
        for sent in 1..=30 {
            if rest_ns.is_some() {
                eventually("the group to rest", || host.groups()[0].census.resting);
            }
            device.send(1);
            bound.await_delivered(sent);
        }
        assert_eq!(bound.queue.deliverers(), ["group/0/0"]);
        host.group_remove(id, bound.napi).unwrap();
        device.send(1);
        bound.await_delivered(31);
    }
}
