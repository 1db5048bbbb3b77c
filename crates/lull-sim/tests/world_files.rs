//! World files: the examples run, and an error is one line with the file, the line, the key and what is allowed.

use lull_core::Mode;
use lull_sim::dim::Moderation;
use lull_sim::worldfile::EXAMPLES;
use lull_sim::{ModerationSpec, Period, RunError, Sim, Traffic, World, WorldFile};

fn example(name: &str) -> WorldFile {
    let (name, text) = EXAMPLES.iter().find(|(known, _)| *known == name).unwrap();
    WorldFile::parse(name, text).unwrap()
}

fn mode(name: &str) -> Mode {
    name.parse().unwrap()
}

/// A world small enough to run many times.
const SMALL: &str = r#"[machine]
cores = 1
[nic]
speed = "10Gbit/s"
rx_usecs = "8us"
[network]
latency = "20us"
[service]
kind = "epoll"
connections = 32
request_cost = "6us"
[run]
warmup = "5ms"
"#;

#[test]
fn every_example_is_read_and_serves_half_of_its_maximum() {
    for (name, text) in EXAMPLES {
        let file = WorldFile::parse(name, text).unwrap();
        let run = |load| Sim::new(&file.world(&mode("base"), load, 30_000_000), 1).run().unwrap();
        let max = run(Traffic::Closed);
        assert!(10 * max.busiest_ns > 9 * max.window_ns, "{name}: saturated");
        let half = run(Traffic::Open { per_s: 0.5 * max.qps() });
        let share = half.qps() / max.qps();
        assert!((0.45..0.55).contains(&share), "{name}: {share}");
        assert!(half.latency_mean_us() < max.latency_mean_us(), "{name}");
        let described = file.describe();
        assert!(described.starts_with(name.trim_end_matches(".toml")) && described.contains("workers"), "{described}");
        assert!(file.provenance().starts_with("All figures are simulated"));
    }
}

#[test]
fn the_measured_cost_is_the_cost_shown() {
    let busy = |text: &str| {
        let file = WorldFile::parse("small.toml", text).unwrap();
        let out = Sim::new(&file.world(&mode("base"), Traffic::Closed, 100_000_000), 9).run().unwrap();
        let per = |ns: u64| ns as f64 / out.counts.served as f64;
        (per(out.cpu.user_ns + out.cpu.sys_ns), per(out.cpu.busy_ns()))
    };
    let (thread, everything) = busy(SMALL);
    assert!((5_900.0..6_100.0).contains(&thread) && everything > 1.1 * thread, "{thread} {everything}");
    let two = SMALL.replace("cores = 1", "cores = 2").replace("[service]", "[service]\nworker_cores = \"other\"");
    let (thread, _) = busy(&two);
    assert!((5_800.0..6_200.0).contains(&thread), "{thread}");
    let (thread, everything) = busy(&SMALL.replace("request_cost =", "request_cost_total ="));
    assert!((5_900.0..6_100.0).contains(&everything) && thread < everything, "{thread} {everything}");
}

#[test]
fn a_proxy_serves_a_request_twice_and_waits_for_the_server_behind() {
    let proxy = example("proxy.toml");
    let out = Sim::new(&proxy.world(&mode("base"), Traffic::Open { per_s: 20_000.0 }, 100_000_000), 1).run().unwrap();
    let times = out.counts.tx_packets as f64 / out.counts.served as f64;
    assert!((1.9..2.1).contains(&times), "{times}");
    assert_eq!(out.counts.dropped, 0);
    // The network takes 60 us, the server behind 160 us, and the work at least 18 us.
    assert!(out.latency_mean_us() > 238.0, "{}", out.latency_mean_us());
    let shown_us = (out.cpu.user_ns + out.cpu.sys_ns) as f64 / out.counts.served as f64 / 1_000.0;
    assert!((17.0..26.0).contains(&shown_us), "{shown_us}");
}

#[test]
fn queues_and_workers_need_not_be_as_many() {
    for (cores, workers, queues) in [(4, 2, 2), (2, 2, 1), (2, 1, 3), (3, 4, 2)] {
        let text = SMALL
            .replace("cores = 1", &format!("cores = {cores}"))
            .replace("[nic]", &format!("[nic]\nqueues = {queues}"))
            .replace("[service]", &format!("[service]\nworkers = {workers}"));
        let file = WorldFile::parse("small.toml", &text).unwrap();
        for name in ["base", "defer20", "threaded"] {
            let world = file.world(&mode(name), Traffic::Open { per_s: 30_000.0 }, 50_000_000);
            assert_eq!(world.connections.iter().map(|group| group.count).sum::<u32>(), 32);
            let out = Sim::new(&world, 1).run().unwrap();
            assert!((out.qps() - 30_000.0).abs() < 3_000.0, "{cores} {workers} {queues} {name}: {}", out.qps());
        }
    }
}

/// With several NAPIs on one epoll context, each event changes its NAPI id, and a suspended NAPI that it leaves waits
/// for its timeout (napi_semantics §13, edge 14). A prediction of such a world has to show this.
#[test]
fn suspension_over_several_queues_on_one_epoll_stalls_as_on_linux() {
    let text = SMALL.replace("[nic]", "[nic]\nqueues = 3").replace("cores = 1", "cores = 2");
    let file = WorldFile::parse("small.toml", &text.replace("[service]", "[service]\nworkers = 1")).unwrap();
    let world = |name: &str| file.world(&mode(name), Traffic::Open { per_s: 30_000.0 }, 100_000_000);
    let p99_us = |name: &str| Sim::new(&world(name), 1).run().unwrap().latency_us(99.0);
    assert!(p99_us("suspend20") > 10_000.0 && p99_us("defer20") < 1_000.0);
}

/// Checks that `SMALL` with one change is refused with this line.
#[track_caller]
fn refused(from: &str, to: &str, says: &str) {
    assert!(SMALL.contains(from), "{from}");
    let said = WorldFile::parse("small.toml", &SMALL.replacen(from, to, 1)).unwrap_err().to_string();
    assert_eq!(said, says);
    assert!(!said.contains('\n'));
}

#[test]
fn wrong_keys_are_named_with_their_line_and_what_is_allowed() {
    refused(
        "cores = 1",
        "coers = 1",
        "small.toml:2: machine.coers: unknown; the keys of [machine] are cores, frequency, idle, \
         l3_cores, plane, after_resume",
    );
    refused(
        "[network]",
        "[netwrk]",
        "small.toml:6: netwrk: unknown; the sections are machine, nic, network, service, load, \
         group, transmit, second, instructions, costs, run",
    );
    refused("latency = \"20us\"\n", "", "small.toml:6: network.latency: missing, and it has no default");
    refused("[network]\nlatency = \"20us\"\n", "", "small.toml:1: [network]: this section is missing");
    refused("cores = 1", "cores = 1\ncores = 2", "small.toml:3: machine.cores: duplicate key");
    refused(
        "cores = 1",
        "cores = ",
        "small.toml:2: machine.cores: string values must be quoted, expected literal string",
    );
}

#[test]
fn values_without_units_or_beyond_limits_are_named_with_what_is_allowed() {
    refused(
        "latency = \"20us\"",
        "latency = 20",
        "small.toml:7: network.latency: '20' has no unit: write ns, us, µs, ms or s after the number, as in \"20us\"",
    );
    refused(
        "latency = \"20us\"",
        "latency = \"20\"",
        "small.toml:7: network.latency: '20' has no unit: write ns, us, µs, ms or s after the number, as in \"20us\"",
    );
    refused(
        "speed = \"10Gbit/s\"",
        "speed = \"10G\"",
        "small.toml:4: nic.speed: 'G' is no unit of a speed: use Mbit/s or Gbit/s, as in \"100Gbit/s\"",
    );
    refused("cores = 1", "cores = 0", "small.toml:2: machine.cores: 0 is impossible here: allowed is 1 to 256");
    refused(
        "cores = 1",
        "cores = true",
        "small.toml:2: machine.cores: invalid type: boolean `true`, expected a count with its unit in quotes, such as \
         \"4480\"",
    );
    refused(
        "request_cost = \"6us\"",
        "request_cost = \"2h\"",
        "small.toml:11: service.request_cost: 'h' is no unit of a time: use ns, us, µs, ms or s, as in \"20us\"",
    );
    refused(
        "rx_usecs = \"8us\"",
        "rx_usecs = \"8100ns\"",
        "small.toml:5: nic.rx_usecs: moderation is in whole microseconds: allowed is 0us, 1us, 2us ...",
    );
    refused(
        "warmup = \"5ms\"",
        "warmup = \"2000s\"",
        "small.toml:13: run.warmup: 2000s is impossible here: allowed is 0ns to 60s",
    );
}

#[test]
fn contradictions_are_named() {
    refused(
        "rx_usecs",
        "adaptive = true\nrx_usecs",
        "small.toml:5: nic.adaptive: with adaptive moderation the driver chooses usecs and frames: remove rx_usecs, \
         rx_frames, \
         tx_usecs and tx_frames, or set adaptive = false",
    );
    refused(
        "rx_usecs",
        "calibrated = \"eth0\"\nrx_usecs",
        "small.toml:5: nic.calibrated: the lab has no NIC 'eth0': allowed are mem, tap, xdp, veth, device",
    );
    refused(
        "kind = \"epoll\"",
        "kind = \"select\"",
        "small.toml:9: service.kind: 'select' is no kind of service: allowed are \"epoll\", \"proxy\" and \
         \"af_xdp\"",
    );
    refused(
        "kind = \"epoll\"",
        "kind = \"proxy\"",
        "small.toml:9: service.kind: a proxy needs upstream_latency, the time from its NIC to the server behind it \
         and back",
    );
    refused(
        "connections = 32",
        "connections = 32\nworkers = 64",
        "small.toml:10: service.connections: 32 connections leave some of 64 workers on 64 queues without any: \
         allowed is 64 \
         or more",
    );
    refused(
        "connections = 32",
        "connections = 32\nrequest_cost_total = \"8us\"",
        "small.toml:11: service.request_cost_total: give one of request_cost (CPU time of the serving thread), \
         request_cost_total (of all cores) and request_cost_own (of the application alone)",
    );
    refused(
        "[run]",
        "user_share = \"80%\"\nrandom_share = \"30%\"\n[run]",
        "small.toml:13: service.random_share: user_share and random_share are parts of one cost: allowed is at most \
         20%",
    );
    refused(
        "[run]",
        "[costs]\nirqs = \"1us\"\n[run]",
        "small.toml:13: costs.irqs: unknown; the keys of [costs] are profile, cache_requests, irq, timer_irq, \
         timer_start, timer_late, ipi, softirq, poll, rx_request, rx_ack, tx_done, wake, switch, epoll_call, epoll_sleep, epoll_event, busy_call, busy_round, \
         recv_call, cold_busy, tx_frame, doorbell, spin, group_look, group_pass, group_claim, dry_run, idle_shallow_exit, idle_deep_exit, idle_deep_residency, \
         cold_packet, cold_request, broken_packet, broken_thread, cross_packet, cross_request",
    );
    refused(
        "[service]",
        "slow_to = \"90us\"\n[service]",
        "small.toml:8: network.slow_to: needs slow_share, how many of the answers take longer, such as \"1%\"",
    );
    refused(
        "[run]",
        "worker_cores = \"other\"\n[run]",
        "small.toml:12: service.worker_cores: there is no other core that has a worker: allowed with two workers on \
        two \
         cores or more",
    );
    let said = |text: &str| WorldFile::parse("small.toml", text).unwrap_err().to_string();
    let heavy = SMALL.replace("warmup = \"5ms\"", "memory_max = \"64MiB\"").replace("= 32", "= 900000");
    assert!(said(&heavy).starts_with("small.toml:10: service.connections: 900000 connections on 1 queues take about"));
    let cheap = said(&SMALL.replace("request_cost = \"6us\"", "request_cost_total = \"1us\""));
    assert!(
        cheap.starts_with("small.toml:11: service.request_cost_total: this is less than what these costs charge"),
        "{cheap}"
    );
    let none = WorldFile::read(std::path::Path::new("/nonexistent/world.toml")).unwrap_err().to_string();
    assert!(none.starts_with("/nonexistent/world.toml: cannot read the world file: "), "{none}");
}

/// This is how the lab's load counts; the published tables count as mutilate does.
#[test]
fn latency_counts_from_when_a_request_was_due_and_nothing_else_depends_on_it() {
    let run = |arrivals: &str, per_s: f64, counts_from_due: bool| {
        let file = WorldFile::parse("small.toml", &format!("{SMALL}[load]\n{arrivals}\n")).unwrap();
        let world = file.world(&mode("base"), Traffic::Open { per_s }, 100_000_000);
        assert!(world.counts_from_due);
        let out = Sim::new(&World { counts_from_due, ..world }, 1).run().unwrap();
        (out.latency_us(50.0), out.latency_mean_us(), out.counts)
    };
    for arrivals in ["", "arrivals = \"facebook\""] {
        // The core serves 100,000 a second at the most, so the last requests wait for half of the time or more.
        let (due, free) = (run(arrivals, 400_000.0, true), run(arrivals, 400_000.0, false));
        assert!((30_000.0..110_000.0).contains(&due.0) && free.0 < 1_000.0, "{} {}", due.0, free.0);
        assert_eq!(due.2, free.2);
        // If each connection is soon free again, there is little difference between the two.
        let (due, free) = (run(arrivals, 5_000.0, true), run(arrivals, 5_000.0, false));
        assert!((1.0..1.1).contains(&(due.1 / free.1)), "{} {}", due.1, free.1);
    }
}

#[test]
fn a_world_that_explodes_says_which_bound_it_hit() {
    let run = |bounds: &str, per_s: f64| {
        let text = SMALL.replace("warmup = \"5ms\"", bounds);
        let file = WorldFile::parse("small.toml", &text).unwrap();
        Sim::new(&file.world(&mode("base"), Traffic::Open { per_s }, 2_000_000_000), 1).run().unwrap_err()
    };
    let error = run("events_max = 10000", 50_000.0);
    assert!(matches!(error, RunError::TooManyEvents { bound: 10_000, .. }), "{error}");
    let error = run("backlog_max = 1000", 500_000.0);
    assert!(matches!(error, RunError::Backlog { bound: 1_000, .. }), "{error}");
    assert!(error.to_string().contains("backlog_max") && error.to_string().contains("bound of 1000"), "{error}");
    let file = WorldFile::parse("small.toml", SMALL).unwrap();
    let world = file.world(&mode("base"), Traffic::Open { per_s: 100_000.0 }, 2_000_000_000);
    assert_eq!((world.pending_max, world.backlog_max), ((1 << 30) / 64, 50_000_000));
    // The times of the requests that wait take memory as well.
    let little = SMALL.replace("warmup = \"5ms\"", "memory_max = \"16MiB\"");
    let little = WorldFile::parse("small.toml", &little).unwrap();
    assert_eq!(little.world(&mode("base"), Traffic::Closed, 1_000_000).backlog_max, 1 << 20);
    let error = Sim::new(&World { pending_max: 3, ..world }, 1).run().unwrap_err();
    assert!(matches!(error, RunError::TooManyPending { bound: 3, .. }), "{error}");
    assert!(error.to_string().contains("memory_max"), "{error}");
}

/// The simulator can hold everything that the limits of the keys allow.
#[test]
fn the_largest_machine_that_a_file_can_describe_is_simulated() {
    let text = SMALL.replace("cores = 1", "cores = 256").replace("connections = 32", "connections = 256");
    let text = text.replace("[nic]", "[nic]\nqueues = 256").replace("[service]", "[service]\nworkers = 256");
    let file = WorldFile::parse("small.toml", &text).unwrap();
    for name in ["base", "threaded"] {
        let world = file.world(&mode(name), Traffic::Open { per_s: 100_000.0 }, 1_000_000);
        assert!(Sim::new(&world, 1).run().unwrap().counts.answered > 50, "{name}");
    }
    let twins = text
        .replace("kind = \"epoll\"\nconnections = 256\nrequest_cost = \"6us\"", "kind = \"af_xdp\"\nwait = \"spin\"");
    let twins = twins
        .replace("workers = 256", "workers = 128\npolling = \"separate\"\nhandle_cost = \"1us\"\nclient = \"twin\"");
    let file = WorldFile::parse("small.toml", &twins.replace("queues = 256", "queues = 128")).unwrap();
    let world = file.world(&mode("busyread"), Traffic::Open { per_s: 100_000.0 }, 20_000);
    let out = Sim::new(&World { warmup_ns: 0, ..world }, 1).run().unwrap();
    assert_eq!(out.counts.dropped, 0);
}

#[test]
fn each_side_of_the_nic_has_the_moderation_that_the_file_gives_it() {
    let sides = |keys: &str| {
        let file = WorldFile::parse("small.toml", &SMALL.replace("rx_usecs = \"8us\"", keys)).unwrap();
        ((file.rx, file.rx_period), (file.tx, file.tx_period))
    };
    let fixed = |usecs, frames| (ModerationSpec::Fixed(Moderation { usecs, frames }), Period::First);
    let adaptive = ((ModerationSpec::Adaptive, Period::Completion), (ModerationSpec::Adaptive, Period::Interrupt));
    assert_eq!(sides(""), adaptive);
    // If only a time is given it applies to its side, and without frames only the time counts.
    assert_eq!(sides("tx_usecs = \"16us\""), (adaptive.0, fixed(16, 65_535)));
    assert_eq!(sides("adaptive = false\ntx_usecs = \"16us\""), (fixed(0, 1), fixed(16, 65_535)));
    assert_eq!(sides("rx_usecs = \"8us\""), (fixed(8, 65_535), fixed(8, 65_535)));
    assert_eq!(sides("rx_usecs = \"8us\"\nrx_frames = 64\ntx_usecs = \"16us\""), (fixed(8, 64), fixed(16, 64)));
    assert_eq!(sides("rx_usecs = \"8us\"\ntx_frames = 4"), (fixed(8, 65_535), fixed(8, 4)));
    assert_eq!(sides("rx_usecs = \"0us\""), (fixed(0, 1), fixed(0, 1)));
    assert_eq!(sides("rx_frames = 1"), (fixed(0, 1), fixed(0, 1)));
    let without = "without a time fewer frames would wait for ever: allowed is 1, or more with";
    for (keys, key) in [
        ("rx_frames = 32", "rx"),
        ("rx_usecs = \"0us\"\nrx_frames = 32", "rx"),
        ("tx_frames = 32", "tx"),
        ("rx_usecs = \"8us\"\ntx_usecs = \"0us\"\ntx_frames = 32", "tx"),
    ] {
        let line = 4 + keys.lines().count();
        let says = format!("small.toml:{line}: nic.{key}_frames: {without} {key}_usecs above 0us");
        refused("rx_usecs = \"8us\"", keys, &says);
    }
}

/// Whatever a file contains, it is read, or refused with its name in one line.
#[test]
fn no_file_makes_the_reader_panic() {
    let xdp = "[machine]\ncores = 2\n[nic]\nspeed = \"10Gbit/s\"\n[network]\nlatency = \"20us\"\n[service]\nkind = \
    \"af_xdp\"\n\
               wait = \"spin\"\npolling = \"inline\"\nbatch = 8\nreceive_cost = \"250ns\"\nhandle_cost = \"1us\"\n\
               send_cost = \"250ns\"\nclient = \"twin\"\nclient_delay = \"8us\"\n";
    for small in [SMALL, xdp] {
        never_panics(small);
    }
}

fn never_panics(small: &str) {
    let check = |text: &str| {
        if let Err(error) = WorldFile::parse("small.toml", text) {
            let said = error.to_string();
            assert!(said.starts_with("small.toml:") && !said.contains('\n'), "{said}");
        }
    };
    let places: Vec<usize> = small.char_indices().map(|(at, _)| at).collect();
    for &at in &places {
        check(&small[..at]);
        for character in ["µ", "\"", "[", "=", "\n", "9"] {
            check(&format!("{}{character}{}", &small[..at], &small[at + 1..]));
        }
    }
    for value in ["\"\"", "{}", "[]", "1e400", "-1", "99999999999999999999", "\"99999999999999999999s\"", "1979-05-27"]
    {
        for line in small.lines().filter(|line| line.contains('=')) {
            let key = line.split('=').next().unwrap();
            check(&small.replace(line, &format!("{key}= {value}")));
        }
    }
}

const SECOND: &str = "[second]\nconnections = 4\nload = \"2K\"\nrequest_cost = \"3us\"\n[run]";

#[test]
fn a_second_application_shares_the_queues_and_is_reported_apart() {
    let run = |service: &str, mode_name: &str| {
        let text = SMALL
            .replace("cores = 1", "cores = 2")
            .replace("[service]", &format!("[service]\nworkers = 1\n{service}"))
            .replace("[run]", SECOND);
        let file = WorldFile::parse("small.toml", &text).unwrap();
        let out = Sim::new(&file.world(&mode(mode_name), Traffic::Closed, 200_000_000), 1).run().unwrap();
        let second = out.second.clone().unwrap();
        // There are 2000 a second, for a fifth of a second; none of them is among the answers of the service.
        assert!((320..480).contains(&second.ns.len()), "{}", second.ns.len());
        assert_eq!(out.counts.answered, out.latency_ns.len());
        second.us(99.0)
    };
    let (linux, batched) =
        (run("events_max = 4", "suspend20"), run("events_max = 4\npoll_after_returns = 1", "suspend20"));
    // Before its packet come 32 requests of 6 us, or two batches of 4.
    assert!(linux > 180.0 && batched < 140.0, "{linux} {batched}");
    assert!(WorldFile::parse("small.toml", SMALL).unwrap().second.is_none());
}

#[test]
fn what_is_wrong_with_a_second_application_is_said() {
    let with = |second: &str| SMALL.replace("[run]", &format!("{second}\n[run]"));
    let said = |second: &str| WorldFile::parse("small.toml", &with(second)).unwrap_err().to_string();
    let missing = said("[second]\nconnections = 4\nload = \"2K\"");
    assert!(missing.contains("small.toml") && missing.contains("request_cost"), "{missing}");
    let none = said("[second]\nconnections = 4\nload = 0\nrequest_cost = \"3us\"");
    assert!(none.contains("second.load") && none.contains("allowed is 1"), "{none}");
    let unit = said("[second]\nconnections = 4\nload = 10\nrequest_cost = 3");
    assert!(unit.contains("request_cost") && unit.contains("has no unit"), "{unit}");
}

#[test]
fn an_af_xdp_responder_shares_its_queues_with_nobody() {
    let xdp = SMALL.replace("request_cost = \"6us\"", "handle_cost = \"1us\"").replace("\"epoll\"", "\"af_xdp\"");
    WorldFile::parse("small.toml", &xdp).unwrap();
    let error = WorldFile::parse("small.toml", &xdp.replace("[run]", SECOND)).unwrap_err().to_string();
    assert!(error.contains("second.connections: every frame of its queues goes to its own sockets"), "{error}");
    let returns = xdp.replace("kind = \"af_xdp\"", "kind = \"af_xdp\"\npoll_after_returns = 1");
    let error = WorldFile::parse("small.toml", &returns).unwrap_err().to_string();
    assert!(error.contains("service.poll_after_returns: an AF_XDP responder has"), "{error}");
}

#[test]
fn more_workers_than_queues_are_said() {
    let file = |queues: u32| {
        let text = SMALL.replace("[nic]\n", &format!("[nic]\nqueues = {queues}\n"));
        WorldFile::parse("small.toml", &text.replace("cores = 1", "cores = 4")).unwrap()
    };
    let said = file(2).mismatch().unwrap();
    assert!(said.starts_with("4 workers share 2 queues: ") && said.contains("ethtool -L"), "{said}");
    assert_eq!(file(4).mismatch(), None);
}
