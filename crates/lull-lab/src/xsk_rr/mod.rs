//! AF_XDP request/response: how long a small frame takes there and back, by what polls the queues.
//!
//! The program is that of the threaded busy-poll letter (`xsk_rr`, posted with its first version). A client sends
//! frames at a fixed rate, whatever comes back, or keeps a number of them outstanding. The server sends each back.
//! After an answer the client does not read its ring for the application's delay. Here frames are numbered, while the
//! posted tool matches answers in order, so that a lost frame counts as lost. The latency is measured from the actual
//! send, as published, and from the moment at which the frame should have been sent. Frames that a full ring or a slow
//! program kept back are sent late, and count.
//!
//! It runs on any [`RawSocket`]: on lull's own packet sockets over the in-memory NIC and TAP ([`user`]), and on AF_XDP
//! sockets of the kernel ([`kernel`]). [`table`] compares the published cells with lull's.

mod client;
mod flight;
pub mod frame;
pub mod kernel;
mod placement;
mod record;
mod run;
mod server;
mod socket;
pub mod table;
pub mod user;

use std::time::Duration;

use lull_core::Mode;

use crate::bench::BenchError;
pub use placement::{Here, NotEnoughCores, Placement};
pub use record::{Percentiles, ReceiveTimes, Report};
pub use run::{Ends, Outcome, run};
pub use socket::RawSocket;

/// What polls the queues of both ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Polling {
    /// Interrupts.
    Interrupts,
    /// The receive and send calls of the application's thread (SO_BUSY_POLL).
    Inline,
    /// The receive calls of a thread that does nothing else.
    Separate,
    /// A NAPI thread that is woken for its work.
    Threaded,
    /// A NAPI thread that polls without pause.
    ThreadedBusy,
    /// A busy-polling group of one CPU.
    Group,
}

/// All ways of polling, in the order of the table.
pub const POLLINGS: [Polling; 6] =
    [Polling::Interrupts, Polling::Inline, Polling::Separate, Polling::Threaded, Polling::ThreadedBusy, Polling::Group];

impl Polling {
    /// Returns its name.
    pub fn name(self) -> &'static str {
        match self {
            Polling::Interrupts => "interrupts",
            Polling::Inline => "inline",
            Polling::Separate => "separate",
            Polling::Threaded => "threaded",
            Polling::ThreadedBusy => "threaded-busy",
            Polling::Group => "group",
        }
    }

    /// Returns the delivery mode: the queue's settings and the sockets' options.
    pub fn mode(self) -> Mode {
        let name = match self {
            Polling::Interrupts => "base",
            Polling::Inline | Polling::Separate => "busyread",
            Polling::Threaded => "threaded",
            Polling::ThreadedBusy => "threaded-busy",
            Polling::Group => "group",
        };
        match name.parse() {
            Ok(mode) => mode,
            Err(_) => unreachable!("a mode of the core"),
        }
    }

    /// Whether sockets busy poll.
    pub fn calls_poll(self) -> bool {
        matches!(self, Polling::Inline | Polling::Separate)
    }

    /// Whether a poller takes a core of its own at each end.
    pub fn has_poller(self) -> bool {
        !matches!(self, Polling::Interrupts | Polling::Inline)
    }
}

impl std::str::FromStr for Polling {
    type Err = String;

    fn from_str(text: &str) -> Result<Polling, String> {
        POLLINGS.into_iter().find(|polling| polling.name() == text).ok_or_else(|| {
            let names: Vec<_> = POLLINGS.iter().map(|polling| polling.name()).collect();
            format!("'{text}' is no way of polling: use {}", names.join(", "))
        })
    }
}

/// SO_BUSY_POLL_BUDGET if calls poll.
pub const BUSY_POLL_BUDGET: u32 = 64;

/// The most outstanding requests.
pub const OUTSTANDING_MAX: usize = flight::SLOTS / 2;

/// The settings of a run.
#[derive(Clone, Debug)]
pub struct Settings {
    /// What polls.
    pub polling: Polling,
    /// Time between requests of an open loop, in nanoseconds (`-P`). `None` means a closed loop.
    pub period_ns: Option<u64>,
    /// Requests that a closed loop keeps outstanding (`-o`).
    pub outstanding: usize,
    /// How long the client does not read its ring after an answer, in nanoseconds (`-d`).
    pub delay_ns: u64,
    /// The size of the payload behind the UDP header (`-B`), in bytes.
    pub payload_bytes: usize,
    /// Whether requests are sent by a thread of their own (`-T`).
    pub send_thread: bool,
    /// Whether receive calls are made by a thread that does nothing else (`-t`).
    pub receive_thread: bool,
    /// Whether there are no receive calls at all (`-n`).
    pub no_receive_call: bool,
    /// Whether every byte of an answer is compared (`-v`).
    pub verify: bool,
    /// The interval between reports (`-l`).
    pub report: Option<Duration>,
    /// Time before the window.
    pub warm_up: Duration,
    /// The measured window.
    pub window: Duration,
}

impl Settings {
    /// Returns the settings of a way of polling, which decide whether and in which thread receive calls are made.
    pub fn new(polling: Polling) -> Settings {
        Settings {
            polling,
            period_ns: None,
            outstanding: 1,
            delay_ns: 0,
            payload_bytes: 64,
            send_thread: false,
            receive_thread: polling == Polling::Separate,
            no_receive_call: matches!(polling, Polling::Threaded | Polling::ThreadedBusy | Polling::Group),
            verify: false,
            report: None,
            warm_up: Duration::from_millis(200),
            window: Duration::from_secs(2),
        }
    }

    /// Checks limits, and settings that exclude one another.
    ///
    /// # Errors
    ///
    /// The error names the setting, its value and its limit.
    pub fn check(&self) -> Result<(), BenchError> {
        let invalid = |why: String| Err(BenchError::Invalid(why));
        if !frame::PAYLOAD_RANGE.contains(&self.payload_bytes) {
            let (min, max) = (frame::PAYLOAD_RANGE.start(), frame::PAYLOAD_RANGE.end());
            return invalid(format!("cannot send a payload of {} bytes: it is {min} to {max}", self.payload_bytes));
        }
        if !(1..=OUTSTANDING_MAX).contains(&self.outstanding) {
            let outstanding = self.outstanding;
            return invalid(format!("cannot keep {outstanding} requests outstanding: it is 1 to {OUTSTANDING_MAX}"));
        }
        if self.period_ns == Some(0) {
            return invalid("cannot send every 0 ns: give a period, or none for a closed loop".to_owned());
        }
        if self.receive_thread && self.no_receive_call {
            return invalid(
                "a thread for receive calls (-t) and no receive calls (-n) exclude one another: choose one".to_owned(),
            );
        }
        if self.polling.calls_poll() && self.no_receive_call {
            return invalid(format!(
                "{} polls by receive calls, which -n leaves out: choose another mode, or leave -n out",
                self.polling.name()
            ));
        }
        Ok(())
    }
}
