//! `lull serve --steer` on a TAP with two queues: which worker gets which connections.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Nothing here takes this long unless it is lost.
const LOST: Duration = Duration::from_secs(120);
const CONNECTIONS: usize = 40;

fn is_root() -> bool {
    std::fs::read_to_string("/proc/self/status")
        .is_ok_and(|status| status.lines().any(|line| line.starts_with("Uid:\t0\t0")))
}

fn serve(steer: &str) -> Child {
    Command::new(env!("CARGO_BIN_EXE_lull"))
        .args(["serve", "--nic", "tap:lull-steer", "--addr", "10.0.0.2/24", "--peer-addr", "10.0.0.1/24", "-t", "2"])
        .args(["--steer", steer])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Serves connections, and returns how many came by their workers' own queues, and how many came in all.
fn own(steer: &str) -> (usize, usize) {
    let mut service = serve(steer);
    let address: SocketAddr = "10.0.0.2:11211".parse().unwrap();
    let begin = Instant::now();
    let connect = || loop {
        match TcpStream::connect_timeout(&address, Duration::from_secs(5)) {
            Ok(stream) => return stream,
            Err(error) => assert!(begin.elapsed() < LOST, "{steer}: {error}"),
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    let mut streams: Vec<TcpStream> = (0..CONNECTIONS).map(|_| connect()).collect();
    for stream in &mut streams {
        stream.set_read_timeout(Some(LOST)).unwrap();
        stream.write_all(b"version\r\n").unwrap();
        let mut answer = [0; 8];
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"VERSION ");
    }
    Command::new("kill").arg(service.id().to_string()).status().unwrap();
    let mut said = String::new();
    service.stdout.take().unwrap().read_to_string(&mut said).unwrap();
    assert!(service.wait().unwrap().success(), "{said}");
    let line = said.lines().find(|line| line.contains("connections came by")).unwrap_or_else(|| panic!("{said}"));
    let numbers: Vec<usize> = line.split(' ').filter_map(|word| word.parse().ok()).collect();
    (numbers[0], numbers[1])
}

#[test]
fn steered_connections_are_all_of_their_workers_queues_and_hashed_ones_are_not() {
    if !is_root() || std::thread::available_parallelism().is_ok_and(|cores| cores.get() < 2) {
        println!("SKIP: no root, which makes a TAP, or not two cores");
        return;
    }
    lull_nic::namespace::enter_private().unwrap();
    let file = std::env::temp_dir().join(format!("lull-steer-{}.bpf", std::process::id()));
    // ld #queue; and #1; ret a: queues count from 1, so each worker gets the other's connections.
    std::fs::write(&file, "3\n32 0 0 4294963224\n84 0 0 1\n22 0 0 0\n").unwrap();
    for (steer, expected) in [("queue", Some(CONNECTIONS)), ("cpu", Some(CONNECTIONS)), ("hash", None)] {
        let (own, all) = own(steer);
        // A connection of the kernel's that was given up in the handshake counts as one more.
        assert!(all >= CONNECTIONS, "{steer}: {own} of {all}");
        match expected {
            Some(_) => assert_eq!(own, all, "{steer}"),
            None => assert!(own > 0 && own < all, "{steer}: {own} of {all}"),
        }
    }
    let (own, all) = own(file.to_str().unwrap());
    assert_eq!((own, all >= CONNECTIONS), (0, true), "a program of the operator's is obeyed");
    let _ = std::fs::remove_file(&file);
}

#[test]
fn what_cannot_steer_is_refused_by_name() {
    for (steer, says) in [("rfs", "RFS is not here"), ("nothing-here", "use queue, cpu, hash or a file")] {
        let args = ["serve", "--nic", "tap:lull-steer", "--addr", "10.0.0.2/24", "--steer", steer];
        let output = Command::new(env!("CARGO_BIN_EXE_lull")).args(args).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(2) && said.contains(says), "{steer}: {said}");
    }
    let mem = ["serve", "--nic", "mem", "--steer", "queue"];
    let output = Command::new(env!("CARGO_BIN_EXE_lull")).args(mem).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("cannot use --steer with --nic mem"), "{said}");
}
