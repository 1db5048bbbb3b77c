//! One call of the program's, made by either machine.

use std::fmt;
use std::io::{IoSlice, IoSliceMut};

use libc::{c_int, c_ulong, epoll_event, pollfd};
use lull_posix::Errno;

use super::ancillary::Piece;
use super::machine::{Machine, Told};
use super::program::{Timeout, Way};

/// A number of the program's, by the order in which it came.
pub type Slot = usize;

/// A call, as both machines make it.
#[derive(Clone, PartialEq)]
pub enum Call {
    Socket {
        domain: c_int,
        flags: c_int,
    },
    /// `socket`, of datagrams.
    Datagram {
        domain: c_int,
        flags: c_int,
    },
    Bind {
        slot: Slot,
        at: String,
    },
    Listen {
        slot: Slot,
        backlog: c_int,
    },
    Connect {
        slot: Slot,
        to: String,
    },
    Accept {
        slot: Slot,
        flags: c_int,
    },
    Recv {
        slot: Slot,
        sizes: Vec<usize>,
        flags: Option<c_int>,
    },
    Send {
        slot: Slot,
        data: Vec<Vec<u8>>,
        flags: Option<c_int>,
    },
    /// `connect` to AF_UNSPEC.
    Disconnect {
        slot: Slot,
    },
    /// `recvmsg`, with who sent it and room for ancillary data.
    RecvFrom {
        slot: Slot,
        sizes: Vec<usize>,
        room: usize,
        flags: c_int,
    },
    /// `sendmsg` to an address, with ancillary data.
    SendTo {
        slot: Slot,
        to: String,
        data: Vec<Vec<u8>>,
        control: Vec<Piece>,
        flags: c_int,
    },
    /// FIONREAD and its kin.
    Queue {
        slot: Slot,
        request: c_ulong,
    },
    MoveOut {
        slot: Slot,
        size: usize,
        way: Way,
    },
    MoveIn {
        slot: Slot,
        data: Vec<u8>,
        way: Way,
    },
    RecvMany {
        slot: Slot,
        sizes: Vec<usize>,
        flags: c_int,
        timeout: Option<Timeout>,
    },
    SendMany {
        slot: Slot,
        data: Vec<Vec<u8>>,
        flags: c_int,
    },
    Shutdown {
        slot: Slot,
        how: c_int,
    },
    Close {
        slot: Slot,
    },
    Dup {
        slot: Slot,
    },
    Dup2 {
        slot: Slot,
        to: Slot,
    },
    GetFlags {
        slot: Slot,
    },
    SetFlags {
        slot: Slot,
        flags: c_int,
    },
    Fionbio {
        slot: Slot,
        on: bool,
    },
    SetOption {
        slot: Slot,
        level: c_int,
        name: c_int,
        value: Vec<u8>,
    },
    GetOption {
        slot: Slot,
        level: c_int,
        name: c_int,
        room: usize,
    },
    Name {
        slot: Slot,
        of_peer: bool,
    },
    EpollCreate,
    EpollCtl {
        slot: Slot,
        what: c_int,
        member: Slot,
        events: u32,
    },
    EpollWait {
        slot: Slot,
        max: usize,
        timeout_ms: c_int,
    },
    Poll {
        members: Vec<(Slot, i16)>,
        timeout_ms: c_int,
    },
    /// As `Poll`; which sets a number is in is told by the events.
    Select {
        members: Vec<(Slot, i16)>,
        timeout_ms: c_int,
    },
    Eventfd,
    Fork {
        closes: Vec<Slot>,
    },
}

impl fmt::Debug for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let flags_or_none = |flags: &Option<c_int>| flags.map_or("".to_owned(), |flags| format!(", {flags:#x}"));
        match self {
            Call::Socket { domain, flags } => write!(f, "socket({domain}, {flags:#x})"),
            Call::Datagram { domain, flags } => write!(f, "socket({domain}, SOCK_DGRAM, {flags:#x})"),
            Call::Disconnect { slot } => write!(f, "connect(s{slot}, AF_UNSPEC)"),
            Call::RecvFrom { slot, sizes, room, flags } => {
                write!(f, "recvmsg(s{slot}, {sizes:?}, {flags:#x}), with a name and {room} bytes for ancillary data")
            }
            Call::SendTo { slot, to, data, control, flags } => {
                let sizes: Vec<usize> = data.iter().map(Vec::len).collect();
                write!(f, "sendmsg(s{slot}, {sizes:?}, {flags:#x}) to {to}, with {control:?}")
            }
            Call::Queue { slot, request } => write!(f, "ioctl(s{slot}, {request:#x})"),
            Call::MoveOut { slot, size, way } => write!(f, "move(s{slot}, a pipe, {size}) by {way:?}"),
            Call::MoveIn { slot, data, way } => write!(f, "move(a pipe or a file, s{slot}, {}) by {way:?}", data.len()),
            Call::Bind { slot, at } => write!(f, "bind(s{slot}, {at})"),
            Call::Listen { slot, backlog } => write!(f, "listen(s{slot}, {backlog})"),
            Call::Connect { slot, to } => write!(f, "connect(s{slot}, {to})"),
            Call::Accept { slot, flags } => write!(f, "accept4(s{slot}, {flags:#x})"),
            Call::Recv { slot, sizes, flags } => write!(f, "recv(s{slot}, {sizes:?}{})", flags_or_none(flags)),
            Call::Send { slot, data, flags } => {
                let sizes: Vec<usize> = data.iter().map(Vec::len).collect();
                write!(f, "send(s{slot}, {sizes:?}{})", flags_or_none(flags))
            }
            Call::RecvMany { slot, sizes, flags, timeout } => {
                write!(f, "recvmmsg(s{slot}, {sizes:?}, {flags:#x}, {timeout:?})")
            }
            Call::SendMany { slot, data, flags } => {
                let sizes: Vec<usize> = data.iter().map(Vec::len).collect();
                write!(f, "sendmmsg(s{slot}, {sizes:?}, {flags:#x})")
            }
            Call::Shutdown { slot, how } => write!(f, "shutdown(s{slot}, {how})"),
            Call::Close { slot } => write!(f, "close(s{slot})"),
            Call::Dup { slot } => write!(f, "dup(s{slot})"),
            Call::Dup2 { slot, to } => write!(f, "dup2(s{slot}, s{to})"),
            Call::GetFlags { slot } => write!(f, "fcntl(s{slot}, F_GETFL)"),
            Call::SetFlags { slot, flags } => write!(f, "fcntl(s{slot}, F_SETFL, {flags:#x})"),
            Call::Fionbio { slot, on } => write!(f, "ioctl(s{slot}, FIONBIO, {on})"),
            Call::SetOption { slot, level, name, value } => {
                write!(f, "setsockopt(s{slot}, {level}, {name}, {value:?})")
            }
            Call::GetOption { slot, level, name, room } => write!(f, "getsockopt(s{slot}, {level}, {name}, {room})"),
            Call::Name { slot, of_peer: false } => write!(f, "getsockname(s{slot})"),
            Call::Name { slot, of_peer: true } => write!(f, "getpeername(s{slot})"),
            Call::EpollCreate => write!(f, "epoll_create1()"),
            Call::EpollCtl { slot, what, member, events } => {
                write!(f, "epoll_ctl(s{slot}, {what}, s{member}, {events:#x})")
            }
            Call::EpollWait { slot, max, timeout_ms } => write!(f, "epoll_wait(s{slot}, {max}, {timeout_ms})"),
            Call::Poll { members, timeout_ms } | Call::Select { members, timeout_ms } => {
                let name = if matches!(self, Call::Poll { .. }) { "poll" } else { "select" };
                let members: Vec<String> =
                    members.iter().map(|(slot, events)| format!("s{slot}: {events:#x}")).collect();
                write!(f, "{name}({members:?}, {timeout_ms})")
            }
            Call::Eventfd => write!(f, "eventfd()"),
            Call::Fork { closes } => write!(f, "fork(), the child closes {closes:?} and ends"),
        }
    }
}

/// What a call returned.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    Failed(Errno),
    Done,
    /// A new number, and for an accepted connection its peer's address.
    Number(c_int, Vec<u8>),
    Count(usize),
    Data(Vec<u8>),
    /// The bytes that were written, and what is told of them.
    Message(Vec<u8>, Told),
    /// How much, and where the offset and the file are then.
    Moved(usize, [i64; 2]),
    Flags(c_int),
    Name(Vec<u8>),
    Value(Vec<u8>),
    Events(Vec<(u64, u32)>),
    Ready(Vec<i16>),
    /// What each message brought.
    Messages(Vec<Vec<u8>>),
    Lengths(Vec<usize>),
    /// Whether the time is what it was.
    Timed(bool, Box<Outcome>),
    Child(bool),
}

/// A call with this machine's numbers and addresses.
pub struct Given {
    pub call: Call,
    /// By slot.
    pub fds: Vec<c_int>,
    /// What `bind` and `connect` are given.
    pub address: Vec<u8>,
    /// The ancillary data that `sendmsg` is given.
    pub control: Vec<u8>,
}

impl Given {
    /// Makes the call.
    pub fn perform(&self, machine: Machine) -> Outcome {
        self.try_perform(machine).unwrap_or_else(Outcome::Failed)
    }

    fn try_perform(&self, machine: Machine) -> super::machine::Result<Outcome> {
        let fd = |slot: &Slot| self.fds[*slot];
        let new = |fd: c_int| Outcome::Number(fd, Vec::new());
        Ok(match &self.call {
            Call::Socket { domain, flags } => new(machine.socket(*domain, libc::SOCK_STREAM | flags)?),
            Call::Datagram { domain, flags } => new(machine.socket(*domain, libc::SOCK_DGRAM | flags)?),
            Call::Disconnect { slot } => done(machine.connect(fd(slot), &self.address))?,
            Call::RecvFrom { slot, sizes, room, flags } => {
                let mut buffers: Vec<Vec<u8>> = sizes.iter().map(|size| vec![0; *size]).collect();
                let mut slices: Vec<IoSliceMut<'_>> =
                    buffers.iter_mut().map(|buffer| IoSliceMut::new(buffer)).collect();
                let told = machine.recv_message(fd(slot), &mut slices, *room, *flags)?;
                let mut data = buffers.concat();
                data.truncate(told.bytes);
                Outcome::Message(data, told)
            }
            Call::SendTo { slot, data, flags, .. } => {
                let slices: Vec<IoSlice<'_>> = data.iter().map(|part| IoSlice::new(part)).collect();
                Outcome::Count(machine.send_message(fd(slot), &slices, &self.address, &self.control, *flags)?)
            }
            Call::Queue { slot, request } => Outcome::Count(machine.queue(fd(slot), *request)?.max(0) as usize),
            Call::MoveOut { slot, size, way } => Outcome::Data(machine.move_out(fd(slot), *size, *way)?),
            Call::MoveIn { slot, data, way } => {
                let (count, places) = machine.move_in(fd(slot), data, *way)?;
                Outcome::Moved(count, places)
            }
            Call::Bind { slot, .. } => done(machine.bind(fd(slot), &self.address))?,
            Call::Listen { slot, backlog } => done(machine.listen(fd(slot), *backlog))?,
            Call::Connect { slot, .. } => done(machine.connect(fd(slot), &self.address))?,
            Call::Accept { slot, flags } => {
                let (fd, peer) = machine.accept(fd(slot), *flags)?;
                Outcome::Number(fd, peer)
            }
            Call::Recv { slot, sizes, flags } => {
                let mut buffers: Vec<Vec<u8>> = sizes.iter().map(|size| vec![0; *size]).collect();
                let mut slices: Vec<IoSliceMut<'_>> =
                    buffers.iter_mut().map(|buffer| IoSliceMut::new(buffer)).collect();
                let count = machine.recv(fd(slot), &mut slices, *flags)?;
                if flags.unwrap_or(0) & libc::MSG_TRUNC != 0 {
                    return Ok(Outcome::Count(count));
                }
                let mut data = buffers.concat();
                data.truncate(count);
                Outcome::Data(data)
            }
            Call::Send { slot, data, flags } => {
                let slices: Vec<IoSlice<'_>> = data.iter().map(|part| IoSlice::new(part)).collect();
                Outcome::Count(machine.send(fd(slot), &slices, *flags)?)
            }
            Call::RecvMany { slot, sizes, flags, timeout } => {
                let mut buffers: Vec<Vec<u8>> = sizes.iter().map(|size| vec![0; *size]).collect();
                let mut time = timeout.map(|(tv_sec, tv_nsec)| libc::timespec { tv_sec, tv_nsec });
                let lengths = machine.recv_many(fd(slot), &mut buffers, *flags, time.as_mut());
                let outcome = match lengths {
                    Err(error) => Outcome::Failed(error),
                    Ok(lengths) if flags & libc::MSG_TRUNC != 0 => Outcome::Lengths(lengths),
                    Ok(lengths) => {
                        let brought = buffers.into_iter().zip(lengths).map(|(mut buffer, length)| {
                            buffer.truncate(length);
                            buffer
                        });
                        Outcome::Messages(brought.collect())
                    }
                };
                match time.map(|time| (time.tv_sec, time.tv_nsec)) {
                    None => outcome,
                    left => Outcome::Timed(left == *timeout, Box::new(outcome)),
                }
            }
            Call::SendMany { slot, data, flags } => Outcome::Lengths(machine.send_many(fd(slot), data, *flags)?),
            Call::Shutdown { slot, how } => done(machine.shutdown(fd(slot), *how))?,
            Call::Close { slot } => done(machine.close(fd(slot)))?,
            Call::Dup { slot } => new(machine.dup(fd(slot))?),
            Call::Dup2 { slot, to } => machine.dup2(fd(slot), fd(to)).map(|_| Outcome::Done)?,
            Call::GetFlags { slot } => Outcome::Flags(machine.get_flags(fd(slot))?),
            Call::SetFlags { slot, flags } => done(machine.set_flags(fd(slot), *flags))?,
            Call::Fionbio { slot, on } => done(machine.set_nonblocking_by_ioctl(fd(slot), *on))?,
            Call::SetOption { slot, level, name, value } => done(machine.setsockopt(fd(slot), *level, *name, value))?,
            Call::GetOption { slot, level, name, room } => {
                Outcome::Value(machine.getsockopt(fd(slot), *level, *name, *room)?)
            }
            Call::Name { slot, of_peer } => Outcome::Name(machine.name(fd(slot), *of_peer)?),
            Call::EpollCreate => new(machine.epoll_create()?),
            Call::EpollCtl { slot, what, member, events } => {
                let event = epoll_event { events: *events, u64: *member as u64 };
                done(machine.epoll_ctl(fd(slot), *what, fd(member), Some(event)))?
            }
            Call::EpollWait { slot, max, timeout_ms } => {
                let mut events = machine.epoll_wait(fd(slot), *max, *timeout_ms)?;
                // In which order members are reported is nobody's promise.
                events.sort_unstable();
                Outcome::Events(events)
            }
            Call::Poll { members, timeout_ms } => {
                let member = |(slot, events): &(Slot, i16)| pollfd { fd: fd(slot), events: *events, revents: 0 };
                let mut polled: Vec<pollfd> = members.iter().map(member).collect();
                machine.poll(&mut polled, *timeout_ms)?;
                Outcome::Ready(polled.iter().map(|polled| polled.revents).collect())
            }
            Call::Select { members, timeout_ms } => {
                let members: Vec<(c_int, i16)> = members.iter().map(|(slot, events)| (fd(slot), *events)).collect();
                Outcome::Ready(machine.select(&members, *timeout_ms)?)
            }
            Call::Eventfd => new(machine.eventfd()?),
            Call::Fork { closes } => {
                let fds: Vec<c_int> = closes.iter().map(fd).collect();
                Outcome::Child(machine.fork_that_closes(&fds))
            }
        })
    }
}

fn done(result: super::machine::Result<()>) -> super::machine::Result<Outcome> {
    result.map(|()| Outcome::Done)
}
