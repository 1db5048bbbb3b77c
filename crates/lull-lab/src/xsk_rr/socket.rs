//! What the benchmark asks of a socket.

use std::io;

use lull_net::PacketSocket;

/// A socket for whole frames: AF_XDP's calls, whoever implements them. Threads share it.
pub trait RawSocket: Send + Sync {
    /// Sends a frame; false if there is no room for it now.
    ///
    /// # Errors
    /// The device is gone.
    fn send(&self, frame: &[u8]) -> io::Result<bool>;

    /// Takes a received frame off the ring, without a call; its bytes.
    fn try_recv(&self, buffer: &mut [u8]) -> Option<usize>;

    /// A receive call that takes no frame (`recvfrom`): polls the queue if the socket's options say so.
    fn receive_call(&self);
}

impl RawSocket for PacketSocket {
    fn send(&self, frame: &[u8]) -> io::Result<bool> {
        match PacketSocket::send(self, frame) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn try_recv(&self, buffer: &mut [u8]) -> Option<usize> {
        PacketSocket::try_recv(self, buffer)
    }

    fn receive_call(&self) {
        self.poll_once();
    }
}
