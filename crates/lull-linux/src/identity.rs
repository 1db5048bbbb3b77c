//! The identity of a device, whatever its name is and wherever it is. A device that was deleted and made again may have
//! the name and the index of the old one, and one that was moved to another network namespace may have lost both.
//!
//! The kernel gives every directory of sysfs a number that no other gets until the next boot (`kernfs_new_node`). A
//! device's directory keeps it when the device is renamed or moved (`device_rename`), and loses it only with the device.

use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{CWD, Mode, OFlags, fstat, openat, stat};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};

use crate::roots::Roots;

/// A device's directory in sysfs.
#[derive(Clone, Debug)]
pub struct Node {
    number: u64,
    directory: Arc<OwnedFd>,
}

impl PartialEq for Node {
    fn eq(&self, other: &Node) -> bool {
        self.number == other.number
    }
}

impl Eq for Node {}

impl Node {
    /// The directory of a device of this thread's network namespace; `None` if it cannot be seen. If `/sys` is that of
    /// another namespace (`nsenter -n`), one of this namespace is mounted for the look, which takes CAP_SYS_ADMIN.
    pub(crate) fn find(name: &str, ifindex: u32, in_sysfs: bool, roots: &Roots) -> Option<Node> {
        let relative = format!("class/net/{name}");
        let directory = if in_sysfs {
            directory(CWD, &roots.sys(&relative))
        } else if *roots == Roots::default() {
            directory(own_sysfs()?, Path::new(&relative))
        } else {
            None
        };
        let node = Node { number: 0, directory: Arc::new(directory?) };
        let number = fstat(&*node.directory).ok()?.st_ino;
        (node.ifindex()? == ifindex).then_some(Node { number, ..node })
    }

    /// The number of the directory.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// Whether the device still exists, in any namespace.
    pub(crate) fn is_there(&self) -> bool {
        self.ifindex().is_some()
    }

    fn ifindex(&self) -> Option<u32> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let mut file = File::from(openat(&*self.directory, "ifindex", flags, Mode::empty()).ok()?);
        let mut text = String::new();
        file.read_to_string(&mut text).ok()?;
        text.trim_end().parse().ok()
    }
}

fn directory(at: impl AsFd, path: &Path) -> Option<OwnedFd> {
    openat(at, path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).ok()
}

/// Whether `/sys` is that of this thread's network namespace, as a device of the same name and index may be in both. It
/// is true if this cannot be told; telling it takes CAP_SYS_ADMIN.
pub(crate) fn sees_this_namespace(roots: &Roots) -> bool {
    if *roots != Roots::default() {
        return true;
    }
    // A network namespace has one sysfs, however often it is mounted (`sysfs_get_tree`).
    let own = own_sysfs().and_then(|sysfs| fstat(sysfs).ok());
    let mounted = stat(&roots.sys).ok();
    own.zip(mounted).is_none_or(|(own, mounted)| own.st_dev == mounted.st_dev)
}

/// A sysfs of this thread's network namespace that is mounted nowhere.
fn own_sysfs() -> Option<OwnedFd> {
    let sysfs = fsopen("sysfs", FsOpenFlags::FSOPEN_CLOEXEC).ok()?;
    fsconfig_create(sysfs.as_fd()).ok()?;
    fsmount(sysfs.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty()).ok()
}
