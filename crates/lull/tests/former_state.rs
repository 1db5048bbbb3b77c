//! The settings from before `lull apply` are restored, refused or forgotten when the device was renamed, moved, made
//! again or deleted, when another lull is at work, and when lull was killed at any of its writes.

mod kernel;

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use kernel::{BASE, DEFER50, SUSPEND20, World, lines_of};
use lull_linux::polls::{Options, Polls};

#[test]
fn what_queues_had_that_were_taken_away_can_be_forgotten() {
    let Some(world) = World::new("forget", 2) else { return };
    world.set_raw(world.raw()[0].id, &["defer=7"]);
    let before = world.values();
    world.ok("apply va --mode suspend20");
    world.run(&["ethtool", "-L", "va", "rx", "1"]);
    let said = world.ok("undo va --dry-run --forget");
    assert!(said.contains("would set queue 0") && said.contains("would forget what queue 1"), "{said}");
    let output = world.lull("undo va");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1));
    assert!(said.contains("shows no NAPI for queue 1") && said.contains("lull undo va --forget"), "{said}");
    assert!(world.state_file().is_some());
    let said = world.ok("undo va --forget");
    assert!(said.contains("forgot what queue 1 of va had"), "{said}");
    assert_eq!(world.values(), before[..1]);
    assert_eq!(world.state_file(), None);
    assert!(world.ok("undo va --forget").contains("nothing was applied"));
    // Queues that have a NAPI get back their former settings, and `--forget` does not forget these first.
    world.ok("apply va --mode suspend20");
    world.ok("undo va --forget");
    assert_eq!(world.values(), before[..1]);
}

/// This happens when the kernel has become stricter, or lull has fewer rights than before.
#[test]
fn an_undo_that_the_kernel_refuses_in_part_names_what_stays_and_how_to_go_on() {
    let Some(world) = World::new("undo in part", 2) else { return };
    world.ok("apply va --mode suspend20");
    let file = world.state_file().unwrap();
    let whole = fs::read_to_string(&file).unwrap();
    let mut state: serde_json::Value = serde_json::from_str(&whole).unwrap();
    // This is more than the kernel accepts.
    state["napis"][1]["settings"]["defer_hard_irqs"] = u32::MAX.into();
    fs::write(&file, state.to_string()).unwrap();
    world.refused("undo va", &["queue 1 keeps", "every other NAPI has what it had", "`lull undo va`"]);
    assert_eq!(world.values(), [BASE, SUSPEND20]);
    fs::write(&file, whole).unwrap();
    world.ok("undo va");
    assert_eq!((world.values(), world.state_file()), (vec![BASE, BASE], None));
}

/// A trace instance records for the whole machine until somebody removes it.
#[test]
fn what_a_killed_tracer_left_recording_is_removed() {
    let Some(world) = World::new("killed tracer", 1) else { return };
    if let Err(error) = Polls::open("va", Options::default()) {
        println!("SKIP: {error}");
        return;
    }
    // Every command of the namespace has its own /sys.
    let list = "mount -t tracefs none /sys/kernel/tracing && ls /sys/kernel/tracing/instances";
    let instances = || world.run(&["unshare", "-m", "sh", "-c", list]);
    let tracer = world.start("stat va");
    let name = format!("lull-{}-", tracer.id());
    let begun = Instant::now();
    while !instances().contains(&name) {
        assert!(begun.elapsed() < Duration::from_secs(120), "{name} is not among {}", instances());
    }
    tracer.signal("-KILL");
    assert_eq!(tracer.end().0, None);
    world.ok("undo va");
    assert!(!instances().contains(&name), "{}", instances());
}

#[test]
fn a_killed_watcher_is_undone_from_the_state_file_also_after_a_flap() {
    let Some(world) = World::new("kill -9", 2) else { return };
    for flap in [false, true] {
        let mut watcher = world.start("apply va --mode suspend20 --watch");
        watcher.wait_for("watching");
        watcher.signal("-KILL");
        assert_eq!(watcher.end().0, None);
        assert_eq!(world.values(), [SUSPEND20, SUSPEND20]);
        if flap {
            world.run(&["ip", "link", "set", "va", "down"]);
            // There is no device to restore: a message says so, and the state is kept for later.
            let output = world.lull("undo va");
            assert_eq!(output.status.code(), Some(1));
            assert!(String::from_utf8_lossy(&output.stderr).contains("shows no NAPI"));
            world.run(&["ip", "link", "set", "va", "up"]);
        }
        world.ok("undo va");
        assert_eq!(world.values(), [BASE, BASE]);
        assert_eq!(world.state_file(), None);
    }
}

#[test]
fn a_renamed_device_is_undone_by_its_new_name() {
    let Some(world) = World::new("renamed", 2) else { return };
    world.ok("apply va --mode defer50");
    if !world.command(&["ip", "link", "set", "va", "name", "vx"]).status().unwrap().success() {
        println!("SKIP: renamed: this kernel renames no device that is up");
        return;
    }
    assert!(world.ok("undo vx").contains("gro-flush-timeout 50us -> 0"));
    assert_eq!(world.raw_of("vx").iter().map(|raw| raw.values()).collect::<Vec<_>>(), [BASE, BASE]);
    assert_eq!(world.state_file(), None);
}

#[test]
fn two_lulls_at_once_are_refused() {
    let Some(world) = World::new("two lulls", 2) else { return };
    let mut watcher = world.start("apply va --mode defer50 --watch");
    watcher.wait_for("watching");
    let pid = watcher.child.id().to_string();
    world.refused("apply va --mode base", &["va", &pid, "SIGTERM"]);
    world.refused("undo va", &["va", &pid, "SIGTERM"]);
    assert_eq!(world.values(), [DEFER50, DEFER50]);
    watcher.signal("-TERM");
    assert_eq!(watcher.end().0, Some(0));
    world.ok("apply va --mode base");
}

#[test]
fn who_does_not_see_the_devices_node_waits_for_who_does() {
    let Some(world) = World::new("two locks", 1) else { return };
    // This runs with the /sys of another namespace, and without the right to mount its own.
    let enter = format!("--net=/run/netns/{}", world.near);
    let unseeing = |arguments: &str| {
        let lull = [&["setpriv", "--bounding-set=-sys_admin", env!("CARGO_BIN_EXE_lull")][..]].concat();
        let mut command = Command::new("nsenter");
        command.arg(&enter).args(lull).args(arguments.split(' ')).env("LULL_STATE_DIR", &world.state);
        command.output().unwrap()
    };
    if !unseeing("show va").status.success() {
        println!("SKIP: two locks: setpriv takes no right away here");
        return;
    }
    let mut watcher = world.start("apply va --mode defer50 --watch");
    watcher.wait_for("watching");
    let output = unseeing("undo va");
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(2) && said.contains("stays until"), "{said}");
    assert_eq!(world.values(), [DEFER50]);
    watcher.signal("-TERM");
    assert_eq!(watcher.end().0, Some(0));
    let left: Vec<_> = fs::read_dir(&world.state).unwrap().flatten().map(|entry| entry.path()).collect();
    assert!(left.is_empty(), "{left:?}");
}

/// Whether lull cannot tell here that the device of a state file is gone; then it prints why the test is skipped.
fn cannot_tell(world: &World) -> bool {
    let output = world.lull("undo va --forget --dry-run");
    let hidden = String::from_utf8_lossy(&output.stderr).contains("outside of any container");
    if hidden {
        println!("SKIP: forgetting a device that is gone: not every process can be looked into here");
    }
    hidden
}

#[test]
fn a_state_file_of_another_boot_or_device_is_refused() {
    let Some(world) = World::new("stale state", 2) else { return };
    world.ok("apply va --mode defer50");
    let file = world.state_file().unwrap();
    let text = fs::read_to_string(&file).unwrap();
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    fs::write(&file, text.replace(boot.trim(), "00000000-0000-0000-0000-000000000000")).unwrap();
    for command in ["undo va", "undo va --dry-run", "apply va --mode base", "diff va --mode base"] {
        world.refused(command, &["another boot", "lull undo va --forget", file.to_str().unwrap()]);
    }
    assert_eq!(world.values(), [DEFER50, DEFER50]);
    fs::write(&file, &text).unwrap();
    world.make_pair(2);
    world.refused("undo va", &["another device", "lull undo va --forget"]);
    world.refused("apply va --mode base", &["another device", "lull undo va --forget"]);
    world.refused("run --dev va --mode base -- true", &["another device", "lull undo va --forget"]);
    if cannot_tell(&world) {
        world.refused("undo va --forget --dry-run", &["may be in another network namespace", "remove the file"]);
        assert!(file.exists());
        fs::remove_file(&file).unwrap();
    } else {
        let said = world.ok("undo va --forget --dry-run");
        assert!(said.contains("would forget the state file of va: it is of another") && file.exists(), "{said}");
        assert!(world.ok("undo va --forget").contains("forgot the state file of va: it is of another device"));
    }
    assert_eq!(world.values(), [BASE, BASE]);
    // A state file of another boot, and one that nobody can read, belong to no device that could exist.
    fs::create_dir_all(&world.state).unwrap();
    for text in [text.replace(boot.trim(), "00000000-0000-0000-0000-000000000000"), "{".to_owned()] {
        fs::write(&file, text).unwrap();
        assert!(world.ok("undo va --forget").contains("forgot the state file of va"));
        assert_eq!(world.state_file(), None);
    }
    world.ok("apply va --mode defer50");
    world.ok("undo va");
}

#[test]
fn the_state_of_another_boot_is_forgotten_although_the_index_is_the_same() {
    let Some(world) = World::new("same index, other boot", 1) else { return };
    world.ok("apply va --mode defer50");
    let file = world.state_file().unwrap();
    let mut state: serde_json::Value = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
    state["boot_id"] = "00000000-0000-0000-0000-000000000000".into();
    state["node"] = 1.into();
    fs::write(&file, state.to_string()).unwrap();
    assert!(world.ok("undo va --forget").contains("forgot the state file of va: it is of another boot"));
    let left = fs::read_dir(&world.state).unwrap().count();
    assert_eq!((world.state_file(), left), (None, 0), "neither the file nor a lock is left");
    world.ok("apply va --mode base");
}

#[test]
fn a_device_made_again_with_the_same_name_and_index_gets_nothing_of_the_old_one() {
    let Some(world) = World::new("same index", 1) else { return };
    let make = |index: &str| {
        world.run(&["ip", "link", "del", "va"]);
        world.run(&["ip", "link", "add", "va", "index", index, "type", "veth", "peer", "name", "vb"]);
        world.run(&["ethtool", "-K", "va", "gro", "on"]);
        world.run(&["ip", "link", "set", "va", "up"]);
    };
    make("77");
    world.set_raw(world.raw()[0].id, &["defer=7", "gro=30000", "suspend=5000000"]);
    world.ok("apply va --mode defer50");
    make("77");
    let new = world.values();
    for command in ["undo va", "apply va --mode suspend20", "run --dev va --mode base -- true"] {
        world.refused(command, &["deleted before this one", "lull undo va --forget"]);
    }
    // This also holds if /sys is that of another namespace.
    let namespace = format!("/run/netns/{}", world.near);
    let enter = format!("--net={namespace}");
    let elsewhere = Command::new("nsenter")
        .args([&enter, env!("CARGO_BIN_EXE_lull"), "undo", "va"])
        .env("LULL_STATE_DIR", &world.state)
        .output()
        .unwrap();
    let said = String::from_utf8(elsewhere.stderr).unwrap();
    assert!(elsewhere.status.code() == Some(2) && said.contains("deleted before this one"), "{said}");
    assert_eq!(world.values(), new);
    if cannot_tell(&world) {
        return;
    }
    world.ok("undo va --forget");
    assert_eq!((world.values(), world.state_file()), (new, None));
}

#[test]
fn a_state_is_not_forgotten_while_its_device_is_there_under_another_name() {
    let Some(world) = World::new("renamed and replaced", 1) else { return };
    world.set_raw(world.raw()[0].id, &["defer=7"]);
    world.ok("apply va --mode defer50");
    world.run(&["ip", "link", "set", "va", "down"]);
    world.run(&["ip", "link", "set", "va", "name", "vx"]);
    world.run(&["ip", "link", "set", "vx", "up"]);
    world.run(&["ip", "link", "add", "va", "type", "veth", "peer", "name", "vy"]);
    world.refused("undo va --forget", &["is of vx", "lull undo vx"]);
    world.ok("undo vx");
    assert_eq!((world.raw_of("vx")[0].gro, world.state_file()), (0, None));
}

#[test]
fn a_device_that_was_moved_is_undone_where_it_is() {
    let Some(world) = World::new("moved", 2) else { return };
    world.set_raw(world.raw()[0].id, &["defer=7", "suspend=5000000"]);
    let mut watcher = world.start("apply va --mode suspend20 --watch");
    watcher.wait_for("watching");
    world.run(&["ip", "link", "set", "va", "netns", &world.far]);
    let (status, said) = watcher.end();
    assert!(status == Some(2) && said.contains("moved to another network namespace"), "{said}");
    assert!(world.state_file().is_some());
    let there = |words: &[&str]| {
        let words = [&["ip", "netns", "exec", &world.far], words].concat();
        let output = Command::new(words[0]).args(&words[1..]).env("LULL_STATE_DIR", &world.state).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{words:?}: {said}");
        String::from_utf8(output.stdout).unwrap()
    };
    there(&["ip", "link", "set", "va", "up"]);
    let said = there(&[env!("CARGO_BIN_EXE_lull"), "undo", "va"]);
    // Of the settings only this one survives the move; the former value is not the mode's.
    assert!(said.contains("irq-suspend-timeout 20ms -> 5ms"), "{said}");
    assert_eq!(world.state_file(), None);
}

#[test]
fn a_device_that_was_moved_under_run_is_not_called_vanished() {
    let Some(world) = World::new("moved under run", 1) else { return };
    let mut run = world.start("run --dev va --mode defer50 -- sleep 600");
    world.wait_for(&[DEFER50]);
    world.run(&["ip", "link", "set", "va", "netns", &world.far]);
    run.wait_for("no device 'va'");
    run.signal("-TERM");
    let said = run.end().1;
    assert!(said.contains("va was moved to another network namespace") && !said.contains("vanished"), "{said}");
}

#[test]
fn a_state_is_not_forgotten_while_its_device_is_in_another_namespace() {
    let Some(world) = World::new("moved and replaced", 1) else { return };
    world.ok("apply va --mode suspend20");
    world.run(&["ip", "link", "set", "va", "netns", &world.far]);
    world.run(&["ip", "link", "add", "va", "type", "veth", "peer", "name", "vy"]);
    let remedy = format!("ip netns exec {} lull undo va", world.far);
    for command in ["undo va --forget --dry-run", "undo va --forget"] {
        world.refused(command, &["is of va", &remedy]);
    }
    assert!(world.state_file().is_some());
    assert!(Command::new("ip").args(["-n", &world.far, "link", "set", "va", "up"]).status().unwrap().success());
    assert!(far(&world, "undo va").contains("irq-suspend-timeout 20ms -> 0"));
    assert_eq!(world.state_file(), None);
}

#[test]
fn undo_waits_for_a_lull_at_work_and_undoes_all_devices() {
    let Some(world) = World::new("undo all", 1) else { return };
    world.run(&["ip", "link", "add", "vc", "type", "veth", "peer", "name", "vd"]);
    world.run(&["ethtool", "-K", "vc", "gro", "on"]);
    world.run(&["ip", "link", "set", "vc", "up"]);
    world.ok("apply va --mode defer50");
    world.ok("apply vc --mode suspend20");
    assert!(world.ok("undo --all --dry-run").contains("would set"));
    // A lull that works on a device holds its lock; meanwhile the state directory shows which file that is.
    let mut holder = world.start("apply va --mode suspend20 --watch");
    holder.wait_for("watching");
    let lock = fs::read_dir(&world.state).unwrap().flatten().map(|it| it.path());
    let lock = lock.into_iter().find(|path| path.extension().is_some_and(|it| it == "lock")).unwrap();
    world.refused("undo va", &["stays until"]);
    holder.signal("-KILL");
    holder.end();
    let mut worker = holds(&lock);
    let mut undo = world.start("undo --all");
    let line = undo.wait_for("waiting for another lull");
    assert!(line.contains(&worker.id().to_string()), "{line}");
    drop(worker.stdin.take());
    assert!(worker.wait().unwrap().success());
    assert_eq!(undo.end().0, Some(0));
    assert_eq!((world.values(), world.raw_of("vc")[0].values()), (vec![BASE], BASE));
    assert_eq!(world.state_file(), None);
    assert!(world.ok("undo --all").contains("nothing was applied"));
    // A command that prints JSON also prints its errors as JSON.
    let output = world.lull("undo nix --json");
    let said: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(output.status.code() == Some(2) && said["error"].as_str().unwrap().contains("'nix'"), "{said}");
}

#[test]
fn an_undo_that_is_told_to_end_while_it_waits_changes_nothing() {
    let Some(world) = World::new("told to end", 1) else { return };
    world.ok("apply va --mode defer50");
    let mut holder = world.start("apply va --mode defer50 --watch");
    holder.wait_for("watching");
    let lock = fs::read_dir(&world.state).unwrap().flatten().map(|it| it.path());
    let lock = lock.into_iter().find(|path| path.extension().is_some_and(|it| it == "lock")).unwrap();
    holder.signal("-KILL");
    holder.end();
    let mut worker = holds(&lock);
    let mut undo = world.start("undo va");
    undo.wait_for("waiting for another lull");
    undo.signal("-INT");
    drop(worker.stdin.take());
    let (status, said) = undo.end();
    assert_eq!((status, world.values()), (Some(2), vec![DEFER50]), "{said}");
    assert!(worker.wait().unwrap().success());
    world.ok("undo va");
}

/// A process that holds a lock until its standard input ends.
fn holds(lock: &Path) -> Child {
    let take = "import fcntl, os, sys\nfile = open(sys.argv[1], 'w')\nfcntl.flock(file, fcntl.LOCK_EX)\n\
                file.write(str(os.getpid()))\nfile.flush()\nprint('held', flush=True)\nsys.stdin.read()";
    let mut holder = Command::new("python3");
    holder.args(["-c", take]).arg(lock).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut holder = holder.spawn().unwrap();
    assert_eq!(lines_of(&mut holder).next().unwrap().unwrap(), "held");
    holder
}

/// Runs lull in the far namespace of a world.
fn far(world: &World, arguments: &str) -> String {
    let words = ["netns", "exec", &world.far, env!("CARGO_BIN_EXE_lull")];
    let mut command = Command::new("ip");
    let output = command.args(words).args(arguments.split(' ')).env("LULL_STATE_DIR", &world.state).output().unwrap();
    assert!(output.status.success(), "lull {arguments}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn undo_all_says_what_other_namespaces_have_and_forgets_what_is_gone() {
    let Some(world) = World::new("undo all elsewhere", 1) else { return };
    world.ok("apply va --mode defer50");
    let said = far(&world, "undo --all");
    let remedy = format!("ip netns exec {} lull undo va", world.near);
    assert!(said.contains("defer50") && said.contains(&remedy), "{said}");
    assert!(said.contains("nothing was applied to a device of this network namespace"), "{said}");
    let json: serde_json::Value = serde_json::from_str(&far(&world, "undo --all --json")).unwrap();
    let entry = (&json[0]["device"], &json[0]["elsewhere"], &json[0]["remedy"]);
    assert_eq!(entry, (&"va".into(), &"namespace".into(), &remedy.into()), "{json}");
    assert_eq!(world.values()[0].0, 100, "it is said, not done");
    // This device is gone from a namespace that still exists.
    world.run(&["ip", "link", "del", "va"]);
    let said = far(&world, "undo --all --dry-run");
    if said.contains("outside of any container") {
        println!("SKIP: undo all elsewhere: not every process can be looked into here");
        return;
    }
    assert!(said.contains("would forget") && world.state_file().is_some(), "{said}");
    let said = far(&world, "undo --all");
    assert!(said.contains("forgot") && said.contains("is gone"), "{said}");
    assert_eq!(world.state_file(), None);
    // This whole namespace is gone; the kernel takes a moment to remove it.
    world.make_pair(1);
    world.ok("apply va --mode defer50");
    assert!(Command::new("ip").args(["netns", "del", &world.near]).status().unwrap().success());
    let begun = Instant::now();
    while world.state_file().is_some() {
        assert!(begun.elapsed() < Duration::from_secs(60), "{}", far(&world, "undo --all --dry-run"));
        far(&world, "undo --all");
    }
}

#[test]
fn a_device_of_the_same_name_and_index_in_the_sysfs_of_another_namespace_is_not_taken_for_this_one() {
    let Some(world) = World::new("two sysfs", 1) else { return };
    for namespace in [&world.near, &world.far] {
        let make = ["link", "add", "vc", "index", "77", "type", "veth", "peer", "name", "vd"];
        assert!(Command::new("ip").args(["-n", namespace]).args(make).status().unwrap().success());
        let exec = ["netns", "exec", namespace, "ethtool", "-K", "vc", "gro", "on"];
        assert!(Command::new("ip").args(exec).status().unwrap().success());
        assert!(Command::new("ip").args(["-n", namespace, "link", "set", "vc", "up"]).status().unwrap().success());
    }
    world.ok("apply vc --mode defer50");
    // This runs in the far namespace with the near one's /sys.
    let enter = format!("--net=/run/netns/{}", world.far);
    let said = world.run(&["nsenter", &enter, env!("CARGO_BIN_EXE_lull"), "undo", "vc"]);
    assert!(said.contains("nothing was applied to vc"), "{said}");
    assert!(world.ok("undo vc").contains("gro-flush-timeout 50us -> 0"));
}

#[test]
fn a_full_disk_for_the_state_file_changes_nothing() {
    let Some(world) = World::new("full disk", 2) else { return };
    fs::create_dir_all(&world.state).unwrap();
    // This runs in a mount namespace of its own, which `ip netns exec` makes.
    let full = format!(
        "mount -t tmpfs -o size=4k none {0} && head -c 4096 /dev/zero > {0}/full && {1} apply va --mode defer50",
        world.state.display(),
        env!("CARGO_BIN_EXE_lull")
    );
    let output = world.command(&["sh", "-c", &full]).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("No space left") && said.contains("--state-dir"), "{said}");
    assert_eq!(world.values(), [BASE, BASE]);
}

#[test]
fn killed_at_any_of_its_writes_an_apply_can_be_undone() {
    let works = Command::new("strace").args(["-e", "trace=none", "true"]).output();
    if !works.is_ok_and(|output| output.status.success()) {
        println!("SKIP: killed anywhere: strace is not installed, or may not trace");
        return;
    }
    let Some(world) = World::new("killed anywhere", 2) else { return };
    world.set_raw(world.raw()[1].id, &["defer=7", "gro=30000", "suspend=5000000"]);
    let before = world.values();
    let mut changed_when_killed = false;
    // Netlink messages are written in pieces (writev); the state file is written, synced and renamed; the lock is
    // unlinked at the end.
    for call in ["writev", "write", "fsync", "/^rename", "/^unlink"] {
        for nth in 1.. {
            let (trace, inject) = (format!("trace={call}"), format!("inject={call}:signal=KILL:when={nth}"));
            let strace = ["strace", "-qq", "-o", "/dev/null", "-e", &trace, "-e", &inject];
            let lull = [env!("CARGO_BIN_EXE_lull"), "apply", "va", "--mode", "suspend20"];
            let arguments = [&strace[..], &lull].concat();
            let output = world.command(&arguments).output().unwrap();
            if !output.status.success() {
                assert!(nth < 200, "it never came to its end");
                changed_when_killed |= world.values() != before;
            }
            world.ok("undo va");
            assert_eq!(world.values(), before, "killed at {call} {nth}");
            assert_eq!(world.state_file(), None);
            if output.status.success() {
                break;
            }
        }
    }
    assert!(changed_when_killed, "some of the kills came between two changes");
}
