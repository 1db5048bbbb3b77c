//! Clients that are the threads of one generator, and a service whose answers leave together.

use lull_core::Mode;
use lull_sim::{Outcome, Sim, Traffic, WorldFile};

/// A core of lull's own stack, with a generator. Interrupts cost nothing before their poll, so that a poll finds what
/// one doorbell announced.
const WORLD: &str = r#"[machine]
cores = 1
plane = "user"
[nic]
speed = "1000Gbit/s"
rx_usecs = "0us"
[network]
latency = "1us"
[load]
generator_send = "100ns"
generator_answer = "100ns"
generator_raise = "1us"
[service]
kind = "epoll"
connections = 64
request_cost_own = "2us"
ANSWERS
[costs]
profile = "lull-user"
irq = "0us"
[run]
warmup = "5ms"
"#;

fn closed_loop(answers: &str) -> Outcome {
    let file = WorldFile::parse("w", &WORLD.replace("ANSWERS", answers)).expect("a world");
    let base: Mode = "base".parse().expect("a mode");
    Sim::new(&file.seeded_world(&base, Traffic::Closed, 20_000_000, 1), 1).run().expect("a run")
}

fn requests_a_poll(outcome: &Outcome) -> f64 {
    outcome.counts.rx_packets as f64 / outcome.napi.polls as f64
}

#[test]
fn requests_come_by_one_doorbell_after_answers_that_left_by_one() {
    let (alone, together) = (closed_loop(""), closed_loop("answers_together = 8"));
    assert!(requests_a_poll(&alone) < 2.0, "{}", requests_a_poll(&alone));
    assert!(requests_a_poll(&together) > 6.0, "{}", requests_a_poll(&together));
    // The worker is not interrupted for each request, so it gets more done.
    assert!(together.counts.irqs * 3 < alone.counts.irqs, "{} {}", together.counts.irqs, alone.counts.irqs);
}

#[test]
fn what_is_left_of_a_batch_leaves_at_its_end() {
    // No batch has this many events; answers that waited for so many would never leave.
    let outcome = closed_loop("answers_together = 4096");
    assert!(outcome.counts.answered > 1_000, "{}", outcome.counts.answered);
}
