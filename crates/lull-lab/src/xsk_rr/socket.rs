//! The interface of the sockets that the benchmark runs on.

use std::io;

use lull_net::PacketSocket;

/// A socket for whole frames, with AF_XDP's calls. Threads share it.
pub trait RawSocket: Send + Sync {
    /// Sends a frame. Returns false if there is no room for it now.
    ///
    /// # Errors
    ///
    /// This fails if the device is gone.
    fn send(&self, frame: &[u8]) -> io::Result<bool>;

    /// Takes a received frame off the ring, without a call. Returns its size in bytes.
    fn try_recv(&self, buffer: &mut [u8]) -> Option<usize>;

    /// Makes a receive call that takes no frame (`recvfrom`). It polls the queue if the socket's options say so.
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
