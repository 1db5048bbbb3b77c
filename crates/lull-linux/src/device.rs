//! A named device, which is looked up once, and what is in force on it at one moment: its NAPIs, the queues that they
//! serve, their interrupts and threads, and the device-wide defaults of a new NAPI.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use lull_core::NapiSettings;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::error::{Error, Result};
use crate::identity::{Node, sees_this_namespace};
use crate::netdev::{Direction, Napi, Netdev, Queue, Unreported, threaded_of};
use crate::os;
use crate::roots::Roots;
use crate::sched::{Scheduling, scheduling};
use crate::values::Values;

/// A device of this thread's network namespace. All later operations go by its index, so a device that takes over the
/// name is never touched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// Its name when it was looked up.
    pub name: String,
    /// Its index in the namespace.
    pub ifindex: u32,
    /// The namespace (`SO_NETNS_COOKIE`).
    pub netns_cookie: u64,
    /// The driver, or the kind of a virtual device.
    pub driver: Option<String>,
    /// Whether `/sys/class/net` is that of this namespace and shows the device.
    pub in_sysfs: bool,
    /// What tells it from every other device that ever existed or will exist; `None` if sysfs cannot be seen.
    pub node: Option<Node>,
}

impl Device {
    /// Looks the device up.
    ///
    /// # Errors
    /// [`Error::UnknownDevice`], with the devices that exist.
    pub fn open(name: &str, netdev: &mut Netdev, roots: &Roots) -> Result<Device> {
        let links = netdev.links()?;
        let Some(link) = links.iter().find(|link| link.name == name) else {
            let there_are = links.into_iter().map(|link| link.name).collect();
            return Err(Error::UnknownDevice { device: name.to_owned(), there_are });
        };
        let netns_cookie = os::netns_cookie()
            .map_err(|error| Error::os("identify the network namespace", "it takes Linux 5.14 or newer", error))?;
        let in_sysfs = roots
            .read_sys(&format!("class/net/{name}/ifindex"))
            .is_ok_and(|it| it == link.ifindex.to_string() && sees_this_namespace(roots));
        let by_sysfs = || {
            let path = roots.sys(&format!("class/net/{name}/device/driver"));
            let target = std::fs::read_link(path).ok()?;
            Some(target.file_name()?.to_string_lossy().into_owned())
        };
        let driver = link.kind.clone().or_else(|| if in_sysfs { by_sysfs() } else { None });
        let node = Node::find(name, link.ifindex, in_sysfs, roots);
        Ok(Device { name: name.to_owned(), ifindex: link.ifindex, netns_cookie, driver, in_sysfs, node })
    }

    /// Whether the files below `/sys/class/net` under its name belong to it. It may have been renamed, and another one
    /// may have the name.
    pub(crate) fn has_its_files(&self, roots: &Roots) -> bool {
        let index = || roots.read_sys(&format!("class/net/{}/ifindex", self.name));
        self.in_sysfs && index().is_ok_and(|it| it == self.ifindex.to_string())
    }

    /// What is in force now.
    ///
    /// # Errors
    /// [`Error::UnknownDevice`] if the device has vanished, and those of netlink.
    pub fn snapshot(&self, netdev: &mut Netdev, roots: &Roots) -> Result<Snapshot> {
        let links = netdev.links()?;
        let Some(link) = links.iter().find(|link| link.ifindex == self.ifindex) else {
            let there_are = links.into_iter().map(|link| link.name).collect();
            return Err(Error::UnknownDevice { device: self.name.clone(), there_are });
        };
        let queues = netdev.queues(self.ifindex)?;
        let napis = netdev.napis(self.ifindex)?;
        let linked = queues.iter().any(|queue| queue.napi_id.is_some());
        let rx_queues = queues.iter().filter(|queue| queue.direction == Direction::Rx).count();
        let by_order = !linked && napis.len() == rx_queues;
        let interrupts = if self.in_sysfs { virtio_interrupts(&link.name, roots) } else { BTreeMap::new() };
        let mut napis: Vec<NapiState> = napis
            .into_iter()
            .enumerate()
            .map(|(nth, napi)| state_of(napi, nth as u32, &queues, by_order, &interrupts, roots))
            .collect();
        napis.sort_by_key(|napi| (napi.key, napi.id));
        Ok(Snapshot {
            device: link.name.clone(),
            ifindex: self.ifindex,
            driver: self.driver.clone(),
            up: link.up,
            queues_linked: linked,
            rx_queues: rx_queues as u32,
            defaults: self.in_sysfs.then(|| Defaults::read(&link.name, roots)),
            napis,
        })
    }
}

/// The name of a NAPI, whose id may change: it is named after the queue that it serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum QueueKey {
    /// The NAPI of this receive queue (the lowest, if it serves several).
    Rx(u32),
    /// A NAPI that serves transmit queues only, named after the lowest of them.
    Tx(u32),
    /// The n-th NAPI by id, if the driver does not say which queues its NAPIs serve.
    Nth(u32),
}

impl fmt::Display for QueueKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            QueueKey::Rx(queue) => queue.fmt(f),
            QueueKey::Tx(queue) => write!(f, "tx{queue}"),
            QueueKey::Nth(nth) => write!(f, "napi{nth}"),
        }
    }
}

impl FromStr for QueueKey {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<QueueKey, String> {
        let bad = |_| format!("'{text}' is no queue");
        if let Some(queue) = text.strip_prefix("tx") {
            return Ok(QueueKey::Tx(queue.parse().map_err(bad)?));
        }
        if let Some(nth) = text.strip_prefix("napi") {
            return Ok(QueueKey::Nth(nth.parse().map_err(bad)?));
        }
        Ok(QueueKey::Rx(text.parse().map_err(bad)?))
    }
}

impl Serialize for QueueKey {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for QueueKey {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<QueueKey, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// What is in force on a device.
#[derive(Clone, Debug, Serialize)]
pub struct Snapshot {
    /// Its name.
    pub device: String,
    /// Its index.
    pub ifindex: u32,
    /// Its driver, or the kind of a virtual device.
    pub driver: Option<String>,
    /// Whether it is administratively up; a device that is down shows no NAPIs.
    pub up: bool,
    /// Whether the driver says which NAPI serves which queue. If not, the n-th NAPI by id is taken for queue n.
    pub queues_linked: bool,
    /// The number of receive queues.
    pub rx_queues: u32,
    /// The device-wide values of a new NAPI; `None` if `/sys` is that of another namespace.
    pub defaults: Option<Defaults>,
    /// Its NAPIs, in the order of their queues. They are not serialized here, as whoever prints a snapshot adds what
    /// they amount to.
    #[serde(skip_serializing)]
    pub napis: Vec<NapiState>,
}

impl Snapshot {
    /// The NAPI of a queue.
    pub fn napi(&self, key: QueueKey) -> Option<&NapiState> {
        self.napis.iter().find(|napi| napi.key == key)
    }

    /// Whether a NAPI serves this receive queue.
    pub fn serves(&self, queue: u32) -> bool {
        self.napis.iter().any(|napi| napi.rx.contains(&queue))
    }
}

/// Device-wide values in sysfs. They are defaults for new NAPIs, and do not show what `napi-set` has set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Defaults {
    /// `napi_defer_hard_irqs`.
    pub defer_hard_irqs: Option<u64>,
    /// `gro_flush_timeout` in nanoseconds.
    pub gro_flush_timeout_ns: Option<u64>,
    /// `threaded`.
    pub threaded: Option<u64>,
}

impl Defaults {
    fn read(device: &str, roots: &Roots) -> Defaults {
        let number = |file: &str| roots.read_sys(&format!("class/net/{device}/{file}")).ok()?.parse().ok();
        Defaults {
            defer_hard_irqs: number("napi_defer_hard_irqs"),
            gro_flush_timeout_ns: number("gro_flush_timeout"),
            threaded: number("threaded"),
        }
    }
}

/// One NAPI.
#[derive(Clone, Debug, Serialize)]
pub struct NapiState {
    /// The name of the NAPI.
    #[serde(rename = "queue")]
    pub key: QueueKey,
    /// The receive queues that it serves.
    pub rx: Vec<u32>,
    /// The transmit queues that it serves.
    pub tx: Vec<u32>,
    /// Its id.
    pub id: u32,
    /// Its interrupt, if the driver reports it, or names it after its queue (virtio-net).
    pub irq: Option<Irq>,
    /// Its thread, if it has one.
    pub thread: Option<Thread>,
    /// The settings in force. What the kernel does not report counts as off.
    pub settings: Values,
    /// The settings that the kernel does not report ([`NapiState::in_force`]).
    #[serde(skip_serializing)]
    pub unreported: Unreported,
}

impl NapiState {
    /// The settings in force. If the kernel reports none for each NAPI, those of the device are used, as there are no
    /// others then. `None` if these cannot be seen.
    pub fn in_force(&self, defaults: Option<&Defaults>) -> Option<Values> {
        let mut values = self.settings;
        if self.unreported.deferral {
            values.defer_hard_irqs = u32::try_from(defaults?.defer_hard_irqs?).ok()?;
            values.gro_flush_timeout_ns = defaults?.gro_flush_timeout_ns?;
        }
        if self.unreported.threaded {
            // A kernel without such a file has no NAPI threads.
            let threaded = threaded_of(defaults?.threaded.unwrap_or(0));
            values.threaded = Values::from(NapiSettings { threaded, ..NapiSettings::default() }).threaded;
        }
        Some(values)
    }
}

/// An interrupt.
#[derive(Clone, Debug, Serialize)]
pub struct Irq {
    /// Its number.
    pub number: u32,
    /// The CPUs on which it may be raised, in the form of `/proc/irq/N/smp_affinity_list`.
    pub cpus: Option<String>,
    /// The CPU that it is raised on (`effective_affinity_list`).
    pub effective_cpus: Option<String>,
}

/// A NAPI's thread.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Thread {
    /// Its number.
    pub pid: i32,
    /// Where and how it runs; `None` if it is not visible from here (in another pid namespace).
    pub scheduling: Option<Scheduling>,
}

fn state_of(
    napi: Napi,
    nth: u32,
    queues: &[Queue],
    by_order: bool,
    interrupts: &BTreeMap<u32, u32>,
    roots: &Roots,
) -> NapiState {
    let served = |direction| -> Vec<u32> {
        let of_this = queues.iter().filter(|queue| queue.direction == direction && queue.napi_id == Some(napi.id));
        of_this.map(|queue| queue.index).collect()
    };
    let (mut rx, tx) = (served(Direction::Rx), served(Direction::Tx));
    if by_order {
        rx = vec![nth];
    }
    let key = match (rx.first(), tx.first()) {
        (Some(&queue), _) => QueueKey::Rx(queue),
        (None, Some(&queue)) => QueueKey::Tx(queue),
        (None, None) => QueueKey::Nth(nth),
    };
    let number = napi.irq.or_else(|| interrupts.get(rx.first()?).copied());
    let irq = number.map(|number| Irq {
        number,
        cpus: roots.read_proc(&format!("irq/{number}/smp_affinity_list")).ok(),
        effective_cpus: roots.read_proc(&format!("irq/{number}/effective_affinity_list")).ok(),
    });
    let thread = napi.thread_pid.map(|pid| Thread { pid, scheduling: thread_scheduling(pid, roots) });
    NapiState { key, rx, tx, id: napi.id, irq, thread, settings: napi.settings.into(), unreported: napi.unreported }
}

/// virtio-net reports no interrupts to netlink, but names them after its queues: `virtio0-input.2` (`virtnet_find_vqs`;
/// a directory of that name is in `/proc/irq/N`). Returns them by receive queue; the map is empty for other drivers,
/// and if queues share one.
fn virtio_interrupts(device: &str, roots: &Roots) -> BTreeMap<u32, u32> {
    let bus_name = std::fs::canonicalize(roots.sys(&format!("class/net/{device}/device")));
    let bus_name = bus_name.ok().and_then(|path| Some(path.file_name()?.to_string_lossy().into_owned()));
    let Some(bus_name) = bus_name.filter(|name| name.starts_with("virtio")) else { return BTreeMap::new() };
    let input = format!("{bus_name}-input.");
    let numbers = std::fs::read_dir(roots.proc("irq")).into_iter().flatten().flatten();
    let of_queue = numbers.filter_map(|entry| {
        let number = entry.file_name().to_str()?.parse().ok()?;
        let names = std::fs::read_dir(entry.path()).ok()?.flatten();
        let queue = names.filter_map(|name| name.file_name().to_str()?.strip_prefix(&input)?.parse().ok()).next()?;
        Some((queue, number))
    });
    of_queue.collect()
}

/// Whether a number that the kernel has reported for a NAPI's thread is one here. The kernel reports the number of the
/// initial PID namespace; in another one it may belong to some other thread, which has to be left alone.
/// Newer kernels (6.18.44) report 0 there, which a system call takes for the thread that makes it.
pub fn is_napi_thread(pid: i32, roots: &Roots) -> bool {
    roots.read_proc(&format!("{pid}/comm")).is_ok_and(|name| name.starts_with("napi/"))
}

fn thread_scheduling(pid: i32, roots: &Roots) -> Option<Scheduling> {
    if is_napi_thread(pid, roots) { scheduling(pid).ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{create_dir_all, remove_dir_all};

    #[test]
    fn what_a_kernel_reports_for_no_napi_is_the_devices() {
        let settings = NapiSettings::default().into();
        let (key, id, unreported) = (QueueKey::Rx(0), 9, Unreported { deferral: true, threaded: true });
        let napi = NapiState { key, rx: vec![0], tx: Vec::new(), id, irq: None, thread: None, settings, unreported };
        let defaults = Defaults { defer_hard_irqs: Some(100), gro_flush_timeout_ns: Some(20_000), threaded: Some(1) };
        let of_device: NapiSettings = napi.in_force(Some(&defaults)).unwrap().into();
        let deferring: lull_core::Mode = "defer20".parse().unwrap();
        assert_eq!(of_device, NapiSettings { threaded: lull_core::Threaded::On, ..deferring.napi });
        assert_eq!(napi.in_force(None), None);
        let reported = NapiState { unreported: Unreported::default(), ..napi };
        assert_eq!(reported.in_force(Some(&defaults)), Some(settings), "what is reported counts");
        assert_eq!(reported.in_force(None), Some(settings));
    }

    #[test]
    fn interrupts_of_virtio_are_found_by_name() {
        let root = std::env::temp_dir().join(format!("lull-irq-{}", std::process::id()));
        let roots = Roots { sys: root.join("sys"), proc: root.join("proc") };
        let of_bus = roots.sys("devices/pci0/virtio3");
        create_dir_all(&of_bus).unwrap();
        create_dir_all(roots.sys("class/net/eth7")).unwrap();
        std::os::unix::fs::symlink(&of_bus, roots.sys("class/net/eth7/device")).unwrap();
        let names =
            [(25, "virtio3-config"), (26, "virtio3-input.0"), (27, "virtio3-output.0"), (28, "virtio3-input.1")];
        for (number, name) in names.into_iter().chain([(29, "virtio30-input.2")]) {
            create_dir_all(roots.proc(&format!("irq/{number}/{name}"))).unwrap();
        }
        let (found, other) = (virtio_interrupts("eth7", &roots), virtio_interrupts("eth8", &roots));
        remove_dir_all(&root).unwrap();
        assert_eq!(found, BTreeMap::from([(0, 26), (1, 28)]));
        assert!(other.is_empty());
    }
}
