use std::sync::atomic::AtomicU64;

use lull_host::{Host, HostConfig};
use lull_nic::frame::Sender;
use lull_nic::mem::{self, MemConfig};
use lull_nic::{Device, Frame, FramePool, IrqSink};

use super::*;

#[test]
fn the_doorbell_that_a_visit_held_back_rings_when_the_queue_leaves_its_group_and_nothing_else_is_sent() {
    let host = Host::new(HostConfig { cpus: vec![None], ..HostConfig::default() }).unwrap().delivery();
    let (port, peer) = mem::pair(MemConfig::default());
    let (ours, mut theirs) = (port.take_queue(0).unwrap(), peer.take_queue(0).unwrap());
    let (side, mut intake) = TxSide::new(Kind::PfifoFast, 1500, NO_NAPI, ours.tx_irq);
    side.put_ring(Ring { tx: ours.tx, unsent: false });
    let mut arrived = || theirs.rx.poll(64, &mut FramePool::new(0), &mut |_, _| ());

    side.group_enter().unwrap();
    intake.transmit(Frame::copy_from(&[0; 64])).unwrap();
    side.kick(&host);
    assert_eq!((side.visit(&host, 64).frames, arrived()), (1, 0), "a visit holds its doorbell back");
    side.group_leave(&host);
    assert_eq!(arrived(), 1);
    assert_eq!(side.stats().doorbells, 1);

    // The doorbell does not ring again for what it has rung for.
    side.group_enter().unwrap();
    side.group_leave(&host);
    assert_eq!(side.stats().doorbells, 1);
}

#[derive(Default)]
struct Raised(AtomicU64);

impl IrqSink for Raised {
    fn raise(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn a_sender_alone_is_told_to_wait_before_the_discipline_drops_its_frames_and_hears_of_room() {
    for (kind, in_turn) in [(Kind::Fq, 180), (Kind::PfifoFast, 1_020)] {
        let host = Host::new(HostConfig { cpus: vec![None], ..HostConfig::default() }).unwrap().delivery();
        let (port, peer) = mem::pair(MemConfig { ring_slots: 32, ..MemConfig::default() });
        let (ours, mut theirs) = (port.take_queue(0).unwrap(), peer.take_queue(0).unwrap());
        let (side, mut intake) = TxSide::new(kind, 1500, NO_NAPI, ours.tx_irq);
        side.put_ring(Ring { tx: ours.tx, unsent: false });
        let (room, raised) = (side.room(), Arc::new(Raised::default()));
        room.connect(raised.clone());
        let sender = Sender { id: 7, ..Sender::default() };
        let mut push = || {
            let mut frame = Frame::copy_from(&[0; 900]);
            frame.set_sender(sender);
            intake.room_for(sender) > 0 && intake.transmit(frame).is_ok()
        };

        // This is as much as a window that opens lets a connection send while it holds its shard's lock.
        let pushed = (0..in_turn).take_while(|_| push()).count();
        assert!(pushed < in_turn, "{kind}: it was told that there is no room");
        room.unmask();
        assert_eq!(raised.0.load(Ordering::SeqCst), 0, "{kind}: nothing has left");
        side.kick(&host);
        assert_eq!(raised.0.load(Ordering::SeqCst), 1, "{kind}: some have left for the ring");
        let more = (pushed..in_turn).take_while(|_| push()).count();
        assert!(more > 0, "{kind}: what has left makes room");

        let (mut arrived, mut pushed) = (0, pushed + more);
        while arrived < in_turn {
            side.kick(&host);
            let before = arrived;
            arrived += theirs.rx.poll(64, &mut FramePool::new(0), &mut |_, _| ());
            pushed += (pushed..in_turn).take_while(|_| push()).count();
            assert!(arrived > before, "{kind}: {arrived} of {in_turn} arrived, {:?}", side.stats());
        }
        assert_eq!((arrived, side.stats().dropped), (in_turn, 0), "{kind}");
    }
}

#[test]
fn a_run_that_sends_nothing_of_a_paced_sender_tells_nobody_of_room() {
    for is_grouped in [false, true] {
        let host = Host::new(HostConfig { cpus: vec![None], ..HostConfig::default() }).unwrap().delivery();
        let (port, _peer) = mem::pair(MemConfig::default());
        let ours = port.take_queue(0).unwrap();
        let (side, mut intake) = TxSide::new(Kind::Fq, 1500, NO_NAPI, ours.tx_irq);
        side.put_ring(Ring { tx: ours.tx, unsent: false });
        let (room, raised) = (side.room(), Arc::new(Raised::default()));
        room.connect(raised.clone());
        if is_grouped {
            side.group_enter().unwrap();
        }
        let run = || {
            let (sent, told) = (side.stats().frames, raised.0.load(Ordering::SeqCst));
            match is_grouped {
                true => drop(side.visit(&host, 64)),
                false => side.kick(&host),
            }
            (side.stats().frames - sent, raised.0.load(Ordering::SeqCst) - told)
        };
        // Each frame puts the flow off for a second.
        let sender = Sender { id: 7, pacing_bytes_per_s: 1, ..Sender::default() };
        let mut fill = || {
            let mut pushed = 0;
            while intake.room_for(sender) > 0 {
                let mut frame = Frame::copy_from(&[0; 1_000]);
                frame.set_sender(sender);
                intake.transmit(frame).unwrap();
                pushed += 1;
            }
            room.unmask();
            pushed
        };
        fill();
        assert_eq!(run(), (1, 1), "the first leaves at once");
        let mut runs_in_vain = 0;
        while runs_in_vain < 100 {
            let pushed = fill();
            // A frame that was pushed leaves the intake, and one whose time has come leaves the discipline. Both make
            // room.
            let (sent, told) = run();
            if (pushed, sent) == (0, 0) {
                assert_eq!(told, 0, "grouped: {is_grouped}");
                runs_in_vain += 1;
            }
        }
    }
}

#[test]
fn frames_of_nobody_fill_no_senders_place() {
    let host = Host::new(HostConfig { cpus: vec![None], ..HostConfig::default() }).unwrap().delivery();
    let (port, peer) = mem::pair(MemConfig::default());
    let (ours, mut theirs) = (port.take_queue(0).unwrap(), peer.take_queue(0).unwrap());
    let (side, mut intake) = TxSide::new(Kind::Fq, 1500, NO_NAPI, ours.tx_irq);
    side.put_ring(Ring { tx: ours.tx, unsent: false });
    // There are more frames than the discipline lets a sender have. The sender's number is a multiple of the number of
    // places.
    (0..80).for_each(|_| intake.transmit(Frame::copy_from(&[0; 64])).unwrap());
    let sender = Sender { id: 4096, ..Sender::default() };
    assert!(intake.room_for(sender) > 0);
    let mut frame = Frame::copy_from(&[0; 64]);
    frame.set_sender(sender);
    intake.transmit(frame).unwrap();
    while side.stats().frames < 81 {
        side.kick(&host);
        theirs.rx.poll(64, &mut FramePool::new(0), &mut |_, _| ());
    }
    assert!(intake.room_for(sender) > 0, "what has left is taken off once");
}

#[test]
fn room_is_not_told_to_the_queues_napi_while_somebody_runs() {
    let host = Host::new(HostConfig { cpus: vec![None], ..HostConfig::default() }).unwrap().delivery();
    let (port, peer) = mem::pair(MemConfig { ring_slots: 1, ..MemConfig::default() });
    let (ours, mut theirs) = (port.take_queue(0).unwrap(), peer.take_queue(0).unwrap());
    let (side, mut intake) = TxSide::new(Kind::PfifoFast, 1500, NO_NAPI, ours.tx_irq);
    side.put_ring(Ring { tx: ours.tx, unsent: false });
    let (line, raised) = (RingRoom::new(&side), Arc::new(Raised::default()));
    line.connect(raised.clone());
    let times = || raised.0.load(Ordering::SeqCst);
    let mut arrived = || theirs.rx.poll(64, &mut FramePool::new(0), &mut |_, _| ());
    for _ in 0..2 {
        intake.transmit(Frame::copy_from(&[0; 64])).unwrap();
        side.kick(&host);
    }
    assert_eq!((arrived(), times()), (1, 1), "the second frame waits for the room of the first");

    // A sender begins a run and loses its core. The NAPI's poll, which finds it running, completes and unmasks.
    let Enqueued::Run(run) = side.word.begin() else { panic!("nobody runs") };
    line.unmask();
    assert_eq!(times(), 1, "it would be raised for as long as that sender has no core");
    assert_eq!(side.run(&host, run, None), (1, false));
    assert_eq!(arrived(), 1);
}
