//! The processes of a program that runs on lull's user plane.
//!
//! The names of its devices do not tell which processes are a program's: each network namespace may have a `tap0`, and
//! two programs may share the queues of one NIC. The launcher of a program knows which processes have its queues.

use std::fmt;
use std::sync::Arc;

use crate::client::Client;
use crate::error::Error;
use crate::place::Places;

/// Finds a program's processes each time it is asked, as they come and go.
#[derive(Clone)]
pub struct Program(Arc<dyn Fn() -> Vec<u32> + Send + Sync>);

impl Program {
    /// `pids` returns the processes that have queues now, each once or more often. 0 stands for a process of another
    /// PID namespace.
    pub fn new(pids: impl Fn() -> Vec<u32> + Send + Sync + 'static) -> Program {
        Program(Arc::new(pids))
    }

    /// A client for each process, by its number, or the reason why it cannot be asked. A process that is just starting
    /// offers its socket a little later.
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
