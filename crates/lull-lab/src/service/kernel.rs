//! The plane of the kernel's stack: one epoll context for each worker, on a core of its own.

use std::io;
use std::mem::MaybeUninit;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use lull_core::{AppPolicy, Mode};
use lull_linux::os::set_epoll_params;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, listen, socket_with, sockopt};

use super::plane::{
    Control, EVENTS_MAX, KEEPALIVE_IDLE, KEEPALIVE_INTERVAL, KEEPALIVE_PROBES, LISTENER, NOTICE, Plane, Stream, Watch,
};

/// The number of connections that may wait to be accepted.
const BACKLOG: i32 = 1024;

/// One epoll context on one core.
pub struct Kernel {
    core: usize,
    epoll: Arc<OwnedFd>,
    notice: Arc<OwnedFd>,
    listener: TcpListener,
}

/// Changes the settings of such a worker and wakes it.
pub struct KernelControl {
    epoll: Arc<OwnedFd>,
    notice: Arc<OwnedFd>,
}

impl Kernel {
    /// Makes a plane for each core, each listening on `address` (`SO_REUSEPORT`), in the network namespace of the
    /// calling thread.
    pub(super) fn planes(address: SocketAddr, cores: &[usize]) -> io::Result<Vec<(Kernel, KernelControl)>> {
        cores.iter().map(|core| Kernel::new(address, *core)).collect()
    }

    fn new(address: SocketAddr, core: usize) -> io::Result<(Kernel, KernelControl)> {
        let listener = listener(address)?;
        let epoll = Arc::new(epoll::create(CreateFlags::CLOEXEC)?);
        let notice = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        epoll::add(&*epoll, &listener, EventData::new_u64(LISTENER), EventFlags::IN)?;
        epoll::add(&*epoll, &*notice, EventData::new_u64(NOTICE), EventFlags::IN)?;
        let control = KernelControl { epoll: epoll.clone(), notice: notice.clone() };
        Ok((Kernel { core, epoll, notice, listener }, control))
    }
}

fn listener(address: SocketAddr) -> io::Result<TcpListener> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)?;
    sockopt::set_socket_reuseport(&socket, true)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    bind(&socket, &address)?;
    listen(&socket, BACKLOG)?;
    Ok(socket.into())
}

impl Plane for Kernel {
    type Stream = TcpStream;
    /// The kernel sends at once: a program cannot delay its doorbell.
    type Batch<'a> = ();

    fn pin(&self) -> io::Result<()> {
        lull_host::pin_thread(&[self.core])
    }

    fn wait(&mut self, keys: &mut Vec<u64>, events_max: usize, timeout: Option<Duration>) {
        let timeout =
            timeout.map(|time| Timespec { tv_sec: time.as_secs() as i64, tv_nsec: i64::from(time.subsec_nanos()) });
        let mut events = [MaybeUninit::<Event>::uninit(); EVENTS_MAX];
        // A signal only interrupts the wait.
        if let Ok((events, _)) = epoll::wait(&*self.epoll, &mut events[..events_max], timeout.as_ref()) {
            keys.extend(events.iter().map(|event| event.data.u64()));
        }
        if keys.contains(&NOTICE) {
            // It is read so that it can be set again.
            let _ = rustix::io::read(&*self.notice, &mut [0_u8; 8]);
        }
    }

    fn accept(&self, keepalive: bool) -> io::Result<TcpStream> {
        let (stream, _) = self.listener.accept()?;
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        if keepalive {
            sockopt::set_socket_keepalive(&stream, true)?;
            sockopt::set_tcp_keepidle(&stream, KEEPALIVE_IDLE)?;
            sockopt::set_tcp_keepintvl(&stream, KEEPALIVE_INTERVAL)?;
            sockopt::set_tcp_keepcnt(&stream, KEEPALIVE_PROBES)?;
        }
        Ok(stream)
    }

    fn add(&self, stream: &TcpStream, key: u64) -> io::Result<()> {
        Ok(epoll::add(&*self.epoll, stream, EventData::new_u64(key), EventFlags::IN)?)
    }

    fn watch(&self, stream: &TcpStream, key: u64, watch: Watch) -> io::Result<()> {
        let flags = match watch {
            Watch::Input => EventFlags::IN,
            Watch::Room => EventFlags::OUT,
        };
        Ok(epoll::modify(&*self.epoll, stream, EventData::new_u64(key), flags)?)
    }

    fn batch(&self) {}
}

impl Control for KernelControl {
    fn set_mode(&self, mode: &Mode) -> io::Result<AppPolicy> {
        set_epoll_params(self.epoll.as_fd(), &mode.epoll)?;
        Ok(mode.app)
    }

    fn notify(&self) {
        // A counter that is full wakes the worker, too.
        let _ = rustix::io::write(&*self.notice, &1_u64.to_ne_bytes());
    }
}

impl Stream for TcpStream {
    fn recv(&self, into: &mut [u8]) -> io::Result<usize> {
        io::Read::read(&mut &*self, into)
    }

    fn send(&self, data: &[u8]) -> io::Result<usize> {
        io::Write::write(&mut &*self, data)
    }

    fn set_busy_poll(&self, _usecs: u32) -> io::Result<()> {
        Err(io::Error::new(io::ErrorKind::Unsupported, "the service sets no SO_BUSY_POLL on the kernel's sockets"))
    }
}
