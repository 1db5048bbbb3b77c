//! A connection gets buffers of other sizes ([`grow`](super::grow) says when). smoltcp's sockets cannot change theirs,
//! so the connection moves to a new socket. That is led through a handshake to the numbers where the old one stands,
//! and is given what the peer has not acknowledged yet, which the old one is made to send again to us. What had been
//! sent counts as sent, so that nothing of it leaves twice.

use lull_host::uncleared;
use smoltcp::iface::{Interface, SocketHandle, SocketSet};
use smoltcp::socket::tcp::{Socket, State};
use smoltcp::time::Instant;

use super::agreed::SACK;
use super::clock::instant;
use super::connection::{Connection, Flags, Phase};
use super::device::Port;
use super::drain::{drain, unacknowledged};
use super::grow::is_awaited;
use super::half_open::{Handshake, window_scale};
use super::opening::one_socket;
use super::options::Offer;
use super::recovery::Cause;
use super::stack::{Io, Stack};
use super::wire::{ACK, BareSegment};

impl Connection {
    /// Whether the connection can go on in another socket: all that came has been read, and what was sent can be given
    /// to the new one.
    fn can_move(&mut self) -> bool {
        let (next, capacity) = (self.rcv_nxt(), self.socket().recv_capacity());
        let growth = &mut self.asked_mut().growth;
        growth.holes_end = growth.holes_end.filter(|&end| is_awaited(end, next, capacity));
        let has_holes = growth.holes_end.is_some();
        let socket = self.socket();
        let is_plain = self.phase == Phase::Open && socket.state() == State::Established;
        // What waits for the ring or for a next hop may tell a window, and the new socket would believe that this was
        // told.
        let hampered = Flags::EARLY_FIN | Flags::PROBING | Flags::BLOCKED | Flags::UNRESOLVED;
        let is_fit = !has_holes && !self.flags.intersects(hampered) && !self.is_recovering();
        // What lies beyond the peer's window, or beyond a congestion window, would not come out of the old socket.
        let queued = socket.send_queue();
        let gives_all = queued == 0 || !self.has_congestion_window() && queued <= self.peer_window_bytes();
        is_plain && is_fit && socket.recv_queue() == 0 && gives_all
    }

    /// The handshake that would have led here, had the stream begun with what is unacknowledged.
    fn handshake_to_here(&self, now_ns: u64) -> Handshake {
        let timestamp = self.timestamps.map(|timestamps| (timestamps.option(now_ns).1, 0));
        let offer = Offer {
            mss: Some(self.peer_mss & !SACK),
            window_scale: (self.scales != 0).then_some(self.scales >> 4),
            sack: self.peer_mss & SACK != 0,
            timestamp,
        };
        let (isn, peer_isn) = (self.snd_una.wrapping_sub(1), self.rcv_nxt().wrapping_sub(1));
        // smoltcp takes the handshake's round trip for the first of the path's.
        let sent_ns = (self.rtt_us != 0).then(|| now_ns.saturating_sub(u64::from(self.rtt_us) * 1000));
        Handshake { isn, peer_isn, offer, sent_ns }
    }

    /// What smoltcp answers by the window, which both ends then go by: a probe of what it has long received.
    pub(super) fn window_probe(&self) -> BareSegment {
        self.bare(self.rcv_nxt().wrapping_sub(1))
    }

    /// A segment of the peer's without data, as it would come now.
    pub(super) fn bare(&self, seq: u32) -> BareSegment {
        let (own, peer) = (self.flow.local(), self.flow.remote());
        BareSegment {
            source: peer.ip(),
            source_port: peer.port(),
            destination: own.ip(),
            destination_port: own.port(),
            seq,
            ack: self.snd_una,
            flags: ACK,
            window: self.peer_window,
        }
    }
}

impl Stack {
    /// Moves a connection to buffers of these sizes, if it can move and there is memory for it. Returns whether it did.
    #[cold]
    pub(super) fn move_to(&mut self, index: u32, rx: usize, tx: usize, io: &mut Io<'_>) -> bool {
        let Some(connection) = self.connections.get_mut(index) else { return false };
        if !connection.can_move() {
            return false;
        }
        if connection.socket().send_queue() > 0 {
            // smoltcp drops a segment at the very end of our window (`tcp_sequence` does not), and so does not know the
            // peer's window that came with it; nor does it know more of a window than a congestion window leaves it. It
            // would give out only what it knows may leave.
            let window = connection.peer_window;
            self.shows(index, window, io);
        }
        let moves = self.moves_to(index, rx, tx, io);
        self.shows_window(index, io);
        moves
    }

    fn moves_to(&mut self, index: u32, rx: usize, tx: usize, io: &mut Io<'_>) -> bool {
        let Some(connection) = self.connections.get_mut(index) else { return false };
        let (rx_before, tx_before) = (connection.socket().recv_capacity(), connection.socket().send_capacity());
        let total = self.buffer_bytes - rx_before - tx_before + rx + tx;
        let is_growing = rx > rx_before || tx > tx_before;
        // Where buffers grow all of them have a bound.
        let most = match self.config.growth.total_bytes_max {
            0 => usize::MAX,
            most => most,
        };
        let fits = !is_growing || total <= most;
        let Some(buffers) = fits.then(|| Some((uncleared(rx).ok()?, uncleared(tx).ok()?))).flatten() else {
            self.counters.tcp_buffers_kept_small += 1;
            return false;
        };
        let Some(queued) = unacknowledged(connection, &mut self.iface, self.port, io.now_ns) else {
            // Its timer had ended, so that it does not begin again.
            self.goes_on_as_after_a_loss(index, io);
            return false;
        };
        // A smaller buffer that holds what was offered and no more is no news.
        let is_news =
            rx > rx_before || rx < rx_before && rx > connection.offered_bytes() + (1 << window_scale(rx_before));
        let is_to_be_told = is_news || connection.unanswered != 0;
        let Some(sockets) = self.led_to(index, buffers, &queued, is_to_be_told, io) else {
            debug_assert!(false, "smoltcp does not come to where the connection is");
            self.buffer_bytes = total + rx_before + tx_before - rx - tx;
            self.goes_on_as_after_a_loss(index, io);
            return false;
        };
        self.buffer_bytes = total;
        let Some(connection) = self.connections.get_mut(index) else { return false };
        connection.sockets = sockets;
        connection.settle_windows();
        if is_to_be_told {
            let probe = connection.window_probe();
            self.feed_bare(index, &probe, io);
        }
        true
    }

    /// The old socket stays, whose data has gone nowhere.
    fn goes_on_as_after_a_loss(&mut self, index: u32, io: &mut Io<'_>) {
        if !self.takes_charge(index, Cause::Path, io)
            && let Some(connection) = self.connections.get_mut(index)
        {
            connection.has_no_timer(io.now_ns);
        }
        self.timers.set(index, io.now_ns + 1);
    }

    /// A socket on these buffers that stands where the connection stands, with what the peer has not acknowledged. Unless the peer
    /// is to be told the window, it is settled here.
    fn led_to(
        &mut self,
        index: u32,
        (rx, tx): (Vec<u8>, Vec<u8>),
        queued: &[u8],
        is_to_be_told: bool,
        io: &mut Io<'_>,
    ) -> Option<SocketSet<'static>> {
        let connection = self.connections.get(index)?;
        let (flow, handshake) = (connection.flow, connection.handshake_to_here(io.now_ns));
        let (first, next) = (connection.snd_una, connection.rcv_nxt());
        let (sent, rest) = queued.split_at_checked(connection.snd_nxt.wrapping_sub(first) as usize)?;
        let congestion_control = connection.socket().congestion_control();
        let (last, probe) = (connection.bare(next), (!is_to_be_told).then(|| connection.window_probe()));
        let mut socket = self.new_socket_on(rx, tx, handshake.isn, io.now_ns);
        socket.set_congestion_control(congestion_control);
        socket.set_nagle_enabled(false);
        socket.listen(flow.local().port()).ok()?;
        let mut sockets = one_socket(socket);
        self.rehearse(&mut sockets, &flow, &handshake, io)?;
        self.plays(&mut sockets, std::iter::once(last).chain(probe), handshake.offer.timestamp, io);
        let takes_over =
            takes_over(&mut sockets, &mut self.iface.own, self.port, instant(io.now_ns), first, (sent, rest));
        takes_over.then_some(sockets)
    }
}

/// Gives a new socket what the old one had, which begins with `first`: what is on its way, as if this one had sent it, and the rest.
fn takes_over(
    sockets: &mut SocketSet<'static>,
    iface: &mut Interface,
    port: Port,
    now: Instant,
    first: u32,
    (sent, rest): (&[u8], &[u8]),
) -> bool {
    let socket = sockets.get_mut::<Socket<'static>>(SocketHandle::default());
    if socket.state() != State::Established || socket.send_slice(sent) != Ok(sent.len()) {
        return false;
    }
    let gone = drain(sockets, iface, port, now, (first, sent.len())).is_some_and(|gone| gone.len() == sent.len());
    let socket = sockets.get_mut::<Socket<'static>>(SocketHandle::default());
    gone && socket.send_slice(rest) == Ok(rest.len())
}
