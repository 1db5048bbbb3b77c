//! Calls of programs on lull's user plane, compared with the same program on the kernel: what they return and when
//! sockets are ready (`programs/beside.c`, and `handlers.c`, `results.c` and `numbers.c` beside it).

mod user;

fn says_the_same(program_and_case: &str) {
    for mode in ["base", "suspend20"] {
        user::run("beside", "command -v cc && command -v diff && command -v ip", mode, program_and_case);
    }
}

fn beside(case: &str) {
    says_the_same(&format!("beside {case}"));
}

fn handlers(case: &str) {
    says_the_same(&format!("handlers {case}"));
}

fn results(case: &str) {
    says_the_same(&format!("results {case}"));
}

fn numbers(case: &str) {
    says_the_same(&format!("numbers {case}"));
}

#[test]
fn what_is_to_be_sent_with_more_waits_for_it() {
    beside("cork");
}

#[test]
fn what_is_spliced_between_pipes_and_connections_arrives_whole() {
    beside("splice");
}

#[test]
fn a_connection_that_takes_no_more_of_a_pipe_is_not_writable_until_its_peer_has_read() {
    beside("splice-full");
}

/// Each thread's sockets work afterwards, so no lock is held.
#[test]
fn threads_are_cancelled_while_they_wait_and_their_cleanup_handlers_run() {
    beside("cancel");
}

#[test]
fn a_connection_is_readable_from_its_low_water_mark_on() {
    beside("low-water");
}

#[test]
fn a_thread_with_little_stack_may_be_the_first_to_need_the_engine() {
    beside("little-stack");
}

#[test]
fn several_datagrams_of_one_call_and_several_received_as_one_are_told_apart() {
    beside("joined");
}

#[test]
fn what_the_ip_header_of_a_datagram_says_is_asked_for_and_told() {
    beside("header");
}

#[test]
fn streams_of_the_c_library_read_and_write_connections() {
    beside("streams");
}

#[test]
fn calls_by_number_are_the_calls_by_name() {
    beside("by-number");
}

#[test]
fn sockets_hold_as_much_as_their_buffers_say_and_lose_nothing_when_that_changes() {
    beside("buffers");
}

#[test]
fn datagrams_beyond_the_receive_buffer_are_dropped() {
    beside("held");
}

#[test]
fn tcp_info_tells_of_round_trips_windows_and_segments() {
    beside("info");
}

/// The thread is outside of any call then, and holds no lock.
#[test]
fn a_handler_may_jump_out_of_a_call() {
    handlers("jumps");
}

#[test]
fn handlers_that_older_calls_have_installed_end_calls_or_do_not() {
    handlers("older");
}

#[test]
fn of_many_signals_at_once_none_is_lost() {
    handlers("queued");
}

#[test]
fn a_handler_is_kept_from_what_its_mask_says_also_where_it_makes_calls() {
    handlers("masked");
}

#[test]
fn a_signal_to_the_own_process_is_not_one_to_the_own_thread() {
    handlers("to-the-process");
}

#[test]
fn what_is_ready_is_told_by_either_name() {
    results("names");
}

#[test]
fn what_is_thrown_away_touches_no_memory() {
    results("thrown-away");
}

#[test]
fn a_listener_of_ipv6_at_an_address_of_ipv4_has_names_of_ipv6() {
    results("mapped");
}

#[test]
fn a_context_that_is_known_by_a_duplicate_alone_has_what_becomes_lulls() {
    results("called-otherwise");
}

#[test]
fn of_datagrams_that_are_sent_by_one_call_each_goes_where_it_is_addressed() {
    results("each-its-own-way");
}

#[test]
fn threads_that_have_waited_leave_no_descriptor() {
    results("threads");
}

#[test]
fn a_thread_that_waits_in_a_process_without_a_queue_is_cancelled() {
    results("cancelled-beside");
}

#[test]
fn a_socket_that_is_added_while_it_becomes_lulls_is_heard_of() {
    results("added-meanwhile");
}

#[test]
fn a_child_that_connects_a_socket_of_its_parents_is_not_interrupted() {
    results("connects-by-a-child");
}

/// None of them sleeps in the kernel for a connection that another one has taken.
#[test]
fn threads_that_accept_from_both_worlds_hear_of_both() {
    results("both-worlds");
}

#[test]
fn a_thread_that_has_left_a_handler_by_a_jump_is_cancelled_where_it_waits() {
    handlers("left");
}

#[test]
fn a_splice_into_a_connection_whose_peer_does_not_read_is_interrupted() {
    handlers("splices");
}

/// The peer ends the connection, or another thread does.
#[test]
fn a_splice_into_a_connection_that_ends_meanwhile_says_so() {
    handlers("splices-until-the-end");
}

/// Nobody answers, and the call is made by the kernel.
#[test]
fn a_connect_in_a_process_without_a_queue_is_interrupted_and_cancelled() {
    handlers("connects-beside");
}

#[test]
fn a_message_that_passes_a_socket_on_and_waits_for_room_is_interrupted() {
    handlers("passes-on");
}

#[test]
fn a_child_that_sends_to_a_stopped_parent_is_interrupted() {
    handlers("sends-beside");
}

/// The program forks by `vfork`, for which lull makes descriptors.
#[test]
fn a_handler_that_forks_may_interrupt_a_program_that_does() {
    handlers("forks");
}

#[test]
fn a_call_that_does_not_wait_is_interrupted_where_linux_has_it() {
    handlers("at-once");
}

#[test]
fn a_call_that_has_room_for_nothing_returns_when_a_signal_comes() {
    handlers("nothing");
}

#[test]
fn splice_tells_what_a_listener_is_not() {
    results("spliced-with-a-listener");
}

#[test]
fn a_connection_has_the_options_of_its_listener() {
    results("inherited");
}

#[test]
fn a_datagram_that_only_probes_does_not_leave() {
    results("probed");
}

/// lull's own descriptors are above the program's.
#[test]
fn select_touches_no_memory_behind_sets_that_are_shorter_than_its_count() {
    numbers("sets");
}

#[test]
fn a_range_that_is_closed_with_unknown_flags_stays_open() {
    numbers("ranges");
}

#[test]
fn what_was_closed_unseen_is_not_what_its_number_stands_for() {
    numbers("given-out");
}

#[test]
fn what_was_closed_unseen_leaves_no_descriptor_when_its_number_is_given_out_again() {
    numbers("leaves-nothing");
}

/// When the child was forked, a thread of its parent waited for a connection of the listener.
#[test]
fn a_child_that_has_closed_a_listener_has_nothing_of_it() {
    numbers("closed-by-a-child");
}

#[test]
fn a_stream_reads_and_writes_a_connection_that_was_made_after_it() {
    numbers("stream-first");
}

#[test]
fn what_is_spliced_into_a_pipe_without_a_reader_is_refused_at_once() {
    numbers("no-reader");
}

#[test]
fn what_two_threads_splice_out_of_one_connection_goes_to_one_of_them() {
    numbers("apart");
}
