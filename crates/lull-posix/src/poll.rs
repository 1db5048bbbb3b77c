//! `poll` and `select` over both worlds.

mod arguments;
mod select;

use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use libc::{c_int, c_short, pollfd};
use lull_core::{PollBusy, Sysctl};
use lull_net::{Host, Interest, Ready};

use crate::block::Wait;
use crate::files::{self, File, Open};
use crate::socket::pool;
use crate::{Result, cancel, engine, kernel, signals};

pub use arguments::{asked_ns, duration, in_table, lulls_fds, lulls_sets, select_timeval};
pub use select::{Sets, WORD_BITS, concerns_sets, select};

/// Whether a call with these descriptors is lull's business.
pub fn concerns(fds: &[pollfd]) -> bool {
    fds.iter().any(|polled| files::is_lull_to_wait(polled.fd))
}

/// `poll`; a timeout of nothing is for ever. Returns how many descriptors have something to report.
pub fn poll(fds: &mut [pollfd], timeout: Option<Duration>) -> Result<usize> {
    lull_net::about_to_wait();
    // To ask what is ready starts no engine.
    let host = engine::running().map(|engine| &engine.host);
    let mut polled = Polled::new(fds);
    let mut busy = PollBusy::begin(host.map_or(&Sysctl::default(), Host::sysctl));
    let until = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
    loop {
        let any = busy.polls() && polled.busy_poll();
        let ready = polled.look(fds)?;
        if ready > 0 {
            return Ok(ready);
        }
        // Also where the time is over (`do_poll`).
        if signals::is_interrupted() {
            return Err(signals::INTERRUPTED);
        }
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        if left == Some(Duration::ZERO) || timeout == Some(Duration::ZERO) {
            return Ok(0);
        }
        if !busy.looks_again(any, host.map_or(0, Host::now_ns)) {
            polled.wait(fds, left)?;
        }
    }
}

/// The descriptors of a call by world.
struct Polled {
    /// By place in the call: the files that are lull's.
    lulls: Vec<Option<Open>>,
    /// The kernel's share, with the places of lull's switched off.
    kernels: Vec<pollfd>,
    /// By place in the call: what tells of connections that other processes have for a listener; switched off elsewhere.
    pools: Vec<pollfd>,
}

impl Polled {
    fn new(fds: &[pollfd]) -> Polled {
        let lulls: Vec<Option<Open>> = fds.iter().map(|polled| files::get(polled.fd)).collect();
        let kernels = fds.iter().zip(&lulls).map(|(polled, file)| {
            let fd = if file.as_deref().is_none_or(is_kernels_too) { polled.fd } else { -1 };
            pollfd { fd, events: polled.events, revents: 0 }
        });
        let kernels = kernels.collect();
        let pool = |file: &Option<Open>| match file.as_deref() {
            Some(File::Listener(listener)) => listener.pool_context(),
            _ => None,
        };
        let switched = |pool: Option<c_int>| pollfd { fd: pool.unwrap_or(-1), events: libc::POLLIN, revents: 0 };
        let pools = lulls.iter().map(|file| switched(pool(file))).collect();
        Polled { lulls, kernels, pools }
    }

    /// The kernel looks at the contexts among them next.
    fn watch_contexts(&self) -> Result<()> {
        self.lulls.iter().try_for_each(|file| match file.as_deref() {
            Some(File::Epoll(context)) => context.is_watched(),
            _ => Ok(()),
        })
    }

    /// Polls the queues of the sockets that may be busy polled, one round each; whether there is one.
    fn busy_poll(&self) -> bool {
        let once = |file: &Option<Open>| match file.as_deref() {
            Some(File::Stream(stream)) => stream.stream().busy_loop(true),
            Some(File::Datagram(datagram)) => datagram.sockets.busy_loop(true),
            _ => false,
        };
        // Each of them, and not only the first.
        self.lulls.iter().filter(|file| once(file)).count() > 0
    }

    /// Writes what is ready now, and returns for how many.
    fn look(&mut self, fds: &mut [pollfd]) -> Result<usize> {
        if self.kernels.iter().any(|polled| polled.fd >= 0) {
            self.watch_contexts()?;
            kernel::poll(&mut self.kernels, 0, None)?;
        }
        for (nth, polled) in fds.iter_mut().enumerate() {
            let (kernels, pool) = (&self.kernels[nth], &self.pools[nth]);
            let own = self.lulls[nth].as_deref().map_or(0, |file| revents(file, polled.events));
            polled.revents = own | if kernels.fd >= 0 { kernels.revents } else { 0 };
            if pool.fd >= 0 && kernel::is_readable(pool.fd) {
                polled.revents |= polled.events & (libc::POLLIN | libc::POLLRDNORM);
            }
        }
        Ok(fds.iter().filter(|polled| polled.revents != 0).count())
    }

    /// What an entry waits for. A file of the kernel's that says POLLOUT and not POLLWRNORM (an eventfd) never says that: who asks for it
    /// by that name alone does not hear of it.
    fn interest(&self, fds: &[pollfd], nth: usize) -> Interest {
        const NAMES: [(c_short, c_short, Interest); 2] = [
            (libc::POLLIN, libc::POLLRDNORM, Interest::READABLE),
            (libc::POLLOUT, libc::POLLWRNORM, Interest::WRITABLE),
        ];
        let events = fds[nth].events;
        let mut interest = interest(self.lulls[nth].as_deref(), events);
        let by_other_names = NAMES.iter().filter(|(name, other, _)| events & other != 0 && events & name == 0);
        if self.lulls[nth].is_none() && by_other_names.clone().next().is_some() {
            let all = NAMES.iter().fold(0, |all, (name, other, _)| all | name | other);
            let mut says = [pollfd { fd: fds[nth].fd, events: all, revents: 0 }];
            // What cannot be asked is waited for.
            let _ = kernel::poll(&mut says, 0, None);
            for (name, other, one) in by_other_names {
                if says[0].revents & (name | other) == *name {
                    interest = interest.difference(*one);
                }
            }
        }
        interest
    }

    /// Everything that any entry with the same file as this one asks for.
    #[cold]
    fn interest_of_all(&self, fds: &[pollfd], nth: usize) -> Interest {
        let is_same = |other: usize| match (&self.lulls[nth], &self.lulls[other]) {
            (Some(file), Some(other)) => file.is_same(other),
            _ => fds[nth].fd == fds[other].fd,
        };
        let same = (0..fds.len()).filter(|other| is_same(*other));
        same.fold(Interest::empty(), |all, other| all | self.interest(fds, other))
    }

    /// As [`Polled::wait`], in a process without an engine: all that it has is the kernel's, also where it waits in a context or for
    /// a listener.
    fn wait_without_queue(&self, timeout: Option<Duration>) -> Result<()> {
        self.watch_contexts()?;
        // By this one the thread is called out if it is cancelled. Without a free number it is cancelled when its wait ends.
        let called = pool::new_context().ok();
        let call = called.as_ref().map_or(-1, AsRawFd::as_raw_fd);
        let call = pollfd { fd: call, events: libc::POLLIN, revents: 0 };
        // Places that are switched off count against the limit on open files as well (`do_sys_poll`).
        let entries = self.kernels.iter().chain(&self.pools).chain([&call]);
        let mut all: Vec<pollfd> = entries.filter(|polled| polled.fd >= 0).copied().collect();
        let timeout_ns = timeout.map_or(-1, |timeout| i64::try_from(timeout.as_nanos()).unwrap_or(i64::MAX));
        let wait = || signals::wait_in_kernel(|mask| kernel::poll(&mut all, timeout_ns, Some(mask)));
        cancel::waits_there(call.fd, wait).map(drop)
    }

    /// Sleeps until something changes.
    fn wait(&self, fds: &[pollfd], timeout: Option<Duration>) -> Result<()> {
        if engine::running().is_none() {
            return self.wait_without_queue(timeout);
        }
        let wait = Wait::new()?;
        let mut result = Ok(());
        for nth in 0..fds.len() {
            let interest = self.interest(fds, nth);
            let both = || self.interest_of_all(fds, nth);
            let added = match self.lulls[nth].as_deref() {
                Some(File::Stream(stream)) => wait.add(stream.stream(), interest, both),
                Some(File::Listener(listener)) => match listener.real() {
                    Ok(real) => wait.add(real, interest, both),
                    // Another process has the NIC: no connection of lull's comes here.
                    Err(_) => Ok(()),
                },
                Some(File::Datagram(datagram)) => wait.add(&datagram.sockets, interest, both),
                Some(File::Epoll(_)) | None => Ok(()),
            };
            let kernels = self.kernels[nth].fd;
            let added =
                added.and_then(|()| if kernels >= 0 { wait.add_kernels(kernels, interest, both) } else { Ok(()) });
            let pool = self.pools[nth].fd;
            let added = added.and_then(|()| {
                let interest = interest & Interest::READABLE;
                if pool >= 0 { wait.add_kernels(pool, interest, || interest) } else { Ok(()) }
            });
            result = result.and(added);
        }
        let waited = result.and_then(|()| wait.wait(timeout));
        for (nth, file) in self.lulls.iter().enumerate() {
            match file.as_deref() {
                Some(File::Stream(stream)) => wait.remove(stream.stream()),
                Some(File::Listener(listener)) => {
                    listener.if_real().inspect(|real| wait.remove(*real));
                }
                Some(File::Datagram(datagram)) => wait.remove(&datagram.sockets),
                Some(File::Epoll(_)) | None => {}
            }
            if self.kernels[nth].fd >= 0 {
                wait.remove_kernels(self.kernels[nth].fd);
            }
            if self.pools[nth].fd >= 0 {
                wait.remove_kernels(self.pools[nth].fd);
            }
        }
        waited.map(drop)
    }
}

/// Whether the kernel has a part in what a file has ready.
fn is_kernels_too(file: &File) -> bool {
    match file {
        File::Stream(_) => false,
        File::Listener(listener) => listener.both_worlds,
        File::Datagram(datagram) => datagram.is_kernels_too(),
        File::Epoll(_) => true,
    }
}

fn revents(file: &File, events: c_short) -> c_short {
    let ready = match file {
        File::Stream(stream) => stream.stream.ready(),
        // Whoever polls it asks for connections.
        File::Listener(listener) => listener.real().map_or(Ready::empty(), |real| real.ready()),
        File::Datagram(datagram) => datagram.sockets.ready(),
        // The kernel's half tells of both.
        File::Epoll(_) => return 0,
    };
    // The bits of poll are those of epoll (`mangle_poll`), and two of them have two names each (`tcp_poll`).
    let mut bits = crate::epoll::bits(ready) as c_short;
    for (name, other) in [(libc::POLLIN, libc::POLLRDNORM), (libc::POLLOUT, libc::POLLWRNORM)] {
        if bits & name != 0 {
            bits |= other;
        }
    }
    if let File::Datagram(_) = file
        && bits & libc::POLLOUT != 0
    {
        // And of a datagram socket, three (`datagram_poll`).
        bits |= libc::POLLWRBAND;
    }
    bits & (events | libc::POLLERR | libc::POLLHUP)
}

fn interest(file: Option<&File>, mut events: c_short) -> Interest {
    if let Some(File::Datagram(_)) = file
        && events & libc::POLLWRBAND != 0
    {
        events |= libc::POLLWRNORM;
    }
    const MAP: [(c_int, Interest); 4] = [
        ((libc::POLLIN | libc::POLLRDNORM) as c_int, Interest::READABLE),
        ((libc::POLLOUT | libc::POLLWRNORM) as c_int, Interest::WRITABLE),
        (libc::POLLPRI as c_int, Interest::PRI),
        (libc::POLLRDHUP as c_int, Interest::RDHUP),
    ];
    let asked = |(bits, _): &&(c_int, Interest)| c_int::from(events) & bits != 0;
    MAP.iter().filter(asked).fold(Interest::empty(), |all, (_, one)| all | *one)
}
