//! With SO_LINGER and a time, closing waits until the peer has everything (`sk_stream_wait_close`).

use std::time::{Duration, Instant};

use super::Stream;
use crate::{leaving, signals};

/// How often the wait looks. The stack does not report a last acknowledgement, and a thread that closes so waits for a
/// peer anyway.
const LOOKS_APART: Duration = Duration::from_millis(1);

impl Drop for Stream {
    /// Called when the last number and the last call are done with the socket. A process that exits does not wait here
    /// (`inet_release`), but stays until all of them are done.
    fn drop(&mut self) {
        if let Some(longest) = self.options.linger()
            && !leaving::is_begun()
        {
            self.linger(longest);
        }
    }
}

impl Stream {
    /// Waits until the peer has acknowledged all data and the FIN, for at most so long; a signal ends it as well.
    #[cold]
    fn linger(&self, longest: Duration) {
        // Data that nobody read makes closing a reset (`tcp_close`), which waits for nothing.
        if self.stream.unread().is_ok_and(|unread| unread != 0) {
            return;
        }
        // A socket that is not connected has nothing to wait for.
        if self.stream.shutdown(lull_net::Shutdown::Write).is_err() {
            return;
        }
        lull_net::about_to_wait();
        let began = Instant::now();
        while self.stream.unacknowledged().is_ok_and(|bytes| bytes != 0)
            && began.elapsed() < longest
            && !signals::is_interrupted()
        {
            std::thread::sleep(LOOKS_APART);
        }
    }
}
