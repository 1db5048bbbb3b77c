//! Programs of several processes on lull's user plane: their queues, connections and descriptors when one of them
//! forks, reloads, executes another program, is stopped or dies.

mod user;

const NGINX: &str = "command -v nginx && command -v python3 && command -v curl && command -v ab && command -v ip";

const NGINX_AND_PYTHON: &str = "command -v nginx && command -v curl && command -v python3 && command -v ip";

#[test]
fn two_nginx_workers_have_a_queue_each_and_one_that_is_killed_is_replaced() {
    for mode in ["base", "suspend20"] {
        user::run("workers", NGINX, mode, "tap");
    }
}

/// AF_XDP takes the rights of the real root.
fn over_xdp(script: &str, needs: &str, mode: &str, argument: &str) {
    let needs = format!("test $(id -u) = 0 && command -v ping && {needs}");
    match user::missing(&needs) {
        Some(reason) => println!("SKIP: {script} over AF_XDP: {reason}, or this is not root"),
        None => user::run_in(&["-n"], script, mode, argument),
    }
}

#[test]
fn workers_share_out_the_queues_of_an_interface_by_af_xdp() {
    for mode in ["base", "suspend20"] {
        over_xdp("workers", NGINX, mode, "xdp");
    }
}

/// The workers of one generation have a listener each, or share one.
#[test]
fn nginx_reloads_ten_times_under_load_without_a_failed_request() {
    user::run("reload", NGINX_AND_PYTHON, "suspend20", "2 reuseport tap");
    user::run("reload", NGINX_AND_PYTHON, "base", "1 shared tap");
    over_xdp("reload", NGINX_AND_PYTHON, "suspend20", "2 reuseport xdp");
}

#[test]
fn a_capture_has_the_last_frames_of_every_process_that_exits() {
    user::run("capture", "command -v python3 && command -v ip", "suspend20", "");
}

#[test]
fn a_capture_on_a_full_disk_has_whole_records_and_the_program_serves_on() {
    user::run("capture_full", "command -v python3 && command -v ip && command -v mount", "suspend20", "");
}

#[test]
fn a_start_that_came_to_nothing_leaves_the_next_one_all_it_needs() {
    user::run("second_start", "command -v python3 && command -v ip", "suspend20", "");
}

#[test]
fn who_connects_before_the_first_accept_waits_for_it() {
    for queues in ["1", "2"] {
        user::run("listened", "command -v python3 && command -v ip", "suspend20", queues);
    }
}

#[test]
fn who_connects_to_a_listener_that_is_shut_down_is_refused_on_any_number_of_queues() {
    for queues in ["1", "2", "31"] {
        user::run("shut", "command -v python3 && command -v ip", "suspend20", queues);
    }
}

#[test]
fn connections_that_a_worker_has_offered_are_the_others_when_it_executes_a_program() {
    user::run("exec_gives", "command -v python3 && command -v ip", "suspend20", "");
}

#[test]
fn what_a_server_serves_its_children_goes_on_after_it_has_failed_to_execute_a_program() {
    for way in ["open", "closed", "open early", "closed early"] {
        user::run("exec_fails", "command -v python3 && command -v ip", "suspend20", way);
    }
}

/// If each worker has a queue, another worker tells the peers; if one has the only queue, the launcher does.
#[test]
fn peers_of_a_process_that_ends_without_a_word_are_reset_while_the_program_goes_on() {
    const PYTHON: &str = "command -v python3 && command -v ip";
    user::run("killed_worker", PYTHON, "suspend20", "tap 2 killed");
    user::run("killed_worker", PYTHON, "base", "tap 2 _exit");
    user::run("killed_worker", PYTHON, "base", "tap 1 killed");
    over_xdp("killed_worker", PYTHON, "suspend20", "xdp 2 killed");
    over_xdp("killed_worker", PYTHON, "base", "xdp 1 _exit");
}

#[test]
fn nginx_with_as_many_workers_as_queues_answers_after_every_reload() {
    user::run("reload_few", NGINX_AND_PYTHON, "suspend20", "shared");
    user::run("reload_few", NGINX_AND_PYTHON, "base", "reuseport");
}

#[test]
fn a_program_that_closes_all_numbers_that_it_did_not_open_goes_on_being_served() {
    user::run("closer", "command -v python3 && command -v ip", "suspend20", "");
}

#[test]
fn the_hosts_pings_are_answered_whatever_befalls_a_program_on_the_same_interface() {
    for (fault, program) in [
        ("strace", "strace"),
        ("attached", "gdb"),
        ("memlock", "true"),
        ("address-space", "true"),
        ("stopped", "true"),
        ("launcher", "true"),
    ] {
        over_xdp("pings", &format!("command -v {program} && {MEMCACHED}"), "suspend20", fault);
    }
}

#[test]
fn programs_with_the_same_process_id_in_two_namespaces_are_both_shown() {
    user::run("containers", MEMCACHED, "suspend20", "");
}

#[test]
fn a_program_that_is_started_anew_under_the_same_launcher_has_the_nic_again() {
    user::run("again", MEMCACHED, "suspend20", "tap");
    over_xdp("again", MEMCACHED, "suspend20", "xdp");
}

const MEMCACHED: &str = "command -v memcached && command -v python3 && command -v pgrep && command -v ip";

#[test]
fn a_program_that_is_stopped_and_continued_loses_nothing() {
    user::run("faults", MEMCACHED, "suspend20", "stopped");
}

#[test]
fn a_second_launcher_is_refused_the_nic_and_the_first_program_is_served_on() {
    user::run("faults", MEMCACHED, "base", "second");
}

#[test]
fn a_program_outlives_its_launcher_and_takes_the_nic_with_it() {
    user::run("faults", MEMCACHED, "suspend20", "launcher");
}

#[test]
fn a_program_outlives_its_device_and_ends_cleanly_when_it_is_told_to() {
    for mode in ["base", "suspend20"] {
        user::run("faults", MEMCACHED, mode, "device");
    }
}

#[test]
fn without_a_free_number_connections_wait_until_there_is_one() {
    for mode in ["base", "suspend20"] {
        user::run("faults", MEMCACHED, mode, "numbers");
    }
}

/// LULL_TEST_RESTARTS sets how many restarts there are.
#[test]
fn restarts_under_load_leave_no_device_no_program_and_no_shared_pages() {
    user::run("faults", MEMCACHED, "suspend20", "restarts");
}

const CC: &str = "command -v cc && command -v python3 && command -v ip";

/// The executed program has the queue, and serves.
#[test]
fn a_program_that_executes_another_closes_what_it_would_close_and_names_what_cannot_stay_open() {
    for (mode, way) in [("base", "execve"), ("suspend20", "execvp"), ("base", "execl"), ("base", "execle")] {
        user::run("calls", CC, mode, &format!("exec {way}"));
    }
    for way in ["execv", "execvpe", "execlp", "fexecve", "execveat", "syscall", "emptied"] {
        user::run("calls", CC, "base", &format!("exec {way}"));
    }
    for mode in ["base", "suspend20"] {
        user::run("calls", CC, mode, "no-program");
    }
}

#[test]
fn children_that_close_what_they_inherit_and_execute_leave_their_parent_its_connections() {
    for mode in ["base", "suspend20"] {
        user::run("calls", CC, mode, "children");
    }
}

#[test]
fn servers_that_fork_a_child_for_each_connection_serve() {
    for mode in ["base", "suspend20"] {
        for way in ["child", "inetd", "datagrams"] {
            user::run("forking", "command -v python3 && command -v ip", mode, way);
        }
    }
}

/// The other process has the connection's names and options, and goes on when the server has ended.
#[test]
fn servers_that_pass_connections_to_other_processes_serve() {
    for (mode, way) in [("base", "forked"), ("suspend20", "executed")] {
        user::run("rights", "command -v python3 && command -v ip", mode, way);
    }
}

#[test]
fn a_child_passes_its_servers_listener_to_another_process() {
    for mode in ["base", "suspend20"] {
        user::run("rights_listener", "command -v python3 && command -v ip", mode, "");
    }
}

/// The other process has the listener when the server has closed it, and when the server has ended; when both have
/// closed it, nobody listens.
#[test]
fn a_server_passes_its_listener_to_another_process() {
    for (mode, way) in [("base", "1 own"), ("suspend20", "1 any"), ("suspend20", "2 own"), ("base", "2 any")] {
        user::run("listener_passed", "command -v python3 && command -v ip", mode, way);
    }
}

/// Otherwise each process would have only its own connections.
#[test]
fn processes_that_listen_on_one_socket_share_its_connections() {
    const PYTHON: &str = "command -v python3 && command -v ip";
    for how in ["fork", "exec", "passed"] {
        user::run("bound", PYTHON, "suspend20", &format!("{how} own 1"));
        user::run("bound", PYTHON, "base", &format!("{how} own 4"));
    }
    user::run("bound", PYTHON, "base", "exec any 1");
    user::run("bound", PYTHON, "suspend20", "exec any 3");
}

/// Its new worker gets the listeners of the old one, which stays for a connection that goes on.
#[test]
fn haproxy_with_a_master_reloads() {
    for (mode, queues) in [("base", "1"), ("suspend20", "1"), ("suspend20", "2")] {
        let needs = "command -v haproxy && command -v curl && command -v python3 && command -v ip";
        user::run("haproxy_reload", needs, mode, queues);
    }
}

/// The listener of a disabled frontend is connected to AF_UNSPEC.
#[test]
fn haproxy_with_a_frontend_that_is_disabled_refuses_until_it_is_enabled() {
    for mode in ["base", "suspend20"] {
        user::run(
            "haproxy_paused",
            "command -v haproxy && command -v curl && command -v python3 && command -v ip",
            mode,
            "",
        );
    }
}

/// The other process has the socket's name, and answers by it when the server has ended.
#[test]
fn a_server_that_ends_stays_for_a_udp_socket_that_it_has_passed_on() {
    for mode in ["base", "suspend20"] {
        user::run("rights_udp", "command -v python3 && command -v ip", mode, "");
    }
}

/// The child connects the socket that it inherits to its client, and may execute a program with it.
#[test]
fn socat_has_a_child_with_a_connected_udp_socket_for_each_client() {
    for mode in ["base", "suspend20"] {
        user::run("socat", "command -v socat && command -v python3 && command -v ip", mode, "");
    }
}

/// The second program has the first one's listeners, with their options, and serves.
#[test]
fn listeners_stay_open_to_what_is_executed() {
    const NEEDS: &str = "command -v python3 && command -v cc && command -v ip";
    for (mode, how) in [
        ("base", "place idle"),
        ("suspend20", "place serving"),
        ("base", "child idle"),
        ("suspend20", "vfork idle"),
        ("base", "spawn idle"),
        ("base", "static idle"),
        ("base", "emptied idle"),
    ] {
        user::run("reexec", NEEDS, mode, how);
    }
}

/// Dovecot's master does this; the server's own process goes on to answer.
#[test]
fn what_children_execute_takes_connections_of_a_listener_that_the_server_asks_for_itself() {
    for (mode, way) in [("base", "watched"), ("suspend20", "watched"), ("base", "kept"), ("suspend20", "kept")] {
        user::run("heirs", "command -v python3 && command -v ip", mode, way);
    }
}

#[test]
fn datagrams_that_come_to_another_processs_queue_reach_the_one_that_has_their_socket() {
    for mode in ["base", "suspend20"] {
        user::run("datagrams_elsewhere", "command -v python3 && command -v ip", mode, "");
    }
}

#[test]
fn nginx_is_upgraded_under_load_without_a_failed_request() {
    for (mode, how) in
        [("suspend20", "2 shared 10.0.0.2 6"), ("base", "2 reuseport 10.0.0.2 6"), ("suspend20", "1 shared 0.0.0.0 4")]
    {
        user::run("upgrade", &format!("command -v pgrep && {NGINX_AND_PYTHON}"), mode, how);
    }
}

#[test]
fn php_fpm_and_uwsgi_reload_by_executing_themselves() {
    const TOOLS: &str = "command -v python3 && command -v pgrep && command -v ip";
    user::run("fpm", &format!("ls /usr/sbin/php-fpm* && {TOOLS}"), "suspend20", "");
    user::run("uwsgi", &format!("uwsgi --plugin python3 --version && command -v curl && {TOOLS}"), "base", "");
}

/// As on Linux, where all have the same open file, the process that reads gets the data.
#[test]
fn what_a_child_executes_has_a_connection_that_the_child_has_not_used() {
    for mode in ["base", "suspend20"] {
        user::run("left", "command -v python3 && command -v ip", mode, "");
    }
}

/// The NIC is their parent's, whose stack has the sockets.
#[test]
fn children_of_a_server_listen_and_connect_at_lulls_addresses() {
    for (mode, way) in [("base", "fork"), ("suspend20", "clone")] {
        user::run("childs_sockets", "command -v python3 && command -v ip", mode, way);
    }
}

/// Linux's kernel does this: it closes what a process leaves open, and delivers what it has written.
#[test]
fn peers_of_a_process_that_exits_have_everything_and_are_told_of_the_end() {
    for mode in ["base", "suspend20"] {
        user::run("leave", "command -v python3 && command -v ip", mode, "");
    }
}

/// A client that connects before the program asks for connections need not wait until somebody answers for its address.
#[test]
fn the_host_knows_a_programs_addresses_from_the_start() {
    user::run("told_of_addresses", "command -v python3 && command -v ip", "base", "");
}

/// The second answer of a batch of events waits for the end of the batch.
#[test]
fn peers_of_a_process_that_ends_at_once_have_what_it_wrote_last() {
    for mode in ["base", "suspend20"] {
        user::run("ends_at_once", "command -v cc && command -v python3 && command -v ip", mode, "");
    }
}

/// lull's threads are not the program's, and do not keep its process alive.
#[test]
fn a_process_whose_main_thread_has_ended_ends_with_its_last_thread() {
    user::run("main_ends", "command -v cc && command -v python3 && command -v ip", "suspend20", "");
}

/// The peer has been told that its data has arrived, and does not send it again.
#[test]
fn what_is_handed_to_a_process_that_is_killed_goes_to_who_listens_then() {
    for mode in ["base", "suspend20"] {
        user::run("handed_late", "command -v python3 && command -v ip", mode, "next");
        user::run("handed_late", "command -v python3 && command -v ip", mode, "another");
    }
}

/// This is Linux's `inet_getname` for accept.
#[test]
fn a_connection_that_its_peer_resets_in_a_listeners_pool_is_accepted_with_its_name() {
    user::run("pool_reset", "command -v python3 && command -v ip", "suspend20", "");
}

/// With fewer queues than processes, the process that asks next gets the next connection.
#[test]
fn processes_that_share_a_listener_share_its_connections_and_outlive_the_one_with_the_queue() {
    let needs = "command -v python3 && command -v ip";
    for (mode, how) in [
        ("base", "accept 1 10.0.0.2"),
        ("suspend20", "turns 1 10.0.0.2"),
        ("suspend20", "epoll 1 0.0.0.0"),
        ("base", "poll 1 10.0.0.2"),
        ("base", "select 1 0.0.0.0"),
        ("fullbusy", "epoll 2 10.0.0.2"),
    ] {
        user::run("prefork", needs, mode, how);
    }
}

/// Their parent has the queues, and its engine runs when it forks (nsd binds UDP sockets before it does). Nobody else
/// would tell the child that the queue is free.
#[test]
fn a_process_takes_the_queue_of_one_that_ends_as_it_looks_whose_it_is() {
    user::run("owner_ends", "command -v python3 && command -v ip && command -v strace", "base", "");
}

#[test]
fn children_that_the_launcher_had_before_are_not_the_programs() {
    user::run("before", "command -v ip", "base", "");
}

/// A new descriptor of lull's has the lowest number that is free, as if it were the program's, until it is moved.
#[test]
fn a_program_that_closes_all_that_is_open_leaves_what_lull_makes_meanwhile() {
    for (mode, way) in [("base", "range"), ("suspend20", "from")] {
        user::run("closes_all", "command -v python3 && command -v ip", mode, way);
    }
}

/// Such a worker once passed connections on to others that had queues of their own, for as long as any came.
#[test]
fn a_worker_that_has_closed_its_listener_ends_while_others_are_busy() {
    for (mode, address) in [("base", "10.0.0.2"), ("suspend20", "10.0.0.2")] {
        user::run("drains", "command -v python3 && command -v ip", mode, address);
    }
}

#[test]
fn workers_have_a_listener_that_their_server_closes() {
    for (mode, how) in [("base", "asked"), ("suspend20", "bound")] {
        user::run("closed_listener", "command -v python3 && command -v ip", mode, how);
    }
}

#[test]
fn nobody_waits_for_who_listens_where_all_processes_of_a_listener_were_killed() {
    for mode in ["base", "suspend20"] {
        user::run("dead_listener", "command -v python3 && command -v ip", mode, "");
    }
}

#[test]
fn who_made_a_listener_may_close_it_before_another_one_asks() {
    user::run("maker_closes", "command -v python3 && command -v ping && command -v ip", "suspend20", "");
}

#[test]
fn a_process_without_a_queue_serves_the_kernels_world_and_lulls_once_a_queue_is_free() {
    for (mode, how) in [
        ("base", "accept 0.0.0.0"),
        ("suspend20", "poll 0.0.0.0"),
        ("base", "select 0.0.0.0"),
        ("suspend20", "epoll 0.0.0.0"),
        ("suspend20", "accept 10.0.0.2"),
        ("base", "epoll 10.0.0.2"),
    ] {
        user::run("without_queue", "command -v python3 && command -v pkill && command -v ip", mode, how);
    }
}

#[test]
fn who_listens_with_a_queue_can_be_connected_to_before_it_accepts() {
    for mode in ["base", "suspend20"] {
        user::run("relisten", "command -v python3 && command -v ip", mode, "");
    }
}

#[test]
fn a_server_that_puts_itself_into_the_background_goes_on_with_its_sockets() {
    let needs = "command -v python3 && command -v ip";
    for (mode, how) in [
        ("base", "at-once poll tap 1"),
        ("suspend20", "at-once epoll tap 2"),
        ("suspend20", "later epoll tap 1"),
        ("suspend20", "later recv tap 1"),
        ("base", "at-once recv tap 1"),
    ] {
        user::run("in_background", needs, mode, how);
    }
    over_xdp("in_background", needs, "suspend20", "later poll xdp 1");
}

/// Another child has inherited the same, and only sleeps.
#[test]
fn children_of_a_process_that_is_killed_hear_of_it_and_go_on_with_what_they_wait_for() {
    let needs = "command -v python3 && command -v ip";
    for (mode, what) in [
        ("base", "accept"),
        ("suspend20", "poll"),
        ("base", "epoll"),
        ("suspend20", "both"),
        ("base", "datagrams"),
        ("suspend20", "connection"),
        ("base", "stopped"),
    ] {
        user::run("survivors", needs, mode, what);
    }
}

#[test]
fn connections_of_a_listener_that_processes_share_wait_until_one_of_them_can_have_them() {
    let needs = "command -v python3 && command -v ip";
    for (mode, what) in [("base", "numbers"), ("suspend20", "first"), ("base", "exec")] {
        user::run("pool_owner", needs, mode, what);
    }
    user::run("pool_owner", &format!("{needs} && command -v strace"), "suspend20", "send");
}

#[test]
fn a_child_that_is_forked_while_the_engine_starts_goes_on_without_its_parent() {
    for mode in ["base", "suspend20"] {
        user::run("forks_at_start", "command -v python3 && command -v mount && command -v ip", mode, "");
    }
}

#[test]
fn children_accept_from_a_listener_that_their_parent_has_asked_before() {
    let needs = "command -v python3 && command -v ip";
    for (mode, how) in [
        ("base", "accept 1 10.0.0.2 asked"),
        ("suspend20", "epoll 3 0.0.0.0 asked"),
        ("base", "poll 1 0.0.0.0 asked"),
        ("suspend20", "select 1 10.0.0.2 asked"),
        ("suspend20", "turns 2 10.0.0.2 asked"),
        ("suspend20", "epoll 1 10.0.0.2 bound"),
        ("base", "accept 2 0.0.0.0 bound"),
    ] {
        user::run("prefork", needs, mode, how);
    }
}

/// By then a child has the queue.
#[test]
fn who_made_a_listener_may_ask_for_its_connections_after_its_children() {
    let needs = "command -v python3 && command -v ip";
    for (mode, how) in [
        ("suspend20", "select 10.0.0.2"),
        ("base", "accept 10.0.0.2"),
        ("suspend20", "epoll 10.0.0.2"),
        ("base", "poll 0.0.0.0"),
    ] {
        user::run("asks_last", needs, mode, how);
    }
}

/// PostgreSQL refuses to run as root, which the launcher has to be over AF_XDP.
#[test]
fn postgresql_serves_its_clients_cancels_and_recovers() {
    let needs = "ls /usr/lib/postgresql/*/bin/pgbench && command -v psql && command -v ip";
    user::run("postgresql", needs, "suspend20", "tap");
    if let Some(reason) = user::missing(&format!("test $(id -u) = 0 && {needs} && command -v ping")) {
        println!("SKIP: PostgreSQL over AF_XDP: {reason}, or this is not root");
        return;
    }
    user::run_in(&["-n"], "postgresql", "base", "xdp");
}

#[test]
fn a_program_that_becomes_a_daemon_serves() {
    user::run("calls", CC, "base", "daemon");
}

#[test]
fn numbers_that_are_duplicated_over_and_closed_by_ranges_are_what_linux_has_there() {
    user::run("calls", CC, "suspend20", "numbers");
}

#[test]
fn calls_by_number_are_those_by_name() {
    user::run("calls", CC, "base", "by-number");
}

/// A child that is the only one to read a UDP socket is given datagrams without asking for each. If others read the
/// socket as well, a datagram is sent to one of them only when that one has read its last one. A child that could not
/// ask for more is given it.
#[test]
fn children_that_read_a_udp_socket_are_given_what_is_theirs() {
    let needs = "command -v python3 && command -v ip";
    for mode in ["base", "suspend20"] {
        user::run("udp_children", needs, mode, "tap");
    }
}

#[test]
fn a_process_that_has_streams_of_connections_exits_executes_forks_and_is_killed_as_on_linux() {
    for (mode, what) in [("base", "exit"), ("suspend20", "exec"), ("base", "fork"), ("suspend20", "crowded")] {
        user::run("streams", CC, mode, what);
    }
}

/// A process that exits waits at none of its connections.
#[test]
fn a_connection_that_lingers_keeps_no_other_peer_of_a_process_that_exits_waiting() {
    for mode in ["base", "suspend20"] {
        user::run("linger", "command -v python3 && command -v ip", mode, "");
    }
}

/// A thread of the process that goes on meanwhile gets no error from descriptors that were closed for others.
#[test]
fn threads_of_a_process_that_exits_and_stays_are_told_of_no_error() {
    for mode in ["base", "suspend20"] {
        user::run("threads_at_exit", "command -v python3 && command -v ip", mode, "");
    }
}

#[test]
fn a_child_that_connects_by_its_parent_is_interrupted_and_cancelled() {
    for mode in ["base", "suspend20"] {
        user::run("interrupted", CC, mode, "");
    }
}
