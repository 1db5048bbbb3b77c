//! The devices here keep the contract; devices that break a rule each are caught at it.
#![cfg(not(loom))]

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use lull_nic::conformance::{self, Broken, Ports, Rule, Wire, check, check_within};
use lull_nic::fault::{Fault, FaultConfig};
use lull_nic::mem::{self, MemConfig, MemPort};
use lull_nic::pcap::Pcap;
use lull_nic::trace::Trace;
use lull_nic::{
    Device, DeviceError, DeviceInfo, Doorbell, Frame, FramePool, IrqLine, IrqSink, Link, Offloads, Queue, RxQueue,
    TxQueue,
};

fn ports(ring_slots: usize) -> (Arc<MemPort>, MemPort) {
    let (port, peer) = mem::pair(MemConfig { ring_slots, ..MemConfig::default() });
    (Arc::new(port), peer)
}

fn passes(device: &dyn Device, peer: &MemPort) {
    check(device, &mut Ports(peer.take_queue(0).unwrap())).unwrap();
}

#[test]
fn the_in_memory_device_keeps_the_contract() {
    for ring_slots in [conformance::SLOTS_MIN, 1024] {
        let (port, peer) = ports(ring_slots);
        passes(&*port, &peer);
    }
    let (port, peer) = mem::pair(MemConfig { ring_slots: 8, drop_when_full: true, ..MemConfig::default() });
    passes(&port, &peer);
}

#[test]
fn decorated_devices_keep_the_contract() {
    let (port, peer) = ports(8);
    passes(&Pcap::new(port, std::io::sink()), &peer);
    let (port, peer) = ports(8);
    passes(&Trace::new(port, |_| ()), &peer);
    let (port, peer) = ports(8);
    passes(&Fault::new(port, FaultConfig::default()).unwrap(), &peer);
}

/// Rules that a [`Loop`] can break.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Bug {
    None,
    StartsUnmasked,
    UnmaskDoesNotLook,
    RaiseDoesNotMask,
    MaskDoesNothing,
    ArrivalIsSilent,
    PollsShort,
    IgnoresTheBudget,
    CountsMoreThanTheBudget,
    NeverFindsTheRingEmpty,
    SendsBeforeTheDoorbell,
    DoorbellForgetsOne,
    SplitsChains,
    KeepsFrames,
    RoomIsSilent,
    RoomUnmaskDoesNotLook,
    RoomIsRaisedWhenFull,
    RefusesWithRoom,
    RefusesLongFrames,
    LinkDownLeavesThemWaiting,
    LinkDownGivesBack,
}

const SLOTS: usize = 8;

#[derive(Default)]
struct Line {
    armed: bool,
    sink: Option<Arc<dyn IrqSink>>,
}

struct State {
    bug: Bug,
    ring: VecDeque<Frame>,
    work: Line,
    room: Line,
    down: bool,
    hoard: Vec<Frame>,
}

impl State {
    /// Raises a line of the state; with the lock held, which the check's sinks bear.
    fn raise(&mut self, room: bool) {
        let (bug, line) = (self.bug, if room { &mut self.room } else { &mut self.work });
        if line.armed {
            line.armed = bug == Bug::RaiseDoesNotMask;
            line.sink.as_ref().unwrap().raise();
        }
    }

    fn has_room(&self) -> bool {
        self.ring.len() < SLOTS || self.down
    }
}

/// A loopback device with a bug.
#[derive(Clone)]
struct Loop(Arc<Mutex<State>>);

impl Loop {
    fn new(bug: Bug) -> Loop {
        let armed = bug == Bug::StartsUnmasked;
        Loop(Arc::new(Mutex::new(State {
            bug,
            ring: VecDeque::new(),
            work: Line { armed, sink: None },
            room: Line::default(),
            down: false,
            hoard: Vec::new(),
        })))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }
}

impl RxQueue for Loop {
    fn poll(&mut self, budget: usize, pool: &mut FramePool, deliver: &mut dyn FnMut(Frame, &mut FramePool)) -> usize {
        let bug = self.state().bug;
        let most = match bug {
            Bug::PollsShort => budget.min(2),
            Bug::IgnoresTheBudget => SLOTS,
            _ => budget,
        };
        let mut taken = 0;
        while taken < most {
            let Some(frame) = self.state().ring.pop_front() else { break };
            taken += 1;
            if bug != Bug::RoomIsSilent {
                self.state().raise(true);
            }
            deliver(frame, pool);
        }
        match bug {
            Bug::CountsMoreThanTheBudget if taken < budget => budget.saturating_add(1),
            Bug::NeverFindsTheRingEmpty => taken.max(budget.min(1)),
            _ => taken,
        }
    }
}

struct Tx {
    device: Loop,
    staged: Vec<Frame>,
}

impl TxQueue for Tx {
    fn transmit(&mut self, mut frame: Frame) -> Result<(), Frame> {
        let bug = self.device.state().bug;
        if self.device.state().down && bug != Bug::LinkDownGivesBack {
            return Ok(());
        }
        let refused = match bug {
            Bug::RefusesWithRoom => self.free_slots() <= 1,
            Bug::RefusesLongFrames => frame.len() > 1518,
            _ => false,
        };
        if refused || self.free_slots() == 0 {
            return Err(frame);
        }
        if bug == Bug::SplitsChains {
            frame.set_next(None);
        }
        self.staged.push(frame);
        if bug == Bug::SendsBeforeTheDoorbell {
            self.doorbell();
        }
        Ok(())
    }

    fn doorbell(&mut self) -> Doorbell {
        let mut state = self.device.state();
        if state.bug == Bug::DoorbellForgetsOne && self.staged.len() > 1 {
            self.staged.pop();
        }
        for frame in self.staged.drain(..) {
            if state.bug == Bug::KeepsFrames {
                state.ring.push_back(frame.clone());
                state.hoard.push(frame);
            } else {
                state.ring.push_back(frame);
            }
        }
        if !state.ring.is_empty() && state.bug != Bug::ArrivalIsSilent {
            state.raise(false);
        }
        if state.bug == Bug::RoomIsRaisedWhenFull {
            state.raise(true);
        }
        Doorbell::Done
    }

    fn free_slots(&self) -> usize {
        SLOTS - self.staged.len() - self.device.state().ring.len().min(SLOTS)
    }
}

struct Irq {
    device: Loop,
    room: bool,
}

impl IrqLine for Irq {
    fn connect(&self, sink: Arc<dyn IrqSink>) {
        let mut state = self.device.state();
        let line = if self.room { &mut state.room } else { &mut state.work };
        line.sink = Some(sink);
    }

    fn mask(&self) {
        let mut state = self.device.state();
        if state.bug != Bug::MaskDoesNothing {
            let line = if self.room { &mut state.room } else { &mut state.work };
            line.armed = false;
        }
    }

    fn unmask(&self) {
        let mut state = self.device.state();
        let (bug, room, work) = (state.bug, state.has_room(), !state.ring.is_empty());
        let line = if self.room { &mut state.room } else { &mut state.work };
        line.armed = true;
        let reason = match self.room {
            true => room && bug != Bug::RoomUnmaskDoesNotLook || bug == Bug::RoomIsRaisedWhenFull,
            false => work && bug != Bug::UnmaskDoesNotLook,
        };
        if reason {
            state.raise(self.room);
        }
    }
}

impl Device for Loop {
    fn info(&self) -> DeviceInfo {
        DeviceInfo {
            name: "loop0".to_owned(),
            mac: [2, 0, 0, 0, 0, 9],
            mtu_bytes: 1500,
            queues: 1,
            rx_ring: SLOTS,
            tx_ring: SLOTS,
            dear_doorbell: false,
            offloads: Offloads::default(),
        }
    }

    fn take_queue(&self, index: usize) -> Result<Queue, DeviceError> {
        Ok(Queue {
            index,
            rx: Box::new(self.clone()),
            tx: Box::new(Tx { device: self.clone(), staged: Vec::new() }),
            irq: Arc::new(Irq { device: self.clone(), room: false }),
            tx_irq: Arc::new(Irq { device: self.clone(), room: true }),
        })
    }

    fn set_link(&self, link: Link) -> Result<(), DeviceError> {
        let mut state = self.state();
        state.down = link == Link::Down;
        if state.down && state.bug != Bug::LinkDownLeavesThemWaiting {
            state.raise(true);
        }
        Ok(())
    }
}

/// Both ends are the device's own. What it receives is what it sent.
struct OwnEnds;

impl Wire for OwnEnds {
    fn send(&mut self, queue: &mut Queue, frame: &[u8]) {
        queue.tx.transmit(Frame::copy_from(frame)).expect("room");
        queue.tx.doorbell();
    }

    fn receive(&mut self, queue: &mut Queue) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        queue.rx.poll(usize::MAX, &mut FramePool::new(0), &mut |frame, _| {
            frames.push(frame.segments().flat_map(Frame::data).copied().collect());
        });
        frames
    }
}

fn outcome(bug: Bug) -> Result<(), Broken> {
    // Interrupts of this device come at once or never.
    check_within(&Loop::new(bug), &mut OwnEnds, Duration::ZERO)
}

#[test]
fn a_sound_loopback_passes() {
    outcome(Bug::None).unwrap();
}

#[test]
fn each_bug_breaks_its_rule() {
    for (rule, bugs) in [
        (
            Rule::NoLostEdge,
            &[
                Bug::StartsUnmasked,
                Bug::UnmaskDoesNotLook,
                Bug::RaiseDoesNotMask,
                Bug::MaskDoesNothing,
                Bug::ArrivalIsSilent,
            ][..],
        ),
        (
            Rule::ShortPolls,
            &[Bug::PollsShort, Bug::IgnoresTheBudget, Bug::CountsMoreThanTheBudget, Bug::NeverFindsTheRingEmpty],
        ),
        (Rule::Doorbell, &[Bug::SendsBeforeTheDoorbell, Bug::DoorbellForgetsOne]),
        (Rule::Home, &[Bug::SplitsChains, Bug::KeepsFrames]),
        (Rule::Room, &[Bug::RoomIsSilent, Bug::RoomUnmaskDoesNotLook, Bug::RoomIsRaisedWhenFull, Bug::RefusesWithRoom]),
        (Rule::NoLink, &[Bug::RefusesLongFrames, Bug::LinkDownLeavesThemWaiting, Bug::LinkDownGivesBack]),
    ] {
        for &bug in bugs {
            let broken = outcome(bug).expect_err(&format!("{bug:?} was not caught"));
            assert_eq!(broken.rule, rule, "{bug:?}: {broken}");
            assert!(broken.to_string().starts_with("loop0: breaks rule "), "{broken}");
        }
    }
}
