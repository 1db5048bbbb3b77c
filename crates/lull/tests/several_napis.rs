//! Contexts that get packets from several NAPIs: how they are recognised, and what `run --one-napi` does for them.

mod kernel;
mod program;

use std::process::{Command, Stdio};

use kernel::{BASE, SUSPEND20, World};
use program::*;

#[test]
fn a_context_on_several_napis_is_recognised_and_its_stall_can_be_shortened() {
    const TEST: &str = "a_context_on_several_napis_is_recognised_and_its_stall_can_be_shortened";
    if lacks(TEST, &["memcached", "python3"]) {
        return;
    }
    let Some(world) = World::new(TEST, 2) else { return };
    // One worker serves both queues, like a program with one event loop.
    let mut run = world.start(
        "run --dev va --mode suspend20 --one-napi timeout --events-max 8 -- memcached -u nobody -l 10.99.0.1 -t 1",
    );
    let pid = child_of(run.child.id(), "memcached");
    let _server = EndsWithFailure(pid);
    wait_until("memcached has its contexts", || have(pid, 2, SUSPEND));
    let (defer, gro, _, threaded) = SUSPEND20;
    assert_eq!(world.values(), [(defer, gro, 1_000_000, threaded); 2]);
    let _ = statistics(&world, || {
        let line = run.wait_for("2 NAPIs");
        for word in ["irq_suspend_timeout", "ethtool -L", "--one-napi timeout"] {
            assert!(line.contains(word), "{line}");
        }
        let said = world.lull(&format!("doctor --pid {pid}")).stdout;
        assert!(String::from_utf8(said).unwrap().contains("2 NAPIs"));
        // There are 16 connections, and a call returns events of 8.
        let said = String::from_utf8(world.lull(&format!("doctor va --pid {pid}")).stdout).unwrap();
        assert!(said.contains("a call takes at most 8 events") && said.contains("take 80us"), "{said}");
        assert!(said.contains("a program that sleeps waits for at most 20us"), "{said}");
        let shown = world.ok("show va");
        let lines: Vec<&str> = shown.lines().filter(|line| line.contains("hears from several NAPIs")).collect();
        assert_eq!(lines.len(), 1, "one line a program: {shown}");
        for word in [&format!("memcached (pid {pid})"), "irq_suspend_timeout (1ms)", "ethtool -L"] {
            assert!(lines[0].contains(word), "{shown}");
        }
    });
    run.signal("-TERM");
    run.end();
    assert_eq!(world.values(), [BASE, BASE]);
    world.refused("run --dev va --mode defer50 --one-napi timeout -- true", &["suspend20"]);
}

/// Starts a memcached of one worker on both queues, for which the device is then given one queue.
fn on_one_queue(world: &World) -> (kernel::Staying, EndsWithFailure, Program) {
    let command = "run --dev va --mode suspend20 --one-napi queues -- memcached -u nobody -l 10.99.0.1 -t 1";
    let mut run = world.start(command);
    let pid = child_of(run.child.id(), "memcached");
    let server = EndsWithFailure(pid);
    // Its listener has an epoll context, too, which gets packets from no NAPI.
    wait_until("memcached has its contexts", || have(pid, 2, SUSPEND));
    assert_eq!(world.values(), [SUSPEND20; 2], "nothing is taken away before anybody hears from it");
    let clients = connections(world, "11211", 16);
    let line = run.wait_for("rx queues of va: 2 -> 1");
    assert!(line.contains("1 epoll context(s)"), "{line}");
    assert_eq!(world.values(), [SUSPEND20]);
    (run, server, clients)
}

#[test]
fn as_many_queues_as_contexts_while_the_program_runs_and_all_of_them_afterwards() {
    const TEST: &str = "as_many_queues_as_contexts_while_the_program_runs_and_all_of_them_afterwards";
    if lacks(TEST, &["memcached", "python3"]) {
        return;
    }
    let Some(world) = World::new(TEST, 2) else { return };
    let (run, _server, clients) = on_one_queue(&world);
    // The connections outlive the change.
    drop(connections(&world, "11211", 4));
    drop(clients);
    run.signal("-TERM");
    assert_eq!(run.end().0, Some(0));
    assert_eq!(world.values(), [BASE, BASE]);
    assert!(world.state_file().is_none());
    // Contexts that get packets from one NAPI each need no help.
    let command = "run --dev va --mode suspend20 --one-napi queues -- memcached -u nobody -l 10.99.0.1 -t 2 -N 2";
    let mut run = world.start(command);
    let pid = child_of(run.child.id(), "memcached");
    let _server = EndsWithFailure(pid);
    wait_until("memcached has its contexts", || have(pid, 3, SUSPEND));
    let clients = connections(&world, "11211", 16);
    run.wait_for("is in force");
    assert_eq!(world.values(), [SUSPEND20; 2]);
    drop(clients);
    run.signal("-TERM");
    assert_eq!(run.end().0, Some(0));
    for (options, word) in [
        ("va --mode defer50 --one-napi queues", "suspend20"),
        ("lo --mode suspend20 --one-napi queues", "ethtool -l lo"),
        // A veth has no indirection table; kernel/qemu.sh has a device with one.
        ("va --mode suspend20 --one-napi steer", "steer the flows of va"),
    ] {
        world.refused(&format!("run --dev {options} -- true"), &[word]);
    }
    assert!(world.state_file().is_none());
}

#[test]
fn queues_that_a_killed_run_took_away_are_given_back() {
    const TEST: &str = "queues_that_a_killed_run_took_away_are_given_back";
    if lacks(TEST, &["memcached", "python3"]) {
        return;
    }
    let Some(world) = World::new(TEST, 2) else { return };
    let (run, server, _clients) = on_one_queue(&world);
    run.signal("-KILL");
    world.wait_for(&[BASE, BASE]);
    wait_until("the state file is gone", || world.state_file().is_none());
    signal(server.0, "-KILL");
    drop(run.end());

    // Without its supervisor, any `lull undo` restores the device.
    let (run, server, _clients) = on_one_queue(&world);
    signal(child_of(run.child.id(), "lull"), "-KILL");
    run.signal("-KILL");
    // The supervisor has the other end of the pipe that `lull run` logs to.
    signal(server.0, "-KILL");
    drop(run.end());
    let said = world.ok("undo va --dry-run");
    assert!(said.contains("would set rx queues of va: 1 -> 2"), "{said}");
    assert_eq!(world.raw().len(), 1);
    let said = world.ok("undo va");
    assert!(said.contains("rx queues of va: 1 -> 2"), "{said}");
    assert_eq!(world.values(), [BASE, BASE]);
    assert!(world.state_file().is_none());
}

/// Opens connections to a server on the near end, which end with the program.
fn connections(world: &World, port: &str, count: usize) -> Program {
    let connect = format!(
        "import socket\n\
        kept = [socket.create_connection(('10.99.0.1', {port})) for _ in range({count})]\n\
        for it in kept:\n \
            it.sendall(b'version\\r\\n'); it.recv(100)\n\
        print('ready', flush=True)\n\
        input()"
    );
    let mut command = Command::new("ip");
    command.args(["netns", "exec", &world.far, "python3", "-c", &connect]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    assert_eq!(kernel::lines_of(&mut child).next().unwrap().unwrap(), "ready");
    Program { child }
}

#[test]
fn a_context_that_comes_to_several_napis_later_is_recognised_then() {
    const TEST: &str = "a_context_that_comes_to_several_napis_later_is_recognised_then";
    if lacks(TEST, &["memcached", "python3"]) {
        return;
    }
    let Some(world) = World::new(TEST, 2) else { return };
    let mut run = world.start("run --dev va --mode suspend20 -- memcached -u nobody -l 10.99.0.1 -t 1");
    let pid = child_of(run.child.id(), "memcached");
    let _server = EndsWithFailure(pid);
    wait_until("memcached has its contexts", || have(pid, 2, SUSPEND));
    let first = connections(&world, "11211", 1);
    run.wait_for("is in force");
    let more = connections(&world, "11211", 16);
    run.wait_for("2 NAPIs");
    drop((first, more));
    run.signal("-TERM");
    run.end();
}

#[test]
fn apply_names_a_program_on_several_napis_in_modes_that_make_its_packets_wait() {
    const TEST: &str = "apply_names_a_program_on_several_napis_in_modes_that_make_its_packets_wait";
    if lacks(TEST, &["memcached", "python3"]) {
        return;
    }
    let Some(world) = World::new(TEST, 2) else { return };
    // Only the program's half is set, on a device that has no mode.
    let mut run = world.start("run --mode suspend20 -- memcached -u nobody -l 10.99.0.1 -t 1");
    let pid = child_of(run.child.id(), "memcached");
    let _server = EndsWithFailure(pid);
    wait_until("memcached has its contexts", || have(pid, 2, SUSPEND));
    let _ = statistics(&world, || {
        run.wait_for("2 NAPIs");
        let applied = |arguments: &str| {
            let output = world.lull(&format!("apply va {arguments}"));
            assert!(output.status.success());
            let said = String::from_utf8(output.stderr).unwrap();
            said.lines().filter(|line| line.contains("several NAPIs")).map(str::to_owned).collect::<Vec<_>>()
        };
        let said = applied("--mode suspend20");
        assert!(said.len() == 1 && said[0].contains("irq_suspend_timeout (20ms)"), "{said:?}");
        assert!(said[0].contains(&format!("memcached (pid {pid})")) && said[0].contains("ethtool -L"), "{said:?}");
        let said = applied("--mode suspend20 --json");
        assert_eq!(said.len(), 1, "what is on standard output stays JSON: {said:?}");
        let said = applied("--mode defer50");
        assert!(said.len() == 1 && said[0].contains("gro_flush_timeout (50us)"), "{said:?}");
        assert_eq!(applied("--mode fullbusy").len(), 1);
        let said = String::from_utf8(world.lull(&format!("doctor va --pid {pid}")).stdout).unwrap();
        assert!(said.contains("gro_flush_timeout is 5ms on queue 0: a packet that comes while"), "{said}");
        // The events that the 17 sockets of memcached's worker could bring at once take longer than a timer of 50 us.
        applied("--mode defer50");
        let said = String::from_utf8(world.lull(&format!("doctor va --pid {pid}")).stdout).unwrap();
        assert!(said.contains("runs out after 50us") && said.contains("--events-max 5"), "{said}");
        assert_eq!(applied("--mode base"), [""; 0]);
        assert!(!world.ok("show va").contains("several NAPIs"));
        world.ok("undo va");
    });
    run.signal("-TERM");
    run.end();
}
