//! UDP sockets, and datagrams and fragments that tests make by hand.

use std::net::{IpAddr, SocketAddr};

use lull_net::shard::{NetError, SocketId, UdpOptions};
use lull_nic::Frame;

use super::{Host, at, checksum, ip_packet, pseudo};

pub fn bind(host: &mut Host, to: &str, port: u16) -> SocketId {
    host.stack.udp_bind(at(to, port), UdpOptions::default()).unwrap()
}

pub fn send_to(host: &mut Host, id: SocketId, data: &[u8], to: SocketAddr) -> Result<usize, NetError> {
    host.call(|stack, io| stack.udp_send_to(id, data, to, io))
}

pub fn recv(host: &mut Host, id: SocketId) -> Result<(Vec<u8>, SocketAddr), NetError> {
    let mut buffer = vec![0; 65_536];
    let received = host.call(|stack, io| stack.udp_recv_from(id, &mut buffer, io))?;
    buffer.truncate(received.bytes);
    Ok((buffer, received.from))
}

pub fn udp(from: SocketAddr, to: SocketAddr, payload: &[u8]) -> Vec<u8> {
    let mut udp = from.port().to_be_bytes().to_vec();
    udp.extend(to.port().to_be_bytes());
    udp.extend(((8 + payload.len()) as u16).to_be_bytes());
    udp.extend([0, 0]);
    udp.extend(payload);
    let sum = checksum(&[&pseudo(from.ip(), to.ip(), 17, udp.len()), &udp]);
    udp[6..8].copy_from_slice(&sum.to_be_bytes());
    udp
}

/// The fields of a fragment: the identification, the offset in bytes, and whether more fragments follow.
pub type Part = (u32, usize, bool);

/// A fragment with these bytes of a packet's payload.
pub fn fragment((from, to): (IpAddr, IpAddr), protocol: u8, (id, offset, more): Part, payload: &[u8]) -> Frame {
    if from.is_ipv6() {
        let word = offset as u16 | u16::from(more);
        let header = [&[protocol, 0], &word.to_be_bytes()[..], &id.to_be_bytes()].concat();
        return ip_packet(from, to, protocol, 44, &header, payload);
    }
    let mut frame = ip_packet(from, to, protocol, 0, &[], payload);
    let word = (offset / 8) as u16 | u16::from(more) << 13;
    let header = &mut frame.data_mut()[14..34];
    header[4..6].copy_from_slice(&(id as u16).to_be_bytes());
    header[6..8].copy_from_slice(&word.to_be_bytes());
    header[10..12].fill(0);
    let sum = checksum(&[header]).to_be_bytes();
    header[10..12].copy_from_slice(&sum);
    frame
}
