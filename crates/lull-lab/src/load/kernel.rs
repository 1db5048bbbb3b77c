//! The same load over the kernel's sockets, against any memcached.
//!
//! Each thread has its share of the connections and of the rate, and an epoll instance. It sleeps until something
//! arrives or is due, or, with [`KernelConfig::spin`], polls without ever sleeping. Timeouts are in nanoseconds
//! (`epoll_pwait2`, Linux 5.11), with the thread's timer slack turned off. The remaining lateness of the kernel's
//! timers is in the summary's lag.

mod link;
mod worker;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use super::clock::MonotonicClock;
use super::recorder::{Recorder, Summary};
use super::workload::Workload;
use super::{LoadError, PATIENCE_NS, Pace};
use worker::{Run, Worker};

/// The most connections of a client.
pub const CONNECTIONS_MAX: usize = 1 << 20;
/// The most threads of a client.
pub const THREADS_MAX: usize = 1024;

/// The configuration of a [`KernelClient`].
#[derive(Clone, Debug)]
pub struct KernelConfig {
    /// The server, IPv4 or IPv6.
    pub server: SocketAddr,
    /// Connections over all threads, 1 to [`CONNECTIONS_MAX`].
    pub connections: usize,
    /// Threads, 1 to [`THREADS_MAX`]; no more than connections.
    pub threads: usize,
    /// Whether to poll without sleeping, which is exact and takes a core for each thread.
    pub spin: bool,
    /// The time without an answer, with requests outstanding or no connection up, after which a run fails, in
    /// nanoseconds.
    pub silence_ns_max: u64,
    /// The time to wait for outstanding answers at the end of a run, in nanoseconds.
    pub drain_ns_max: u64,
    /// The seed of the arrivals and of the records that are asked for.
    pub seed: u64,
}

impl KernelConfig {
    /// Makes a configuration with one thread, and `connections` connections that sleep between events.
    pub fn new(server: SocketAddr, connections: usize) -> KernelConfig {
        KernelConfig {
            server,
            connections,
            threads: 1,
            spin: false,
            silence_ns_max: PATIENCE_NS,
            drain_ns_max: PATIENCE_NS,
            seed: 1,
        }
    }
}

/// A memcached load generator over kernel sockets, all with `TCP_NODELAY`.
#[derive(Debug)]
pub struct KernelClient {
    workers: Vec<Worker>,
    clock: MonotonicClock,
    /// The number of the repetition.
    run: u32,
}

impl KernelClient {
    /// Opens all connections, within `timeout`.
    ///
    /// # Errors
    ///
    /// This fails with [`LoadError::Invalid`] if a setting is outside its limits, with [`LoadError::Connect`] if a
    /// connection does not come up in time, and with [`LoadError::Os`] if the system refuses a socket.
    pub fn connect(
        config: KernelConfig,
        workload: Arc<Workload>,
        timeout: Duration,
    ) -> Result<KernelClient, LoadError> {
        let invalid = |what, why| Err(LoadError::Invalid { what, why });
        if !(1..=CONNECTIONS_MAX).contains(&config.connections) {
            return invalid("connections", format!("{} is not between 1 and {CONNECTIONS_MAX}", config.connections));
        }
        if !(1..=THREADS_MAX.min(config.connections)).contains(&config.threads) {
            return invalid("threads", format!("{} with {} connections", config.threads, config.connections));
        }
        let clock = MonotonicClock::new();
        let mut workers = Vec::with_capacity(config.threads);
        for index in 0..config.threads {
            // If the connections do not divide evenly, the first threads have one more.
            let share = (config.connections + config.threads - 1 - index) / config.threads;
            workers.push(Worker::new(config.clone(), index, share, workload.clone(), clock)?);
        }
        let mut client = KernelClient { workers, clock, run: 0 };
        client.in_threads(|worker| worker.connect_all(timeout))?;
        Ok(client)
    }

    /// Sets the repetition that later loads belong to. Each repetition has arrivals of its own, which are the same for
    /// every client that has this seed. The first is 0.
    pub fn set_run(&mut self, run: u32) {
        self.run = run;
    }

    /// Runs a load: `warmup` that does not count, then `duration` that does, then a wait for the last answers. `stop`
    /// ends it early. An open loop's rate is that of all threads together.
    ///
    /// # Errors
    ///
    /// This fails with [`LoadError::NoProgress`] if the server falls silent, with [`LoadError::Invalid`] if the load is
    /// outside its limits, and with [`LoadError::Os`] if the system refuses something.
    pub fn run(
        &mut self,
        load: Pace,
        warmup: Duration,
        duration: Duration,
        stop: &AtomicBool,
    ) -> Result<Summary, LoadError> {
        self.run_recorded(load, warmup, duration, stop).map(|(summary, _)| summary)
    }

    /// Does the same as [`KernelClient::run`], and also returns the histograms.
    ///
    /// # Errors
    ///
    /// This fails for the same reasons as [`KernelClient::run`].
    pub fn run_recorded(
        &mut self,
        load: Pace,
        warmup: Duration,
        duration: Duration,
        stop: &AtomicBool,
    ) -> Result<(Summary, Recorder), LoadError> {
        load.check()?;
        let failed = AtomicBool::new(false);
        let (threads, number) = (self.workers.len(), self.run);
        let run = Run { load, warmup, duration, stop, failed: &failed, threads, number };
        self.in_threads(|worker| {
            let result = worker.run(&run);
            if result.is_err() {
                // The other threads need not wait for the end of a run that has failed.
                failed.store(true, Relaxed);
            }
            result
        })?;
        let mut summed: Option<(Recorder, u64, u64, u64)> = None;
        for worker in &self.workers {
            let (unanswered, backlog, reconnects) = worker.left_over();
            match &mut summed {
                None => summed = Some((worker.recorder().clone(), unanswered, backlog, reconnects)),
                Some(sum) => {
                    sum.0.merge(worker.recorder());
                    (sum.1, sum.2, sum.3) = (sum.1 + unanswered, sum.2 + backlog, sum.3 + reconnects);
                }
            }
        }
        let (recorder, unanswered, backlog, reconnects) = summed.expect("there is at least one thread");
        let mut summary = recorder.summarize(matches!(load, Pace::Open { .. }), unanswered, backlog);
        summary.reconnects = reconnects;
        Ok((summary, recorder))
    }

    /// Sets all records through the protocol, each once.
    ///
    /// # Errors
    ///
    /// This fails for the same reasons as [`KernelClient::run`], and with [`LoadError::Preload`] if not every record
    /// was stored.
    pub fn preload(&mut self, stop: &AtomicBool) -> Result<Summary, LoadError> {
        self.run(Pace::Preload { depth: 16 }, Duration::ZERO, Duration::ZERO, stop)?.of_preload(stop.load(Relaxed))
    }

    /// Returns the number of connections that are up.
    pub fn established(&self) -> usize {
        self.workers.iter().map(Worker::established).sum()
    }

    /// Returns the clock that all threads share.
    pub fn clock(&self) -> MonotonicClock {
        self.clock
    }

    /// Does `work` on every worker, each in a thread. Returns the first error, if there is one.
    fn in_threads(&mut self, work: impl Fn(&mut Worker) -> Result<(), LoadError> + Sync) -> Result<(), LoadError> {
        if let [worker] = &mut self.workers[..] {
            return work(worker);
        }
        std::thread::scope(|scope| {
            let work = &work;
            let threads: Vec<_> = self.workers.iter_mut().map(|worker| scope.spawn(move || work(worker))).collect();
            let results = threads.into_iter().map(|thread| match thread.join() {
                Ok(result) => result,
                Err(panic) => std::panic::resume_unwind(panic),
            });
            // All threads are joined before the first error is returned.
            results.fold(Ok(()), Result::and)
        })
    }
}
