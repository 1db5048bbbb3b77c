//! Tests of the state file.

use super::*;
use crate::device::NapiState;
use crate::sched::ThreadPolicy;
use crate::values::ThreadedName;

struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn store(test: &str) -> (Scratch, Store) {
    let directory = std::env::temp_dir().join(format!("lull-state-{test}-{}", std::process::id()));
    let device =
        Device { name: "veth7".to_owned(), ifindex: 7, netns_cookie: 99, driver: None, in_sysfs: false, node: None };
    let store = Store { directory: directory.clone(), device, boot_id: "this boot".to_owned() };
    (Scratch(directory), store)
}

fn state(store: &Store) -> State {
    let settings = Values {
        defer_hard_irqs: 7,
        gro_flush_timeout_ns: u64::MAX,
        irq_suspend_timeout_ns: 0,
        threaded: ThreadedName::On,
    };
    let thread = Scheduling { cpus: vec![0, 3], policy: ThreadPolicy::Fifo(50) };
    let former = |queue| Former { queue, napi_id: 1, settings, thread: Some(thread.clone()), mode: "base".to_owned() };
    State { napis: vec![former(QueueKey::Rx(0)), former(QueueKey::Tx(1)), former(QueueKey::Nth(2))], ..store.empty() }
}

#[test]
fn what_is_written_is_read_and_an_empty_state_is_no_file() {
    let (_scratch, store) = store("round");
    assert_eq!(store.load().unwrap(), None);
    let state = state(&store);
    store.save(&state).unwrap();
    assert_eq!(store.load().unwrap(), Some(state));
    assert!(!with(&store.stem(), "new").exists());
    store.save(&store.empty()).unwrap();
    assert_eq!(store.load().unwrap(), None);
    store.save(&store.empty()).unwrap();
}

#[test]
fn a_napi_is_known_by_its_id_and_by_its_queue_where_the_id_is_gone() {
    let (_scratch, store) = store("former");
    let settings = state(&store).napis[0].settings;
    let unreported = Default::default();
    let napi = |(key, id)| NapiState { key, rx: vec![], tx: vec![], id, irq: None, thread: None, settings, unreported };
    let snapshot = |napis: &[(QueueKey, u32)]| Snapshot {
        device: "veth7".to_owned(),
        ifindex: 7,
        driver: None,
        up: true,
        queues_linked: true,
        rx_queues: 2,
        defaults: None,
        napis: napis.iter().copied().map(napi).collect(),
    };
    let mut known = state(&store);
    for (nth, former) in known.napis.iter_mut().enumerate() {
        (former.queue, former.napi_id) = (QueueKey::Rx(nth as u32), 11 + nth as u32);
    }
    let former_of = |queue, id, napis: &[_]| known.former_of(queue, id, &snapshot(napis));
    let (q0, q1, q2, nth1) = (QueueKey::Rx(0), QueueKey::Rx(1), QueueKey::Rx(2), QueueKey::Nth(1));
    // This is virtio-net without its second queue.
    let fewer = [(q0, 11), (nth1, 12), (q2, 13)];
    assert_eq!(former_of(nth1, 12, &fewer), Some(1));
    // After a link flap of a veth there are new ids, and there is one queue fewer.
    let flapped = [(q0, 21), (q1, 22)];
    assert_eq!((former_of(q0, 21, &flapped), former_of(q1, 22, &flapped)), (Some(0), Some(1)));
    // The NAPI that had the first queue serves the second one now, so the first queue has another.
    let moved = [(q0, 31), (q1, 11)];
    assert_eq!((former_of(q0, 31, &moved), former_of(q1, 11, &moved)), (None, Some(0)));
    assert_eq!(former_of(QueueKey::Rx(9), 99, &flapped), None);
}

#[test]
fn a_renamed_device_keeps_its_state_and_its_lock() {
    let (_scratch, mut store) = store("renamed");
    let target = Target::Sys("class/net/veth7/queues/rx-0/rps_cpus".to_owned());
    let done = Overwritten {
        target,
        what: "RPS of rx-0".to_owned(),
        former: "0".to_owned(),
        set: None,
        settled: None,
        interrupt: None,
    };
    let state = State { prepared: vec![done], ..state(&store) };
    store.save(&state).unwrap();
    let first = store.lock(Term::Moment).unwrap();
    store.device.name = "uplink".to_owned();
    let now = store.load().unwrap().unwrap();
    assert_eq!(now.prepared[0].target, Target::Sys("class/net/uplink/queues/rx-0/rps_cpus".to_owned()));
    assert_eq!(State { device: "veth7".to_owned(), prepared: state.prepared.clone(), ..now }, state);
    assert!(store.lock(Term::Moment).is_err());
    drop(first);
    store.save(&state).unwrap();
    store.device.ifindex = 8;
    assert_eq!(store.load().unwrap(), None, "another device");
    store.device.ifindex = 7;
    store.save(&store.empty()).unwrap();
    assert_eq!(fs::read_dir(&store.directory).unwrap().count(), 0);
}

#[test]
fn other_boots_devices_and_versions_are_refused() {
    let (_scratch, mut store) = store("stale");
    let state = state(&store);
    store.save(&state).unwrap();
    let refused = |store: &Store, word: &str| {
        let said = store.load().unwrap_err().to_string();
        assert!(
            said.contains(word) && said.contains("lull undo veth7 --forget") && said.contains("veth7@99"),
            "{said}"
        );
    };
    store.boot_id = "another".to_owned();
    refused(&store, "another boot");
    store.boot_id = "this boot".to_owned();
    store.device.ifindex = 8;
    refused(&store, "index 7 then, 8 now");
    store.device.ifindex = 7;
    store.save(&State { version: 9, ..state.clone() }).unwrap();
    refused(&store, "version 9");
    // Another version may have another shape; a lull of that version can undo.
    fs::write(store.file(), r#"{"version": 9, "devices": []}"#).unwrap();
    refused(&store, "is of version 9, and this lull writes 1); undo with the lull that wrote it");
    store.save(&State { netns_cookie: 1, ..state }).unwrap();
    refused(&store, "namespace");
    fs::write(store.file(), "{").unwrap();
    refused(&store, "cannot be read");
}

#[test]
fn the_second_lock_is_refused_with_the_first_ones_process() {
    let (_scratch, store) = store("lock");
    let first = store.lock(Term::Moment).unwrap();
    let said = store.lock(Term::Moment).unwrap_err().to_string();
    assert!(said.contains(&std::process::id().to_string()) && said.contains("veth7"), "{said}");
    drop(first);
    store.lock(Term::Moment).unwrap();
}

#[test]
fn who_sees_no_node_has_the_same_lock_as_who_does() {
    let (_scratch, store) = store("nodes");
    let directory = &store.directory;
    let (seeing, blind) = (lock_files(directory, Some(5), 7, 99), lock_files(directory, None, 7, 99));
    assert!(blind.iter().all(|file| seeing.contains(file)), "{seeing:?} and {blind:?}");
    // A device that was moved is known by its node.
    let moved = lock_files(directory, Some(5), 8, 98);
    assert_eq!(seeing[0], moved[0], "in the order in which everybody takes them");
    fs::create_dir_all(directory).unwrap();
    let held = lock::take(seeing, "veth7", Term::Moment).unwrap();
    assert!(store.lock(Term::Moment).is_err());
    drop(held);
    store.lock(Term::Moment).unwrap();
    assert_eq!(fs::read_dir(&store.directory).unwrap().count(), 0);
}
