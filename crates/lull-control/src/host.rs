//! The answers of a host.

use std::collections::BTreeMap;

use lull_core::NapiSettings;
use lull_host::{Host, NapiInfo, WeakHost};

use crate::schema::{Answer, Change, Cpu, EpollContext, Napi, Request, Set, Shown};

/// Answers requests about one host.
pub(crate) struct Answers {
    host: WeakHost,
    service: String,
    /// The settings of NAPIs before their first change, by their place in the host's table and their id: a NAPI that was
    /// disabled and whose place another one took is not given the former one's settings.
    former: BTreeMap<(u32, u32), NapiSettings>,
}

impl Answers {
    pub(crate) fn new(host: &Host, service: &str) -> Answers {
        Answers { host: host.downgrade(), service: service.to_owned(), former: BTreeMap::new() }
    }

    pub(crate) fn answer(&mut self, request: &Request) -> Answer {
        let Some(host) = self.host.upgrade() else {
            return Answer::Refused("its network has been closed, and the process is ending".to_owned());
        };
        match request {
            Request::Show => Answer::Shown(self.show(&host)),
            Request::Set(set) => self.set(&host, set),
            Request::Undo => self.undo(&host),
        }
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
        }
    }

    fn napi(&self, host: &Host, info: &NapiInfo) -> Napi {
        Napi {
            device: info.device.clone(),
            ifindex: info.ifindex,
            queue: info.queue,
            id: info.id,
            cpu: info.cpu,
            settings: info.settings,
            former: self.former.get(&(info.index, info.id)).copied(),
            state: format!("{:?}", info.state),
            thread: info.thread,
            interrupts: host.napi_irqs(info.index),
            stats: info.stats,
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
        let plan: Vec<(NapiInfo, NapiSettings)> =
            chosen.map(|info| (info.clone(), set.change.of(info.settings))).collect();
        if plan.is_empty() {
            return Answer::Refused("it has no NAPI that is enabled; set it when its device is up".to_owned());
        }
        if let Err(why) = apply(host, &plan) {
            return Answer::Refused(why);
        }
        for (info, settings) in &plan {
            if info.settings != *settings {
                self.former.entry((info.index, info.id)).or_insert(info.settings);
            }
        }
        self.changed(host, &plan)
    }

    fn undo(&mut self, host: &Host) -> Answer {
        let napis = host.napis();
        let former = |info: &NapiInfo| self.former.get(&(info.index, info.id)).copied();
        let plan: Vec<(NapiInfo, NapiSettings)> =
            napis.iter().filter_map(|info| Some((info.clone(), former(info)?))).collect();
        if let Err(why) = apply(host, &plan) {
            return Answer::Refused(why);
        }
        self.former.clear();
        self.changed(host, &plan)
    }

    fn changed(&self, host: &Host, plan: &[(NapiInfo, NapiSettings)]) -> Answer {
        let is_changed = |info: &&NapiInfo| plan.iter().any(|(changed, _)| changed.index == info.index);
        Answer::Changed(host.napis().iter().filter(is_changed).map(|info| self.napi(host, info)).collect())
    }
}

/// Puts the settings in force, all or none: after a refusal those that were set already are given back.
fn apply(host: &Host, plan: &[(NapiInfo, NapiSettings)]) -> Result<(), String> {
    for (nth, (info, settings)) in plan.iter().enumerate() {
        if let Err(refused) = host.set_napi(info.index, settings) {
            for (info, _) in &plan[..nth] {
                // These were in force a moment ago, so they are within every limit.
                let _ = host.set_napi(info.index, &info.settings);
            }
            return Err(format!("NAPI {} of {}: {refused}", info.id, info.device));
        }
    }
    Ok(())
}
