//! Workloads with tables of their own: each row shows what it names, and the table can be written in every form.

mod shown;

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use lull_core::mode::Plane;
use lull_lab::bench::{BenchConfig, GroupSetup};
use lull_lab::case::after_idle::AfterIdle;
use lull_lab::case::batch_limit::BatchLimit;
use lull_lab::case::first_packet::FirstPacket;
use lull_lab::case::many_queues::ManyQueues;
use lull_lab::case::tcp_rr::TcpRr;
use lull_lab::case::{CaseTable, Effort};
use lull_lab::cell::Load;
use lull_lab::document::Document;
use lull_lab::table::TableStyle;
use lull_nic::Moderation;

/// An effort for cases that are refused.
fn effort(stop: &AtomicBool) -> Effort<'_> {
    shown::effort(stop, Duration::from_millis(10))
}

fn ours(table: &CaseTable, row: usize, measure: &str) -> f64 {
    table.rows[row].values[table.measure_at(measure)].ours.expect("it was measured").value
}

fn simulated(table: &CaseTable, row: usize, measure: &str) -> f64 {
    table.rows[row].values[table.measure_at(measure)].simulated.expect("the simulator has it")
}

/// Checks that text, CSV, JSON and page hold every row.
fn is_written_in_every_form(table: &CaseTable) {
    let text = table.render(TableStyle::default());
    let csv = table.csv();
    assert_eq!(csv.lines().count(), 1 + table.rows.len(), "{csv}");
    let json: serde_json::Value = serde_json::from_str(&table.json().unwrap()).unwrap();
    assert_eq!(json["rows"].as_array().unwrap().len(), table.rows.len());
    let page = table.html();
    for row in &table.rows {
        assert!(text.contains(&row.keys[0]) && page.contains(&row.keys[0]), "{text}");
    }
}

#[test]
fn a_batch_limit_bounds_what_the_first_service_takes_and_both_services_answer() {
    let case = BatchLimit {
        events_max: vec![1, 64],
        mode: "suspend20".parse().unwrap(),
        connections: 32,
        second_qps: 2_000.0,
        cores: Vec::new(),
    };
    let table = shown::table(&["second_p99_us", "first_kqps"], |effort| case.run(effort).unwrap());
    assert_eq!(table.rows.len(), 4);
    for row in 0..4 {
        assert!(shown::is_shown(&table.rows[row]), "{:?}", table.rows[row]);
        assert!(ours(&table, row, "second_p99_us") > 0.0 && ours(&table, row, "first_kqps") > 0.0);
    }
    for row in [0, 2] {
        assert!(ours(&table, row, "first_events") <= 1.0, "{:?}", table.rows[row]);
    }
    // Rows 0 and 1 poll as Linux does, 2 and 3 after each return. Only with the latter is a small batch a bound.
    assert!(simulated(&table, 2, "second_p99_us") < 0.5 * simulated(&table, 3, "second_p99_us"));
    assert!(simulated(&table, 0, "second_p99_us") > 0.8 * simulated(&table, 1, "second_p99_us"));
    is_written_in_every_form(&table);
}

#[test]
fn each_end_of_tcp_rr_has_its_interrupts_or_busy_polls_and_modes_for_epoll_are_refused() {
    let stop = AtomicBool::new(false);
    let case = |modes: &[&str]| TcpRr {
        plane: Plane::User,
        moderations: vec![Moderation { rx_usecs: 16, rx_frames: 44 }, Moderation { rx_usecs: 1, rx_frames: 1 }],
        modes: modes.iter().map(|mode| mode.parse().unwrap()).collect(),
        cores: Vec::new(),
    };
    let refused = case(&["base", "suspend20"]).run(&effort(&stop)).unwrap_err().to_string();
    assert!(refused.contains("suspend20") && refused.contains("epoll"), "{refused}");
    let measure = |effort: &Effort<'_>| case(&["base", "busyread"]).run(effort).unwrap();
    let table = shown::table(&["transactions_per_s"], measure);
    let published: Vec<f64> = table.rows.iter().map(|row| row.values[0].published.unwrap()).collect();
    assert_eq!(published, [17_500.0, 77_000.0, 37_000.0, 77_000.0]);
    for row in 0..4 {
        assert!(shown::is_shown(&table.rows[row]), "{:?}", table.rows[row]);
        assert!(ours(&table, row, "transactions_per_s") > 0.0);
        let busy = ours(&table, row, "busy_polls_per_transaction");
        assert_eq!(busy > 0.0, row % 2 == 1, "{:?}", table.rows[row]);
    }
    // The number for each transaction depends on the machine's other load.
    assert!(ours(&table, 0, "interrupts_per_transaction") > 0.0, "{:?}", table.rows[0]);
    is_written_in_every_form(&table);
}

/// On Linux's stack the trace shows what polled: softirq, softirq and timers, receive calls, threads.
#[test]
fn tcp_rr_on_the_kernels_plane_shows_who_polled_at_both_ends() {
    if !rustix::process::geteuid().is_root() {
        println!("SKIP: network namespaces take root");
        return;
    }
    let stop = AtomicBool::new(false);
    let case = |moderations, modes: &[&str]| TcpRr {
        plane: Plane::Kernel,
        moderations,
        modes: modes.iter().map(|mode| mode.parse().unwrap()).collect(),
        cores: Vec::new(),
    };
    let coalescing = vec![Moderation { rx_usecs: 16, rx_frames: 44 }];
    let refused = case(coalescing, &["base"]).run(&effort(&stop)).unwrap_err().to_string();
    assert!(refused.contains("defer15"), "{refused}");
    let modes = ["base", "defer15", "busyread", "threaded"];
    let table = shown::table(&["transactions_per_s"], |effort| case(Vec::new(), &modes).run(effort).unwrap());
    let published: Vec<Option<f64>> = table.rows.iter().map(|row| row.values[0].published).collect();
    assert_eq!(published, [Some(37_000.0), Some(17_500.0), Some(77_000.0), None]);
    for (row, mode) in modes.iter().enumerate() {
        let verdict = table.rows[row].verdict.as_ref().unwrap();
        if verdict.is_refused() {
            println!("SKIP: {mode}: {}", verdict.reason().unwrap());
            continue;
        }
        assert!(shown::is_shown(&table.rows[row]), "{:?}", table.rows[row]);
        assert_eq!(ours(&table, row, "busy_polls_per_transaction") > 0.0, *mode == "busyread");
        assert_eq!(ours(&table, row, "softirq_polls_per_transaction") > 0.0, *mode != "threaded");
    }
    is_written_in_every_form(&table);
}

#[test]
fn a_group_that_rests_and_interrupts_answer_after_a_pause() {
    let core = lull_host::usable_cores()[0];
    let group = Some(GroupSetup { cores: vec![core], ..GroupSetup::default() });
    let bench = BenchConfig { connections: 8, group, ..BenchConfig::default() };
    let case = AfterIdle { modes: ["base", "group50"].map(|mode| mode.parse().unwrap()).to_vec(), bench };
    let table = shown::table(&["idle_cpu_percent", "after_pause_p50_us"], |effort| case.run(effort).unwrap());
    for row in &table.rows {
        assert!(shown::is_shown(row), "{row:?}");
    }
    if lull_host::usable_cores().len() > 1 {
        assert!(ours(&table, 1, "wake_us") > 0.0);
        let note = table.notes.iter().find(|note| note.contains("In group50 a request after a pause"));
        assert!(note.is_some_and(|note| note.contains("wake-ups")), "{:?}", table.notes);
    }
    is_written_in_every_form(&table);
}

#[test]
fn the_first_packet_after_a_pause_is_timed_without_dry_runs_and_with_them() {
    let case = FirstPacket { gaps: vec![Duration::from_millis(1)], cores: Vec::new() };
    let table =
        shown::table(&["without_p50_ns", "with_p50_ns", "dry_runs_per_datagram"], |effort| case.run(effort).unwrap());
    for row in &table.rows {
        assert!(shown::is_shown(row), "{row:?}");
    }
    for row in 0..2 {
        let saved = ours(&table, row, "without_p50_ns") - ours(&table, row, "with_p50_ns");
        assert_eq!(ours(&table, row, "saved_ns"), saved, "of one run");
    }
    is_written_in_every_form(&table);
}

#[test]
fn a_service_serves_the_same_load_on_more_queues() {
    let stop = AtomicBool::new(false);
    let case = ManyQueues {
        queues: vec![1, 4],
        modes: vec!["base".parse().unwrap()],
        load: Load::Max,
        bench: BenchConfig { connections: 64, buffer_bytes: 2_048, ..BenchConfig::default() },
    };
    let table = shown::table(&["kqps", "packets_per_poll"], |effort| case.run(effort).unwrap());
    for row in 0..2 {
        assert!(shown::is_shown(&table.rows[row]), "{:?}", table.rows[row]);
        assert!(
            ours(&table, row, "kqps") > 0.0 && ours(&table, row, "packets_per_poll") >= 1.0,
            "{:?}",
            table.rows[row]
        );
    }
    is_written_in_every_form(&table);
    let share = ManyQueues { load: "25%".parse().unwrap(), ..case };
    assert!(share.run(&effort(&stop)).unwrap_err().to_string().contains("cannot offer 25%"));
}
