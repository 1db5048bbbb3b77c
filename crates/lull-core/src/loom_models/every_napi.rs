//! Two threads on one context that keeps all its instances: one suspends an instance in the moment in which the other
//! forgets it.

use super::*;

/// The instance of the world, which brought nothing for long.
const OLD: u32 = NAPI_ID_MIN;
/// Another one, which brings events. The world has no such instance: its polls and timers are of no interest.
const BUSY: u32 = NAPI_ID_MIN + 1;

/// Executes a call of `epoll_wait` in the world: `available` says whether events are ready before it, `brings` whether a poll of the
/// busy instance brings some. A call without events ends where it would sleep.
fn call(world: &World, ep: &EpollBusy, available: bool, brings: bool) {
    let mut wait = EpollWait::begin(ep, None, available, NOW);
    let (mut owed, mut found) = (None, available);
    loop {
        match owed.take().unwrap_or_else(|| wait.next(ep)) {
            WaitStep::Copy => owed = wait.copied(ep, 1),
            WaitStep::Busy(plan) => {
                let known = plan.napi_id == OLD;
                if known {
                    world.busy_until(plan.end, plan.budget, plan.prefer);
                } else if brings {
                    ep.note_napi(BUSY);
                    found = true;
                }
                owed = wait.busy_done(ep, BusyDone { available: found, gone: false, most: 0, now_ns: NOW });
            }
            WaitStep::Suspend(OLD) => {
                world.napi.suspend(&Cx::new(0, NOW));
            }
            WaitStep::Resume(OLD) => world.resume(),
            WaitStep::Suspend(_) | WaitStep::Resume(_) => {}
            WaitStep::Sleep(_) => {
                assert!(!found, "a call that found events sleeps");
                return;
            }
            WaitStep::Done(_) => return,
        }
    }
}

/// The instance is behind the busy one in the table, or before it: the tour that forgets it has polled it before.
fn context(noted: [u32; 2]) -> EpollBusy {
    let options = EpollOptions { every_napi: true, ..EpollOptions::strict_linux() };
    let ep = EpollBusy::new(&Sysctl::default(), options);
    let params = EpollParams { busy_poll_budget: 2, prefer_busy_poll: true, ..EpollParams::default() };
    ep.set_params(&params, false).expect("within the limits");
    for id in noted {
        ep.note_napi(id);
    }
    ep
}

/// At most three preemptions. Whatever the order, an instance that the context has forgotten is not left to the long timer
/// with its interrupt masked: none of the context's threads would poll it before.
#[test]
fn an_instance_that_one_thread_suspends_and_another_forgets() {
    for (noted, with) in [([OLD, BUSY], settings(1, GRO_FLUSH)), ([BUSY, OLD], settings(2, GRO_FLUSH))] {
        explorer(Some(3)).check(move || {
            let world = World::new(with);
            world.deferred(0);
            let ep = Arc::new(context(noted));
            for _ in 0..crate::epoll_napis::IDLE_CALLS_MAX {
                call(&world, &ep, false, true);
            }
            assert_eq!(ep.free().count(), 2, "both are known, and the one is old");
            let returning = {
                let (world, ep) = (world.clone(), ep.clone());
                thread::spawn(move || call(&world, &ep, true, true))
            };
            call(&world, &ep, false, true);
            returning.join().expect("its panic ends the model");
            assert!(ep.free().all(|id| id != OLD), "the one is forgotten");
            assert_not_left_suspended(&world);
            world.assert_live();
        });
    }
}

fn assert_not_left_suspended(world: &World) {
    let masked = world.line(|line| line.masked);
    let (deadline_ns, _) = world.napi.timer().pending().unwrap_or_default();
    assert!(!masked || deadline_ns < SUSPEND, "nobody polls it before {deadline_ns}");
}

/// At most three preemptions. One thread finds events, suspends, comes back, and finds nothing; the other finds nothing meanwhile.
/// It may lose the instance to the first, and asks it to yield only after that one has let go. When both sleep, the instance is not
/// left to the long timer: what the second asked for has not kept the first from polling it.
#[test]
fn an_instance_whose_loser_asks_late() {
    explorer(Some(3)).check(|| {
        let world = World::new(settings(1, GRO_FLUSH));
        world.deferred(0);
        let ep = Arc::new(context([OLD, BUSY]));
        let finds_nothing = {
            let (world, ep) = (world.clone(), ep.clone());
            thread::spawn(move || call(&world, &ep, false, false))
        };
        call(&world, &ep, false, true);
        call(&world, &ep, false, false);
        finds_nothing.join().expect("its panic ends the model");
        assert_not_left_suspended(&world);
        world.assert_live();
    });
}
