//! The wire generator against a peer that plays a script: the tests check what is sent, segment by segment.

use std::cell::Cell;
use std::net::Ipv4Addr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use lull_lab::load::wire::{WireClient, WireConfig};
use lull_lab::load::{Clock, Distribution, Pace, Workload, WorkloadConfig};
use lull_nic::mem::{self, MemConfig, MemPort};
use lull_nic::{Checksum, Device, Frame, FramePool, Queue};

const SERVER: ([u8; 6], Ipv4Addr) = ([2, 0, 0, 0, 0, 1], Ipv4Addr::new(10, 0, 0, 1));
const CLIENT: ([u8; 6], Ipv4Addr) = ([2, 0, 0, 0, 0, 2], Ipv4Addr::new(10, 0, 0, 2));
const PORT: u16 = 11_211;
const ISN: u32 = u32::MAX - 20;
const MS: u64 = 1_000_000;

const FIN: u8 = 1;
const SYN: u8 = 2;
const RST: u8 = 4;
const PSH_ACK: u8 = 24;
const ACK: u8 = 16;

/// The part of a segment that the script checks.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Seen {
    port: u16,
    seq: u32,
    ack: u32,
    flags: u8,
    payload: String,
}

struct Script<C> {
    client: WireClient<C>,
    now_ns: Rc<Cell<u64>>,
    queue: Queue,
    pool: FramePool,
    /// The server's window.
    window: u16,
    _ports: (MemPort, MemPort),
}

/// Makes a client with one connection to a server of one record: `get 00000` is answered by a value of 3 bytes.
fn script(key_bytes: f64) -> Script<impl Clock> {
    script_on(key_bytes, Rc::new(Cell::new(MS)), |now_ns| now_ns.get())
}

/// Does the same with a clock that others share, which `read` reads.
fn script_on<R: Fn(&Cell<u64>) -> u64>(key_bytes: f64, now_ns: Rc<Cell<u64>>, read: R) -> Script<impl Clock + use<R>> {
    let config =
        MemConfig { macs: [SERVER.0, CLIENT.0], offloads: lull_nic::Offloads::default(), ..MemConfig::default() };
    let ports = mem::pair(config);
    let (queue, client_queue) = (ports.0.take_queue(0).expect("a queue"), ports.1.take_queue(0).expect("a queue"));
    let workload = WorkloadConfig {
        records: 1,
        key: Distribution::Fixed(key_bytes),
        value: Distribution::Fixed(3.0),
        update_ratio: 0.0,
        ..WorkloadConfig::default()
    };
    let clock = {
        let now_ns = now_ns.clone();
        move || read(&now_ns)
    };
    let config = WireConfig { peer_mac: Some(SERVER.0), ..WireConfig::new(CLIENT, (SERVER.1, PORT), 1) };
    let workload = Arc::new(Workload::new(workload).expect("a valid workload"));
    let client = WireClient::new(config, workload, client_queue, clock).expect("a valid configuration");
    Script { client, now_ns, queue, pool: FramePool::new(16), window: 4096, _ports: ports }
}

impl<C: Clock> Script<C> {
    /// Lets `ms` pass, and returns what the client sent.
    fn pass(&mut self, ms: u64) -> Vec<Seen> {
        for _ in 0..=ms {
            self.client.poll().expect("no error");
            self.now_ns.set(self.now_ns.get() + MS);
        }
        let mut seen = Vec::new();
        self.queue.rx.poll(64, &mut self.pool, &mut |frame, _| seen.push(see(&frame)));
        seen
    }

    fn one(&mut self) -> Seen {
        let mut seen = self.pass(1);
        assert_eq!(seen.len(), 1, "{seen:?}");
        seen.remove(0)
    }

    fn send(&mut self, port: u16, seq: u32, ack: u32, flags: u8, payload: &[u8]) {
        self.queue.tx.transmit(segment(port, seq, ack, flags, self.window, payload)).expect("room");
        self.queue.tx.doorbell();
    }

    /// Shakes hands and begins a closed loop. Returns the request, and the sequence number at which answers begin.
    fn connect(&mut self) -> (Seen, u32) {
        let syn = self.one();
        assert_eq!((syn.flags, syn.ack), (SYN, 0));
        self.send(syn.port, ISN, syn.seq.wrapping_add(1), SYN | ACK, b"");
        let ack = self.one();
        assert_eq!((ack.flags, ack.seq, ack.ack), (ACK, syn.seq.wrapping_add(1), ISN.wrapping_add(1)));
        self.client.begin(Pace::Closed { depth: 1 }, Duration::ZERO, Duration::from_secs(60)).expect("a load");
        let request = self.one();
        assert_eq!((request.flags, request.seq), (PSH_ACK, ack.seq));
        (request, ISN.wrapping_add(1))
    }
}

fn be(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0, |number, byte| number << 8 | u32::from(*byte))
}

/// Checks a frame as a server would, and reads it.
fn see(frame: &Frame) -> Seen {
    assert_eq!(frame.checksum(), Checksum::None);
    let data = frame.data();
    assert_eq!((&data[..6], &data[6..12], be(&data[12..14])), (&SERVER.0[..], &CLIENT.0[..], 0x800));
    assert_eq!(ones_sum(&data[14..34], 0), 0xffff, "IP checksum");
    assert_eq!(be(&data[16..18]) as usize, data.len() - 14);
    let pseudo = ones_sum(&data[26..34], 6 + (data.len() - 34) as u32);
    assert_eq!(ones_sum(&data[34..], pseudo), 0xffff, "TCP checksum");
    assert_eq!(be(&data[36..38]), u32::from(PORT));
    let payload_at = 34 + usize::from(data[46] >> 4) * 4;
    Seen {
        port: be(&data[34..36]) as u16,
        seq: be(&data[38..42]),
        ack: be(&data[42..46]),
        flags: data[47],
        payload: String::from_utf8(data[payload_at..].to_vec()).expect("text"),
    }
}

fn ones_sum(bytes: &[u8], start: u32) -> u32 {
    let mut sum = start;
    for word in bytes.chunks(2) {
        sum += if word.len() == 2 { be(word) } else { be(word) << 8 };
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum
}

fn segment(port: u16, seq: u32, ack: u32, flags: u8, window: u16, payload: &[u8]) -> Frame {
    let mut data = vec![0; 54];
    data[..6].copy_from_slice(&CLIENT.0);
    data[6..12].copy_from_slice(&SERVER.0);
    data[12..16].copy_from_slice(&[8, 0, 0x45, 0]);
    data[16..18].copy_from_slice(&(40 + payload.len() as u16).to_be_bytes());
    data[22..24].copy_from_slice(&[64, 6]);
    data[26..30].copy_from_slice(&SERVER.1.octets());
    data[30..34].copy_from_slice(&CLIENT.1.octets());
    let ip_sum = !(ones_sum(&data[14..34], 0) as u16);
    data[24..26].copy_from_slice(&ip_sum.to_be_bytes());
    data[34..36].copy_from_slice(&PORT.to_be_bytes());
    data[36..38].copy_from_slice(&port.to_be_bytes());
    data[38..42].copy_from_slice(&seq.to_be_bytes());
    data[42..46].copy_from_slice(&ack.to_be_bytes());
    data[46..48].copy_from_slice(&[0x50, flags]);
    data[48..50].copy_from_slice(&window.to_be_bytes());
    data.extend_from_slice(payload);
    let pseudo = ones_sum(&data[26..34], 6 + (data.len() - 34) as u32);
    let sum = !(ones_sum(&data[34..], pseudo) as u16);
    data[50..52].copy_from_slice(&sum.to_be_bytes());
    Frame::copy_from(&data)
}

const ANSWER: &[u8] = b"VALUE 00000 0 3\r\nabc\r\nEND\r\n";

fn plus(seq: u32, bytes: usize) -> u32 {
    seq.wrapping_add(bytes as u32)
}

#[test]
fn an_answer_in_pieces_is_acknowledged_by_the_next_request() {
    let mut script = script(5.0);
    let (request, seq) = script.connect();
    assert_eq!(request.payload, "get 00000\r\n");
    let acked = plus(request.seq, request.payload.len());
    script.send(request.port, seq, acked, PSH_ACK, &ANSWER[..9]);
    assert_eq!(script.pass(1), []);
    script.send(request.port, plus(seq, 9), acked, PSH_ACK, &ANSWER[9..]);
    let next = script.one();
    assert_eq!((next.seq, next.ack, &next.payload), (acked, plus(seq, ANSWER.len()), &request.payload));
}

#[test]
fn clients_that_share_a_thread_are_busy_with_their_own_work_alone() {
    let now_ns = Rc::new(Cell::new(MS));
    // Each reading of the clock takes a microsecond, and a client with work reads it more often.
    let read = |now_ns: &Cell<u64>| now_ns.replace(now_ns.get() + 1_000);
    let (mut works, mut idles) = (script_on(5.0, now_ns.clone(), read), script_on(5.0, now_ns, read));
    let (mut request, mut seq) = works.connect();
    idles.connect();
    for _ in 0..20_000 {
        let acked = plus(request.seq, request.payload.len());
        works.send(request.port, seq, acked, PSH_ACK, ANSWER);
        assert!(WireClient::poll_each([&mut works.client, &mut idles.client]).expect("no error"));
        let mut seen = Vec::new();
        works.queue.rx.poll(64, &mut works.pool, &mut |frame, _| seen.push(see(&frame)));
        (request, seq) = (seen.pop().expect("the next request"), plus(seq, ANSWER.len()));
    }
    let mut both = works.client.recorder().clone();
    both.merge(idles.client.recorder());
    let [busy, idle, both] =
        [works.client.recorder(), idles.client.recorder(), &both].map(|of| of.summarize(false, 0, 0).busy_fraction);
    // Both began by some long turns in which neither had anything to do.
    assert!(busy > 0.9 && idle < 0.2, "{busy} {idle}");
    assert!(both > 0.6, "most of the thread's time is work, and {both} is counted");
}

#[test]
fn an_unfinished_answer_is_acknowledged_within_40_ms() {
    let mut script = script(5.0);
    let (request, seq) = script.connect();
    script.send(request.port, seq, plus(request.seq, 11), PSH_ACK, &ANSWER[..9]);
    let seen = script.pass(40);
    assert_eq!(seen.len(), 1, "{seen:?}");
    assert_eq!((seen[0].flags, seen[0].ack), (ACK, plus(seq, 9)));
}

#[test]
fn a_request_without_acknowledgement_is_sent_again_and_later_each_time() {
    let mut script = script(5.0);
    let (request, seq) = script.connect();
    assert_eq!(script.pass(190), []);
    assert_eq!(script.pass(20), std::slice::from_ref(&request));
    assert_eq!(script.pass(380), []);
    assert_eq!(script.pass(40), std::slice::from_ref(&request));
    let acked = plus(request.seq, request.payload.len());
    script.send(request.port, seq, acked, PSH_ACK, ANSWER);
    assert_eq!(script.one().seq, acked);
    assert_eq!(script.client.finish().retransmits, 2);
}

#[test]
fn duplicates_and_gaps_are_told_what_is_wanted() {
    let mut script = script(5.0);
    let (request, seq) = script.connect();
    let acked = plus(request.seq, request.payload.len());
    script.send(request.port, plus(seq, 9), acked, PSH_ACK, &ANSWER[9..]);
    let duplicate = script.one();
    assert_eq!((duplicate.flags, duplicate.ack), (ACK, seq));
    script.send(request.port, seq, acked, PSH_ACK, &ANSWER[..12]);
    assert_eq!(script.pass(0), []);
    // This overlaps what is there.
    script.send(request.port, plus(seq, 5), acked, PSH_ACK, &ANSWER[5..]);
    let seen = script.pass(1);
    assert!(seen.iter().any(|segment| segment.payload == request.payload), "{seen:?}");
    assert!(seen.iter().all(|segment| segment.ack == plus(seq, ANSWER.len())), "{seen:?}");
    script.send(request.port, seq, acked, PSH_ACK, ANSWER);
    let duplicate = script.one();
    assert_eq!((duplicate.flags, duplicate.ack), (ACK, plus(seq, ANSWER.len())));
}

#[test]
fn three_duplicate_acknowledgements_bring_the_segment_back() {
    let mut script = script(5.0);
    let (request, seq) = script.connect();
    for _ in 0..3 {
        script.send(request.port, seq, request.seq, ACK, b"");
    }
    assert_eq!(script.pass(1), [request]);
}

#[test]
fn a_closed_window_is_probed_and_opens() {
    let mut script = script(100.0);
    script.window = 60;
    let (request, seq) = script.connect();
    assert_eq!(request.payload.len(), 60, "as much of the 106 bytes as the window takes");
    script.window = 0;
    script.send(request.port, seq, plus(request.seq, 60), ACK, b"");
    assert_eq!(script.pass(150), []);
    let probe = script.pass(80);
    assert_eq!((probe.len(), probe[0].seq, probe[0].payload.len()), (1, plus(request.seq, 60), 1));
    script.window = 4096;
    script.send(request.port, seq, plus(request.seq, 61), ACK, b"");
    let rest = script.one();
    assert_eq!((rest.seq, rest.payload.len()), (plus(request.seq, 61), 45));
}

#[test]
fn a_reset_connection_is_opened_again_from_another_port() {
    let mut script = script(5.0);
    let (request, seq) = script.connect();
    // This is out of the window, and so a forgery.
    script.send(request.port, seq.wrapping_sub(9), request.seq, RST, b"");
    assert_eq!(script.pass(1), []);
    assert_eq!(script.client.established(), 1);
    script.send(request.port, seq, request.seq, RST, b"");
    script.pass(1);
    assert_eq!(script.client.established(), 0);
    let syn = script.pass(120).remove(0);
    assert_eq!(syn.flags, SYN);
    assert_ne!(syn.port, request.port);
    // Later segments for the old port are refused.
    script.send(request.port, seq, request.seq, PSH_ACK, ANSWER);
    let refusal = script.one();
    assert_eq!((refusal.port, refusal.seq, refusal.flags & RST), (request.port, request.seq, RST));
    let summary = script.client.finish();
    assert_eq!((summary.lost, summary.reconnects), (1, 1));
}

#[test]
fn the_servers_fin_is_answered() {
    let mut script = script(5.0);
    let (request, seq) = script.connect();
    let acked = plus(request.seq, request.payload.len());
    script.send(request.port, seq, acked, FIN | ACK, b"");
    let fin = script.one();
    assert_eq!((fin.flags, fin.seq, fin.ack), (FIN | ACK, acked, plus(seq, 1)));
    assert_eq!(script.pass(120).remove(0).flags, SYN);
}

#[test]
fn damaged_and_stray_frames_are_ignored() {
    let mut script = script(5.0);
    let (request, seq) = script.connect();
    let acked = plus(request.seq, request.payload.len());
    for (at, bit) in [(24, 1), (38, 1), (60, 4), (26, 1), (30, 1), (23, 1), (14, 0x10), (46, 0xf0), (12, 1)] {
        let mut frame = segment(request.port, seq, acked, PSH_ACK, 4096, ANSWER);
        frame.data_mut()[at] ^= bit;
        script.queue.tx.transmit(frame).expect("room");
    }
    for len in 0..segment(request.port, seq, acked, PSH_ACK, 4096, ANSWER).len() {
        let mut frame = segment(request.port, seq, acked, PSH_ACK, 4096, ANSWER);
        frame.set_len(len);
        script.queue.tx.transmit(frame).expect("room");
    }
    script.queue.tx.doorbell();
    assert_eq!(script.pass(10), []);
    script.send(request.port, seq, acked, PSH_ACK, ANSWER);
    assert_eq!(script.one().payload, request.payload);
}

#[test]
fn an_answer_that_nobody_asked_for_ends_the_connection() {
    let mut script = script(5.0);
    let (request, seq) = script.connect();
    let twice = [ANSWER, ANSWER].concat();
    script.send(request.port, seq, plus(request.seq, request.payload.len()), PSH_ACK, &twice);
    let seen = script.pass(1);
    assert!(seen.iter().any(|segment| segment.flags & RST != 0), "{seen:?}");
    assert_eq!(script.client.established(), 0);
}

#[test]
fn chained_frames_are_one_segment() {
    let mut script = script(5.0);
    let (request, seq) = script.connect();
    let acked = plus(request.seq, request.payload.len());
    let whole = segment(request.port, seq, acked, PSH_ACK, 4096, ANSWER);
    let mut head = Frame::copy_from(&whole.data()[..61]);
    head.set_next(Some(Frame::copy_from(&whole.data()[61..])));
    script.queue.tx.transmit(head).expect("room");
    script.queue.tx.doorbell();
    let next = script.one();
    assert_eq!((next.seq, next.ack), (acked, plus(seq, ANSWER.len())));
}

#[test]
fn closing_sends_a_fin_and_gives_up_with_a_reset() {
    let ports = mem::pair(MemConfig { macs: [SERVER.0, CLIENT.0], ..MemConfig::default() });
    let (mut queue, client_queue) = (ports.0.take_queue(0).expect("a queue"), ports.1.take_queue(0).expect("a queue"));
    let workload = Workload::new(WorkloadConfig { records: 1, ..WorkloadConfig::default() }).expect("valid");
    let now_ns = Cell::new(0);
    // Every reading of this clock takes 10 us.
    let clock = || now_ns.replace(now_ns.get() + 10_000);
    let config = WireConfig { peer_mac: Some(SERVER.0), ..WireConfig::new(CLIENT, (SERVER.1, PORT), 1) };
    let mut client = WireClient::new(config, Arc::new(workload), client_queue, clock).expect("valid");
    let mut pool = FramePool::new(16);
    let mut seen = Vec::new();
    client.poll().expect("no error");
    queue.rx.poll(64, &mut pool, &mut |frame, _| seen.push(see(&frame)));
    let syn = seen.remove(0);
    queue.tx.transmit(segment(syn.port, ISN, syn.seq.wrapping_add(1), SYN | ACK, 4096, b"")).expect("room");
    queue.tx.doorbell();
    client.connect_all(Duration::from_secs(1)).expect("connected");
    client.close_all(Duration::from_millis(300));
    queue.rx.poll(64, &mut pool, &mut |frame, _| seen.push(see(&frame)));
    let flags: Vec<u8> = seen.iter().map(|segment| segment.flags).collect();
    assert_eq!(flags, [ACK, FIN | ACK, FIN | ACK, RST | ACK]);
    assert_eq!(seen[1].seq, seen[2].seq);
    assert_eq!(client.established(), 0);
}
