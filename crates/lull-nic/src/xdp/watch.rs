//! What the device's thread does: it sleeps until the interface changes, or somebody waits for room in a transmit ring.

use std::os::fd::AsFd;
use std::time::Duration;

use super::shared::Shared;
use crate::eventfd::writable;
use crate::interface::drain;

/// How long the first look for room waits, and the longest that a later one does. Each waits twice as long as the one
/// before: a device that stays full costs a thousand looks a second at most.
const FIRST_LOOK: Duration = Duration::from_micros(20);
const LAST_LOOK: Duration = Duration::from_millis(1);

pub(super) fn run(shared: &Shared) {
    let mut look = FIRST_LOOK;
    while !shared.wake.is_stopped() {
        let waited_for = shared.sockets.iter().any(|socket| socket.room.vector.is_armed());
        shared.wake.wait(&shared.events, waited_for.then_some(look));
        if shared.wake.clear() {
            look = FIRST_LOOK;
        }
        if drain(&shared.events) {
            shared.interface.look_again();
        }
        for socket in shared.sockets.iter().filter(|socket| socket.room.vector.is_armed()) {
            if socket.stuck.is_set() && !shared.is_dead() {
                // In copy mode asking whether there is room makes the kernel go on sending (`xsk_poll`).
                writable(socket.fd.as_fd());
            }
            // Nobody waits for a device that takes and drops everything.
            if shared.has_room(socket) && socket.room.vector.take() {
                socket.room.fire();
            }
        }
        look = (look * 2).min(LAST_LOOK);
    }
}
