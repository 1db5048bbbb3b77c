//! `prepare` on a copy of `/sys` and `/proc`, so that no test ever writes anything machine-wide. The device is `lo`, on
//! which ethtool can set nothing.

mod tree;

use std::fs;

use lull_linux::apply::Options;
use lull_linux::prepare::{Outcome, Profile, prepare, unprepare};
use lull_linux::{Roots, Session};
use rustix::fs::{FlockOperation, flock};
use tree::Tree;

const PROFILE: &str = r#"
[device]
rx-ring = 64
rps-cpus = ""
rfs-flows = 0
[machine]
workqueue-cpus = "0-1"
timer-migration = 0
rt-runtime-us = -1
smt = "off"
busy-read-us = 0
"#;

/// The contents of all files of the tree that a step writes.
fn values(tree: &Tree) -> [String; 5] {
    [
        "sys/class/net/lo/queues/rx-0/rps_cpus",
        "sys/class/net/lo/queues/rx-0/rps_flow_cnt",
        "sys/devices/virtual/workqueue/cpumask",
        "proc/sys/kernel/timer_migration",
        "proc/sys/kernel/sched_rt_runtime_us",
    ]
    .map(|path| tree.read(path))
}

#[test]
fn steps_are_done_reported_and_undone() {
    let tree = Tree::new("steps");
    let before = values(&tree);
    let profile = Profile::parse(PROFILE, "test").unwrap();
    let outcomes = |reports: &[lull_linux::prepare::StepReport]| {
        reports.iter().map(|report| (report.what.clone(), report.outcome.clone())).collect::<Vec<_>>()
    };

    let dry = prepare(&mut tree.session(), &profile, true).unwrap();
    assert_eq!(values(&tree), before);
    assert!(!tree.0.join("state").exists());

    let done = prepare(&mut tree.session(), &profile, false).unwrap();
    assert_eq!(outcomes(&done), outcomes(&dry));
    assert_eq!(values(&tree), ["0", "0", "3", "0", "-1"]);
    let lacking = done.iter().filter(|report| matches!(report.outcome, Outcome::Lacking(_))).collect::<Vec<_>>();
    let whats = lacking.iter().map(|report| report.what.as_str()).collect::<Vec<_>>();
    assert_eq!(whats, ["rx ring", "SMT", "net.core.busy_read"]);
    assert_eq!(tree.read("sys/devices/system/cpu/smt/control"), "notsupported");

    // Preparing again changes nothing and forgets nothing.
    let again = prepare(&mut tree.session(), &profile, false).unwrap();
    assert!(again.iter().all(|report| report.outcome != Outcome::Changed), "{again:?}");

    let undone = unprepare(&mut tree.session(), false).unwrap();
    assert!(undone.iter().all(|report| report.outcome == Outcome::Changed), "{undone:?}");
    assert_eq!(values(&tree), before);
    assert!(unprepare(&mut tree.session(), false).unwrap().is_empty());
    assert_eq!(fs::read_dir(tree.0.join("state")).unwrap().count(), 0);
}

#[test]
fn another_profile_keeps_the_originals() {
    let tree = Tree::new("originals");
    let before = values(&tree);
    prepare(&mut tree.session(), &Profile::parse("[machine]\nworkqueue-cpus = \"0\"", "one").unwrap(), false).unwrap();
    prepare(&mut tree.session(), &Profile::parse(PROFILE, "two").unwrap(), false).unwrap();
    assert_eq!(tree.read("sys/devices/virtual/workqueue/cpumask"), "3");
    unprepare(&mut tree.session(), false).unwrap();
    assert_eq!(values(&tree), before);
}

#[test]
fn what_was_taken_back_is_done_again_by_the_same_profile() {
    let tree = Tree::new("taken back");
    let before = values(&tree);
    let profile = Profile::parse(PROFILE, "test").unwrap();
    prepare(&mut tree.session(), &profile, false).unwrap();
    tree.write("sys/class/net/lo/queues/rx-0/rps_cpus", "f\n");
    let reports = prepare(&mut tree.session(), &profile, false).unwrap();
    assert!(reports.iter().any(|report| report.outcome == Outcome::Changed), "{reports:?}");
    assert_eq!(tree.read("sys/class/net/lo/queues/rx-0/rps_cpus"), "0");
    unprepare(&mut tree.session(), false).unwrap();
    assert_eq!(values(&tree), before);
}

#[test]
fn a_machine_that_somebody_else_works_on_leaves_the_device_unprepared_too() {
    let tree = Tree::new("busy machine");
    let before = values(&tree);
    let profile = Profile::parse(PROFILE, "test").unwrap();
    // This is the machine's lock, under the name that it has. Its holder says that it stays.
    tree.write("state/0@0.lock", "1 stays");
    let machine = fs::File::open(tree.0.join("state/0@0.lock")).unwrap();
    flock(&machine, FlockOperation::LockExclusive).unwrap();
    let said = prepare(&mut tree.session(), &profile, false).unwrap_err().to_string();
    assert!(said.contains("machine") && values(&tree) == before, "{said}");
    drop(machine);
    prepare(&mut tree.session(), &profile, false).unwrap();
    let prepared = values(&tree);
    let mut device = tree.session();
    device.hold().unwrap();
    let said = unprepare(&mut tree.session(), false).unwrap_err().to_string();
    assert!(said.contains("lo") && values(&tree) == prepared, "{said}");
    drop(device);
    unprepare(&mut tree.session(), false).unwrap();
    assert_eq!(values(&tree), before);
}

#[test]
fn the_default_profile_leaves_the_machine_alone() {
    let tree = Tree::new("default");
    let machine = |tree: &Tree| values(tree)[2..].to_vec();
    let before = machine(&tree);
    prepare(&mut tree.session(), &Profile::load(None).unwrap(), false).unwrap();
    assert_eq!(machine(&tree), before);
    assert_eq!(values(&tree)[..2], ["0", "0"]);
}

#[test]
fn what_is_refused_is_reported_and_the_rest_is_done() {
    let tree = Tree::new("refused");
    // A directory in place of the file cannot be read.
    fs::remove_file(tree.0.join("proc/sys/kernel/timer_migration")).unwrap();
    fs::create_dir(tree.0.join("proc/sys/kernel/timer_migration")).unwrap();
    let reports = prepare(&mut tree.session(), &Profile::parse(PROFILE, "test").unwrap(), false).unwrap();
    let refused = reports.iter().filter(|it| matches!(it.outcome, Outcome::Refused(_))).collect::<Vec<_>>();
    assert!(refused.len() == 1 && refused[0].what == "timer migration", "{reports:?}");
    assert_eq!(tree.read("proc/sys/kernel/sched_rt_runtime_us"), "-1");
    unprepare(&mut tree.session(), false).unwrap();
    assert_eq!(tree.read("proc/sys/kernel/sched_rt_runtime_us"), "950000");
}

#[test]
fn what_cannot_be_seen_here_is_kept_until_it_can() {
    let tree = Tree::new("hidden");
    const BUSY_READ: &str = "proc/sys/net/core/busy_read";
    tree.write(BUSY_READ, "0\n");
    tree.write("sys/devices/system/cpu/online", "0-1\n");
    let latency = |cpu: u32| format!("sys/devices/system/cpu/cpu{cpu}/power/pm_qos_resume_latency_us");
    tree.write(&latency(0), "0\n");
    tree.write(&latency(1), "0\n");
    let steps = "[machine]\nbusy-read-us = 50\ncpu-resume-latency-us = 10\nsmt = \"off\"";
    prepare(&mut tree.session(), &Profile::parse(steps, "test").unwrap(), false).unwrap();
    assert_eq!((tree.read(BUSY_READ), tree.read(&latency(1))), ("50".to_owned(), "10".to_owned()));
    // Another network namespace does not show the machine's `net.core`. A CPU that was unplugged has lost its value.
    fs::remove_file(tree.0.join(BUSY_READ)).unwrap();
    fs::remove_dir_all(tree.0.join("sys/devices/system/cpu/cpu1")).unwrap();
    for dry_run in [true, false, false] {
        let reports = unprepare(&mut tree.session(), dry_run).unwrap();
        let of_busy_read = reports.iter().find(|it| it.what == "net.core.busy_read").unwrap();
        let why = |it: &Outcome| matches!(it, Outcome::Refused(why) if why.contains("initial network namespace"));
        assert!(why(&of_busy_read.outcome), "{reports:?}");
    }
    assert_eq!(tree.read(&latency(0)), "0");
    tree.write(BUSY_READ, "50\n");
    assert_eq!(unprepare(&mut tree.session(), false).unwrap().len(), 1);
    assert_eq!(tree.read(BUSY_READ), "0");
    assert!(unprepare(&mut tree.session(), false).unwrap().is_empty());
}

#[test]
fn each_cpu_keeps_the_latency_that_it_may_take_to_wake() {
    let tree = Tree::new("resume");
    tree.write("sys/devices/system/cpu/online", "0-1\n");
    let file = |cpu: u32| format!("sys/devices/system/cpu/cpu{cpu}/power/pm_qos_resume_latency_us");
    tree.write(&file(0), "0\n");
    tree.write(&file(1), "50\n");
    let both = |tree: &Tree| [0, 1].map(|cpu| tree.read(&file(cpu)));
    for (asked, written) in [("0", "n/a"), ("10", "10")] {
        let profile = Profile::parse(&format!("[machine]\ncpu-resume-latency-us = {asked}"), "test").unwrap();
        prepare(&mut tree.session(), &profile, false).unwrap();
        assert_eq!(both(&tree), [written, written]);
    }
    unprepare(&mut tree.session(), false).unwrap();
    assert_eq!(both(&tree), ["0", "50"]);
}
