//! Sockets for whole frames, in the shape of AF_XDP's in copy mode.
//!
//! A [`PacketSocket`] is bound to a queue of a [`PacketDevice`] and gets every frame of it, without a stack in between.
//! Received frames wait on a ring that the application may look at without a call ([`PacketSocket::try_recv`]). A frame
//! is sent by the calling thread on its own CPU, as `sendto` does in copy mode (`xsk_generic_xmit`), and never by a
//! thread that polls. A call that receives or sends busy polls as the socket's options say (`sk_busy_loop`, §9): for
//! one round if it does not block.
//!
//! ```
//! use std::sync::Arc;
//! use lull_net::lull_nic::mem::{self, MemConfig};
//! use lull_net::{Host, HostConfig, PacketDevice, PacketOptions, PacketSocket};
//!
//! let (near, far) = mem::pair(MemConfig::default());
//! let host = Host::new(HostConfig { cpus: vec![None; 2], ..HostConfig::default() })?;
//! let (near, far) = (PacketDevice::new(&host, Arc::new(near))?, PacketDevice::new(&host, Arc::new(far))?);
//! let asks = PacketSocket::bind(&near, 0, &PacketOptions::default())?;
//! let answers = PacketSocket::bind(&far, 0, &PacketOptions { cpu: 1, ..PacketOptions::default() })?;
//!
//! let mut buffer = [0; 1514];
//! asks.send(b"..a frame of some 14 or more bytes")?;
//! let bytes = answers.recv(&mut buffer)?;
//! answers.send(&buffer[..bytes])?;
//! assert_eq!(asks.recv(&mut buffer)?, bytes);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod device;
mod queue;

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use lull_core::{NapiSettings, SocketBusy};
use lull_nic::{Frame, wire};
use rtrb::{Consumer, Producer, RingBuffer};

use crate::network::NetworkError;
use crate::shard::Ready;
use device::Inner;
pub use device::PacketDevice;
use queue::{Inside, PacketQueue};

/// How a packet socket is made.
#[derive(Clone, Debug)]
pub struct PacketOptions {
    /// The CPU of the queue's interrupt.
    pub cpu: u16,
    /// How many frames may wait for the application; further ones are lost and counted.
    pub ring_slots: usize,
    /// The delivery settings with which the queue starts.
    pub napi: NapiSettings,
}

impl Default for PacketOptions {
    fn default() -> PacketOptions {
        PacketOptions { cpu: 0, ring_slots: 2048, napi: NapiSettings::default() }
    }
}

/// What a packet socket has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PacketCounters {
    /// Frames put on the receive ring.
    pub received: u64,
    /// Frames lost because that ring was full.
    pub dropped: u64,
    /// Frames sent.
    pub sent: u64,
}

/// A socket for all frames of one queue. Clones are the same socket; with the last one the queue is disabled.
///
/// An epoll context cannot watch it; a thread waits for it in [`PacketSocket::recv`].
#[derive(Clone)]
pub struct PacketSocket(Arc<Open>);

/// The application's ends of the rings.
struct Rings {
    received: Consumer<Frame>,
    returned: Producer<Frame>,
}

struct Open {
    device: Arc<Inner>,
    queue: Arc<PacketQueue>,
    rings: Mutex<Rings>,
    /// The longest frame that the device sends.
    frame_bytes_max: usize,
    busy: SocketBusy,
    nonblocking: AtomicBool,
    read_timeout_ns: AtomicU64,
}

/// This value stands for no timeout.
const FOR_EVER: u64 = 0;

impl Open {
    fn rings(&self) -> MutexGuard<'_, Rings> {
        // Frames are moved as a whole.
        self.rings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self, buffer: &mut [u8]) -> Option<usize> {
        let mut rings = self.rings();
        let frame = rings.received.pop().ok()?;
        let mut bytes = 0;
        for segment in frame.segments() {
            let room = &mut buffer[bytes..];
            let fits = segment.len().min(room.len());
            room[..fits].copy_from_slice(&segment.data()[..fits]);
            bytes += fits;
        }
        // A chunk for which its device waits goes back at once; other frames go back on a ring that is emptied where
        // frames come in. A frame that finds no room there is freed here.
        if !frame.is_bounded() {
            let _ = rings.returned.push(frame);
        }
        Some(bytes)
    }

    fn is_readable(&self) -> bool {
        !self.rings().received.is_empty()
    }

    /// Busy polls as `sk_busy_loop` does, if the options say so.
    fn busy_poll(&self, nonblocking: bool) {
        if let Some(plan) = self.busy.plan(self.queue.napi_id(), nonblocking) {
            self.device.delivery.busy_loop(&plan, &mut |_| self.queue.is_down() || self.is_readable());
        }
    }

    fn with<R>(&self, f: impl FnOnce(&mut Inside) -> R) -> R {
        self.queue.with(&self.device.delivery, f)
    }

    fn check_up(&self) -> io::Result<()> {
        if self.queue.is_down() {
            return Err(io::ErrorKind::NetworkDown.into());
        }
        Ok(())
    }

    /// Sleeps until `ready` returns true; returns false if `until` came first. A thread that makes it ready does so
    /// under the queue's lock, under which this thread has registered itself, so one of them sees the other.
    fn block(&self, wants: Ready, until: Option<Instant>, mut ready: impl FnMut() -> bool) -> bool {
        self.with(|inside| inside.block(wants));
        let came = loop {
            if ready() || self.queue.is_down() {
                break true;
            }
            match until {
                None => std::thread::park(),
                Some(until) => match until.checked_duration_since(Instant::now()) {
                    Some(left) if !left.is_zero() => std::thread::park_timeout(left),
                    _ => break false,
                },
            }
        };
        self.with(Inside::unblock);
        came
    }
}

impl PacketSocket {
    /// Takes queue `queue` of the device, makes it a NAPI instance and enables it.
    ///
    /// # Errors
    /// The queue does not exist or is taken, there is no such CPU, a setting is above its limit, or `ring_slots` is 0.
    pub fn bind(device: &PacketDevice, queue: usize, options: &PacketOptions) -> Result<PacketSocket, NetworkError> {
        if options.ring_slots == 0 {
            return Err(NetworkError::Device(lull_nic::DeviceError::Invalid {
                device: device.device().info().name,
                what: "a packet socket's ring",
                why: "0 slots; it has at least one".to_owned(),
            }));
        }
        options.napi.check()?;
        let (received_in, received) = RingBuffer::new(options.ring_slots);
        let (returned, returned_out) = RingBuffer::new(options.ring_slots);
        let inner = device.inner();
        let frame_bytes_max = inner.frame_bytes_max();
        let queue = inner.bind(queue, options, |queue| PacketQueue::new(queue, received_in, returned_out))?;
        Ok(PacketSocket(Arc::new(Open {
            busy: SocketBusy::new(inner.host.sysctl()),
            device: inner.clone(),
            queue,
            frame_bytes_max,
            rings: Mutex::new(Rings { received, returned }),
            nonblocking: AtomicBool::new(false),
            read_timeout_ns: AtomicU64::new(FOR_EVER),
        })))
    }

    /// Takes the next received frame, if there is one on the ring. Returns how many of its bytes fitted into `buffer`.
    /// This only looks at memory: it makes no poll and no system call.
    #[inline]
    pub fn try_recv(&self, buffer: &mut [u8]) -> Option<usize> {
        self.0.take(buffer)
    }

    /// Makes a non-blocking receive call that takes no frame (AF_XDP's `recvfrom`), with one round of busy polling if
    /// the options say so. Like every call into lull, it first runs what is due on the CPU of the queue's interrupt, if
    /// nobody else does.
    pub fn poll_once(&self) {
        self.0.device.delivery.poll_point(self.0.queue.napi());
        self.0.busy_poll(true);
    }

    /// Takes the next frame from the ring. If there is none, it busy polls as the options say, and then sleeps unless
    /// the socket is nonblocking.
    ///
    /// # Errors
    /// `WouldBlock` if there is no frame; `NetworkDown` if the device is gone.
    pub fn recv(&self, buffer: &mut [u8]) -> io::Result<usize> {
        let open = &self.0;
        let mut until = None;
        loop {
            if let Some(bytes) = open.take(buffer) {
                return Ok(bytes);
            }
            open.check_up()?;
            let nonblocking = open.nonblocking.load(Ordering::Relaxed);
            open.busy_poll(nonblocking);
            if let Some(bytes) = open.take(buffer) {
                return Ok(bytes);
            }
            if nonblocking {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            let limit_ns = open.read_timeout_ns.load(Ordering::Relaxed);
            if until.is_none() && limit_ns != FOR_EVER {
                until = Some(Instant::now() + Duration::from_nanos(limit_ns));
            }
            if !open.block(Ready::READABLE, until, || open.is_readable()) {
                return Err(io::ErrorKind::WouldBlock.into());
            }
        }
    }

    /// Sends a frame from the calling thread: first it makes one round of busy polling if the options say so, and then
    /// it sends the frame and rings the doorbell. If there is no room it sleeps, unless the socket is nonblocking.
    ///
    /// `InvalidInput` if this is no frame, which has an Ethernet header and at most as many bytes behind it as the
    /// device's MTU was when the socket was bound. `WouldBlock` if the transmit ring is full; `NetworkDown` if the
    /// device is gone.
    pub fn send(&self, frame: &[u8]) -> io::Result<()> {
        let open = &self.0;
        if !(wire::ETHERNET..=open.frame_bytes_max).contains(&frame.len()) {
            let (bytes, least, most) = (frame.len(), wire::ETHERNET, open.frame_bytes_max);
            let what = format!("cannot send a frame of {bytes} bytes: the device takes {least} to {most}");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        }
        open.busy_poll(true);
        loop {
            open.check_up()?;
            let sent = open.with(|inside| {
                let sent = inside.transmit(frame);
                // The doorbell rings even if the ring is full, since room comes only after a doorbell.
                inside.ring();
                sent
            });
            if sent {
                open.queue.counted.sent.fetch_add(1, Ordering::Relaxed);
                return Ok(());
            }
            if open.nonblocking.load(Ordering::Relaxed) {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            open.block(Ready::WRITABLE, None, || open.with(|inside| inside.has_room()));
        }
    }

    /// Makes calls that would sleep return `WouldBlock` instead, or not.
    pub fn set_nonblocking(&self, nonblocking: bool) {
        self.0.nonblocking.store(nonblocking, Ordering::Relaxed);
    }

    /// Sets how long [`PacketSocket::recv`] sleeps at most; with `None` it sleeps for ever.
    pub fn set_read_timeout(&self, timeout: Option<Duration>) {
        let ns = timeout.map_or(FOR_EVER, |timeout| u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX).max(1));
        self.0.read_timeout_ns.store(ns, Ordering::Relaxed);
    }

    /// The socket's SO_BUSY_POLL, SO_PREFER_BUSY_POLL and SO_BUSY_POLL_BUDGET, with their limits.
    pub fn busy(&self) -> &SocketBusy {
        &self.0.busy
    }

    /// The NAPI instance that delivers for it, by its place in the host's table.
    pub fn napi(&self) -> u32 {
        self.0.queue.napi()
    }

    /// The instance's id (SO_INCOMING_NAPI_ID). As with AF_XDP it is known from the bind on; it is 0 while the instance
    /// is disabled.
    pub fn incoming_napi_id(&self) -> u32 {
        self.0.queue.napi_id()
    }

    /// Puts delivery settings in force on the queue.
    ///
    /// # Errors
    /// A setting is above its limit, or a thread cannot be started.
    pub fn set_napi(&self, settings: &NapiSettings) -> Result<(), NetworkError> {
        Ok(self.0.device.host.set_napi(self.napi(), settings)?)
    }

    /// What the socket has counted.
    pub fn counters(&self) -> PacketCounters {
        let counted = &self.0.queue.counted;
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        PacketCounters { received: read(&counted.received), dropped: read(&counted.dropped), sent: read(&counted.sent) }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.device.let_go(&self.queue);
    }
}

impl std::fmt::Debug for PacketSocket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PacketSocket").field("napi_id", &self.incoming_napi_id()).finish_non_exhaustive()
    }
}
