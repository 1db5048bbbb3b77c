//! The cost of a worker's sleep on lull's own host, where CPU time is that of threads.

use lull_core::Mode;
use lull_sim::{Sim, Traffic, WorldFile};

const WORLD: &str = r#"[machine]
cores = 1
plane = "user"
[nic]
speed = "1000Gbit/s"
rx_usecs = "0us"
[network]
latency = "1us"
[service]
kind = "epoll"
connections = 64
request_cost_own = "500ns"
[costs]
profile = "lull-user"
irq = "2us"
switch = "0ns"
epoll_sleep = "SLEEP"
idle_shallow_exit = "EXIT"
timer_late = "LATE"
[run]
warmup = "5ms"
"#;

/// Returns the worker's CPU in percent.
fn percent(mode: &str, per_s: f64, (sleep, exit, late): (&str, &str, &str)) -> f64 {
    let text = WORLD.replace("SLEEP", sleep).replace("EXIT", exit).replace("LATE", late);
    let file = WorldFile::parse("w", &text).expect("a world");
    let mode: Mode = mode.parse().expect("a mode");
    let world = file.seeded_world(&mode, Traffic::Open { per_s }, 100_000_000, 1);
    Sim::new(&world, 1).run().expect("a run").cpu.percent()
}

#[test]
fn the_way_out_of_idle_is_latency_and_no_cpu_time() {
    let percent = |exit| percent("base", 15_000.0, ("4us", exit, "10us"));
    let (short, long) = (percent("2us"), percent("80us"));
    // If waking takes longer, more requests are answered per wake-up.
    assert!(long < short, "{short} {long}");
}

#[test]
fn both_halves_of_a_sleep_are_cpu_time() {
    let percent = |sleep| percent("base", 10_000.0, (sleep, "20us", "10us"));
    let points = percent("10us") - percent("2us");
    // These are eight microseconds ten thousand times a second.
    assert!((6.5..9.5).contains(&points), "{points}");
}

/// A thread's own timer takes CPU time: it is armed, and fires, at the thread's expense.
#[test]
fn a_sleep_until_a_deadline_takes_cpu_time_for_as_long_as_it_is_late() {
    let percent = |late| percent("defer50", 200_000.0, ("4us", "20us", late));
    let points = percent("25us") - percent("5us");
    // These are twenty microseconds in each cycle of about seventy.
    assert!((20.0..36.0).contains(&points), "{points}");
}
