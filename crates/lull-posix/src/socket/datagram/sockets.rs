//! A UDP socket of the program's is made of one socket on each queue of the NIC, since a peer's datagrams may come in
//! by any of them.

use std::io::{self, IoSlice, IoSliceMut};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

use lull_net::{
    Network, Part, PathMtuDiscovery, Ready, Received, ReceivedError, SendOptions, Shutdown, Source, UdpOptions,
    UdpSocket,
};

use libc::c_int;
use lull_net::lull_bpf::Chooser;

use crate::errno::WOULD_BLOCK;
use crate::socket::options::egress::Egress;
use crate::socket::options::set_busy;
use crate::{Errno, Result};

pub(crate) struct Sockets {
    /// There is always at least one.
    each: Vec<UdpSocket>,
    /// Whether a panic took the queue of each down, as far as a call has found out. The socket goes on by the others.
    is_down: Box<[AtomicBool]>,
    /// Counts the reads, so that each time another one is asked first.
    turn: AtomicU32,
    /// Where a peek or FIONREAD has found a datagram. The next read takes that one, whatever has come elsewhere
    /// meanwhile.
    shown: AtomicU32,
}

/// The error of a socket whose queue is down.
const DOWN: Errno = Errno::new(libc::ENETDOWN);

/// No datagram was shown.
const NOTHING: u32 = 0;
/// A datagram of the kernel's half was shown. Any other number is one more than a place in `each`.
const KERNELS: u32 = u32::MAX;
/// The kernel is asked first once in so many reads: lull's datagrams may come faster than they are read.
const KERNELS_TURN: u32 = 16;

/// Where a read looks first.
#[derive(Clone, Copy)]
pub(super) struct First {
    /// First in the kernel's half, and then at this place.
    pub(super) is_kernels: bool,
    place: usize,
}

impl Sockets {
    /// A queue that a panic took down has none, unless all queues are down.
    pub(super) fn open(network: &Network, local: SocketAddr, options: UdpOptions) -> Result<Sockets> {
        let mut each = Vec::new();
        for queue in 0..network.napis().len() {
            match UdpSocket::bind_with(network, queue, local, options).map_err(Errno::from) {
                Ok(socket) => {
                    socket.set_nonblocking(true)?;
                    each.push(socket);
                }
                Err(DOWN) => {}
                Err(error) => return Err(error),
            }
        }
        if each.is_empty() {
            return Err(DOWN);
        }
        let is_down = each.iter().map(|_| AtomicBool::new(false)).collect();
        Ok(Sockets { each, is_down, turn: AtomicU32::new(0), shown: AtomicU32::new(NOTHING) })
    }

    /// The socket that stands for all of them in what they have in common.
    pub(crate) fn first(&self) -> &UdpSocket {
        let is_up = |socket: &&UdpSocket| socket.local_addr().map_err(Errno::from) != Err(DOWN);
        self.each.iter().find(is_up).unwrap_or(&self.each[0])
    }

    /// Asks every socket whose queue is up, until one fails.
    fn on_each(&self, mut ask: impl FnMut(&UdpSocket) -> io::Result<()>) -> Result<()> {
        let mut result = Err(DOWN);
        for socket in &self.each {
            match ask(socket).map_err(Errno::from) {
                Err(DOWN) => {}
                Err(error) => return Err(error),
                Ok(()) => result = Ok(()),
            }
        }
        result
    }

    /// Called when a call has found a queue down. Returns whether the socket goes on by other queues; if so, the
    /// program is not told again that this one is down.
    #[cold]
    fn goes_on(&self) -> bool {
        let is_down = |socket: &UdpSocket| socket.local_addr().map_err(Errno::from) == Err(DOWN);
        let down: Vec<bool> = self.each.iter().map(is_down).collect();
        let goes_on = down.contains(&false);
        for (place, socket) in self.each.iter().enumerate().filter(|(place, _)| goes_on && down[*place]) {
            self.is_down[place].store(true, Relaxed);
            socket.waits_for_others();
        }
        goes_on
    }

    pub(super) fn connect(&self, peer: SocketAddr) -> Result<()> {
        // From now on the kernel's half receives nothing.
        self.shown.store(NOTHING, Relaxed);
        self.on_each(|socket| socket.connect(peer))
    }

    pub(super) fn disconnect(&self) -> Result<()> {
        self.on_each(UdpSocket::disconnect)
    }

    /// From now on nothing comes until there is a port again.
    pub(super) fn lose_port(&self) -> Result<()> {
        self.on_each(UdpSocket::lose_port)
    }

    pub(super) fn bind_again(&self, local: SocketAddr, options: UdpOptions) -> Result<()> {
        self.on_each(|socket| socket.bind_again(local, options))
    }

    pub(crate) fn shutdown(&self, how: Shutdown) -> Result<()> {
        // All of them are shut down, and all give the same answer.
        let said = self.each.iter().map(|socket| socket.shutdown(how).map_err(Errno::from));
        said.filter(|said| *said != Err(DOWN)).reduce(Result::and).unwrap_or(Err(DOWN))
    }

    pub(crate) fn ready(&self) -> Ready {
        self.each.iter().fold(Ready::empty(), |all, socket| all | socket.ready())
    }

    /// Whether reading is shut down.
    pub(super) fn reads_no_more(&self) -> bool {
        // A socket whose queue has just gone down is ready for everything.
        let is_up = |socket: &UdpSocket| socket.local_addr().map_err(Errno::from) != Err(DOWN);
        self.each.iter().any(|socket| socket.ready().contains(Ready::RDHUP) && is_up(socket))
    }

    /// The pending error, if there is one (SO_ERROR).
    pub(crate) fn take_error(&self) -> Result<Option<Errno>> {
        let mut none = Err(DOWN);
        for socket in &self.each {
            match socket.take_error().map_err(Errno::from) {
                Err(DOWN) => {}
                Ok(None) => none = Ok(None),
                taken => return Ok(taken?.map(Errno::from)),
            }
        }
        none
    }

    /// The pending error becomes the one of `others`, if there is one.
    pub(super) fn move_errors(&self, others: &Sockets) -> Result<()> {
        self.on_each(|socket| socket.move_error(others.first()))
    }

    /// How many bytes the datagram has that is read next; 0 if there is none, or it is the kernel's.
    pub(crate) fn unread(&self) -> Result<usize> {
        if self.shown.load(Relaxed) == KERNELS {
            return Ok(0);
        }
        let first = self.first_to_read(true);
        for place in self.from(first.place) {
            match self.each[place].unread().map_err(Errno::from) {
                Ok(0) | Err(DOWN) => {}
                unread => {
                    let bytes = unread?;
                    self.shown.store(place as u32 + 1, Relaxed);
                    return Ok(bytes);
                }
            }
        }
        Ok(0)
    }

    /// Where a read or a peek looks first. After a peek it is the same one's turn again.
    #[inline]
    pub(super) fn first_to_read(&self, peek: bool) -> First {
        let turn = if peek { self.turn.load(Relaxed) } else { self.turn.fetch_add(1, Relaxed) };
        match self.shown.load(Relaxed) {
            NOTHING => First { is_kernels: turn.is_multiple_of(KERNELS_TURN), place: turn as usize },
            KERNELS => First { is_kernels: true, place: turn as usize },
            shown => First { is_kernels: false, place: shown as usize - 1 },
        }
    }

    /// The kernel's half has had a datagram.
    pub(super) fn has_read_kernels(&self, peek: bool) {
        self.has_read(KERNELS, peek);
    }

    #[inline]
    fn has_read(&self, shown: u32, peek: bool) {
        let shown = if peek { shown } else { NOTHING };
        if self.shown.load(Relaxed) != shown {
            self.shown.store(shown, Relaxed);
        }
    }

    /// Takes a datagram, from the queue whose turn it is first.
    pub(super) fn receive(&self, first: First, buffers: &mut [IoSliceMut<'_>], peek: bool) -> Result<Received> {
        let (place, received) = self.ask_each(first.place, |socket| socket.recv_msg(buffers, peek));
        let received = received?;
        self.has_read(place as u32 + 1, peek);
        Ok(received)
    }

    /// Says whether several datagrams of one flow may be taken as one from now on (UDP_GRO).
    pub(super) fn set_gro(&self, on: bool) -> Result<()> {
        self.on_each(|socket| socket.set_gro(on))
    }

    /// Says whether what ICMP says of their datagrams is kept from now on, over IPv4 and over IPv6. A socket that is
    /// over is left out.
    pub(super) fn set_receive_errors(&self, v4: bool, v6: bool) {
        self.each.iter().for_each(|socket| drop(socket.set_receive_errors(v4, v6)));
    }

    /// Takes an error that one of them has kept.
    pub(super) fn receive_error(&self, buffers: &mut [IoSliceMut<'_>]) -> Result<ReceivedError> {
        let mut is_one_down = false;
        for socket in &self.each {
            match socket.recv_error(buffers).map_err(Errno::from) {
                Err(DOWN) => is_one_down = true,
                Err(WOULD_BLOCK) => {}
                kept => return kept,
            }
        }
        Err(if is_one_down && !self.goes_on() { DOWN } else { WOULD_BLOCK })
    }

    /// Says how much each may hold unread. A socket that is over holds nothing.
    pub(super) fn set_receive_buffer(&self, bytes: usize) {
        self.each.iter().for_each(|socket| drop(socket.set_receive_buffer(bytes)));
    }

    /// Sends a datagram, or several at once. What goes to one peer goes by one queue, while that has room.
    pub(super) fn send(&self, data: &[IoSlice<'_>], to: Option<SocketAddr>, options: SendOptions) -> Result<usize> {
        let first = to.map_or(0, |to| usize::from(to.port()));
        self.ask_each(first, |socket| socket.send_msg(data, to, options)).1
    }

    /// As the function of the single sockets: whether they busy poll.
    pub(crate) fn busy_loop(&self, nonblocking: bool) -> bool {
        // All of them are set, and not only the first.
        self.each.iter().filter(|socket| socket.busy_loop(nonblocking)).count() > 0
    }

    /// Sets SO_BUSY_POLL or one of its kin, which the kernel's socket has taken.
    pub(super) fn set_busy(&self, name: (c_int, c_int), value: c_int) {
        self.each.iter().for_each(|socket| set_busy!(name, value, socket));
    }

    /// Says how frames of each are to leave.
    pub(super) fn put_egress(&self, egress: Egress) {
        self.each.iter().for_each(|socket| egress.put(socket));
    }

    /// Says what becomes of datagrams that are longer than the path takes.
    pub(super) fn set_path_mtu_discovery(&self, is_v6: bool, how: PathMtuDiscovery) {
        // A socket that is over sends nothing.
        self.each.iter().for_each(|socket| drop(socket.set_path_mtu_discovery(is_v6, how)));
    }

    /// Attaches a program to the group of each, or takes it away.
    pub(super) fn steer(&self, program: Option<&Arc<Chooser>>) -> Result<()> {
        self.on_each(|socket| socket.set_reuseport_program(program.cloned()))
    }

    /// The places of all sockets, beginning with this one.
    fn from(&self, first: usize) -> impl Iterator<Item = usize> {
        let count = self.each.len();
        (0..count).map(move |step| (first % count + step) % count)
    }

    /// Asks one after the other for as long as they would block. Returns which one has answered.
    fn ask_each<R>(&self, first: usize, mut ask: impl FnMut(&UdpSocket) -> io::Result<R>) -> (usize, Result<R>) {
        loop {
            // Sockets that this finds down are not asked again.
            match self.ask_each_that_is_up(first, &mut ask) {
                (_, Err(DOWN)) if self.goes_on() => {}
                answer => return answer,
            }
        }
    }

    fn ask_each_that_is_up<R>(
        &self,
        first: usize,
        ask: &mut impl FnMut(&UdpSocket) -> io::Result<R>,
    ) -> (usize, Result<R>) {
        let is_up = |place: &usize| !self.is_down[*place].load(Relaxed);
        let first = self.from(first).find(is_up).unwrap_or(0);
        // An error may have come in by any queue, and belongs to the socket.
        for (at, socket) in self.each.iter().enumerate() {
            if at != first
                && is_up(&at)
                && socket.ready().contains(Ready::ERR)
                && let Err(error) = socket.move_error(&self.each[first])
            {
                return (at, Err(error.into()));
            }
        }
        let mut result = (first, Err(WOULD_BLOCK));
        for place in self.from(first).filter(is_up) {
            result = (place, ask(&self.each[place]).map_err(Errno::from));
            if !matches!(result.1, Err(WOULD_BLOCK)) {
                break;
            }
        }
        result
    }
}

impl Source for Sockets {
    fn parts(&self) -> Vec<Part> {
        self.each.iter().flat_map(Source::parts).collect()
    }

    fn identity(&self) -> usize {
        // The first one stands for all, and closing goes by it.
        self.each[0].identity()
    }
}
