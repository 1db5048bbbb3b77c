//! Figures of a device of the kernel: its tracepoint is sampled all the time and the samples are added up, and its
//! settings are read when somebody reads the figures.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use lull_linux::show::{NapiShow, show};
use lull_linux::stat::{NapiSample, Sample, Watch};
use lull_linux::{Options, Roots, Session};

use crate::{Error, Figures, Napi, Poller, Source, Subject};

/// How often the recorded events are added up.
const SAMPLE_EVERY: Duration = Duration::from_millis(250);

/// What was counted of one NAPI.
#[derive(Clone, Debug, Default, PartialEq)]
struct Counts {
    polls: BTreeMap<Poller, u64>,
    packets: u64,
    empty_polls: u64,
    deferrals: u64,
    suspensions: Option<u64>,
}

/// What was counted of a device.
#[derive(Debug, Default)]
struct Counted {
    napis: BTreeMap<u32, Counts>,
    /// The length of all samples so far. What has happened since the last one ended is in the next.
    until_ns: u64,
    missing: Vec<String>,
    /// Whether the tracepoint is read.
    traced: bool,
    /// Whether NAPIs were polled whose ids are not certain. Any NAPI without counts may be one of them, also while none
    /// of them is polled.
    unmatched: bool,
    /// Why nothing is counted any more.
    ended: Option<String>,
}

impl Counted {
    fn add(&mut self, sample: &Sample) {
        // A sample begins where the one before ended.
        self.until_ns += (sample.seconds * 1e9) as u64;
        self.missing.clone_from(&sample.missing);
        self.traced = sample.traced;
        self.unmatched = sample.unmatched;
        for napi in &sample.napis {
            // A NAPI whose id is not certain is listed as missing by the sample.
            if let Some(id) = napi.napi_id {
                self.napis.entry(id).or_default().add(napi, sample.seconds);
            }
        }
    }
}

/// The counts, which one thread writes and others read.
#[derive(Debug, Default)]
struct Counting {
    counted: Mutex<Counted>,
    changed: Condvar,
}

impl Counting {
    fn change(&self, change: impl FnOnce(&mut Counted)) {
        change(&mut self.counted.lock().unwrap_or_else(PoisonError::into_inner));
        self.changed.notify_all();
    }

    /// Returns the counts once they include more than the last reading, because two readings without a sample in
    /// between have no rate. If the thread does not count any more, this does not wait.
    fn since(&self, read_ns: Option<u64>) -> MutexGuard<'_, Counted> {
        let counted = self.counted.lock().unwrap_or_else(PoisonError::into_inner);
        let is_read = |counted: &mut Counted| counted.ended.is_none() && read_ns == Some(counted.until_ns);
        self.changed.wait_timeout_while(counted, 4 * SAMPLE_EVERY, is_read).unwrap_or_else(PoisonError::into_inner).0
    }
}

impl Counts {
    fn add(&mut self, sample: &NapiSample, seconds: f64) {
        let count = |per_s: f64| (per_s * seconds).round() as u64;
        for poller in &sample.by {
            *self.polls.entry(kind(poller.kind)).or_default() += count(poller.rates.polls_per_s);
        }
        self.packets += count(sample.rates.packets_per_s);
        self.empty_polls += count(sample.rates.empty_polls_per_s);
        self.deferrals += count(sample.deferrals_per_s);
        if let Some(per_s) = sample.suspensions_per_s {
            *self.suspensions.get_or_insert(0) += count(per_s);
        }
    }
}

/// Returns the kind of poller; a softirq is one kind, whether an interrupt or a timer raised it.
fn kind(name: &str) -> Poller {
    let kinds = [Poller::Ksoftirqd, Poller::BusyPoll, Poller::NapiThread, Poller::Netpoll];
    kinds.into_iter().find(|kind| kind.name() == name).unwrap_or(Poller::Softirq)
}

/// Watches a device, until it is dropped.
#[derive(Debug)]
pub struct Watched {
    device: String,
    options: Options,
    counted: Arc<Counting>,
    /// The time until which the last reading counted.
    read_ns: Option<u64>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Watched {
    /// Begins to count, in this thread's network namespace. `options` say where the state of applied modes is stored.
    ///
    /// # Errors
    ///
    /// This fails if there is no such device, or the kernel does not list NAPIs.
    pub fn open(device: &str, options: &Options) -> Result<Watched, Error> {
        let mut watch = Watch::open(device, &Roots::default())?;
        let counted = Arc::new(Counting::default());
        let stop = Arc::new(AtomicBool::new(false));
        let (into, ends) = (counted.clone(), stop.clone());
        let count = move || {
            while !ends.load(Ordering::Relaxed) {
                let sample = watch.sample(SAMPLE_EVERY, &ends);
                let is_over = sample.is_err();
                into.change(|counted| match sample {
                    Ok(sample) => counted.add(&sample),
                    Err(error) => counted.ended = Some(error.to_string()),
                });
                if is_over {
                    return;
                }
            }
        };
        let failed = |error: std::io::Error| Error::Watching { device: device.to_owned(), why: error.to_string() };
        let thread = std::thread::Builder::new().name("lull-figures".to_owned()).spawn(count).map_err(failed)?;
        let (device, options) = (device.to_owned(), options.clone());
        Ok(Watched { device, options, counted, read_ns: None, stop, thread: Some(thread) })
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // A thread that panicked has said so on standard error.
            let _ = thread.join();
        }
    }
}

impl Source for Watched {
    fn read(&mut self) -> Result<Vec<Figures>, Error> {
        let device = show(&mut Session::open(&self.device, &self.options)?)?;
        let counted = self.counted.since(self.read_ns);
        if let Some(why) = &counted.ended {
            return Err(Error::Watching { device: self.device.clone(), why: why.clone() });
        }
        self.read_ns = Some(counted.until_ns);
        Ok(vec![Figures {
            subject: Subject { name: self.device.clone(), pid: None },
            now_ns: counted.until_ns,
            cpu_ns: None,
            napis: device.napis.iter().map(|napi| figures(&self.device, napi, &counted)).collect(),
            cpus: Vec::new(),
            controller: device.controller,
            missing: counted.missing.clone(),
        }])
    }
}

fn figures(device: &str, shown: &NapiShow, counted: &Counted) -> Napi {
    let counts = counted.napis.get(&shown.state.id);
    let is_counted = counted.traced && (counts.is_some() || !counted.unmatched);
    let counts = counts.cloned().unwrap_or_default();
    Napi {
        device: device.to_owned(),
        queue: shown.state.key.to_string(),
        id: shown.state.id,
        mode: shown.recognised.mode.clone(),
        settings: shown.state.settings.into(),
        counted: is_counted,
        polls: counts.polls.into_iter().collect(),
        packets: counts.packets,
        empty_polls: counts.empty_polls,
        deferrals: counts.deferrals,
        suspensions: counts.suspensions,
        interrupts: None,
        answers: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lull_core::NapiSettings;
    use lull_linux::device::{NapiState, QueueKey};
    use lull_linux::netdev::Unreported;
    use lull_linux::recognise::Recognised;
    use lull_linux::stat::{self, Rates};

    fn rates(polls_per_s: f64) -> Rates {
        Rates { polls_per_s, packets_per_s: 4.0, mean_work: None, empty_polls_per_s: 2.0, budget_max: 64 }
    }

    #[test]
    fn a_reading_waits_for_a_sample_that_was_not_read() {
        let counting = Arc::new(Counting::default());
        let after = |read_ns| counting.since(read_ns).until_ns;
        assert_eq!(after(None), 0, "the first one does not wait");
        let adds = counting.clone();
        let adding = std::thread::spawn(move || adds.change(|counted| counted.until_ns = 250));
        // It waits however long that thread takes.
        while after(Some(0)) == 0 {}
        adding.join().unwrap();
        assert_eq!(after(Some(0)), 250, "what is there is not waited for");
        counting.change(|counted| counted.ended = Some("the device is gone".to_owned()));
        assert!(counting.since(Some(250)).ended.is_some());
    }

    fn napi_sample(napi_id: Option<u32>, instance: usize) -> NapiSample {
        NapiSample {
            napi_id,
            instance,
            thread: None,
            rates: rates(30.0),
            deferrals_per_s: 6.0,
            suspensions_per_s: None,
            by: Vec::new(),
        }
    }

    fn sample(napis: Vec<NapiSample>, unmatched: bool) -> Sample {
        Sample {
            device: "v0".to_owned(),
            seconds: 0.5,
            traced: true,
            lost: 0,
            device_packets_per_s: None,
            napis,
            unmatched,
            net_rx_softirqs_per_s: Vec::new(),
            interrupts: Vec::new(),
            missing: Vec::new(),
        }
    }

    /// The number of a NAPI's packets as a reader sees it.
    fn packets(id: u32, counted: &Counted) -> Option<u64> {
        let state = NapiState {
            key: QueueKey::Rx(id),
            rx: vec![0],
            tx: Vec::new(),
            id,
            irq: None,
            thread: None,
            settings: NapiSettings::default().into(),
            unreported: Unreported::default(),
        };
        let recognised = Recognised { mode: "base".to_owned(), note: None };
        let napi = figures("v0", &NapiShow { state, recognised, applied: None, programs: Vec::new() }, counted);
        napi.known(napi.packets)
    }

    #[test]
    fn a_napi_that_may_be_one_without_an_id_is_not_said_to_have_no_packets() {
        let mut counted = Counted::default();
        counted.add(&sample(vec![napi_sample(None, 0), napi_sample(None, 1)], true));
        assert_eq!([1, 2].map(|id| packets(id, &counted)), [None; 2]);
        counted.add(&sample(Vec::new(), true));
        assert_eq!([1, 2].map(|id| packets(id, &counted)), [None; 2], "they rest, and have had some");
        counted.add(&sample(vec![napi_sample(Some(1), 0)], true));
        assert_eq!([1, 2].map(|id| packets(id, &counted)), [Some(2), None]);
        counted.add(&sample(vec![napi_sample(Some(2), 1)], false));
        assert_eq!([1, 2, 3].map(|id| packets(id, &counted)), [Some(2), Some(2), Some(0)], "the third one rests");
    }

    #[test]
    fn samples_add_up_and_a_timers_softirq_is_a_softirq() {
        let by = ["timer", "softirq", "busy-poll"].map(|kind| stat::Poller {
            kind,
            cpu: None,
            pid: None,
            tid: None,
            name: None,
            rates: rates(10.0),
        });
        let napi = |napi_id| NapiSample {
            napi_id,
            instance: 0,
            thread: None,
            rates: rates(30.0),
            deferrals_per_s: 6.0,
            suspensions_per_s: None,
            by: by.to_vec(),
        };
        let mut counted = Counted::default();
        let sample = Sample {
            device: "v0".to_owned(),
            seconds: 0.5,
            traced: true,
            lost: 0,
            device_packets_per_s: None,
            napis: vec![napi(Some(8193)), napi(None)],
            unmatched: true,
            net_rx_softirqs_per_s: Vec::new(),
            interrupts: Vec::new(),
            missing: vec!["one NAPI has no id".to_owned()],
        };
        counted.add(&sample);
        counted.add(&sample);
        assert_eq!(counted.until_ns, 1_000_000_000, "counts are of the samples' time, whenever they are read");
        assert_eq!(counted.napis.len(), 1, "what has no id is nobody's");
        let counts = &counted.napis[&8193];
        assert_eq!(counts.polls, BTreeMap::from([(Poller::Softirq, 20), (Poller::BusyPoll, 10)]));
        assert_eq!((counts.packets, counts.empty_polls, counts.deferrals, counts.suspensions), (4, 2, 6, None));
        assert_eq!(counted.missing, ["one NAPI has no id"]);
    }
}
