//! A transmit queue of a group (§16), step by step: who visits it against who comes to ring. Two pollers are awake at any load here, and
//! a device may say nothing of what there is to send. Transmit queues as the host runs them are explored in `lull-net`.
//!
//! What a sender pushed is a relaxed count of its own, and what was sent is one of whoever runs, changed by a load and a store:
//! so only the queue's word orders them, and a frame that is not seen, or two who run at once, leave a difference at the end.

use super::*;
use crate::group::{GroupConfig, GroupWake, Transmitted};
use crate::tx::{Enqueued, TxLeft, TxWord};
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
            Enqueued::Run(_) => panic!("the group runs"),
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

    fn enter(&self) {
        self.word.group_enter().expect("nobody runs");
        let entered = self.group.enter_transmit(&self.napi, 64, &Cx::new(0, NOW)).expect("nobody has it");
        // What a frame takes is known, so that a visit takes all there are.
        self.group.members[0].visits.sent(1, 1);
        if let Some(wake) = entered.wake {
            self.wake(wake);
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
        assert!(stop.is_none(), "nobody takes it out");
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
