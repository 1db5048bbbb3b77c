//! As many receive queues as the program has epoll contexts that receive from the device, or as many of them with
//! flows. A context on several NAPIs stalls under suspension, because Linux polls and suspends the one that it received
//! from last (`spans.rs`).
//!
//! Contexts count once packets of the device have come to their sockets, so that a listener's does not. The number of
//! queues is lowered when one of them receives from several NAPIs, and is raised when more contexts come, up to what it
//! was. Each change interrupts the device for a moment, so the number is never lowered a second time.

use std::collections::{BTreeMap, BTreeSet};

use crate::attach::Event;
use crate::channels::{receive_queues, set_receive_queues};
use crate::error::Result;
use crate::flows::{queues_with_flows, steer};
use crate::session::Session;

/// The looks during which no context has come, before the queues are changed.
const QUIET_LOOKS: u32 = 2;

/// What is done for contexts that receive from several NAPIs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OneNapi {
    /// As many receive queues as contexts (`ethtool -L`).
    Queues,
    /// Flows on as many receive queues as contexts (`ethtool -X`).
    Steer,
}

/// What is known of the program's contexts and the device's queues.
pub(super) struct Queues {
    means: OneNapi,
    /// How many queues there were, or how many with flows if these are what is changed.
    former: u32,
    rule: Rule,
}

impl Queues {
    /// For a device whose number of queues, or whose flows, can be set.
    ///
    /// # Errors
    /// The driver has no such setting.
    pub(super) fn of(session: &mut Session, means: OneNapi) -> Result<Queues> {
        let former = match means {
            OneNapi::Queues => receive_queues(session)?.1,
            OneNapi::Steer => queues_with_flows(session)?,
        };
        Ok(Queues { means, former, rule: Rule::default() })
    }

    /// Takes what a look has found, and sets what follows from it. What is refused is reported once.
    pub(super) fn look(&mut self, events: &[Event], session: &mut Session, say: &mut dyn FnMut(&str)) {
        if events.iter().any(|event| matches!(event, Event::Sockets(_)))
            && let Ok(snapshot) = session.snapshot()
        {
            self.rule.device_has(snapshot.napis.iter().map(|napi| napi.id));
        }
        let Some(wanted) = self.rule.look(events, self.former) else { return };
        let contexts = self.rule.contexts.len();
        let of = format!("{contexts} epoll context(s) of the program hear from {}", session.device().name);
        let changed = match self.means {
            OneNapi::Queues => set_receive_queues(session, wanted).map(|it| it.map(|change| change.to_string())),
            OneNapi::Steer => steer(session, wanted).map(|it| it.map(|change| change.to_string())),
        };
        match changed {
            Ok(Some(change)) => say(&format!("{change}, while it runs: {of}")),
            Ok(None) => say(&format!(
                "{of}, which has {wanted} such queue(s) already: what helps is one NAPI a context (workers by NAPI id, \
                 memcached -N), or `--one-napi timeout`"
            )),
            Err(error) => say(&error.to_string()),
        }
    }
}

/// Decides which number of queues is wanted.
#[derive(Default)]
struct Rule {
    /// The NAPIs that the device has or had, as a queue that is taken away takes its id along.
    napis: BTreeSet<u32>,
    /// The contexts that have received from them, by process and descriptor.
    contexts: BTreeMap<(i32, i32), BTreeSet<u32>>,
    quiet_looks: u32,
    /// What was wanted last.
    wanted: Option<u32>,
}

impl Rule {
    fn device_has(&mut self, napis: impl Iterator<Item = u32>) {
        self.napis.extend(napis);
    }

    /// The number of queues to have from now on, if it differs from the one before.
    fn look(&mut self, events: &[Event], former: u32) -> Option<u32> {
        self.quiet_looks += 1;
        for event in events {
            match event {
                Event::Sockets(on) => {
                    let here: BTreeSet<u32> =
                        on.by_napi.keys().copied().filter(|napi| self.napis.contains(napi)).collect();
                    if !here.is_empty() && self.contexts.insert((on.pid, on.fd), here).is_none() {
                        self.quiet_looks = 0;
                    }
                }
                Event::Ended { pid } => self.contexts.retain(|(of, _), _| of != pid),
                _ => {}
            }
        }
        let several = self.contexts.values().any(|napis| napis.len() > 1);
        if self.quiet_looks < QUIET_LOOKS || !(several || self.wanted.is_some()) {
            return None;
        }
        let contexts = u32::try_from(self.contexts.len()).unwrap_or(u32::MAX);
        let wanted = contexts.clamp(self.wanted.unwrap_or(1), former);
        (self.wanted != Some(wanted)).then(|| {
            self.wanted = Some(wanted);
            wanted
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attach::OnContext;

    fn hears(fd: i32, napis: &[u32]) -> Event {
        let by_napi = napis.iter().map(|&napi| (napi, vec![9])).collect();
        Event::Sockets(OnContext { pid: 7, fd, by_napi, ..OnContext::default() })
    }

    fn rule() -> Rule {
        let mut rule = Rule::default();
        rule.device_has([10, 11, 12, 13].into_iter());
        rule
    }

    /// What is wanted after an event and the looks that have to be quiet.
    fn after(rule: &mut Rule, events: &[Event]) -> Option<u32> {
        let first = rule.look(events, 4);
        assert_eq!(first, None, "more contexts may come in the next moment");
        (0..QUIET_LOOKS).find_map(|_| rule.look(&[], 4))
    }

    #[test]
    fn as_many_queues_as_contexts_and_more_when_more_come() {
        let mut rule = rule();
        assert_eq!(after(&mut rule, &[hears(3, &[10, 12])]), Some(1));
        assert_eq!(after(&mut rule, &[hears(4, &[10]), hears(5, &[10])]), Some(3));
        assert_eq!(after(&mut rule, &[hears(6, &[10]), hears(7, &[10]), hears(8, &[10])]), Some(4), "as there were");
        assert_eq!(after(&mut rule, &[hears(9, &[10])]), None);
    }

    #[test]
    fn contexts_with_one_napi_each_are_left_alone_and_so_are_other_devices() {
        let mut rule = rule();
        assert_eq!(after(&mut rule, &[hears(3, &[10]), hears(4, &[11]), hears(5, &[20, 21])]), None);
        // A listener's context has received nothing. Of the two others one receives from several NAPIs.
        assert_eq!(rule.look(&[hears(6, &[]), hears(3, &[10, 11])], 4), Some(2));
    }

    #[test]
    fn the_queues_are_never_lowered_twice() {
        let mut rule = rule();
        assert_eq!(after(&mut rule, &[hears(3, &[10, 12]), hears(4, &[11])]), Some(2));
        let ended = Event::Ended { pid: 7 };
        assert_eq!((0..4).find_map(|_| rule.look(std::slice::from_ref(&ended), 4)), None);
    }
}
