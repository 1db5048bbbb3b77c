//! A mode is set by one call, on networks, on epoll contexts and on sockets. Some tests are for modes that cannot act.

mod pair;

use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;

use lull_core::{Mode, NapiSettings};
use lull_net::{AppHalf, Epoll, GroupCpus, Interest, Network, NetworkConfig, NetworkError, Shutdown, TcpStream};
use lull_nic::mem::{self, MemConfig};
use lull_nic::{Counters, Device, DeviceError, DeviceEvent, DeviceInfo, Moderation, Queue};
use pair::{CLIENT, LOST, Pair, SERVER, wait};

fn mode(name: &str) -> Mode {
    name.parse().unwrap()
}

fn settings(pair: &Pair) -> Vec<NapiSettings> {
    pair.server.napis().iter().map(|index| pair.host.napis()[*index as usize].settings).collect()
}

#[test]
fn both_halves_of_a_mode_are_in_force_and_the_application_hears_how_to_wait() {
    let pair = Pair::with(2, |device| device, NapiSettings::default());
    let epoll = Epoll::new(&pair.host);
    for (name, timeout) in [("suspend20", None), ("fullbusy", Some(Duration::from_millis(1))), ("base", None)] {
        let mode = mode(name);
        let policy = pair.server.set_mode(&mode).unwrap().on(&epoll).unwrap();
        assert_eq!(policy.timeout(), timeout, "{name}");
        assert_eq!(epoll.busy_poll(), mode.epoll, "{name}");
        assert_eq!(settings(&pair), vec![mode.napi; 2], "{name}");
    }
}

#[test]
fn a_network_made_with_a_mode_suspends() {
    let (server, client) = mem::pair(MemConfig::default());
    let host = lull_host::Host::new(lull_host::HostConfig { cpus: vec![None; 2], ..Default::default() }).unwrap();
    let suspend = mode("suspend200");
    let config = pair::config(SERVER, vec![0]).with_mode(&suspend);
    let server = Network::new(&host, Arc::new(server), config).unwrap();
    let client = Network::new(&host, Arc::new(client), pair::config(CLIENT, vec![1])).unwrap();
    let pair = Pair { server, client, host };
    let (served, asking) = pair.connected(7);
    let worker = pair.worker();
    let epoll = pair.epoll(&served, Interest::READABLE);
    let policy = epoll.set_mode(&suspend).unwrap();
    asking.send(b"x").unwrap();
    assert_eq!(wait(&epoll, &worker, 8, policy.timeout().unwrap_or(LOST)).len(), 1);
    assert_eq!(pair.host.napi_stats(pair.server.napis()[0]).suspends, 1);
}

/// SO_BUSY_POLL reaches sockets that are open, listeners, and what they accept. The application's own value stands
/// until a mode changes it again.
#[test]
fn sockets_follow_a_mode_that_names_their_busy_polling() {
    let pair = Pair::new();
    let listener = pair.listener(7);
    let connected = || (pair.connect(7), listener.accept().unwrap().0);
    let (_asking, open) = connected();
    let own = |stream: &TcpStream, usecs| stream.set_busy_poll(usecs).unwrap();
    own(&open, 7);
    pair.server.set_mode(&mode("base")).unwrap().without_epoll().unwrap();
    assert_eq!(open.busy_poll(), 7, "base names none, and none was in force");
    pair.server.set_mode(&mode("busyread")).unwrap().without_epoll().unwrap();
    let (_asking_too, accepted) = connected();
    assert_eq!((open.busy_poll(), accepted.busy_poll()), (400, 400));
    own(&open, 50);
    listener.set_busy_poll(60).unwrap();
    pair.server.set_mode(&mode("busyread")).unwrap().without_epoll().unwrap();
    let (_asking_last, child) = connected();
    assert_eq!((open.busy_poll(), accepted.busy_poll(), child.busy_poll()), (50, 400, 60), "set by the application");
    pair.server.set_mode(&mode("base")).unwrap().without_epoll().unwrap();
    assert_eq!([&open, &accepted, &child].map(TcpStream::busy_poll), [0; 3]);
    pair.server.set_mode(&mode("busyread")).unwrap().without_epoll().unwrap();
    own(&open, 9);
    assert_eq!(open.busy_poll(), 9, "set before the socket looked at the mode, and after the mode was set");
}

#[test]
fn a_blocking_read_busy_polls_in_busyread() {
    let pair = Pair::new();
    let (served, asking) = pair.connected(7);
    pair.server.set_mode(&mode("busyread")).unwrap().without_epoll().unwrap();
    let before = pair.host.napi_stats(pair.server.napis()[0]).busy_polls;
    let reading = std::thread::spawn(move || while served.recv(&mut [0; 8]).unwrap() > 0 {});
    // One read polls for 400 us, in which other threads may have the CPU or the NAPI. Then the next read polls again.
    pair::until("a read polls", || {
        asking.send(b"x").unwrap();
        pair.host.napi_stats(pair.server.napis()[0]).busy_polls > before
    });
    asking.shutdown(Shutdown::Write).unwrap();
    reading.join().unwrap();
}

#[test]
fn modes_that_act_through_epoll_refuse_an_application_without() {
    for name in ["base", "defer20", "threaded", "threaded-busy", "busyread"] {
        assert!(AppHalf::of(&mode(name)).without_epoll().is_ok(), "{name}");
    }
    for (name, late) in [("fullbusy", "5 ms"), ("napibusy", "200 us"), ("suspend20", "20 us"), ("longgro", "20 ms")] {
        let error = AppHalf::of(&mode(name)).without_epoll().unwrap_err();
        let said = error.to_string();
        assert!(said.contains(name) && said.contains(&format!("up to {late} late")), "{said}");
        assert_eq!(std::io::Error::from(error).kind(), ErrorKind::InvalidInput);
    }
    assert!(!AppHalf::of(&mode("suspend0")).without_epoll().unwrap_err().to_string().contains("late"));
}

#[test]
fn a_mode_that_coalesces_gives_the_device_its_own_moderation_back() {
    let pair = Pair::new();
    let device = pair.server.device();
    let own = Moderation { rx_usecs: 0, rx_frames: 0 };
    let rx_usecs = |name| {
        let _ = pair.server.set_mode(&mode(name)).unwrap();
        device.moderation().rx_usecs
    };
    assert_eq!((rx_usecs("coalesce-30"), rx_usecs("suspend20")), (30, 0));
    assert_eq!(device.moderation(), own);
}

/// A device with only what every device must have, and so without moderation.
struct Plain(Arc<dyn Device>);

impl Device for Plain {
    fn info(&self) -> DeviceInfo {
        self.0.info()
    }
    fn take_queue(&self, index: usize) -> Result<Queue, DeviceError> {
        self.0.take_queue(index)
    }
    fn counters(&self, queue: usize) -> Counters {
        self.0.counters(queue)
    }
    fn watch(&self, watcher: Box<dyn Fn(DeviceEvent) + Send + Sync>) {
        self.0.watch(watcher);
    }
}

#[test]
fn a_mode_that_the_device_or_a_limit_refuses_changes_nothing() {
    let pair = Pair::with(1, |device| Arc::new(Plain(device)), NapiSettings::default());
    let _ = pair.server.set_mode(&mode("defer20")).unwrap();
    let before = settings(&pair);
    let error = pair.server.set_mode(&mode("coalesce-20")).unwrap_err();
    assert!(matches!(error, NetworkError::Device(DeviceError::Unsupported { .. })), "{error}");
    let mut beyond = mode("busyread");
    beyond.socket_busy_poll_usecs = u32::MAX;
    assert!(pair.server.set_mode(&beyond).unwrap_err().to_string().contains("SO_BUSY_POLL"));
    beyond = mode("defer10");
    beyond.napi.defer_hard_irqs = u32::MAX;
    assert!(pair.server.set_mode(&beyond).unwrap_err().to_string().contains("defer_hard_irqs"));
    assert_eq!(settings(&pair), before);

    let (port, _peer) = mem::pair(MemConfig::default());
    let config = NetworkConfig::default().with_mode(&mode("coalesce-20"));
    let refused = Network::new(&pair.host, Arc::new(Plain(Arc::new(port))), config).unwrap_err();
    assert!(matches!(refused, NetworkError::Device(DeviceError::Unsupported { .. })), "{refused}");
}

#[test]
fn a_group_mode_has_its_queues_polled_by_the_group_until_another_mode_is_set() {
    let (server, client) = mem::pair(MemConfig::default());
    let host = lull_host::Host::new(lull_host::HostConfig { cpus: vec![None; 2], ..Default::default() }).unwrap();
    let options = lull_host::GroupOptions { oversubscribe: true, ..Default::default() };
    let group = Some(GroupCpus { cpus: vec![0], options });
    let server =
        Network::new(&host, Arc::new(server), NetworkConfig { group, ..pair::config(SERVER, vec![0]) }).unwrap();
    let client = Network::new(&host, Arc::new(client), pair::config(CLIENT, vec![1])).unwrap();
    let refused = client.set_mode(&mode("group")).unwrap_err();
    assert!(
        matches!(refused, NetworkError::NoGroupCpus { .. }) && refused.to_string().contains("--group-cpus"),
        "{refused}"
    );
    let pair = Pair { server, client, host };
    let (served, asking) = pair.connected(7);
    let worker = pair.worker();
    let epoll = pair.epoll(&served, Interest::READABLE);
    for name in ["group50", "base", "group", "threaded", "group50"] {
        let mode = mode(name);
        let policy = pair.server.set_mode(&mode).unwrap().on(&epoll).unwrap();
        // The mode is set once more, as a service does that is told its mode again. An operator's changes stay.
        let _ = pair.server.set_mode(&mode).unwrap();
        let grouped = pair.host.napis()[0].state.has(lull_core::state::GROUPED);
        assert_eq!(
            (grouped, pair.host.groups().len()),
            (mode.group.is_some(), usize::from(mode.group.is_some())),
            "{name}"
        );
        let before = pair.host.napi_stats(pair.server.napis()[0]);
        asking.send(b"x").unwrap();
        assert_eq!(wait(&epoll, &worker, 8, policy.timeout().unwrap_or(LOST)).len(), 1, "{name}");
        served.recv(&mut [0; 8]).unwrap();
        // A poll is counted after it has delivered.
        let since = || pair.host.napi_stats(pair.server.napis()[0]) - before;
        let began = std::time::Instant::now();
        while since().polls == 0 && began.elapsed() < LOST {
            std::thread::yield_now();
        }
        assert_eq!(since().group_polls > 0, mode.group.is_some(), "{name}: {:?}", since());
    }
    drop(pair.server);
    assert!(pair.host.groups().is_empty());
}

#[test]
fn a_group_mode_that_is_refused_leaves_all_as_it_was() {
    let (server, client) = mem::pair(MemConfig { queues: 2, peer_queues: Some(1), ..MemConfig::default() });
    let host = lull_host::Host::new(lull_host::HostConfig { cpus: vec![None; 5], ..Default::default() }).unwrap();
    let options = lull_host::GroupOptions { oversubscribe: true, ..Default::default() };
    let group = Some(GroupCpus { cpus: vec![2, 3], options });
    let server =
        Network::new(&host, Arc::new(server), NetworkConfig { group, ..pair::config(SERVER, vec![0, 1]) }).unwrap();
    let client = Network::new(&host, Arc::new(client), pair::config(CLIENT, vec![1])).unwrap();
    let pair = Pair { server, client, host };
    let _ = pair.server.set_mode(&mode("coalesce-30")).unwrap();
    let in_force = || {
        let Pair { server, host, .. } = &pair;
        (settings(&pair), server.device().moderation(), server.qdisc(), server.transmit_napis(), host.groups().len())
    };
    let by_an_operator = pair.host.new_group(options).unwrap();
    pair.host.group_attach(by_an_operator, 3).unwrap();
    let before = in_force();
    let refused = pair.server.set_mode(&mode("group")).unwrap_err();
    assert!(refused.to_string().contains("cannot attach CPU 3"), "{refused}");
    assert_eq!(in_force(), before, "one of its CPUs is another group's");

    pair.host.group_detach(by_an_operator, 3).unwrap();
    pair.host.group_attach(by_an_operator, 4).unwrap();
    pair.host.group_add(by_an_operator, pair.server.napis()[1], 64).unwrap();
    let refused = pair.server.set_mode(&mode("group")).unwrap_err();
    assert!(refused.to_string().contains("remove it there first"), "{refused}");
    assert_eq!(in_force(), before, "the second queue is another group's, which is seen late");

    pair.host.remove_group(by_an_operator).unwrap();
    let _ = pair.server.set_mode(&mode("group")).unwrap();
    assert_eq!(pair.host.groups()[0].members.len(), 4, "nothing was left behind that is in the way");

    // One of its CPUs is given to another group, and the other CPU to the group of the next mode.
    let polls = pair.host.groups()[0].id;
    pair.host.group_detach(polls, 3).unwrap();
    let by_an_operator = pair.host.new_group(options).unwrap();
    pair.host.group_attach(by_an_operator, 3).unwrap();
    let before = (in_force(), pair.host.groups()[0].members.clone());
    let refused = pair.server.set_mode(&mode("group-rx")).unwrap_err();
    assert!(refused.to_string().contains("cannot attach CPU 3"), "{refused}");
    assert_eq!((in_force(), pair.host.groups()[0].members.clone()), before, "the group that polls goes on");
    assert_eq!(pair.host.groups()[0].id, polls);
    pair.host.remove_group(by_an_operator).unwrap();
    let _ = pair.server.set_mode(&mode("group-rx")).unwrap();
    assert_eq!(pair.host.groups()[0].pollers.len(), 2);
    assert_eq!(pair.host.groups()[0].members.len(), 2);
}
