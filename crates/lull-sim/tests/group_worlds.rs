//! `[group]` in world files: the group polls in its modes and in no other, with the budget that was given, and an error
//! names the line and what is allowed.

use lull_core::Mode;
use lull_sim::worldfile::EXAMPLES;
use lull_sim::{Outcome, Sim, Traffic, WorldFile};

const WORLD: &str = r#"[machine]
cores = 4
idle = "shallow"
[nic]
speed = "10Gbit/s"
queues = 2
rx_usecs = "8us"
[network]
latency = "10us"
[service]
kind = "epoll"
workers = 2
connections = 64
request_cost_own = "2us"
[group]
cpus = "2-3"
"#;

fn run(text: &str, mode: &str) -> Outcome {
    run_at(50_000.0, text, mode)
}

fn run_at(per_s: f64, text: &str, mode: &str) -> Outcome {
    let file = WorldFile::parse("w.toml", text).unwrap_or_else(|error| panic!("{error}"));
    let mode: Mode = mode.parse().unwrap();
    file.can_run(&mode).unwrap_or_else(|why| panic!("{why}"));
    Sim::new(&file.world(&mode, Traffic::Open { per_s }, 50_000_000), 1).run().unwrap()
}

#[test]
fn a_group_polls_in_its_modes_and_its_last_core_rests_where_the_mode_says_so() {
    let base = run(WORLD, "base");
    assert!(base.napi.group_polls == 0 && base.counts.irqs > 1_000, "{base:?}");
    for mode in ["group", "group-rx"] {
        let spins = run(WORLD, mode);
        assert_eq!((spins.counts.irqs, spins.napi.softirq_polls), (0, 0), "{mode}");
        assert!(spins.napi.group_polls > 1_000 && (spins.qps() - 50_000.0).abs() < 2_500.0, "{mode}: {spins:?}");
        assert!(spins.latency_us(50.0) < base.latency_us(50.0), "{mode}");
    }
    let rests = run(WORLD, "group5");
    assert!(rests.counts.irqs > 100 && rests.napi.softirq_polls == 0, "{rests:?}");
    assert!(rests.cpu.idle_ns > run(WORLD, "group").cpu.idle_ns);
}

#[test]
fn queues_that_are_no_members_keep_their_interrupts_and_a_budget_is_kept() {
    let one = run(&format!("{WORLD}queues = \"0\"\n"), "group");
    assert!(one.counts.irqs > 500 && one.napi.group_polls > 500 && one.napi.softirq_polls > 500, "{one:?}");
    let idle_ns = |more: &str| run_at(5_000.0, &format!("{WORLD}{more}"), "group").cpu.idle_ns;
    // One core spins; with a budget of a twentieth for empty passes most of its time is given back.
    let back_ns = idle_ns("cycles = \"5%\"\n").saturating_sub(idle_ns(""));
    assert!(back_ns > 25_000_000, "{back_ns} of 50,000,000 ns");
}

#[test]
fn a_world_without_a_group_says_what_to_add() {
    let none = WORLD.replace("[group]\ncpus = \"2-3\"\n", "");
    let file = WorldFile::parse("w.toml", &none).unwrap();
    let why = file.can_run(&"group50".parse().unwrap()).unwrap_err();
    assert!(why.contains("add [group] with cpus"), "{why}");
    assert!(!file.describe().contains("group"));
    assert!(WorldFile::parse("w.toml", WORLD).unwrap().describe().contains("cores 2-3 receive"));
}

#[test]
fn what_is_wrong_is_named_with_its_line_and_what_is_allowed() {
    for (more, said) in [
        ("cpus = \"0-3\"", "w.toml:16: group.cpus: all 4 cores are the group's: leave one to the workers"),
        ("cpus = \"2,4\"", "w.toml:16: group.cpus: there is no core 4: allowed are 0 to 3"),
        ("cpus = \"2,2\"", "w.toml:16: group.cpus: core 2 is named twice"),
        ("cpus = \"two\"", "w.toml:16: group.cpus: 'two' is not a list of numbers such as 0,2-3"),
        ("queues = \"0\"", "w.toml:15: group.cpus: missing, and it has no default"),
        ("cpus = \"2\"\nqueues = \"0,2\"", "w.toml:17: group.queues: there is no queue 2: allowed are 0 to 1"),
        ("cpus = \"2\"\ncycles = \"0%\"", "w.toml:17: group.cycles: 0% is impossible here: allowed is 1% to 2600%"),
        ("cpus = \"2\"\ncycles_total = \"10.5%\"", "w.toml:17: group.cycles_total: whole percent are allowed"),
        ("cpus = \"2\"\npark_below = \"90%\"", "w.toml:17: group.park_below: a group cannot wake pollers above 80 %"),
        ("cpus = \"2\"\nwake_above = \"40%\"", "w.toml:17: group.wake_above: a group cannot wake pollers above 40 %"),
        ("cpus = \"2\"\nrest = \"5us\"", "w.toml:17: group.rest: unknown; the keys of [group] are cpus, queues"),
    ] {
        let text = WORLD.replace("cpus = \"2-3\"", more);
        let error = WorldFile::parse("w.toml", &text).unwrap_err().to_string();
        assert!(error.starts_with(said), "{error}\n{said}");
    }
    let (_, xdp) = EXAMPLES.iter().find(|(name, _)| *name == "af_xdp.toml").unwrap();
    let error = WorldFile::parse("x.toml", &format!("{xdp}\n[group]\ncpus = \"0\"\n")).unwrap_err().to_string();
    assert!(error.contains("group.cpus: an AF_XDP responder"), "{error}");
}
