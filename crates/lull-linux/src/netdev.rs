//! The generic netlink family `netdev` (Linux 6.8 for reading NAPIs, 6.13 for setting them): NAPIs and their settings,
//! which queue belongs to which NAPI, what the kernel's policy allows, and links by name.
//!
//! A socket belongs to the network namespace of the thread that made its first request.

use std::io;

use lull_core::{NapiSettings, Threaded};
use netlink_bindings::traits::Pusher;
use netlink_bindings::utils::{chop_header, push_header};
use netlink_bindings::{netdev, nlctrl, rt_link};
use netlink_socket2::{NetlinkSocket, ReplyError};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// Attribute numbers of `enum netdev_a_napi` (`linux/netdev.h`).
mod attribute {
    pub const DEFER_HARD_IRQS: u16 = 5;
    pub const GRO_FLUSH_TIMEOUT: u16 = 6;
    pub const IRQ_SUSPEND_TIMEOUT: u16 = 7;
    pub const THREADED: u16 = 8;
}
/// `NETDEV_CMD_NAPI_SET`.
const CMD_NAPI_SET: u32 = 14;
/// `CTRL_ATTR_POLICY` and `CTRL_ATTR_OP_POLICY` (`linux/genetlink.h`).
const CTRL_ATTR_POLICY: u16 = 8;
const CTRL_ATTR_OP_POLICY: u16 = 9;
/// `CTRL_ATTR_POLICY_DO`.
const CTRL_ATTR_POLICY_DO: u16 = 1;
/// `NL_POLICY_TYPE_ATTR_MAX_VALUE_U` (`linux/netlink.h`).
const POLICY_MAX_VALUE_U: u16 = 5;

/// One NAPI instance as the kernel reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Napi {
    /// Its id, which no other instance of the machine has.
    pub id: u32,
    /// The interrupt, if the driver reports it.
    pub irq: Option<u32>,
    /// Its thread, if it has one.
    pub thread_pid: Option<i32>,
    /// Its settings. What the kernel does not report counts as off.
    pub settings: NapiSettings,
    /// The settings that the kernel does not report.
    pub unreported: Unreported,
}

/// Settings that a kernel does not report for each NAPI, because it has them only for the whole device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unreported {
    /// `defer-hard-irqs` and `gro-flush-timeout` (before Linux 6.13).
    pub deferral: bool,
    /// `threaded` (before Linux 6.17).
    pub threaded: bool,
}

/// Receive or transmit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    /// Receive.
    Rx,
    /// Transmit.
    Tx,
}

/// One queue of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Queue {
    /// Its number, counted for each direction.
    pub index: u32,
    /// The direction.
    pub direction: Direction,
    /// The NAPI that serves it, if the driver reports it.
    pub napi_id: Option<u32>,
}

/// The values that this kernel's `napi-set` accepts; `None` for a setting that it does not know.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Policy {
    /// Highest `defer-hard-irqs`.
    pub defer_hard_irqs_max: Option<u64>,
    /// Highest `gro-flush-timeout` in nanoseconds.
    pub gro_flush_timeout_ns_max: Option<u64>,
    /// Highest `irq-suspend-timeout` in nanoseconds (Linux 6.13).
    pub irq_suspend_timeout_ns_max: Option<u64>,
    /// Highest `threaded`: 1 for threads (Linux 6.17), 2 for threads that busy poll (Linux 6.19).
    pub threaded_max: Option<u64>,
}

/// A link of this network namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// Its name.
    pub name: String,
    /// Its index.
    pub ifindex: u32,
    /// Whether it is administratively up (`IFF_UP`).
    pub up: bool,
    /// The kind of a virtual device (`veth`, `bridge`).
    pub kind: Option<String>,
}

/// A change of one NAPI's settings. What is `None` stays as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NapiChange {
    /// `defer-hard-irqs`.
    pub defer_hard_irqs: Option<u32>,
    /// `gro-flush-timeout` in nanoseconds.
    pub gro_flush_timeout_ns: Option<u64>,
    /// `irq-suspend-timeout` in nanoseconds.
    pub irq_suspend_timeout_ns: Option<u64>,
    /// `threaded`.
    pub threaded: Option<Threaded>,
}

impl NapiChange {
    /// The change that turns `from` into `to`.
    pub fn between(from: &NapiSettings, to: &NapiSettings) -> NapiChange {
        fn differing<T: PartialEq>(from: T, to: T) -> Option<T> {
            (from != to).then_some(to)
        }
        NapiChange {
            defer_hard_irqs: differing(from.defer_hard_irqs, to.defer_hard_irqs),
            gro_flush_timeout_ns: differing(from.gro_flush_timeout_ns, to.gro_flush_timeout_ns),
            irq_suspend_timeout_ns: differing(from.irq_suspend_timeout_ns, to.irq_suspend_timeout_ns),
            threaded: differing(from.threaded, to.threaded),
        }
    }

    /// Whether nothing changes.
    pub fn is_empty(&self) -> bool {
        *self == NapiChange::default()
    }
}

/// The number that netlink uses for a value of `threaded` (`enum netdev_napi_threaded`).
pub fn threaded_number(threaded: Threaded) -> u32 {
    match threaded {
        Threaded::Off => 0,
        Threaded::On => 1,
        Threaded::BusyPoll => 2,
    }
}

/// The value of `threaded` for a number in netlink or `/sys`.
pub(crate) fn threaded_of(number: u64) -> Threaded {
    match number {
        0 => Threaded::Off,
        1 => Threaded::On,
        _ => Threaded::BusyPoll,
    }
}

/// The netlink socket.
pub struct Netdev {
    socket: NetlinkSocket,
}

impl Default for Netdev {
    fn default() -> Netdev {
        Netdev::new()
    }
}

impl Netdev {
    /// A socket that is opened by its first request, in the network namespace of the thread that makes that request.
    pub fn new() -> Netdev {
        Netdev { socket: NetlinkSocket::new() }
    }

    /// All links of the network namespace (`RTM_GETLINK`).
    ///
    /// # Errors
    /// Those of netlink.
    pub fn links(&mut self) -> Result<Vec<Link>> {
        self.links_raw().map_err(|error| refused("list the network devices", "the kernel needs rtnetlink", error))
    }

    fn links_raw(&mut self) -> std::result::Result<Vec<Link>, ReplyError> {
        let request = rt_link::Request::new().op_getlink_dump(&rt_link::Ifinfomsg::new());
        let mut replies = self.socket.request(&request)?;
        let mut links = Vec::new();
        while let Some((header, attributes)) = replies.recv().transpose()? {
            let kind = attributes.get_linkinfo().ok().and_then(|info| info.get_kind().ok());
            links.push(Link {
                name: attributes.get_ifname()?.to_string_lossy().into_owned(),
                ifindex: header.ifi_index as u32,
                up: header.ifi_flags & libc::IFF_UP as u32 != 0,
                kind: kind.map(|kind| kind.to_string_lossy().into_owned()),
            });
        }
        Ok(links)
    }

    /// The other end of a veth, if it is in this network namespace.
    pub(crate) fn peer_of(&mut self, ifindex: u32) -> Option<String> {
        let header = rt_link::Ifinfomsg { ifi_index: ifindex as i32, ..rt_link::Ifinfomsg::new() };
        let request = rt_link::Request::new().op_getlink_do(&header);
        let mut reply = self.socket.request(&request).ok()?;
        let (_, attributes) = reply.recv_one().ok()?;
        let peer = attributes.get_link().ok()?;
        if attributes.get_link_netnsid().is_ok() {
            return None;
        }
        self.links().ok()?.into_iter().find(|link| link.ifindex == peer).map(|link| link.name)
    }

    /// The NAPIs of a device, oldest id first. A device that is down shows none.
    ///
    /// # Errors
    /// The kernel has no family `netdev`, or no `napi-get` (before Linux 6.8).
    pub fn napis(&mut self, ifindex: u32) -> Result<Vec<Napi>> {
        self.napis_raw(ifindex).map_err(|error| refused("read NAPIs", "it takes Linux 6.8 or newer", error))
    }

    fn napis_raw(&mut self, ifindex: u32) -> std::result::Result<Vec<Napi>, ReplyError> {
        let mut request = netdev::Request::new().op_napi_get_dump();
        let _ = request.encode().push_ifindex(ifindex);
        let mut replies = self.socket.request(&request)?;
        let mut napis = Vec::new();
        while let Some(attributes) = replies.recv().transpose()? {
            let (settings, unreported) = settings(attributes.get_buf());
            napis.push(Napi {
                id: attributes.get_id()?,
                irq: attributes.get_irq().ok(),
                thread_pid: attributes.get_pid().ok().and_then(|pid| i32::try_from(pid).ok()),
                settings,
                unreported,
            });
        }
        napis.sort_by_key(|napi| napi.id);
        Ok(napis)
    }

    /// The queues of a device.
    ///
    /// # Errors
    /// Those of netlink.
    pub fn queues(&mut self, ifindex: u32) -> Result<Vec<Queue>> {
        self.queues_raw(ifindex).map_err(|error| refused("read queues", "it takes Linux 6.8 or newer", error))
    }

    fn queues_raw(&mut self, ifindex: u32) -> std::result::Result<Vec<Queue>, ReplyError> {
        let mut request = netdev::Request::new().op_queue_get_dump();
        let _ = request.encode().push_ifindex(ifindex);
        let mut replies = self.socket.request(&request)?;
        let mut queues = Vec::new();
        while let Some(attributes) = replies.recv().transpose()? {
            let direction =
                if attributes.get_type()? == netdev::QueueType::Rx as u32 { Direction::Rx } else { Direction::Tx };
            queues.push(Queue { index: attributes.get_id()?, direction, napi_id: attributes.get_napi_id().ok() });
        }
        queues.sort_by_key(|queue| (queue.direction, queue.index));
        Ok(queues)
    }

    /// Sets what `change` names on one NAPI, all of it or nothing (`napi-set` checks the whole message first).
    ///
    /// # Errors
    /// ENOENT for an id that no longer exists, EPERM without CAP_NET_ADMIN in the initial user namespace, ERANGE beyond
    /// the kernel's policy, EOPNOTSUPP before Linux 6.13.
    pub fn set(&mut self, napi_id: u32, change: &NapiChange) -> Result<()> {
        let mut request = netdev::Request::new().op_napi_set_do();
        let mut attributes = request.encode().push_id(napi_id);
        if let Some(value) = change.defer_hard_irqs {
            attributes = attributes.push_defer_hard_irqs(value);
        }
        if let Some(value) = change.gro_flush_timeout_ns {
            push_uint(attributes.as_vec_mut(), attribute::GRO_FLUSH_TIMEOUT, value);
        }
        if let Some(value) = change.irq_suspend_timeout_ns {
            push_uint(attributes.as_vec_mut(), attribute::IRQ_SUSPEND_TIMEOUT, value);
        }
        if let Some(value) = change.threaded {
            attributes = attributes.push_threaded(threaded_number(value));
        }
        drop(attributes);
        let acknowledged =
            self.socket.request(&request).map_err(ReplyError::from).and_then(|mut reply| reply.recv_ack());
        acknowledged.map_err(|error| {
            let remedy = match error.as_io_error().raw_os_error() {
                Some(libc::ENOENT) => {
                    "it is gone, or belongs to another network namespace: `lull show` lists those there are"
                }
                Some(libc::EOPNOTSUPP) => "settings per NAPI take Linux 6.13 or newer",
                _ => "`lull doctor` says what this kernel supports",
            };
            refused(&format!("set NAPI {napi_id}"), remedy, error)
        })
    }

    /// The values that this kernel's `napi-set` accepts (`CTRL_CMD_GETPOLICY`). If there is no `napi-set`, nothing is
    /// accepted.
    ///
    /// # Errors
    /// Those of netlink other than "no such command".
    pub fn policy(&mut self) -> Result<Policy> {
        match self.policy_raw() {
            Ok(policy) => Ok(policy),
            Err(error)
                if matches!(
                    error.as_io_error().raw_os_error(),
                    Some(libc::ENOENT | libc::EOPNOTSUPP | libc::EINVAL)
                ) =>
            {
                Ok(Policy::default())
            }
            Err(error) => Err(refused("ask for the policy of napi-set", "it takes Linux 5.10 or newer", error)),
        }
    }

    fn policy_raw(&mut self) -> std::result::Result<Policy, ReplyError> {
        let mut request = nlctrl::Request::new().op_getpolicy_dump();
        let _ = request.encode().push_family_name_bytes(netdev::PROTONAME.as_bytes()).push_op(CMD_NAPI_SET);
        let mut replies = self.socket.request(&request)?;
        let mut index = None;
        let mut policy = Policy::default();
        while let Some(reply) = replies.recv().transpose()? {
            for (kind, value) in attributes(reply.get_buf()) {
                match kind {
                    CTRL_ATTR_OP_POLICY => {
                        let of_set = attributes(value).find(|(op, _)| u32::from(*op) == CMD_NAPI_SET);
                        let doing =
                            of_set.and_then(|(_, op)| attributes(op).find(|(kind, _)| *kind == CTRL_ATTR_POLICY_DO));
                        index = doing.and_then(|(_, number)| uint(number)).or(index);
                    }
                    CTRL_ATTR_POLICY => {
                        for (_, of_policy) in attributes(value).filter(|(at, _)| Some(u64::from(*at)) == index) {
                            attributes(of_policy).for_each(|(name, rules)| policy.note(name, rules));
                        }
                    }
                    _ => {}
                }
            }
        }
        Ok(policy)
    }

    /// The number of the family; `None` if the kernel has none (before Linux 6.8), or does not answer.
    pub fn family(&mut self) -> Option<u16> {
        let mut request = nlctrl::Request::new().op_getfamily_do();
        let _ = request.encode().push_family_name_bytes(netdev::PROTONAME.as_bytes());
        let mut reply = self.socket.request(&request).ok()?;
        reply.recv_one().ok()?.get_family_id().ok()
    }

    /// The number of a multicast group of a generic netlink family, if the kernel has it.
    pub(crate) fn group(&mut self, family: &str, name: &str) -> Option<u32> {
        let mut request = nlctrl::Request::new().op_getfamily_do();
        let _ = request.encode().push_family_name_bytes(family.as_bytes());
        let mut reply = self.socket.request(&request).ok()?;
        let family = reply.recv_one().ok()?;
        let mut groups = family.get_mcast_groups().ok()?;
        groups.find(|group| group.get_name().is_ok_and(|it| it.to_bytes() == name.as_bytes()))?.get_id().ok()
    }
}

impl Policy {
    fn note(&mut self, name: u16, rules: &[u8]) {
        let max = attributes(rules).find(|(kind, _)| *kind == POLICY_MAX_VALUE_U).and_then(|(_, max)| uint(max));
        let max = Some(max.unwrap_or(u64::MAX));
        match name {
            attribute::DEFER_HARD_IRQS => self.defer_hard_irqs_max = max,
            attribute::GRO_FLUSH_TIMEOUT => self.gro_flush_timeout_ns_max = max,
            attribute::IRQ_SUSPEND_TIMEOUT => self.irq_suspend_timeout_ns_max = max,
            attribute::THREADED => self.threaded_max = max,
            _ => {}
        }
    }
}

/// Type and content of each attribute.
fn attributes(buffer: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    let mut at = 0;
    std::iter::from_fn(move || chop_header(buffer, &mut at).map(|(header, content)| (header.r#type, content)))
}

/// Reads an attribute of the netlink type `uint`, which has four bytes, or eight if the value needs them.
fn uint(content: &[u8]) -> Option<u64> {
    match content.len() {
        4 => Some(u64::from(u32::from_ne_bytes(content.try_into().ok()?))),
        8 => Some(u64::from_ne_bytes(content.try_into().ok()?)),
        _ => None,
    }
}

fn push_uint(buffer: &mut Vec<u8>, name: u16, value: u64) {
    if let Ok(short) = u32::try_from(value) {
        push_header(buffer, name, 4);
        buffer.extend(short.to_ne_bytes());
    } else {
        push_header(buffer, name, 8);
        buffer.extend(value.to_ne_bytes());
    }
}

fn settings(buffer: &[u8]) -> (NapiSettings, Unreported) {
    let mut settings = NapiSettings::default();
    let mut unreported = Unreported { deferral: true, threaded: true };
    for (name, content) in attributes(buffer) {
        let Some(value) = uint(content) else { continue };
        match name {
            attribute::DEFER_HARD_IRQS => {
                settings.defer_hard_irqs = value as u32;
                unreported.deferral = false;
            }
            attribute::GRO_FLUSH_TIMEOUT => settings.gro_flush_timeout_ns = value,
            attribute::IRQ_SUSPEND_TIMEOUT => settings.irq_suspend_timeout_ns = value,
            attribute::THREADED => {
                settings.threaded = threaded_of(value);
                unreported.threaded = false;
            }
            _ => {}
        }
    }
    (settings, unreported)
}

/// An error for a refusal, with the kernel's own words if it had any.
pub(crate) fn refused(what: &str, remedy: &str, error: ReplyError) -> Error {
    let words = error.ext_ack().and_then(|ack| ack.get_msg().ok().map(|words| words.to_string_lossy().into_owned()));
    match Error::os(what, remedy, io::Error::from(error)) {
        Error::Os { what, remedy, source, .. } => Error::Os { what, remedy, source, said: words },
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_have_four_or_eight_bytes() {
        for value in [0, 20_000, u64::from(u32::MAX), u64::from(u32::MAX) + 1, u64::MAX] {
            let mut buffer = Vec::new();
            push_uint(&mut buffer, attribute::GRO_FLUSH_TIMEOUT, value);
            push_uint(&mut buffer, attribute::IRQ_SUSPEND_TIMEOUT, 1);
            let (settings, _) = settings(&buffer);
            assert_eq!(settings.gro_flush_timeout_ns, value);
            assert_eq!(settings.irq_suspend_timeout_ns, 1, "behind a value of {value}");
        }
    }

    #[test]
    fn what_older_kernels_leave_out_is_not_reported() {
        let mut buffer = Vec::new();
        assert_eq!(settings(&buffer).1, Unreported { deferral: true, threaded: true }, "Linux 6.8");
        push_uint(&mut buffer, attribute::DEFER_HARD_IRQS, 0);
        push_uint(&mut buffer, attribute::GRO_FLUSH_TIMEOUT, 0);
        assert_eq!(settings(&buffer).1, Unreported { deferral: false, threaded: true }, "Linux 6.13");
        push_uint(&mut buffer, attribute::THREADED, 2);
        let (settings, unreported) = settings(&buffer);
        assert_eq!((settings.threaded, unreported), (Threaded::BusyPoll, Unreported::default()));
    }

    #[test]
    fn only_what_differs_is_changed() {
        let from = NapiSettings { defer_hard_irqs: 1, gro_flush_timeout_ns: 2, ..NapiSettings::default() };
        let to = NapiSettings { gro_flush_timeout_ns: 3, ..from };
        let change = NapiChange::between(&from, &to);
        assert_eq!(change, NapiChange { gro_flush_timeout_ns: Some(3), ..NapiChange::default() });
        assert!(NapiChange::between(&to, &to).is_empty());
    }
}
