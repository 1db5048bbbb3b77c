//! Programs on the receive path: what becomes of a frame, what is counted, and that the device below stays a device.
#![cfg(not(loom))]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use lull_nic::conformance::{Ports, check};
use lull_nic::mem::{self, MemConfig, MemPort};
use lull_nic::program::{Action, FrameProgram, Outlet, ProgramCounts, Programmed};
use lull_nic::{Device, Doorbell, EventFdSink, Frame, FramePool, IrqLine, IrqSink, Queue, TxQueue};

const LENGTH: usize = 60;

fn ports(ring_slots: usize) -> (Arc<MemPort>, MemPort) {
    let (service, client) = mem::pair(MemConfig { ring_slots, ..MemConfig::default() });
    (Arc::new(service), client)
}

fn frame(first: u8) -> Frame {
    Frame::copy_from(&[first; LENGTH])
}

/// Sends frames and rings.
fn send(queue: &mut Queue, firsts: &[u8]) {
    for first in firsts {
        queue.tx.transmit(frame(*first)).unwrap();
    }
    queue.tx.doorbell();
}

/// Polls; the first byte of each frame that came up.
fn poll(queue: &mut Queue, pool: &mut FramePool) -> (usize, Vec<u8>) {
    let mut firsts = Vec::new();
    let polled = queue.rx.poll(64, pool, &mut |frame, pool| {
        firsts.push(frame.data()[0]);
        pool.recycle(frame);
    });
    (polled, firsts)
}

#[test]
fn a_program_without_an_opinion_leaves_the_contract_as_it_is() {
    for ring_slots in [8, 1024] {
        let (service, client) = ports(ring_slots);
        let pass = |_queue| -> Box<dyn FrameProgram> { Box::new(|_: &mut Frame| Action::Pass) };
        let programmed = Programmed::new(service, pass);
        check(&programmed, &mut Ports(client.take_queue(0).unwrap())).unwrap();
        let counts = programmed.counts();
        assert!(counts.passed > 0);
        assert_eq!(counts, ProgramCounts { passed: counts.passed, ..ProgramCounts::default() });
    }
}

#[test]
fn each_verdict_does_what_it_says_and_is_counted() {
    let (service, client) = ports(64);
    let (out, far) = ports(64);
    let Queue { tx, tx_irq, .. } = out.take_queue(0).unwrap();
    let outlet = Outlet::new(tx, tx_irq);
    let programmed = Programmed::new(service, move |_queue| {
        let outlet = outlet.clone();
        Box::new(move |frame: &mut Frame| match frame.data()[0] {
            1 => Action::Drop,
            2 => {
                frame.data_mut()[0] = 20;
                Action::Transmit
            }
            3 => Action::Redirect(outlet.clone()),
            4 => Action::Aborted,
            _ => {
                frame.data_mut()[0] += 100;
                Action::Pass
            }
        })
    });
    let (mut ours, mut theirs) = (programmed.take_queue(0).unwrap(), client.take_queue(0).unwrap());
    let mut far = far.take_queue(0).unwrap();
    let mut pool = FramePool::new(64);
    send(&mut theirs, &[0, 1, 2, 3, 4, 2, 3, 5]);
    // All count against the budget: the program has had them.
    assert_eq!(poll(&mut ours, &mut pool), (8, vec![100, 105]));
    assert_eq!(poll(&mut theirs, &mut pool).1, [20, 20]);
    assert_eq!(poll(&mut far, &mut pool).1, [3, 3]);
    let expected =
        ProgramCounts { passed: 2, dropped: 1, transmitted: 2, redirected: 2, aborted: 1, ..ProgramCounts::default() };
    assert_eq!(programmed.counts(), expected);
}

#[test]
fn a_poll_rings_once_for_all_and_takes_no_more_than_its_budget() {
    let (service, client) = ports(64);
    let reflect = |_queue| -> Box<dyn FrameProgram> { Box::new(|_: &mut Frame| Action::Transmit) };
    let programmed = Programmed::new(service, reflect);
    let (mut ours, mut theirs) = (programmed.take_queue(0).unwrap(), client.take_queue(0).unwrap());
    let sink = Arc::new(EventFdSink::new().unwrap());
    theirs.irq.connect(sink.clone());
    theirs.irq.unmask();
    let mut pool = FramePool::new(64);
    send(&mut theirs, &[7; 10]);
    assert_eq!(ours.rx.poll(4, &mut pool, &mut |_, _| unreachable!("all are sent back")), 4);
    assert!(sink.wait(Some(std::time::Duration::from_secs(60))).unwrap(), "a doorbell told the peer");
    assert_eq!(poll(&mut theirs, &mut pool).1.len(), 4);
    assert_eq!(poll(&mut ours, &mut pool).0, 6);
    assert_eq!(poll(&mut theirs, &mut pool).1.len(), 6);
}

#[test]
fn a_frame_that_finds_no_room_is_lost_and_counted_and_later_ones_leave() {
    let (service, client) = ports(4);
    let reflect = |_queue| -> Box<dyn FrameProgram> { Box::new(|_: &mut Frame| Action::Transmit) };
    let programmed = Programmed::new(service, reflect);
    let (mut ours, mut theirs) = (programmed.take_queue(0).unwrap(), client.take_queue(0).unwrap());
    let mut pool = FramePool::new(64);
    let mut sent = 0;
    while programmed.counts().no_room == 0 {
        send(&mut theirs, &[1]);
        sent += 1;
        assert_eq!(poll(&mut ours, &mut pool).0, 1);
        assert!(sent < 100, "a ring of 4 is full at some time");
    }
    assert_eq!(programmed.counts().transmitted + 1, sent);
    assert_eq!(poll(&mut theirs, &mut pool).1.len() as u64, sent - 1);
    send(&mut theirs, &[1]);
    poll(&mut ours, &mut pool);
    assert_eq!(poll(&mut theirs, &mut pool).1.len(), 1);
}

/// A ring whose doorbell takes one frame, and raises the room interrupt itself.
struct OneAtATime {
    ring: usize,
    sent: Arc<AtomicUsize>,
    room: Arc<Room>,
}

#[derive(Default)]
struct Room(Mutex<(bool, Option<Arc<dyn IrqSink>>)>);

impl Room {
    /// If it is armed.
    fn raise(&self) {
        let mut line = self.0.lock().unwrap();
        let sink = std::mem::take(&mut line.0).then(|| line.1.clone()).flatten();
        drop(line);
        sink.inspect(|sink| sink.raise());
    }
}

impl IrqLine for Room {
    fn connect(&self, sink: Arc<dyn IrqSink>) {
        self.0.lock().unwrap().1 = Some(sink);
    }

    fn mask(&self) {
        self.0.lock().unwrap().0 = false;
    }

    /// It never has room but in a doorbell.
    fn unmask(&self) {
        self.0.lock().unwrap().0 = true;
    }
}

impl TxQueue for OneAtATime {
    fn transmit(&mut self, _: Frame) -> Result<(), Frame> {
        self.ring += 1;
        Ok(())
    }

    fn doorbell(&mut self) -> Doorbell {
        if self.ring > 0 {
            self.ring -= 1;
            self.sent.fetch_add(1, Ordering::Relaxed);
            self.room.raise();
        }
        if self.ring == 0 { Doorbell::Done } else { Doorbell::Again }
    }

    fn free_slots(&self) -> usize {
        64 - self.ring
    }
}

/// The room interrupt comes to whoever rings, who has the outlet's ring at that moment.
#[test]
fn a_doorbell_that_raises_its_own_room_interrupt_is_not_waited_for() {
    let (service, client) = ports(64);
    let (room, sent) = (Arc::<Room>::default(), Arc::<AtomicUsize>::default());
    let ring = OneAtATime { ring: 0, sent: sent.clone(), room: room.clone() };
    let outlet = Outlet::new(Box::new(ring), room.clone());
    let programmed = Programmed::new(service, move |_queue| {
        let outlet = outlet.clone();
        Box::new(move |_: &mut Frame| Action::Redirect(outlet.clone()))
    });
    let (mut ours, mut theirs) = (programmed.take_queue(0).unwrap(), client.take_queue(0).unwrap());
    let mut pool = FramePool::new(64);
    for _ in 0..2 {
        send(&mut theirs, &[0, 1]);
        assert_eq!(poll(&mut ours, &mut pool).0, 2);
    }
    assert_eq!(programmed.counts().redirected, 4);
    // Each poll has sent one; each raise sends one more, and what it leaves is waited for again.
    for so_far in 2..=4 {
        assert_eq!(sent.load(Ordering::Relaxed), so_far);
        room.raise();
    }
}

#[test]
fn each_queue_has_a_program_of_its_own_beside_its_owners_frames() {
    let (service, client) = mem::pair(MemConfig { queues: 2, peer_queues: Some(1), ..MemConfig::default() });
    let programmed = Programmed::new(Arc::new(service), |queue| {
        let mut seen = 0;
        Box::new(move |frame: &mut Frame| {
            seen += 1;
            frame.data_mut()[0] = 10 * queue as u8 + seen;
            Action::Transmit
        })
    });
    let mut theirs = client.take_queue(0).unwrap();
    let mut pool = FramePool::new(64);
    for index in [0, 1] {
        let mut ours = programmed.take_queue(index).unwrap();
        // The owner sends by the same ring.
        send(&mut ours, &[99]);
        assert_eq!(poll(&mut theirs, &mut pool).1, [99]);
    }
    assert!(programmed.take_queue(0).is_err(), "taken");
}
