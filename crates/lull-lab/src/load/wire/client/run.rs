//! One load on the client: warm-up, window, and the wait for the last answers.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use super::super::connection::{NEVER, State};
use super::{Phase, WireClient, nanoseconds};
use crate::load::clock::Clock;
use crate::load::recorder::{Recorder, Summary, Window};
use crate::load::schedule::{Schedule, seed_of_run};
use crate::load::{LoadError, Pace};

impl<C: Clock> WireClient<C> {
    /// Runs a load: `warmup` that does not count, then `duration` that does, then a wait for the last answers. `stop`
    /// ends it early.
    ///
    /// # Errors
    ///
    /// This fails with [`LoadError::NoProgress`] if the server falls silent, and with [`LoadError::Invalid`] if the
    /// load is outside its limits.
    pub fn run(
        &mut self,
        load: Pace,
        warmup: Duration,
        duration: Duration,
        stop: &AtomicBool,
    ) -> Result<Summary, LoadError> {
        self.begin(load, warmup, duration)?;
        while self.poll()? {
            if stop.load(Relaxed) {
                self.stop();
            }
        }
        Ok(self.finish())
    }

    /// Sets all records through the protocol, each once.
    ///
    /// # Errors
    ///
    /// This fails for the same reasons as [`WireClient::run`], and with [`LoadError::Preload`] if not every record was
    /// stored.
    pub fn preload(&mut self, stop: &AtomicBool) -> Result<Summary, LoadError> {
        self.run(Pace::Preload { depth: 4 }, Duration::ZERO, Duration::ZERO, stop)?.of_preload(stop.load(Relaxed))
    }

    /// Sets the repetition that later loads belong to. Each repetition has arrivals of its own, which are the same for
    /// every client that has this seed. The first is 0.
    pub fn set_run(&mut self, run: u32) {
        self.run = run;
    }

    /// Starts a load. Then call [`WireClient::poll`] until it returns false, and [`WireClient::finish`].
    ///
    /// # Errors
    ///
    /// This fails with [`LoadError::Invalid`] if the load is outside its limits.
    pub fn begin(&mut self, load: Pace, warmup: Duration, duration: Duration) -> Result<(), LoadError> {
        load.check()?;
        let now_ns = self.clock.now_ns();
        // Requests that an earlier run left unanswered must not be taken for this one's.
        for connection in 0..self.connections.len() as u32 {
            let line = &self.connections[connection as usize];
            if line.answered != line.enqueued {
                self.abort(connection, now_ns, "unanswered requests");
            }
        }
        self.make_rings(load.depth());
        let preload = matches!(load, Pace::Preload { .. });
        let from_ns = if preload { now_ns } else { now_ns.saturating_add(nanoseconds(warmup)) };
        let to_ns = if preload { NEVER } else { from_ns.saturating_add(nanoseconds(duration)) };
        self.load = load;
        self.preload_next = preload.then_some(0);
        self.recorder = Recorder::new(Window { from_ns, to_ns });
        let seed = seed_of_run(self.config.seed, self.run);
        self.schedule = Schedule::new(&load, self.connections.len(), now_ns, seed);
        for connection in 0..self.connections.len() as u32 {
            if self.connections[connection as usize].state == State::Established {
                self.schedule.up(connection, now_ns);
            }
        }
        self.phase = Phase::Sending { until_ns: to_ns };
        (self.retransmits, self.lost_connections) = (0, 0);
        self.last_progress_ns = now_ns;
        self.raise_ns_before = self.raise_ns.as_mut().map_or(0, |raise_ns| raise_ns());
        Ok(())
    }

    /// Ends the current load early. What was measured so far counts.
    pub fn stop(&mut self) {
        if let Phase::Sending { .. } = self.phase {
            self.phase = Phase::Sending { until_ns: 0 };
        }
    }

    /// Does one turn of each of several begun loads, whose clients share a thread; see [`WireClient::poll`]. The time
    /// that one client takes does not count for the others. Returns false when all are over.
    ///
    /// # Errors
    ///
    /// This fails for the same reasons as [`WireClient::poll`].
    pub fn poll_each<'c>(clients: impl IntoIterator<Item = &'c mut WireClient<C>>) -> Result<bool, LoadError>
    where
        C: 'c,
    {
        let mut goes_on = false;
        for client in clients {
            client.turn_from_ns = client.clock.now_ns();
            goes_on |= client.poll()?;
        }
        Ok(goes_on)
    }

    /// Does one turn of a begun load. Returns false when it is over.
    ///
    /// # Errors
    ///
    /// This fails with [`LoadError::NoProgress`] if the server has fallen silent. The load is then over.
    pub fn poll(&mut self) -> Result<bool, LoadError> {
        self.step();
        let now_ns = self.turn_from_ns;
        match self.phase {
            Phase::Idle | Phase::Done => return Ok(false),
            Phase::Sending { until_ns } => {
                if now_ns >= until_ns || self.exhausted() {
                    // A preload lasts until its last answer.
                    if !self.exhausted() {
                        self.recorder.end_window(now_ns);
                    }
                    let until_ns = now_ns.saturating_add(self.config.drain_ns_max);
                    self.phase = Phase::Draining { until_ns };
                }
            }
            Phase::Draining { until_ns } => {
                if self.schedule.outstanding() == 0 || (now_ns >= until_ns && !self.exhausted()) {
                    self.recorder.end_window(now_ns);
                    self.phase = Phase::Done;
                    return Ok(false);
                }
            }
        }
        let outstanding = self.schedule.outstanding();
        let silent_ns = now_ns.saturating_sub(self.last_progress_ns);
        if (outstanding > 0 || self.established == 0) && silent_ns > self.config.silence_ns_max {
            self.phase = Phase::Done;
            return Err(LoadError::NoProgress { silent_s: silent_ns as f64 / 1e9, outstanding });
        }
        Ok(true)
    }

    /// Returns the figures of the load that has ended.
    pub fn finish(&mut self) -> Summary {
        self.phase = Phase::Idle;
        let raise_ns = self.raise_ns.as_mut().map_or(0, |raise_ns| raise_ns());
        self.recorder.set_raise_ns(raise_ns - self.raise_ns_before);
        let open_loop = matches!(self.load, Pace::Open { .. });
        let backlog = self.schedule.backlog(self.recorder.window().to_ns);
        let mut summary = self.recorder.summarize(open_loop, self.schedule.outstanding(), backlog);
        summary.retransmits = self.retransmits;
        summary.reconnects = self.lost_connections;
        summary
    }

    /// Whether a preload has nothing left to send.
    #[inline]
    pub(super) fn exhausted(&self) -> bool {
        self.preload_next.is_some_and(|next| next >= self.workload.records())
    }
}
