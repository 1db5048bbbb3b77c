//! Programs that choose among the sockets of a reuseport group: SO_ATTACH_REUSEPORT_CBPF, its extended kin, and
//! SO_DETACH_REUSEPORT_BPF.
//!
//! The kernel judges a program on the placeholder, so that its errors are the kernel's own; lull's group runs it. What is
//! attached before a socket is lull's is remembered until it is.
#![allow(unsafe_code)]

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use libc::{c_int, sock_fprog};
use lull_fd::say;
use lull_net::lull_bpf::{Chooser, Instruction, Program};
use lull_net::lull_nic::Afresh;

use super::Name;
use crate::socket::Listener;
use crate::{Errno, Result, bpf, is_engaged, kernel, memory};

/// How many programs are remembered at most. If more sockets than that never become lull's, the oldest is forgotten.
const REMEMBERED_MAX: usize = 64;

/// Whether an option of a socket of the kernel's is one of these, in a process where that may become lull's.
#[inline]
pub fn may_steer(level: c_int, name: c_int) -> bool {
    steers(level, name) && is_engaged()
}

/// Whether an option is one of these.
#[inline]
pub fn steers(level: c_int, name: c_int) -> bool {
    level == libc::SOL_SOCKET
        && matches!(
            name,
            libc::SO_ATTACH_REUSEPORT_CBPF | libc::SO_ATTACH_REUSEPORT_EBPF | libc::SO_DETACH_REUSEPORT_BPF
        )
}

/// The program of an attachment, `None` of a detachment.
pub(in crate::socket) fn asked((_, name): Name, value: &[u8]) -> Result<Option<Arc<Chooser>>> {
    match name {
        libc::SO_DETACH_REUSEPORT_BPF => return Ok(None),
        libc::SO_ATTACH_REUSEPORT_EBPF => return extended(value).map(Some),
        _ => {}
    }
    let invalid = Errno::new(libc::EINVAL);
    if value.len() != size_of::<sock_fprog>() {
        return Err(invalid);
    }
    // SAFETY: as many bytes as the structure has, and any bytes make one.
    let filter = unsafe { value.as_ptr().cast::<sock_fprog>().read_unaligned() };
    let bytes = usize::from(filter.len) * size_of::<Instruction>();
    // SAFETY: the program vouches for its instructions, as for any pointer of a system call.
    let bytes = unsafe { memory::if_any(filter.filter.cast_const().cast(), bytes) };
    let instruction = |bytes: &[u8]| Instruction {
        code: u16::from_ne_bytes([bytes[0], bytes[1]]),
        jt: bytes[2],
        jf: bytes[3],
        k: u32::from_ne_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]),
    };
    let program = Program::new(bytes.chunks_exact(size_of::<Instruction>()).map(instruction).collect());
    match program {
        Ok(program) => Ok(Some(Arc::new(program.into()))),
        Err(lull_net::lull_bpf::Refused::Unsupported { .. }) => Err(Errno::new(libc::EOPNOTSUPP)),
        Err(_) => Err(invalid),
    }
}

/// The program that the descriptor in `value` stands for (`sk_reuseport_attach_bpf`).
fn extended(value: &[u8]) -> Result<Arc<Chooser>> {
    let fd = value.try_into().map(c_int::from_ne_bytes).map_err(|_| Errno::new(libc::EINVAL))?;
    bpf::program(fd).map_err(|why| match why {
        // What `bpf_prog_get_type` says of it.
        bpf::NotHad::NoProgram(error) if error.number() == libc::EBADFD => Errno::new(libc::EBADF),
        bpf::NotHad::NoProgram(error) => error,
        why => {
            say::line(format_args!("SO_ATTACH_REUSEPORT_EBPF: lull cannot run the program: {why}"));
            Errno::new(libc::EOPNOTSUPP)
        }
    })
}

/// The programs by their sockets' inodes; `None` stands for a program that lull cannot run.
type Remembered = Vec<(u32, Option<Arc<Chooser>>)>;

static REMEMBERED: Afresh<Mutex<Remembered>> = Afresh::new();

fn remembered() -> MutexGuard<'static, Remembered> {
    // An entry is either there completely or not at all.
    REMEMBERED.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner)
}

/// Called in every child of `fork`.
pub(crate) fn forget_if_held() {
    REMEMBERED.forget_if_held();
}

/// One of these options of a socket that is the kernel's still: the kernel has it, and lull's socket will.
pub(super) fn set_before(fd: c_int, (level, name): Name, value: &[u8]) -> Result<()> {
    kernel::setsockopt(fd, level, name, value)?;
    let inode = kernel::inode(fd)?;
    let mut remembered = remembered();
    remembered.retain(|(of, _)| *of != inode);
    let program = match asked((level, name), value) {
        Ok(None) => return Ok(()),
        asked => asked.ok().flatten(),
    };
    if remembered.len() == REMEMBERED_MAX {
        remembered.remove(0);
    }
    remembered.push((inode, program));
    Ok(())
}

/// What was attached to a socket before it became lull's, bound to `at`. A program that lull cannot run is in force in
/// the kernel only.
pub(in crate::socket) fn take_remembered(inode: u32, at: SocketAddr) -> Option<Arc<Chooser>> {
    let mut remembered = remembered();
    let nth = remembered.iter().position(|(of, _)| *of == inode)?;
    let (_, program) = remembered.remove(nth);
    if program.is_none() {
        say::line(format_args!(
            "lull cannot run the program that was attached to the sockets of {at}: a hash chooses among them in lull"
        ));
    }
    program
}

impl Listener {
    /// One of these options of a listener of lull's.
    pub(super) fn steer(&self, fd: c_int, (level, name): Name, value: &[u8]) -> Result<()> {
        let program = asked((level, name), value)?;
        if program.is_some() {
            kernel::setsockopt(fd, level, name, value)?;
        } else if self.both_worlds {
            // The kernel's half may have no program of its own.
            let _ = kernel::setsockopt(fd, level, name, value);
        }
        let mut kept = self.program.lock().unwrap_or_else(PoisonError::into_inner);
        match self.if_real() {
            Some(real) => real.set_reuseport_program(program)?,
            None if program.is_none() && kept.is_none() => return Err(Errno::new(libc::ENOENT)),
            None => *kept = program,
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fork::tests::in_a_child;

    #[test]
    fn without_addresses_of_lulls_every_option_is_the_kernels_alone() {
        let name = libc::SO_ATTACH_REUSEPORT_CBPF;
        assert!(steers(libc::SOL_SOCKET, name) && !may_steer(libc::SOL_SOCKET, name));
    }

    #[test]
    fn a_child_has_what_was_attached_before_it_was_made_and_waits_for_no_thread_of_its_parents() {
        const NO_SOCKETS: u32 = u32::MAX;
        remembered().push((NO_SOCKETS, None));
        let is_there = || remembered().iter().any(|(of, _)| *of == NO_SOCKETS);
        assert!(in_a_child(is_there));
        let _held = remembered();
        assert!(in_a_child(|| !is_there()));
    }
}
