//! What a host answers to requests.

use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, Instant};

use lull_host::{Host, NapiInfo, WeakHost};
use lull_linux::{Roots, machine, sched};
use lull_slo::Decided;

use crate::change::{Former, Planned, apply};
use crate::group;
use crate::schema::{Answer, Change, Cpu, EpollContext, Napi, Request, Set, Shown, Sockets};

/// Lists the sockets of a process; `None` if it has no network.
pub type ListSockets = Box<dyn Fn() -> Option<Sockets> + Send>;

/// Answers requests about one host.
pub(crate) struct Answers {
    host: WeakHost,
    service: String,
    sockets: ListSockets,
    /// What NAPIs had before their first change, by their place in the host's table and their id. With the id, a NAPI
    /// that takes the place of a disabled one is not given that one's settings.
    former: BTreeMap<(u32, u32), Former>,
    /// A controller's last report, and when it came.
    decided: Option<(Box<Decided>, Instant)>,
}

/// A controller that has not reported for this long counts as gone: it reports after every window, and a window lasts a
/// second at most.
const CONTROLLER_SILENT_MAX: Duration = Duration::from_secs(10);

impl fmt::Debug for Answers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Answers").field("service", &self.service).finish_non_exhaustive()
    }
}

impl Answers {
    pub(crate) fn new(host: &Host, service: &str, sockets: ListSockets) -> Answers {
        let (host, service) = (host.downgrade(), service.to_owned());
        Answers { host, service, sockets, former: BTreeMap::new(), decided: None }
    }

    pub(crate) fn answer(&mut self, request: &Request) -> Answer {
        let Some(host) = self.host.upgrade() else {
            return Answer::Refused("its network has been closed, and the process is ending".to_owned());
        };
        self.forget_removed(&host);
        self.look_after_controller(&host, Instant::now());
        match request {
            Request::Show => Answer::Shown(self.show(&host)),
            Request::Sockets => self.list_sockets(),
            Request::Set(set) => self.set(&host, set),
            Request::Group(change) => group::change(&host, change).map_or_else(Answer::Refused, Answer::Group),
            Request::TimeAnswers(on) => {
                host.time_answers(*on);
                Answer::Done
            }
            Request::Decided(decided) => {
                self.decided = Some((decided.clone(), Instant::now()));
                Answer::Done
            }
            Request::Undo => self.undo(&host),
        }
    }

    /// Whether a controller is at work. One that has not reported for too long is forgotten here.
    pub(crate) fn has_controller(&mut self) -> bool {
        if let Some(host) = self.host.upgrade() {
            self.look_after_controller(&host, Instant::now());
        }
        self.decided.is_some()
    }

    /// Forgets a controller that was killed. It could not take its last timeouts back, and they would stay in force for
    /// a load that they were not chosen for. So what was there before is given back, which is the mode that was asked
    /// for.
    fn look_after_controller(&mut self, host: &Host, now: Instant) {
        let is_silent = |(_, at): &(_, Instant)| now.saturating_duration_since(*at) > CONTROLLER_SILENT_MAX;
        if self.decided.as_ref().is_some_and(is_silent) {
            self.decided = None;
            host.time_answers(false);
            // The former settings are within every limit, and a NAPI that is gone needs nothing back.
            self.undo(host);
        }
    }

    /// Forgets the former settings of instances that are gone, or that have come back as another NAPI. An instance that
    /// is disabled may come back with the settings that it has.
    fn forget_removed(&mut self, host: &Host) {
        let napis = host.napis();
        let is_there = |index, id| napis.iter().any(|info| info.index == index && (info.id == id || info.id == 0));
        self.former.retain(|(index, id), _| is_there(*index, *id));
    }

    fn show(&self, host: &Host) -> Shown {
        let cpus = (0..host.cpus() as u16).map(|index| {
            let stats = host.cpu_stats(index);
            Cpu {
                index,
                core: host.core(index),
                interrupts: stats.interrupts,
                softirq_ns: stats.softirq_ns,
                wakeups: stats.wakeups,
                timer_ops: stats.timer_ops,
                vain_ns: stats.vain_ns,
            }
        });
        let contexts = host.epoll_contexts().into_iter();
        Shown {
            pid: std::process::id(),
            service: self.service.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            now_ns: host.now_ns(),
            napis: host.napis().iter().map(|info| self.napi(host, info)).collect(),
            cpus: cpus.collect(),
            contexts: contexts.map(|(sockets, params)| EpollContext { sockets, params }).collect(),
            groups: group::groups(host),
            controller: self.decided.as_ref().map(|(decided, _)| decided.clone()),
        }
    }

    fn list_sockets(&self) -> Answer {
        let Some(sockets) = (self.sockets)() else {
            return Answer::Refused("it has no network of lull's to list sockets of".to_owned());
        };
        Answer::Sockets(Sockets { pid: std::process::id(), service: self.service.clone(), ..sockets })
    }

    fn napi(&self, host: &Host, info: &NapiInfo) -> Napi {
        let former = self.former.get(&(info.index, info.id));
        Napi {
            device: info.device.clone(),
            ifindex: info.ifindex,
            queue: info.queue,
            id: info.id,
            cpu: info.cpu,
            settings: info.settings,
            former: former.map(|former| former.settings),
            state: format!("{:?}", info.state),
            thread: info.thread,
            scheduling: info.thread.and_then(|thread| sched::scheduling(thread).ok()),
            former_scheduling: former.and_then(|former| former.thread.clone()),
            qdisc: info.qdisc.map(str::to_owned),
            interrupts: host.napi_irqs(info.index),
            timer_lateness: host.napi_lateness(info.index).counts().to_vec(),
            stats: info.stats,
            answers: host.answer_times(info.index),
        }
    }

    fn set(&mut self, host: &Host, set: &Set) -> Answer {
        if set.change == Change::default() {
            return Answer::Refused("no setting was named; name one, such as gro-flush-timeout=20us".to_owned());
        }
        let napis = host.napis();
        let live = || napis.iter().filter(|info| info.id != 0);
        if let Some(id) = set.napi_ids.iter().find(|id| live().all(|info| info.id != **id)) {
            let ids = live().map(|info| info.id.to_string()).collect::<Vec<_>>().join(", ");
            return Answer::Refused(format!("it has no NAPI {id}; it has {ids}"));
        }
        let chosen = live().filter(|info| set.napi_ids.is_empty() || set.napi_ids.contains(&info.id));
        let online = machine::online_cpus(&Roots::default());
        let plan: Vec<Planned> = match chosen.map(|info| Planned::change(info, &set.change, &online)).collect() {
            Ok(plan) => plan,
            Err(why) => return Answer::Refused(why),
        };
        if plan.is_empty() {
            return Answer::Refused("it has no NAPI that is enabled; set it when its device is up".to_owned());
        }
        let before = match apply(host, &plan) {
            Ok(before) => before,
            Err(why) => return Answer::Refused(why),
        };
        for (planned, before) in plan.iter().zip(&before) {
            if let Some(overwritten) = planned.overwrote(before) {
                let key = (planned.info.index, planned.info.id);
                let former = self.former.entry(key).or_insert_with(|| overwritten.clone());
                former.thread = former.thread.take().or(overwritten.thread);
            }
        }
        self.changed(host, &plan)
    }

    fn undo(&mut self, host: &Host) -> Answer {
        let napis = host.napis();
        let former = |info: &NapiInfo| self.former.get(&(info.index, info.id));
        let plan: Vec<Planned> = napis.iter().filter_map(|info| Some(Planned::back(info, former(info)?))).collect();
        if let Err(why) = apply(host, &plan) {
            return Answer::Refused(why);
        }
        // A NAPI that is disabled now is given its settings back when it is enabled again.
        for planned in &plan {
            self.former.remove(&(planned.info.index, planned.info.id));
        }
        self.changed(host, &plan)
    }

    fn changed(&self, host: &Host, plan: &[Planned]) -> Answer {
        let is_changed = |info: &&NapiInfo| plan.iter().any(|planned| planned.info.index == info.index);
        Answer::Changed(host.napis().iter().filter(is_changed).map(|info| self.napi(host, info)).collect())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use lull_host::HostConfig;
    use lull_net::{Network, NetworkConfig};
    use lull_nic::mem::{self, MemConfig};

    use super::*;

    /// A network, and the port at its other end, without which the device would be gone.
    fn network(host: &Host) -> (Network, mem::MemPort) {
        let (ours, peer) = mem::pair(MemConfig { queues: 2, ..MemConfig::default() });
        let addresses = vec![("10.0.0.2".parse().unwrap(), 24)];
        let config = NetworkConfig { addresses, cpus: vec![0], ..NetworkConfig::default() };
        (Network::new(host, Arc::new(ours), config).unwrap(), peer)
    }

    #[test]
    fn a_controller_that_is_gone_leaves_nothing_in_force() {
        let host = Host::new(HostConfig::default()).unwrap();
        let (network, _peer) = network(&host);
        let mut answers = Answers::new(&host, "test", Box::new(|| None));
        let former = host.napis()[0].settings;
        let change = Change { gro_flush_timeout_ns: Some(77_000), ..Change::default() };
        for request in [
            Request::TimeAnswers(true),
            Request::Set(Set { napi_ids: Vec::new(), change }),
            Request::Decided(Box::default()),
        ] {
            answers.answer(&request);
        }
        let (decided, at) = answers.decided.clone().unwrap();
        answers.look_after_controller(&host, at + CONTROLLER_SILENT_MAX);
        assert!(answers.decided.is_some());
        assert_eq!(host.napis()[0].settings.gro_flush_timeout_ns, 77_000);
        answers.look_after_controller(&host, at + CONTROLLER_SILENT_MAX + Duration::from_nanos(1));
        assert!(answers.decided.is_none());
        assert!(host.napis().iter().all(|info| info.settings == former), "{:?}", host.napis());
        assert_eq!(host.answer_times(network.napis()[0]), None, "requests are timed for nobody");
        // When it comes back it is known again.
        answers.answer(&Request::Decided(decided));
        assert!(answers.decided.is_some());
    }

    #[test]
    fn what_instances_had_goes_with_them() {
        let host = Host::new(HostConfig::default()).unwrap();
        let (network, _peer) = network(&host);
        let mut answers = Answers::new(&host, "test", Box::new(|| None));
        let change = Change { defer_hard_irqs: Some(7), ..Change::default() };
        let set = Request::Set(Set { napi_ids: Vec::new(), change });
        assert!(matches!(answers.answer(&set), Answer::Changed(napis) if napis.len() == 2));
        assert_eq!(answers.former.len(), 2);
        drop(network);
        assert!(host.napis().is_empty());
        answers.answer(&Request::Show);
        assert_eq!(answers.former.len(), 0);
    }
}
