//! `lull show`, `apply`, `diff` and `undo` on a veth in a network namespace. What they did is read back by raw netlink.

mod kernel;

use std::fs;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use kernel::{BASE, DEFER50, SUSPEND20, THREADED, World, lines_of, script};

#[test]
fn what_was_in_force_comes_back_to_the_bit() {
    let Some(world) = World::new("apply and undo", 2) else { return };
    // Device-wide values and settings of a queue's own, so that "back" is neither zero nor the device's.
    world.run(&["sh", "-c", "echo 3 > /sys/class/net/va/napi_defer_hard_irqs"]);
    world.run(&["sh", "-c", "echo 11000 > /sys/class/net/va/gro_flush_timeout"]);
    world.set_raw(world.raw()[1].id, &["defer=7", "gro=30000", "suspend=5000000"]);
    let (before, device_wide) = (world.raw(), world.device_wide());
    assert_eq!(world.values(), [(3, 11_000, 0, 0), (7, 30_000, 5_000_000, 0)]);

    let said = world.ok("apply va --mode suspend20");
    assert!(said.contains("defer-hard-irqs 7 -> 100") && said.contains("lull undo va"), "{said}");
    assert_eq!(world.values(), [SUSPEND20, SUSPEND20]);
    assert_eq!(world.device_wide(), device_wide);
    let shown = world.ok("show va");
    assert!(shown.contains("suspend20 was applied") && shown.contains("no program prefers"), "{shown}");
    // The program's half is missing, so the mode's name must not stand where the mode in force is named.
    assert!(shown.lines().filter(|line| line.trim_start().starts_with(['0', '1'])).all(|it| it.ends_with("defer20")));

    let said = world.ok("undo va");
    assert!(said.contains("gro-flush-timeout 20us -> 30us"), "{said}");
    assert_eq!(world.raw(), before);
    assert_eq!(world.device_wide(), device_wide);
    assert_eq!(world.state_file(), None);
    assert!(world.ok("undo va").contains("nothing was applied"));
    assert_eq!(world.raw(), before);
}

#[test]
fn twice_is_once_and_the_original_survives_another_mode() {
    let Some(world) = World::new("apply twice", 2) else { return };
    world.set_raw(world.raw()[0].id, &["defer=7"]);
    let before = world.raw();
    world.ok("apply va --mode suspend20");
    let state = fs::read_to_string(world.state_file().unwrap()).unwrap();
    assert!(world.ok("apply va --mode suspend20").contains("already"));
    assert_eq!(fs::read_to_string(world.state_file().unwrap()).unwrap(), state);
    world.ok("apply va --mode defer50 --gro-flush-timeout 70us --defer-hard-irqs 9 --irq-suspend-timeout 1ms");
    assert_eq!(world.values(), [(9, 70_000, 1_000_000, 0); 2]);
    world.ok("apply va --mode threaded");
    assert_eq!(world.values(), [THREADED, THREADED]);
    world.ok("undo va");
    assert_eq!(world.raw(), before);
}

#[test]
fn other_queues_are_untouched() {
    let Some(world) = World::new("queues", 3) else { return };
    world.ok("apply va --mode defer50 --queues 1");
    assert_eq!(world.values(), [BASE, DEFER50, BASE]);
    world.ok("apply va --mode suspend20 --queues 1-2");
    assert_eq!(world.values(), [BASE, SUSPEND20, SUSPEND20]);
    world.set_raw(world.raw()[0].id, &["defer=5"]);
    world.ok("undo va");
    assert_eq!(world.values(), [(5, 0, 0, 0), BASE, BASE], "a queue that was never named keeps what others set");
}

#[test]
fn dry_runs_and_diffs_change_nothing_and_print_json() {
    let Some(world) = World::new("dry runs", 2) else { return };
    let before = world.raw();
    for arguments in ["diff va --mode suspend20 --json", "apply va --mode suspend20 --dry-run --json"] {
        let changes: serde_json::Value = serde_json::from_str(&world.ok(arguments)).unwrap();
        assert_eq!(changes.as_array().unwrap().len(), 6);
        assert_eq!(changes[1]["setting"], "gro-flush-timeout");
        assert_eq!((&changes[1]["from"], &changes[1]["to"]), (&0.into(), &20_000.into()));
    }
    assert_eq!(world.raw(), before);
    assert_eq!(world.state_file(), None);
    let applied: serde_json::Value = serde_json::from_str(&world.ok("apply va --mode suspend20 --json")).unwrap();
    assert_eq!(applied["changes"].as_array().unwrap().len(), 6);
    assert!(world.ok("undo va --dry-run").contains("would set"));
    assert_eq!(world.values(), [SUSPEND20, SUSPEND20]);
    let shown: serde_json::Value = serde_json::from_str(&world.ok("show va --json")).unwrap();
    assert_eq!(shown[0]["napis"][1]["settings"]["irq_suspend_timeout_ns"], 20_000_000);
    assert_eq!(shown[0]["napis"][0]["applied"], "suspend20");
    let undone: serde_json::Value = serde_json::from_str(&world.ok("undo va --json")).unwrap();
    assert_eq!(undone["changes"].as_array().unwrap().len(), 6);
    assert_eq!(world.raw(), before);
}

#[test]
fn threads_get_their_cpus_and_policy_and_give_them_back() {
    let Some(world) = World::new("threads", 2) else { return };
    // A queue that had a thread of its own before, bound by somebody else.
    world.set_raw(world.raw()[0].id, &["threaded=1"]);
    let pid = world.raw()[0].pid.to_string();
    world.run(&["taskset", "-pc", "0", &pid]);
    world.run(&["chrt", "-r", "-p", "3", &pid]);
    let policies = |world: &World| {
        let of = |raw: &kernel::Raw| world.run(&["sh", "-c", &format!("chrt -p {0}; taskset -pc {0}", raw.pid)]);
        world.raw().iter().filter(|raw| raw.threaded == 1).map(of).collect::<Vec<_>>()
    };
    let before = policies(&world);
    world.ok("apply va --mode threaded --threads-cpus 0 --thread-policy fifo:50");
    assert_eq!(world.values(), [THREADED, THREADED]);
    let now = policies(&world);
    assert!(now.iter().all(|it| it.contains("SCHED_FIFO") && it.contains("priority: 50")), "{now:?}");
    assert!(now.iter().all(|it| it.trim_end().ends_with("affinity list: 0")), "{now:?}");
    assert!(world.ok("apply va --mode threaded --threads-cpus 0 --thread-policy fifo:50").contains("already"));
    assert!(world.ok("show va").contains("cpu 0 fifo:50"));
    world.ok("undo va");
    assert_eq!(world.values(), [THREADED, BASE]);
    assert_eq!(policies(&world), before);
    // More CPUs than threads: one of them would be left out without a word.
    for command in ["apply", "diff"] {
        let two = "--mode threaded --threads-cpus 0,0";
        world.refused(&format!("{command} va --queues 1 {two}"), &["2 CPUs", "1 NAPI threads", "give 1"]);
        world.refused(&format!("{command} va {two},0"), &["3 CPUs", "2 NAPI threads"]);
    }
    assert_eq!(world.values(), [THREADED, BASE]);
    // Queues that go away under a watcher do not end it.
    let mut watcher = world.start("apply va --mode threaded --threads-cpus 0,0 --watch --read-back 0.1");
    watcher.wait_for("watching");
    world.run(&["ethtool", "-L", "va", "rx", "1"]);
    world.run(&["ethtool", "-L", "va", "rx", "2"]);
    watcher.wait_for("again");
    world.wait_for(&[THREADED, THREADED]);
    watcher.signal("-TERM");
    assert_eq!(watcher.end().0, Some(0));
}

#[test]
fn the_supervisor_of_run_is_called_lull_in_lists_of_processes() {
    let Some(world) = World::new("supervisor's name", 1) else { return };
    let listed = world.ok("run --dev va --mode defer50 -- ps -eo ppid=,comm=,args=");
    let of_world =
        listed.lines().filter(|line| line.contains("supervise") && line.contains(world.state.to_str().unwrap()));
    let names: Vec<&str> = of_world.filter_map(|line| line.split_whitespace().nth(1)).collect();
    assert_eq!(names, ["lull"], "{listed}");
}

#[test]
fn single_settings_of_single_napis_are_set_and_given_back() {
    let Some(world) = World::new("set", 2) else { return };
    world.set_raw(world.raw()[1].id, &["defer=7", "gro=30000", "suspend=5000000"]);
    let before = world.values();
    let id = world.raw()[1].id.to_string();
    let said = world.ok("set va --queue 0 gro-flush-timeout=50us defer-hard-irqs=3 --dry-run");
    assert!(said.contains("would set queue 0") && world.values() == before, "{said}");
    world.ok("set va --queue 0 gro-flush-timeout=50us defer-hard-irqs=3");
    assert_eq!(world.values(), [(3, 50_000, 0, 0), before[1]]);
    let changes: serde_json::Value =
        serde_json::from_str(&world.ok(&format!("set va --napi {id} irq-suspend-timeout=20ms --json"))).unwrap();
    assert_eq!((&changes[0]["queue"], &changes[0]["to"]), (&"1".into(), &20_000_000.into()), "{changes}");
    assert_eq!(world.values(), [(3, 50_000, 0, 0), (7, 30_000, 20_000_000, 0)]);

    // A thread, where it runs and how; it is shown with its number.
    world.ok("set va threaded=on thread-cpus=0 thread-policy=fifo:30");
    assert_eq!(world.values(), [(3, 50_000, 0, 1), (7, 30_000, 20_000_000, 1)]);
    let shown = world.ok("show va");
    for raw in world.raw() {
        assert!(shown.contains(&format!("{} cpu 0 fifo:30", raw.pid)), "{shown}");
    }
    assert!(shown.contains("threaded=on thread-cpus=0 thread-policy=fifo:30 was applied"), "{shown}");
    world.ok("set va --queue 1 thread-policy=other:-5");
    assert!(world.ok("show va").contains(&format!("{} cpu 0 other:-5", world.raw()[1].pid)));
    assert!(world.ok("set va --queue 1 thread-policy=other:-5").contains("already"));
    world.ok("set va --queue 0 threaded=off");
    assert_eq!(world.values()[0], (3, 50_000, 0, 0));

    // On top of a mode, and all of it is given back at once.
    world.ok("apply va --mode suspend20");
    world.ok("set va defer-hard-irqs=5");
    assert!(world.ok("show va").contains("suspend20 with defer-hard-irqs=5 was applied"));
    world.ok("undo va");
    assert_eq!((world.values(), world.state_file()), (before.clone(), None));

    // Refused before anything is changed.
    let refused = |arguments: &str, words: &[&str]| world.refused(&format!("set va {arguments}"), words);
    refused("threaded=maybe", &["'maybe'", "off|on|busy-poll"]);
    refused("gro-flush-timeout=1m", &["'1m'", "20ms"]);
    refused("gro-flush-timeout=11s", &["gro-flush-timeout", "10s"]);
    refused("colour=red", &["'colour=red'", "gro-flush-timeout=20us"]);
    refused("defer-hard-irqs=2147483648", &["defer_hard_irqs", "2147483647"]);
    refused("defer-hard-irqs=1 defer-hard-irqs=2", &["given twice"]);
    refused("--queue 0,7 defer-hard-irqs=1", &["queue 7"]);
    refused("--napi 1 defer-hard-irqs=1", &["no NAPI 1", &id]);
    refused("thread-cpus=0", &["thread-cpus=0", "no thread", "threaded=on"]);
    refused("threaded=on thread-cpus=4000", &["CPU 4000"]);
    refused("threaded=on thread-cpus=0 thread-policy=deadline:1ms/2ms", &["one of the two"]);
    assert_eq!((world.values(), world.state_file()), (before, None));
}

#[test]
fn a_failure_part_way_gives_everything_back() {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let limit = fs::read_to_string("/proc/sys/kernel/sched_rt_runtime_us").unwrap_or_default();
    if cpus > 16 || limit.trim() == "-1" {
        println!("SKIP: failure part-way: deadlines are not limited here, or take too many queues");
        return;
    }
    // Each thread asks for 60 % of a CPU, so the kernel refuses one of the later queues.
    let queues = 2 * cpus;
    let Some(world) = World::new("failure part-way", queues) else { return };
    world.set_raw(world.raw()[0].id, &["defer=7", "gro=30000", "suspend=5000000"]);
    let before = world.raw();
    world.refused(
        "apply va --mode threaded --thread-policy deadline:600us/1ms",
        &["va queue", "deadlines of all threads"],
    );
    assert_eq!(world.raw(), before);
    assert_eq!(world.state_file(), None);
    // Over an earlier apply, what comes back is that apply, with its originals still known.
    world.ok("apply va --mode suspend20");
    let (applied, state) = (world.raw(), fs::read_to_string(world.state_file().unwrap()).unwrap());
    world.refused("apply va --mode threaded --thread-policy deadline:600us/1ms", &["deadlines of all threads"]);
    assert_eq!(world.raw(), applied);
    assert_eq!(fs::read_to_string(world.state_file().unwrap()).unwrap(), state);
    world.ok("undo va");
    assert_eq!(world.raw(), before);
}

#[test]
fn a_watcher_applies_again_after_a_link_flap_and_undoes_at_its_end() {
    let Some(world) = World::new("watch", 2) else { return };
    let ids = |world: &World| world.raw().iter().map(|raw| raw.id).collect::<Vec<_>>();
    let before = ids(&world);
    let mut watcher = world.start("apply va --mode suspend20 --watch");
    watcher.wait_for("watching");
    assert_eq!(world.values(), [SUSPEND20, SUSPEND20]);
    world.run(&["ip", "link", "set", "va", "down"]);
    world.run(&["ip", "link", "set", "va", "up"]);
    let line = watcher.wait_for("again");
    assert!(line.contains("queue 0") || line.contains("queue 1"), "{line}");
    world.wait_for(&[SUSPEND20, SUSPEND20]);
    assert_ne!(ids(&world), before, "the flap gave new ids");
    // Somebody else's hand on a setting notifies nobody: the read-back finds it.
    world.set_raw(world.raw()[0].id, &["gro=999"]);
    watcher.wait_for("gro-flush-timeout 999ns -> 20us");
    assert_eq!(world.values(), [SUSPEND20, SUSPEND20]);
    // A queue goes and comes back.
    world.run(&["ethtool", "-L", "va", "rx", "1"]);
    world.run(&["ethtool", "-L", "va", "rx", "2"]);
    world.wait_for(&[SUSPEND20, SUSPEND20]);
    watcher.signal("-TERM");
    assert_eq!(watcher.end().0, Some(0));
    assert_eq!(world.values(), [BASE, BASE]);
    assert_eq!(world.state_file(), None);
}

#[test]
fn a_service_manager_is_told_when_the_mode_is_applied() {
    let Some(world) = World::new("notify", 1) else { return };
    fs::create_dir_all(&world.state).unwrap();
    let path = world.state.join("notify");
    let manager = std::os::unix::net::UnixDatagram::bind(&path).unwrap();
    let arguments = [env!("CARGO_BIN_EXE_lull"), "apply", "va", "--mode", "defer50", "--watch"];
    let mut watcher = world.command(&arguments).env("NOTIFY_SOCKET", &path).stderr(Stdio::null()).spawn().unwrap();
    let mut told = [0; 64];
    let length = manager.recv(&mut told).unwrap();
    assert_eq!(&told[..length], b"READY=1");
    assert_eq!(world.values(), [DEFER50]);
    assert!(Command::new("kill").arg(watcher.id().to_string()).status().unwrap().success());
    assert!(watcher.wait().unwrap().success());
    assert_eq!(world.values(), [BASE]);
}

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
    // Queues that show a NAPI get back what they had and are not forgotten before.
    world.ok("apply va --mode suspend20");
    world.ok("undo va --forget");
    assert_eq!(world.values(), before[..1]);
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
            // Nothing to give back to: said, and kept for later.
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
fn a_device_that_vanishes_ends_the_watcher_and_leaves_nothing_behind() {
    let Some(world) = World::new("vanishing device", 2) else { return };
    let mut watcher = world.start("apply va --mode defer50 --watch");
    watcher.wait_for("watching");
    world.make_pair(2);
    let (status, said) = watcher.end();
    assert_eq!(status, Some(2), "{said}");
    assert!(said.contains("no device 'va'"), "{said}");
    assert_eq!(world.values(), [BASE, BASE], "the device that took the name has nothing of it");
    assert_eq!(world.state_file(), None);
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
    assert!(world.raw_of("vx").iter().all(|raw| raw.values() == BASE));
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
    fs::write(&file, text).unwrap();
    world.make_pair(2);
    world.refused("undo va", &["another device", "lull undo va --forget"]);
    world.refused("apply va --mode base", &["another device", "lull undo va --forget"]);
    world.refused("run --dev va --mode base -- true", &["another device", "lull undo va --forget"]);
    assert!(world.ok("undo va --forget --dry-run").contains("would forget the state file of va: it is of another"));
    assert!(file.exists());
    assert!(world.ok("undo va --forget").contains("forgot the state file of va: it is of another device"));
    assert_eq!(world.values(), [BASE, BASE]);
    world.ok("apply va --mode defer50");
    world.ok("undo va");
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
    // Where /sys is that of another namespace, too.
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
    // Of the settings only this one survives the move; the original is not the mode's.
    assert!(said.contains("irq-suspend-timeout 20ms -> 5ms"), "{said}");
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
    // Somebody who works on a device holds its lock; the state directory shows which file that is while one does.
    let mut holder = world.start("apply va --mode suspend20 --watch");
    holder.wait_for("watching");
    let lock = fs::read_dir(&world.state).unwrap().flatten().map(|it| it.path());
    let lock = lock.into_iter().find(|path| path.extension().is_some_and(|it| it == "lock")).unwrap();
    world.refused("undo va", &["stays until"]);
    holder.signal("-KILL");
    holder.end();
    let take = "import fcntl, os, sys\nfile = open(sys.argv[1], 'w')\nfcntl.flock(file, fcntl.LOCK_EX)\n\
                file.write(str(os.getpid()))\nfile.flush()\nprint('held', flush=True)\nsys.stdin.read()";
    let mut worker = Command::new("python3");
    worker.args(["-c", take]).arg(&lock).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut worker = worker.spawn().unwrap();
    assert_eq!(lines_of(&mut worker).next().unwrap().unwrap(), "held");
    let mut undo = world.start("undo --all");
    let line = undo.wait_for("waiting for another lull");
    assert!(line.contains(&worker.id().to_string()), "{line}");
    drop(worker.stdin.take());
    assert!(worker.wait().unwrap().success());
    assert_eq!(undo.end().0, Some(0));
    assert_eq!((world.values(), world.raw_of("vc")[0].values()), (vec![BASE], BASE));
    assert_eq!(world.state_file(), None);
    assert!(world.ok("undo --all").contains("nothing was applied"));
    // A command that prints JSON fails in JSON.
    let output = world.lull("undo nix --json");
    let said: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(output.status.code() == Some(2) && said["error"].as_str().unwrap().contains("'nix'"), "{said}");
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
    // A device that is gone from a namespace that lives on.
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
    // A whole namespace that is gone; the kernel takes a moment to take it down.
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
    // With the near namespace's /sys, and in the far one.
    let enter = format!("--net=/run/netns/{}", world.far);
    let said = world.run(&["nsenter", &enter, env!("CARGO_BIN_EXE_lull"), "undo", "vc"]);
    assert!(said.contains("nothing was applied to vc"), "{said}");
    assert!(world.ok("undo vc").contains("gro-flush-timeout 50us -> 0"));
}

#[test]
fn bad_input_names_the_object_and_the_remedy_and_changes_nothing() {
    let Some(world) = World::new("bad input", 2) else { return };
    let before = world.raw();
    for command in ["apply", "diff"] {
        let refused = |arguments: &str, words: &[&str]| world.refused(&format!("{command} {arguments}"), words);
        refused("nix --mode base", &["'nix'", "va"]);
        refused("lo --mode base", &["lo", "NAPI"]);
        refused("va --mode fast", &["'fast'", "suspendX"]);
        refused("va --mode base --queues 2", &["queue 2", "0, 1"]);
        refused("va --mode base --queues a", &["'a'", "0,2-3"]);
        refused("va --mode defer20 --gro-flush-timeout 50", &["'50'", "50us"]);
        refused("va --mode defer20 --defer-hard-irqs 2147483648", &["defer_hard_irqs", "2147483647"]);
        refused("va --mode defer20 --defer-hard-irqs 99999999999", &["defer_hard_irqs", "2147483647"]);
        refused("va --mode defer20 --defer-hard-irqs x", &["'x'", "--defer-hard-irqs"]);
        refused("va --mode defer20 --gro-flush-timeout 11s", &["gro-flush-timeout of 11s", "10s at most"]);
        refused("va --mode suspend20 --irq-suspend-timeout 1h", &["'1h'", "20ms"]);
        refused("va --mode suspend20 --irq-suspend-timeout 3600s", &["irq-suspend-timeout", "10s at most"]);
        refused("va --mode base --threads-cpus 0", &["base", "threaded"]);
        refused("va --mode threaded --threads-cpus 4000", &["CPU 4000", "online"]);
        refused("va --mode threaded --thread-policy fifo:100", &["fifo:100", "fifo:99"]);
        refused(
            "va --mode threaded --threads-cpus 0 --thread-policy deadline:1ms/2ms",
            &["deadline", "one of the two"],
        );
    }
    world.refused("undo nix", &["'nix'", "va"]);
    world.refused("show nix", &["'nix'", "va"]);
    assert_eq!(world.raw(), before);
    assert_eq!(world.state_file(), None);
    // Without GRO a veth has no NAPI.
    world.run(&["ethtool", "-K", "va", "gro", "off"]);
    world.refused("apply va --mode base", &["va", "ethtool -K va gro on"]);
    assert!(world.ok("show va").contains("ethtool -K va gro on"));
}

#[test]
fn threads_that_busy_poll_are_refused_where_the_kernel_has_none() {
    let Some(world) = World::new("threaded-busy", 2) else { return };
    let output = world.lull("apply va --mode threaded-busy");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
    if (numbers.next(), numbers.next()) >= (Some(6), Some(19)) {
        assert!(output.status.success(), "{said}");
        assert_eq!(world.values(), [(0, 0, 0, 2), (0, 0, 0, 2)]);
        world.ok("undo va");
    } else {
        assert_eq!(output.status.code(), Some(2));
        assert!(said.contains("6.19") && said.contains(release.trim()), "{said}");
    }
    assert_eq!(world.values(), [BASE, BASE]);
    assert_eq!(world.state_file(), None);
}

#[test]
fn without_the_right_nothing_changes() {
    let Some(world) = World::new("no rights", 2) else { return };
    let unprivileged = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"];
    let lull = env!("CARGO_BIN_EXE_lull");
    let works = world.command(&[&unprivileged[..], &[lull, "--version"]].concat()).output();
    if !works.is_ok_and(|output| output.status.success()) {
        println!("SKIP: no rights: user 65534 cannot run {lull}");
        return;
    }
    let refused = |arguments: &[&str]| {
        let output = world.command(&[&unprivileged[..], &[lull], arguments].concat()).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains("as root") && said.lines().count() == 1, "{said}");
        said
    };
    fs::create_dir_all(&world.state).unwrap();
    // The supervisor of `run` meets the same refusal, and has nothing to say of it.
    let run = ["run", "--dev", "va", "--mode", "defer50", "--", "true"];
    // What is missing for a file is never the right to change a device.
    let said = refused(&run);
    assert!(said.contains("lock") && said.contains("--state-dir") && !said.contains("CAP_NET_ADMIN"), "{said}");
    assert!(Command::new("chmod").arg("777").arg(&world.state).status().unwrap().success());
    let said = refused(&["apply", "va", "--mode", "defer50"]);
    assert!(said.contains("va queue 0") && said.contains("CAP_NET_ADMIN"), "{said}");
    assert!(refused(&run).contains("va queue 0"));
    assert_eq!(world.values(), [BASE, BASE]);
    assert_eq!(world.state_file(), None);
}

#[test]
fn a_full_disk_for_the_state_file_changes_nothing() {
    let Some(world) = World::new("full disk", 2) else { return };
    fs::create_dir_all(&world.state).unwrap();
    // In a mount namespace of its own, which `ip netns exec` makes.
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
fn a_program_that_prefers_makes_the_mode_whole() {
    let Some(world) = World::new("programs", 1) else { return };
    world.ok("apply va --mode suspend20");
    for (usecs, mode) in [("0", "suspend20"), ("5", "custom")] {
        let arguments = [&script("epoll.py"), "10.99.0.1", "5000", usecs, "64", "1"];
        let mut program = world
            .command(&[&["python3"], &arguments[..]].concat())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = lines_of(&mut program);
        assert_eq!(lines.next().unwrap().unwrap(), "ready");
        // Attached, and without a connection: it is named, though no queue is its yet.
        let idle = world.ok("show va");
        assert!(idle.contains(&format!("(pid {}, epoll", program.id())) && idle.contains("no connection"), "{idle}");
        let send =
            "import socket; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.sendto(b'x', ('10.99.0.1', 5000))";
        assert!(
            Command::new("ip").args(["netns", "exec", &world.far, "python3", "-c", send]).status().unwrap().success()
        );
        assert_eq!(lines.next().unwrap().unwrap(), "heard");
        let shown: serde_json::Value = serde_json::from_str(&world.ok("show va --json")).unwrap();
        let napi = &shown[0]["napis"][0];
        assert_eq!(napi["mode"], mode, "{napi}");
        assert_eq!(napi["programs"][0]["pid"], program.id());
        assert_eq!(napi["programs"][0]["sockets"], 1);
        let idle = shown[0]["idle_programs"].as_array().unwrap();
        assert!(idle.iter().all(|it| it["pid"] != program.id()), "{idle:?}");
        drop(program.stdin.take());
        assert!(program.wait().unwrap().success());
    }
    let shown: serde_json::Value = serde_json::from_str(&world.ok("show va --json")).unwrap();
    assert_eq!(shown[0]["napis"][0]["mode"], "defer20");
    // The other half is named where it is in force, and how to apply it where it is not.
    let mut program = Command::new("python3");
    let program = program.args([&script("epoll.py"), "127.0.0.1", "0", "0", "0", "0"]);
    let mut program = program.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    assert_eq!(lines_of(&mut program).next().unwrap().unwrap(), "ready");
    let said = |mode: &str| {
        let output = world.lull(&format!("attach --pid {} --mode {mode} --dry-run", program.id()));
        String::from_utf8(output.stderr).unwrap()
    };
    assert!(said("suspend20").contains("is in force on va"), "{}", said("suspend20"));
    assert!(said("suspend50").contains("lull apply DEV --mode suspend50"), "{}", said("suspend50"));
    drop(program.stdin.take());
    assert!(program.wait().unwrap().success());
}

#[test]
fn prepare_changes_the_named_device_and_gives_it_back() {
    let Some(world) = World::new("prepare", 2) else { return };
    world.run(&["sh", "-c", "echo 1 > /sys/class/net/va/queues/rx-0/rps_cpus"]);
    let facts = |world: &World| {
        let rps = world.run(&["sh", "-c", "cat /sys/class/net/va/queues/rx-0/rps_cpus"]);
        (rps, world.run(&["ethtool", "-l", "va"]))
    };
    let before = facts(&world);
    fs::create_dir_all(&world.state).unwrap();
    let profile = world.state.join("profile.toml");
    fs::write(
        &profile,
        "[device]\nrx-queues = 1\nrx-ring = 64\nadaptive-rx = false\nrps-cpus = \"\"\nirq-cpus = \"0\"\n",
    )
    .unwrap();
    let profile = profile.to_str().unwrap();
    assert!(world.ok(&format!("prepare va --dry-run --profile {profile}")).contains("would set  rx queues: 2 -> 1"));
    assert_eq!(facts(&world), before);
    let said = world.ok(&format!("prepare va --profile {profile}"));
    for line in ["set        rx queues: 2 -> 1", "lacking    rx ring", "lacking    adaptive-rx", "--undo"] {
        assert!(said.contains(line), "{said}");
    }
    let now = facts(&world);
    assert!(now.0.trim().chars().all(|c| c == '0' || c == ','), "{now:?}");
    assert_eq!(world.raw().len(), 1);
    // The modes and the preparation are undone apart from each other.
    world.ok("apply va --mode defer50");
    world.ok("undo va");
    assert_eq!(facts(&world), now);
    world.ok("prepare va --undo");
    assert_eq!(facts(&world), before);
    assert_eq!(world.state_file(), None);
    assert!(world.ok("prepare va --undo").contains("nothing was prepared"));
    assert!(world.ok("prepare --show-profile").contains("irq-cpus"));
    world.refused("prepare nix", &["'nix'", "va"]);
    world.refused("prepare va --profile /no/such", &["/no/such"]);
}

#[test]
fn a_watcher_does_again_what_was_prepared() {
    let Some(world) = World::new("prepared and watched", 1) else { return };
    fs::create_dir_all(&world.state).unwrap();
    let profile = world.state.join("profile.toml");
    fs::write(&profile, "[device]\nrps-cpus = \"0\"\n").unwrap();
    world.ok(&format!("prepare va --profile {}", profile.display()));
    let mut watcher = world.start("apply va --mode defer50 --watch --read-back 0.1");
    watcher.wait_for("watching");
    // As a driver does that sets its queues up anew.
    world.run(&["sh", "-c", "echo 0 > /sys/class/net/va/queues/rx-0/rps_cpus"]);
    let line = watcher.wait_for("again");
    assert!(line.contains("RPS of rx-0") && line.contains("-> 1"), "{line}");
    watcher.signal("-TERM");
    assert_eq!(watcher.end().0, Some(0));
    world.ok("prepare va --undo");
    let now = world.run(&["cat", "/sys/class/net/va/queues/rx-0/rps_cpus"]);
    assert!(now.trim().chars().all(|c| c == '0' || c == ','), "{now}");
}

#[test]
fn the_doctor_finds_what_is_wrong_and_says_so_in_its_status() {
    let Some(world) = World::new("doctor", 1) else { return };
    let examine = |arguments: &str| {
        let output = world.lull(&format!("doctor va {arguments} --json"));
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        (output.status.code(), report)
    };
    let verdict = |report: &serde_json::Value, what: &str| {
        let checks = report["checks"].as_array().unwrap();
        let check = checks.iter().find(|check| check["what"].as_str().unwrap().contains(what));
        check.unwrap_or_else(|| panic!("no check of {what}: {report}"))["verdict"].as_str().unwrap().to_owned()
    };
    let possible = |report: &serde_json::Value, mode: &str| {
        let modes = report["modes"].as_array().unwrap();
        modes.iter().find(|it| it["mode"] == mode).unwrap()["possible"].as_bool().unwrap()
    };
    let (_, report) = examine("");
    assert_eq!(verdict(&report, "NAPIs of va"), "ok");
    assert!(possible(&report, "suspend20") && possible(&report, "base"));

    // Two programs that prefer busy polling on one NAPI.
    let start = |port: &str| {
        let arguments = [&script("epoll.py"), "10.99.0.1", port, "0", "64", "1"];
        let mut program = world.command(&[&["python3"], &arguments[..]].concat());
        let mut program = program.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = lines_of(&mut program);
        assert_eq!(lines.next().unwrap().unwrap(), "ready");
        let send = format!(
            "import socket; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.sendto(b'x', ('10.99.0.1', {port}))"
        );
        let sent = Command::new("ip").args(["netns", "exec", &world.far, "python3", "-c", &send]).status();
        assert!(sent.unwrap().success());
        assert_eq!(lines.next().unwrap().unwrap(), "heard");
        program
    };
    // A server that has heard nothing yet is idle, not wrong.
    let mut idle = world.command(&["python3", &script("epoll.py"), "10.99.0.1", "5000", "0", "64", "1"]);
    let mut idle = idle.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    assert_eq!(lines_of(&mut idle).next().unwrap().unwrap(), "ready");
    let (_, report) = examine(&format!("--pid {}", idle.id()));
    assert_eq!(verdict(&report, "NAPI ids of"), "unknown");
    drop(idle.stdin.take());
    assert!(idle.wait().unwrap().success());

    let mut first = start("5001");
    let (_, report) = examine(&format!("--pid {}", first.id()));
    assert_eq!(verdict(&report, "programs on va"), "ok");
    for what in ["epoll of", "NAPI ids of", "queues of python3", "workers of", "timeouts of"] {
        assert_eq!(verdict(&report, what), "ok", "{what}");
    }
    let mut second = start("5002");
    let (status, report) = examine("");
    assert_eq!((status, verdict(&report, "programs on va").as_str()), (Some(1), "wrong"));
    for program in [&mut first, &mut second] {
        drop(program.stdin.take());
        assert!(program.wait().unwrap().success());
    }

    world.run(&["ethtool", "-K", "va", "gro", "off"]);
    let (status, report) = examine("");
    assert_eq!(status, Some(1));
    assert_eq!((verdict(&report, "NAPIs of va"), verdict(&report, "GRO of va")), ("wrong".into(), "wrong".into()));
    assert!(!possible(&report, "base"));
    let said = String::from_utf8(world.lull("doctor va").stdout).unwrap();
    assert!(said.contains("-> ") && !said.contains("as it says"), "{said}");
    // One for all modes, and on older kernels one for threads that busy poll.
    assert!(said.matches("no   ").count() <= 2, "{said}");
    world.refused("doctor nix", &["'nix'", "va"]);
    world.refused("doctor va --pid 2147483647", &["process 2147483647"]);
}

#[test]
fn the_doctor_counts_calls_with_timeout_zero() {
    let Some(world) = World::new("zero timeouts", 1) else { return };
    let spin = "import select\ne = select.epoll()\nprint('ready', flush=True)\nwhile True: e.poll(0)";
    let wait = "import select\ne = select.epoll()\nprint('ready', flush=True)\nwhile True: e.poll(0.02)";
    // epoll_pwait2, by its number on every newer architecture and x86-64.
    let pwait2 = |nanoseconds: u32| {
        format!(
            "import ctypes, select, sys\ne = select.epoll()\ncall = ctypes.CDLL(None).syscall\n\
             events, timeout = ctypes.create_string_buffer(16), (ctypes.c_int64 * 2)(0, {nanoseconds})\n\
             wait = lambda: call(441, e.fileno(), events, 1, timeout, None, 8)\n\
             wait() == 0 or sys.exit('no epoll_pwait2')\nprint('ready', flush=True)\n\
             while True: wait()"
        )
    };
    // A timeout of 1 ms that passes each time is no loop of zeros.
    let (spin2, wait2) = (&pwait2(0), &pwait2(1_000_000));
    for (program, wanted) in [(spin, "wrong"), (wait, "ok"), (spin2, "wrong"), (wait2, "ok")] {
        let is_pwait2 = program.contains("441");
        let mut program = Command::new("python3").args(["-c", program]).stdout(Stdio::piped()).spawn().unwrap();
        assert_eq!(lines_of(&mut program).next().unwrap().unwrap(), "ready");
        // In a mount namespace of its own, which `ip netns exec` makes.
        let mount = "mount -t tracefs none /sys/kernel/tracing && test -e /sys/kernel/tracing/events/syscalls";
        let examine =
            format!("{mount} || exit 99; {} doctor --pid {} --json", env!("CARGO_BIN_EXE_lull"), program.id());
        let output = world.command(&["sh", "-c", &examine]).output().unwrap();
        program.kill().unwrap();
        program.wait().unwrap();
        if output.status.code() == Some(99) {
            println!("SKIP: zero timeouts: this kernel has no tracepoints of system calls");
            return;
        }
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let checks = report["checks"].as_array().unwrap();
        let check = checks.iter().find(|check| check["what"].as_str().unwrap().starts_with("timeouts")).unwrap();
        assert_eq!(check["verdict"], wanted, "{check}");
        assert_eq!(
            check["reason"].as_str().unwrap().contains("epoll_pwait2"),
            wanted == "wrong" && is_pwait2,
            "{check}"
        );
    }
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

#[test]
fn in_a_user_namespace_the_doctor_says_no_and_apply_changes_nothing() {
    let Some(world) = World::new("user namespace", 1) else { return };
    let inside = |arguments: &str| {
        let lull = format!("{} {arguments}", env!("CARGO_BIN_EXE_lull"));
        world.command(&["unshare", "-Ur", "sh", "-c", &lull]).output().unwrap()
    };
    if !world.command(&["unshare", "-Ur", "true"]).output().unwrap().status.success() {
        println!("SKIP: user namespace: none here (unshare -Ur)");
        return;
    }
    let output = inside("doctor va");
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(said.contains("WRONG    rights: CAP_NET_ADMIN in a user namespace of its own"), "{said}");
    assert_eq!(output.status.code(), Some(1));
    let output = inside("apply va --mode defer50");
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("CAP_NET_ADMIN in the initial user namespace"), "{said}");
    assert_eq!(world.values(), [BASE]);
    assert_eq!(world.state_file(), None);
}
