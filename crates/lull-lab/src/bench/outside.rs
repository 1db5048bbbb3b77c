//! Code that the benches share whose generator uses the kernel's sockets: the service on a device of its own, and a
//! client outside lull's stack.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use lull_host::pin_thread;
use lull_nic::Device;

use super::kernel::pair::Side;
use super::measure::{Server, ServerConfig, epoll_note};
use super::window::pace;
use super::{BenchConfig, BenchError, Cores, PORT, Run, SERVICE_IP, group_note};
use crate::cell::RunResult;
use crate::load::Workload;
use crate::load::kernel::{KernelClient, KernelConfig};

/// How long connecting may take.
const CONNECTS_WITHIN: Duration = Duration::from_secs(60);

/// A service, and a generator on the kernel's side of its device.
pub(super) struct Outside {
    // The fields stand in the order in which they have to be dropped.
    client: KernelClient,
    server: Server,
    cores: Cores,
    config: BenchConfig,
}

impl Outside {
    /// Starts the service, stores the records and opens the connections from the network namespace of `side`, or from
    /// the caller's.
    pub(super) fn start(
        device: Arc<dyn Device>,
        config: BenchConfig,
        side: Option<&Side>,
    ) -> Result<Outside, BenchError> {
        let cores = Cores::split(&config)?;
        let server = Server::start(device, ServerConfig::of_bench(&config, &cores.service))?;
        let workload = Arc::new(Workload::new(config.workload)?);
        server.preload(&workload)?;
        let mut kernel = KernelConfig::new(SocketAddr::from((SERVICE_IP, PORT)), config.connections);
        kernel.threads = cores.generator.len().min(config.connections);
        kernel.spin = true;
        let connect = || KernelClient::connect(kernel, workload, CONNECTS_WITHIN);
        let client = match side {
            Some(side) => side.within(connect)??,
            None => connect()?,
        };
        Ok(Outside { client, server, cores, config })
    }

    /// Runs one cell.
    pub(super) fn run(&mut self, run: &Run<'_>) -> Result<RunResult, BenchError> {
        let Outside { client, server, config, cores } = self;
        let pace = pace(config, run);
        let generator = cores.generator.clone();
        server.measure(run, |run| {
            // The client's threads inherit these cores.
            pin_thread(&generator)?;
            client.set_run(run.run);
            Ok(client.run(pace, run.warm_up, run.window, run.stop)?)
        })
    }

    /// Returns the notes below the table, with those of the device among them.
    pub(super) fn notes(&self, of_device: &[&str]) -> Vec<String> {
        let mut notes = self.server.notes();
        notes.extend(epoll_note(&self.config));
        notes.extend(group_note(&self.config, &self.cores));
        notes.extend(of_device.iter().map(|&note| note.to_owned()));
        if self.cores.shared {
            notes.push("the generator shares a core with the service: the figures say little".to_owned());
        }
        notes
    }
}
