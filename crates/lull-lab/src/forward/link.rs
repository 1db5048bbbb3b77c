//! Joins two devices: each queue of one with the queue of the same number of the other, both ways. A frame that finds
//! the other's ring full is dropped and counted, as a bridge does.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use lull_core::settings::WEIGHT_DEFAULT;
use lull_core::{Mode, Stats};
use lull_host::{DeviceId, GroupOptions, Host, NapiBinding};
use lull_nic::{Device, DeviceEvent, Doorbell, FramePool, IrqLine, Queue, RxQueue, TxQueue};

use crate::bench::BenchError;
use crate::polled::{Polled, Ring};

/// The number of frames that a direction keeps for a device that has to fill some.
const POOL_FRAMES: usize = 1_024;

/// Two devices of a host, which forward to one another while this exists.
pub struct Link {
    host: Host,
    devices: [DeviceId; 2],
    /// The instances of each device's queues.
    napis: [Vec<u32>; 2],
    /// The number of frames that found the other's ring full, for each device that they came in at.
    dropped: [Arc<AtomicU64>; 2],
    /// The name of the device that went away first.
    gone: Arc<OnceLock<String>>,
    /// A device goes away with its last owner.
    _devices: [Arc<dyn Device>; 2],
}

/// One direction of one queue.
struct Direction {
    rx: Box<dyn RxQueue>,
    tx: Box<dyn TxQueue>,
    /// The interrupt that reports room on the transmit ring.
    room: Arc<dyn IrqLine>,
    pool: FramePool,
    dropped: Arc<AtomicU64>,
    /// Set if the last doorbell left frames on the ring. Then it is rung again once there is room.
    unsent: bool,
}

impl Ring for Direction {
    fn poll(&mut self, budget: usize) -> usize {
        let Direction { rx, tx, pool, dropped, .. } = self;
        tx.reap_sent(pool);
        let mut handed = 0;
        let work = rx.poll(budget, pool, &mut |frame, pool| match tx.transmit(frame) {
            Ok(()) => handed += 1,
            Err(frame) => {
                pool.recycle(frame);
                dropped.fetch_add(1, Ordering::Relaxed);
            }
        });
        if handed > 0 || self.unsent {
            self.unsent = self.tx.doorbell() == Doorbell::Again;
            self.tx.reap_sent(&mut self.pool);
        }
        if self.unsent {
            self.room.unmask();
        }
        work
    }

    fn has_more(&self) -> bool {
        self.unsent
    }
}

impl Link {
    /// Joins two devices. Their interrupts go to the host's first CPU.
    ///
    /// # Errors
    ///
    /// This fails if the devices have different numbers of queues, if a queue is taken, or if the host refuses
    /// something.
    pub fn new(host: &Host, devices: [Arc<dyn Device>; 2]) -> Result<Link, BenchError> {
        let info = [devices[0].info(), devices[1].info()];
        if info[0].queues != info[1].queues {
            return Err(BenchError::Invalid(format!(
                "cannot join {} with {} queues and {} with {}: give both as many",
                info[0].name, info[0].queues, info[1].name, info[1].queues
            )));
        }
        let ids = [0, 1].map(|side: usize| host.add_device(&info[side].name, info[side].queues, false));
        let mut link = Link {
            host: host.clone(),
            devices: ids,
            napis: [Vec::new(), Vec::new()],
            dropped: [Arc::default(), Arc::default()],
            gone: Arc::default(),
            _devices: devices.clone(),
        };
        for (device, info) in devices.iter().zip(&info) {
            let (gone, name) = (link.gone.clone(), info.name.clone());
            device.watch(Box::new(move |event| {
                if event == DeviceEvent::Gone {
                    // Only the first one is reported.
                    let _ = gone.set(name.clone());
                }
            }));
        }
        for queue in 0..info[0].queues {
            let [there, back] = [devices[0].take_queue(queue)?, devices[1].take_queue(queue)?];
            let Queue { rx: rx_there, tx: tx_there, irq: irq_there, tx_irq: room_there, .. } = there;
            let Queue { rx: rx_back, tx: tx_back, irq: irq_back, tx_irq: room_back, .. } = back;
            link.add(0, queue, irq_there, rx_there, (tx_back, room_back))?;
            link.add(1, queue, irq_back, rx_back, (tx_there, room_there))?;
        }
        for napi in link.napis.iter().flatten() {
            host.enable(*napi)?;
        }
        Ok(link)
    }

    fn add(
        &mut self,
        side: usize,
        queue: usize,
        irq: Arc<dyn IrqLine>,
        rx: Box<dyn RxQueue>,
        (tx, room): (Box<dyn TxQueue>, Arc<dyn IrqLine>),
    ) -> Result<(), BenchError> {
        let pool = FramePool::new(POOL_FRAMES);
        let dropped = self.dropped[side].clone();
        let direction = Direction { rx, tx, room: room.clone(), pool, dropped, unsent: false };
        let receiver = Arc::new(Polled::new(direction, irq.clone()));
        let napi = self.host.add_napi(NapiBinding { device: self.devices[side], queue, cpu: 0, irq, receiver })?;
        // Room on that ring is a reason to poll this queue.
        room.connect(self.host.room_sink(napi));
        self.napis[side].push(napi);
        Ok(())
    }

    /// Puts a mode in force on all queues. In a group mode the host's CPUs of `pollers` poll them.
    ///
    /// # Errors
    ///
    /// This fails for a mode that needs an application, for a group without CPUs, or if the host refuses something.
    pub fn set_mode(&self, mode: &Mode, pollers: &[u16], options: GroupOptions) -> Result<(), BenchError> {
        if mode.needs_epoll() || mode.socket_busy_poll_usecs != 0 || mode.rx_usecs.is_some() {
            let what = format!(
                "cannot forward in mode {mode}: it acts in an application or a device; use base, deferX, threaded, \
                 threaded-busy, group or groupX"
            );
            return Err(BenchError::Invalid(what));
        }
        if mode.group.is_some() && pollers.is_empty() {
            return Err(BenchError::Invalid(format!(
                "cannot forward in mode {mode} without CPUs for its group: name some"
            )));
        }
        for napi in self.napis.iter().flatten() {
            self.host.set_napi(*napi, &mode.napi)?;
        }
        if let Some(polling) = mode.group {
            let mut options = options;
            options.config.rest_ns = polling.rest_ns;
            let group = self.host.new_group(options)?;
            for cpu in pollers {
                self.host.group_attach(group, *cpu)?;
            }
            for napi in self.napis.iter().flatten() {
                self.host.group_add(group, *napi, WEIGHT_DEFAULT)?;
            }
        }
        Ok(())
    }

    /// Returns the counters of a side's queues. The first device is side 0.
    pub fn stats(&self, side: usize) -> Stats {
        self.napis[side].iter().fold(Stats::default(), |all, napi| all + self.host.napi_stats(*napi))
    }

    /// Returns the name of a device that went away, if one did. Then nothing is forwarded any more.
    pub fn gone(&self) -> Option<&str> {
        self.gone.get().map(String::as_str)
    }

    /// Returns the number of frames that came in at a side and found the other's ring full.
    pub fn dropped(&self, side: usize) -> u64 {
        self.dropped[side].load(Ordering::Relaxed)
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        for device in self.devices {
            // This is refused only if the device was removed before.
            let _ = self.host.remove_device(device);
        }
    }
}
