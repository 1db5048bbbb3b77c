//! Senders: one thread that sends to all flows in turn.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use lull_nic::wire::{self, put16};
use lull_nic::{FramePool, Queue};

/// The number of datagrams between two readings of the clock and two doorbells.
const BATCH: u64 = 32;
/// The number of frames that a generator keeps.
const POOL_FRAMES: usize = 4_096;
/// The sender's port.
pub const PORT: u16 = 9;

/// One end of a flow.
#[derive(Clone, Copy, Debug)]
pub struct Station {
    /// Its Ethernet address.
    pub mac: [u8; 6],
    /// Its IP address.
    pub ip: Ipv4Addr,
}

/// When the next datagrams are due: at a rate, or always.
pub struct Due {
    per_second: Option<f64>,
    begun: Instant,
    sent: u64,
}

impl Due {
    /// Starts now.
    pub fn new(per_second: Option<f64>) -> Due {
        Due { per_second, begun: Instant::now(), sent: 0 }
    }

    /// Returns how many are due now, at most a batch. They count as sent.
    pub fn take(&mut self) -> u64 {
        let due = match self.per_second {
            None => BATCH,
            Some(rate) => ((self.begun.elapsed().as_secs_f64() * rate) as u64).saturating_sub(self.sent).min(BATCH),
        };
        self.sent += due;
        due
    }
}

/// Makes a datagram as a frame, ready to be sent. Its checksum is left out, as UDP over IPv4 allows.
pub fn datagram(from: Station, to: Station, port: u16, bytes: usize) -> Vec<u8> {
    let ip_bytes = wire::IPV4 + wire::UDP + bytes;
    let mut frame = vec![0; wire::ETHERNET + ip_bytes];
    frame[..6].copy_from_slice(&to.mac);
    frame[6..12].copy_from_slice(&from.mac);
    put16(&mut frame, 12, wire::ETHERTYPE_IPV4);
    let ip = &mut frame[wire::ETHERNET..];
    (ip[0], ip[8], ip[9]) = (0x45, 64, wire::PROTOCOL_UDP);
    put16(ip, 2, ip_bytes as u16);
    ip[12..16].copy_from_slice(&from.ip.octets());
    ip[16..20].copy_from_slice(&to.ip.octets());
    wire::put_checksum(&mut ip[..wire::IPV4], 10, 0);
    let udp = &mut ip[wire::IPV4..];
    put16(udp, 0, PORT);
    put16(udp, 2, port);
    put16(udp, 4, (wire::UDP + bytes) as u16);
    frame
}

/// Sends `frames` in turn on a ring until `over` is set. Returns how many the ring took.
pub fn on_ring(mut queue: Queue, frames: &[Vec<u8>], per_second: Option<f64>, over: &AtomicBool) -> u64 {
    queue.irq.mask();
    let mut pool = FramePool::new(POOL_FRAMES);
    let (mut due, mut sent, mut next) = (Due::new(per_second), 0, 0);
    while !over.load(Ordering::Relaxed) {
        for _ in 0..due.take() {
            let data = &frames[next];
            next = (next + 1) % frames.len();
            let mut frame = pool.alloc_for(data.len());
            frame.set_len(data.len());
            frame.data_mut().copy_from_slice(data);
            match queue.tx.transmit(frame) {
                Ok(()) => sent += 1,
                Err(frame) => pool.recycle(frame),
            }
        }
        queue.tx.doorbell();
        queue.tx.reap_sent(&mut pool);
        // Frames from the other end are of no use here.
        queue.rx.poll(BATCH as usize, &mut pool, &mut |frame, pool| pool.recycle(frame));
    }
    sent
}

/// Sends datagrams of `bytes` to `flows` ports in turn from the kernel's sockets until `over` is set. Returns how many
/// it sent.
///
/// # Errors
///
/// This fails if there is no socket, or no route to the address.
pub fn over_sockets(
    to: Ipv4Addr,
    ports: impl Iterator<Item = u16>,
    bytes: usize,
    per_second: Option<f64>,
    over: &AtomicBool,
) -> io::Result<u64> {
    let open = |port| {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
        socket.connect(SocketAddr::from((to, port)))?;
        Ok::<_, io::Error>(socket)
    };
    let sockets = ports.map(open).collect::<io::Result<Vec<_>>>()?;
    let payload = vec![7; bytes];
    let (mut due, mut sent, mut next) = (Due::new(per_second), 0, 0);
    while !over.load(Ordering::Relaxed) {
        for _ in 0..due.take() {
            // A datagram that a full queue refuses is lost, as on a wire. Datagrams that are dropped later are in the
            // device's counters.
            sent += u64::from(sockets[next].send(&payload).is_ok());
            next = (next + 1) % sockets.len();
        }
    }
    Ok(sent)
}
