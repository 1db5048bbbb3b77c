//! Forwarding by Linux, between two veth pairs in three network namespaces, whose settings end with them.

use std::io;
use std::net::{IpAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use lull_core::Mode;

use super::{Forward, Marks, observed};
use crate::bench::BenchError;
use crate::bench::kernel::ksoftirqds;
use crate::bench::kernel::pair::{Pair, ServerStack, Side};
use crate::case::{Effort, Observed};
use crate::cell::Enforcement;
use crate::flood::FloodMode;
use crate::flood::kernel::{set_napis, sleeps_of, steer, threads_in_force};
use crate::flood::own::{device_counts, pass};
use crate::flood::sched::SchedStat;
use crate::flood::senders;

/// The port at the far end. A socket is bound to it, so that nothing is answered, and is never read.
const PORT: u16 = 20_000;

/// The forwarding machine, between client and far end.
struct Machine {
    pair: Pair,
    far: Side,
    /// The device towards the far end.
    out: String,
    delivery: Vec<i32>,
    mode: Mode,
    _sink: UdpSocket,
}

/// Measures one run of a row, in namespaces of its own.
pub fn measure(
    forward: &Forward,
    bytes: usize,
    mode: &FloodMode,
    cores: &[usize],
    effort: &Effort<'_>,
) -> Result<Observed, BenchError> {
    let machine = Machine::start(mode, cores[0])?;
    let over = AtomicBool::new(false);
    let IpAddr::V4(to) = machine.far.address() else {
        return Err(BenchError::Invalid("the far end has an IPv4 address".to_owned()));
    };
    let client = &machine.pair.client;
    let (before, after) = std::thread::scope(|scope| {
        let over = &over;
        let sending = scope.spawn(move || -> io::Result<u64> {
            client.enter()?;
            lull_host::pin_thread(&cores[1..2])?;
            senders::over_sockets(to, std::iter::once(PORT), bytes, forward.per_second, over)
        });
        // If the counters cannot be read, the wait ends, and then the run.
        let arrived = || machine.marks().map_or(u64::MAX, |marks| marks.arrived);
        pass(effort, effort.warm_up, arrived);
        let before = machine.marks();
        pass(effort, effort.window, arrived);
        let after = machine.marks();
        over.store(true, Ordering::Relaxed);
        sending.join().map_err(|_| BenchError::Invalid("the generator panicked".to_owned()))??;
        Ok::<_, BenchError>((before?, after?))
    })?;
    Ok(observed(&before, &after, machine.verdict(&before, &after)))
}

impl Machine {
    fn start(mode: &FloodMode, core: usize) -> Result<Machine, BenchError> {
        let pair = Pair::make(1, ServerStack::Kernel)?;
        let (far, out) = pair.hop()?;
        let sink = far.within(|| UdpSocket::bind((far.address(), PORT)))??;
        let threaded = mode.has_threads();
        let delivery = match threaded {
            true => set_napis(&pair.server, mode.mode(), core)?,
            false => {
                steer(&pair, core)?;
                ksoftirqds(&[core])
            }
        };
        Ok(Machine { pair, far, out, delivery, mode: mode.mode().clone(), _sink: sink })
    }

    fn marks(&self) -> Result<Marks, BenchError> {
        let Pair { server, client } = &self.pair;
        let sent = client.within(|| device_counts(client.device()))?;
        let (came, left) = server.within(|| (device_counts(server.device()), device_counts(&self.out)))?;
        let arrived = self.far.within(|| device_counts(self.far.device()))?;
        Ok(Marks {
            at: Instant::now(),
            arrived: arrived.received,
            ring: sent.send_dropped + came.receive_dropped,
            out: left.send_dropped + arrived.receive_dropped,
            delivery: SchedStat::read(&self.delivery),
            delivery_sleeps: sleeps_of(&self.delivery),
            napi: None,
        })
    }

    fn verdict(&self, before: &Marks, after: &Marks) -> Enforcement {
        if after.arrived == before.arrived {
            return Enforcement::not_in_force("nothing reached the far end, so there is nothing to see the mode by");
        }
        let sleeps = after.delivery_sleeps.saturating_sub(before.delivery_sleeps);
        let seconds = (after.at - before.at).as_secs_f64();
        threads_in_force(&self.mode, &after.delivery.since(&before.delivery), sleeps, seconds)
    }
}
