//! A pair of ports in one process: what one transmits, the other receives.
//!
//! Frames change hands, they are not copied. Each pair of a transmit queue and a receive queue has a ring of its own,
//! so that every ring has one producer and one consumer; the transmitting side picks the receive queue with the
//! receiving port's RSS. A doorbell publishes its batch with one store a ring, and raises the peer's interrupt if that
//! is armed; to a peer that polls it costs one fence and one load.
//!
//! ```
//! use lull_nic::mem::{self, MemConfig};
//! use lull_nic::{Device, EventFdSink, Frame, FramePool};
//! use std::sync::Arc;
//!
//! let (service, client) = mem::pair(MemConfig::default());
//! let (mut ours, mut theirs) = (service.take_queue(0)?, client.take_queue(0)?);
//! let sink = Arc::new(EventFdSink::new().expect("a descriptor"));
//! ours.irq.connect(sink.clone());
//! ours.irq.unmask();
//!
//! theirs.tx.transmit(Frame::copy_from(b"fourteen bytes and a payload")).expect("an empty ring");
//! theirs.tx.doorbell();
//! assert!(sink.wait(None).expect("a poll"));
//! let mut pool = FramePool::new(64);
//! assert_eq!(ours.rx.poll(64, &mut pool, &mut |frame, pool| pool.recycle(frame)), 1);
//! ours.irq.unmask();
//! # Ok::<(), lull_nic::DeviceError>(())
//! ```

mod queue;
mod shared;

use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::alarm::Alarm;
use crate::device::{Counters, Device, DeviceError, DeviceEvent, DeviceInfo, Link, Moderation, Offloads, Queue};
use crate::irq::moderation_word;
use shared::Shared;

/// Most queue pairs of a port.
pub const QUEUES_MAX: usize = 1024;

/// What a pair of ports is like. Both ports are alike but for their name, their address and perhaps their queues.
#[derive(Clone, Debug)]
pub struct MemConfig {
    /// Names of the two ports.
    pub names: [String; 2],
    /// Ethernet addresses of the two ports.
    pub macs: [[u8; 6]; 2],
    /// Queue pairs of the first port, 1 to [`QUEUES_MAX`].
    pub queues: usize,
    /// Queue pairs of the second port; `None`: as many as the first has.
    pub peer_queues: Option<usize>,
    /// Slots of each ring. A receive queue has one ring for each transmit queue of the peer.
    pub ring_slots: usize,
    /// Largest IP packet, in bytes. Longer frames are dropped and counted, unless they are to be segmented (`tso`).
    pub mtu_bytes: usize,
    /// Offloads of both ports. Frames never leave memory, so a partial checksum passes as it is and is as good as a
    /// verified one; with `rx_checksum` off it is filled in on the way. With `tso`, frames to be segmented pass whole.
    pub offloads: Offloads,
    /// The RSS key of both ports.
    pub rss_key: [u8; crate::rss::KEY_BYTES],
    /// What a full ring does: `false`: transmit gives the frame back; `true`: the frame is lost on the receiving
    /// side and counted there (`rx_dropped`), as on a wire.
    pub drop_when_full: bool,
}

impl Default for MemConfig {
    fn default() -> MemConfig {
        MemConfig {
            names: ["mem0".to_owned(), "mem1".to_owned()],
            macs: [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]],
            queues: 1,
            peer_queues: None,
            ring_slots: 1024,
            mtu_bytes: 1500,
            offloads: Offloads { rx_checksum: true, tx_checksum: true, tso: false },
            rss_key: crate::rss::MICROSOFT_KEY,
            drop_when_full: false,
        }
    }
}

/// Makes two connected ports, link up.
///
/// # Panics
/// If there are no queues or slots, or more queues than [`QUEUES_MAX`].
pub fn pair(config: MemConfig) -> (MemPort, MemPort) {
    let queues = [config.queues, config.peer_queues.unwrap_or(config.queues)];
    for queues in queues {
        assert!((1..=QUEUES_MAX).contains(&queues), "a port of {queues} queues; it has 1 to {QUEUES_MAX}");
    }
    assert!(config.ring_slots > 0, "a ring has at least one slot");
    let shared = Arc::new(Shared::new(&config, queues));
    let [first, second] = queue::wire(&shared, queues, config.ring_slots);
    let port = |side: usize, queues: Vec<Queue>| MemPort {
        shared: shared.clone(),
        side,
        untaken: Mutex::new(queues.into_iter().map(Some).collect()),
        alarm: Mutex::new(None),
    };
    (port(0, first), port(1, second))
}

/// One port of a pair. Dropping it takes the device away: the peer's watchers hear [`DeviceEvent::Gone`].
pub struct MemPort {
    shared: Arc<Shared>,
    side: usize,
    untaken: Mutex<Vec<Option<Queue>>>,
    /// The device thread that raises held interrupts; exists while `rx-usecs` is above 0.
    alarm: Mutex<Option<Alarm>>,
}

impl std::fmt::Debug for MemPort {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MemPort").field("info", &self.port().info).finish_non_exhaustive()
    }
}

impl MemPort {
    /// Nanoseconds that the owner of transmit queue `queue` spent raising the peer's interrupts in its doorbells (or
    /// waking the thread that raises moderated ones), since the port was made: what a hardware NIC would have done
    /// for it. 0 for a queue that does not exist.
    pub fn raise_ns(&self, queue: usize) -> u64 {
        self.port().tx.get(queue).map_or(0, |tx| tx.raise_ns.load(Ordering::Relaxed))
    }

    /// Interrupt raises that the owner of transmit queue `queue` made.
    pub fn raises(&self, queue: usize) -> u64 {
        self.port().tx.get(queue).map_or(0, |tx| tx.raises.load(Ordering::Relaxed))
    }

    fn port(&self) -> &shared::Port {
        &self.shared.ports[self.side]
    }

    fn name(&self) -> String {
        self.port().info.name.clone()
    }

    fn check_here(&self, what: &'static str) -> Result<(), DeviceError> {
        if self.shared.gone() { Err(DeviceError::Unsupported { device: self.name(), what }) } else { Ok(()) }
    }

    fn spawn_alarm(&self) -> Result<Alarm, DeviceError> {
        let (shared, side) = (self.shared.clone(), self.side);
        let tick = move || {
            let now_ns = shared.now_ns();
            let due_ns = shared.expire(side, now_ns)?;
            Some(Duration::from_nanos(due_ns.saturating_sub(now_ns)))
        };
        Alarm::spawn("lull-nic-irq", tick).map_err(|source| DeviceError::Os {
            device: self.name(),
            what: "start the thread that raises moderated interrupts".to_owned(),
            remedy: "raise the limit on threads, or set rx-usecs to 0",
            source,
        })
    }
}

impl Device for MemPort {
    fn info(&self) -> DeviceInfo {
        self.port().info.clone()
    }

    fn take_queue(&self, index: usize) -> Result<Queue, DeviceError> {
        let mut untaken = lock(&self.untaken);
        let queues = untaken.len();
        let queue = untaken.get_mut(index).and_then(Option::take);
        queue.ok_or_else(|| DeviceError::Queue { device: self.name(), index, queues })
    }

    fn link(&self) -> Link {
        self.shared.link()
    }

    /// The cable is one: the link is up when neither port holds it down, and both ports' watchers hear of a change.
    fn set_link(&self, link: Link) -> Result<(), DeviceError> {
        self.check_here("setting the link of a port whose peer is gone")?;
        self.shared.set_link(self.side, link);
        Ok(())
    }

    /// Drops what waits in the port's receive rings and what was transmitted without a doorbell. The memory is freed
    /// and the loss of staged frames counted when the queue's owner next calls; until then the old frames keep their
    /// slots, and an unmask may raise for them.
    fn reset(&self) -> Result<(), DeviceError> {
        self.check_here("resetting a port whose peer is gone")?;
        self.shared.reset(self.side);
        Ok(())
    }

    fn moderation(&self) -> Moderation {
        *lock(&self.port().moderation)
    }

    /// `rx_usecs` needs a clock: every poll and doorbell on either port looks at it, and a thread does when nobody
    /// calls. So an interrupt may be late by what a timer of the system is late.
    fn set_moderation(&self, moderation: Moderation) -> Result<(), DeviceError> {
        if moderation.rx_usecs == 0 && moderation.rx_frames > 1 {
            return Err(DeviceError::Invalid {
                device: self.name(),
                what: "moderation",
                why: format!(
                    "rx-frames {} with rx-usecs 0: the last frames of a burst would wait for ever; set rx-usecs too",
                    moderation.rx_frames
                ),
            });
        }
        let word = moderation_word(moderation.rx_usecs, moderation.rx_frames);
        let mut alarm = lock(&self.alarm);
        if word != 0 && alarm.is_none() {
            let new = self.spawn_alarm()?;
            self.port().alarm.store(Some(Arc::new(new.thread().clone())));
            *alarm = Some(new);
        }
        *lock(&self.port().moderation) = moderation;
        self.shared.set_moderation(self.side, word);
        if word == 0 {
            self.port().alarm.store(None);
            *alarm = None;
        }
        Ok(())
    }

    fn rss_table(&self) -> Vec<usize> {
        self.port().rss.get()
    }

    fn set_rss_table(&self, table: &[usize]) -> Result<(), DeviceError> {
        let port = self.port();
        port.rss.set(table, port.info.queues).map_err(|why| DeviceError::Invalid {
            device: self.name(),
            what: "the RSS indirection table",
            why,
        })
    }

    fn rss_queue(&self, source: SocketAddr, destination: SocketAddr) -> Option<usize> {
        Some(self.port().rss.queue(self.shared.toeplitz.hash_flow(source, destination)))
    }

    fn counters(&self, queue: usize) -> Counters {
        self.port().counters(queue)
    }

    fn watch(&self, watcher: Box<dyn Fn(DeviceEvent) + Send + Sync>) {
        self.port().watchers.add(watcher);
    }
}

impl Drop for MemPort {
    fn drop(&mut self) {
        self.shared.leave(self.side);
    }
}

/// Locks; a poisoned lock is as good as any here, because no guarded value is left half-written.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
