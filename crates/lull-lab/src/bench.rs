//! A service with its load generator: the benches that can run one cell of the comparison table.

pub mod kernel;
mod measure;
mod mem;
mod outside;
pub mod program;
mod spent;
mod tap;
mod window;
mod xdp;

use std::net::Ipv4Addr;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use lull_core::{AfterResume, EpollOptions, Mode};
use lull_host::GroupOptions;
use lull_nic::Moderation;

use crate::cell::{Load, RunResult};
use crate::load::{LoadError, WorkloadConfig};

pub use kernel::KernelBench;
pub use kernel::program::ServiceKind;
pub use measure::{Server, ServerConfig};
pub use mem::{MemBench, TscClock};
pub use program::ProgramBench;
pub use tap::TapBench;
pub use xdp::XdpBench;

/// The port that the service listens on.
pub const PORT: u16 = 11211;

/// The configuration of a bench.
#[derive(Clone, Debug)]
pub struct BenchConfig {
    /// Worker threads of the service, each with an epoll context and a lull CPU.
    pub workers: usize,
    /// Queues of the service's NIC, each with a NAPI, at least one for each worker. `None` means as many as workers.
    /// Queue `n` belongs to worker `n` modulo the number of workers.
    pub queues: Option<usize>,
    /// Connections, over all workers.
    pub connections: usize,
    /// The requests that the clients send.
    pub workload: WorkloadConfig,
    /// Cores of the machine for the service's CPUs, then for the generator's threads. If it is empty, all cores are
    /// used, the first ones for the service.
    pub cores: Vec<usize>,
    /// Receive and transmit buffer of a connection of the service, in bytes each.
    pub buffer_bytes: usize,
    /// Whether the interrupt threads ask for SCHED_FIFO.
    pub realtime: bool,
    /// What follows when the poll at a resume finds nothing.
    pub after_resume: AfterResume,
    /// Where epoll differs from Linux's in lull's own stack.
    pub epoll: EpollOptions,
    /// Interrupt moderation of the service's NIC; `None` leaves it as the device has it.
    pub moderation: Option<Moderation>,
    /// The CPUs that poll in group modes, and their limits. Without it those modes are refused.
    pub group: Option<GroupSetup>,
    /// The queueing discipline of the service's transmit queues. `None` leaves it to the mode.
    pub qdisc: Option<lull_net::Qdisc>,
    /// Requests that a connection has outstanding.
    pub depth: u16,
    /// Inter-arrival times of the open loop.
    pub arrivals: crate::load::Arrivals,
}

/// A busy-polling CPU group of the service.
#[derive(Clone, Debug, Default)]
pub struct GroupSetup {
    /// The machine's cores on which its pollers run.
    pub cores: Vec<usize>,
    /// The group's options. Whether the group rests is a setting of the mode.
    pub options: GroupOptions,
}

impl Default for BenchConfig {
    fn default() -> BenchConfig {
        BenchConfig {
            workers: 1,
            queues: None,
            connections: 64,
            workload: WorkloadConfig::default(),
            cores: Vec::new(),
            buffer_bytes: lull_net::BUFFER_BYTES,
            realtime: false,
            after_resume: AfterResume::Interrupt,
            epoll: EpollOptions::strict_linux(),
            moderation: None,
            group: None,
            qdisc: None,
            depth: 1,
            arrivals: crate::load::Arrivals::Exponential,
        }
    }
}

impl BenchConfig {
    /// Returns the number of queues of the service's NIC.
    pub fn queues(&self) -> usize {
        self.queues.unwrap_or(self.workers)
    }

    /// Returns what the reader of a table has to know if epoll contexts have sockets on several NAPIs; `rule` says what
    /// a context then does. Returns `None` if no context has.
    pub(crate) fn several_napis(&self, rule: &str) -> Option<String> {
        let (workers, queues) = (self.workers, self.queues());
        let contexts = if workers == 1 { "context" } else { "contexts" };
        (queues > workers).then(|| format!("{queues} queues share {workers} epoll {contexts}: {rule}"))
    }

    /// Checks the settings whose limits the bench itself sets.
    ///
    /// # Errors
    ///
    /// The error names the setting, its value and its limit.
    pub fn validate(&self) -> Result<(), BenchError> {
        let within = |what: &str, value: usize, min: usize, max: usize| {
            if (min..=max).contains(&value) {
                return Ok(());
            }
            Err(BenchError::Invalid(format!("cannot use {what} of {value}: it is between {min} and {max}")))
        };
        let buffers = lull_net::BUFFER_BYTES_RANGE;
        if let Some(queues) = self.queues {
            within("a number of queues", queues, 1, QUEUES_MAX)?;
            if queues < self.workers {
                return Err(BenchError::Invalid(format!(
                    "cannot give each of {} workers a queue of its own: there are {queues}; raise --queues or lower --workers",
                    self.workers
                )));
            }
        }
        within("a number of connections", self.connections, 1, CONNECTIONS_MAX)?;
        within("a buffer size in bytes", self.buffer_bytes, *buffers.start(), *buffers.end())?;
        within("a depth", usize::from(self.depth), 1, usize::from(crate::load::DEPTH_MAX))
    }
}

/// The most queues that a bench's NIC can have: as many as a multi-queue TAP can have.
pub const QUEUES_MAX: usize = 256;
/// The most connections that a bench can have.
pub const CONNECTIONS_MAX: usize = 1 << 20;

/// One run of one cell.
#[derive(Clone, Debug)]
pub struct Run<'a> {
    /// The delivery mode.
    pub mode: &'a Mode,
    /// The load, as the table names it.
    pub load: Load,
    /// The load in queries a second; `None` for MAX.
    pub offered_qps: Option<f64>,
    /// The number of the repetition.
    pub run: u32,
    /// Time to settle before the window.
    pub warm_up: Duration,
    /// The measured window.
    pub window: Duration,
    /// Ends the run early when it is set.
    pub stop: &'a AtomicBool,
}

/// A bench that can run cells.
pub trait Bench {
    /// Runs one cell once.
    ///
    /// # Errors
    ///
    /// This fails if the service falls silent or a setting is refused.
    fn run(&mut self, run: &Run<'_>) -> Result<RunResult, BenchError>;

    /// Returns what else the reader of the table has to know, as one sentence each.
    fn notes(&self) -> Vec<String>;
}

/// Why a bench could not be set up or run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BenchError {
    /// The generator failed.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The service's network failed.
    #[error(transparent)]
    Network(#[from] lull_net::NetworkError),
    /// The host failed.
    #[error(transparent)]
    Host(#[from] lull_host::HostError),
    /// The device failed.
    #[error(transparent)]
    Device(#[from] lull_nic::DeviceError),
    /// The service could not be started or changed.
    #[error("the service: {0}")]
    Service(#[from] std::io::Error),
    /// A setting of the bench is invalid.
    #[error("{0}")]
    Invalid(String),
}

/// Returns the cores that were asked for, if this process may use each of them and none is named twice.
///
/// # Errors
///
/// The error names the first core that the process may not use, or that is named again.
pub fn check_cores(cores: &[usize]) -> Result<&[usize], BenchError> {
    let usable = lull_host::usable_cores();
    let shown = || usable.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
    for (at, core) in cores.iter().enumerate() {
        if !usable.contains(core) {
            let cores = shown();
            return Err(BenchError::Invalid(format!("cannot use core {core}: this process may use {cores}")));
        }
        if cores[..at].contains(core) {
            return Err(BenchError::Invalid(format!("cannot use core {core} twice: name each core once")));
        }
    }
    Ok(cores)
}

/// Which cores serve and which generate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cores {
    /// The service's cores, one per worker.
    pub service: Vec<usize>,
    /// The generator's cores, one per thread.
    pub generator: Vec<usize>,
    /// The cores that are left.
    pub spare: Vec<usize>,
    /// Whether a core is used twice, which makes the figures unreliable.
    pub shared: bool,
}

impl Cores {
    /// Splits the machine's cores (or those that `config` names): one per worker, and at most as many of the rest for
    /// the generator.
    ///
    /// # Errors
    ///
    /// This fails if there is no worker, or if there are more workers than cores.
    pub fn split(config: &BenchConfig) -> Result<Cores, BenchError> {
        config.validate()?;
        let polling = config.group.as_ref().map_or(&[][..], |group| &group.cores[..]);
        check_cores(polling)?;
        let available = if config.cores.is_empty() {
            without(polling, config.workers)
        } else {
            check_cores(&config.cores)?.to_vec()
        };
        let invalid = |what: String| Err(BenchError::Invalid(what));
        if config.workers == 0 {
            return invalid("cannot serve with 0 workers: use at least 1".to_owned());
        }
        if config.workers > available.len() {
            return invalid(format!(
                "cannot give each of {} workers a core of its own: there are {}; lower --workers",
                config.workers,
                available.len()
            ));
        }
        let (service, rest) = available.split_at(config.workers);
        let shared = rest.is_empty();
        let (generator, spare) = rest.split_at(rest.len().min(config.workers));
        let generator = if shared { vec![service[0]] } else { generator.to_vec() };
        Ok(Cores { service: service.to_vec(), generator, spare: spare.to_vec(), shared })
    }
}

/// Returns the cores that this process may use, without those of a group's pollers if enough are left for the workers
/// and one for the generator.
fn without(polling: &[usize], workers: usize) -> Vec<usize> {
    let usable = lull_host::usable_cores();
    let rest: Vec<usize> = usable.iter().copied().filter(|core| !polling.contains(core)).collect();
    if rest.len() > workers { rest } else { usable }
}

/// Whether a group's pollers use one of these cores.
pub(crate) fn shares(group: &GroupSetup, cores: &[usize]) -> bool {
    group.cores.iter().any(|core| cores.contains(core))
}

impl BenchConfig {
    /// Returns a warning, to be shown before a comparison runs, if pollers of a group are on the generator's cores.
    /// Both spin for ever there, so each waits for as long as the scheduler lets the other run, and the rows of group
    /// modes measure that.
    ///
    /// # Errors
    ///
    /// This fails if the cores cannot be split.
    pub fn warning(&self) -> Result<Option<String>, BenchError> {
        let Some(group) = &self.group else { return Ok(None) };
        let cores = Cores::split(self)?;
        let clash = shares(group, &cores.generator) && !cores.shared;
        Ok(clash.then(|| cores.clash(group, &lull_host::usable_cores())))
    }
}

impl Cores {
    /// Names the cores that pollers and generators share, and those of the `usable` cores that are better for the
    /// pollers.
    fn clash(&self, group: &GroupSetup, usable: &[usize]) -> String {
        let both: Vec<usize> = group.cores.iter().copied().filter(|core| self.generator.contains(core)).collect();
        let is_free = |core: &usize| ![&self.service, &self.generator, &group.cores].iter().any(|of| of.contains(core));
        let free: Vec<usize> = usable.iter().copied().filter(is_free).collect();
        let (instead, whose) = match &free[..] {
            [] => (&self.service, "which its workers use and leave when they sleep"),
            free => (&free[..free.len().min(both.len())].to_vec(), "which nobody has"),
        };
        format!(
            "the group's pollers and the generator both spin on core {}, so rows of group modes measure how the scheduler shares \
             it out; give the group core {} (--group-cpus {1}), {whose}",
            list(&both),
            list(instead)
        )
    }
}

fn list(cores: &[usize]) -> String {
    cores.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

/// Returns what the reader of a table has to know about a group's cores.
pub(crate) fn group_note(config: &BenchConfig, cores: &Cores) -> Option<String> {
    let group = config.group.as_ref()?;
    let shared = |of: &[usize]| shares(group, of);
    let list = list(&group.cores);
    let with = match (shared(&cores.service), shared(&cores.generator)) {
        (true, _) => "shared with the service, so that the scheduler arbitrates between them: not enough cores",
        (false, true) => "shared with the generator, so that these rows measure the scheduler: not enough cores",
        (false, false) => "of their own: cpu counts them on top of the workers' cores, so it may exceed 100 %",
    };
    Some(format!("in group modes the group's pollers have core {list}, {with}"))
}

/// The addresses of the two ends.
pub(crate) const SERVICE_IP: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
pub(crate) const CLIENT_IP: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pollers_on_the_generators_core_are_told_which_core_to_take() {
        let group = |cores: &[usize]| GroupSetup { cores: cores.to_vec(), ..GroupSetup::default() };
        let cores = Cores { service: vec![4], generator: vec![5], spare: Vec::new(), shared: false };
        let two = cores.clash(&group(&[5]), &[4, 5]);
        assert!(two.contains("on core 5") && two.contains("--group-cpus 4") && two.contains("its workers"), "{two}");
        let four = cores.clash(&group(&[5, 6]), &[4, 5, 6, 7]);
        assert!(four.contains("on core 5,") && four.contains("--group-cpus 7)") && four.contains("nobody"), "{four}");
    }

    #[test]
    fn only_pollers_on_the_generators_core_are_worth_a_warning() {
        let usable = lull_host::usable_cores();
        let [service, generator] = usable[..] else {
            println!("SKIP: the machine has {} cores, and two are told apart here", usable.len());
            return;
        };
        let warning = |group: usize| {
            let group = Some(GroupSetup { cores: vec![group], ..GroupSetup::default() });
            BenchConfig { cores: vec![service, generator], group, ..BenchConfig::default() }.warning().unwrap()
        };
        assert!(warning(service).is_none());
        assert!(warning(generator).unwrap().contains(&format!("--group-cpus {service}")));
        assert!(BenchConfig::default().warning().unwrap().is_none());
    }
}
