//! What sockets there are, as `ss` lists them.

use std::net::SocketAddr;

use smoltcp::socket::tcp::State;

use super::connection::Phase;
use super::socket::Egress;
use super::stack::Stack;

/// One socket, or one connection that outlives its socket.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Listed {
    /// Whether it is TCP's; if not, it is UDP's.
    pub is_tcp: bool,
    /// Its state, as `ss` names it.
    pub state: &'static str,
    /// Its own address.
    pub local: SocketAddr,
    /// Its peer's, if it has one.
    pub peer: Option<SocketAddr>,
    /// The smoothed round trip in microseconds, once there was one.
    pub rtt_us: Option<u32>,
    /// Times that something was sent again.
    pub retransmits: u32,
    /// Bytes that are not acknowledged; of a listener, the connections that may wait.
    pub send_queue: usize,
    /// Bytes that were not read; of a listener, the connections that wait to be accepted.
    pub receive_queue: usize,
    /// SO_PRIORITY.
    pub priority: u8,
    /// SO_MAX_PACING_RATE, if it bounds anything.
    pub pacing_bytes_per_s: Option<u64>,
}

fn leaving(listed: Listed, egress: Egress) -> Listed {
    let rate = egress.pacing_bytes_per_s;
    Listed { priority: egress.priority, pacing_bytes_per_s: (rate != 0).then_some(rate), ..listed }
}

impl Stack {
    /// All sockets and connections of the shard.
    pub fn list(&self) -> Vec<Listed> {
        let mut all = Vec::new();
        let of = |is_tcp, state, local, peer| Listed {
            is_tcp,
            state,
            local,
            peer,
            rtt_us: None,
            retransmits: 0,
            send_queue: 0,
            receive_queue: 0,
            priority: 0,
            pacing_bytes_per_s: None,
        };
        all.extend(self.listeners.iter().map(|(_, listener)| Listed {
            receive_queue: listener.accepted.len(),
            send_queue: listener.options.backlog,
            ..of(true, "LISTEN", listener.local, None)
        }));
        all.extend(self.half_opens.records.iter().map(|(_, half)| Listed {
            retransmits: half.timeouts,
            ..of(true, "SYN-RECV", half.flow.local(), Some(half.flow.remote()))
        }));
        all.extend(self.connections.iter().map(|(index, connection)| {
            let socket = connection.socket();
            let state = if connection.phase == Phase::Over { State::Closed } else { socket.state() };
            let listed = Listed {
                rtt_us: (connection.rtt_us != 0).then_some(connection.rtt_us),
                retransmits: connection.retransmits.into(),
                send_queue: socket.send_queue(),
                receive_queue: socket.recv_queue(),
                ..of(true, name(state), connection.flow.local(), Some(connection.flow.remote()))
            };
            leaving(listed, self.egress_of(index))
        }));
        let over = self.time_waits.records.iter();
        all.extend(over.map(|(_, it)| of(true, "TIME-WAIT", it.flow.local(), Some(it.flow.remote()))));
        all.extend(self.udps.iter().map(|(_, socket)| {
            let state = if socket.peer.is_some() { "ESTAB" } else { "UNCONN" };
            let listed = Listed { receive_queue: socket.held_bytes, ..of(false, state, socket.local, socket.peer) };
            leaving(listed, socket.egress)
        }));
        all
    }
}

fn name(state: State) -> &'static str {
    match state {
        State::Closed => "UNCONN",
        State::Listen => "LISTEN",
        State::SynSent => "SYN-SENT",
        State::SynReceived => "SYN-RECV",
        State::Established => "ESTAB",
        State::FinWait1 => "FIN-WAIT-1",
        State::FinWait2 => "FIN-WAIT-2",
        State::CloseWait => "CLOSE-WAIT",
        State::Closing => "CLOSING",
        State::LastAck => "LAST-ACK",
        State::TimeWait => "TIME-WAIT",
    }
}
