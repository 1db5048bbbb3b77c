//! The socket calls on numbers: of the kernel alone, and of a program that has the preload library.

use std::cell::Cell;
use std::io::{IoSlice, IoSliceMut, Read, Seek, Write};
use std::mem::MaybeUninit;
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr::null_mut;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use libc::{c_int, c_uint, c_ulong, epoll_event, iovec, mmsghdr, pollfd, socklen_t, timespec};
use lull_posix::signals::{call, section};
use lull_posix::socket::{self, Receive, Send};
use lull_posix::{Errno, epoll, files, flags, is_lull, poll};

use super::peers::{Peer, PeerListener};
use super::program::Way;
use super::world;

const WORD_BITS: usize = u64::BITS as usize;
/// From linux/sockios.h.
pub const SIOCOUTQNSD: c_ulong = 0x894b;
pub const SIOCATMARK: c_ulong = 0x8905;

pub type Result<T> = std::result::Result<T, Errno>;

/// Whose calls they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Machine {
    /// The kernel's, between two loopback addresses.
    Kernel,
    /// As the preload library makes them: lull's where the number or the address is, and else the kernel's.
    Lull,
}

/// What `recvmsg` tells.
#[derive(Clone, Debug, PartialEq)]
pub struct Told {
    pub bytes: usize,
    /// Who sent it.
    pub from: Vec<u8>,
    /// Ancillary data.
    pub control: Vec<u8>,
    pub flags: c_int,
}

/// The kernel's address of the peers; the program's is 127.0.0.1.
pub const KERNELS_PEER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 9);

fn checked(result: isize) -> Result<usize> {
    usize::try_from(result).map_err(|_| Errno::last())
}

fn number(result: c_int) -> Result<c_int> {
    checked(result as isize).map(|fd| fd as c_int)
}

fn done(result: c_int) -> Result<()> {
    checked(result as isize).map(drop)
}

impl Machine {
    fn is_lulls(self, fd: c_int) -> bool {
        self == Machine::Lull && is_lull(fd)
    }

    /// A number that the kernel has just given out.
    fn given_out(self, fd: c_int) -> Result<c_int> {
        let fd = number(fd)?;
        if self == Machine::Lull {
            files::forget(fd);
        }
        Ok(fd)
    }

    /// The program's own address.
    pub fn own(self) -> Ipv4Addr {
        match self {
            Machine::Kernel => Ipv4Addr::LOCALHOST,
            Machine::Lull => world::OWN.parse().unwrap(),
        }
    }

    /// The peers' address, in lull's world or the kernel's.
    pub fn peer(self, in_kernel: bool) -> Ipv4Addr {
        match self {
            Machine::Lull if !in_kernel => world::PEER.parse().unwrap(),
            _ => KERNELS_PEER,
        }
    }

    pub fn socket(self, domain: c_int, kind: c_int) -> Result<c_int> {
        // SAFETY: numbers only.
        self.given_out(unsafe { libc::socket(domain, kind, 0) })
    }

    pub fn bind(self, fd: c_int, address: &[u8]) -> Result<()> {
        match self {
            Machine::Lull => call(|| socket::bind(fd, address)),
            // SAFETY: an address, and its size.
            Machine::Kernel => done(unsafe { libc::bind(fd, address.as_ptr().cast(), address.len() as socklen_t) }),
        }
    }

    pub fn listen(self, fd: c_int, backlog: c_int) -> Result<()> {
        match self {
            Machine::Lull => call(|| socket::listen(fd, backlog)),
            // SAFETY: numbers only.
            Machine::Kernel => done(unsafe { libc::listen(fd, backlog) }),
        }
    }

    pub fn connect(self, fd: c_int, address: &[u8]) -> Result<()> {
        if self == Machine::Lull && socket::connects(fd, address) {
            return call(|| socket::connect(fd, address));
        }
        // SAFETY: an address, and its size.
        done(unsafe { libc::connect(fd, address.as_ptr().cast(), address.len() as socklen_t) })
    }

    /// `accept4`: the number, and the peer's address.
    pub fn accept(self, fd: c_int, flags: c_int) -> Result<(c_int, Vec<u8>)> {
        if self.is_lulls(fd) {
            return call(|| socket::accept(fd, flags)).map(|accepted| (accepted.fd, accepted.peer().to_vec()));
        }
        let (mut bytes, mut length) = ([0_u8; 128], 128);
        // SAFETY: room for an address, and its size.
        let fd = self.given_out(unsafe { libc::accept4(fd, bytes.as_mut_ptr().cast(), &raw mut length, flags) })?;
        Ok((fd, bytes[..length as usize].to_vec()))
    }

    /// `read` or `readv` if there are no flags to give, else `recvmsg`.
    pub fn recv(self, fd: c_int, buffers: &mut [IoSliceMut<'_>], flags: Option<c_int>) -> Result<usize> {
        if self.is_lulls(fd) {
            return call(|| match flags {
                None => socket::read(fd, buffers),
                Some(flags) => socket::recv(fd, buffers, Receive { flags }),
            });
        }
        // SAFETY: the kernel writes into as many buffers as it is told; a message is plain data.
        checked(unsafe {
            match flags {
                None if buffers.len() == 1 => libc::read(fd, buffers[0].as_mut_ptr().cast(), buffers[0].len()),
                None => libc::readv(fd, buffers.as_mut_ptr().cast(), buffers.len() as c_int),
                Some(flags) => {
                    let mut message: libc::msghdr = std::mem::zeroed();
                    message.msg_iov = buffers.as_mut_ptr().cast();
                    message.msg_iovlen = buffers.len();
                    libc::recvmsg(fd, &raw mut message, flags)
                }
            }
        })
    }

    /// `write` or `writev` if there are no flags to give, else `sendmsg`.
    pub fn send(self, fd: c_int, buffers: &[IoSlice<'_>], flags: Option<c_int>) -> Result<usize> {
        if self.is_lulls(fd) {
            return call(|| match flags {
                None if buffers.len() == 1 => socket::write(fd, buffers),
                None => socket::writev(fd, buffers),
                Some(flags) => socket::send(fd, buffers, Send { flags }),
            });
        }
        // SAFETY: the kernel reads as many buffers as it is told; a message is plain data.
        checked(unsafe {
            match flags {
                None if buffers.len() == 1 => libc::write(fd, buffers[0].as_ptr().cast(), buffers[0].len()),
                None => libc::writev(fd, buffers.as_ptr().cast(), buffers.len() as c_int),
                Some(flags) => {
                    let mut message: libc::msghdr = std::mem::zeroed();
                    message.msg_iov = buffers.as_ptr().cast_mut().cast();
                    message.msg_iovlen = buffers.len();
                    libc::sendmsg(fd, &raw const message, flags)
                }
            }
        })
    }

    /// `recvmsg` with a name, and with room for so many bytes of ancillary data.
    pub fn recv_message(self, fd: c_int, buffers: &mut [IoSliceMut<'_>], room: usize, flags: c_int) -> Result<Told> {
        let (mut name, mut control) = ([0_u8; 128], vec![0_u8; room]);
        // SAFETY: room for a name, for ancillary data and for as many buffers as it is told; a message is plain data.
        unsafe {
            let mut message: libc::msghdr = std::mem::zeroed();
            (message.msg_name, message.msg_namelen) = (name.as_mut_ptr().cast(), 128);
            (message.msg_iov, message.msg_iovlen) = (buffers.as_mut_ptr().cast(), buffers.len());
            (message.msg_control, message.msg_controllen) = (control.as_mut_ptr().cast(), room);
            let bytes = match self.is_lulls(fd) {
                true => call(|| socket::recvmsg(fd, &raw mut message, flags))?,
                false => checked(libc::recvmsg(fd, &raw mut message, flags))?,
            };
            control.truncate(message.msg_controllen);
            let from = name[..message.msg_namelen as usize].to_vec();
            Ok(Told { bytes, from, control, flags: message.msg_flags })
        }
    }

    /// `sendmsg` with an address and ancillary data, as far as there are bytes of them.
    pub fn send_message(
        self,
        fd: c_int,
        buffers: &[IoSlice<'_>],
        to: &[u8],
        control: &[u8],
        flags: c_int,
    ) -> Result<usize> {
        let at = |bytes: &[u8]| if bytes.is_empty() { null_mut() } else { bytes.as_ptr().cast_mut().cast() };
        // SAFETY: a message is plain data. What it names is read, and is as long as it says.
        unsafe {
            let mut message: libc::msghdr = std::mem::zeroed();
            (message.msg_name, message.msg_namelen) = (at(to), to.len() as socklen_t);
            (message.msg_iov, message.msg_iovlen) = (buffers.as_ptr().cast_mut().cast(), buffers.len());
            (message.msg_control, message.msg_controllen) = (at(control), control.len());
            if self == Machine::Lull && socket::message_goes_by_lull(fd, &message, flags)? {
                return call(|| socket::sendmsg(fd, &message, flags));
            }
            checked(libc::sendmsg(fd, &raw const message, flags))
        }
    }

    pub fn shutdown(self, fd: c_int, how: c_int) -> Result<()> {
        if self.is_lulls(fd) {
            return call(|| socket::shutdown(fd, how));
        }
        // SAFETY: numbers only.
        done(unsafe { libc::shutdown(fd, how) })
    }

    pub fn close(self, fd: c_int) -> Result<()> {
        if self.is_lulls(fd) {
            return call(|| files::close(fd));
        }
        // SAFETY: the program's number.
        done(unsafe { libc::close(fd) })
    }

    pub fn dup(self, fd: c_int) -> Result<c_int> {
        if self.is_lulls(fd) {
            return call(|| files::duplicate(fd, 0, false));
        }
        // SAFETY: numbers only.
        self.given_out(unsafe { libc::dup(fd) })
    }

    pub fn dup2(self, fd: c_int, to: c_int) -> Result<c_int> {
        if fd != to && (self.is_lulls(fd) || self.is_lulls(to)) {
            return call(|| files::duplicate_to(fd, to, 0));
        }
        // SAFETY: both are the program's.
        number(unsafe { libc::dup2(fd, to) })
    }

    pub fn get_flags(self, fd: c_int) -> Result<c_int> {
        let lulls = if self.is_lulls(fd) { section(|| flags::fcntl(fd, libc::F_GETFL, 0)) } else { None };
        // SAFETY: numbers only.
        lulls.unwrap_or_else(|| number(unsafe { libc::fcntl(fd, libc::F_GETFL) }))
    }

    pub fn set_flags(self, fd: c_int, value: c_int) -> Result<()> {
        let lulls = if self.is_lulls(fd) { section(|| flags::fcntl(fd, libc::F_SETFL, value as usize)) } else { None };
        // SAFETY: numbers only.
        lulls.map_or_else(|| done(unsafe { libc::fcntl(fd, libc::F_SETFL, value) }), |set| set.map(drop))
    }

    pub fn set_nonblocking_by_ioctl(self, fd: c_int, on: bool) -> Result<()> {
        let mut on = c_int::from(on);
        let at = &raw mut on as usize;
        // SAFETY: the request reads an int.
        let lulls = if self.is_lulls(fd) { section(|| unsafe { flags::ioctl(fd, libc::FIONBIO, at) }) } else { None };
        // SAFETY: as above.
        lulls.unwrap_or_else(|| done(unsafe { libc::ioctl(fd, libc::FIONBIO, at) }))
    }

    /// FIONREAD: bytes that were received and not read; none for what is no connection.
    pub fn unread(self, fd: c_int) -> usize {
        self.queue(fd, libc::FIONREAD).map_or(0, |bytes| bytes.max(0) as usize)
    }

    /// Bytes that were written and not sent yet, for Nagle's algorithm or want of room; none for what is no connection.
    pub fn unsent(self, fd: c_int) -> usize {
        self.queue(fd, SIOCOUTQNSD).map_or(0, |bytes| bytes.max(0) as usize)
    }

    /// `splice` into a pipe, or `sendfile`: what the pipe has then.
    pub fn move_out(self, fd: c_int, size: usize, way: Way) -> Result<Vec<u8>> {
        let [end, into] = self.pipe();
        let to = into.as_raw_fd();
        let moved = if self.is_lulls(fd) {
            call(|| match way {
                Way::Sendfile { mut at } => socket::sendfile(to, fd, at.as_mut(), size),
                Way::Splice { flags, offsets } => socket::splice((fd, offsets[0]), (to, offsets[1]), size, flags),
            })
        } else {
            // SAFETY: numbers, and offsets or none.
            checked(unsafe {
                match way {
                    Way::Sendfile { mut at } => libc::sendfile(to, fd, pointer(at.as_mut()), size),
                    Way::Splice { flags, offsets } => {
                        let [mut at, mut pipes] = offsets.map(|given| given.then_some(0));
                        libc::splice(fd, pointer(at.as_mut()), to, pointer(pipes.as_mut()), size, flags)
                    }
                }
            })
        };
        drop(into);
        let mut there = Vec::new();
        std::fs::File::from(end).read_to_end(&mut there).unwrap();
        moved.map(|moved| {
            assert_eq!(moved, there.len());
            there
        })
    }

    /// `splice` out of a pipe that has these data, or `sendfile` of a file that has them: how much, and where the offset and the file
    /// are then.
    pub fn move_in(self, fd: c_int, data: &[u8], way: Way) -> Result<(usize, [i64; 2])> {
        let is_file = matches!(way, Way::Sendfile { .. });
        let (from, size) = if is_file {
            // SAFETY: a name, and a number that is nobody else's.
            let file =
                unsafe { OwnedFd::from_raw_fd(self.given_out(libc::memfd_create(c"data".as_ptr(), 0)).unwrap()) };
            let mut file = std::fs::File::from(file);
            file.write_all(data).unwrap();
            file.rewind().unwrap();
            (OwnedFd::from(file), data.len())
        } else {
            let [end, into] = self.pipe();
            std::fs::File::from(into).write_all(data).unwrap();
            (end, data.len())
        };
        let from = from.as_raw_fd();
        let mut place = if let Way::Sendfile { at } = way { at } else { None };
        let moved = if self.is_lulls(fd) {
            call(|| match way {
                Way::Sendfile { .. } => socket::sendfile(fd, from, place.as_mut(), size),
                Way::Splice { flags, offsets } => socket::splice((from, offsets[1]), (fd, offsets[0]), size, flags),
            })
        } else {
            // SAFETY: numbers, and offsets or none.
            checked(unsafe {
                match way {
                    Way::Sendfile { .. } => libc::sendfile(fd, from, pointer(place.as_mut()), size),
                    Way::Splice { flags, offsets } => {
                        let [mut at, mut pipes] = offsets.map(|given| given.then_some(0));
                        libc::splice(from, pointer(pipes.as_mut()), fd, pointer(at.as_mut()), size, flags)
                    }
                }
            })
        };
        // SAFETY: numbers only.
        let is_at = if is_file { unsafe { libc::lseek(from, 0, libc::SEEK_CUR) } } else { 0 };
        moved.map(|count| (count, [place.unwrap_or(0), is_at]))
    }

    /// Where it is read, and where it is written.
    fn pipe(self) -> [OwnedFd; 2] {
        let mut ends = [0; 2];
        // SAFETY: room for two numbers, which are nobody else's.
        unsafe {
            assert_eq!(libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC), 0);
            ends.map(|end| OwnedFd::from_raw_fd(self.given_out(end).unwrap()))
        }
    }

    /// What an `ioctl` says of a socket's queues.
    pub fn queue(self, fd: c_int, request: c_ulong) -> Result<c_int> {
        let mut bytes: c_int = 0;
        let at = &raw mut bytes as usize;
        // SAFETY: the request writes an int.
        let lulls = if self.is_lulls(fd) { section(|| unsafe { flags::ioctl(fd, request, at) }) } else { None };
        // SAFETY: as above.
        lulls.unwrap_or_else(|| done(unsafe { libc::ioctl(fd, request, at) })).map(|()| bytes)
    }

    pub fn setsockopt(self, fd: c_int, level: c_int, name: c_int, value: &[u8]) -> Result<()> {
        if self.is_lulls(fd) {
            return call(|| socket::setsockopt(fd, level, name, value));
        }
        // SAFETY: a value, and its size.
        done(unsafe { libc::setsockopt(fd, level, name, value.as_ptr().cast(), value.len() as socklen_t) })
    }

    pub fn getsockopt(self, fd: c_int, level: c_int, name: c_int, room: usize) -> Result<Vec<u8>> {
        let mut value = vec![0; room];
        let lulls = if self.is_lulls(fd) { section(|| socket::getsockopt(fd, level, name, &mut value)) } else { None };
        let length = lulls.unwrap_or_else(|| {
            let mut length = room as socklen_t;
            // SAFETY: room for a value, and its size.
            done(unsafe { libc::getsockopt(fd, level, name, value.as_mut_ptr().cast(), &raw mut length) })?;
            Ok(length as usize)
        })?;
        value.truncate(length);
        Ok(value)
    }

    /// `getsockname`, or `getpeername`.
    pub fn name(self, fd: c_int, of_peer: bool) -> Result<Vec<u8>> {
        let lulls = if !self.is_lulls(fd) {
            None
        } else if of_peer {
            section(|| socket::getpeername(fd))
        } else {
            section(|| socket::getsockname(fd))
        };
        if let Some(name) = lulls {
            return name.map(|name| name.to_vec());
        }
        let (mut bytes, mut length) = ([0_u8; 128], 128);
        let call = if of_peer { libc::getpeername } else { libc::getsockname };
        // SAFETY: room for an address, and its size.
        done(unsafe { call(fd, bytes.as_mut_ptr().cast(), &raw mut length) })?;
        Ok(bytes[..length as usize].to_vec())
    }

    pub fn epoll_create(self) -> Result<c_int> {
        match self {
            Machine::Lull => call(|| epoll::epoll_create(0)),
            // SAFETY: numbers only.
            Machine::Kernel => number(unsafe { libc::epoll_create1(0) }),
        }
    }

    pub fn epoll_ctl(self, epfd: c_int, what: c_int, fd: c_int, event: Option<epoll_event>) -> Result<()> {
        if self.is_lulls(epfd) || self.is_lulls(fd) {
            return call(|| epoll::epoll_ctl(epfd, what, fd, event));
        }
        let mut event = event;
        let event = event.as_mut().map_or(std::ptr::null_mut(), |event| &raw mut *event);
        // SAFETY: an event, or none.
        done(unsafe { libc::epoll_ctl(epfd, what, fd, event) })
    }

    /// `epoll_wait`: data and what is ready.
    pub fn epoll_wait(self, epfd: c_int, max: usize, timeout_ms: c_int) -> Result<Vec<(u64, u32)>> {
        let mut events = vec![MaybeUninit::<epoll_event>::uninit(); max];
        let count = if self.is_lulls(epfd) {
            // Rule "look": while members of lull's are ready, the kernel's are looked for once in 50 us. A thread that slept here
            // would be taken for one that sleeps inside the call.
            let start = Instant::now();
            while start.elapsed() < Duration::from_micros(60) {
                std::hint::spin_loop();
            }
            call(|| epoll::epoll_wait(epfd, &mut events, timeout(timeout_ms)))?
        } else {
            // SAFETY: room for as many events as the kernel is told.
            checked(unsafe { libc::epoll_wait(epfd, events.as_mut_ptr().cast(), max as c_int, timeout_ms) } as isize)?
        };
        // SAFETY: `count` of them were written.
        let event = |event: &MaybeUninit<epoll_event>| unsafe { event.assume_init() };
        Ok(events[..count].iter().map(event).map(|event| (event.u64, event.events)).collect())
    }

    pub fn poll(self, fds: &mut [pollfd], timeout_ms: c_int) -> Result<usize> {
        if self == Machine::Lull && poll::concerns(fds) {
            return call(|| poll::poll(fds, timeout(timeout_ms)));
        }
        // SAFETY: as many structs as the kernel is told.
        checked(unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, timeout_ms) } as isize)
    }

    /// `select`: a number is in the sets for reading, writing and exceptions by POLLIN, POLLOUT and POLLPRI. What comes back are the
    /// sets that it is in afterwards.
    pub fn select(self, members: &[(c_int, i16)], timeout_ms: c_int) -> Result<Vec<i16>> {
        const BITS: [i16; 3] = [libc::POLLIN, libc::POLLOUT, libc::POLLPRI];
        let mut words = BITS.map(|_| [0_u64; libc::FD_SETSIZE / WORD_BITS]);
        let count = members.iter().map(|(fd, _)| *fd as usize + 1).max().unwrap_or(0);
        if count > libc::FD_SETSIZE {
            return Err(Errno::new(libc::EBADF));
        }
        for (fd, events) in members {
            for (set, _) in words.iter_mut().zip(BITS).filter(|(_, bit)| events & bit != 0) {
                set[*fd as usize / WORD_BITS] |= 1 << (*fd as usize % WORD_BITS);
            }
        }
        let mut sets = words.each_mut().map(|set| Some(&mut set[..]));
        if self == Machine::Lull && poll::concerns_sets(count, &sets) {
            call(|| poll::select(count, &mut sets, timeout(timeout_ms)))?;
        } else {
            let mut time = libc::timeval { tv_sec: 0, tv_usec: i64::from(timeout_ms) * 1000 };
            let time = if timeout_ms < 0 { std::ptr::null_mut() } else { &raw mut time };
            let [read, write, except] = sets.map(|set| set.map_or(std::ptr::null_mut(), |set| set.as_mut_ptr().cast()));
            // SAFETY: sets of FD_SETSIZE bits, and a time or none.
            number(unsafe { libc::select(count as c_int, read, write, except, time) })?;
        }
        let is_in = |set: usize, fd: c_int| words[set][fd as usize / WORD_BITS] >> (fd as usize % WORD_BITS) & 1 != 0;
        let told = |(fd, _): &(c_int, i16)| (0..3).filter(|set| is_in(*set, *fd)).fold(0, |all, set| all | BITS[set]);
        Ok(members.iter().map(told).collect())
    }

    /// `recvmmsg`: how much each message brought.
    pub fn recv_many(
        self,
        fd: c_int,
        buffers: &mut [Vec<u8>],
        flags: c_int,
        timeout: Option<&mut timespec>,
    ) -> Result<Vec<usize>> {
        let mut parts: Vec<iovec> = buffers.iter_mut().map(|buffer| part(buffer.as_mut_ptr(), buffer.len())).collect();
        let mut messages = messages(&mut parts);
        let (at, count) = (messages.as_mut_ptr(), messages.len() as c_uint);
        let failure = Cell::new(None);
        let done = if self.is_lulls(fd) {
            // SAFETY: as many messages as it is told, with room for what they bring.
            unsafe {
                socket::recvmmsg(fd, at, count, flags, timeout, |message, flags, is_first| {
                    told(socket::recvmsg_of_several(fd, message, flags, is_first), &failure)
                })
            }
        } else {
            // SAFETY: as above.
            let timeout = timeout.map_or(null_mut(), |timeout| &raw mut *timeout);
            // SAFETY: as above, and a time or none.
            told(checked(unsafe { libc::recvmmsg(fd, at, count, flags, timeout) } as isize), &failure) as c_int
        };
        lengths(&messages, done, &failure)
    }

    /// `sendmmsg`: how much of each message was taken.
    pub fn send_many(self, fd: c_int, data: &[Vec<u8>], flags: c_int) -> Result<Vec<usize>> {
        let mut parts: Vec<iovec> = data.iter().map(|data| part(data.as_ptr().cast_mut(), data.len())).collect();
        let mut messages = messages(&mut parts);
        let (at, count) = (messages.as_mut_ptr(), messages.len() as c_uint);
        let failure = Cell::new(None);
        // SAFETY: as the call.
        let done = if self.is_lulls(fd) && unsafe { socket::may_be_sent_in_turn(fd, &messages, flags) } {
            // SAFETY: as many messages as it is told.
            told(checked(unsafe { socket::send_in_turn(fd, at, count, flags) } as isize), &failure) as c_int
        } else if self.is_lulls(fd) {
            // SAFETY: as above.
            unsafe {
                socket::sendmmsg(fd, at, count, |message| {
                    told(call(|| socket::sendmsg(fd, &*message, flags)), &failure)
                })
            }
        } else {
            // SAFETY: as above.
            told(checked(unsafe { libc::sendmmsg(fd, at, count, flags) } as isize), &failure) as c_int
        };
        lengths(&messages, done, &failure)
    }

    pub fn eventfd(self) -> Result<c_int> {
        // SAFETY: numbers only.
        self.given_out(unsafe { libc::eventfd(0, libc::EFD_NONBLOCK) })
    }

    /// Closes these numbers in a child, which then ends; whether it could.
    pub fn fork_that_closes(self, fds: &[c_int]) -> bool {
        let begun = || super::BEGUN.load(Ordering::SeqCst);
        let (begun_before, threads_before) = (begun(), threads());
        let could = self.fork_and_wait(fds);
        // What lull keeps open for a child it lets go of in a thread that ends when it has heard of the child's end. A test that begins
        // meanwhile is a thread, too, which waits for this one.
        world::until("what was the child's is closed", || threads() <= threads_before + begun() - begun_before);
        could
    }

    fn fork_and_wait(self, fds: &[c_int]) -> bool {
        // SAFETY: the child makes calls that need no lock, and ends without running anything of its parent's.
        unsafe {
            let child = libc::fork();
            if child == 0 {
                let closed = fds.iter().all(|&fd| match self {
                    Machine::Lull => files::close(fd).is_ok(),
                    Machine::Kernel => libc::close(fd) == 0,
                });
                libc::_exit(c_int::from(!closed));
            }
            let mut status = -1;
            libc::waitpid(child, &raw mut status, 0) == child && status == 0
        }
    }

    /// A peer that begins to connect to a listener of the program's at `port`.
    pub fn peer_connect(self, port: u16, in_kernel: bool) -> Peer {
        match self {
            Machine::Lull if !in_kernel => Peer::lulls(self.own(), port),
            _ => Peer::kernels(KERNELS_PEER, Ipv4Addr::LOCALHOST, port),
        }
    }

    pub fn peer_listen(self, in_kernel: bool) -> PeerListener {
        match self {
            Machine::Lull if !in_kernel => PeerListener::lulls(self.peer(false)),
            _ => PeerListener::kernels(KERNELS_PEER),
        }
    }

    /// Whether every frame that was sent has been dealt with. The kernel's loopback delivers before a call returns.
    pub fn is_quiet(self) -> bool {
        let running = match self {
            Machine::Kernel => None,
            Machine::Lull => lull_posix::engine::running(),
        };
        let Some(engine) = running else { return true };
        let frames = |network: &lull_net::Network| {
            let counters = network.stack_counters();
            counters.iter().fold((0, 0), |all, one| (all.0 + one.tx_frames, all.1 + one.rx_frames))
        };
        let (peers_before, own) = (frames(world::peers()), frames(&engine.network));
        peers_before == (own.1, own.0) && peers_before == frames(world::peers())
    }
}

fn pointer(at: Option<&mut i64>) -> *mut i64 {
    at.map_or(null_mut(), |at| &raw mut *at)
}

fn part(at: *mut u8, length: usize) -> iovec {
    iovec { iov_base: at.cast(), iov_len: length }
}

/// A message of each part.
fn messages(parts: &mut [iovec]) -> Vec<mmsghdr> {
    let message = |part: &mut iovec| {
        // SAFETY: plain data.
        let mut message: mmsghdr = unsafe { std::mem::zeroed() };
        (message.msg_hdr.msg_iov, message.msg_hdr.msg_iovlen) = (part, 1);
        message
    };
    parts.iter_mut().map(message).collect()
}

/// As C has it: -1 for a failure, which is kept.
fn told(result: Result<usize>, failure: &Cell<Option<Errno>>) -> isize {
    result.map_or_else(
        |error| {
            failure.set(Some(error));
            -1
        },
        |count| count as isize,
    )
}

fn lengths(messages: &[mmsghdr], done: c_int, failure: &Cell<Option<Errno>>) -> Result<Vec<usize>> {
    match usize::try_from(done) {
        Ok(done) => Ok(messages[..done].iter().map(|message| message.msg_len as usize).collect()),
        Err(_) => Err(failure.get().unwrap_or_else(Errno::last)),
    }
}

/// How many threads this process has.
fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").unwrap().count()
}

fn timeout(ms: c_int) -> Option<Duration> {
    u64::try_from(ms).ok().map(Duration::from_millis)
}
