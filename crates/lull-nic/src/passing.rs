//! Frames that processes pass on to each other.
//!
//! Several processes may each have a queue of one interface and a stack of their own, with the same addresses. The kernel gives
//! a flow to the queue that last sent in it, and forgets that after some seconds, or when a queue comes or goes
//! (`tun_flow_cleanup`, `__tun_detach`); so a segment may reach a process that does not know its connection. It is then passed on
//! to the others, one after the other, by a socket for each queue, the queue's *inbox*, until one knows it.
//!
//! [`WithInboxes`] receives from a device's queues and from their inboxes; [`pass_on`] sends to one.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::Arc;

use crate::device::{Device, DeviceError, DeviceEvent, IrqLine, IrqSink, Queue, RxQueue};
use crate::eventfd::EitherFd;
use crate::frame::{Checksum, Frame, FramePool, LARGE_FRAME_BYTES, Segmentation};
use crate::observe;

/// Queues that can pass frames on to each other: a frame has a bit for each of those that it has been to.
pub const QUEUES_MAX: usize = 30;
/// A bit beside those of the queues: everybody has said that the frame belongs to no connection of theirs, and is asked
/// now whether it ends a handshake that another began.
pub const LAST_ROUND: u32 = 1 << QUEUES_MAX;
/// All queues have seen the frame. A SYN that then goes to a process which has begun to listen meanwhile is marked so
/// the first time, and with [`EVERYBODY`] the second and last time.
pub const ALL_QUEUES: u32 = LAST_ROUND - 1;
/// As the only mark: the frame is no segment that arrives, but says that the stack from which it comes has made a
/// connection of it.
pub const CLAIMED: u32 = 1 << (QUEUES_MAX + 1);
/// Everybody has seen the frame, and nobody passes it on. A TCP segment with this mark that only acknowledges is a
/// whole connection, which the stack that had it hands over.
pub const EVERYBODY: u32 = u32::MAX;
/// Where a frame has been, what is known of its checksum, and how it is segmented.
const HEADER: usize = 8;
/// Bytes on the way to a process that does not read them; beyond, frames are lost, as on a full ring.
const WAITING_BYTES_MAX: libc::c_int = 1 << 20;

/// An inbox: the end that its queue's process reads, and the end that the others write.
///
/// # Errors
/// When the process is out of descriptors.
pub fn inbox() -> io::Result<(OwnedFd, OwnedFd)> {
    let mut pair = [-1; 2];
    let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: room for the two descriptors.
    if unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, pair.as_mut_ptr()) } < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: both are open, because the call succeeded, and nobody else has them.
    let (reads, writes) = unsafe { (OwnedFd::from_raw_fd(pair[0]), OwnedFd::from_raw_fd(pair[1])) };
    let bytes = WAITING_BYTES_MAX;
    let value = (&raw const bytes).cast();
    // If the kernel grants less, fewer frames can wait. SAFETY: the option reads an int, which outlives the call.
    unsafe {
        libc::setsockopt(writes.as_raw_fd(), libc::SOL_SOCKET, libc::SO_SNDBUF, value, size_of_val(&bytes) as u32)
    };
    Ok((reads, writes))
}

/// Sends a frame to an inbox. `seen_by` says which queues it has been to, those of the sender included. Returns false
/// if the inbox is full; the frame is lost then, like one that finds a ring full.
pub fn pass_on(inbox: BorrowedFd<'_>, frame: &Frame, seen_by: u32) -> bool {
    let (checksum, mss) = (
        frame.checksum() as u8,
        match frame.segmentation() {
            Segmentation::None => 0,
            Segmentation::Tcp { mss_bytes } => mss_bytes,
            // Joined datagrams are for a socket of this process.
            Segmentation::Udp { .. } => return false,
        },
    );
    let mut header = [0; HEADER];
    header[..4].copy_from_slice(&seen_by.to_le_bytes());
    header[4] = checksum;
    header[6..].copy_from_slice(&mss.to_le_bytes());
    let mut parts = vec![part(&header)];
    parts.extend(frame.segments().map(|segment| part(segment.data())));
    // SAFETY: plain data, for which zeroes are a value.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = parts.as_mut_ptr();
    message.msg_iovlen = parts.len() as _;
    // SAFETY: the message and what it points to outlive the call, which only reads them.
    unsafe { libc::sendmsg(inbox.as_raw_fd(), &raw const message, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) >= 0 }
}

fn part(bytes: &[u8]) -> libc::iovec {
    libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() }
}

/// A device each of whose queues has an inbox as well.
pub struct WithInboxes {
    inner: Arc<dyn Device>,
    inboxes: Vec<Arc<OwnedFd>>,
}

impl std::fmt::Debug for WithInboxes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WithInboxes").field("inner", &self.inner.info()).finish_non_exhaustive()
    }
}

impl WithInboxes {
    /// `inner`, with the ends that are read of its queues' inboxes. What waits in them was for whoever had the queues before, and
    /// comes back.
    pub fn new(inner: Arc<dyn Device>, inboxes: Vec<OwnedFd>) -> (WithInboxes, Vec<Frame>) {
        let waits = inboxes.iter().flat_map(|inbox| std::iter::from_fn(|| taken(inbox.as_fd()))).collect();
        (WithInboxes { inner, inboxes: inboxes.into_iter().map(Arc::new).collect() }, waits)
    }
}

impl Device for WithInboxes {
    observe::pass_on!();

    fn take_queue(&self, index: usize) -> Result<Queue, DeviceError> {
        let queue = self.inner.take_queue(index)?;
        let (Some(inbox), Some(frames)) = (self.inboxes.get(index), queue.irq.fd()) else { return Ok(queue) };
        let either = EitherFd::new(frames, inbox.as_fd()).map_err(|source| DeviceError::Os {
            device: self.info().name,
            what: format!("watch the inbox of queue {index}"),
            remedy: "raise the limit on open files (ulimit -n)",
            source,
        })?;
        let irq = Arc::new(EitherIrq { either, _frames: queue.irq.clone() });
        let watched = irq.clone();
        self.inner.watch(Box::new(move |event| {
            if event == DeviceEvent::Gone {
                // Without a descriptor for the silence, whoever waits for frames spins.
                let _ = watched.either.silence();
            }
        }));
        let rx =
            Box::new(EitherRx { frames: queue.rx, inbox: inbox.clone(), buffer: vec![0; HEADER + LARGE_FRAME_BYTES] });
        Ok(Queue { rx, irq, ..queue })
    }
}

struct EitherIrq {
    either: EitherFd,
    /// Its descriptor is watched.
    _frames: Arc<dyn IrqLine>,
}

impl IrqLine for EitherIrq {
    fn connect(&self, _sink: Arc<dyn IrqSink>) {}

    fn mask(&self) {}

    fn unmask(&self) {}

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.either.as_fd())
    }
}

struct EitherRx {
    frames: Box<dyn RxQueue>,
    inbox: Arc<OwnedFd>,
    buffer: Vec<u8>,
}

impl EitherRx {
    /// Takes up to `most` frames off the inbox, and returns how many it took.
    fn poll_inbox(
        &mut self,
        most: usize,
        pool: &mut FramePool,
        deliver: &mut dyn FnMut(Frame, &mut FramePool),
    ) -> usize {
        let mut taken = 0;
        while taken < most {
            let Some(bytes) = receive(self.inbox.as_fd(), &mut self.buffer) else { break };
            taken += 1;
            let frame = self.buffer.get(..bytes).and_then(|message| {
                opened(message, |data| {
                    let mut frame = pool.alloc_for(data.len());
                    frame.set_len(data.len());
                    frame.data_mut().copy_from_slice(data);
                    frame
                })
            });
            if let Some(frame) = frame {
                deliver(frame, pool);
            }
        }
        taken
    }
}

impl RxQueue for EitherRx {
    fn poll(&mut self, budget: usize, pool: &mut FramePool, deliver: &mut dyn FnMut(Frame, &mut FramePool)) -> usize {
        // The inbox has a quarter of the budget, even while the queue is never empty.
        let first = self.poll_inbox(budget.div_ceil(4), pool, deliver);
        let taken = first + self.frames.poll(budget - first, pool, deliver);
        taken + self.poll_inbox(budget - taken, pool, deliver)
    }
}

/// Reads a message; its length, which may be more than the buffer's. None: there is none.
fn receive(inbox: BorrowedFd<'_>, buffer: &mut [u8]) -> Option<usize> {
    receive_as(inbox, buffer, 0)
}

fn receive_as(inbox: BorrowedFd<'_>, buffer: &mut [u8], flags: libc::c_int) -> Option<usize> {
    loop {
        let (at, room) = (buffer.as_mut_ptr().cast(), buffer.len());
        // SAFETY: the kernel writes at most as many bytes as there is room for.
        let got = unsafe { libc::recv(inbox.as_raw_fd(), at, room, flags | libc::MSG_DONTWAIT | libc::MSG_TRUNC) };
        if got >= 0 {
            return Some(got as usize);
        }
        if io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
            return None;
        }
    }
}

/// The next frame of an inbox that no queue receives from. What is no message is dropped.
pub fn taken(inbox: BorrowedFd<'_>) -> Option<Frame> {
    loop {
        // Most looks find nothing, and take no memory. Another process may take what was seen, and leave a longer one.
        receive_as(inbox, &mut [], libc::MSG_PEEK)?;
        let mut buffer = vec![0; HEADER + LARGE_FRAME_BYTES];
        let bytes = receive(inbox, &mut buffer)?;
        if let Some(frame) = buffer.get(..bytes).and_then(|message| opened(message, Frame::copy_from)) {
            return Some(frame);
        }
    }
}

/// The frame of a message; nothing if it is none.
fn opened(message: &[u8], frame_of: impl FnOnce(&[u8]) -> Frame) -> Option<Frame> {
    let (header, data) = message.split_first_chunk::<HEADER>()?;
    let checksum =
        [Checksum::None, Checksum::Unnecessary, Checksum::Partial].into_iter().find(|it| *it as u8 == header[4])?;
    let mut frame = frame_of(data);
    frame.set_checksum(checksum);
    frame.set_segmentation(match u16::from_le_bytes([header[6], header[7]]) {
        0 => Segmentation::None,
        mss_bytes => Segmentation::Tcp { mss_bytes },
    });
    frame.set_seen_by(u32::from_le_bytes([header[0], header[1], header[2], header[3]]));
    Some(frame)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::os::unix::net::UnixDatagram;

    struct Ring(UnixDatagram);

    impl RxQueue for Ring {
        fn poll(
            &mut self,
            budget: usize,
            pool: &mut FramePool,
            deliver: &mut dyn FnMut(Frame, &mut FramePool),
        ) -> usize {
            let mut buffer = [0; 64];
            let mut taken = 0;
            while taken < budget
                && let Ok(bytes) = self.0.recv(&mut buffer)
            {
                deliver(Frame::copy_from(&buffer[..bytes]), pool);
                taken += 1;
            }
            taken
        }
    }

    fn rx() -> (EitherRx, UnixDatagram, OwnedFd) {
        let (ring, device) = UnixDatagram::pair().unwrap();
        ring.set_nonblocking(true).unwrap();
        let (reads, writes) = inbox().unwrap();
        let buffer = vec![0; HEADER + LARGE_FRAME_BYTES];
        (EitherRx { frames: Box::new(Ring(ring)), inbox: Arc::new(reads), buffer }, device, writes)
    }

    fn polled(rx: &mut EitherRx, budget: usize) -> (usize, Vec<Frame>) {
        let (mut pool, mut frames) = (FramePool::new(16), Vec::new());
        let taken = rx.poll(budget, &mut pool, &mut |frame, _| frames.push(frame));
        (taken, frames)
    }

    #[test]
    fn a_frame_arrives_with_what_is_known_of_it() {
        let (mut rx, _device, writes) = rx();
        let mut sent = Frame::copy_from(&[7; 3000]);
        sent.set_checksum(Checksum::Partial);
        sent.set_segmentation(Segmentation::Tcp { mss_bytes: 1460 });
        assert!(pass_on(writes.as_fd(), &sent, 0b101));
        let (taken, frames) = polled(&mut rx, 64);
        assert_eq!((taken, frames.len()), (1, 1));
        let got = &frames[0];
        assert_eq!(
            (got.data(), got.checksum(), got.segmentation()),
            (sent.data(), sent.checksum(), sent.segmentation())
        );
        assert_eq!(got.seen_by(), 0b101);
    }

    #[test]
    fn where_no_queue_receives_what_is_no_frame_is_dropped() {
        let (reads, writes) = inbox().unwrap();
        rustix::io::write(&writes, &[1; HEADER - 1]).unwrap();
        assert!(pass_on(writes.as_fd(), &Frame::copy_from(&[7; 60]), EVERYBODY));
        let frame = taken(reads.as_fd()).unwrap();
        assert_eq!((frame.data(), frame.seen_by()), (&[7; 60][..], EVERYBODY));
        assert!(taken(reads.as_fd()).is_none());
    }

    #[test]
    fn what_waited_for_whoever_had_the_queue_before_comes_back() {
        let (reads, writes) = inbox().unwrap();
        assert!(pass_on(writes.as_fd(), &Frame::copy_from(&[7; 60]), EVERYBODY));
        rustix::io::write(&writes, &[1; HEADER - 1]).unwrap();
        assert!(pass_on(writes.as_fd(), &Frame::copy_from(&[8; 60]), 1));
        let (device, _other) = crate::mem::pair(crate::mem::MemConfig::default());
        let (device, waited) = WithInboxes::new(Arc::new(device), vec![reads]);
        let waited: Vec<_> = waited.iter().map(|frame| (frame.data()[0], frame.seen_by())).collect();
        assert_eq!(waited, [(7, EVERYBODY), (8, 1)]);
        assert!(receive(device.inboxes[0].as_fd(), &mut []).is_none());
    }

    #[test]
    fn neither_side_starves_the_other_and_a_short_poll_has_emptied_both() {
        let (mut rx, device, writes) = rx();
        for _ in 0..9 {
            device.send(&[1; 60]).unwrap();
            assert!(pass_on(writes.as_fd(), &Frame::copy_from(&[2; 60]), 1));
        }
        let count = |frames: &[Frame], which| frames.iter().filter(|frame| frame.data()[0] == which).count();
        let (taken, frames) = polled(&mut rx, 8);
        assert_eq!((taken, count(&frames, 1), count(&frames, 2)), (8, 6, 2));
        let (taken, frames) = polled(&mut rx, 16);
        assert_eq!((taken, count(&frames, 1), count(&frames, 2)), (10, 3, 7));
        assert_eq!(polled(&mut rx, 0).0, 0);
    }

    #[test]
    fn a_full_inbox_loses_frames_and_says_so_and_a_wrong_message_is_dropped() {
        let (mut rx, _device, writes) = rx();
        let frame = Frame::copy_from(&[2; 1500]);
        let mut sent = 0;
        while pass_on(writes.as_fd(), &frame, 1) {
            sent += 1;
        }
        assert!(sent > 0);
        assert_eq!(polled(&mut rx, usize::MAX / 2).0, sent);
        let message = [0_u8, 0, 0, 0, 9, 0, 0, 0];
        // SAFETY: the bytes outlive the call.
        unsafe { libc::send(writes.as_raw_fd(), message.as_ptr().cast(), message.len(), 0) };
        let (taken, frames) = polled(&mut rx, 8);
        assert_eq!((taken, frames.len()), (1, 0), "it counts as work, and is nobody's frame");
    }
}
