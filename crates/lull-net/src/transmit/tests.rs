use lull_host::{Host, HostConfig};
use lull_nic::mem::{self, MemConfig};
use lull_nic::{Device, Frame, FramePool};

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

    // What has been rung for is not rung for again.
    side.group_enter().unwrap();
    side.group_leave(&host);
    assert_eq!(side.stats().doorbells, 1);
}
