//! The processes of one program that runs on lull's user plane.
//!
//! Names of devices are no answer to whose a process is: each network namespace may have a `tap0`, and two programs may
//! share out the queues of one NIC. The launcher of a program knows which processes have its queues.

use std::fmt;
use std::sync::Arc;

use crate::client::Client;
use crate::error::Error;
use crate::place::Places;

/// Finds a program's processes whenever it is asked: they come and go.
#[derive(Clone)]
pub struct Program(Arc<dyn Fn() -> Vec<u32> + Send + Sync>);

impl Program {
    /// `pids` returns the processes that have queues now, each once or more often; 0 is one of another PID namespace.
    pub fn new(pids: impl Fn() -> Vec<u32> + Send + Sync + 'static) -> Program {
        Program(Arc::new(pids))
    }

    /// Those that can be asked now by their numbers, and why others cannot. One that is only starting offers its socket a little
    /// later.
    pub fn clients(&self, places: &Places) -> Vec<(u32, Result<Client, Error>)> {
        let mut pids = (self.0)();
        pids.sort_unstable();
        pids.dedup();
        let client = |pid| if pid == 0 { Err(Error::OutOfSight) } else { Client::connect(pid, places) };
        pids.into_iter().map(|pid| (pid, client(pid))).collect()
    }
}

impl fmt::Debug for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Program").field(&(self.0)()).finish()
    }
}
