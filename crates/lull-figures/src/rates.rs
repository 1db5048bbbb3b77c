//! The rates between two readings.

use lull_slo::{Latencies, Latency};

use crate::{Figures, Napi, Poller, Subject};

/// What one NAPI did in an interval; counts are per second.
#[derive(Clone, Debug, PartialEq)]
pub struct Rate {
    /// The device or process that has the NAPI.
    pub subject: Subject,
    /// CPU of the process's threads, in percent of one.
    pub cpu_percent: Option<f64>,
    /// The NAPI's settings and mode, and its counts at the end of the interval.
    pub napi: Napi,
    /// Polls. This and the following fields are `None` or empty if polls are not counted.
    pub polls: Option<f64>,
    /// The share of each poller in percent, the largest first.
    pub by: Vec<(Poller, f64)>,
    /// Packets.
    pub packets: Option<f64>,
    /// Polls that found nothing, in percent of all.
    pub empty_percent: Option<f64>,
    /// Packets per poll that found any.
    pub batch: Option<f64>,
    /// Timers set for deferral.
    pub deferrals: Option<f64>,
    /// Timers set for suspension.
    pub suspensions: Option<f64>,
    /// Interrupts.
    pub interrupts: Option<f64>,
    /// The latency of requests that were answered in the interval, if there were any.
    pub latency: Option<Latency>,
}

/// Returns the rates of each NAPI that is in both readings. One that is new in the second has no former counts, and is
/// left out.
pub fn between(before: &[Figures], after: &[Figures]) -> Vec<Rate> {
    let mut rates = Vec::new();
    for now in after {
        let Some(then) = before.iter().find(|then| then.subject == now.subject) else { continue };
        let seconds = now.now_ns.saturating_sub(then.now_ns) as f64 / 1e9;
        if seconds <= 0.0 {
            continue;
        }
        for napi in now.napis.iter().filter(|napi| napi.id != 0) {
            let is_same =
                |other: &&Napi| (&other.device, &other.queue, other.id) == (&napi.device, &napi.queue, napi.id);
            if let Some(former) = then.napis.iter().find(is_same) {
                let cpu_ns = now.cpu_ns.zip(then.cpu_ns).map(|(now, then)| now.saturating_sub(then));
                let cpu_percent = cpu_ns.map(|ns| ns as f64 / (seconds * 1e7));
                rates.push(Rate { cpu_percent, ..rate(&now.subject, former, napi, seconds) });
            }
        }
    }
    rates
}

fn rate(subject: &Subject, then: &Napi, now: &Napi, seconds: f64) -> Rate {
    let per_s = |now: u64, then: u64| now.saturating_sub(then) as f64 / seconds;
    let both = |now: Option<u64>, then: Option<u64>| Some(per_s(now?, then?));
    let of_then = |who: Poller| then.polls.iter().find(|(other, _)| *other == who).map_or(0, |(_, polls)| *polls);
    let mut by: Vec<(Poller, f64)> = now
        .polls
        .iter()
        .map(|(who, polls)| (*who, per_s(*polls, of_then(*who))))
        .filter(|(_, rate)| *rate > 0.0)
        .collect();
    by.sort_by(|(_, a), (_, b)| b.total_cmp(a));
    let polls = by.iter().fold(0.0, |all, (_, rate)| all + rate);
    by.iter_mut().for_each(|(_, rate)| *rate *= 100.0 / polls);
    let (packets, empty) = (per_s(now.packets, then.packets), per_s(now.empty_polls, then.empty_polls));
    Rate {
        subject: subject.clone(),
        cpu_percent: None,
        napi: now.clone(),
        polls: now.counted.then_some(polls),
        by,
        packets: now.counted.then_some(packets),
        empty_percent: (polls > 0.0).then_some(100.0 * empty / polls),
        batch: (polls > empty).then_some(packets / (polls - empty)),
        deferrals: now.counted.then(|| per_s(now.deferrals, then.deferrals)),
        suspensions: both(now.suspensions, then.suspensions),
        interrupts: both(now.interrupts, then.interrupts),
        latency: now
            .answers
            .as_ref()
            .map(|answers| answers.since(then.answers.as_ref().unwrap_or(&Latencies::default())).latency())
            .filter(|latency| latency.answers > 0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(now_ns: u64, napis: Vec<Napi>) -> Figures {
        Figures { subject: Subject { name: "s".to_owned(), pid: Some(7) }, now_ns, napis, ..Figures::default() }
    }

    fn napi(id: u32, softirq: u64, busy: u64, packets: u64) -> Napi {
        Napi {
            id,
            counted: true,
            polls: vec![(Poller::Softirq, softirq), (Poller::BusyPoll, busy)],
            packets,
            empty_polls: softirq / 2,
            ..Napi::default()
        }
    }

    #[test]
    fn counts_an_interval_apart_are_rates_and_shares() {
        let before = figures(0, vec![napi(9, 0, 100, 0)]);
        let after = figures(2_000_000_000, vec![napi(9, 20, 160, 350), napi(10, 5, 5, 5)]);
        let rates = between(&[before], &[after]);
        let [rate] = &rates[..] else { panic!("the NAPI that came in between has no rate: {rates:?}") };
        assert_eq!(
            (rate.polls, rate.packets, rate.empty_percent, rate.batch),
            (Some(40.0), Some(175.0), Some(12.5), Some(5.0))
        );
        assert_eq!(rate.by, [(Poller::BusyPoll, 75.0), (Poller::Softirq, 25.0)]);
        assert_eq!(rate.suspensions, None, "what is not known is not zero");
    }

    #[test]
    fn another_process_under_the_same_name_has_no_former_counts() {
        let before = figures(0, vec![napi(9, 0, 0, 0)]);
        let mut after = figures(1_000_000_000, vec![napi(9, 5, 5, 5)]);
        after.subject.pid = Some(8);
        assert!(between(&[before], &[after]).is_empty());
    }
}
