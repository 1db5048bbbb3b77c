//! Which addresses launchers and services of this network namespace have taken for lull, so that a second one can warn
//! of it.
//!
//! Two NICs may have one address for a reason (each has peers of its own), so it is not refused. But the host's routes
//! lead to one of them only, and a client that asks the other gets no answer.
//!
//! The record is a name in the abstract namespace of unix sockets, `@lull/address/IP/PID/NIC`. This belongs to the
//! network namespace, the kernel removes it when its process ends in any way, and it is listed in `/proc/net/unix`.

use std::fs;
use std::net::IpAddr;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

const PREFIX: &str = "lull/address";

/// The addresses of which all ports are taken for as long as this is kept.
pub struct OwnAddresses {
    _names: Vec<UnixDatagram>,
}

impl OwnAddresses {
    /// Takes addresses for `nic`. `say` gets a line for each address that another process has on another NIC, or that
    /// is there twice on this one.
    pub fn take(addresses: &[(IpAddr, u8)], nic: &str, mut say: impl FnMut(&str)) -> OwnAddresses {
        let table = fs::read_to_string("/proc/net/unix").unwrap_or_default();
        for (address, _) in addresses {
            for (pid, other) in holders(&table, *address) {
                say(&format!(
                    "{address} is the address of process {pid} on {other}, too: the routes of this host lead to one of the two; \
                     give this one another --addr, or end that one"
                ));
            }
        }
        let name = |address: &IpAddr| {
            // If a name cannot be made, others are not warned; the program itself is not affected.
            let name =
                SocketAddr::from_abstract_name(format!("{PREFIX}/{address}/{}/{nic}", std::process::id())).ok()?;
            UnixDatagram::bind_addr(&name).ok()
        };
        OwnAddresses { _names: addresses.iter().filter_map(|(address, _)| name(address)).collect() }
    }
}

/// Returns the processes that have the address, each with its NIC, from the kernel's table of unix sockets.
fn holders(table: &str, address: IpAddr) -> Vec<(u32, &str)> {
    let prefix = format!("@{PREFIX}/{address}/");
    let holders = table.lines().filter_map(|line| line.split_once(&*prefix)?.1.split_once('/'));
    holders.filter_map(|(pid, nic)| Some((pid.parse().ok()?, nic))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_held_until_its_process_lets_go_and_others_hear_of_it() {
        let addresses: Vec<(IpAddr, u8)> =
            vec![("192.0.2.77".parse().unwrap(), 24), ("2001:db8::77".parse().unwrap(), 64)];
        let mut told = Vec::new();
        let first = OwnAddresses::take(&addresses, "tap:one", |line| told.push(line.to_owned()));
        assert!(told.is_empty(), "{told:?}");
        let other: Vec<(IpAddr, u8)> = vec![("192.0.2.7".parse().unwrap(), 24), addresses[1]];
        drop(OwnAddresses::take(&other, "tap:two", |line| told.push(line.to_owned())));
        let [told] = &told[..] else { panic!("{told:?}") };
        let begins = format!("2001:db8::77 is the address of process {} on tap:one, too", std::process::id());
        assert!(told.starts_with(&begins), "{told}");
        drop(first);
        drop(OwnAddresses::take(&addresses, "tap:two", |line| panic!("{line}")));
    }
}
