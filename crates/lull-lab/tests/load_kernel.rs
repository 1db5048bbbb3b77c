//! The generator over kernel sockets against lull's own service on a loopback socket.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use lull_lab::load::kernel::{KernelClient, KernelConfig};
use lull_lab::load::{Arrivals, DEPTH_MAX, LoadError, Pace, Summary, Workload, WorkloadConfig};
use lull_lab::memcached::{Session, Store, StoreConfig};

const NOW_S: u32 = 1_700_000_000;
/// The events that a test waits for take far less on any machine.
const LOST: Duration = Duration::from_secs(120);

/// A server with a thread for each connection. `Drop` stops it.
struct Server {
    address: SocketAddr,
    store: Arc<Store>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    fn start(address: &str) -> Option<Server> {
        let listener = TcpListener::bind(address).ok()?;
        let address = listener.local_addr().expect("a bound socket has an address");
        let store = Arc::new(Store::new(StoreConfig::default()));
        let stop = Arc::new(AtomicBool::new(false));
        let thread = std::thread::spawn({
            let (store, stop) = (store.clone(), stop.clone());
            move || {
                for stream in listener.incoming() {
                    if stop.load(Relaxed) {
                        return;
                    }
                    let store = store.clone();
                    std::thread::spawn(move || serve(stream.expect("a connection"), &store));
                }
            }
        });
        Some(Server { address, store, stop, thread: Some(thread) })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        let _ = TcpStream::connect(self.address);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn serve(mut stream: TcpStream, store: &Store) {
    store.connection_opened();
    let _ = stream.set_nodelay(true);
    let (mut session, mut input, mut out) = (Session::new(), vec![0; 4096], Vec::new());
    'connection: while let Ok(bytes @ 1..) = stream.read(&mut input) {
        let mut at = 0;
        loop {
            let fed = session.feed(&input[at..bytes], &mut out, store, NOW_S);
            at += fed.consumed;
            if stream.write_all(&out).is_err() || fed.close {
                break 'connection;
            }
            out.clear();
            if !fed.blocked {
                break;
            }
        }
    }
    store.connection_closed();
}

fn workload(records: u64) -> Arc<Workload> {
    Arc::new(Workload::new(WorkloadConfig { records, ..WorkloadConfig::default() }).expect("a valid workload"))
}

/// Runs until there are answers to requests from after the warm-up, however long that takes.
fn run_until_answered(client: &mut KernelClient, load: Pace, store: &Store) -> Summary {
    const WARM_UP: Duration = Duration::from_millis(20);
    let stop = AtomicBool::new(false);
    let answered = || store.stats().counters.get_hits + store.stats().counters.cmd_set;
    let until_more = |count: u64| {
        let (start, wanted) = (Instant::now(), answered() + count);
        while answered() < wanted && start.elapsed() < LOST {
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            until_more(1);
            std::thread::sleep(WARM_UP);
            until_more(100);
            stop.store(true, Relaxed);
        });
        client.run(load, WARM_UP, 2 * LOST, &stop).expect("a whole run")
    })
}

fn exercise(config: KernelConfig, server: &Server) {
    let stop = AtomicBool::new(false);
    let workload = workload(500);
    let connections = config.connections;
    let mut client = KernelClient::connect(config, workload, LOST).expect("connected");
    assert_eq!(client.established(), connections);

    let preload = client.preload(&stop).expect("preloaded");
    assert_eq!((preload.stored, preload.errors, preload.lost), (500, 0, 0));
    assert_eq!(server.store.stats().curr_items, 500);

    let arrivals = Arrivals::Exponential;
    for load in [Pace::Open { qps: 3000.0, arrivals, depth: 2 }, Pace::Closed { depth: 2 }] {
        let summary = run_until_answered(&mut client, load, &server.store);
        assert!(summary.sent > 0 && summary.received >= summary.sent, "{load:?}: {summary:?}");
        assert_eq!((summary.misses, summary.errors, summary.lost, summary.unanswered), (0, 0, 0, 0), "{load:?}");
        assert_eq!(summary.hits + summary.stored, summary.received);
        assert!(summary.latency_p50_ns > 0 && summary.latency_p50_ns <= summary.latency_max_ns);
    }
}

#[test]
fn one_blocking_thread() {
    let server = Server::start("127.0.0.1:0").expect("a loopback socket");
    exercise(KernelConfig::new(server.address, 8), &server);
}

#[test]
fn two_spinning_threads() {
    let server = Server::start("127.0.0.1:0").expect("a loopback socket");
    exercise(KernelConfig { threads: 2, spin: true, ..KernelConfig::new(server.address, 7) }, &server);
}

/// Without a warm-up every request counts that was due in the window.
#[test]
fn repetitions_have_arrivals_of_their_own_and_clients_of_one_seed_the_same() {
    let server = Server::start("127.0.0.1:0").expect("a loopback socket");
    let config = KernelConfig { threads: 2, ..KernelConfig::new(server.address, 8) };
    let (workload, stop) = (workload(500), AtomicBool::new(false));
    let connect = || KernelClient::connect(config.clone(), workload.clone(), LOST).expect("connected");
    let (mut one, mut other) = (connect(), connect());
    one.preload(&stop).expect("preloaded");
    let due = |client: &mut KernelClient, run| {
        client.set_run(run);
        // No connection reaches this depth. Otherwise a stall would give the later times to other connections.
        let load = Pace::Open { qps: 1000.0, arrivals: Arrivals::Exponential, depth: DEPTH_MAX };
        let begun = Instant::now();
        loop {
            let window = Duration::from_millis(200);
            let summary = client.run(load, Duration::ZERO, window, &stop).expect("a whole run");
            // On a busy machine not all requests leave before the end.
            if summary.backlog == 0 {
                return summary.sent;
            }
            assert!(begun.elapsed() < LOST, "no run sends all that is due: {summary:?}");
        }
    };
    let first = due(&mut one, 0);
    assert_eq!([due(&mut one, 0), due(&mut other, 0)], [first; 2]);
    assert_ne!(due(&mut one, 1), first);
    assert_eq!(due(&mut other, 1), due(&mut one, 1));
}

#[test]
fn ipv6() {
    let Some(server) = Server::start("[::1]:0") else {
        println!("SKIP: ipv6: this machine has no IPv6 loopback address");
        return;
    };
    exercise(KernelConfig::new(server.address, 3), &server);
}

#[test]
fn a_stopped_run_ends_and_counts_what_it_saw() {
    let server = Server::start("127.0.0.1:0").expect("a loopback socket");
    let config = KernelConfig::new(server.address, 2);
    let mut client = KernelClient::connect(config, workload(10), LOST).expect("connected");
    let stop = AtomicBool::new(true);
    let hour = Duration::from_secs(3600);
    let summary = client.run(Pace::Closed { depth: 1 }, Duration::ZERO, hour, &stop).expect("a stopped run");
    assert!(summary.duration_s < 60.0);
}

#[test]
fn a_server_that_is_not_there_is_an_error() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a loopback socket");
    let address = listener.local_addr().expect("a bound socket has an address");
    drop(listener);
    let result = KernelClient::connect(KernelConfig::new(address, 2), workload(10), Duration::from_secs(1));
    let Err(LoadError::Connect { connected: 0, wanted: 2, why }) = result else { panic!("{result:?}") };
    assert!(why.contains("refused"), "{why}");
}

#[test]
fn a_server_that_falls_silent_is_an_error() {
    // The kernel accepts on the listener's behalf, and no answer comes.
    let listener = TcpListener::bind("127.0.0.1:0").expect("a loopback socket");
    let address = listener.local_addr().expect("a bound socket has an address");
    let config = KernelConfig { silence_ns_max: 100_000_000, ..KernelConfig::new(address, 2) };
    let mut client = KernelClient::connect(config, workload(10), LOST).expect("connected");
    let stop = AtomicBool::new(false);
    let result = client.run(Pace::Closed { depth: 1 }, Duration::ZERO, Duration::from_secs(3600), &stop);
    assert!(matches!(result, Err(LoadError::NoProgress { outstanding: 2, .. })), "{result:?}");
}

/// Runs a server that answers each request of every connection by `answer`. `None` resets the connection.
fn fake(
    answer: impl Fn(u64) -> Option<&'static [u8]> + Send + 'static,
) -> (SocketAddr, JoinHandle<u64>, Arc<AtomicBool>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a loopback socket");
    let address = listener.local_addr().expect("a bound socket has an address");
    listener.set_nonblocking(true).expect("a socket that does not block");
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = stop.clone();
    let thread = std::thread::spawn(move || {
        let (mut connections, mut input, mut requests): (Vec<TcpStream>, _, _) = (Vec::new(), [0; 4096], 0);
        while !stopped.load(Relaxed) {
            if let Ok((stream, _)) = listener.accept() {
                stream.set_nonblocking(true).expect("a socket that does not block");
                connections.push(stream);
            }
            connections.retain_mut(|stream| match stream.read(&mut input) {
                Ok(0) => false,
                Ok(_) => {
                    requests += 1;
                    // Unread input or unsent output turns the end of a connection into a reset. Either loses the
                    // request.
                    answer(requests).is_some_and(|answer| stream.write_all(answer).is_ok())
                }
                Err(error) => error.kind() == std::io::ErrorKind::WouldBlock,
            });
            std::thread::yield_now();
        }
        requests
    });
    (address, thread, stop)
}

#[test]
fn a_preload_that_is_answered_by_errors_is_an_error() {
    let (address, server, over) = fake(|_| Some(b"SERVER_ERROR out of memory storing object\r\n"));
    // One request is outstanding at a time, because the fake server answers everything that it reads by one line.
    let config = KernelConfig::new(address, 1);
    let mut client = KernelClient::connect(config, workload(1), LOST).expect("connected");
    let result = client.preload(&AtomicBool::new(false));
    let Err(LoadError::Preload { sent: 1, stored: 0, errors: 1, unanswered: 0 }) = result else {
        panic!("{result:?}");
    };
    over.store(true, Relaxed);
    server.join().expect("the server has ended");
}

#[test]
fn requests_that_go_down_with_their_connection_are_counted() {
    let (address, server, over) = fake(|request| (request % 100 != 0).then_some(&b"END\r\n"[..]));
    let config = WorkloadConfig { records: 10, update_ratio: 0.0, ..WorkloadConfig::default() };
    let workload = Arc::new(Workload::new(config).expect("a valid workload"));
    let mut client = KernelClient::connect(KernelConfig::new(address, 4), workload, LOST).expect("connected");
    let mut window = Duration::from_millis(200);
    let summary = loop {
        let summary =
            client.run(Pace::Closed { depth: 1 }, Duration::ZERO, window, &AtomicBool::new(false)).expect("a run");
        if summary.received > 0 && summary.lost > 0 {
            break summary;
        }
        assert!(window < LOST, "{summary:?}");
        window *= 4;
    };
    assert_eq!((summary.without_answer(), summary.reconnects), (summary.lost + summary.unanswered, summary.lost));
    drop(client);
    over.store(true, Relaxed);
    server.join().expect("the server has ended");
}

#[test]
fn what_is_due_together_on_a_connection_is_written_together() {
    const DEPTH: u16 = 4;
    let listener = TcpListener::bind("127.0.0.1:0").expect("a loopback socket");
    let address = listener.local_addr().expect("a bound socket has an address");
    let stop = Arc::new(AtomicBool::new(false));
    let stops = stop.clone();
    // All answers come by one write, and so do the next requests.
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a connection");
        let (mut input, mut requests) = ([0; 4096], Vec::new());
        while let Ok(bytes @ 1..) = stream.read(&mut input) {
            let count = input[..bytes].iter().filter(|byte| **byte == b'\n').count();
            requests.push(count);
            stops.store(requests.len() >= 50, Relaxed);
            stream.write_all(&b"END\r\n".repeat(count)).expect("answered");
        }
        requests
    });
    let config = WorkloadConfig { records: 500, update_ratio: 0.0, ..WorkloadConfig::default() };
    let workload = Arc::new(Workload::new(config).expect("a valid workload"));
    let mut client = KernelClient::connect(KernelConfig::new(address, 1), workload, LOST).expect("connected");
    let summary = client.run(Pace::Closed { depth: DEPTH }, Duration::ZERO, 2 * LOST, &stop).expect("a whole run");
    drop(client);
    let requests = server.join().expect("the server has ended");
    assert_eq!((summary.errors, summary.lost, summary.unanswered), (0, 0, 0));
    assert!(requests.len() >= 50 && requests.iter().all(|each| *each == usize::from(DEPTH)), "{requests:?}");
}
