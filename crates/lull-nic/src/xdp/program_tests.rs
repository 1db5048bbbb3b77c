//! The program as the kernel runs it: verified, compiled, over frames that are made here.

use std::io::ErrorKind;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use super::super::{bpf, socket};
use super::*;
use crate::wire;

const ALONE: Ipv4Addr = Ipv4Addr::new(10, 1, 0, 2);
const SHARED: Ipv4Addr = Ipv4Addr::new(10, 1, 0, 3);
const BY_PORT: Ipv4Addr = Ipv4Addr::new(10, 1, 0, 4);
const HOST: Ipv4Addr = Ipv4Addr::new(10, 1, 0, 1);
const ALONE6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2);
const SHARED6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 3);
const BY_PORT6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 4);
const HOST6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1);
const PORT: u16 = 11211;
const TCP: u8 = wire::PROTOCOL_TCP;
const UDP: u8 = wire::PROTOCOL_UDP;

/// The program with its maps, and a socket for queue 0, in which test runs have their frames come in.
struct Loaded {
    program: OwnedFd,
    _maps: Vec<OwnedFd>,
    _socket: OwnedFd,
}

impl Loaded {
    /// `None`, and a line that says so, where the kernel does not let this user.
    fn new(vlan: Option<u16>) -> Option<Loaded> {
        let bits = [address::ALONE | address::EVERY_PORT, 0, address::ALONE];
        let v4: Vec<_> = [ALONE, SHARED, BY_PORT].map(|ip| ip.octets()).into_iter().zip(bits).collect();
        let v6: Vec<_> = [ALONE6, SHARED6, BY_PORT6].map(|ip| ip.octets()).into_iter().zip(bits).collect();
        let ports = [(port_key(TCP, PORT), 1), (port_key(UDP, PORT), 1)];
        let maps =
            bpf::sockets(1).and_then(|sockets| Ok(vec![sockets, bpf::hash(&v4)?, bpf::hash(&v6)?, bpf::hash(&ports)?]));
        let maps = match maps {
            Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                println!("SKIP: the XDP program: bpf(2): {error}");
                return None;
            }
            maps => maps.expect("maps"),
        };
        let fd = |at: usize| maps[at].as_raw_fd();
        let program = addresses(Maps { sockets: fd(0), v4: fd(1), v6: fd(2), ports: fd(3) }, vlan);
        let program = bpf::load(&program, bpf::Pieces::Several).expect("the verifier takes it");
        let socket = socket::open(64).expect("an AF_XDP socket");
        bpf::set_socket(&maps[0], 0, socket.as_fd()).expect("a socket in the map");
        Some(Loaded { program, _maps: maps, _socket: socket })
    }

    /// Whether the program takes `frame` for lull.
    fn takes(&self, frame: &[u8]) -> bool {
        const XDP_REDIRECT: u32 = 4;
        match bpf::test_run(&self.program, frame).expect("a test run") {
            XDP_REDIRECT => true,
            verdict if verdict == XDP_PASS as u32 => false,
            verdict => panic!("verdict {verdict}"),
        }
    }

    #[track_caller]
    fn check(&self, frame: &[u8], taken: bool) {
        assert_eq!(self.takes(frame), taken, "{frame:02x?}");
        // With a priority tag it is the same frame; with a VLAN's it is the host's.
        assert_eq!(self.takes(&tagged(frame, 0x8100, 0xa000)), taken, "with a priority tag");
        assert!(!self.takes(&tagged(frame, 0x8100, 5)), "of VLAN 5");
        // Cut off anywhere, it is nothing that a packet outside the frame could be read for.
        for length in 14..frame.len().min(60) {
            let _ = self.takes(&frame[..length]);
        }
    }
}

fn ethernet(ethertype: u16) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1];
    frame.extend(ethertype.to_be_bytes());
    frame
}

fn tagged(frame: &[u8], ethertype: u16, tag: u16) -> Vec<u8> {
    let mut tagged = frame[..12].to_vec();
    tagged.extend(ethertype.to_be_bytes());
    tagged.extend(tag.to_be_bytes());
    tagged.extend(&frame[12..]);
    tagged
}

fn arp(target: Ipv4Addr) -> Vec<u8> {
    let mut frame = ethernet(0x0806);
    frame.extend([0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, 1]);
    frame.extend(HOST.octets());
    frame.extend([0; 6]);
    frame.extend(target.octets());
    frame
}

/// An IPv4 packet with `options` words of options and `fragment` as its flags and offset.
fn ipv4_with(to: Ipv4Addr, protocol: u8, port: u16, options: u8, fragment: u16) -> Vec<u8> {
    let mut frame = ethernet(0x0800);
    let start = frame.len();
    frame.extend([0x45 + options, 0, 0, 60, 0, 0, 0, 0, 64, protocol, 0, 0, 10, 1, 0, 1]);
    wire::put16(&mut frame, start + 6, fragment);
    frame.extend(to.octets());
    frame.extend(std::iter::repeat_n(1, usize::from(options) * 4));
    frame.extend(40000u16.to_be_bytes());
    frame.extend(port.to_be_bytes());
    frame.extend([0; 24]);
    frame
}

fn ipv4(to: Ipv4Addr, protocol: u8, port: u16) -> Vec<u8> {
    ipv4_with(to, protocol, port, 0, 0x4000)
}

fn ipv6(to: Ipv6Addr, next_header: u8, payload: &[u8]) -> Vec<u8> {
    let mut frame = ethernet(0x86dd);
    frame.extend([0x60, 0, 0, 0, 0, payload.len() as u8, next_header, 64]);
    frame.extend(HOST6.octets());
    frame.extend(to.octets());
    frame.extend(payload);
    frame
}

fn segment(port: u16) -> Vec<u8> {
    let mut segment = vec![0x9c, 0x40];
    segment.extend(port.to_be_bytes());
    segment.extend([0; 24]);
    segment
}

fn solicitation(target: Ipv6Addr) -> Vec<u8> {
    let last = target.octets();
    let group = Ipv6Addr::from([0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, last[13], last[14], last[15]]);
    let mut message = vec![135, 0, 0, 0, 0, 0, 0, 0];
    message.extend(last);
    message.extend([1, 1, 2, 0, 0, 0, 0, 1]);
    ipv6(group, 58, &message)
}

#[test]
fn an_address_that_is_lulls_alone_is_taken_whole() {
    let Some(loaded) = Loaded::new(None) else { return };
    loaded.check(&arp(ALONE), true);
    for protocol in [1, TCP, UDP, 47] {
        loaded.check(&ipv4(ALONE, protocol, 9), true);
    }
    loaded.check(&ipv4_with(ALONE, UDP, 9, 0, 0x2000), true);
    loaded.check(&ipv4_with(ALONE, TCP, 9, 2, 0), true);
    loaded.check(&ipv6(ALONE6, TCP, &segment(9)), true);
    loaded.check(&ipv6(ALONE6, 58, &[136, 0, 0, 0]), true);
    loaded.check(&ipv6(ALONE6, 0, &[6, 0, 1, 4, 0, 0, 0, 0]), true);
    loaded.check(&solicitation(ALONE6), true);
}

#[test]
fn what_is_the_hosts_is_passed() {
    let Some(loaded) = Loaded::new(None) else { return };
    loaded.check(&arp(HOST), false);
    loaded.check(&ipv4(HOST, TCP, PORT), false);
    loaded.check(&ipv6(HOST6, TCP, &segment(PORT)), false);
    loaded.check(&solicitation(HOST6), false);
    // A router's advertisement, to all nodes.
    loaded.check(&ipv6(Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1), 58, &[134; 40]), false);
    loaded.check(&ethernet(0x88cc), false);
    assert!(!loaded.takes(&tagged(&tagged(&arp(ALONE), 0x8100, 0), 0x88a8, 0)), "two tags");
}

#[test]
fn of_an_address_that_the_host_has_too_only_the_ports_are_taken() {
    let Some(loaded) = Loaded::new(None) else { return };
    for protocol in [TCP, UDP] {
        loaded.check(&ipv4(SHARED, protocol, PORT), true);
        loaded.check(&ipv4(SHARED, protocol, PORT + 1), false);
        loaded.check(&ipv4_with(SHARED, protocol, PORT, 3, 0), true);
        loaded.check(&ipv6(SHARED6, protocol, &segment(PORT)), true);
        loaded.check(&ipv6(SHARED6, protocol, &segment(22)), false);
    }
    loaded.check(&arp(SHARED), false);
    loaded.check(&solicitation(SHARED6), false);
    loaded.check(&ipv4(SHARED, 1, 0), false);
    loaded.check(&ipv4(SHARED, 47, PORT), false);
    loaded.check(&ipv6(SHARED6, 58, &segment(0)), false);
    // Fragments: the first has a port, the others do not, and the host has to have them all.
    loaded.check(&ipv4_with(SHARED, UDP, PORT, 0, 0x2000), false);
    loaded.check(&ipv4_with(SHARED, UDP, PORT, 0, 100), false);
    // An IP header that is shorter than one.
    let mut short = ipv4(SHARED, TCP, PORT);
    short[14] = 0x44;
    loaded.check(&short, false);
}

#[test]
fn an_address_that_is_lulls_alone_by_port_has_its_arp_and_icmp() {
    let Some(loaded) = Loaded::new(None) else { return };
    loaded.check(&arp(BY_PORT), true);
    loaded.check(&solicitation(BY_PORT6), true);
    loaded.check(&ipv4(BY_PORT, 1, 0), true);
    loaded.check(&ipv6(BY_PORT6, 58, &segment(0)), true);
    loaded.check(&ipv4(BY_PORT, TCP, PORT), true);
    loaded.check(&ipv4(BY_PORT, TCP, 22), false);
    loaded.check(&ipv6(BY_PORT6, UDP, &segment(PORT)), true);
    loaded.check(&ipv6(BY_PORT6, UDP, &segment(53)), false);
}

#[test]
fn a_device_on_a_vlan_takes_frames_of_it_alone() {
    let Some(loaded) = Loaded::new(Some(5)) else { return };
    for frame in [arp(ALONE), ipv4(ALONE, TCP, 9), ipv6(ALONE6, TCP, &segment(9))] {
        assert!(loaded.takes(&tagged(&frame, 0x8100, 0x6005)));
        assert!(!loaded.takes(&tagged(&frame, 0x8100, 6)) && !loaded.takes(&tagged(&frame, 0x8100, 0)));
        assert!(!loaded.takes(&frame));
    }
    assert!(!loaded.takes(&tagged(&arp(HOST), 0x8100, 5)));
}

#[test]
fn a_queue_without_a_socket_is_the_hosts() {
    let Some(loaded) = Loaded::new(None) else { return };
    let Loaded { program, _maps, _socket } = loaded;
    // The map lets go of a socket that is closed.
    drop(_socket);
    let loaded = Loaded { program, _maps, _socket: socket::open(64).expect("another socket, which is in no map") };
    assert!(!loaded.takes(&arp(ALONE)) && !loaded.takes(&ipv4(ALONE, TCP, 9)));
}
