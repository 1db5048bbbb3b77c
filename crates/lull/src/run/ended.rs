//! Processes of the program that end while it goes on: the connections that they leave open are marked as nobody's, and
//! their peers are told.

use std::net::SocketAddr;

use lull_net::NetworkConfig;
use lull_posix::Flows;
use lull_posix::flows::{LAUNCHER, Orphan};

use super::nic::Asked;
use super::peers;
use super::queues::Queues;
use crate::failure::Failure;

/// For this many looks another process may take a queue and tell the peers itself, before the launcher does it. While
/// the launcher tells them, a process that comes has to wait.
const LOOKS: u32 = 5;
/// The largest number of looks, after repeated failures: each failure doubles the number.
const LOOKS_MAX: u32 = 640;

/// Takes a line for the log.
pub(in crate::run) type Log = Box<dyn Fn(&str) + Send>;

/// Takes care of connections that processes leave open.
pub(in crate::run) struct Ended {
    nic: Asked,
    network: NetworkConfig,
    /// Whether each queue had a process at the last look.
    held: Vec<bool>,
    /// How many connections had been opened by the last look.
    opened: u32,
    /// If there may be connections that are nobody's: the number of looks since then that found no process with a
    /// queue.
    lonely: Option<u32>,
    /// The number of such looks after which the launcher tells the peers.
    due: u32,
    log: Log,
}

impl Ended {
    /// Makes the record of a program that has no connections yet. `network` is the program's, on a NIC with `queues`
    /// queues; `log` is told what the peers were told.
    pub(in crate::run) fn new(nic: Asked, network: NetworkConfig, queues: usize, log: Log) -> Ended {
        Ended { nic, network, held: vec![false; queues], opened: 0, lonely: None, due: LOOKS, log }
    }

    /// Takes care of what processes have left that ended since the last look.
    pub(in crate::run) fn look(&mut self, flows: &Flows, queues: &mut Queues) {
        let numbers = 0..self.held.len() as u32;
        let held: Vec<bool> = numbers.clone().map(|queue| flows.holder(queue).is_some()).collect();
        let opened = flows.opened_so_far();
        // A process that came and went between two looks was never seen to hold its queue.
        if held != self.held || opened != self.opened {
            let has_nobody = |queue: &u32| flows.holder(*queue).is_none();
            // If another process is just taking a queue, the next look does this.
            let seen = flows.if_alone(|| flows.ended(&numbers.filter(has_nobody).collect::<Vec<u32>>()));
            self.lonely = self.lonely.or(Some(0));
            if seen.is_some() {
                (self.held, self.opened) = (held.clone(), opened);
            }
        }
        self.lonely = match self.lonely {
            Some(looks) if !held.contains(&true) && flows.has_orphans() => Some(looks + 1),
            // If a process has a queue it tells the peers, and if it ends before it has, the rest is nobody's again.
            _ => None,
        };
        if self.lonely.is_none() {
            // Another process has told the peers meanwhile, or has the connections that a failed attempt left.
            self.due = LOOKS;
        }
        if self.lonely.is_some_and(|looks| looks >= self.due) {
            match flows.if_alone(|| self.tell(flows, queues)) {
                Some(true) => (self.lonely, self.due) = (None, LOOKS),
                Some(false) => (self.lonely, self.due) = (Some(0), (self.due * 2).min(LOOKS_MAX)),
                None => {}
            }
        }
    }

    /// Tells the peers, while no process can take a queue. Returns false if this has failed.
    fn tell(&self, flows: &Flows, queues: &mut Queues) -> bool {
        if (0..self.held.len() as u32).any(|queue| flows.holder(queue).is_some()) {
            return true;
        }
        let network = NetworkConfig {
            neighbours: self.nic.neighbours(),
            elsewhere: peers::Between::on(self.held.len()),
            ..self.network.clone()
        };
        tell_by(flows, &self.log, |addresses| {
            let told = queues.whole().and_then(|device| peers::reset(device, network, addresses));
            queues.taken_back();
            told
        })
    }
}

/// Has `reset` tell the peers of connections that are nobody's; returns false if that has failed. Then the connections
/// stay in the table and are nobody's again: a process that takes a queue tells their peers, or the launcher does
/// later, at the latest at the program's end, when a failure is printed.
fn tell_by(
    flows: &Flows,
    log: &Log,
    reset: impl FnOnce(&[(SocketAddr, SocketAddr)]) -> Result<usize, Failure>,
) -> bool {
    let orphans = flows.take_over(LAUNCHER);
    let addresses: Vec<(SocketAddr, SocketAddr)> = orphans.iter().map(|(addresses, _)| *addresses).collect();
    let told = reset(&addresses);
    match &told {
        Ok(told) => {
            log(&peers::left(addresses.len(), *told));
            orphans.into_iter().for_each(|(_, taken): Orphan| flows.closed(taken));
        }
        Err(_) => flows.ended(&[LAUNCHER]),
    }
    told.is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fails_puts_off_the_same_peers_alone() {
        let flows = Flows::create().unwrap();
        let (nic, log): (Asked, Log) =
            (Asked::Tap { config: lull_nic::tap::TapConfig::default(), peer: None }, Box::new(|_| ()));
        let mut ended = Ended::new(nic, NetworkConfig::default(), 1, log);
        // There is no device in this test.
        let mut queues = Queues::Unshared(Vec::new());
        let at = |port| SocketAddr::new("10.0.0.2".parse().unwrap(), port);
        let _left = flows.opened(at(80), at(4096), 0).unwrap();
        while ended.due == LOOKS {
            ended.look(&flows, &mut queues);
        }
        assert_eq!(ended.due, 2 * LOOKS);
        // This is what a process does that takes the queue.
        flows.take_over(1).into_iter().for_each(|(_, taken)| flows.closed(taken));
        ended.look(&flows, &mut queues);
        assert_eq!(ended.due, LOOKS);
    }

    #[test]
    fn what_the_launcher_fails_to_tell_is_nobodys_until_somebody_tells_it() {
        let flows = Flows::create().unwrap();
        let at = |port| SocketAddr::new("10.0.0.2".parse().unwrap(), port);
        let _left = flows.opened(at(80), at(4096), 0).unwrap();
        flows.ended(&[0]);
        let log: Log = Box::new(|_| ());
        assert!(!tell_by(&flows, &log, |_| Err("there is no device just now".into())));
        assert!(flows.has_orphans(), "a look later finds it");
        let taken = flows.take_over(1);
        assert_eq!(taken.len(), 1, "a process that takes a queue has it to tell");
        flows.ended(&[1]);
        assert!(tell_by(&flows, &log, |addresses| Ok(addresses.len())));
        assert!(!flows.has_orphans() && flows.all().is_empty());
    }
}
