//! The TCP listeners of a program, grouped by the address on which they listen, and the order in which those of one
//! address joined their reuseport group.
//!
//! A TCP socket joins its group when it begins to listen (`inet_reuseport_add_sock` in `__inet_hash`). In the same step
//! it gets its place in the table that `/proc/net/tcp` shows: the first place for IPv4, the last one for IPv6. So the
//! table has the group's order until a listener is closed. Then the last one takes its number
//! (`__reuseport_detach_sock`), which nothing shows.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use serde::Serialize;

use super::tree::Member;
use crate::error::{Error, Result};
use crate::os;
use crate::programs::name_of;
use crate::roots::Roots;

/// The state TCP_LISTEN in `/proc/net/tcp`.
const LISTENS: &str = "0A";

/// A listener of a group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum Listens {
    /// A listener of the program.
    Its {
        /// The process that has it in an epoll context; if none has, the first that has it at all.
        pid: i32,
        /// The process's name.
        name: String,
        /// Its descriptor.
        fd: i32,
    },
    /// A listener of another program.
    Others {
        /// The socket.
        inode: u64,
    },
}

impl fmt::Display for Listens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Listens::Its { pid, name, fd } => write!(f, "{name} (process {pid}) descriptor {fd}"),
            Listens::Others { inode } => write!(f, "another program's (socket {inode})"),
        }
    }
}

/// The listeners of one address, some of which are the program's.
pub(super) struct Group {
    pub(super) address: SocketAddr,
    /// The network namespace.
    namespace: String,
    /// Its listeners, in the order in which they began to listen.
    pub(super) listeners: Vec<Listener>,
    /// Whether the program's listeners have SO_REUSEPORT.
    pub(super) shares: bool,
    roots: Roots,
}

/// A listening socket.
pub(super) struct Listener {
    pub(super) inode: u64,
    /// The descriptors of the program that refer to it; there are none for another program's listener.
    pub(super) holders: Vec<Holder>,
}

/// A descriptor of a listening socket.
pub(super) struct Holder {
    pub(super) pid: i32,
    pub(super) start: u64,
    fd: i32,
    /// Whether the process has it in an epoll context.
    waits: bool,
}

impl Group {
    /// The key by which it is told from other groups.
    pub(super) fn key(&self) -> (String, SocketAddr) {
        (self.namespace.clone(), self.address)
    }

    pub(super) fn inodes(&self) -> Vec<u64> {
        self.listeners.iter().map(|listener| listener.inode).collect()
    }

    /// Its listeners, in the form in which they are reported.
    pub(super) fn listens(&self) -> Vec<Listens> {
        let listens = |listener: &Listener| {
            let waits = listener.holders.iter().find(|holder| holder.waits);
            match waits.or_else(|| listener.holders.first()) {
                Some(Holder { pid, fd, .. }) => Listens::Its { pid: *pid, name: name_of(*pid, &self.roots), fd: *fd },
                None => Listens::Others { inode: listener.inode },
            }
        };
        self.listeners.iter().map(listens).collect()
    }

    /// A duplicate of one of the program's listeners; `None` if all were closed.
    ///
    /// # Errors
    /// No listener can be duplicated: the error names a process that does not allow it, and the reason.
    pub(super) fn duplicate(&self, members: &[Member]) -> std::result::Result<Option<OwnedFd>, (i32, Error)> {
        let mut refused = None;
        for (listener, holder) in self.listeners.iter().flat_map(|it| it.holders.iter().map(move |holder| (it, holder)))
        {
            let Some(member) = members.iter().find(|it| (it.pid, it.start) == (holder.pid, holder.start)) else {
                continue;
            };
            match member.process.duplicate(holder.fd) {
                Ok(duplicate) if inode_of(duplicate.as_fd()) == Some(listener.inode) => return Ok(Some(duplicate)),
                // The number stands for another file since it was listed, or for none.
                Ok(_) => {}
                Err(_) if member.has_ended() => {}
                Err(error) if error.errno() == Some(libc::EBADF) => {}
                Err(error) => {
                    refused.get_or_insert((member.pid, error));
                }
            }
        }
        refused.map_or(Ok(None), Err)
    }
}

/// The addresses on which processes listen.
pub(super) struct Found {
    pub(super) groups: Vec<Group>,
    /// Processes that cannot be looked into, and why.
    pub(super) unseen: Vec<(i32, Error)>,
}

/// Finds all addresses on which the processes listen.
pub(super) fn groups(members: &[Member], roots: &Roots) -> Found {
    let mut holders: BTreeMap<u64, Vec<Holder>> = BTreeMap::new();
    let mut namespaces: BTreeMap<String, i32> = BTreeMap::new();
    let mut unseen = Vec::new();
    for member in members {
        let sockets = match sockets_of(member) {
            Ok(sockets) => sockets,
            Err(error) => {
                unseen.push((member.pid, error));
                continue;
            }
        };
        let waited = waited_for(member);
        for (inode, fd) in sockets {
            let holder = Holder { pid: member.pid, start: member.start, fd, waits: waited.contains(&fd) };
            holders.entry(inode).or_default().push(holder);
        }
        if let Ok(namespace) = std::fs::read_link(roots.proc(&format!("{}/ns/net", member.pid))) {
            namespaces.entry(namespace.to_string_lossy().into_owned()).or_insert(member.pid);
        }
    }
    let mut groups = Vec::new();
    for (namespace, pid) in namespaces {
        let mut by_address: BTreeMap<SocketAddr, Vec<u64>> = BTreeMap::new();
        for file in ["tcp", "tcp6"] {
            let table = roots.read_proc(&format!("{pid}/net/{file}")).unwrap_or_default();
            for (address, inode) in in_order(&table) {
                by_address.entry(address).or_default().push(inode);
            }
        }
        for (address, inodes) in by_address {
            let its = |inode| Listener { inode, holders: holders.remove(&inode).unwrap_or_default() };
            let listeners: Vec<Listener> = inodes.into_iter().map(its).collect();
            if listeners.iter().all(|listener| listener.holders.is_empty()) {
                continue;
            }
            let mut group =
                Group { address, namespace: namespace.clone(), listeners, shares: false, roots: roots.clone() };
            match group.duplicate(members) {
                Ok(Some(duplicate)) => group.shares = os::shares_port(duplicate.as_fd()).unwrap_or(false),
                Ok(None) => continue,
                Err(refused) => {
                    unseen.push(refused);
                    continue;
                }
            }
            groups.push(group);
        }
    }
    Found { groups, unseen }
}

/// The sockets of a process, as inode and descriptor. A process that has ended has none.
///
/// # Errors
/// There is no right to look.
pub(super) fn sockets_of(member: &Member) -> Result<Vec<(u64, i32)>> {
    let links = match member.process.links() {
        Err(_) if member.has_ended() => return Ok(Vec::new()),
        links => links?,
    };
    let socket = |(fd, target): (i32, PathBuf)| {
        let inode = target.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()?;
        Some((inode, fd))
    };
    Ok(links.into_iter().filter_map(socket).collect())
}

/// The sockets that are on epoll contexts of a process.
fn waited_for(member: &Member) -> BTreeSet<i32> {
    let contexts = member.process.epoll_descriptors().unwrap_or_default();
    let sockets =
        contexts.into_iter().filter_map(|fd| member.process.epoll(fd).ok()).flat_map(|context| context.sockets);
    sockets.map(|socket| socket.fd).collect()
}

/// The inode of an open file.
pub(super) fn inode_of(file: BorrowedFd<'_>) -> Option<u64> {
    rustix::fs::fstat(file).ok().map(|stat| stat.st_ino)
}

/// The listeners of a table; those of one address are in the order in which they began to listen.
fn in_order(table: &str) -> Vec<(SocketAddr, u64)> {
    let mut listeners: Vec<(SocketAddr, u64)> = table.lines().skip(1).filter_map(listener).collect();
    if listeners.first().is_some_and(|(address, _)| address.is_ipv4()) {
        listeners.reverse();
    }
    listeners
}

/// The address and inode in a line of the table, if it is that of a listener.
fn listener(line: &str) -> Option<(SocketAddr, u64)> {
    let mut fields = line.split_whitespace();
    let local = fields.nth(1)?;
    if fields.nth(1)? != LISTENS {
        return None;
    }
    let inode = fields.nth(5)?.parse().ok()?;
    let (ip, port) = local.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    // These are words of 32 bits in the machine's order, of bytes in network order (`get_tcp4_sock`).
    let word = |at: usize| Some(u32::from_str_radix(ip.get(8 * at..8 * at + 8)?, 16).ok()?.to_ne_bytes());
    let ip = match ip.len() {
        8 => IpAddr::V4(Ipv4Addr::from(word(0)?)),
        32 => {
            let mut octets = [0; 16];
            for at in 0..4 {
                octets[4 * at..4 * at + 4].copy_from_slice(&word(at)?);
            }
            IpAddr::V6(Ipv6Addr::from(octets))
        }
        _ => return None,
    };
    Some((SocketAddr::new(ip, port), inode))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;
    use std::net::{TcpListener, TcpStream};

    use rustix::net::{AddressFamily, SocketType, bind, listen, socket, sockopt};

    const HEADER: &str =
        "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n";

    #[test]
    #[cfg(target_endian = "little")]
    fn listeners_are_read_and_connections_are_not() {
        let row = |local: &str, state: &str, inode: u32| {
            format!(
                "   0: {local} 00000000:0000 {state} 00000000:00000000 00:00000000 00000000     0        0 {inode} 1 0\n"
            )
        };
        let table = [
            HEADER.to_owned(),
            row("0100007F:1F90", "0A", 12),
            row("0100007F:1F90", "01", 13),
            row("0100007F:1F90", "0A", 11),
            "garbage\n".to_owned(),
        ];
        let at = SocketAddr::from(([127, 0, 0, 1], 8080));
        assert_eq!(in_order(&table.concat()), [(at, 11), (at, 12)]);
        let v6 = row("00000000000000000000000001000000:0050", "0A", 7) + &row("garbage", "0A", 8);
        assert_eq!(in_order(&(HEADER.to_owned() + &v6)), [("[::1]:80".parse().unwrap(), 7)]);
    }

    /// Sockets that share an address and began to listen in another order than they were made.
    fn sharing(ip: &str) -> io::Result<Vec<TcpListener>> {
        let mut at: SocketAddr = SocketAddr::new(ip.parse().unwrap(), 0);
        let family = if at.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let mut made = Vec::new();
        for _ in 0..4 {
            let socket = socket(family, SocketType::STREAM, None)?;
            sockopt::set_socket_reuseport(&socket, true)?;
            bind(&socket, &at)?;
            let socket = TcpListener::from(socket);
            at = socket.local_addr()?;
            made.push(socket);
        }
        made.swap(0, 2);
        for socket in &made {
            listen(socket, 8)?;
            socket.set_nonblocking(true)?;
        }
        Ok(made)
    }

    #[test]
    fn the_order_that_is_told_is_the_kernels() {
        let roots = Roots::default();
        let me = [Member::open(std::process::id() as i32, &roots).unwrap()];
        for ip in ["127.0.0.1", "::1"] {
            let Ok(listeners) = sharing(ip) else {
                println!("SKIP: there is no {ip}");
                continue;
            };
            let at = listeners[0].local_addr().unwrap();
            let group = groups(&me, &roots).groups.into_iter().find(|group| group.address == at).unwrap();
            assert!(group.shares);
            let inodes: Vec<u64> = listeners.iter().map(|it| inode_of(it.as_fd()).unwrap()).collect();
            assert_eq!(group.inodes(), inodes, "{ip}");
            // This checks what the kernel makes of a number.
            for (number, inode) in (0..).zip(group.inodes()) {
                let program = lull_bpf::Program::parse(&format!("1,6 0 0 {number}")).unwrap();
                os::attach_reuseport(listeners[3].as_fd(), program.instructions()).unwrap();
                let _client = TcpStream::connect(at).unwrap();
                let took = listeners.iter().find(|it| it.accept().is_ok()).unwrap();
                assert_eq!(inode_of(took.as_fd()), Some(inode), "{ip} {number}");
            }
            assert!(os::detach_reuseport(listeners[0].as_fd()).unwrap());
            assert!(!os::detach_reuseport(listeners[0].as_fd()).unwrap(), "there is none any more");
        }
    }
}
