//! NAPI threads: which CPUs they may run on and under which policy. The kernel saves neither (`napi_config` holds only
//! that there is a thread), so whoever sets them sets them again when the thread is a new one.

use std::fmt;
use std::io;
use std::str::FromStr;

use rustix::process::Pid;
use rustix::thread::CpuSet;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::machine;
use crate::os::{SchedAttr, sched_attr, set_sched_attr};
use crate::roots::Roots;

/// The highest priority of SCHED_FIFO and SCHED_RR (`sched(7)`).
pub const REALTIME_PRIORITY_MAX: u32 = 99;
/// The shortest runtime and period of SCHED_DEADLINE: 1024 ns (`sched(7)`).
pub const DEADLINE_NS_MIN: u64 = 1_024;

/// How a thread is scheduled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ThreadPolicy {
    /// SCHED_OTHER with this nice value, -20 to 19.
    Other(i32),
    /// SCHED_BATCH with this nice value.
    Batch(i32),
    /// SCHED_IDLE.
    Idle,
    /// SCHED_FIFO with this priority, 1 to 99.
    Fifo(u32),
    /// SCHED_RR with this priority, 1 to 99.
    Rr(u32),
    /// SCHED_DEADLINE: this much runtime in every period, in nanoseconds.
    Deadline {
        /// Nanoseconds of CPU time in every period.
        runtime_ns: u64,
        /// The period, in nanoseconds.
        period_ns: u64,
        /// The nanoseconds within which the thread gets the runtime.
        deadline_ns: u64,
    },
    /// A policy that this version does not know, by the kernel's number.
    Unknown(u32),
}

impl fmt::Display for ThreadPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ThreadPolicy::Other(nice) => write!(f, "other:{nice}"),
            ThreadPolicy::Batch(nice) => write!(f, "batch:{nice}"),
            ThreadPolicy::Idle => f.write_str("idle"),
            ThreadPolicy::Fifo(priority) => write!(f, "fifo:{priority}"),
            ThreadPolicy::Rr(priority) => write!(f, "rr:{priority}"),
            ThreadPolicy::Deadline { runtime_ns, period_ns, .. } => write!(f, "deadline:{runtime_ns}ns/{period_ns}ns"),
            ThreadPolicy::Unknown(number) => write!(f, "policy {number}"),
        }
    }
}

impl FromStr for ThreadPolicy {
    type Err = Error;

    fn from_str(text: &str) -> Result<ThreadPolicy> {
        let bad = || Error::Input {
            what: format!("'{text}' is no thread policy"),
            remedy: "use fifo:1 to fifo:99, rr:1 to rr:99, other:NICE with NICE from -20 to 19, or \
                     deadline:RUNTIME/PERIOD, as in deadline:200us/1ms"
                .to_owned(),
        };
        let (name, value) = text.split_once(':').ok_or_else(bad)?;
        let realtime = || value.parse().ok().filter(|it| (1..=REALTIME_PRIORITY_MAX).contains(it)).ok_or_else(bad);
        match name {
            "fifo" => Ok(ThreadPolicy::Fifo(realtime()?)),
            "rr" => Ok(ThreadPolicy::Rr(realtime()?)),
            "other" => match value.parse() {
                Ok(nice @ -20..=19) => Ok(ThreadPolicy::Other(nice)),
                _ => Err(bad()),
            },
            "deadline" => {
                let (runtime, period) = value.split_once('/').ok_or_else(bad)?;
                let (runtime_ns, period_ns) = (duration_ns(runtime), duration_ns(period));
                match (runtime_ns, period_ns) {
                    (Ok(runtime_ns), Ok(period_ns)) if (DEADLINE_NS_MIN..=period_ns).contains(&runtime_ns) => {
                        Ok(ThreadPolicy::Deadline { runtime_ns, period_ns, deadline_ns: period_ns })
                    }
                    _ => Err(bad()),
                }
            }
            _ => Err(bad()),
        }
    }
}

/// A duration with its unit (`50us`, `20ms`, `1s`, `500ns`) in nanoseconds. A bare 0 needs no unit.
///
/// # Errors
/// There is no number or no unit, or it is more nanoseconds than 64 bits hold.
pub fn duration_ns(text: &str) -> Result<u64> {
    lull_units::time_ns(text).map_err(|_| Error::Input {
        what: format!("'{text}' is no duration"),
        remedy: "write a number with its unit, as in 500ns, 50us, 20ms or 1s".to_owned(),
    })
}

/// Nanoseconds as a person writes them. 0 is 0 in any unit.
pub fn shown_ns(nanoseconds: u64) -> String {
    if nanoseconds == 0 { "0".to_owned() } else { lull_units::time_text(nanoseconds) }
}

/// Where and how a thread runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Scheduling {
    /// The CPUs it may run on, including those among them that are offline.
    pub cpus: Vec<usize>,
    /// Its policy.
    pub policy: ThreadPolicy,
}

fn pid(number: i32) -> io::Result<Pid> {
    Pid::from_raw(number).ok_or_else(|| io::Error::from_raw_os_error(libc::ESRCH))
}

/// Reads where and how a thread runs.
///
/// # Errors
/// ESRCH when the thread is gone.
pub fn scheduling(thread: i32) -> io::Result<Scheduling> {
    let set = rustix::thread::sched_getaffinity(Some(pid(thread)?))?;
    let active: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).collect();
    let attr = sched_attr(thread)?;
    let policy = match attr.policy as libc::c_int {
        libc::SCHED_OTHER => ThreadPolicy::Other(attr.nice),
        libc::SCHED_BATCH => ThreadPolicy::Batch(attr.nice),
        libc::SCHED_IDLE => ThreadPolicy::Idle,
        libc::SCHED_FIFO => ThreadPolicy::Fifo(attr.priority),
        libc::SCHED_RR => ThreadPolicy::Rr(attr.priority),
        libc::SCHED_DEADLINE => ThreadPolicy::Deadline {
            runtime_ns: attr.runtime_ns,
            period_ns: attr.period_ns,
            deadline_ns: attr.deadline_ns,
        },
        _ => ThreadPolicy::Unknown(attr.policy),
    };
    let roots = Roots::default();
    let listed = roots.read_proc(&format!("{thread}/status")).ok().and_then(|status| allowed(&status));
    Ok(Scheduling { cpus: with_offline(active, listed, &machine::online_cpus(&roots)), policy })
}

/// The CPUs that `/proc/T/status` names, including offline ones.
fn allowed(status: &str) -> Option<Vec<usize>> {
    machine::parse_cpu_list(status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?)
}

/// Adds CPUs that are offline, which `sched_getaffinity(2)` leaves out although the thread may run on them when they
/// are back. `listed` has them, unless it is of another thread of that number (a `/proc` of another PID namespace).
fn with_offline(active: Vec<usize>, listed: Option<Vec<usize>>, online: &[usize]) -> Vec<usize> {
    let is_its = |listed: &Vec<usize>| {
        active.iter().all(|cpu| listed.contains(cpu))
            && listed.iter().all(|cpu| active.contains(cpu) || !online.contains(cpu))
    };
    listed.filter(is_its).unwrap_or(active)
}

/// Lets a thread run on these CPUs only.
///
/// # Errors
/// EINVAL if none of them exists, ESRCH when the thread is gone, EPERM without CAP_SYS_NICE.
pub fn set_cpus(thread: i32, cpus: &[usize]) -> io::Result<()> {
    let mut set = CpuSet::new();
    for &cpu in cpus {
        if cpu >= CpuSet::MAX_CPU {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        set.set(cpu);
    }
    Ok(rustix::thread::sched_setaffinity(Some(pid(thread)?), &set)?)
}

/// Gives a thread a policy.
///
/// # Errors
/// EPERM without CAP_SYS_NICE or for SCHED_DEADLINE on a thread that is bound to some CPUs, EBUSY when the deadlines of
/// all threads do not fit the machine, and ESRCH when the thread is gone.
pub fn set_policy(thread: i32, policy: ThreadPolicy) -> io::Result<()> {
    let mut attr = SchedAttr::default();
    let number = match policy {
        ThreadPolicy::Other(nice) => {
            attr.nice = nice;
            libc::SCHED_OTHER
        }
        ThreadPolicy::Batch(nice) => {
            attr.nice = nice;
            libc::SCHED_BATCH
        }
        ThreadPolicy::Idle => libc::SCHED_IDLE,
        ThreadPolicy::Fifo(priority) => {
            attr.priority = priority;
            libc::SCHED_FIFO
        }
        ThreadPolicy::Rr(priority) => {
            attr.priority = priority;
            libc::SCHED_RR
        }
        ThreadPolicy::Deadline { runtime_ns, period_ns, deadline_ns } => {
            (attr.runtime_ns, attr.period_ns, attr.deadline_ns) = (runtime_ns, period_ns, deadline_ns);
            libc::SCHED_DEADLINE
        }
        ThreadPolicy::Unknown(_) => return Err(io::Error::from_raw_os_error(libc::EINVAL)),
    };
    attr.policy = number as u32;
    set_sched_attr(thread, &attr)
}

/// Gives a thread CPUs and a policy, as far as they are given. A deadline needs a thread that may run everywhere, so
/// CPUs come before a deadline and after every other policy.
///
/// # Errors
/// Those of [`set_cpus`] and [`set_policy`]. [`remedy`] says what helps.
pub fn set(thread: i32, cpus: Option<&[usize]>, policy: Option<ThreadPolicy>) -> io::Result<()> {
    let set_cpus = || cpus.map_or(Ok(()), |cpus| set_cpus(thread, cpus));
    let set_policy = || policy.map_or(Ok(()), |policy| set_policy(thread, policy));
    if matches!(policy, Some(ThreadPolicy::Deadline { .. })) {
        set_cpus()?;
        set_policy()
    } else {
        set_policy()?;
        set_cpus()
    }
}

/// What helps against a refusal of [`set`].
pub fn remedy(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::EBUSY) => {
            "the deadlines of all threads do not fit the machine: give less runtime or a longer period"
        }
        Some(libc::EINVAL) => "give CPUs that are online and in the thread's cpuset",
        Some(libc::ESRCH) => "the thread has ended meanwhile: try again",
        _ => "it takes CAP_SYS_NICE, and for a deadline a thread that may run on all CPUs",
    }
}

/// Refuses CPUs that are not online, and CPUs together with a deadline.
///
/// # Errors
/// [`Error::Input`].
pub fn check(cpus: Option<&[usize]>, policy: Option<ThreadPolicy>, online: &[usize]) -> Result<()> {
    if let Some(cpu) = cpus.unwrap_or_default().iter().find(|cpu| !online.contains(cpu)) {
        return Err(Error::Input {
            what: format!("CPU {cpu} is not online"),
            remedy: format!("the CPUs {} are", lull_units::numbers_text(online)),
        });
    }
    if matches!(policy, Some(ThreadPolicy::Deadline { .. })) && cpus.is_some() {
        return Err(Error::Input {
            what: "a deadline policy and CPUs were given for one thread".to_owned(),
            remedy: "give one of the two: the kernel binds no SCHED_DEADLINE thread to some CPUs".to_owned(),
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_units() {
        assert_eq!(duration_ns("50us").unwrap(), 50_000);
        assert_eq!(duration_ns("0").unwrap(), 0);
        for bad in ["", "50", "us", "-1us", "1..5ms", "1m", "99999999999s"] {
            assert!(duration_ns(bad).is_err(), "{bad}");
        }
        for ns in [0, 1, 1_500, 20_000, 3_000_000, 2_000_000_000] {
            assert_eq!(duration_ns(&shown_ns(ns)).unwrap(), ns);
        }
    }

    #[test]
    fn policies_are_read_and_printed_alike() {
        for good in ["fifo:50", "rr:1", "other:-10", "deadline:200000ns/1000000ns"] {
            assert_eq!(good.parse::<ThreadPolicy>().unwrap().to_string(), good);
        }
        for bad in
            ["fifo", "fifo:0", "fifo:100", "other:-21", "deadline:1ms", "deadline:2ms/1ms", "deadline:1ns/1ms", "x:1"]
        {
            let said = bad.parse::<ThreadPolicy>().unwrap_err().to_string();
            assert!(said.contains(bad) && said.contains("fifo:99"), "{said}");
        }
    }

    #[test]
    fn cpus_that_are_offline_are_not_forgotten() {
        let status = "Name:\tnapi/va-8193\nCpus_allowed:\tb\nCpus_allowed_list:\t0-1,3\nMems_allowed_list:\t0\n";
        assert_eq!(allowed(status), Some(vec![0, 1, 3]));
        assert_eq!(allowed("Name:\tx\n"), None);
        let of = |listed: Option<&str>, online: &[usize]| {
            with_offline(vec![0, 1], listed.and_then(machine::parse_cpu_list), online)
        };
        assert_eq!(of(Some("0-1,3"), &[0, 1, 2]), [0, 1, 3]);
        assert_eq!(of(None, &[0, 1, 2]), [0, 1]);
        // This list is of another thread.
        assert_eq!(of(Some("0-1,3"), &[0, 1, 2, 3]), [0, 1]);
        assert_eq!(of(Some("1,3"), &[0, 1]), [0, 1]);
    }

    #[test]
    fn this_thread_can_be_read() {
        let own = rustix::thread::gettid().as_raw_nonzero().get();
        assert!(!scheduling(own).unwrap().cpus.is_empty());
        assert!(scheduling(i32::MAX).is_err());
    }
}
