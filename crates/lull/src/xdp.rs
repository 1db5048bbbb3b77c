//! The options of an AF_XDP device, `xdp:DEV[:QUEUES]`, and the description of what was opened.

use std::net::IpAddr;

use clap::Args;
use lull_nic::Device;
use lull_nic::xdp::{BusyPoll, Xdp, XdpAddress, XdpConfig, queues_of_the_host};

use crate::failure::Failure;
use crate::units::List;

/// Options of `--nic xdp:DEV`.
#[derive(Args)]
pub struct XdpArgs {
    /// With xdp:DEV, the TCP and UDP ports that are taken from the host, such as 11211,8000-8010. An address of --addr
    /// may then be one of the host's: its ARP, ICMP and all other ports stay the host's. By default all packets to an
    /// address are taken.
    #[arg(long, value_name = "LIST", value_parser = List::parse)]
    ports: Option<List>,
    /// With xdp:DEV, the VLAN: only frames with this tag are taken, and frames are sent with it.
    #[arg(long, value_name = "ID")]
    vlan: Option<u16>,
    /// With xdp:DEV, slots of a queue's receive ring, a power of two; 1024 by default.
    #[arg(long, value_name = "SLOTS")]
    rx_ring: Option<u32>,
    /// With xdp:DEV, slots of a queue's transmit ring, a power of two; 512 by default.
    #[arg(long, value_name = "SLOTS")]
    tx_ring: Option<u32>,
}

impl XdpArgs {
    /// Returns which of the options were given, for a NIC that has none of them.
    pub fn given(&self) -> [(&'static str, bool); 4] {
        [
            ("--ports", self.ports.is_some()),
            ("--vlan", self.vlan.is_some()),
            ("--rx-ring", self.rx_ring.is_some()),
            ("--tx-ring", self.tx_ring.is_some()),
        ]
    }

    /// Whether addresses are taken for some ports only.
    pub fn has_ports(&self) -> bool {
        self.ports.is_some()
    }

    /// Returns the device's settings; `spec` is `DEV[:QUEUES]`.
    pub fn config(&self, spec: &str, addresses: &[(IpAddr, u8)]) -> Result<XdpConfig, Failure> {
        let (name, queues) = named(spec)?;
        let ports = self.ports.as_ref().map_or(&[][..], |list| &list.0);
        let port = |port: &usize| {
            let refused = || format!("cannot take port {port}: ports are 1 to 65535");
            u16::try_from(*port).ok().filter(|port| *port != 0).ok_or_else(refused)
        };
        let default = XdpConfig::default();
        Ok(XdpConfig {
            name,
            queues,
            addresses: addresses.iter().map(|(ip, _)| XdpAddress::look_up(*ip)).collect::<Result<_, _>>()?,
            ports: ports.iter().map(port).collect::<Result<_, _>>()?,
            vlan: self.vlan,
            rx_ring: self.rx_ring.unwrap_or(default.rx_ring),
            tx_ring: self.tx_ring.unwrap_or(default.tx_ring),
            ..default
        })
    }
}

/// Returns the interface and the queues of `DEV[:QUEUES]`.
pub fn named(spec: &str) -> Result<(String, Vec<u32>), Failure> {
    let (name, queues) = spec.split_once(':').map_or((spec, None), |(name, queues)| (name, Some(queues)));
    if name.is_empty() {
        return Err("cannot use xdp: without an interface: write xdp:DEV, as xdp:eth0, or xdp:DEV:QUEUES".into());
    }
    let queues = queues.map(lull_units::numbers).transpose()?.unwrap_or_default();
    Ok((name.to_owned(), queues.into_iter().map(|queue| queue as u32).collect()))
}

/// Says what happens to frames that come by queues which were not asked for; `None` if all queues were.
pub fn left_to_the_host(config: &XdpConfig) -> Option<String> {
    let numbers =
        |queues: &[u32]| lull_units::numbers_text(&queues.iter().map(|queue| *queue as usize).collect::<Vec<_>>());
    let others = queues_of_the_host(&config.name, &config.queues);
    (!config.queues.is_empty() && !others.is_empty()).then(|| {
        let (name, ours, others) = (&config.name, numbers(&config.queues), numbers(&others));
        format!(
            "what comes by queue {others} of {name} is the host's, for lull's addresses too: steer those to queue {ours} (ethtool \
             -X, or -N), or take all queues, as xdp:{name}"
        )
    })
}

/// Describes the device that was opened in a few words: where the program runs, who copies, and which queues it has.
pub fn words(device: &Xdp) -> String {
    let report = device.report();
    let copies = match report.zero_copy.iter().filter(|zero_copy| **zero_copy).count() {
        0 => "copy",
        all if all == report.zero_copy.len() => "zero-copy",
        _ => "zero-copy on some queues",
    };
    let queues: Vec<_> = report.queues.iter().map(|queue| *queue as usize).collect();
    let why = report.native_refused.map_or(String::new(), |why| format!(" (the driver refused: {why})"));
    let busy = match report.busy_poll {
        BusyPoll::Refused(why) => format!(", without busy polling of the driver ({why})"),
        BusyPoll::InForce(_) | BusyPoll::NoNapi => String::new(),
    };
    format!("{}{why}, {copies}, queues {}{busy}", report.mode, lull_units::numbers_text(&queues))
}

/// Describes what was counted by the time the service ends.
pub fn at_the_end(device: &Xdp) -> String {
    let report = device.report();
    let empty: u64 = report.rx_fill_ring_empty.iter().sum();
    let busy = match report.busy_poll {
        BusyPoll::InForce(ids) => format!("calls could busy poll the driver, by its NAPI ids {ids:?}"),
        BusyPoll::NoNapi => "there was no NAPI of the driver that a call could busy poll".to_owned(),
        BusyPoll::Refused(why) => format!("busy polling of the driver was refused: {why}"),
    };
    let counters = (0..device.info().queues).map(|queue| device.counters(queue));
    let (frames, calls) = counters.fold((0, 0), |sum, queue| (sum.0 + queue.tx_frames, sum.1 + queue.syscalls));
    format!("{frames} frames were sent with {calls} system calls; the fill ring was found empty {empty} times; {busy}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_are_a_list_behind_the_interface() {
        assert_eq!(named("eth0").unwrap(), ("eth0".to_owned(), vec![]));
        assert_eq!(named("eth0:0,2-3").unwrap(), ("eth0".to_owned(), vec![0, 2, 3]));
        for bad in ["", ":0", "eth0:", "eth0:x"] {
            assert!(named(bad).is_err(), "{bad}");
        }
    }
}
