//! Epoll contexts whose sockets hear from several NAPIs, what that costs, and what helps (napi_semantics §13, edges 15
//! to 17).
//!
//! A context polls and suspends one NAPI, that of the socket that woke it last. The others were suspended when it turned
//! away from them and stay so: their packets wait until `irq_suspend_timeout` has passed, or until the context comes
//! round to them by chance. Programs with one event loop (redis, node, haproxy) are so on every device with several
//! queues. It is Linux's rule, so what helps is elsewhere: fewer queues, steering, or a shorter timeout.

use std::collections::BTreeSet;
use std::fmt;

use crate::programs::EpollContext;

/// `irq_suspend_timeout` for contexts on several NAPIs: long enough for a batch of 64 requests of 10 us, and a twentieth
/// of the published one.
pub const SHORT_SUSPEND_TIMEOUT_NS: u64 = 1_000_000;

/// A context that hears from several NAPIs.
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
    /// The context, if it hears from several.
    pub fn of(pid: i32, fd: i32, napis: impl IntoIterator<Item = u32>) -> Option<Span> {
        // 0 stands for sockets that have not heard from any.
        let napis: BTreeSet<u32> = napis.into_iter().filter(|&napi| napi != 0).collect();
        (napis.len() > 1).then_some(Span { pid, fd, napis })
    }

    /// What helps, as commands.
    pub fn remedy(&self) -> &'static str {
        "one NAPI a context: as many queues as contexts (ethtool -L DEV combined N), the program's flows steered to one \
         queue (ethtool -X or -N), workers by NAPI id (memcached -N); or a shorter stall: `lull run --one-napi timeout`, \
         `lull apply --irq-suspend-timeout 1ms`"
    }
}

/// The contexts that hear from several NAPIs.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::programs::EpollSocket;

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
