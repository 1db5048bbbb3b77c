//! World files from docs/world_files.md: its examples are read, it has every key, and the keys of the load, of the user
//! plane and of placement do what it says.

use lull_core::Mode;
use lull_sim::{Outcome, Sim, Traffic, WorldFile};

fn docs() -> String {
    std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/world_files.md")).unwrap()
}

fn mode(name: &str) -> Mode {
    name.parse().unwrap()
}

fn parse(text: &str) -> WorldFile {
    WorldFile::parse("w.toml", text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

/// One core of lull's own stack whose requests take 2 us.
const USER: &str = r#"[machine]
cores = 1
plane = "user"
[nic]
speed = "10Gbit/s"
rx_usecs = "0us"
rss = "even"
[network]
latency = "2us"
[load]
[service]
kind = "epoll"
connections = 32
request_cost_own = "2us"
[run]
warmup = "5ms"
"#;

fn run(text: &str, name: &str, traffic: Traffic) -> Outcome {
    Sim::new(&parse(text).world(&mode(name), traffic, 200_000_000), 3).run().unwrap()
}

#[test]
fn files_that_the_documentation_shows_are_read() {
    let docs = docs();
    let blocks: Vec<&str> =
        docs.split("```toml\n").skip(1).map(|rest| rest.split("```").next().unwrap_or("")).collect();
    assert!(blocks.len() >= 2);
    for block in blocks {
        let file = parse(block);
        let out = Sim::new(&file.world(&mode("base"), Traffic::Open { per_s: 20_000.0 }, 50_000_000), 1).run().unwrap();
        assert!((out.qps() - 20_000.0).abs() < 2_000.0, "{}", out.qps());
    }
}

#[test]
fn every_key_stands_in_the_documentation() {
    let docs = docs();
    for section in ["machine", "nic", "network", "load", "service", "group", "transmit", "second", "costs", "run"] {
        let header = format!("[{section}]\n");
        let text = match USER.contains(&header) {
            true => USER.replace(&header, &format!("{header}no_such_key = 1\n")),
            false => format!("{USER}{header}no_such_key = 1\n"),
        };
        let said = WorldFile::parse("w.toml", &text).unwrap_err().to_string();
        let (_, keys) = said.split_once(&format!("the keys of [{section}] are ")).unwrap_or_else(|| panic!("{said}"));
        for key in keys.split(", ") {
            assert!(docs.contains(&format!("`{key}`")), "[{section}] {key} is not in docs/world_files.md");
        }
    }
}

#[test]
fn a_trace_is_stretched_to_the_load_and_keeps_its_bursts() {
    let directory = std::env::temp_dir().join(format!("lull-trace-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    // Ten requests come at once, every 10 ms, which is a thousand a second.
    let times: String = (0..1_000).map(|nth: u32| format!("{}.{:03}\n", 5 + nth / 1_000, nth / 10 * 10)).collect();
    std::fs::write(directory.join("times.txt"), format!("# recorded once\n{times}")).unwrap();
    let path = directory.join("w.toml");
    let named = path.display().to_string();
    let traced = USER.replace("[load]", "[load]\ntrace = \"times.txt\"").replace("cores = 1", "cores = 2");
    let file = WorldFile::parse(&named, &traced).unwrap();
    let out = Sim::new(&file.world(&mode("base"), Traffic::Open { per_s: 20_000.0 }, 200_000_000), 3).run().unwrap();
    assert!((out.qps() - 20_000.0).abs() < 500.0, "{}", out.qps());
    // Of ten requests at once on two workers some wait for others; of as many at random hardly any do.
    let alone = Sim::new(
        &parse(&USER.replace("cores = 1", "cores = 2")).world(
            &mode("base"),
            Traffic::Open { per_s: 20_000.0 },
            200_000_000,
        ),
        3,
    );
    let alone = alone.run().unwrap();
    assert!(out.latency_us(90.0) > alone.latency_us(90.0) + 5.0, "{} {}", out.latency_us(90.0), alone.latency_us(90.0));
    let said = |text: &str| WorldFile::parse(&named, text).unwrap_err().to_string();
    std::fs::write(directory.join("times.txt"), "1.5\nsoon\n").unwrap();
    let error = said(&traced);
    assert!(error.contains("w.toml:11: load.trace: line 2 of") && error.contains("is no time"), "{error}");
    std::fs::write(directory.join("times.txt"), "2\n1\n").unwrap();
    assert!(said(&traced).contains("in order"), "{}", said(&traced));
    std::fs::remove_dir_all(&directory).unwrap();
    assert!(said(&traced).contains("cannot read the trace"), "{}", said(&traced));
    let both = traced.replace("[load]", "[load]\narrivals = \"poisson\"");
    assert!(said(&both).contains("load.trace: only arrivals = \"trace\" has one"), "{}", said(&both));
    let none = USER.replace("[load]", "[load]\narrivals = \"trace\"");
    assert!(said(&none).contains("load.arrivals: needs trace"), "{}", said(&none));
}

#[test]
fn a_trace_that_may_have_no_end_is_not_read() {
    let endless = USER.replace("[load]", "[load]\ntrace = \"/dev/zero\"");
    let said = WorldFile::parse("w.toml", &endless).unwrap_err().to_string();
    assert!(said.contains("load.trace: /dev/zero is no regular file"), "{said}");
}

#[test]
fn what_a_request_costs_is_given_once() {
    for (key, other) in [("request_cost", "request_cost_own"), ("request_cost_total", "request_cost_own")] {
        let twice = USER.replace("[run]", &format!("{key} = \"3us\"\n[run]"));
        let said = WorldFile::parse("w.toml", &twice).unwrap_err().to_string();
        assert!(said.contains(&format!("service.{other}: give one of")), "{said}");
    }
    let never = USER.replace("request_cost_own = \"2us\"\n", "");
    let said = WorldFile::parse("w.toml", &never).unwrap_err().to_string();
    assert!(said.contains("a service needs request_cost"), "{said}");
}

#[test]
fn an_af_xdp_responder_has_no_keys_of_a_stack() {
    let responder = |load: &str, service: &str| {
        let text = format!(
            "[machine]\ncores = 1\n[nic]\nspeed = \"10Gbit/s\"\n[network]\nlatency = \"5us\"\n[load]\n{load}\n[service]\n\
             kind = \"af_xdp\"\nconnections = 8\nhandle_cost = \"1us\"\n{service}\n"
        );
        WorldFile::parse("w.toml", &text)
    };
    responder("", "").unwrap_or_else(|error| panic!("{error}"));
    for (load, service, key) in [
        ("", "request_cost_own = \"1us\"", "service.request_cost_own"),
        ("acks = true", "", "load.acks"),
        ("generator_send = \"1us\"", "", "load.generator_send"),
        ("generator_raise = \"1us\"", "", "load.generator_raise"),
    ] {
        let said = responder(load, service).unwrap_err().to_string();
        assert!(said.contains(key), "{said}");
    }
}

#[test]
fn connections_are_spread_as_counted_and_sizes_are_distributed() {
    let three = USER.replace("cores = 1", "cores = 3").replace("rss = \"even\"", "spread = [20, 5, 7]");
    let world = parse(&three).world(&mode("base"), Traffic::Closed, 1_000_000);
    assert_eq!(world.connections.iter().map(|group| group.count).collect::<Vec<_>>(), [20, 5, 7]);
    let said = |text: &str| WorldFile::parse("w.toml", text).unwrap_err().to_string();
    let short = said(&three.replace("[20, 5, 7]", "[20, 12]"));
    assert!(short.contains("w.toml:7: nic.spread: 2 queues with 32 connections: allowed are 3 numbers"), "{short}");
    let fixed = parse(USER).frames;
    let facebook = parse(&USER.replace("[load]", "[load]\nsizes = \"facebook\"\narrivals = \"facebook\""));
    assert_ne!(fixed, facebook.frames);
    let groups = facebook.world(&mode("base"), Traffic::Open { per_s: 1_000.0 }, 1_000_000).connections;
    assert!(matches!(groups[0].traffic, Traffic::Renewal { per_s, .. } if (per_s - 1_000.0).abs() < 1e-6));
    assert!(facebook.describe().ends_with("Facebook's arrivals"), "{}", facebook.describe());
}

#[test]
fn workers_that_nothing_pins_begin_where_the_seed_says() {
    let text = USER.replace("cores = 1", "cores = 8").replace("kind =", "worker_cores = \"any\"\nkind =");
    let file = parse(&text);
    let places = |seed: u64| -> Vec<u16> {
        let world = file.seeded_world(&mode("base"), Traffic::Open { per_s: 1_000.0 }, 1_000_000, seed);
        assert!(world.cores.workers_move);
        world.workers.iter().map(|worker| worker.cpu).collect()
    };
    let mut sorted = places(1);
    sorted.sort_unstable();
    assert_eq!(sorted, (0..8).collect::<Vec<_>>());
    assert_ne!(places(1), places(2));
    assert!(!file.world(&mode("base"), Traffic::Closed, 1_000_000).cores.workers_move);
}

#[test]
fn on_the_user_plane_a_sleeping_worker_is_woken_by_the_interrupt_itself() {
    // The requests are far apart, so each finds the worker asleep.
    let costs = "[costs]\nidle_shallow_exit = \"20us\"\nwake = \"50us\"\nswitch = \"50us\"\nirq = \"50us\"\n";
    let out = run(&format!("{USER}{costs}"), "base", Traffic::Open { per_s: 500.0 });
    let p50_us = out.latency_us(50.0);
    // The network takes 2 us, the request 2 us, and it is 20 us until the worker runs; there is no wake-up, no switch,
    // and no interrupt that takes the core.
    assert!((24.0..27.0).contains(&p50_us), "{p50_us}");
    assert_eq!(out.napi.polls, out.counts.irqs);
    // While the worker computes an interrupt takes its core, for 50 us each.
    let busy = run(&format!("{USER}{costs}"), "base", Traffic::Open { per_s: 100_000.0 });
    let free = run(
        &format!("{USER}{}", costs.replace("irq = \"50us\"", "irq = \"0us\"")),
        "base",
        Traffic::Open { per_s: 100_000.0 },
    );
    assert!(busy.latency_mean_us() > 2.0 * free.latency_mean_us(), "{busy:?}");
}

#[test]
fn on_the_user_plane_a_resume_that_finds_nothing_gives_the_queue_back_to_its_interrupt() {
    let timers = |text: &str| run(text, "suspend20", Traffic::Open { per_s: 5_000.0 }).counts.timer_irqs;
    assert_eq!(timers(USER), 0);
    let deferral = USER.replace("plane = \"user\"", "plane = \"user\"\nafter_resume = \"deferral\"");
    assert!(timers(&deferral) > 1_000, "{}", timers(&deferral));
    let kernel = deferral.replace("plane = \"user\"\n", "");
    let said = WorldFile::parse("w.toml", &kernel).unwrap_err().to_string();
    assert!(said.contains("machine.after_resume: the kernel defers after a resume, always"), "{said}");
}

#[test]
fn timers_of_the_user_plane_wait_for_the_next_call_while_a_worker_computes() {
    // Requests of 30 us come one behind another, and a timer of 10 us falls due while one is served.
    let slow = USER.replace("\"2us\"\n[run]", "\"30us\"\n[costs]\ntimer_irq = \"90us\"\n[run]");
    let traffic = Traffic::Open { per_s: 30_000.0 };
    let mut world = parse(&slow).world(&mode("defer10"), traffic, 200_000_000);
    // The kernel timer behind them comes so late that each time a look of the worker's comes first.
    world.host.as_mut().unwrap().timer_slack_ns = 1_000_000_000;
    let out = Sim::new(&world, 3).run().unwrap();
    assert!(out.counts.timer_irqs > 1_000);
    // None of them interrupted the worker, which would have cost 90 us each.
    assert!((out.qps() - 30_000.0).abs() < 1_000.0, "{}", out.qps());
    // With the slack of 50 us the kernel timer fires, and interrupts the worker.
    let out = run(&slow, "defer10", traffic);
    assert!(out.counts.backstops > 500 && out.qps() < 28_000.0, "{} {}", out.counts.backstops, out.qps());
}

#[test]
fn a_generator_is_the_limit_if_it_takes_longer_than_the_server() {
    let limited = USER.replace("[load]", "[load]\ngenerator_send = \"3us\"\ngenerator_answer = \"2us\"");
    let out = run(&limited, "fullbusy", Traffic::Closed);
    assert!((out.qps() - 200_000.0).abs() < 4_000.0, "{}", out.qps());
    assert!(run(USER, "fullbusy", Traffic::Closed).qps() > 300_000.0);
    // The time in which the generator wakes the server counts as latency.
    let waking = USER.replace("[load]", "[load]\ngenerator_raise = \"40us\"");
    let p50_us = |text: &str| run(text, "base", Traffic::Open { per_s: 2_000.0 }).latency_us(50.0);
    assert!(p50_us(&waking) > p50_us(USER) + 10.0, "{} {}", p50_us(&waking), p50_us(USER));
}
