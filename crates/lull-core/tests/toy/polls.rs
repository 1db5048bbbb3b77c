//! Who polls: softirq, timers, NAPI threads, busy polling.

use super::*;

impl Toy {
    /// One pass of `net_rx_action`. Says whether the softirq is raised after it.
    pub fn net_rx(&mut self, cpu: u16) -> bool {
        let index = usize::from(cpu);
        let mut rx = self.cpus[index].softnet.begin(&self.sysctl, self.now_ns);
        loop {
            match rx.next(&mut self.cpus[index].softnet) {
                RxStep::End(end) => return end.raised,
                RxStep::Poll(owner) => {
                    let queue = owner.napi() as usize;
                    let weight = self.napi(queue).weight();
                    self.napi(queue).poll_begin(&owner, weight, &self.cx(cpu));
                    let work = self.poll_device(queue, weight, By::Softirq, cpu);
                    let polled = self.softirq_polled(queue, owner, work, cpu);
                    if let Some(completion) = rx.polled(polled, work, self.now_ns) {
                        self.completion(queue, completion, cpu);
                    }
                }
            }
        }
    }

    fn softirq_polled(&mut self, queue: usize, owner: Owner, work: u32, cpu: u16) -> Polled {
        let cx = self.cx(cpu);
        let Queue { napi, flushes, gro_holds, .. } = &mut self.queues[queue];
        napi.softirq_polled(owner, work, *gro_holds && work > 0, &cx, |what| flushes.push(what))
    }

    /// `handle_softirqs`, if raised. Leftovers go to ksoftirqd.
    pub fn softirq(&mut self, cpu: u16) -> bool {
        let index = usize::from(cpu);
        if !self.cpus[index].softnet.is_raised() {
            return false;
        }
        let mut run = SoftirqRun::begin(self.now_ns);
        loop {
            let raised = self.net_rx(cpu);
            match run.after_pass(raised, self.cpus[index].need_resched, self.now_ns) {
                SoftirqNext::Again => {}
                SoftirqNext::Done => return true,
                SoftirqNext::Ksoftirqd => {
                    self.cpus[index].ksoftirqd = true;
                    self.cpus[index].ksoftirqd_wakes += 1;
                    return true;
                }
            }
        }
    }

    /// The timers of this CPU that are due.
    pub fn timers(&mut self, cpu: u16) -> bool {
        let mut any = false;
        for queue in 0..self.queues.len() {
            let before = self.napi(queue).stats().timer_fires;
            if let Some(owner) = self.napi(queue).timer_expired(&self.cx(cpu)) {
                self.route(queue, owner, cpu);
            }
            any |= self.napi(queue).stats().timer_fires != before;
        }
        any
    }

    /// Gives the queue a thread and turns threading on.
    pub fn threaded(&mut self, queue: usize, busy_poll: bool) {
        let with = if busy_poll { lull_core::Threaded::BusyPoll } else { lull_core::Threaded::On };
        self.queues[queue].thread.get_or_insert_default();
        let napi = self.napi(queue);
        napi.set(&NapiSettings { threaded: with, ..napi.settings() });
        napi.threaded_on(busy_poll);
    }

    /// One poll of the queue's thread; false if it sleeps.
    pub fn thread_round(&mut self, queue: usize) -> bool {
        let cpu = self.queues[queue].thread_cpu;
        let Some(mut thread) = self.queues[queue].thread.take() else { return false };
        let step = thread.next(self.napi(queue), &self.cx(cpu));
        let ThreadStep::Poll { budget } = step else {
            self.queues[queue].thread_woken = false;
            self.queues[queue].thread = Some(thread);
            return false;
        };
        let work = self.poll_device(queue, budget, By::Thread, cpu);
        let cx = self.cx(cpu);
        let Queue { napi, flushes, gro_holds, .. } = &mut self.queues[queue];
        let owed = thread.polled(napi, work, *gro_holds && work > 0, &cx, |what| flushes.push(what));
        self.queues[queue].thread = Some(thread);
        if let Some(completion) = owed {
            self.completion(queue, completion, cpu);
        }
        true
    }

    pub fn thread_is_busy(&self, queue: usize) -> bool {
        self.queues[queue].thread.as_ref().is_some_and(NapiThread::is_busy)
    }

    // ---- busy polling ----

    pub fn busy_begin(&mut self, plan: BusyPlan, cpu: u16) -> Option<Busier> {
        let queue = self.lookup(plan.napi_id)?;
        let busy = BusyLoop::begin(self.napi(queue), &plan, &self.cx(cpu));
        Some(Busier { queue, cpu, start_ns: self.now_ns, plan, busy })
    }

    /// One round; says whether it polled.
    pub fn busy_round(&mut self, busier: &mut Busier) -> bool {
        let (queue, cpu) = (busier.queue, busier.cpu);
        match busier.busy.round(self.napi(queue), &self.cx(cpu)) {
            BusyRound::Last => {
                self.queues[queue].masked = true;
                false
            }
            BusyRound::Lost => false,
            BusyRound::Poll { budget } => {
                let work = self.poll_device(queue, budget, By::Busy, cpu);
                busier.busy.polled(self.napi(queue), work, &self.cx(cpu));
                true
            }
        }
    }

    /// The stop and its last poll.
    pub fn busy_stop(&mut self, busier: Busier) {
        let Busier { queue, cpu, busy, .. } = busier;
        if let Some(stop) = busy.stop(self.napi(queue), &self.cx(cpu)) {
            self.busy_last_poll(queue, stop, cpu);
        }
        self.softirq(cpu);
    }

    fn busy_last_poll(&mut self, queue: usize, stop: BusyStop, cpu: u16) {
        let work = self.poll_device(queue, stop.budget(), By::Stop, cpu);
        let cx = self.cx(cpu);
        let Queue { napi, flushes, gro_holds, .. } = &mut self.queues[queue];
        match stop.polled(napi, work, *gro_holds && work > 0, &cx, |what| flushes.push(what)) {
            BusyStopped::Completed(completion) => self.completion(queue, completion, cpu),
            BusyStopped::ToSoftirq(owner) => self.route(queue, owner, cpu),
        }
    }

    /// A whole busy call that also ends when `found` says so. Without a cost per poll it would spin for ever, so a round
    /// that costs nothing costs a busy-clock microsecond.
    pub fn busy(&mut self, plan: BusyPlan, cpu: u16, found: impl Fn(&Toy) -> bool) {
        let Some(mut busier) = self.busy_begin(plan, cpu) else { return };
        loop {
            let before_ns = self.now_ns;
            self.busy_round(&mut busier);
            self.softirq(cpu);
            let may_end = found(self) || plan.end.reached(busier.start_ns, self.now_ns);
            if may_end && !busier.busy.catches_up() {
                break;
            }
            if self.now_ns == before_ns {
                self.now_ns += 1_024;
            }
            self.pending();
        }
        self.busy_stop(busier);
    }

    // ---- epoll ----
}
