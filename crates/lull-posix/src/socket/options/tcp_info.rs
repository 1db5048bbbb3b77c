//! TCP_INFO: what lull's stack knows of a connection, in the kernel's form; everything else is 0.

use std::mem::offset_of;
use std::sync::OnceLock;

use libc::{c_int, tcp_info};
use lull_net::TcpStream;

use crate::{Result, kernel};

/// Where `tcpi_notsent_bytes` stands in newer structs (`include/uapi/linux/tcp.h`).
const NOTSENT_AT: usize = 144;
/// `TCPI_OPT_TIMESTAMPS`, `TCPI_OPT_WSCALE`.
const TIMESTAMPS: u8 = 1;
const WINDOW_SCALE: u8 = 4;
const NS_PER_MS: u64 = 1_000_000;

/// The states of `include/net/tcp_states.h`, from 1.
const STATES: [&str; 11] = [
    "ESTABLISHED",
    "SYN-SENT",
    "SYN-RECEIVED",
    "FIN-WAIT-1",
    "FIN-WAIT-2",
    "TIME-WAIT",
    "CLOSED",
    "CLOSE-WAIT",
    "LAST-ACK",
    "LISTEN",
    "CLOSING",
];

/// The struct of a connection, as long as the running kernel's.
pub(super) fn of(stream: &TcpStream, domain: c_int) -> Result<Vec<u8>> {
    let info = stream.info()?;
    let mut bytes = vec![0; length(domain)];
    let mut put = |at: usize, value: &[u8]| {
        if let Some(place) = bytes.get_mut(at..at + value.len()) {
            place.copy_from_slice(value);
        }
    };
    let state = STATES.iter().position(|state| *state == info.state).map_or(0, |nth| nth as u8 + 1);
    let options = if info.timestamps { TIMESTAMPS } else { 0 } | if info.rcv_scale != 0 { WINDOW_SCALE } else { 0 };
    let heard_ms = u32::try_from(info.heard_ns / NS_PER_MS).unwrap_or(u32::MAX).to_ne_bytes();
    put(offset_of!(tcp_info, tcpi_state), &[state]);
    put(offset_of!(tcp_info, tcpi_options), &[options]);
    // The upper half is ours, the lower the peer's, which the stack keeps to itself.
    put(offset_of!(tcp_info, tcpi_snd_rcv_wscale), &[info.rcv_scale << 4]);
    put(offset_of!(tcp_info, tcpi_last_data_recv), &heard_ms);
    put(offset_of!(tcp_info, tcpi_last_ack_recv), &heard_ms);
    put(NOTSENT_AT, &u32::try_from(info.unsent).unwrap_or(u32::MAX).to_ne_bytes());
    Ok(bytes)
}

/// How long the kernel's struct is: a socket of the kernel's says so.
fn length(domain: c_int) -> usize {
    static LENGTH: OnceLock<usize> = OnceLock::new();
    *LENGTH.get_or_init(|| {
        let asked = kernel::socket(domain, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0);
        let length = asked.and_then(|fd| {
            let length = kernel::getsockopt(fd, libc::IPPROTO_TCP, libc::TCP_INFO, &mut [0; 1024]);
            kernel::discard(fd);
            length
        });
        length.unwrap_or(size_of::<tcp_info>())
    })
}
