//! The way into a private namespace: in a process of one thread, hence without the test harness, and not as root.

use std::os::unix::process::CommandExt;
use std::process::Command;

use lull_nic::namespace;

const CHILD: &str = "LULL_NIC_TEST_CHILD";
/// `nobody` by custom; any user that is not root will do.
const NOBODY: u32 = 65_534;

fn main() {
    if std::env::args().any(|argument| argument == "--list") {
        return;
    }
    if std::env::var_os(CHILD).is_some() {
        return child();
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.env(CHILD, "1");
    // SAFETY: no arguments, cannot fail.
    if unsafe { libc::geteuid() } == 0 {
        command.uid(NOBODY).gid(NOBODY);
    }
    match command.status() {
        Ok(status) => assert!(status.success(), "the child failed"),
        Err(error) => println!("SKIP: namespace: cannot run as user {NOBODY}: {error}"),
    }
}

fn child() {
    second_thread_is_named_as_the_reason();
    if let Err(error) = namespace::enter_private() {
        println!("SKIP: namespace: {error}");
        return;
    }
    // SAFETY: no arguments, cannot fail.
    assert_eq!(unsafe { libc::geteuid() }, 0, "root in there");
    let interfaces = std::fs::read_to_string("/proc/self/net/dev").unwrap();
    assert_eq!(interfaces.lines().skip(2).count(), 1, "lo alone: {interfaces}");
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").expect("lo is up");
    socket.send_to(b"x", socket.local_addr().unwrap()).expect("lo is up");
    println!("namespace: entered");
}

fn second_thread_is_named_as_the_reason() {
    let error = std::thread::spawn(namespace::enter_private).join().unwrap().unwrap_err();
    assert!(error.to_string().contains("before any thread"), "{error}");
    // The kernel lists a thread for a moment after it was joined.
    while std::fs::read_dir("/proc/self/task").unwrap().count() > 1 {
        std::thread::yield_now();
    }
}
