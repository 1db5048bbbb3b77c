//! What is left of a device whose process died.

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use lull_nic::FramePool;
use lull_nic::xdp::{XdpAddress, XdpConfig};

use crate::echo::{readable, serve};
use crate::net::{HOST, LIMIT, PORT, Peer, exchange, isolated, run};
use crate::{everything, frame, open};

const PART: &str = "LULL_NIC_TEST_PART";

/// Starts this test's other process in the namespace of the first, and waits until it has its device.
fn start(test: &str, prepare: impl FnOnce(&mut Command) -> &mut Command) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture", "--test-threads=1"]).env(PART, test).stdout(Stdio::piped());
    let mut child = prepare(&mut command).spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let is_ready = lines.map_while(Result::ok).any(|line| line.ends_with("ready"));
    assert!(is_ready, "the other process ended: {:?}", child.wait());
    child
}

fn is_other_process(test: &str) -> bool {
    std::env::var(PART).is_ok_and(|part| part == test)
}

#[test]
fn a_process_that_is_killed_leaves_the_hosts_traffic_alone() {
    const TEST: &str = "death::a_process_that_is_killed_leaves_the_hosts_traffic_alone";
    if is_other_process(TEST) {
        let address = XdpAddress::look_up(HOST.into()).unwrap();
        let name = crate::net::DEV.to_owned();
        let config = XdpConfig { name, addresses: vec![address], ports: vec![PORT], ..XdpConfig::default() };
        let (device, mut queues) = open(&config);
        println!("ready");
        loop {
            readable(queues[0].irq.fd().unwrap(), LIMIT);
            serve(lull_nic::Device::info(&device).mac, HOST, &mut queues[0]);
        }
    }
    isolated(TEST, || {
        let peer = Peer::new(1);
        // On a busy machine the second process may not be there yet when so many pings are over.
        let killed = [1_000, 5_000, 25_000].map(|pings| pings.to_string()).into_iter().map(|pings| {
            let mut ping = peer.within(|| {
                let mut ping = Command::new("ping");
                let options = ["-i", "0.002", "-W", "60", "-c", &pings, "-q", &HOST.to_string()];
                ping.args(options).stdout(Stdio::piped()).spawn().unwrap()
            });
            let mut killed = 0;
            while ping.try_wait().unwrap().is_none() {
                let mut child = start(TEST, |command| command);
                exchange([0; 6], HOST, &mut [], &peer.client((HOST, PORT)), b"is it there?");
                child.kill().unwrap();
                child.wait().unwrap();
                killed += 1;
            }
            let output = ping.wait_with_output().unwrap();
            let text = String::from_utf8_lossy(&output.stdout);
            // A frame that is on the veth's ring in the moment when a program is detached is freed by the driver (`veth_disable_xdp`).
            let received = text.split(" packets transmitted, ").nth(1).and_then(|rest| rest.split(' ').next()).unwrap();
            let lost = pings.parse::<u32>().unwrap() - received.parse::<u32>().unwrap();
            assert!(lost <= killed, "{killed} processes were killed meanwhile: {text}");
            println!("{killed} processes were killed during {pings} pings");
            killed
        });
        assert!({ killed }.any(|killed| killed > 1), "one process was killed at most each time");
        // Nothing is left attached.
        let link = run(&format!("ip link show {}", crate::net::DEV));
        assert!(!String::from_utf8_lossy(&link.stdout).contains("xdp"));
    });
}

#[test]
fn a_core_dump_has_no_frames_in_it() {
    const TEST: &str = "death::a_core_dump_has_no_frames_in_it";
    /// Bytes that are searched for: those of the frame, which the dying process does not look at, and some of its own.
    const LENGTH: usize = 600;
    const FRAME: u32 = 0xa5;
    if is_other_process(TEST) {
        let (_device, mut queues) = open(&everything());
        let mine = std::hint::black_box(vec![0x3c_u8; LENGTH]);
        println!("ready");
        let mut frames = Vec::new();
        while frames.is_empty() {
            readable(queues[0].irq.fd().unwrap(), LIMIT);
            queues[0].rx.poll(64, &mut FramePool::new(0), &mut |frame, _| frames.push(frame));
        }
        assert_eq!(mine.len(), LENGTH);
        std::process::abort();
    }
    isolated(TEST, || {
        let pattern = std::fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap();
        if pattern.trim() != "core" {
            println!("SKIP: {TEST}: core dumps go to {}", pattern.trim());
            return;
        }
        let peer = Peer::new(1);
        let mut wire = peer.wire();
        let place = std::env::temp_dir().join(format!("lull-core-{}", std::process::id()));
        std::fs::create_dir(&place).unwrap();
        let mut child = start(TEST, |command| {
            let dumps = || {
                let whole = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
                // SAFETY: `whole` outlives the call, which is allowed between fork and exec.
                match unsafe { libc::setrlimit(libc::RLIMIT_CORE, &raw const whole) } {
                    0 => Ok(()),
                    _ => Err(std::io::Error::last_os_error()),
                }
            };
            // SAFETY: the closure makes a system call and allocates nothing.
            unsafe { command.current_dir(&place).pre_exec(dumps) }
        });
        wire.put(&frame(FRAME, LENGTH + 64));
        child.wait().unwrap();
        let cores: Vec<_> = std::fs::read_dir(&place).unwrap().flatten().map(|entry| entry.path()).collect();
        let core = cores.first().map(|core| std::fs::read(core).unwrap());
        std::fs::remove_dir_all(&place).unwrap();
        let core = core.expect("a core dump");
        let has =
            |byte: u8| core.windows(LENGTH).any(|window| window[0] == byte && window.iter().all(|at| *at == byte));
        assert!(has(0x3c), "the process's own memory is in it");
        assert!(!has(FRAME as u8), "the frame is in it");
    });
}
