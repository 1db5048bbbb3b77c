//! The part under the service: sockets, and waiting for them. lull's own stack and the kernel's each have an
//! implementation. Everything else is the same program on both, so that the planes can be compared.

use std::io;
use std::time::Duration;

use lull_core::{AppPolicy, Mode};

/// The most events taken from epoll at a time. It limits how long packets wait while the application works. Memcached,
/// through libevent, starts with 32 and doubles as needed.
pub const EVENTS_MAX: usize = 64;
/// The key of the listener's events.
pub(super) const LISTENER: u64 = u64::MAX;
/// The key of a notification's event.
pub(super) const NOTICE: u64 = u64::MAX - 1;

/// The time after which a vanished client is noticed: the silence before the first probe, the time between two probes,
/// and their number.
pub(super) const KEEPALIVE_IDLE: Duration = Duration::from_secs(120);
pub(super) const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(15);
pub(super) const KEEPALIVE_PROBES: u32 = 4;

/// A connected stream that does not block.
pub trait Stream {
    /// Reads the received bytes. Returns 0 at the end of the stream.
    fn recv(&self, into: &mut [u8]) -> io::Result<usize>;
    /// Sends as many bytes as there is room for.
    fn send(&self, data: &[u8]) -> io::Result<usize>;
    /// Touches the memory that the next call will need, if it is this process's.
    fn touch(&self) {}
    /// Sets for how long calls that find nothing busy poll (`SO_BUSY_POLL`).
    fn set_busy_poll(&self, usecs: u32) -> io::Result<()>;
}

/// The condition for which a connection is watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Watch {
    /// There are bytes to read.
    Input,
    /// There is room to send.
    Room,
}

/// The sockets of one worker, and its waiting.
pub trait Plane: Send + 'static {
    /// Its connections.
    type Stream: Stream + Send;
    /// Holds transmission back while a batch of events is answered. Dropping it sends.
    type Batch<'a>
    where
        Self: 'a;

    /// Pins the calling thread to the core of this plane's worker.
    fn pin(&self) -> io::Result<()>;
    /// Waits for events, for ever without a timeout, and puts at most `events_max` (up to [`EVENTS_MAX`]) of their keys
    /// into `keys`.
    fn wait(&mut self, keys: &mut Vec<u64>, events_max: usize, timeout: Option<Duration>);
    /// Returns a connection that has come up. It does not block, delays nothing (`TCP_NODELAY`), and probes a silent
    /// peer if `keepalive` says so.
    fn accept(&self, keepalive: bool) -> io::Result<Self::Stream>;
    /// Watches a new connection for input.
    fn add(&self, stream: &Self::Stream, key: u64) -> io::Result<()>;
    /// Watches a connection for another condition.
    fn watch(&self, stream: &Self::Stream, key: u64, watch: Watch) -> io::Result<()>;
    /// Begins a batch.
    fn batch(&self) -> Self::Batch<'_>;
}

/// The control of a worker, for the code that started it.
pub trait Control: Send {
    /// Gives a mode to the context. Returns how long its worker has to wait.
    fn set_mode(&self, mode: &Mode) -> io::Result<AppPolicy>;
    /// Ends the current wait, or the next one.
    fn notify(&self);
}
