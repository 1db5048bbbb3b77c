//! The stacks of other processes with the same addresses, and what a stack must not answer in their place.

use std::sync::{Arc, Mutex};

use lull_net::lull_nic::passing::{CLAIMED, EVERYBODY, LAST_ROUND};
use lull_net::{Elsewhere, HandedOn};
use lull_nic::Frame;

use super::*;

/// Another stack. If `takes`, it takes what it is asked about, and it records where connections begin.
#[derive(Debug, Default)]
struct Beside {
    takes: bool,
    is_nobody: bool,
    strangers: Mutex<Vec<Option<SocketAddr>>>,
    /// The frames that it took.
    passed: Mutex<Vec<Frame>>,
    /// How often it was told of a connection.
    claimed: Mutex<usize>,
    /// How often it was given a copy.
    copied: Mutex<usize>,
}

impl Elsewhere for Beside {
    fn secret(&self) -> u64 {
        7
    }

    fn is_nobody(&self) -> bool {
        self.is_nobody
    }

    fn queues(&self) -> &[u32] {
        &[0]
    }

    fn takes_stranger(&self, syn: Option<SocketAddr>, frame: &Frame) -> bool {
        self.strangers.lock().unwrap().push(syn);
        self.passed.lock().unwrap().push(frame.clone());
        self.takes
    }

    fn takes_last_acknowledgement(&self, _frame: &Frame) -> bool {
        false
    }

    fn takes_over(&self, _local: SocketAddr, _frame: &Frame) -> HandedOn {
        HandedOn::Nobody
    }

    fn copy_to_all(&self, _frame: &Frame) {
        *self.copied.lock().unwrap() += 1;
    }

    fn claims(&self, _frame: &Frame) {
        *self.claimed.lock().unwrap() += 1;
    }
}

fn beside(takes: bool) -> (Arc<Beside>, Host) {
    beside_as(Beside { takes, ..Beside::default() })
}

fn beside_as(others: Beside) -> (Arc<Beside>, Host) {
    let others = Arc::new(others);
    let mut config = server_config();
    config.elsewhere = Some(others.clone());
    (others, Host::server_with(config))
}

fn asked(others: &Beside) -> Vec<Option<SocketAddr>> {
    std::mem::take(&mut others.strangers.lock().unwrap())
}

/// A connection that this stack has closed, and its peer afterwards, so that it is in TIME-WAIT.
fn in_time_wait(host: &mut Host, listener: SocketId) -> Peer {
    let mut peer = Peer::new(4000);
    let id = host.establish(listener, &mut peer);
    host.close(id);
    peer.hear(host);
    peer.send(host, FIN | ACK, &[]);
    host.sent();
    assert_eq!(host.stack.time_waits(), 1);
    peer
}

/// The same ports are used again: the SYN came to another stack, and what follows comes to the one that remembers the
/// former connection.
#[test]
fn time_wait_leaves_a_later_connection_to_the_stack_that_has_it() {
    let (others, mut host) = beside(true);
    let listener = host.listen(80);
    let peer = in_time_wait(&mut host, listener);
    asked(&others);
    // Segments of the former connection are answered, and nobody is asked: its FIN again, and an old duplicate.
    for before in [1, 100] {
        host.run_for(SECOND);
        let mut old = peer.clone();
        old.seq -= before;
        old.send(&mut host, FIN | ACK, &[]);
        assert_eq!((host.segments()[0].flags, host.stack.time_waits()), (ACK, 1));
    }
    assert!(asked(&others).is_empty());
    let mut later = Peer { seq: peer.seq + 1_000, ..peer };
    later.send(&mut host, ACK | PSH, b"request");
    assert_eq!((asked(&others), host.segments().len(), host.stack.time_waits()), (vec![None], 0, 0));
}

#[test]
fn time_wait_leaves_a_new_syn_to_the_stack_that_listens() {
    let (others, mut host) = beside(true);
    let listener = host.listen(80);
    let peer = in_time_wait(&mut host, listener);
    host.close(listener);
    asked(&others);
    host.run_for(SECOND);
    let again = Peer { seq: peer.seq + 1_000, ack: 0, ..peer };
    host.receive(again.syn().frame());
    let here = SocketAddr::new(ip(SERVER), 80);
    assert_eq!((asked(&others), host.segments().len(), host.stack.time_waits()), (vec![Some(here)], 0, 0));
}

/// If a program is a single process, what comes before it accepts is kept, and it is alone with everything else.
#[test]
fn a_stack_beside_nobody_has_syns_kept_and_asks_nothing_else() {
    let (others, mut host) = beside_as(Beside { takes: true, is_nobody: true, ..Beside::default() });
    let listener = host.listen(80);
    let mut later = in_time_wait(&mut host, listener);
    later.seq += 1_000;
    host.run_for(SECOND);
    later.send(&mut host, ACK | PSH, b"request");
    assert_eq!((host.segments()[0].flags, host.stack.time_waits()), (ACK, 1), "it is of the former connection");
    host.close(listener);
    let mut stranger = Peer::new(4001);
    stranger.send(&mut host, ACK | PSH, b"request");
    assert_eq!((asked(&others), host.segments()[0].flags & RST), (vec![], RST));
    host.receive(stranger.syn().frame());
    assert_eq!((asked(&others), host.segments().len()), (vec![Some(SocketAddr::new(ip(SERVER), 80))], 0));
}

/// A SYN that was sent again came to both stacks. What the peer sends next must not be reset by the stack that it does
/// not talk to.
#[test]
fn a_half_open_connection_leaves_what_does_not_fit_it_to_the_stack_that_has_the_connection() {
    for takes in [true, false] {
        let (others, mut host) = beside(takes);
        host.listen(80);
        let mut peer = Peer::new(4000);
        host.receive(peer.syn().frame());
        peer.ack = host.segments()[0].seq + 1 + 500;
        peer.seq += 1;
        peer.send(&mut host, ACK | PSH, b"request");
        assert_eq!(asked(&others), [None]);
        let resets = host.segments().iter().filter(|segment| segment.flags & RST != 0).count();
        assert_eq!(resets, usize::from(!takes), "nobody has it");
    }
}

/// The end of a handshake comes by one queue and the request by another, and to two stacks that listen each of these
/// belongs to nobody.
#[test]
fn what_another_stack_has_made_of_a_request_gives_way_here() {
    let begun = |host: &mut Host, peer: &mut Peer| {
        host.receive(peer.syn().frame());
        let reply = host.segments().remove(0);
        (peer.seq, peer.ack) = (peer.seq + 1, reply.seq + 1);
        let mut claim = peer.segment(ACK | PSH, b"request").frame();
        claim.set_seen_by(CLAIMED);
        claim
    };
    // Nobody has accepted the connection.
    let (_, mut host) = beside(false);
    let listener = host.listen(80);
    let mut peer = Peer::new(4000);
    let claim = begun(&mut host, &mut peer);
    peer.send(&mut host, ACK, &[]);
    assert_eq!(host.stack.connections(), 1);
    host.receive(claim.clone());
    assert_eq!((host.stack.tcp_accept(listener).unwrap_err(), host.sent().len()), (NetError::WouldBlock, 0));
    // What comes late begins it no more, neither by itself nor as something of which a third stack had made a
    // connection.
    for seen_by in [LAST_ROUND, EVERYBODY] {
        let mut late = peer.segment(ACK, &[]).frame();
        late.set_seen_by(seen_by);
        host.receive(late);
        assert_eq!(host.stack.connections(), 0);
    }
    // The application has the connection.
    let mut peer = Peer::new(4001);
    let claim = begun(&mut host, &mut peer);
    peer.send(&mut host, ACK, &[]);
    let id = host.accept(listener);
    host.receive(claim);
    assert_eq!((host.recv(id).unwrap_err(), host.sent().len()), (NetError::ConnectionReset, 0));
    // Only the handshake of the connection has begun.
    let claim = begun(&mut host, &mut Peer::new(4002));
    host.receive(claim);
    host.run_for(5 * SECOND);
    assert_eq!(host.sent().len(), 0, "the SYN-ACK is not sent again");
    // The connection has received something: the claim is about a former connection, or comes from a stack that should
    // give way.
    let mut peer = Peer::new(4003);
    let claim = begun(&mut host, &mut peer);
    peer.send(&mut host, ACK | PSH, b"request");
    host.receive(claim);
    let id = host.accept(listener);
    assert_eq!(host.recv(id).unwrap(), b"request");
}

#[test]
fn a_stack_that_makes_a_connection_of_a_request_tells_the_others() {
    let (others, mut host) = beside(false);
    host.listen(80);
    let (_, mut beginner) = beside(false);
    beginner.listen(80);
    for (port, data) in [(4000, &b"request"[..]), (4001, &[])] {
        let mut peer = Peer::new(port);
        beginner.receive(peer.syn().frame());
        let reply = beginner.segments().remove(0);
        (peer.seq, peer.ack) = (peer.seq + 1, reply.seq + 1);
        peer.send(&mut host, ACK | PSH, data);
        let claimed = std::mem::take(&mut *others.claimed.lock().unwrap());
        assert_eq!(claimed, if data.is_empty() { 0 } else { 1 }, "an acknowledgement may be the one too many");
    }
    assert_eq!(host.stack.connections(), 2);
    // The acknowledgement before a request came by another queue, or nobody has told a stack that is new.
    let mut peer = Peer::new(4002);
    host.receive(peer.syn().frame());
    let reply = host.segments().remove(0);
    (peer.seq, peer.ack) = (peer.seq + 1, reply.seq + 1);
    peer.send(&mut host, ACK | PSH, b"request");
    let mut handed_over = Peer { ack: peer.ack, ..Peer::new(4003) }.segment(ACK | PSH, b"request").frame();
    handed_over.set_seen_by(EVERYBODY);
    for (sent, connections) in [(None, 3), (Some(handed_over), 4)] {
        sent.into_iter().for_each(|frame| host.receive(frame));
        assert_eq!((host.stack.connections(), std::mem::take(&mut *others.claimed.lock().unwrap())), (connections, 1));
    }
}

/// The acknowledgement of an answer passed through another process, and comes when the connection has been ended by
/// what came straight. Its numbers are as far apart as those of the handshake, or nearly so.
#[test]
fn what_comes_when_a_connection_has_ended_begins_no_other() {
    for (port, asked, answer) in [(4000, &b"who"[..], &b"55\n"[..]), (4001, b"who", b"1055\n"), (4002, b"end", b"7")] {
        let (_, mut host) = beside(false);
        let listener = host.listen(80);
        let mut peer = Peer::new(port);
        let id = host.establish(listener, &mut peer);
        peer.send(&mut host, ACK | PSH, asked);
        assert_eq!(host.recv(id).unwrap(), asked);
        host.send(id, answer).unwrap();
        peer.hear(&mut host);
        let late = peer.segment(ACK, &[]).frame();
        peer.send(&mut host, FIN | ACK, &[]);
        host.close(id);
        peer.hear(&mut host);
        peer.send(&mut host, ACK, &[]);
        assert_eq!(host.stack.connections(), 0, "it has ended");
        host.receive(late);
        assert_eq!((host.stack.connections(), host.stack.tcp_accept(listener).unwrap_err()), (0, NetError::WouldBlock));
    }
}

/// A frame that is passed on is looked at anew, beginning with its checksum.
#[test]
fn a_segment_without_its_ill_formed_options_is_passed_on_whole() {
    let (others, mut host) = beside(true);
    let segment = Tcp { options: vec![2, 3, 5, 1], ..Peer::new(4000).segment(ACK | PSH, b"data") };
    host.receive(segment.frame());
    assert_eq!(asked(&others), [None]);
    let passed = others.passed.lock().unwrap().pop().unwrap();
    assert_eq!(Tcp::parse(&passed), Some(Tcp { options: vec![1; 4], ..segment }));
}

const REQUEST: u8 = 1;
const REPLY: u8 = 2;

fn arp(operation: u8, station: [u8; 4], target_mac: [u8; 6], target: [u8; 4]) -> Frame {
    let arp = [&[0, 1, 8, 0, 6, 4, 0, operation], &CLIENT_MAC[..], &station, &target_mac, &target].concat();
    let mut frame = ethernet(0x0806, &arp);
    frame.data_mut()[..6].fill(0xff);
    frame
}

/// A router that fails over announces this once, and the device gives the message to one queue (RFC 5944 section 4.6
/// names both forms).
#[test]
fn what_a_station_says_of_itself_unasked_is_told_to_the_other_stacks() {
    let (others, mut host) = beside(false);
    let (station, own, off_link) = ([10, 0, 0, 9], [10, 0, 0, 1], [192, 0, 2, 1]);
    for (what, frame, times) in [
        ("a gratuitous request of a station that is unknown here", arp(REQUEST, station, [0; 6], station), 1),
        ("a gratuitous reply", arp(REPLY, station, CLIENT_MAC, station), 1),
        ("an answer", arp(REPLY, station, SERVER_MAC, own), 1),
        ("a question for another", arp(REQUEST, station, [0; 6], [10, 0, 0, 8]), 0),
        ("a station of no own network", arp(REQUEST, off_link, [0; 6], off_link), 0),
        ("somebody in this stack's name", arp(REQUEST, own, [0; 6], own), 0),
    ] {
        host.receive(frame);
        assert_eq!(std::mem::take(&mut *others.copied.lock().unwrap()), times, "{what}");
    }
}

/// Each copy costs a system call for each other stack.
#[test]
fn a_flood_of_what_is_said_unasked_is_copied_as_far_as_the_allowance_goes_and_takes_none_of_the_answers() {
    let (others, mut host) = beside(false);
    let copied = || std::mem::take(&mut *others.copied.lock().unwrap());
    let (station, own) = ([10, 0, 0, 9], [10, 0, 0, 1]);
    const AT_ONCE: usize = 256;
    let flood = |host: &mut Host, target_mac, target| {
        (0..10_000).for_each(|_| host.receive(arp(REPLY, station, target_mac, target)));
        copied()
    };
    assert_eq!(flood(&mut host, CLIENT_MAC, station), AT_ONCE);
    assert_eq!(flood(&mut host, SERVER_MAC, own), AT_ONCE, "answers");
    host.run_for(SECOND);
    assert_eq!(flood(&mut host, CLIENT_MAC, station), AT_ONCE, "it comes again");
    // A message that another stack has passed on costs no copy.
    host.run_for(SECOND);
    for _ in 0..AT_ONCE {
        let mut passed_on = arp(REPLY, station, CLIENT_MAC, station);
        passed_on.set_seen_by(EVERYBODY);
        host.receive(passed_on);
    }
    assert_eq!((copied(), flood(&mut host, CLIENT_MAC, station)), (0, AT_ONCE));
}
