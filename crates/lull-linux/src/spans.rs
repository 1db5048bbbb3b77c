//! Epoll contexts whose sockets receive from several NAPIs, what that costs, and what helps (napi_semantics §13, edges
//! 15 to 17).
//!
//! A context polls and suspends one NAPI, that of the socket that woke it last. The others were suspended when it
//! turned away from them, and stay suspended. Their packets wait until `irq_suspend_timeout` has passed, or until the
//! context comes back to them by chance. Programs with one event loop (redis, node, haproxy) are in this state on every
//! device with several queues. It is Linux's rule, so what helps is elsewhere: fewer queues, steering, or a shorter
//! timeout.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::Serialize;

use crate::device::NapiState;
use crate::error::Result;
use crate::programs::{EpollContext, name_of, polling};
use crate::roots::Roots;
use crate::sched::shown_ns;
use crate::session::Session;
use crate::values::Values;

/// The `irq_suspend_timeout` for contexts on several NAPIs. It is long enough for a batch of 64 requests of 10 us, and
/// a twentieth of the published one.
pub const SHORT_SUSPEND_TIMEOUT_NS: u64 = 1_000_000;

/// A context that receives from several NAPIs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    /// The process.
    pub pid: i32,
    /// The descriptor of the context.
    pub fd: i32,
    /// The NAPIs.
    pub napis: BTreeSet<u32>,
}

impl Span {
    /// The context, if it receives from several.
    pub fn of(pid: i32, fd: i32, napis: impl IntoIterator<Item = u32>) -> Option<Span> {
        // 0 stands for sockets that have received from none.
        let napis: BTreeSet<u32> = napis.into_iter().filter(|&napi| napi != 0).collect();
        (napis.len() > 1).then_some(Span { pid, fd, napis })
    }

    /// What helps, as commands.
    pub fn remedy(&self) -> &'static str {
        REMEDY
    }
}

/// What helps, as commands.
const REMEDY: &str = "one NAPI a context: as many queues as contexts (ethtool -L DEV combined N), the program's flows steered to one \
     queue (ethtool -X or -N), workers by NAPI id (memcached -N); or by lull: `lull run --one-napi queues`, `lull run --one-napi timeout`, \
     `lull apply --irq-suspend-timeout 1ms`";

/// A program that busy polls, or prefers to, with contexts that receive from several NAPIs of which some belong to one
/// device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SpanningProgram {
    /// The process.
    pub pid: i32,
    /// Its name.
    pub name: String,
    /// The contexts by their descriptors, with the NAPIs that they receive from.
    pub contexts: BTreeMap<i32, BTreeSet<u32>>,
    /// The longest that packets wait on the device's NAPIs: `irq_suspend_timeout` where they suspend, otherwise
    /// `gro_flush_timeout`.
    pub wait_ns: u64,
    /// Whether that is `irq_suspend_timeout`.
    pub suspends: bool,
}

impl SpanningProgram {
    /// What helps, as commands.
    pub fn remedy(&self) -> &'static str {
        REMEDY
    }
}

impl fmt::Display for SpanningProgram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let several = |(fd, napis): (&i32, &BTreeSet<u32>)| {
            let napis: Vec<String> = napis.iter().map(u32::to_string).collect();
            format!("descriptor {fd} from {}", napis.join(", "))
        };
        let contexts: Vec<String> = self.contexts.iter().map(several).collect();
        let timer = if self.suspends { "irq_suspend_timeout" } else { "gro_flush_timeout" };
        write!(
            f,
            "{} (pid {}) hears from several NAPIs on {} of its epoll contexts ({}), and a context polls only the one it \
             heard from last; the packets of the others wait for up to {timer} ({})",
            self.name,
            self.pid,
            contexts.len(),
            contexts.join("; "),
            shown_ns(self.wait_ns)
        )
    }
}

/// The programs that busy poll on a device with contexts that receive from several NAPIs, under its present settings. A
/// device that neither suspends nor defers has none, as its interrupts serve the NAPIs that are not polled.
///
/// # Errors
/// Those of [`Session::snapshot`].
pub fn programs_on(session: &mut Session) -> Result<Vec<SpanningProgram>> {
    let snapshot = session.snapshot()?;
    if snapshot.napis.iter().all(|napi| wait(&napi.settings).is_none()) {
        return Ok(Vec::new());
    }
    Ok(spanning(&polling(session.roots()).contexts, &snapshot.napis, session.roots()))
}

/// One entry for each program, in the order of their numbers.
pub(crate) fn spanning(contexts: &[EpollContext], napis: &[NapiState], roots: &Roots) -> Vec<SpanningProgram> {
    let mut programs: BTreeMap<i32, SpanningProgram> = BTreeMap::new();
    for span in spans(contexts) {
        let here = napis.iter().filter(|napi| span.napis.contains(&napi.id));
        let Some((wait_ns, suspends)) = here.filter_map(|napi| wait(&napi.settings)).max() else { continue };
        let program = programs.entry(span.pid).or_insert_with(|| SpanningProgram {
            pid: span.pid,
            name: name_of(span.pid, roots),
            contexts: BTreeMap::new(),
            wait_ns,
            suspends,
        });
        (program.wait_ns, program.suspends) = (program.wait_ns, program.suspends).max((wait_ns, suspends));
        program.contexts.insert(span.fd, span.napis);
    }
    programs.into_values().collect()
}

/// For how long packets may wait on a NAPI that a context has turned away from, and whether suspension is the reason.
/// This is the timer that the context's last busy poll has left (`ep_suspend_napi_irqs`, `busy_poll_stop`).
fn wait(settings: &Values) -> Option<(u64, bool)> {
    match settings.irq_suspend_timeout_ns {
        0 => settings.defers().then_some((settings.gro_flush_timeout_ns, false)),
        suspended => Some((suspended, true)),
    }
}

/// The contexts that receive from several NAPIs.
pub fn spans(contexts: &[EpollContext]) -> Vec<Span> {
    let of = |it: &EpollContext| Span::of(it.pid, it.fd, it.sockets.iter().map(|socket| socket.napi_id));
    contexts.iter().filter_map(of).collect()
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let napis: Vec<String> = self.napis.iter().map(u32::to_string).collect();
        write!(
            f,
            "process {} descriptor {}: its connections come from {} NAPIs ({}), and a context polls and suspends only the \
             one it heard from last; the packets of the others wait for up to irq_suspend_timeout (20 ms in suspendX)",
            self.pid,
            self.fd,
            napis.len(),
            napis.join(", ")
        )
    }
}

/// The timer that runs from one busy poll to the next, if one does.
pub(crate) fn timer_ns(settings: &Values) -> Option<u64> {
    wait(settings).map(|(timer_ns, _)| timer_ns)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::programs::EpollSocket;

    fn napi(id: u32, settings: lull_core::NapiSettings) -> NapiState {
        let settings = settings.into();
        let (key, unreported) = (crate::device::QueueKey::Rx(id), Default::default());
        NapiState { key, rx: vec![id], tx: Vec::new(), id, irq: None, thread: None, settings, unreported }
    }

    #[test]
    fn a_program_is_named_once_with_the_wait_that_the_settings_make() {
        let context = |pid, fd, napis: &[u32]| EpollContext {
            pid,
            fd,
            params: lull_core::EpollParams::default(),
            sockets: napis.iter().map(|&napi_id| EpollSocket { fd: 9, napi_id }).collect(),
        };
        let contexts = [context(7, 4, &[8, 9]), context(7, 5, &[9, 8]), context(7, 6, &[8]), context(8, 3, &[20, 21])];
        let nowhere = Roots { sys: "/nowhere".into(), proc: "/nowhere".into() };
        let found = |mode: &str| {
            let mode: lull_core::Mode = mode.parse().unwrap();
            spanning(&contexts, &[napi(8, mode.napi), napi(9, mode.napi)], &nowhere)
        };
        let suspended = found("suspend20");
        assert_eq!(suspended.len(), 1, "one line a program, and none of another device: {suspended:?}");
        let said = suspended[0].to_string();
        for words in ["(pid 7)", "2 of its epoll contexts", "4 from 8, 9; descriptor 5", "irq_suspend_timeout (20ms)"] {
            assert!(said.contains(words), "{said}");
        }
        let deferred = found("napibusy");
        assert!(deferred[0].to_string().contains("gro_flush_timeout (200us)"), "{}", deferred[0]);
        assert!(found("base").is_empty());
    }

    #[test]
    fn only_contexts_with_several_napis_are_found() {
        let context = |fd, napis: &[u32]| EpollContext {
            pid: 7,
            fd,
            params: lull_core::EpollParams::default(),
            sockets: napis.iter().map(|&napi_id| EpollSocket { fd: 9, napi_id }).collect(),
        };
        let found = spans(&[context(3, &[0, 0]), context(4, &[0, 8193, 8193]), context(5, &[8194, 0, 8193, 8194])]);
        assert_eq!(found, [Span { pid: 7, fd: 5, napis: BTreeSet::from([8193, 8194]) }]);
        let said = found[0].to_string();
        assert!(said.contains("2 NAPIs (8193, 8194)") && said.contains("20 ms"), "{said}");
    }
}
