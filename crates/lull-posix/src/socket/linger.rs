//! SO_LINGER with a time: closing waits until the peer has everything (`sk_stream_wait_close`).

use std::time::{Duration, Instant};

use super::Stream;
use crate::{leaving, signals};

/// How often the wait looks. The stack tells nobody of a last acknowledgement, and whoever closes so waits for a peer.
const LOOKS_APART: Duration = Duration::from_millis(1);

impl Drop for Stream {
    /// The last number and the last call are done with it. A process that exits waits at none (`inet_release`), but stays for all.
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
        // One that is not connected has nothing to wait for.
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
