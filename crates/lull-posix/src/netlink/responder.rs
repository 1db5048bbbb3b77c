//! The generic netlink family `netdev` (`include/uapi/linux/netdev.h`, `net/core/netdev-genl.c` of Linux 6.19) for the NAPIs
//! of lull: a request in, datagrams out. No socket here.
//!
//! `napi-get`, `napi-set` and `queue-get` are answered for lull's device; `dev-get`, page pools, statistics and notifications
//! are the kernel's, and so is every request about another device.

use lull_control::schema::{Change, Napi};
use lull_net::lull_core::Threaded;
use lull_net::lull_core::settings::DEFER_HARD_IRQS_MAX;

use super::message::{Message, Writer, attributes, datagrams, uint};

const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const NLM_F_REQUEST: u16 = 1;
const NLM_F_MULTI: u16 = 2;
const NLM_F_ACK: u16 = 4;
const NLM_F_DUMP: u16 = 0x300;
const NLM_F_CAPPED: u16 = 0x100;
const NLM_F_ACK_TLVS: u16 = 0x200;
const NLMSGERR_ATTR_MSG: u16 = 1;
const NLMSGERR_ATTR_MISS_TYPE: u16 = 5;

/// `GENL_ID_CTRL` and what is asked of it (`linux/genetlink.h`).
const GENL_ID_CTRL: u16 = 0x10;
const CTRL_CMD_NEWFAMILY: u8 = 1;
const CTRL_CMD_GETFAMILY: u8 = 3;
const CTRL_ATTR_FAMILY_ID: u16 = 1;
const CTRL_ATTR_FAMILY_NAME: u16 = 2;
const CTRL_ATTR_VERSION: u16 = 3;
const CTRL_ATTR_HDRSIZE: u16 = 4;
const CTRL_ATTR_MAXATTR: u16 = 5;

const FAMILY_NAME: &[u8] = b"netdev\0";
const FAMILY_VERSION: u8 = 1;
/// The family's number where the kernel has no such family (before Linux 6.8): the highest there is (`GENL_MAX_ID`), which the
/// kernel gives out last.
pub(crate) const OWN_FAMILY_ID: u16 = 1023;

/// `NETDEV_CMD_*`.
const CMD_QUEUE_GET: u8 = 10;
const CMD_NAPI_GET: u8 = 11;
const CMD_NAPI_SET: u8 = 14;

/// `NETDEV_A_NAPI_*`.
mod napi {
    pub(super) const IFINDEX: u16 = 1;
    pub(super) const ID: u16 = 2;
    pub(super) const PID: u16 = 4;
    pub(super) const DEFER_HARD_IRQS: u16 = 5;
    pub(super) const GRO_FLUSH_TIMEOUT: u16 = 6;
    pub(super) const IRQ_SUSPEND_TIMEOUT: u16 = 7;
    pub(super) const THREADED: u16 = 8;
}

/// `NETDEV_A_QUEUE_*`.
mod queue {
    pub(super) const ID: u16 = 1;
    pub(super) const IFINDEX: u16 = 2;
    pub(super) const TYPE: u16 = 3;
    pub(super) const NAPI_ID: u16 = 4;
}

/// What has NAPIs of lull.
pub(crate) trait Plane {
    /// The index that its device has among the kernel's.
    fn ifindex(&self) -> u32;

    /// The NAPIs that are enabled; nothing if nobody has any. With `start` an engine that does not run yet is started.
    fn napis(&mut self, start: bool) -> Option<Vec<Napi>>;

    /// Changes the settings of one.
    fn set(&mut self, id: u32, change: Change) -> Result<(), String>;
}

/// What of a socket matters for its answers.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Asker {
    /// Its port.
    pub(crate) port: u32,
    /// NETLINK_CAP_ACK: an error does not repeat the request.
    pub(crate) cap_ack: bool,
    /// NETLINK_EXT_ACK: an error comes with words.
    pub(crate) ext_ack: bool,
}

/// The family `netdev` of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Family {
    /// Its number.
    pub(crate) id: u16,
    /// Whether the kernel has it; if not, its number is [`OWN_FAMILY_ID`].
    pub(crate) is_kernels: bool,
}

/// What becomes of a request.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It is the kernel's.
    Kernels,
    /// These datagrams answer it.
    Answered(Vec<Vec<u8>>),
    /// These datagrams are the first part of the answer; the kernel, which gets it as well, gives the rest.
    AndKernels(Vec<Vec<u8>>),
}

/// Why a request is refused.
struct Refusal {
    error: i32,
    words: String,
    missing: Option<u16>,
}

fn refusal(error: i32, words: &str) -> Refusal {
    Refusal { error, words: words.to_owned(), missing: None }
}

/// Answers a request, if it is about lull.
pub(crate) fn respond(message: &Message<'_>, family: Family, asker: Asker, plane: &mut dyn Plane) -> Outcome {
    // Only requests are answered (`netlink_rcv_skb`); the rest is no business of a family.
    let [command, _, _, _, rest @ ..] = message.payload else { return Outcome::Kernels };
    if message.flags & NLM_F_REQUEST == 0 {
        return Outcome::Kernels;
    }
    let Some(given) = attributes(rest) else { return Outcome::Kernels };
    let request = Request { message, command: *command, given, asker };
    if message.kind == GENL_ID_CTRL && !family.is_kernels {
        return request.of_controller();
    }
    if message.kind != family.id {
        return Outcome::Kernels;
    }
    match (*command, request.is_dump()) {
        (CMD_NAPI_GET, true) => request.dump_napis(family, plane),
        (CMD_NAPI_GET, false) => request.get_napi(family, plane),
        (CMD_QUEUE_GET, true) => request.dump_queues(family, plane),
        (CMD_QUEUE_GET, false) => request.get_queue(family, plane),
        (CMD_NAPI_SET, false) => request.set_napi(family, plane),
        _ if family.is_kernels => Outcome::Kernels,
        _ => request.refused(refusal(libc::EOPNOTSUPP, "lull has no such command, and the kernel no family netdev")),
    }
}

struct Request<'a> {
    message: &'a Message<'a>,
    command: u8,
    given: Vec<(u16, &'a [u8])>,
    asker: Asker,
}

impl Request<'_> {
    fn is_dump(&self) -> bool {
        self.message.flags & NLM_F_DUMP == NLM_F_DUMP
    }

    /// An attribute that is a number.
    fn number(&self, name: u16) -> Option<u64> {
        self.given.iter().rev().find(|(given, _)| *given == name).and_then(|(_, content)| uint(content))
    }

    fn answer(&self, kind: u16, command: u8) -> Writer {
        let flags = if self.is_dump() { NLM_F_MULTI } else { 0 };
        Writer::new(kind, flags, self.message.seq, self.asker.port).bytes(&[command, FAMILY_VERSION, 0, 0])
    }

    /// `netlink_ack`.
    fn acknowledgement(&self, refusal: Option<&Refusal>) -> Vec<u8> {
        let words = refusal.filter(|_| self.asker.ext_ack);
        let repeated = refusal.is_some() && !self.asker.cap_ack;
        let capped = if repeated { 0 } else { NLM_F_CAPPED };
        let flags = capped | if words.is_some() { NLM_F_ACK_TLVS } else { 0 };
        let asked = if repeated { self.message.whole } else { &self.message.whole[..super::message::HEADER] };
        let error = refusal.map_or(0, |refusal| -refusal.error);
        let mut written =
            Writer::new(NLMSG_ERROR, flags, self.message.seq, self.asker.port).bytes(&error.to_ne_bytes()).bytes(asked);
        if let Some(refusal) = words {
            written = written.attribute(NLMSGERR_ATTR_MSG, &[refusal.words.as_bytes(), b"\0"].concat());
            if let Some(missing) = refusal.missing {
                written = written.u32(NLMSGERR_ATTR_MISS_TYPE, u32::from(missing));
            }
        }
        written.end()
    }

    fn refused(&self, refusal: Refusal) -> Outcome {
        if self.is_dump() {
            // The error of a dump is in its last message (`netlink_dump_done`).
            return Outcome::Answered(vec![self.end_of_dump(-refusal.error)]);
        }
        Outcome::Answered(vec![self.acknowledgement(Some(&refusal))])
    }

    /// An answer to a request that is no dump, and the acknowledgement where one was asked for.
    fn done(&self, answer: Option<Vec<u8>>) -> Outcome {
        let asked = self.message.flags & NLM_F_ACK != 0;
        let acknowledgement = asked.then(|| self.acknowledgement(None));
        Outcome::Answered(answer.into_iter().chain(acknowledgement).collect())
    }

    fn end_of_dump(&self, error: i32) -> Vec<u8> {
        let done = Writer::new(NLMSG_DONE, NLM_F_MULTI, self.message.seq, self.asker.port);
        done.bytes(&error.to_ne_bytes()).end()
    }

    /// The answers to a dump that nobody else has a part in.
    fn dumped(&self, mut answers: Vec<Vec<u8>>) -> Outcome {
        answers.push(self.end_of_dump(0));
        Outcome::Answered(datagrams(answers))
    }

    /// The answers to a dump of everything, which the kernel ends.
    fn first_part(&self, family: Family, answers: Vec<Vec<u8>>) -> Outcome {
        if family.is_kernels { Outcome::AndKernels(datagrams(answers)) } else { self.dumped(answers) }
    }

    /// A request to the controller, where the kernel has no family of this name.
    fn of_controller(&self) -> Outcome {
        if self.command != CTRL_CMD_GETFAMILY {
            return Outcome::Kernels;
        }
        let family = self
            .answer(GENL_ID_CTRL, CTRL_CMD_NEWFAMILY)
            .attribute(CTRL_ATTR_FAMILY_NAME, FAMILY_NAME)
            .attribute(CTRL_ATTR_FAMILY_ID, &OWN_FAMILY_ID.to_ne_bytes())
            .u32(CTRL_ATTR_VERSION, u32::from(FAMILY_VERSION))
            .u32(CTRL_ATTR_HDRSIZE, 0)
            .u32(CTRL_ATTR_MAXATTR, u32::from(napi::THREADED))
            .end();
        if self.is_dump() {
            return Outcome::AndKernels(vec![family]);
        }
        let is_asked = self.given.iter().any(|(name, content)| match *name {
            CTRL_ATTR_FAMILY_NAME => content.strip_suffix(b"\0").unwrap_or(content) == &FAMILY_NAME[..6],
            CTRL_ATTR_FAMILY_ID => **content == OWN_FAMILY_ID.to_ne_bytes(),
            _ => false,
        });
        if is_asked { self.done(Some(family)) } else { Outcome::Kernels }
    }

    /// `netdev_nl_napi_fill_one`.
    fn napi(&self, family: Family, ifindex: u32, of: &Napi) -> Vec<u8> {
        let settings = &of.settings;
        let mut written = self
            .answer(family.id, CMD_NAPI_GET)
            .u32(napi::ID, of.id)
            .u32(napi::IFINDEX, ifindex)
            .uint(napi::THREADED, threaded_number(settings.threaded));
        if let Some(thread) = of.thread.filter(|_| settings.threaded != Threaded::Off) {
            written = written.u32(napi::PID, thread.unsigned_abs());
        }
        written
            .u32(napi::DEFER_HARD_IRQS, settings.defer_hard_irqs)
            .uint(napi::IRQ_SUSPEND_TIMEOUT, settings.irq_suspend_timeout_ns)
            .uint(napi::GRO_FLUSH_TIMEOUT, settings.gro_flush_timeout_ns)
            .end()
    }

    fn dump_napis(&self, family: Family, plane: &mut dyn Plane) -> Outcome {
        let ifindex = plane.ifindex();
        let asked = self.number(napi::IFINDEX);
        if asked.is_some_and(|asked| asked != u64::from(ifindex)) {
            return if family.is_kernels { Outcome::Kernels } else { self.no_device() };
        }
        let Some(mut napis) = plane.napis(asked.is_some()) else { return Outcome::Kernels };
        // The newest first, as on a device's list (`netif_napi_dev_list_add`).
        napis.sort_by_key(|napi| std::cmp::Reverse(napi.id));
        let answers = napis.iter().map(|napi| self.napi(family, ifindex, napi)).collect();
        if asked.is_some() { self.dumped(answers) } else { self.first_part(family, answers) }
    }

    fn no_device(&self) -> Outcome {
        self.refused(refusal(libc::ENODEV, "lull has no NAPI on this device, and the kernel no family netdev"))
    }

    /// The NAPI that a request names, if it is lull's.
    fn named(&self, plane: &mut dyn Plane) -> Option<Napi> {
        let id = self.number(napi::ID)?;
        plane.napis(false)?.into_iter().find(|napi| u64::from(napi.id) == id)
    }

    /// An id that is not lull's: the kernel's answer, or its words where it has no such family.
    fn unknown_napi(&self, family: Family) -> Outcome {
        match family.is_kernels {
            true => Outcome::Kernels,
            false if self.number(napi::ID).is_none() => self.missing(napi::ID),
            false => self.refused(refusal(libc::ENOENT, "no NAPI has this id")),
        }
    }

    fn missing(&self, name: u16) -> Outcome {
        let words = "a required attribute is missing".to_owned();
        self.refused(Refusal { error: libc::EINVAL, words, missing: Some(name) })
    }

    fn get_napi(&self, family: Family, plane: &mut dyn Plane) -> Outcome {
        match self.named(plane) {
            Some(napi) => self.done(Some(self.napi(family, plane.ifindex(), &napi))),
            None => self.unknown_napi(family),
        }
    }

    /// The device's queues: every NAPI serves the receive queue and the transmit queue of its number.
    fn queues(&self, family: Family, ifindex: u32, napis: &[Napi]) -> Vec<Vec<u8>> {
        let kinds = [queue_type::RX, queue_type::TX].into_iter();
        kinds.flat_map(|kind| napis.iter().map(move |napi| self.queue(family, ifindex, kind, napi))).collect()
    }

    /// `netdev_nl_queue_fill_one`.
    fn queue(&self, family: Family, ifindex: u32, kind: u32, of: &Napi) -> Vec<u8> {
        self.answer(family.id, CMD_QUEUE_GET)
            .u32(queue::ID, of.queue as u32)
            .u32(queue::TYPE, kind)
            .u32(queue::IFINDEX, ifindex)
            .u32(queue::NAPI_ID, of.id)
            .end()
    }

    fn dump_queues(&self, family: Family, plane: &mut dyn Plane) -> Outcome {
        let ifindex = plane.ifindex();
        match self.number(queue::IFINDEX) {
            Some(asked) if asked == u64::from(ifindex) => {
                let Some(mut napis) = plane.napis(true) else { return Outcome::Kernels };
                napis.sort_by_key(|napi| napi.queue);
                self.dumped(self.queues(family, ifindex, &napis))
            }
            Some(_) if !family.is_kernels => self.no_device(),
            // A dump of everything lists the kernel's end of the device, whose queues have the same numbers.
            _ if family.is_kernels => Outcome::Kernels,
            _ => {
                let napis = plane.napis(false).unwrap_or_default();
                self.dumped(self.queues(family, ifindex, &napis))
            }
        }
    }

    fn get_queue(&self, family: Family, plane: &mut dyn Plane) -> Outcome {
        let ifindex = plane.ifindex();
        if self.number(queue::IFINDEX) != Some(u64::from(ifindex)) {
            return if family.is_kernels { Outcome::Kernels } else { self.no_device() };
        }
        let Some(id) = self.number(queue::ID) else { return self.missing(queue::ID) };
        let Some(kind) = self.number(queue::TYPE) else { return self.missing(queue::TYPE) };
        let Some(napis) = plane.napis(true) else { return Outcome::Kernels };
        let is_kind = kind <= u64::from(queue_type::TX);
        match napis.iter().find(|napi| napi.queue as u64 == id).filter(|_| is_kind) {
            Some(napi) => self.done(Some(self.queue(family, ifindex, kind as u32, napi))),
            None => self.refused(refusal(libc::EINVAL, "the device has no such queue")),
        }
    }

    fn set_napi(&self, family: Family, plane: &mut dyn Plane) -> Outcome {
        let Some(napi) = self.named(plane) else { return self.unknown_napi(family) };
        let change = match self.change() {
            Ok(change) => change,
            Err(refusal) => return self.refused(refusal),
        };
        if change != Change::default()
            && let Err(words) = plane.set(napi.id, change)
        {
            return self.refused(Refusal { error: libc::EINVAL, words, missing: None });
        }
        self.done(None)
    }

    /// What a `napi-set` asks for: all of it is within its limits, or nothing is changed (`netdev_napi_set_nl_policy`).
    fn change(&self) -> Result<Change, Refusal> {
        let mut change = Change::default();
        for (name, content) in &self.given {
            let value = uint(content).ok_or_else(|| refusal(libc::EINVAL, "invalid attribute length"))?;
            let at_most =
                |max: u64| if value <= max { Ok(value) } else { Err(refusal(libc::ERANGE, "integer out of range")) };
            match *name {
                napi::ID => {}
                napi::DEFER_HARD_IRQS => change.defer_hard_irqs = Some(at_most(DEFER_HARD_IRQS_MAX)? as u32),
                napi::GRO_FLUSH_TIMEOUT => change.gro_flush_timeout_ns = Some(value),
                napi::IRQ_SUSPEND_TIMEOUT => change.irq_suspend_timeout_ns = Some(value),
                napi::THREADED => {
                    change.threaded = Some(match at_most(2)? {
                        0 => Threaded::Off,
                        1 => Threaded::On,
                        _ => Threaded::BusyPoll,
                    });
                }
                _ => return Err(refusal(libc::EINVAL, "Unknown attribute type")),
            }
        }
        Ok(change)
    }
}

/// `enum netdev_queue_type`.
mod queue_type {
    pub(super) const RX: u32 = 0;
    pub(super) const TX: u32 = 1;
}

/// `enum netdev_napi_threaded`.
fn threaded_number(threaded: Threaded) -> u64 {
    match threaded {
        Threaded::Off => 0,
        Threaded::On => 1,
        Threaded::BusyPoll => 2,
    }
}

#[cfg(test)]
mod tests;
