//! How often a thread that serves goes to sleep: once for each request, whichever thread delivers beside it on its
//! core. The thread that delivers wakes it after it has given the shard's lock back. Under the lock, the woken thread
//! would take the core, ask for the lock, and sleep a second time.

mod pair;

use std::net::SocketAddr;
use std::sync::Arc;
use std::thread;

use lull_host::{GroupOptions, Host, HostConfig, Worker, pin_thread, usable_cores};
use lull_net::{Epoll, GroupCpus, Interest, Mode, Network, NetworkConfig, UdpSocket};
use lull_nic::mem::{self, MemConfig};
use pair::{CLIENT, SERVER, wait};

const PORT: u16 = 9;
const REQUESTS: u64 = 400;

/// How often the calling thread went to sleep.
fn sleeps() -> u64 {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    line.unwrap().trim().parse().unwrap()
}

/// How often a thread sleeps that answers [`REQUESTS`] datagrams, one at a time, in this mode. The thread that delivers
/// to it has the same core.
fn sleeps_in(mode: &str, epoll: bool) -> u64 {
    let core = usable_cores()[0];
    let host = Host::new(HostConfig { cpus: vec![Some(core), None], ..HostConfig::default() }).unwrap();
    let (server, client) = mem::pair(MemConfig::default());
    let options = GroupOptions { oversubscribe: true, ..GroupOptions::default() };
    let config = NetworkConfig { group: Some(GroupCpus { cpus: vec![0], options }), ..pair::config(SERVER, vec![0]) };
    let mode: Mode = mode.parse().unwrap();
    let server = Network::new(&host, Arc::new(server), config.with_mode(&mode)).unwrap();
    let client = Network::new(&host, Arc::new(client), pair::config(CLIENT, vec![1])).unwrap();
    let address = SocketAddr::new(SERVER.parse().unwrap(), PORT);
    let socket = UdpSocket::bind(&server, address).unwrap();
    let serve = || {
        pin_thread(&[core]).unwrap();
        let waits = epoll.then(|| {
            let context = Epoll::new(&host);
            context.add(&socket, 1, Interest::READABLE).unwrap();
            (context, Worker::new(&host, 0).unwrap())
        });
        let before = sleeps();
        for _ in 0..REQUESTS {
            if let Some((context, worker)) = &waits {
                while wait(context, worker, 1, pair::LOST).is_empty() {}
            }
            let (bytes, from) = socket.recv_from(&mut [0; 8]).unwrap();
            socket.send_to(&[0; 8][..bytes], from).unwrap();
        }
        sleeps() - before
    };
    thread::scope(|scope| {
        let serving = scope.spawn(serve);
        let asks = UdpSocket::bind(&client, SocketAddr::new(CLIENT.parse().unwrap(), PORT)).unwrap();
        asks.connect(address).unwrap();
        for _ in 0..REQUESTS {
            asks.send(&[7]).unwrap();
            assert_eq!(asks.recv(&mut [0; 8]).unwrap(), 1);
        }
        serving.join().unwrap()
    })
}

/// How often the test is tried for a thread that sleeps more often than that.
const TRIES: usize = 5;

/// If others take the core away in the middle of a poll, the thread sleeps a second time for some requests, but not for
/// every other one in each try. (A worker that sleeps in the seat also takes the interrupts of NAPI threads, each of
/// which is a sleep of its own.)
#[test]
fn a_request_that_a_poller_of_the_same_core_delivers_costs_its_server_one_sleep() {
    for (mode, epoll) in [("threaded", false), ("group", false), ("group", true)] {
        let mut tries = (0..TRIES).map(|_| sleeps_in(mode, epoll)).inspect(|sleeps| println!("{sleeps} sleeps"));
        let once = tries.any(|sleeps| sleeps < REQUESTS * 3 / 2);
        assert!(once, "{mode}, epoll {epoll}: so many sleeps each time for {REQUESTS} requests");
    }
}
