//! From settings in force to a mode's name.
//!
//! A NAPI shows only the kernel's half of a mode. The other half, whether a program prefers busy polling there, is in
//! the program's epoll contexts. A mode whose other half is missing is not in force, and is not reported as such.

use lull_core::mode::{CATALOGUE, Plane};
use lull_core::{EpollParams, Mode, NapiSettings, Threaded, Unpolled};
use serde::Serialize;

/// What settings amount to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Recognised {
    /// The mode in force, `custom`, or `unknown`.
    pub mode: String,
    /// What is missing, or what cannot be seen.
    pub note: Option<String>,
}

/// What is known of the programs on a NAPI.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Programs {
    /// Parameters of the epoll contexts that busy poll on it, or prefer to.
    pub polling: Vec<EpollParams>,
    /// Whether there are processes that could not be looked into.
    pub some_hidden: bool,
    /// `net.core.busy_poll` in microseconds.
    pub busy_poll_usecs: u64,
}

/// What is reported where the settings cannot be read.
pub(crate) fn unknown() -> Recognised {
    let note = "this kernel tells the settings of the whole device alone, whose /sys cannot be seen here";
    Recognised { mode: "unknown".to_owned(), note: Some(note.to_owned()) }
}

/// A settings value that is a whole number of microseconds.
fn micros(nanoseconds: u64) -> Option<u64> {
    nanoseconds.is_multiple_of(1_000).then_some(nanoseconds / 1_000)
}

/// The modes whose kernel half these settings are. The first is what the settings amount to by themselves.
fn candidates(settings: &NapiSettings) -> Vec<Mode> {
    let us = micros(settings.gro_flush_timeout_ns).map(|us| us.to_string());
    let modes = CATALOGUE.iter().filter(|entry| entry.planes.contains(&Plane::Kernel)).filter_map(|entry| match entry
        .form
        .strip_suffix('X')
    {
        None => entry.form.parse::<Mode>().ok(),
        Some(_) => entry.form.replace('X', us.as_deref()?).parse().ok(),
    });
    modes.filter(|mode| mode.napi == *settings).collect()
}

/// Names the mode that is in force.
pub fn recognise(settings: &NapiSettings, programs: &Programs) -> Recognised {
    let named = |mode: &str, note: Option<String>| Recognised { mode: mode.to_owned(), note };
    if settings.unpolled == Unpolled::Interrupt && programs.polling.is_empty() && programs.busy_poll_usecs == 0 {
        let note = "what it is set for supposes a program that busy polls: interrupts, until one does";
        return named("base", Some(note.to_owned()));
    }
    let candidates = candidates(&NapiSettings { unpolled: Unpolled::Deferral, ..*settings });
    let plain = candidates.iter().find(|mode| mode.epoll == EpollParams::default());
    let with_programs = candidates.iter().filter(|mode| mode.epoll != EpollParams::default()).collect::<Vec<_>>();
    if programs.busy_poll_usecs != 0 {
        let note = format!("net.core.busy_poll is {}: every epoll busy polls that long", programs.busy_poll_usecs);
        return named("custom", Some(note));
    }
    if programs.polling.is_empty() {
        let suspending = with_programs.iter().find(|mode| mode.suspends());
        // Without a program that prefers busy polling nobody suspends, so what is left is the deferral, or nothing.
        let left = suspending.and_then(|mode| {
            let settings = NapiSettings { irq_suspend_timeout_ns: 0, ..mode.napi };
            self::candidates(&settings).into_iter().find(|mode| mode.epoll == EpollParams::default())
        });
        return match (plain, suspending, left) {
            (Some(plain), ..) => named(plain.name(), unseen(plain)),
            (None, Some(suspending), Some(left)) if programs.some_hidden => {
                let name = suspending.name();
                named(
                    left.name(),
                    Some(format!("{name}, if a program that cannot be seen from here prefers busy polling")),
                )
            }
            (None, Some(suspending), Some(left)) => {
                let name = suspending.name();
                named(left.name(), Some(format!("set for {name}, but no program prefers busy polling here")))
            }
            _ => named("custom", None),
        };
    }
    let fits = |mode: &&&Mode| programs.polling.iter().all(|params| *params == mode.epoll);
    match with_programs.iter().find(fits) {
        Some(mode) if settings.unpolled == Unpolled::Interrupt => {
            named(mode.name(), Some("while a program busy polls; interrupts while none does".to_owned()))
        }
        Some(mode) if mode.name() == "fullbusy" => named(
            "fullbusy",
            Some("if the program waits in epoll_wait for 1 ms at a time, as under `lull run`".to_owned()),
        ),
        Some(mode) => named(mode.name(), None),
        None => {
            let note = match candidates.first() {
                Some(mode) => format!("the settings of {}, and programs with other busy-poll parameters", mode.name()),
                None => "no mode has these settings".to_owned(),
            };
            named("custom", Some(note))
        }
    }
}

/// What distinguishes this mode from another in a way that nobody can see from outside.
fn unseen(mode: &Mode) -> Option<String> {
    let busyread: Mode = "busyread".parse().ok()?;
    (mode.napi == busyread.napi && mode.napi.threaded == Threaded::Off)
        .then(|| "busyread, if the program's sockets have SO_BUSY_POLL".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(name: &str) -> Mode {
        name.parse().unwrap()
    }

    #[test]
    fn every_published_mode_is_recognised_by_both_halves() {
        for name in lull_core::mode::PUBLISHED.into_iter().chain(["threaded", "threaded-busy", "longgro"]) {
            let mode = mode(name);
            let polling = if mode.epoll == EpollParams::default() { vec![] } else { vec![mode.epoll, mode.epoll] };
            let programs = Programs { polling, ..Programs::default() };
            assert_eq!(recognise(&mode.napi, &programs).mode, name);
        }
    }

    #[test]
    fn a_mode_without_its_other_half_is_not_named() {
        let alone = Programs::default();
        let suspend20 = recognise(&mode("suspend20").napi, &alone);
        assert_eq!(suspend20.mode, "defer20");
        assert!(suspend20.note.unwrap().contains("no program prefers"));
        assert_eq!(recognise(&mode("suspend0").napi, &alone).mode, "base");
        assert_eq!(recognise(&mode("napibusy").napi, &alone).mode, "defer200");
        let hidden = Programs { some_hidden: true, ..Programs::default() };
        let unknown = recognise(&mode("suspend20").napi, &hidden);
        assert!(unknown.mode == "defer20" && unknown.note.unwrap().contains("cannot be seen"));
    }

    #[test]
    fn everything_else_is_custom() {
        let alone = Programs::default();
        let odd = NapiSettings { defer_hard_irqs: 7, gro_flush_timeout_ns: 20_000, ..NapiSettings::default() };
        assert_eq!(recognise(&odd, &alone).mode, "custom");
        let odd = NapiSettings { threaded: Threaded::On, ..mode("defer20").napi };
        assert_eq!(recognise(&odd, &alone).mode, "custom");
        let polling = Programs { polling: vec![mode("suspend20").epoll], ..Programs::default() };
        assert_eq!(recognise(&odd, &polling).note.as_deref(), Some("no mode has these settings"));
        let odd = NapiSettings { gro_flush_timeout_ns: 20_001, ..mode("suspend20").napi };
        assert_eq!(recognise(&odd, &alone).mode, "custom");
        let spinning = Programs { busy_poll_usecs: 50, ..Programs::default() };
        assert_eq!(recognise(&mode("base").napi, &spinning).mode, "custom");
        let other = EpollParams { busy_poll_usecs: 3, busy_poll_budget: 8, prefer_busy_poll: true };
        let other = Programs { polling: vec![mode("suspend20").epoll, other], ..Programs::default() };
        assert_eq!(recognise(&mode("suspend20").napi, &other).mode, "custom");
    }

    #[test]
    fn a_deferral_that_supposes_who_polls_is_none_where_nobody_does() {
        let fullbusy = mode("fullbusy").of_unmodified_programs();
        assert_eq!(recognise(&fullbusy.napi, &Programs::default()).mode, "base");
        let polling = Programs { polling: vec![fullbusy.epoll], ..Programs::default() };
        let recognised = recognise(&fullbusy.napi, &polling);
        assert_eq!(recognised.mode, "fullbusy");
        assert!(recognised.note.unwrap().contains("interrupts while none does"));
    }
}
