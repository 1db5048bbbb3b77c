//! A socket with its memory, bound to its queue.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::time::{Duration, Instant};

use super::home::Home;
use super::ring::Stuck;
use super::shared::Socket;
use super::socket::{self, Rings, Umem};
use super::{XdpConfig, XdpMode};
use crate::device::DeviceError;
use crate::frame::Origin;
use crate::line::Line;
use crate::tally::Tally;

/// How long a queue may have the socket of a process that has just died: the kernel takes it back in its own time.
const BIND_PATIENCE: Duration = Duration::from_secs(2);
const BIND_PAUSE: Duration = Duration::from_millis(2);

/// A socket with its memory, bound to its queue.
pub(super) struct Bound {
    pub(super) socket: Socket,
    pub(super) home: (Arc<Home>, Arc<Origin>),
    pub(super) several_chunks: bool,
}

impl Bound {
    pub(super) fn make(
        name: &str,
        fd: OwnedFd,
        ifindex: u32,
        queue: u32,
        (rx_ring, tx_ring): (u32, u32),
        chunk_bytes: usize,
        ways: &[Way],
    ) -> Result<Bound, DeviceError> {
        let os = |what: String, remedy: &'static str, source| DeviceError::Os {
            device: name.to_owned(),
            what,
            remedy,
            source,
        };
        let rx_chunks = XdpConfig::rx_chunks(rx_ring);
        let chunks = rx_chunks + tx_ring;
        let kibibytes = chunks as usize * chunk_bytes / 1024;
        let memory = format!("pin {kibibytes} KiB for the frames of queue {queue} ({})", memlock());
        let memory_remedy = |source: &std::io::Error| match source.raw_os_error() {
            Some(libc::EBUSY) => "a process had this device before, and a device serves one: open it again",
            _ => "raise RLIMIT_MEMLOCK (ulimit -l, LimitMEMLOCK=), or take smaller rings or fewer queues",
        };
        let umem = Umem::new(chunks as usize, chunk_bytes)
            .and_then(|umem| socket::register(&fd, &umem).map(|()| Arc::new(umem)))
            .map_err(|source| os(memory, memory_remedy(&source), source))?;
        let rings = Rings::make(&fd, rx_ring, tx_ring)
            .map(Arc::new)
            .map_err(|source| os(format!("make the rings of queue {queue}"), "take smaller rings", source))?;
        let (home, origin) = Home::new(&umem, &rings, rx_chunks, rx_ring);
        home.lock().refill();
        let several_chunks = bind(&fd, ifindex, queue, ways).map_err(|source| {
            let remedy = match source.raw_os_error() {
                Some(libc::EBUSY) => "another AF_XDP socket has this queue: end its program, or name other queues",
                Some(libc::EINVAL) => "does the interface have that queue still? (ethtool -l)",
                _ => "is the interface gone, or in another namespace? open it again",
            };
            os(format!("bind an AF_XDP socket to queue {queue}"), remedy, source)
        })?;
        let zero_copy = socket::is_zero_copy(&fd).unwrap_or(false);
        let fd = Arc::new(fd);
        if zero_copy {
            home.wakes(&fd);
        }
        let socket = Socket {
            fd,
            rings,
            umem,
            tx_chunks: rx_chunks..chunks,
            zero_copy,
            counters: Tally::default(),
            calls: AtomicU64::new(0),
            room: Line::new(),
            tx_free: AtomicU32::new(tx_ring),
            tx_next: AtomicU32::new(0),
            stuck: Stuck::new(),
            napi_id: AtomicU32::new(0),
        };
        Ok(Bound { socket, home: (home, origin), several_chunks })
    }
}

/// How a socket is bound: flags of bind(2).
pub(super) type Way = u16;

/// The ways to bind, the best first. Zero-copy is asked for by name: asked for frames in several chunks, the kernel would
/// silently copy where the driver has zero-copy for frames in one chunk alone (`xp_assign_dev`), as virtio-net does; and
/// it takes a program in the driver. Frames that `fit` into one chunk need no more.
pub(super) fn ways(mode: XdpMode, fit: bool) -> Vec<Way> {
    let mut ways = Vec::new();
    if mode == XdpMode::Native {
        ways.push(libc::XDP_ZEROCOPY | libc::XDP_USE_SG);
        if fit {
            ways.push(libc::XDP_ZEROCOPY);
        }
    }
    // Without several chunks: kernels before 6.6.
    ways.extend([libc::XDP_COPY | libc::XDP_USE_SG, libc::XDP_COPY]);
    ways
}

/// Binds the socket to its queue in the first way that the kernel takes; whether frames may be in several chunks.
fn bind(fd: &OwnedFd, ifindex: u32, queue: u32, ways: &[Way]) -> io::Result<bool> {
    let deadline = Instant::now() + BIND_PATIENCE;
    let mut ways = ways.iter().peekable();
    let mut refused = io::Error::from_raw_os_error(libc::EOPNOTSUPP);
    while let Some(&&flags) = ways.peek() {
        match socket::bind(fd, ifindex, queue, flags | libc::XDP_USE_NEED_WAKEUP) {
            Ok(()) => return Ok(flags & libc::XDP_USE_SG != 0),
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) && Instant::now() < deadline => {
                std::thread::sleep(BIND_PAUSE);
            }
            Err(error) => {
                refused = error;
                ways.next();
            }
        }
    }
    Err(refused)
}

/// RLIMIT_MEMLOCK; `None` without one.
pub(super) fn memlock_bytes() -> Option<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` outlives the call, which fills it in.
    let read = unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &raw mut limit) } == 0;
    (read && limit.rlim_cur != libc::RLIM_INFINITY).then_some(limit.rlim_cur)
}

/// The same in words.
fn memlock() -> String {
    match memlock_bytes() {
        Some(bytes) => format!("RLIMIT_MEMLOCK is {} KiB for all of this user's", bytes / 1024),
        None => "RLIMIT_MEMLOCK is unlimited".to_owned(),
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use libc::{XDP_COPY, XDP_USE_SG, XDP_ZEROCOPY};

    #[test]
    fn zero_copy_in_one_chunk_goes_before_copies_in_several() {
        assert_eq!(
            ways(XdpMode::Native, true),
            [XDP_ZEROCOPY | XDP_USE_SG, XDP_ZEROCOPY, XDP_COPY | XDP_USE_SG, XDP_COPY]
        );
        assert_eq!(ways(XdpMode::Native, false), [XDP_ZEROCOPY | XDP_USE_SG, XDP_COPY | XDP_USE_SG, XDP_COPY]);
        assert_eq!(ways(XdpMode::Generic, true), [XDP_COPY | XDP_USE_SG, XDP_COPY]);
    }
}
