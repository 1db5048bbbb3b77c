//! The bench on AF_XDP: lull's stack on one end of a veth pair, the generator on the kernel's sockets at the other, each
//! end in a network namespace of its own.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use lull_host::pin_thread;
use lull_nic::xdp::{Xdp, XdpAddress, XdpConfig, XdpMode};

use super::kernel::pair::{Pair, ServerStack};
use super::measure::{Server, ServerConfig, epoll_note};
use super::window::pace;
use super::{Bench, BenchConfig, BenchError, Cores, PORT, Run, SERVICE_IP, group_note};
use crate::cell::RunResult;
use crate::load::Workload;
use crate::load::kernel::{KernelClient, KernelConfig};

/// A service on AF_XDP sockets, with a generator at the other end of a veth pair.
pub struct XdpBench {
    // In the order in which they have to go.
    client: KernelClient,
    server: Server,
    device: Arc<Xdp>,
    _pair: Pair,
    cores: Cores,
    config: BenchConfig,
}

impl XdpBench {
    /// Makes the namespaces and the pair, starts the service, stores the records, opens the connections.
    ///
    /// # Errors
    /// No root, more workers than cores, or what the device, the service or the generator meets.
    pub fn start(config: BenchConfig) -> Result<XdpBench, BenchError> {
        let cores = Cores::split(&config)?;
        let pair = Pair::make(config.queues(), ServerStack::Lull)?;
        let device = XdpConfig {
            name: pair.server.device().to_owned(),
            addresses: vec![XdpAddress { ip: SERVICE_IP.into(), is_hosts: false }],
            ..XdpConfig::default()
        };
        // What the device asks the kernel later it asks by sockets of that namespace.
        let device = Arc::new(pair.server.within(|| Xdp::open(&device))??);
        let server = Server::start(device.clone(), ServerConfig::of_bench(&config, &cores.service))?;
        let workload = Arc::new(Workload::new(config.workload)?);
        server.preload(&workload);
        let mut kernel = KernelConfig::new(SocketAddr::from((SERVICE_IP, PORT)), config.connections);
        kernel.threads = cores.generator.len().min(config.connections);
        kernel.spin = true;
        let connect = || KernelClient::connect(kernel, workload, Duration::from_secs(60));
        let client = pair.client.within(connect)??;
        Ok(XdpBench { client, server, device, _pair: pair, cores, config })
    }
}

impl Bench for XdpBench {
    fn run(&mut self, run: &Run<'_>) -> Result<RunResult, BenchError> {
        let XdpBench { client, server, config, cores, .. } = self;
        let pace = pace(config, run);
        let generator = cores.generator.clone();
        server.measure(run, move || {
            // The client's threads inherit it.
            pin_thread(&generator)?;
            Ok(client.run(pace, run.warm_up, run.window, run.stop)?)
        })
    }

    fn notes(&self) -> Vec<String> {
        let mut notes = self.server.notes();
        notes.extend(epoll_note(&self.config));
        notes.extend(group_note(&self.config, &self.cores));
        notes.push(
            "on a veth AF_XDP copies every frame: the generator's send runs the service's receive path, and the service's \
             doorbell the generator's TCP, on the core of whoever sends; the kernel has no NAPI there to busy poll"
                .to_owned(),
        );
        if self.device.report().mode == XdpMode::Generic {
            notes.push("the XDP program runs above the driver (generic), which is slower".to_owned());
        }
        if self.cores.shared {
            notes.push("the generator shares a core with the service: the figures say little".to_owned());
        }
        notes
    }
}
