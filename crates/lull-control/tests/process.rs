//! A process with a network of its own, asked over its control socket.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use lull_control::place::Places;
use lull_control::schema::{Answer, Change, GroupChange, Napi, Request, Set, Shown, Socket, Sockets};
use lull_control::{Client, Error, Offer};
use lull_core::{EpollParams, Mode, Threaded};
use lull_host::{GroupOptions, Host, HostConfig};
use lull_linux::sched::{ThreadPolicy, scheduling};
use lull_net::{Epoll, GroupCpus, Network, NetworkConfig};
use lull_nic::mem::{self, MemConfig};

/// A directory of this test's own, which is removed at its end.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Scratch {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let nth = NEXT.fetch_add(1, Ordering::Relaxed);
        Scratch(std::env::temp_dir().join(format!("lull-control-test-{}-{nth}", std::process::id())))
    }

    fn places(&self) -> Places {
        Places::only(&self.0)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A process's user plane with two queues, and the far end that keeps its link up.
struct Plane {
    host: Host,
    _network: Network,
    _peer: Box<dyn lull_nic::Device>,
}

fn plane() -> Plane {
    let (ours, peer) = mem::pair(MemConfig { queues: 2, ..MemConfig::default() });
    let host = Host::new(HostConfig::default()).unwrap();
    let addresses = vec![("10.0.0.2".parse().unwrap(), 24)];
    let config = NetworkConfig { addresses, cpus: vec![0], ..NetworkConfig::default() };
    let network = Network::new(&host, Arc::new(ours), config).unwrap();
    Plane { host, _network: network, _peer: Box::new(peer) }
}

fn show(client: &mut Client) -> Shown {
    match client.ask(&Request::Show).unwrap() {
        Answer::Shown(shown) => shown,
        other => panic!("{other:?}"),
    }
}

fn connect(scratch: &Scratch) -> Client {
    Client::connect(std::process::id(), &scratch.places()).unwrap()
}

#[test]
fn a_setting_of_one_napi_is_in_force_and_is_undone() {
    let (scratch, plane) = (Scratch::new(), plane());
    let _offer = Offer::start(&plane.host, "test", &scratch.places()).unwrap();
    let mut client = connect(&scratch);
    let before = show(&mut client);
    assert_eq!((before.napis.len(), before.napis[1].queue, before.service.as_str()), (2, 1, "test"));
    let change = Change {
        defer_hard_irqs: Some(7),
        gro_flush_timeout_ns: Some(50_000),
        threaded: Some(Threaded::On),
        ..Change::default()
    };
    let set = Request::Set(Set { napi_ids: vec![before.napis[1].id], change });
    let Answer::Changed(changed) = client.ask(&set).unwrap() else { panic!("it was a set") };
    assert_eq!((changed.len(), changed[0].settings.defer_hard_irqs), (1, 7));
    let after = show(&mut client);
    assert_eq!(after.napis[0].settings, before.napis[0].settings);
    assert_eq!(
        (after.napis[1].settings.gro_flush_timeout_ns, after.napis[1].settings.threaded),
        (50_000, Threaded::On)
    );
    assert_eq!(after.napis[1].former, Some(before.napis[1].settings));
    assert!(after.napis[1].thread.is_some() && after.napis[0].thread.is_none());
    assert_eq!(plane.host.napis()[1].settings, after.napis[1].settings, "the host itself says so");

    // A second change does not change what undo goes back to.
    let change = Change { defer_hard_irqs: Some(9), ..Change::default() };
    client.ask(&Request::Set(Set { napi_ids: Vec::new(), change })).unwrap();
    let Answer::Changed(undone) = client.ask(&Request::Undo).unwrap() else { panic!("it was an undo") };
    assert_eq!(undone.len(), 2);
    let undone = show(&mut client);
    for (now, then) in undone.napis.iter().zip(&before.napis) {
        assert_eq!((now.settings, now.former), (then.settings, None));
    }
}

/// The nice value of this process, which anybody may give a thread and take back.
fn own_nice() -> i32 {
    match scheduling(std::process::id() as i32).unwrap().policy {
        ThreadPolicy::Other(nice) | ThreadPolicy::Batch(nice) => nice,
        _ => 0,
    }
}

/// A change of threads that any user may make, and take back.
fn of_threads() -> Change {
    Change {
        threaded: Some(Threaded::On),
        thread_cpus: Some(vec![lull_host::usable_cores()[0]]),
        thread_policy: Some(ThreadPolicy::Batch(own_nice())),
        ..Change::default()
    }
}

#[test]
fn the_threads_of_napis_get_cpus_and_a_policy_and_are_given_back_what_they_had() {
    let (scratch, plane) = (Scratch::new(), plane());
    let _offer = Offer::start(&plane.host, "test", &scratch.places()).unwrap();
    let mut client = connect(&scratch);
    let ids: Vec<u32> = show(&mut client).napis.iter().map(|napi| napi.id).collect();
    let on = Change { threaded: Some(Threaded::On), ..Change::default() };
    client.ask(&Request::Set(Set { napi_ids: vec![ids[1]], change: on })).unwrap();
    let before = show(&mut client).napis.swap_remove(1);
    let had = before.scheduling.clone().unwrap();
    assert_eq!(before.former_scheduling, None);

    let change = of_threads();
    client.ask(&Request::Set(Set { napi_ids: vec![ids[1]], change: change.clone() })).unwrap();
    let after = show(&mut client).napis;
    let thread = after[1].thread.unwrap();
    let now = scheduling(thread).unwrap();
    assert_eq!((Some(now.cpus.clone()), Some(now.policy)), (change.thread_cpus, change.thread_policy));
    assert_eq!((&after[1].scheduling, &after[1].former_scheduling), (&Some(now), &Some(had.clone())));
    assert_eq!((after[0].thread, &after[0].former), (None, &None));
    // A second change does not change what undo goes back to.
    let again = Change { thread_policy: Some(ThreadPolicy::Other(own_nice())), ..Change::default() };
    client.ask(&Request::Set(Set { napi_ids: vec![ids[1]], change: again })).unwrap();
    assert_eq!(show(&mut client).napis[1].former_scheduling, Some(had.clone()));
    client.ask(&Request::Undo).unwrap();
    assert_eq!(scheduling(thread).unwrap(), had);
    let undone = show(&mut client).napis.swap_remove(1);
    assert_eq!((undone.settings.threaded, undone.former_scheduling), (Threaded::Off, None));
}

#[test]
fn a_thread_that_cannot_be_scheduled_leaves_everything_as_it_was() {
    let (scratch, plane) = (Scratch::new(), plane());
    let _offer = Offer::start(&plane.host, "test", &scratch.places()).unwrap();
    let mut client = connect(&scratch);
    let before = show(&mut client).napis;
    let mut refused = |change| {
        let error = client.ask(&Request::Set(Set { napi_ids: Vec::new(), change })).unwrap_err();
        assert!(matches!(error, Error::Refused { .. }), "{error}");
        error.to_string()
    };
    let said = refused(Change { threaded: None, ..of_threads() });
    assert!(said.contains("no thread") && said.contains("threaded=on"), "{said}");
    let said = refused(Change { thread_cpus: Some(vec![4_000]), ..of_threads() });
    assert!(said.contains("CPU 4000"), "{said}");
    // The kernel itself refuses this change, when the settings are in force already.
    let change = Change { defer_hard_irqs: Some(7), thread_policy: Some(ThreadPolicy::Unknown(77)), ..of_threads() };
    let said = refused(change);
    assert!(said.contains("cannot schedule its thread") && said.contains("os error 22"), "{said}");
    let after = show(&mut client).napis;
    let in_force = |napis: &[Napi]| napis.iter().map(|napi| (napi.settings, napi.former)).collect::<Vec<_>>();
    assert_eq!(in_force(&after), in_force(&before));
}

#[test]
fn a_refused_change_changes_nothing() {
    let (scratch, plane) = (Scratch::new(), plane());
    let _offer = Offer::start(&plane.host, "test", &scratch.places()).unwrap();
    let mut client = connect(&scratch);
    let before = show(&mut client).napis;
    let mut refused = |napi_ids, change| {
        let error = client.ask(&Request::Set(Set { napi_ids, change })).unwrap_err();
        assert!(matches!(error, Error::Refused { .. }), "{error}");
        error.to_string()
    };
    let out_of_range = Change { defer_hard_irqs: Some(u32::MAX), ..Change::default() };
    assert!(refused(Vec::new(), out_of_range).contains("defer_hard_irqs"));
    let fine = Change { defer_hard_irqs: Some(1), ..Change::default() };
    let unknown = refused(vec![before[0].id, 77], fine);
    assert!(unknown.contains("no NAPI 77") && unknown.contains(&before[1].id.to_string()), "{unknown}");
    assert!(refused(Vec::new(), Change::default()).contains("no setting was named"));
    let after = show(&mut client).napis;
    assert_eq!(after.len(), before.len());
    assert!(after.iter().zip(&before).all(|(now, then)| now.settings == then.settings && now.former.is_none()));
}

#[test]
fn epoll_contexts_are_shown_for_as_long_as_they_live() {
    let (scratch, plane) = (Scratch::new(), plane());
    let _offer = Offer::start(&plane.host, "test", &scratch.places()).unwrap();
    let epoll = Epoll::new(&plane.host);
    let params = EpollParams { busy_poll_usecs: 64, busy_poll_budget: 64, prefer_busy_poll: true };
    epoll.set_busy_poll(&params, true).unwrap();
    let mut client = connect(&scratch);
    let contexts = show(&mut client).contexts;
    assert_eq!((contexts.len(), contexts[0].params), (1, params));
    drop(epoll);
    assert_eq!(show(&mut client).contexts, []);
}

#[test]
fn a_client_that_says_nothing_or_nonsense_does_not_lock_the_others_out() {
    let (scratch, plane) = (Scratch::new(), plane());
    let offer = Offer::start(&plane.host, "test", &scratch.places()).unwrap();
    let _silent = UnixStream::connect(offer.path()).unwrap();
    let nonsense = UnixStream::connect(offer.path()).unwrap();
    (&nonsense).write_all(b"make me a sandwich\n").unwrap();
    let mut answer = String::new();
    BufReader::new(&nonsense).read_line(&mut answer).unwrap();
    assert!(answer.contains("refused") && answer.contains("version"), "{answer}");
    drop(nonsense);
    assert_eq!(show(&mut connect(&scratch)).napis.len(), 2);
}

#[test]
fn a_client_that_goes_on_asking_keeps_neither_the_others_nor_the_end_waiting() {
    let (scratch, plane) = (Scratch::new(), plane());
    let offer = Offer::start(&plane.host, "test", &scratch.places()).unwrap();
    let mut watching = connect(&scratch);
    show(&mut watching);
    let mut other = connect(&scratch);
    assert_eq!(show(&mut other).napis.len(), 2);
    assert_eq!(show(&mut watching).napis.len(), 2);
    // Both clients are still connected; the service ends all the same.
    drop(offer);
    let gone = watching.ask(&Request::Show).unwrap_err();
    assert!(matches!(gone, Error::NoSocket { .. } | Error::Gone { .. }), "{gone}");
}

#[test]
fn a_client_that_reads_slowly_keeps_neither_the_others_nor_the_end_waiting() {
    let (scratch, plane) = (Scratch::new(), plane());
    let sockets = Sockets { sockets: vec![Socket::default(); 20_000], ..Sockets::default() };
    let list = Box::new(move || Some(sockets.clone()));
    let offer = Offer::start_with_sockets(&plane.host, "test", &scratch.places(), list).unwrap();
    let mut slow = UnixStream::connect(offer.path()).unwrap();
    slow.write_all(b"\"sockets\"\n").unwrap();
    let mut part = vec![0; 32 * 1024];
    let first = slow.read(&mut part).unwrap();
    assert!(first > 0, "the answer has begun");
    // There is always room for a little more of the answer, and all of it would take many seconds.
    let reads = std::thread::spawn(move || {
        let (mut last, mut parts) = (part[first - 1], 0);
        while let Ok(count) = slow.read(&mut part)
            && count > 0
        {
            (last, parts) = (part[count - 1], parts + 1);
            std::thread::sleep(Duration::from_millis(100));
        }
        (last, parts)
    });
    assert_eq!(show(&mut connect(&scratch)).napis.len(), 2);
    drop(offer);
    let (last, parts) = reads.join().unwrap();
    assert_ne!(last, b'\n', "the whole answer was waited for, in {parts} parts");
}

#[test]
fn what_a_killed_process_left_is_told_from_one_that_never_was() {
    let scratch = Scratch::new();
    let me = std::process::id();
    assert!(matches!(Client::connect(me, &scratch.places()), Err(Error::NoSocket { .. })));
    let plane = plane();
    let offer = Offer::start(&plane.host, "test", &scratch.places()).unwrap();
    let path = offer.path().to_owned();
    drop(offer);
    assert!(!path.exists());
    // A listener that is dropped leaves its file behind, as a killed process does.
    drop(UnixListener::bind(&path).unwrap());
    let gone = Client::connect(me, &scratch.places()).unwrap_err();
    assert!(matches!(gone, Error::Gone { .. }) && gone.to_string().contains("is gone"), "{gone}");
    assert!(Client::connect_all(&scratch.places()).is_empty());
    // The next process of that number takes the file's place.
    let _offer = Offer::start(&plane.host, "test", &scratch.places()).unwrap();
    assert_eq!(show(&mut connect(&scratch)).pid, me);
}

#[test]
fn a_socket_that_says_to_be_another_process_is_not_believed() {
    let (scratch, plane) = (Scratch::new(), plane());
    let offer = Offer::start(&plane.host, "test", &scratch.places()).unwrap();
    let other = std::os::unix::process::parent_id();
    let name = offer.path().file_name().unwrap().to_str().unwrap();
    let others = name.replacen(&std::process::id().to_string(), &other.to_string(), 1);
    std::fs::rename(offer.path(), scratch.0.join(others)).unwrap();
    let error = Client::connect(other, &scratch.places()).unwrap_err();
    assert!(matches!(error, Error::Impostor { found, .. } if found == std::process::id()), "{error}");
    // The process is found by its own number, whatever the file is called, as names differ between PID namespaces.
    assert_eq!(show(&mut connect(&scratch)).napis.len(), 2);
    std::mem::forget(offer);
}

/// A listener of this process in a directory of its own. It accepts no connection.
fn silent(scratch: &Scratch, name: &str) -> UnixListener {
    std::fs::create_dir_all(&scratch.0).unwrap();
    UnixListener::bind(scratch.0.join(name)).unwrap()
}

/// Fills a listener's queue, so that a further connect waits.
fn fill(scratch: &Scratch, listener: &UnixListener, name: &str) -> UnixStream {
    rustix::net::listen(listener, 0).unwrap();
    UnixStream::connect(scratch.0.join(name)).unwrap()
}

/// After this time something counts as hanging; a busy machine is slow as well.
const HANGS: Duration = Duration::from_secs(60);

/// Returns what `does` returns, and fails if that takes longer than `time`.
fn within<T: Send + 'static>(time: Duration, does: impl FnOnce() -> T + Send + 'static) -> T {
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || tell.send(does()));
    told.recv_timeout(time).expect("it hangs")
}

#[test]
fn a_socket_whose_queue_is_full_is_passed_over() {
    let scratch = Scratch::new();
    let listener = silent(&scratch, "1.sock");
    let _waits = fill(&scratch, &listener, "1.sock");
    let places = scratch.places();
    assert!(within(HANGS, move || Client::connect_all(&places)).is_empty());
    let (me, places) = (std::process::id(), scratch.places());
    let found = within(HANGS, move || Client::connect(me, &places));
    assert!(matches!(found, Err(Error::NoSocket { .. })), "{found:?}");
}

#[test]
fn silent_processes_of_a_user_take_no_longer_than_one_and_leave_others_their_time() {
    let scratch = Scratch::new();
    // Each of them alone would take ten seconds, so that all together would take several times [`HANGS`].
    let _listeners: Vec<UnixListener> = (0..40).map(|nth| silent(&scratch, &format!("{nth}.sock"))).collect();
    let mut clients = Client::connect_all(&scratch.places());
    assert_eq!(clients.len(), 40);
    let ask = move || clients.iter_mut().map(|client| client.ask(&Request::Show).unwrap_err()).collect::<Vec<_>>();
    for error in within(HANGS, ask) {
        assert!(matches!(error, Error::Silent { .. }) && error.to_string().contains("timed out"), "{error}");
    }
}

#[test]
fn an_answer_that_dribbles_in_has_an_end_and_its_control_characters_do_nothing() {
    let scratch = Scratch::new();
    let listener = silent(&scratch, "1.sock");
    let serves = std::thread::spawn(move || {
        let mut answers = listener.incoming().map(Result::unwrap);
        let (_looked, mut quick) = (answers.next(), answers.next().unwrap());
        quick.write_all(b"{\"refused\":\"\\u001b[2Jno\"}\n").unwrap();
        let mut slow = answers.next().unwrap();
        while slow.write_all(b" ").is_ok() {
            std::thread::sleep(Duration::from_millis(300));
        }
    });
    let mut client = Client::connect_all(&scratch.places()).swap_remove(0);
    let said = client.ask(&Request::Show).unwrap_err().to_string();
    assert!(said.ends_with("refused: \\u{1b}[2Jno"), "{said}");
    // The second answer has no end.
    assert!(matches!(within(HANGS, move || client.ask(&Request::Show)), Err(Error::Silent { .. })));
    serves.join().unwrap();
}

#[test]
fn a_host_that_is_gone_is_said() {
    let (scratch, plane) = (Scratch::new(), plane());
    let _offer = Offer::start(&plane.host, "test", &scratch.places()).unwrap();
    let mut client = connect(&scratch);
    show(&mut client);
    drop(plane);
    let error = client.ask(&Request::Show).unwrap_err().to_string();
    assert!(error.contains("closed"), "{error}");
}

#[test]
fn a_group_is_shown_and_changed_while_it_polls() {
    let scratch = Scratch::new();
    let (ours, _peer) = mem::pair(MemConfig { queues: 2, ..MemConfig::default() });
    let cores = lull_host::usable_cores();
    let host = Host::new(HostConfig { cpus: vec![Some(cores[0]); 2], ..HostConfig::default() }).unwrap();
    let options = GroupOptions { oversubscribe: true, ..GroupOptions::default() };
    let mode: Mode = "group50".parse().unwrap();
    let config = NetworkConfig {
        addresses: vec![("10.0.0.2".parse().unwrap(), 24)],
        group: Some(GroupCpus { cpus: vec![0], options }),
        ..NetworkConfig::default()
    };
    let network = Network::new(&host, Arc::new(ours), config.with_mode(&mode)).unwrap();
    let _offer = Offer::start(&host, "test", &scratch.places()).unwrap();
    let mut client = connect(&scratch);
    let shown = show(&mut client);
    let ids: Vec<u32> = shown.napis.iter().map(|napi| napi.id).collect();
    assert_eq!((shown.groups.len(), shown.groups[0].rest_ns), (1, Some(50_000)));
    assert!(shown.napis.iter().all(|napi| napi.state.contains("GROUPED")));

    let remove = GroupChange { remove: vec![ids[1]], ..GroupChange::default() };
    let Answer::Group(group) = client.ask(&Request::Group(remove.clone())).unwrap() else { panic!("it was a change") };
    // Each queue has a transmit NAPI beside its receive NAPI, and both are members.
    let mut others = ids.clone();
    others.remove(1);
    let mut members: Vec<u32> = group.members.iter().map(|member| member.napi_id).collect();
    members.sort_unstable();
    others.sort_unstable();
    assert_eq!(members, others);
    assert!(!show(&mut client).napis[1].state.contains("GROUPED"));
    let add = GroupChange { add: vec![ids[1]], weight: Some(16), ..GroupChange::default() };
    let Answer::Group(group) = client.ask(&Request::Group(add)).unwrap() else { panic!("it was a change") };
    assert!(group.members.iter().any(|member| (member.napi_id, member.weight) == (ids[1], 16)), "{group:?}");

    let refusals = [
        (GroupChange { attach: vec![cores[0]], ..GroupChange::default() }, "group 0 has it"),
        (GroupChange { attach: vec![4_000], ..GroupChange::default() }, "may not use core 4000"),
        (GroupChange { add: vec![ids[0]], ..GroupChange::default() }, "is in group 0"),
        (GroupChange { add: vec![7], ..GroupChange::default() }, "no NAPI 7"),
        (GroupChange { group: Some(3), ..GroupChange::default() }, "no group 3; it has 0"),
    ];
    for (change, word) in refusals {
        let refused = client.ask(&Request::Group(change)).unwrap_err().to_string();
        assert!(refused.contains(word), "{refused}");
    }
    // What was done before a refusal is taken back, even after the last CPU was detached with all members.
    let has = |client: &mut Client| {
        let group = show(client).groups.swap_remove(0);
        let mut members: Vec<(u32, u32)> = group.members.iter().map(|it| (it.napi_id, it.weight)).collect();
        members.sort_unstable();
        (members, group.pollers.iter().map(|poller| poller.core).collect::<Vec<_>>())
    };
    let before = has(&mut client);
    for change in [
        GroupChange { remove: vec![ids[1]], detach: vec![4_000], ..GroupChange::default() },
        GroupChange { remove: vec![ids[1], ids[1]], ..GroupChange::default() },
        GroupChange { detach: vec![cores[0], cores[0]], ..GroupChange::default() },
    ] {
        let refused = client.ask(&Request::Group(change.clone())).unwrap_err().to_string();
        assert!(!refused.contains("stays so"), "{refused}");
        assert_eq!(has(&mut client), before, "{change:?}");
    }
    let threaded = Change { threaded: Some(Threaded::On), ..Change::default() };
    let set = Request::Set(Set { napi_ids: vec![ids[0]], change: threaded });
    let refused = client.ask(&set).unwrap_err().to_string();
    assert!(refused.contains("remove it from the group first"), "{refused}");

    let detach = GroupChange { detach: vec![cores[0]], ..GroupChange::default() };
    let Answer::Group(group) = client.ask(&Request::Group(detach)).unwrap() else { panic!("it was a change") };
    assert!(group.members.is_empty() && group.pollers.is_empty());
    drop(network);
    assert!(show(&mut client).groups.is_empty(), "the group goes with its network");
}
