//! One flooded member of a group of CPUs, and how long the others wait. After a member has used its whole weight, a
//! poller visits it again only after every other member that is ready. So a frame waits for at most the sum of the
//! others' weights.
//!
//! The wait is counted in packets that were polled between a frame's arrival on its ring and its delivery, a count that
//! the scheduler cannot change. The time beside it is how long that took.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use lull_core::settings::WEIGHT_DEFAULT;
use lull_core::{Mode, Stats};
use lull_host::{GroupOptions, Host, HostConfig, NapiBinding, pin_thread};
use lull_nic::mem::{self, MemConfig};
use lull_nic::{Device, Frame, FramePool, Queue, RxQueue};

use super::own::pass;
use super::senders::{self, Station, datagram};
use crate::bench::{BenchError, CLIENT_IP, SERVICE_IP};
use crate::case::{CaseTable, Effort, Measure, Observed, Placed};
use crate::check::{Evidence, enforcement};
use crate::polled::{Polled, Ring};

/// The number of members. The first one is flooded.
const MEMBERS: usize = 8;
/// The slots of each ring: several weights, so that the flooded one is always full.
const RING_SLOTS: usize = 1_024;
/// The time between two frames to a member that is not flooded.
const QUIET_INTERVAL: Duration = Duration::from_micros(200);
/// The number of frames to the flooded member between two checks of the others.
const BURST: usize = 32;

/// How long a frame may take. It only bounds a failure.
const PATIENCE: Duration = Duration::from_secs(60);

/// The longest wait that the histograms distinguish, in nanoseconds and in packets.
const WAIT_MAX: u64 = 100_000_000_000;

/// The configuration of the case.
#[derive(Clone, Debug)]
pub struct Fairness {
    /// Delivery modes of the eight queues.
    pub modes: Vec<Mode>,
    /// The core that delivers, then the generator's. If it is empty, the first usable cores are taken.
    pub cores: Vec<usize>,
}

/// The counters that all members share.
#[derive(Debug, Default)]
struct Served {
    /// The packets of all members that were polled.
    packets: AtomicU64,
}

/// What the generator reads of a member: the number of its frames, and the count of all packets when it received the
/// last.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Delivered {
    frames: AtomicU64,
    at_packets: AtomicU64,
}

/// A member's ring.
struct Member {
    rx: Box<dyn RxQueue>,
    pool: FramePool,
    served: Arc<Served>,
    delivered: Arc<Delivered>,
}

impl Ring for Member {
    fn poll(&mut self, budget: usize) -> usize {
        let Member { rx, pool, served, delivered } = self;
        rx.poll(budget, pool, &mut |frame, pool| {
            pool.recycle(frame);
            let packets = served.packets.fetch_add(1, Ordering::Relaxed);
            delivered.at_packets.store(packets, Ordering::Relaxed);
            delivered.frames.fetch_add(1, Ordering::Release);
        })
    }
}

/// Eight queues on a host, delivered in one mode.
struct Machine {
    host: Host,
    napis: Vec<u32>,
    served: Arc<Served>,
    delivered: Vec<Arc<Delivered>>,
    /// A frame for each queue.
    frames: Vec<Vec<u8>>,
    device: lull_host::DeviceId,
    // This keeps the rings' other end.
    _ours: Arc<dyn Device>,
    _theirs: Arc<dyn Device>,
}

/// The waits that the generator measured.
struct Waits {
    packets: Histogram<u64>,
    ns: Histogram<u64>,
}

impl Fairness {
    /// Measures every mode without and with the flood.
    ///
    /// # Errors
    ///
    /// This fails if the host or the device refuses something, or if a frame is not delivered.
    pub fn run(&self, effort: &Effort<'_>) -> Result<CaseTable, BenchError> {
        let placed = Placed::new(&self.cores, &["delivery", "the generator"])?;
        let mut table = self.table(&placed, effort);
        table.measure(0..2 * self.modes.len(), effort, &mut |row, _| {
            let (machine, queue) = Machine::start(&self.modes[row / 2], placed.cores[0])?;
            machine.measure(&self.modes[row / 2], row % 2 == 1, queue, placed.cores[1], effort)
        })?;
        Ok(table)
    }

    fn table(&self, placed: &Placed, effort: &Effort<'_>) -> CaseTable {
        let measures = [
            Measure {
                name: "wait_packets_p99",
                help: "packets polled between a frame's arrival at a quiet member and its delivery",
            },
            Measure { name: "wait_packets_max", help: "the most" },
            Measure { name: "bound_packets", help: "twice the sum of the members' weights" },
            Measure { name: "wait_p50_us", help: "median time of that wait" },
            Measure { name: "wait_p99_us", help: "its 99th percentile" },
            Measure { name: "bound_us", help: "the bound's packets at the rate at which they were polled" },
            Measure { name: "polled_kpps", help: "packets polled, in thousands a second" },
        ];
        let title =
            "Eight queues, of which the first is flooded and the others get a frame each 200 us: how long those wait.";
        let mut table = CaseTable::new("fairness", title, &["mode", "flooded"], &measures);
        table.set_up = format!("nic mem, {MEMBERS} queues of {RING_SLOTS} slots on one core; {}", effort.words());
        for mode in &self.modes {
            for flooded in ["no", "yes"] {
                table.row(vec![mode.name().to_owned(), flooded.to_owned()]).short_of_cores.clone_from(&placed.short);
            }
        }
        table
    }
}

impl Machine {
    fn start(mode: &Mode, core: usize) -> Result<(Machine, Queue), BenchError> {
        let (ours, theirs) = mem::pair(MemConfig {
            queues: MEMBERS,
            peer_queues: Some(1),
            ring_slots: RING_SLOTS,
            drop_when_full: true,
            ..MemConfig::default()
        });
        let host = Host::new(HostConfig { cpus: vec![Some(core), Some(core)], ..HostConfig::default() })?;
        let device = host.add_device(&ours.info().name, MEMBERS, false);
        let served = Arc::new(Served::default());
        let (mut napis, mut delivered) = (Vec::new(), Vec::new());
        for queue in 0..MEMBERS {
            let Queue { rx, irq, .. } = ours.take_queue(queue)?;
            let counted = Arc::new(Delivered::default());
            let member =
                Member { rx, pool: FramePool::new(RING_SLOTS), served: served.clone(), delivered: counted.clone() };
            let receiver = Arc::new(Polled::new(member, irq.clone()));
            napis.push(host.add_napi(NapiBinding { device, queue, cpu: 0, irq, receiver })?);
            delivered.push(counted);
        }
        let stations =
            [(theirs.info().mac, CLIENT_IP), (ours.info().mac, SERVICE_IP)].map(|(mac, ip)| Station { mac, ip });
        let frames = (0..MEMBERS).map(|queue| frame_to(&ours, stations, queue)).collect::<Result<_, _>>()?;
        let queue = theirs.take_queue(0)?;
        let (_ours, _theirs): (Arc<dyn Device>, Arc<dyn Device>) = (Arc::new(ours), Arc::new(theirs));
        let machine = Machine { host, napis, served, delivered, frames, device, _ours, _theirs };
        machine.deliver(mode)?;
        Ok((machine, queue))
    }

    /// Puts the mode in force and enables the queues.
    fn deliver(&self, mode: &Mode) -> Result<(), BenchError> {
        for napi in &self.napis {
            self.host.set_napi(*napi, &mode.napi)?;
            self.host.enable(*napi)?;
        }
        if let Some(polling) = mode.group {
            let mut options = GroupOptions::default();
            options.config.rest_ns = polling.rest_ns;
            let group = self.host.new_group(options)?;
            self.host.group_attach(group, 1)?;
            for napi in &self.napis {
                self.host.group_add(group, *napi, WEIGHT_DEFAULT)?;
            }
        }
        Ok(())
    }

    fn stats(&self) -> Stats {
        self.napis.iter().fold(Stats::default(), |all, napi| all + self.host.napi_stats(*napi))
    }

    fn measure(
        &self,
        mode: &Mode,
        flooded: bool,
        queue: Queue,
        core: usize,
        effort: &Effort<'_>,
    ) -> Result<Observed, BenchError> {
        let (over, counting, counted) = (AtomicBool::new(false), AtomicBool::new(false), AtomicU64::new(0));
        let (waits, packets, seconds, stats) = std::thread::scope(|scope| {
            let generating = scope.spawn(|| -> Result<Waits, BenchError> {
                pin_thread(&[core])?;
                self.generate(queue, flooded, &over, (&counting, &counted))
            });
            let packets = || self.served.packets.load(Ordering::Relaxed);
            pass(effort, effort.warm_up, packets);
            counting.store(true, Ordering::Relaxed);
            let (before, stats_before, begun) = (packets(), self.stats(), Instant::now());
            pass(effort, effort.window, || counted.load(Ordering::Relaxed));
            let (served, seconds, stats) = (packets() - before, begun.elapsed().as_secs_f64(), self.stats());
            over.store(true, Ordering::Relaxed);
            let waits = generating.join().map_err(|_| BenchError::Invalid("the generator panicked".to_owned()))??;
            Ok::<_, BenchError>((waits, served, seconds, stats - stats_before))
        })?;
        let bound = 2.0 * MEMBERS as f64 * f64::from(WEIGHT_DEFAULT);
        let per_second = packets as f64 / seconds;
        let some = |histogram: &Histogram<u64>, quantile: f64| {
            (!histogram.is_empty()).then(|| histogram.value_at_quantile(quantile) as f64)
        };
        Ok(Observed {
            values: vec![
                some(&waits.packets, 0.99),
                some(&waits.packets, 1.0),
                Some(bound),
                some(&waits.ns, 0.5).map(|ns| ns / 1e3),
                some(&waits.ns, 0.99).map(|ns| ns / 1e3),
                // Without the flood no member is busy, and the rate does not show the cost of a packet.
                (flooded && packets > 0).then(|| bound / per_second * 1e6),
                Some(per_second / 1e3),
            ],
            verdict: enforcement(mode, &Evidence::of_core(&stats, None, packets)),
            load: None,
        })
    }

    /// Floods the first queue, if asked to, and sends single frames to each of the others at intervals.
    fn generate(
        &self,
        mut queue: Queue,
        flooded: bool,
        over: &AtomicBool,
        (counting, counted): (&AtomicBool, &AtomicU64),
    ) -> Result<Waits, BenchError> {
        queue.irq.mask();
        let bounds = || Histogram::new_with_bounds(1, WAIT_MAX, 3);
        let histogram = || bounds().map_err(|error| BenchError::Invalid(error.to_string()));
        let mut waits = Waits { packets: histogram()?, ns: histogram()? };
        let mut pool = FramePool::new(RING_SLOTS);
        let mut send = |to: usize, count: usize| {
            for _ in 0..count {
                let data = &self.frames[to];
                let mut frame: Frame = pool.alloc_for(data.len());
                frame.set_len(data.len());
                frame.data_mut().copy_from_slice(data);
                // A full ring drops the frame, as a wire does.
                let _ = queue.tx.transmit(frame);
            }
            queue.tx.doorbell();
            queue.tx.reap_sent(&mut pool);
        };
        let mut quiet: Vec<Quiet> =
            (1..MEMBERS).map(|_| Quiet { sent: 0, on_its_way: None, due: Instant::now() }).collect();
        while !over.load(Ordering::Relaxed) {
            if flooded {
                send(0, BURST);
            }
            for (member, quiet) in (1..MEMBERS).zip(&mut quiet) {
                let now = Instant::now();
                match quiet.on_its_way {
                    None if now >= quiet.due => {
                        send(member, 1);
                        quiet.sent += 1;
                        // The count is read after the doorbell, because packets that were polled before it are not part
                        // of the wait.
                        quiet.on_its_way = Some((Instant::now(), self.served.packets.load(Ordering::Relaxed)));
                        quiet.due = now + QUIET_INTERVAL;
                    }
                    Some((sent_at, at_packets)) => {
                        let delivered = &self.delivered[member];
                        if delivered.frames.load(Ordering::Acquire) == quiet.sent {
                            if counting.load(Ordering::Relaxed) {
                                let packets = delivered.at_packets.load(Ordering::Relaxed).saturating_sub(at_packets);
                                waits.packets.saturating_record(packets);
                                waits.ns.saturating_record(sent_at.elapsed().as_nanos() as u64);
                                counted.fetch_add(1, Ordering::Relaxed);
                            }
                            quiet.on_its_way = None;
                        } else if sent_at.elapsed() > PATIENCE {
                            let what = format!("a frame to queue {member} was not delivered in {PATIENCE:?}");
                            return Err(BenchError::Invalid(what));
                        }
                    }
                    None => {}
                }
            }
        }
        Ok(waits)
    }
}

/// A member that is not flooded, as the generator sees it.
struct Quiet {
    sent: u64,
    /// The time at which its frame was sent, and the count of all packets then.
    on_its_way: Option<(Instant, u64)>,
    due: Instant,
}

impl Drop for Machine {
    fn drop(&mut self) {
        // This is refused only if the device was removed before.
        let _ = self.host.remove_device(self.device);
    }
}

/// Makes a frame that the device steers to a queue.
fn frame_to(device: &dyn Device, [from, to]: [Station; 2], queue: usize) -> Result<Vec<u8>, BenchError> {
    let source = SocketAddr::from((from.ip, senders::PORT));
    let reaches = |port: &u16| device.rss_queue(source, SocketAddr::from((to.ip, *port))) == Some(queue);
    let port = (1..=u16::MAX).find(reaches);
    let port = port.ok_or_else(|| BenchError::Invalid(format!("no flow of the device reaches its queue {queue}")))?;
    Ok(datagram(from, to, port, 18))
}
