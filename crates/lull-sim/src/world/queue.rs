//! Queues of the NIC: rings, moderation, and the NAPI of each.

use lull_core::{NapiSettings, Threaded};

use crate::engine::dim::Moderation;

/// How a completion queue's interrupt is moderated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModerationSpec {
    /// Every completion interrupts at once.
    Off,
    /// A fixed profile.
    Fixed(Moderation),
    /// Adaptive: [`crate::engine::dim::Dim`] moves along the profiles.
    Adaptive,
}

/// When a moderation period begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Period {
    /// It begins anew with each completion, so it ends when none has come for that time (mlx5's receive queues from
    /// ConnectX-4 on).
    Completion,
    /// It begins with the first completion that was not reported yet.
    First,
    /// It begins with the interrupt before, so it limits the rate of interrupts (mlx5's transmit queues).
    Interrupt,
}

/// A queue that sends through a queueing discipline, with a NAPI of its own, and receives nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransmitSpec {
    /// The discipline.
    pub qdisc: lull_qdisc::Kind,
    /// How many frames the discipline holds.
    pub limits: lull_qdisc::Limits,
    /// Frames that its ring holds.
    pub ring_frames: u32,
    /// An answer's length on the wire, in bytes.
    pub frame_bytes: u32,
    /// How long a frame is on the wire, in nanoseconds.
    pub frame_wire_ns: u32,
    /// The queue pair whose NAPI reaps the completions of what it sent; `None` if the device reports none.
    pub reaped_by: Option<u32>,
}

/// One queue pair of the NIC, with its NAPI.
#[derive(Clone, Debug)]
pub struct QueueSpec {
    /// The CPU that its interrupt goes to.
    pub cpu: u16,
    /// The settings of its NAPI.
    pub napi: NapiSettings,
    /// The CPU that its NAPI thread runs on, if it has one.
    pub thread_cpu: u16,
    /// How many packets its NAPI thread takes before it lets other threads run. 0 means the packets of one poll, as in
    /// Linux since 5.12; for the letter of 2016 `netdev_budget` is assumed.
    pub thread_packets: u32,
    /// Moderation of the receive completions.
    pub rx: ModerationSpec,
    /// Moderation of the transmit completions.
    pub tx: ModerationSpec,
    /// When a moderation period of the receive side begins.
    pub rx_period: Period,
    /// When a moderation period of the transmit side begins.
    pub tx_period: Period,
    /// Whether sent frames are reported by completions, which polls reap. An in-memory NIC and a TAP have none.
    pub tx_completions: bool,
    /// Packets that the receive ring holds; more are dropped.
    pub ring_packets: u32,
    /// Whether GRO holds packets after a poll that took some.
    pub gro_holds: bool,
    /// How the device masks.
    pub masking: Masking,
    /// Whether a poll that used up its budget on another CPU than the interrupt's reports one packet less, so that the
    /// instance completes and its interrupt brings it back (mlx5e_napi_poll).
    pub completes_off_affinity: bool,
    /// Whether it has a NAPI thread even while it is not threaded, so that it may become so.
    pub has_thread: bool,
    /// The interrupt vector that it shares with the other queues of the same number; `None` means a vector of its own.
    /// The handler of a vector takes everything that its queues report until it has ended (mlx4: a transmit ring has
    /// the vector of its receive ring, and `mlx4_eq_int` goes on until the event queue is empty).
    pub vector: Option<u32>,
    /// Its properties if it is a transmit queue with a discipline, and no queue pair.
    pub transmits: Option<TransmitSpec>,
}

/// How a device's interrupt is masked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Masking {
    /// Raising the interrupt disarms it, and arming it looks at the ring (completion queues of mlx5).
    #[default]
    Disarm,
    /// The handler masks it after it has scheduled the NAPI. Unmasking reports what came in the meantime, and does not
    /// look at the ring (message-signalled interrupts of most other devices).
    Mask,
}

impl QueueSpec {
    /// Makes a queue on this CPU with default settings, no moderation and a ring of 1024.
    pub fn new(cpu: u16) -> QueueSpec {
        QueueSpec {
            cpu,
            napi: NapiSettings::default(),
            thread_cpu: cpu,
            thread_packets: 0,
            rx: ModerationSpec::Off,
            tx: ModerationSpec::Off,
            rx_period: Period::Completion,
            tx_period: Period::Interrupt,
            tx_completions: true,
            ring_packets: 1_024,
            gro_holds: false,
            masking: Masking::Disarm,
            completes_off_affinity: false,
            has_thread: false,
            vector: None,
            transmits: None,
        }
    }

    /// Whether its NAPI has a thread, now or later.
    pub fn may_have_thread(&self) -> bool {
        self.has_thread || self.napi.threaded != Threaded::Off
    }
}
