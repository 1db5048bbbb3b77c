//! Datagrams to several stations: who receives them, and what the socket reports of them.

mod shard_harness;

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};

use lull_net::shard::{NetError, Received, SendOptions, SocketId, UdpOptions};
use lull_net::{Elsewhere, HandedOn};
use lull_nic::Frame;
use shard_harness::udp::{bind, recv, udp};
use shard_harness::*;

/// A datagram in a frame to every station.
fn to_all(from: SocketAddr, to: SocketAddr, payload: &[u8]) -> Frame {
    let mut frame = ip_packet(from.ip(), to.ip(), 17, 0, &[], &udp(from, to, payload));
    frame.data_mut()[..6].fill(0xff);
    frame
}

fn sharing(host: &mut Host, to: &str, port: u16, options: UdpOptions) -> SocketId {
    host.stack.udp_bind(at(to, port), options).unwrap()
}

fn received(host: &mut Host, id: SocketId) -> Received {
    host.call(|stack, io| stack.udp_recv_from(id, &mut [0; 64], io)).unwrap()
}

/// This is how DHCP servers, and programs that look for each other, use it, with SO_REUSEADDR or SO_REUSEPORT.
#[test]
fn every_socket_that_could_gets_what_is_sent_to_everybody() {
    for options in [
        UdpOptions { reuse_address: true, ..UdpOptions::default() },
        UdpOptions { reuse_port: true, ..UdpOptions::default() },
    ] {
        let mut host = Host::server();
        let any = [(); 2].map(|()| sharing(&mut host, "0.0.0.0", 67, options));
        let both = sharing(&mut host, "::", 67, options);
        let own = sharing(&mut host, SERVER, 67, options);
        let only_v6 = sharing(&mut host, "::", 67, UdpOptions { v6_only: true, ..options });
        let other = sharing(&mut host, "0.0.0.0", 68, options);
        let connected = sharing(&mut host, "0.0.0.0", 67, options);
        host.stack.udp_connect(connected, Some(at(CLIENT, 9))).unwrap();
        host.stack.udp_set_gro(any[0], true).unwrap();
        for to in ["255.255.255.255", "10.0.0.255", "224.0.0.1"] {
            host.receive(to_all(at(CLIENT, 9), at(to, 67), b"who is there"));
            for id in [any[0], any[1], both] {
                assert_eq!(recv(&mut host, id), Ok((b"who is there".to_vec(), at(CLIENT, 9))), "{to}");
            }
            for id in [own, only_v6, other, connected, any[0], any[1], both] {
                assert_eq!(recv(&mut host, id), Err(NetError::WouldBlock), "{to}");
            }
        }
        host.receive(to_all(at(CLIENT6, 9), at("ff02::1", 67), b"and here"));
        for id in [both, only_v6] {
            assert_eq!(recv(&mut host, id), Ok((b"and here".to_vec(), at(CLIENT6, 9))));
        }
        assert_eq!((host.refused(), host.stack.counters().udp_datagrams), (0, 3 * 3 + 2));
    }
}

#[test]
fn a_full_socket_keeps_nothing_from_the_others() {
    let mut host = Host::server();
    let options = UdpOptions { reuse_address: true, ..UdpOptions::default() };
    let small = sharing(&mut host, "0.0.0.0", 67, UdpOptions { rx_bytes: 1, ..options });
    let large = sharing(&mut host, "0.0.0.0", 67, options);
    for _ in 0..3 {
        host.receive(to_all(at(CLIENT, 9), at("10.0.0.255", 67), b"x"));
    }
    assert_eq!([(); 4].map(|()| recv(&mut host, large).is_ok()), [true, true, true, false]);
    assert_eq!([(); 2].map(|()| recv(&mut host, small).is_ok()), [true, false]);
    assert_eq!(host.stack.counters().drop_socket_full, 2);
}

/// There is no membership, so only groups are heard that every station is in.
#[test]
fn what_is_sent_to_a_group_that_nobody_has_joined_is_dropped() {
    let mut host = Host::server();
    let id = bind(&mut host, "::", 5353);
    for (from, group) in [(CLIENT, "224.0.0.251"), (CLIENT, "239.1.2.3"), (CLIENT6, "ff02::fb"), (CLIENT6, "ff05::2")] {
        host.receive(to_all(at(from, 5353), at(group, 5353), b"who is there"));
        assert_eq!(recv(&mut host, id), Err(NetError::WouldBlock), "{group}");
    }
    assert_eq!(host.stack.counters().drop_not_ours, 4);
    assert!(host.sent().is_empty());
}

/// A host without an address asks for one.
#[test]
fn who_has_no_address_yet_is_heard_by_everybody_and_by_nobody_else() {
    let mut host = Host::server();
    let id = bind(&mut host, "0.0.0.0", 67);
    host.receive(to_all(at("0.0.0.0", 68), at("255.255.255.255", 67), b"discover"));
    assert_eq!(recv(&mut host, id), Ok((b"discover".to_vec(), at("0.0.0.0", 68))));
    for to in [SERVER, "10.0.0.255", "224.0.0.1"] {
        let (from, to) = (at("0.0.0.0", 68), at(to, 67));
        host.receive(ip_packet(from.ip(), to.ip(), 17, 0, &[], &udp(from, to, b"x")));
    }
    assert_eq!((recv(&mut host, id), host.stack.counters().drop_martian), (Err(NetError::WouldBlock), 3));
    // Nothing was learned from it.
    assert_eq!(host.neighbours.lookup(ip("0.0.0.0")), None);
}

/// Of the addresses that were reserved once, only groups, broadcast and loopback are nobody's (`ip_route_input_slow`).
#[test]
fn addresses_of_class_e_and_of_this_network_are_as_any_others() {
    let mut host = Host::server();
    let id = bind(&mut host, SERVER, 53);
    let mut hears = |from: &str| {
        let (from, to) = (at(from, 9), at(SERVER, 53));
        host.receive(ip_packet(from.ip(), to.ip(), 17, 0, &[], &udp(from, to, b"x")));
        recv(&mut host, id).is_ok()
    };
    for from in ["240.0.0.1", "255.255.255.254", "0.0.0.1", "0.255.0.1"] {
        assert!(hears(from), "{from}");
    }
    for from in ["224.0.0.1", "239.255.255.255", "255.255.255.255", "127.0.0.1", "0.0.0.0", "10.0.0.255"] {
        assert!(!hears(from), "{from}");
    }
}

/// IP_PKTINFO has `ipi_spec_dst` beside `ipi_addr`.
#[test]
fn an_answer_to_what_was_sent_to_everybody_comes_from_the_own_address_that_the_sender_would_reach() {
    let mut config = server_config();
    config.addresses.push((ip("192.0.2.1"), 24));
    let mut host = Host::server_with(config);
    let id = bind(&mut host, "0.0.0.0", 67);
    for (from, to, own) in [
        (CLIENT, "10.0.0.255", SERVER),
        (CLIENT, "255.255.255.255", SERVER),
        (CLIENT, "224.0.0.1", SERVER),
        ("192.0.2.9", "192.0.2.255", "192.0.2.1"),
        ("192.0.2.9", "255.255.255.255", "192.0.2.1"),
    ] {
        host.receive(to_all(at(from, 68), at(to, 67), b"x"));
        let told = received(&mut host, id);
        assert_eq!((told.to, told.own), (ip(to), ip(own)));
        let options = SendOptions { from: Some(told.own), ..SendOptions::default() };
        let data = [std::io::IoSlice::new(b"y")];
        assert_eq!(host.call(|stack, io| stack.udp_send_with(id, &data, Some(told.from), options, io)), Ok(1));
    }
    let (from, to) = (at(CLIENT, 68), at("192.0.2.1", 67));
    host.receive(ip_packet(from.ip(), to.ip(), 17, 0, &[], &udp(from, to, b"x")));
    let told = received(&mut host, id);
    assert_eq!((told.to, told.own), (to.ip(), to.ip()), "to one of them alone");
}

/// The stacks of other processes, which take what they are given.
#[derive(Debug, Default)]
struct Others(Mutex<Vec<Frame>>);

impl Elsewhere for Others {
    fn secret(&self) -> u64 {
        7
    }

    fn queues(&self) -> &[u32] {
        &[0]
    }

    fn takes_stranger(&self, _syn: Option<SocketAddr>, frame: &Frame) -> bool {
        self.0.lock().unwrap().push(frame.clone());
        true
    }

    fn takes_last_acknowledgement(&self, _frame: &Frame) -> bool {
        false
    }

    fn takes_over(&self, _local: SocketAddr, _frame: &Frame) -> HandedOn {
        HandedOn::Nobody
    }

    fn copy_to_all(&self, _frame: &Frame) {}
}

fn beside_others() -> (Arc<Others>, Host) {
    let others = Arc::new(Others::default());
    let mut config = server_config();
    config.elsewhere = Some(others.clone());
    (others, Host::server_with(config))
}

#[test]
fn what_nobody_here_hears_of_everybody_another_stack_may() {
    let (others, mut host) = beside_others();
    let heard = bind(&mut host, "0.0.0.0", 68);
    for (port, passed_on) in [(68, 0), (67, 1)] {
        for to in ["10.0.0.255", "255.255.255.255"] {
            host.receive(to_all(at(CLIENT, 9), at(to, port), b"x"));
        }
        assert_eq!(others.0.lock().unwrap().drain(..).count(), 2 * passed_on);
    }
    assert_eq!([(); 3].map(|()| recv(&mut host, heard).is_ok()), [true, true, false]);
    host.receive(to_all(at(CLIENT, 9), at("224.0.0.251", 67), b"x"));
    assert!(others.0.lock().unwrap().is_empty(), "a group that nobody has joined");
}

/// The error is about a packet of an own address that another stack may have sent, as far as this one knows.
#[test]
fn every_error_that_nobody_here_knows_of_is_another_stacks() {
    let (others, mut host) = beside_others();
    let about = |own: &str, peer: &str| -> Vec<u8> {
        let (own, peer): (IpAddr, IpAddr) = (ip(own), ip(peer));
        let segment = Tcp {
            from: SocketAddr::new(own, 40_000),
            to: SocketAddr::new(peer, 80),
            seq: 1,
            ack: 0,
            flags: SYN,
            window: 0,
            options: Vec::new(),
            payload: Vec::new(),
        };
        segment.frame().data()[14..].to_vec()
    };
    for (own, peer, protocol, kinds) in
        [(SERVER, CLIENT, 1, &[3, 11, 12][..]), (SERVER6, CLIENT6, 58, &[1, 2, 3, 4][..])]
    {
        for kind in kinds {
            let mut icmp = [vec![*kind, 0, 0, 0, 0, 0, 5, 0], about(own, peer)].concat();
            let pseudo = if protocol == 1 { Vec::new() } else { pseudo(ip(peer), ip(own), 58, icmp.len()) };
            let sum = checksum(&[&pseudo, &icmp]);
            icmp[2..4].copy_from_slice(&sum.to_be_bytes());
            host.receive(ip_packet(ip(peer), ip(own), protocol, 0, &[], &icmp));
            assert_eq!(others.0.lock().unwrap().drain(..).count(), 1, "type {kind} of {own}");
        }
    }
}
