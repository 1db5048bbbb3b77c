//! The programs of extended BPF that this process has loaded (`bpf(2)`).
//!
//! The kernel does not give out the instructions of a program as they were loaded, but as it has rewritten them for its
//! own structures. So a program that SO_ATTACH_REUSEPORT_EBPF may name later is kept when the process loads it, under
//! the kernel's number of it, which all its descriptors tell.
#![allow(unsafe_code)]

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lull_net::lull_bpf::extended::{SK_REUSEPORT, SOCKET_FILTER};
use lull_net::lull_bpf::{Chooser, extended};
use lull_net::lull_nic::Afresh;

use libc::{c_int, c_long};

use crate::raw::raw;
use crate::{Errno, Result, memory, signals};

/// The most programs that are kept; beyond them the oldest is forgotten.
const KEPT_MAX: usize = 64;

/// `BPF_PROG_LOAD` and `BPF_OBJ_GET_INFO_BY_FD` (`enum bpf_cmd`).
const PROG_LOAD: usize = 5;
const OBJ_GET_INFO_BY_FD: c_int = 15;

/// How `union bpf_attr` begins for `BPF_PROG_LOAD`.
#[repr(C)]
struct Load {
    kind: u32,
    count: u32,
    instructions: u64,
}

/// `union bpf_attr` for `BPF_OBJ_GET_INFO_BY_FD`.
#[repr(C)]
struct GetInfo {
    fd: u32,
    bytes: u32,
    info: u64,
}

/// How `struct bpf_prog_info` begins.
#[repr(C)]
#[derive(Default)]
struct Info {
    kind: u32,
    id: u32,
}

/// A program as it was loaded, or why it cannot be run here.
type Kept = (u32, core::result::Result<Arc<Chooser>, extended::Refused>);

static KEPT: Afresh<Mutex<Vec<Kept>>> = Afresh::new();

fn kept() -> MutexGuard<'static, Vec<Kept>> {
    // An entry is put in and taken out whole.
    KEPT.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner)
}

/// To be called in any child of `fork`.
pub(crate) fn forget_if_held() {
    KEPT.forget_if_held();
}

/// A `bpf(2)` by number, with its arguments: if it has loaded a program, that is kept.
///
/// # Safety
/// As the call.
pub unsafe fn by_number(call: impl FnOnce() -> c_long, [command, attributes, bytes]: [usize; 3]) -> c_long {
    let result = call();
    let is_whole = bytes >= size_of::<Load>();
    if let (PROG_LOAD, true, Ok(fd @ 0..)) = (command, is_whole, c_int::try_from(result)) {
        // SAFETY: the kernel has just read them, and as many.
        let load = unsafe { (attributes as *const Load).read_unaligned() };
        if load.kind == SOCKET_FILTER {
            let bytes = load.count as usize * size_of::<u64>();
            // SAFETY: likewise.
            let code = unsafe { memory::bytes(load.instructions as *const _, bytes) };
            signals::section(|| keep(fd, code));
        }
    }
    result
}

fn keep(fd: c_int, code: &[u8]) {
    // The number that the kernel has just given out.
    let Ok(info) = info(fd) else { return };
    let program = extended::Program::new(code).map(|program| Arc::new(Chooser::from(program)));
    let mut kept = kept();
    if kept.len() == KEPT_MAX {
        drop(kept.remove(0));
    }
    kept.push((info.id, program));
}

fn info(fd: c_int) -> Result<Info> {
    let mut info = Info::default();
    let mut asked = GetInfo { fd: fd as u32, bytes: size_of::<Info>() as u32, info: (&raw mut info) as u64 };
    // SAFETY: both structures outlive the call, which writes as much of `info` as it is told there is.
    unsafe { raw!(SYS_bpf, OBJ_GET_INFO_BY_FD, &raw mut asked, size_of_val(&asked)) }?;
    Ok(info)
}

/// Why a program cannot be run by lull's stack.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum NotHad {
    /// The descriptor is none of a program that a reuseport group takes.
    #[error("{0}")]
    NoProgram(Errno),
    /// It chooses by maps.
    #[error("it is no socket filter, and maps of sockets are the kernel's (BPF_PROG_TYPE_SK_REUSEPORT)")]
    ByMaps,
    /// Another process has loaded it.
    #[error("the program was not loaded by this process, by which lull would know its instructions")]
    Unknown,
    /// The interpreter lacks something.
    #[error("{0}")]
    Refused(extended::Refused),
}

/// The program that a descriptor stands for.
pub(crate) fn program(fd: c_int) -> core::result::Result<Arc<Chooser>, NotHad> {
    let info = info(fd).map_err(NotHad::NoProgram)?;
    // The kernel tells of maps and links as it does of programs.
    let link = std::fs::read_link(format!("/proc/self/fd/{fd}"));
    if link.is_ok_and(|name| name != Path::new("anon_inode:bpf-prog")) {
        return Err(NotHad::NoProgram(Errno::new(libc::EINVAL)));
    }
    match info.kind {
        SOCKET_FILTER => {}
        SK_REUSEPORT => return Err(NotHad::ByMaps),
        _ => return Err(NotHad::NoProgram(Errno::new(libc::EINVAL))),
    }
    match kept().iter().rev().find(|(id, _)| *id == info.id) {
        Some((_, program)) => program.clone().map_err(NotHad::Refused),
        None => Err(NotHad::Unknown),
    }
}
