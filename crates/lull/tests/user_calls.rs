//! Calls of programs on lull's user plane, and the same program on the kernel beside it: what they return and when sockets are
//! ready (`programs/beside.c`).

mod user;

fn beside(case: &str) {
    for mode in ["base", "suspend20"] {
        user::run("beside", "command -v cc && command -v diff && command -v ip", mode, case);
    }
}

#[test]
fn what_is_to_be_sent_with_more_waits_for_it() {
    beside("cork");
}

#[test]
fn what_is_spliced_between_pipes_and_connections_arrives_whole() {
    beside("splice");
}

/// Each goes on with the sockets afterwards: no lock is held.
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
