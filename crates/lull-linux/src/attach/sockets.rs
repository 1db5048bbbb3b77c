//! The sockets on an epoll context, and what keeps busy polling from working there.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;

use rustix::net::{AddressFamily, getpeername, getsockname, sockopt};
use serde::Serialize;

use crate::error::Result;
use crate::programs::Process;
use crate::spans::Span;

/// The sockets on an epoll context.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct OnContext {
    /// The process.
    pub pid: i32,
    /// The descriptor of the context.
    pub fd: i32,
    /// Descriptors of sockets, by the NAPI that delivered their last packet.
    pub by_napi: BTreeMap<u32, Vec<i32>>,
    /// Connections over devices that report no NAPI id for them, although there should be one.
    pub without_napi: Vec<i32>,
    /// Sockets of which no id is expected: listeners, Unix sockets, connections over loopback, and sockets that have
    /// received nothing.
    pub others: usize,
}

impl OnContext {
    /// Looks at the sockets of one context.
    ///
    /// # Errors
    /// The process has ended, or the context is closed.
    pub(crate) fn look(process: &Process, fd: i32) -> Result<OnContext> {
        let mut found = OnContext { pid: process.pid(), fd, ..OnContext::default() };
        for socket in process.epoll(fd)?.sockets {
            if socket.napi_id != 0 {
                found.by_napi.entry(socket.napi_id).or_default().push(socket.fd);
            } else if should_have_one(process, socket.fd) {
                found.without_napi.push(socket.fd);
            } else {
                found.others += 1;
            }
        }
        Ok(found)
    }

    /// Whether packets have come to any of its sockets.
    pub fn has_traffic(&self) -> bool {
        !self.by_napi.is_empty() || !self.without_napi.is_empty()
    }

    /// What is wrong with this context by itself, in words.
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        let at = format!("process {} descriptor {}", self.pid, self.fd);
        if let Some(first) = self.without_napi.first() {
            warnings.push(format!(
                "{at}: {} connection(s), such as descriptor {first}, have no NAPI id, and nothing is busy polled \
                 for them; the peer of a veth needs `ethtool -K PEER tso off`, other devices a driver with NAPI ids",
                self.without_napi.len()
            ));
        }
        if let Some(span) = Span::of(self.pid, self.fd, self.by_napi.keys().copied()) {
            warnings.push(format!("{span}; what helps: {}", span.remedy()));
        }
        warnings
    }
}

/// Warnings about NAPIs from which several contexts receive.
pub(crate) fn shared_napis(contexts: &[&OnContext]) -> Vec<String> {
    let mut users: BTreeMap<u32, Vec<String>> = BTreeMap::new();
    for context in contexts {
        for &napi in context.by_napi.keys() {
            users.entry(napi).or_default().push(format!("{}:{}", context.pid, context.fd));
        }
    }
    let shared = users.into_iter().filter(|(_, users)| users.len() > 1);
    shared
        .map(|(napi, users)| {
            format!(
                "NAPI {napi} is heard from by {} epoll contexts (process:descriptor {}): the idle one ends the busy \
                 one's suspension; have as many workers as NAPIs, each with one",
                users.len(),
                users.join(", ")
            )
        })
        .collect()
}

impl fmt::Display for OnContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts: Vec<String> = Vec::new();
        for (napi, sockets) in &self.by_napi {
            parts.push(format!("{} socket(s) on NAPI {napi} ({})", sockets.len(), few(sockets)));
        }
        if !self.without_napi.is_empty() {
            parts.push(format!("{} with no NAPI id ({})", self.without_napi.len(), few(&self.without_napi)));
        }
        match self.others {
            0 if parts.is_empty() => parts.push("no socket now".to_owned()),
            0 => {}
            others => {
                parts.push(format!("{others} that no NAPI is expected of (listeners, loopback, nothing heard yet)"))
            }
        }
        write!(f, "process {} descriptor {} has {}", self.pid, self.fd, parts.join("; "))
    }
}

/// The first descriptors of a list, as a server may have thousands.
fn few(descriptors: &[i32]) -> String {
    const SHOWN: usize = 8;
    let shown: Vec<String> = descriptors.iter().take(SHOWN).map(i32::to_string).collect();
    let more = if descriptors.len() > SHOWN { ", ..." } else { "" };
    format!("descriptors {}{more}", shown.join(", "))
}

/// Whether a socket without a NAPI id is a connection that came over a device.
fn should_have_one(process: &Process, fd: i32) -> bool {
    let Ok(socket) = process.duplicate(fd) else { return false };
    let internet = |family| family == AddressFamily::INET || family == AddressFamily::INET6;
    if !sockopt::socket_domain(&socket).is_ok_and(internet) {
        return false;
    }
    let address = |named| SocketAddr::try_from(named).ok();
    let local = getsockname(&socket).ok().and_then(address);
    let peer = getpeername(&socket).ok().flatten().and_then(address);
    let (Some(local), Some(peer)) = (local, peer) else {
        return false;
    };
    // Packets between two addresses of this machine go over loopback.
    !peer.ip().is_loopback() && peer.ip() != local.ip()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_on_a_context_is_told_in_words_that_stand_alone() {
        let mut at = OnContext { pid: 7, fd: 5, ..OnContext::default() };
        assert_eq!(at.to_string(), "process 7 descriptor 5 has no socket now");
        at.others = 1;
        let listener = "1 that no NAPI is expected of (listeners, loopback, nothing heard yet)";
        assert_eq!(at.to_string(), format!("process 7 descriptor 5 has {listener}"));
        at.by_napi = [(12, vec![8, 9])].into();
        at.without_napi = vec![11];
        let told = "process 7 descriptor 5 has 2 socket(s) on NAPI 12 (descriptors 8, 9); 1 with no NAPI id (descriptors 11); ";
        assert_eq!(at.to_string(), told.to_owned() + listener);
    }

    fn context(fd: i32, napis: &[u32]) -> OnContext {
        let by_napi = napis.iter().map(|&napi| (napi, vec![fd * 10])).collect();
        OnContext { pid: 7, fd, by_napi, ..OnContext::default() }
    }

    #[test]
    fn contexts_that_disturb_each_other_are_named() {
        let warnings = shared_napis(&[&context(3, &[8193]), &context(4, &[8193]), &context(5, &[8194])]);
        assert_eq!(warnings.len(), 1);
        assert!(warnings[0].contains("NAPI 8193") && warnings[0].contains("7:3, 7:4"), "{warnings:?}");
    }

    #[test]
    fn a_context_with_several_napis_or_none_is_named() {
        assert!(context(3, &[8193]).warnings().is_empty());
        assert!(context(3, &[8193, 8194]).warnings()[0].contains("2 NAPIs (8193, 8194)"));
        let without = OnContext { without_napi: vec![9], ..context(3, &[]) };
        assert!(without.warnings()[0].contains("tso off"));
    }
}
