//! GRO on a NAPI. What is held leaves at the completion of the poll, or by `gro_flush_timeout` if that is set.

mod pair;

use std::io::IoSliceMut;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread;

use lull_core::{NapiSettings, Stats};
use lull_host::{Host, HostConfig};
use lull_net::shard::{Batch, ConnectOptions, Io, SocketId, Stack, StackConfig};
use lull_net::{Network, NetworkConfig, Ready, TcpListener, TcpStream, UdpOptions, UdpSocket};
use lull_nic::mem::{self, MemConfig, MemPort};
use lull_nic::{Device, Doorbell, Frame, FramePool, Queue, TxQueue};
use pair::{CLIENT, LOST, SERVER, until};

const SECOND_NS: u64 = 1_000_000_000;
/// The payload that fills a segment with timestamps.
const SEGMENT_BYTES: usize = 1448;

/// A ring that keeps what the client sends, until the test lets it through.
#[derive(Default)]
struct Kept(Vec<Frame>);

impl TxQueue for Kept {
    fn transmit(&mut self, frame: Frame) -> Result<(), Frame> {
        self.0.push(frame);
        Ok(())
    }

    fn doorbell(&mut self) -> Doorbell {
        Doorbell::Done
    }

    fn free_slots(&self) -> usize {
        64
    }
}

/// A network of lull's, and a client that the test drives by hand.
struct Bench {
    host: Host,
    network: Network,
    wire: Queue,
    _port: MemPort,
    client: Stack,
    id: SocketId,
    kept: Kept,
    server: TcpStream,
}

impl Bench {
    fn new(napi: NapiSettings) -> Bench {
        let (server, client) = mem::pair(MemConfig::default());
        let host = Host::new(HostConfig { cpus: vec![None], ..HostConfig::default() }).unwrap();
        let network = Network::new(&host, Arc::new(server), NetworkConfig { napi, ..pair::config(SERVER, vec![0]) });
        let network = network.unwrap();
        let mut config = StackConfig::new(client.info().mac);
        config.addresses = vec![(CLIENT.parse().unwrap(), 24)];
        let stack = Stack::new(config, Arc::default()).unwrap();
        let listener = TcpListener::bind(&network, SocketAddr::new(SERVER.parse().unwrap(), 7)).unwrap();
        let accepting = thread::spawn(move || listener.accept().unwrap().0);
        let wire = client.take_queue(0).unwrap();
        let (mut wire, mut client, mut kept) = ((wire, client), stack, Kept::default());
        let to = SocketAddr::new(SERVER.parse().unwrap(), 7);
        let id = call(&mut client, &mut kept, |stack, io| stack.tcp_connect(None, to, ConnectOptions::default(), io));
        until("the connection", || {
            let mut frames = Vec::new();
            wire.0.rx.poll(64, &mut FramePool::new(0), &mut |frame, _| frames.push(frame));
            frames.into_iter().for_each(|frame| call(&mut client, &mut kept, |stack, io| stack.receive(frame, io)));
            send(&mut wire.0, kept.0.drain(..));
            accepting.is_finished()
        });
        let server = accepting.join().unwrap();
        let (wire, port) = wire;
        Bench { host, network, wire, _port: port, client, id: id.unwrap(), kept, server }
    }

    /// Has the client write segments, all full but the last, and keeps them. Only the last one has the PSH flag.
    fn written(&mut self, segments: usize) -> Vec<Frame> {
        let data: Vec<u8> = (0..segments * SEGMENT_BYTES - 1).map(|at| at as u8).collect();
        let id = self.id;
        let sent = call(&mut self.client, &mut self.kept, |stack, io| stack.tcp_send(id, &data, io)).unwrap();
        assert_eq!((sent, self.kept.0.len()), (data.len(), segments));
        std::mem::take(&mut self.kept.0)
    }

    fn stats(&self) -> Stats {
        self.host.napi_stats(self.network.napis()[0])
    }
}

fn call<R>(stack: &mut Stack, kept: &mut Kept, f: impl FnOnce(&mut Stack, &mut Io<'_>) -> R) -> R {
    let (mut pool, mut changes) = (FramePool::new(0), Vec::new());
    f(stack, &mut Io { now_ns: 1, tx: kept, pool: &mut pool, changes: &mut changes, batch: Batch::NONE })
}

fn send(wire: &mut Queue, frames: impl IntoIterator<Item = Frame>) {
    frames.into_iter().for_each(|frame| assert!(wire.tx.transmit(frame).is_ok()));
    wire.tx.doorbell();
}

fn read(server: &TcpStream, bytes: usize) {
    server.set_read_timeout(Some(LOST)).unwrap();
    let (mut data, mut at) = (vec![0; bytes], 0);
    while at < bytes {
        at += server.recv(&mut data[at..]).unwrap();
    }
    assert!(data.iter().enumerate().all(|(at, &byte)| byte == at as u8));
}

#[test]
fn without_a_timeout_what_is_held_leaves_when_the_poll_completes() {
    let mut bench = Bench::new(NapiSettings::default());
    let frames = bench.written(3);
    // The segment with the PSH flag is lost.
    send(&mut bench.wire, frames.into_iter().take(2));
    read(&bench.server, 2 * SEGMENT_BYTES);
    assert_eq!(bench.stats().timer_arms, 0);
    assert_eq!(bench.network.stack_counters()[0].drop_malformed, 0);
}

#[test]
fn with_a_timeout_what_is_held_waits_for_more_and_for_no_longer() {
    let napi = NapiSettings { gro_flush_timeout_ns: 3600 * SECOND_NS, ..NapiSettings::default() };
    let mut bench = Bench::new(napi);
    let mut frames = bench.written(3).into_iter();
    let polls = bench.stats().softirq_polls;
    send(&mut bench.wire, frames.by_ref().take(2));
    until("the poll's timer", || bench.stats().softirq_polls > polls && bench.stats().timer_arms > 0);
    assert!(!bench.server.ready().contains(Ready::READABLE), "they are held for the one that follows");
    let segments = bench.network.stack_counters()[0].tcp_segments;
    send(&mut bench.wire, frames);
    read(&bench.server, 3 * SEGMENT_BYTES - 1);
    assert_eq!(bench.network.stack_counters()[0].tcp_segments, segments + 1, "they went on as one");
    // This is for segments that nothing follows.
    let napi = NapiSettings { gro_flush_timeout_ns: SECOND_NS / 100, ..NapiSettings::default() };
    let mut bench = Bench::new(napi);
    let frames = bench.written(2);
    send(&mut bench.wire, frames.into_iter().take(1));
    read(&bench.server, SEGMENT_BYTES);
    assert_ne!(bench.stats().timer_fires, 0);
}

#[test]
fn datagrams_are_held_by_the_same_rules_for_a_socket_that_takes_several_as_one() {
    let napi = NapiSettings { gro_flush_timeout_ns: 3600 * SECOND_NS, ..NapiSettings::default() };
    for (napi, is_held) in [(napi, true), (NapiSettings::default(), false)] {
        let mut bench = Bench::new(napi);
        let (from, to) = (SocketAddr::new(CLIENT.parse().unwrap(), 9), SocketAddr::new(SERVER.parse().unwrap(), 53));
        let server = UdpSocket::bind(&bench.network, to).unwrap();
        server.set_read_timeout(Some(LOST)).unwrap();
        server.set_gro(true).unwrap();
        let id = bench.client.udp_bind(from, UdpOptions::default()).unwrap();
        let mut datagram = |bytes: usize| {
            let data = vec![7; bytes];
            call(&mut bench.client, &mut bench.kept, |stack, io| stack.udp_send_to(id, &data, to, io)).unwrap();
            std::mem::take(&mut bench.kept.0)
        };
        let two: Vec<Frame> = (0..2).flat_map(|_| datagram(100)).collect();
        let last = datagram(50);
        let (polls, arms) = (bench.stats().softirq_polls, bench.stats().timer_arms);
        send(&mut bench.wire, two);
        if is_held {
            let stats = || bench.host.napi_stats(bench.network.napis()[0]);
            until("the poll's timer", || stats().softirq_polls > polls && stats().timer_arms > arms);
            assert!(!server.ready().contains(Ready::READABLE), "they are held for the one that follows");
        }
        send(&mut bench.wire, last);
        let (mut data, mut heard) = ([0; 512], Vec::new());
        while heard.iter().map(|(bytes, _)| bytes).sum::<usize>() < 250 {
            let received = server.recv_msg(&mut [IoSliceMut::new(&mut data)], false).unwrap();
            heard.push((received.bytes, received.each_bytes));
        }
        // Without a timeout, each poll may have found fewer than all of them.
        assert!(!is_held || heard == [(250, Some(100))], "{heard:?}");
    }
}
