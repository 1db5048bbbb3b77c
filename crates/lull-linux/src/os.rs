//! System calls that no kept crate has: epoll's busy-poll ioctls, the NAPI id of a socket, the cookie of a network
//! namespace, programs of reuseport groups, indirection tables, scheduling attributes, and whether two descriptors are
//! one open file; also the handler of the signals that end a command.
//!
//! All unsafe code of this crate is in this file.

use std::ffi::CString;
use std::io;
use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use lull_bpf::Instruction;
use lull_core::EpollParams;

/// `EPIOCSPARAMS` of `linux/eventpoll.h` (Linux 6.9).
const EPIOCSPARAMS: libc::c_ulong = 0x4008_8a01;
/// `EPIOCGPARAMS`.
const EPIOCGPARAMS: libc::c_ulong = 0x8008_8a02;
/// `SO_INCOMING_NAPI_ID` of `asm-generic/socket.h`.
const SO_INCOMING_NAPI_ID: libc::c_int = 56;
/// `SO_NETNS_COOKIE`.
const SO_NETNS_COOKIE: libc::c_int = 71;
/// `SIOCGSKNS` of `linux/sockios.h`.
const SIOCGSKNS: libc::c_ulong = 0x894C;
/// `KCMP_FILE`.
const KCMP_FILE: libc::c_int = 0;

/// `struct epoll_params`.
#[repr(C)]
struct RawEpollParams {
    busy_poll_usecs: u32,
    busy_poll_budget: u16,
    prefer_busy_poll: u8,
    pad: u8,
}

/// Signals that come within half a second are one request to end: `timeout`, for example, sends the signal to its child
/// and again to the child's group.
const ONE_REQUEST_NS: u64 = 500_000_000;

/// Sets `stop` at SIGINT, SIGTERM and SIGHUP. One that comes later than half a second behind the first ends the process at once, in
/// the usual way. A SIGHUP that is ignored, as under nohup(1), stays so.
pub fn stop_at_signals(stop: &Arc<AtomicBool>) {
    let first_ns = Arc::new(AtomicU64::new(0));
    let heeded = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP];
    for signal in heeded.into_iter().filter(|&signal| signal != libc::SIGHUP || !is_ignored(signal)) {
        let (stop, first_ns) = (stop.clone(), first_ns.clone());
        let heard = move || {
            stop.store(true, Ordering::SeqCst);
            let now_ns = monotonic_ns();
            let first = first_ns.compare_exchange(0, now_ns, Ordering::SeqCst, Ordering::SeqCst);
            if first.is_err_and(|first_ns| now_ns.saturating_sub(first_ns) > ONE_REQUEST_NS) {
                let _ = signal_hook::low_level::emulate_default_handler(signal);
            }
        };
        // SAFETY: the action does only what a handler may: atomics, the clock, and what ends the process.
        // All of them are signals that can be caught.
        let _ = unsafe { signal_hook::low_level::register(signal, heard) };
    }
}

fn is_ignored(signal: libc::c_int) -> bool {
    let mut action = std::mem::MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: the call sets nothing and writes the action that there is, which all zeros are one of, too.
    let action = unsafe {
        let _ = libc::sigaction(signal, std::ptr::null(), action.as_mut_ptr());
        action.assume_init()
    };
    action.sa_sigaction == libc::SIG_IGN
}

/// Never 0.
fn monotonic_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    (now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64).max(1)
}

fn done(result: libc::c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// The busy-poll parameters of an epoll context (`EPIOCGPARAMS`, Linux 6.9).
///
/// # Errors
/// ENOTTY on older kernels, and for descriptors that are no epoll context.
pub fn epoll_params(epoll: BorrowedFd<'_>) -> io::Result<EpollParams> {
    let mut raw = RawEpollParams { busy_poll_usecs: 0, busy_poll_budget: 0, prefer_busy_poll: 0, pad: 0 };
    // SAFETY: the request writes a structure of exactly this layout, which outlives the call.
    done(unsafe { libc::ioctl(epoll.as_raw_fd(), EPIOCGPARAMS as libc::Ioctl, &raw mut raw) })?;
    Ok(EpollParams {
        busy_poll_usecs: raw.busy_poll_usecs,
        busy_poll_budget: u32::from(raw.busy_poll_budget),
        prefer_busy_poll: raw.prefer_busy_poll != 0,
    })
}

/// Sets the busy-poll parameters of an epoll context (`EPIOCSPARAMS`).
///
/// # Errors
/// EINVAL for values out of range, EPERM for a budget above 64 without CAP_NET_ADMIN, ENOTTY before Linux 6.9.
pub fn set_epoll_params(epoll: BorrowedFd<'_>, params: &EpollParams) -> io::Result<()> {
    let invalid = |_| io::Error::from_raw_os_error(libc::EINVAL);
    let raw = RawEpollParams {
        busy_poll_usecs: params.busy_poll_usecs,
        busy_poll_budget: u16::try_from(params.busy_poll_budget).map_err(invalid)?,
        prefer_busy_poll: u8::from(params.prefer_busy_poll),
        pad: 0,
    };
    // SAFETY: the request reads a structure of exactly this layout, which outlives the call.
    done(unsafe { libc::ioctl(epoll.as_raw_fd(), EPIOCSPARAMS as libc::Ioctl, &raw const raw) })
}

fn socket_option<T: Copy + Default>(socket: BorrowedFd<'_>, option: libc::c_int) -> io::Result<T> {
    let mut value = T::default();
    let mut length = size_of::<T>() as libc::socklen_t;
    // SAFETY: `value` has `length` bytes, and every use of this function passes an integer type, for which all bit
    // patterns are valid.
    done(unsafe {
        libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, option, (&raw mut value).cast(), &raw mut length)
    })?;
    Ok(value)
}

/// Sets how long a receive call of a socket busy polls, in microseconds (`SO_BUSY_POLL`, Linux 3.11).
///
/// # Errors
/// The time is longer than the process may have without CAP_NET_ADMIN.
pub fn set_busy_poll(socket: BorrowedFd<'_>, usecs: u32) -> io::Result<()> {
    let usecs = libc::c_int::try_from(usecs).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
    let size = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the option reads an integer of this size, which outlives the call.
    done(unsafe {
        let option = libc::SO_BUSY_POLL;
        libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, option, (&raw const usecs).cast(), size)
    })
}

/// The NAPI that delivered the last packet of a socket; 0 if none is known (`SO_INCOMING_NAPI_ID`, Linux 4.12).
///
/// # Errors
/// ENOTSOCK for other descriptors.
pub fn incoming_napi_id(socket: BorrowedFd<'_>) -> io::Result<u32> {
    socket_option::<u32>(socket, SO_INCOMING_NAPI_ID)
}

/// Whether a socket may share its address (`SO_REUSEPORT`).
///
/// # Errors
/// ENOTSOCK for other descriptors.
pub(crate) fn shares_port(socket: BorrowedFd<'_>) -> io::Result<bool> {
    Ok(socket_option::<libc::c_int>(socket, libc::SO_REUSEPORT)? != 0)
}

/// Attaches a classic BPF program to the reuseport group of a socket, in place of the one that it has
/// (`SO_ATTACH_REUSEPORT_CBPF`, Linux 4.5).
///
/// # Errors
/// EINVAL for a socket that is in no group, and for a program that the kernel refuses.
pub(crate) fn attach_reuseport(socket: BorrowedFd<'_>, program: &[Instruction]) -> io::Result<()> {
    let length = u16::try_from(program.len()).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
    // The kernel only reads the instructions.
    let raw = libc::sock_fprog { len: length, filter: program.as_ptr().cast::<libc::sock_filter>().cast_mut() };
    let size = size_of::<libc::sock_fprog>() as libc::socklen_t;
    // SAFETY: the structure names as many instructions as there are, which have the kernel's layout (`repr(C)`, code,
    // jt, jf, k). Both outlive the call.
    done(unsafe {
        let option = libc::SO_ATTACH_REUSEPORT_CBPF;
        libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, option, (&raw const raw).cast(), size)
    })
}

/// Has a program of extended BPF choose among the sockets of a socket's reuseport group (`SO_ATTACH_REUSEPORT_EBPF`,
/// Linux 4.5).
///
/// # Errors
/// EINVAL for a socket that is in no group, and for a program of another type.
pub(crate) fn attach_reuseport_program(socket: BorrowedFd<'_>, program: BorrowedFd<'_>) -> io::Result<()> {
    let fd = program.as_raw_fd();
    let size = size_of_val(&fd) as libc::socklen_t;
    // SAFETY: the value is a number of `size` bytes, which outlives the call.
    done(unsafe {
        let option = libc::SO_ATTACH_REUSEPORT_EBPF;
        libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, option, (&raw const fd).cast(), size)
    })
}

/// The program that is kept under a name in a BPF file system.
///
/// # Errors
/// The file stands for no program, or may not be opened.
pub(crate) fn pinned_program(path: &Path) -> io::Result<OwnedFd> {
    const OBJ_GET: libc::c_int = 7;
    let path = CString::new(path.as_os_str().as_bytes())?;
    // The first word is `pathname`; `bpf_fd` and `file_flags` are 0.
    let mut attributes = [path.as_ptr() as u64, 0];
    let fd = bpf(OBJ_GET, &mut attributes)?;
    // SAFETY: the call has just made the descriptor, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Whether a descriptor stands for a program (`bpf_prog_new_fd`).
pub(crate) fn is_program(fd: BorrowedFd<'_>) -> bool {
    let link = std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd()));
    link.is_ok_and(|name| name == Path::new("anon_inode:bpf-prog"))
}

/// The type of a program (`enum bpf_prog_type`).
///
/// # Errors
/// The descriptor stands for no program.
pub(crate) fn program_type(program: BorrowedFd<'_>) -> io::Result<u32> {
    const OBJ_GET_INFO_BY_FD: libc::c_int = 15;
    // `struct bpf_prog_info` begins with these: the type, and the number.
    let mut info = [0_u32; 2];
    let [fd, bytes] = [program.as_raw_fd() as u32, size_of_val(&info) as u32].map(u32::to_ne_bytes);
    let first = u64::from_ne_bytes([fd[0], fd[1], fd[2], fd[3], bytes[0], bytes[1], bytes[2], bytes[3]]);
    bpf(OBJ_GET_INFO_BY_FD, &mut [first, (&raw mut info) as u64])?;
    Ok(info[0])
}

/// Makes a call of bpf(2) with the first words of `union bpf_attr`. The pointers in them lead to memory that outlives
/// the call.
fn bpf(command: libc::c_int, attributes: &mut [u64; 2]) -> io::Result<libc::c_int> {
    // SAFETY: the words outlive the call, which is given their size. The caller vouches for what they point to.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, attributes.as_mut_ptr(), size_of_val(attributes)) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result as libc::c_int) }
}

/// Takes the program of a socket's reuseport group away (`SO_DETACH_REUSEPORT_BPF`, Linux 5.3). Returns false if it has
/// none.
///
/// # Errors
/// EINVAL for a socket that is in no group.
pub(crate) fn detach_reuseport(socket: BorrowedFd<'_>) -> io::Result<bool> {
    let unused: libc::c_int = 0;
    let size = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the value has `size` bytes and is not looked at.
    let detached = done(unsafe {
        let option = libc::SO_DETACH_REUSEPORT_BPF;
        libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, option, (&raw const unused).cast(), size)
    });
    match detached {
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(false),
        other => other.map(|()| true),
    }
}

/// The network namespace of the calling thread, as a number that is not used again until the next boot
/// (`SO_NETNS_COOKIE`, Linux 5.14).
///
/// # Errors
/// No socket could be made, or the kernel is older.
pub fn netns_cookie() -> io::Result<u64> {
    use rustix::net::{AddressFamily, SocketType, socket};
    let socket = socket(AddressFamily::UNIX, SocketType::DGRAM, None)?;
    socket_option::<u64>(socket.as_fd(), SO_NETNS_COOKIE)
}

/// The network namespace of a socket (`SIOCGSKNS`, Linux 4.10).
///
/// # Errors
/// EPERM without CAP_NET_ADMIN there.
pub(crate) fn namespace_of_socket(socket: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    // SAFETY: the request takes no argument.
    let fd = unsafe { libc::ioctl(socket.as_raw_fd(), SIOCGSKNS as libc::Ioctl) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just made this descriptor for us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// `SIOCETHTOOL` of `linux/sockios.h`.
const SIOCETHTOOL: libc::c_ulong = 0x8946;
/// `ETHTOOL_GRXFHINDIR` and `ETHTOOL_SRXFHINDIR` of `linux/ethtool.h`; setting it by netlink takes Linux 6.17.
const ETHTOOL_GRXFHINDIR: u32 = 0x38;
const ETHTOOL_SRXFHINDIR: u32 = 0x39;

/// Makes a request of ethtool's old interface. `words` is its structure, which consists of 32-bit numbers.
fn ethtool(device: &str, words: &mut [u32]) -> io::Result<()> {
    use rustix::net::{AddressFamily, SocketType, socket};
    let any = socket(AddressFamily::INET, SocketType::DGRAM, None)?;
    // SAFETY: an ifreq consists of numbers, bytes and pointers, for all of which zero is a valid value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    // The last byte has to stay zero.
    let room = request.ifr_name.len() - 1;
    if device.len() > room {
        return Err(io::Error::from_raw_os_error(libc::ENODEV));
    }
    for (to, from) in request.ifr_name.iter_mut().zip(device.bytes()) {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_data = words.as_mut_ptr().cast();
    // SAFETY: the request reads and writes as many words as the structure in them says, and the callers let it say how
    // many there are. Both outlive the call.
    done(unsafe { libc::ioctl(any.as_raw_fd(), SIOCETHTOOL as libc::Ioctl, &raw mut request) })
}

/// The queue of each entry of a device's indirection table (`ethtool -x`).
///
/// # Errors
/// EOPNOTSUPP if the driver has none.
pub(crate) fn indirection_table(device: &str) -> io::Result<Vec<u32>> {
    // A request without room returns how much room is needed (`ethtool_get_rxfh_indir`).
    let mut size = [ETHTOOL_GRXFHINDIR, 0];
    ethtool(device, &mut size)?;
    let mut words = vec![0; 2 + size[1] as usize];
    words[..2].copy_from_slice(&[ETHTOOL_GRXFHINDIR, size[1]]);
    ethtool(device, &mut words)?;
    words.drain(..2);
    Ok(words)
}

/// Sets a device's indirection table. An empty table stands for the driver's own.
///
/// # Errors
/// EOPNOTSUPP if the driver has none, EINVAL for another size or a queue that does not exist, EPERM.
pub(crate) fn set_indirection_table(device: &str, table: &[u32]) -> io::Result<()> {
    let size = u32::try_from(table.len()).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
    ethtool(device, &mut [&[ETHTOOL_SRXFHINDIR, size], table].concat())
}

/// Whether descriptor `a.1` of process `a.0` and `b.1` of `b.0` are the same open file (`kcmp(2)`).
///
/// # Errors
/// ENOSYS if the kernel has no kcmp, EPERM without the right to inspect one of the processes.
pub fn same_file(a: (i32, i32), b: (i32, i32)) -> io::Result<bool> {
    // SAFETY: the call takes only numbers.
    let order =
        unsafe { libc::syscall(libc::SYS_kcmp, a.0, b.0, KCMP_FILE, a.1 as libc::c_ulong, b.1 as libc::c_ulong) };
    if order < 0 { Err(io::Error::last_os_error()) } else { Ok(order == 0) }
}

/// A signal that has come.
pub(crate) struct Came {
    pub(crate) number: i32,
    /// The process that sent it; 0 for the kernel.
    pub(crate) sender: i32,
    /// Whether the kernel sent it by itself, as terminals do.
    pub(crate) by_kernel: bool,
    /// The value that was sent with it (`sigqueue(3)`), if there was one.
    pub(crate) value: Option<u64>,
}

/// Signals that are read from a descriptor (`signalfd(2)`) instead of having an effect. Dispositions stay as they are.
pub(crate) struct TakenSignals {
    fd: OwnedFd,
    /// The signals that the thread had blocked before.
    before: libc::sigset_t,
}

impl AsFd for TakenSignals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Blocks signals of the calling thread, which has to be the only one, and has them read from a descriptor.
pub(crate) fn take_signals(numbers: &[i32]) -> io::Result<TakenSignals> {
    let (mut set, mut before) = (MaybeUninit::<libc::sigset_t>::uninit(), MaybeUninit::<libc::sigset_t>::uninit());
    // SAFETY: `sigemptyset` initialises the set that the other calls read, and `pthread_sigmask` initialises the former
    // one if it succeeds. No pointer outlives the calls.
    unsafe {
        done(libc::sigemptyset(set.as_mut_ptr()))?;
        for &number in numbers {
            done(libc::sigaddset(set.as_mut_ptr(), number))?;
        }
        let fd = libc::signalfd(-1, set.as_ptr(), libc::SFD_CLOEXEC | libc::SFD_NONBLOCK);
        done(fd)?;
        let fd = OwnedFd::from_raw_fd(fd);
        match libc::pthread_sigmask(libc::SIG_BLOCK, set.as_ptr(), before.as_mut_ptr()) {
            0 => Ok(TakenSignals { fd, before: before.assume_init() }),
            error => Err(io::Error::from_raw_os_error(error)),
        }
    }
}

/// Does `work` with all signals blocked, so that threads which it starts have them blocked for good. Signals to the
/// process are then left to the threads that take signals.
///
/// # Errors
/// The mask cannot be changed.
pub fn deaf<T>(work: impl FnOnce() -> T) -> io::Result<T> {
    let (mut all, mut before) = (MaybeUninit::<libc::sigset_t>::uninit(), MaybeUninit::<libc::sigset_t>::uninit());
    // SAFETY: `sigfillset` initialises the set that `pthread_sigmask` reads, which initialises the former one if it
    // succeeds. No pointer outlives the calls.
    let before = unsafe {
        done(libc::sigfillset(all.as_mut_ptr()))?;
        match libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr()) {
            0 => before.assume_init(),
            error => return Err(io::Error::from_raw_os_error(error)),
        }
    };
    let worked = work();
    // SAFETY: the set comes from the call above.
    match unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut()) } {
        0 => Ok(worked),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

/// Has a program started with only those signals blocked that were blocked before they were taken, as children inherit
/// the mask.
pub(crate) fn with_mask_before(command: &mut Command, taken: &TakenSignals) {
    let before = taken.before;
    let unblock = move || {
        // SAFETY: the set was initialised when it was taken.
        match unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut()) } {
            0 => Ok(()),
            error => Err(io::Error::from_raw_os_error(error)),
        }
    };
    // SAFETY: in the child the closure makes one system call, which is safe between fork and exec.
    unsafe { command.pre_exec(unblock) };
}

/// The next signal of [`take_signals`], if one has come.
pub(crate) fn next_signal(signals: BorrowedFd<'_>) -> io::Result<Option<Came>> {
    let mut info = MaybeUninit::<libc::signalfd_siginfo>::zeroed();
    let size = size_of::<libc::signalfd_siginfo>();
    // SAFETY: the kernel writes at most `size` bytes, which is the size of the structure.
    let read = unsafe { libc::read(signals.as_raw_fd(), info.as_mut_ptr().cast(), size) };
    if read < 0 {
        let error = io::Error::last_os_error();
        return if error.kind() == io::ErrorKind::WouldBlock { Ok(None) } else { Err(error) };
    }
    // SAFETY: the structure consists of integers, and was zero before the kernel wrote.
    let info = unsafe { info.assume_init() };
    let by_kernel = info.ssi_code == libc::SI_KERNEL;
    let value = (info.ssi_code == libc::SI_QUEUE).then_some(info.ssi_ptr);
    Ok(Some(Came { number: info.ssi_signo as i32, sender: info.ssi_pid as i32, by_kernel, value }))
}

/// `siginfo_t` in the kernel's layout for `sigqueue(3)`.
#[repr(C)]
struct QueuedSignal {
    number: i32,
    error: i32,
    code: i32,
    pad: i32,
    sender: i32,
    user: u32,
    value: u64,
    rest: [u64; 12],
}

/// Sends on to a process a signal that has come, with its value (`pidfd_send_signal(2)`).
pub(crate) fn send_signal(process: BorrowedFd<'_>, came: &Came) -> io::Result<()> {
    let queued = came.value.map(|value| QueuedSignal {
        number: came.number,
        error: 0,
        code: libc::SI_QUEUE,
        pad: 0,
        sender: std::process::id() as i32,
        user: rustix::process::getuid().as_raw(),
        value,
        rest: [0; 12],
    });
    let info = queued.as_ref().map_or(std::ptr::null(), |it| it as *const QueuedSignal);
    // SAFETY: the kernel reads a structure of the size of its `siginfo_t`, which is 128 bytes, or none at all.
    let result = unsafe { libc::syscall(libc::SYS_pidfd_send_signal, process.as_raw_fd(), came.number, info, 0u32) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// `struct sched_attr` of `linux/sched/types.h`, in the size that was published first.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SchedAttr {
    pub size: u32,
    pub policy: u32,
    pub flags: u64,
    pub nice: i32,
    pub priority: u32,
    pub runtime_ns: u64,
    pub deadline_ns: u64,
    pub period_ns: u64,
}

/// Reads a thread's policy with `sched_getattr(2)`.
pub(crate) fn sched_attr(pid: i32) -> io::Result<SchedAttr> {
    let mut attr = MaybeUninit::<SchedAttr>::zeroed();
    // SAFETY: the kernel writes at most the size that is passed, which is the size of the structure.
    let result =
        unsafe { libc::syscall(libc::SYS_sched_getattr, pid, attr.as_mut_ptr(), size_of::<SchedAttr>(), 0u32) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the structure consists of integers, and was zero before the kernel wrote.
    Ok(unsafe { attr.assume_init() })
}

/// Sets a thread's policy with `sched_setattr(2)`.
pub(crate) fn set_sched_attr(pid: i32, attr: &SchedAttr) -> io::Result<()> {
    let attr = SchedAttr { size: size_of::<SchedAttr>() as u32, ..*attr };
    // SAFETY: the kernel reads `size` bytes, which is the size of the structure.
    let result = unsafe { libc::syscall(libc::SYS_sched_setattr, pid, &raw const attr, 0u32) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// `PERF_EVENT_IOC_SET_FILTER` of `linux/perf_event.h`.
const PERF_EVENT_IOC_SET_FILTER: libc::c_ulong = 0x4008_2406;

/// Lets a counter of a tracepoint count only what passes a filter, which is written in the language of
/// `trace/events.rst`.
pub(crate) fn filter_tracepoint(counter: &impl AsRawFd, filter: &std::ffi::CStr) -> io::Result<()> {
    // SAFETY: the request reads a string that ends with a zero and outlives the call.
    done(unsafe { libc::ioctl(counter.as_raw_fd(), PERF_EVENT_IOC_SET_FILTER as libc::Ioctl, filter.as_ptr()) })
}
