//! Where control sockets lie: each user has a directory, with a file for each process.
//!
//! Root's directory is `/run/lull/control`. Another user's is `/run/user/UID/lull`, or `/tmp/lull-UID` if the machine
//! has no such directory. The name of a file consists of the process id as the process itself knows it, and of a number
//! for its PID namespace, because processes of several containers may share the directory and have the same id. The
//! name is only a hint, as a process may have another id elsewhere: a client believes what the kernel says of the peer
//! (SO_PEERCRED), and not the name.

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustix::io::Errno;
use rustix::process::Pid;

use crate::error::Error;
use crate::reach::reach;

/// The extension of the sockets' files.
const EXTENSION: &str = "sock";
/// A file that is younger than this may be one that is bound already, but not listened behind yet.
const MAKING: Duration = Duration::from_secs(1);

/// The directories in which sockets may lie.
#[derive(Clone, Debug)]
pub struct Places {
    /// Where this process would make its own socket. The first directory that can be had is taken.
    own: Vec<PathBuf>,
    /// Where sockets of others are looked for: directories, and parents of directories with the pattern of their names.
    searched: Vec<Searched>,
}

#[derive(Clone, Debug)]
enum Searched {
    Directory(PathBuf),
    /// All directories `parent/PREFIXnumber/rest`.
    Children {
        parent: PathBuf,
        prefix: &'static str,
        rest: &'static str,
    },
}

impl Default for Places {
    /// The usual places on this machine.
    fn default() -> Places {
        let uid = rustix::process::geteuid().as_raw();
        let by_user = [PathBuf::from(format!("/run/user/{uid}/lull")), PathBuf::from(format!("/tmp/lull-{uid}"))];
        let root = PathBuf::from("/run/lull/control");
        let own = if uid == 0 { std::iter::once(root.clone()).chain(by_user).collect() } else { by_user.into() };
        let searched = vec![
            Searched::Directory(root),
            Searched::Children { parent: "/run/user".into(), prefix: "", rest: "lull" },
            Searched::Children { parent: "/tmp".into(), prefix: "lull-", rest: "" },
        ];
        Places { own, searched }
    }
}

impl Places {
    /// A single directory: for tests, and for a service that keeps its socket elsewhere.
    pub fn only(directory: &Path) -> Places {
        Places { own: vec![directory.to_owned()], searched: vec![Searched::Directory(directory.to_owned())] }
    }

    /// The directory for this process's own socket, which is made if it does not exist. Only its owner may enter it.
    pub(crate) fn make(&self) -> Result<PathBuf, Error> {
        let mut last = None;
        for directory in &self.own {
            match make_private(directory) {
                Ok(()) => return Ok(directory.clone()),
                Err(source) => last = Some((directory.clone(), source)),
            }
        }
        let (path, source) = last.expect("there is at least one place");
        let remedy = "make a directory there that belongs to you alone (mode 0700)";
        Err(Error::Os { what: "make the directory of control sockets", path, remedy, source })
    }

    /// The socket files that exist, sorted by name. Directories that may not be read are skipped.
    pub(crate) fn files(&self) -> Vec<PathBuf> {
        let mut files: Vec<PathBuf> =
            self.directories().iter().flat_map(|directory| entries(directory)).filter(|path| is_socket(path)).collect();
        files.sort();
        files
    }

    /// Removes what killed processes left in this user's own directories: files behind which nobody listens, of
    /// processes that do not exist, and that are not just being made.
    pub fn sweep(&self) {
        let euid = rustix::process::geteuid().as_raw();
        for directory in self.directories() {
            // A link in somebody else's directory could lead anywhere.
            if !fs::symlink_metadata(&directory).is_ok_and(|it| it.is_dir() && it.uid() == euid) {
                continue;
            }
            entries(&directory).iter().filter(|path| is_left(path)).for_each(|path| {
                // Another command may have removed it first.
                let _ = fs::remove_file(path);
            });
        }
    }

    /// The files that may be process `pid`'s: first those with its number, then all others, whose number may be of
    /// another PID namespace.
    pub(crate) fn candidates(&self, pid: u32) -> Vec<PathBuf> {
        let (named, others): (Vec<_>, Vec<_>) = self.files().into_iter().partition(|path| number(path) == Some(pid));
        named.into_iter().chain(others).collect()
    }

    fn directories(&self) -> Vec<PathBuf> {
        let mut directories = Vec::new();
        for searched in &self.searched {
            match searched {
                Searched::Directory(directory) => directories.push(directory.clone()),
                Searched::Children { parent, prefix, rest } => {
                    // Only a number may follow the prefix, because anybody may make directories of any name in `/tmp`.
                    let named = |path: &PathBuf| {
                        let number = path.file_name().and_then(|name| name.to_str()?.strip_prefix(prefix));
                        number.is_some_and(|it| it.parse::<u32>().is_ok())
                    };
                    let children = entries(parent).into_iter().filter(named);
                    directories.extend(children.map(|child| if rest.is_empty() { child } else { child.join(rest) }));
                }
            }
        }
        directories
    }
}

/// The name of the file of process `pid` in this process's PID namespace.
pub(crate) fn file_name(pid: u32) -> String {
    // Without /proc, namespaces cannot be told from one another.
    let namespace = fs::metadata("/proc/self/ns/pid").map_or(0, |it| it.ino());
    format!("{pid}-{namespace}.{EXTENSION}")
}

/// The process id in a file's name.
fn number(path: &Path) -> Option<u32> {
    path.file_stem()?.to_str()?.split('-').next()?.parse().ok()
}

fn is_socket(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == EXTENSION)
}

/// Whether this is the socket of a process that no longer exists.
fn is_left(path: &Path) -> bool {
    let pid = number(path).and_then(|number| Pid::from_raw(number.try_into().ok()?));
    let is_gone = |pid| rustix::process::test_kill_process(pid) == Err(Errno::SRCH);
    let is_settled = |made: SystemTime| made.elapsed().is_ok_and(|age| age > MAKING);
    is_socket(path)
        && pid.is_some_and(is_gone)
        && fs::symlink_metadata(path).and_then(|it| it.modified()).is_ok_and(is_settled)
        // The number may be of another PID namespace, in which the process lives on and listens.
        && reach(path, None).is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
}

fn entries(directory: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(directory) else { return Vec::new() };
    entries.filter_map(|entry| Some(entry.ok()?.path())).collect()
}

/// Makes a directory for its owner alone. It refuses one that others may enter or that belongs to somebody else,
/// because anybody can make one in `/tmp` first.
fn make_private(directory: &Path) -> io::Result<()> {
    match fs::DirBuilder::new().mode(0o700).create(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let parent = directory.parent().ok_or(error)?;
            // Everybody may look into `/run/lull`. No other parent directory is made here.
            if parent.parent().is_none_or(|grandparent| !grandparent.is_dir()) || parent.starts_with("/run/user") {
                return Err(io::ErrorKind::NotFound.into());
            }
            fs::DirBuilder::new().mode(0o755).create(parent)?;
            fs::DirBuilder::new().mode(0o700).create(directory)?;
        }
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    let found = fs::symlink_metadata(directory)?;
    let ours = found.is_dir() && found.uid() == rustix::process::geteuid().as_raw() && found.mode() & 0o077 == 0;
    if ours { Ok(()) } else { Err(io::Error::new(io::ErrorKind::PermissionDenied, "it is not yours alone")) }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn scratch(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("lull-place-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir(&path).unwrap();
        path
    }

    #[test]
    fn a_directory_that_others_may_enter_is_refused() {
        let path = scratch("open");
        let directory = path.join("control");
        Places::only(&directory).make().unwrap();
        assert_eq!(fs::metadata(&directory).unwrap().mode() & 0o777, 0o700);
        fs::set_permissions(&directory, fs::Permissions::from_mode(0o755)).unwrap();
        let error = Places::only(&directory).make().unwrap_err().to_string();
        assert!(error.contains("not yours alone") && error.contains("0700"), "{error}");
        fs::remove_dir_all(path).unwrap();
    }

    #[test]
    fn a_link_in_place_of_the_directory_is_refused() {
        let path = scratch("link");
        std::os::unix::fs::symlink("/", path.join("control")).unwrap();
        assert!(Places::only(&path.join("control")).make().is_err());
        fs::remove_dir_all(path).unwrap();
    }

    /// Makes a socket file behind which nobody listens, and that was last changed so many seconds ago.
    fn left_behind(path: &Path, seconds: u64) {
        drop(std::os::unix::net::UnixListener::bind(path).unwrap());
        let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
        let at = rustix::fs::Timespec { tv_sec: (since_1970.as_secs() - seconds) as i64, tv_nsec: 0 };
        let times = rustix::fs::Timestamps { last_access: at, last_modification: at };
        rustix::fs::utimensat(rustix::fs::CWD, path, &times, rustix::fs::AtFlags::empty()).unwrap();
    }

    #[test]
    fn what_killed_processes_left_is_swept_and_nothing_else() {
        let path = scratch("sweep");
        let mut ended = std::process::Command::new("true").spawn().unwrap();
        ended.wait().unwrap();
        let gone = ended.id();
        let alive = std::process::id();
        // These numbers are above the kernel's PID_MAX_LIMIT, so no process ever has them.
        let (listening, young) = (5_000_001, 5_000_002);
        left_behind(&path.join(file_name(gone)), 60);
        left_behind(&path.join(file_name(alive)), 60);
        left_behind(&path.join(file_name(young)), 0);
        let _listener = {
            let at = path.join(file_name(listening));
            left_behind(&at, 60);
            fs::remove_file(&at).unwrap();
            std::os::unix::net::UnixListener::bind(&at).unwrap()
        };
        fs::write(path.join("notes.sock"), "").unwrap();
        Places::only(&path).sweep();
        let name = |path: &PathBuf| path.file_name().unwrap().to_str().unwrap().to_owned();
        let mut left: Vec<String> = entries(&path).iter().map(name).collect();
        left.sort();
        let mut kept = [file_name(alive), file_name(listening), file_name(young), "notes.sock".to_owned()];
        kept.sort();
        assert_eq!(left, kept);
        fs::remove_dir_all(path).unwrap();
    }

    #[test]
    fn the_file_with_the_number_is_tried_first() {
        let path = scratch("order");
        for name in ["1-5.sock", "7-5.sock", "7-6.sock", "9-5.sock", "7-5.log"] {
            fs::write(path.join(name), "").unwrap();
        }
        let names = Places::only(&path).candidates(7);
        let names: Vec<_> = names.iter().map(|path| path.file_name().unwrap().to_str().unwrap()).collect();
        assert_eq!(names, ["7-5.sock", "7-6.sock", "1-5.sock", "9-5.sock"]);
        fs::remove_dir_all(path).unwrap();
    }
}
