//! Measures large values over TAP, with the TAP's offloads and without, interleaved. Run it with
//! `cargo bench -p lull-lab --bench bulk`; it prints figures and judges none.
//!
//! The service is the lab's memcached. Its clients are connections of the kernel, on another core; each asks for the
//! next value when it has received all of the last one.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use lull_host::pin_thread;
use lull_lab::bench::{BenchConfig, PORT, Server, ServerConfig};
use lull_lab::stats;
use rustix::event::epoll;

mod over_tap;

use over_tap::{Result, tap};

const VALUES_BYTES: [usize; 4] = [1_000_000, 100_000, 10_000, 1_000];
const CONNECTIONS: usize = 4;
const EVENTS_MAX: usize = 16;
const WINDOW: Duration = Duration::from_millis(300);
const PAIRS: usize = 11;
const MODE: &str = "suspend20";

fn main() -> Result<()> {
    let Some([serves, asks]) = over_tap::prepare("bulk") else { return Ok(()) };
    let (plain, offloads) = (Ipv4Addr::new(10, 1, 0, 2), Ipv4Addr::new(10, 2, 0, 2));
    let _servers = [serve("plain0", plain, false, serves)?, serve("large0", offloads, true, serves)?];
    pin_thread(&[asks])?;
    let clients = [Clients::connect(plain)?, Clients::connect(offloads)?];
    for bytes in VALUES_BYTES {
        clients.iter().try_for_each(|clients| clients.store(bytes))?;
        let mut rates = [const { Vec::new() }; 2];
        for _ in 0..PAIRS {
            for (rates, clients) in rates.iter_mut().zip(&clients) {
                rates.push(clients.run(bytes)?);
            }
        }
        let middle = |values: &[f64]| stats::median(values).map_or(f64::NAN, |estimate| estimate.value);
        let ratios: Vec<f64> = rates[1].iter().zip(&rates[0]).map(|(with, without)| with / without).collect();
        println!(
            "values of {bytes:>7} bytes: plain {:>6.0} MB/s, offloads {:>6.0} MB/s; ratio, median of {PAIRS} pairs: {:.2}",
            middle(&rates[0]),
            middle(&rates[1]),
            middle(&ratios)
        );
    }
    Ok(())
}

/// Starts the service on a TAP of its own.
fn serve(name: &str, ip: Ipv4Addr, offloads: bool, core: usize) -> Result<Server> {
    let tap = tap(name, ip, offloads)?;
    let bench = BenchConfig { connections: CONNECTIONS, ..BenchConfig::default() };
    let mut config = ServerConfig::of_bench(&bench, &[core]);
    config.address = SocketAddr::new(IpAddr::V4(ip), PORT);
    config.network.addresses = vec![(IpAddr::V4(ip), 24)];
    let server = Server::start(Arc::new(tap), config)?;
    server.set_mode(&MODE.parse()?)?;
    Ok(server)
}

struct Clients {
    streams: Vec<TcpStream>,
    epoll: std::os::fd::OwnedFd,
}

impl Clients {
    fn connect(ip: Ipv4Addr) -> Result<Clients> {
        let (streams, epoll) = over_tap::connect(SocketAddr::new(IpAddr::V4(ip), PORT), CONNECTIONS)?;
        Ok(Clients { streams, epoll })
    }

    fn store(&self, bytes: usize) -> Result<()> {
        let mut stream = &self.streams[0];
        stream.write_all(format!("set value 0 0 {bytes}\r\n").as_bytes())?;
        stream.write_all(&vec![b'v'; bytes])?;
        stream.write_all(b"\r\n")?;
        let mut answer = [0; 8];
        stream.read_exact(&mut answer)?;
        if &answer == b"STORED\r\n" { Ok(()) } else { Err("the value was not stored".into()) }
    }

    /// Downloads the value again and again on every connection. Returns the rate in megabytes per second.
    fn run(&self, value_bytes: usize) -> Result<f64> {
        let answer_bytes = format!("VALUE value 0 {value_bytes}\r\n\r\nEND\r\n").len() + value_bytes;
        let mut left = [answer_bytes; CONNECTIONS];
        for mut stream in &self.streams {
            stream.write_all(b"get value\r\n")?;
        }
        let (start, mut bytes, mut waiting) = (Instant::now(), 0, CONNECTIONS);
        let mut buffer = vec![0; 1 << 18];
        let mut measured = None;
        while waiting > 0 {
            let mut events = Vec::with_capacity(EVENTS_MAX);
            epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), None)?;
            for event in events {
                let at = event.data.u64() as usize;
                let mut stream = &self.streams[at];
                let count = stream.read(&mut buffer)?;
                left[at] = left[at].checked_sub(count).filter(|_| count > 0).ok_or("an answer of another length")?;
                bytes += count;
                if left[at] > 0 {
                    continue;
                }
                if measured.is_some() {
                    waiting -= 1;
                    continue;
                }
                left[at] = answer_bytes;
                stream.write_all(b"get value\r\n")?;
            }
            if measured.is_none() && start.elapsed() >= WINDOW {
                measured = Some(bytes as f64 / start.elapsed().as_secs_f64() / 1e6);
            }
        }
        measured.ok_or_else(|| "there are no connections".into())
    }
}
