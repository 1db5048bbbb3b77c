//! In a flood every datagram is received, or dropped and counted at the right place. Each mode delivers as it is named,
//! and the other members of a group wait for a flooded one no longer than the weights allow.

mod shown;

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use lull_lab::case::{CaseTable, Effort};
use lull_lab::flood::crowd::Crowd;
use lull_lab::flood::fairness::Fairness;
use lull_lab::flood::{Flood, FloodMode, Path};

/// An effort for cases that are refused.
fn effort(stop: &AtomicBool) -> Effort<'_> {
    shown::effort(stop, Duration::from_millis(10))
}

fn modes(names: &[&str]) -> Vec<FloodMode> {
    names.iter().map(|name| name.parse().unwrap()).collect()
}

fn flood(path: Path, names: &[&str]) -> Flood {
    Flood {
        bytes: vec![64],
        flows: vec![1, 3],
        modes: modes(names),
        path,
        per_second: None,
        cores: Vec::new(),
        policy: None,
        group: None,
    }
}

fn ours(table: &CaseTable, row: usize, measure: &str) -> Option<f64> {
    table.rows[row].values[table.measure_at(measure)].ours.map(|ours| ours.value)
}

/// Floods until every row delivers.
#[track_caller]
fn floods(flood: &Flood) -> CaseTable {
    let table = shown::table(&["goodput_kpps"], |effort| flood.run(effort).unwrap());
    for row in 0..table.rows.len() {
        assert!(shown::is_shown(&table.rows[row]), "{:?}", table.rows[row]);
        assert!(ours(&table, row, "goodput_kpps").unwrap() > 0.0, "{:?}", table.rows[row]);
        let share = ours(&table, row, "share_of_peak").unwrap();
        assert!(share > 0.0 && share <= 1.0, "{:?}", table.rows[row]);
    }
    assert!(!table.interrupted, "{:?}", table.notes);
    table
}

/// Each run fails if a datagram that the ring took is neither received nor counted as dropped.
#[test]
fn every_datagram_is_received_or_dropped_and_counted_in_every_mode() {
    let table = floods(&flood(Path::Mem, &["softirq", "threaded", "threaded-busy", "group", "group50"]));
    assert_eq!(table.rows.len(), 10);
}

#[test]
fn a_rate_bounds_the_flood_and_threads_have_their_policy() {
    let stop = AtomicBool::new(false);
    let policy = Some("other:5".parse().unwrap());
    let slow = Flood { per_second: Some(500.0), policy, flows: vec![2], ..flood(Path::Mem, &["threaded"]) };
    floods(&slow);
    let without = Flood { modes: modes(&["softirq"]), ..slow };
    let refused = without.run(&effort(&stop)).unwrap_err().to_string();
    assert!(refused.contains("thread policy") && refused.contains("threaded"), "{refused}");
}

#[test]
fn a_datagram_of_several_frames_is_refused_by_name() {
    let stop = AtomicBool::new(false);
    let large = Flood { bytes: vec![4_096], flows: vec![1], ..flood(Path::Mem, &["softirq"]) };
    let table = large.run(&effort(&stop)).unwrap();
    let reason = table.rows[0].verdict.as_ref().unwrap().reason().unwrap().to_owned();
    assert!(reason.contains("fragments") && reason.contains("1472"), "{reason}");
    assert_eq!(ours(&table, 0, "goodput_kpps"), None);
}

#[test]
fn over_a_tap_the_kernels_datagrams_arrive() {
    if !rustix::process::geteuid().is_root() {
        println!("SKIP: a TAP in a namespace of its own takes root here");
        return;
    }
    lull_nic::namespace::enter_private().unwrap();
    floods(&flood(Path::Tap, &["softirq", "threaded"]));
    // It is sent in fragments, which lull puts together.
    floods(&Flood { bytes: vec![4_096], flows: vec![1], ..flood(Path::Tap, &["softirq"]) });
}

#[test]
fn on_the_kernels_plane_softirq_and_threads_deliver_and_groups_are_refused() {
    if !rustix::process::geteuid().is_root() {
        println!("SKIP: network namespaces take root");
        return;
    }
    let stop = AtomicBool::new(false);
    floods(&flood(Path::Kernel, &["softirq", "threaded"]));
    let refused = flood(Path::Kernel, &["group"]).run(&effort(&stop)).unwrap();
    let reason = refused.rows[0].verdict.as_ref().unwrap().reason().unwrap().to_owned();
    assert!(reason.contains("threaded-busy"), "{reason}");
}

/// The wait is counted in packets, so that it does not depend on the scheduler: a poller visits a full member again
/// only after all others.
#[test]
fn the_others_of_a_flooded_member_wait_for_twice_the_weights_at_most() {
    let case = Fairness { modes: vec!["group".parse().unwrap()], cores: Vec::new() };
    let table = shown::table(&["wait_p50_us"], |effort| case.run(effort).unwrap());
    for row in 0..2 {
        assert!(shown::is_shown(&table.rows[row]), "{:?}", table.rows[row]);
    }
    let (most, bound) = (ours(&table, 1, "wait_packets_max").unwrap(), ours(&table, 1, "bound_packets").unwrap());
    assert_eq!(bound, 1_024.0);
    assert!(most <= bound, "{:?}", table.rows[1]);
    // A frame takes longer than a single instruction to be sent, polled and noticed.
    assert!(ours(&table, 1, "wait_p50_us").unwrap() > 0.01, "{:?}", table.rows[1]);
}

#[test]
fn a_crowd_is_served_in_every_mode() {
    let stop = AtomicBool::new(false);
    let case = |applications| Crowd {
        applications: vec![applications],
        modes: ["base", "fullbusy", "group"].map(|mode| mode.parse().unwrap()).to_vec(),
        per_second: 2_000,
        cores: Vec::new(),
    };
    let table = shown::table(&["kqps"], |effort| case(3).run(effort).unwrap());
    for row in &table.rows {
        assert!(shown::is_shown(row), "{row:?}");
    }
    assert!(case(65).run(&effort(&stop)).unwrap_err().to_string().contains("1 to 64"));
}
