//! Whether this process is the program that the launcher started on lull's user plane.

use lull_posix::{HandOver, StartError, start};

use crate::say;

/// Looks for what the launcher hands on. Nothing starts here.
pub(crate) fn at_load() {
    match HandOver::from_environment() {
        Ok(None) => {}
        Ok(Some(hand_over)) => {
            if hand_over.quiet {
                say::quiet();
            }
            start::engage_with(hand_over, not_started);
        }
        Err(error) => say::line(format_args!("{error}: the program has the kernel's addresses only")),
    }
}

fn not_started(error: &StartError) {
    say::line(format_args!("{error}"));
}
