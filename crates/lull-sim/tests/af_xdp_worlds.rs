//! AF_XDP responders as world files: they are near the published figures with the published parameters, give one answer
//! per request in every mode and way of waiting, have modes in force by their counters, and refuse with the reason what
//! is impossible.

use lull_core::Mode;
use lull_sim::predict::{self, Job, Offered, PredictError};
use lull_sim::published::xsk_rr::CSV;
use lull_sim::worldfile::EXAMPLES;
use lull_sim::{Outcome, WorldFile};

/// The published measurement: one pair of machines, frames one at a time, the fitted wire there and back.
const PUBLISHED: &str = r#"[machine]
cores = 2
[nic]
speed = "100Gbit/s"
rx_usecs = "0us"
rx_frames = 1
[network]
latency = "11574ns"
[service]
kind = "af_xdp"
workers = 1
wait = "spin"
polling = "inline"
batch = 1
handle_cost = "150ns"
client = "twin"
client_delay = "0us"
[run]
warmup = "2ms"
"#;

fn parse(text: &str) -> WorldFile {
    WorldFile::parse("x.toml", text).unwrap_or_else(|error| panic!("{error}"))
}

/// The example that ships, with a shorter warm-up, because spinning takes many events.
fn example() -> String {
    let (_, text) = EXAMPLES.iter().find(|(name, _)| *name == "af_xdp.toml").unwrap();
    text.replace("warmup = \"20ms\"", "warmup = \"2ms\"")
}

fn mode(name: &str) -> Mode {
    name.parse().unwrap()
}

fn try_run(file: &WorldFile, name: &str, offered: Offered) -> Result<Outcome, PredictError> {
    predict::run(file, &Job { mode: mode(name), offered, seed: 1, window_ns: 20_000_000 })
}

fn run(file: &WorldFile, name: &str, per_s: f64) -> Outcome {
    try_run(file, name, Offered::PerSecond(per_s)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Returns a published median, by its column, in microseconds.
fn published_us(rate: u32, delay: u32, column: usize) -> f64 {
    let row = CSV.lines().find(|line| line.starts_with(&format!("{rate},{delay},50,"))).unwrap();
    row.split(',').nth(column).unwrap().parse::<f64>().unwrap() / 1_000.0
}

#[test]
fn with_the_published_parameters_the_medians_are_near_the_published_ones() {
    let at = |delay: u32, polling: &str| {
        let text = PUBLISHED.replace("\"0us\"\n[run]", &format!("\"{delay}us\"\n[run]"));
        parse(&text.replace("inline", polling))
    };
    for (rate, delay) in [(12_000, 0), (125_000, 6), (25_000, 38), (32_000, 30), (12_000, 78)] {
        let inline = at(delay, "inline");
        let separate = at(delay, "separate");
        for (file, name, column) in
            [(&inline, "base", 3), (&inline, "busyread", 4), (&separate, "busyread", 5), (&inline, "threaded-busy", 6)]
        {
            // The interrupts of these two rows were deferred in the published runs (docs/simulator.md).
            if name == "base" && (rate == 25_000 || rate == 32_000) {
                continue;
            }
            let out = run(file, name, f64::from(rate));
            let (shown, said) = (out.latency_us(50.0), published_us(rate, delay, column));
            let off = (shown / said - 1.0).abs();
            assert!(off < 0.09, "{rate}/s, {delay} us, {name}: {shown} us, published {said} us");
        }
    }
}

#[test]
fn every_mode_of_either_wait_answers_every_request_once() {
    let spin = example().replace("wait = \"epoll\"", "wait = \"spin\"");
    let separate = spin.replace("# polling = \"inline\"", "polling = \"separate\"");
    let waits = [
        (&example(), ["base", "defer20", "suspend0", "suspend20", "napibusy", "fullbusy", "threaded", "threaded-busy"]),
        (&spin, ["base", "defer20", "defer200", "defer10", "busyread", "busyread", "threaded", "threaded-busy"]),
        (&separate, ["base", "defer20", "defer200", "defer10", "busyread", "busyread", "threaded", "threaded-busy"]),
    ];
    for (text, modes) in waits {
        let file = parse(text);
        for name in modes {
            let out = run(&file, name, 200_000.0);
            let counts = out.counts;
            let share = out.qps() / 200_000.0;
            assert!((0.93..1.07).contains(&share), "{name}: {share}");
            // What was answered was served, except for what the window cut in two.
            assert!(counts.served.abs_diff(counts.answered) < 40, "{name}: {counts:?}");
            assert_eq!((counts.dropped, counts.socket_dropped), (0, 0), "{name}");
            assert!(out.latency_us(50.0) > 20.0, "{name}: faster than the network");
        }
    }
}

#[test]
fn modes_are_in_force_by_their_counters() {
    let file = parse(&example());
    let spin = parse(&example().replace("wait = \"epoll\"", "wait = \"spin\""));
    let base = run(&file, "base", 200_000.0);
    assert!(base.counts.irqs > 1_000 && base.napi.busy_polls == 0 && base.napi.suspends == 0);
    let suspended = run(&file, "suspend20", 200_000.0);
    assert!(suspended.napi.suspends > 100 && suspended.counts.irqs < base.counts.irqs / 10, "{:?}", suspended.napi);
    let full = run(&file, "fullbusy", 200_000.0);
    assert!(full.napi.busy_polls > 10_000 && full.latency_us(50.0) < base.latency_us(50.0));
    assert!(full.cpu.percent() > 2.0 * base.cpu.percent());
    let called = run(&spin, "busyread", 200_000.0);
    assert!(called.napi.busy_polls > 10_000 && called.counts.epoll_calls == 0);
    for file in [&file, &spin] {
        let threaded = run(file, "threaded-busy", 200_000.0);
        assert!(threaded.napi.thread_polls > 10_000 && threaded.counts.irqs == 0, "{:?}", threaded.napi);
    }
}

#[test]
fn a_larger_batch_makes_fewer_send_calls_and_a_higher_maximum() {
    let max = |batch: &str| {
        let text = example().replace("batch = 32", &format!("batch = {batch}"));
        try_run(&parse(&text), "base", Offered::Max).unwrap().qps()
    };
    let (alone, many) = (max("1"), max("32"));
    assert!(many > 1.2 * alone, "{alone} {many}");
}

/// There are more flows than the socket's ring has frames, and the program is slow: a frame that finds the ring full is
/// lost, and sent again.
#[test]
fn a_full_ring_loses_frames_and_the_clients_send_them_again() {
    let text = example().replace("handle_cost = \"900ns\"", "handle_cost = \"20us\"").replace("= 1024", "= 16384");
    let text = text.replace("jitter = \"2us\"\n", "").replace("ring = 2048", "ring = 8192");
    let job = Job { mode: mode("base"), offered: Offered::Max, seed: 1, window_ns: 500_000_000 };
    let out = predict::run(&parse(&text), &job).unwrap();
    assert!(out.counts.socket_dropped > 1_000, "{:?}", out.counts);
    // Every flow is somewhere: in the responder, on the wire to it, or with its answer on the way.
    let flows = out.inside + out.on_wire;
    assert!((16_000..=16_384).contains(&flows), "{flows}");
    // There are four threads at 20 us a frame, and while the rings are full the loss costs no throughput.
    assert!(out.qps() > 180_000.0, "{}", out.qps());
}

#[test]
fn runs_replay() {
    for (text, name) in [(example().as_str(), "suspend20"), (PUBLISHED, "busyread")] {
        let file = parse(text);
        let (one, again) = (run(&file, name, 50_000.0), run(&file, name, 50_000.0));
        assert_eq!((one.digest, one.counts, one.napi), (again.digest, again.counts, again.napi), "{name}");
    }
}

#[test]
fn modes_that_make_no_sense_are_refused_with_the_reason() {
    let why = |text: &str, name: &str| parse(text).can_run(&mode(name)).unwrap_err();
    let spin = example().replace("wait = \"epoll\"", "wait = \"spin\"");
    for name in ["suspend0", "suspend20", "napibusy", "fullbusy", "longgro", "coalesce-20"] {
        let said = why(&spin, name);
        assert!(said.starts_with(&format!("{name} acts in epoll_wait")) && said.contains("busyread"), "{said}");
    }
    assert!(why(&example(), "busyread").contains("waits in epoll: leave busyread out"));
    let narrow = spin.replace("cores = 8", "cores = 6");
    assert!(why(&narrow, "threaded-busy").contains("takes 4 of machine.cores besides the 4"));
    assert!(parse(&narrow).can_run(&mode("threaded")).is_ok());
    let narrow = spin.replace("cores = 8", "cores = 4");
    assert!(why(&narrow, "threaded").contains("takes 1 of machine.cores besides the 4"));
    // If its thread sleeps in epoll, a responder can share its core.
    let shared = example().replace("cores = 8", "cores = 4");
    assert!(run(&parse(&shared), "threaded", 100_000.0).qps() > 90_000.0);
}

#[test]
fn twins_are_asked_for_rates_only() {
    let file = parse(PUBLISHED);
    let said = |offered| try_run(&file, "base", offered).unwrap_err().to_string();
    assert!(said(Offered::Max).contains("has no maximum, nor shares of one"));
    assert!(said(Offered::PerSecond(1.0)).contains("at the least"));
}

/// Checks that `text` with one change is refused with this line.
#[track_caller]
fn refused(text: &str, from: &str, to: &str, says: &str) {
    assert!(text.contains(from), "{from}");
    let said = WorldFile::parse("x.toml", &text.replacen(from, to, 1)).unwrap_err().to_string();
    assert_eq!(said, says);
}

#[test]
fn what_is_wrong_with_its_keys_is_named_with_what_is_allowed() {
    refused(
        PUBLISHED,
        "handle_cost = \"150ns\"\n",
        "",
        "x.toml:10: service.handle_cost: missing, and it has no default: what the program does with a frame, such as \
         \"150ns\"",
    );
    refused(
        PUBLISHED,
        "wait = \"spin\"",
        "wait = \"poll\"",
        "x.toml:12: service.wait: 'poll' is unknown here: allowed are \"epoll\" and \"spin\"",
    );
    refused(
        PUBLISHED,
        "polling = \"inline\"",
        "polling = \"remote\"",
        "x.toml:13: service.polling: 'remote' is unknown here: allowed are \"inline\" and \"separate\"",
    );
    refused(
        PUBLISHED,
        "client = \"twin\"",
        "client = \"mirror\"",
        "x.toml:16: service.client: 'mirror' is unknown here: allowed are \"remote\" and \"twin\"",
    );
    refused(
        PUBLISHED,
        "batch = 1",
        "batch = 0",
        "x.toml:14: service.batch: 0 is impossible here: allowed is 1 to 2048",
    );
    refused(
        PUBLISHED,
        "handle_cost = \"150ns\"",
        "handle_cost = 150",
        "x.toml:15: service.handle_cost: '150' has no unit: write ns, us, µs, ms or s after the number, as in \"20us\"",
    );
    refused(
        PUBLISHED,
        "handle_cost = \"150ns\"",
        "handle_cost = \"1ns\"",
        "x.toml:15: service.handle_cost: 1ns is impossible here: allowed is 10ns to 100ms",
    );
    refused(
        PUBLISHED,
        "client_delay = \"0us\"",
        "client_delay = \"2s\"",
        "x.toml:17: service.client_delay: 2s is impossible here: allowed is 0ns to 1s",
    );
    refused(
        PUBLISHED,
        "handle_cost",
        "request_cost = \"1us\"\nhandle_cost",
        "x.toml:15: service.request_cost: an AF_XDP responder has receive_cost (a frame in the driver's poll), \
         handle_cost (in the program) and send_cost (a send call) instead",
    );
    refused(
        PUBLISHED,
        "batch = 1",
        "events_max = 64",
        "x.toml:14: service.events_max: an AF_XDP responder has one event a socket: batch is what bounds its frames",
    );
    refused(
        PUBLISHED,
        "[nic]",
        "[nic]\nqueues = 2",
        "x.toml:4: nic.queues: an AF_XDP socket is bound to one queue, and each worker has one socket: \
         allowed is 1",
    );
    refused(
        PUBLISHED,
        "kind = \"af_xdp\"",
        "kind = \"epoll\"\nconnections = 10\nrequest_cost = \"5us\"",
        "x.toml:14: service.wait: this is a key of AF_XDP responders, and this service is of kind \"epoll\": remove \
         it, or use kind = \"af_xdp\"",
    );
}

#[test]
fn contradictions_of_its_keys_are_named() {
    refused(
        PUBLISHED,
        "wait = \"spin\"\n",
        "",
        "x.toml:12: service.polling: says whose calls busy poll, and a program that waits in epoll makes none: remove \
         this, or set wait = \"spin\"",
    );
    refused(
        PUBLISHED,
        "wait = \"spin\"\npolling = \"inline\"\n",
        "",
        "x.toml:14: service.client: a twin looks at its ring as its machine's program does: set wait = \"spin\", or \
         client = \"remote\"",
    );
    refused(
        &PUBLISHED.replace("cores = 2", "cores = 1"),
        "polling = \"inline\"",
        "polling = \"separate\"",
        "x.toml:13: service.polling: \"separate\" takes a core besides each worker's: allowed with machine.cores \
         of 2 or more",
    );
    refused(
        PUBLISHED,
        "client = \"twin\"",
        "connections = 64",
        "x.toml:17: service.client_delay: only a twin has a delay that is known: remove this, or set client = \"twin\"",
    );
    let problem = "a twin sends one flow at a fixed rate over a wire that takes the same time always: remove this, or \
                   set client = \"remote\"";
    refused(
        PUBLISHED,
        "latency = \"11574ns\"",
        "latency = \"11574ns\"\njitter = \"1us\"",
        &format!("x.toml:9: network.jitter: {problem}"),
    );
    refused(PUBLISHED, "batch = 1", "connections = 64", &format!("x.toml:14: service.connections: {problem}"));
    refused(
        PUBLISHED,
        "client = \"twin\"\nclient_delay = \"0us\"\n",
        "",
        "x.toml:10: service.connections: missing, and it has no default: over how many connections clients ask",
    );
}
