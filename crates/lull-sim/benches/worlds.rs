//! The speed of random worlds: `cargo bench -p lull-sim --bench worlds`. The goal is 5 million events a second on one
//! core, where an event is one that makes a transition of the core, with the invariants checked after every step, as in
//! the tests.

use std::sync::LazyLock;
use std::time::{Duration, Instant};

use lull_sim::random::{Plan, Tally};

/// Worlds per run.
const WORLDS: u64 = 400;
/// How many runs there are. The fastest is printed beside the median, because the others were disturbed.
const RUNS: usize = 5;

/// Returns the time that this thread was on a CPU (`schedstat`), so that other load on the machine does not count; on
/// other systems it is the clock's time.
fn cpu_time() -> Duration {
    static BEGIN: LazyLock<Instant> = LazyLock::new(Instant::now);
    let schedstat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let on_cpu_ns = schedstat.split(' ').next().and_then(|ns| ns.parse().ok());
    on_cpu_ns.map_or_else(|| BEGIN.elapsed(), Duration::from_nanos)
}

fn main() {
    let mut seconds = Vec::new();
    let mut tally = Tally::default();
    for _ in 0..RUNS {
        tally = Tally::default();
        let begin = cpu_time();
        for seed in 0..WORLDS {
            tally.add(seed, &Plan::random(seed).run());
        }
        seconds.push((cpu_time() - begin).as_secs_f64());
    }
    seconds.sort_by(f64::total_cmp);
    print!("{tally}");
    let rate = |count: u64, seconds: f64| count as f64 / seconds / 1e6;
    for (name, seconds) in [("fastest", seconds[0]), ("median", seconds[RUNS / 2])] {
        println!(
            "{name} of {RUNS}: {:.2} M transitions of the core a second, {:.2} M events of the agenda a second",
            rate(tally.transitions, seconds),
            rate(tally.events, seconds),
        );
    }
}
