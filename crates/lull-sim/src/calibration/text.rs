//! The world file of a set-up and the values that were found.

use std::fmt::Write as _;

use super::found::{Found, quantity};
use super::{Interrupts, Setup};
use crate::instructions::Instructions;

/// The sections that have keys besides those that are found, with these in the order of the file.
const SECTIONS: [&str; 5] = ["network", "load", "service", "costs", "run"];

/// The file's text.
pub(super) fn render(setup: &Setup, found: &[Found], instructions: Option<(Instructions, Instructions)>) -> String {
    let mut out = String::new();
    for line in &setup.head {
        let _ = writeln!(out, "# {line}");
    }
    let plane = if setup.user_plane { "user" } else { "kernel" };
    let Setup { workers, connections, hz, over, .. } = setup;
    let ghz = *hz as f64 / 1e9;
    let Interrupts { adaptive, rx_usecs, completions } = setup.interrupts;
    let moderation = if adaptive { "adaptive = true".to_owned() } else { format!("rx_usecs = \"{rx_usecs}us\"") };
    let _ = write!(
        out,
        "\n[machine]\ncores = {workers}\nplane = \"{plane}\"\nfrequency = \"{ghz}GHz\"\nidle = \"shallow\"\n\n[nic]\nqueues = \
         {workers}\nspeed = \"1000Gbit/s\"\n{moderation}\nring = 8192\nrss = \"even\"\ntx_completions = {completions}\ncalibrated = \"{over}\"\n"
    );
    for section in SECTIONS {
        let fixed = match section {
            "load" => "acks = false\n".to_owned(),
            "service" => {
                let together = setup.answers_together;
                format!(
                    "kind = \"epoll\"\nworkers = {workers}\nconnections = {connections}\nuser_share = \"{:.1}%\"\nanswers_together = \
                     {together}\n",
                    setup.user_percent
                )
            }
            "costs" => format!("profile = \"{}\"\ncache_requests = 48\n", profile(setup)),
            "run" => "warmup = \"8ms\"\n".to_owned(),
            _ => String::new(),
        };
        let _ = write!(out, "\n[{section}]\n{fixed}");
        for found in found.iter().filter(|found| found.key.name.starts_with(&format!("{section}."))) {
            let name = &found.key.name[section.len() + 1..];
            let assignment = format!("{name} = \"{}\"", quantity(found.key.unit, found.value));
            let (text, how) = (found.interval_text(), found.how());
            let _ = writeln!(out, "{assignment:<32} # {text} {how}: {}", found.key.meaning);
        }
        if section == "network" {
            out.push_str("slow_from = \"0us\"\n");
        }
    }
    if let Some((found, off)) = instructions {
        out.push_str("\n[instructions]\n");
        for (name, value, off, meaning) in [
            ("request", found.request, off.request, "receiving, serving and answering a request"),
            ("poll", found.poll, off.poll, "a poll, whatever it finds"),
            ("interrupt", found.interrupt, off.interrupt, "an interrupt, with the sleep that it ends"),
        ] {
            let assignment = format!("{name} = {}", value.round() as u64);
            let _ = writeln!(out, "{assignment:<32} # ± {off:.0}, counted by the hardware and fitted: {meaning}");
        }
    }
    out
}

fn profile(setup: &Setup) -> &'static str {
    if setup.user_plane { "lull-user" } else { "round" }
}
