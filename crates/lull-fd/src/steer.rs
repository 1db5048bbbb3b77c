//! Programs that choose among the listeners of a reuseport group, for a program on the kernel plane.
//!
//! The number of listeners is read from the table that `/proc/thread-self/net/tcp` shows, in which listeners come
//! first. The members of a group may be in several processes, and each of them attaches the program anew when it begins
//! to listen.

use core::ffi::CStr;
use core::sync::atomic::{AtomicU8, AtomicU16, AtomicU64, Ordering::Relaxed};

use libc::c_int;
use lull_bpf::{INSTRUCTIONS_MAX, Instruction, steer};

use crate::decimal::decimal;
use crate::linux;

/// The kinds of choice, of which one is stored in a byte.
const NONE: u8 = 0;
const QUEUE: u8 = 1;
const CPU: u8 = 2;
const PROGRAM: u8 = 3;

/// The choice among listeners. It is read once at load, and afterwards can only be turned off.
#[derive(Debug)]
pub struct Steering {
    kind: AtomicU8,
    length: AtomicU16,
    /// The program's instructions, in the kernel's layout.
    program: [AtomicU64; INSTRUCTIONS_MAX],
}

impl Default for Steering {
    fn default() -> Steering {
        Steering::new()
    }
}

impl Steering {
    /// The choice when nothing is asked for.
    pub const fn new() -> Steering {
        let program = [const { AtomicU64::new(0) }; INSTRUCTIONS_MAX];
        Steering { kind: AtomicU8::new(NONE), length: AtomicU16::new(0), program }
    }

    /// Reads `queue`, `cpu`, or a program as `tcpdump -ddd` prints it. Returns `None` if the text is none of these.
    pub(crate) fn read(&self, text: &[u8]) -> Option<()> {
        let kind = match text {
            b"queue" => QUEUE,
            b"cpu" => CPU,
            program => self.read_program(program).map(|()| PROGRAM)?,
        };
        self.kind.store(kind, Relaxed);
        Some(())
    }

    fn read_program(&self, text: &[u8]) -> Option<()> {
        let mut lines = text.split(|byte| matches!(byte, b',' | b'\n')).filter(|line| !line.is_empty());
        let length: u16 = number(lines.next()?)?;
        let mut taken = 0;
        for (line, slot) in lines.by_ref().zip(&self.program) {
            let mut numbers = line.split(|byte| *byte == b' ').filter(|it| !it.is_empty());
            let mut next = || numbers.next();
            let it =
                Instruction { code: number(next()?)?, jt: number(next()?)?, jf: number(next()?)?, k: number(next()?)? };
            slot.store(bytes(it), Relaxed);
            taken += 1;
        }
        if length == 0 || taken != length || lines.next().is_some() {
            return None;
        }
        self.length.store(length, Relaxed);
        Some(())
    }

    /// Whether a choice is asked for.
    #[inline]
    pub fn is_on(&self) -> bool {
        self.kind.load(Relaxed) != NONE
    }

    /// From now on listeners are left alone.
    pub fn off(&self) {
        self.kind.store(NONE, Relaxed);
    }

    /// Gives the group of a listening socket its program.
    ///
    /// # Errors
    /// What was tried, and the kernel's error.
    pub(crate) fn attach(&self, fd: c_int) -> Result<(), (&'static str, c_int)> {
        let kind = self.kind.load(Relaxed);
        if kind == PROGRAM {
            let program = self.program.as_ptr().cast::<Instruction>();
            // SAFETY: as many places were filled, and an atomic word has the layout of a word.
            let program = unsafe { core::slice::from_raw_parts(program, usize::from(self.length.load(Relaxed))) };
            return linux::attach_reuseport(fd, program).map_err(|error| ("attach a program", error));
        }
        let listeners = count(fd).map_err(|error| ("count its listeners", error))?;
        let attached = match kind {
            QUEUE => linux::attach_reuseport(fd, &steer::queue_instructions(listeners)),
            CPU => linux::attach_reuseport(fd, &steer::cpu_instructions(listeners)),
            _ => Ok(()),
        };
        attached.map_err(|error| ("attach a program", error))
    }
}

/// An instruction in the kernel's layout.
fn bytes(it: Instruction) -> u64 {
    let ([c0, c1], [k0, k1, k2, k3]) = (it.code.to_ne_bytes(), it.k.to_ne_bytes());
    u64::from_ne_bytes([c0, c1, it.jt, it.jf, k0, k1, k2, k3])
}

fn number<T: TryFrom<u64>>(digits: &[u8]) -> Option<T> {
    T::try_from(decimal(digits)?).ok()
}

/// The text of a local address in the table, such as `0100007F:1F90`.
struct Text {
    bytes: [u8; 40],
    length: usize,
}

impl Text {
    fn of(ip: &[u8], port: u16) -> Text {
        let mut text = Text { bytes: [0; 40], length: 0 };
        for word in ip.as_chunks::<4>().0 {
            text.hex(u32::from_ne_bytes(*word), 8);
        }
        text.push(b':');
        text.hex(u32::from(port), 4);
        text
    }

    fn hex(&mut self, value: u32, digits: u32) {
        for at in (0..digits).rev() {
            let digit = (value >> (4 * at) & 0xf) as u8;
            self.push(if digit < 10 { b'0' + digit } else { b'A' + digit - 10 });
        }
    }

    fn push(&mut self, byte: u8) {
        if let Some(place) = self.bytes.get_mut(self.length) {
            *place = byte;
            self.length += 1;
        }
    }

    fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or_default()
    }
}

/// How many sockets listen on the address of this one, this one included.
fn count(fd: c_int) -> Result<u32, c_int> {
    let (table, text): (&CStr, Text) = match linux::local_address(fd)? {
        linux::Local::V4(ip, port) => (c"/proc/thread-self/net/tcp", Text::of(&ip, port)),
        linux::Local::V6(ip, port) => (c"/proc/thread-self/net/tcp6", Text::of(&ip, port)),
    };
    let mut listeners = 0;
    let mut goes_on = true;
    let mut lines = Lines::default();
    linux::read_file(table, |bytes| {
        lines.feed(bytes, |line| match is_listener(line, text.as_bytes()) {
            Some(it) => listeners += u32::from(it),
            None => goes_on = false,
        });
        goes_on
    })?;
    // This socket itself listens there.
    Ok(listeners.max(1))
}

/// Whether a line of the table is that of a listener on the address; `None` where connections begin.
fn is_listener(line: &[u8], address: &[u8]) -> Option<bool> {
    let mut fields = line.split(|byte| *byte == b' ').filter(|field| !field.is_empty());
    let (local, state) = (fields.nth(1).unwrap_or_default(), fields.nth(1).unwrap_or_default());
    match state {
        b"0A" => Some(local == address),
        // This line is the header.
        b"st" | b"" => Some(false),
        _ => None,
    }
}

/// Cuts what is read into lines. Only the beginning of a line is kept.
#[derive(Default)]
struct Lines {
    line: LineBytes,
    length: usize,
}

/// This is longer than the first four fields together.
struct LineBytes([u8; 128]);

impl Default for LineBytes {
    fn default() -> LineBytes {
        LineBytes([0; 128])
    }
}

impl Lines {
    fn feed(&mut self, bytes: &[u8], mut line: impl FnMut(&[u8])) {
        for byte in bytes {
            if *byte == b'\n' {
                line(self.line.0.get(..self.length).unwrap_or_default());
                self.length = 0;
            } else if let Some(place) = self.line.0.get_mut(self.length) {
                *place = *byte;
                self.length += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{SocketAddr, TcpListener};
    use std::os::fd::{AsRawFd, FromRawFd};

    #[test]
    fn a_program_is_read_and_what_is_none_is_not() {
        let steering = Steering::new();
        assert!(!steering.is_on());
        for bad in [
            "",
            "queues",
            "1",
            "2,22 0 0 0",
            "1,22 0 0 0,6 0 0 0",
            "1,22 0 0",
            "1,22 0 256 0",
            "0",
            "1,6 0 0 4294967296",
        ] {
            assert!(steering.read(bad.as_bytes()).is_none(), "{bad}");
            assert!(!steering.is_on(), "{bad}");
        }
        assert!(steering.read(b"2,32 0 0 4294963224,22 0 0 0").is_some() && steering.is_on());
        assert_eq!(steering.length.load(Relaxed), 2);
        let second = Instruction { code: 22, jt: 0, jf: 0, k: 0 };
        assert_eq!(steering.program[1].load(Relaxed), bytes(second));
        steering.off();
        assert!(!steering.is_on());
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn addresses_stand_in_the_table_as_the_kernel_prints_them() {
        assert_eq!(Text::of(&[127, 0, 0, 1], 8080).as_bytes(), b"0100007F:1F90");
        let v6 = std::net::Ipv6Addr::LOCALHOST.octets();
        assert_eq!(Text::of(&v6, 80).as_bytes(), b"00000000000000000000000001000000:0050");
    }

    /// A socket that shares its address and listens, or `None` if it cannot be had.
    fn sharing(domain: c_int, at: Option<SocketAddr>) -> Option<TcpListener> {
        // SAFETY: the descriptor is new, the option has the size of an int, and the address outlives the call.
        unsafe {
            let fd = libc::socket(domain, libc::SOCK_STREAM, 0);
            let listener = TcpListener::from_raw_fd(fd);
            let on: c_int = 1;
            let size = size_of::<c_int>() as libc::socklen_t;
            assert_eq!(libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_REUSEPORT, (&raw const on).cast(), size), 0);
            let port = at.map_or(0, |at| at.port()).to_be();
            let bound = if domain == libc::AF_INET {
                let mut address: libc::sockaddr_in = core::mem::zeroed();
                address.sin_family = domain as libc::sa_family_t;
                address.sin_addr.s_addr = u32::from_ne_bytes([127, 0, 0, 1]);
                address.sin_port = port;
                libc::bind(fd, (&raw const address).cast(), size_of::<libc::sockaddr_in>() as libc::socklen_t)
            } else {
                let mut address: libc::sockaddr_in6 = core::mem::zeroed();
                address.sin6_family = domain as libc::sa_family_t;
                address.sin6_addr.s6_addr[15] = 1;
                address.sin6_port = port;
                libc::bind(fd, (&raw const address).cast(), size_of::<libc::sockaddr_in6>() as libc::socklen_t)
            };
            (bound == 0 && libc::listen(fd, 8) == 0).then_some(listener)
        }
    }

    #[test]
    fn listeners_of_an_address_are_counted_and_steered() {
        for domain in [libc::AF_INET, libc::AF_INET6] {
            let Some(first) = sharing(domain, None) else {
                println!("SKIP: there is no IPv6");
                continue;
            };
            let at = first.local_addr().unwrap();
            assert_eq!(count(first.as_raw_fd()), Ok(1));
            let others: Vec<_> = (0..3).map(|_| sharing(domain, Some(at)).unwrap()).collect();
            assert_eq!(count(others[1].as_raw_fd()), Ok(4));
            let _connections: Vec<_> = (0..5).map(|_| std::net::TcpStream::connect(at).unwrap()).collect();
            assert_eq!(count(first.as_raw_fd()), Ok(4), "connections are none");
            let steering = Steering::new();
            steering.read(b"1,6 0 0 2").unwrap();
            assert_eq!(steering.attach(first.as_raw_fd()), Ok(()));
            let _steered = std::net::TcpStream::connect(at).unwrap();
            others[1].set_nonblocking(true).unwrap();
            while others[1].accept().is_err() {
                std::thread::yield_now();
            }
        }
        assert_eq!(Steering::new().attach(0), Err(("count its listeners", libc::ENOTSOCK)));
    }
}
