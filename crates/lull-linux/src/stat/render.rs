//! A sample as text.

use std::fmt;

use super::{CpuRate, NapiSample, Poller, Rates, Sample};

/// The pollers of a NAPI that are shown. The others are added up.
const POLLERS_SHOWN: usize = 12;

impl fmt::Display for Sample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}  {:.2} s", self.device, self.seconds)?;
        if let Some(packets) = self.device_packets_per_s {
            write!(f, "  {packets:.0} packets/s received by the device's count")?;
        }
        writeln!(f)?;
        if self.traced {
            writeln!(
                f,
                "  {:<48} {:>10} {:>10} {:>6} {:>7} {:>7}",
                "who polled", "polls/s", "packets/s", "work", "empty", "budget"
            )?;
            if self.napis.is_empty() {
                writeln!(f, "  nobody: no poll in this interval")?;
            }
            for napi in &self.napis {
                show_napi(f, napi)?;
            }
        }
        writeln!(f, "  NET_RX softirqs/s  {}", by_cpu(&self.net_rx_softirqs_per_s))?;
        for irq in &self.interrupts {
            writeln!(f, "  interrupts/s       {} {}: {}", irq.irq, irq.name, by_cpu(&irq.per_s))?;
        }
        if self.interrupts.is_empty() {
            writeln!(f, "  interrupts/s       {} has no interrupt of its own", self.device)?;
        }
        for missing in &self.missing {
            writeln!(f, "  ({missing})")?;
        }
        Ok(())
    }
}

fn show_napi(f: &mut fmt::Formatter<'_>, napi: &NapiSample) -> fmt::Result {
    let name = match napi.napi_id {
        Some(id) => format!("NAPI {id}"),
        None => format!("NAPI without a visible id, #{}", napi.instance),
    };
    let thread = napi.thread.map_or(String::new(), |tid| format!(", its thread is {tid}"));
    show_rates(f, &(name + &thread), &napi.rates)?;
    for poller in napi.by.iter().take(POLLERS_SHOWN) {
        show_rates(f, &format!("  {}", name_of(poller)), &poller.rates)?;
    }
    let rest = napi.by.get(POLLERS_SHOWN..).unwrap_or_default();
    if !rest.is_empty() {
        let polls: f64 = rest.iter().map(|poller| poller.rates.polls_per_s).sum();
        writeln!(f, "    {} others: {polls:.0} polls/s", rest.len())?;
    }
    let suspensions = napi.suspensions_per_s.map_or(String::new(), |rate| format!(", for suspension {rate:.0}"));
    writeln!(f, "    timers set/s: for deferral {:.0}{suspensions}", napi.deferrals_per_s)
}

fn show_rates(f: &mut fmt::Formatter<'_>, name: &str, rates: &Rates) -> fmt::Result {
    let work = rates.mean_work.map_or(String::new(), |work| format!("{work:.2}"));
    let empty = 100.0 * rates.empty_polls_per_s / rates.polls_per_s.max(f64::MIN_POSITIVE);
    let (polls, packets) = (rates.polls_per_s, rates.packets_per_s);
    writeln!(f, "  {name:<48} {polls:>10.0} {packets:>10.0} {work:>6} {empty:>5.1} % {:>7}", rates.budget_max)
}

fn name_of(poller: &Poller) -> String {
    let cpu = poller.cpu.map_or(String::new(), |cpu| format!(" on CPU {cpu}"));
    let thread = match (poller.tid, &poller.name) {
        (Some(0), _) => ", idle".to_owned(),
        (Some(tid), Some(name)) => {
            let pid = poller.pid.filter(|pid| *pid != tid).map_or(String::new(), |pid| format!(", {tid} of {pid}"));
            if pid.is_empty() { format!(" {name} ({tid})") } else { format!(" {name} ({})", &pid[2..]) }
        }
        (Some(tid), None) => format!(" thread {tid}, which is gone"),
        (None, _) => String::new(),
    };
    let within = if poller.kind == "softirq" && !thread.is_empty() && poller.tid != Some(0) { " in" } else { "" };
    format!("{}{cpu}{within}{thread}", poller.kind)
}

fn by_cpu(rates: &[CpuRate]) -> String {
    if rates.is_empty() {
        return "not told by /proc".to_owned();
    }
    rates.iter().map(|rate| format!("cpu{} {:.0}", rate.cpu, rate.per_s)).collect::<Vec<_>>().join("  ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_has_gone_is_named_by_its_number() {
        let poller = |kind| Poller {
            kind,
            cpu: Some(1),
            pid: None,
            tid: Some(77),
            name: None,
            rates: Rates {
                polls_per_s: 1.0,
                packets_per_s: 0.0,
                mean_work: None,
                empty_polls_per_s: 1.0,
                budget_max: 64,
            },
        };
        assert_eq!(name_of(&poller("softirq")), "softirq on CPU 1 in thread 77, which is gone");
        assert_eq!(name_of(&poller("busy-poll")), "busy-poll on CPU 1 thread 77, which is gone");
    }
}
