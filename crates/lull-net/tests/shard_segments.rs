//! Frames that a well-behaved peer sends rarely, and some that it never sends. Each test shows what Linux does with one
//! kind.

mod shard_harness;

use lull_net::shard::{BufferGrowth, ConnectOptions, Keepalive, ListenOptions, Neighbours, NetError, Ready, SocketId};
use lull_nic::Frame;
use shard_harness::udp::{bind, send_to, udp};
use shard_harness::*;

/// RFC 9293 section 3.10.7.1: if there is no connection, everything but a reset is answered by a reset.
#[test]
fn a_fin_for_a_closed_port_is_reset() {
    let mut host = Host::server();
    let peer = Peer { ack: 77, ..Peer::new(4000) };
    host.receive(peer.segment(FIN | ACK, &[]).frame());
    let reset = host.segments();
    assert_eq!((reset.len(), reset[0].flags, reset[0].seq), (1, RST, 77));
    for (flags, occupied) in [(FIN, 1), (0, 0), (PSH, 0), (SYN | FIN, 2)] {
        host.receive(peer.segment(flags, &[]).frame());
        let reset = host.segments();
        assert_eq!((reset.len(), reset[0].flags, reset[0].seq), (1, RST | ACK, 0), "flags {flags:#x}");
        assert_eq!(reset[0].ack, peer.seq + occupied);
    }
    host.receive(peer.segment(RST | FIN, &[]).frame());
    assert!(host.segments().is_empty());
    // A listener does not answer a segment that neither begins nor acknowledges anything (section 3.10.7.2).
    host.listen(80);
    for flags in [FIN, 0, SYN | FIN] {
        host.receive(peer.segment(flags, &[]).frame());
        assert!(host.segments().is_empty(), "flags {flags:#x}");
    }
    host.receive(peer.segment(FIN | ACK, &[]).frame());
    assert_eq!(host.segments()[0].flags, RST);
}

/// `tcp_timewait_state_process`: a SYN that opens nothing is answered by where the old connection stood.
#[test]
fn a_syn_that_time_wait_does_not_give_way_to_is_acknowledged() {
    let (mut host, listener, mut peer, id) = Host::with_a_peer();
    host.close(id);
    peer.hear(&mut host);
    peer.send(&mut host, FIN | ACK, &[]);
    let end = host.segments().remove(0);
    // This is an old duplicate.
    let old = Peer { seq: peer.seq - 500, ..peer.clone() };
    host.receive(old.syn().frame());
    let told = host.segments();
    assert_eq!((told.len(), told[0].flags, told[0].seq, told[0].ack), (1, ACK, end.seq, peer.seq));
    // This SYN is new, but nobody listens any more.
    host.close(listener);
    host.run_for(SECOND);
    let new = Peer { seq: peer.seq + 500, ..peer.clone() };
    host.receive(new.syn().frame());
    let told = host.segments();
    assert_eq!((told.len(), told[0].flags, told[0].ack), (1, ACK, peer.seq));
    assert_eq!(host.stack.time_waits(), 1);
}

/// A connection that takes the place of one in TIME-WAIT begins with higher sequence numbers, even if the old one was
/// faster than the clock of initial sequence numbers.
#[test]
fn a_reopened_connection_begins_beyond_the_old_one() {
    let (mut host, _, mut peer, id) = Host::with_a_peer();
    for _ in 0..100 {
        host.send(id, &[1; 16_000]).unwrap();
        assert_eq!(peer.hear(&mut host).len(), 16_000);
        peer.send(&mut host, ACK, &[]);
    }
    host.close(id);
    peer.hear(&mut host);
    peer.send(&mut host, FIN | ACK, &[]);
    let end = host.segments().remove(0);
    host.receive(Peer { seq: peer.seq + 1, ..peer.clone() }.syn().frame());
    let reply = host.segments().remove(0);
    assert_eq!((reply.flags, reply.seq), (SYN | ACK, end.seq.wrapping_add(65_537)));
}

/// RFC 5961 section 5.2: an acknowledgement that is older than any window was is not genuine.
#[test]
fn a_far_too_old_acknowledgement_is_challenged() {
    let (mut host, _, mut peer, id) = Host::with_a_peer();
    let mut forged = peer.segment(ACK | PSH, b"forged");
    forged.ack = forged.ack.wrapping_sub(1 << 20);
    host.receive(forged.frame());
    let challenge = host.segments();
    assert_eq!((challenge.len(), challenge[0].flags, challenge[0].payload.len()), (1, ACK, 0));
    assert_eq!((challenge[0].seq, challenge[0].ack), (peer.ack, peer.seq));
    assert_eq!(host.recv(id), Err(NetError::WouldBlock));
    // It is answered at most twice a second (`tcp_invalid_ratelimit`), and each one is counted.
    (0..50).for_each(|_| host.receive(forged.frame()));
    assert!(host.segments().is_empty());
    host.run_for(SECOND);
    host.receive(forged.frame());
    assert_eq!(host.segments().len(), 1);
    let counters = host.stack.counters();
    assert_eq!((counters.tcp_challenges, counters.tcp_challenges_skipped), (52, 50));
    peer.send(&mut host, ACK | PSH, b"genuine");
    assert_eq!(host.recv(id).unwrap(), b"genuine");
}

/// A challenge in the middle of a stream acknowledges what has come, and leaves the edge of the window where it was.
#[test]
fn a_challenge_says_exactly_where_the_stream_stands() {
    for (rx_buffer_bytes, options) in [(16_384, &[][..]), (262_144, &[1, 3, 3, 2][..])] {
        let mut host = Host::server();
        let listen = ListenOptions { rx_buffer_bytes, ..Default::default() };
        let listener = host.stack.tcp_listen(at("0.0.0.0", 80), listen).unwrap();
        let mut peer = Peer::new(4000);
        let mut syn = peer.syn();
        syn.options.extend(options);
        host.receive(syn.frame());
        let reply = host.segments().remove(0);
        (peer.seq, peer.ack) = (peer.seq + 1, reply.seq + 1);
        peer.send(&mut host, ACK, &[]);
        host.accept(listener);
        peer.send(&mut host, ACK | PSH, &[1; 800]);
        host.receive(Peer { seq: 99, ..peer.clone() }.syn().frame());
        let challenge = host.segments().remove(0);
        assert_eq!((challenge.seq, challenge.ack), (peer.ack, peer.seq));
        let scale = if options.is_empty() { 0 } else { 3 };
        let room = usize::from(challenge.window) << scale;
        assert!(room + 800 <= rx_buffer_bytes.max(65_535) && room + 808 > reply.window.into(), "{room}");
    }
}

/// A FIN that arrives before some of its data is kept, as on Linux, and not forgotten.
#[test]
fn a_fin_that_overtakes_data_is_kept() {
    let mut host = Host::server();
    let listener = host.listen(80);
    for with_data in [false, true] {
        let mut peer = Peer::new(4000 + u16::from(with_data));
        let id = host.establish(listener, &mut peer);
        let first = peer.segment(ACK | PSH, b"first");
        peer.seq += 5;
        let last: &[u8] = if with_data { b" and last" } else { b"" };
        peer.send(&mut host, FIN | ACK | PSH, last);
        assert_eq!(host.recv(id), Err(NetError::WouldBlock));
        host.receive(first.frame());
        assert_eq!(host.recv(id).unwrap(), [b"first", last].concat());
        assert_eq!(host.recv(id).unwrap(), b"", "the end of the stream, without a retransmission");
        assert_eq!(host.stack.tcp_state(id), Ok("CLOSE-WAIT"));
        host.run_for(50 * MS);
        assert_eq!(host.segments().last().map(|segment| segment.ack), Some(peer.seq));
        host.close(id);
        assert_eq!(host.segments()[0].flags & FIN, FIN);
        peer.ack += 1;
        peer.send(&mut host, ACK, &[]);
    }
    assert_eq!(host.stack.connections(), 0);
}

/// While the acknowledgement of a FIN is delayed, a reset after the FIN still has the exact number.
#[test]
fn a_reset_behind_an_unacknowledged_fin_is_believed() {
    let (mut host, _, mut peer, id) = Host::with_a_peer();
    peer.is_answered(&mut host, id);
    peer.send(&mut host, ACK | PSH, b"data");
    peer.send(&mut host, FIN | ACK, b"");
    assert!(host.segments().is_empty(), "not acknowledged yet");
    peer.send(&mut host, RST, &[]);
    assert!(host.segments().is_empty(), "no challenge");
    assert_eq!(host.stack.tcp_state(id), Ok("CLOSED"));
}

/// One segment in two is lost. All that have come are kept, and one retransmission fills each hole.
#[test]
fn thirty_holes_are_filled_by_one_retransmission_each() {
    let (mut host, _, mut peer, id) = Host::with_a_peer();
    let segments: Vec<Tcp> = (0..62u8)
        .map(|number| {
            let segment = peer.segment(ACK | PSH, &[number; 100]);
            peer.seq += 100;
            segment
        })
        .collect();
    segments.iter().skip(1).step_by(2).for_each(|segment| host.receive(segment.frame()));
    assert_eq!(host.recv(id), Err(NetError::WouldBlock));
    segments.iter().step_by(2).for_each(|segment| host.receive(segment.frame()));
    let expected: Vec<u8> = (0..62u8).flat_map(|number| [number; 100]).collect();
    assert_eq!(host.recv(id).unwrap(), expected);
}

fn tagged(frame: &Frame, tags: &[[u8; 4]]) -> Frame {
    let data = frame.data();
    Frame::copy_from(&[&data[..12], &tags.concat(), &data[12..]].concat())
}

/// IEEE 802.1Q: VLAN 0 is a priority and not a VLAN.
#[test]
fn priority_tags_are_accepted_and_vlans_are_not() {
    let mut host = Host::server();
    let listener = host.listen(80);
    let mut peer = Peer::new(4000);
    host.receive(tagged(&peer.syn().frame(), &[[0x81, 0, 0xe0, 0]]));
    let reply = host.segments().remove(0);
    (peer.seq, peer.ack) = (peer.seq + 1, reply.seq + 1);
    host.receive(tagged(&peer.segment(ACK, &[]).frame(), &[[0x88, 0xa8, 0x20, 0], [0x81, 0, 0, 0]]));
    let id = host.accept(listener);
    let data = peer.segment(ACK | PSH, b"tagged").frame();
    host.receive(tagged(&data, &[[0x81, 0, 0, 5]]));
    assert_eq!((host.recv(id), host.stack.counters().drop_vlan), (Err(NetError::WouldBlock), 1));
    host.receive(tagged(&data, &[[0x81, 0, 0x60, 0]]));
    assert_eq!(host.recv(id).unwrap(), b"tagged");
    for length in 12..18 {
        host.receive(Frame::copy_from(&tagged(&data, &[[0x81, 0, 0, 0]]).data()[..length]));
    }
    assert_eq!(host.refused(), 7);
}

fn arp(operation: u8, sender: [u8; 6], target_mac: [u8; 6], target: [u8; 4]) -> Frame {
    arp_of([10, 0, 0, 2], operation, sender, target_mac, target)
}

fn arp_of(station: [u8; 4], operation: u8, sender: [u8; 6], target_mac: [u8; 6], target: [u8; 4]) -> Frame {
    let mut arp = vec![0, 1, 8, 0, 6, 4, 0, operation];
    arp.extend([&sender[..], &station, &target_mac, &target].concat());
    let mut frame = ethernet(0x0806, &arp);
    frame.data_mut()[..6].fill(0xff);
    frame.data_mut()[6..12].copy_from_slice(&sender);
    frame
}

/// `arp_process`: a gratuitous message changes an entry at once, another message only when the entry is a second old
/// (`locktime`), and neither makes an entry.
#[test]
fn a_gratuitous_arp_moves_a_peer() {
    const OLD: [u8; 6] = [2, 0, 0, 0, 0, 0x11];
    const NEW: [u8; 6] = [2, 0, 0, 0, 0, 0x22];
    const NOBODY: [u8; 6] = [0; 6];
    let peer = [10, 0, 0, 2];
    for (message, at_once) in [
        (arp(1, NEW, NOBODY, peer), true),
        (arp(2, NEW, NEW, peer), true),
        // To Linux, a reply that names no target station is not gratuitous, and neither is a request for another
        // station.
        (arp(2, NEW, NOBODY, peer), false),
        (arp(1, NEW, NOBODY, [10, 0, 0, 9]), false),
    ] {
        let mut host = Host::new(server_config());
        host.receive(message.clone());
        assert_eq!(host.neighbours.lookup(ip(CLIENT)), None, "nobody had asked");
        host.receive(arp(1, OLD, NOBODY, [10, 0, 0, 1]));
        let id = host.connect(at(CLIENT, 9));
        assert_eq!(host.sent()[1].data()[..6], OLD);
        host.receive(message.clone());
        assert_eq!(host.neighbours.lookup(ip(CLIENT)), Some(if at_once { NEW } else { OLD }));
        host.run_for(SECOND);
        host.receive(message);
        assert_eq!(host.neighbours.lookup(ip(CLIENT)), Some(NEW));
        // The connection follows.
        host.sent();
        host.run_for(4 * SECOND);
        let of_ip = |frame: &Frame| frame.data()[12..14] == [8, 0];
        let segments: Vec<Frame> = host.sent().into_iter().filter(of_ip).collect();
        assert!(!segments.is_empty() && segments.iter().all(|segment| segment.data()[..6] == NEW));
        host.close(id);
    }
}

/// Nobody acknowledges a datagram. A host that was replaced under its address, and has not announced that, is found
/// nevertheless (`neigh/default/base_reachable_time_ms`). An entry that an operator has made is not asked for.
#[test]
fn a_station_that_datagrams_go_to_is_asked_for_again() {
    const OLD: [u8; 6] = [2, 0, 0, 0, 0, 0x11];
    const NEW: [u8; 6] = [2, 0, 0, 0, 0, 0x22];
    const REPLY: u8 = 2;
    for is_permanent in [false, true] {
        let mut host = Host::new(server_config());
        if is_permanent {
            host.neighbours.add_permanent(ip(CLIENT), OLD);
        } else {
            host.receive(arp(1, OLD, [0; 6], [10, 0, 0, 1]));
        }
        host.sent();
        let id = bind(&mut host, "0.0.0.0", 53);
        let (mut asked_at, mut moved_at) = (Vec::new(), None);
        for second in 0..100 {
            assert_eq!(send_to(&mut host, id, b"x", at(CLIENT, 9)), Ok(1));
            let (arps, datagrams): (Vec<_>, Vec<_>) = host.sent().into_iter().partition(|f| f.data()[12..14] == [8, 6]);
            assert_eq!(datagrams.len(), 1, "what is known is used meanwhile");
            if datagrams[0].data()[..6] == NEW {
                moved_at.get_or_insert(second);
            }
            if !arps.is_empty() {
                asked_at.push(second);
                let answering = if asked_at.len() < 2 { OLD } else { NEW };
                host.receive(arp(REPLY, answering, [2, 0, 0, 0, 0, 2], [10, 0, 0, 1]));
            }
            host.run_for(SECOND);
        }
        let expected = if is_permanent { (vec![], None) } else { (vec![30, 60, 90], Some(61)) };
        assert_eq!((asked_at, moved_at), expected);
    }
}

/// A shard's own view of the neighbours has a place for each of 256, and these two stations have the same place.
const OF_ONE_PLACE: [[u8; 4]; 2] = [[10, 0, 0, 1], [10, 0, 0, 234]];

/// A host that knows both stations.
fn beside_two_of_one_place() -> Host {
    let mut config = server_config();
    config.addresses = vec![(ip("10.0.0.100"), 24)];
    let mut host = Host::new(config);
    for station in OF_ONE_PLACE {
        host.receive(arp_of(station, 1, [2, 0, 0, 0, 1, station[3]], [0; 6], [10, 0, 0, 100]));
    }
    host.sent();
    host
}

/// The stations that ARP requests ask for.
fn asked_for(frames: &[Frame]) -> Vec<u8> {
    frames.iter().filter(|frame| frame.data()[12..14] == [8, 6]).map(|frame| frame.data()[41]).collect()
}

#[test]
fn stations_that_share_a_place_are_both_asked_for_again() {
    let mut host = beside_two_of_one_place();
    let id = bind(&mut host, "0.0.0.0", 53);
    let mut asked = Vec::new();
    for second in 0..70 {
        for to in OF_ONE_PLACE {
            assert_eq!(send_to(&mut host, id, b"x", std::net::SocketAddr::from((to, 9))), Ok(1));
        }
        asked.extend(asked_for(&host.sent()).into_iter().map(|station| (second, station)));
        host.run_for(SECOND);
    }
    assert_eq!(asked, [(30, 1), (30, 234), (60, 1), (60, 234)]);
}

/// Forty connections, each from the station that `of` returns.
fn connections_from(host: &mut Host, of: impl Fn(u16) -> std::net::IpAddr) -> Vec<SocketId> {
    let listener = host.listen(80);
    let establish = |number| {
        let mut peer = Peer::new(5000 + number);
        (peer.from, peer.to) = (std::net::SocketAddr::new(of(number), peer.from.port()), at("10.0.0.100", 80));
        host.establish(listener, &mut peer)
    };
    (0..40).map(establish).collect()
}

#[test]
fn silent_stations_that_share_a_place_are_asked_for_once_a_second_each() {
    let mut host = beside_two_of_one_place();
    let connections = connections_from(&mut host, |number| OF_ONE_PLACE[usize::from(number) % 2].into());
    for id in connections {
        host.send(id, b"lost").unwrap();
    }
    host.sent();
    for _ in 0..20 {
        host.run_for(SECOND);
        for station in OF_ONE_PLACE {
            // Requests that are due at the two ends of the second are two.
            let times = asked_for(&host.ring.frames).into_iter().filter(|asked| *asked == station[3]).count();
            assert!(times <= 2, "{times} times in a second");
        }
        host.sent();
    }
}

/// A full table forgets a station to which connections still go. Many connections ask for it no more often than one.
#[test]
fn a_silent_station_that_the_table_has_forgotten_is_asked_for_once_a_second() {
    let mut host = beside_two_of_one_place();
    let [silent, other] = OF_ONE_PLACE.map(std::net::IpAddr::from);
    let connections = connections_from(&mut host, |_| silent);
    host.neighbours.remove(silent);
    let id = bind(&mut host, "0.0.0.0", 53);
    assert_eq!(send_to(&mut host, id, b"x", std::net::SocketAddr::new(other, 9)), Ok(1));
    for id in connections {
        host.send(id, b"lost").unwrap();
    }
    host.sent();
    let mut asked = 0;
    for _ in 0..20 {
        host.run_for(SECOND);
        let times = asked_for(&host.sent()).len();
        assert!(times <= 2, "{times} times in a second");
        asked += times;
    }
    assert!(asked > 0);
}

/// The window of a SYN-ACK is not scaled, and there is no room beyond it: a buffer of 64 KiB or more takes no more than
/// it holds.
#[test]
fn nothing_beyond_a_large_receive_buffer_is_taken_right_after_the_handshake() {
    for rx_buffer_bytes in [65_536, 131_072, 300_000] {
        let mut host = Host::server();
        let options = ListenOptions { rx_buffer_bytes, ..ListenOptions::default() };
        let listener = host.stack.tcp_listen(at("0.0.0.0", 80), options).unwrap();
        let mut peer = Peer::new(4000);
        let mut syn = peer.syn();
        syn.options.extend([1, 3, 3, 7]);
        host.receive(syn.frame());
        let answer = host.segments().remove(0);
        (peer.seq, peer.ack) = (peer.seq + 1, answer.seq + 1);
        peer.send(&mut host, ACK, &[]);
        assert_eq!(host.segments(), [], "the peer hears nothing of what smoltcp was told");
        let first = peer.seq;
        let out_of_order = |from: usize| Tcp { seq: first + from as u32, ..peer.segment(ACK, &[9; 1460]) };
        host.receive(out_of_order(rx_buffer_bytes - 536).frame());
        host.receive(out_of_order(rx_buffer_bytes + 1).frame());
        host.segments();
        let id = host.accept(listener);
        let mut read = Vec::new();
        while read.len() + 1000 < rx_buffer_bytes - 536 {
            peer.send(&mut host, ACK, &[7; 1000]);
            host.segments();
            // The first half waits in the buffer.
            if peer.seq - first > rx_buffer_bytes as u32 / 2 {
                read.extend(host.recv(id).unwrap_or_default());
            }
        }
        assert!(read.iter().all(|byte| *byte == 7), "what nobody has sent");
    }
}

/// The answer to our SYN has come, and the segment that ends the handshake waits for room in the ring. The window is
/// still that of the SYN.
#[test]
fn nothing_beyond_a_large_receive_buffer_is_taken_while_the_end_of_the_handshake_waits_for_the_ring() {
    for is_scaled in [true, false] {
        let (mut host, rx_buffer_bytes) = (Host::server(), 262_144);
        let options = ConnectOptions { rx_buffer_bytes, ..ConnectOptions::default() };
        let id = host.call(|stack, io| stack.tcp_connect(None, at(CLIENT, 80), options, io)).unwrap();
        let syn = host.segments().remove(0);
        assert_eq!(syn.window, u16::MAX);
        let mut peer = Peer { from: syn.to, to: syn.from, seq: 5000, ack: syn.seq + 1, window: 60_000 };
        host.ring.slots = 0;
        let offer: &[u8] = if is_scaled { &[2, 4, 5, 180, 1, 3, 3, 7] } else { &[2, 4, 5, 180] };
        host.receive(Tcp { options: offer.to_vec(), ..peer.segment(SYN | ACK, &[]) }.frame());
        peer.seq += 1;
        let first = peer.seq;
        while peer.seq - first <= rx_buffer_bytes as u32 {
            let byte = ((peer.seq - first) / 1024) as u8;
            peer.send(&mut host, ACK, &[byte; 1024]);
        }
        host.ring.slots = 4096;
        host.call(|stack, io| stack.flush_blocked(io));
        // The data that had no room come again.
        peer.send(&mut host, ACK, &[0; 1024]);
        let told = host.segments().pop().expect("an acknowledgement");
        let came = (told.ack - first) as usize;
        assert!((60_000..=65_535).contains(&came), "{came} bytes");
        let read = host.recv(id).unwrap();
        assert!(read.len() == came && read.iter().enumerate().all(|(at, byte)| *byte == (at / 1024) as u8));
        // Once the missing data have come as well, the window is the size that was asked for, as far as a window can
        // say it.
        peer.seq = told.ack;
        while peer.seq - first <= rx_buffer_bytes as u32 {
            peer.send(&mut host, ACK, &[7; 1024]);
            assert_eq!(host.recv(id).unwrap(), [7; 1024]);
        }
        host.run_for(SECOND);
        let told = host.segments_beside_arp().pop().expect("a window");
        let room = if is_scaled { usize::from(told.window) << 3 } else { told.window.into() };
        let expected = if is_scaled { rx_buffer_bytes } else { 65_535 };
        assert!((expected - 16..=expected).contains(&room), "{room}");
    }
}

/// From the answer to our SYN on, it is known which numbers may come.
#[test]
fn a_reset_is_believed_while_the_end_of_the_handshake_waits_for_the_ring() {
    for (behind, is_believed) in [(0, true), (1, false)] {
        let mut host = Host::server();
        let id = host.connect(at(CLIENT, 80));
        let syn = host.segments().remove(0);
        let mut peer = Peer { from: syn.to, to: syn.from, seq: 5000, ack: syn.seq + 1, window: 60_000 };
        host.ring.slots = 0;
        host.receive(Tcp { options: vec![2, 4, 5, 180], ..peer.segment(SYN | ACK, &[]) }.frame());
        peer.seq += 1 + behind;
        peer.send(&mut host, RST, &[]);
        let error = is_believed.then_some(NetError::ConnectionReset);
        assert_eq!(host.stack.take_error(id), Ok(error));
    }
}

#[test]
fn a_connection_that_is_opened_with_a_large_receive_buffer_has_it_when_the_handshake_has_ended() {
    for (growth, rx_buffer_bytes) in [BufferGrowth::NONE, BufferGrowth::default()].into_iter().zip([1 << 17, 1 << 20]) {
        let mut config = server_config();
        config.growth = growth;
        let mut host = Host::server_with(config);
        let options = ConnectOptions { rx_buffer_bytes, ..ConnectOptions::default() };
        let id = host.call(|stack, io| stack.tcp_connect(None, at(CLIENT, 80), options, io)).unwrap();
        let syn = host.segments().remove(0);
        let scale = syn.options.windows(3).find(|option| option[..2] == [3, 3]).unwrap()[2];
        let peer = Peer { from: syn.to, to: syn.from, seq: 5000, ack: syn.seq + 1, window: 60_000 };
        host.receive(Tcp { options: vec![2, 4, 5, 180, 1, 3, 3, 7], ..peer.segment(SYN | ACK, &[]) }.frame());
        let told = host.segments().pop().expect("the end of the handshake");
        let room = usize::from(told.window) << scale;
        assert!((rx_buffer_bytes - (2 << scale)..=rx_buffer_bytes).contains(&room), "{room}");
        assert_eq!((told.ack, host.stack.buffer_sizes(id).unwrap().0), (5001, rx_buffer_bytes));
    }
}

/// A forged answer to our SYN is reset, and nothing is agreed on by it.
#[test]
fn an_answer_that_is_refused_agrees_to_no_scale() {
    let mut config = server_config();
    config.growth = BufferGrowth::default();
    let mut host = Host::server_with(config);
    let id = host.connect(at(CLIENT, 80));
    let syn = host.segments().remove(0);
    let scale = syn.options.windows(3).find(|option| option[..2] == [3, 3]).unwrap()[2];
    let answer = |ack: u32, options: &[u8]| Tcp {
        from: syn.to,
        to: syn.from,
        seq: 5000,
        ack,
        flags: SYN | ACK,
        window: 60_000,
        options: options.to_vec(),
        payload: Vec::new(),
    };
    host.receive(answer(syn.seq + 77, &[2, 4, 5, 180]).frame());
    assert!(host.segments_beside_arp()[0].flags & RST != 0);
    host.receive(answer(syn.seq + 1, &[2, 4, 5, 180, 1, 3, 3, 7]).frame());
    assert_eq!(host.segments_beside_arp().len(), 1);
    assert_eq!(host.stack.tcp_info(id, host.now_ns).unwrap().rcv_scale, scale);
}

/// Data that do not fit into the window come again, and so does the end after them. A reader that was told of the end
/// now would miss some.
#[test]
fn an_end_beyond_the_window_is_not_taken() {
    let (mut host, _, peer, id) = Host::with_a_peer();
    let window = server_config().rx_buffer_bytes;
    let mut at = peer.clone();
    for left in (0..=window / 1000).rev() {
        let length = if left == 0 { window % 1000 + 10 } else { 1000 };
        at.send(&mut host, if left == 0 { ACK | FIN } else { ACK }, &vec![7; length]);
    }
    host.segments();
    let mut read = 0;
    while let Ok(data) = host.recv(id) {
        assert!(!data.is_empty(), "an end after {read} of {} bytes", window + 10);
        read += data.len();
    }
    assert!(read <= window);
    let rest = Tcp { seq: peer.seq + read as u32, ..peer.segment(ACK | FIN, &vec![7; window + 10 - read]) };
    host.receive(rest.frame());
    assert_eq!((host.recv(id).unwrap().len(), host.recv(id).unwrap().len()), (window + 10 - read, 0));
}

/// A peer whose window is closed takes a reset only at the number that it expects (`tcp_acceptable_seq`).
#[test]
fn a_reset_reaches_a_peer_whose_window_is_closed() {
    let (mut host, _, mut peer, id) = Host::with_a_peer();
    peer.window = 0;
    peer.send(&mut host, ACK, &[]);
    host.send(id, &[1; 5000]).unwrap();
    host.run_for(SECOND);
    assert!(!host.segments().is_empty(), "the window is probed");
    peer.send(&mut host, ACK | PSH, b"unread");
    host.segments();
    host.close(id);
    let reset = host.segments().remove(0);
    assert_eq!((reset.flags & RST, reset.seq), (RST, peer.ack));
}

/// RFC 1122 section 4.2.2.13: nobody will read the data, and their sender has to know that, whether its end came along
/// or not.
#[test]
fn data_for_a_program_that_has_closed_is_reset_with_its_end_as_without() {
    for end in [0, FIN] {
        let (mut host, _, mut peer, id) = Host::with_a_peer();
        host.close(id);
        peer.hear(&mut host);
        peer.send(&mut host, ACK, &[]);
        peer.send(&mut host, ACK | PSH | end, b"late");
        let answers = host.segments();
        assert!(answers.len() == 1 && answers[0].flags & RST != 0, "{answers:?}");
        assert_eq!(host.stack.connections(), 0);
    }
}

/// `tcp_rcv_state_process`: the data are dropped, even with an end of their own, and what the segment acknowledges
/// counts.
#[test]
fn what_comes_behind_the_end_is_no_part_of_the_stream() {
    for (at, flags) in [(0, ACK | PSH), (0, ACK | FIN), (7, ACK | PSH), (7, ACK | FIN), (-2, ACK | PSH)] {
        let (mut host, _, mut peer, id) = Host::with_a_peer();
        host.send(id, b"answer").unwrap();
        host.segments();
        peer.send(&mut host, ACK | FIN, b"last");
        let end = peer.seq;
        (peer.seq, peer.ack) = (end.wrapping_add_signed(at), peer.ack + 6);
        peer.send(&mut host, flags, b"more!");
        assert_eq!(host.recv(id).unwrap(), b"last", "{at} {flags}");
        assert_eq!(host.recv(id).unwrap(), b"", "{at} {flags}");
        host.run_for(5 * SECOND);
        let sent = host.segments();
        assert!(sent.iter().all(|segment| segment.ack == end && segment.payload.is_empty()), "{at} {flags} {sent:?}");
        // Data that were missing before the end are not waited for.
        peer.seq = end;
        host.close(id);
        assert_eq!(host.segments().pop().map(|segment| (segment.flags & FIN, segment.ack)), Some((FIN, end)));
        peer.ack += 1;
        peer.send(&mut host, ACK, &[]);
        assert_eq!(host.stack.connections(), 0);
    }
}

/// RFC 9293 section 3.10.7.4: the number of the reset has to be in the window; the text in it needs no room.
#[test]
fn a_reset_with_a_reason_ends_a_connection_whose_window_is_closed() {
    for flags in [RST, RST | ACK] {
        let (mut host, _, mut peer, id) = Host::with_a_peer();
        let window = server_config().rx_buffer_bytes;
        for _ in 0..window / 1024 {
            peer.send(&mut host, ACK, &[7; 1024]);
        }
        assert_eq!(host.segments().pop().map(|segment| segment.window), Some(0));
        // This reset has an option, which stands before the reason.
        host.receive(Tcp { options: vec![1; 4], ..peer.segment(flags, b"No TCP/RST without a reason") }.frame());
        assert!(host.ready(id).contains(Ready::ERR | Ready::HUP), "{flags}");
        assert_eq!(host.recv(id).unwrap().len(), window);
        assert_eq!(host.recv(id), Err(NetError::ConnectionReset));
        assert_eq!(host.segments(), []);
    }
}

/// Anybody may send datagrams in the name of stations of the own network. Stations that were learned stay known.
#[test]
fn forged_stations_displace_none_that_was_learned() {
    let neighbours = std::sync::Arc::new(Neighbours::new(4));
    let mut host = Host::with_neighbours(server_config(), neighbours);
    host.receive(arp(1, [2, 0, 0, 0, 0, 0x11], [0; 6], [10, 0, 0, 1]));
    bind(&mut host, "0.0.0.0", 53);
    for last in 10..50 {
        let from = at(&format!("10.0.0.{last}"), 9);
        host.receive(ip_packet(from.ip(), ip(SERVER), 17, 0, &[], &udp(from, at(SERVER, 53), b"x")));
    }
    assert_eq!(host.neighbours.lookup(ip(CLIENT)), Some([2, 0, 0, 0, 0, 0x11]));
    assert_eq!(host.neighbours.len(), 4, "as many as there is room for are noted");
}

/// Of many connections to a silent station one asks for it, and not each.
#[test]
fn a_silent_station_is_asked_for_once_a_second() {
    let (mut host, listener, mut first, _) = Host::with_a_peer();
    let mut peers: Vec<(Peer, SocketId)> = (0..50)
        .map(|number| {
            let mut peer = Peer::new(5000 + number);
            let id = host.establish(listener, &mut peer);
            (peer, id)
        })
        .collect();
    first.send(&mut host, ACK, &[]);
    for (_, id) in &mut peers {
        host.send(*id, b"lost").unwrap();
    }
    host.sent();
    host.run_for(20 * SECOND);
    let (arps, segments): (Vec<_>, Vec<_>) = host.sent().into_iter().partition(|frame| frame.data()[12..14] == [8, 6]);
    assert!(segments.len() > 200 && (2..=20).contains(&arps.len()), "{} and {}", segments.len(), arps.len());
}

/// The segments of somebody else in the peer's name are no sign of life.
#[test]
fn a_dead_peer_is_found_though_somebody_sends_in_its_name() {
    let (mut host, _, peer, id) = Host::with_a_peer();
    let keepalive = Keepalive { idle_ns: 10 * SECOND, interval_ns: SECOND, probes: 3 };
    host.call(|stack, io| stack.set_keepalive(id, Some(keepalive), io)).unwrap();
    for _ in 0..20 {
        host.run_for(SECOND);
        host.receive(Tcp { ack: peer.ack + 70_000, ..peer.segment(ACK, &[]) }.frame());
    }
    assert_eq!(host.recv(id), Err(NetError::TimedOut));
}

/// Every second full segment is acknowledged at once (RFC 1122 section 4.2.3.2), even if the peer's own network has
/// larger ones.
#[test]
fn segments_of_a_peer_on_a_network_of_jumbo_frames_are_acknowledged_in_time() {
    for mss in [1460_u16, 8960] {
        let mut host = Host::server();
        host.listen(80);
        let mut peer = Peer::new(4000);
        let [high, low] = mss.to_be_bytes();
        host.receive(Tcp { options: vec![2, 4, high, low], ..peer.syn() }.frame());
        let answer = host.segments().remove(0);
        (peer.seq, peer.ack) = (peer.seq + 1, answer.seq + 1);
        peer.send(&mut host, ACK, &[]);
        for _ in 0..2 {
            peer.send(&mut host, ACK, &[7; 1460]);
            peer.send(&mut host, ACK, &[7; 1460]);
            assert_eq!(host.segments().last().map(|answer| answer.ack), Some(peer.seq), "{mss}");
        }
    }
}

/// `tcp_parse_options`: an option that is wrong is ignored, and so is everything after a length that cannot be. The
/// segment itself is taken.
#[test]
fn a_segment_is_taken_without_the_options_that_are_ill_formed() {
    const MSS: [u8; 4] = [2, 4, 5, 180];
    const CLOCK: [u8; 10] = [8, 10, 0, 0, 0, 9, 0, 0, 0, 0];
    let ill_formed: [&[u8]; 8] = [
        // These have another length than the option has.
        &[2, 3, 5, 1],
        &[3, 4, 1, 1],
        &[4, 3, 1, 1],
        &[5, 6, 0, 0, 0, 0, 1, 1],
        // These have a length that cannot be.
        &[254, 0, 1, 1],
        &[254, 1, 1, 1],
        &[254, 200, 1, 1],
        &[1, 1, 1, 254],
    ];
    for bad in ill_formed {
        let stops = bad[0] == 254 || bad[3] == 254;
        let mut host = Host::server();
        let listener = host.listen(80);
        let mut peer = Peer::new(4000);
        // The bad option stands before a good one, and after one.
        let options = [&MSS[..], bad, &[1, 1], &CLOCK].concat();
        host.receive(Tcp { options, ..peer.syn() }.frame());
        let answer = host.segments().remove(0);
        let has_clock = answer.options.windows(2).any(|option| option == [8, 10]);
        assert_eq!((answer.flags, has_clock), (SYN | ACK, !stops), "{bad:?}");
        (peer.seq, peer.ack) = (peer.seq + 1, answer.seq + 1);
        let clock = if stops { Vec::new() } else { [&[1, 1][..], &CLOCK].concat() };
        host.receive(Tcp { options: clock.clone(), ..peer.segment(ACK, &[]) }.frame());
        let id = host.accept(listener);
        let options = [&clock[..], bad].concat();
        host.receive(Tcp { options, ..peer.segment(ACK | PSH, b"data") }.frame());
        assert_eq!(host.recv(id), Ok(b"data".to_vec()), "{bad:?}");
        assert_eq!(host.refused(), 0);
    }
    // A wrong checksum is not corrected by this.
    let mut host = Host::server();
    host.listen(80);
    let mut frame = Tcp { options: vec![2, 3, 5, 1], ..Peer::new(4000).syn() }.frame();
    frame.data_mut()[34 + 16] ^= 1;
    host.receive(frame);
    assert_eq!((host.segments().len(), host.stack.counters().drop_checksum), (0, 1));
}
