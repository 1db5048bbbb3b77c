//! bpf(2): maps, programs and the link that attaches one to a device.

use std::ffi::c_void;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use super::asm::Instruction;
use crate::eventfd::owned;

// Commands, map, program and attach types of <linux/bpf.h>, which libc does not have.
const MAP_CREATE: libc::c_int = 0;
const MAP_UPDATE_ELEM: libc::c_int = 2;
const PROG_LOAD: libc::c_int = 5;
#[cfg(all(test, not(loom)))]
const PROG_TEST_RUN: libc::c_int = 10;
const LINK_CREATE: libc::c_int = 28;
const MAP_TYPE_HASH: u32 = 1;
const MAP_TYPE_XSKMAP: u32 = 17;
const PROG_TYPE_XDP: u32 = 6;
const ATTACH_TYPE_XDP: u32 = 37;
/// The program reads frames that are in several pieces.
const F_XDP_HAS_FRAGS: u32 = 1 << 5;
// Flags of <linux/if_link.h>.
const XDP_FLAGS_SKB_MODE: u32 = 1 << 1;
const XDP_FLAGS_DRV_MODE: u32 = 1 << 2;

/// Bytes of a program's or map's name with its terminating zero.
const NAME_BYTES: usize = 16;
/// The name under which `bpftool prog` and `bpftool map` show what is made here.
const NAME: &[u8; NAME_BYTES] = b"lull_xdp\0\0\0\0\0\0\0\0";

fn bpf<T>(command: libc::c_int, attributes: &mut T) -> io::Result<libc::c_int> {
    let pointer = std::ptr::from_mut(attributes);
    // SAFETY: `attributes` is the structure of this command, outlives the call, and its size is told; what its pointers
    // lead to outlives the call as well (each caller's).
    let done = unsafe { libc::syscall(libc::SYS_bpf, command, pointer.cast::<c_void>(), size_of::<T>()) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(done as libc::c_int) }
}

/// A command that returns a descriptor.
fn bpf_fd<T>(command: libc::c_int, attributes: &mut T) -> io::Result<OwnedFd> {
    let fd = bpf(command, attributes)?;
    // SAFETY: the command has just made it, for us alone.
    unsafe { owned(fd) }
}

#[repr(C)]
#[derive(Default)]
struct MapCreate {
    map_type: u32,
    key_size: u32,
    value_size: u32,
    max_entries: u32,
    map_flags: u32,
    inner_map_fd: u32,
    numa_node: u32,
    map_name: [u8; NAME_BYTES],
}

fn map(map_type: u32, key_size: u32, entries: u32) -> io::Result<OwnedFd> {
    // The kernel refuses maps without room.
    let max_entries = entries.max(1);
    let mut attributes =
        MapCreate { map_type, key_size, value_size: 4, max_entries, map_name: *NAME, ..MapCreate::default() };
    bpf_fd(MAP_CREATE, &mut attributes)
}

/// A hash map from keys of `KEY` bytes to words.
pub(super) fn hash<const KEY: usize>(entries: &[([u8; KEY], u32)]) -> io::Result<OwnedFd> {
    let fd = map(MAP_TYPE_HASH, KEY as u32, entries.len() as u32)?;
    for (key, value) in entries {
        update(&fd, key, value)?;
    }
    Ok(fd)
}

/// A map from queue to AF_XDP socket, for queues below `queues`.
pub(super) fn sockets(queues: u32) -> io::Result<OwnedFd> {
    map(MAP_TYPE_XSKMAP, 4, queues)
}

/// Frames of `queue` go to `socket` from now on.
pub(super) fn set_socket(sockets: &OwnedFd, queue: u32, socket: BorrowedFd<'_>) -> io::Result<()> {
    update(sockets, &queue.to_ne_bytes(), &(socket.as_raw_fd() as u32))
}

#[repr(C)]
struct MapElement {
    map_fd: u32,
    key: u64,
    value: u64,
    flags: u64,
}

fn update<const KEY: usize>(map: &OwnedFd, key: &[u8; KEY], value: &u32) -> io::Result<()> {
    let mut attributes = MapElement {
        map_fd: map.as_raw_fd() as u32,
        key: key.as_ptr() as u64,
        value: std::ptr::from_ref(value) as u64,
        flags: 0,
    };
    bpf(MAP_UPDATE_ELEM, &mut attributes).map(|_| ())
}

#[repr(C)]
#[derive(Default)]
struct ProgramLoad {
    prog_type: u32,
    insn_cnt: u32,
    insns: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log_buf: u64,
    kern_version: u32,
    prog_flags: u32,
    prog_name: [u8; NAME_BYTES],
    prog_ifindex: u32,
    expected_attach_type: u32,
}

/// Whether frames in several pieces pass through the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pieces {
    One,
    Several,
}

/// Loads an XDP program. What the kernel's verifier says of one that it refuses is in the error.
pub(super) fn load(program: &[Instruction], pieces: Pieces) -> io::Result<OwnedFd> {
    const LOG_BYTES: usize = 64 << 10;
    let mut attributes = ProgramLoad {
        prog_type: PROG_TYPE_XDP,
        insn_cnt: program.len() as u32,
        insns: program.as_ptr() as u64,
        // No helper that is used here asks for the GPL.
        license: c"Apache-2.0 OR MIT".as_ptr() as u64,
        prog_flags: if pieces == Pieces::Several { F_XDP_HAS_FRAGS } else { 0 },
        prog_name: *NAME,
        expected_attach_type: ATTACH_TYPE_XDP,
        ..ProgramLoad::default()
    };
    let error = match bpf_fd(PROG_LOAD, &mut attributes) {
        Err(error) if matches!(error.raw_os_error(), Some(libc::EACCES | libc::EINVAL)) => error,
        loaded => return loaded,
    };
    let mut log = vec![0u8; LOG_BYTES];
    (attributes.log_level, attributes.log_size, attributes.log_buf) = (1, LOG_BYTES as u32, log.as_mut_ptr() as u64);
    let again = bpf_fd(PROG_LOAD, &mut attributes);
    let text = String::from_utf8_lossy(log.split(|byte| *byte == 0).next().unwrap_or_default()).into_owned();
    match again {
        Err(_) if !text.is_empty() => Err(io::Error::new(error.kind(), format!("{error}; the verifier says: {text}"))),
        again => again,
    }
}

/// Where in the device the program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XdpMode {
    /// In the driver, before the kernel has made a packet of the frame.
    Native,
    /// Above the driver, on the kernel's packets: for drivers that have no XDP. Slower.
    Generic,
}

impl std::fmt::Display for XdpMode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            XdpMode::Native => "native",
            XdpMode::Generic => "generic",
        })
    }
}

#[repr(C)]
struct LinkCreate {
    prog_fd: u32,
    target_ifindex: u32,
    attach_type: u32,
    flags: u32,
}

/// Attaches the program to a device until the link's last descriptor is closed.
pub(super) fn attach(program: &OwnedFd, ifindex: u32, mode: XdpMode) -> io::Result<OwnedFd> {
    let flags = if mode == XdpMode::Native { XDP_FLAGS_DRV_MODE } else { XDP_FLAGS_SKB_MODE };
    let mut attributes = LinkCreate {
        prog_fd: program.as_raw_fd() as u32,
        target_ifindex: ifindex,
        attach_type: ATTACH_TYPE_XDP,
        flags,
    };
    bpf_fd(LINK_CREATE, &mut attributes)
}

/// Runs the program over one frame; what it returned.
#[cfg(all(test, not(loom)))]
pub(super) fn test_run(program: &OwnedFd, frame: &[u8]) -> io::Result<u32> {
    #[repr(C)]
    #[derive(Default)]
    struct TestRun {
        prog_fd: u32,
        retval: u32,
        data_size_in: u32,
        data_size_out: u32,
        data_in: u64,
        data_out: u64,
        repeat: u32,
        duration: u32,
    }
    let mut attributes = TestRun {
        prog_fd: program.as_raw_fd() as u32,
        data_size_in: frame.len() as u32,
        data_in: frame.as_ptr() as u64,
        repeat: 1,
        ..TestRun::default()
    };
    bpf(PROG_TEST_RUN, &mut attributes)?;
    Ok(attributes.retval)
}
