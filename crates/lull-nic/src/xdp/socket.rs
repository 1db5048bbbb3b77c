//! An AF_XDP socket: its memory, its four rings, and what is asked of it.

use std::ffi::c_void;
use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::NonNull;

use super::ring::AtomicU32;
use crate::eventfd::owned;
use crate::interface::{option, set_option};

/// A socket with a receive ring of `rx_slots`, bound to nothing yet. It takes CAP_NET_RAW; what follows does not. Newer
/// kernels take no socket without that ring into a map (ENOBUFS of `xsk_map_update_elem`).
pub(super) fn open(rx_slots: u32) -> io::Result<OwnedFd> {
    // SAFETY: no pointers are passed; `owned` checks the result, which nobody else has.
    let socket = unsafe { owned(libc::socket(libc::AF_XDP, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0)) }?;
    set_option(&socket, libc::SOL_XDP, libc::XDP_RX_RING, &rx_slots)?;
    Ok(socket)
}

/// Memory that the kernel and this process share. A child of `fork` has none of it: of pages that are pinned it would be given copies at
/// once, and a socket whose ring somebody has mapped keeps its queue.
fn map(bytes: usize, flags: libc::c_int, fd: libc::c_int, offset: libc::off_t) -> io::Result<NonNull<c_void>> {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping at an address of the kernel's choice touches nothing that is there.
    let start = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, flags, fd, offset) };
    let Some(mapped) = NonNull::new(start).filter(|start| start.as_ptr() != libc::MAP_FAILED) else {
        return Err(io::Error::last_os_error());
    };
    // SAFETY: the mapping that was just made, whole.
    if unsafe { libc::madvise(start, bytes, libc::MADV_DONTFORK) } < 0 {
        let error = io::Error::last_os_error();
        // SAFETY: as above; nobody else has heard of it.
        unsafe { libc::munmap(start, bytes) };
        return Err(error);
    }
    Ok(mapped)
}

/// The memory that frames are in, on both sides (UMEM): chunks of one size, which the kernel pins.
#[derive(Debug)]
pub(super) struct Umem {
    start: NonNull<c_void>,
    bytes: usize,
    chunk_bytes: usize,
}

// SAFETY: an address and sizes; who may touch which chunk is the device's protocol.
unsafe impl Send for Umem {}
// SAFETY: as above.
unsafe impl Sync for Umem {}

impl Umem {
    /// Room for `chunks` chunks. It stays out of core dumps: it holds what others sent.
    pub(super) fn new(chunks: usize, chunk_bytes: usize) -> io::Result<Umem> {
        let bytes = chunks * chunk_bytes;
        let start = map(bytes, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0)?;
        let umem = Umem { start, bytes, chunk_bytes };
        // SAFETY: the mapping that was just made, whole.
        if unsafe { libc::madvise(start.as_ptr(), bytes, libc::MADV_DONTDUMP) } < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(umem)
    }

    /// Bytes of a chunk.
    pub(super) fn chunk_bytes(&self) -> usize {
        self.chunk_bytes
    }

    /// All bytes.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Chunk `index`. To use it is up to whose it is at the time.
    pub(super) fn chunk(&self, index: u32) -> NonNull<[u8]> {
        let offset = index as usize * self.chunk_bytes;
        assert!(offset < self.bytes, "chunk {index} of {}", self.bytes / self.chunk_bytes);
        // SAFETY: inside the mapping, by the assertion.
        let start = unsafe { self.start.cast::<u8>().add(offset) };
        NonNull::slice_from_raw_parts(start, self.chunk_bytes)
    }

    /// Which chunk `memory` is.
    pub(super) fn index_of(&self, memory: &[u8]) -> u32 {
        let offset = memory.as_ptr() as usize - self.start.as_ptr() as usize;
        (offset / self.chunk_bytes) as u32
    }

    /// The whole chunk and where in it `address` of a descriptor is.
    pub(super) fn locate(&self, address: u64) -> (u32, usize) {
        let chunk_bytes = self.chunk_bytes as u64;
        ((address / chunk_bytes) as u32, (address % chunk_bytes) as usize)
    }

    /// The address of chunk `index` in descriptors.
    pub(super) fn address(&self, index: u32) -> u64 {
        u64::from(index) * self.chunk_bytes as u64
    }
}

impl Drop for Umem {
    fn drop(&mut self) {
        // SAFETY: the mapping of `new`; nothing points into it any more. The kernel's pins outlive it.
        unsafe { libc::munmap(self.start.as_ptr(), self.bytes) };
    }
}

/// Gives the memory to the socket. ENOBUFS: RLIMIT_MEMLOCK does not allow it.
pub(super) fn register(socket: &OwnedFd, umem: &Umem) -> io::Result<()> {
    let registration = libc::xdp_umem_reg {
        addr: umem.start.as_ptr() as u64,
        len: umem.bytes as u64,
        chunk_size: umem.chunk_bytes as u32,
        headroom: 0,
        flags: 0,
        tx_metadata_len: 0,
    };
    set_option(socket, libc::SOL_XDP, libc::XDP_UMEM_REG, &registration)
}

/// A ring that is shared with the kernel. Of its slots some are ours at each moment, and which is up to [`super::ring`].
#[derive(Debug)]
pub(super) struct SharedRing<T> {
    start: NonNull<c_void>,
    bytes: usize,
    offsets: Offsets,
    slots: u32,
    of: PhantomData<T>,
}

#[derive(Clone, Copy, Debug)]
struct Offsets {
    producer: usize,
    consumer: usize,
    flags: usize,
    slots: usize,
}

// SAFETY: the indices are atomics; a slot is touched by the side that it belongs to.
unsafe impl<T: Send> Send for SharedRing<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for SharedRing<T> {}

impl<T: Copy> SharedRing<T> {
    /// Makes the ring of `kind` and maps it.
    fn make(socket: &OwnedFd, kind: libc::c_int, slots: u32, place: (u64, libc::xdp_ring_offset)) -> io::Result<Self> {
        set_option(socket, libc::SOL_XDP, kind, &slots)?;
        Self::map(socket, slots, place)
    }

    /// Maps a ring that the socket has.
    fn map(socket: &OwnedFd, slots: u32, place: (u64, libc::xdp_ring_offset)) -> io::Result<Self> {
        let (page_offset, kernel) = place;
        let offsets = Offsets {
            producer: kernel.producer as usize,
            consumer: kernel.consumer as usize,
            flags: kernel.flags as usize,
            slots: kernel.desc as usize,
        };
        let bytes = offsets.slots + slots as usize * size_of::<T>();
        let flags = libc::MAP_SHARED | libc::MAP_POPULATE;
        let start = map(bytes, flags, socket.as_raw_fd(), page_offset as libc::off_t)?;
        Ok(SharedRing { start, bytes, offsets, slots, of: PhantomData })
    }

    #[inline]
    fn word(&self, offset: usize) -> &AtomicU32 {
        // SAFETY: inside the mapping, aligned as the kernel laid it out, and only used atomically.
        unsafe { self.start.cast::<u8>().add(offset).cast::<AtomicU32>().as_ref() }
    }

    /// The producer's index.
    #[inline]
    pub(super) fn producer(&self) -> &AtomicU32 {
        self.word(self.offsets.producer)
    }

    /// The consumer's index.
    #[inline]
    pub(super) fn consumer(&self) -> &AtomicU32 {
        self.word(self.offsets.consumer)
    }

    /// XDP_RING_NEED_WAKEUP.
    #[inline]
    pub(super) fn flags(&self) -> &AtomicU32 {
        self.word(self.offsets.flags)
    }

    #[inline]
    fn slot(&self, slot: u32) -> NonNull<T> {
        debug_assert!(slot < self.slots);
        // SAFETY: `slot` is an index of `ring.rs`, which keeps it below the number of slots that were mapped.
        unsafe { self.start.cast::<u8>().add(self.offsets.slots).cast::<T>().add(slot as usize) }
    }

    /// Reads a slot that a [`super::ring::Consumer`] took.
    #[inline]
    pub(super) fn read(&self, slot: u32) -> T {
        // SAFETY: ours until the consumer's index is released; the kernel wrote it before it published it.
        unsafe { self.slot(slot).read() }
    }

    /// Writes a slot that a [`super::ring::Producer`] claimed.
    #[inline]
    pub(super) fn write(&self, slot: u32, value: T) {
        // SAFETY: ours until the producer's index is published.
        unsafe { self.slot(slot).write(value) }
    }
}

impl<T> Drop for SharedRing<T> {
    fn drop(&mut self) {
        // SAFETY: the mapping of `make`, which nothing points into any more.
        unsafe { libc::munmap(self.start.as_ptr(), self.bytes) };
    }
}

/// The four rings of a socket.
#[derive(Debug)]
pub(super) struct Rings {
    pub(super) rx: SharedRing<libc::xdp_desc>,
    pub(super) tx: SharedRing<libc::xdp_desc>,
    pub(super) fill: SharedRing<u64>,
    pub(super) completion: SharedRing<u64>,
}

impl Rings {
    /// Makes the rings: `rx` slots for receiving (fill ring, and the receive ring that [`open`] made), `tx` for sending.
    pub(super) fn make(socket: &OwnedFd, rx: u32, tx: u32) -> io::Result<Rings> {
        let none = libc::xdp_ring_offset { producer: 0, consumer: 0, desc: 0, flags: 0 };
        let offsets = libc::xdp_mmap_offsets { rx: none, tx: none, fr: none, cr: none };
        let offsets = option(socket, libc::SOL_XDP, libc::XDP_MMAP_OFFSETS, offsets)?;
        Ok(Rings {
            rx: SharedRing::map(socket, rx, (libc::XDP_PGOFF_RX_RING as u64, offsets.rx))?,
            tx: SharedRing::make(socket, libc::XDP_TX_RING, tx, (libc::XDP_PGOFF_TX_RING as u64, offsets.tx))?,
            fill: SharedRing::make(socket, libc::XDP_UMEM_FILL_RING, rx, (libc::XDP_UMEM_PGOFF_FILL_RING, offsets.fr))?,
            completion: SharedRing::make(
                socket,
                libc::XDP_UMEM_COMPLETION_RING,
                tx,
                (libc::XDP_UMEM_PGOFF_COMPLETION_RING, offsets.cr),
            )?,
        })
    }
}

/// Binds the socket to a queue. EBUSY: another socket has it. EINVAL with [`libc::XDP_USE_SG`]: the kernel knows no
/// frames in several pieces.
pub(super) fn bind(socket: &OwnedFd, ifindex: u32, queue: u32, flags: u16) -> io::Result<()> {
    let address = libc::sockaddr_xdp {
        sxdp_family: libc::AF_XDP as u16,
        sxdp_flags: flags,
        sxdp_ifindex: ifindex,
        sxdp_queue_id: queue,
        sxdp_shared_umem_fd: 0,
    };
    // SAFETY: the address outlives the call, and its size is told.
    let bound = unsafe {
        libc::bind(socket.as_raw_fd(), (&raw const address).cast(), size_of_val(&address) as libc::socklen_t)
    };
    if bound < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Whether the driver reads and writes the memory itself.
pub(super) fn is_zero_copy(socket: &OwnedFd) -> io::Result<bool> {
    let options = option(socket, libc::SOL_XDP, libc::XDP_OPTIONS, libc::xdp_options { flags: 0 })?;
    Ok(options.flags & libc::XDP_OPTIONS_ZEROCOPY != 0)
}

/// What the kernel counted.
pub(super) fn statistics(socket: &OwnedFd) -> io::Result<libc::xdp_statistics> {
    let none = libc::xdp_statistics {
        rx_dropped: 0,
        rx_invalid_descs: 0,
        tx_invalid_descs: 0,
        rx_ring_full: 0,
        rx_fill_ring_empty_descs: 0,
        tx_ring_empty_descs: 0,
    };
    option(socket, libc::SOL_XDP, libc::XDP_STATISTICS, none)
}

/// Asks the kernel to send what is on the transmit ring. In copy mode the call itself sends, at most 32 frames.
pub(super) fn kick_tx(socket: &OwnedFd) -> io::Result<()> {
    // SAFETY: nothing is read from the null buffer of no bytes.
    let sent =
        unsafe { libc::sendto(socket.as_raw_fd(), std::ptr::null(), 0, libc::MSG_DONTWAIT, std::ptr::null(), 0) };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Asks the kernel to go on receiving (need_wakeup), or to poll the driver (busy polling).
pub(super) fn kick_rx(socket: &OwnedFd) -> io::Result<()> {
    // SAFETY: nothing is written to the null buffer of no bytes.
    let received = unsafe {
        libc::recvfrom(
            socket.as_raw_fd(),
            std::ptr::null_mut(),
            0,
            libc::MSG_DONTWAIT,
            std::ptr::null_mut(),
            std::ptr::null_mut(),
        )
    };
    if received < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Lets calls on the socket busy poll the driver, `usecs` long and `budget` frames at a time, and keeps the driver's
/// interrupt masked while they do (SO_PREFER_BUSY_POLL). It takes CAP_NET_ADMIN.
pub(super) fn set_busy_poll(socket: &OwnedFd, usecs: u32, budget: u32) -> io::Result<()> {
    set_option(socket, libc::SOL_SOCKET, libc::SO_PREFER_BUSY_POLL, &1u32)?;
    set_option(socket, libc::SOL_SOCKET, libc::SO_BUSY_POLL, &usecs)?;
    set_option(socket, libc::SOL_SOCKET, libc::SO_BUSY_POLL_BUDGET, &budget)
}

/// The id of the kernel's NAPI that the last frame came from; 0 if that has none, or no frame has come.
pub(super) fn napi_id(socket: &OwnedFd) -> u32 {
    option(socket, libc::SOL_SOCKET, libc::SO_INCOMING_NAPI_ID, 0u32).unwrap_or(0)
}
