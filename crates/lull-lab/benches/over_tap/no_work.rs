//! A responder that does no work: it turns each frame around with next to nothing behind it, so its rate is what the
//! device and the clients allow. A connection that loses a frame is lost.

use std::net::Ipv4Addr;

use lull_nic::{Checksum, Frame, FramePool, Queue};

/// The number of frames taken at a time.
const BATCH: usize = 64;
const ETHERNET: usize = 14;
const FIN: u8 = 1;
const SYN: u8 = 2;
const PSH: u8 = 8;
const ACK: u8 = 16;

/// What the responder answers a segment with.
#[allow(dead_code)] // The bench echoes, the example answers requests.
pub enum Answer {
    /// The segment's own payload.
    Echo,
    /// `answer`, for each `end` (the end of a request) in the segment.
    Each { end: Vec<u8>, answer: Vec<u8> },
}

pub struct NoWork {
    mac: [u8; 6],
    ip: Ipv4Addr,
    answer: Answer,
    /// The next sequence number to send, by the client's port.
    next: Vec<u32>,
    pool: FramePool,
}

impl NoWork {
    pub fn new(mac: [u8; 6], ip: Ipv4Addr, answer: Answer) -> NoWork {
        NoWork { mac, ip, answer, next: vec![0; 1 << 16], pool: FramePool::new(BATCH) }
    }

    /// Answers the frames that are there, at most a batch. Returns the number of frames.
    pub fn turn_around(&mut self, queue: &mut Queue) -> usize {
        let Queue { rx, tx, .. } = queue;
        let NoWork { mac, ip, answer, next, pool } = self;
        let taken = rx.poll(BATCH, pool, &mut |mut frame: Frame, pool| {
            let answers = match frame.data().get(12..ETHERNET) {
                Some([8, 6]) => answer_arp(*mac, *ip, frame.data_mut()),
                Some([8, 0]) => answer_tcp(*ip, answer, next, &mut frame),
                _ => false,
            };
            if !answers {
                pool.recycle(frame);
                return;
            }
            let data = frame.data_mut();
            data.copy_within(6..12, 0);
            data[6..12].copy_from_slice(mac);
            frame.set_checksum(Checksum::None);
            // If the ring is full, the frame is lost.
            if let Err(frame) = tx.transmit(frame) {
                pool.recycle(frame);
            }
        });
        tx.doorbell();
        tx.reap_sent(pool);
        taken
    }
}

fn answer_arp(mac: [u8; 6], ip: Ipv4Addr, data: &mut [u8]) -> bool {
    if data.len() < 42 || data[38..42] != ip.octets() {
        return false;
    }
    data[21] = 2;
    data.copy_within(22..32, 32);
    data[22..28].copy_from_slice(&mac);
    data[28..32].copy_from_slice(&ip.octets());
    true
}

/// Turns a TCP segment (RFC 9293) into the answer to itself, with an acknowledgement.
fn answer_tcp(ip: Ipv4Addr, answer: &Answer, next: &mut [u32], frame: &mut Frame) -> bool {
    let data = frame.data();
    let ip_bytes = usize::from(data[ETHERNET] & 15) * 4;
    let total = usize::from(u16::from_be_bytes([data[16], data[17]]));
    let at = ETHERNET + ip_bytes;
    if data[23] != 6 || data[30..34] != ip.octets() || data.len() < ETHERNET + total {
        return false;
    }
    let header_bytes = usize::from(data[at + 12] >> 4) * 4;
    let payload = &data[at + header_bytes..ETHERNET + total];
    let flags = data[at + 13];
    let seq = u32::from_be_bytes([data[at + 4], data[at + 5], data[at + 6], data[at + 7]]);
    let taken = payload.len() as u32 + u32::from(flags & SYN != 0) + u32::from(flags & FIN != 0);
    if taken == 0 {
        return false;
    }
    let answered = match answer {
        Answer::Echo => payload.len(),
        Answer::Each { end, answer } => {
            let answers = memchr::memmem::find_iter(payload, end).count();
            frame.set_len(frame.capacity());
            let room = &mut frame.data_mut()[at + header_bytes..];
            let answered = (answers * answer.len()).min(room.len());
            room[..answered].chunks_mut(answer.len()).for_each(|room| room.copy_from_slice(&answer[..room.len()]));
            answered
        }
    };
    let total = ip_bytes + header_bytes + answered;
    frame.set_len(ETHERNET + total);
    let data = frame.data_mut();
    let port = usize::from(u16::from_be_bytes([data[at], data[at + 1]]));
    if flags & SYN != 0 {
        next[port] = 0;
    }
    data[16..18].copy_from_slice(&(total as u16).to_be_bytes());
    data[26..34].rotate_left(4);
    data[24..26].fill(0);
    let sum = checksum(&[], 0, &data[ETHERNET..at]);
    data[24..26].copy_from_slice(&sum.to_be_bytes());
    data[at..at + 4].rotate_left(2);
    data[at + 4..at + 8].copy_from_slice(&next[port].to_be_bytes());
    data[at + 8..at + 12].copy_from_slice(&seq.wrapping_add(taken).to_be_bytes());
    data[at + 13] = ACK | (flags & (SYN | FIN)) | if answered > 0 { PSH } else { 0 };
    next[port] = next[port].wrapping_add(answered as u32 + u32::from(flags & (SYN | FIN) != 0));
    // No options are agreed on, so their place is filled with no-operation options.
    data[at + 20..at + header_bytes].fill(1);
    data[at + 16..at + 18].fill(0);
    let sum = checksum(&data[26..34], 6 + (total - ip_bytes) as u32, &data[at..ETHERNET + total]);
    data[at + 16..at + 18].copy_from_slice(&sum.to_be_bytes());
    true
}

/// Returns the internet checksum (RFC 1071) of `bytes`, of the bytes `before` them, and of the number `rest`.
fn checksum(before: &[u8], rest: u32, bytes: &[u8]) -> u16 {
    let words = |bytes: &[u8]| -> u32 {
        let pair = |pair: &[u8]| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
        bytes.chunks(2).map(pair).sum()
    };
    let mut sum = words(before) + rest + words(bytes);
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}
