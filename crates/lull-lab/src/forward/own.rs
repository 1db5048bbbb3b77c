//! Forwarding by lull, in memory: a generator, two joined devices, and a far end that takes all frames.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use lull_host::{Host, HostConfig, pin_thread};
use lull_nic::mem::{self, MemConfig, MemPort};
use lull_nic::{Device, FramePool, Queue};

use super::link::Link;
use super::{Forward, Marks, observed};
use crate::bench::{BenchError, CLIENT_IP, GroupSetup, SERVICE_IP};
use crate::case::{Effort, Observed};
use crate::cell::Enforcement;
use crate::check::{Evidence, enforcement};
use crate::flood::FloodMode;
use crate::flood::own::pass;
use crate::flood::sched::SchedStat;
use crate::flood::senders::{Due, Station, datagram};

/// The slots of each ring, as many as virtio_net has.
const RING_SLOTS: usize = 256;
/// The number of frames that the far end takes at a time.
const BATCH: usize = 256;
/// How long the sent frames may take to arrive or to be dropped. It only bounds a failure.
const PATIENCE: Duration = Duration::from_secs(60);

/// Measures one run of a row, on devices of its own.
pub fn measure(
    forward: &Forward,
    bytes: usize,
    mode: &FloodMode,
    cores: &[usize],
    effort: &Effort<'_>,
) -> Result<Observed, BenchError> {
    let machine = Machine::start(forward, mode, cores[0])?;
    let (near, far) = (machine.near.take_queue(0)?, machine.far.take_queue(0)?);
    let frame = datagram(
        Station { mac: machine.near.info().mac, ip: CLIENT_IP },
        Station { mac: machine.far.info().mac, ip: SERVICE_IP },
        9,
        bytes,
    );
    let over = AtomicBool::new(false);
    let (before, after) = std::thread::scope(|scope| {
        let generating = scope.spawn(|| -> Result<(), BenchError> {
            pin_thread(&cores[1..2])?;
            machine.generate([near, far], &frame, forward.per_second, &over)
        });
        let arrived = || machine.arrived.load(Ordering::Relaxed);
        pass(effort, effort.warm_up, arrived);
        let before = machine.marks();
        pass(effort, effort.window, arrived);
        let after = machine.marks();
        over.store(true, Ordering::Relaxed);
        generating.join().map_err(|_| BenchError::Invalid("the generator panicked".to_owned()))??;
        Ok::<_, BenchError>((before, after))
    })?;
    let verdict = machine.verdict(mode, &before, &after);
    Ok(observed(&before, &after, verdict))
}

/// Two pairs of ports. The middle ones are joined.
struct Machine {
    link: Link,
    host: Host,
    /// The first of the joined devices.
    from: Arc<MemPort>,
    near: MemPort,
    far: MemPort,
    arrived: AtomicU64,
}

impl Machine {
    fn start(forward: &Forward, mode: &FloodMode, core: usize) -> Result<Machine, BenchError> {
        let pair = |names: [&str; 2]| {
            let names = names.map(String::from);
            mem::pair(MemConfig { names, ring_slots: RING_SLOTS, drop_when_full: true, ..MemConfig::default() })
        };
        let ((from, near), (to, far)) = (pair(["from", "near"]), pair(["to", "far"]));
        let setup = forward.group.clone().unwrap_or_else(|| GroupSetup { cores: vec![core], ..GroupSetup::default() });
        let mut cpus = vec![Some(core)];
        if mode.mode().group.is_some() {
            cpus.extend(setup.cores.iter().map(|core| Some(*core)));
        }
        let pollers: Vec<u16> = (1..cpus.len() as u16).collect();
        let host = Host::new(HostConfig { cpus, realtime: mode.is_realtime(), ..HostConfig::default() })?;
        let from = Arc::new(from);
        let link = Link::new(&host, [from.clone(), Arc::new(to)])?;
        link.set_mode(mode.mode(), &pollers, setup.options)?;
        Ok(Machine { link, host, from, near, far, arrived: AtomicU64::new(0) })
    }

    /// Sends and takes in turn until `over` is set, and then until every frame has arrived or was dropped.
    fn generate(
        &self,
        [mut near, mut far]: [Queue; 2],
        data: &[u8],
        per_second: Option<f64>,
        over: &AtomicBool,
    ) -> Result<(), BenchError> {
        let mut pools = [FramePool::new(RING_SLOTS), FramePool::new(RING_SLOTS)];
        [&near.irq, &far.irq].iter().for_each(|irq| irq.mask());
        let (mut due, mut sent, mut since) = (Due::new(per_second), 0, None);
        loop {
            if !over.load(Ordering::Relaxed) {
                for _ in 0..due.take() {
                    let mut frame = pools[0].alloc_for(data.len());
                    frame.set_len(data.len());
                    frame.data_mut().copy_from_slice(data);
                    match near.tx.transmit(frame) {
                        Ok(()) => sent += 1,
                        Err(frame) => pools[0].recycle(frame),
                    }
                }
                near.tx.doorbell();
                near.tx.reap_sent(&mut pools[0]);
            } else {
                let Marks { arrived, ring, out, .. } = self.marks();
                if arrived + ring + out == sent {
                    return Ok(());
                }
                if since.get_or_insert_with(Instant::now).elapsed() > PATIENCE {
                    let what = format!(
                        "of {sent} frames sent, {arrived} arrived, {ring} were dropped by the ring and {out} on the way out: \
                         the rest is lost"
                    );
                    return Err(BenchError::Invalid(what));
                }
            }
            let taken = far.rx.poll(BATCH, &mut pools[1], &mut |frame, pool| pool.recycle(frame));
            self.arrived.fetch_add(taken as u64, Ordering::Relaxed);
        }
    }

    fn marks(&self) -> Marks {
        let delivery: Vec<i32> = self.host.threads().into_iter().map(|thread| thread.tid).collect();
        Marks {
            at: Instant::now(),
            arrived: self.arrived.load(Ordering::Relaxed),
            ring: self.from.counters(0).rx_dropped,
            out: self.link.dropped(0) + self.far.counters(0).rx_dropped,
            delivery: SchedStat::read(&delivery),
            delivery_sleeps: 0,
            napi: Some(self.link.stats(0)),
        }
    }

    fn verdict(&self, mode: &FloodMode, before: &Marks, after: &Marks) -> Enforcement {
        if mode.is_realtime()
            && let Some(error) = self.host.realtime_error()
        {
            return Enforcement::not_in_force(format!("the interrupt contexts run without SCHED_FIFO: {error}"));
        }
        let Some((then, now)) = before.napi.zip(after.napi) else {
            return Enforcement::not_in_force("nothing was counted");
        };
        enforcement(mode.mode(), &Evidence::of_core(&(now - then), None, after.arrived - before.arrived))
    }
}
