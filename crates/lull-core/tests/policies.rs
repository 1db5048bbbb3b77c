//! The loops and policies of the core against naive code written straight from `napi_semantics` §5 and §8, on random
//! inputs; and whole machines under random load, in which every packet has to reach the application.
#![cfg(not(loom))]

mod toy;

use std::collections::VecDeque;

use lull_core::{
    BusyDone, BusyEnd, BusyPlan, Completion, Cx, EpollBusy, EpollOptions, EpollParams, EpollWait, NAPI_ID_MIN, Napi,
    Route, RxStep, Schedule, Softnet, Sysctl, TimeoutZero, WaitStep,
};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use toy::{MS, Toy, US, Waited, settings};

/// The same inputs in every run; more of them with PROPTEST_CASES.
fn runner(per_case: u32) -> TestRunner {
    let config = Config { failure_persistence: None, ..Config::default() };
    let config = Config { cases: config.cases * per_case, ..config };
    TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha))
}

// ---- §5 net_rx_action ----

/// One poll: packets, what it costs, and who is scheduled on this CPU meanwhile.
type Turn = (u32, u64, Option<usize>);

const INSTANCES: usize = 6;
const NOW: u64 = 7_000;

/// `net_rx_action` on plain lists: who was polled, what is left on the CPU list, whether it was squeezed.
fn plain_net_rx(poll_list: &mut VecDeque<usize>, turns: &[Turn], sysctl: &Sysctl) -> (Vec<usize>, bool) {
    let mut budget = i64::from(sysctl.netdev_budget);
    let deadline_ns = NOW + u64::from(sysctl.netdev_budget_usecs) * 1_000;
    let (mut now_ns, mut polled, mut squeezed) = (NOW, Vec::new(), false);
    let (mut list, mut repoll) = (std::mem::take(poll_list), VecDeque::new());
    loop {
        let Some(first) = list.pop_front() else {
            if repoll.is_empty() && !poll_list.is_empty() {
                list = std::mem::take(poll_list);
                continue;
            }
            break;
        };
        let (work, cost_ns, arrives) = turns[polled.len() % turns.len()];
        polled.push(first);
        now_ns += cost_ns;
        if let Some(other) = arrives
            && other != first
            && ![&list, &repoll, poll_list].iter().any(|list| list.contains(&other))
        {
            poll_list.push_back(other);
        }
        if work == 64 {
            repoll.push_back(first);
        }
        budget -= i64::from(work);
        if budget <= 0 || now_ns >= deadline_ns {
            squeezed = true;
            break;
        }
    }
    list.append(poll_list);
    list.append(&mut repoll);
    *poll_list = list;
    (polled, squeezed)
}

#[test]
fn net_rx_action_agrees_with_plain_lists() {
    let turn = (
        prop_oneof![3 => Just(64u32), 1 => 0..64u32],
        prop_oneof![4 => Just(0u64), 1 => 0..900 * US],
        prop::option::of(0..INSTANCES),
    );
    let inputs = (1..400u32, prop::collection::vec(turn, 1..20), 1..=INSTANCES);
    runner(4)
        .run(&inputs, |(netdev_budget, turns, begin)| {
            let sysctl = Sysctl { netdev_budget, ..Sysctl::default() };
            let napis: Vec<_> = (0..INSTANCES as u32).map(Napi::new).collect();
            let cx = Cx::new(0, NOW);
            let mut softnet = Softnet::new();
            let schedule = |softnet: &mut Softnet, index: usize| {
                if let Schedule::Owned(owner) = napis[index].schedule(&cx) {
                    let Route::Softirq(owner) = napis[index].route(owner, &cx) else { panic!("no thread") };
                    softnet.push(owner);
                }
            };
            napis.iter().for_each(|napi| napi.enable(NAPI_ID_MIN, None));
            (0..begin).for_each(|index| schedule(&mut softnet, index));
            let mut plain: VecDeque<_> = (0..begin).collect();

            for _ in 0..4 {
                let (expected, squeezed) = plain_net_rx(&mut plain, &turns, &sysctl);
                let (mut polled, mut now_ns) = (Vec::new(), NOW);
                let mut rx = softnet.begin(&sysctl, NOW);
                let end = loop {
                    let owner = match rx.next(&mut softnet) {
                        RxStep::End(end) => break end,
                        RxStep::Poll(owner) => owner,
                    };
                    let index = owner.napi() as usize;
                    let (work, cost_ns, arrives) = turns[polled.len() % turns.len()];
                    polled.push(index);
                    now_ns += cost_ns;
                    // An instance that is being polled would be missed; that is another test's.
                    if let Some(other) = arrives.filter(|&other| other != index)
                        && !napis[other].snapshot().has(lull_core::state::SCHED)
                    {
                        schedule(&mut softnet, other);
                    }
                    let done = napis[index].softirq_polled(owner, work, false, &cx, |_| ());
                    match rx.polled(done, work, now_ns) {
                        Some(Completion::Released(release)) => {
                            let _ = release.settle(&napis[index], &cx);
                        }
                        Some(owed) => panic!("{owed:?}"),
                        None => {}
                    }
                };
                prop_assert_eq!(polled, expected);
                prop_assert_eq!((end.squeezed, end.raised), (squeezed, !plain.is_empty()));
                prop_assert_eq!(softnet.is_raised(), end.raised);
            }
            Ok(())
        })
        .unwrap_or_else(|failure| panic!("{failure}"));
}

// ---- §8 ep_poll ----

/// What the world answers, in the order of the questions: events copied, or available, and whether the time is up.
#[derive(Clone, Copy, Debug)]
struct Answer {
    events: usize,
    available: bool,
    timed_out: bool,
    /// A wakeup by a socket of this instance comes just before the answer.
    wakeup: Option<u32>,
}

#[derive(Clone, Debug)]
enum Call {
    Params(EpollParams),
    Note(u32),
    Wait { timeout_ns: Option<u64>, available: bool, answers: Vec<Answer> },
    Free,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Did {
    Copy,
    Busy(BusyPlan),
    Sleep(Option<u64>),
    Suspend(u32),
    Resume(u32),
    Done(usize),
    /// The answers ran out.
    Stuck,
}

/// An epoll context as plain fields.
#[derive(Clone, Debug)]
struct Plain {
    id: u32,
    params: EpollParams,
    sysctl_usecs: u32,
    options: EpollOptions,
    suspended: u32,
    idle_returns: u32,
}

impl Plain {
    fn on(&self) -> bool {
        self.params.busy_poll_usecs != 0 || self.params.prefer_busy_poll || self.sysctl_usecs != 0
    }

    fn note(&mut self, id: u32) -> Option<u32> {
        if id < NAPI_ID_MIN || !self.on() {
            return None;
        }
        self.id = id;
        if self.options.resume_on_id_change && self.suspended != 0 && self.suspended != id {
            return Some(std::mem::take(&mut self.suspended));
        }
        None
    }

    fn free(&self) -> Option<u32> {
        (self.id >= NAPI_ID_MIN && self.params.prefer_busy_poll).then_some(self.id)
    }

    /// `ep_busy_loop`; `None` if the answers ran out.
    fn busy(
        &mut self,
        one_round: bool,
        did: &mut Vec<Did>,
        polled: &mut bool,
        answer: &mut impl FnMut(&mut Plain, &mut Vec<Did>) -> Option<Answer>,
    ) -> Option<bool> {
        if self.id < NAPI_ID_MIN || !self.on() {
            return Some(false);
        }
        *polled = true;
        self.idle_returns = 0;
        let (id, params) = (self.id, self.params);
        let usecs = if params.busy_poll_usecs != 0 { params.busy_poll_usecs } else { self.sysctl_usecs };
        let budget = if params.busy_poll_budget == 0 { 8 } else { params.busy_poll_budget };
        let end = if usecs == 0 || one_round { BusyEnd::OneRound } else { BusyEnd::AfterUsecs(usecs) };
        did.push(Did::Busy(BusyPlan { napi_id: id, prefer: params.prefer_busy_poll, budget, end, catch_up: false }));
        let available = answer(self, did)?.available;
        if available {
            return Some(true);
        }
        if self.suspended == id {
            self.suspended = 0;
        }
        self.id = 0;
        if params.prefer_busy_poll {
            did.push(Did::Resume(id));
        }
        Some(false)
    }

    /// `ep_poll`, with the three options in it.
    fn wait(
        &mut self,
        timeout_ns: Option<u64>,
        mut available: bool,
        did: &mut Vec<Did>,
        mut answer: impl FnMut(&mut Plain, &mut Vec<Did>) -> Option<Answer>,
    ) -> Option<usize> {
        let mut timed_out = timeout_ns == Some(0);
        let mut poll_once = timed_out && self.options.timeout_zero == TimeoutZero::PollOnce;
        let cap = self.options.poll_after_returns;
        let mut poll_first = cap != 0 && self.idle_returns >= cap;
        let mut polled = false;
        loop {
            if available {
                if std::mem::take(&mut poll_first) && !polled {
                    available = self.busy(true, did, &mut polled, &mut answer)?;
                    if !available && polled {
                        // Somebody else took the events: as after any busy loop that found nothing.
                        if timed_out {
                            return Some(0);
                        }
                        did.push(Did::Sleep(timeout_ns.map(|ns| NOW + ns)));
                        let woke = answer(self, did)?;
                        (available, timed_out) = (woke.available, timed_out | woke.timed_out);
                        continue;
                    }
                }
                did.push(Did::Copy);
                let copied = answer(self, did)?.events;
                if copied > 0 {
                    if cap != 0 && !polled {
                        self.idle_returns += 1;
                    }
                    if self.id >= NAPI_ID_MIN && self.params.prefer_busy_poll {
                        self.suspended = self.id;
                        did.push(Did::Suspend(self.id));
                    }
                    return Some(copied);
                }
            }
            if timed_out && !std::mem::take(&mut poll_once) {
                return Some(0);
            }
            available = self.busy(timed_out, did, &mut polled, &mut answer)?;
            if available {
                continue;
            }
            if timed_out {
                return Some(0);
            }
            did.push(Did::Sleep(timeout_ns.map(|ns| NOW + ns)));
            let woke = answer(self, did)?;
            (available, timed_out) = (woke.available, timed_out | woke.timed_out);
        }
    }
}

/// The same call on the core's policy.
fn core_wait(ep: &EpollBusy, timeout_ns: Option<u64>, available: bool, answers: &[Answer]) -> Vec<Did> {
    let mut did = Vec::new();
    let mut answers = answers.iter().copied();
    let mut wait = EpollWait::begin(ep, timeout_ns, available, NOW);
    loop {
        let step = wait.next(ep);
        match step {
            WaitStep::Copy => did.push(Did::Copy),
            WaitStep::Busy(plan) => did.push(Did::Busy(plan)),
            WaitStep::Sleep(deadline_ns) => did.push(Did::Sleep(deadline_ns)),
            WaitStep::Done(events) => did.push(Did::Done(events)),
            WaitStep::Suspend(_) | WaitStep::Resume(_) => panic!("they follow an answer"),
        }
        if let WaitStep::Done(_) = step {
            return did;
        }
        let Some(answer) = answers.next() else {
            did.push(Did::Stuck);
            return did;
        };
        if let Some(id) = answer.wakeup.and_then(|id| ep.note_napi(id)) {
            did.push(Did::Resume(id));
        }
        let owed = match step {
            WaitStep::Copy => wait.copied(ep, answer.events),
            WaitStep::Busy(_) => {
                let done = BusyDone { available: answer.available, gone: false, most: 0, now_ns: NOW };
                wait.busy_done(ep, done)
            }
            _ => {
                wait.woke(answer.available, answer.timed_out);
                None
            }
        };
        match owed {
            Some(WaitStep::Suspend(id)) => did.push(Did::Suspend(id)),
            Some(WaitStep::Resume(id)) => did.push(Did::Resume(id)),
            Some(other) => panic!("{other:?} is never owed at once"),
            None => {}
        }
    }
}

fn call() -> impl Strategy<Value = Call> {
    let id = || prop_oneof![1 => Just(3u32), 6 => NAPI_ID_MIN..NAPI_ID_MIN + 3];
    let params = (prop_oneof![Just(0u32), Just(50)], prop_oneof![Just(0u32), Just(64)], prop::bool::weighted(0.8));
    let params = params.prop_map(|(busy_poll_usecs, busy_poll_budget, prefer_busy_poll)| EpollParams {
        busy_poll_usecs,
        busy_poll_budget,
        prefer_busy_poll,
    });
    let answer =
        (prop_oneof![Just(0usize), Just(1), Just(3)], any::<bool>(), any::<bool>(), prop::option::weighted(0.3, id()));
    let answer =
        answer.prop_map(|(events, available, timed_out, wakeup)| Answer { events, available, timed_out, wakeup });
    let timeout = prop_oneof![Just(None), Just(Some(0)), Just(Some(MS))];
    let wait = (timeout, any::<bool>(), prop::collection::vec(answer, 0..8))
        .prop_map(|(timeout_ns, available, answers)| Call::Wait { timeout_ns, available, answers });
    prop_oneof![1 => params.prop_map(Call::Params), 3 => id().prop_map(Call::Note), 8 => wait, 1 => Just(Call::Free)]
}

#[test]
fn epoll_wait_agrees_with_plain_ep_poll() {
    let options =
        (any::<bool>(), 0..4u32, any::<bool>()).prop_map(|(resume_on_id_change, poll_after_returns, once)| {
            let timeout_zero = if once { TimeoutZero::PollOnce } else { TimeoutZero::Return };
            EpollOptions { resume_on_id_change, poll_after_returns, timeout_zero, ..EpollOptions::strict_linux() }
        });
    let inputs = (options, prop_oneof![Just(0u32), Just(20)], prop::collection::vec(call(), 1..40));
    runner(4)
        .run(&inputs, |(options, busy_poll_usecs, calls)| {
            let ep = EpollBusy::new(&Sysctl { busy_poll_usecs, ..Sysctl::default() }, options);
            let params = EpollParams { prefer_busy_poll: true, ..EpollParams::default() };
            let mut plain =
                Plain { id: 0, params, sysctl_usecs: busy_poll_usecs, options, suspended: 0, idle_returns: 0 };
            prop_assert!(ep.set_params(&params, false).is_ok());
            for call in calls {
                match call {
                    Call::Params(params) => {
                        prop_assert!(ep.set_params(&params, false).is_ok());
                        plain.params = params;
                    }
                    Call::Note(id) => prop_assert_eq!(ep.note_napi(id), plain.note(id)),
                    Call::Free => prop_assert_eq!(ep.free().next(), plain.free()),
                    Call::Wait { timeout_ns, available, answers } => {
                        let mut expected = Vec::new();
                        let mut left = answers.iter().copied();
                        let done = plain.wait(timeout_ns, available, &mut expected, |plain, did| {
                            let answer = left.next()?;
                            if let Some(id) = answer.wakeup.and_then(|id| plain.note(id)) {
                                did.push(Did::Resume(id));
                            }
                            Some(answer)
                        });
                        expected.push(done.map_or(Did::Stuck, Did::Done));
                        prop_assert_eq!(core_wait(&ep, timeout_ns, available, &answers), expected);
                    }
                }
                prop_assert_eq!(ep.napi_id(), plain.id);
            }
            Ok(())
        })
        .unwrap_or_else(|failure| panic!("{failure}"));
}

// ---- whole machines ----

#[test]
fn under_random_load_every_packet_reaches_the_application() {
    let timeout = || prop_oneof![Just(0), Just(20 * US), Just(5 * MS)];
    let napi = (0..4u32, timeout(), prop_oneof![Just(0), Just(20 * MS)]);
    let epoll = (prop_oneof![Just(0u32), Just(30)], any::<bool>());
    let kind = prop_oneof![3 => Just(None), 1 => any::<bool>().prop_map(Some)];
    // Arrivals as (time since the last one, queue, packets); the application's turns as (computing, timeout).
    let arrivals = prop::collection::vec((0..3 * MS, 0..2usize, prop_oneof![9 => 1..10u32, 1 => Just(700)]), 1..40);
    let turns = prop::collection::vec((0..2 * MS, prop_oneof![Just(None), Just(Some(0)), Just(Some(MS))]), 1..10);
    let inputs = (napi, epoll, kind, any::<bool>(), any::<bool>(), arrivals, turns);
    runner(1)
        .run(&inputs, |((defer, gro_flush, suspend), (usecs, prefer), kind, mended, edge, arrivals, turns)| {
            let mut toy = Toy::new(2, settings(defer, gro_flush, suspend));
            (toy.poll_ns, toy.packet_ns) = (500, 100);
            toy.queues.iter_mut().for_each(|queue| queue.edge = edge);
            if let Some(busy) = kind {
                toy.threaded(1, busy);
            }
            let params = EpollParams { busy_poll_usecs: usecs, busy_poll_budget: 16, prefer_busy_poll: prefer };
            let options = if mended { EpollOptions::mended() } else { EpollOptions::strict_linux() };
            let context = toy.context(&[0, 1], params, options);
            let (mut at_ns, mut sent) = (toy.now_ns, 0);
            for (later_ns, queue, packets) in arrivals {
                at_ns += later_ns;
                sent += packets as usize;
                toy.packets_at(at_ns, queue, packets);
            }
            let mut got = 0;
            for (computes_ns, timeout_ns) in turns.iter().cycle().take(200) {
                match toy.epoll_wait(context, 1, *timeout_ns) {
                    Waited::Events(events) => got += events,
                    Waited::Timeout => {}
                    Waited::Asleep => break,
                }
                prop_assert_eq!(toy.check(), Ok(()));
                toy.run_for(*computes_ns);
                prop_assert_eq!(toy.check(), Ok(()));
            }
            // The application's turns are over, not the delivery.
            toy.run_until(at_ns + 100 * MS);
            got += toy.contexts[context].ready;
            prop_assert_eq!(got, sent);
            prop_assert_eq!(toy.check(), Ok(()));
            Ok(())
        })
        .unwrap_or_else(|failure| panic!("{failure}"));
}
