//! Measures how long a client waits during a flood of forged SYNs: `cargo bench -p lull-lab --bench syn_flood [--
//! SYNS_PER_SECOND]`. The default is 100,000. It prints figures and judges none.
//!
//! Server and client are networks of lull. Between them is a switch whose third port forges one SYN after the other,
//! from 60,000 ports of 240 addresses. The client opens a connection, has 64 bytes echoed and closes it, again and
//! again. The bench needs two cores: one serves, the other runs the switch and the client.

use std::error::Error;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use lull_host::{Host, HostConfig, pin_thread, usable_cores};
use lull_net::{Network, NetworkConfig, TcpListener, TcpStream};
use lull_nic::mem::{self, MemConfig};
use lull_nic::wire::{self, put16, put32};
use lull_nic::{Device, Frame, FramePool, Queue};

const SERVER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const PORT: u16 = 80;
const SYNS_PER_SECOND: u32 = 100_000;
const SECONDS: u64 = 10;
/// The pause between two rounds of the client. Without one the client's own load would be measured.
const BETWEEN: Duration = Duration::from_millis(10);

struct Switch {
    server: Queue,
    client: Queue,
    server_mac: [u8; 6],
    client_mac: [u8; 6],
    pool: FramePool,
}

/// Counters of the flood.
#[derive(Default)]
struct Flood {
    sent: u64,
    refused: u64,
    seconds: f64,
}

impl Switch {
    fn forged(&mut self, number: u64) -> Frame {
        let source = Ipv4Addr::new(10, 0, 0, 10 + (number % 240) as u8);
        let mut frame = self.pool.alloc();
        frame.set_len(wire::ETHERNET + wire::IPV4 + wire::TCP);
        let data = frame.data_mut();
        data.fill(0);
        data[..6].copy_from_slice(&self.server_mac);
        data[6..12].copy_from_slice(&self.client_mac);
        put16(data, 12, wire::ETHERTYPE_IPV4);
        let ip = &mut data[wire::ETHERNET..];
        ip[0] = 0x45;
        put16(ip, 2, (wire::IPV4 + wire::TCP) as u16);
        (ip[8], ip[9]) = (64, wire::PROTOCOL_TCP);
        ip[12..16].copy_from_slice(&source.octets());
        ip[16..20].copy_from_slice(&SERVER.octets());
        wire::put_checksum(&mut ip[..wire::IPV4], 10, 0);
        let tcp = &mut ip[wire::IPV4..];
        put16(tcp, 0, 1024 + (number / 240 % 60_000) as u16);
        put16(tcp, 2, PORT);
        put32(tcp, 4, number as u32);
        (tcp[12], tcp[13]) = (5 << 4, wire::SYN);
        put16(tcp, 14, 65_535);
        let pseudo = wire::pseudo_sum(source.into(), SERVER.into(), wire::PROTOCOL_TCP, wire::TCP);
        wire::put_checksum(tcp, 16, pseudo);
        frame
    }

    /// Passes frames on and forges SYNs at the given rate, until `over` is set.
    fn run(mut self, per_second: u32, over: &AtomicBool) -> Flood {
        let (start, mut flood) = (Instant::now(), Flood::default());
        while !over.load(Ordering::Relaxed) {
            let Switch { server, client, pool, .. } = &mut self;
            client.rx.poll(64, pool, &mut |frame, _| drop(server.tx.transmit(frame)));
            let due = (start.elapsed().as_secs_f64() * f64::from(per_second)) as u64;
            // A frame that a full ring refuses is lost, as on a wire. At most one batch is sent between two looks at
            // the client's frames.
            for _ in 0..due.saturating_sub(flood.sent + flood.refused).min(64) {
                let frame = self.forged(flood.sent + flood.refused);
                match self.server.tx.transmit(frame) {
                    Ok(()) => flood.sent += 1,
                    Err(frame) => {
                        self.pool.recycle(frame);
                        flood.refused += 1;
                    }
                }
            }
            let Switch { server, client, pool, .. } = &mut self;
            server.tx.doorbell();
            server.tx.reap_sent(pool);
            // The answers to forged SYNs reach the client's station too, which does not want them.
            server.rx.poll(256, pool, &mut |frame, _| drop(client.tx.transmit(frame)));
            client.tx.doorbell();
            client.tx.reap_sent(pool);
            std::thread::yield_now();
        }
        flood.seconds = start.elapsed().as_secs_f64();
        flood
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    // `cargo test --benches` passes arguments too, and a bench that runs for seconds is only for `cargo bench`.
    if !std::env::args().any(|argument| argument == "--bench") {
        println!("run with `cargo bench -p lull-lab --bench syn_flood`");
        return Ok(());
    }
    let asked = std::env::args().skip(1).find(|argument| !argument.starts_with('-'));
    let per_second = asked.map_or(Ok(SYNS_PER_SECOND), |asked| asked.parse())?;
    let cores = usable_cores();
    let (server_port, to_server) = mem::pair(MemConfig::default());
    let (to_client, client_port) = mem::pair(MemConfig::default());
    let switch = Switch {
        server: to_server.take_queue(0)?,
        client: to_client.take_queue(0)?,
        server_mac: server_port.info().mac,
        client_mac: client_port.info().mac,
        pool: FramePool::new(4096),
    };
    let host =
        Host::new(HostConfig { cpus: vec![cores.first().copied(), cores.get(1).copied()], ..HostConfig::default() })?;
    let config = |own: Ipv4Addr, cpu, other: Ipv4Addr, mac| NetworkConfig {
        addresses: vec![(own.into(), 24)],
        cpus: vec![cpu],
        // Each side knows the other's hardware address, so that no ARP request can be lost when the flood fills a ring.
        neighbours: vec![(other.into(), mac)],
        ..NetworkConfig::default()
    };
    let server = Network::new(&host, Arc::new(server_port), config(SERVER, 0, CLIENT, switch.client_mac))?;
    let client = Network::new(&host, Arc::new(client_port), config(CLIENT, 1, SERVER, switch.server_mac))?;
    let at = SocketAddr::from((SERVER, PORT));
    let listener = TcpListener::bind(&server, at)?;
    // The thread waits in accept for as long as the program runs.
    let serving = cores.first().copied();
    std::thread::spawn(move || {
        let _ = serving.map(|core| pin_thread(&[core]));
        for stream in listener.incoming().map_while(Result::ok) {
            let (mut stream, mut buffer) = (&stream, [0; 64]);
            let _ = stream.read_exact(&mut buffer).and_then(|()| stream.write_all(&buffer));
        }
    });
    if let Some(core) = cores.get(1) {
        pin_thread(&[*core])?;
    }
    let over = AtomicBool::new(false);
    let (flood, mut connects_ms, failed) = std::thread::scope(|scope| {
        let flooding = scope.spawn(|| switch.run(per_second, &over));
        let (start, mut connects_ms, mut failed) = (Instant::now(), Vec::new(), 0);
        while start.elapsed() < Duration::from_secs(SECONDS) {
            let begun = Instant::now();
            match client_round(&client, at) {
                Ok(()) => connects_ms.push(begun.elapsed().as_secs_f64() * 1e3),
                Err(error) => {
                    println!("a client failed after {:.0} ms: {error}", begun.elapsed().as_secs_f64() * 1e3);
                    failed += 1;
                }
            }
            std::thread::sleep(BETWEEN);
        }
        over.store(true, Ordering::Relaxed);
        (flooding.join().unwrap_or_default(), connects_ms, failed)
    });
    connects_ms.sort_by(f64::total_cmp);
    let at_share =
        |share: f64| connects_ms.get((connects_ms.len() as f64 * share) as usize).copied().unwrap_or(f64::NAN);
    let counters = server.stack_counters()[0];
    println!(
        "forged SYNs: {:.0}/s reached the server's ring for {:.1} s (asked {per_second}/s), {} more found it full; \
         {} SYN cookies were sent",
        flood.sent as f64 / flood.seconds,
        flood.seconds,
        flood.refused,
        counters.syncookies_sent,
    );
    println!(
        "clients: {} connected and were answered, {failed} not; connect and echo took {:.1} ms median, {:.1} p99, {:.1} at \
         most; {} took more than 1 s",
        connects_ms.len(),
        at_share(0.5),
        at_share(0.99),
        at_share(1.0 - f64::EPSILON),
        connects_ms.iter().filter(|took| **took > 1_000.0).count(),
    );
    Ok(())
}

/// Opens a connection, has 64 bytes echoed and closes it.
fn client_round(network: &Network, at: SocketAddr) -> std::io::Result<()> {
    let mut stream = TcpStream::connect_timeout(network, at, Duration::from_secs(10))?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    stream.write_all(&[7; 64])?;
    stream.read_exact(&mut [0; 64])
}
