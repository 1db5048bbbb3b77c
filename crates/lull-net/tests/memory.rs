//! The memory of a crowd of clients goes back to the system when they have gone. This test has a process of its own,
//! because the resident memory of other tests would disturb it.
#![cfg(target_env = "gnu")]

mod pair;

use std::io::{Read, Write};
use std::net::SocketAddr;

use lull_net::{ListenOptions, TcpListener, TcpStream};
use pair::{Pair, SERVER, until};

const CLIENTS: usize = 240;
/// This is smaller than what glibc maps separately, and so gives back by itself.
const BUFFER_BYTES: usize = 120 * 1024;

fn resident_bytes() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * 1024
}

#[test]
fn the_memory_of_a_crowd_goes_back_to_the_system() {
    let pair = Pair::new();
    let options =
        ListenOptions { rx_buffer_bytes: BUFFER_BYTES, tx_buffer_bytes: BUFFER_BYTES, ..ListenOptions::default() };
    let address = SocketAddr::new(SERVER.parse().unwrap(), 80);
    let listener = TcpListener::bind_with(&pair.server, None, address, options).unwrap();
    let before = resident_bytes();
    // There are small blocks between the buffers, as in a service, so that shrinking the heap at its end does not free
    // the buffers.
    let mut others: Vec<Box<[u8]>> = Vec::new();
    let mut crowd: Vec<(TcpStream, TcpStream)> = Vec::new();
    for _ in 0..CLIENTS {
        let mut client = pair.connect(80);
        let (mut server, _) = listener.accept().unwrap();
        server.write_all(&[7; BUFFER_BYTES / 2]).unwrap();
        client.read_exact(&mut [0; BUFFER_BYTES / 2]).unwrap();
        server.write_all(&[7; BUFFER_BYTES / 2]).unwrap();
        client.read_exact(&mut [0; BUFFER_BYTES / 2]).unwrap();
        crowd.push((server, client));
        others.push(vec![1; 100].into_boxed_slice());
    }
    let full = resident_bytes();
    assert!(full - before > CLIENTS * BUFFER_BYTES / 2, "{} bytes for the crowd", full - before);
    crowd.iter().for_each(|(server, client)| {
        server.set_reset_on_close(true).unwrap();
        client.set_reset_on_close(true).unwrap();
    });
    drop(crowd);
    // What stays are frames, which a shard keeps for its next transmissions.
    until("that the memory is given back", || resident_bytes() < full - CLIENTS * BUFFER_BYTES * 3 / 4);
    assert_eq!(others.len(), CLIENTS);
}
