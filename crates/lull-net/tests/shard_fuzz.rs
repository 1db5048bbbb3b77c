//! Whatever arrives, nothing panics, every frame is counted once, and no connection but its own is touched.

#[path = "../fuzz/drive.rs"]
mod drive;
mod shard_harness;

use std::path::PathBuf;

use lull_nic::{Checksum, Frame};
use proptest::prelude::*;
use shard_harness::*;

fn corpus() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus/shard")
}

/// A raw frame as a step of a script.
fn frame_step(frame: &Frame, trusted: bool) -> Vec<u8> {
    let mut step = vec![0, u8::from(trusted)];
    step.extend((frame.len() as u16).to_be_bytes());
    step.extend(frame.data());
    step
}

/// The scripts that the files of the corpus hold.
fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    let peer = |from: &str, to: &str, port| Peer { from: at(from, port), to: at(to, 80), ..Peer::new(port) };
    let (four, six) = (peer(CLIENT, SERVER, 5000), peer("2001:db8::9", SERVER6, 5000));
    let mut syn_with_options = four.syn();
    syn_with_options.options.extend([3, 3, 7, 4, 2, 1, 1, 1]);
    let hop_by_hop = [6, 0, 5, 2, 0, 0, 1, 0];
    let udp = [0, 9, 0, 53, 0, 9, 0, 0, b'x'];
    let mut arp = vec![0, 1, 8, 0, 6, 4, 0, 1];
    arp.extend([CLIENT_MAC.as_slice(), &[10, 0, 0, 9], &[0; 6], &[10, 0, 0, 1]].concat());
    let mut unreachable = vec![3, 3, 0, 0, 0, 0, 0, 0];
    unreachable.extend(&four.syn().frame().data()[14..42]);
    let mut solicitation = vec![135, 0, 0, 0, 0, 0, 0, 0];
    solicitation.extend(SERVER6.parse::<std::net::Ipv6Addr>().unwrap().octets());
    solicitation.extend([1, 1, 2, 0, 0, 0, 0, 9]);
    let ip9 = ip("2001:db8::9");
    vec![
        ("syn4", frame_step(&four.syn().frame(), false)),
        ("syn4_options", frame_step(&syn_with_options.frame(), true)),
        ("syn6", frame_step(&six.syn().frame(), false)),
        ("data4", frame_step(&four.segment(ACK | PSH, b"hello").frame(), true)),
        (
            "ip_options",
            frame_step(&ip_packet(ip(CLIENT), ip(SERVER), 6, 0, &[148, 4, 0, 0], &four.syn().transport()), true),
        ),
        ("hop_by_hop", frame_step(&ip_packet(ip9, ip(SERVER6), 6, 0, &hop_by_hop, &six.syn().transport()), true)),
        ("fragment6", frame_step(&ip_packet(ip9, ip(SERVER6), 6, 44, &[6, 0, 0, 1, 0, 0, 0, 9], &[0; 24]), true)),
        ("udp4", frame_step(&ip_packet(ip(CLIENT), ip(SERVER), 17, 0, &[], &udp), false)),
        ("udp6", frame_step(&ip_packet(ip9, ip(SERVER6), 17, 0, &[], &udp), true)),
        ("arp", frame_step(&ethernet(0x0806, &arp), false)),
        ("unreachable", frame_step(&ip_packet(ip(CLIENT), ip(SERVER), 1, 0, &[], &unreachable), true)),
        ("echo6", frame_step(&ip_packet(ip9, ip(SERVER6), 58, 0, &[], &[128, 0, 0, 0, 0, 1, 0, 2]), true)),
        ("solicitation", frame_step(&ip_packet(ip9, ip(SERVER6), 58, 0, &[], &solicitation), true)),
        // This script has segments near the victim's windows, reading, writing, closing, time, and a full ring.
        (
            "session",
            vec![
                1, 0x18, 0, 0, 0, 0, 200, 0, 0, 0, 100, 3, 1, 3, 2, 8, 0, 5, 0, 1, 0x10, 0, 100, 0, 20, 10, 0, 0, 0, 0,
                2, 0, 50, 0, 3, 5, 5, 0, 1, 0x11, 0, 0, 0, 0, 200, 0, 0, 0, 0, 2, 200, 0, 0x80,
            ],
        ),
        ("ring", vec![4, 1, 3, 2, 11, 0, 4, 0, 1, 0x18, 0, 0, 0, 0, 200, 0, 0, 2, 0, 3, 1, 2, 10, 0, 0, 4, 7]),
        // This script is a flood beyond the backlog, with timestamps, in which every stranger answers and sends.
        (
            "cookies",
            [&[7, 0x20, 0, 15][..], &[0, 9, 1, 7, 5, 3, 1, 2, 3, 3, 40, 50, 0, 41, 60, 0, 39, 70, 1].repeat(15)]
                .concat(),
        ),
        // This script has data to the victim, and reports of a router that cannot pass it: genuine, forged and tagged
        // ones.
        (
            "path_mtu",
            vec![
                3, 0, 3, 2, 11, 0, 6, 2, 88, 0, 0, 0, 6, 2, 0, 0, 9, 1, 6, 0, 0, 0, 0, 0x10, 5, 0, 2, 2, 0, 0, 3, 2,
                11, 0,
            ],
        ),
        (
            "priority_tag",
            frame_step(&ethernet(0x8100, &[&[0xe0, 0, 8, 0], &four.syn().frame().data()[14..]].concat()), true),
        ),
        ("reopen", vec![5, 1, 0, 5, 0, 1, 0x10, 0, 1, 0, 0, 200, 0, 0, 0, 0, 3, 0, 3, 1, 3, 3, 5, 1, 3]),
    ]
}

#[test]
#[ignore = "writes the corpus; run it when the seeds change"]
fn write_the_corpus() {
    for (name, bytes) in seeds() {
        std::fs::write(corpus().join(name), bytes).unwrap();
    }
}

#[test]
fn the_corpus_and_its_mutations_hold() {
    const MUTATIONS: u64 = 6_000;
    let mut files: Vec<PathBuf> = std::fs::read_dir(corpus()).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    let scripts: Vec<Vec<u8>> = files.iter().map(|file| std::fs::read(file).unwrap()).collect();
    assert!(scripts.len() >= seeds().len(), "write_the_corpus first");
    scripts.iter().for_each(|script| drive::drive(script));
    for seed in 0..MUTATIONS {
        let mut random = Random(seed);
        let mut script = Vec::new();
        for _ in 0..1 + random.below(8) {
            script.extend(&scripts[random.below(scripts.len() as u64) as usize]);
        }
        for _ in 0..random.below(12) {
            let at = random.below(script.len() as u64) as usize;
            match random.below(4) {
                0 => script[at] ^= 1 << random.below(8),
                1 => script[at] = random.below(256) as u8,
                2 => script.insert(at, random.below(256) as u8),
                _ => drop(script.remove(at)),
            }
            if script.is_empty() {
                break;
            }
        }
        let result = std::panic::catch_unwind(|| drive::drive(&script));
        assert!(result.is_ok(), "seed {seed} fails: {script:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(2000) })]

    /// Bytes that mean nothing stand behind a good Ethernet header, so that they are looked at.
    #[test]
    fn arbitrary_bytes(
        ethertype in prop_oneof![Just(0x0800u16), Just(0x0806), Just(0x86dd), any::<u16>()],
        bytes in proptest::collection::vec(any::<u8>(), 0..200),
        trusted in any::<bool>(),
    ) {
        drive::drive(&frame_step(&ethernet(ethertype, &bytes), trusted));
    }

    /// Some bytes of a valid frame are changed. The checksums are believed, so that the damage goes deep.
    #[test]
    fn mutated_frames(
        seed in 0usize..16,
        damage in proptest::collection::vec((4usize..120, any::<u8>()), 1..6),
        cut in 0usize..60,
    ) {
        let (_, mut script) = seeds().swap_remove(seed);
        for (at, value) in damage {
            if let Some(byte) = script.get_mut(at) {
                *byte = value;
            }
        }
        script.truncate(script.len().saturating_sub(cut).max(4));
        drive::drive(&script);
    }

    /// A client stack and a server stack have a connection, and every frame is damaged at random on the wire. The
    /// checksums find all damage, and the stream arrives whole.
    #[test]
    fn damage_on_the_wire_is_only_loss(seed in any::<u64>()) {
        let mut net = Net::new();
        let listener = net.server.listen(80);
        let (client, server) = net.establish(listener, at(SERVER, 80));
        let mut random = Random(seed);
        net.client.send(client, &[7; 4000]).unwrap();
        let mut got = 0;
        for _ in 0..3000 {
            for mut frame in net.client.sent() {
                if random.below(3) == 0 {
                    // Only what is behind the Ethernet header is damaged, as that header's checksum is the device's
                    // affair.
                    let at = 14 + random.below(frame.len() as u64 - 14) as usize;
                    frame.data_mut()[at] ^= 1 << random.below(8);
                }
                prop_assert_eq!(frame.checksum(), Checksum::None);
                net.server.receive(frame);
            }
            let data = net.server.recv(server).unwrap_or_default();
            prop_assert!(data.iter().all(|&byte| byte == 7));
            got += data.len();
            for frame in net.server.sent() {
                net.client.receive(frame);
            }
            if got == 4000 {
                break;
            }
            let now = net.client.now_ns + SECOND;
            net.client.run_until(now);
            net.server.run_until(now);
        }
        prop_assert_eq!(got, 4000);
    }
}
