//! A program on the receive path below a network runs whoever polls.

mod pair;

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use lull_core::settings::WEIGHT_DEFAULT;
use lull_core::{NapiSettings, Threaded};
use lull_host::GroupOptions;
use lull_net::UdpSocket;
use lull_nic::program::{Action, Programmed};
use lull_nic::wire::{ETHERNET, ETHERTYPE_IPV4, PROTOCOL_UDP, be16};
use lull_nic::{Device, Frame};
use pair::{CLIENT, Pair, SERVER, until};

/// Datagrams to this port never reach the stack.
const DROPPED: u16 = 9;
const HEARD: u16 = 10;

fn is_to(frame: &Frame, port: u16) -> bool {
    let data = frame.data();
    data.len() > ETHERNET + 28
        && be16(data, 12) == ETHERTYPE_IPV4
        && data[ETHERNET + 9] == PROTOCOL_UDP
        && be16(data, ETHERNET + 22) == port
}

#[test]
fn what_a_program_drops_no_socket_hears_and_all_else_passes_whoever_polls() {
    let threaded = |threaded| NapiSettings { threaded, ..NapiSettings::default() };
    let settings =
        [threaded(Threaded::Off), threaded(Threaded::On), threaded(Threaded::BusyPoll), threaded(Threaded::Off)];
    for (nth, napi) in settings.into_iter().enumerate() {
        let ran = Arc::new(AtomicU64::new(0));
        let programmed: Arc<OnceLock<Arc<Programmed>>> = Arc::default();
        let (counting, keeping) = (ran.clone(), programmed.clone());
        let pair = Pair::with(
            1,
            move |device| {
                let make = move |_queue| -> Box<dyn lull_nic::program::FrameProgram> {
                    let ran = counting.clone();
                    Box::new(move |frame: &mut Frame| {
                        ran.fetch_add(1, Ordering::Relaxed);
                        if is_to(frame, DROPPED) { Action::Drop } else { Action::Pass }
                    })
                };
                let device = Arc::new(Programmed::new(device, make));
                let _ = keeping.set(device.clone());
                device as Arc<dyn Device>
            },
            napi,
        );
        let programmed = programmed.get().unwrap();
        let napi = pair.server.napis()[0];
        let by_group = nth == 3;
        if by_group {
            let group = pair.host.new_group(GroupOptions { oversubscribe: true, ..GroupOptions::default() }).unwrap();
            pair.host.group_attach(group, 0).unwrap();
            pair.host.group_add(group, napi, WEIGHT_DEFAULT).unwrap();
        }
        let address = |ip: &str, port| SocketAddr::new(ip.parse().unwrap(), port);
        let [deaf, hears] = [DROPPED, HEARD].map(|port| UdpSocket::bind(&pair.server, address(SERVER, port)).unwrap());
        // A stream passes as if there were no program. Afterwards each end knows the other's address, so that no
        // datagram waits for an answer to ARP, where only a few may wait.
        let listener = pair.listener(80);
        let mut client = pair.connect(80);
        let (mut server, _) = listener.accept().unwrap();
        client.write_all(b"stream").unwrap();
        let mut read = [0; 6];
        server.read_exact(&mut read).unwrap();
        assert_eq!(&read, b"stream");
        let sender = UdpSocket::bind(&pair.client, address(CLIENT, 0x1234)).unwrap();
        for _ in 0..20 {
            sender.send_to(b"dropped", address(SERVER, DROPPED)).unwrap();
            sender.send_to(b"heard", address(SERVER, HEARD)).unwrap();
        }
        let mut buffer = [0; 16];
        for _ in 0..20 {
            assert_eq!(hears.recv(&mut buffer).unwrap(), 5);
        }
        until("the drops", || programmed.counts().dropped == 20);
        assert_eq!(deaf.unread().unwrap(), 0);
        let (stats, counts) = (pair.host.napi_stats(napi), programmed.counts());
        assert_eq!(counts.passed + counts.dropped, ran.load(Ordering::Relaxed));
        let polled = [stats.softirq_polls, stats.thread_polls, stats.thread_polls, stats.group_polls][nth];
        assert!(polled > 0, "case {nth}: {stats:?}");
    }
}
