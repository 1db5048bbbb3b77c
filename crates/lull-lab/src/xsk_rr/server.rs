//! The server: every request is sent back to its sender.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

use super::{RawSocket, Settings, frame};

/// Answers requests until `over` is set. Returns their number. `pause` is called if there is nothing to do.
pub(super) fn serve<S: RawSocket>(
    socket: &S,
    own: [u8; 6],
    settings: &Settings,
    over: &AtomicBool,
    pause: impl Fn(),
) -> io::Result<u64> {
    let calls = !settings.no_receive_call && !settings.receive_thread;
    let mut buffer = vec![0; frame::FRAME_BYTES_MAX];
    let mut answered = 0;
    while !over.load(Ordering::Relaxed) {
        let Some(bytes) = socket.try_recv(&mut buffer) else {
            if calls {
                socket.receive_call();
            }
            pause();
            continue;
        };
        let answer = &mut buffer[..bytes];
        if frame::read(answer).is_none() {
            continue;
        }
        frame::turn_around(answer, own);
        while !socket.send(answer)? && !over.load(Ordering::Relaxed) {
            pause();
        }
        answered += 1;
    }
    Ok(answered)
}
