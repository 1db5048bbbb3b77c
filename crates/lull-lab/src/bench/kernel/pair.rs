//! Two network namespaces and a veth pair between them: the server's machine, and the client's.
//!
//! The namespaces have no names: they, and the pair in them, are gone with the last thread or descriptor that holds
//! them, however this process ends. The devices are named after this process (`lull-PIDs0`, `lull-PIDc0`), so that a
//! trace by name shows one device alone.

use std::fs::File;
use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use lull_linux::offload::{self, Offload};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::bench::BenchError;

/// The prefix of both addresses.
const PREFIX_BITS: u8 = 24;
/// Hardware addresses of the server's and the client's end. They are fixed, so that no neighbour requests are needed.
const HARDWARE: [&str; 2] = ["02:00:00:00:0a:02", "02:00:00:00:0a:01"];

/// The addresses on the network behind the server: the server's, and the far one.
const HOP: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 0, 1, 2), Ipv4Addr::new(10, 0, 1, 1)];

/// The network stack that serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerStack {
    /// The kernel's stack serves. The device has the address, and GRO, so that there is a NAPI for each queue.
    Kernel,
    /// Lull's stack serves. The kernel has no address on the device.
    Lull,
}

/// One end of the pair: a namespace and the device in it.
#[derive(Debug)]
pub struct Side {
    namespace: OwnedFd,
    device: String,
    address: IpAddr,
}

impl Side {
    /// Takes a device of the namespace that the calling thread is in, with the IPv4 address that it has there.
    ///
    /// # Errors
    ///
    /// This fails if the device has no address, or if there is no `ip` (iproute2).
    pub fn here(device: &str) -> Result<Side, BenchError> {
        let namespace = File::open("/proc/thread-self/ns/net")?.into();
        Ok(Side { namespace, device: device.to_owned(), address: address_of(device)? })
    }

    /// Returns the device's name.
    pub fn device(&self) -> &str {
        &self.device
    }

    /// Returns the device's address.
    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// Moves the calling thread into the namespace.
    ///
    /// # Errors
    ///
    /// This fails if the process lacks CAP_SYS_ADMIN.
    pub fn enter(&self) -> io::Result<()> {
        Ok(move_into_link_name_space(self.namespace.as_fd(), Some(LinkNameSpaceType::Network))?)
    }

    /// Does `work` in the namespace, in a thread of its own.
    ///
    /// # Errors
    ///
    /// This fails if the process may not enter the namespace.
    pub fn within<T: Send>(&self, work: impl FnOnce() -> T + Send) -> io::Result<T> {
        std::thread::scope(|scope| {
            let inside = scope.spawn(|| self.enter().map(|()| work()));
            inside.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }
}

/// Both ends of a veth pair.
#[derive(Debug)]
pub struct Pair {
    /// The server's end.
    pub server: Side,
    /// The client's end. TSO is off, so that every packet that arrives carries its NAPI's id.
    pub client: Side,
}

impl Pair {
    /// Makes both namespaces and the pair, with `queues` queues each way, addresses, and permanent neighbour entries.
    /// IPv6 is off, so that only the load is on the line.
    ///
    /// # Errors
    ///
    /// This fails if the process may not make namespaces, or if there is no `ip` (iproute2).
    pub fn make(queues: usize, stack: ServerStack) -> Result<Pair, BenchError> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let nth = NEXT.fetch_add(1, Ordering::Relaxed);
        let side = |letter: char, last: u8| -> Result<Side, BenchError> {
            let device = format!("lull-{}{letter}{nth}", std::process::id());
            Ok(Side { namespace: namespace()?, device, address: IpAddr::V4(Ipv4Addr::new(10, 0, 0, last)) })
        };
        let pair = Pair { server: side('s', 2)?, client: side('c', 1)? };
        let (server, client) = (&pair.server, &pair.client);
        let link = format!(
            "link add {s} address {s_mac} numrxqueues {queues} numtxqueues {queues} type veth peer name {c} address \
             {c_mac} numrxqueues {queues} numtxqueues {queues} netns /proc/{pid}/fd/{fd}\n",
            s = server.device,
            c = client.device,
            s_mac = HARDWARE[0],
            c_mac = HARDWARE[1],
            pid = std::process::id(),
            fd = client.namespace.as_raw_fd(),
        );
        server.within(|| ip(&link))??;
        if stack == ServerStack::Kernel {
            server.within(|| offload::set(&server.device, Offload::Gro, true))?.map_err(linux)?;
        }
        client.within(|| offload::set(&client.device, Offload::Tso, false))?.map_err(linux)?;
        for (side, other, hardware) in [(server, client, HARDWARE[1]), (client, server, HARDWARE[0])] {
            let device = &side.device;
            let address = format!("addr add {}/{PREFIX_BITS} dev {device}\n", side.address);
            let neighbour = format!("neigh replace {} lladdr {hardware} dev {device} nud permanent\n", other.address);
            let up = format!("link set {device} up\n");
            let is_kernels = stack == ServerStack::Kernel || std::ptr::eq(side, client);
            side.within(|| ip(&if is_kernels { address + &up + &neighbour } else { up }))??;
        }
        Ok(pair)
    }
}

impl Pair {
    /// Makes a third namespace behind the server, which forwards to it what the client sends there. Returns the far
    /// end, and the server's device towards it.
    ///
    /// # Errors
    ///
    /// This fails for the same reasons as [`Pair::make`].
    pub fn hop(&self) -> Result<(Side, String), BenchError> {
        let near = format!("{}h", self.server.device());
        let far = Side { namespace: namespace()?, device: format!("{near}f"), address: IpAddr::V4(HOP[1]) };
        let link = format!(
            "link add {near} address {mac} type veth peer name {peer} address {peer_mac} netns /proc/{pid}/fd/{fd}\n\
             addr add {own}/{PREFIX_BITS} dev {near}\nlink set {near} up\n\
             neigh replace {to} lladdr {peer_mac} dev {near} nud permanent\n",
            mac = HARDWARE[0],
            peer = far.device,
            peer_mac = HARDWARE[1],
            pid = std::process::id(),
            fd = far.namespace.as_raw_fd(),
            own = HOP[0],
            to = HOP[1],
        );
        self.server.within(|| ip(&link))??;
        let end = format!("addr add {}/{PREFIX_BITS} dev {dev}\nlink set {dev} up\n", far.address, dev = far.device);
        far.within(|| ip(&end))??;
        let route = format!("route add {}/32 via {}\n", far.address, self.server.address);
        self.client.within(|| ip(&route))??;
        // A namespace has settings of its own, which only a thread inside it sees.
        self.server.within(|| std::fs::write("/proc/sys/net/ipv4/ip_forward", "1"))??;
        Ok((far, near))
    }
}

/// Turns an error of the kernel plane into one of the bench.
pub(crate) fn linux(error: lull_linux::Error) -> BenchError {
    BenchError::Invalid(error.to_string())
}

/// Makes a network namespace without IPv6, which only the descriptor holds.
fn namespace() -> Result<OwnedFd, BenchError> {
    let make = || -> Result<OwnedFd, BenchError> {
        lull_nic::namespace::enter_private()?;
        for which in ["all", "default"] {
            // A kernel without IPv6 has none to turn off.
            let _ = std::fs::write(format!("/proc/sys/net/ipv6/conf/{which}/disable_ipv6"), "1");
        }
        Ok(File::open("/proc/thread-self/ns/net")?.into())
    };
    if !rustix::process::geteuid().is_root() {
        return Err(BenchError::Invalid(
            "cannot make network namespaces and a veth pair: run as root, or use --plane user".to_owned(),
        ));
    }
    std::thread::scope(|scope| scope.spawn(make).join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
}

/// Returns the first IPv4 address of a device in the namespace of the calling thread.
fn address_of(device: &str) -> Result<IpAddr, BenchError> {
    let cannot = |why: String| BenchError::Invalid(format!("cannot find the address of {device}: {why}"));
    let output = Command::new("ip").args(["-4", "-json", "addr", "show", "dev", device]).output();
    let output = output.map_err(|error| cannot(format!("cannot run ip ({error}); install iproute2")))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(cannot(format!("ip said: {}", said.lines().next().unwrap_or("nothing"))));
    }
    let links: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    let addresses = links.as_array().into_iter().flatten().filter_map(|link| link["addr_info"].as_array()).flatten();
    let local = addresses.filter_map(|address| address["local"].as_str()?.parse().ok()).next();
    local.ok_or_else(|| cannot(format!("it has no IPv4 address; give it one (ip addr add ADDRESS/24 dev {device})")))
}

/// Runs `ip` with a batch of commands in the namespace of the calling thread.
pub(crate) fn ip(batch: &str) -> Result<(), BenchError> {
    let failed = |why: String| BenchError::Invalid(format!("cannot make a veth pair: {why}"));
    let child = Command::new("ip")
        .args(["-batch", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| failed(format!("cannot run ip ({error}); install iproute2")));
    let mut child = child?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(batch.as_bytes())?;
    }
    let output = child.wait_with_output()?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(failed(format!("ip said: {}", said.lines().next().unwrap_or("nothing"))))
}
