//! Addresses as callers write them.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};

/// Tries each address in turn until one succeeds, as `std::net` does. If none does, the last error is returned.
pub(super) fn each<T>(
    addresses: impl ToSocketAddrs,
    mut attempt: impl FnMut(SocketAddr) -> io::Result<T>,
) -> io::Result<T> {
    let mut last = None;
    for address in addresses.to_socket_addrs()? {
        match attempt(address) {
            Ok(done) => return Ok(done),
            Err(error) => last = Some(error),
        }
    }
    Err(last.unwrap_or_else(none))
}

/// The first of the addresses.
pub(super) fn first(addresses: impl ToSocketAddrs) -> io::Result<SocketAddr> {
    addresses.to_socket_addrs()?.next().ok_or_else(none)
}

fn none() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "no address was given: a list is empty, or a name has none")
}
