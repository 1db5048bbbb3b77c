//! Reuseport groups that a program steers: each connection goes to the worker of its queue.

mod pair;

use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::Arc;

use lull_bpf::{Program, steer};
use lull_core::NapiSettings;
use lull_net::{ListenOptions, TcpListener, TcpStream, UdpOptions, UdpSocket};
use pair::{CLIENT, Pair, SERVER, until};

const QUEUES: usize = 3;
const CONNECTIONS: usize = 60;

fn address(ip: &str, port: u16) -> SocketAddr {
    SocketAddr::new(ip.parse().unwrap(), port)
}

/// A listener for each worker, all of them on all queues, as programs on Linux have them.
fn listeners(pair: &Pair, port: u16) -> Vec<TcpListener> {
    let options = ListenOptions { reuse_port: true, ..ListenOptions::default() };
    let bind = |_| TcpListener::bind_with(&pair.server, None, address(SERVER, port), options).unwrap();
    let listeners: Vec<TcpListener> = (0..QUEUES).map(bind).collect();
    listeners.iter().for_each(|listener| listener.set_nonblocking(true).unwrap());
    listeners
}

/// Connects [`CONNECTIONS`] times. Returns how many connections each listener got, and how many of all came by the
/// queue of their listener's number.
fn connect(pair: &Pair, listeners: &[TcpListener], port: u16) -> (Vec<usize>, usize) {
    let ids: Vec<u32> = pair.server.napis().into_iter().map(|napi| pair.host.napi_id(napi)).collect();
    let (mut got, mut own, mut kept) = (vec![0; listeners.len()], 0, Vec::new());
    for _ in 0..CONNECTIONS {
        kept.push(TcpStream::connect(&pair.client, address(SERVER, port)).unwrap());
        let mut accepted = None;
        until("the connection", || {
            accepted = (0..listeners.len()).find_map(|nth| Some((nth, listeners[nth].accept().ok()?.0)));
            accepted.is_some()
        });
        let (nth, stream) = accepted.unwrap();
        got[nth] += 1;
        own += usize::from(ids.get(nth) == Some(&stream.incoming_napi_id()));
        kept.push(stream);
    }
    (got, own)
}

#[test]
fn every_connections_napi_is_its_workers_when_a_program_steers_and_a_third_of_them_by_the_hash() {
    let pair = Pair::with(QUEUES, |device| device, NapiSettings::default());
    let listeners = listeners(&pair, 80);
    let (got, own) = connect(&pair, &listeners, 80);
    assert!(got.iter().all(|got| *got > 0), "the hash spreads: {got:?}");
    assert!(own < CONNECTIONS, "by the hash alone {own} of {CONNECTIONS} are the workers' own");

    for program in [steer::by_queue(QUEUES as u32), steer::by_cpu(QUEUES as u32)] {
        // Any member of the group will do, and the later program replaces the earlier one.
        listeners[1].set_reuseport_program(Some(Arc::new(program.into()))).unwrap();
        let (got, own) = connect(&pair, &listeners, 80);
        assert_eq!(own, CONNECTIONS, "{got:?}");
        assert!(got.iter().filter(|got| **got > 0).count() > 1, "RSS spreads over the queues: {got:?}");
    }

    let second = Program::parse("1,6 0 0 1").unwrap();
    listeners[0].set_reuseport_program(Some(Arc::new(second.into()))).unwrap();
    assert_eq!(connect(&pair, &listeners, 80).0, [0, CONNECTIONS, 0]);
    let nobody = Program::parse("1,6 0 0 99").unwrap();
    listeners[0].set_reuseport_program(Some(Arc::new(nobody.into()))).unwrap();
    assert!(connect(&pair, &listeners, 80).0.iter().all(|got| *got > 0), "it is left to the hash");
    listeners[2].set_reuseport_program(None).unwrap();
    assert_eq!(listeners[2].set_reuseport_program(None).unwrap_err().kind(), std::io::ErrorKind::NotFound);
}

#[test]
fn a_closed_listeners_number_goes_to_the_last_one() {
    let pair = Pair::new();
    let mut listeners = listeners(&pair, 80);
    let first = Program::parse("1,6 0 0 0").unwrap();
    listeners[0].set_reuseport_program(Some(Arc::new(first.into()))).unwrap();
    drop(listeners.remove(0));
    assert_eq!(connect(&pair, &listeners, 80).0, [0, CONNECTIONS]);
}

#[test]
fn a_program_sees_a_datagram_from_its_payload_on_and_its_headers_below() {
    let pair = Pair::new();
    let options = UdpOptions { reuse_port: true, ..UdpOptions::default() };
    let sockets: Vec<_> =
        (0..3).map(|_| UdpSocket::bind_with(&pair.server, 0, address(SERVER, 7), options).unwrap()).collect();
    let alone = UdpSocket::bind(&pair.server, address(SERVER, 8)).unwrap();
    let program = |text: &str| Some(Arc::new(Program::parse(text).unwrap().into()));
    assert_eq!(alone.set_reuseport_program(program("1,6 0 0 0")).unwrap_err().kind(), std::io::ErrorKind::InvalidInput);
    let sender = UdpSocket::bind(&pair.client, address(CLIENT, 0x0402)).unwrap();
    let hears = |datagram: &[u8]| {
        sender.send_to(datagram, address(SERVER, 7)).unwrap();
        let mut heard = None;
        until("the datagram", || {
            heard = sockets.iter().position(|socket| socket.unread().unwrap() > 0);
            heard.is_some()
        });
        let heard = heard.unwrap();
        assert_eq!(sockets[heard].recv(&mut [0; 16]).unwrap(), datagram.len());
        heard
    };
    // These programs return the payload's first byte, its length, a byte of the UDP header (which is behind the IPv4
    // header), and a byte of the Ethernet header.
    sockets[2].set_reuseport_program(program("2,48 0 0 0,22 0 0 0")).unwrap();
    assert_eq!([hears(&[0, 9]), hears(&[2]), hears(&[1, 7, 7])], [0, 2, 1]);
    sockets[0].set_reuseport_program(program("2,128 0 0 0,22 0 0 0")).unwrap();
    assert_eq!([hears(&[9]), hears(&[9, 9])], [1, 2]);
    let at = |offset: i64| format!("2,48 0 0 {},22 0 0 0", u32::MAX as i64 + 1 + offset);
    sockets[0].set_reuseport_program(program(&at(-0x10_0000 + 21))).unwrap();
    assert_eq!(hears(&[9]), 2, "the low byte of the source port");
    sockets[0].set_reuseport_program(program(&at(-0x20_0000 + 14 + 6))).unwrap();
    let fragment_byte = hears(&[9]);
    assert!(fragment_byte < 3);
    // A program that reads past the end returns 0.
    sockets[0].set_reuseport_program(program("2,32 0 0 100,22 0 0 0")).unwrap();
    let heard: HashSet<usize> = (0..8).map(|_| hears(&[1])).collect();
    assert_eq!(heard, HashSet::from([0]));
}

/// The client's first SYN comes while the group is being bound. It meets either no member, or all of them and the
/// program.
#[test]
fn a_group_that_is_bound_at_once_has_no_connection_that_its_program_did_not_steer() {
    let pair = Pair::with(QUEUES, |device| device, NapiSettings::default());
    let options = ListenOptions { reuse_port: true, ..ListenOptions::default() };
    let ids: Vec<u32> = pair.server.napis().into_iter().map(|napi| pair.host.napi_id(napi)).collect();
    for port in 100..400 {
        let client = pair.client.clone();
        let begun = std::sync::Arc::new(std::sync::Barrier::new(2));
        let connects = std::thread::spawn({
            let begun = begun.clone();
            move || {
                begun.wait();
                // A port without a listener refuses the connection.
                loop {
                    if let Ok(stream) = TcpStream::connect(&client, address(SERVER, port)) {
                        return stream;
                    }
                }
            }
        });
        begun.wait();
        let program = Some(Arc::new(steer::by_queue(QUEUES as u32).into()));
        let group = TcpListener::bind_group(&pair.server, QUEUES, address(SERVER, port), options, program).unwrap();
        group.iter().for_each(|listener| listener.set_nonblocking(true).unwrap());
        let stream = connects.join().unwrap();
        let mut accepted = None;
        until("the connection", || {
            accepted = (0..QUEUES).find_map(|nth| Some((nth, group[nth].accept().ok()?.0)));
            accepted.is_some()
        });
        let (nth, accepted) = accepted.unwrap();
        assert_eq!(ids[nth], accepted.incoming_napi_id(), "port {port}");
        drop(stream);
    }
    let alone = TcpListener::bind_group(&pair.server, 2, address(SERVER, 99), ListenOptions::default(), None);
    assert_eq!(alone.unwrap_err().kind(), std::io::ErrorKind::InvalidInput);
}
