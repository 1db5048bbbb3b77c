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
fn a_connection_is_readable_from_its_low_water_mark_on() {
    beside("low-water");
}
