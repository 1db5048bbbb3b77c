//! Waits in epoll contexts, and queues that are disabled and enabled.

use super::*;

impl Toy {
    pub fn context(&mut self, watches: &[usize], params: EpollParams, options: EpollOptions) -> usize {
        let ep = EpollBusy::new(&self.sysctl, options);
        ep.set_params(&params, true).expect("parameters within their limits");
        self.contexts.push(Context { ep, watches: watches.to_vec(), ready: 0 });
        self.contexts.len() - 1
    }

    /// One `epoll_wait`; the application takes all events that it gets.
    pub fn epoll_wait(&mut self, context: usize, cpu: u16, timeout_ns: Option<u64>) -> Waited {
        let available = self.contexts[context].ready > 0;
        let mut wait = EpollWait::begin(&self.contexts[context].ep, timeout_ns, available, self.now_ns);
        let (mut owed, mut toured) = (None, false);
        loop {
            match owed.take().unwrap_or_else(|| wait.next(&self.contexts[context].ep)) {
                WaitStep::Copy => {
                    let events = std::mem::take(&mut self.contexts[context].ready);
                    owed = wait.copied(&self.contexts[context].ep, events);
                }
                WaitStep::Busy(plan) => {
                    // Going around instances that cost nothing would take no time.
                    self.now_ns += if std::mem::replace(&mut toured, true) { 1_024 } else { 0 };
                    let (gone, from) = (self.lookup(plan.napi_id).is_none(), self.polls.len());
                    self.busy(plan, cpu, |toy| toy.contexts[context].ready > 0);
                    let available = self.contexts[context].ready > 0;
                    let own = self.polls[from..].iter().filter(|poll| matches!(poll.by, By::Busy | By::Stop));
                    let most = own.map(|poll| poll.work).max().unwrap_or(0);
                    let done = BusyDone { available, gone, most, now_ns: self.now_ns };
                    owed = wait.busy_done(&self.contexts[context].ep, done);
                }
                WaitStep::Suspend(id) => self.suspend(id, cpu),
                WaitStep::Resume(id) => self.resume(id, cpu),
                WaitStep::Done(0) => return Waited::Timeout,
                WaitStep::Done(events) => return Waited::Events(events),
                WaitStep::Sleep(deadline_ns) => loop {
                    self.pending();
                    if self.contexts[context].ready > 0 {
                        wait.woke(true, false);
                        break;
                    }
                    let next_ns = self.next_ns();
                    if deadline_ns.is_some_and(|deadline_ns| next_ns.is_none_or(|next_ns| deadline_ns < next_ns)) {
                        self.now_ns = self.now_ns.max(deadline_ns.unwrap_or(0));
                        wait.woke(false, true);
                        break;
                    }
                    let Some(next_ns) = next_ns else { return Waited::Asleep };
                    self.now_ns = self.now_ns.max(next_ns);
                },
            }
        }
    }

    /// The context is closed.
    pub fn free(&mut self, context: usize, cpu: u16) {
        let left: Vec<u32> = self.contexts[context].ep.free().collect();
        left.into_iter().for_each(|id| self.resume(id, cpu));
        self.contexts[context].watches.clear();
    }

    // ---- disable, enable ----

    /// Claims, and withdraws the instance; false if somebody owns it. Begun before.
    pub fn disable_try(&mut self, queue: usize) -> bool {
        if self.napi(queue).disable_claim() == DisableClaim::Owned {
            return false;
        }
        self.napi(queue).disable_end(&self.cx(0));
        self.queues[queue].masked = true;
        self.queues[queue].latched = false;
        true
    }

    /// The whole of disable, in a machine that is quiet.
    pub fn disable(&mut self, queue: usize) {
        self.napi(queue).disable_begin();
        for _ in 0..STEPS_MAX {
            if self.disable_try(queue) {
                return;
            }
            self.now_ns += 20 * US;
            self.pending();
        }
        panic!("the owner of queue {queue} never lets go");
    }

    pub fn enable(&mut self, queue: usize) {
        self.napi(queue).enable(self.next_id, None);
        self.next_id += 1;
        // A device that is set up looks at its ring.
        self.queues[queue].pending |= self.queues[queue].ring > 0;
        self.unmask(queue);
    }

    // ---- time ----
}
