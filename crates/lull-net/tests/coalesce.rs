//! No answer stays behind while its thread waits. Each test is for one place where a thread may wait, with a bound so
//! long that nothing else would send the answer.

mod pair;
mod wrapped;

use std::io::{ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use lull_net::{Epoll, EpollParams, Interest, NapiSettings, Shutdown, TcpStream, UdpSocket, Worker};
use lull_nic::{Device, Doorbell, Frame, FramePool, Queue, TxQueue};
use pair::{CLIENT, LOST, Pair, SERVER, until, wait};
use wrapped::Wrapped;

const HOUR_NS: u64 = 3_600_000_000_000;
const SHORT: Duration = Duration::from_millis(1);

/// What a thread that answers has.
struct Served<'a> {
    pair: &'a Pair,
    worker: &'a Worker,
    epoll: &'a Epoll,
    stream: &'a TcpStream,
    /// Another connection, whose peer reads nothing.
    other: &'a TcpStream,
    /// Frames that were sent before the answers.
    frames_before: u64,
}

/// How many frames the server has sent, without its questions for neighbours.
fn frames(pair: &Pair) -> u64 {
    pair.server.stack_counters().iter().map(|counters| counters.tx_frames - counters.neighbour_requests).sum()
}

/// A thread answers twice in one batch, so that the second answer is held back, and goes on with `then`. By the end of
/// that the answer has left, and not only with something later, such as an acknowledgement. The client gets both
/// answers.
fn answered(what: &str, coalesce_ns: u64, then: impl FnOnce(&Served) + Send) {
    let pair = Pair::coalescing(coalesce_ns);
    let ((server, mut client), (other, _reads_nothing)) = (pair.connected(7), pair.connected(8));
    // Nagle's algorithm would hold the second answer back as well.
    server.set_nodelay(true).unwrap();
    let (go_on, may_go_on): (Sender<()>, Receiver<()>) = channel();
    std::thread::scope(|scope| {
        let (pair, server, other) = (&pair, &server, &other);
        let thread = scope.spawn(move || {
            let worker = pair.worker();
            let epoll = pair.epoll(server, Interest::READABLE);
            assert_eq!(wait(&epoll, &worker, 8, LOST).len(), 1);
            assert_eq!(server.recv(&mut [0; 8]).unwrap(), 1);
            let before = frames(pair);
            assert_eq!((server.send(b"a").unwrap(), server.send(b"b").unwrap()), (1, 1));
            then(&Served { pair, worker: &worker, epoll: &epoll, stream: server, other, frames_before: before });
            assert!(frames(pair) >= before + 2, "{what}: an answer is still held back");
            // What this thread does afterwards must not be what sends the answer.
            may_go_on.recv_timeout(LOST)
        });
        client.write_all(b"?").unwrap();
        client.set_read_timeout(Some(LOST)).unwrap();
        let mut answers = [0; 2];
        client.read_exact(&mut answers).unwrap_or_else(|error| panic!("{what}: {error}"));
        assert_eq!(&answers, b"ab", "{what}");
        let held_back: u64 = pair.server.stack_counters().iter().map(|counters| counters.tcp_held_back).sum();
        assert_ne!(held_back, 0, "{what}: it was held back before");
        // A thread that has ended does not receive this.
        let _ = go_on.send(());
        let _ = thread.join().unwrap();
    });
}

fn nobody(port: u16) -> SocketAddr {
    SocketAddr::new("10.0.0.9".parse().unwrap(), port)
}

fn blocks(result: std::io::Result<impl std::fmt::Debug>) {
    let error = result.unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut), "{error}");
}

#[test]
fn a_wait_for_events_lets_go() {
    answered("epoll_wait", HOUR_NS, |served| {
        assert!(wait(served.epoll, served.worker, 8, SHORT).is_empty());
    });
}

#[test]
fn a_look_for_events_lets_go() {
    answered("epoll_wait with no timeout", HOUR_NS, |served| {
        assert!(wait(served.epoll, served.worker, 8, Duration::ZERO).is_empty());
    });
}

#[test]
fn a_wait_for_other_sockets_lets_go() {
    answered("epoll_wait on another context", HOUR_NS, |served| {
        let listener = served.pair.listener(9);
        let other = served.pair.epoll(&listener, Interest::READABLE);
        assert!(wait(&other, served.worker, 8, SHORT).is_empty());
    });
}

#[test]
fn a_read_that_blocks_lets_go() {
    answered("read", HOUR_NS, |served| {
        served.stream.set_read_timeout(Some(SHORT)).unwrap();
        blocks(served.stream.recv(&mut [0; 8]));
    });
}

#[test]
fn a_read_that_would_block_lets_go() {
    answered("read, nonblocking", HOUR_NS, |served| {
        served.stream.set_nonblocking(true).unwrap();
        blocks(served.stream.recv(&mut [0; 8]));
    });
}

/// Three connections have events in one batch, and one of them is answered twice, so that something is held back.
#[test]
fn a_server_that_reads_until_nothing_is_there_lets_go_behind_the_last_event() {
    let pair = Pair::coalescing(HOUR_NS);
    let mut connections: Vec<_> = (7..10).map(|port| pair.connected(port)).collect();
    let (worker, epoll) = (pair.worker(), Epoll::new(&pair.host));
    for (server, client) in &mut connections {
        server.set_nodelay(true).unwrap();
        server.set_nonblocking(true).unwrap();
        client.write_all(b"?").unwrap();
        epoll.add(server, 1, Interest::READABLE).unwrap();
    }
    // Data that are not read are reported again, so that one batch has all three events.
    while wait(&epoll, &worker, 8, LOST).len() < connections.len() {}
    let mut held_back = Vec::new();
    for (server, _) in &connections {
        assert_eq!(server.recv(&mut [0; 8]).unwrap(), 1);
        assert_eq!((server.send(b"a").unwrap(), server.send(b"b").unwrap()), (1, 1));
        blocks(server.recv(&mut [0; 8]));
        held_back.push(lull_net::holds_back());
    }
    assert_eq!(held_back, [true, true, false]);
    for (_, client) in &mut connections {
        client.set_read_timeout(Some(LOST)).unwrap();
        client.read_exact(&mut [0; 2]).unwrap();
    }
}

/// There is room only once the peer acknowledges what the connection itself holds back.
#[test]
fn a_write_without_room_lets_go_also_where_the_batch_has_more_events() {
    let pair = Pair::coalescing(HOUR_NS);
    let mut connections: Vec<_> = (7..9).map(|port| pair.connected(port)).collect();
    let (worker, epoll) = (pair.worker(), Epoll::new(&pair.host));
    for (server, client) in &mut connections {
        server.set_nonblocking(true).unwrap();
        client.write_all(b"?").unwrap();
        epoll.add(server, 1, Interest::READABLE).unwrap();
    }
    while wait(&epoll, &worker, 8, LOST).len() < connections.len() {}
    let (server, _) = &connections[0];
    let error = loop {
        if let Err(error) = server.send(&[0; 4096]) {
            break error;
        }
    };
    blocks(Err::<(), _>(error));
    assert!(!lull_net::holds_back());
}

#[test]
fn a_write_that_blocks_lets_go() {
    answered("write", HOUR_NS, |served| {
        served.other.set_write_timeout(Some(SHORT)).unwrap();
        let error = loop {
            if let Err(error) = served.other.send(&[0; 4096]) {
                break error;
            }
        };
        blocks(Err::<(), _>(error));
    });
}

#[test]
fn an_accept_lets_go() {
    answered("accept, nonblocking", HOUR_NS, |served| {
        let listener = served.pair.listener(9);
        listener.set_nonblocking(true).unwrap();
        blocks(listener.accept());
    });
}

#[test]
fn a_connect_lets_go() {
    answered("connect", HOUR_NS, |served| {
        let failed = TcpStream::connect_timeout(&served.pair.server, nobody(8), SHORT).unwrap_err();
        // A thread that has no core for seconds may learn first that nobody has the address.
        assert!(matches!(failed.kind(), ErrorKind::TimedOut | ErrorKind::HostUnreachable), "{failed}");
    });
}

#[test]
fn a_wait_for_datagrams_lets_go() {
    answered("recv_from", HOUR_NS, |served| {
        let socket = UdpSocket::bind(&served.pair.server, (SERVER, 9)).unwrap();
        socket.set_read_timeout(Some(SHORT)).unwrap();
        blocks(socket.recv_from(&mut [0; 8]).map(drop));
    });
}

#[test]
fn whoever_is_about_to_wait_elsewhere_lets_go() {
    answered("about_to_wait", HOUR_NS, |_| lull_net::about_to_wait());
}

#[test]
fn the_end_of_the_thread_lets_go() {
    let pair = Pair::coalescing(HOUR_NS);
    let (server, mut client) = pair.connected(7);
    server.set_nodelay(true).unwrap();
    client.write_all(b"?").unwrap();
    let before = frames(&pair);
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let worker = pair.worker();
            let epoll = pair.epoll(&server, Interest::READABLE);
            assert_eq!(wait(&epoll, &worker, 8, LOST).len(), 1);
            assert_eq!((server.send(b"a").unwrap(), server.send(b"b").unwrap()), (1, 1));
        });
        thread.join().unwrap();
    });
    assert!(frames(&pair) >= before + 2, "an answer is still held back");
    client.set_read_timeout(Some(LOST)).unwrap();
    let mut answers = [0; 2];
    client.read_exact(&mut answers).unwrap();
    assert_eq!(&answers, b"ab");
}

#[test]
fn a_shutdown_lets_go() {
    answered("shutdown", HOUR_NS, |served| served.stream.shutdown(Shutdown::Write).unwrap());
}

#[test]
fn a_thread_that_waits_where_lull_does_not_see_it_is_bounded() {
    answered("a channel of the standard library", 500_000, |served| {
        until("what is held back leaves", || frames(served.pair) >= served.frames_before + 2);
    });
}

#[test]
fn a_child_of_fork_forgets_what_its_parent_holds_back() {
    // If this thread is kept from its CPU for long, the client acknowledges the first answer, which sends the second
    // one. This does not happen in every try.
    let mut tries = (0..20).map(|_| frames_let_go_of_by_who_forgot_them());
    assert!(tries.any(|frames| frames == 0), "what was forgotten is let go of each time");
}

/// A thread holds an answer back, forgets it, and is about to wait. Returns how many frames leave meanwhile.
fn frames_let_go_of_by_who_forgot_them() -> u64 {
    let pair = Pair::coalescing(HOUR_NS);
    let (server, client) = pair.connected(7);
    server.set_nodelay(true).unwrap();
    (&client).write_all(b"?").unwrap();
    let worker = pair.worker();
    let epoll = pair.epoll(&server, Interest::READABLE);
    assert_eq!(wait(&epoll, &worker, 8, LOST).len(), 1);
    assert_eq!(server.recv(&mut [0; 8]).unwrap(), 1);
    assert_eq!((server.send(b"a").unwrap(), server.send(b"b").unwrap()), (1, 1));
    lull_net::forget_held_back();
    let before = frames(&pair);
    lull_net::about_to_wait();
    let let_go = frames(&pair) - before;
    // The answer is still there, and leaves when the connection is closed.
    drop((epoll, server));
    client.set_read_timeout(Some(LOST)).unwrap();
    let mut answers = Vec::new();
    (&client).read_to_end(&mut answers).unwrap();
    assert_eq!(answers, b"ab");
    let_go
}

/// It writes in the destructor of a thread-local of its own, which runs after all of lull's.
struct WritesLast(std::cell::RefCell<Option<Arc<TcpStream>>>);

impl Drop for WritesLast {
    fn drop(&mut self) {
        let server = self.0.take().unwrap();
        // An acknowledgement that comes later would also send what waits.
        until("both are acknowledged", || server.info().is_ok_and(|info| info.in_flight + info.unsent == 0));
        assert_eq!((server.send(b"c").unwrap(), server.send(b"d").unwrap()), (1, 1));
    }
}

thread_local! {
    static WRITES_LAST: WritesLast = const { WritesLast(std::cell::RefCell::new(None)) };
}

#[test]
fn what_a_thread_writes_while_it_ends_leaves_at_once() {
    let pair = Pair::coalescing(HOUR_NS);
    let (server, mut client) = pair.connected(7);
    // The socket outlives the thread, because closing it would send the rest.
    let server = Arc::new(server);
    server.set_nodelay(true).unwrap();
    client.write_all(b"?").unwrap();
    client.set_read_timeout(Some(LOST)).unwrap();
    std::thread::scope(|scope| {
        let (pair, server) = (&pair, &server);
        scope.spawn(move || {
            // The local that is made first is dropped last.
            WRITES_LAST.with(|last| last.0.borrow().is_some());
            let (worker, epoll) = (pair.worker(), pair.epoll(&**server, Interest::READABLE));
            assert_eq!(wait(&epoll, &worker, 8, LOST).len(), 1);
            assert_eq!(server.recv(&mut [0; 8]).unwrap(), 1);
            assert_eq!((server.send(b"a").unwrap(), server.send(b"b").unwrap()), (1, 1));
            WRITES_LAST.with(|last| *last.0.borrow_mut() = Some(server.clone()));
        });
        let mut answers = [0; 4];
        client.read_exact(&mut answers).unwrap();
        assert_eq!(&answers, b"abcd");
    });
}

/// A transmit half that counts the doorbells which have something to send.
struct Rings {
    inner: Box<dyn TxQueue>,
    staged: bool,
    rings: Arc<AtomicU64>,
}

impl TxQueue for Rings {
    fn transmit(&mut self, frame: Frame) -> Result<(), Frame> {
        self.staged = true;
        self.inner.transmit(frame)
    }

    fn doorbell(&mut self) -> Doorbell {
        self.rings.fetch_add(u64::from(std::mem::take(&mut self.staged)), Ordering::Relaxed);
        self.inner.doorbell()
    }

    fn free_slots(&self) -> usize {
        self.inner.free_slots()
    }

    fn reap_sent(&mut self, pool: &mut FramePool) -> usize {
        self.inner.reap_sent(pool)
    }
}

/// A server whose doorbells are expensive or not, and how often one has rung.
fn over_counted_doorbells(dear_doorbell: bool, coalesce_ns: u64) -> (Pair, Arc<AtomicU64>) {
    let rings = Arc::new(AtomicU64::new(0));
    let counted = rings.clone();
    let count = move |mut queue: Queue| {
        queue.tx = Box::new(Rings { inner: queue.tx, staged: false, rings: counted.clone() });
        queue
    };
    let wrap = |inner| Arc::new(Wrapped { dear_doorbell, ..Wrapped::new(inner, count) }) as Arc<dyn Device>;
    (Pair::coalescing_over(wrap, coalesce_ns), rings)
}

/// Forty connections have an answer each in one batch. Returns how many doorbells rang for them before the thread waits
/// again, and in all.
fn doorbells_of_forty_answers(dear_doorbell: bool) -> (u64, u64) {
    // A thread that is kept from its CPU is not quick, and the stack acknowledges a request before its answer, which
    // rings as well. This does not happen in every try.
    let mut tries = (0..20).map(|_| doorbells_and_frames(dear_doorbell)).filter(|(.., frames)| *frames == 40);
    let fewest = tries
        .by_ref()
        .min_by_key(|(meanwhile, rung, _)| (*rung, *meanwhile))
        .expect("more than the answers leaves each time");
    (fewest.0, fewest.1)
}

/// As above, and returns how many frames left in all.
fn doorbells_and_frames(dear_doorbell: bool) -> (u64, u64, u64) {
    let (pair, rings) = over_counted_doorbells(dear_doorbell, HOUR_NS);
    let mut connections: Vec<_> = (7..47).map(|port| pair.connected(port)).collect();
    let worker = pair.worker();
    let epoll = Epoll::new(&pair.host);
    for (server, client) in &mut connections {
        // From the second request on, its acknowledgement waits for the answer.
        client.write_all(b"?").unwrap();
        assert_eq!((server.recv(&mut [0; 8]).unwrap(), server.send(b"a").unwrap()), (1, 1));
        client.set_read_timeout(Some(LOST)).unwrap();
        client.read_exact(&mut [0; 1]).unwrap();
        epoll.add(server, 1, Interest::READABLE).unwrap();
        client.write_all(b"?").unwrap();
    }
    // Data that are not read are reported again, so that one batch has all of them.
    while wait(&epoll, &worker, 64, LOST).len() < connections.len() {}
    let (frames_before, before) = (frames(&pair), rings.load(Ordering::Relaxed));
    for (server, _) in &connections {
        assert_eq!((server.recv(&mut [0; 8]).unwrap(), server.send(b"a").unwrap()), (1, 1));
    }
    let meanwhile = rings.load(Ordering::Relaxed) - before;
    assert!(wait(&epoll, &worker, 8, Duration::ZERO).is_empty());
    let (rung, sent) = (rings.load(Ordering::Relaxed) - before, frames(&pair) - frames_before);
    for (_, client) in &mut connections {
        client.set_read_timeout(Some(LOST)).unwrap();
        client.read_exact(&mut [0; 1]).unwrap();
    }
    (meanwhile, rung, sent)
}

/// Sends twenty datagrams to as many peers, in turn or each by itself. Returns how many doorbells had rung after the
/// last send, and how many once the turn was over.
fn doorbells_of_datagrams(in_turn: bool) -> (u64, u64) {
    let (pair, rings) = over_counted_doorbells(true, HOUR_NS);
    let server = UdpSocket::bind(&pair.server, (SERVER, 7)).unwrap();
    let clients: Vec<_> = (0..20).map(|_| UdpSocket::bind(&pair.client, "0.0.0.0:0").unwrap()).collect();
    let to: Vec<_> = clients.iter().map(|client| (CLIENT, client.local_addr().unwrap().port())).collect();
    // From here on, the peers' station is known.
    clients[0].send_to(b"?", (SERVER, 7)).unwrap();
    assert_eq!(server.recv(&mut [0; 8]).unwrap(), 1);
    let before = rings.load(Ordering::Relaxed);
    let together = in_turn.then(|| lull_net::in_turn(to.len()));
    to.iter().for_each(|to| assert_eq!(server.send_to(b"a", to).unwrap(), 1));
    let meanwhile = rings.load(Ordering::Relaxed) - before;
    drop(together);
    let rung = rings.load(Ordering::Relaxed) - before;
    for client in &clients {
        client.set_read_timeout(Some(LOST)).unwrap();
        assert_eq!(client.recv(&mut [0; 8]).unwrap(), 1);
    }
    (meanwhile, rung)
}

#[test]
fn datagrams_that_are_sent_in_turn_share_a_doorbell() {
    assert_eq!(doorbells_of_datagrams(false), (20, 20));
    // A thread that is kept from its CPU is not quick, so not every try shares one doorbell.
    let fewest = (0..20).map(|_| doorbells_of_datagrams(true)).min_by_key(|(meanwhile, rung)| (*rung, *meanwhile));
    assert_eq!(fewest, Some((0, 1)));
}

/// Only the doorbell waits, and the thread does nothing that lull sees. As the NAPI is suspended, it is not polled for
/// acknowledgements, and nothing is sent again for want of them.
#[test]
fn a_doorbell_that_is_held_back_rings_when_its_time_is_up() {
    let (pair, rings) = over_counted_doorbells(true, 1_000_000);
    let suspending = NapiSettings {
        defer_hard_irqs: 3,
        gro_flush_timeout_ns: 5_000_000,
        irq_suspend_timeout_ns: HOUR_NS,
        ..NapiSettings::default()
    };
    pair.server.set_napi_all(&suspending).unwrap();
    let mut connections: Vec<_> = (7..17).map(|port| pair.connected(port)).collect();
    let (worker, epoll) = (pair.worker(), Epoll::new(&pair.host));
    let params = EpollParams { busy_poll_budget: 64, prefer_busy_poll: true, ..EpollParams::default() };
    epoll.set_busy_poll(&params, false).unwrap();
    for (server, client) in &mut connections {
        client.write_all(b"?").unwrap();
        epoll.add(server, 1, Interest::READABLE).unwrap();
    }
    // An acknowledgement that is owed would ring as well.
    let owed = || connections.iter().any(|(_, client)| client.info().unwrap().in_flight != 0);
    until("the requests are acknowledged", || !owed());
    let stats = || pair.host.napi_stats(pair.server.napis()[0]);
    let sent_again = || connections.iter().map(|(server, _)| server.info().unwrap().retransmits).sum::<u32>();
    // A thread that is kept from its CPU is not quick, or a timer of TCP's fires first. This does not happen in every
    // try.
    let rang = (0..20).any(|_| {
        let suspends = stats().suspends;
        while wait(&epoll, &worker, 16, LOST).len() < connections.len() {}
        let (polls, again) = (stats().polls, sent_again());
        let mut before = 0;
        for (server, _) in &connections[..3] {
            before = rings.load(Ordering::Relaxed);
            assert_eq!(server.send(b"a").unwrap(), 1);
        }
        let waits = lull_net::holds_back() && stats().suspends > suspends && rings.load(Ordering::Relaxed) == before;
        if waits {
            until("the doorbell rings", || rings.load(Ordering::Relaxed) > before);
        }
        waits && (stats().polls, sent_again()) == (polls, again)
    });
    assert!(rang, "it rings for a poll or what is sent again alone");
}

/// A thread outside of any batch does not come back to send its frames, so they leave, and with them what waited.
#[test]
fn a_write_from_outside_rings_the_doorbell_that_a_batch_holds_back() {
    let (pair, rings) = over_counted_doorbells(true, HOUR_NS);
    let mut connections: Vec<_> = (7..17).map(|port| pair.connected(port)).collect();
    let (worker, epoll) = (pair.worker(), Epoll::new(&pair.host));
    for (server, client) in &mut connections {
        client.write_all(b"?").unwrap();
        epoll.add(server, 1, Interest::READABLE).unwrap();
    }
    // A thread that is kept from its CPU is not quick. This does not happen in every try.
    let mut answers = 0;
    while !lull_net::holds_back() {
        // Data that are not read are reported again, so that one batch has all of them.
        while wait(&epoll, &worker, 16, LOST).len() < connections.len() {}
        answers += 1;
        for (server, _) in &connections[..3] {
            assert_eq!(server.send(b"a").unwrap(), 1);
        }
    }
    let (server, client) = &mut connections[3];
    let writes = || {
        let before = rings.load(Ordering::Relaxed);
        assert_eq!(server.send(b"b").unwrap(), 1);
        assert!(rings.load(Ordering::Relaxed) > before, "within the call");
    };
    std::thread::scope(|scope| scope.spawn(writes).join().unwrap());
    client.set_read_timeout(Some(LOST)).unwrap();
    client.read_exact(&mut [0; 1]).unwrap();
    for (_, client) in &mut connections[..3] {
        client.set_read_timeout(Some(LOST)).unwrap();
        client.read_exact(&mut vec![0; answers]).unwrap();
    }
    assert!(lull_net::holds_back(), "this thread has not waited");
}

#[test]
fn quick_answers_to_several_peers_share_a_doorbell_where_it_is_dear_and_only_there() {
    // At the first answer nobody knows yet that the program is quick; the other ones share a doorbell for each 32.
    assert_eq!(doorbells_of_forty_answers(true), (2, 3));
    assert_eq!(doorbells_of_forty_answers(false), (40, 40));
}
