//! The bytes of a stream that a socket of smoltcp holds cannot be read from it. So the socket is made to send them
//! again, to us.

use smoltcp::iface::{Interface, SocketSet};
use smoltcp::phy::{self, DeviceCapabilities};
use smoltcp::time::{Duration, Instant};

use super::clock::instant;
use super::connection::Connection;
use super::device::{Port, RxToken, capabilities};
use super::narrow::Interfaces;
use super::wire;

/// All that the application has written and the peer has not acknowledged, which the old socket is made to send.
pub(super) fn unacknowledged(
    connection: &mut Connection,
    ifaces: &mut Interfaces,
    port: Port,
    now_ns: u64,
) -> Option<Vec<u8>> {
    let (queued, first) = (connection.socket().send_queue(), connection.snd_una);
    if queued == 0 {
        return Some(Vec::new());
    }
    connection.socket_mut().set_nagle_enabled(false);
    let iface = ifaces.of(connection, now_ns);
    rewind(&mut connection.sockets, iface, port, now_ns);
    let data = drain(&mut connection.sockets, iface, port, instant(now_ns), (first, queued));
    data.filter(|sent| sent.len() == queued)
}

/// The bytes that were sent and are not acknowledged, and what smoltcp sends with the last of them.
pub(super) fn on_its_way(
    connection: &mut Connection,
    ifaces: &mut Interfaces,
    port: Port,
    now_ns: u64,
) -> Option<Vec<u8>> {
    let (first, queued) = (connection.snd_una, connection.socket().send_queue());
    let sent = (connection.snd_nxt.wrapping_sub(first) as usize).min(queued);
    connection.socket_mut().set_nagle_enabled(false);
    let iface = ifaces.of(connection, now_ns);
    rewind(&mut connection.sockets, iface, port, now_ns);
    drain(&mut connection.sockets, iface, port, instant(now_ns), (first, sent)).filter(|data| !data.is_empty())
}

/// Makes a socket that waits for an acknowledgement begin again with what is not acknowledged, as if its timer had run out.
fn rewind(sockets: &mut SocketSet<'static>, iface: &mut Interface, port: Port, now_ns: u64) {
    /// Longer than any retransmission timeout.
    const LATER: Duration = Duration::from_secs(1 << 20);
    // Nothing leaves at that time: it would be taken for when it was sent.
    let mut closed = Sink { port, first: 0, bytes: 0, data: Vec::new(), whole: true };
    iface.poll_egress(instant(now_ns) + LATER, &mut closed, sockets);
}

/// The data that a socket sends until it has no more to send, or until it has sent so many bytes. It begins with `first` and has no
/// hole.
pub(super) fn drain(
    sockets: &mut SocketSet<'static>,
    iface: &mut Interface,
    port: Port,
    now: Instant,
    (first, bytes): (u32, usize),
) -> Option<Vec<u8>> {
    let mut sink = Sink { port, first, bytes, data: Vec::new(), whole: true };
    loop {
        let before = sink.data.len();
        iface.poll_egress(now, &mut sink, sockets);
        if sink.data.len() == before {
            return sink.whole.then_some(sink.data);
        }
    }
}

/// Keeps the data of what is sent.
struct Sink {
    port: Port,
    first: u32,
    bytes: usize,
    data: Vec<u8>,
    whole: bool,
}

struct SinkToken<'s>(&'s mut Sink);

impl phy::TxToken for SinkToken<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, f: F) -> R {
        let sink = self.0;
        let mut packet = vec![0; len];
        let result = f(&mut packet);
        let tcp = &packet[if packet[0] >> 4 == 4 { wire::IPV4 } else { wire::IPV6 }..];
        let data = &tcp[usize::from(tcp[12] >> 4) * 4..];
        if !data.is_empty() {
            sink.whole &= wire::be32(tcp, 4) == sink.first.wrapping_add(sink.data.len() as u32);
            sink.data.extend_from_slice(data);
        }
        result
    }
}

impl phy::Device for Sink {
    type RxToken<'s> = RxToken<'s>;
    type TxToken<'s> = SinkToken<'s>;

    fn receive(&mut self, _now: Instant) -> Option<(RxToken<'_>, SinkToken<'_>)> {
        None
    }

    fn transmit(&mut self, _now: Instant) -> Option<SinkToken<'_>> {
        (self.data.len() < self.bytes).then_some(SinkToken(self))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        capabilities(self.port)
    }
}
