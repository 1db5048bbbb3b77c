//! The contexts that stand by: interrupt thread and ksoftirqd of each CPU, and NAPI threads.

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use lull_core::{CondResched, NapiThread, ThreadStep};

use crate::affinity::{self, ThreadUse};
use crate::cpu::Vain;
use crate::delivery::{Delivery, Instance};
use crate::holder;
use crate::or_end::or_end;
use crate::parker::Parker;
use crate::sync::thread::JoinHandle;
use crate::sync::{mpsc, relock, spin_loop, thread, yield_now};

/// Starts a thread that is pinned to the core of CPU `cpu` and known to the host by its role.
pub(crate) fn spawn(
    host: &Arc<Delivery>,
    cpu: u16,
    name: String,
    realtime: bool,
    body: impl FnOnce(&Delivery) + Send + 'static,
) -> io::Result<(JoinHandle<()>, i32)> {
    let inner = host.clone();
    let role = name.clone();
    let (started, starting) = mpsc::channel();
    let join = thread::Builder::new().name(name).spawn(move || {
        let pinned =
            inner.cpu(cpu).core.map_or(Ok(()), |core| affinity::pin_to(core).map_err(|error| no_core(core, &error)));
        affinity::no_timer_slack();
        if realtime && let Err(error) = affinity::make_realtime() {
            *relock(&inner.realtime_error) = Some(error);
        }
        let tid = rustix::thread::gettid().as_raw_nonzero().get();
        let go = pinned.is_ok();
        if go {
            relock(&inner.threads).push(ThreadUse { tid, role });
        }
        // The starter waits for this message.
        let _ = started.send(pinned.map(|()| tid));
        if go {
            let name = thread::current();
            or_end(&|| format!("delivery thread {}, outside any queue", name.name().unwrap_or("?")), || body(&inner));
        }
    })?;
    match starting.recv() {
        Ok(Ok(tid)) => Ok((join, tid)),
        Ok(Err(error)) => Err(error),
        Err(_) => Err(io::Error::other("the thread died while starting")),
    }
}

/// The error for a core that a thread cannot be pinned to.
fn no_core(core: usize, error: &io::Error) -> io::Error {
    io::Error::new(
        error.kind(),
        format!(
            "cannot pin it to core {core}: {error}; name a core that this process may use, as `taskset -cp PID` lists them"
        ),
    )
}

/// The interrupt context of a CPU while its workers compute.
pub(crate) fn irq_thread(host: &Arc<Delivery>, cpu: u16) -> io::Result<JoinHandle<()>> {
    let realtime = host.realtime;
    let started = spawn(host, cpu, format!("irq/{cpu}"), realtime, move |host| {
        let cpu = host.cpu(cpu);
        while !host.stopping.load(Ordering::Acquire) {
            let timer = cpu.timer_fd();
            let fds = [timer.as_fd(), cpu.irq_epoll.fd()];
            let readable = cpu.irq_parker.park(None, &fds, &cpu.sleeps);
            host.irq_thread_woke(cpu, readable & 1 != 0, readable & 2 != 0);
        }
    })?;
    Ok(started.0)
}

/// Runs what softirq left over, as a thread like any other.
pub(crate) fn ksoftirqd(host: &Arc<Delivery>, cpu: u16) -> io::Result<JoinHandle<()>> {
    let started = spawn(host, cpu, format!("ksoftirqd/{cpu}"), false, move |host| {
        let cpu = host.cpu(cpu);
        while !host.stopping.load(Ordering::Acquire) {
            cpu.ksoftirqd_parker.park(None, &[], &cpu.sleeps);
            holder::ksoftirqd_woke(&host.on(cpu), || {
                yield_now();
                !host.stopping.load(Ordering::Acquire)
            });
        }
    })?;
    Ok(started.0)
}

/// The thread of one instance.
pub(crate) fn napi_thread(
    host: &Arc<Delivery>,
    instance: Arc<Instance>,
    parker: Arc<Parker>,
    name: String,
) -> io::Result<(JoinHandle<()>, i32)> {
    let cpu = instance.cpu();
    spawn(host, cpu, name, false, move |host| {
        let cpu = host.cpu(cpu);
        let mut thread = NapiThread::new();
        let mut resched = CondResched::new(host.clock.now_ns());
        let (mut vain, mut since_ns) = (Vain::default(), None);
        while !host.stopping.load(Ordering::Acquire) && !instance.is_removed() {
            let cx = host.cx(cpu.index, host.clock.now_ns());
            let budget = match thread.next(&instance.napi, &cx) {
                ThreadStep::Sleep => {
                    parker.park(None, &[], &cpu.sleeps);
                    continue;
                }
                ThreadStep::Poll { budget } => budget,
            };
            let work = host.contained_poll(&instance, "a NAPI thread", budget, |receiver| receiver.poll(host, budget));
            let polled_at_ns = host.clock.now_ns();
            let cx = host.cx(cpu.index, polled_at_ns);
            let polled_before_ns = since_ns.take();
            if let Some(completion) = thread.polled(&instance.napi, work, false, &cx, |_| ()) {
                vain.tell(cpu);
                let again = host.carry_out(&instance, completion, false, &cx);
                host.cover(cpu);
                if let Some(owner) = again {
                    host.route_outside(cpu, &instance, owner, &cx);
                }
            } else {
                since_ns = Some(polled_at_ns);
                if work == 0 {
                    if let Some(before_ns) = polled_before_ns {
                        vain.round(cpu, polled_at_ns.saturating_sub(before_ns));
                    }
                    spin_loop();
                }
            }
            cpu.cond_resched(&mut resched, cx.now_ns);
        }
        vain.tell(cpu);
        thread.abandon();
    })
}

/// Tells every thread to end, and wakes it.
pub(crate) fn stop(host: &Delivery) {
    host.stopping.store(true, Ordering::Release);
    for index in 0..host.cpu_count() as u16 {
        let cpu = host.cpu(index);
        cpu.irq_parker.wake(&cpu.sleeps);
        cpu.ksoftirqd_parker.wake(&cpu.sleeps);
    }
    for instance in host.instances.iter() {
        instance.wake_thread(host);
    }
    for group in host.all_groups() {
        for thread in relock(&group.threads).iter().flatten() {
            thread.parker.wake(&host.cpu(thread.cpu).sleeps);
        }
    }
}
