//! Code that the benches share in which the kernel's sockets are the clients of a lull service over TAP.

use std::error::Error;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::os::fd::OwnedFd;

use lull_host::usable_cores;
use lull_nic::tap::{Tap, TapConfig};
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};

pub type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Enters a network namespace of this process's own and returns one core for the server and one for the clients. If
/// that is not possible, it prints the reason.
pub fn prepare(bench: &str) -> Option<[usize; 2]> {
    // `cargo test --benches` passes arguments too, and a bench that runs for a minute is only for `cargo bench`.
    if !std::env::args().any(|argument| argument == "--bench") {
        println!("run with `cargo bench -p lull-lab --bench {bench}`");
        return None;
    }
    let cores = usable_cores();
    let [serves, asks, ..] = cores[..] else {
        println!("SKIP: it takes two cores, of which one serves and one asks");
        return None;
    };
    if let Err(error) = lull_nic::namespace::enter_private() {
        println!("SKIP: {error}");
        return None;
    }
    Some([serves, asks])
}

/// Makes a TAP. The kernel's end of it has the first address of `ip`'s network.
pub fn tap(name: &str, ip: Ipv4Addr, offloads: bool) -> Result<Tap> {
    let tap = Tap::open(TapConfig { name: name.to_owned(), offloads, ..TapConfig::default() })?;
    let [a, b, c, _] = ip.octets();
    tap.kernel_side(IpAddr::V4(Ipv4Addr::new(a, b, c, 1)), 24)?;
    Ok(tap)
}

/// Opens this number of connections, and an epoll context whose data says which of them is readable.
pub fn connect(address: SocketAddr, connections: usize) -> Result<(Vec<TcpStream>, OwnedFd)> {
    let epoll = epoll::create(CreateFlags::CLOEXEC)?;
    let mut streams = Vec::new();
    for at in 0..connections {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        epoll::add(&epoll, &stream, EventData::new_u64(at as u64), EventFlags::IN)?;
        streams.push(stream);
    }
    Ok((streams, epoll))
}
