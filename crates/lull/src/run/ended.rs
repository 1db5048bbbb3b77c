//! Processes of the program that end while it goes on: what they leave open is said to be nobody's, and told to the peers.

use std::net::SocketAddr;

use lull_net::NetworkConfig;
use lull_posix::Flows;
use lull_posix::flows::{LAUNCHER, Orphan};

use super::nic::Asked;
use super::peers;
use super::queues::Queues;

/// For so many looks another process may take a queue, and tell the peers itself, before the launcher does: one that comes meanwhile
/// has to wait for it.
const LOOKS: u32 = 5;

/// Where a line goes.
pub(in crate::run) type Log = Box<dyn Fn(&str) + Send>;

/// Sees to connections that processes leave open.
pub(in crate::run) struct Ended {
    nic: Asked,
    network: NetworkConfig,
    /// The queues that had a process at the last look.
    held: Vec<bool>,
    /// How many connections had been opened by then.
    opened: u32,
    /// There may be connections that are nobody's, and so many looks found no process with a queue.
    lonely: Option<u32>,
    log: Log,
}

impl Ended {
    /// Of a program that has nothing yet. `network` is its own, on a NIC with so many queues; `log` is told of what peers were told.
    pub(in crate::run) fn new(nic: Asked, network: NetworkConfig, queues: usize, log: Log) -> Ended {
        Ended { nic, network, held: vec![false; queues], opened: 0, lonely: None, log }
    }

    /// Sees to what those have left that ended since the last look.
    pub(in crate::run) fn look(&mut self, flows: &Flows, queues: &mut Queues) {
        let numbers = 0..self.held.len() as u32;
        let held: Vec<bool> = numbers.clone().map(|queue| flows.holder(queue).is_some()).collect();
        let opened = flows.opened_so_far();
        // One that came and went between two looks was never seen to hold its queue.
        if held != self.held || opened != self.opened {
            let has_nobody = |queue: &u32| flows.holder(*queue).is_none();
            // If another process is just taking a queue, the next look sees to it.
            let seen = flows.if_alone(|| flows.ended(&numbers.filter(has_nobody).collect::<Vec<u32>>()));
            self.lonely = self.lonely.or(Some(0));
            if seen.is_some() {
                (self.held, self.opened) = (held.clone(), opened);
            }
        }
        self.lonely = match self.lonely {
            Some(looks) if !held.contains(&true) && flows.has_orphans() => Some(looks + 1),
            // Whoever has a queue tells the peers, and leaves what it has not told them if it ends.
            _ => None,
        };
        if self.lonely.is_some_and(|looks| looks >= LOOKS) {
            self.lonely = flows.if_alone(|| self.tell(flows, queues)).map_or(self.lonely, |()| None);
        }
    }

    /// Nobody takes a queue meanwhile.
    fn tell(&self, flows: &Flows, queues: &mut Queues) {
        if (0..self.held.len() as u32).any(|queue| flows.holder(queue).is_some()) {
            return;
        }
        let orphans = flows.take_over(LAUNCHER);
        let addresses: Vec<(SocketAddr, SocketAddr)> = orphans.iter().map(|(addresses, _)| *addresses).collect();
        let network = NetworkConfig {
            neighbours: self.nic.neighbours(),
            elsewhere: peers::Between::on(self.held.len()),
            ..self.network.clone()
        };
        // What fails is done at the program's end, when its failure is told: the connections stay in the table.
        let told = queues.whole().and_then(|device| peers::reset(device, network, &addresses));
        queues.taken_back();
        if let Ok(told) = told {
            (self.log)(&peers::left(addresses.len(), told));
            orphans.into_iter().for_each(|(_, taken): Orphan| flows.closed(taken));
        }
    }
}
