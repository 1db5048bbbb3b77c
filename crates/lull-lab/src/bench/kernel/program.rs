//! The service of a bench on the kernel plane: Debian's memcached as it is, or lull's own.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use lull_core::Mode;
use lull_linux::Roots;
use lull_linux::os::set_epoll_params;
use lull_linux::programs::Process;

use super::pair::{Side, linux};
use crate::bench::{BenchConfig, BenchError};
use crate::memcached::{Store, StoreConfig};
use crate::service::{KernelService, Limits};

/// How long memcached may take to listen.
const START_TIMEOUT: Duration = Duration::from_secs(60);
/// How long one connection to memcached may take meanwhile.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// The memory limit of memcached, in MiB.
const MEMORY_MIB: u32 = 4096;

/// Which service to run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ServiceKind {
    /// memcached if it is installed, and lull's own service otherwise.
    #[default]
    Auto,
    /// memcached.
    Memcached,
    /// Lull's own service, over the kernel's sockets.
    Own,
}

/// A running service.
pub enum Program {
    /// memcached, in a process of its own.
    Memcached(Memcached),
    /// Lull's own service, in threads of this process.
    Own(KernelService),
}

/// A memcached that ends when this is dropped, and also when this process ends in any other way.
pub struct Memcached {
    child: Child,
    process: Process,
}

impl Program {
    /// Starts the service in the server's namespace on `cores`, with room for all connections. It listens when this
    /// returns.
    ///
    /// This has to be called by a thread that lives as long as the service, because memcached is killed when the thread
    /// that started it ends.
    ///
    /// # Errors
    ///
    /// This fails if memcached was asked for and is not installed or does not start, or if lull's own service cannot
    /// listen.
    pub fn start(
        kind: ServiceKind,
        server: &Side,
        address: SocketAddr,
        cores: &[usize],
        config: &BenchConfig,
    ) -> Result<Program, BenchError> {
        if kind != ServiceKind::Own {
            match Memcached::start(server, address, cores, config) {
                Ok(memcached) => return Ok(Program::Memcached(memcached)),
                Err(error) if error.kind() == io::ErrorKind::NotFound && kind == ServiceKind::Auto => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    return Err(BenchError::Invalid(
                        "cannot run memcached or setpriv: install memcached, or use --service own".to_owned(),
                    ));
                }
                Err(error) => return Err(BenchError::Service(error)),
            }
        }
        let store = Arc::new(Store::new(StoreConfig::default()));
        Ok(Program::Own(server.within(|| KernelService::on_kernel(address, cores, store, Limits::default()))??))
    }

    /// Returns a description of the service for the notes.
    pub fn describe(&self) -> &'static str {
        match self {
            Program::Memcached(_) => "memcached as installed",
            Program::Own(_) => "lull's own memcached service over the kernel's sockets",
        }
    }

    /// Returns the ids of its threads.
    pub fn tids(&self) -> Vec<i32> {
        match self {
            Program::Memcached(memcached) => threads_of(memcached.child.id() as i32),
            Program::Own(service) => service.tids(),
        }
    }

    /// Puts the application's half of a mode in force.
    ///
    /// # Errors
    ///
    /// This fails if the service has ended, or if the kernel refuses a value.
    pub fn set_mode(&self, mode: &Mode) -> Result<(), BenchError> {
        match self {
            Program::Own(service) => Ok(service.set_mode(mode)?),
            Program::Memcached(memcached) => {
                for fd in memcached.process.epoll_descriptors().map_err(linux)? {
                    let epoll = memcached.process.duplicate(fd).map_err(linux)?;
                    set_epoll_params(epoll.as_fd(), &mode.epoll)?;
                }
                Ok(())
            }
        }
    }

    /// Returns what a mode asks of the application that this one does not do, or `None` if it does everything.
    pub fn cannot(&self, mode: &Mode) -> Option<String> {
        if mode.socket_busy_poll_usecs != 0 {
            return Some(format!("{mode} sets SO_BUSY_POLL on every socket, and {} does not", self.describe()));
        }
        None
    }

    /// Returns what the reader of a table has to know about the service.
    pub fn note(&self) -> String {
        let what = match self {
            Program::Own(_) => return format!("The service is {}.", self.describe()),
            Program::Memcached(_) => self.describe(),
        };
        format!(
            "The service is {what}. It waits without a timeout: in fullbusy, where the published runs waited 1 ms at a \
             time, it sleeps when a busy poll finds nothing; --service own waits as published."
        )
    }
}

impl Memcached {
    fn start(server: &Side, address: SocketAddr, cores: &[usize], config: &BenchConfig) -> io::Result<Memcached> {
        let here = std::fs::File::open("/proc/thread-self/ns/net")?;
        let cores_before = rustix::thread::sched_getaffinity(None)?;
        // The child inherits the namespace and the cores of the thread that starts it.
        let spawned = server.enter().and_then(|()| lull_host::pin_thread(cores)).and_then(|()| {
            let threads = cores.len().to_string();
            // memcached chooses threads by NAPI id if each NAPI can have a thread of its own.
            let by_napi = if config.queues() == cores.len() { vec!["-N", &threads] } else { Vec::new() };
            Command::new("setpriv")
                .args(["--pdeathsig", "KILL", "--", "memcached", "-u", "root", "-U", "0"])
                .args(["-l", &address.ip().to_string(), "-p", &address.port().to_string()])
                .args(["-t", &threads, "-c", &(config.connections + 64).to_string()])
                .args(by_napi)
                .args(["-m", &MEMORY_MIB.to_string()])
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
        });
        let back =
            rustix::thread::move_into_link_name_space(here.as_fd(), Some(rustix::thread::LinkNameSpaceType::Network));
        rustix::thread::sched_setaffinity(None, &cores_before)?;
        let mut child = spawned?;
        back?;
        let until = Instant::now() + START_TIMEOUT;
        while server.within(|| TcpStream::connect_timeout(&address, CONNECT_TIMEOUT).is_err())? {
            if let Some(status) = child.try_wait()? {
                // setpriv reports a program that it cannot find with the same status as a shell.
                return Err(match status.code() {
                    Some(127) => io::ErrorKind::NotFound.into(),
                    _ => io::Error::other(format!("memcached ended at once ({status})")),
                });
            }
            if Instant::now() > until {
                let _ = child.kill();
                let _ = child.wait();
                return Err(io::Error::other(format!("memcached does not listen on {address}")));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let process = Process::open(child.id() as i32, &Roots::default()).map_err(io::Error::other)?;
        Ok(Memcached { child, process })
    }
}

impl Drop for Memcached {
    fn drop(&mut self) {
        // The process may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the ids of a process's threads, or none if it has ended.
pub(crate) fn threads_of(pid: i32) -> Vec<i32> {
    let entries = std::fs::read_dir(format!("/proc/{pid}/task"));
    let number = |entry: io::Result<std::fs::DirEntry>| entry.ok()?.file_name().to_str()?.parse().ok();
    entries.into_iter().flatten().filter_map(number).collect()
}
