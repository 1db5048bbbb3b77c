//! The choice of the worker that gets a connection: a program of classic or extended BPF on the reuseport groups of a
//! program's TCP listeners (SO_ATTACH_REUSEPORT_CBPF and _EBPF), which is attached through a duplicate of a listener's
//! descriptor.
//!
//! The BPF program stays in the group, whoever has attached it, until it is taken away or the last listener is closed.
//! Linux does not tell which program a group has, so one that was there before is replaced and cannot be given back.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use lull_bpf::extended::{SK_REUSEPORT, SOCKET_FILTER};
use serde::{Deserialize, Serialize};

use super::listeners::{self, Found, Group, Listens};
use super::tree::Member;
use crate::error::{Error, Result};
use crate::os;
use crate::roots::Roots;

/// How the kernel chooses among the listeners of a group.
#[derive(Clone, Debug)]
pub enum Steer {
    /// One of lull's own choices, or a program of classic BPF.
    Classic(lull_bpf::steer::Steer),
    /// A program of extended BPF that the kernel has already.
    Pinned(Pinned),
}

impl fmt::Display for Steer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Steer::Classic(steer) => steer.fmt(f),
            Steer::Pinned(pinned) => write!(f, "the program at {}", pinned.path.display()),
        }
    }
}

/// A program of extended BPF that the kernel keeps under a name (`bpftool prog load`, `BPF_OBJ_PIN`).
#[derive(Clone, Debug)]
pub struct Pinned {
    path: PathBuf,
    program: Arc<OwnedFd>,
}

impl Pinned {
    /// The program of a file in a BPF file system; `None` if the file is elsewhere, or does not exist.
    ///
    /// # Errors
    /// The file is no program, the program cannot be had, or it is of a type that no reuseport group takes.
    pub fn open(path: &Path) -> Result<Option<Pinned>> {
        if !rustix::fs::statfs(path).is_ok_and(|found| found.f_type == BPF_FS_MAGIC) {
            return Ok(None);
        }
        let failed = |error| {
            let what = format!("take the program at {}", path.display());
            Error::os(what, "name one that `bpftool prog show pinned` shows, as root", error)
        };
        let program = os::pinned_program(path).map_err(failed)?;
        // The kernel describes maps and links in the same way as programs.
        if !os::is_program(program.as_fd()) {
            return Err(failed(std::io::ErrorKind::InvalidInput.into()));
        }
        let kind = os::program_type(program.as_fd()).map_err(failed)?;
        if !matches!(kind, SOCKET_FILTER | SK_REUSEPORT) {
            return Err(Error::Unsupported {
                what: format!("steer by the program at {}", path.display()),
                reason: format!("a reuseport group takes no program of type {kind} (`bpftool prog show` names it)"),
                remedy: "load it as a socket filter or as sk_reuseport".to_owned(),
            });
        }
        Ok(Some(Pinned { path: path.to_owned(), program: Arc::new(program) }))
    }
}

/// `BPF_FS_MAGIC` of `linux/magic.h`.
const BPF_FS_MAGIC: rustix::fs::FsWord = 0xcafe_4a11;

/// How the listeners of a program are steered.
pub(super) struct Steering {
    steer: Steer,
    /// Whether nothing is attached, and only what there is is reported.
    only_tells: bool,
    /// The listeners of each group when it was last reported.
    told: BTreeMap<(String, SocketAddr), Vec<u64>>,
    /// Why some listeners cannot be steered, or cannot be looked at.
    refused: Vec<String>,
}

/// A reuseport group, as it is reported.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Steered {
    /// The address on which its listeners listen.
    pub address: SocketAddr,
    /// How the kernel chooses among them.
    pub by: String,
    /// Its listeners, in the order in which they began to listen. A program numbers them in this order.
    pub listeners: Vec<Listens>,
}

impl fmt::Display for Steered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Steered { address, by, listeners } = self;
        write!(f, "{address}: {} listeners steered by {by}", listeners.len())?;
        for (number, listener) in listeners.iter().enumerate() {
            write!(f, "{} {number}: {listener}", if number == 0 { ";" } else { "," })?;
        }
        Ok(())
    }
}

/// A group that has a program of lull's, in the form of the record. It is on the disk before the program is attached.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Entry {
    address: SocketAddr,
    /// The network namespace, as /proc names it.
    #[serde(default)]
    namespace: String,
    /// The program's listeners.
    inodes: Vec<u64>,
    /// The processes that have them: number and start time.
    processes: Vec<(i32, u64)>,
}

impl Entry {
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Whether the other entry is for the same group.
    pub(crate) fn is_of_the_group_of(&self, other: &Entry) -> bool {
        (self.address, &self.namespace) == (other.address, &other.namespace)
    }

    pub(crate) fn processes(&self) -> &[(i32, u64)] {
        &self.processes
    }
}

impl Steering {
    pub(super) fn new(steer: Steer, only_tells: bool) -> Steering {
        Steering { steer, only_tells, told: BTreeMap::new(), refused: Vec::new() }
    }

    /// Whether nothing is attached.
    pub(super) fn only_tells(&self) -> bool {
        self.only_tells
    }

    /// How many groups are steered.
    pub(super) fn groups(&self) -> usize {
        self.told.len()
    }

    /// Why some listeners are not steered.
    pub(super) fn refused(&self) -> &[String] {
        &self.refused
    }

    /// The groups that are new, or whose listeners have changed, and the entries that the record needs for them.
    ///
    /// # Errors
    /// Why the listeners of process `own` cannot be looked at, if one is named. For other processes this is only noted
    /// as refused.
    pub(super) fn look(&mut self, members: &[Member], own: Option<i32>, roots: &Roots) -> Result<Vec<(Group, Entry)>> {
        let Found { groups: mut found, unseen } = listeners::groups(members, roots);
        self.refused = found.iter().filter_map(refusal).collect();
        for (pid, error) in unseen {
            if Some(pid) == own {
                return Err(error);
            }
            self.refused.push(error.to_string());
        }
        found.retain(|group| refusal(group).is_none());
        self.told.retain(|key, _| found.iter().any(|group| group.key() == *key));
        found.retain(|group| self.told.get(&group.key()) != Some(&group.inodes()));
        let entry = |group: &Group| {
            let its = group.listeners.iter().filter(|listener| !listener.holders.is_empty());
            let mut processes: Vec<(i32, u64)> =
                its.clone().flat_map(|listener| listener.holders.iter().map(|it| (it.pid, it.start))).collect();
            processes.sort_unstable();
            processes.dedup();
            let (namespace, address) = group.key();
            Entry { address, namespace, inodes: its.map(|listener| listener.inode).collect(), processes }
        };
        Ok(found.into_iter().map(|group| (entry(&group), group)).map(|(entry, group)| (group, entry)).collect())
    }

    /// Attaches the program to a group. Returns `None` if the group has gone meanwhile.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub(super) fn attach(&mut self, group: &Group, members: &[Member]) -> Result<Option<Steered>> {
        let count = u32::try_from(group.listeners.len()).unwrap_or(u32::MAX);
        if !self.only_tells {
            let Some(listener) = group.duplicate(members).map_err(|(_, error)| error)? else { return Ok(None) };
            let attached = match &self.steer {
                Steer::Pinned(pinned) => os::attach_reuseport_program(listener.as_fd(), pinned.program.as_fd()),
                Steer::Classic(steer) => match steer.program(count) {
                    Some(program) => os::attach_reuseport(listener.as_fd(), program.instructions()),
                    None => os::detach_reuseport(listener.as_fd()).map(drop),
                },
            };
            attached.map_err(|error| {
                let what = format!("steer the listeners of {} by {}", group.address, self.steer);
                Error::os(what, "the kernel takes no such program; check it with bpf_dbg", error)
            })?;
        }
        self.told.insert(group.key(), group.inodes());
        Ok(Some(Steered { address: group.address, by: self.steer.to_string(), listeners: group.listens() }))
    }
}

/// Why a group cannot be steered, if it cannot.
fn refusal(group: &Group) -> Option<String> {
    let address = group.address;
    let who = group.listens().into_iter().next().map_or_else(String::new, |first| first.to_string());
    if !group.shares {
        return Some(format!(
            "{address} ({who}) is not steered: it listens without SO_REUSEPORT, so that there is no group; tell the program \
             to use it (nginx: `listen ... reuseport`), with a listener for each worker"
        ));
    }
    (group.listeners.len() == 1).then(|| {
        format!(
            "{address} ({who}) is not steered: it is the only listener, so that there is nothing to choose; start the \
             program with a listener for each of several workers"
        )
    })
}

/// Takes a group's program away, or only checks that in a dry run.
///
/// Returns whether the group still exists.
///
/// # Errors
/// None of the living processes has let a listener be duplicated, or the kernel refuses.
pub(super) fn take_away(entry: &Entry, roots: &Roots, dry: bool) -> Result<bool> {
    let mut unseen = None;
    for &(pid, start) in &entry.processes {
        let member = match Member::started(pid, start, roots) {
            Ok(Some(member)) => member,
            Ok(None) => continue,
            Err(error) => {
                unseen.get_or_insert(error);
                continue;
            }
        };
        let listener = match listener_of(&member, &entry.inodes) {
            Ok(Some(listener)) => listener,
            Ok(None) => continue,
            Err(error) => {
                unseen.get_or_insert(error);
                continue;
            }
        };
        if dry {
            return Ok(true);
        }
        return os::detach_reuseport(listener.as_fd()).map_err(|error| {
            Error::os(format!("take the program from the listeners of {}", entry.address), "try it again", error)
        });
    }
    unseen.map_or(Ok(false), Err)
}

/// A duplicate of one of these sockets, if the process has one.
///
/// # Errors
/// Its descriptors cannot be read, or nobody may duplicate one.
fn listener_of(member: &Member, inodes: &[u64]) -> Result<Option<OwnedFd>> {
    let descriptors = listeners::sockets_of(member)?;
    for (inode, fd) in descriptors.into_iter().filter(|(inode, _)| inodes.contains(inode)) {
        match member.process.duplicate(fd) {
            Ok(duplicate) if listeners::inode_of(duplicate.as_fd()) == Some(inode) => return Ok(Some(duplicate)),
            Ok(_) => {}
            Err(_) if member.has_ended() => return Ok(None),
            // It was closed since it was listed.
            Err(error) if error.errno() == Some(libc::EBADF) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}
