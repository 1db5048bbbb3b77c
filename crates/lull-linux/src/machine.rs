//! The machine: the kernel's release, CPUs, and sysctls of its initial network namespace.

use std::fs::File;
use std::os::fd::AsFd;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::roots::Roots;

/// The kernel's release, as `uname -r` prints it.
pub fn kernel_release() -> String {
    rustix::system::uname().release().to_string_lossy().into_owned()
}

/// The major and minor version of a release such as `6.18.44-generic`.
pub fn version(release: &str) -> Option<(u32, u32)> {
    let mut parts = release.split(|c: char| !c.is_ascii_digit());
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

/// The CPUs that are online; only CPU 0 if `/sys` does not tell.
pub fn online_cpus(roots: &Roots) -> Vec<usize> {
    let listed = roots.read_sys("devices/system/cpu/online").ok().and_then(|list| parse_cpu_list(&list));
    listed.filter(|cpus| !cpus.is_empty()).unwrap_or_else(|| vec![0])
}

/// Reads a list as the kernel writes it: `0-3,8`. An empty list has no CPU.
pub fn parse_cpu_list(list: &str) -> Option<Vec<usize>> {
    let list = list.trim();
    if list.is_empty() { Some(Vec::new()) } else { lull_units::numbers(list).ok() }
}

/// A number below `net.core` that belongs to the machine and shows only in the initial network namespace, such as
/// `busy_poll`. If the calling thread is elsewhere, it is read in that namespace by a thread that goes there.
pub fn core_sysctl(name: &str, roots: &Roots) -> Option<u64> {
    let path = format!("sys/net/core/{name}");
    if let Some(value) = roots.number(&path) {
        return Some(value);
    }
    // Either init or kthreadd is in that namespace, but it may not be possible to look into it. A value of another
    // namespace does not count.
    let initial = ["1/ns/net", "2/ns/net"].iter().find_map(|path| File::open(roots.proc(path)).ok())?;
    let roots = roots.clone();
    let there = move || {
        move_into_link_name_space(initial.as_fd(), Some(LinkNameSpaceType::Network)).ok()?;
        roots.number(&path)
    };
    std::thread::Builder::new().spawn(there).ok()?.join().ok()?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_and_lists() {
        assert_eq!(version("6.18.44-fc-v445"), Some((6, 18)));
        assert_eq!(version("7.1-rc2"), Some((7, 1)));
        assert_eq!(version("x"), None);
        assert_eq!(parse_cpu_list("0-2,5\n"), Some(vec![0, 1, 2, 5]));
        assert_eq!(parse_cpu_list(""), Some(vec![]));
        assert_eq!(parse_cpu_list("3-1"), None);
        let release = kernel_release();
        assert!(version(&release) >= Some((4, 0)), "{release}");
    }
}
