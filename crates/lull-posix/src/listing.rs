//! The sockets of a network, as `lull ss` asks for them over the control socket.

use lull_control::schema::{Socket, Sockets};
use lull_net::Network;

/// All sockets and connections of a network, with what its stacks have counted.
pub fn sockets(network: &Network) -> Sockets {
    let infos = network.host().napis();
    // As each queue is shown: its number and its NAPI's id.
    let known: Vec<(usize, u32)> = network
        .napis()
        .into_iter()
        .map(|place| infos.iter().find(|info| info.index == place).map_or((0, 0), |info| (info.queue, info.id)))
        .collect();
    let mut all = Sockets::default();
    for (nth, listed) in network.sockets().into_iter().enumerate() {
        let (queue, napi_id) = known.get(nth).copied().unwrap_or((nth, 0));
        all.sockets.extend(listed.into_iter().map(|it| Socket {
            protocol: if it.is_tcp { "tcp" } else { "udp" }.to_owned(),
            state: it.state.to_owned(),
            local: it.local.to_string(),
            peer: it.peer.map(|peer| peer.to_string()),
            queue,
            napi_id,
            rtt_us: it.rtt_us,
            retransmits: it.retransmits,
            send_queue: it.send_queue,
            receive_queue: it.receive_queue,
            priority: it.priority,
            pacing_bytes_per_s: it.pacing_bytes_per_s,
        }));
    }
    for counters in network.stack_counters() {
        for (name, count) in counters.iter() {
            *all.counters.entry(name.to_owned()).or_default() += count;
        }
    }
    all
}
