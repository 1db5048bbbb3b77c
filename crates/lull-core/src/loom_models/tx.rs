//! Transmit queues (§16): senders against whoever drains, rests, parks or leaves.
//!
//! What a sender pushed is a relaxed count of its own, and what was sent is one of whoever runs, changed by a load and a store:
//! so only the queue's word orders them, and a frame that is not seen, or two who run at once, leave a difference at the end.

use super::*;
use crate::group::{GroupConfig, GroupWake, Removal, Transmitted};
use crate::tx::{Enqueued, TxDrain, TxEnd, TxLeft, TxRun, TxSent, TxWord};
use crate::{GroupPoller, GroupStep};

const SENDERS: usize = 2;

struct Tx {
    word: TxWord,
    pushed: [AtomicU32; SENDERS],
    sent: AtomicU32,
    rung: AtomicU32,
    group: Group,
    napi: Napi,
    /// Whether the device says that there is something to send; without that only senders do.
    hints: bool,
    /// By slot: asleep, and a wake-up that came before the sleep.
    sleeps: Mutex<[(bool, bool); 2]>,
}

impl Tx {
    fn new() -> Tx {
        Tx::with_hints(true)
    }

    fn with_hints(hints: bool) -> Tx {
        let config = GroupConfig { rest_ns: Some(0), ..GroupConfig::default() };
        let napi = Napi::new(0);
        napi.enable(500, None);
        Tx {
            word: TxWord::new(),
            pushed: [AtomicU32::new(0), AtomicU32::new(0)],
            sent: AtomicU32::new(0),
            rung: AtomicU32::new(0),
            group: Group::with_members_max(0, config, 1).expect("within the limits"),
            napi,
            hints,
            sleeps: Mutex::new([(false, false); 2]),
        }
    }

    /// A sender pushes a frame.
    fn push(&self, sender: usize) {
        let before = self.pushed[sender].load(Loom::Relaxed);
        self.pushed[sender].store(before + 1, Loom::Relaxed);
        match self.word.enqueued() {
            Enqueued::Run(run) => self.run(run),
            Enqueued::Noted => {}
            Enqueued::Group => {
                if let Some(wake) = self.group.enqueued(0, &Cx::new(0, NOW)) {
                    self.wake(wake);
                }
            }
        }
    }

    /// Sends what it sees.
    fn drain(&self) -> u32 {
        let pushed: u32 = self.pushed.iter().map(|pushed| pushed.load(Loom::Relaxed)).sum();
        let sent = self.sent.load(Loom::Relaxed);
        assert!(sent <= pushed, "I15: two who ran in a row are not ordered");
        self.sent.store(pushed, Loom::Relaxed);
        pushed - sent
    }

    fn ring(&self) {
        self.rung.store(self.sent.load(Loom::Relaxed), Loom::Relaxed);
    }

    fn run(&self, run: TxRun) {
        let mut drain = TxDrain::new(run);
        loop {
            let _ = drain.look(&self.word);
            let frames = self.drain();
            self.ring();
            match drain.sent(&self.word, frames, TxLeft::Nothing) {
                TxSent::Again(again) => drain = again,
                TxSent::Ended(end) => {
                    assert_eq!(end, TxEnd::Idle);
                    return;
                }
            }
        }
    }

    fn enter(&self) {
        self.word.group_enter().expect("nobody runs");
        let entered = self.group.enter_transmit(&self.napi, 64, &Cx::new(0, NOW)).expect("nobody has it");
        // What a frame takes is known, so that a visit takes all there are.
        self.group.members[0].visits.sent(1, 1);
        if let Some(wake) = entered.wake {
            self.wake(wake);
        }
    }

    fn leave(&self, stop: BusyStop) {
        self.run(self.word.group_leave());
        match stop.polled(&self.napi, 0, false, &Cx::new(0, NOW), |_| ()) {
            BusyStopped::Completed(Completion::Released(release)) => {
                let _ = release.settle(&self.napi, &Cx::new(0, NOW));
            }
            _ => panic!("nobody schedules it"),
        }
    }

    fn wake(&self, wake: GroupWake) {
        let mut sleeps = self.sleeps.lock().expect("no context panics with the sleeps in hand");
        let (asleep, kept) = &mut sleeps[usize::from(wake.slot)];
        if !std::mem::take(asleep) {
            *kept = true;
        }
    }

    /// One step of a poller. False if it sleeps.
    fn step(&self, poller: &mut GroupPoller, now_ns: u64) -> bool {
        let slot = usize::from(poller.slot());
        let cx = Cx::new(slot as u16, now_ns);
        if self.sleeps.lock().expect("no context panics with the sleeps in hand")[slot].0 {
            return false;
        }
        let hint = |_, _| self.hints.then(|| self.word.is_missed());
        let stop = match poller.next(&self.group, hint, false, false, &cx) {
            GroupStep::Transmit(_) => {
                self.word.look();
                let frames = self.drain();
                let sent = Transmitted { frames, bytes: frames, left: TxLeft::Nothing };
                poller.transmitted(&self.group, &self.napi, &sent, &cx)
            }
            GroupStep::Doorbell(_) => {
                self.ring();
                poller.rung(&self.group, &self.napi, &cx)
            }
            GroupStep::Wake(wake) => {
                self.wake(wake);
                None
            }
            GroupStep::Park | GroupStep::Rest { .. } => {
                let mut sleeps = self.sleeps.lock().expect("no context panics with the sleeps in hand");
                let (asleep, kept) = &mut sleeps[slot];
                *asleep = !std::mem::take(kept);
                None
            }
            GroupStep::Spin | GroupStep::Yield => None,
            other => panic!("nothing asks for {other:?}"),
        };
        if let Some(stop) = stop {
            self.leave(stop);
        }
        true
    }

    /// All contexts have ended: the pollers run on for as long as they do not sleep; then nothing is left.
    fn assert_sent(&self, pollers: &mut [GroupPoller]) {
        let mut now_ns = NOW;
        for _ in 0..24 {
            now_ns += 1_000;
            pollers.iter_mut().for_each(|poller| {
                self.step(poller, now_ns);
            });
        }
        let pushed: u32 = self.pushed.iter().map(|pushed| pushed.load(Loom::Relaxed)).sum();
        assert_eq!(self.sent.load(Loom::Relaxed), pushed, "I15: a frame stays in the intake");
        assert_eq!(self.rung.load(Loom::Relaxed), pushed, "I15: a doorbell is never rung");
    }
}

/// A group of these CPUs; where CPU 0 is awake, the queue is at home with it.
fn group_of(cpus: &[u16]) -> (Arc<Tx>, Vec<GroupPoller>) {
    let tx = Arc::new(Tx::new());
    let pollers = cpus.iter().map(|cpu| tx.group.attach(*cpu, &Cx::new(*cpu, NOW)).expect("there is room")).collect();
    (tx, pollers)
}

fn model(preemptions: Option<usize>, body: impl Fn() + Sync + Send + 'static) {
    explorer(preemptions).check(body);
}

#[test]
fn loom_tx_two_senders_of_whom_one_runs() {
    model(None, || {
        let tx = Arc::new(Tx::new());
        let other = tx.clone();
        let second = thread::spawn(move || other.push(1));
        tx.push(0);
        second.join().unwrap();
        assert!(tx.word.is_idle());
        tx.assert_sent(&mut []);
    });
}

#[test]
fn loom_tx_a_sender_of_two_frames_against_another() {
    model(Some(3), || {
        let tx = Arc::new(Tx::new());
        let other = tx.clone();
        let second = thread::spawn(move || {
            other.push(1);
            other.push(1);
        });
        tx.push(0);
        second.join().unwrap();
        assert!(tx.word.is_idle());
        tx.assert_sent(&mut []);
    });
}

#[test]
fn loom_tx_enqueue_against_a_poller_that_drains_and_rests() {
    model(Some(3), || {
        let (tx, mut pollers) = group_of(&[0]);
        tx.enter();
        // The visit that follows entering.
        for _ in 0..2 {
            tx.step(&mut pollers[0], NOW);
        }
        let sender = tx.clone();
        let sends = thread::spawn(move || sender.push(0));
        for _ in 0..4 {
            tx.step(&mut pollers[0], NOW + 1_000);
        }
        sends.join().unwrap();
        tx.assert_sent(&mut pollers);
    });
}

#[test]
fn loom_tx_two_senders_against_a_poller_that_rests() {
    model(Some(2), || {
        let (tx, mut pollers) = group_of(&[0]);
        tx.enter();
        for _ in 0..2 {
            tx.step(&mut pollers[0], NOW);
        }
        let others: Vec<_> = (0..2)
            .map(|sender| {
                let other = tx.clone();
                thread::spawn(move || other.push(sender))
            })
            .collect();
        for _ in 0..3 {
            tx.step(&mut pollers[0], NOW + 1_000);
        }
        others.into_iter().for_each(|sender| sender.join().unwrap());
        tx.assert_sent(&mut pollers);
    });
}

#[test]
fn loom_tx_a_doorbell_held_back_against_park() {
    model(Some(2), || {
        let (tx, mut pollers) = group_of(&[0, 1]);
        tx.enter();
        assert!(tx.group.watch.wake(1));
        let mut second = pollers.pop().expect("there are two");
        tx.push(0);
        let other = tx.clone();
        let beside = thread::spawn(move || {
            for _ in 0..3 {
                other.step(&mut second, NOW);
            }
            second
        });
        // Whoever of them sends the frame answers for its doorbell; the first one is to go meanwhile.
        tx.step(&mut pollers[0], NOW);
        let wake = tx.group.detach(0).expect("there is another CPU");
        tx.wake(wake);
        loop {
            let cx = Cx::new(0, NOW);
            match pollers[0].next(&tx.group, |_, _| Some(tx.word.is_missed()), false, false, &cx) {
                GroupStep::Detached => break,
                GroupStep::Doorbell(_) => {
                    tx.ring();
                    assert!(pollers[0].rung(&tx.group, &tx.napi, &cx).is_none());
                }
                GroupStep::Wake(wake) => tx.wake(wake),
                other => panic!("a detached poller was told to {other:?}"),
            }
        }
        pollers[0] = beside.join().unwrap();
        tx.assert_sent(&mut pollers);
    });
}

/// A sender pokes the queue while the poller comes to ring for the frame before, and no device says that there is another.
#[test]
fn loom_tx_enqueue_without_hints_against_a_doorbell() {
    model(None, || {
        let tx = Arc::new(Tx::with_hints(false));
        let mut pollers = vec![tx.group.attach(0, &Cx::new(0, NOW)).expect("there is room")];
        tx.enter();
        tx.push(0);
        while tx.group.unrung(0) == 0 {
            tx.step(&mut pollers[0], NOW);
        }
        let sender = tx.clone();
        let sends = thread::spawn(move || sender.push(1));
        tx.step(&mut pollers[0], NOW + 6_000);
        sends.join().unwrap();
        tx.assert_sent(&mut pollers);
    });
}

/// The poller that sent a frame comes to ring for it while another, with which the queue is at home by now, is in the middle of a
/// visit that finds nothing to send.
#[test]
fn loom_tx_a_doorbell_that_is_due_against_a_visit_that_sends_nothing() {
    model(Some(3), || {
        let (tx, mut pollers) = group_of(&[1, 0]);
        tx.enter();
        tx.step(&mut pollers[0], NOW);
        tx.push(0);
        while tx.group.unrung(0) == 0 {
            tx.step(&mut pollers[0], NOW);
        }
        assert!(tx.group.watch.wake(1));
        // As by a sender whose frame the visit before had seen already.
        assert_eq!(tx.group.enqueued(0, &Cx::new(0, NOW)), None);
        let mut second = pollers.pop().expect("there are two");
        let other = tx.clone();
        let beside = thread::spawn(move || {
            for _ in 0..2 {
                other.step(&mut second, NOW);
            }
            second
        });
        tx.step(&mut pollers[0], NOW + 6_000);
        pollers.push(beside.join().unwrap());
        tx.assert_sent(&mut pollers);
    });
}

#[test]
fn loom_tx_enqueue_against_remove() {
    model(Some(3), || {
        let (tx, mut pollers) = group_of(&[0]);
        tx.enter();
        tx.step(&mut pollers[0], NOW);
        let sender = tx.clone();
        let sends = thread::spawn(move || sender.push(0));
        match tx.group.remove(0, &tx.napi, &Cx::new(0, NOW)) {
            Removal::Mine(stop) => tx.leave(stop),
            other => panic!("nobody visits it: {other:?}"),
        }
        sends.join().unwrap();
        assert!(tx.word.is_idle());
        tx.assert_sent(&mut pollers);
    });
}
