//! Request/response pairs: their sockets and the programs on them.

/// How the frames of a socket reach the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transmit {
    /// The send call hands it to the device (TCP).
    Doorbell,
    /// The next poll of the NAPI sends it, whoever polls; the program makes no call.
    Poll,
    /// The send call schedules a poll on its own CPU, which sends it (`ndo_xsk_wakeup` of drivers that call
    /// `napi_schedule`, such as gve).
    Wakeup,
    /// The send call makes a round of busy polling, which sends it (`xsk_sendmsg` of a socket with SO_BUSY_POLL). If
    /// the NAPI has another owner, that owner's poll sends it.
    BusyPoll,
    /// The send call hands a copy to the device on its own CPU (`xsk_generic_xmit` of a socket bound with XDP_COPY). If
    /// the socket busy polls, a round of that comes first (`__xsk_sendmsg`), and the frame waits for it.
    Copy,
}

/// One end of a request/response pair.
#[derive(Clone, Debug)]
pub struct SocketSpec {
    /// The queue that its packets arrive on.
    pub queue: u32,
    /// The queue that it sends on.
    pub tx_queue: u32,
    /// The other end.
    pub peer: u32,
    /// How its frames reach the device.
    pub transmit: Transmit,
    /// How long a frame takes from the device's doorbell to the other end's ring, in nanoseconds.
    pub wire_ns: u32,
    /// SO_BUSY_POLL, in microseconds; 0 is off.
    pub busy_poll_usecs: u32,
    /// SO_PREFER_BUSY_POLL.
    pub prefer_busy_poll: bool,
    /// SO_BUSY_POLL_BUDGET; 0 is the default.
    pub busy_poll_budget: u32,
}

/// What a thread of a request/response pair does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerKind {
    /// Sends a request, waits for the answer, and sends the next.
    Requester,
    /// Answers each message.
    Responder,
    /// Sends a message once in each period, answered or not.
    Pacer {
        /// The period, in nanoseconds.
        period_ns: u64,
    },
    /// Takes answers, and is busy for a while after each.
    Taker {
        /// The application's delay, in nanoseconds.
        delay_ns: u64,
    },
    /// Makes receive calls only for their polling.
    Poller,
}

/// How a thread waits for messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Receive {
    /// It blocks in a call, which busy polls first if the socket's options say so.
    Block,
    /// It looks at the socket's ring in user space.
    Spin,
    /// It makes non-blocking calls while the ring is empty.
    Call,
}

/// A thread of a request/response pair.
#[derive(Clone, Debug)]
pub struct PeerSpec {
    /// Its CPU.
    pub cpu: u16,
    /// Its socket.
    pub socket: u32,
    /// What it does.
    pub kind: PeerKind,
    /// How it waits.
    pub receive: Receive,
}
