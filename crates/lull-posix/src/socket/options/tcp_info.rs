//! TCP_INFO: what lull's stack knows of a connection, in the kernel's form; everything else is 0.

use std::mem::offset_of;
use std::sync::OnceLock;

use libc::{c_int, tcp_info};
use lull_net::TcpStream;

use super::Name;
use crate::{Result, kernel};

/// Where `tcpi_notsent_bytes`, `tcpi_snd_wnd` and `tcpi_rcv_wnd` stand in newer structs (`include/uapi/linux/tcp.h`).
const NOTSENT_AT: usize = 144;
const SND_WND_AT: usize = 228;
const RCV_WND_AT: usize = 232;
/// `TCPI_OPT_TIMESTAMPS`, `TCPI_OPT_SACK`, `TCPI_OPT_WSCALE`.
const TIMESTAMPS: u8 = 1;
const SACK: u8 = 2;
const WINDOW_SCALE: u8 = 4;
/// `TCP_INFINITE_SSTHRESH`: nothing was lost yet.
const NOTHING_LOST: u32 = 0x7fff_ffff;
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

/// The struct for a connection, as long as the running kernel has it.
pub(super) fn of(stream: &TcpStream, domain: c_int) -> Result<Vec<u8>> {
    let info = stream.info()?;
    let mut bytes = vec![0; length(domain)];
    let mut put = |at: usize, value: &[u8]| {
        if let Some(place) = bytes.get_mut(at..at + value.len()) {
            place.copy_from_slice(value);
        }
    };
    let state = STATES.iter().position(|state| *state == info.state).map_or(0, |nth| nth as u8 + 1);
    // Either both ends have offered window scaling or neither has, and one of the two scales may be 0.
    let options =
        [(info.timestamps, TIMESTAMPS), (info.sack, SACK), (info.rcv_scale != 0 || info.snd_scale != 0, WINDOW_SCALE)];
    let options = options.into_iter().filter(|(agreed, _)| *agreed).fold(0, |all, (_, option)| all | option);
    put(offset_of!(tcp_info, tcpi_state), &[state]);
    put(offset_of!(tcp_info, tcpi_options), &[options]);
    put(offset_of!(tcp_info, tcpi_snd_rcv_wscale), &[info.rcv_scale << 4 | info.snd_scale]);
    let heard_ms = usize::try_from(info.heard_ns / NS_PER_MS).unwrap_or(usize::MAX);
    let mut number = |at: usize, value: usize| put(at, &u32::try_from(value).unwrap_or(u32::MAX).to_ne_bytes());
    number(offset_of!(tcp_info, tcpi_snd_mss), info.snd_mss);
    number(offset_of!(tcp_info, tcpi_advmss), info.advertised_mss);
    number(offset_of!(tcp_info, tcpi_pmtu), info.path_mtu);
    number(offset_of!(tcp_info, tcpi_unacked), info.in_flight.div_ceil(info.snd_mss));
    number(offset_of!(tcp_info, tcpi_last_data_recv), heard_ms);
    number(offset_of!(tcp_info, tcpi_last_ack_recv), heard_ms);
    number(offset_of!(tcp_info, tcpi_rtt), info.rtt_us as usize);
    number(offset_of!(tcp_info, tcpi_rttvar), info.rtt_var_us as usize);
    if let Some(window) = info.congestion_window {
        number(offset_of!(tcp_info, tcpi_snd_cwnd), (window / info.snd_mss).max(1));
        number(offset_of!(tcp_info, tcpi_snd_ssthresh), NOTHING_LOST as usize);
    }
    number(offset_of!(tcp_info, tcpi_rcv_ssthresh), info.receive_buffer);
    number(offset_of!(tcp_info, tcpi_rcv_space), info.receive_buffer);
    number(offset_of!(tcp_info, tcpi_total_retrans), info.retransmits as usize);
    number(NOTSENT_AT, info.unsent);
    number(SND_WND_AT, info.snd_window);
    number(RCV_WND_AT, info.rcv_window);
    Ok(bytes)
}

/// The value of TCP_MAXSEG, IP_MTU or IPV6_MTU, over either IP version; `None` for every other option.
pub(super) fn number(stream: &TcpStream, name: Name) -> Option<c_int> {
    let info = stream.info().ok();
    let number = match name {
        // Before the peer has said how much it takes, the placeholder has the same to say.
        (libc::IPPROTO_TCP, libc::TCP_MAXSEG) => info.filter(|info| info.state != "SYN-SENT")?.snd_mss,
        (libc::SOL_IP, libc::IP_MTU) | (libc::SOL_IPV6, libc::IPV6_MTU) => info?.path_mtu,
        _ => return None,
    };
    Some(number as c_int)
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
