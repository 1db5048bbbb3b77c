//! What the service stands on: sockets, and waiting for them. lull's own stack and the kernel's each have an
//! implementation; everything else is the same program on both, so that the planes can be compared.

use std::io;
use std::time::Duration;

use lull_core::{AppPolicy, Mode};

/// Events taken from epoll at a time, at most: it bounds how long packets wait while the application works. Memcached,
/// through libevent, starts with 32 and doubles as needed.
pub const EVENTS_MAX: usize = 64;
/// The key of the listener's events.
pub(super) const LISTENER: u64 = u64::MAX;
/// The key of a notification's event.
pub(super) const NOTICE: u64 = u64::MAX - 1;

/// When a vanished client is noticed: the silence before the first probe, the time between two probes, and how many
/// there are.
pub(super) const KEEPALIVE_IDLE: Duration = Duration::from_secs(120);
pub(super) const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(15);
pub(super) const KEEPALIVE_PROBES: u32 = 4;

/// A connected stream that does not block.
pub trait Stream {
    /// Takes what is there; 0 at the end of the stream.
    fn recv(&self, into: &mut [u8]) -> io::Result<usize>;
    /// Sends what there is room for.
    fn send(&self, data: &[u8]) -> io::Result<usize>;
    /// Touches what the next call will need, where that is this process's memory.
    fn touch(&self) {}
    /// Lets calls that find nothing busy poll for so long (`SO_BUSY_POLL`).
    fn set_busy_poll(&self, usecs: u32) -> io::Result<()>;
}

/// What a connection is watched for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Watch {
    /// Something to read.
    Input,
    /// Room to send.
    Room,
}

/// One worker's sockets and its waiting.
pub trait Plane: Send + 'static {
    /// Its connections.
    type Stream: Stream + Send;
    /// What holds transmission back while a batch of events is answered; sent when it is dropped.
    type Batch<'a>
    where
        Self: 'a;

    /// Pins the calling thread to where this plane's worker belongs.
    fn pin(&self) -> io::Result<()>;
    /// Waits for events, for ever without a timeout, and puts their keys, `events_max` ([`EVENTS_MAX`]) at most, into `keys`.
    fn wait(&mut self, keys: &mut Vec<u64>, events_max: usize, timeout: Option<Duration>);
    /// A connection that has come up: it does not block, delays nothing (`TCP_NODELAY`), and probes a silent peer if
    /// `keepalive` says so.
    fn accept(&self, keepalive: bool) -> io::Result<Self::Stream>;
    /// Watches a new connection for input.
    fn add(&self, stream: &Self::Stream, key: u64) -> io::Result<()>;
    /// Watches a connection for something else.
    fn watch(&self, stream: &Self::Stream, key: u64, watch: Watch) -> io::Result<()>;
    /// Begins a batch.
    fn batch(&self) -> Self::Batch<'_>;
}

/// The other end of a worker's waiting, for whoever started it.
pub trait Control: Send {
    /// Gives a mode to the context; how long its worker has to wait comes back.
    fn set_mode(&self, mode: &Mode) -> io::Result<AppPolicy>;
    /// Ends the present wait, or the next.
    fn notify(&self);
}
