//! Rules 3 to 6.

use std::sync::{Arc, Mutex};

use super::{Bench, Kept, Rule};
use crate::device::{Doorbell, Link};
use crate::frame::{Chunk, Frame, FramePool, Origin};

/// A ring that takes more than this without the other end's reading is never full.
const RING_FRAMES_MAX: usize = 20_000;

pub(super) fn check(bench: &mut Bench<'_>) -> Kept {
    for step in [doorbell, home, room, masked_room, no_link] {
        step(bench)?;
        bench.clear()?;
    }
    Ok(())
}

/// Transmits, and rings until the device has nothing left to say about it.
fn send(bench: &mut Bench<'_>, frame: Frame) -> bool {
    let taken = bench.queue.tx.transmit(frame).is_ok();
    bench.queue.tx.doorbell();
    taken
}

fn doorbell(bench: &mut Bench<'_>) -> Kept {
    let broken = |what: &str| Err((Rule::Doorbell, what.to_owned()));
    let frames: Vec<_> = (0..3).map(|_| bench.next_frame()).collect();
    for frame in &frames {
        if bench.queue.tx.transmit(Frame::copy_from(frame)).is_err() {
            return broken("an empty ring gave a frame back");
        }
    }
    if bench.received().iter().any(|frame| frames.contains(frame)) {
        return broken("a frame left before the doorbell");
    }
    let rung = bench.queue.tx.doorbell();
    let mut got = bench.received();
    got.retain(|frame| frames.contains(frame));
    if got != frames && rung == Doorbell::Done {
        return Err((
            Rule::Doorbell,
            format!("{} of {} frames left with the doorbell, in order", got.len(), frames.len()),
        ));
    }
    Ok(())
}

fn home(bench: &mut Bench<'_>) -> Kept {
    let broken = |what: String| Err((Rule::Home, what));
    let home: Arc<Mutex<Vec<Chunk>>> = Arc::default();
    let kept = home.clone();
    let origin = Origin::new(move |chunk| kept.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).push(chunk));
    let chunk = |data: &[u8]| {
        let mut frame = Chunk::allocate(2048).into_frame(&origin);
        frame.set_len(data.len());
        frame.data_mut().copy_from_slice(data);
        frame
    };
    let data = bench.next_frame();
    let mut chain = chunk(&data[..20]);
    chain.set_next(Some(chunk(&data[20..])));
    if !send(bench, chain) {
        return broken("an empty ring gave a chain of two segments back".to_owned());
    }
    if !bench.received().contains(&data) {
        return broken("a chain of two segments did not arrive whole".to_owned());
    }
    bench.queue.tx.reap_sent(&mut FramePool::new(64));
    bench.clear()?;
    let back = home.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).len();
    if back != 2 {
        return broken(format!("of 2 segments whose memory has an origin {back} came back after they were sent"));
    }
    Ok(())
}

/// Fills the ring with nobody reading; whether it can be full.
fn fill(bench: &mut Bench<'_>) -> Result<bool, (Rule, String)> {
    for _ in 0..RING_FRAMES_MAX {
        let data = bench.next_frame();
        let room = bench.queue.tx.free_slots();
        let refused = bench.queue.tx.transmit(Frame::copy_from(&data)).err();
        bench.queue.tx.doorbell();
        match refused {
            None if room == 0 => return Err((Rule::Room, "it took a frame with no free slots".to_owned())),
            Some(_) if room > 0 => {
                return Err((Rule::Room, format!("it gave a frame back with {room} free slots")));
            }
            Some(frame) if frame.data() != data => {
                return Err((Rule::Room, "the frame that it gave back is not what was transmitted".to_owned()));
            }
            Some(_) => {
                bench.queue.tx.reap_sent(&mut FramePool::new(0));
                return Ok(bench.queue.tx.free_slots() == 0);
            }
            None => {
                bench.queue.tx.reap_sent(&mut FramePool::new(0));
            }
        }
    }
    Ok(false)
}

fn room(bench: &mut Bench<'_>) -> Kept {
    let broken = |what: &str| Err((Rule::Room, what.to_owned()));
    let full = fill(bench)?;
    if bench.room.raises() > 0 {
        return broken("the room interrupt was raised before it was unmasked for the first time");
    }
    if full {
        bench.room.line.unmask();
        if bench.room.raises() > 0 {
            return broken("unmasking with a full ring raised the room interrupt");
        }
        while !bench.received().is_empty() {}
        if !bench.room.is_raised() {
            return broken("the ring was emptied, and the room interrupt not raised");
        }
        let again = bench.queue.tx.doorbell();
        bench.queue.tx.reap_sent(&mut FramePool::new(0));
        if again == Doorbell::Done && bench.queue.tx.free_slots() == 0 {
            return broken("the room interrupt was raised, and there are no free slots");
        }
        bench.clear()?;
        if bench.room.raises() > 0 {
            return broken("a raise did not mask the room interrupt");
        }
    }
    bench.room.line.unmask();
    if bench.room.raises() != 1 {
        return broken("unmasking with room has to raise the room interrupt once, before it returns");
    }
    Ok(())
}

fn masked_room(bench: &mut Bench<'_>) -> Kept {
    if !fill(bench)? {
        return Ok(());
    }
    bench.room.line.unmask();
    bench.room.line.mask();
    bench.clear()?;
    if bench.room.raises() > 0 {
        return Err((Rule::Room, "room raised the room interrupt though it was masked".to_owned()));
    }
    Ok(())
}

fn no_link(bench: &mut Bench<'_>) -> Kept {
    let broken = |what: &str| Err((Rule::NoLink, what.to_owned()));
    let mut long = Frame::with_capacity(bench.device.info().mtu_bytes + 1000);
    long.set_len(long.capacity());
    if !send(bench, long) {
        return broken("a frame that is longer than it can send was given back instead of dropped");
    }
    bench.clear()?;
    let full = fill(bench)?;
    if full {
        bench.room.line.unmask();
    }
    if bench.device.set_link(Link::Down).is_err() {
        bench.room.line.mask();
        return Ok(());
    }
    let kept = without_link(bench, full);
    match bench.device.set_link(Link::Up) {
        Err(error) => broken(&format!("the link could be taken down, but not up again: {error}")),
        Ok(()) => kept,
    }
}

fn without_link(bench: &mut Bench<'_>, full: bool) -> Kept {
    let broken = |what: &str| Err((Rule::NoLink, what.to_owned()));
    if full && !bench.room.is_raised() {
        return broken("the link went down, and the room interrupt was not raised for those who wait");
    }
    let data = bench.next_frame();
    if !send(bench, Frame::copy_from(&data)) {
        return broken("a frame was given back though the link is down");
    }
    if bench.received().contains(&data) {
        return broken("a frame that was sent while the link was down arrived");
    }
    Ok(())
}
