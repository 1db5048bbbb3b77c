//! Builds the state at time 0 from a world's description.

use lull_core::{EpollBusy, NAPI_ID_MIN, Threaded};

use crate::engine::app::epoll_worker::EpollWorker;
use crate::engine::app::ksoftirqd::Ksoftirqd;
use crate::engine::app::napi_thread::NapiThreadProgram;
use crate::engine::app::peer::Peer;
use crate::engine::app::udp_sink::UdpSink;
use crate::engine::app::vhost::{VcpuThread, Vhost};
use crate::engine::app::xsk_responder::XskResponder;
use crate::engine::client::{Connection, Source};
use crate::engine::epoll::Context;
use crate::engine::flood::Flood;
use crate::engine::id::{ContextId, CpuId, FlowId, Id, QueueId, SourceId};
use crate::engine::nic::Queue;
use crate::engine::relay::Relay;
use crate::engine::rng::{Component, Stream};
use crate::engine::sim::Sim;
use crate::engine::socket::Socket;
use crate::engine::vcpu::Vcpu;
use crate::engine::xsk::Xsk;

impl Sim {
    /// Makes everything that the world describes, and starts the load.
    pub(super) fn build(&mut self, seed: u64) {
        for cpu in self.cpus.ids() {
            let thread = self.spawn(cpu, Box::new(Ksoftirqd { cpu }));
            self.cpus[cpu].ksoftirqd = Some(thread);
        }
        for spec in self.env.world.queues.clone() {
            let queue = Queue::new(self.nic.queues.next(), &spec);
            queue.napi.enable(NAPI_ID_MIN + queue.napi.index(), None);
            let queue = self.nic.queues.push(queue);
            if spec.may_have_thread() {
                let cpu = CpuId::new(spec.thread_cpu);
                let thread = self.spawn(cpu, Box::new(NapiThreadProgram::new(queue, cpu)));
                self.nic.queues[queue].thread = Some(thread);
            }
        }
        for spec in &self.env.world.contexts {
            let ep = EpollBusy::new(&self.env.world.sysctl, spec.options);
            // The author of a world may set any parameters, with every privilege.
            let _ = ep.set_params(&spec.params, true);
            self.contexts.push(Context::new(ep));
        }
        self.build_connections(seed);
        self.build_sockets();
        for queue in self.nic.queues.ids() {
            self.nic.unmask(&mut self.env, &mut self.cpus, queue);
            if self.nic.queues[queue].spec.napi.threaded == Threaded::BusyPoll {
                self.start_busy_thread(queue);
            }
        }
        self.build_groups();
        self.build_applications();
        self.build_flood(seed);
        for spec in self.env.world.xsk_threads.clone() {
            self.start(CpuId::new(spec.cpu), Box::new(XskResponder::new(spec)));
        }
        for cpu in self.cpus.ids() {
            self.cpus.dispatch(&mut self.env, cpu);
        }
        self.clients.start(&mut self.env);
        if let Some(flood) = &self.flood {
            flood.start(&mut self.env);
        }
    }

    /// Makes the connections of the load, each on its queue and with its context.
    fn build_connections(&mut self, seed: u64) {
        for (index, spec) in self.env.world.connections.clone().iter().enumerate() {
            let first = self.clients.connections.next();
            let (queue, context) = (QueueId::new(spec.queue), ContextId::new(spec.context));
            // Packets of noise wake nobody, so they need no context.
            let context = (context.place() < self.contexts.len()).then_some(context);
            for _ in 0..spec.count {
                self.clients.connections.push(Connection::new(queue, context, Some(SourceId::at(index))));
            }
            let rng = Stream::new(seed, Component::Load, index as u32);
            let traced_to = Stream::new(seed, Component::Load, u32::MAX);
            self.clients.sources.push(Source::new(first, spec.count, spec.traffic, rng, traced_to));
            if let Some(context) = context
                && spec.count > 0
            {
                // EPOLL_CTL_ADD notes the socket's NAPI.
                let _ = self.contexts[context].ep.note_napi(self.nic.queues[queue].napi.id());
            }
        }
    }

    /// Makes the sockets of single receivers, and those for whole frames.
    fn build_sockets(&mut self) {
        self.ends.first_socket = self.clients.connections.next();
        for spec in &self.env.world.sockets {
            self.clients.connections.push(Connection::new(QueueId::new(spec.queue), None, None));
            self.ends.sockets.push(Socket::new(spec, &self.env.world.sysctl));
        }
        self.ends.first_xsk = self.clients.connections.next();
        for spec in self.env.world.xsks.clone() {
            let (queue, context) = (QueueId::new(spec.queue), spec.context.map(ContextId::new));
            self.clients.connections.push(Connection::new(queue, context, None));
            if let Some(context) = context {
                // EPOLL_CTL_ADD notes the NAPI that the socket got when it was bound.
                let _ = self.contexts[context].ep.note_napi(self.nic.queues[queue].napi.id());
            }
            let xsk = self.ends.xsks.push(Xsk::new(&spec, &self.env.world.sysctl));
            self.nic.queues[queue].xsk = Some(xsk);
        }
    }

    /// Makes the threads that wait on contexts, and the ends of pairs.
    fn build_applications(&mut self) {
        for spec in self.env.world.workers.clone() {
            let (context, cpu) = (ContextId::new(spec.context), CpuId::new(spec.cpu));
            let worker = EpollWorker::new(context, cpu, spec.timeout_ns, spec.events_max);
            let thread = self.start(cpu, Box::new(worker));
            self.cpus.threads[thread].moves = self.env.world.cores.workers_move;
        }
        for spec in self.env.world.peers.clone() {
            self.start(CpuId::new(spec.cpu), Box::new(Peer::new(&spec)));
        }
    }

    /// Makes groups, which poll their members from the start.
    fn build_groups(&mut self) {
        for spec in self.env.world.groups.clone() {
            let group = self.new_group(spec.config);
            let cpus = spec.cpus;
            for &cpu in &cpus {
                if let Err(refused) = self.group_attach(group, CpuId::new(cpu)) {
                    panic!(
                        "a world's groups name each CPU once, and CPU {cpu} of group {group} is refused: {refused:?}"
                    );
                }
            }
            for member in spec.members {
                let (queue, by) = (QueueId::new(member.queue), CpuId::new(cpus[0]));
                if let Err(refused) = self.group_enter(group, queue, member.weight, by) {
                    panic!("a world's groups name each idle queue once, and queue {queue} is refused: {refused:?}");
                }
            }
        }
    }

    /// Makes the guest's CPU, the relay to it, and the flood with its sinks.
    fn build_flood(&mut self, seed: u64) {
        if let Some(spec) = self.env.world.vcpu.clone() {
            let thread = self.start(CpuId::new(spec.host_cpu), Box::new(VcpuThread));
            self.cpus.vcpu = Some(Vcpu::new(&spec, thread));
        }
        if let Some(spec) = self.env.world.relay.clone() {
            let thread = self.start(CpuId::new(spec.cpu), Box::new(Vhost::new()));
            self.relay = Some(Relay::new(&spec, thread));
        }
        if let Some(spec) = self.env.world.flood.clone() {
            self.flood = Some(Flood::new(&spec, self.clients.connections.next(), seed));
            for flow in 0..spec.flows {
                self.clients.connections.push(Connection::new(QueueId::new(spec.queues[0]), None, None));
                self.start(CpuId::new(spec.sink_cpu), Box::new(UdpSink::new(FlowId::new(flow))));
            }
        }
    }

    /// Starts a busy-polling thread, which exists from the start: enabling such an instance schedules it once, and the
    /// thread never releases it.
    fn start_busy_thread(&mut self, queue: QueueId) {
        let cpu = CpuId::new(self.nic.queues[queue].spec.thread_cpu);
        self.nic.schedule(&mut self.env, &mut self.cpus, queue, cpu);
    }
}
