//! Figures in the text format of OpenMetrics. Names and units follow Prometheus' conventions: seconds, `_total` for counters,
//! and what identifies a series in its labels.

use std::fmt;

use lull_core::Threaded;
use lull_slo::{Decided, Latencies, Standing};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::{Registry, Unit};

use crate::{Cpu, Figures, Napi};

/// One scrape.
#[derive(Debug)]
struct Scrape(Vec<Figures>);

/// A label and its value.
type Label = (&'static str, String);

fn subject(figures: &Figures) -> Vec<Label> {
    let mut labels = vec![("subject", figures.subject.name.clone())];
    labels.extend(figures.subject.pid.map(|pid| ("pid", pid.to_string())));
    labels
}

impl Scrape {
    /// Encodes a family with a value for each NAPI for which `values` returns one, under labels of its own.
    fn napis<M: EncodeMetric>(
        &self,
        encoder: &mut DescriptorEncoder<'_>,
        (name, help, unit): (&str, &str, Option<&Unit>),
        values: impl Fn(&Napi) -> Vec<(Option<Label>, M)>,
    ) -> fmt::Result {
        let all: Vec<(Vec<Label>, M)> = self
            .0
            .iter()
            .flat_map(|figures| figures.napis.iter().map(move |napi| (figures, napi)))
            .flat_map(|(figures, napi)| {
                let labels = move |own: Option<Label>| {
                    let mut labels = subject(figures);
                    labels.push(("device", napi.device.clone()));
                    labels.push(("queue", napi.queue.clone()));
                    labels.push(("napi_id", napi.id.to_string()));
                    labels.extend(own);
                    labels
                };
                values(napi).into_iter().map(move |(own, value)| (labels(own), value))
            })
            .collect();
        family(encoder, (name, help, unit), &all)
    }

    fn cpus<M: EncodeMetric>(
        &self,
        encoder: &mut DescriptorEncoder<'_>,
        described: (&str, &str, Option<&Unit>),
        value: impl Fn(&Cpu) -> M,
    ) -> fmt::Result {
        let labels = |figures: &Figures, cpu: &Cpu| {
            let mut labels = subject(figures);
            labels.push(("cpu", cpu.index.to_string()));
            labels.extend(cpu.core.map(|core| ("core", core.to_string())));
            labels
        };
        let of = |figures: &Figures| -> Vec<_> {
            figures.cpus.iter().map(|cpu| (labels(figures, cpu), value(cpu))).collect()
        };
        let all: Vec<_> = self.0.iter().flat_map(of).collect();
        family(encoder, described, &all)
    }
}

impl Scrape {
    /// Encodes the latencies of requests as a histogram.
    fn answers(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let described = ("lull_napi_answer", "From the ring to the answer.", Some(&Unit::Seconds));
        self.napis(encoder, described, |napi| napi.answers.iter().map(|answers| (None, histogram(answers))).collect())
    }

    /// Encodes what the controllers of timeouts have decided.
    fn controllers(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let all = || self.0.iter().filter_map(|figures| Some((subject(figures), figures.controller.as_ref()?)));
        let with = |mut labels: Vec<Label>, own: Label| {
            labels.push(own);
            labels
        };
        let objective = |(labels, of): (Vec<Label>, &Decided)| {
            let labels = with(with(labels, ("objective", of.objective.clone())), ("mode", of.mode.clone()));
            (labels, ConstGauge::new(1_i64))
        };
        let objectives: Vec<_> = all().map(objective).collect();
        family(
            encoder,
            ("lull_controller_objective", "1 for the objective that is kept, and the mode it began with.", None),
            &objectives,
        )?;
        let standings = |(labels, of): (Vec<Label>, &Decided)| {
            let (now, labels) = (of.standing, labels.clone());
            let one = move |it: Standing| {
                (with(labels.clone(), ("standing", it.to_string())), ConstGauge::new(i64::from(it == now)))
            };
            Standing::ALL.map(one)
        };
        let standings: Vec<_> = all().flat_map(standings).collect();
        family(
            encoder,
            ("lull_controller_standing", "1 for the present standing to the objective, 0 for the others.", None),
            &standings,
        )?;
        let windows = |(labels, of): (Vec<Label>, &Decided)| -> Vec<_> {
            let one = |(standing, windows): (&Standing, &u64)| {
                (with(labels.clone(), ("standing", standing.to_string())), ConstCounter::new(*windows))
            };
            of.windows.iter().map(one).collect()
        };
        let windows: Vec<_> = all().flat_map(windows).collect();
        family(encoder, ("lull_controller_windows", "Windows, by their standing to the objective.", None), &windows)?;
        let changes: Vec<_> = all().map(|(labels, of)| (labels, ConstCounter::new(of.changes))).collect();
        family(encoder, ("lull_controller_changes", "Times that settings were changed.", None), &changes)?;
        let timeouts: Vec<_> = all()
            .filter(|(_, of)| !of.asked)
            .map(|(labels, of)| (labels, ConstGauge::new(of.timeout_ns as f64 / 1e9)))
            .collect();
        let timeout = ("lull_controller_timeout", "gro_flush_timeout of queues that have one.", Some(&Unit::Seconds));
        family(encoder, timeout, &timeouts)
    }
}

/// The upper bounds of a histogram's buckets, in nanoseconds.
const BOUNDS_NS: [u64; 14] = [
    10_000,
    20_000,
    50_000,
    100_000,
    200_000,
    500_000,
    1_000_000,
    2_000_000,
    5_000_000,
    10_000_000,
    20_000_000,
    50_000_000,
    100_000_000,
    1_000_000_000,
];

/// Latencies in the buckets that are exported.
fn histogram(answers: &Latencies) -> Histogram {
    Histogram { counts: BOUNDS_NS.map(|ns| answers.below(ns)), all: answers.len(), sum_ns: answers.sum_ns() }
}

/// A histogram whose counts are given.
#[derive(Debug)]
struct Histogram {
    /// How many latencies were below each bound.
    counts: [u64; BOUNDS_NS.len()],
    all: u64,
    sum_ns: u64,
}

impl EncodeMetric for Histogram {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        let mut buckets = Vec::new();
        let mut below = 0;
        for (bound_ns, count) in BOUNDS_NS.iter().zip(self.counts) {
            buckets.push((*bound_ns as f64 / 1e9, count - below));
            below = count;
        }
        buckets.push((f64::INFINITY, self.all - below));
        encoder.encode_histogram::<NoLabelSet>(self.sum_ns as f64 / 1e9, self.all, &buckets, None)
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Histogram
    }
}

/// Encodes a family; nothing is written if it has no series.
fn family<M: EncodeMetric>(
    encoder: &mut DescriptorEncoder<'_>,
    (name, help, unit): (&str, &str, Option<&Unit>),
    all: &[(Vec<Label>, M)],
) -> fmt::Result {
    let Some((_, first)) = all.first() else { return Ok(()) };
    let mut metric = encoder.encode_descriptor(name, help, unit, first.metric_type())?;
    for (labels, value) in all {
        value.encode(metric.encode_family(labels)?)?;
    }
    Ok(())
}

/// A count, if it is known.
fn count(value: Option<u64>) -> Vec<(Option<Label>, ConstCounter<u64>)> {
    value.map(|value| (None, ConstCounter::new(value))).into_iter().collect()
}

fn seconds(ns: u64) -> Vec<(Option<Label>, ConstGauge<f64>)> {
    vec![(None, ConstGauge::new(ns as f64 / 1e9))]
}

impl Collector for Scrape {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let encoder = &mut encoder;
        self.napis(encoder, ("lull_napi_polls", "Polls of the NAPI, by who polled.", None), |napi| {
            let by = napi.polls.iter();
            by.map(|(who, polls)| (Some(("by", who.name().to_owned())), ConstCounter::new(*polls))).collect()
        })?;
        self.napis(encoder, ("lull_napi_packets", "Packets that polls took.", None), |napi| {
            count(napi.known(napi.packets))
        })?;
        self.napis(encoder, ("lull_napi_empty_polls", "Polls that found nothing.", None), |napi| {
            count(napi.known(napi.empty_polls))
        })?;
        let timers = ("lull_napi_deferrals", "Timers that were set for deferral.", None);
        self.napis(encoder, timers, |napi| count(napi.known(napi.deferrals)))?;
        let suspensions = ("lull_napi_suspensions", "Suspensions of the interrupt by the application.", None);
        self.napis(encoder, suspensions, |napi| count(napi.suspensions))?;
        let interrupts = ("lull_napi_interrupts", "Interrupts that were taken.", None);
        self.napis(encoder, interrupts, |napi| count(napi.interrupts))?;
        self.napis(encoder, ("lull_napi_mode", "1 for the mode in force.", None), |napi| {
            vec![(Some(("mode", napi.mode.clone())), ConstGauge::new(1_i64))]
        })?;
        let defer = ("lull_napi_defer_hard_irqs", "Empty polls for which the interrupt stays masked.", None);
        self.napis(encoder, defer, |napi| vec![(None, ConstGauge::new(i64::from(napi.settings.defer_hard_irqs)))])?;
        let gro = (
            "lull_napi_gro_flush_timeout",
            "Time for which a timer stands in for the interrupt.",
            Some(&Unit::Seconds),
        );
        self.napis(encoder, gro, |napi| seconds(napi.settings.gro_flush_timeout_ns))?;
        let suspend = "Time for which an application may keep the interrupt masked.";
        let suspend = ("lull_napi_irq_suspend_timeout", suspend, Some(&Unit::Seconds));
        self.napis(encoder, suspend, |napi| seconds(napi.settings.irq_suspend_timeout_ns))?;
        self.napis(encoder, ("lull_napi_threaded", "0 is off, 1 is on, 2 is busy polling.", None), |napi| {
            let value = match napi.settings.threaded {
                Threaded::Off => 0,
                Threaded::On => 1,
                Threaded::BusyPoll => 2,
            };
            vec![(None, ConstGauge::new(value))]
        })?;
        self.answers(encoder)?;
        self.controllers(encoder)?;
        let of = |figures: &Figures| Some((subject(figures), ConstCounter::new(figures.cpu_ns? as f64 / 1e9)));
        let all: Vec<_> = self.0.iter().filter_map(of).collect();
        family(encoder, ("lull_process_cpu", "CPU time of the process's threads.", Some(&Unit::Seconds)), &all)?;
        let softirq = ("lull_cpu_softirq", "Time in softirq.", Some(&Unit::Seconds));
        self.cpus(encoder, softirq, |cpu| ConstCounter::new(cpu.softirq_ns as f64 / 1e9))?;
        self.cpus(encoder, ("lull_cpu_wakeups", "Threads woken.", None), |cpu| ConstCounter::new(cpu.wakeups))
    }
}

/// The figures as OpenMetrics text.
pub fn text(figures: Vec<Figures>) -> String {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Scrape(figures)));
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry).expect("writing to a string does not fail");
    text
}

/// Converts OpenMetrics text to the older text format of Prometheus, for readers that do not ask for the newer one: a
/// counter's description belongs to the series with `_total` at its end, and units and the end of the text are not
/// stated.
pub fn older(open_metrics: &str) -> String {
    let described = |line: &'_ str| -> Option<(String, String, String)> {
        let mut words = line.strip_prefix("# ")?.splitn(3, ' ').map(str::to_owned);
        Some((words.next()?, words.next()?, words.next()?))
    };
    let is_counter = |name: &str| open_metrics.contains(&format!("# TYPE {name} counter\n"));
    let mut text = String::with_capacity(open_metrics.len());
    for line in open_metrics.lines().filter(|line| *line != "# EOF") {
        match described(line) {
            Some((what, ..)) if what == "UNIT" => continue,
            Some((what, name, rest)) if is_counter(&name) => text += &format!("# {what} {name}_total {rest}"),
            _ => text += line,
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Poller, Subject};
    use lull_core::NapiSettings;

    #[test]
    fn the_dashboard_asks_for_what_is_exported() {
        let napi = Napi {
            counted: true,
            polls: vec![(Poller::Group, 1)],
            suspensions: Some(1),
            interrupts: Some(1),
            answers: Some(Latencies::default()),
            ..Napi::default()
        };
        let controller = Some(Decided { windows: [(Standing::Met, 1)].into(), ..Decided::default() });
        let (napis, cpus) = (vec![napi], vec![Cpu::default()]);
        let figures = Figures { napis, cpus, controller, cpu_ns: Some(1), ..Figures::default() };
        let text = text(vec![figures]);
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../dist/grafana/lull.json");
        // The dashboard is missing if the package was taken out of the repository.
        let Ok(dashboard) = std::fs::read_to_string(file) else { return };
        let dashboard: serde_json::Value = serde_json::from_str(&dashboard).unwrap();
        let panels = dashboard["panels"].as_array().unwrap();
        let queries = panels.iter().flat_map(|panel| panel["targets"].as_array().unwrap());
        let queries: Vec<&str> = queries.map(|target| target["expr"].as_str().unwrap()).collect();
        let is_part = |character: char| character.is_ascii_alphanumeric() || character == '_';
        let words = queries.iter().flat_map(|query| query.split(|character| !is_part(character)));
        let names: Vec<&str> = words.filter(|word| word.starts_with("lull_")).collect();
        assert!(names.len() >= queries.len(), "{names:?}");
        for name in names {
            assert!(text.lines().any(|line| line.starts_with(&format!("{name}{{"))), "nobody exports {name}:\n{text}");
        }
    }

    #[test]
    fn a_controller_has_its_decision_and_requests_their_buckets() {
        let mut answers = Latencies::default();
        [15_000, 150_000, 150_000, 3_000_000_000].into_iter().for_each(|ns| answers.record(ns));
        let napi = Napi { answers: Some(answers), ..Napi::default() };
        let decided = Decided {
            objective: "p99<200us".to_owned(),
            mode: "suspend20".to_owned(),
            standing: Standing::Moving,
            timeout_ns: 40_000,
            windows: [(Standing::Moving, 3)].into(),
            changes: 2,
            ..Decided::default()
        };
        let subject = Subject { name: "s".to_owned(), pid: Some(3) };
        let text = text(vec![Figures { subject, napis: vec![napi], controller: Some(decided), ..Figures::default() }]);
        let labels = r#"subject="s",pid="3""#;
        for line in [
            format!(r#"lull_controller_objective{{{labels},objective="p99<200us",mode="suspend20"}} 1"#),
            format!(r#"lull_controller_standing{{{labels},standing="moving"}} 1"#),
            format!(r#"lull_controller_standing{{{labels},standing="met"}} 0"#),
            format!(r#"lull_controller_windows_total{{{labels},standing="moving"}} 3"#),
            format!("lull_controller_changes_total{{{labels}}} 2"),
            format!("lull_controller_timeout_seconds{{{labels}}} 0.00004"),
            format!(r#"lull_napi_answer_seconds_count{{{labels},device="",queue="",napi_id="0"}} 4"#),
        ] {
            assert!(text.lines().any(|other| other == line), "{line} is missing in\n{text}");
        }
        for (bound, count) in [("0.00001", 0), ("0.00002", 1), ("0.0002", 3), ("1.0", 3), ("+Inf", 4)] {
            let bucket = format!(r#"lull_napi_answer_seconds_bucket{{le="{bound}","#);
            let line = text.lines().find(|line| line.starts_with(&bucket)).unwrap_or_else(|| panic!("{bound}: {text}"));
            assert!(line.ends_with(&format!(" {count}")), "{line}");
        }
    }

    #[test]
    fn the_older_format_describes_counters_by_their_series_and_has_no_units() {
        let napi = Napi { counted: true, packets: 11, ..Napi::default() };
        let open_metrics = text(vec![Figures { napis: vec![napi], cpu_ns: Some(1), ..Figures::default() }]);
        let older = older(&open_metrics);
        for line in [
            "# HELP lull_napi_packets_total Packets that polls took.",
            "# TYPE lull_napi_packets_total counter",
            "# TYPE lull_process_cpu_seconds_total counter",
            "# TYPE lull_napi_gro_flush_timeout_seconds gauge",
        ] {
            assert!(older.lines().any(|other| other == line), "{line} is missing in\n{older}");
        }
        assert!(!older.contains("# UNIT") && !older.contains("# EOF"), "{older}");
        let series =
            |text: &str| text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(series(&older), series(&open_metrics));
    }

    #[test]
    fn what_is_known_has_its_name_unit_and_labels_and_what_is_not_is_absent() {
        let napi = Napi {
            device: "tap0".to_owned(),
            queue: "1".to_owned(),
            id: 9,
            mode: "suspend20".to_owned(),
            settings: NapiSettings { defer_hard_irqs: 100, gro_flush_timeout_ns: 20_000, ..NapiSettings::default() },
            counted: true,
            polls: vec![(Poller::BusyPoll, 7)],
            packets: 11,
            ..Napi::default()
        };
        let unseen = Napi { counted: false, polls: Vec::new(), id: 10, ..napi.clone() };
        let figures = Figures {
            subject: Subject { name: "a \"name\"".to_owned(), pid: Some(3) },
            napis: vec![napi, unseen],
            ..Figures::default()
        };
        let text = text(vec![figures]);
        let labels = r#"{subject="a \"name\"",pid="3",device="tap0",queue="1",napi_id="9""#;
        for line in [
            format!(r#"lull_napi_polls_total{labels},by="busy-poll"}} 7"#),
            format!("lull_napi_packets_total{labels}}} 11"),
            format!(r#"lull_napi_mode{labels},mode="suspend20"}} 1"#),
            format!("lull_napi_gro_flush_timeout_seconds{labels}}} 0.00002"),
        ] {
            assert!(text.lines().any(|other| other == line), "{line} is missing in\n{text}");
        }
        assert!(text.contains("# TYPE lull_napi_polls counter"), "{text}");
        let of_unseen: Vec<&str> = text.lines().filter(|line| line.contains(r#"napi_id="10""#)).collect();
        assert!(of_unseen.iter().all(|line| !line.contains("_total")) && !of_unseen.is_empty(), "{of_unseen:?}");
        assert!(!text.contains("suspensions"), "nobody knows how many there were: {text}");
        assert!(text.ends_with("# EOF\n"), "{text}");
    }
}
