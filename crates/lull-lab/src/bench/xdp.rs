//! The bench on AF_XDP: lull's stack on one end of a veth pair, the generator on the kernel's sockets at the other, each
//! end in a network namespace of its own.

use std::sync::Arc;

use lull_nic::xdp::{Xdp, XdpAddress, XdpConfig, XdpMode};

use super::kernel::pair::{Pair, ServerStack};
use super::outside::Outside;
use super::{Bench, BenchConfig, BenchError, Run, SERVICE_IP};
use crate::cell::RunResult;

/// A service on AF_XDP sockets, with a generator at the other end of a veth pair.
pub struct XdpBench {
    // The fields stand in the order in which they have to be dropped.
    outside: Outside,
    device: Arc<Xdp>,
    _pair: Pair,
}

impl XdpBench {
    /// Makes the namespaces and the pair, starts the service, stores the records and opens the connections.
    ///
    /// # Errors
    ///
    /// This fails without root, if there are more workers than cores, or if the device, the service or the generator
    /// fails.
    pub fn start(config: BenchConfig) -> Result<XdpBench, BenchError> {
        let pair = Pair::make(config.queues(), ServerStack::Lull)?;
        let device = XdpConfig {
            name: pair.server.device().to_owned(),
            addresses: vec![XdpAddress { ip: SERVICE_IP.into(), is_hosts: false }],
            ..XdpConfig::default()
        };
        // The device asks the kernel later through sockets of that namespace.
        let device = Arc::new(pair.server.within(|| Xdp::open(&device))??);
        let outside = Outside::start(device.clone(), config, Some(&pair.client))?;
        Ok(XdpBench { outside, device, _pair: pair })
    }
}

impl Bench for XdpBench {
    fn run(&mut self, run: &Run<'_>) -> Result<RunResult, BenchError> {
        self.outside.run(run)
    }

    fn notes(&self) -> Vec<String> {
        let mut of_device = vec![
            "on a veth AF_XDP copies every frame: the generator's send runs the service's receive path, and the service's \
             doorbell the generator's TCP, on the core of whoever sends; the kernel has no NAPI there to busy poll",
        ];
        if self.device.report().mode == XdpMode::Generic {
            of_device.push("the XDP program runs above the driver (generic), which is slower");
        }
        self.outside.notes(&of_device)
    }
}
