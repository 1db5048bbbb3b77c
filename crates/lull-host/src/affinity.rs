//! Where threads run, how urgently, and what they used.

#![allow(unsafe_code)]

use std::io;

/// Pins the calling thread to one core of the machine.
pub(crate) fn pin_to(core: usize) -> io::Result<()> {
    pin_thread(&[core])
}

/// Gives the calling thread SCHED_FIFO at the lowest real-time priority.
pub(crate) fn make_realtime() -> io::Result<()> {
    // The kernel's `struct sched_param` is this number alone. musl's has more, and its function refuses (ENOSYS).
    let priority: libc::c_int = 1;
    // SAFETY: the parameter block outlives the call; pid 0 is the calling thread.
    match unsafe { libc::syscall(libc::SYS_sched_setscheduler, 0, libc::SCHED_FIFO, &raw const priority) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Lets the calling thread's timers be as precise as the kernel can (`PR_SET_TIMERSLACK` of 1 ns).
pub(crate) fn no_timer_slack() {
    // SAFETY: this option takes a plain number. It cannot fail for a value above 0.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1usize, 0usize, 0usize, 0usize) };
}

/// CPU time of one thread of this process.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ThreadUse {
    /// The kernel's thread id.
    pub tid: i32,
    /// What the thread does.
    pub role: String,
}

/// The kernel's id of the calling thread.
pub fn thread_id() -> i32 {
    rustix::thread::gettid().as_raw_nonzero().get()
}

/// Pins the calling thread, and those that it starts from now on, to some cores of the machine.
///
/// # Errors
/// None of the cores exists and is ours to use.
pub fn pin_thread(cores: &[usize]) -> io::Result<()> {
    let mut set = rustix::thread::CpuSet::new();
    // A number that the set has no room for is no core's; a set with no core in it the kernel refuses.
    let known = cores.iter().filter(|core| **core < rustix::thread::CpuSet::MAX_CPU);
    known.for_each(|core| set.set(*core));
    Ok(rustix::thread::sched_setaffinity(None, &set)?)
}

/// The cores that the calling thread may run on.
pub fn usable_cores() -> Vec<usize> {
    let Ok(set) = rustix::thread::sched_getaffinity(None) else { return vec![0] };
    (0..rustix::thread::CpuSet::MAX_CPU).filter(|core| set.is_set(*core)).collect()
}

/// CPU time that thread `tid` of this process has used, in nanoseconds.
///
/// # Errors
/// If there is no such thread.
pub fn thread_cpu_ns(tid: i32) -> io::Result<u64> {
    // The kernel's PID_MAX_LIMIT. What is above has no room in the clock's number and would name another clock.
    if !(1..=1 << 22).contains(&tid) {
        return Err(io::Error::from_raw_os_error(libc::ESRCH));
    }
    // CPUCLOCK_PERTHREAD | CPUCLOCK_SCHED of that thread (`MAKE_THREAD_CPUCLOCK` of the kernel's posix-timers).
    let clock: libc::clockid_t = (!tid << 3) | 4 | 2;
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the timespec outlives the call.
    match unsafe { libc::clock_gettime(clock, &mut time) } {
        0 => Ok(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    #[test]
    fn a_busy_thread_uses_cpu_time() {
        let tid = rustix::thread::gettid().as_raw_nonzero().get();
        let before = super::thread_cpu_ns(tid).unwrap();
        let mut sum = 0u64;
        while super::thread_cpu_ns(tid).unwrap() == before {
            sum = std::hint::black_box(sum + 1);
        }
        assert!(super::thread_cpu_ns(i32::MAX).is_err());
    }
}
