//! The bench on TAP: the generator uses the kernel's sockets, over an interface that this process made in a network
//! namespace of its own.

use std::net::SocketAddr;
use std::sync::Arc;

use lull_host::pin_thread;
use lull_nic::tap::{Tap, TapConfig};

use super::measure::{Server, ServerConfig, epoll_note};
use super::window::pace;
use super::{Bench, BenchConfig, BenchError, CLIENT_IP, Cores, PORT, Run, SERVICE_IP, group_note};
use crate::cell::RunResult;
use crate::load::Workload;
use crate::load::kernel::{KernelClient, KernelConfig};

/// A service on a TAP, with a generator on the kernel's side of it.
pub struct TapBench {
    client: KernelClient,
    server: Server,
    cores: Cores,
    config: BenchConfig,
}

impl TapBench {
    /// Makes the TAP in the present network namespace, starts the service, stores the records, opens the connections.
    /// Enter a private namespace first (`lull_nic::namespace::enter_private`).
    ///
    /// # Errors
    /// No right to make a TAP, more workers than cores, or what the service or the generator meets.
    pub fn start(config: BenchConfig) -> Result<TapBench, BenchError> {
        let cores = Cores::split(&config)?;
        let tap = Tap::open(TapConfig { queues: config.queues(), ..TapConfig::default() })?;
        tap.kernel_side(CLIENT_IP.into(), 24)?;
        let server = Server::start(Arc::new(tap), ServerConfig::of_bench(&config, &cores.service))?;
        let workload = Arc::new(Workload::new(config.workload)?);
        server.preload(&workload);
        let mut kernel = KernelConfig::new(SocketAddr::from((SERVICE_IP, PORT)), config.connections);
        kernel.threads = cores.generator.len().min(config.connections);
        kernel.spin = true;
        let client = KernelClient::connect(kernel, workload, std::time::Duration::from_secs(60))?;
        Ok(TapBench { client, server, cores, config })
    }
}

impl Bench for TapBench {
    fn run(&mut self, run: &Run<'_>) -> Result<RunResult, BenchError> {
        let TapBench { client, server, config, cores } = self;
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
            "on TAP each frame takes a read or write of its own, and the kernel's TCP runs on the generator".into(),
        );
        if self.cores.shared {
            notes.push("the generator shares a core with the service: the figures say little".to_owned());
        }
        notes
    }
}
