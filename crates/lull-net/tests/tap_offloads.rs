//! A network over a TAP against the kernel's TCP, with and without offloads.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;

use lull_host::{Host, HostConfig};
use lull_net::{Network, NetworkConfig, TcpListener};
use lull_nic::pcap::Pcap;
use lull_nic::tap::{Tap, TapConfig};
use lull_nic::{Counters, Device, namespace};

const KERNEL: Ipv4Addr = Ipv4Addr::new(10, 98, 0, 1);
const OURS: Ipv4Addr = Ipv4Addr::new(10, 98, 0, 2);
const BYTES: usize = 4 << 20;

fn pattern(at: usize) -> u8 {
    (at * 7 + at / 251) as u8
}

/// A file that others read while it is written.
#[derive(Clone, Default)]
struct Record(Arc<std::sync::Mutex<Vec<u8>>>);

impl Write for Record {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Sends the kernel's client a stream and gets it back. Returns what the device has counted, and the record of its
/// frames.
fn echo(name: &str, offloads: bool) -> (Counters, Vec<u8>) {
    let tap = Tap::open(TapConfig { name: name.to_owned(), offloads, ..TapConfig::default() }).unwrap();
    tap.kernel_side(IpAddr::V4(KERNEL), 24).unwrap();
    let record = Record::default();
    let device = Arc::new(Pcap::new(Arc::new(tap), record.clone()));
    let host = Host::new(HostConfig::default()).unwrap();
    let config = NetworkConfig {
        addresses: vec![(IpAddr::V4(OURS), 24)],
        rx_buffer_bytes: 1 << 18,
        tx_buffer_bytes: 1 << 18,
        ..NetworkConfig::default()
    };
    let network = Network::new(&host, device.clone(), config).unwrap();
    let listener = TcpListener::bind(&network, SocketAddr::new(IpAddr::V4(OURS), 7)).unwrap();
    let server = std::thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        let mut buffer = vec![0; 1 << 16];
        loop {
            let count = stream.recv(&mut buffer).unwrap();
            let mut left = &buffer[..count];
            while !left.is_empty() {
                let sent = stream.send(left).unwrap();
                left = &left[sent..];
            }
            if count == 0 {
                return;
            }
        }
    });
    let stream = TcpStream::connect(SocketAddr::new(IpAddr::V4(OURS), 7)).unwrap();
    let mut sending = stream.try_clone().unwrap();
    let sender = std::thread::spawn(move || {
        let bytes: Vec<u8> = (0..BYTES).map(pattern).collect();
        sending.write_all(&bytes).unwrap();
        sending.shutdown(Shutdown::Write).unwrap();
    });
    let mut back = Vec::new();
    (&stream).read_to_end(&mut back).unwrap();
    sender.join().unwrap();
    server.join().unwrap();
    assert_eq!(back.len(), BYTES);
    assert!(back.iter().enumerate().all(|(at, &byte)| byte == pattern(at)));
    let stack = network.stack_counters()[0];
    assert_eq!((stack.drop_checksum, stack.drop_malformed), (0, 0));
    let counters = device.counters(0);
    assert_eq!((counters.rx_errors, counters.tx_dropped), (0, 0));
    assert!(device.flush());
    let record = record.0.lock().unwrap().clone();
    (counters, record)
}

/// The lengths of the frames in a record. Each frame begins with the Ethernet header of an IPv4, IPv6 or ARP packet.
fn lengths(record: &[u8]) -> Vec<usize> {
    let (mut at, mut lengths) = (24, Vec::new());
    while at < record.len() {
        let length = u32::from_le_bytes(record[at + 8..at + 12].try_into().unwrap()) as usize;
        let frame = &record[at + 16..at + 16 + length];
        assert!(matches!(frame[12..14], [8, 0] | [0x86, 0xdd] | [8, 6]), "{:x?}", &frame[..14]);
        lengths.push(length);
        at += 16 + length;
    }
    lengths
}

#[test]
fn large_segments_and_unmade_checksums_pass_both_ways() {
    // Root moves only this thread into the namespace, and the threads that it starts. A user without rights would have
    // to be alone in the process.
    if let Err(error) = namespace::enter_private() {
        println!("SKIP: {error}");
        return;
    }
    if let Err(error) = std::fs::File::options().read(true).write(true).open("/dev/net/tun") {
        println!("SKIP: /dev/net/tun: {error}");
        return;
    }
    let (plain, record) = echo("plain0", false);
    assert!(plain.rx_frames > (BYTES / 1500) as u64 && plain.tx_frames > (BYTES / 1500) as u64);
    let longest = lengths(&record).into_iter().max();
    assert!(longest.is_some_and(|length| length <= 1514), "{longest:?}");
    let (offloaded, record) = echo("large0", true);
    // How much goes into a frame depends on the speed of the two ends.
    let longest = lengths(&record).into_iter().max();
    assert!(longest > Some(8000), "{longest:?}");
    assert!(offloaded.rx_frames < plain.rx_frames / 2, "{offloaded:?} {plain:?}");
    assert!(offloaded.tx_frames < plain.tx_frames / 2, "{offloaded:?} {plain:?}");
}
