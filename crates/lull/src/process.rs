//! `lull show`, `lull stat`, `lull set` and `lull undo` of a process that runs lull's user plane, over its control socket.

pub mod change;

use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use lull_control::Client;
use lull_control::place::Places;
use lull_control::schema::{Answer, Group, GroupPoller, Napi, Request, Shown};
use lull_core::{EpollParams, Stats, Threaded};
use lull_figures::process::mode_of;
use lull_linux::recognise::Recognised;
use lull_linux::sched::shown_ns;
use serde::Serialize;

use crate::failure::Failure;
use crate::group_rows;
use crate::output::{WriteError, out, outln};
use crate::rows::{ROW_HEAD, Row, print_rows, thread_cell};

/// How often it looks during a sample whether it is to stop.
const STOP_LOOK_EVERY: Duration = Duration::from_millis(50);

/// A process as `lull show` prints it.
#[derive(Debug, Serialize)]
pub struct Process {
    /// Always `user`: it distinguishes a process from a device in a list of both.
    plane: &'static str,
    #[serde(flatten)]
    shown: Shown,
    /// The mode that the settings of each NAPI amount to, in the order of `napis`.
    modes: Vec<Recognised>,
}

impl Process {
    fn new(shown: Shown) -> Process {
        let modes = shown.napis.iter().map(|napi| mode_of(napi, &shown)).collect();
        Process { plane: "user", shown, modes }
    }

    /// Asks process `pid`.
    ///
    /// # Errors
    ///
    /// This has the errors of [`Client`].
    pub fn of(pid: u32) -> Result<Process, Failure> {
        let mut client = Client::connect(pid, &Places::default())?;
        Ok(Process::new(show(&mut client)?))
    }

    /// Returns every process that this user may ask. One that ends meanwhile is left out.
    pub fn all() -> Vec<Process> {
        let clients = Client::connect_all(&Places::default());
        clients.into_iter().filter_map(|mut client| Some(Process::new(show(&mut client).ok()?))).collect()
    }

    /// What the process runs: a service of lull's, or the program that it executes.
    pub fn service(&self) -> &str {
        &self.shown.service
    }

    /// Returns each of its queues with the mode that is in force there.
    pub fn modes_by_queue(&self) -> Vec<(String, &str)> {
        self.shown.napis.iter().zip(&self.modes).map(|(napi, mode)| (queue_name(napi), mode.mode.as_str())).collect()
    }

    /// Prints the process in the form in which a device is printed.
    pub fn print(&self) -> Result<(), WriteError> {
        let Shown { pid, service, version, cpus, .. } = &self.shown;
        outln!("process {pid}: {service} on lull's user plane (lull {version}, CPUs: {})", cpus.len())?;
        let mut rows = vec![ROW_HEAD.map(str::to_owned)];
        rows.extend(self.shown.napis.iter().zip(&self.modes).map(|(napi, mode)| self.row(napi, mode)));
        print_rows(&rows)?;
        for (napi, mode) in self.shown.napis.iter().zip(&self.modes) {
            self.print_notes(napi, mode)?;
        }
        if let Some(decided) = &self.shown.controller {
            outln!("  controller: {}", decided.words())?;
        }
        self.shown.groups.iter().try_for_each(group_rows::print)
    }

    fn row(&self, napi: &Napi, mode: &Recognised) -> Row {
        let core = self.shown.cpus.get(usize::from(napi.cpu)).and_then(|cpu| cpu.core);
        [
            queue_name(napi),
            if napi.id == 0 { "down".to_owned() } else { napi.id.to_string() },
            format!("cpu{}", napi.cpu),
            core.map_or("any".to_owned(), |core| core.to_string()),
            napi.thread.map_or("-".to_owned(), |tid| thread_cell(tid, napi.scheduling.as_ref())),
            napi.settings.defer_hard_irqs.to_string(),
            shown_ns(napi.settings.gro_flush_timeout_ns),
            shown_ns(napi.settings.irq_suspend_timeout_ns),
            threaded_name(napi.settings.threaded).to_owned(),
            mode.mode.clone(),
        ]
    }

    fn print_notes(&self, napi: &Napi, mode: &Recognised) -> Result<(), WriteError> {
        let queue = queue_name(napi);
        if let Some(note) = &mode.note {
            outln!("  queue {queue}: {note}")?;
        }
        if let Some(qdisc) = &napi.qdisc {
            let of = napi.device.strip_suffix("-tx").unwrap_or(&napi.device);
            outln!("  queue {queue}: sends for {of}:{} through {qdisc}", napi.queue)?;
        }
        if napi.former.is_some() {
            let pid = self.shown.pid;
            outln!(
                "  queue {queue}: settings were changed while it ran; `lull undo {pid}` gives back the former ones"
            )?;
        }
        for context in &self.shown.contexts {
            let Some(sockets) = context.sockets.get(&napi.id) else { continue };
            let params = &context.params;
            if *params == EpollParams::default() {
                continue;
            }
            let prefers = if params.prefer_busy_poll { "prefers busy polling" } else { "busy polls" };
            let (usecs, budget) = (params.busy_poll_usecs, params.busy_poll_budget);
            outln!(
                "  queue {queue}: an epoll context {prefers}: usecs {usecs}, budget {budget}, {sockets} of its sockets here"
            )?;
        }
        Ok(())
    }
}

/// Asks process `pid` for its groups.
///
/// # Errors
///
/// This has the errors of [`Client`].
pub fn groups(pid: u32) -> Result<Vec<Group>, Failure> {
    Ok(show(&mut Client::connect(pid, &Places::default())?)?.groups)
}

fn show(client: &mut Client) -> Result<Shown, Failure> {
    match client.ask(&Request::Show)? {
        Answer::Shown(mut shown) => {
            // In another PID namespace the process knows itself by another number; commands take the number of this
            // namespace.
            shown.pid = client.pid();
            Ok(shown)
        }
        other => Err(format!("process {} answered a show with {other:?}", client.pid()).into()),
    }
}

fn queue_name(napi: &Napi) -> String {
    format!("{}:{}", napi.device, napi.queue)
}

fn threaded_name(threaded: Threaded) -> &'static str {
    match threaded {
        Threaded::Off => "off",
        Threaded::On => "on",
        Threaded::BusyPoll => "busy-poll",
    }
}

/// One interval of a process, as `lull stat --json` prints it.
#[derive(Debug, Serialize)]
struct Sample {
    pid: u32,
    seconds: f64,
    napis: Vec<NapiSample>,
    cpus: Vec<CpuSample>,
    pollers: Vec<PollerSample>,
}

/// What a poller of a group has done in an interval.
#[derive(Debug, Serialize)]
struct PollerSample {
    group: u32,
    cpu: u16,
    state: String,
    polls: u64,
    strays: u64,
    busy_percent: f64,
    empty_percent: f64,
    wakes: u64,
    parks: u64,
    rests: u64,
}

#[derive(Debug, Serialize)]
struct NapiSample {
    queue: String,
    napi_id: u32,
    interrupts: u64,
    #[serde(flatten)]
    counts: Counts,
}

/// What a NAPI has counted in an interval.
#[derive(Debug, Serialize)]
struct Counts {
    polls: u64,
    packets: u64,
    empty_polls: u64,
    softirq_polls: u64,
    busy_polls: u64,
    thread_polls: u64,
    group_polls: u64,
    deferrals: u64,
    suspensions: u64,
    timer_fires: u64,
}

impl From<Stats> for Counts {
    fn from(stats: Stats) -> Counts {
        Counts {
            polls: stats.polls,
            packets: stats.work,
            empty_polls: stats.empty_polls,
            softirq_polls: stats.softirq_polls,
            busy_polls: stats.busy_polls,
            thread_polls: stats.thread_polls,
            group_polls: stats.group_polls,
            deferrals: stats.deferrals,
            suspensions: stats.suspends,
            timer_fires: stats.timer_fires,
        }
    }
}

#[derive(Debug, Serialize)]
struct CpuSample {
    cpu: u16,
    interrupts: u64,
    softirq_percent: f64,
    wakeups: u64,
    timer_ops: u64,
}

impl Sample {
    /// Returns what happened between two looks. A NAPI that is new since the first has no former counts, and is left
    /// out.
    fn between(before: &Shown, after: &Shown) -> Sample {
        let elapsed_ns = after.now_ns.saturating_sub(before.now_ns).max(1);
        let napis = after.napis.iter().filter(|napi| napi.id != 0).filter_map(|now| {
            let then = before
                .napis
                .iter()
                .find(|then| (then.ifindex, then.queue, then.id) == (now.ifindex, now.queue, now.id))?;
            Some(NapiSample {
                queue: queue_name(now),
                napi_id: now.id,
                interrupts: now.interrupts.wrapping_sub(then.interrupts),
                counts: (now.stats - then.stats).into(),
            })
        });
        let cpus = after.cpus.iter().zip(&before.cpus).map(|(now, then)| CpuSample {
            cpu: now.index,
            interrupts: now.interrupts.wrapping_sub(then.interrupts),
            softirq_percent: 100.0 * now.softirq_ns.wrapping_sub(then.softirq_ns) as f64 / elapsed_ns as f64,
            wakeups: now.wakeups.wrapping_sub(then.wakeups),
            timer_ops: now.timer_ops.wrapping_sub(then.timer_ops),
        });
        let (pid, seconds) = (after.pid, elapsed_ns as f64 / 1e9);
        let pollers = PollerSample::between(before, after, elapsed_ns);
        Sample { pid, seconds, napis: napis.collect(), cpus: cpus.collect(), pollers }
    }

    fn print(&self) -> Result<(), WriteError> {
        outln!("process {}  {:.2} s", self.pid, self.seconds)?;
        outln!("  {:<48} {:>10} {:>10} {:>6} {:>7}", "who polled", "polls/s", "packets/s", "work", "empty")?;
        let rate = |count: u64| count as f64 / self.seconds;
        for NapiSample { queue, napi_id, interrupts, counts } in &self.napis {
            let work = if counts.polls == 0 {
                String::new()
            } else {
                format!("{:.2}", counts.packets as f64 / counts.polls as f64)
            };
            let empty = 100.0 * counts.empty_polls as f64 / counts.polls.max(1) as f64;
            let (polls, packets) = (rate(counts.polls), rate(counts.packets));
            outln!(
                "  {:<48} {polls:>10.0} {packets:>10.0} {work:>6} {empty:>5.1} %",
                format!("NAPI {napi_id} ({queue})")
            )?;
            let kinds = [
                ("softirq", counts.softirq_polls),
                ("busy-poll", counts.busy_polls),
                ("napi-thread", counts.thread_polls),
                ("group", counts.group_polls),
            ];
            for (kind, polls) in kinds.into_iter().filter(|(_, polls)| *polls != 0) {
                outln!("    {kind:<46} {:>10.0}", rate(polls))?;
            }
            outln!(
                "    interrupts/s {:.0}; timers set/s: for deferral {:.0}, for suspension {:.0}; timers fired/s {:.0}",
                rate(*interrupts),
                rate(counts.deferrals),
                rate(counts.suspensions),
                rate(counts.timer_fires)
            )?;
        }
        for poller in &self.pollers {
            outln!(
                "  group {} on CPU {}: {}; polls/s {:.0}, stray {:.0}; busy {:.1} %, empty {:.1} %; woke/s {:.1}, parked {:.1}, \
                 rested {:.0}",
                poller.group,
                poller.cpu,
                poller.state,
                rate(poller.polls),
                rate(poller.strays),
                poller.busy_percent,
                poller.empty_percent,
                rate(poller.wakes),
                rate(poller.parks),
                rate(poller.rests)
            )?;
        }
        for cpu in &self.cpus {
            outln!(
                "  CPU {}: softirq {:.1} %, interrupts/s {:.0}, wake-ups/s {:.0}, kernel timers/s {:.0}",
                cpu.cpu,
                cpu.softirq_percent,
                rate(cpu.interrupts),
                rate(cpu.wakeups),
                rate(cpu.timer_ops)
            )?;
        }
        Ok(())
    }
}

impl PollerSample {
    /// Returns what each poller did between two looks. One that was attached since the first has no former counts, and
    /// is left out.
    fn between(before: &Shown, after: &Shown, elapsed_ns: u64) -> Vec<PollerSample> {
        let pollers = |shown: &Shown| -> Vec<(u32, GroupPoller)> {
            let of =
                |group: &Group| group.pollers.iter().map(|poller| (group.index, poller.clone())).collect::<Vec<_>>();
            shown.groups.iter().flat_map(of).collect()
        };
        let then = pollers(before);
        let percent = |now: u64, then: u64| 100.0 * now.saturating_sub(then) as f64 / elapsed_ns as f64;
        let sample = |(group, now): (u32, GroupPoller)| {
            let (_, then) = then.iter().find(|(of, then)| (*of, then.thread) == (group, now.thread))?;
            let (is, was) = (now.stats, then.stats);
            Some(PollerSample {
                group,
                cpu: now.cpu,
                state: now.state,
                polls: is.polls.saturating_sub(was.polls),
                strays: is.strays.saturating_sub(was.strays),
                busy_percent: percent(is.busy_ns, was.busy_ns),
                empty_percent: percent(is.empty_ns, was.empty_ns),
                wakes: is.wakes.saturating_sub(was.wakes),
                parks: is.parks.saturating_sub(was.parks),
                rests: is.rests.saturating_sub(was.rests),
            })
        };
        pollers(after).into_iter().filter_map(sample).collect()
    }
}

/// `lull stat PID`: shows who polls, interval by interval.
///
/// # Errors
///
/// This has the errors of [`Client`], and those of printing.
pub fn stat(
    pid: u32,
    interval: Duration,
    count: Option<u64>,
    json: bool,
    stop: &AtomicBool,
) -> Result<ExitCode, Failure> {
    let mut client = Client::connect(pid, &Places::default())?;
    let mut before = show(&mut client)?;
    let (mut shown, mut since) = (0, Instant::now());
    while !stop.load(Ordering::Relaxed) && count.is_none_or(|count| shown < count) {
        let until = since + interval;
        while let Some(left) = until.checked_duration_since(Instant::now())
            && !stop.load(Ordering::Relaxed)
        {
            std::thread::sleep(left.min(STOP_LOOK_EVERY));
        }
        since = Instant::now();
        let after = show(&mut client)?;
        let sample = Sample::between(&before, &after);
        if json {
            out!("{}\n", serde_json::to_string(&sample)?)?;
        } else {
            sample.print()?;
        }
        before = after;
        shown += 1;
    }
    Ok(ExitCode::SUCCESS)
}
