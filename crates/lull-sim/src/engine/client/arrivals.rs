//! When clients ask: open and closed loops, distributions of gaps, traces, noise.

use super::Clients;
use super::asking::Source;
use crate::engine::agenda::{Event, PacketKind};
use crate::engine::cpus::Cpus;
use crate::engine::env::Env;
use crate::engine::id::{ConnId, SourceId};
use crate::engine::nic::{Nic, Packet};
use crate::engine::traffic::GeneralizedPareto;
use crate::world::Traffic;

impl Clients {
    /// Starts the load.
    pub(crate) fn start(&mut self, env: &mut Env) {
        self.start_generators(env);
        for source in self.sources.ids() {
            let Source { count, traffic, .. } = self.sources[source];
            let connections = self.sources[source].connections();
            match traffic {
                Traffic::Open { per_s } | Traffic::Noise { per_s } | Traffic::Datagrams { per_s } => {
                    if per_s > 0.0 && count > 0 {
                        self.next_arrival(env, source, per_s);
                    }
                }
                Traffic::Renewal { per_s, .. } => {
                    for conn in connections {
                        if per_s > 0.0 {
                            self.next_request(env, source, conn, true);
                        }
                    }
                }
                Traffic::Trace { per_s } => {
                    if per_s > 0.0 && count > 0 {
                        self.next_of_trace(env, source, per_s);
                    }
                }
                Traffic::Closed => {
                    for (nth, conn) in connections.enumerate() {
                        // Clients connect one after the other; the first answers spread them further.
                        let spread_ns = (nth as u64 + 1) * 2_000;
                        self.connections[conn].backlog = 1;
                        env.agenda.push(env.now_ns + spread_ns, Event::Answer { conn });
                    }
                }
            }
        }
    }

    /// Plans the next arrival of the trace that is for a connection of this group. Every group goes through all
    /// arrivals, and all draw the same connection for each.
    fn next_of_trace(&mut self, env: &mut Env, source: SourceId, per_s: f64) {
        let is_traced = |source: &&Source| matches!(source.traffic, Traffic::Trace { .. });
        let connections: u32 = self.sources.iter().filter(is_traced).map(|source| source.count).sum();
        let Some(trace) = &env.world.trace else { return };
        let group = &mut self.sources[source];
        // Groups with a trace come first, so their connections are numbered from 0.
        let own = group.first.raw()..group.first.raw() + group.count;
        let at_ns = loop {
            let number = group.traced;
            group.traced += 1;
            if own.contains(&group.traced_to.below(connections)) {
                break trace.at_ns(number, per_s);
            }
        };
        env.agenda.push(at_ns.max(env.now_ns), Event::Issue { source });
    }

    fn next_arrival(&mut self, env: &mut Env, source: SourceId, per_s: f64) {
        let group = &mut self.sources[source];
        // Without a rate nothing comes until the rate changes.
        group.due_ns = (per_s > 0.0).then(|| env.now_ns + group.rng.exponential_ns(1e9 / per_s));
        if let Some(due_ns) = group.due_ns {
            env.agenda.push(due_ns, Event::Issue { source });
        }
    }

    /// Changes how much a group in an open loop, or one of noise, sends from now on. The next arrival is drawn again,
    /// which a Poisson process allows, since it has no memory.
    pub(crate) fn set_rate(&mut self, env: &mut Env, source: SourceId, new_per_s: f64) {
        if let Traffic::Open { per_s } | Traffic::Noise { per_s } = &mut self.sources[source].traffic {
            *per_s = new_per_s;
            self.next_arrival(env, source, new_per_s);
        }
    }

    /// Draws the next request of a connection with gaps of its own; the first of a run comes after the rest of a gap.
    fn next_request(&mut self, env: &mut Env, source: SourceId, conn: ConnId, first: bool) {
        let group = &mut self.sources[source];
        let Traffic::Renewal { per_s, shape } = group.traffic else { return };
        let gaps = GeneralizedPareto::with_mean(1e9 * f64::from(group.count) / per_s, shape);
        let gaps = if first { gaps.residual() } else { gaps };
        let gap_ns = gaps.draw(&mut group.rng) as u64;
        env.agenda.push(env.now_ns + gap_ns, Event::Request { conn });
    }

    /// The next request of a connection with gaps of its own.
    pub(crate) fn request_due(&mut self, env: &mut Env, conn: ConnId) {
        if env.faults.quiet {
            return;
        }
        if let Some(source) = self.connections[conn].source {
            self.next_request(env, source, conn, false);
        }
        self.request_or_wait(env, conn);
    }

    /// An arrival of an open loop: the connection issues it, or it waits for the answer to the one before.
    fn request_or_wait(&mut self, env: &mut Env, conn: ConnId) {
        let connection = &mut self.connections[conn];
        if connection.outstanding {
            connection.backlog += 1;
            self.backlog += 1;
            if env.world.counts_from_due {
                connection.due_ns.push_back(env.now_ns);
            }
        } else {
            self.issue(env, conn, env.now_ns);
        }
    }

    /// An arrival of an open loop, or a packet of noise.
    pub(crate) fn arrival(&mut self, env: &mut Env, cpus: &mut Cpus, nic: &mut Nic, source: SourceId) {
        if env.faults.quiet {
            return;
        }
        let group = &mut self.sources[source];
        let conn = ConnId::new(group.first.raw() + group.rng.below(group.count));
        let traffic = group.traffic;
        let is_poisson = matches!(traffic, Traffic::Open { .. } | Traffic::Noise { .. } | Traffic::Datagrams { .. });
        if is_poisson && group.due_ns != Some(env.now_ns) {
            return;
        }
        match traffic {
            Traffic::Open { per_s } => {
                self.next_arrival(env, source, per_s);
                self.request_or_wait(env, conn);
            }
            Traffic::Trace { per_s } => {
                self.next_of_trace(env, source, per_s);
                self.request_or_wait(env, conn);
            }
            Traffic::Noise { per_s } => {
                self.next_arrival(env, source, per_s);
                let queue = self.connections[conn].queue;
                let _ = nic.packet_arrives(env, cpus, queue, Packet::new(conn, PacketKind::Ack));
            }
            Traffic::Datagrams { per_s } => {
                self.next_arrival(env, source, per_s);
                env.tally.counts.issued += 1;
                let queue = self.connections[conn].queue;
                // A packet that is lost is not sent again.
                if nic.packet_arrives(env, cpus, queue, Packet::new(conn, PacketKind::Request)) {
                    self.inside += 1;
                }
            }
            Traffic::Renewal { .. } | Traffic::Closed => {}
        }
    }
}
