//! Unmodified programs on lull's user plane (`lull run --nic ...`), each with a script in `programs/` and in namespaces of
//! its own.

mod user;

use user::{missing, run, run_in};

#[test]
fn memcached_with_one_worker_answers_in_every_kind_of_mode() {
    for mode in ["base", "suspend20", "fullbusy"] {
        run("memcached", "command -v memcached && command -v ip", mode, "1");
    }
}

#[test]
fn memcached_whose_dispatcher_hands_connections_to_four_workers_answers() {
    for mode in ["base", "suspend20"] {
        run("memcached", "command -v memcached && command -v ip", mode, "4");
    }
}

#[test]
fn the_peers_of_a_program_that_is_killed_are_reset() {
    run("killed", "command -v memcached && command -v python3 && command -v pgrep && command -v ip", "suspend20", "");
}

#[test]
fn redis_answers_from_one_thread_and_from_several() {
    let needs = "command -v redis-server && command -v redis-benchmark && command -v ip";
    for (mode, threads) in [("base", "1"), ("suspend20", "1"), ("suspend20", "2")] {
        run("redis", needs, mode, threads);
    }
}

#[test]
fn nginx_serves_files_and_ends_cleanly_in_every_kind_of_mode() {
    for mode in ["base", "suspend20", "fullbusy"] {
        run("nginx", "command -v nginx && command -v curl && command -v ab && command -v ip", mode, "");
    }
}

#[test]
fn haproxy_with_two_threads_passes_on_between_two_connections_of_lulls() {
    for mode in ["base", "suspend20"] {
        run("haproxy", "command -v haproxy && command -v curl && command -v ab && command -v ip", mode, "");
    }
}

/// Every mode of the catalogue is in force, or is refused before anything starts.
#[test]
fn a_mode_is_what_it_says_or_is_refused_by_name() {
    let needs = "command -v python3 && command -v pgrep && command -v ip";
    for entry in lull_core::mode::CATALOGUE {
        let mode = entry.form.replace('X', "20");
        let refused = if ["coalesce-X", "group", "groupX", "group-rx"].contains(&entry.form) { "refused" } else { "" };
        run("modes", needs, &mode, refused);
    }
}

#[test]
fn fullbusy_holds_nothing_back_for_a_program_that_does_not_poll() {
    run("modes", "command -v python3 && command -v pgrep && command -v ip", "fullbusy", "recv");
}

#[test]
fn sources_that_are_not_allowed_are_dropped_and_counted() {
    run("allow", "command -v python3 && command -v ping && command -v pgrep && command -v ip", "base", "");
}

#[test]
fn netlink_tells_a_program_of_lulls_napis_and_changes_them() {
    for queues in ["1", "2"] {
        run("netlink", "command -v python3 && command -v ip", "base", queues);
    }
}

#[test]
fn a_program_that_lists_its_interfaces_finds_lulls_addresses() {
    run("interfaces", "command -v cc && command -v python3 && command -v ip", "base", "");
}

#[test]
fn a_program_on_one_core_has_one_interrupt_thread_for_all_its_queues() {
    run("one_core", "command -v memcached && command -v taskset && [ $(nproc) -gt 1 ]", "suspend20", "");
}

/// A CPU has places for 64 workers; threads beyond these are served as well.
#[test]
fn a_program_may_have_hundreds_of_threads_that_wait() {
    for call in ["recv", "poll", "select", "epoll"] {
        run("threads", "command -v python3", "suspend20", call);
    }
}

#[test]
fn programs_that_use_no_address_of_lulls_do_not_notice_the_library() {
    run("ordinary", "command -v python3 && command -v git && command -v cmp", "base", "");
}

/// AF_XDP takes the rights of the real root: those of a user namespace are not enough to load its program.
#[test]
fn memcached_on_an_interface_of_the_host_by_af_xdp_answers_and_its_death_leaves_the_host_alone() {
    let needs = "test $(id -u) = 0 && command -v memcached && command -v ip && command -v ping && command -v python3";
    if let Some(reason) = missing(needs) {
        println!("SKIP: a program over AF_XDP: {reason}, or this is not root");
        return;
    }
    for (mode, whose) in [("base", "alone"), ("suspend20", "alone"), ("suspend20", "hosts")] {
        run_in(&["-n"], "xdp", mode, whose);
    }
}
