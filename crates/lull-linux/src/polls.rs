//! Records who polled: the kernel's `napi:napi_poll` tracepoint, read raw from a trace instance of lull's own.
//!
//! The tracepoint has the NAPI's address, its device's name, the packets and the budget. With every event come the CPU,
//! the thread, and the context. It does not have the NAPI id, but packets do: `napi_gro_receive_entry` has the id of
//! the NAPI that is being polled. The next poll that ends on that CPU is the one that the packet came in with, because
//! nothing else polls in between (bottom halves are off). That event comes for every packet, so it is on only for as
//! long as somebody wants to know ([`Polls::trace_packets`]). A driver that does without GRO shows no id.
//!
//! With `dev_name == DEV` as a filter inside the kernel only that device is recorded. The per-CPU ring buffers are read
//! as whole pages (`trace_pipe_raw`), which costs the reader a few nanoseconds for each event where text costs
//! microseconds. A million polls per second take the reader 5 % of a core, and none is lost (`lull stat` on the veth of
//! a memcached in fullbusy, on a virtual machine of two cores). The kernel counts events that did not fit, and
//! [`Polls::lost`] returns the count. With [`Options::timers`], `hrtimer_start` and `hrtimer_expire_entry` of
//! `napi_watchdog` are recorded as well. The timer of a NAPI lies inside it, so the timer's address says which NAPI it
//! belongs to, and the time that it is set to says whether it is the deferral's or the suspension's.
//!
//! The filter knows names only, so a device of the same name in another network namespace is recorded as well, under
//! its own address.

mod account;
mod error;
mod format;
mod page;
mod tracefs;

use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

use rustix::time::{ClockId, clock_gettime};

use crate::machine::online_cpus;
use crate::roots::Roots;
use error::{DEVICE_NAME_BYTES_MAX, os};
use format::Format;
use page::DrainError;
use tracefs::Instance;

pub use account::{Account, Accounts, Comm, Tally, Who};
pub use error::PollsError;

/// The ring buffer of each CPU unless an option says otherwise, in KiB: half a second at half a million polls per
/// second.
pub const BUFFER_KIB_DEFAULT: u32 = 16 * 1024;
/// What the ring buffers of all CPUs have together unless an option says otherwise, in KiB, and the least that one has.
const BUFFERS_KIB_MAX: u32 = 256 * 1024;
const BUFFER_KIB_MIN: u32 = 512;
/// The timer of a NAPI lies less than this after its beginning, as `struct napi_struct` is smaller than 1 KiB.
const NAPI_BYTES_MAX: u64 = 1024;

/// The events of packets that go up the stack within a poll, one for each way that they may take.
const PACKET_EVENTS: [&str; 2] = ["napi_gro_receive_entry", "napi_gro_frags_entry"];

/// `TRACE_FLAG_HARDIRQ` and `TRACE_FLAG_SOFTIRQ` (`trace_events.h`). The second means that softirqs run, not that they
/// are off.
const FLAG_HARDIRQ: u8 = 0x08;
const FLAG_SOFTIRQ: u8 = 0x10;

/// The context in which the kernel was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Context {
    /// A hard interrupt.
    HardInterrupt,
    /// Softirqs run: at the end of an interrupt, when a process enables bottom halves again, or in ksoftirqd.
    Softirq,
    /// A process or kernel thread.
    Process,
}

/// What was recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// When, in nanoseconds of `CLOCK_MONOTONIC`.
    pub at_ns: u64,
    /// The CPU.
    pub cpu: u32,
    /// The thread that ran or was interrupted; 0 is the idle thread.
    pub tid: i32,
    /// The context.
    pub context: Context,
    /// What happened.
    pub what: What,
}

/// An event of a NAPI.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// The NAPI was polled (`trace_napi_poll`, after the driver's poll).
    Poll {
        /// Its address in the kernel. It is an identity, not an id.
        napi: u64,
        /// Packets.
        work: u32,
        /// The packets that it was allowed. Netpoll allows 0.
        budget: u32,
    },
    /// A packet of the device went up the stack, from within a poll.
    Packet {
        /// The id of the NAPI that is being polled.
        napi_id: u32,
    },
    /// The timer of some NAPI was set (deferral, suspension, or GRO's flush).
    TimerSet {
        /// The timer's address.
        timer: u64,
        /// The nanoseconds from the event to when it was to fire.
        in_ns: u64,
    },
    /// The timer of some NAPI fired (`napi_watchdog`).
    TimerFired {
        /// The timer's address.
        timer: u64,
    },
}

/// The time on the clock of [`Record::at_ns`].
pub fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Whether this is the address of the timer of the NAPI at `napi`.
pub fn timer_of(napi: u64, timer: u64) -> bool {
    timer > napi && timer - napi < NAPI_BYTES_MAX
}

/// What is recorded, and how.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Record the timers of all NAPIs of the machine as well.
    pub timers: bool,
    /// Ring buffer of each CPU, in KiB.
    pub buffer_kib: u32,
}

impl Default for Options {
    fn default() -> Options {
        Options { timers: false, buffer_kib: buffer_kib(online_cpus(&Roots::default()).len()) }
    }
}

/// The ring buffer of each CPU, in KiB, on a machine with this many CPUs.
fn buffer_kib(cpus: usize) -> u32 {
    let share = BUFFERS_KIB_MAX / u32::try_from(cpus).unwrap_or(u32::MAX).max(1);
    share.clamp(BUFFER_KIB_MIN, BUFFER_KIB_DEFAULT)
}

struct CpuBuffer {
    cpu: u32,
    file: File,
}

/// The polls of one device, from when it was opened until it is dropped.
pub struct Polls {
    // The files come before the instance that they are in, as it cannot be removed while one is open.
    buffers: Vec<CpuBuffer>,
    layout: page::Layout,
    formats: Formats,
    page: Vec<u8>,
    instance: Instance,
}

/// Turns the recording of a [`Polls`] off and on; it is on at first. What was recorded stays to be drained.
#[derive(Clone, Debug)]
pub struct Switch {
    path: PathBuf,
}

impl Switch {
    /// Turns it on or off.
    ///
    /// # Errors
    /// The kernel refuses, or the recording has ended.
    pub fn set(&self, on: bool) -> Result<(), PollsError> {
        std::fs::write(&self.path, if on { "1" } else { "0" }).map_err(os("turn the recording off or on"))
    }
}

/// `PROC_PID_INIT_INO` (`proc_ns.h`).
fn is_initial_pid_namespace() -> bool {
    std::fs::read_link("/proc/self/ns/pid").is_ok_and(|target| target.as_os_str() == "pid:[4026531836]")
}

/// Removes what a lull that was killed while it recorded has left recording, and returns the names of those trace
/// instances. A process that may not trace, or is in a PID namespace of its own, removes nothing.
pub fn remove_left_over() -> Vec<String> {
    if is_initial_pid_namespace() { tracefs::remove_left_over() } else { Vec::new() }
}

struct Formats {
    poll: PollFormat,
    /// The id, and the place of the NAPI id, in each of [`PACKET_EVENTS`].
    packets: Vec<(u16, usize)>,
    timers: Option<TimerFormats>,
}

struct PollFormat {
    id: u16,
    napi: usize,
    work: usize,
    budget: usize,
}

struct TimerFormats {
    set: (u16, usize, usize),
    fired: (u16, usize),
}

impl Polls {
    /// Begins to record the polls of `device`, in whichever network namespace it is.
    ///
    /// # Errors
    /// There is no right to trace, the kernel has no event tracing, this is another PID namespace than the initial one,
    /// or the name cannot be that of a device.
    pub fn open(device: &str, options: Options) -> Result<Polls, PollsError> {
        let bad = |c: char| c == '"' || c == '\\' || c.is_whitespace() || c.is_control();
        if device.is_empty() || device.len() > DEVICE_NAME_BYTES_MAX || device.contains(bad) {
            return Err(PollsError::Name(device.to_owned()));
        }
        if !is_initial_pid_namespace() {
            return Err(PollsError::PidNamespace);
        }
        let instance = Instance::new()?;
        instance.write("trace_clock", "mono")?;
        instance.write("buffer_size_kb", &options.buffer_kib.to_string())?;
        let layout = page::Layout::parse(&instance.read("events/header_page")?)?;
        let poll = instance.event("napi/napi_poll")?;
        let formats = Formats {
            poll: PollFormat {
                id: poll.id,
                napi: poll.field("napi", 8)?,
                work: poll.field("work", 4)?,
                budget: poll.field("budget", 4)?,
            },
            packets: Self::packet_formats(&instance)?,
            timers: options.timers.then(|| Self::timer_formats(&instance)).transpose()?,
        };
        instance.write("events/napi/napi_poll/filter", &format!("dev_name == \"{device}\""))?;
        for event in PACKET_EVENTS {
            instance.write(&format!("events/net/{event}/filter"), &format!("name == \"{device}\""))?;
        }
        if formats.timers.is_some() {
            for event in ["hrtimer_start", "hrtimer_expire_entry"] {
                instance.write(&format!("events/timer/{event}/filter"), "function.function == napi_watchdog")?;
                instance.write(&format!("events/timer/{event}/enable"), "1")?;
            }
        }
        instance.write("events/napi/napi_poll/enable", "1")?;
        let buffers = instance.cpus()?.into_iter().map(|cpu| {
            let path = instance.path(&format!("per_cpu/cpu{cpu}/trace_pipe_raw"));
            let flags = rustix::fs::OFlags::NONBLOCK.bits() as i32;
            let file = OpenOptions::new().read(true).custom_flags(flags).open(&path);
            file.map(|file| CpuBuffer { cpu, file }).map_err(os(format!("open the ring buffer of CPU {cpu}")))
        });
        let buffers = buffers.collect::<Result<Vec<_>, _>>()?;
        Ok(Polls { buffers, page: vec![0; layout.page_bytes()], layout, formats, instance })
    }

    fn timer_formats(instance: &Instance) -> Result<TimerFormats, PollsError> {
        let set: Format = instance.event("timer/hrtimer_start")?;
        let fired: Format = instance.event("timer/hrtimer_expire_entry")?;
        Ok(TimerFormats {
            set: (set.id, set.field("hrtimer", 8)?, set.field("expires", 8)?),
            fired: (fired.id, fired.field("hrtimer", 8)?),
        })
    }

    fn packet_formats(instance: &Instance) -> Result<Vec<(u16, usize)>, PollsError> {
        let of_event = |event: &&str| {
            let format = instance.event(&format!("net/{event}"))?;
            Ok((format.id, format.field("napi_id", 4)?))
        };
        PACKET_EVENTS.iter().map(of_event).collect()
    }

    /// Starts to record packets as well, or stops. They tell which id a NAPI has, and cost an event each.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn trace_packets(&self, on: bool) -> Result<(), PollsError> {
        let number = if on { "1" } else { "0" };
        PACKET_EVENTS.iter().try_for_each(|event| self.instance.write(&format!("events/net/{event}/enable"), number))
    }

    /// What turns the recording off and on again, from any thread.
    pub fn switch(&self) -> Switch {
        Switch { path: self.instance.path("tracing_on") }
    }

    /// Hands what was recorded since the last call, up to this one, to `each`, CPU by CPU, and each CPU's in the order
    /// of time. Returns how many there were. It ends even where the kernel records faster than this reads, as with the
    /// polls of a NAPI thread that busy polls. What the ring buffers cannot hold until the next call is lost, and
    /// counted.
    ///
    /// # Errors
    /// A ring buffer cannot be read, or a page is not understood.
    pub fn drain(&mut self, mut each: impl FnMut(&Record)) -> Result<u64, PollsError> {
        let now_ns = now_ns();
        let mut count = 0;
        for CpuBuffer { cpu, file } in &mut self.buffers {
            let drained = self.layout.drain(file, &mut self.page, now_ns, |at_ns, event| {
                if let Some(record) = self.formats.record(*cpu, at_ns, event) {
                    count += 1;
                    each(&record);
                }
            });
            drained.map_err(|error| match error {
                DrainError::Read(source) => os(format!("read the ring buffer of CPU {cpu}"))(source),
                DrainError::Page(error) => error,
            })?;
        }
        Ok(count)
    }

    /// The events that were lost since the recording began, because the reader was too slow for the ring buffers.
    ///
    /// # Errors
    /// The kernel's statistics cannot be read.
    pub fn lost(&self) -> Result<u64, PollsError> {
        let mut lost = 0;
        for buffer in &self.buffers {
            let stats = self.instance.read(&format!("per_cpu/cpu{}/stats", buffer.cpu))?;
            let value = |line: &str| line.split_once(':').and_then(|(_, count)| count.trim().parse::<u64>().ok());
            let names = ["overrun:", "commit overrun:", "dropped events:"];
            lost +=
                stats.lines().filter(|l| names.iter().any(|name| l.starts_with(name))).filter_map(value).sum::<u64>();
        }
        Ok(lost)
    }
}

impl Formats {
    fn record(&self, cpu: u32, at_ns: u64, event: &[u8]) -> Option<Record> {
        let id = u16::from_ne_bytes(event.get(0..2)?.try_into().ok()?);
        let flags = *event.get(2)?;
        let u32_at = |at: usize| Some(u32::from_ne_bytes(event.get(at..at + 4)?.try_into().ok()?));
        let u64_at = |at: usize| Some(u64::from_ne_bytes(event.get(at..at + 8)?.try_into().ok()?));
        let what = if id == self.poll.id {
            let (napi, work) = (u64_at(self.poll.napi)?, u32_at(self.poll.work)?);
            What::Poll { napi, work, budget: u32_at(self.poll.budget)? }
        } else if let Some((_, napi_id)) = self.packets.iter().find(|packet| packet.0 == id) {
            What::Packet { napi_id: u32_at(*napi_id)? }
        } else {
            let timers = self.timers.as_ref()?;
            if id == timers.set.0 {
                let in_ns = u64_at(timers.set.2)?.saturating_sub(at_ns);
                What::TimerSet { timer: u64_at(timers.set.1)?, in_ns }
            } else if id == timers.fired.0 {
                What::TimerFired { timer: u64_at(timers.fired.1)? }
            } else {
                return None;
            }
        };
        let context = match flags {
            flags if flags & FLAG_HARDIRQ != 0 => Context::HardInterrupt,
            flags if flags & FLAG_SOFTIRQ != 0 => Context::Softirq,
            _ => Context::Process,
        };
        Some(Record { at_ns, cpu, tid: u32_at(4)? as i32, context, what })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ring_buffers_of_many_cpus_share_what_all_may_have() {
        assert_eq!([1, 16, 32, 128].map(buffer_kib), [16_384, 16_384, 8_192, 2_048]);
        assert_eq!([0, 4_096].map(buffer_kib), [16_384, 512]);
    }
}
