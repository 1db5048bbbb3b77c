//! The core, driven by the same steps.

use super::*;

enum RealPoller {
    Away,
    Looping(BusyLoop),
    Stopping(BusyStop, u32),
}

pub(super) struct Real {
    pub(super) napi: Napi,
    now_ns: u64,
    pub(super) device: Device,
    lists: [Vec<Owner>; 2],
    rx: Option<(Owner, u16, u32)>,
    thread: NapiThread,
    thread_work: u32,
    pollers: [RealPoller; 2],
    releases: Vec<(Release, u16)>,
}

impl Real {
    pub(super) fn new(edge: bool) -> Real {
        let napi = Napi::new(0);
        napi.enable(NAPI_ID_MIN, None);
        Real {
            napi,
            now_ns: 1_000_000,
            device: Device { ring: 0, masked: false, latched: false, pending: false, edge },
            lists: [Vec::new(), Vec::new()],
            rx: None,
            thread: NapiThread::new(),
            thread_work: 0,
            pollers: [RealPoller::Away, RealPoller::Away],
            releases: Vec::new(),
        }
    }

    fn cx(&self, cpu: u16) -> Cx<'static> {
        Cx::new(cpu, self.now_ns)
    }

    fn route(&mut self, owner: Owner, cpu: u16) {
        if let Route::Softirq(owner) = self.napi.route(owner, &self.cx(cpu)) {
            self.lists[usize::from(cpu)].push(owner);
        }
    }

    fn completion(&mut self, completion: Completion, cpu: u16) -> String {
        match completion {
            Completion::Kept(owner) => {
                owner.abandon();
                "Kept".to_owned()
            }
            Completion::Again(owner) => {
                self.route(owner, cpu);
                "Again".to_owned()
            }
            Completion::Released(release) => {
                let told = format!("Released({})", format!("{release:?}").replace("Release {", "Owed {"));
                self.releases.push((release, cpu));
                told
            }
        }
    }

    pub(super) fn apply(&mut self, op: &Op) -> String {
        match *op {
            Op::Packets(packets) => self.device.packets(packets),
            Op::Irq => {
                self.device.latched = false;
                if let Schedule::Owned(owner) = self.napi.schedule(&self.cx(0)) {
                    self.device.masked = true;
                    self.route(owner, 0);
                }
            }
            Op::Kick(cpu) => {
                if let Schedule::Owned(owner) = self.napi.schedule(&self.cx(cpu)) {
                    self.route(owner, cpu);
                }
            }
            Op::RxPoll(cpu) => {
                let owner = self.lists[usize::from(cpu)].pop().expect("the model has one on this list");
                self.napi.poll_begin(&owner, WEIGHT, &self.cx(cpu));
                self.rx = Some((owner, cpu, self.device.take(WEIGHT)));
            }
            Op::RxDone { gro } => {
                let (owner, cpu, work) = self.rx.take().expect("it applies");
                match self.napi.softirq_polled(owner, work, gro && work > 0, &self.cx(cpu), |_| ()) {
                    Polled::Repoll(owner) => {
                        self.lists[usize::from(cpu)].push(owner);
                        return "Repoll".to_owned();
                    }
                    Polled::Completed(completion) => return self.completion(completion, cpu),
                }
            }
            Op::Settle(which) => {
                let (release, cpu) = self.releases.remove(which % self.releases.len());
                let settled = release.settle(&self.napi, &self.cx(cpu));
                if settled.unmask {
                    self.device.unmask();
                }
                return format!("unmask {}", settled.unmask);
            }
            Op::Timer(cpu) => {
                if let Some(owner) = self.napi.timer_expired(&self.cx(cpu)) {
                    self.route(owner, cpu);
                }
            }
            Op::Advance(ns) => self.now_ns += ns,
            Op::BusyRound { who, prefer, budget } => {
                let cx = self.cx(who as u16);
                let mut busy = match std::mem::replace(&mut self.pollers[who], RealPoller::Away) {
                    RealPoller::Looping(busy) => busy,
                    _ => {
                        let plan = BusyPlan {
                            napi_id: self.napi.id(),
                            prefer,
                            budget,
                            end: BusyEnd::OneRound,
                            catch_up: false,
                        };
                        BusyLoop::begin(&self.napi, &plan, &cx)
                    }
                };
                let mut polled = None;
                if let BusyRound::Poll { budget } = busy.round(&self.napi, &cx) {
                    let work = self.device.take(budget);
                    busy.polled(&self.napi, work, &cx);
                    polled = Some(work);
                }
                self.pollers[who] = RealPoller::Looping(busy);
                return format!("polled {polled:?}");
            }
            Op::StopBegin(who) => {
                let RealPoller::Looping(busy) = std::mem::replace(&mut self.pollers[who], RealPoller::Away) else {
                    panic!("the model has it looping")
                };
                if let Some(stop) = busy.stop(&self.napi, &self.cx(who as u16)) {
                    self.pollers[who] = RealPoller::Stopping(stop, 0);
                }
            }
            Op::StopPoll(who) => {
                let RealPoller::Stopping(stop, work) = &mut self.pollers[who] else {
                    panic!("the model has it stopping")
                };
                *work = self.device.take(stop.budget());
            }
            Op::StopDone { who, gro } => {
                let RealPoller::Stopping(stop, work) = std::mem::replace(&mut self.pollers[who], RealPoller::Away)
                else {
                    panic!("the model has it stopping")
                };
                let cpu = who as u16;
                match stop.polled(&self.napi, work, gro && work > 0, &self.cx(cpu), |_| ()) {
                    BusyStopped::Completed(completion) => return self.completion(completion, cpu),
                    BusyStopped::ToSoftirq(owner) => {
                        self.route(owner, cpu);
                        return "to softirq".to_owned();
                    }
                }
            }
            Op::Suspend(cpu) => {
                self.napi.suspend(&self.cx(cpu));
            }
            Op::Resume(cpu) => {
                if let Some(owner) = self.napi.resume(&self.cx(cpu)) {
                    self.route(owner, cpu);
                }
            }
            Op::Set { defer, gro_flush_ns, suspend_ns } => self.napi.set(&NapiSettings {
                defer_hard_irqs: defer,
                gro_flush_timeout_ns: gro_flush_ns,
                irq_suspend_timeout_ns: suspend_ns,
                ..self.napi.settings()
            }),
            Op::DisableBegin => self.napi.disable_begin(),
            Op::DisableClaim => {
                if self.napi.disable_claim() == DisableClaim::Claimed {
                    self.napi.disable_end(&self.cx(0));
                    self.device.masked = true;
                    self.device.latched = false;
                }
            }
            Op::Enable => {
                self.napi.enable(NAPI_ID_MIN, None);
                self.device.pending |= self.device.ring > 0;
                self.device.unmask();
            }
            Op::ThreadedOn(busy) => {
                let threaded = if busy { Threaded::BusyPoll } else { Threaded::On };
                self.napi.set(&NapiSettings { threaded, ..self.napi.settings() });
                self.napi.threaded_on(busy);
            }
            Op::ThreadedOff => {
                let off = self.napi.threaded_off() == ThreadedOff::Off;
                if off {
                    self.napi.set(&NapiSettings { threaded: Threaded::Off, ..self.napi.settings() });
                }
                return format!("off {off}");
            }
            Op::ThreadPoll => {
                let mut polled = None;
                if let ThreadStep::Poll { budget } = self.thread.next(&self.napi, &self.cx(THREAD_CPU)) {
                    self.thread_work = self.device.take(budget);
                    polled = Some(self.thread_work);
                }
                return format!("polled {polled:?}");
            }
            Op::ThreadDone { gro } => {
                let (work, cx) = (self.thread_work, self.cx(THREAD_CPU));
                let owed = self.thread.polled(&self.napi, work, gro && work > 0, &cx, |_| ());
                return owed.map_or("none".to_owned(), |completion| self.completion(completion, THREAD_CPU));
            }
        }
        String::new()
    }
}

impl Drop for Real {
    /// A failed comparison throws the machine away with owners in it.
    fn drop(&mut self) {
        self.lists.iter_mut().flat_map(std::mem::take).for_each(Owner::abandon);
        if let Some((owner, ..)) = self.rx.take() {
            owner.abandon();
        }
        std::mem::take(&mut self.thread).abandon();
        for poller in &mut self.pollers {
            std::mem::forget(std::mem::replace(poller, RealPoller::Away));
        }
    }
}
