//! The service over the kernel's sockets on the loopback device, with clients that speak the protocol byte by byte and
//! misbehave.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use lull_lab::memcached::{Store, StoreConfig};
use lull_lab::service::{KernelService, Limits};

/// The events that a test waits for take far less on any machine.
const LOST: Duration = Duration::from_secs(120);
const BIG: usize = 1_000_000;

struct World {
    address: SocketAddr,
    store: Arc<Store>,
    _service: KernelService,
}

impl World {
    fn new(limits: Limits) -> World {
        // Another process that looks for a free port meanwhile may get the same one. Then the next one is tried.
        for _ in 0..100 {
            let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
            let store = Arc::new(Store::new(StoreConfig::default()));
            let core = lull_host::usable_cores()[0];
            match KernelService::on_kernel(free, &[core], store.clone(), limits) {
                Ok(service) => return World { address: free, store, _service: service },
                Err(error) => assert_eq!(error.kind(), ErrorKind::AddrInUse, "{error}"),
            }
        }
        panic!("there is no free port");
    }

    fn connect(&self) -> TcpStream {
        let client = TcpStream::connect(self.address).unwrap();
        client.set_read_timeout(Some(LOST)).unwrap();
        client.set_write_timeout(Some(LOST)).unwrap();
        client
    }

    fn until(&self, what: &str, condition: impl Fn(&Store) -> bool) {
        let start = Instant::now();
        while !condition(&self.store) {
            assert!(start.elapsed() < LOST, "{what} did not come: {:?}", self.store.stats());
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

fn ask(client: &mut TcpStream, request: &[u8], reply: &[u8]) {
    client.write_all(request).unwrap();
    let mut got = vec![0; reply.len()];
    client.read_exact(&mut got).unwrap();
    assert_eq!(String::from_utf8_lossy(&got), String::from_utf8_lossy(reply));
}

#[test]
fn pipelined_large_reads_come_whole() {
    let world = World::new(Limits::default());
    let mut client = world.connect();
    let set = [format!("set big 0 0 {BIG}\r\n").as_bytes(), &vec![b'v'; BIG], b"\r\n"].concat();
    ask(&mut client, &set, b"STORED\r\n");
    const READS: usize = 20;
    client.write_all(&b"get big\r\n".repeat(READS)).unwrap();
    let one = [format!("VALUE big 0 {BIG}\r\n").as_bytes(), &vec![b'v'; BIG], b"\r\nEND\r\n"].concat();
    let mut got = vec![0; one.len()];
    for read in 0..READS {
        client.read_exact(&mut got).unwrap();
        assert!(got == one, "reply {read} is another");
    }
    ask(&mut client, b"get none\r\n", b"END\r\n");
    // Replies before the end are sent, too.
    client.write_all(b"get big\r\nquit\r\n").unwrap();
    let mut rest = Vec::new();
    client.read_to_end(&mut rest).unwrap();
    assert!(rest == one, "{} bytes before the end", rest.len());
}

#[test]
fn a_client_without_a_slot_is_told_and_counted() {
    let world = World::new(Limits { connections_max: 2, ..Limits::default() });
    let mut first = world.connect();
    let mut second = world.connect();
    ask(&mut first, b"get a\r\n", b"END\r\n");
    ask(&mut second, b"get a\r\n", b"END\r\n");
    for refused in 1..=3 {
        let mut told = String::new();
        world.connect().read_to_string(&mut told).unwrap();
        assert_eq!(told, "ERROR Too many open connections\r\n");
        assert_eq!(world.store.stats().rejected_connections, refused);
    }
    ask(&mut first, b"get a\r\n", b"END\r\n");
    drop(second);
    world.until("the free slot", |store| store.stats().curr_connections == 1);
    ask(&mut world.connect(), b"get a\r\n", b"END\r\n");
}

#[test]
fn an_idle_client_gives_its_slot_back() {
    let idle_timeout = Some(Duration::from_millis(200));
    let world = World::new(Limits { idle_timeout, ..Limits::default() });
    let mut idle = world.connect();
    world.until("the end of the idle client", |store| store.stats().idle_kicks == 1);
    assert_eq!(idle.read(&mut [0]).unwrap(), 0, "it is closed in good order");
    assert_eq!(world.store.stats().curr_connections, 0);
}

#[test]
fn a_busy_client_outlives_an_idle_one_that_came_later() {
    // On a machine that stalls, the busy client is idle, too. Then the test is repeated with more time.
    for idle_timeout in [500, 5_000, 50_000].map(Duration::from_millis) {
        let world = World::new(Limits { idle_timeout: Some(idle_timeout), ..Limits::default() });
        let mut busy = world.connect();
        let (mut asked, mut longest) = (Instant::now(), Duration::ZERO);
        let _idle = world.connect();
        loop {
            let over = world.store.stats().idle_kicks > 0;
            let before = std::mem::replace(&mut asked, Instant::now());
            let answered = busy.write_all(b"get a\r\n").and_then(|()| busy.read_exact(&mut [0; 5]));
            // The service was never without a request for longer than from one request to the answer of the next.
            longest = longest.max(before.elapsed());
            if longest >= idle_timeout {
                break;
            }
            answered.unwrap();
            if over {
                assert_eq!((world.store.stats().idle_kicks, world.store.stats().curr_connections), (1, 1));
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    panic!("nobody was busy for long enough");
}

#[test]
fn a_client_that_asks_and_does_not_read_keeps_nobody_waiting() {
    let world = World::new(Limits::default());
    let mut client = world.connect();
    let set = [format!("set big 0 0 {BIG}\r\n").as_bytes(), &vec![b'v'; BIG], b"\r\n"].concat();
    ask(&mut client, &set, b"STORED\r\n");
    let mut greedy = world.connect();
    greedy.set_nonblocking(true).unwrap();
    let request = b"get big\r\n".repeat(10_000);
    // The client's window closes, and with it the service's.
    while greedy.write(&request).is_ok() {}
    for _ in 0..100 {
        ask(&mut client, b"get none\r\n", b"END\r\n");
    }
    assert_eq!(world.store.stats().curr_connections, 2);
}
