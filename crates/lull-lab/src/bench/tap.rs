//! The bench on TAP: the generator uses the kernel's sockets, over an interface that this process made in a network
//! namespace of its own.

use std::sync::Arc;

use lull_nic::tap::{Tap, TapConfig};

use super::outside::Outside;
use super::{Bench, BenchConfig, BenchError, CLIENT_IP, Run};
use crate::cell::RunResult;

/// A service on a TAP, with a generator on the kernel's side of it.
pub struct TapBench(Outside);

impl TapBench {
    /// Makes the TAP in the current network namespace, starts the service, stores the records and opens the
    /// connections. Enter a private namespace first (`lull_nic::namespace::enter_private`).
    ///
    /// # Errors
    ///
    /// This fails if the process may not make a TAP, if there are more workers than cores, or if the service or the
    /// generator fails.
    pub fn start(config: BenchConfig) -> Result<TapBench, BenchError> {
        let tap = Tap::open(TapConfig { queues: config.queues(), ..TapConfig::default() })?;
        tap.kernel_side(CLIENT_IP.into(), 24)?;
        Outside::start(Arc::new(tap), config, None).map(TapBench)
    }
}

impl Bench for TapBench {
    fn run(&mut self, run: &Run<'_>) -> Result<RunResult, BenchError> {
        self.0.run(run)
    }

    fn notes(&self) -> Vec<String> {
        self.0
            .notes(&["on TAP each frame takes a read or write of its own, and the kernel's TCP runs on the generator"])
    }
}
