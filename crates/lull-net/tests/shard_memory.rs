//! The memory that clients take is given back when they have gone.

mod shard_harness;

use lull_net::shard::ListenOptions;
use shard_harness::*;

fn crowd(count: u16) -> impl Iterator<Item = Peer> {
    (0..count).map(|n| Peer::new(10_000 + n))
}

#[test]
fn ten_thousand_past_clients_leave_nothing() {
    for ending in ["reset", "closed by the client", "closed by the server"] {
        let mut config = server_config();
        config.rx_buffer_bytes = 1024;
        config.tx_buffer_bytes = 1024;
        let mut host = Host::server_with(config);
        let listener = host.listen(80);
        let empty = host.stack.memory_bytes();
        // One of the first clients outlives the crowd.
        let mut survivor = Peer::new(9_999);
        let kept = host.establish(listener, &mut survivor);
        let with_one = host.stack.memory_bytes();
        let mut clients: Vec<_> = crowd(10_000).collect();
        let ids: Vec<_> = clients.iter_mut().map(|client| host.establish(listener, client)).collect();
        assert!(host.stack.memory_bytes() > 10_000 * 2048);
        for (id, client) in ids.into_iter().zip(&mut clients) {
            match ending {
                "reset" => client.send(&mut host, RST, &[]),
                "closed by the client" => {
                    client.send(&mut host, FIN | ACK, &[]);
                    host.sent();
                }
                _ => {}
            }
            host.close(id);
            if ending != "reset" {
                let fin = host.segments().pop().expect("our FIN");
                client.ack = fin.seq + 1;
                client.send(&mut host, if ending == "closed by the server" { FIN | ACK } else { ACK }, &[]);
                host.sent();
            }
        }
        assert_eq!(host.stack.connections(), 1, "{ending}");
        host.run_for(100 * SECOND);
        assert_eq!(host.stack.time_waits(), 0);
        let left = host.stack.memory_bytes();
        let allowed = with_one + 128 * 1024;
        assert!(left <= allowed, "{ending}: {left} bytes; {empty} with nobody, {with_one} with one");
        survivor.send(&mut host, ACK | PSH, b"still here");
        assert_eq!(host.recv(kept).unwrap(), b"still here");
    }
}

#[test]
fn a_flood_leaves_nothing() {
    let mut host = Host::server();
    let options = ListenOptions { syn_backlog: 60_000, backlog: 60_000, ..Default::default() };
    host.stack.tcp_listen(at("0.0.0.0", 80), options).unwrap();
    let empty = host.stack.memory_bytes();
    crowd(40_000).for_each(|client| {
        host.receive(client.syn().frame());
        host.sent();
    });
    assert_eq!(host.stack.connections(), 40_000);
    while host.stack.connections() > 0 {
        host.run_for(SECOND);
        host.sent();
    }
    let left = host.stack.memory_bytes() - empty;
    assert!(left < 128 * 1024, "{left} bytes");
}
