//! What few connections need, because few applications ask for it or because it seldom happens. A connection has room
//! for a pointer to it.

use std::collections::VecDeque;

use super::error::NetError;
use super::sender::Sender;
use super::socket::Keepalive;
use super::timers::NEVER_NS;

/// What few connections need; see the [module](self).
#[derive(Debug, Default)]
pub(super) struct Asked {
    pub(super) keepalive: Option<Keepalive>,
    /// What is kept for TCP_CORK and MSG_MORE, and what smoltcp had no room for.
    pub(super) cork: Option<Cork>,
    /// SO_RCVLOWAT; 0 and 1 are none.
    pub(super) low_water: u32,
    /// Closing resets it (`SO_LINGER` with 0).
    pub(super) reset_on_close: bool,
    /// It is opened for the reset that answers a challenge ([`ConnectOptions::only_to_reset`](super::ConnectOptions)).
    pub(super) only_to_reset: bool,
    /// The user timeout is the application's own: it counts from the last progress even if the peer is alive.
    pub(super) own_timeout: bool,
    /// What an attempt to reach the peer met with, for when the connection is given up.
    pub(super) soft_error: Option<NetError>,
    /// Where the FIN is that came early.
    pub(super) fin_at: u32,
    /// Whether its buffers hold it up.
    pub(super) growth: Growth,
    /// When what is on its way has to be sent again though smoltcp has no timer for it.
    pub(super) untimed_ns: Option<u64>,
    /// The last segment has been sent again as a probe when this was the first number that was not acknowledged.
    pub(super) probed_at: Option<u32>,
    /// Since when the first number that is not acknowledged is waited for, if that is still this one, whatever the
    /// peer's window has done since.
    pub(super) waits_since: Option<(u32, u64)>,
    /// How long segments may be overtaken on this path, by what was seen so far ([`Sender::reordering`]).
    pub(super) reordering: u32,
    /// Who is in charge of what is lost.
    pub(super) sender: Option<Box<Sender>>,
}

/// What is known of the buffers of a connection that may be too small.
#[derive(Debug, Default)]
pub(super) struct Growth {
    /// Somebody has asked for the size of the receive buffer.
    pub(super) rx_fixed: bool,
    /// The size that the receive buffer is to get, in bytes; 0 if it has it already.
    pub(super) rx_bytes: usize,
    /// Somebody has asked for the size of the transmit buffer.
    pub(super) tx_fixed: bool,
    /// The peer has used all of the window that it was offered.
    pub(super) rx_filled: bool,
    /// What comes is counted from this number and this time on.
    pub(super) rx_from: Option<(u32, u64)>,
    /// An acknowledgement has found the transmit buffer full, which may grow once nothing is on its way.
    pub(super) tx_filled: bool,
    /// Behind the last of the data that came out of order.
    pub(super) holes_end: Option<u32>,
    /// The transmit buffer may grow again once the peer has acknowledged all before this.
    pub(super) grow_at: Option<u32>,
    /// The transmit buffer has grown, and is given back if nothing needs it.
    pub(super) is_grown: bool,
}

impl Growth {
    /// Whether the connection may get another receive buffer once this one is empty; `worth` says whether it has been
    /// filled.
    #[inline]
    pub(super) fn resizes_to_receive(&self, worth: bool) -> bool {
        self.rx_bytes != 0 || worth && self.rx_filled
    }
}

/// What a connection keeps for TCP_CORK and MSG_MORE, and what smoltcp had no room for.
#[derive(Debug)]
pub(super) struct Cork {
    /// Bytes that follow those which smoltcp has: less than a segment, or what smoltcp has no room for.
    pub(super) kept: VecDeque<u8>,
    /// TCP_CORK is on. Otherwise only the last write said that there will be more.
    pub(super) on: bool,
    pub(super) until_ns: u64,
    pub(super) room: SendRoom,
}

/// How much may be written to a connection; 0 is no bound of its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SendRoom {
    /// How many bytes may be written and not acknowledged (SO_SNDBUF), in place of what the connection's buffer holds.
    pub bytes: usize,
    /// Nothing more may be written while this many bytes, or more, are not sent (TCP_NOTSENT_LOWAT).
    pub unsent_bytes: usize,
}

impl Cork {
    pub(super) fn new() -> Cork {
        Cork { kept: VecDeque::new(), on: false, until_ns: NEVER_NS, room: SendRoom::default() }
    }

    /// Whether what is kept waits for more to come, and not for room.
    pub(super) fn waits_for_more(&self) -> bool {
        self.on || self.until_ns != NEVER_NS
    }
}
