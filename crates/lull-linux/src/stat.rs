//! Who really polls a device, second by second.
//!
//! Where the tracepoint can be read (by root), polls are counted one by one ([`crate::polls`]). Otherwise what `/proc`
//! tells is shown, and the sample says what is missing. NET_RX softirqs are those of the whole CPU, whichever device
//! they were for.
//!
//! The tracepoint knows NAPIs by address and netlink knows them by id. They are matched only where the match is
//! certain: by a packet (recorded until every NAPI that is polled is known), by the NAPI's own thread, or where one of
//! each is left. Others stay without an id, and the sample says so.

mod counters;
mod render;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::device::Device;
use crate::error::Result;
use crate::netdev::{Napi, Netdev};
use crate::polls::{Account, Accounts, Options, Polls, Tally, Who};
use crate::roots::Roots;
use counters::Counters;

pub use counters::{CpuRate, IrqSample};

/// How often the ring buffers are emptied.
const DRAIN_INTERVAL: Duration = Duration::from_millis(50);

/// One interval of a device.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Sample {
    /// The device.
    pub device: String,
    /// The interval, in seconds.
    pub seconds: f64,
    /// Whether polls were counted by the tracepoint; otherwise `napis` is empty.
    pub traced: bool,
    /// Poll events that the ring buffers had no room for.
    pub lost: u64,
    /// The packets per second that the device counts as received.
    pub device_packets_per_s: Option<f64>,
    /// The NAPIs that were polled, those with an id first.
    pub napis: Vec<NapiSample>,
    /// Whether the id of a NAPI that was polled, in this interval or before, is not certain. It may be any that no
    /// interval has shown.
    #[serde(skip)]
    pub unmatched: bool,
    /// The NET_RX softirqs per second, by CPU.
    pub net_rx_softirqs_per_s: Vec<CpuRate>,
    /// The device's interrupts. A device such as a veth has none.
    pub interrupts: Vec<IrqSample>,
    /// What is not shown, and why.
    pub missing: Vec<String>,
}

/// One NAPI in one interval.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct NapiSample {
    /// Its id, where it could be matched with certainty.
    pub napi_id: Option<u32>,
    /// Which of the polled NAPIs of that name it is, counted from 0 in the order in which they were first seen. It
    /// stays the same as long as the sampling lasts.
    pub instance: usize,
    /// The number of its thread, where it has one.
    pub thread: Option<i32>,
    /// All its polls.
    #[serde(flatten)]
    pub rates: Rates,
    /// The timers per second that were set for deferral or GRO.
    pub deferrals_per_s: f64,
    /// The timers per second that were set for suspension. There is nothing where the suspension's timeout is not set,
    /// or is not clearly longer than the deferral's, so that the two cannot be told apart.
    pub suspensions_per_s: Option<f64>,
    /// The polls of each who polled, the busiest first.
    pub by: Vec<Poller>,
}

/// Polls and packets per second.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Rates {
    /// Polls per second.
    pub polls_per_s: f64,
    /// Packets per second.
    pub packets_per_s: f64,
    /// Packets per poll.
    pub mean_work: Option<f64>,
    /// Polls per second that found nothing.
    pub empty_polls_per_s: f64,
    /// The highest budget of a poll.
    pub budget_max: u32,
}

/// Somebody who polled.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Poller {
    /// `timer`, `softirq`, `ksoftirqd`, `napi-thread`, `busy-poll` or `netpoll`.
    pub kind: &'static str,
    /// The CPU, for softirqs.
    pub cpu: Option<u32>,
    /// The process, or that in which the softirq ran.
    pub pid: Option<i32>,
    /// The thread.
    pub tid: Option<i32>,
    /// The thread's name.
    pub name: Option<String>,
    /// What it polled.
    #[serde(flatten)]
    pub rates: Rates,
}

/// Samples a device.
pub struct Watch {
    device: Device,
    netdev: Netdev,
    roots: Roots,
    /// The recording, or the reason why there is none.
    polls: std::result::Result<Polls, String>,
    accounts: Accounts,
    ids: Ids,
    /// See [`NapiSample::instance`]. The keys are addresses.
    instances: HashMap<u64, usize>,
    /// Whether packets are recorded as well, to tell ids.
    packets_traced: bool,
    counters: Counters,
    lost: u64,
    since: Instant,
}

impl Watch {
    /// Begins to watch a device of this thread's network namespace. Without the right to trace, it watches what `/proc`
    /// tells, and [`Sample::missing`] says why that is all.
    ///
    /// # Errors
    /// There is no such device, or the kernel does not list NAPIs.
    pub fn open(device: &str, roots: &Roots) -> Result<Watch> {
        let mut netdev = Netdev::new();
        let device = Device::open(device, &mut netdev, roots)?;
        let napis = netdev.napis(device.ifindex)?;
        let (polls, packets_traced) = trace(&device.name);
        let counters = Counters::read(&device, &napis, roots);
        Ok(Watch {
            accounts: Accounts::new(split_ns(&napis).unwrap_or(u64::MAX)),
            ids: Ids { known: napis.iter().map(|napi| napi.id).collect(), ..Ids::default() },
            instances: HashMap::new(),
            device,
            netdev,
            roots: roots.clone(),
            polls,
            packets_traced,
            counters,
            lost: 0,
            since: Instant::now(),
        })
    }

    /// Why polls are not counted one by one, if they are not.
    pub fn untraced(&self) -> Option<&str> {
        self.polls.as_ref().err().map(String::as_str)
    }

    /// Waits for `interval`, or until `stop` is set, and tells what happened since the last sample.
    ///
    /// # Errors
    /// The device is gone, or a ring buffer cannot be read.
    pub fn sample(&mut self, interval: Duration, stop: &AtomicBool) -> Result<Sample> {
        let until = self.since + interval;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            std::thread::sleep(left.min(DRAIN_INTERVAL));
            self.drain()?;
            if left <= DRAIN_INTERVAL || stop.load(Ordering::Relaxed) {
                break;
            }
        }
        let seconds = std::mem::replace(&mut self.since, Instant::now()).elapsed().as_secs_f64();
        let name = self.device.snapshot(&mut self.netdev, &self.roots)?.device;
        let napis = self.netdev.napis(self.device.ifindex)?;
        // A trace keeps to a name. It has seen nothing since, or another device that has the name now.
        let former_name = (name != self.device.name).then(|| self.is_named(name));
        let after = Counters::read(&self.device, &napis, &self.roots);
        let before = std::mem::replace(&mut self.counters, after);
        let lost_before = if former_name.is_some() { 0 } else { self.lost };
        self.lost = self.polls.as_ref().map_or(Ok(0), Polls::lost).map_err(crate::error::Error::from)?;
        let split = split_ns(&napis);
        let samples =
            if former_name.is_some() { Vec::new() } else { self.napi_samples(seconds, &napis, split.is_some()) };
        if split.unwrap_or(u64::MAX) != self.accounts.split_ns() {
            self.accounts.set_split_ns(split.unwrap_or(u64::MAX));
        }
        let lost = self.lost - lost_before;
        let mut missing = self.missing(&samples, &napis, lost);
        if let Some(former) = former_name.as_ref().filter(|_| self.polls.is_ok()) {
            missing.push(format!("polls are not shown: {former} was renamed to {} meanwhile", self.device.name));
        }
        Ok(Sample {
            device: self.device.name.clone(),
            seconds,
            traced: self.polls.is_ok() && former_name.is_none(),
            lost,
            device_packets_per_s: self.counters.packets_per_s(&before, seconds),
            napis: samples,
            unmatched: !self.ids.unmatched.is_empty(),
            net_rx_softirqs_per_s: self.counters.net_rx_per_s(&before, seconds),
            interrupts: self.counters.irqs_per_s(&before, seconds),
            missing,
        })
    }

    /// The device has this name now, so the trace begins anew under it. Returns the name that it had.
    fn is_named(&mut self, name: String) -> String {
        let former = std::mem::replace(&mut self.device.name, name);
        (self.polls, self.packets_traced) = trace(&self.device.name);
        (self.accounts, self.ids) = (Accounts::new(self.accounts.split_ns()), Ids::default());
        former
    }

    fn drain(&mut self) -> Result<()> {
        if let Ok(polls) = &mut self.polls {
            polls.drain(|record| self.accounts.add(record))?;
        }
        Ok(())
    }

    fn napi_samples(&mut self, seconds: f64, napis: &[Napi], split: bool) -> Vec<NapiSample> {
        if self.ids.are_others(napis) {
            self.accounts.forget_ids();
        }
        let all_known = self.ids.learn(&self.accounts, napis);
        if let Ok(polls) = &self.polls
            && all_known == self.packets_traced
            && polls.trace_packets(!all_known).is_ok()
        {
            // A refusal leaves it as it was, and the figures are the same.
            self.packets_traced = !all_known;
        }
        number(&mut self.instances, self.accounts.napis().keys());
        let mut taken = self.accounts.take();
        taken.retain(|address, _| !self.ids.foreign.contains(address));
        let sample = |(address, account): (u64, Account)| NapiSample {
            napi_id: self.ids.of(address),
            instance: self.instances[&address],
            thread: self.ids.of(address).and_then(|id| napis.iter().find(|napi| napi.id == id)?.thread_pid),
            rates: rates(&account.total(), seconds),
            deferrals_per_s: account.timers.0 as f64 / seconds,
            suspensions_per_s: split.then_some(account.timers.1 as f64 / seconds),
            by: self.pollers(&account, seconds),
        };
        let mut samples: Vec<NapiSample> = taken.into_iter().map(sample).collect();
        samples.sort_by_key(|napi| (napi.napi_id.is_none(), napi.napi_id, napi.instance));
        samples
    }

    fn pollers(&self, account: &Account, seconds: f64) -> Vec<Poller> {
        let poller = |(who, tally): (&Who, &Tally)| {
            let thread = who.tid().and_then(|tid| self.accounts.thread(tid));
            let (kind, cpu) = match *who {
                Who::Timer { cpu } => ("timer", Some(cpu)),
                Who::Softirq { cpu, .. } => ("softirq", Some(cpu)),
                Who::Ksoftirqd { cpu } => ("ksoftirqd", Some(cpu)),
                Who::Thread { .. } => ("napi-thread", None),
                Who::BusyPoll { .. } => ("busy-poll", None),
                Who::Netpoll => ("netpoll", None),
            };
            Poller {
                kind,
                cpu,
                pid: thread.map(|thread| thread.pid),
                tid: who.tid(),
                name: thread.map(|thread| thread.name.clone()),
                rates: rates(tally, seconds),
            }
        };
        let mut pollers: Vec<Poller> = account.by.iter().map(poller).collect();
        pollers.sort_by(|a, b| b.rates.polls_per_s.total_cmp(&a.rates.polls_per_s));
        pollers
    }

    fn missing(&self, samples: &[NapiSample], napis: &[Napi], lost: u64) -> Vec<String> {
        let mut missing = Vec::new();
        if let Err(reason) = &self.polls {
            missing.push(format!("polls, packets a poll and who polled are not shown: {reason}"));
        }
        let unmatched = samples.iter().filter(|sample| sample.napi_id.is_none()).count();
        if unmatched > 0 {
            let ids: Vec<String> = napis.iter().map(|napi| napi.id.to_string()).collect();
            let device = &self.device.name;
            missing.push(format!(
                "which id {unmatched} of the polled NAPIs have is not visible: the kernel tells their addresses apart, \
                 not their ids ({device} has {})",
                if ids.is_empty() { "none".to_owned() } else { ids.join(", ") }
            ));
        }
        if !self.ids.foreign.is_empty() {
            missing.push(format!(
                "polls of another device that is named {}, in another network namespace, were left out",
                self.device.name
            ));
        }
        if lost > 0 {
            missing.push(format!("{lost} polls were lost: the figures are too low; lower the interval or the load"));
        }
        missing
    }
}

/// Gives the next numbers to those that have none yet.
fn number<'a>(instances: &mut HashMap<u64, usize>, addresses: impl Iterator<Item = &'a u64>) {
    for address in addresses {
        let next = instances.len();
        instances.entry(*address).or_insert(next);
    }
}

/// The polls of the devices of this name, or why they are not recorded, and whether packets are recorded as well.
fn trace(device: &str) -> (std::result::Result<Polls, String>, bool) {
    let options = Options { timers: true, ..Options::default() };
    let polls = Polls::open(device, options).map_err(|error| error.to_string());
    let packets_traced = polls.as_ref().is_ok_and(|polls| polls.trace_packets(true).is_ok());
    (polls, packets_traced)
}

fn rates(tally: &Tally, seconds: f64) -> Rates {
    Rates {
        polls_per_s: tally.polls as f64 / seconds,
        packets_per_s: tally.packets as f64 / seconds,
        mean_work: tally.mean_work(),
        empty_polls_per_s: tally.empty as f64 / seconds,
        budget_max: tally.budget_max,
    }
}

/// How far ahead a timer is set if it is a suspension's: half way between the longest deferral and the shortest
/// suspension, if those are clearly apart.
fn split_ns(napis: &[Napi]) -> Option<u64> {
    let suspend = napis.iter().map(|napi| napi.settings.irq_suspend_timeout_ns).filter(|ns| *ns != 0).min()?;
    let flush = napis.iter().map(|napi| napi.settings.gro_flush_timeout_ns).max()?;
    (suspend / 2 > flush).then_some(flush + (suspend - flush) / 2)
}

/// Which address has which id, as far as that is certain.
#[derive(Debug, Default)]
struct Ids {
    of: BTreeMap<u64, u32>,
    /// The ids that there were, as a NAPI that is gone may leave its address to another.
    known: Vec<u32>,
    /// The addresses of a device of the same name in another network namespace, as the trace knows names only.
    foreign: Vec<u64>,
    /// The addresses that were polled since the device has these ids, and whose id is not certain. Those that are idle
    /// now are among them.
    unmatched: BTreeSet<u64>,
}

impl Ids {
    fn of(&self, address: u64) -> Option<u32> {
        self.of.get(&address).copied()
    }

    /// Whether the device has other NAPIs than it had.
    fn are_others(&self, napis: &[Napi]) -> bool {
        !self.known.iter().eq(napis.iter().map(|napi| &napi.id))
    }

    /// Learns from what was seen. Returns whether every NAPI that was polled is known now.
    fn learn(&mut self, seen: &Accounts, napis: &[Napi]) -> bool {
        self.learn_from(seen.napis(), seen.ids(), napis)
    }

    fn learn_from(&mut self, polled: &BTreeMap<u64, Account>, told: &BTreeMap<u64, u32>, napis: &[Napi]) -> bool {
        if self.are_others(napis) {
            self.of.clear();
            self.unmatched.clear();
            self.known = napis.iter().map(|napi| napi.id).collect();
        }
        let active = || polled.iter().filter(|(_, account)| !account.by.is_empty());
        let (own, foreign): (Vec<_>, Vec<_>) = told.iter().partition(|(_, id)| self.known.contains(id));
        self.of.extend(own);
        self.foreign = foreign.into_iter().map(|(address, _)| *address).collect();
        for (address, account) in active() {
            let of_thread = |who: &Who| match *who {
                Who::Thread { tid } => napis.iter().find(|napi| napi.thread_pid == Some(tid)).map(|napi| napi.id),
                _ => None,
            };
            if let Some(id) = account.by.keys().find_map(of_thread) {
                self.of.insert(*address, id);
            }
        }
        let taken: Vec<u32> = self.of.values().copied().collect();
        let free: Vec<u32> = self.known.iter().copied().filter(|id| !taken.contains(id)).collect();
        let mut unmatched: Vec<u64> = active().map(|(address, _)| *address).collect();
        unmatched.retain(|at| !self.of.contains_key(at) && !self.foreign.contains(at));
        if let ([id], [address]) = (&free[..], &unmatched[..]) {
            self.of.insert(*address, *id);
            unmatched.clear();
        }
        self.unmatched.extend(&unmatched);
        self.unmatched.retain(|at| !self.of.contains_key(at) && !self.foreign.contains(at));
        unmatched.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lull_core::NapiSettings;

    fn napi(id: u32, thread_pid: Option<i32>) -> Napi {
        Napi { id, irq: None, thread_pid, settings: NapiSettings::default(), unreported: Default::default() }
    }

    fn polled(by: &[(u64, Who)]) -> BTreeMap<u64, Account> {
        let mut polled = BTreeMap::<u64, Account>::new();
        for (address, who) in by {
            polled.entry(*address).or_default().by.insert(*who, Tally::default());
        }
        polled
    }

    #[test]
    fn ids_are_matched_by_thread_and_by_what_is_left_and_never_guessed() {
        let softirq = Who::Softirq { cpu: 0, tid: 0 };
        let none = BTreeMap::new();
        let mut ids = Ids::default();
        ids.learn_from(&polled(&[(1, softirq), (2, softirq)]), &none, &[napi(8, None), napi(9, None)]);
        assert_eq!((ids.of(1), ids.of(2)), (None, None));
        ids.learn_from(
            &polled(&[(1, softirq), (2, Who::Thread { tid: 77 })]),
            &none,
            &[napi(8, Some(77)), napi(9, None)],
        );
        assert_eq!((ids.of(1), ids.of(2)), (Some(9), Some(8)));
        // The link went down and up, which brings new ids.
        ids.learn_from(&polled(&[(1, softirq), (2, softirq)]), &none, &[napi(10, None), napi(11, None)]);
        assert_eq!((ids.of(1), ids.of(2)), (None, None));
        let mut single = Ids::default();
        single.learn_from(&polled(&[(5, softirq)]), &none, &[napi(8, None)]);
        assert_eq!(single.of(5), Some(8));
        // There is a device of the same name elsewhere, so there is no way to tell.
        let mut two = Ids::default();
        two.learn_from(&polled(&[(5, softirq), (6, softirq)]), &none, &[napi(8, None)]);
        assert_eq!((two.of(5), two.of(6)), (None, None));
        // Its packets tell, as this device does not have their ids.
        let told = BTreeMap::from([(5, 70)]);
        assert!(two.learn_from(&polled(&[(5, softirq), (6, softirq)]), &told, &[napi(8, None)]));
        assert_eq!((two.of(5), two.of(6), &two.foreign[..]), (None, Some(8), &[5][..]));
        let told = BTreeMap::from([(1, 10), (2, 11)]);
        assert!(ids.learn_from(&polled(&[(1, softirq), (2, softirq)]), &told, &[napi(10, None), napi(11, None)]));
        assert_eq!((ids.of(1), ids.of(2)), (Some(10), Some(11)));
    }

    #[test]
    fn whose_id_is_not_certain_stays_so_while_it_rests_and_not_once_it_is_known_foreign_or_gone() {
        let softirq = Who::Softirq { cpu: 0, tid: 0 };
        let none = BTreeMap::new();
        let two = [napi(8, None), napi(9, None)];
        let mut ids = Ids::default();
        let unmatched = |ids: &Ids| ids.unmatched.iter().copied().collect::<Vec<u64>>();
        ids.learn_from(&polled(&[(5, softirq), (6, softirq), (7, softirq)]), &none, &two);
        assert_eq!(unmatched(&ids), [5, 6, 7]);
        ids.learn_from(&polled(&[]), &none, &two);
        assert_eq!(unmatched(&ids), [5, 6, 7], "they rest");
        // Packets tell one's id, and that another one is another device's.
        let told = BTreeMap::from([(5, 70), (6, 8)]);
        ids.learn_from(&polled(&[(6, softirq)]), &told, &two);
        assert_eq!(unmatched(&ids), [7]);
        // The link went down and up, so those are gone.
        ids.learn_from(&polled(&[]), &none, &[napi(10, None), napi(11, None)]);
        assert_eq!(unmatched(&ids), [0; 0]);
    }

    #[test]
    fn an_instance_keeps_its_number_whoever_is_polled_later() {
        let mut instances = HashMap::new();
        number(&mut instances, [0x2000].iter());
        number(&mut instances, [0x1000, 0x2000].iter());
        assert_eq!([0x2000, 0x1000].map(|address| instances[&address]), [0, 1]);
    }

    #[test]
    fn suspensions_are_told_apart_only_by_a_timeout_that_is_clearly_longer() {
        let with = |flush, suspend| {
            let settings = NapiSettings {
                gro_flush_timeout_ns: flush,
                irq_suspend_timeout_ns: suspend,
                ..NapiSettings::default()
            };
            split_ns(&[Napi { settings, ..napi(8, None) }])
        };
        assert_eq!(with(20_000, 0), None);
        assert_eq!(with(0, 20_000_000), Some(10_000_000));
        assert_eq!(with(20_000, 40_000), None);
        assert_eq!(with(20_000, 20_000_000), Some(10_010_000));
    }
}
