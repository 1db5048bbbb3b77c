//! Stacks of other processes with the same addresses: what a stack must not answer in their stead.

use std::sync::{Arc, Mutex};

use lull_net::{Elsewhere, HandedOn};
use lull_nic::Frame;

use super::*;

/// Another stack, which takes what it is asked about if it is to, and notes where connections begin.
#[derive(Debug, Default)]
struct Beside {
    takes: bool,
    strangers: Mutex<Vec<Option<SocketAddr>>>,
}

impl Elsewhere for Beside {
    fn secret(&self) -> u64 {
        7
    }

    fn queues(&self) -> &[u32] {
        &[0]
    }

    fn takes_syn(&self, _local: SocketAddr, _frame: &Frame) -> bool {
        false
    }

    fn takes_stranger(&self, syn: Option<SocketAddr>, _frame: &Frame) -> bool {
        self.strangers.lock().unwrap().push(syn);
        self.takes
    }

    fn takes_last_acknowledgement(&self, _frame: &Frame) -> bool {
        false
    }

    fn takes_over(&self, _local: SocketAddr, _frame: &Frame) -> HandedOn {
        HandedOn::Nobody
    }

    fn copy_to_all(&self, _frame: &Frame) {}
}

fn beside(takes: bool) -> (Arc<Beside>, Host) {
    let others = Arc::new(Beside { takes, ..Beside::default() });
    let mut config = server_config();
    config.elsewhere = Some(others.clone());
    (others, Host::server_with(config))
}

fn asked(others: &Beside) -> Vec<Option<SocketAddr>> {
    std::mem::take(&mut others.strangers.lock().unwrap())
}

/// A connection that this stack has closed, and its peer after it: TIME-WAIT.
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

/// The same ports again: the SYN came to another stack, and what follows it comes to the one that remembers the former connection.
#[test]
fn time_wait_leaves_a_later_connection_to_the_stack_that_has_it() {
    let (others, mut host) = beside(true);
    let listener = host.listen(80);
    let peer = in_time_wait(&mut host, listener);
    asked(&others);
    // What is of the former one is answered, and asked of nobody: its FIN again, and an old duplicate.
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

/// A SYN that was sent again came to both stacks: what the peer goes on with must not be reset by the one it does not talk to.
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
