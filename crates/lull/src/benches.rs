//! Which service is measured over which NIC: options that `compare`, `calibrate` and `tune --measure` share.

use clap::ValueEnum;
use lull_lab::bench::{Bench, BenchConfig, KernelBench, MemBench, ProgramBench, ServiceKind, TapBench, XdpBench};

use crate::failure::Failure;

/// The NIC under the service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Nic {
    /// In-memory: both ends in this process. No root, no NIC.
    Mem,
    /// TAP: the load comes from the kernel's sockets, in a private network namespace.
    Tap,
    /// AF_XDP: the load comes from the kernel's sockets over a veth pair between two network namespaces (root).
    Xdp,
}

/// Whose delivery is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Plane {
    /// lull's own stack.
    User,
    /// Linux's own, over a veth pair between two network namespaces (root).
    Kernel,
}

/// The service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Service {
    /// On the kernel plane: memcached if it is installed, else lull's own.
    Auto,
    /// The installed memcached; on the user plane it runs under `lull run`, over tap or xdp.
    Memcached,
    /// Lull's own.
    Own,
}

impl From<Service> for ServiceKind {
    fn from(service: Service) -> ServiceKind {
        match service {
            Service::Auto => ServiceKind::Auto,
            Service::Memcached => ServiceKind::Memcached,
            Service::Own => ServiceKind::Own,
        }
    }
}

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Over {
    /// lull's own stack over a NIC.
    User(Nic),
    /// An unmodified memcached on lull's own stack over a NIC.
    Program(Nic),
    /// The kernel's stack, with a service.
    Kernel(ServiceKind),
}

impl Over {
    /// The NIC's name in a report.
    pub fn name(self) -> &'static str {
        match self {
            Over::Kernel(_) => "veth (kernel plane)",
            Over::User(Nic::Mem) | Over::Program(Nic::Mem) => "mem",
            Over::User(Nic::Tap) | Over::Program(Nic::Tap) => "tap",
            Over::User(Nic::Xdp) | Over::Program(Nic::Xdp) => "veth (AF_XDP)",
        }
    }

    /// The NIC's name in a calibrated world file.
    pub fn calibrated(self) -> &'static str {
        match self {
            Over::Kernel(_) => "veth",
            Over::User(Nic::Mem) | Over::Program(Nic::Mem) => "mem",
            Over::User(Nic::Tap) | Over::Program(Nic::Tap) => "tap",
            Over::User(Nic::Xdp) | Over::Program(Nic::Xdp) => "xdp",
        }
    }

    /// Starts service and generator.
    pub fn start(self, config: BenchConfig) -> Result<Box<dyn Bench>, Failure> {
        Ok(match self {
            Over::Kernel(kind) => Box::new(KernelBench::start(config, kind)?),
            Over::User(Nic::Mem) => Box::new(MemBench::start(config)?),
            Over::User(Nic::Tap) => {
                lull_nic::namespace::enter_private()?;
                Box::new(TapBench::start(config)?)
            }
            Over::User(Nic::Xdp) => Box::new(XdpBench::start(config)?),
            Over::Program(Nic::Mem) => {
                return Err("cannot run memcached on the in-memory NIC, which has no end outside this process: use --nic tap or \
                            xdp"
                    .into());
            }
            Over::Program(nic) => {
                let lull =
                    std::env::current_exe().map_err(|error| format!("cannot find this command itself: {error}"))?;
                if nic == Nic::Xdp {
                    Box::new(ProgramBench::on_xdp(config, lull)?)
                } else {
                    lull_nic::namespace::enter_private()?;
                    Box::new(ProgramBench::on_tap(config, lull)?)
                }
            }
        })
    }
}
