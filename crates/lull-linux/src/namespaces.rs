//! The network namespaces of the machine. They are found by what keeps each alive: a process or a thread in it, a bind
//! mount (`ip netns`), an open descriptor of it, or a socket in it.
//!
//! The kernel has no list of them that older versions have as well, so this goes through `/proc`. A statement on *all*
//! namespaces holds only if every process could be looked into.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs::{self, File};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::thread;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::error::{Error, Result};
use crate::os;
use crate::proc_stat::start_of;
use crate::programs::{Process, processes};
use crate::roots::Roots;

/// The inode of the initial PID namespace (`PROC_PID_INIT_INO`). Only there does `/proc` show every process.
pub(crate) const INITIAL_PID_NAMESPACE: u64 = 0xEFFF_FFFC;
/// Where `ip netns` keeps its namespaces.
const NAMED: &str = "/run/netns";

/// A network namespace.
#[derive(Debug)]
pub(crate) struct Namespace {
    file: File,
    /// The way for a command to get into it.
    pub(crate) way: Way,
}

/// What keeps a namespace alive, and by what a command gets into it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Way {
    /// A name of `ip netns`.
    Named(String),
    /// A process in it.
    Process(i32),
    /// A file that refers to it: a bind mount, or that of a thread or a descriptor under `/proc`.
    File(PathBuf),
    /// A socket of this process in it, by which a command cannot get in.
    Socket(i32),
}

impl fmt::Display for Way {
    /// The words to put before a command so that it runs there.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Way::Named(name) => write!(f, "ip netns exec {name}"),
            Way::Process(pid) => write!(f, "nsenter -t {pid} -n"),
            Way::File(path) => write!(f, "nsenter --net={}", path.display()),
            Way::Socket(pid) => write!(f, "(in the namespace of a socket of process {pid})"),
        }
    }
}

/// Every namespace that was found.
#[derive(Debug, Default)]
pub(crate) struct Namespaces {
    found: BTreeMap<(u64, u64), Namespace>,
    /// Whether there may be others.
    pub(crate) some_hidden: bool,
}

impl Namespaces {
    /// Looks for all namespaces.
    pub(crate) fn look(roots: &Roots) -> Namespaces {
        let mut all = Namespaces::default();
        let pid_namespace = fs::metadata(roots.proc("self/ns/pid")).map(|it| it.ino());
        all.some_hidden = !pid_namespace.is_ok_and(|inode| inode == INITIAL_PID_NAMESPACE);
        let mut mounts = BTreeSet::new();
        for pid in processes(roots) {
            // A process that has ended keeps no namespace alive, so it does not matter.
            if !all.look_at(pid, &mut mounts, roots) && start_of(pid, roots).is_some() {
                all.some_hidden = true;
            }
        }
        all
    }

    /// Adds what one process keeps alive. Returns false if it could not be looked into.
    fn look_at(&mut self, pid: i32, mounts: &mut BTreeSet<u64>, roots: &Roots) -> bool {
        let below = |rest: &str| roots.proc(&format!("{pid}/{rest}"));
        let Ok(mount_namespace) = fs::metadata(below("ns/mnt")) else { return false };
        if mounts.insert(mount_namespace.ino()) {
            let Ok(table) = fs::read_to_string(below("mountinfo")) else { return false };
            for point in table.lines().filter_map(namespace_mount) {
                let named = point.strip_prefix(NAMED).and_then(|it| it.strip_prefix('/')).filter(|it| !it.is_empty());
                let path = below("root").join(point.trim_start_matches('/'));
                // `ip netns` here does not know a name of another mount namespace.
                let is_here = Path::new(point).metadata().is_ok_and(|here| {
                    path.metadata().is_ok_and(|there| (here.dev(), here.ino()) == (there.dev(), there.ino()))
                });
                let way = named.filter(|_| is_here).map(|name| Way::Named(name.to_owned()));
                self.add(&path, way.unwrap_or_else(|| Way::File(path.clone())));
            }
        }
        self.add(&below("ns/net"), Way::Process(pid));
        let Ok(threads) = fs::read_dir(below("task")) else { return false };
        for thread in threads.flatten() {
            let path = thread.path().join("ns/net");
            self.add(&path, Way::File(path.clone()));
        }
        let Ok(descriptors) = fs::read_dir(below("fd")) else { return false };
        let mut process = None;
        for descriptor in descriptors.flatten() {
            let path = descriptor.path();
            let Ok(target) = fs::read_link(&path) else { continue };
            let target = target.to_string_lossy();
            if target.starts_with("net:[") {
                self.add(&path, Way::File(path.clone()));
            } else if target.starts_with("socket:[")
                && let Some(fd) = path.file_name().and_then(|name| name.to_str()?.parse().ok())
            {
                let process = process.get_or_insert_with(|| Process::open(pid, roots));
                let Ok(socket) = process.as_ref().map_err(|_| ()).and_then(|it| it.duplicate(fd).map_err(|_| ()))
                else {
                    // A descriptor that was closed meanwhile keeps nothing alive.
                    if fs::read_link(&path).is_ok_and(|now| *now.to_string_lossy() == *target) {
                        return false;
                    }
                    continue;
                };
                match os::namespace_of_socket(socket.as_fd()) {
                    Ok(file) => self.add_file(file.into(), Way::Socket(pid)),
                    Err(_) => return false,
                }
            }
        }
        true
    }

    fn add(&mut self, path: &Path, way: Way) {
        if let Ok(file) = File::open(path) {
            self.add_file(file, way);
        }
    }

    /// Adds a namespace, and keeps the most convenient way into each.
    fn add_file(&mut self, file: File, way: Way) {
        let Ok(it) = file.metadata() else { return };
        let known = self.found.entry((it.dev(), it.ino())).or_insert_with(|| Namespace { file, way: way.clone() });
        if way < known.way {
            known.way = way;
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Namespace> {
        self.found.values()
    }
}

impl Namespace {
    /// Runs `look` in this namespace, on a thread of its own.
    ///
    /// # Errors
    /// The namespace cannot be entered, which takes CAP_SYS_ADMIN.
    pub(crate) fn run<T: Send>(&self, look: impl FnOnce() -> T + Send) -> Result<T> {
        let entered = thread::scope(|scope| {
            let inside = scope.spawn(|| {
                move_into_link_name_space(self.file.as_fd(), Some(LinkNameSpaceType::Network))?;
                Ok(look())
            });
            inside.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        });
        entered.map_err(|error: rustix::io::Errno| {
            Error::os("enter another network namespace", "run it as root (CAP_SYS_ADMIN)", error.into())
        })
    }
}

/// The mount point in a line of mountinfo, if it binds a network namespace.
fn namespace_mount(line: &str) -> Option<&str> {
    let mut fields = line.split(' ');
    let root = fields.nth(3)?;
    let point = fields.next()?;
    let kind = fields.skip_while(|field| *field != "-").nth(1)?;
    (kind == "nsfs" && root.starts_with("net:[")).then_some(point)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_of_network_namespaces_are_told_from_others() {
        let line = "97 30 0:4 net:[4026532281] /run/netns/a rw shared:3 - nsfs nsfs rw";
        assert_eq!(namespace_mount(line), Some("/run/netns/a"));
        assert_eq!(namespace_mount("97 30 0:4 mnt:[4026532281] /run/x rw - nsfs nsfs rw"), None);
        assert_eq!(namespace_mount("22 1 0:20 / /proc rw,nosuid shared:5 - proc proc rw"), None);
        assert_eq!(namespace_mount("22"), None);
    }

    #[test]
    fn the_own_one_is_found_and_can_be_entered() {
        let all = Namespaces::look(&Roots::default());
        let here = os::netns_cookie().unwrap();
        let cookies: Vec<_> = all.iter().map(|it| it.run(|| os::netns_cookie().unwrap())).collect();
        if cookies.iter().all(|it| it.is_err()) {
            println!("SKIP: the own one is found: no right to enter a network namespace (root)");
            return;
        }
        assert!(cookies.iter().any(|it| it.as_ref().is_ok_and(|cookie| *cookie == here)));
    }

    #[test]
    fn a_namespace_that_only_a_socket_keeps_is_found() {
        let (tell, told) = std::sync::mpsc::channel();
        let maker = thread::spawn(move || {
            // SAFETY: only this thread moves to a namespace of its own.
            if unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNET) }.is_err() {
                return;
            }
            let socket = std::os::unix::net::UnixDatagram::unbound().unwrap();
            tell.send((socket, os::netns_cookie().unwrap(), rustix::thread::gettid())).unwrap();
        });
        maker.join().unwrap();
        let Ok((_socket, cookie, maker)) = told.recv() else {
            println!("SKIP: a socket's namespace: no right to make one (root)");
            return;
        };
        // A thread is joined before the kernel has taken it out of the process and out of its namespaces (`do_exit`).
        let task = format!("/proc/self/task/{}", maker.as_raw_nonzero());
        while Path::new(&task).exists() {
            thread::yield_now();
        }
        let all = Namespaces::look(&Roots::default());
        // Another test or process that looks at the same time holds a descriptor of it, which may be the way in.
        assert!(all.iter().any(|it| it.run(os::netns_cookie).is_ok_and(|it| it.is_ok_and(|it| it == cookie))));
    }
}
