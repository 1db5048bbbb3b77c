//! `lull show`, `apply`, `diff` and `undo` on a veth in a network namespace. The settings are read back by raw netlink.

mod kernel;

use std::fs;
use std::process::{Command, Stdio};

use kernel::{BASE, DEFER50, SUSPEND20, THREADED, World, lines_of, script};

#[test]
fn what_was_in_force_comes_back_to_the_bit() {
    let Some(world) = World::new("apply and undo", 2) else { return };
    // The device and the queue have former settings, so that "restored" means neither zero nor the device's default.
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
    // In a container there may be processes that even root cannot examine; then the output says so instead.
    let says_why = shown.contains("no program prefers") || shown.contains("if a program that cannot be seen from here");
    assert!(shown.contains("suspend20 was applied") && says_why, "{shown}");
    // The program's half is missing, so the mode must not be shown as the one in force.
    let is_row = |line: &&str| line.split_whitespace().take(2).filter(|word| word.parse::<u32>().is_ok()).count() == 2;
    let modes: Vec<_> = shown.lines().filter(is_row).collect();
    assert!(modes.len() == 2 && modes.iter().all(|line| line.ends_with("defer20")), "{shown}");

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
    // This queue had a thread of its own before, which somebody else has bound to a CPU.
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
    // With more CPUs than threads one of the CPUs would be ignored silently.
    for command in ["apply", "diff"] {
        let two = "--mode threaded --threads-cpus 0,0";
        world.refused(&format!("{command} va --queues 1 {two}"), &["2 CPUs", "1 NAPI threads", "give 1"]);
        world.refused(&format!("{command} va {two},0"), &["3 CPUs", "2 NAPI threads"]);
    }
    assert_eq!(world.values(), [THREADED, BASE]);
    // A watcher does not end when queues are removed.
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
fn in_another_pid_namespace_no_thread_is_ended_that_cannot_be_given_back() {
    let Some(world) = World::new("threads of another pid namespace", 2) else { return };
    world.set_raw(world.raw()[0].id, &["threaded=1"]);
    let pid = world.raw()[0].pid.to_string();
    world.run(&["taskset", "-pc", "0", &pid]);
    world.run(&["chrt", "-r", "-p", "3", &pid]);
    let scheduled = || world.run(&["sh", "-c", &format!("chrt -p {pid}; taskset -pc {pid}")]);
    let before = (world.raw(), scheduled());
    let inside = |arguments: &str| {
        let unshare = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", env!("CARGO_BIN_EXE_lull")];
        world.command(&[&unshare[..], &arguments.split(' ').collect::<Vec<_>>()].concat()).output().unwrap()
    };
    for arguments in [
        "apply va --mode suspend20",
        "diff va --mode suspend20",
        "set va threaded=off",
        "set va --dry-run threaded=off",
    ] {
        kernel::refused(arguments, &inside(arguments), &["queue 0", "pid namespace", "initial one"]);
        assert_eq!((world.raw(), scheduled(), world.state_file()), (before.0.clone(), before.1.clone(), None));
    }
    // Queues without a thread, and a thread that lull itself has started.
    for mode in ["threaded", "suspend20"] {
        kernel::succeeded(mode, &inside(&format!("apply va --queues 1 --mode {mode}")));
    }
    assert_eq!(world.values(), [THREADED, SUSPEND20]);
    kernel::succeeded("undo", &inside("undo va"));
    assert_eq!((world.raw(), scheduled()), before);
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

    // The thread is shown with its number, its CPU and its policy.
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

    // Settings on top of a mode are undone together with it.
    world.ok("apply va --mode suspend20");
    world.ok("set va defer-hard-irqs=5");
    assert!(world.ok("show va").contains("suspend20 with defer-hard-irqs=5 was applied"));
    world.ok("undo va");
    assert_eq!((world.values(), world.state_file()), (before.clone(), None));

    // These are refused before anything is changed.
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
    // After an apply on top of an earlier one the former settings are still known.
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
    // `lull show` names the process that has the device, because `lull undo` would be refused.
    let shown = world.ok("show va");
    let keeps = format!("suspend20 was applied; process {} keeps it", watcher.id());
    assert!(shown.contains(&keeps) && !shown.contains("lull undo"), "{shown}");
    world.run(&["ip", "link", "set", "va", "down"]);
    world.run(&["ip", "link", "set", "va", "up"]);
    let line = watcher.wait_for("again");
    assert!(line.contains("queue 0") || line.contains("queue 1"), "{line}");
    world.wait_for(&[SUSPEND20, SUSPEND20]);
    assert_ne!(ids(&world), before, "the flap gave new ids");
    // A change by another program notifies nobody, so the read-back finds it.
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
fn a_terminal_that_is_closed_ends_a_watcher_as_sigterm_does_but_under_nohup() {
    let Some(world) = World::new("watch and SIGHUP", 1) else { return };
    let mut watcher = world.start("apply va --mode suspend20 --watch");
    watcher.wait_for("watching");
    watcher.signal("-HUP");
    let (status, said) = watcher.end();
    assert_eq!((status, world.values(), world.state_file()), (Some(0), vec![BASE], None), "{said}");
    let mut under_nohup = world.start_by(&["nohup"], "apply va --mode suspend20 --watch");
    under_nohup.wait_for("watching");
    let process = fs::read_to_string(format!("/proc/{}/status", under_nohup.id())).unwrap();
    let ignored = process.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap().trim();
    assert_eq!(u64::from_str_radix(ignored, 16).unwrap() & 1, 1, "signal 1 is SIGHUP: {ignored}");
    under_nohup.signal("-TERM");
    assert_eq!((under_nohup.end().0, world.values()), (Some(0), vec![BASE]));
}

#[test]
fn a_watched_queue_that_goes_away_leaves_the_others_watched() {
    let Some(world) = World::new("a watched queue goes", 2) else { return };
    let mut watcher = world.start("apply va --mode suspend20 --queues 0,1 --watch --read-back 0.2");
    watcher.wait_for("watching");
    world.run(&["ethtool", "-L", "va", "rx", "1"]);
    watcher.wait_for("no NAPI for queue 1");
    world.run(&["ip", "link", "set", "va", "down"]);
    world.run(&["ip", "link", "set", "va", "up"]);
    world.wait_for(&[SUSPEND20]);
    world.run(&["ethtool", "-L", "va", "rx", "2"]);
    world.wait_for(&[SUSPEND20, SUSPEND20]);
    watcher.signal("-TERM");
    let (status, said) = watcher.end();
    assert_eq!((status, world.values()), (Some(0), vec![BASE, BASE]), "{said}");
    assert!(!said.contains("no NAPI for queue 1"), "it is said once: {said}");
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
fn a_device_that_vanishes_ends_the_watcher_and_leaves_nothing_behind() {
    let Some(world) = World::new("vanishing device", 2) else { return };
    let mut watcher = world.start("apply va --mode defer50 --watch");
    watcher.wait_for("watching");
    world.make_pair(2);
    let (status, said) = watcher.end();
    assert_eq!(status, Some(2), "{said}");
    assert!(said.contains("device 'va'"), "{said}");
    assert_eq!(world.values(), [BASE, BASE], "the device that took the name has nothing of it");
    assert_eq!(world.state_file(), None);
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
    // The supervisor of `run` meets the same refusal, and prints nothing about it.
    let run = ["run", "--dev", "va", "--mode", "defer50", "--", "true"];
    // A missing file is not reported as a missing right to change the device.
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
        // The attached program without a connection is named, though no queue is its yet.
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
    // The other half is named if it is in force; if not, the output says how to apply it.
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
fn a_run_that_serves_metrics_passes_signals_on() {
    let Some(world) = World::new("run with metrics", 1) else { return };
    let program = kernel::script("told.sh");
    let mut run = world.start(&format!("run --dev va --mode base --prometheus 0.0.0.0:0 -- sh {program}"));
    run.wait_for("ready");
    run.signal("-TERM");
    assert_eq!(run.end().0, Some(7), "the program heard it, and the threads that serve metrics did not");
}
