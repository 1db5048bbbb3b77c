//! A controller's decision, for those who show it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::told::words;
use crate::{Controller, Latency, Reading, Standing};

/// A controller's last decision, and what it has done so far.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Decided {
    /// The objective.
    pub objective: String,
    /// The mode that it began with and falls back to.
    pub mode: String,
    /// How the controller stands to its objective.
    pub standing: Standing,
    /// Whether the mode is in force, and not a timeout of the controller's.
    pub asked: bool,
    /// `gro_flush_timeout` of the queues that have one, in nanoseconds.
    pub timeout_ns: u64,
    /// How many queues have their interrupts alone, and how many queues there are.
    pub on_interrupts: (usize, usize),
    /// The last window's latency, where it is known.
    pub latency: Option<Latency>,
    /// The last window's use of the CPUs, in percent.
    pub cpu_percent: Option<f64>,
    /// How many windows have ended so far with each standing.
    pub windows: BTreeMap<Standing, u64>,
    /// How often the controller has changed settings.
    pub changes: u64,
}

impl Decided {
    /// The state of a controller that has decided nothing yet.
    pub fn new(controller: &Controller, mode: &str) -> Decided {
        Decided { objective: controller.slo().to_string(), mode: mode.to_owned(), ..Decided::default() }
    }

    /// Records what the controller decided after a window.
    pub fn note(&mut self, controller: &Controller, reading: &Reading, standing: Standing) {
        let on_interrupts = reading.napis.iter().filter(|napi| controller.settings(napi.id).gro_flush_timeout_ns == 0);
        self.standing = standing;
        self.asked = controller.rests();
        self.timeout_ns = controller.timeout_ns();
        self.on_interrupts = (on_interrupts.count(), reading.napis.len());
        (self.latency, self.cpu_percent) = (reading.latency, reading.cpu_percent);
        *self.windows.entry(standing).or_default() += 1;
        self.changes = controller.changes();
    }

    /// What is in force, in words.
    pub fn in_force(&self) -> String {
        let timeout = lull_units::time_text(self.timeout_ns);
        match self.on_interrupts {
            _ if self.asked => self.mode.clone(),
            (on, all) if on == all => "interrupts".to_owned(),
            (0, _) => format!("timeout {timeout}"),
            (on, all) => format!("timeout {timeout}, {on} of {all} queues on interrupts"),
        }
    }

    /// The decision with its reason, and then what the controller has done so far.
    pub fn words(&self) -> String {
        let seen = [
            self.latency.filter(|latency| latency.answers > 0).map(|latency| words(&latency)),
            self.cpu_percent.map(|percent| format!("CPU {percent:.0} %")),
        ];
        let seen: Vec<String> = seen.into_iter().flatten().collect();
        let seen = if seen.is_empty() { String::new() } else { format!(" ({})", seen.join(", ")) };
        let windows = self.windows.iter().map(|(standing, windows)| format!("{windows} {standing}"));
        format!(
            "{} from {}: {}, {}{seen}; {}. {}; windows: {}.",
            self.objective,
            self.mode,
            self.standing,
            self.standing.reason(),
            self.in_force(),
            lull_units::counted(self.changes, "change"),
            windows.collect::<Vec<_>>().join(", ")
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Bounds, NapiReading, Slo};

    #[test]
    fn a_decision_is_told_with_its_reason_and_counts() {
        let slo: Slo = "p99<200us".parse().unwrap();
        let bounds = Bounds::new(&slo, &"suspend20".parse().unwrap(), None).unwrap();
        let mut controller = Controller::new(slo, bounds);
        let mut decided = Decided::new(&controller, "suspend20");
        let reading = Reading {
            now_ns: 100_000_000,
            window_ns: 100_000_000,
            napis: vec![NapiReading { id: 1, work: 20_000, ..NapiReading::default() }],
            cpu_percent: Some(40.0),
            latency: Some(Latency { answers: 10_000, p99_ns: 60_000, p50_ns: 30_000, ..Latency::default() }),
        };
        let standing = controller.decide(&reading);
        decided.note(&controller, &reading, standing);
        let words = decided.words();
        for part in
            ["p99<200us from suspend20: moving", "p99 60us of 10000 answers", "timeout 40us", "1 change;", "1 moving"]
        {
            assert!(words.contains(part), "{words}");
        }
        let text = serde_json::to_string(&decided).unwrap();
        assert_eq!(serde_json::from_str::<Decided>(&text).unwrap(), decided);
    }
    #[test]
    fn the_mode_that_was_asked_for_is_in_force_in_a_quiet_window_too() {
        let slo: Slo = "p99<200us".parse().unwrap();
        let bounds = Bounds::new(&slo, &"suspend20".parse().unwrap(), None).unwrap();
        let mut controller = Controller::new(slo, bounds);
        let mut decided = Decided::new(&controller, "suspend20");
        let mut window = |nth: u64, answers| {
            let reading = Reading {
                now_ns: nth * 100_000_000,
                window_ns: 100_000_000,
                napis: vec![NapiReading { id: 1, work: 20_000, ..NapiReading::default() }],
                cpu_percent: Some(40.0),
                latency: Some(Latency { answers, p99_ns: 900_000, p50_ns: 30_000, ..Latency::default() }),
            };
            let standing = controller.decide(&reading);
            decided.note(&controller, &reading, standing);
            (standing, decided.in_force())
        };
        let late = (1..40).map(|nth| window(nth, 10_000)).last().unwrap();
        assert_eq!(late, (Standing::OutOfReach, "suspend20".to_owned()));
        assert_eq!(window(40, 1), (Standing::Quiet, "suspend20".to_owned()));
    }
}
