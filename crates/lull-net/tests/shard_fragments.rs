//! Packets in several fragments, received and sent.

mod shard_harness;

use std::net::{IpAddr, SocketAddr};

use lull_net::shard::{NetError, PathMtuDiscovery, Ready, SocketId};
use lull_nic::Frame;
use shard_harness::udp::{bind, fragment, recv, send_to, udp};
use shard_harness::*;

/// The fragments of a packet, with `each` bytes of its payload in each.
fn fragments(ends: (IpAddr, IpAddr), protocol: u8, id: u32, payload: &[u8], each: usize) -> Vec<Frame> {
    let parts = payload.chunks(each).enumerate();
    parts
        .map(|(place, part)| {
            let offset = place * each;
            fragment(ends, protocol, (id, offset, offset + part.len() < payload.len()), part)
        })
        .collect()
}

const V4: (&str, &str) = (CLIENT, SERVER);
const V6: (&str, &str) = (CLIENT6, SERVER6);

fn ends((from, to): (&str, &str)) -> (IpAddr, IpAddr) {
    (ip(from), ip(to))
}

/// A server with a socket on port 53 of both families, and a datagram of this length to it.
fn server(family: (&str, &str), length: usize) -> (Host, SocketId, Vec<u8>, Vec<u8>) {
    let mut host = Host::server();
    let id = bind(&mut host, "::", 53);
    let payload: Vec<u8> = (0..length).map(|at| (at * 31 % 251) as u8).collect();
    let datagram = udp(at(family.0, 5000), at(family.1, 53), &payload);
    (host, id, payload, datagram)
}

#[test]
fn a_datagram_in_fragments_is_whole_whatever_their_order() {
    for family in [V4, V6] {
        for seed in 0..20 {
            let (mut host, id, payload, datagram) = server(family, 20_000);
            let mut parts = fragments(ends(family), 17, 9, &datagram, 1480);
            let mut random = Random(seed);
            for last in (1..parts.len()).rev() {
                parts.swap(last, random.below(last as u64 + 1) as usize);
            }
            let count = parts.len() as u64;
            for (place, part) in parts.into_iter().enumerate() {
                assert_eq!(recv(&mut host, id), Err(NetError::WouldBlock), "after {place} of {count}");
                host.receive(part);
            }
            assert_eq!(recv(&mut host, id).unwrap(), (payload, at(family.0, 5000)));
            let counters = host.stack.counters();
            assert_eq!((counters.fragments_kept, counters.packets_reassembled), (count - 1, 1));
            assert_eq!((counters.reassembly_failures, host.refused()), (0, 0));
            assert_eq!(host.stack.next_deadline_ns(), None, "nothing waits any more");
        }
    }
}

#[test]
fn the_longest_datagrams_are_taken_and_longer_packets_are_not() {
    for (family, longest) in [(V4, 65_507), (V6, 65_527)] {
        let (mut host, id, payload, datagram) = server(family, longest);
        fragments(ends(family), 17, 1, &datagram, 1280).into_iter().for_each(|part| host.receive(part));
        assert_eq!(recv(&mut host, id).unwrap().0, payload);
        // This is done for both families with the last eight bytes that an offset can name, and with one byte more than
        // the length can tell.
        host.receive(fragment(ends(family), 17, (2, 0, true), &datagram[..64]));
        host.receive(fragment(ends(family), 17, (2, 65_528, false), &[0; 8]));
        assert_eq!(host.stack.counters().reassembly_failures, 1);
    }
}

#[test]
fn packets_between_the_same_ends_are_told_apart() {
    for family in [V4, V6] {
        let (mut host, id, ..) = server(family, 0);
        let datagrams: Vec<_> = (0..4_u8)
            .map(|salt| udp(at(family.0, 5000), at(family.1, 53), &vec![salt; 3000 + usize::from(salt)]))
            .collect();
        let parts = datagrams.iter().zip(0..).map(|(datagram, id)| fragments(ends(family), 17, id, datagram, 1000));
        let parts: Vec<Vec<Frame>> = parts.collect();
        for place in 0..4 {
            parts.iter().for_each(|parts| host.receive(Frame::copy_from(parts[place].data())));
        }
        for salt in 0..4_u8 {
            assert_eq!(recv(&mut host, id).unwrap().0, vec![salt; 3000 + usize::from(salt)]);
        }
    }
}

/// RFC 5722: an overlap spoils the packet. A fragment that comes a second time does not.
#[test]
fn a_fragment_may_come_twice_and_must_not_overlap_another() {
    for family in [V4, V6] {
        let (mut host, id, payload, datagram) = server(family, 2992);
        let part = |offset: usize, end: usize| {
            fragment(ends(family), 17, (7, offset, end < datagram.len()), &datagram[offset..end])
        };
        for (offset, end) in [(0, 1000), (0, 1000), (1000, 2000), (200, 1800), (2000, 3000)] {
            host.receive(part(offset, end));
        }
        assert_eq!(recv(&mut host, id).unwrap().0, payload, "the same bytes again say nothing new");
        assert_eq!(host.stack.counters().drop_fragment, 2);
        for (offset, end) in [(0, 1000), (992, 2000), (2000, 3000)] {
            host.receive(part(offset, end));
        }
        assert_eq!(recv(&mut host, id), Err(NetError::WouldBlock));
        assert_eq!(host.stack.counters().reassembly_failures, 1);
    }
}

/// The packet's end is where the last fragment says, even if another fragment came first.
#[test]
fn nothing_is_behind_the_last_fragment() {
    let (mut host, id, _, datagram) = server(V4, 2992);
    for order in [[(2000, false), (2400, true)], [(2400, true), (2000, false)]] {
        for (offset, more) in order {
            host.receive(fragment(ends(V4), 17, (3, offset, more), &datagram[offset..offset + 400]));
        }
    }
    assert_eq!(host.stack.counters().reassembly_failures, 2);
    assert_eq!(recv(&mut host, id), Err(NetError::WouldBlock));
}

/// A fragment without data, or one after which no other can begin, belongs to no packet.
#[test]
fn fragments_that_cannot_be_are_refused() {
    for family in [V4, V6] {
        let (mut host, ..) = server(family, 0);
        host.receive(fragment(ends(family), 17, (1, 8, false), &[]));
        host.receive(fragment(ends(family), 17, (1, 0, true), &[0; 1001]));
        assert_eq!(host.stack.counters().drop_fragment, 2);
        assert_eq!(host.stack.next_deadline_ns(), None, "nothing of it is kept");
    }
}

/// `ip_expire`: the sender is told, if the first fragment has come and so tells what the error is about.
#[test]
fn what_is_not_whole_in_time_is_forgotten_and_its_sender_told() {
    for (family, wait, kind, protocol_at) in [(V4, 30 * SECOND, [11, 1], 23), (V6, 60 * SECOND, [3, 1], 20)] {
        for (offset, told) in [(0, true), (1000, false)] {
            let (mut host, id, _, datagram) = server(family, 2992);
            let neighbour = bind(&mut host, "::", 54);
            host.receive(ip_packet(
                ip(family.0),
                ip(family.1),
                17,
                0,
                &[],
                &udp(at(family.0, 1), at(family.1, 54), b"x"),
            ));
            recv(&mut host, neighbour).unwrap();
            let part = fragment(ends(family), 17, (7, offset, true), &datagram[offset..offset + 1000]);
            host.receive(Frame::copy_from(part.data()));
            host.run_for(wait - MS);
            assert_eq!(host.stack.counters().reassembly_failures, 0);
            host.sent();
            host.run_for(2 * MS);
            assert_eq!(host.stack.counters().reassembly_failures, 1);
            let errors = host.sent();
            assert_eq!(errors.len(), usize::from(told));
            for error in errors {
                let (bytes, header) = (error.data(), if family == V4 { 34 } else { 54 });
                assert!([1, 58].contains(&bytes[protocol_at]));
                assert_eq!(bytes[header..header + 2], kind);
                let quoted = &bytes[header + 8..];
                assert_eq!(quoted[..40], part.data()[14..54], "the fragment as it came");
            }
            // The rest is of no use by now.
            for rest in [0, 1000, 2000].into_iter().filter(|rest| *rest != offset) {
                let end = (rest + 1000).min(datagram.len());
                host.receive(fragment(ends(family), 17, (7, rest, end < datagram.len()), &datagram[rest..end]));
            }
            assert_eq!(recv(&mut host, id), Err(NetError::WouldBlock));
        }
    }
}

/// A flood of fragments without the rest takes a bounded amount of memory, and the newest packets get through.
#[test]
fn the_oldest_packets_make_room() {
    let (mut host, id, payload, datagram) = server(V4, 2992);
    host.receive(ip_packet(ip(CLIENT), ip(SERVER), 17, 0, &[], &udp(at(CLIENT, 1), at(SERVER, 53), b"x")));
    recv(&mut host, id).unwrap();
    let before = host.stack.memory_bytes();
    for flood in 0..20_000_u32 {
        host.receive(fragment(
            ends((&format!("10.0.0.{}", 3 + flood % 200), SERVER)),
            17,
            (flood / 200, 0, true),
            &[0; 1000],
        ));
    }
    let held = host.stack.memory_bytes() - before;
    assert!((3 << 20..=4 << 20).contains(&held), "{held} bytes");
    assert!(host.stack.counters().reassembly_failures > 10_000);
    fragments(ends(V4), 17, 65_000, &datagram, 1000).into_iter().for_each(|part| host.receive(part));
    assert_eq!(recv(&mut host, id).unwrap().0, payload);
    host.run_for(40 * SECOND);
    assert_eq!(host.stack.memory_bytes() - before, 0, "the socket has nothing, and nothing is kept");
}

#[test]
fn a_segment_in_fragments_reaches_its_connection() {
    for mut peer in [Peer::new(4000), Peer::v6(4000)] {
        let mut host = Host::server();
        let listener = host.stack.tcp_listen(at("::", 80), Default::default()).unwrap();
        let id = host.establish(listener, &mut peer);
        let segment = peer.segment(ACK | PSH, &[7; 1000]);
        let parts = fragments((segment.from.ip(), segment.to.ip()), 6, 5, &segment.transport(), 400);
        parts.into_iter().for_each(|part| host.receive(part));
        assert_eq!(host.recv(id).unwrap(), [7; 1000]);
    }
}

/// A fragment inside a fragment, and a neighbour's message in fragments (RFC 6980), are nobody's.
#[test]
fn some_packets_must_not_come_in_fragments() {
    let (mut host, id, _, datagram) = server(V6, 1000);
    let inner = [&[17, 0, 0, 1, 0, 0, 0, 8][..], &datagram[..800]].concat();
    fragments(ends(V6), 44, 6, &inner, 400).into_iter().for_each(|part| host.receive(part));
    assert_eq!((host.stack.counters().packets_reassembled, host.stack.counters().drop_fragment), (1, 1));
    let solicitation =
        [&[135, 0, 0, 0, 0, 0, 0, 0][..], &[0x20, 1, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1], &[0; 8]].concat();
    for mut part in fragments(ends(V6), 58, 7, &solicitation, 16) {
        part.data_mut()[14 + 7] = 255;
        host.receive(part);
    }
    assert_eq!((host.stack.counters().packets_reassembled, host.stack.counters().drop_fragment), (2, 2));
    assert_eq!(host.stack.counters().neighbour_messages, 0);
    assert_eq!(recv(&mut host, id), Err(NetError::WouldBlock));
}

#[test]
fn who_may_not_send_may_not_send_fragments() {
    let mut config = server_config();
    config.allowed_sources = vec![(ip("10.0.0.9"), 32)];
    let mut host = Host::server_with(config);
    host.receive(fragment(ends(V4), 17, (1, 0, true), &[0; 8]));
    assert_eq!(host.stack.counters().drop_not_allowed, 1);
    assert_eq!(host.stack.next_deadline_ns(), None);
}

#[test]
fn long_datagrams_go_there_and_back_in_fragments() {
    for (family, longest) in [(V4, 65_507), (V6, 65_527)] {
        let mut net = Net::new();
        let server = bind(&mut net.server, "::", 53);
        let client = bind(&mut net.client, "::", 0);
        for length in [1452, 1453, 1472, 1473, 2944, 9000, longest] {
            let data: Vec<u8> = (0..length).map(|at| (at * 7 % 251) as u8).collect();
            assert_eq!(send_to(&mut net.client, client, &data, at(family.1, 53)), Ok(length));
            assert!(net.client.ring.frames.iter().all(|frame| frame.len() <= 1514));
            net.run_for(20 * MS);
            let (heard, from) = recv(&mut net.server, server).unwrap();
            assert_eq!(heard, data);
            assert_eq!(send_to(&mut net.server, server, &data, from), Ok(length));
            net.run_for(20 * MS);
            assert_eq!(recv(&mut net.client, client).unwrap().0, data);
        }
        assert_eq!(
            send_to(&mut net.client, client, &vec![0; longest + 1], at(family.1, 53)),
            Err(NetError::MessageTooLong)
        );
    }
}

/// The device makes the checksums of frames, but this checksum is over all fragments.
#[test]
fn fragments_have_their_checksum_whoever_makes_others() {
    let mut config = client_config();
    config.tx_checksum_offload = true;
    let mut net = Net::of(Host::new(config), Host::new(server_config()));
    let server = bind(&mut net.server, "::", 53);
    let client = bind(&mut net.client, "::", 0);
    for to in [SERVER, SERVER6] {
        send_to(&mut net.client, client, &[7; 5000], at(to, 53)).unwrap();
        net.run_for(20 * MS);
        assert_eq!(recv(&mut net.server, server).unwrap().0, [7; 5000]);
    }
}

/// The rest waits in the socket, which is not writable meanwhile.
#[test]
fn fragments_wait_for_room_in_the_ring() {
    let mut net = Net::new();
    let server = bind(&mut net.server, "::", 53);
    let client = bind(&mut net.client, "::", 0);
    send_to(&mut net.client, client, b"where are you", at(SERVER, 53)).unwrap();
    net.run_for(5 * MS);
    recv(&mut net.server, server).unwrap();
    net.client.ring.slots = 3;
    send_to(&mut net.client, client, &[7; 20_000], at(SERVER, 53)).unwrap();
    assert!(!net.client.ready(client).contains(Ready::WRITABLE));
    assert_eq!(send_to(&mut net.client, client, b"x", at(SERVER, 53)), Err(NetError::WouldBlock));
    net.run_for(20 * MS);
    assert!(net.client.ready(client).contains(Ready::WRITABLE));
    assert_eq!(recv(&mut net.server, server).unwrap().0, [7; 20_000]);
    assert_eq!(net.client.stack.counters().tx_dropped, 0);
}

/// A datagram to an own address is not fragmented, as it does not leave.
#[test]
fn a_long_datagram_to_oneself_stays_whole() {
    let mut host = Host::server();
    let id = bind(&mut host, "::", 53);
    send_to(&mut host, id, &[7; 65_507], at(SERVER, 53)).unwrap();
    host.call(|stack, io| stack.deliver_looped(io));
    assert_eq!(recv(&mut host, id).unwrap().0, [7; 65_507]);
    assert_eq!(host.stack.counters().looped_frames, 1);
}

/// This is what `ping -s 20000` sends.
#[test]
fn a_long_echo_is_answered_in_fragments() {
    for (family, protocol, kinds) in [(V4, 1, [8, 0]), (V6, 58, [128, 129])] {
        let mut host = Host::server();
        let mut echo = [&[kinds[0], 0, 0, 0, 1, 2, 3, 4][..], &[9; 20_000]].concat();
        let v6 = pseudo(ip(family.0), ip(family.1), 58, echo.len());
        let sum = checksum(&[if protocol == 58 { &v6 } else { &[] }, &echo]).to_be_bytes();
        echo[2..4].copy_from_slice(&sum);
        fragments(ends(family), protocol, 5, &echo, 1480).into_iter().for_each(|part| host.receive(part));
        assert_eq!(host.stack.counters().icmp_echo_replies, 1);
        // The whole answer waits for the neighbour's address.
        let mut client = Host::new(client_config());
        for _ in 0..4 {
            host.sent().into_iter().for_each(|frame| client.receive(frame));
            client.sent().into_iter().for_each(|frame| host.receive(frame));
        }
        let counters = client.stack.counters();
        assert_eq!((counters.packets_reassembled, counters.fragments_kept, counters.drop_icmp), (1, 13, 1));
    }
}

/// Sends a datagram. Returns the sizes of its frames, from the IP header on, and whether routers may fragment them.
fn shape(host: &mut Host, id: SocketId, bytes: usize, to: SocketAddr) -> Result<Vec<(usize, bool)>, NetError> {
    send_to(host, id, &vec![7; bytes], to)?;
    let frames = host.sent();
    Ok(frames.iter().map(|frame| (frame.len() - 14, frame.data()[14 + 6] & 0x40 == 0)).collect())
}

/// A host that knows where the client is, a socket of it whose peer is the client, and one without a peer.
fn acquainted() -> (Host, SocketId, SocketId) {
    let mut host = Host::server();
    let (id, free) = (bind(&mut host, "0.0.0.0", 53), bind(&mut host, "0.0.0.0", 54));
    host.stack.udp_connect(id, Some(at(CLIENT, 9))).unwrap();
    host.receive(ip_packet(ip(CLIENT), ip(SERVER), 17, 0, &[], &udp(at(CLIENT, 9), at(SERVER, 53), b"x")));
    recv(&mut host, id).unwrap();
    send_to(&mut host, free, b"x", at(CLIENT, 9)).unwrap();
    host.sent();
    (host, id, free)
}

/// IP_MTU_DISCOVER, as `__ip_append_data` and `__ip_make_skb` heed it.
#[test]
fn a_socket_heeds_the_mtu_as_it_was_told() {
    use PathMtuDiscovery::*;
    let (mut host, id, _) = acquainted();
    for (how, cuts, routers_cut) in [
        (Dont, true, true),
        (Want, true, false),
        (Do, false, false),
        (Probe, false, false),
        (Interface, false, true),
        (Omit, true, true),
    ] {
        host.stack.udp_set_path_mtu_discovery(id, false, how).unwrap();
        assert_eq!(shape(&mut host, id, 1472, at(CLIENT, 9)), Ok(vec![(1500, routers_cut)]), "{how:?}");
        let parts = Ok(vec![(1500, true), (21, true)]);
        let expected = if cuts { parts } else { Err(NetError::MessageTooLong) };
        assert_eq!(shape(&mut host, id, 1473, at(CLIENT, 9)), expected, "{how:?}");
    }
}

/// A router's report about a frame that it could not pass.
fn too_big(about: &[u8], mtu: u16) -> Frame {
    let mut icmp = [&[3, 4, 0, 0, 0, 0], &mtu.to_be_bytes()[..], &about[..28]].concat();
    let sum = checksum(&[&icmp]).to_be_bytes();
    icmp[2..4].copy_from_slice(&sum);
    ip_packet(ip("10.0.0.254"), ip(SERVER), 1, 0, &[], &icmp)
}

/// `__udp4_lib_err`: a router's report about a datagram makes the next ones smaller, and a socket with a peer gets an
/// error.
#[test]
fn datagrams_shrink_to_the_path() {
    use PathMtuDiscovery::*;
    for (how, hears, next) in [
        (Want, true, Ok(vec![(996, true), (304, true)])),
        (Dont, false, Ok(vec![(996, true), (304, true)])),
        (Do, true, Err(NetError::MessageTooLong)),
        (Probe, true, Ok(vec![(1280, false)])),
    ] {
        let (mut host, id, free) = acquainted();
        host.stack.udp_set_path_mtu_discovery(id, false, how).unwrap();
        send_to(&mut host, id, &[7; 1252], at(CLIENT, 9)).unwrap();
        let lost = host.sent().remove(0);
        host.changes.clear();
        host.receive(too_big(&lost.data()[14..], 1000));
        let edges = host.changes.pop().map(|change| (change.socket, change.edges));
        assert_eq!(edges, hears.then_some((id, Ready::ERR)), "{how:?}");
        assert_eq!(host.stack.take_error(id), Ok(hears.then_some(NetError::MessageTooLong)));
        assert_eq!(shape(&mut host, id, 1252, at(CLIENT, 9)), next, "{how:?}");
        // It is a property of the path, so another socket heeds it as well.
        assert_eq!(shape(&mut host, free, 1252, at(CLIENT, 9)), Ok(vec![(996, true), (304, true)]));
        host.run_for(601 * SECOND);
        assert_eq!(shape(&mut host, free, 1252, at(CLIENT, 9)), Ok(vec![(1280, false)]), "that was long ago");
    }
}

/// A socket without a peer is not told, and sends smaller datagrams.
#[test]
fn datagrams_of_a_socket_without_a_peer_shrink_too() {
    let (mut host, _, free) = acquainted();
    send_to(&mut host, free, &[7; 1252], at(CLIENT, 9)).unwrap();
    let lost = host.sent().remove(0);
    host.receive(too_big(&lost.data()[14..], 1000));
    assert_eq!(host.stack.take_error(free), Ok(None));
    assert_eq!(shape(&mut host, free, 1252, at(CLIENT, 9)), Ok(vec![(996, true), (304, true)]));
}

/// A stranger's report about something that nobody here has sent, or that was not too long, changes nothing. And no
/// connection heeds a report about datagrams.
#[test]
fn a_strangers_word_shrinks_nothing() {
    let (mut host, _, free) = acquainted();
    send_to(&mut host, free, &[7; 1252], at(CLIENT, 9)).unwrap();
    let lost = host.sent().remove(0).data()[14..].to_vec();
    let mut of_nobody = lost.clone();
    of_nobody[20..22].copy_from_slice(&55_u16.to_be_bytes());
    host.receive(too_big(&of_nobody, 1000));
    host.receive(too_big(&lost, 1280));
    assert_eq!(shape(&mut host, free, 1252, at(CLIENT, 9)), Ok(vec![(1280, false)]));
    host.receive(too_big(&lost, 600));
    assert_eq!(host.stack.counters().path_mtu_reduced, 1);
    let listener = host.listen(80);
    let mut peer = Peer::new(4000);
    let id = host.establish(listener, &mut peer);
    host.send(id, &[9; 1460]).unwrap();
    assert_eq!(host.segments().iter().map(|segment| segment.payload.len()).max(), Some(1460));
}

/// `ipv6_frag_rcv`: a packet has one fragment header, and one that says that the packet is no fragment counts.
#[test]
fn a_second_fragment_header_is_refused() {
    let (mut host, id, payload, datagram) = server(V6, 100);
    let (from, to) = ends(V6);
    let whole = |next: u8| [next, 0, 0, 0, 0, 0, 0, 7];
    for (offset, part) in [(0, &datagram[..56]), (56, &datagram[56..])] {
        let word = offset as u16 | u16::from(offset == 0);
        let header = [&[17, 0], &word.to_be_bytes()[..], &9_u32.to_be_bytes()].concat();
        host.receive(ip_packet(from, to, 17, 44, &[&whole(44)[..], &header].concat(), part));
    }
    host.receive(ip_packet(from, to, 17, 44, &[whole(44), whole(17)].concat(), &datagram));
    assert_eq!((recv(&mut host, id), host.stack.counters().drop_malformed), (Err(NetError::WouldBlock), 3));
    assert_eq!(host.stack.next_deadline_ns(), None, "nothing is kept");
    host.receive(ip_packet(from, to, 17, 44, &whole(17), &datagram));
    assert_eq!(recv(&mut host, id).unwrap().0, payload);
}
