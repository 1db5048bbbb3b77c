//! Timestamps and PAWS (RFC 7323), and their use for TIME-WAIT (RFC 6191) and for SYN cookies.

mod shard_harness;

use lull_net::shard::{BufferGrowth, NetError, SocketId, StackConfig, SynCookies};
use shard_harness::*;

const DAY: u64 = 86_400 * SECOND;

fn option(value: u32, echo: u32) -> Vec<u8> {
    [&[1, 1, 8, 10], &value.to_be_bytes()[..], &echo.to_be_bytes()].concat()
}

/// The value and the echo of a segment's timestamp option.
fn timestamp(segment: &Tcp) -> Option<(u32, u32)> {
    let at = segment.options.windows(2).position(|option| option == [8, 10])? + 2;
    let word = |at: usize| u32::from_be_bytes(segment.options[at..at + 4].try_into().unwrap());
    Some((word(at), word(at + 4)))
}

/// A client with a clock.
struct Client {
    peer: Peer,
    clock: u32,
    /// Our clock, as the client has heard it last.
    echo: u32,
}

impl Client {
    fn new(port: u16) -> Client {
        Client { peer: Peer::new(port), clock: 70_000, echo: 0 }
    }

    fn syn(&self) -> Tcp {
        let mut syn = self.peer.syn();
        syn.options.extend(option(self.clock, 0));
        syn
    }

    fn segment(&self, flags: u8, payload: &[u8]) -> Tcp {
        Tcp { options: option(self.clock, self.echo), ..self.peer.segment(flags, payload) }
    }

    fn send(&mut self, host: &mut Host, flags: u8, payload: &[u8]) {
        host.receive(self.segment(flags, payload).frame());
        self.peer.seq += payload.len() as u32 + u32::from(flags & FIN != 0);
        self.clock += 1;
    }

    fn open(&mut self, host: &mut Host, listener: SocketId) -> SocketId {
        host.receive(self.syn().frame());
        let reply = host.segments().remove(0);
        let (value, echo) = timestamp(&reply).expect("timestamps are agreed on");
        assert_eq!(echo, self.clock);
        self.echo = value;
        (self.peer.seq, self.peer.ack) = (self.peer.seq + 1, reply.seq + 1);
        self.clock += 1;
        self.send(host, ACK, &[]);
        host.accept(listener)
    }
}

#[test]
fn both_sides_send_timestamps_if_both_want_to() {
    let mut host = Host::server();
    let listener = host.listen(80);
    let mut client = Client::new(4000);
    let id = client.open(&mut host, listener);
    let first = client.echo;
    host.run_for(SECOND);
    client.send(&mut host, ACK | PSH, b"question");
    assert_eq!(host.recv(id).unwrap(), b"question");
    let acknowledgement = host.segments();
    assert_eq!((acknowledgement.len(), timestamp(&acknowledgement[0]).map(|it| it.1)), (1, Some(client.clock - 1)));
    host.send(id, &[1; 2000]).unwrap();
    let answer = host.segments();
    let (value, echo) = timestamp(&answer[0]).expect("a timestamp on every segment");
    assert_eq!((value, echo), (first + 1000, client.clock - 1), "a millisecond a tick, and the last value heard");
    assert_eq!(answer[0].payload.len(), 1448, "twelve bytes are the option's");
    // There are none with a client that offers none.
    let mut plain = Peer::new(4001);
    let id = host.establish(listener, &mut plain);
    host.send(id, &[1; 2000]).unwrap();
    let answer = host.segments();
    assert_eq!((timestamp(&answer[0]), answer[0].payload.len()), (None, 1460));
    // There are none if they are turned off.
    let mut config = server_config();
    config.timestamps = false;
    let mut host = Host::server_with(config);
    host.listen(80);
    host.receive(Client::new(4000).syn().frame());
    assert_eq!(timestamp(&host.segments()[0]), None);
}

/// RFC 7323 section 5.3: a segment of a former round of the sequence numbers fits the window, but its clock is behind.
#[test]
fn paws_refuses_what_is_older_than_what_came() {
    let mut host = Host::server();
    let listener = host.listen(80);
    let mut client = Client::new(4000);
    let id = client.open(&mut host, listener);
    let mut old = client.segment(ACK | PSH, b"old");
    old.options = option(client.clock - 50, client.echo);
    host.receive(old.frame());
    assert_eq!(host.recv(id), Err(NetError::WouldBlock));
    let told = host.segments();
    assert_eq!((told.len(), told[0].flags, told[0].ack), (1, ACK, client.peer.seq));
    assert_eq!(timestamp(&told[0]).map(|(_, echo)| echo), Some(client.clock - 1));
    assert_eq!(host.stack.counters().drop_paws, 1);
    client.send(&mut host, ACK | PSH, b"new");
    assert_eq!(host.recv(id).unwrap(), b"new");
    // Two segments of one tick may overtake each other.
    client.clock -= 2;
    client.send(&mut host, ACK | PSH, b"same tick");
    assert_eq!(host.recv(id).unwrap(), b"same tick");
    // A clock that was last seen 24 days ago may have wrapped around.
    client.clock = client.clock.wrapping_sub(1 << 20);
    host.run_for(25 * DAY);
    host.sent();
    client.send(&mut host, ACK | PSH, b"weeks later");
    assert_eq!(host.recv(id).unwrap(), b"weeks later");
    // From then on the clock is compared with its new value.
    let old = Tcp { options: option(client.clock - 5000, 0), ..client.segment(ACK | PSH, b"old") };
    host.receive(old.frame());
    assert_eq!((host.recv(id), host.stack.counters().drop_paws), (Err(NetError::WouldBlock), 2));
    // A reset is believed whatever its clock is, because its number is exact.
    let reset = Tcp { options: option(client.clock - 5000, 0), ..client.segment(RST, &[]) };
    host.receive(reset.frame());
    assert_eq!(host.recv(id), Err(NetError::ConnectionReset));
}

/// `tcp_ack` looks at the acknowledgement before it takes a timestamp.
#[test]
fn the_clock_of_a_segment_that_is_doubted_is_not_believed() {
    let mut host = Host::server();
    let listener = host.listen(80);
    let mut client = Client::new(4000);
    let id = client.open(&mut host, listener);
    let ahead = option(client.clock + (1 << 30), 0);
    let unsent = Tcp { ack: client.peer.ack + 100_000, ..client.segment(ACK | PSH, b"unsent") };
    let again = Tcp { flags: SYN, ..client.segment(ACK, &[]) };
    for forged in [unsent, again] {
        host.receive(Tcp { options: ahead.clone(), ..forged }.frame());
    }
    assert_eq!(host.segments()[0].flags, ACK, "the peer is asked");
    client.send(&mut host, ACK | PSH, b"genuine");
    assert_eq!((host.recv(id).unwrap(), host.stack.counters().drop_paws), (b"genuine".to_vec(), 0));
}

/// RFC 7323 section 4.3: the echo is the value of the segment that last advanced the window, and not of one beyond a
/// hole.
#[test]
fn the_echo_is_that_of_the_last_segment_in_order() {
    let mut host = Host::server();
    let listener = host.listen(80);
    let mut client = Client::new(4000);
    client.open(&mut host, listener);
    let in_order = client.clock - 1;
    client.clock += 100;
    client.peer.seq += 500;
    client.send(&mut host, ACK | PSH, b"beyond a hole");
    let told = host.segments();
    assert_eq!(timestamp(&told[0]).map(|(_, echo)| echo), Some(in_order));
    // PAWS compares with that value as well.
    client.clock = in_order + 1;
    client.peer.seq -= 513;
    client.send(&mut host, ACK | PSH, &[1; 500]);
    assert_eq!(host.stack.counters().drop_paws, 0);
    assert_eq!(host.segments()[0].ack, client.peer.seq + 13);
}

/// RFC 6191: by its clock a SYN may be new although its number is old, or old although its number is new.
#[test]
fn time_wait_gives_way_to_a_newer_clock() {
    let mut host = Host::server();
    let listener = host.listen(80);
    let mut client = Client::new(4000);
    let id = client.open(&mut host, listener);
    host.close(id);
    let fin = host.segments().remove(0);
    client.peer.ack = fin.seq + 1;
    client.send(&mut host, FIN | ACK, &[]);
    let last = host.segments().remove(0);
    assert_eq!(timestamp(&last).map(|(_, echo)| echo), Some(client.clock - 1));
    let mut old = Client { clock: client.clock - 100, ..Client::new(4000) };
    old.peer.seq = client.peer.seq + 5000;
    host.receive(old.syn().frame());
    let told = host.segments();
    assert_eq!((told[0].flags, host.stack.time_waits()), (ACK, 1));
    assert!(timestamp(&told[0]).is_some());
    let mut new = Client { clock: client.clock + 100, ..Client::new(4000) };
    new.peer.seq = client.peer.seq.wrapping_sub(5000);
    host.receive(new.syn().frame());
    assert_eq!((host.segments()[0].flags, host.stack.time_waits()), (SYN | ACK, 0));
}

/// `cookie_init_timestamp`: the low bits of our clock carry what a cookie has no room for.
#[test]
fn a_cookie_with_timestamps_keeps_window_scale_and_sack() {
    for (extra, scale, sack) in
        [(&[1, 3, 3, 7, 1, 1, 4, 2][..], 7, true), (&[1, 3, 3, 2][..], 2, false), (&[][..], 0, false)]
    {
        let mut config = server_config();
        config.syncookies = SynCookies::Always;
        config.tx_buffer_bytes = 64 * 1024;
        let mut host = Host::server_with(config);
        let listener = host.listen(80);
        let mut client = Client::new(4000);
        client.peer.window = 100;
        let mut syn = client.syn();
        syn.options.extend(extra);
        host.receive(syn.frame());
        let reply = host.segments().remove(0);
        client.echo = timestamp(&reply).unwrap().0;
        (client.peer.seq, client.peer.ack) = (client.peer.seq + 1, reply.seq + 1);
        client.clock += 1;
        client.send(&mut host, ACK, &[]);
        let id = host.accept(listener);
        host.send(id, &[1; 1400]).unwrap();
        let sent = host.segments();
        let bytes: usize = sent.iter().map(|segment| segment.payload.len()).sum();
        assert_eq!(bytes, 1400.min(100 << scale));
        let (value, echo) = timestamp(&sent[0]).unwrap();
        assert!(echo == client.clock - 1 && value >= client.echo, "our clock does not run backwards");
        client.peer.seq += 100;
        client.send(&mut host, ACK | PSH, b"beyond a hole");
        let told = host.segments().remove(0);
        assert_eq!(told.options.windows(2).any(|option| option == [5, 10]), sack);
    }
}

/// There are timestamps in both directions on a bad wire. PAWS drops nothing that is wanted, and every byte arrives.
#[test]
fn a_stream_with_timestamps_survives_loss_and_reordering() {
    let mut net = Net::new();
    let listener = net.server.listen(80);
    let (client, server) = net.establish(listener, at(SERVER, 80));
    (net.loss, net.reorder) = (20, 100);
    let data: Vec<u8> = (0..200_000u32).map(|at| ((at * 31) >> 4) as u8).collect();
    let (mut sent, mut got) = (0, Vec::new());
    while got.len() < data.len() {
        sent += net.client.send(client, &data[sent..]).unwrap_or(0);
        assert!(net.now_ns < 100_000 * SECOND, "{} bytes arrived", got.len());
        net.run_for(MS);
        got.extend(net.server.recv(server).unwrap_or_default());
    }
    assert!(got == data);
}

/// RFC 7323 section 3.2: this includes segments that smoltcp is made to send, such as a window that has become larger.
#[test]
fn every_acknowledgement_has_a_timestamp() {
    let growth = BufferGrowth { rx_bytes_max: 64 << 10, tx_bytes_max: 64 << 10, total_bytes_max: 1 << 20 };
    let mut host = Host::server_with(StackConfig { growth, ..server_config() });
    let listener = host.listen(80);
    let mut client = Client::new(4000);
    let id = client.open(&mut host, listener);
    host.call(|stack, io| stack.set_receive_buffer(id, 50_000, io)).unwrap();
    let told = host.segments();
    assert_eq!(told.len(), 1, "the larger window");
    assert_eq!(timestamp(&told[0]).map(|it| it.1), Some(client.clock - 1), "{told:?}");
}
