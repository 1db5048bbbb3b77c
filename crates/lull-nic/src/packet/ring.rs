//! The socket and its receive ring (TPACKET_V2, `net/packet/af_packet.c`).

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use libc::{sock_filter, tpacket2_hdr};

use crate::eventfd::owned;
use crate::interface::{option, set_option};

/// Bytes of a slot: the longest packet that GRO merges, Ethernet and the slot's header, in whole pages.
const SLOT_BYTES: usize = 17 * 4096;
const BLOCK_SLOTS: usize = 15;
const BLOCKS: usize = 9;
const BYTES: usize = BLOCKS * BLOCK_SLOTS * SLOT_BYTES;

/// A ring of slots, each the kernel's or ours, as its status says.
pub(super) struct Ring(NonNull<u8>);

// SAFETY: shared memory, of which the status of each slot says whose it is.
unsafe impl Send for Ring {}
// SAFETY: as above; one half alone reads.
unsafe impl Sync for Ring {}

/// A frame in its slot.
pub(super) struct Slot<'a> {
    pub(super) data: &'a [u8],
    pub(super) status: u32,
    /// It was longer than the slot.
    pub(super) is_cut: bool,
}

/// A socket on the interface, and its ring.
pub(super) fn open(ifindex: u32, filter: &[sock_filter]) -> io::Result<(OwnedFd, Ring)> {
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // Protocol 0: nothing is received before the filter is there and the socket is bound.
    // SAFETY: no pointers are passed; `owned` checks the result, which nobody else has.
    let socket = unsafe { owned(libc::socket(libc::AF_PACKET, kind, 0)) }?;
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_ptr().cast_mut() };
    set_option(&socket, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &program)?;
    set_option(&socket, libc::SOL_PACKET, libc::PACKET_VERSION, &(libc::tpacket_versions::TPACKET_V2 as i32))?;
    set_option(&socket, libc::SOL_PACKET, libc::PACKET_IGNORE_OUTGOING, &1i32)?;
    set_option(&socket, libc::SOL_PACKET, libc::PACKET_QDISC_BYPASS, &1i32)?;
    let request = libc::tpacket_req {
        tp_block_size: (BLOCK_SLOTS * SLOT_BYTES) as u32,
        tp_block_nr: BLOCKS as u32,
        tp_frame_size: SLOT_BYTES as u32,
        tp_frame_nr: (BLOCKS * BLOCK_SLOTS) as u32,
    };
    set_option(&socket, libc::SOL_PACKET, libc::PACKET_RX_RING, &request)?;
    let ring = Ring::map(&socket)?;
    // SAFETY: a C structure of integers and arrays, for which zero is a value.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
    address.sll_ifindex = ifindex as libc::c_int;
    // SAFETY: the address outlives the call, and its size is told.
    let bound = unsafe {
        libc::bind(socket.as_raw_fd(), (&raw const address).cast(), size_of_val(&address) as libc::socklen_t)
    };
    if bound < 0 { Err(io::Error::last_os_error()) } else { Ok((socket, ring)) }
}

/// Frames that the kernel lost since it was last asked, because the ring was full.
pub(super) fn lost(socket: &OwnedFd) -> u64 {
    let none = libc::tpacket_stats { tp_packets: 0, tp_drops: 0 };
    option(socket, libc::SOL_PACKET, libc::PACKET_STATISTICS, none).map_or(0, |stats| stats.tp_drops.into())
}

impl Ring {
    fn map(socket: &OwnedFd) -> io::Result<Ring> {
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
        // SAFETY: a new mapping at an address of the kernel's choice touches nothing that is there.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), BYTES, protection, flags, socket.as_raw_fd(), 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let ring = Ring(NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?);
        // What others sent is no business of a core dump, nor of a child of `fork`.
        for advice in [libc::MADV_DONTDUMP, libc::MADV_DONTFORK] {
            // SAFETY: the mapping that was just made, whole.
            if unsafe { libc::madvise(start, BYTES, advice) } < 0 {
                return Err(io::Error::last_os_error());
            }
        }
        Ok(ring)
    }

    pub(super) fn slots(&self) -> usize {
        BLOCKS * BLOCK_SLOTS
    }

    fn header(&self, slot: usize) -> NonNull<tpacket2_hdr> {
        debug_assert!(slot < self.slots());
        // SAFETY: inside the mapping: blocks follow each other without a gap, and so do their slots.
        unsafe { self.0.add(slot * SLOT_BYTES).cast() }
    }

    fn status(&self, slot: usize) -> &AtomicU32 {
        // SAFETY: the header's first word, aligned, which both sides only use atomically.
        unsafe { self.header(slot).cast::<AtomicU32>().as_ref() }
    }

    /// Whether a slot holds a frame. For any thread.
    pub(super) fn is_filled(&self, slot: usize) -> bool {
        self.status(slot).load(Ordering::Relaxed) & libc::TP_STATUS_USER != 0
    }

    /// The frame in a slot, if there is one.
    pub(super) fn filled(&self, slot: usize) -> Option<Slot<'_>> {
        // Acquire: the kernel wrote the frame before it said so.
        let status = self.status(slot).load(Ordering::Acquire);
        if status & libc::TP_STATUS_USER == 0 {
            return None;
        }
        // SAFETY: the slot is ours until `give_back`; the fields are read one by one, and the kernel wrote them.
        let (begin, length, whole) = unsafe {
            let header = self.header(slot).as_ptr();
            ((*header).tp_mac as usize, (*header).tp_snaplen as usize, (*header).tp_len as usize)
        };
        let length = length.min(SLOT_BYTES.saturating_sub(begin));
        // SAFETY: inside the slot, which is ours until `give_back`.
        let data = unsafe { std::slice::from_raw_parts(self.header(slot).cast::<u8>().add(begin).as_ptr(), length) };
        Some(Slot { data, status, is_cut: length < whole })
    }

    /// The slot is the kernel's again.
    pub(super) fn give_back(&self, slot: usize) {
        // Release: the frame was read before.
        self.status(slot).store(libc::TP_STATUS_KERNEL, Ordering::Release);
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: the mapping of `map`, which nothing points into any more.
        unsafe { libc::munmap(self.0.as_ptr().cast(), BYTES) };
    }
}
