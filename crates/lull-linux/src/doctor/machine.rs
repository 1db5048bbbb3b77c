//! Checks of the machine: kernel, rights, sysctls, irqbalance, idle states.

use std::os::fd::AsFd;

use rustix::event::epoll;
use rustix::thread::CapabilitySet;

use super::check::Check;
use crate::hardware::{Counters, counters};
use crate::machine::{core_sysctl, version};
use crate::netdev::Policy;
use crate::os;
use crate::programs::{name_of, processes};
use crate::roots::Roots;

/// If leaving an idle state takes longer than this, requests notice it. It is the shortest deferral of the published
/// modes, in microseconds.
const IDLE_EXIT_US_MAX: u64 = 10;
/// The number that the initial user namespace always has (`PROC_USER_INIT_INO`).
const INITIAL_USER_NAMESPACE: u32 = 0xEFFF_FFFD;

pub fn checks(roots: &Roots, kernel: &str, policy: &Policy) -> Vec<Check> {
    vec![
        settings_per_napi(kernel, policy),
        busy_poll_order(kernel),
        epoll_parameters(),
        rights(roots),
        sysctl(
            roots,
            "busy_poll",
            "every epoll, poll and select busy polls that long, so suspension turns into spinning",
        ),
        sysctl(roots, "busy_read", "every new socket busy polls that long when it is read"),
        irqbalance(roots),
        idle_states(roots),
        parked_pollers(roots),
        hardware_counters(),
    ]
}

fn settings_per_napi(kernel: &str, policy: &Policy) -> Check {
    let what = "kernel";
    if policy.defer_hard_irqs_max.is_none() {
        let reason = format!("Linux {kernel} has no settings per NAPI");
        return Check::wrong(what, reason, "settings per queue take Linux 6.13 or newer");
    }
    let known = |max: Option<u64>, name: &str| max.map(|_| name.to_owned());
    let threads = policy.threaded_max.map(|max| format!("threaded up to {max}"));
    let names = [
        known(policy.defer_hard_irqs_max, "defer-hard-irqs"),
        known(policy.gro_flush_timeout_ns_max, "gro-flush-timeout"),
        known(policy.irq_suspend_timeout_ns_max, "irq-suspend-timeout"),
        threads,
    ];
    let names = names.into_iter().flatten().collect::<Vec<_>>().join(", ");
    Check::ok(what, format!("Linux {kernel}; its napi-set takes {names}"))
}

/// Until commit 58e2330bd455 (7.1, and the stable series of 6.18 and 7.0), `busy_poll_stop` started the timer before
/// the last poll.
fn busy_poll_order(kernel: &str) -> Check {
    let what = "end of a busy poll";
    match version(kernel) {
        Some(number) if ((6, 12)..(6, 18)).contains(&number) => Check::advice(
            what,
            format!(
                "Linux {kernel} starts the timer before the last poll: if that one is slow and finds its whole budget, \
                     the queue may stand still until the next packet after the interrupt"
            ),
            "use a kernel with commit 58e2330bd455: 7.1, or a later 7.0 or 6.18",
        ),
        Some(number) if number >= (7, 1) => Check::ok(what, "the timer is started after the last poll (7.1)"),
        Some(number) if number >= (6, 18) => Check::unknown(
            what,
            format!(
                "Linux {kernel} may or may not have commit 58e2330bd455, which starts the timer after the last poll"
            ),
            "look for it in the kernel's change log",
        ),
        _ => Check::ok(what, "this kernel has no preferred busy polling in epoll"),
    }
}

fn epoll_parameters() -> Check {
    let what = "epoll parameters";
    let tried = epoll::create(epoll::CreateFlags::CLOEXEC)
        .map_err(std::io::Error::from)
        .and_then(|epoll| os::epoll_params(epoll.as_fd()));
    match tried {
        Ok(_) => Check::ok(what, "an epoll context takes busy-poll parameters (EPIOCSPARAMS)"),
        Err(error) => Check::wrong(
            what,
            format!("no busy-poll parameters of an epoll context: {error}"),
            "they take Linux 6.9 or newer",
        ),
    }
}

/// `napi-set` demands the capability in the initial user namespace (GENL_ADMIN_PERM).
fn rights(roots: &Roots) -> Check {
    let what = "rights";
    let has = rustix::thread::capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::NET_ADMIN));
    let namespace = std::fs::read_link(roots.proc("self/ns/user"));
    let initial = namespace.map(|name| name.as_os_str() == format!("user:[{INITIAL_USER_NAMESPACE}]").as_str());
    match (has, initial) {
        (true, Ok(true)) => Check::ok(what, "CAP_NET_ADMIN in the initial user namespace: settings can be changed"),
        (true, Ok(false)) => Check::wrong(
            what,
            "CAP_NET_ADMIN in a user namespace of its own: settings can be read and not changed",
            "run lull outside the container or `unshare -U`",
        ),
        (true, Err(_)) => Check::unknown(what, "/proc/self/ns/user cannot be read", "mount /proc"),
        (false, _) => Check::wrong(what, "no CAP_NET_ADMIN: settings can be read and not changed", "run lull as root"),
    }
}

fn sysctl(roots: &Roots, name: &str, meaning: &str) -> Check {
    let what = format!("net.core.{name}");
    match core_sysctl(name, roots) {
        Some(0) => Check::ok(what, "0: off"),
        Some(usecs) => {
            let remedy = format!("sysctl -w net.core.{name}=0");
            Check::wrong(what, format!("{usecs}: {meaning}"), remedy)
        }
        None => Check::unknown(what, "not visible here: it is the machine's", "look in the initial network namespace"),
    }
}

fn irqbalance(roots: &Roots) -> Check {
    let what = "irqbalance";
    match processes(roots).into_iter().find(|&pid| name_of(pid, roots) == "irqbalance") {
        Some(pid) => Check::wrong(
            what,
            format!("running (pid {pid}): it moves interrupts away from the CPUs that they were given"),
            "systemctl stop irqbalance, or ban the device's interrupts (irqbalance --banirq)",
        ),
        None => Check::ok(what, "not running"),
    }
}

fn hardware_counters() -> Check {
    let what = "hardware counters";
    match counters() {
        Counters::Counting => Check::ok(what, "cycles and instructions of a program are counted"),
        Counters::Lacking { reason, remedy } => Check::advice(
            what,
            format!("{reason}: the lab's cycles are CPU time multiplied by the cycle counter's rate"),
            remedy,
        ),
    }
}

/// A group's poller that parks or rests first waits by an instruction, if the CPU has one that programs may use.
fn parked_pollers(roots: &Roots) -> Check {
    /// The instructions by which a program can wait without the kernel, as `/proc/cpuinfo` names them. The host takes
    /// the first one that exists.
    const INSTRUCTIONS: [(&str, &str); 2] = [("waitpkg", "UMWAIT"), ("mwaitx", "MWAITX")];
    let what = "parked pollers";
    let Ok(cpuinfo) = std::fs::read_to_string(roots.proc("cpuinfo")) else {
        return Check::unknown(what, "/proc/cpuinfo cannot be read", "mount /proc");
    };
    let flags = cpuinfo.lines().find(|line| line.starts_with("flags")).unwrap_or_default();
    let has = |flag: &str| flags.split_ascii_whitespace().any(|word| word == flag);
    Check::ok(
        what,
        match INSTRUCTIONS.iter().find(|(flag, _)| has(flag)) {
            None => "they sleep in a futex: the CPU has neither UMWAIT nor MWAITX".to_owned(),
            // The host waits by it only if it uses the cycle counter, in whose cycles such a wait is measured.
            Some((_, name)) if !has("nonstop_tsc") => {
                format!(
                    "they sleep in a futex: the CPU has {name}, and no cycle counter that always runs, by which it ends"
                )
            }
            Some((_, name)) => format!("they wait by {name} for up to 50 us, and sleep in a futex then"),
        },
    )
}

fn idle_states(roots: &Roots) -> Check {
    let what = "CPU idle states";
    let directory = roots.sys("devices/system/cpu/cpu0/cpuidle");
    let Ok(entries) = std::fs::read_dir(directory) else {
        return Check::ok(what, "the kernel manages none here");
    };
    let deep = entries.flatten().filter_map(|entry| {
        let read = |file: &str| std::fs::read_to_string(entry.path().join(file)).ok();
        let latency: u64 = read("latency")?.trim().parse().ok()?;
        let disabled = read("disable").is_some_and(|text| text.trim() == "1");
        (latency > IDLE_EXIT_US_MAX && !disabled).then(|| (latency, read("name").unwrap_or_default().trim().to_owned()))
    });
    match deep.max() {
        None => Check::ok(what, format!("none takes more than {IDLE_EXIT_US_MAX} us to leave")),
        Some((latency, name)) => Check::advice(
            what,
            format!("{name} takes {latency} us to leave: an interrupt after a pause is that late"),
            format!(
                "cpupower idle-set -D {IDLE_EXIT_US_MAX}, or `lull prepare` with cpu-resume-latency-us in its profile"
            ),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Verdict;
    use crate::machine::kernel_release;
    use std::fs;

    struct Tree(std::path::PathBuf);

    impl Tree {
        fn new(test: &str) -> (Tree, Roots) {
            let root = std::env::temp_dir().join(format!("lull-doctor-{test}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&root);
            let roots = Roots { sys: root.join("sys"), proc: root.join("proc") };
            (Tree(root), roots)
        }

        fn write(&self, path: &str, content: &str) {
            let path = self.0.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
    }

    impl Drop for Tree {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn sysctls_that_spin_are_wrong() {
        let (tree, roots) = Tree::new("sysctl");
        assert_eq!(sysctl(&roots, "busy_poll", "").verdict, Verdict::Unknown);
        tree.write("proc/sys/net/core/busy_poll", "0\n");
        assert_eq!(sysctl(&roots, "busy_poll", "").verdict, Verdict::Ok);
        tree.write("proc/sys/net/core/busy_poll", "50\n");
        let check = sysctl(&roots, "busy_poll", "spinning");
        assert!(check.verdict == Verdict::Wrong && check.remedy.unwrap().contains("busy_poll=0"));
    }

    #[test]
    fn irqbalance_and_deep_idle_states_are_found() {
        let (tree, roots) = Tree::new("machine");
        assert_eq!(irqbalance(&roots).verdict, Verdict::Ok);
        tree.write("proc/77/comm", "irqbalance\n");
        let check = irqbalance(&roots);
        assert!(check.verdict == Verdict::Wrong && check.reason.contains("77"));
        assert_eq!(idle_states(&roots).verdict, Verdict::Ok);
        for (state, name, latency, disable) in [("state0", "POLL", "0", "0"), ("state1", "C6", "133", "0")] {
            tree.write(&format!("sys/devices/system/cpu/cpu0/cpuidle/{state}/name"), name);
            tree.write(&format!("sys/devices/system/cpu/cpu0/cpuidle/{state}/latency"), latency);
            tree.write(&format!("sys/devices/system/cpu/cpu0/cpuidle/{state}/disable"), disable);
        }
        let check = idle_states(&roots);
        assert!(check.verdict == Verdict::Advice && check.reason.contains("C6") && check.reason.contains("133"));
        tree.write("sys/devices/system/cpu/cpu0/cpuidle/state1/disable", "1");
        assert_eq!(idle_states(&roots).verdict, Verdict::Ok);
    }

    #[test]
    fn how_parked_pollers_sleep_is_said() {
        let (tree, roots) = Tree::new("parked");
        assert_eq!(parked_pollers(&roots).verdict, Verdict::Unknown);
        let said = |flags: &str| {
            tree.write("proc/cpuinfo", &format!("processor\t: 0\nflags\t\t: {flags}\n"));
            parked_pollers(&roots).reason
        };
        assert!(said("fpu monitor").contains("neither UMWAIT nor MWAITX"));
        assert!(said("fpu nonstop_tsc mwaitx").contains("by MWAITX for up to 50 us"));
        assert!(said("fpu waitpkg nonstop_tsc").contains("by UMWAIT for up to 50 us"));
        assert!(said("fpu tsc waitpkg").contains("no cycle counter that always runs"));
    }

    #[test]
    fn kernels_are_told_apart() {
        assert_eq!(settings_per_napi("6.12.1", &Policy::default()).verdict, Verdict::Wrong);
        let policy = Policy { defer_hard_irqs_max: Some(1), threaded_max: Some(2), ..Policy::default() };
        assert!(settings_per_napi("6.19", &policy).reason.contains("threaded up to 2"));
        assert_eq!(busy_poll_order("6.13.4").verdict, Verdict::Advice);
        assert_eq!(busy_poll_order("7.1.0").verdict, Verdict::Ok);
        assert_eq!(busy_poll_order("6.18.1").verdict, Verdict::Unknown);
        if version(&kernel_release()) >= Some((6, 9)) {
            assert_eq!(epoll_parameters().verdict, Verdict::Ok);
        }
    }
}
