//! An echo server over the in-memory NIC, with its client in the same process.

use std::io::{Read, Write};
use std::sync::Arc;
use std::time::Duration;

use lull_net::lull_nic::mem::{self, MemConfig};
use lull_net::{Epoll, Host, HostConfig, Interest, Network, NetworkConfig, TcpListener, TcpStream, Worker};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (server_port, client_port) = mem::pair(MemConfig::default());
    let host = Host::new(HostConfig { cpus: vec![None, None], ..HostConfig::default() })?;
    let network = |port, address: &str, cpu| {
        let addresses = vec![(address.parse().expect("an address"), 24)];
        Network::new(&host, Arc::new(port), NetworkConfig { addresses, cpus: vec![cpu], ..NetworkConfig::default() })
    };
    let server = network(server_port, "10.0.0.2", 0)?;
    let client = network(client_port, "10.0.0.1", 1)?;

    let listener = TcpListener::bind(&server, "10.0.0.2:7")?;
    let worker = Worker::new(&host, 0)?;
    let echo = std::thread::spawn(move || -> std::io::Result<usize> {
        let epoll = Epoll::new(worker.host());
        listener.set_nonblocking(true)?;
        epoll.add(&listener, 0, Interest::READABLE)?;
        let mut events = Vec::new();
        epoll.wait(&worker, &mut events, 16, Some(Duration::from_secs(10)))?;
        let (mut stream, peer) = listener.accept()?;
        println!("accepted {peer}");
        epoll.add(&stream, 1, Interest::READABLE)?;
        let mut buffer = [0; 1024];
        let mut echoed = 0;
        loop {
            events.clear();
            epoll.wait(&worker, &mut events, 16, Some(Duration::from_secs(10)))?;
            match stream.read(&mut buffer)? {
                0 => return Ok(echoed),
                count => stream.write_all(&buffer[..count])?,
            }
            echoed += 1;
        }
    });

    let mut stream = TcpStream::connect(&client, "10.0.0.2:7")?;
    println!("connected");
    for round in 0..1000 {
        let message = format!("hello {round}");
        stream.write_all(message.as_bytes())?;
        let mut reply = vec![0; message.len()];
        stream.read_exact(&mut reply)?;
        assert_eq!(reply, message.as_bytes());
    }
    drop(stream);
    println!("echoed {} messages", echo.join().expect("the server's thread")?);
    Ok(())
}
