//! Buffers whose size the program asks for (SO_SNDBUF, SO_RCVBUF, TCP_NOTSENT_LOWAT): how much may be written, what
//! window is offered, and that nothing is lost when the size changes.

mod shard_harness;

use lull_net::Shutdown;
use lull_net::shard::{BufferGrowth, ListenOptions, NetError, Ready, SendRoom, SocketId};
use shard_harness::stream::{Stream, byte, exchange, told};
use shard_harness::*;

const GROWTH: BufferGrowth = BufferGrowth { rx_bytes_max: 512 << 10, tx_bytes_max: 1 << 20, total_bytes_max: 64 << 20 };

fn set_room(host: &mut Host, id: SocketId, bytes: usize, unsent_bytes: usize) {
    host.call(|stack, io| stack.set_send_room(id, SendRoom { bytes, unsent_bytes }, io)).unwrap();
}

fn set_receive_buffer(host: &mut Host, id: SocketId, bytes: usize) {
    host.call(|stack, io| stack.set_receive_buffer(id, bytes, io)).unwrap();
}

fn bytes(places: std::ops::Range<usize>) -> Vec<u8> {
    places.map(|place| byte(place, 0)).collect()
}

/// Acknowledges what comes until nothing does any more. Returns what has come.
fn takes_all(host: &mut Host, peer: &mut Peer) -> Vec<u8> {
    let mut all = Vec::new();
    loop {
        let came = peer.hear(host);
        if came.is_empty() {
            return all;
        }
        all.extend(came);
        peer.send(host, ACK, b"");
    }
}

#[test]
fn as_much_may_be_written_as_was_asked_for() {
    for room in [2_000, 5_000, 16_384, 30_000, 300_000] {
        let (mut host, _, mut peer, id) = Host::with_a_peer();
        set_room(&mut host, id, room, 0);
        let data = bytes(0..room + 1000);
        assert_eq!(host.send(id, &data), Ok(room));
        assert_eq!(host.send(id, b"x"), Err(NetError::WouldBlock), "{room}");
        assert_eq!(host.stack.tcp_unacknowledged(id), Ok(room));
        assert!(!host.ready(id).contains(Ready::WRITABLE));
        assert_eq!(takes_all(&mut host, &mut peer), data[..room]);
        assert!(host.ready(id).contains(Ready::WRITABLE) && told(&mut host, id).contains(Ready::WRITABLE));
    }
}

/// Linux takes more than it sends at first (`tcp_sndbuf_expand`). Programs that drop a peer who leaves too much unread
/// rely on that.
#[test]
fn more_may_be_written_at_first_than_is_sent() {
    const ROOM: usize = 4 * lull_net::shard::BUFFER_BYTES;
    let with_a_peer = |options: ListenOptions| {
        let mut config = server_config();
        config.growth = GROWTH;
        let mut host = Host::server_with(config);
        let listener = host.stack.tcp_listen(at("0.0.0.0", 80), options).unwrap();
        let mut peer = Peer::new(4000);
        let id = host.establish(listener, &mut peer);
        (host, peer, id)
    };
    let data = bytes(0..2 * ROOM);
    for vectored in [false, true] {
        let (mut host, mut peer, id) = with_a_peer(ListenOptions::default());
        let taken = match vectored {
            false => host.send(id, &data),
            true => {
                let parts = [std::io::IoSlice::new(&data[..10]), std::io::IoSlice::new(&data[10..])];
                host.call(|stack, io| stack.tcp_send_vectored(id, &parts, io))
            }
        };
        assert_eq!(taken, Ok(ROOM));
        assert_eq!(host.send(id, b"x"), Err(NetError::WouldBlock));
        assert!(!host.ready(id).contains(Ready::WRITABLE));
        let segments = host.segments();
        let first: usize = segments.iter().map(|segment| segment.payload.len()).sum();
        assert!(first <= lull_net::shard::BUFFER_BYTES, "{first} bytes on their way");
        peer.ack += first as u32;
        peer.send(&mut host, ACK, b"");
        let rest = takes_all(&mut host, &mut peer);
        let mut all: Vec<u8> = segments.iter().flat_map(|segment| segment.payload.clone()).collect();
        all.extend(rest);
        assert!(all == data[..ROOM]);
        assert!(host.ready(id).contains(Ready::WRITABLE) && told(&mut host, id).contains(Ready::WRITABLE));
    }
    // A program that asks for a buffer size gets that size.
    let (mut host, _, id) = with_a_peer(ListenOptions { tx_buffer_bytes: 20_000, ..ListenOptions::default() });
    assert_eq!(host.send(id, &data), Ok(20_000));
}

/// `sk_stream_is_writeable` goes by the size that was asked for, and not by what the connection's buffer holds.
#[test]
fn a_writer_is_woken_when_a_third_of_what_was_asked_for_is_free() {
    for room in [6_000, 60_000] {
        let (mut host, _, mut peer, id) = Host::with_a_peer();
        set_room(&mut host, id, room, 0);
        host.send(id, &bytes(0..room)).unwrap();
        loop {
            let segments = host.segments();
            assert!(!segments.is_empty());
            for segment in segments {
                peer.ack += segment.payload.len() as u32;
                told(&mut host, id);
                peer.send(&mut host, ACK, b"");
                let left = host.stack.tcp_unacknowledged(id).unwrap();
                let is_free = (room - left) * 3 >= room;
                assert_eq!(host.ready(id).contains(Ready::WRITABLE), is_free, "{left} of {room}");
                assert_eq!(told(&mut host, id).contains(Ready::WRITABLE), is_free, "{left} of {room}");
                if is_free {
                    break;
                }
            }
            if host.ready(id).contains(Ready::WRITABLE) {
                break;
            }
        }
    }
}

#[test]
fn more_room_wakes_a_writer_and_less_takes_nothing_away() {
    let (mut host, _, mut peer, id) = Host::with_a_peer();
    set_room(&mut host, id, 4_000, 0);
    host.send(id, &bytes(0..4_000)).unwrap();
    told(&mut host, id);
    set_room(&mut host, id, 40_000, 0);
    assert_eq!(told(&mut host, id), Ready::WRITABLE);
    assert_eq!(host.send(id, &bytes(4_000..50_000)), Ok(36_000));
    set_room(&mut host, id, 3_000, 0);
    assert!(!host.ready(id).contains(Ready::WRITABLE));
    assert_eq!(host.send(id, b"x"), Err(NetError::WouldBlock));
    assert_eq!(takes_all(&mut host, &mut peer), bytes(0..40_000));
    assert_eq!(host.send(id, &bytes(40_000..50_000)), Ok(3_000));
}

/// The stack's own limit is the same as without a size.
#[test]
fn what_goes_into_the_buffer_leaves_as_it_did_without_a_size() {
    let (mut host, _, mut peer, id) = Host::with_a_peer();
    set_room(&mut host, id, 100_000, 0);
    for word in [&b"one"[..], b"two"] {
        host.send(id, word).unwrap();
        assert_eq!(peer.hear(&mut host), word);
        peer.send(&mut host, ACK, b"");
    }
    host.send(id, &bytes(0..100_000)).unwrap();
    let first: usize = host.segments().iter().map(|segment| segment.payload.len()).sum();
    assert!(first <= 16_384, "{first} bytes are more than may be on their way at first");
}

#[test]
fn the_end_follows_all_that_was_written() {
    for closes in [false, true] {
        let (mut host, _, mut peer, id) = Host::with_a_peer();
        set_room(&mut host, id, 90_000, 0);
        host.send(id, &bytes(0..90_000)).unwrap();
        if closes {
            host.close(id);
        } else {
            host.call(|stack, io| stack.shutdown(id, Shutdown::Write, io)).unwrap();
            assert_eq!(host.stack.tcp_state(id), Ok("FIN-WAIT-1"));
            assert_eq!(host.stack.tcp_unacknowledged(id), Ok(90_001));
        }
        let mut all = Vec::new();
        let mut is_over = false;
        while !is_over {
            let segments = host.segments();
            assert!(!segments.is_empty(), "{} bytes", all.len());
            for segment in segments {
                assert_eq!(segment.seq, peer.ack);
                is_over = segment.flags & FIN != 0;
                peer.ack += segment.payload.len() as u32 + u32::from(is_over);
                all.extend(segment.payload);
            }
            peer.send(&mut host, ACK, b"");
        }
        assert_eq!(all, bytes(0..90_000));
    }
}

/// This holds even after the peer has sent its own end.
#[test]
fn the_end_follows_all_that_was_written_to_a_peer_that_has_ended() {
    let (mut host, _, mut peer, id) = Host::with_a_peer();
    set_room(&mut host, id, 90_000, 0);
    host.send(id, &bytes(0..90_000)).unwrap();
    peer.send(&mut host, FIN | ACK, b"");
    host.call(|stack, io| stack.shutdown(id, Shutdown::Write, io)).unwrap();
    assert_eq!(host.stack.tcp_state(id), Ok("LAST-ACK"));
    let mut all = Vec::new();
    let mut is_over = false;
    while !is_over {
        let segments = host.segments();
        assert!(!segments.is_empty(), "{} bytes", all.len());
        for segment in segments {
            is_over = segment.flags & FIN != 0;
            peer.ack = segment.seq.wrapping_add(segment.payload.len() as u32 + u32::from(is_over));
            all.extend(segment.payload);
        }
        peer.send(&mut host, ACK, b"");
    }
    assert_eq!(all, bytes(0..90_000));
}

#[test]
fn under_a_cork_what_has_no_room_leaves_in_full_segments() {
    let (mut host, _, mut peer, id) = Host::with_a_peer();
    set_room(&mut host, id, 90_000, 0);
    host.call(|stack, io| stack.set_cork(id, true, io)).unwrap();
    assert_eq!(host.send(id, &bytes(0..50_001)), Ok(50_001));
    let mut sent = takes_all(&mut host, &mut peer);
    assert!((50_001 - 1459..50_001).contains(&sent.len()), "{} bytes left", sent.len());
    host.call(|stack, io| stack.set_cork(id, false, io)).unwrap();
    sent.extend(takes_all(&mut host, &mut peer));
    assert_eq!(sent, bytes(0..50_001));
}

#[test]
fn nothing_is_written_while_too_much_is_unsent() {
    let (mut host, _, mut peer, id) = Host::with_a_peer();
    peer.window = 3_000;
    peer.send(&mut host, ACK, b"");
    set_room(&mut host, id, 0, 2_000);
    let mut written = 0;
    while let Ok(count) = host.send(id, &bytes(written..written + 500)) {
        written += count;
    }
    let unsent = host.stack.tcp_unsent(id).unwrap();
    assert!((2_000..2_500).contains(&unsent), "{unsent}");
    assert!(!host.ready(id).contains(Ready::WRITABLE));
    told(&mut host, id);
    // A third of the buffer was free all the time; what matters is that enough of it is sent.
    let mut taken = peer.hear(&mut host);
    peer.send(&mut host, ACK, b"");
    assert!(host.stack.tcp_unsent(id).unwrap() < 2_000);
    assert_eq!(told(&mut host, id), Ready::WRITABLE);
    taken.extend(takes_all(&mut host, &mut peer));
    assert_eq!(taken, bytes(0..written));
}

/// A server whose buffers grow, a peer that the test drives and that scales its windows, their connection, the server's
/// scale, and the edge of the window that its SYN-ACK offers.
fn scaled_peer() -> (Host, Peer, SocketId, u8, u32) {
    let mut config = server_config();
    config.growth = GROWTH;
    let mut host = Host::server_with(config);
    let listener = host.stack.tcp_listen(at("0.0.0.0", 80), ListenOptions::default()).unwrap();
    let mut peer = Peer::new(4000);
    let mut syn = peer.syn();
    syn.options.extend([1, 3, 3, 7]);
    host.receive(syn.frame());
    let reply = host.segments().remove(0);
    let scale = *reply.options.windows(3).find(|option| option[..2] == [3, 3]).expect("a window scale").last().unwrap();
    (peer.seq, peer.ack) = (peer.seq + 1, reply.seq + 1);
    let edge = peer.seq + u32::from(reply.window);
    peer.send(&mut host, ACK, &[]);
    let id = host.accept(listener);
    (host, peer, id, scale, edge)
}

#[test]
fn a_larger_receive_buffer_is_offered_at_once_and_stays() {
    let (mut host, mut peer, id, scale, _) = scaled_peer();
    set_receive_buffer(&mut host, id, 200_000);
    let told = host.segments().pop().expect("the window");
    let offered = usize::from(told.window) << scale;
    assert!((200_000 - 32..=200_000).contains(&offered), "{offered}");
    // The scale that was agreed on bounds it.
    set_receive_buffer(&mut host, id, 100 << 20);
    let told = host.segments().pop().expect("the window");
    assert_eq!(usize::from(told.window) << scale, (usize::from(u16::MAX) - 1) << scale);
    set_receive_buffer(&mut host, id, 200_000);
    for _ in 0..2000 {
        peer.send(&mut host, ACK | PSH, &[7; 1448]);
        while host.recv(id).is_ok() {}
        host.segments();
    }
    assert_eq!(host.stack.buffer_sizes(id).unwrap().0, 200_000, "it shrinks and does not grow");
}

#[test]
fn a_receive_buffer_changes_when_what_is_in_it_was_read() {
    let (mut host, mut peer, id, _, _) = scaled_peer();
    peer.send(&mut host, ACK | PSH, b"unread");
    set_receive_buffer(&mut host, id, 50_000);
    assert_eq!(host.stack.buffer_sizes(id).unwrap().0, 16_384);
    assert_eq!(host.recv(id).unwrap(), b"unread");
    assert_eq!(host.stack.buffer_sizes(id).unwrap().0, 50_000);
}

/// The edge of the window never moves back, and everything before it is taken, whatever the program asks for meanwhile.
#[test]
fn what_was_offered_is_taken_though_the_buffer_shrinks() {
    for seed in 1..5 {
        let (mut host, mut peer, id, scale, mut edge) = scaled_peer();
        let mut random = Random(seed);
        let (mut sent, mut read, mut asked) = (0, 0, 16_384);
        for round in 0..1500 {
            if random.below(40) == 0 {
                asked = [1_200, 4_000, 16_384, 60_000, 300_000][random.below(5) as usize];
                set_receive_buffer(&mut host, id, asked);
            }
            while edge != peer.seq && random.below(4) != 0 {
                let length = (edge - peer.seq).min(1 + random.below(1448) as u32) as usize;
                peer.send(&mut host, ACK, &bytes(sent..sent + length));
                sent += length;
            }
            let mut buffer = vec![0; 1 + random.below(6000) as usize];
            if let Ok(count) = host.call(|stack, io| stack.tcp_recv(id, &mut buffer, io)) {
                assert_eq!(buffer[..count], bytes(read..read + count), "seed {seed}, round {round}");
                read += count;
            }
            for segment in host.segments() {
                edge = edge.max(segment.ack + (u32::from(segment.window) << scale));
            }
        }
        while let Ok(data) = host.recv(id) {
            read += data.len();
        }
        assert_eq!(read, sent, "nothing had to be sent again, seed {seed}");
        assert!(sent > 20_000, "{sent} bytes, seed {seed}");
        // With small requests, which never fill it, the buffer shrinks to the size that was asked for.
        for _ in 0..2000 {
            host.segments().iter().for_each(|it| edge = edge.max(it.ack + (u32::from(it.window) << scale)));
            if edge - peer.seq >= 400 {
                peer.send(&mut host, ACK | PSH, &[7; 400]);
            }
            while host.recv(id).is_ok() {}
            host.run_for(MS);
        }
        assert_eq!(host.stack.buffer_sizes(id).unwrap().0, asked, "seed {seed}");
    }
}

#[test]
fn streams_are_whole_whatever_is_asked_for_and_lost() {
    for seed in 0..12 {
        let grown = |mut config: lull_net::shard::StackConfig| {
            config.growth = GROWTH;
            Host::new(config)
        };
        let mut net = Net::of(grown(client_config()), grown(server_config()));
        net.delay_ns = 5 * MS;
        let listener = net.server.listen(80);
        let client = net.client.connect(at(SERVER, 80));
        net.run_for(100 * MS);
        let ids = (client, net.server.accept(listener));
        net.random = Random(seed);
        net.loss = seed % 4 * 5;
        net.reorder = [0, 100, 500][(seed / 4 % 3) as usize];
        let mut random = Random(seed + 1000);
        for _ in 0..12 {
            let size = |random: &mut Random| [1_200, 3_000, 16_384, 50_000, 400_000][random.below(5) as usize];
            let (up, down, up_rx, down_rx) =
                (size(&mut random), size(&mut random), size(&mut random), size(&mut random));
            set_room(&mut net.client, ids.0, up, [0, 0, 2_000][random.below(3) as usize]);
            set_room(&mut net.server, ids.1, down, 0);
            set_receive_buffer(&mut net.server, ids.1, up_rx);
            set_receive_buffer(&mut net.client, ids.0, down_rx);
            exchange(&mut net, ids, random.below(60_000) as usize, random.below(60_000) as usize);
        }
        for host in [&net.client, &net.server] {
            assert_eq!(host.stack.counters().tcp_stalls, 0, "seed {seed}");
        }
    }
}

/// The bounds of an idle stream may change while it is written.
#[test]
fn a_stream_goes_on_while_its_bounds_change() {
    let mut net = Net::new();
    let listener = net.server.listen(80);
    let ids = net.establish(listener, at(SERVER, 80));
    let mut stream = Stream::of(2_000_000, 3);
    let mut random = Random(9);
    while !stream.is_through() {
        if random.below(20) == 0 {
            set_room(&mut net.client, ids.0, 1_000 + random.below(100_000) as usize, 0);
        }
        stream.write(&mut net.client, ids.0);
        assert!(net.step(net.now_ns + 4000 * SECOND), "{} bytes came", stream.read);
        stream.can_write |= told(&mut net.client, ids.0).contains(Ready::WRITABLE);
        stream.read(&mut net.server, ids.1);
    }
}

#[test]
fn what_a_datagram_socket_may_hold_changes() {
    let mut host = Host::server();
    let id = udp::bind(&mut host, SERVER, 9);
    let comes = |host: &mut Host, count: usize| {
        for _ in 0..count {
            let (from, to) = (at(CLIENT, 5000), at(SERVER, 9));
            host.receive(ip_packet(from.ip(), to.ip(), 17, 0, &[], &udp::udp(from, to, b"x")));
        }
    };
    let read = |host: &mut Host| std::iter::from_fn(|| udp::recv(host, id).ok()).count();
    host.stack.udp_set_receive_buffer(id, 2_304).unwrap();
    comes(&mut host, 20);
    let dropped = host.stack.counters().drop_socket_full;
    assert!((15..20).contains(&dropped), "{dropped}");
    assert_eq!(read(&mut host) as u64, 20 - dropped);
    host.stack.udp_set_receive_buffer(id, 200_000).unwrap();
    comes(&mut host, 20);
    host.stack.udp_set_receive_buffer(id, 2_304).unwrap();
    assert_eq!(read(&mut host), 20, "what is there stays");
}
