//! World files with transmit queues: who rings doorbells in which mode, the effect of limits, and what is refused.

use lull_core::Mode;
use lull_sim::{Outcome, Sim, Traffic, WorldFile};

/// Two workers whose requests take 2 us, and a core for a group.
const WORLD: &str = r#"[machine]
cores = 3
[nic]
queues = 2
speed = "25Gbit/s"
rss = "even"
rx_usecs = "8us"
[network]
latency = "10us"
[service]
kind = "epoll"
workers = 2
connections = 64
request_cost_own = "2us"
[transmit]
qdisc = "pfifo_fast"
ring = 256
[group]
cpus = "2"
[costs]
doorbell = "1us"
[run]
warmup = "5ms"
"#;

fn parse(text: &str) -> WorldFile {
    WorldFile::parse("w.toml", text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

fn refused(text: &str) -> String {
    WorldFile::parse("w.toml", text).unwrap_err().to_string()
}

fn run(text: &str, mode: &str, traffic: Traffic) -> Outcome {
    let mode: Mode = mode.parse().unwrap();
    Sim::new(&parse(text).world(&mode, traffic, 50_000_000), 1).run().unwrap()
}

fn doorbells_per_frame(outcome: &Outcome) -> f64 {
    outcome.counts.doorbells as f64 / outcome.counts.rung_frames as f64
}

#[test]
fn senders_ring_for_each_frame_and_a_group_for_many() {
    // A group's core takes 2 us and more for a request and its answer. With requests of 2 us two workers that do not
    // ring are as fast as that core, which may then be the limit. With requests of 4 us the workers are the limit, and
    // one that does not ring has more time to serve.
    let busy = WORLD.replace("request_cost_own = \"2us\"", "request_cost_own = \"4us\"");
    for qdisc in ["noqueue", "pfifo_fast", "fq"] {
        let text = busy.replace("pfifo_fast", qdisc);
        let [base, receives, sends] = ["base", "group-rx", "group"].map(|mode| run(&text, mode, Traffic::Closed));
        for outcome in [&base, &receives, &sends] {
            // Every answer is a frame; some are on their way at the window's ends.
            assert!(outcome.counts.rung_frames.abs_diff(outcome.counts.answered) <= 64, "{qdisc} {:?}", outcome.counts);
            assert_eq!(outcome.counts.tx_dropped, 0, "{qdisc}");
        }
        assert!(doorbells_per_frame(&base) > 0.9, "{qdisc}: {}", doorbells_per_frame(&base));
        assert!(doorbells_per_frame(&receives) > 0.9, "{qdisc}: {}", doorbells_per_frame(&receives));
        assert!(doorbells_per_frame(&sends) < 0.5, "{qdisc}: {}", doorbells_per_frame(&sends));
        // Workers that do not ring have more time to serve.
        assert!(sends.qps() > 1.05 * receives.qps(), "{qdisc}: {} {}", sends.qps(), receives.qps());
    }
}

#[test]
fn without_the_section_nothing_is_counted_and_a_doorbell_costs_nothing() {
    let without = WORLD.replace("[transmit]\nqdisc = \"pfifo_fast\"\nring = 256\n", "");
    let dear = without.replace("doorbell = \"1us\"", "doorbell = \"9us\"");
    assert!(without != WORLD && dear != without);
    let [none, dear, with] = [&without, &dear, WORLD].map(|text| run(text, "base", Traffic::Closed));
    assert_eq!((none.counts.doorbells, none.counts.rung_frames), (0, 0));
    assert_eq!((dear.digest, dear.counts.answered), (none.digest, none.counts.answered));
    // With the section each of the two workers rings for each request, which takes 1 us.
    let ns_a_request = |outcome: &Outcome| 2e9 / outcome.qps();
    let rings_ns = ns_a_request(&with) - ns_a_request(&none);
    assert!(rings_ns > 1_000.0, "{rings_ns}: {} {}", none.qps(), with.qps());
}

#[test]
fn completions_of_transmit_queues_are_reaped_beside_receiving() {
    let silent = WORLD.replace("rss =", "tx_completions = false\nrss =");
    let polls = |text: &str| run(text, "base", Traffic::Open { per_s: 20_000.0 }).counts.irqs;
    assert!(polls(WORLD) > polls(&silent) + 500, "{} {}", polls(WORLD), polls(&silent));
}

#[test]
fn a_slow_wire_fills_ring_and_discipline_up_to_their_limits() {
    // Answers of 4 KB on 1 Gbit/s are on the wire for 33 us each, and are made in a tenth of that time.
    let slow = WORLD.replace("25Gbit/s", "1Gbit/s").replace("kind =", "answer_size = \"4KiB\"\nkind =");
    // A client whose answer is dropped asks again after 200 ms, so the run counts from the beginning.
    let slow = slow.replace("ring = 256", "ring = 4").replace("warmup = \"5ms\"", "warmup = \"0us\"");
    let dropped = |text: &str| run(text, "base", Traffic::Closed).counts.tx_dropped;
    assert_eq!(dropped(&slow), 0);
    assert!(dropped(&slow.replace("ring = 4", "ring = 4\nlimit = 2")) > 0);
    let fq = slow.replace("pfifo_fast", "fq");
    assert_eq!(dropped(&fq), 0);
    assert!(dropped(&fq.replace("ring = 4", "ring = 4\nlimit = 2")) > 0);
}

#[test]
fn what_is_wrong_is_said_with_its_key() {
    let replaced = |from: &str, to: &str| refused(&WORLD.replace(from, to));
    let said = replaced("\"pfifo_fast\"", "\"fq_codel\"");
    assert!(said.contains("w.toml:16: transmit.qdisc: no queueing discipline is named 'fq_codel'"), "{said}");
    let said = replaced("qdisc = \"pfifo_fast\"\n", "");
    assert!(said.contains("qdisc"), "{said}");
    let said = replaced("ring = 256", "ring = 0");
    assert!(said.contains("w.toml:17: transmit.ring: 0 is impossible here: allowed is 1 to 65536"), "{said}");
    let said = replaced("ring = 256", "limit = 0");
    assert!(said.contains("transmit.limit: 0 is impossible here"), "{said}");
    let said = replaced("ring = 256", "flow_limit = 10");
    assert!(said.contains("transmit.flow_limit: pfifo_fast has no such limit, only fq has: remove this"), "{said}");
    let said = refused(&WORLD.replace("pfifo_fast", "noqueue").replace("ring = 256", "limit = 10"));
    assert!(said.contains("transmit.limit: noqueue has no such limit"), "{said}");
    let said = replaced("ring = 256", "rings = 256");
    assert!(said.contains("the keys of [transmit] are"), "{said}");
    let proxy = WORLD.replace("kind = \"epoll\"", "kind = \"proxy\"\nupstream_latency = \"10us\"");
    assert!(refused(&proxy).contains("transmit.qdisc: what a proxy sends"), "{}", refused(&proxy));
    let xdp = "[machine]\ncores = 1\n[nic]\nspeed = \"10Gbit/s\"\n[network]\nlatency = \"5us\"\n[service]\n\
               kind = \"af_xdp\"\nconnections = 8\nhandle_cost = \"1us\"\n[transmit]\nqdisc = \"fq\"\n";
    assert!(refused(xdp).contains("transmit.qdisc: frames of AF_XDP sockets"), "{}", refused(xdp));
}

#[test]
fn a_group_has_no_more_members_than_the_core_allows() {
    let queues = |queues: u32| {
        let text = WORLD.replace("queues = 2", &format!("queues = {queues}"));
        text.replace("connections = 64", "connections = 512")
    };
    let said = refused(&queues(129));
    assert!(
        said.starts_with(
            "w.toml:4: nic.queues: 129 queues and the transmit queues beside them are 258 members of the group"
        ) && said.contains("allowed are 128 queues in group.queues"),
        "{said}"
    );
    let said = refused(&queues(256).replace("cpus = \"2\"", "cpus = \"2\"\nqueues = \"10-250\""));
    assert!(said.starts_with("w.toml:20: group.queues: 241 queues and"), "{said}");
    // What is allowed is simulated, and without transmit queues there is room for twice as many.
    let few = queues(256).replace("cpus = \"2\"", "cpus = \"2\"\nqueues = \"0-127\"");
    let without = queues(256).replace("[transmit]\nqdisc = \"pfifo_fast\"\nring = 256\n", "");
    for text in [queues(128), few, without] {
        let world = parse(&text).world(&"group".parse().unwrap(), Traffic::Open { per_s: 100_000.0 }, 1_000_000);
        assert!(Sim::new(&world, 1).run().unwrap().counts.answered > 0);
    }
}

#[test]
fn a_queue_that_only_sends_is_no_softirq_beside_who_receives() {
    // The ring is full most of the time, and the interrupt that announces room raises softirq on the transmit queue.
    let slow = WORLD.replace("25Gbit/s", "1Gbit/s").replace("kind =", "answer_size = \"4KiB\"\nkind =");
    let slow = slow.replace("ring = 256", "ring = 4");
    for mode in ["threaded", "group-rx", "group"] {
        let napi = run(&slow, mode, Traffic::Closed).napi;
        assert_eq!(napi.softirq_polls, 0, "{mode}: {napi:?}");
        assert!(napi.thread_polls + napi.group_polls > 0, "{mode}: {napi:?}");
    }
}

#[test]
fn the_file_says_who_sends() {
    let described = parse(WORLD).describe();
    assert!(described.contains("pfifo_fast before each transmit ring of 256"), "{described}");
    assert!(described.contains("send but for group-rx"), "{described}");
}
