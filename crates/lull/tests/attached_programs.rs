//! Sets the program's half of a mode from outside: `lull attach` and `lull detach` of running programs. Parameters are
//! read back by a script of the tests' own (`kernel/params.py`).

mod kernel;
mod program;

use std::process::{Command, Stdio};

use kernel::{World, script};
use program::*;

#[test]
fn a_running_memcached_is_set_and_given_back() {
    if lacks("a_running_memcached_is_set_and_given_back", &["memcached", "python3"]) {
        return;
    }
    let scratch = Scratch::new("once");
    let program = memcached();
    let pid = program.pid();
    let planned = scratch.ok(&format!("attach --pid {pid} --mode suspend20 --dry-run"));
    assert_eq!(planned.matches("would set memcached").count(), 3, "{planned}");
    assert!(have(pid, 3, NONE) && scratch.left().is_empty());

    // Without a state file nothing is changed.
    scratch.refused(&format!("attach --pid {pid} --mode suspend20 --once --state-dir /proc/none"), &["/proc/none"]);
    assert!(have(pid, 3, NONE));

    let said = scratch.ok(&format!("attach --pid {pid} --mode suspend20 --once"));
    assert_eq!(said.matches("usecs 0, budget 64, prefer (was: usecs 0, budget 0, not preferred)").count(), 3, "{said}");
    assert!(have(pid, 3, SUSPEND), "{:?}", params(pid));
    // After several attaches with other modes, the parameters from before the first one come back.
    scratch.ok(&format!("attach --pid {pid} --mode suspend20 --once"));
    let output = scratch.lull(&format!("attach --pid {pid} --mode fullbusy --once"));
    assert!(String::from_utf8(output.stderr).unwrap().contains("NOT fully in force"));
    assert!(have(pid, 3, FULLBUSY));
    assert_eq!(scratch.ok(&format!("detach --pid {pid} --dry-run")).matches("would set process").count(), 3);
    assert!(have(pid, 3, FULLBUSY));
    assert_eq!(scratch.ok(&format!("detach --pid {pid}")).matches("not preferred again").count(), 3);
    assert!(have(pid, 3, NONE));
    assert!(scratch.ok(&format!("detach --pid {pid}")).contains("nothing"));
    assert!(scratch.left().is_empty(), "{:?}", scratch.left());
}

#[test]
fn what_the_program_had_set_itself_comes_back() {
    if lacks("what_the_program_had_set_itself_comes_back", &["python3"]) {
        return;
    }
    let scratch = Scratch::new("own");
    let mut child = Command::new("python3")
        .args([&script("epoll.py"), "127.0.0.1", "0", "5", "8", "0"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    assert_eq!(kernel::lines_of(&mut child).next().unwrap().unwrap(), "ready");
    let program = Program { child };
    let pid = program.pid();
    assert!(have(pid, 1, (5, 8, 0)));
    let attached = Attached::start(&scratch, &format!("attach --pid {pid} --usecs 7 --budget 9 --prefer"));
    assert!(have(pid, 1, (7, 9, 1)));
    signal(attached.child.id(), "-TERM");
    assert_eq!(attached.end().0, Some(0));
    assert!(have(pid, 1, (5, 8, 0)));
}

#[test]
fn a_static_program_is_followed_with_its_later_contexts_and_its_children() {
    const TEST: &str = "a_static_program_is_followed_with_its_later_contexts_and_its_children";
    let scratch = Scratch::new("static");
    if lacks(TEST, &["python3"]) {
        return;
    }
    let Some(program) = waiter(&scratch, TEST) else { return };
    let mut waiter = Waiter::start(&program);
    let pid = waiter.child.id();
    let attached = Attached::start(&scratch, &format!("attach --pid {pid} --mode suspend20"));
    assert!(have(pid, 1, SUSPEND));
    waiter.ask("epoll\n", "made ");
    wait_until("the later context is set", || have(pid, 2, SUSPEND));
    let child = waiter.ask("fork\n", "child ");
    // Two are the parent's own, shared; the third is the child's.
    wait_until("the child's context is set", || have(child, 3, SUSPEND));
    scratch
        .refused(&format!("attach --pid {pid} --mode suspend20"), &["lull attach", &attached.child.id().to_string()]);

    let said = scratch.ok(&format!("detach --pid {pid}"));
    assert!(said.contains(&attached.child.id().to_string()), "{said}");
    assert_eq!(attached.end().0, Some(0));
    assert!(have(pid, 2, NONE) && have(child, 3, NONE));
    assert!(scratch.left().is_empty(), "{:?}", scratch.left());
    waiter.end();
}

#[test]
fn a_killed_attach_is_undone_by_detach_and_an_ended_program_ends_attach() {
    const TEST: &str = "a_killed_attach_is_undone_by_detach_and_an_ended_program_ends_attach";
    let scratch = Scratch::new("killed");
    if lacks(TEST, &["python3"]) {
        return;
    }
    let Some(program) = waiter(&scratch, TEST) else { return };
    let waiter = Waiter::start(&program);
    let pid = waiter.child.id();
    let attached = Attached::start(&scratch, &format!("attach --pid {pid} --mode napibusy"));
    signal(attached.child.id(), "-KILL");
    attached.end();
    assert!(have(pid, 1, (64, 64, 1)));
    scratch.ok(&format!("detach --pid {pid}"));
    assert!(have(pid, 1, NONE));

    let attached = Attached::start(&scratch, &format!("attach --pid {pid} --mode napibusy"));
    waiter.end();
    let (code, said) = attached.end();
    assert_eq!(code, Some(0));
    assert!(said.contains("the program has ended"), "{said}");
    // The record stays, so that a later `lull detach` can say what has become of the program.
    let said = scratch.ok(&format!("detach --pid {pid}"));
    assert!(said.contains("has ended by itself"), "{said}");
    assert!(scratch.left().is_empty(), "{:?}", scratch.left());
}

#[test]
fn attaching_warns_of_another_program_on_the_same_napi() {
    const TEST: &str = "attaching_warns_of_another_program_on_the_same_napi";
    if lacks(TEST, &["python3"]) {
        return;
    }
    let Some(world) = World::new(TEST, 1) else { return };
    let start = |port: &str, prefer: &str| {
        let epoll = script("epoll.py");
        let mut command = world.command(&["python3", &epoll, "10.99.0.1", port, "0", "0", prefer]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = kernel::lines_of(&mut child);
        assert_eq!(lines.next().unwrap().unwrap(), "ready");
        let send = format!(
            "import socket; socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('10.99.0.1', {port}))"
        );
        let sent = Command::new("ip").args(["netns", "exec", &world.far, "python3", "-c", &send]).status();
        assert!(sent.unwrap().success());
        assert_eq!(lines.next().unwrap().unwrap(), "heard");
        Program { child }
    };
    let warned = |pid: u32| {
        let output = world.lull(&format!("attach --pid {pid} --mode suspend20 --dry-run"));
        assert!(output.status.success());
        let said = String::from_utf8(output.stderr).unwrap();
        said.lines().find(|line| line.contains("is heard from by")).map(str::to_owned)
    };
    // A second program on the queue that does not prefer busy polling does no harm.
    let (first, _quiet) = (start("5001", "0"), start("5002", "0"));
    assert_eq!(warned(first.pid()), None);
    let second = start("5003", "1");
    let line = warned(first.pid()).expect("a warning");
    let napi = format!("NAPI {} is heard from by 2 epoll contexts", world.raw()[0].id);
    assert!(line.contains(&napi), "{line}");
    assert!(line.contains(&format!("{}:", first.pid())) && line.contains(&format!("{}:", second.pid())), "{line}");
    drop(second);
    assert_eq!(warned(first.pid()), None);
}
