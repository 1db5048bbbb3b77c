//! The library in a C program (`probe.c`) that makes the calls that programs make.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// The library, built by the cargo that runs this test, in the same target directory.
fn library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        // This test is TARGET/PROFILE/deps/preload-HASH.
        let this = std::env::current_exe().unwrap();
        let directory = this.parent().unwrap().parent().unwrap();
        let mut build = Command::new(env!("CARGO"));
        build
            .args(["build", "--quiet", "--workspace", "--lib", "--test", "preload", "--target-dir"])
            .arg(directory.parent().unwrap());
        if directory.ends_with("release") {
            build.arg("--release");
        }
        assert!(build.current_dir(env!("CARGO_MANIFEST_DIR")).status().unwrap().success());
        directory.join("liblull_preload.so")
    })
}

/// The C program, or `None` if there is no C compiler or the kernel lacks the parameters.
fn probe(test: &str) -> Option<&'static Path> {
    static PROBE: OnceLock<Option<PathBuf>> = OnceLock::new();
    let probe = PROBE.get_or_init(|| {
        let program = library().with_file_name("lull-preload-probe");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/probe.c");
        let made = Command::new("cc").args(["-pthread", "-o"]).arg(&program).arg(source).output();
        let made = made.is_ok_and(|output| output.status.success());
        let works = || Command::new(&program).arg("one").output().unwrap().status.success();
        (made && works()).then_some(program)
    });
    if probe.is_none() {
        println!("SKIP: {test}: no C compiler, or a kernel without parameters of epoll contexts (Linux 6.9)");
    }
    probe.as_deref()
}

/// What a probe prints under the library with these variables, and what it prints on stderr.
#[track_caller]
fn run(probe: &Path, what: &str, variables: &[(&str, &str)]) -> (String, String) {
    let mut command = Command::new(probe);
    command.arg(what).env("LD_PRELOAD", library()).envs(variables.iter().copied());
    let output = command.output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{what} {variables:?}: {:?} {said}", output.status);
    (String::from_utf8(output.stdout).unwrap(), said)
}

const SUSPEND: [(&str, &str); 3] = [("LULL_EPOLL_USECS", "0"), ("LULL_EPOLL_BUDGET", "64"), ("LULL_EPOLL_PREFER", "1")];

#[test]
fn every_context_has_the_parameters_however_it_came_about() {
    let Some(probe) = probe("every_context_has_the_parameters_however_it_came_about") else { return };
    let names = ["create", "create1", "dup", "inherited", "forked", "executed"];
    let all = |values: &str| names.map(|name| format!("{name} {values}\n")).concat();
    assert_eq!(run(probe, "contexts", &SUSPEND), (all("0 64 1"), String::new()));
    assert_eq!(run(probe, "contexts", &[("LULL_EPOLL_USECS", "50")]), (all("50 0 0"), String::new()));
    assert_eq!(run(probe, "contexts", &[]), (all("0 0 0"), String::new()));
}

#[test]
fn errors_are_those_of_the_c_library() {
    let Some(probe) = probe("errors_are_those_of_the_c_library") else { return };
    let sockets = ("LULL_SOCKET_BUSY_POLL", "50");
    let keeps_polling = ("LULL_EPOLL_TIMEOUT_MS", "1");
    let all = [&SUSPEND[..], &[sockets, keeps_polling]].concat();
    assert_eq!(run(probe, "errors", &all), ("ok\n".to_owned(), String::new()));
    assert_eq!(run(probe, "errors", &[]), ("ok\n".to_owned(), String::new()));
}

#[test]
fn a_mode_that_keeps_polling_changes_no_result_and_no_time() {
    let Some(probe) = probe("a_mode_that_keeps_polling_changes_no_result_and_no_time") else { return };
    let all = "zero 0 0 0\nshort 0 0 0\nfor ever 1 1 1\n";
    // A wait that lasted longer than asked would find the timer of 20 ms in the call with timeout 0.
    for due_ms in ["3600000", "20"] {
        let (said, _) = run(probe, "timeouts", &[SUSPEND[2], ("DUE_MS", due_ms)]);
        assert_eq!(said, all);
        let (said, _) = run(probe, "timeouts", &[SUSPEND[2], ("LULL_EPOLL_TIMEOUT_MS", "1000"), ("DUE_MS", due_ms)]);
        assert_eq!(said, all);
    }
}

#[test]
fn without_a_napi_to_poll_a_wait_sleeps_and_a_zero_timeout_is_none() {
    let Some(probe) = probe("without_a_napi_to_poll_a_wait_sleeps_and_a_zero_timeout_is_none") else { return };
    let keeps_polling = [&SUSPEND[..], &[("LULL_EPOLL_TIMEOUT_MS", "1")]].concat();
    // If the timeout counted as a second, it would last a second; 10,000 calls of a millisecond each would sleep as
    // often.
    for variables in [&SUSPEND[..], &keeps_polling] {
        let (said, warned) = run(probe, "slept", variables);
        assert_eq!((said.as_str(), warned.as_str()), ("for ever 1, slept seldom\n50 ms 0\nzero, slept seldom\n", ""));
    }
}

#[test]
fn every_signal_that_comes_in_a_wait_ends_it() {
    let Some(probe) = probe("every_signal_that_comes_in_a_wait_ends_it") else { return };
    let keeps_polling = [&SUSPEND[..], &[("LULL_EPOLL_TIMEOUT_MS", "1")]].concat();
    for variables in [&SUSPEND[..], &keeps_polling] {
        assert_eq!(run(probe, "signals", variables), ("heard\n".to_owned(), String::new()));
    }
}

#[test]
fn a_call_returns_no_more_events_than_the_limit() {
    let Some(probe) = probe("a_call_returns_no_more_events_than_the_limit") else { return };
    assert_eq!(run(probe, "batch", &[]).0, "5 5 5 then 5\n");
    assert_eq!(run(probe, "batch", &[("LULL_EVENTS_MAX", "2")]).0, "2 2 2 then 1\n");
    let keeps_polling = [&SUSPEND[..], &[("LULL_EPOLL_TIMEOUT_MS", "1"), ("LULL_EVENTS_MAX", "3")]].concat();
    assert_eq!(run(probe, "batch", &keeps_polling).0, "3 3 3 then 2\n");
}

#[test]
fn internet_sockets_busy_poll_where_asked() {
    let Some(probe) = probe("internet_sockets_busy_poll_where_asked") else { return };
    let (said, _) = run(probe, "sockets", &[("LULL_SOCKET_BUSY_POLL", "400")]);
    let own = "of a listener with its own 7\n";
    let asked = "udp 400\nunix 0\nlistener 400\naccepted 400\nof another's listener 400\n";
    assert_eq!(said, format!("{asked}{own}"));
    let (said, _) = run(probe, "sockets", &SUSPEND);
    assert_eq!(said, format!("udp 0\nunix 0\nlistener 0\naccepted 0\nof another's listener 0\n{own}"));
}

#[test]
fn threads_are_cancelled_as_without_it() {
    let Some(probe) = probe("threads_are_cancelled_as_without_it") else { return };
    let keeps_polling = [&SUSPEND[..], &[("LULL_EPOLL_TIMEOUT_MS", "1")]].concat();
    for variables in [&SUSPEND[..], &keeps_polling] {
        assert_eq!(run(probe, "cancelled", variables), ("cancelled\n".to_owned(), String::new()));
    }
}

#[test]
fn a_wrong_value_is_said_once_and_nothing_is_set() {
    let Some(probe) = probe("a_wrong_value_is_said_once_and_nothing_is_set") else { return };
    for (name, value) in [
        ("LULL_EPOLL_BUDGET", "65536"),
        ("LULL_EPOLL_TIMEOUT_MS", "soon"),
        ("LULL_SOCKET_BUSY_POLL", "-1"),
        ("LULL_EPOLL_USECS", ""),
    ] {
        let variables = [("LULL_EPOLL_PREFER", "1"), (name, value)];
        let (shown, said) = run(probe, "one", &variables);
        assert_eq!(shown, "executed 0 0 0\n");
        assert!(said.starts_with(&format!("lull: {name} is not a number")) && said.lines().count() == 1, "{said}");
        let quiet = [&variables[..], &[("LULL_QUIET", "1")]].concat();
        assert_eq!(run(probe, "one", &quiet).1, "");
    }
}

#[test]
fn what_the_kernel_refuses_is_said_once_and_never_to_a_client() {
    let Some(probe) = probe("what_the_kernel_refuses_is_said_once_and_never_to_a_client") else { return };
    let variables = [("LULL_EPOLL_BUDGET", "65")];
    let nothing = "first 0 0 0\nsecond 0 0 0\nclient got -1\n";
    let (shown, said) = run(probe, "refused", &variables);
    assert_eq!(shown, nothing);
    assert!(said.contains("65") && said.contains("CAP_NET_ADMIN") && said.lines().count() == 1, "{said}");
    let (shown, said) = run(probe, "refused-after-close", &variables);
    assert_eq!((shown.as_str(), said.as_str()), (nothing, ""));
}

#[test]
fn nothing_else_is_taken_over() {
    let listed = Command::new("nm").args(["-D", "--defined-only"]).arg(library()).output();
    let Some(listed) = listed.ok().filter(|output| output.status.success()) else {
        println!("SKIP: nothing_else_is_taken_over: nm is not installed");
        return;
    };
    let listed = String::from_utf8(listed.stdout).unwrap();
    let mut names: Vec<&str> = listed.lines().filter_map(|line| line.split_whitespace().last()).collect();
    names.sort_unstable();
    let taken = "_Exit _Fork __dprintf_chk __poll_chk __ppoll_chk __read_chk __recv_chk __recvfrom_chk \
        __sysv_signal __vdprintf_chk _exit abort accept accept4 bind bsd_signal close close_range \
        closefrom connect creat creat64 dprintf dup dup2 dup3 epoll_create epoll_create1 epoll_ctl \
        epoll_pwait epoll_pwait2 epoll_wait eventfd execl execle execlp execv execve execveat execvp \
        execvpe fclose fcntl fcntl64 fdopen fexecve freeifaddrs getifaddrs getpeername getsockname \
        getsockopt inotify_init inotify_init1 ioctl kill killpg listen memfd_create open open64 openat \
        openat64 pipe pipe2 poll ppoll pselect pthread_cancel pthread_kill pthread_sigqueue quick_exit \
        raise read readv recv recvfrom recvmmsg recvmsg select send sendfile sendfile64 sendmmsg sendmsg \
        sendto setsockopt shutdown sigaction siginterrupt signal signalfd sigqueue sigset socket \
        socketpair splice ssignal syscall sysv_signal tgkill timerfd_create vdprintf vfork write writev";
    assert_eq!(names.join(" "), taken);
}
