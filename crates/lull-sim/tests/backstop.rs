//! The kernel timer behind the timers of NAPIs on lull's own host is never cancelled, so it may fire for nothing.

use lull_core::Mode;
use lull_sim::{Outcome, Sim, Traffic, WorldFile};

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
timer_irq = "TIMER_IRQ"
timer_start = "200ns"
[run]
warmup = "5ms"
"#;

fn run(mode: &str, traffic: Traffic, timer_irq: &str) -> Outcome {
    let file = WorldFile::parse("w", &WORLD.replace("TIMER_IRQ", timer_irq)).expect("a world");
    let mode: Mode = mode.parse().expect("a mode");
    Sim::new(&file.seeded_world(&mode, traffic, 50_000_000, 1), 1).run().expect("a run")
}

#[test]
fn a_deferral_at_the_maximum_pays_for_timers_that_its_worker_has_met() {
    let (free, dear) = (run("defer10", Traffic::Closed, "0us"), run("defer10", Traffic::Closed, "20us"));
    assert!(dear.qps() < 0.85 * free.qps(), "{} {}", dear.qps(), free.qps());
    // The slack is 50 us, so it fires at most once in that time.
    let most = dear.window_ns / 50_000;
    assert!((most / 4..=most).contains(&dear.counts.backstops), "{} of {most}", dear.counts.backstops);
    // A worker that busy polls starts no timers.
    let (free, dear) = (run("fullbusy", Traffic::Closed, "0us"), run("fullbusy", Traffic::Closed, "20us"));
    assert!(dear.qps() > 0.97 * free.qps(), "{} {}", dear.qps(), free.qps());
}

#[test]
fn a_worker_that_sleeps_until_the_next_deadline_needs_no_kernel_timer_behind_it() {
    let outcome = run("defer200", Traffic::Open { per_s: 50_000.0 }, "5us");
    // The timer that was set when the worker left fires while it sleeps, and is set again when it leaves again.
    assert!(
        outcome.counts.backstops * 3 < outcome.napi.polls * 2,
        "{} {}",
        outcome.counts.backstops,
        outcome.napi.polls
    );
    assert!(outcome.counts.backstops * 5 > outcome.napi.polls, "{} {}", outcome.counts.backstops, outcome.napi.polls);
    assert!(outcome.counts.answered > 2_400, "{}", outcome.counts.answered);
}
