//! A host at the driver's end of a device, as far as the tests of the kernel's other end need one.

use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

use lull_nic::{FramePool, Queue};

pub fn readable(fd: BorrowedFd<'_>, timeout: Duration) -> bool {
    let mut entry = libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one entry that outlives the call.
    unsafe { libc::poll(&raw mut entry, 1, timeout.as_millis() as i32) > 0 }
}

/// Answers ARP requests for `own` and echoes UDP datagrams, whatever their length. How many datagrams there were.
pub fn serve(mac: [u8; 6], own: Ipv4Addr, queue: &mut Queue) -> usize {
    let mut datagrams = 0;
    let Queue { rx, tx, .. } = queue;
    let mut pool = FramePool::new(64);
    rx.poll(64, &mut pool, &mut |mut frame, _| {
        let data = frame.data_mut();
        match (&data[12..14], data.get(23)) {
            ([8, 6], _) if data[38..42] == own.octets() => {
                let (kernel_mac, kernel_ip): ([u8; 6], [u8; 4]) =
                    (data[22..28].try_into().unwrap(), data[28..32].try_into().unwrap());
                data[21] = 2;
                data[22..28].copy_from_slice(&mac);
                data[28..32].copy_from_slice(&own.octets());
                data[32..38].copy_from_slice(&kernel_mac);
                data[38..42].copy_from_slice(&kernel_ip);
            }
            ([8, 0], Some(17)) if data[30..34] == own.octets() => {
                datagrams += 1;
                let (source, destination) = data[26..34].split_at_mut(4);
                source.swap_with_slice(destination);
                let (source, destination) = data[34..38].split_at_mut(2);
                source.swap_with_slice(destination);
                // A kernel may have left the checksum to its device; over IPv4 it may be left out (RFC 768).
                data[40..42].fill(0);
            }
            _ => return,
        }
        data.copy_within(6..12, 0);
        data[6..12].copy_from_slice(&mac);
        tx.transmit(frame).expect("a free slot");
    });
    tx.doorbell();
    tx.reap_sent(&mut pool);
    datagrams
}
