//! The sockets of a network, as `lull ss` asks for them over the control socket.

use lull_control::schema::{Socket, Sockets};
use lull_net::Network;

/// All sockets and connections of a network, with what its stacks have counted.
pub fn sockets(network: &Network) -> Sockets {
    let infos = network.host().napis();
    let ids: Vec<u32> = network
        .napis()
        .into_iter()
        .map(|place| infos.iter().find(|info| info.index == place).map_or(0, |info| info.id))
        .collect();
    let mut all = Sockets::default();
    for (queue, listed) in network.sockets().into_iter().enumerate() {
        all.sockets.extend(listed.into_iter().map(|it| Socket {
            protocol: if it.is_tcp { "tcp" } else { "udp" }.to_owned(),
            state: it.state.to_owned(),
            local: it.local.to_string(),
            peer: it.peer.map(|peer| peer.to_string()),
            queue,
            napi_id: ids.get(queue).copied().unwrap_or(0),
            rtt_us: it.rtt_us,
            retransmits: it.retransmits,
            send_queue: it.send_queue,
            receive_queue: it.receive_queue,
        }));
    }
    for counters in network.stack_counters() {
        for (name, count) in counters.iter() {
            *all.counters.entry(name.to_owned()).or_default() += count;
        }
    }
    all
}
