//! What nobody has accepted when its listener is closed, while another stack listens at the same address.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use lull_net::lull_nic::passing::{CLAIMED, EVERYBODY};
use lull_net::{Elsewhere, HandedOn};
use lull_nic::Frame;

use super::*;

/// The other stacks: their answer for a connection, and the frames that they were given.
#[derive(Debug)]
struct Beside {
    answer: Mutex<HandedOn>,
    /// Whether what nobody takes is kept for a stack that listens next.
    keeps: HandedOn,
    /// Whether a frame that a stack cannot place belongs to another one.
    takes_strangers: AtomicBool,
    given: Mutex<Vec<Frame>>,
    /// How many stacks had been asked already, each time that something was to be kept.
    asked: Mutex<Vec<u8>>,
}

impl Elsewhere for Beside {
    fn secret(&self) -> u64 {
        7
    }

    fn queues(&self) -> &[u32] {
        &[0]
    }

    fn takes_stranger(&self, _syn: Option<SocketAddr>, frame: &Frame) -> bool {
        self.takes(frame)
    }

    fn takes_last_acknowledgement(&self, frame: &Frame) -> bool {
        self.takes(frame)
    }

    fn takes_over(&self, local: SocketAddr, frame: &Frame) -> HandedOn {
        assert_eq!(local.port(), 80);
        let answer = *self.answer.lock().unwrap();
        if answer == HandedOn::Given {
            let mut given = frame.clone();
            given.set_seen_by(EVERYBODY);
            self.given.lock().unwrap().push(given);
        }
        answer
    }

    fn keeps(&self, local: SocketAddr, frame: &Frame, asked: u8) -> HandedOn {
        assert_eq!(local.port(), 80);
        self.asked.lock().unwrap().push(asked);
        if self.keeps == HandedOn::Given {
            self.given.lock().unwrap().push(frame.clone());
        }
        self.keeps
    }

    fn copy_to_all(&self, _frame: &Frame) {}
}

impl Beside {
    fn takes(&self, frame: &Frame) -> bool {
        let takes = self.takes_strangers.load(Ordering::Relaxed);
        if takes {
            self.given.lock().unwrap().push(frame.clone());
        }
        takes
    }

    fn answers(&self, answer: HandedOn) {
        *self.answer.lock().unwrap() = answer;
    }

    fn given(&self) -> Vec<Frame> {
        std::mem::take(&mut self.given.lock().unwrap())
    }
}

/// A stack beside others that give this answer.
fn beside(answer: HandedOn) -> (Arc<Beside>, Host) {
    beside_that_keep(answer, HandedOn::Nobody)
}

fn beside_that_keep(answer: HandedOn, keeps: HandedOn) -> (Arc<Beside>, Host) {
    let answer = Mutex::new(answer);
    let others = Arc::new(Beside {
        answer,
        keeps,
        takes_strangers: AtomicBool::new(false),
        given: Mutex::default(),
        asked: Mutex::default(),
    });
    let mut config = server_config();
    config.elsewhere = Some(others.clone());
    (others, Host::server_with(config))
}

/// What the peer has sent is acknowledged, so the peer does not send it again.
fn acknowledged(host: &mut Host, peer: &Peer) {
    host.run_for(SECOND);
    assert_eq!(host.segments().last().map(|segment| segment.ack), Some(peer.seq));
}

fn resets(host: &mut Host) -> usize {
    host.segments().iter().filter(|segment| segment.flags & RST != 0).count()
}

/// The stack that listens gets the connection with everything that was sent, and goes on with it.
#[test]
fn what_nobody_accepted_goes_on_where_another_stack_listens() {
    for mut peer in [Peer::new(4000), Peer::v6(4000)] {
        for ends in [false, true] {
            let (others, mut host) = beside(HandedOn::Given);
            let listener = host.stack.tcp_listen(at("::", 80), ListenOptions::default()).unwrap();
            peer.open(&mut host);
            peer.send(&mut host, ACK | PSH, b"GET / ");
            peer.send(&mut host, if ends { ACK | PSH | FIN } else { ACK | PSH }, b"HTTP");
            acknowledged(&mut host, &peer);
            host.close(listener);
            assert_eq!((host.segments().len(), host.stack.connections()), (0, 0), "the peer hears nothing of it");

            let (_, mut next) = beside(HandedOn::Nobody);
            let listener = next.stack.tcp_listen(at("::", 80), ListenOptions::default()).unwrap();
            let [frame] = <[Frame; 1]>::try_from(others.given()).unwrap();
            assert_eq!(Tcp::parse(&frame).unwrap().payload, b"GET / HTTP");
            next.receive(frame);
            let id = next.accept(listener);
            assert_eq!(next.recv(id).unwrap(), b"GET / HTTP");
            next.send(id, b"answer").unwrap();
            assert_eq!(peer.hear(&mut next), b"answer");
            if ends {
                assert_eq!(next.recv(id).unwrap(), b"", "the end came, too");
            } else {
                peer.send(&mut next, ACK | PSH, b"more");
                assert_eq!(next.recv(id).unwrap(), b"more");
            }
            peer.seq += 100_000;
        }
    }
}

/// A process accepts the connection for another one, which never takes it. It then is as if it had not been accepted.
#[test]
fn what_was_accepted_for_another_and_is_left_goes_on_where_another_stack_listens() {
    let (others, mut host) = beside(HandedOn::Given);
    let mut peer = Peer::new(4000);
    let listener = host.stack.tcp_listen(at("::", 80), ListenOptions::default()).unwrap();
    peer.open(&mut host);
    let (id, _, was) = host.stack.tcp_accept_for_another(listener).unwrap();
    peer.send(&mut host, ACK | PSH, b"GET / HTTP");
    acknowledged(&mut host, &peer);
    host.close(listener);
    host.call(|stack, io| stack.tcp_leave(id, was, io)).unwrap();
    assert_eq!((host.segments().len(), host.stack.connections()), (0, 0), "the peer hears nothing of it");
    assert_eq!(host.call(|stack, io| stack.close(id, io)), Err(NetError::InvalidSocket));

    let (_, mut next) = beside(HandedOn::Nobody);
    let listener = next.stack.tcp_listen(at("::", 80), ListenOptions::default()).unwrap();
    let [frame] = <[Frame; 1]>::try_from(others.given()).unwrap();
    next.receive(frame);
    let id = next.accept(listener);
    assert_eq!(next.recv(id).unwrap(), b"GET / HTTP");
}

/// A connection that waits for somebody to listen cannot be closed by anybody.
#[test]
fn what_is_left_waits_for_a_stack_that_is_about_to_listen() {
    let (others, mut host) = beside(HandedOn::Later);
    let mut peer = Peer::new(4000);
    let listener = host.stack.tcp_listen(at("::", 80), ListenOptions::default()).unwrap();
    peer.open(&mut host);
    let (id, _, was) = host.stack.tcp_accept_for_another(listener).unwrap();
    host.close(listener);
    host.call(|stack, io| stack.tcp_leave(id, was, io)).unwrap();
    assert_eq!(host.call(|stack, io| stack.close(id, io)), Err(NetError::InvalidSocket));
    assert_eq!((host.segments().len(), host.stack.connections()), (0, 1));
    others.answers(HandedOn::Given);
    host.run_for(SECOND);
    assert_eq!((others.given().len(), host.stack.connections()), (1, 0));
}

/// What was agreed on at the beginning stays: the scale of the peer's window, the size of its segments, timestamps.
#[test]
fn the_options_of_the_syn_go_along() {
    let (others, mut host) = beside(HandedOn::Given);
    let listener = host.listen(80);
    let mut peer = Peer::new(4000);
    // These are an MSS of 1000, a scale of 4, and the timestamp 77.
    let offer = vec![2, 4, 3, 232, 1, 3, 3, 4, 1, 1, 8, 10, 0, 0, 0, 77, 0, 0, 0, 0];
    host.receive(Tcp { options: offer, ..peer.syn() }.frame());
    let reply = host.segments().remove(0);
    let stamp =
        |value: u8| [&[1, 1, 8, 10, 0, 0, 0, value][..], &reply.options[reply.options.len() - 8..][..4]].concat();
    (peer.seq, peer.ack, peer.window) = (peer.seq + 1, reply.seq + 1, 500);
    host.receive(Tcp { options: stamp(78), ..peer.segment(ACK | PSH, b"request") }.frame());
    peer.seq += 7;
    acknowledged(&mut host, &peer);
    host.close(listener);

    let (_, mut next) = beside(HandedOn::Nobody);
    let listener = next.listen(80);
    next.now_ns = host.now_ns;
    others.given().into_iter().for_each(|frame| next.receive(frame));
    let id = next.accept(listener);
    next.recv(id).unwrap();
    next.send(id, &[7; 7_000]).unwrap();
    let sent = next.segments();
    let bytes: usize = sent.iter().map(|segment| segment.payload.len()).sum();
    assert_eq!(bytes, 7_000, "500 is 8,000 by the scale");
    assert!(sent.iter().all(|segment| segment.payload.len() <= 1_000 - 12), "of the peer's size");
    let echoes = |segment: &Tcp| segment.options.windows(4).any(|word| word == [0, 0, 0, 78]);
    assert!(sent.iter().all(echoes), "the peer's last value is echoed");
}

/// The next process has not begun to listen. What the peer sends meanwhile is taken, and all of it goes on.
#[test]
fn it_waits_for_a_stack_that_is_about_to_listen() {
    let (others, mut host) = beside(HandedOn::Later);
    let listener = host.listen(80);
    let mut peer = Peer::new(4000);
    peer.open(&mut host);
    host.close(listener);
    host.run_for(SECOND);
    peer.send(&mut host, ACK | PSH, b"request");
    acknowledged(&mut host, &peer);
    others.answers(HandedOn::Given);
    host.run_for(100 * MS);
    let given: Vec<Vec<u8>> = others.given().iter().map(|frame| Tcp::parse(frame).unwrap().payload).collect();
    assert_eq!((given, host.segments().len(), host.stack.connections()), (vec![b"request".to_vec()], 0, 0));
    assert_eq!(host.stack.next_deadline_ns(), None, "nothing is waited for any more");
}

#[test]
fn it_is_reset_where_nobody_listens_or_nobody_comes() {
    for (answer, until) in [(HandedOn::Nobody, 0), (HandedOn::Later, 11 * SECOND)] {
        let (_, mut host) = beside(answer);
        let listener = host.listen(80);
        let mut peer = Peer::new(4000);
        peer.open(&mut host);
        peer.send(&mut host, ACK | PSH, b"request");
        acknowledged(&mut host, &peer);
        host.close(listener);
        assert_eq!(host.stack.connections(), usize::from(until != 0));
        host.run_for(until);
        assert_eq!((resets(&mut host), host.stack.connections()), (1, 0), "{answer:?}");
    }
    // A caller that shuts a listener down waits for nobody.
    let (_, mut host) = beside(HandedOn::Later);
    let listener = host.listen(80);
    Peer::new(4000).open(&mut host);
    host.call(|stack, io| stack.shutdown(listener, Shutdown::Both, io)).unwrap();
    assert_eq!((resets(&mut host), host.stack.connections()), (1, 0));
    // A connection that its peer resets meanwhile is over.
    let (_, mut host) = beside(HandedOn::Later);
    let listener = host.listen(80);
    let mut peer = Peer::new(4000);
    peer.open(&mut host);
    host.close(listener);
    peer.send(&mut host, RST, &[]);
    host.run_for(SECOND);
    assert_eq!((host.segments().len(), host.stack.connections()), (0, 0));
}

/// Nobody else has the connection any more, so a stack that cannot take it tells the peer.
#[test]
fn a_stack_that_cannot_take_what_it_is_given_passes_it_on_or_resets_it() {
    let (others, mut host) = beside(HandedOn::Given);
    let listener = host.listen(80);
    let peers: Vec<Peer> = (4000..4002).map(Peer::new).collect();
    for peer in &peers {
        peer.clone().open(&mut host);
    }
    host.close(listener);
    let frames = others.given();
    let (beyond, mut next) = beside(HandedOn::Given);
    let mut hops = 0;
    let mut frame = frames[0].clone();
    loop {
        next.receive(frame);
        let [further] = match <[Frame; 1]>::try_from(beyond.given()) {
            Ok(further) => further.map(|frame| {
                assert!(Tcp::parse(&frame).is_some());
                frame
            }),
            Err(_) => break,
        };
        (frame, hops) = (further, hops + 1);
        assert!(hops < 100, "it goes round for ever");
    }
    assert_eq!((resets(&mut next), hops > 1), (1, true), "nobody listens");
    // There is room for one connection.
    let options = ListenOptions { backlog: 0, ..ListenOptions::default() };
    next.stack.tcp_listen(at("0.0.0.0", 80), options).unwrap();
    frames.into_iter().for_each(|frame| next.receive(frame));
    let reset: Vec<SocketAddr> =
        next.segments().iter().filter(|segment| segment.flags & RST != 0).map(|reset| reset.to).collect();
    assert_eq!((reset, next.stack.connections()), (vec![peers[1].from], 1));
}

/// Each stack that has no listener says how many have been asked.
#[test]
fn a_connection_that_several_stacks_cannot_take_has_them_counted() {
    for mut peer in [Peer::new(4000), Peer::v6(4000)] {
        let (others, mut host) = beside(HandedOn::Given);
        let listener = host.stack.tcp_listen(at("::", 80), ListenOptions::default()).unwrap();
        peer.open(&mut host);
        host.close(listener);
        let mut frames = others.given();
        for asked in 1..=3 {
            let (others, mut next) = beside_that_keep(HandedOn::Later, HandedOn::Given);
            frames.into_iter().for_each(|frame| next.receive(frame));
            assert_eq!(*others.asked.lock().unwrap(), [asked]);
            frames = others.given();
        }
    }
}

/// The stack that listens had the ports before, or has heard of the SYN.
#[test]
fn what_is_left_of_the_same_ports_makes_way() {
    for half_open in [false, true] {
        let (others, mut host) = beside(HandedOn::Given);
        let listener = host.listen(80);
        let mut peer = Peer::new(4000);
        peer.open(&mut host);
        peer.send(&mut host, ACK | PSH, b"request");
        host.close(listener);
        let (_, mut next) = beside(HandedOn::Nobody);
        let listener = next.listen(80);
        let mut former = Peer { seq: peer.seq + 5_000, ..Peer::new(4000) };
        if half_open {
            next.receive(former.syn().frame());
        } else {
            let id = next.establish(listener, &mut former);
            next.close(id);
            former.hear(&mut next);
            former.send(&mut next, FIN | ACK, &[]);
            assert_eq!(next.stack.time_waits(), 1);
        }
        next.sent();
        others.given().into_iter().for_each(|frame| next.receive(frame));
        let id = next.accept(listener);
        assert_eq!((next.recv(id).unwrap(), resets(&mut next), next.stack.time_waits()), (b"request".to_vec(), 0, 0));
    }
}

#[test]
fn another_listener_of_the_same_stack_comes_first() {
    let (others, mut host) = beside(HandedOn::Nobody);
    let options = ListenOptions { reuse_port: true, ..ListenOptions::default() };
    let listeners: Vec<SocketId> = (0..2).map(|_| host.stack.tcp_listen(at("0.0.0.0", 80), options).unwrap()).collect();
    let mut peers: Vec<Peer> = (4000..4016).map(Peer::new).collect();
    for peer in &mut peers {
        peer.open(&mut host);
        peer.send(&mut host, ACK | PSH, b"request");
        assert_eq!(resets(&mut host), 0);
    }
    host.close(listeners[0]);
    assert_eq!((resets(&mut host), others.given().len()), (0, 0));
    for _ in &peers {
        let id = host.accept(listeners[1]);
        assert_eq!(host.recv(id).unwrap(), b"request");
    }
    host.close(listeners[1]);
    assert_eq!(resets(&mut host), 0, "all were accepted");
}

/// A stack without others does what Linux does by default (`net.ipv4.tcp_migrate_req` is 0).
#[test]
fn alone_a_stack_resets_what_nobody_accepted() {
    let mut host = Host::server();
    let options = ListenOptions { reuse_port: true, ..ListenOptions::default() };
    let listener = host.stack.tcp_listen(at("0.0.0.0", 80), options).unwrap();
    Peer::new(4000).open(&mut host);
    host.stack.tcp_listen(at("0.0.0.0", 80), options).unwrap();
    host.close(listener);
    assert_eq!((resets(&mut host), host.stack.connections()), (1, 0));
}

/// The process ends before another one listens.
#[test]
fn what_a_stack_that_ends_has_left_is_kept_for_who_listens_next_or_reset() {
    for keeps in [true, false] {
        let answer = if keeps { HandedOn::Given } else { HandedOn::Nobody };
        let (others, mut host) = beside_that_keep(HandedOn::Later, answer);
        let listener = host.listen(80);
        let mut peer = Peer::new(4000);
        peer.open(&mut host);
        peer.send(&mut host, ACK | PSH, b"request");
        acknowledged(&mut host, &peer);
        host.close(listener);
        host.call(|stack, io| stack.end_handing_on(io));
        assert_eq!((resets(&mut host), host.stack.connections()), (usize::from(!keeps), 0));
        let kept = others.given();
        assert_eq!(kept.len(), usize::from(keeps));
        let addresses = (at(SERVER, 80), at(CLIENT, 4000));
        assert!(kept.iter().all(|frame| lull_net::addresses_of(frame) == Some(addresses)));
        let (_, mut next) = beside(HandedOn::Nobody);
        let listener = next.listen(80);
        for frame in kept {
            next.receive(frame);
            let id = next.accept(listener);
            assert_eq!(next.recv(id).unwrap(), b"request");
        }
    }
}

/// What comes in between is nobody's, and its sender does not repeat a bare acknowledgement.
#[test]
fn the_end_of_a_handshake_whose_listener_is_closed_is_kept_for_who_listens_next() {
    let (others, mut host) = beside_that_keep(HandedOn::Nobody, HandedOn::Given);
    let mut peer = Peer::v6(4000);
    ends_too_late(&mut host, &mut peer);
    assert_eq!((host.segments().len(), host.stack.connections()), (0, 0));
    let (_, mut next) = beside(HandedOn::Nobody);
    let listener = next.stack.tcp_listen(at("::", 80), ListenOptions::default()).unwrap();
    let [frame] = <[Frame; 1]>::try_from(others.given()).unwrap();
    assert_eq!(lull_net::addresses_of(&frame), Some((at(SERVER6, 80), at(CLIENT6, 4000))));
    next.receive(frame);
    let id = next.accept(listener);
    peer.send(&mut next, ACK | PSH, b"request");
    assert_eq!(next.recv(id).unwrap(), b"request");
    // This acknowledgement ends no handshake of ours.
    Peer::new(4001).send(&mut host, ACK, &[]);
    assert_eq!((resets(&mut host), others.given().len()), (1, 0));
}

/// A handshake whose listener is closed before it ends.
fn ends_too_late(host: &mut Host, peer: &mut Peer) {
    let listener = host.stack.tcp_listen(at("::", 80), ListenOptions::default()).unwrap();
    host.receive(peer.syn().frame());
    let reply = host.segments().remove(0);
    (peer.seq, peer.ack) = (peer.seq + 1, reply.seq + 1);
    host.close(listener);
    peer.send(host, ACK, &[]);
}

/// The device goes on bringing the peer's segments to the stack that has given the connection away. It also does so if
/// the connection was left to the stack that has claimed it.
#[test]
fn what_comes_for_a_connection_that_was_given_away_is_passed_on() {
    for is_claimed in [false, true] {
        let (others, mut host) = beside(HandedOn::Given);
        let listener = host.stack.tcp_listen(at("::", 80), ListenOptions::default()).unwrap();
        let mut peer = Peer::new(4000);
        peer.open(&mut host);
        let request = peer.segment(ACK | PSH, b"request").frame();
        if is_claimed {
            let mut claim = request.clone();
            claim.set_seen_by(CLAIMED);
            let id = host.accept(listener);
            host.receive(claim);
            assert_eq!(host.recv(id), Err(NetError::ConnectionReset));
            host.close(id);
        } else {
            host.close(listener);
            assert_eq!(others.given().len(), 1);
        }
        assert_eq!(host.stack.connections(), 0);
        others.takes_strangers.store(true, Ordering::Relaxed);
        host.receive(request);
        let payloads: Vec<_> = others.given().iter().map(|frame| Tcp::parse(frame).unwrap().payload).collect();
        assert_eq!((payloads, resets(&mut host)), (vec![b"request".to_vec()], 0), "claimed: {is_claimed}");
    }
}

/// The peer sends the segment again, to the stack that will have the connection.
#[test]
fn what_comes_behind_the_end_of_a_handshake_that_is_held_is_not_refused() {
    let (others, mut host) = beside_that_keep(HandedOn::Nobody, HandedOn::Later);
    let mut peer = Peer::v6(4000);
    ends_too_late(&mut host, &mut peer);
    let behind = |host: &mut Host, offset: i32, ack: u32| {
        let later = Peer { seq: peer.seq.wrapping_add_signed(offset), ack: peer.ack + ack, ..peer.clone() };
        host.receive(later.segment(ACK | PSH, b"more").frame());
        resets(host)
    };
    assert_eq!(behind(&mut host, 7, 0), 0);
    assert_eq!(behind(&mut host, 7, 500), 1, "it has heard of a connection");
    assert_eq!(behind(&mut host, -7, 0), 1, "it is of a former connection");
    others.takes_strangers.store(true, Ordering::Relaxed);
    assert_eq!((behind(&mut host, 7, 0), others.given().len()), (0, 1), "whoever has the connection comes first");
    host.run_for(SECOND);
    assert_eq!(others.given().len(), 1, "the end of the handshake is theirs");
    others.takes_strangers.store(false, Ordering::Relaxed);
    assert_eq!(behind(&mut host, 7, 0), 1, "nothing is held any more");
}

/// The process that has sent the SYN-ACK again has ended since. The peer has sent data, and sends them again.
#[test]
fn the_answer_to_a_syn_ack_that_was_sent_again_is_not_refused() {
    for mut peer in [Peer::new(4000), Peer::v6(4000)] {
        let (_, mut host) = beside(HandedOn::Nobody);
        ends_too_late(&mut host, &mut peer);
        let request = peer.segment(ACK | PSH, b"request").frame();
        let refused = |host: &mut Host, seq: u32, ack: u32, flags: u8, data: &[u8]| {
            host.segments();
            let later = Peer { seq: peer.seq + seq, ack: peer.ack + ack, ..peer.clone() };
            host.receive(later.segment(flags, data).frame());
            resets(host) == 1
        };
        assert!(!refused(&mut host, 7, 0, ACK, &[]) && !refused(&mut host, 65_535, 0, ACK, &[]));
        assert!(refused(&mut host, 7, 0, ACK | PSH, b"more"), "what is to be answered");
        assert!(refused(&mut host, 7, 0, ACK | FIN, &[]), "the end, too");
        assert!(refused(&mut host, 70_000, 0, ACK, &[]), "more than the window");
        assert!(refused(&mut host, 7, 500, ACK, &[]), "it has heard of a connection");
        let later_ns = host.now_ns + 121 * SECOND;
        let now_ns = std::mem::replace(&mut host.now_ns, later_ns);
        assert!(refused(&mut host, 7, 0, ACK, &[]), "it is too late");
        host.now_ns = now_ns;
        let listener = host.stack.tcp_listen(at("::", 80), ListenOptions::default()).unwrap();
        host.receive(request);
        let id = host.accept(listener);
        assert_eq!(host.recv(id).unwrap(), b"request");
    }
    // A stack without others has heard everything.
    let mut host = Host::server();
    let mut peer = Peer::v6(4000);
    ends_too_late(&mut host, &mut peer);
    host.segments();
    peer.seq += 7;
    peer.send(&mut host, ACK, &[]);
    assert_eq!(resets(&mut host), 1);
}

/// Several processes are about to close their listeners, and others are about to listen. A server that speaks first
/// gets no second segment from its client.
#[test]
fn the_end_of_a_handshake_is_held_until_somebody_listens() {
    let (others, mut host) = beside_that_keep(HandedOn::Nobody, HandedOn::Later);
    let mut peer = Peer::v6(4000);
    ends_too_late(&mut host, &mut peer);
    host.run_for(SECOND);
    assert_eq!((host.segments().len(), host.stack.connections()), (0, 0), "the peer hears nothing of it");
    others.takes_strangers.store(true, Ordering::Relaxed);
    host.run_for(SECOND);
    let [frame] = <[Frame; 1]>::try_from(others.given()).unwrap();
    assert_eq!(frame.seen_by(), 0, "whoever has the connection by now is asked first");
    let (_, mut next) = beside(HandedOn::Nobody);
    let listener = next.stack.tcp_listen(at("::", 80), ListenOptions::default()).unwrap();
    next.receive(frame);
    let id = next.accept(listener);
    next.send(id, b"greeting").unwrap();
    assert_eq!(peer.hear(&mut next), b"greeting");
}

#[test]
fn the_end_of_a_handshake_that_nobody_takes_is_reset_after_ten_seconds() {
    let (_, mut host) = beside_that_keep(HandedOn::Nobody, HandedOn::Later);
    ends_too_late(&mut host, &mut Peer::v6(4000));
    host.run_for(9 * SECOND);
    assert_eq!(resets(&mut host), 0);
    host.run_for(2 * SECOND);
    assert_eq!(resets(&mut host), 1);
}

#[test]
fn a_stack_that_ends_leaves_the_ends_of_handshakes_to_others() {
    let (others, mut host) = beside_that_keep(HandedOn::Nobody, HandedOn::Later);
    ends_too_late(&mut host, &mut Peer::v6(4000));
    others.takes_strangers.store(true, Ordering::Relaxed);
    host.call(|stack, io| stack.end_handing_on(io));
    let [frame] = <[Frame; 1]>::try_from(others.given()).unwrap();
    assert_eq!(lull_net::addresses_of(&frame), Some((at(SERVER6, 80), at(CLIENT6, 4000))));
    host.run_for(11 * SECOND);
    assert_eq!((host.segments().len(), others.given().len()), (0, 0), "it is theirs");
}

/// What waited for a process that has ended may be anything that stacks pass on to each other.
#[test]
fn only_what_is_a_connection_has_its_addresses() {
    let peer = Peer::new(4000);
    let marked = |mut frame: Frame, seen_by| {
        frame.set_seen_by(seen_by);
        frame
    };
    let addresses = Some((at(SERVER, 80), at(CLIENT, 4000)));
    assert_eq!(lull_net::addresses_of(&marked(peer.segment(ACK, b"request").frame(), EVERYBODY)), addresses);
    assert_eq!(
        lull_net::addresses_of(&marked(peer.segment(ACK, b"request").frame(), 1)),
        None,
        "its sender has it still"
    );
    assert_eq!(lull_net::addresses_of(&marked(peer.segment(ACK | RST, &[]).frame(), EVERYBODY)), None);
    assert_eq!(lull_net::addresses_of(&marked(peer.syn().frame(), EVERYBODY)), None);
    let mut arp = Frame::copy_from(&[0; 60]);
    arp.set_seen_by(EVERYBODY);
    assert_eq!(lull_net::addresses_of(&arp), None);
}

/// The segment came by another queue, and passed other stacks.
#[test]
fn the_end_of_a_handshake_that_comes_after_its_connection_has_ended_begins_none() {
    let (_, mut host) = beside(HandedOn::Nobody);
    let listener = host.listen(80);
    let mut peer = Peer::new(4000);
    host.receive(peer.syn().frame());
    let reply = host.segments().remove(0);
    (peer.seq, peer.ack) = (peer.seq + 1, reply.seq + 1);
    let late = peer.segment(ACK, &[]).frame();
    peer.send(&mut host, ACK | PSH, b"request");
    let id = host.accept(listener);
    peer.send(&mut host, ACK | FIN, &[]);
    host.close(id);
    peer.hear(&mut host);
    peer.ack += 1;
    peer.send(&mut host, ACK, &[]);
    host.run_for(SECOND);
    host.segments();
    assert_eq!(host.stack.connections(), 0, "the peer has ended it, and we have");
    host.receive(late);
    assert_eq!((host.stack.connections(), host.segments().len()), (0, 0));
    // Another stack has begun a later connection with the same ports.
    let mut later = Peer { seq: peer.seq + 5_000, ..Peer::new(4000) };
    let (_, mut beginner) = beside(HandedOn::Nobody);
    beginner.listen(80);
    beginner.receive(later.syn().frame());
    (later.seq, later.ack) = (later.seq + 1, beginner.segments().remove(0).seq + 1);
    later.send(&mut host, ACK | PSH, b"request");
    let id = host.accept(listener);
    assert_eq!(host.recv(id).unwrap(), b"request");
}
