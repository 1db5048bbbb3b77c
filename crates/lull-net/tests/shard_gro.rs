//! GRO: which segments go on as one, by Linux's rules, and that a stream is the same with it and without.

mod shard_harness;

use lull_net::shard::{Gro, ListenOptions};
use lull_nic::{Checksum, Frame, Segmentation};
use shard_harness::*;

const JIFFY_NS: u64 = 4 * MS;

/// The segments of a stream, of `bytes` bytes each.
struct Stream {
    peer: Peer,
    bytes: usize,
    id: u16,
}

impl Stream {
    fn new(port: u16, bytes: usize) -> Stream {
        Stream { peer: Peer { ack: 7, ..Peer::new(port) }, bytes, id: 0 }
    }

    fn segment(&mut self, flags: u8) -> Tcp {
        let payload: Vec<u8> = (0..self.bytes).map(|at| (self.peer.seq as usize + at) as u8).collect();
        let options = vec![1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2];
        let segment = Tcp { options, ..self.peer.segment(flags, &payload) };
        self.peer.seq += self.bytes as u32;
        segment
    }

    fn next(&mut self) -> Frame {
        self.id += 1;
        identified(self.segment(ACK).frame(), self.id)
    }

    fn last(&mut self) -> Frame {
        self.id += 1;
        identified(self.segment(ACK | PSH).frame(), self.id)
    }
}

/// Writes an IPv4 identification.
fn identified(mut frame: Frame, id: u16) -> Frame {
    if frame.data()[12..14] == [0x08, 0x00] {
        change(&mut frame, 18, &id.to_be_bytes());
    }
    frame
}

/// Changes bytes of a frame and corrects its checksums.
fn change(frame: &mut Frame, at: usize, bytes: &[u8]) {
    let data = frame.data_mut();
    data[at..at + bytes.len()].copy_from_slice(bytes);
    if data[12..14] == [0x08, 0x00] {
        data[24..26].fill(0);
        let sum = checksum(&[&data[14..34]]);
        data[24..26].copy_from_slice(&sum.to_be_bytes());
    }
    let (l4, addresses) = if data[12..14] == [0x08, 0x00] { (34, 26..34) } else { (54, 22..54) };
    let mut pseudo = data[addresses].to_vec();
    pseudo.extend((data.len() as u32 - l4 as u32).to_be_bytes());
    pseudo.extend([0, 6]);
    data[l4 + 16..l4 + 18].fill(0);
    let sum = checksum(&[&pseudo, &data[l4..]]);
    data[l4 + 16..l4 + 18].copy_from_slice(&sum.to_be_bytes());
}

/// The frames that GRO passes on when these frames come.
fn passed(gro: &mut Gro, frames: impl IntoIterator<Item = Frame>) -> Vec<Frame> {
    let mut out = Vec::new();
    frames.into_iter().for_each(|frame| gro.receive(frame, 0, &mut |frame| out.push(frame)));
    out
}

fn flushed(gro: &mut Gro) -> Vec<Frame> {
    let mut out = Vec::new();
    gro.flush(&mut |frame| out.push(frame));
    out
}

/// A frame in one piece, as the stack reads it, with the checksum that it would have had.
fn whole(frame: &Frame) -> Tcp {
    let bytes: Vec<u8> = frame.segments().flat_map(|part| part.data().iter().copied()).collect();
    let mut frame = Frame::with_capacity(bytes.len());
    frame.set_len(bytes.len());
    frame.data_mut().copy_from_slice(&bytes);
    let ttl = frame.data()[22];
    // The same value is written again, so that only the checksums change. That of the IP header was right before.
    let header = checksum(&[&bytes[14..34]]);
    assert!(bytes[12..14] != [0x08, 0x00] || header == 0, "IPv4 header checksum");
    change(&mut frame, 22, &[ttl]);
    Tcp::parse(&frame).unwrap()
}

fn segments_in(frames: &[Frame]) -> Vec<usize> {
    frames.iter().map(|frame| frame.segments().count()).collect()
}

#[test]
fn segments_of_a_stream_go_on_as_one() {
    for mut stream in [Stream::new(4000, 1000), Stream { peer: Peer { ack: 7, ..Peer::v6(4000) }, bytes: 1000, id: 0 }]
    {
        let mut gro = Gro::default();
        let (begin, mut frames) = (stream.peer.seq, Vec::new());
        frames.extend((0..3).map(|_| stream.next()));
        frames.push(stream.last());
        let out = passed(&mut gro, frames);
        assert_eq!(segments_in(&out), [4]);
        assert!(gro.is_empty() && out[0].checksum() == Checksum::Unnecessary);
        let one = whole(&out[0]);
        assert_eq!((one.seq, one.ack, one.flags, one.payload.len()), (begin, 7, ACK | PSH, 4000));
        assert!((0..4000).all(|at| one.payload[at] == (begin as usize + at) as u8));
    }
}

#[test]
fn a_short_segment_a_fin_and_a_push_end_what_is_held() {
    type Last = fn(&mut Stream) -> Tcp;
    let lasts: [Last; 3] = [
        |stream| {
            stream.bytes = 999;
            stream.segment(ACK)
        },
        |stream| stream.segment(ACK | FIN),
        |stream| stream.segment(ACK | PSH),
    ];
    for last in lasts {
        let (mut gro, mut stream) = (Gro::default(), Stream::new(4000, 1000));
        assert!(passed(&mut gro, [stream.next(), stream.next()]).is_empty());
        let end = identified(last(&mut stream).frame(), 3);
        assert_eq!(segments_in(&passed(&mut gro, [end])), [3]);
        assert!(gro.is_empty());
    }
}

#[test]
fn what_is_no_plain_data_passes_at_once_and_behind_what_is_held_of_its_flow() {
    for flags in [ACK | PSH, ACK | FIN, SYN, RST, ACK | 32, ACK | 128] {
        let (mut gro, mut stream) = (Gro::default(), Stream::new(4000, 1000));
        assert_eq!(segments_in(&passed(&mut gro, [stream.segment(flags).frame()])), [1], "flags {flags:#x}");
        assert!(gro.is_empty());
    }
    let (mut gro, mut stream, mut other) = (Gro::default(), Stream::new(4000, 1000), Stream::new(5000, 1000));
    let first = stream.next();
    let acknowledgement = Peer { ack: 8, ..stream.peer.clone() }.segment(ACK, &[]).frame();
    let out = passed(&mut gro, [other.next(), first, acknowledgement]);
    let sizes: Vec<usize> = out.iter().map(|frame| whole(frame).payload.len()).collect();
    assert_eq!(sizes, [1000, 0]);
    assert_eq!(segments_in(&flushed(&mut gro)), [1], "the other flow's");
    // A reset behind data passes in this order.
    let (data, reset) = (stream.next(), stream.segment(RST).frame());
    let out = passed(&mut gro, [data, reset]);
    assert_eq!(out.iter().map(|frame| whole(frame).flags).collect::<Vec<_>>(), [ACK, RST]);
}

#[test]
fn segments_that_differ_in_anything_else_are_not_joined() {
    const TCP: usize = 34;
    let changes: [(&str, usize, &[u8]); 10] = [
        ("a gap", TCP + 4, &[0x70]),
        ("acknowledgement", TCP + 8, &[1]),
        ("flags: ECE", TCP + 13, &[ACK | 64]),
        ("flags: URG", TCP + 13, &[ACK | 32]),
        ("flags: CWR", TCP + 13, &[ACK | 128]),
        ("window", TCP + 14, &[1]),
        ("timestamp", TCP + 24, &[9]),
        ("traffic class: CE", 15, &[3]),
        ("time to live", 22, &[63]),
        ("the station that sent it", 11, &[77]),
    ];
    for (what, at, bytes) in changes {
        let (mut gro, mut stream) = (Gro::default(), Stream::new(4000, 1000));
        let (first, mut second) = (stream.next(), stream.next());
        change(&mut second, at, bytes);
        let mut out = passed(&mut gro, [first, second]);
        out.extend(flushed(&mut gro));
        assert_eq!(segments_in(&out), [1, 1], "{what}");
    }
    // If fragments are allowed, the identification has to go on.
    for (id, flags, segments) in [(2, 0, &[2][..]), (3, 0, &[1, 1]), (9, 0x40, &[2])] {
        let (mut gro, mut stream) = (Gro::default(), Stream::new(4000, 1000));
        let (mut first, mut second) = (stream.next(), identified(stream.segment(ACK).frame(), id));
        change(&mut first, 20, &[flags]);
        change(&mut second, 20, &[flags]);
        let mut out = passed(&mut gro, [first, second]);
        out.extend(flushed(&mut gro));
        assert_eq!(segments_in(&out), segments, "identification {id}, flags {flags:#x}");
    }
    // The next segment is longer than the first.
    let (mut gro, mut stream) = (Gro::default(), Stream::new(4000, 1000));
    let first = stream.next();
    stream.bytes = 1001;
    assert_eq!(segments_in(&passed(&mut gro, [first, stream.next()])), [1]);
}

#[test]
fn a_wrong_checksum_passes_as_it_is() {
    for at in [24, 50, 100] {
        let (mut gro, mut stream) = (Gro::default(), Stream::new(4000, 1000));
        let (first, mut broken, third) = (stream.next(), stream.next(), stream.next());
        broken.data_mut()[at] ^= 1;
        let bytes = broken.data().to_vec();
        let out = passed(&mut gro, [first, broken, third]);
        assert_eq!(segments_in(&out), [1, 1], "byte {at}");
        assert!(out[1].data() == bytes && out[1].checksum() == Checksum::None);
        assert_eq!(segments_in(&flushed(&mut gro)), [1]);
    }
}

#[test]
fn one_has_at_most_seventeen_segments_and_64_kb_and_eight_flows_are_held() {
    let (mut gro, mut stream) = (Gro::default(), Stream::new(4000, 1000));
    let frames: Vec<Frame> = (0..20).map(|_| stream.next()).collect();
    assert_eq!(segments_in(&passed(&mut gro, frames)), [17]);
    assert_eq!(segments_in(&flushed(&mut gro)), [3]);
    let mut stream = Stream::new(4000, 9000);
    let frames: Vec<Frame> = (0..8).map(|_| stream.next()).collect();
    assert_eq!(segments_in(&passed(&mut gro, frames)), [7]);
    assert_eq!(segments_in(&flushed(&mut gro)), [1]);
    let mut streams: Vec<Stream> = (0..9).map(|nth| Stream::new(4000 + nth, 100)).collect();
    let out = passed(&mut gro, streams.iter_mut().map(Stream::next).collect::<Vec<_>>());
    assert_eq!(out.iter().map(|frame| whole(frame).from.port()).collect::<Vec<_>>(), [4000], "the oldest");
    assert_eq!(flushed(&mut gro).len(), 8);
}

#[test]
fn what_is_older_than_a_jiffy_is_given_up_alone() {
    let (mut gro, mut old, mut new) = (Gro::default(), Stream::new(4000, 100), Stream::new(5000, 100));
    let mut out = Vec::new();
    gro.receive(old.next(), SECOND, &mut |frame| out.push(frame));
    gro.receive(new.next(), SECOND + JIFFY_NS, &mut |frame| out.push(frame));
    gro.flush_old(SECOND + JIFFY_NS, &mut |frame| out.push(frame));
    assert!(out.is_empty());
    gro.flush_old(SECOND + JIFFY_NS + 1, &mut |frame| out.push(frame));
    assert_eq!(out.iter().map(|frame| whole(frame).from.port()).collect::<Vec<_>>(), [4000]);
    assert!(!gro.is_empty());
}

/// The streams are cut anywhere, with segments lost, doubled, out of order or damaged on the way, and polls of any
/// size. What the applications read is the same with GRO and without.
#[test]
fn streams_are_the_same_with_and_without() {
    let mut joined = 0;
    for seed in 0..300 {
        let mut random = Random(seed);
        let mut hosts = [Host::server(), Host::server()];
        // The listeners take IPv4 as well.
        let listeners =
            hosts.each_mut().map(|host| host.stack.tcp_listen(at("::", 80), ListenOptions::default()).unwrap());
        let (mut gro, mut ids) = (Gro::default(), Vec::new());
        let (mut all, mut streams) = (Vec::new(), Vec::new());
        for nth in 0..3 {
            let mut peer = if nth == 2 { Peer::v6(4000) } else { Peer::new(4000 + nth) };
            let (mut twin, [direct, with]) = (peer.clone(), &mut hosts);
            ids.push([direct.establish(listeners[0], &mut peer), with.establish(listeners[1], &mut twin)]);
            assert_eq!(peer.ack, twin.ack, "the same frames do for both");
            let data: Vec<u8> = (0..random.below(12_000)).map(|_| random.below(256) as u8).collect();
            let (mut at, size, mut segments) = (0, 1 + random.below(1400) as usize, Vec::new());
            while at < data.len() {
                let bytes = if random.below(8) == 0 { 1 + random.below(1400) as usize } else { size };
                let end = data.len().min(at + bytes);
                let flags = if end == data.len() || random.below(6) == 0 { ACK | PSH } else { ACK };
                let segment = Peer { seq: peer.seq + at as u32, ..peer.clone() }.segment(flags, &data[at..end]);
                segments.push(identified(segment.frame(), segments.len() as u16));
                at = end;
            }
            streams.push(data);
            all.push(segments);
        }
        // The segments go on their way, a few of each stream at a time.
        let mut wire: Vec<Frame> = Vec::new();
        let mut left: Vec<std::slice::Iter<'_, Frame>> = all.iter().map(|segments| segments.iter()).collect();
        while left.iter().any(|segments| segments.len() > 0) {
            let flow = random.below(3) as usize;
            for frame in left[flow].by_ref().take(1 + random.below(20) as usize) {
                match random.below(40) {
                    0 => {}
                    1 => wire.extend([frame.clone(), frame.clone()]),
                    2 => {
                        let mut broken = frame.clone();
                        let at = 14 + random.below(broken.len() as u64 - 14) as usize;
                        broken.data_mut()[at] ^= 1 << random.below(8);
                        wire.push(broken);
                    }
                    3 => {
                        let place = wire.len() - (random.below(4) as usize).min(wire.len());
                        wire.insert(place, frame.clone());
                    }
                    _ => wire.push(frame.clone()),
                }
            }
        }
        // In the end everything comes once more, in order.
        wire.extend(all.iter().flatten().cloned());
        for frame in wire {
            let [direct, with] = &mut hosts;
            direct.receive(frame.clone());
            let mut out = Vec::new();
            gro.receive(frame, 0, &mut |frame| out.push(frame));
            if random.below(30) == 0 {
                gro.flush(&mut |frame| out.push(frame));
            }
            joined += out.iter().filter(|frame| frame.next().is_some()).count();
            out.into_iter().for_each(|frame| with.receive(frame));
        }
        for frame in flushed(&mut gro) {
            hosts[1].receive(frame);
        }
        for (nth, data) in streams.iter().enumerate().filter(|(_, data)| !data.is_empty()) {
            for (host, id) in hosts.iter_mut().zip(ids[nth]) {
                let mut read = Vec::new();
                while let Ok(bytes) = host.recv(id) {
                    read.extend(bytes);
                }
                assert!(read == *data, "seed {seed}, stream {nth}: {} of {} bytes", read.len(), data.len());
            }
        }
    }
    assert!(joined > 1000, "{joined} frames were made of several");
}

/// `__tcp_ack_snd_check`: more than one segment is acknowledged at once, even if they came as one.
#[test]
fn what_was_joined_is_acknowledged_without_delay() {
    let (mut host, _, mut peer, id) = Host::with_a_peer();
    let mut gro = Gro::default();
    let mut frames: Vec<Frame> = Vec::new();
    for nth in 0..3 {
        frames.push(identified(peer.segment(ACK, &[5; 1460]).frame(), nth));
        peer.seq += 1460;
    }
    assert!(passed(&mut gro, frames).is_empty());
    flushed(&mut gro).into_iter().for_each(|frame| host.receive(frame));
    let answers = host.segments();
    assert_eq!((answers.len(), answers[0].ack), (1, peer.seq), "{answers:?}");
    assert_eq!(host.recv(id).unwrap().len(), 3 * 1460);
    // A single segment waits for another one, or for an answer.
    peer.send(&mut host, ACK, &[5; 1000]);
    assert!(host.segments().is_empty());
}

/// A UDP datagram of a flow, over either family, with its checksum.
fn datagram(from: &str, port: u16, payload: &[u8]) -> Frame {
    let (from, to) =
        if ip(from).is_ipv4() { (at(from, port), at(SERVER, 53)) } else { (at(from, port), at(SERVER6, 53)) };
    let mut udp = from.port().to_be_bytes().to_vec();
    udp.extend(to.port().to_be_bytes());
    udp.extend(((8 + payload.len()) as u16).to_be_bytes());
    udp.extend([0, 0]);
    udp.extend(payload);
    let sum = checksum(&[&pseudo(from.ip(), to.ip(), 17, udp.len()), &udp]);
    udp[6..8].copy_from_slice(&sum.to_be_bytes());
    ip_packet(from.ip(), to.ip(), 17, 0, &[], &udp)
}

fn passed_datagrams(gro: &mut Gro, frames: impl IntoIterator<Item = Frame>) -> Vec<Frame> {
    let mut out = Vec::new();
    frames.into_iter().for_each(|frame| gro.receive_datagram(frame, 0, &mut |frame| out.push(frame)));
    out
}

/// For each frame that passed: how many bytes it has, how they are divided into datagrams, and how many datagrams that
/// are.
fn joined(frames: &[Frame]) -> Vec<(usize, Segmentation, usize)> {
    let headers = |frame: &Frame| if frame.data()[12..14] == [0x08, 0x00] { 42 } else { 62 };
    let one = |frame: &Frame| (frame.segments().count(), frame.segmentation(), frame.chain_len() - headers(frame));
    frames.iter().map(one).collect()
}

fn each(datagram_bytes: u16) -> Segmentation {
    Segmentation::Udp { datagram_bytes }
}

#[test]
fn datagrams_of_one_length_and_a_shorter_last_one_are_joined() {
    for from in [CLIENT, CLIENT6] {
        let mut gro = Gro::default();
        let sizes = [500, 500, 500, 499];
        let out = passed_datagrams(&mut gro, sizes.map(|size| datagram(from, 9, &vec![7; size])));
        assert_eq!(joined(&out), [(4, each(500), 1999)]);
        assert!(gro.is_empty(), "a shorter one ends it");
        let (l4, length) = if from == CLIENT { (34, 16..18) } else { (54, 18..20) };
        let data = out[0].data();
        assert_eq!(data[l4 + 4..l4 + 6], 2007_u16.to_be_bytes());
        let told = u16::from_be_bytes([data[length.start], data[length.end - 1]]);
        assert_eq!(told, if from == CLIENT { 2027 } else { 2007 });
    }
}

#[test]
fn a_longer_datagram_begins_anew_and_one_alone_is_as_it_came() {
    let mut gro = Gro::default();
    let out = passed_datagrams(&mut gro, [100, 100, 101].map(|size| datagram(CLIENT, 9, &vec![7; size])));
    assert_eq!(joined(&out), [(2, each(100), 200)]);
    assert_eq!(joined(&flushed(&mut gro)), [(1, Segmentation::None, 101)]);
}

#[test]
fn flows_are_joined_apart_and_what_cannot_join_passes_behind_what_is_held_of_its_own() {
    let mut gro = Gro::default();
    let mix = [datagram(CLIENT, 9, b"abc"), datagram(CLIENT, 10, b"xyz"), datagram(CLIENT, 9, b"def")];
    assert!(passed_datagrams(&mut gro, mix).is_empty());
    // These are empty, without a checksum, with a wrong one, padded, and of another hop limit.
    let mut without = datagram(CLIENT, 9, b"ghi");
    without.data_mut()[40..42].fill(0);
    let mut wrong = datagram(CLIENT, 9, b"ghi");
    wrong.data_mut()[42] ^= 1;
    let mut padded = datagram(CLIENT, 9, b"ghi");
    padded.data_mut()[39] -= 1;
    let out = passed_datagrams(&mut gro, [datagram(CLIENT, 9, b"")]);
    assert_eq!(joined(&out), [(2, each(3), 6), (1, Segmentation::None, 0)]);
    for alone in [without, wrong, padded] {
        assert!(passed_datagrams(&mut gro, [datagram(CLIENT, 9, b"abc")]).is_empty());
        let out = passed_datagrams(&mut gro, [alone]);
        assert_eq!(joined(&out), [(1, Segmentation::None, 3), (1, Segmentation::None, 3)]);
    }
    let mut hop = datagram(CLIENT6, 9, b"abc");
    hop.data_mut()[21] -= 1;
    assert!(passed_datagrams(&mut gro, [datagram(CLIENT6, 9, b"abc")]).is_empty());
    assert_eq!(joined(&passed_datagrams(&mut gro, [hop])), [(1, Segmentation::None, 3)]);
    assert_eq!(joined(&flushed(&mut gro)), [(1, Segmentation::None, 3), (1, Segmentation::None, 3)]);
}

#[test]
fn no_more_than_64_datagrams_and_64_kilobytes_are_joined() {
    let mut gro = Gro::default();
    let out = passed_datagrams(&mut gro, (0..65).map(|_| datagram(CLIENT, 9, &[7; 10])));
    assert_eq!(joined(&out), [(64, each(10), 640)]);
    assert_eq!(joined(&flushed(&mut gro)), [(1, Segmentation::None, 10)]);
    let out = passed_datagrams(&mut gro, (0..46).map(|_| datagram(CLIENT, 9, &[7; 1472])));
    assert_eq!(joined(&out), [(44, each(1472), 44 * 1472)]);
}

/// Where a frame has been, and that it is a claim and not a segment, is recorded for that frame alone.
#[test]
fn what_other_stacks_have_passed_on_is_neither_held_nor_joined() {
    let (mut gro, mut stream) = (Gro::default(), Stream::new(4000, 1000));
    let mut passed_on = stream.next();
    passed_on.set_seen_by(1);
    assert_eq!(segments_in(&passed(&mut gro, [passed_on])), [1]);
    assert!(gro.is_empty());
    let (held, mut passed_on) = (stream.next(), stream.next());
    passed_on.set_seen_by(1);
    let out = passed(&mut gro, [held, passed_on]);
    assert_eq!((segments_in(&out), out[0].seen_by(), out[1].seen_by()), (vec![1, 1], 0, 1), "in order");
    assert!(gro.is_empty());
}
