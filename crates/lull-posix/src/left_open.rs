//! Tells the peers of a process that ended without closing its connections: they are reset, as the kernel resets those
//! of its own sockets.
//!
//! Only addresses and ports are known, not where the streams stood. So each peer is sent a SYN from the connection's own port. A
//! peer that still has the connection answers with a challenge ACK (RFC 5961 section 4.2), which says where it stands; that gets a
//! reset with just that number (RFC 9293 section 3.10.7.3), and is all. A peer that has it no more refuses the SYN, and one that is
//! gone answers nothing.
//!
//! The launcher does this for a program's last process. While others go on, one of those does it, in a thread of its
//! own: it has a network already, and what comes to another process and is nobody's is passed on to it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::Builder;
use std::time::{Duration, Instant};

use lull_net::{ConnectOptions, Network, Ready, TcpStream};

use crate::Flows;

/// How many are told at a time.
const BATCH: usize = 1024;
/// How long one batch has: a SYN that was answered by a challenge is sent again after a second.
const BATCH_TIME: Duration = Duration::from_secs(3);
const LOOK_EVERY: Duration = Duration::from_millis(2);
/// It opens connections, and waits.
const STACK_BYTES: usize = 512 << 10;

/// Resets connections whose own and peer's addresses are given. Returns how many peers said that they are rid of theirs `within` that
/// time: who is silent has no more of it than leaves others theirs.
pub fn reset(network: &Network, connections: &[(SocketAddr, SocketAddr)], within: Duration) -> usize {
    let (began, batches) = (Instant::now(), connections.chunks(BATCH));
    let left = (1..=batches.len()).rev();
    let batches = batches.zip(left);
    batches.map(|(batch, left)| reset_batch(network, batch, share(within.saturating_sub(began.elapsed()), left))).sum()
}

/// The time of the next of so many batches.
fn share(left: Duration, batches: usize) -> Duration {
    (left / u32::try_from(batches).unwrap_or(u32::MAX)).min(BATCH_TIME)
}

fn reset_batch(network: &Network, batch: &[(SocketAddr, SocketAddr)], within: Duration) -> usize {
    let options = ConnectOptions { only_to_reset: true, ..ConnectOptions::default() };
    let start = |(own, peer): &(SocketAddr, SocketAddr)| {
        // The pair may be in use again: then the peer knows that the former connection is over.
        TcpStream::start_connect(network, Some(*own), *peer, options).ok()
    };
    let mut asked: Vec<TcpStream> = batch.iter().filter_map(start).collect();
    let all = asked.len();
    let until = Instant::now() + within;
    while !asked.is_empty() && Instant::now() < until {
        std::thread::sleep(LOOK_EVERY);
        asked.retain(|stream| !is_told(stream));
    }
    all - asked.len()
}

/// Whether the peer has nothing of the former connection any more.
fn is_told(stream: &TcpStream) -> bool {
    let ready = stream.ready();
    if ready.contains(Ready::WRITABLE) {
        // It had none, and listens on that port: what came about ends with its socket.
        drop(stream.set_reset_on_close(true));
    }
    ready.intersects(Ready::ERR | Ready::HUP | Ready::WRITABLE)
}

/// Sees to connections of the program's other processes that ended, for as long as this one lives, which has `queue`.
pub(crate) fn see_to_those_of_others(network: Network, flows: Arc<Flows>, queue: u32) -> std::io::Result<()> {
    let see_to = move || {
        loop {
            let times = flows.times_orphaned();
            let orphans = flows.take_over(queue);
            if orphans.is_empty() {
                flows.wait_for_orphans(times);
                continue;
            }
            let addresses: Vec<_> = orphans.iter().map(|(addresses, _)| *addresses).collect();
            reset(&network, &addresses, Duration::MAX);
            orphans.into_iter().for_each(|(_, taken)| flows.closed(taken));
        }
    };
    Builder::new().name("lull-left-open".to_owned()).stack_size(STACK_BYTES).spawn(see_to).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A table that is full of peers that are silent.
    #[test]
    fn silent_peers_take_no_more_time_than_there_is_for_all() {
        let (all, batches) = (Duration::from_secs(9), crate::flows::FLOWS_MAX / BATCH);
        let mut left = all;
        (1..=batches).rev().for_each(|batches| left -= share(left, batches));
        assert_eq!((share(all, 1), share(all, 2)), (BATCH_TIME, BATCH_TIME));
        assert!(share(all, batches) >= Duration::from_millis(100) && left < Duration::from_millis(100), "{left:?}");
        assert_eq!(share(Duration::MAX, batches), BATCH_TIME);
    }
}
