//! Streams between two hosts. Every byte is checked.

use lull_net::shard::{NetError, Ready, SocketId};

use super::{Host, Net, SECOND};

/// The byte at this place of the stream in this direction.
pub fn byte(place: usize, salt: u8) -> u8 {
    (place as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes()[0] ^ salt
}

/// One direction of a connection: what was written to it, and what was read and found right. Its ends act only when
/// they are told that they can.
pub struct Stream {
    pub salt: u8,
    pub length: usize,
    pub written: usize,
    pub read: usize,
    pub can_write: bool,
}

impl Stream {
    pub fn of(length: usize, salt: u8) -> Stream {
        Stream { salt, length, written: 0, read: 0, can_write: true }
    }

    pub fn write(&mut self, host: &mut Host, id: SocketId) {
        while self.can_write && self.written < self.length {
            let end = self.length.min(self.written + 10_000);
            let data: Vec<u8> = (self.written..end).map(|place| byte(place, self.salt)).collect();
            match host.send(id, &data) {
                Ok(count) => self.written += count,
                Err(NetError::WouldBlock) => self.can_write = false,
                Err(error) => panic!("{error} after {} bytes", self.written),
            }
        }
    }

    pub fn read(&mut self, host: &mut Host, id: SocketId) {
        loop {
            match host.recv(id) {
                Ok(data) => {
                    assert!(!data.is_empty(), "the stream ended after {} bytes", self.read);
                    for value in data {
                        assert_eq!(value, byte(self.read, self.salt), "byte {}", self.read);
                        self.read += 1;
                    }
                }
                Err(NetError::WouldBlock) => return,
                Err(error) => panic!("{error} after {} bytes", self.read),
            }
        }
    }

    pub fn is_through(&self) -> bool {
        self.read == self.length
    }
}

/// What a host was told of a connection since this was last asked.
pub fn told(host: &mut Host, id: SocketId) -> Ready {
    let changes = host.changes.drain(..).filter(|change| change.socket == id);
    changes.fold(Ready::empty(), |all, change| all | change.edges)
}

/// Sends `up` and `down` bytes between the ends of a connection. Returns how long that took.
pub fn exchange(net: &mut Net, (client, server): (SocketId, SocketId), up: usize, down: usize) -> u64 {
    let (mut up, mut down) = (Stream::of(up, 1), Stream::of(down, 2));
    let (start, patience) = (net.now_ns, 4000 * SECOND);
    while !up.is_through() || !down.is_through() {
        up.write(&mut net.client, client);
        down.write(&mut net.server, server);
        assert!(net.step(start + patience), "{} and {} bytes came", up.read, down.read);
        let (to_client, to_server) = (told(&mut net.client, client), told(&mut net.server, server));
        up.can_write |= to_client.contains(Ready::WRITABLE);
        down.can_write |= to_server.contains(Ready::WRITABLE);
        if to_server.contains(Ready::READABLE) {
            up.read(&mut net.server, server);
        }
        if to_client.contains(Ready::READABLE) {
            down.read(&mut net.client, client);
        }
    }
    net.now_ns - start
}
