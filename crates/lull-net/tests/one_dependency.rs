//! A program can reach everything that it needs through `lull_net`, which is its only dependency here. This file
//! compiles only while the crate exports all types of its signatures.

use std::io::{Error, Read, Result, Write};
use std::sync::Arc;
use std::time::Duration;

use lull_net::lull_nic::mem::{self, MemConfig};
use lull_net::{
    AppHalf, AppPolicy, Device, Epoll, EpollOptions, EpollParams, EpollStats, Event, Host, HostConfig, Interest,
    ListenOptions, Mode, NapiSettings, Network, NetworkConfig, Notifier, Ready, Source, StackCounters, Sysctl,
    TcpListener, TcpStream, UdpOptions, UdpSocket, Worker,
};

const NOTICE: u64 = 1;

/// One function has every kind of error in it: `?` is enough for each.
fn networks(mode: &Mode) -> Result<(Host, Network, Network)> {
    let (server, client) = mem::pair(MemConfig::default());
    let sysctl = Sysctl { busy_poll_usecs: 0, ..Sysctl::default() };
    let epoll = EpollOptions::strict_linux();
    let host = Host::new(HostConfig { cpus: vec![None, None], sysctl, epoll, ..HostConfig::default() })?;
    let made = |device: Arc<dyn Device>, address: &str, cpu| {
        let addresses = vec![(address.parse().map_err(Error::other)?, 24)];
        let config = NetworkConfig { addresses, cpus: vec![cpu], ..NetworkConfig::default() };
        Ok::<Network, Error>(Network::new(&host, device, config.with_mode(mode))?)
    };
    let server = made(Arc::new(server), "10.0.0.2", 0)?;
    let client = made(Arc::new(client), "10.0.0.1", 1)?;
    Ok((host, server, client))
}

fn add(epoll: &Epoll, source: &impl Source, key: u64) -> Result<Notifier> {
    epoll.add(source, key, Interest::READABLE)?;
    Ok(epoll.notifier(NOTICE))
}

#[test]
fn a_program_with_one_dependency_serves_and_asks() -> Result<()> {
    let mode: Mode = "suspend200".parse().map_err(Error::other)?;
    let (host, server, client) = networks(&mode)?;
    let worker = Worker::new(&host, 0)?;
    let epoll = Epoll::new(&host);
    let policy: AppPolicy = AppHalf::of(&mode).on(&epoll)?;
    let params: EpollParams = epoll.busy_poll();
    assert_eq!((params, policy.timeout()), (mode.epoll, None));

    let options = ListenOptions { backlog: 8, ..ListenOptions::default() };
    let at = "10.0.0.2:7".parse().map_err(Error::other)?;
    let listener = TcpListener::bind_with(&server, None, at, options)?;
    let notifier = add(&epoll, &listener, 0)?;
    notifier.notify();
    let mut events: Vec<Event> = Vec::new();
    epoll.wait(&worker, &mut events, 8, Some(Duration::from_secs(120)))?;
    assert_eq!((events[0].key, events[0].ready), (NOTICE, Ready::READABLE));

    let mut asking = TcpStream::connect(&client, at)?;
    let (mut served, _peer) = listener.accept()?;
    asking.write_all(b"tcp")?;
    let mut buffer = [0; 3];
    served.read_exact(&mut buffer)?;
    assert_eq!(&buffer, b"tcp");

    let receiver = UdpSocket::bind_with(&server, 0, at, UdpOptions::default())?;
    UdpSocket::bind(&client, "10.0.0.1:0")?.send_to(b"udp", at)?;
    assert_eq!(receiver.recv_from(&mut buffer)?.0, 3);

    let counters: Vec<StackCounters> = server.stack_counters();
    assert_eq!(counters[0].udp_datagrams, 1);
    assert_eq!(epoll.wait(&worker, &mut events, 8, Some(Duration::ZERO))?, 0);
    let stats: EpollStats = [&epoll].into_iter().map(Epoll::stats).sum();
    assert_eq!((stats.calls, stats.with_events, stats.events), (2, 1, 1));
    client.set_napi_all(&NapiSettings::default())?;
    Ok(())
}
