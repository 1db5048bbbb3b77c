//! Writes the world file of a set-up and the values that were found.

use std::fmt::Write as _;

use super::found::{Found, quantity};
use super::{Held, Interrupts, Setup};
use crate::instructions::Instructions;

/// The sections with keys besides those that are found, in the order of the file.
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
    let (moderation, completions) = (moderation(&setup.interrupts), setup.interrupts.completions);
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

/// The most microseconds and frames that a file may have.
const HELD_MAX: u32 = 65_535;

/// The lines of a NIC's moderation.
fn moderation(interrupts: &Interrupts) -> String {
    // In a file, a number of frames that never comes means that only the time counts; without a time each frame
    // interrupts.
    let held = |Held { usecs, frames }: Held| match (usecs, frames) {
        (0, _) => (0, 1),
        (usecs, 0) => (usecs.min(HELD_MAX), HELD_MAX),
        (usecs, frames) => (usecs.min(HELD_MAX), frames.min(HELD_MAX)),
    };
    let (rx, tx) = (held(interrupts.rx), interrupts.tx.map(held));
    let tx_lines = |(usecs, frames): (u32, u32)| format!("tx_usecs = \"{usecs}us\"\ntx_frames = {frames}");
    if interrupts.adaptive {
        // Receive moderation is adaptive if a file does not mention it.
        return tx.map_or_else(|| "adaptive = true".to_owned(), tx_lines);
    }
    let mut lines = format!("rx_usecs = \"{}us\"", rx.0);
    if rx.0 > 0 && rx.1 < HELD_MAX {
        let _ = write!(lines, "\nrx_frames = {}", rx.1);
    }
    if let Some(tx) = tx.filter(|tx| *tx != rx) {
        let _ = write!(lines, "\n{}", tx_lines(tx));
    }
    lines
}

fn profile(setup: &Setup) -> &'static str {
    if setup.user_plane { "lull-user" } else { "round" }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::WorldFile;
    use crate::engine::dim::Moderation;
    use crate::world::ModerationSpec;

    /// Returns the lines, and the moderation that a file with them has.
    fn read(interrupts: Interrupts) -> (String, ModerationSpec, ModerationSpec) {
        let lines = moderation(&interrupts);
        let text = format!(
            "[machine]\ncores = 1\n[nic]\nspeed = \"10Gbit/s\"\n{lines}\n[network]\nlatency = \"2us\"\n[service]\nkind = \
             \"epoll\"\nconnections = 64\nrequest_cost = \"8us\"\n"
        );
        let file = WorldFile::parse("m.toml", &text).unwrap_or_else(|error| panic!("{text}{error}"));
        (lines, file.rx, file.tx)
    }

    fn fixed(usecs: u32, frames: u32) -> ModerationSpec {
        ModerationSpec::Fixed(Moderation { usecs, frames })
    }

    #[test]
    fn moderation_that_counts_frames_or_differs_for_sent_ones_stands_in_the_file() {
        let held = |usecs, frames| Held { usecs, frames };
        let rx_only = |rx| read(Interrupts { rx, ..Interrupts::default() });
        assert_eq!(rx_only(held(0, 0)), ("rx_usecs = \"0us\"".to_owned(), fixed(0, 1), fixed(0, 1)));
        // Drivers without moderation may say 0 us and any number of frames.
        assert_eq!(rx_only(held(0, 8)), ("rx_usecs = \"0us\"".to_owned(), fixed(0, 1), fixed(0, 1)));
        assert_eq!(rx_only(held(50, 0)), ("rx_usecs = \"50us\"".to_owned(), fixed(50, 65_535), fixed(50, 65_535)));
        let (lines, rx, tx) = rx_only(held(50, 32));
        assert!(lines.contains("rx_frames = 32"), "{lines}");
        assert_eq!((rx, tx), (fixed(50, 32), fixed(50, 32)));
        assert_eq!(rx_only(held(50, 1)).1, fixed(50, 1));
        assert_eq!(rx_only(held(1_000_000, 1_000_000)).1, fixed(65_535, 65_535));
        let both = |rx, tx| read(Interrupts { rx, tx: Some(tx), ..Interrupts::default() });
        assert_eq!(both(held(50, 32), held(50, 32)).0, rx_only(held(50, 32)).0, "as receive");
        for (sent, file) in [(held(8, 0), fixed(8, 65_535)), (held(0, 0), fixed(0, 1)), (held(16, 4), fixed(16, 4))] {
            let (lines, rx, tx) = both(held(50, 32), sent);
            assert_eq!((rx, tx), (fixed(50, 32), file), "{lines}");
        }
        let adaptive = |tx| read(Interrupts { adaptive: true, tx, ..Interrupts::default() });
        assert_eq!(adaptive(None).0, "adaptive = true");
        let (_, rx, tx) = adaptive(Some(held(8, 16)));
        assert_eq!((rx, tx), (ModerationSpec::Adaptive, fixed(8, 16)));
    }
}
