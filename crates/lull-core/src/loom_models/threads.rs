//! The NAPI thread against the others (§10).

use super::*;

/// At most two preemptions.
#[test]
fn threading_off_against_interrupt_and_thread() {
    for kind in [Threaded::On, Threaded::BusyPoll] {
        let with = NapiSettings { threaded: kind, ..settings(0, 0) };
        explore(
            Some(2),
            with,
            |_| None,
            [|world, _| world.thread(), |world, _| world.arrive(NOW), |world, _| world.thread_off()],
        );
    }
}

/// At most three preemptions. The thread is woken by what the other context does, or finds its round by itself.
#[test]
fn napi_thread_against_all() {
    let against: [fn(&World, Option<Owner>); 6] = [
        |world, _| world.timer(LATER),
        |world, _| world.busy(1, true),
        |world, _| {
            world.napi.suspend(&Cx::new(0, NOW));
            world.resume();
        },
        |world, _| world.arrive_unmasked(NOW),
        |world, _| {
            world.arrive_unmasked(NOW);
            world.timer(LATER);
        },
        |world, _| {
            world.arrive_unmasked(NOW);
            world.disable();
            world.enable();
        },
    ];
    for kind in [Threaded::On, Threaded::BusyPoll] {
        for context in against {
            let begin = move |world: &World| {
                world.deferred_threaded(1, kind);
                None
            };
            explore_with_thread(Some(3), settings(2, GRO_FLUSH), begin, context);
        }
    }
}

/// As [`explore`] with the NAPI thread, whom `context` races with; the thread is stopped after it.
fn explore_with_thread(
    preemptions: Option<usize>,
    with: NapiSettings,
    begin: impl Fn(&World) -> Option<Owner> + Sync + Send + 'static,
    context: fn(&World, Option<Owner>),
) {
    explorer(preemptions).check(move || {
        let world = World::new(with);
        let owner = begin(&world);
        let napi_thread = {
            let world = world.clone();
            thread::spawn(move || world.thread())
        };
        context(&world, owner);
        world.thread_off();
        napi_thread.join().expect("its panic ends the model");
        world.assert_live();
    });
}

/// Who finds that the instance is threaded finds a thread that was started before.
#[test]
fn threading_on_against_schedule() {
    for kind in [Threaded::On, Threaded::BusyPoll] {
        explorer(Some(3)).check(move || {
            let world = World::new(settings(0, 0));
            let others = [
                thread::spawn({
                    let world = world.clone();
                    move || world.thread()
                }),
                thread::spawn({
                    let world = world.clone();
                    move || world.arrive_unmasked(NOW)
                }),
            ];
            world.threaded(kind);
            let [napi_thread, device] = others;
            device.join().expect("its panic ends the model");
            world.thread_off();
            napi_thread.join().expect("its panic ends the model");
            world.assert_live();
        });
    }
}
