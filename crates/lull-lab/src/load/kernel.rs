//! The same load over the kernel's sockets, against any memcached.
//!
//! Each thread has its share of the connections and of the rate, an epoll instance, and sleeps until something arrives
//! or is due; or, with [`KernelConfig::spin`], asks over and over and sleeps never. Timeouts are in nanoseconds
//! (`epoll_pwait2`, Linux 5.11), with the thread's timer slack turned off: what the kernel's timers are late by all the
//! same is in the summary's lag.

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

/// Most connections of a client.
pub const CONNECTIONS_MAX: usize = 1 << 20;
/// Most threads of a client.
pub const THREADS_MAX: usize = 1024;

/// How a [`KernelClient`] is set up.
#[derive(Clone, Debug)]
pub struct KernelConfig {
    /// The server, IPv4 or IPv6.
    pub server: SocketAddr,
    /// Connections over all threads, 1 to [`CONNECTIONS_MAX`].
    pub connections: usize,
    /// Threads, 1 to [`THREADS_MAX`]; no more than connections.
    pub threads: usize,
    /// Poll without sleeping: exact, and a core for each thread.
    pub spin: bool,
    /// Nanoseconds without an answer, with requests outstanding or no connection up, after which a run fails.
    pub silence_ns_max: u64,
    /// Nanoseconds to wait for outstanding answers at the end of a run.
    pub drain_ns_max: u64,
    /// Seed of arrivals and of which record is asked for.
    pub seed: u64,
}

impl KernelConfig {
    /// One thread and `connections` connections that sleep between events.
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
    /// Which repetition this is.
    run: u32,
}

impl KernelClient {
    /// Opens all connections, within `timeout`.
    ///
    /// # Errors
    /// [`LoadError::Invalid`] if a setting is outside its limits, [`LoadError::Connect`] if a connection does not come
    /// up in time, [`LoadError::Os`] if the system refuses a socket.
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
            // The first threads take what does not divide.
            let share = (config.connections + config.threads - 1 - index) / config.threads;
            workers.push(Worker::new(config.clone(), index, share, workload.clone(), clock)?);
        }
        let mut client = KernelClient { workers, clock, run: 0 };
        client.in_threads(|worker| worker.connect_all(timeout))?;
        Ok(client)
    }

    /// Which repetition the loads from now on are: each has arrivals of its own, which are the same for every client that has
    /// this seed. It is 0 at first.
    pub fn set_run(&mut self, run: u32) {
        self.run = run;
    }

    /// Puts a load on: `warmup` that does not count, then `duration` that does, then a wait for the last answers.
    /// `stop` ends it early. An open loop's rate is that of all threads together.
    ///
    /// # Errors
    /// [`LoadError::NoProgress`] if the server falls silent, [`LoadError::Invalid`] if the load is outside its limits,
    /// [`LoadError::Os`] if the system refuses.
    pub fn run(
        &mut self,
        load: Pace,
        warmup: Duration,
        duration: Duration,
        stop: &AtomicBool,
    ) -> Result<Summary, LoadError> {
        self.run_recorded(load, warmup, duration, stop).map(|(summary, _)| summary)
    }

    /// As [`KernelClient::run`], with the histograms.
    ///
    /// # Errors
    /// As [`KernelClient::run`].
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
                // The others need not wait for the end of a run that has failed.
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
    /// As [`KernelClient::run`], and [`LoadError::Preload`] if not every record was stored.
    pub fn preload(&mut self, stop: &AtomicBool) -> Result<Summary, LoadError> {
        self.run(Pace::Preload { depth: 16 }, Duration::ZERO, Duration::ZERO, stop)?.of_preload(stop.load(Relaxed))
    }

    /// Connections that are up.
    pub fn established(&self) -> usize {
        self.workers.iter().map(Worker::established).sum()
    }

    /// The clock that all threads share.
    pub fn clock(&self) -> MonotonicClock {
        self.clock
    }

    /// Does `work` on every worker, each in a thread; the first error, if there is one.
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
            // All are joined before the first error is passed on.
            results.fold(Ok(()), Result::and)
        })
    }
}
