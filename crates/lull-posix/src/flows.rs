//! Which connections are open, in memory that the launcher shares with the program.
//!
//! When a program on the kernel's sockets is killed, the kernel resets its connections. The sockets of a program on
//! lull's user plane are gone with its memory; the launcher, which outlives it, finds here whom to tell. A slot is
//! taken when a connection is known to the program, and given back when it is closed. A process that is killed in
//! between leaves a slot taken, which is the point, or half-written, which is passed over.
//!
//! The file behind it also says which process has which queue of the NIC: by a record lock (`fcntl(2)`, F_SETLK) on the
//! queue's byte, which a child of `fork` does not inherit and which goes with its process, however that ends. A process
//! that takes a queue, or deals with one that nobody has, holds another lock meanwhile ([`Flows::alone`]).
//!
//! And it says which process listens last on a listener that several have inherited (`listeners`), and which listeners a program that
//! is executed may find open (`kept`).

mod kept;
mod listeners;
mod orphans;

use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use lull_net::lull_nic::passing::QUEUES_MAX;
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};

pub(crate) use kept::{End, Kept, NOT_LISTENING};
pub use orphans::{LAUNCHER, Orphan};

/// Connections that are remembered, at most: those beyond are served as well, but nobody is told of their end.
pub const FLOWS_MAX: usize = 65_536;

/// Listeners that are remembered, at most.
const LISTENERS_MAX: usize = 1024;

/// The byte of [`Flows::alone`], behind those of all queues.
const ALONE: u32 = 1 << 20;
/// The byte of all processes that ask for connections of listeners whose queues others have.
const ASKS: u32 = ALONE + 1;
/// The first of those of processes that are about to end, and have taken a queue out of those that the kernel sends to.
const LEFT: u32 = ASKS + 1;

/// The time between two tries for a lock where the kernel sees a deadlock that is none.
const TRIES_APART: Duration = Duration::from_millis(1);

const FREE: u32 = 0;
const BEING_WRITTEN: u32 = 1;
const OPEN: u32 = 2;

/// One connection. IPv4 addresses stand as IPv4-mapped ones.
#[repr(C)]
struct Slot {
    state: AtomicU32,
    /// The first queue, plus one, of the process whose connection it is; [`orphans::NOBODYS`] if that has ended.
    owner: AtomicU32,
    /// Local, and below it remote.
    ports: AtomicU32,
    local: [AtomicU64; 2],
    remote: [AtomicU64; 2],
}

#[repr(C)]
struct Shared {
    /// Where the next search for a free slot begins.
    cursor: AtomicU32,
    /// No slot from here on was ever taken.
    reached: AtomicU32,
    /// Changes when connections have become nobody's; processes that could tell their peers sleep on it.
    orphaned: AtomicU32,
    /// Counts the queues that processes have taken.
    begun: AtomicU32,
    slots: [Slot; FLOWS_MAX],
    /// A listener's inode, below it its port, and below that the queue, plus one, of the process that began to ask for its
    /// connections last, or [`listeners::NOBODY`]. 0 is free.
    listeners: [AtomicU64; LISTENERS_MAX],
    /// The queues of all processes that ask for the connections of each of these.
    sharers: [AtomicU32; LISTENERS_MAX],
    kept: kept::Table,
}

/// The table, mapped. Processes that map the same file share it.
pub struct Flows {
    shared: NonNull<Shared>,
    fd: OwnedFd,
}

// SAFETY: what is mapped is atomics only, and stays mapped for as long as this lives.
unsafe impl Send for Flows {}
// SAFETY: as above.
unsafe impl Sync for Flows {}

/// A slot that is taken; give it back with [`Flows::closed`].
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a slot that is not given back stands for a connection for ever"]
pub struct Taken {
    index: u32,
    owner: u32,
}

static OF_THE_PROGRAM: OnceLock<Arc<Flows>> = OnceLock::new();

/// What the program's processes and the launcher share, in a process that lull is in.
pub(crate) fn of_the_program() -> Option<&'static Arc<Flows>> {
    OF_THE_PROGRAM.get()
}

/// One hand-over is taken in a process.
pub(crate) fn are_the_programs(flows: Arc<Flows>) {
    let _ = OF_THE_PROGRAM.set(flows);
}

impl Flows {
    /// An empty table in memory of its own, of which only the pages that are used count.
    ///
    /// # Errors
    /// The system's, from making or mapping it.
    pub fn create() -> io::Result<Flows> {
        let fd = rustix::fs::memfd_create(c"lull-flows", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        rustix::fs::ftruncate(&fd, size_of::<Shared>() as u64)?;
        // A process that shares it cannot cut it off under the other.
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        Flows::map(fd)
    }

    /// The table behind a descriptor that was handed on.
    ///
    /// # Errors
    /// `InvalidData` if it is no such table; the system's, from mapping it.
    pub fn open(fd: OwnedFd) -> io::Result<Flows> {
        let sealed = rustix::fs::fcntl_get_seals(&fd).is_ok_and(|seals| seals.contains(SealFlags::SHRINK));
        let length = rustix::fs::fstat(&fd)?.st_size;
        if !sealed || length != size_of::<Shared>() as i64 {
            let what =
                format!("the table of connections that was handed on is a file of {length} bytes, not the launcher's");
            return Err(io::Error::new(io::ErrorKind::InvalidData, what));
        }
        Flows::map(fd)
    }

    fn map(fd: OwnedFd) -> io::Result<Flows> {
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: a new mapping at an address of the kernel's choice; the file is that long and cannot shrink.
        let mapped = unsafe { rustix::mm::mmap(null_mut(), size_of::<Shared>(), protection, flags, &fd, 0)? };
        let shared = NonNull::new(mapped.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Flows { shared, fd })
    }

    fn shared(&self) -> &Shared {
        // SAFETY: mapped until `self` is dropped; zeroes and everything else are valid atomics.
        unsafe { self.shared.as_ref() }
    }

    /// A connection of the process that has `queue` is open. Nothing if the table is full.
    pub fn opened(&self, local: SocketAddr, remote: SocketAddr, queue: u32) -> Option<Taken> {
        let (shared, owner) = (self.shared(), orphans::owner(queue));
        let first = shared.cursor.fetch_add(1, Ordering::Relaxed) as usize;
        for nth in 0..FLOWS_MAX {
            let index = (first + nth) % FLOWS_MAX;
            let slot = &shared.slots[index];
            // Acquire: what the slot's former owner wrote is over.
            let free = slot.state.compare_exchange(FREE, BEING_WRITTEN, Ordering::Acquire, Ordering::Relaxed);
            if free.is_err() {
                continue;
            }
            slot.ports.store(u32::from(local.port()) << 16 | u32::from(remote.port()), Ordering::Relaxed);
            write(&slot.local, local.ip());
            write(&slot.remote, remote.ip());
            slot.owner.store(owner, Ordering::Relaxed);
            if shared.reached.load(Ordering::Relaxed) <= index as u32 {
                shared.reached.fetch_max(index as u32 + 1, Ordering::Relaxed);
            }
            // Release: who sees it open sees its addresses.
            slot.state.store(OPEN, Ordering::Release);
            return Some(Taken { index: index as u32, owner });
        }
        None
    }

    /// The connection is closed, or its peer has been told by other means.
    pub fn closed(&self, Taken { index, owner }: Taken) {
        let slot = &self.shared().slots[index as usize];
        // A process that was taken for one that has ended has no say in it any more.
        if slot.owner.load(Ordering::Relaxed) == owner {
            // Release: nothing of its writing comes after the next owner's.
            slot.state.store(FREE, Ordering::Release);
        }
    }

    /// Takes queue `queue` of the NIC for this process, until it ends. Its own descriptors of the table have to stay open: closing
    /// any of them gives all queues back, as `fcntl(2)` has it.
    ///
    /// # Errors
    /// [`NotClaimed::Taken`] with the process that has it, [`NotClaimed::System`] for what the system says.
    pub fn claim(&self, queue: u32) -> Result<(), NotClaimed> {
        match self.lock(libc::F_SETLK, libc::F_WRLCK, queue) {
            Ok(()) => Ok(()),
            Err(error) if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)) => {
                Err(NotClaimed::Taken { pid: self.holder(queue).unwrap_or(0) })
            }
            Err(error) => Err(NotClaimed::System(error)),
        }
    }

    /// Gives a queue of this process back.
    pub fn release(&self, queue: u32) {
        // It fails for no lock that `claim` has taken.
        let _ = self.lock(libc::F_SETLK, libc::F_UNLCK, queue);
    }

    /// The other process that has a queue, if one has it; 0 for one in another PID namespace.
    pub fn holder(&self, queue: u32) -> Option<libc::pid_t> {
        holder(self.fd.as_fd(), queue)
    }

    /// This process is about to end, and has taken a queue of its own out of those that the kernel sends to.
    pub(crate) fn has_taken_out(&self, queue: u32) {
        // Where it cannot be told, others may do the same.
        let _ = self.lock(libc::F_SETLK, libc::F_WRLCK, LEFT + queue);
    }

    /// Whether another process has a queue that the kernel sends to.
    pub(crate) fn others_stay(&self, is_own: impl Fn(u32) -> bool) -> bool {
        let stays = |queue: u32| self.holder(queue).is_some() && self.holder(LEFT + queue).is_none();
        (0..u32::BITS).any(|queue| !is_own(queue) && stays(queue))
    }

    /// The other processes that have queues, where several may: one for each queue. 0 is one in another PID namespace.
    pub(crate) fn holders(&self) -> impl Iterator<Item = libc::pid_t> {
        (0..QUEUES_MAX as u32).filter_map(|queue| self.holder(queue))
    }

    /// Calls `f` while no other process takes a queue, or sees to one that nobody has.
    ///
    /// # Errors
    /// The system's.
    pub fn alone<R>(&self, f: impl FnOnce() -> R) -> io::Result<R> {
        self.wait_for(ALONE)?;
        let result = f();
        self.release(ALONE);
        Ok(result)
    }

    /// As [`Flows::alone`], without waiting: nothing if another process is just taking a queue.
    pub fn if_alone<R>(&self, f: impl FnOnce() -> R) -> Option<R> {
        self.lock(libc::F_SETLK, libc::F_WRLCK, ALONE).ok()?;
        let result = f();
        self.release(ALONE);
        Some(result)
    }

    /// This process asks others for connections, until it ends.
    pub(crate) fn asks(&self) {
        // Where it cannot be told, whoever has them may end sooner than it would.
        let _ = self.lock(libc::F_SETLK, libc::F_RDLCK, ASKS);
    }

    /// Waits until no other process lives that asks for connections. This one asks no more.
    pub(crate) fn until_nobody_asks(&self) {
        self.release(ASKS);
        // It fails for nothing that who waits could change.
        let _ = self.wait_for(ASKS);
        self.release(ASKS);
    }

    /// Waits until the lock is this process's. The kernel looks for deadlocks between processes (`fcntl_setlk`), and
    /// takes it for one if a thread of this process holds what another process waits for while another thread here
    /// waits for what that process has.
    fn wait_for(&self, queue: u32) -> io::Result<()> {
        loop {
            match self.lock(libc::F_SETLKW, libc::F_WRLCK, queue) {
                Err(error) if error.raw_os_error() == Some(libc::EDEADLK) => std::thread::sleep(TRIES_APART),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                done => return done,
            }
        }
    }

    fn lock(&self, how: libc::c_int, kind: libc::c_int, queue: u32) -> io::Result<()> {
        let wanted = lock_of(kind, queue);
        // SAFETY: both commands read one `flock`, which outlives the call.
        let done = unsafe { libc::fcntl(self.fd.as_raw_fd(), how, &raw const wanted) };
        if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// The connections that are open: local and remote address.
    pub fn all(&self) -> Vec<(SocketAddr, SocketAddr)> {
        self.open_slots().map(|(_, slot)| slot.addresses()).collect()
    }

    fn open_slots(&self) -> impl Iterator<Item = (u32, &Slot)> {
        let shared = self.shared();
        let reached = (0..).zip(&shared.slots).take(shared.reached.load(Ordering::Relaxed) as usize);
        reached.filter(|(_, slot)| slot.state.load(Ordering::Acquire) == OPEN)
    }
}

impl Slot {
    /// The local and the remote address of an open connection.
    fn addresses(&self) -> (SocketAddr, SocketAddr) {
        let ports = self.ports.load(Ordering::Relaxed);
        let at = |words, port| SocketAddr::new(read(words), port);
        (at(&self.local, (ports >> 16) as u16), at(&self.remote, ports as u16))
    }
}

impl AsFd for Flows {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for Flows {
    fn drop(&mut self) {
        // SAFETY: this mapping is ours, and nobody borrows from it any more.
        let _ = unsafe { rustix::mm::munmap(self.shared.as_ptr().cast(), size_of::<Shared>()) };
    }
}

/// Why a queue is not this process's.
#[derive(Debug, thiserror::Error)]
pub enum NotClaimed {
    /// Another process has it.
    #[error("process {pid} has it")]
    Taken {
        /// That process; 0 if it has just ended or is in another PID namespace.
        pid: libc::pid_t,
    },
    /// The system refuses.
    #[error(transparent)]
    System(io::Error),
}

/// As [`Flows::holder`], by a descriptor of the table that is not mapped here.
pub(crate) fn holder(table: BorrowedFd<'_>, queue: u32) -> Option<libc::pid_t> {
    let mut asked = lock_of(libc::F_WRLCK, queue);
    // SAFETY: F_GETLK writes to one `flock`, which outlives the call.
    let done = unsafe { libc::fcntl(table.as_raw_fd(), libc::F_GETLK, &raw mut asked) };
    (done == 0 && libc::c_int::from(asked.l_type) != libc::F_UNLCK).then_some(asked.l_pid.max(0))
}

fn lock_of(kind: libc::c_int, queue: u32) -> libc::flock {
    libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: i64::from(queue),
        l_len: 1,
        l_pid: 0,
    }
}

fn write(words: &[AtomicU64; 2], ip: IpAddr) {
    let bits = match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().to_bits(),
        IpAddr::V6(ip) => ip.to_bits(),
    };
    words[0].store((bits >> 64) as u64, Ordering::Relaxed);
    words[1].store(bits as u64, Ordering::Relaxed);
}

fn read(words: &[AtomicU64; 2]) -> IpAddr {
    let bits = u128::from(words[0].load(Ordering::Relaxed)) << 64 | u128::from(words[1].load(Ordering::Relaxed));
    IpAddr::V6(Ipv6Addr::from_bits(bits)).to_canonical()
}

#[cfg(test)]
mod tests;
