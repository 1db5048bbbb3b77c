//! Runs a program with a mode in force for as long as it runs. The device's half is applied before it starts and undone
//! when it has ended. Its own half is set from its start.
//!
//! | module | what is in there |
//! | --- | --- |
//! | `way` | what is to be run, and how the program's half is set: preload library, attaching, or nothing |
//! | `program` | the program as a file: found in PATH, script or ELF, and whether it loads a preload library |
//! | `one_napi` | as many receive queues as the program has contexts that receive from the device |
//! | `serve` | what is done while it runs: signals are passed on, and the program and the device are looked over |
//! | `background` | what the program puts into the background |
//! | `plain` | a program under the preload library alone, for the user plane |
//! | `in_force` | whether the mode is in force in the program, in one line |
//! | `supervisor` | the process that undoes when this one is killed |
//! | `signals` | what is passed on to the program |
//!
//! While the program runs, what a link flap, a change of queues or a reset takes away from the device is applied again
//! (`watch.rs`).
//!
//! The program is over when the process that was started has ended, and everything that it has put into the background.
//! A daemon keeps the mode, and `lull run` stays. Where there is nothing to undo (no device, and the program's half is
//! set by the preload library) it ends with the process that was started.
//!
//! If this process is killed (SIGKILL), the supervisor undoes the device, and what attaching has set in the program.
//! The program goes on. What the preload library has set in it stays, and on a device that neither defers nor suspends
//! it does nothing but let `epoll_wait` poll before it sleeps. If the supervisor is killed as well, the state file is
//! left, and `lull undo DEV` undoes it.

mod background;
mod in_force;
mod one_napi;
mod plain;
mod program;
mod serve;
mod signals;
mod supervisor;
mod way;

use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus};

use crate::apply::{Options, Session, apply, diff, undo};
use crate::control::{Control, Controlling, Eyes};
use crate::error::{Error, Result};
use crate::plan::cpu_list;
use crate::watch::{Again, READ_BACK};
use crate::{machine, sched};
pub use one_napi::OneNapi;
use one_napi::Queues;
use serve::{Kept, OnDevice, Serving};
use signals::Signals;
use supervisor::Supervisor;

pub use plain::Plain;
pub use supervisor::supervise;
pub use way::{Run, Sockets, Waits, Way};

/// Lists what would be done, a line each.
///
/// # Errors
/// Those of [`run`] that are found before the first change.
pub fn dry_run(run: &Run, options: &Options) -> Result<Vec<String>> {
    let mut lines = Vec::new();
    let mut session = run.device.as_ref().map(|device| Session::open(device, options)).transpose()?;
    session.as_ref().map_or(Ok(()), is_free)?;
    one_napi(run, session.as_mut())?;
    if let Some(session) = &mut session {
        lines.extend(diff(session, &run.request)?.iter().map(|change| format!("would set {change}")));
    }
    let way = Way::of(run)?;
    lines.push(format!("would run {}: {way}", run.command[0].to_string_lossy()));
    lines.extend(way.caveats(&run.request.mode, &run.sockets, run.device.as_deref()));
    Ok(lines)
}

/// Runs the program to its end and returns its exit status, or 128 + n if signal n ended it. `control` chooses the
/// device's timeouts in the meantime. What is worth knowing goes to `say`, in a line each.
///
/// The caller has to be the only thread of its process, since signals are taken for the program from here on.
///
/// # Errors
/// Everything that can be refused, before the first change. The device then has what it had.
pub fn run(run: &Run, control: Option<Control>, options: &Options, say: &mut dyn FnMut(&str)) -> Result<u8> {
    let way = Way::of(run)?;
    if run.pin && run.device.is_none() {
        return Err(Error::Input {
            what: "--pin without a device".to_owned(),
            remedy: "name the device whose CPUs are meant with --dev".to_owned(),
        });
    }
    let mut session = run.device.as_ref().map(|device| Session::open(device, options)).transpose()?;
    if let Some(session) = &mut session {
        // From here on, whatever is undone at the end is what this process holds.
        session.hold()?;
        is_free(session)?;
    }
    for caveat in way.caveats(&run.request.mode, &run.sockets, run.device.as_deref()) {
        say(&caveat);
    }
    let signals = Signals::take()?;
    let needed = session.is_some() || matches!(way, Way::Attach { .. });
    let mut supervisor = needed.then(|| Supervisor::start(run.device.as_deref(), options)).transpose()?;
    if needed {
        background::adopt(&options.roots)?;
    }
    let status = with_device(run, (control, options), &way, session.as_mut(), supervisor.as_mut(), &signals, say);
    let undone = session.as_mut().map_or(Ok(()), |session| give_back(session, say));
    // What was refused before the first change has left nothing to undo, and is reported once.
    let nothing_left = || session.as_ref().is_some_and(|session| matches!(session.state(), Ok(None)));
    if (undone.is_ok() || status.is_err() && nothing_left())
        && let Some(supervisor) = supervisor
    {
        supervisor.dismiss();
    }
    let status = status?;
    match undone {
        Err(error) if status == 0 => Err(error),
        Err(error) => {
            say(&error.to_string());
            Ok(status)
        }
        Ok(()) => Ok(status),
    }
}

/// The number of queues that follows the program's contexts, if the run asks for it.
fn one_napi(run: &Run, session: Option<&mut Session>) -> Result<Option<Queues>> {
    let Some(means) = run.one_napi else { return Ok(None) };
    match session {
        Some(session) if run.request.mode.suspends() => Queues::of(session, means).map(Some),
        _ => Err(Error::Input {
            what: "--one-napi without a device, or without suspension".to_owned(),
            remedy: "it takes --dev and a mode that suspends interrupts, such as suspend20".to_owned(),
        }),
    }
}

/// Refuses a device that somebody else has a mode on, as undoing this one would undo theirs.
fn is_free(session: &Session) -> Result<()> {
    if session.state()?.is_some_and(|state| state.is_applied()) {
        let device = &session.device().name;
        return Err(Error::Input {
            what: format!("{device} has a mode applied already"),
            remedy: format!("leave --dev out to run the program on it as it is, or `lull undo {device}` first"),
        });
    }
    Ok(())
}

fn with_device(
    run: &Run,
    (control, options): (Option<Control>, &Options),
    way: &Way,
    mut session: Option<&mut Session>,
    supervisor: Option<&mut Supervisor>,
    signals: &Signals,
    say: &mut dyn FnMut(&str),
) -> Result<u8> {
    let queues = one_napi(run, session.as_deref_mut())?;
    let mut kept = None;
    if let Some(session) = &mut session {
        // Its threads start after signals were blocked, which they inherit.
        let again = Again::new(session, READ_BACK);
        // Whatever can fail of observing comes before the first change.
        let control = control.map(|control| Eyes::open(session, say).map(|eyes| (control, eyes))).transpose()?;
        apply(session, &run.request)?;
        kept = Some(match control {
            Some((control, eyes)) => {
                Kept::Objective(Box::new(Controlling::begin(session, &run.request, control, eyes, say)))
            }
            None => Kept::Mode(again),
        });
    }
    let cpus = match &mut session {
        Some(session) if run.pin => Some(delivery_cpus(session)?),
        _ => None,
    };
    let mut child = spawn(run, way, cpus.as_deref(), signals)?;
    if let Some(cpus) = &cpus {
        say(&format!("the program runs on CPU {}, where its packets are delivered", cpu_list(cpus)));
    }
    let device = session.zip(kept).map(|(session, kept)| OnDevice { session, kept, request: &run.request, queues });
    let mut serving = Serving::of(run, options, way, signals, device, supervisor);
    let status = serving.until_the_end(&mut child, say);
    // Whatever has gone wrong, what was set in processes of the program is given back.
    serving.end(say);
    Ok(exit_code(status?))
}

/// Undoes the device. One that has vanished has taken its settings along.
fn give_back(session: &mut Session, say: &mut dyn FnMut(&str)) -> Result<()> {
    match undo(session) {
        Ok(undone) if undone.left.is_empty() => Ok(()),
        Ok(undone) => {
            let queues = undone.left.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
            let device = &session.device().name;
            say(&format!(
                "{device} shows no NAPI for queue {queues} now: `lull undo {device}` gives back when it does"
            ));
            Ok(())
        }
        Err(Error::UnknownDevice { device, .. }) => {
            // One that was moved to another network namespace has not vanished, which this says.
            session.forget()?;
            say(&format!("{device} has vanished, and its settings with it"));
            Ok(())
        }
        Err(error) => Err(error),
    }
}

/// The CPUs of the device's interrupts and NAPI threads.
fn delivery_cpus(session: &mut Session) -> Result<Vec<usize>> {
    let snapshot = session.snapshot()?;
    let mut cpus = Vec::new();
    for napi in &snapshot.napis {
        let irq = napi.irq.as_ref().and_then(|irq| irq.effective_cpus.as_ref().or(irq.cpus.as_ref()));
        cpus.extend(irq.and_then(|list| machine::parse_cpu_list(list)).unwrap_or_default());
        let thread = napi.thread.as_ref().and_then(|thread| thread.scheduling.as_ref());
        cpus.extend(thread.map(|scheduling| scheduling.cpus.clone()).unwrap_or_default());
    }
    let online = machine::online_cpus(session.roots());
    cpus.retain(|cpu| online.contains(cpu));
    cpus.sort_unstable();
    cpus.dedup();
    if cpus.is_empty() {
        return Err(Error::Unsupported {
            what: "pin the program".to_owned(),
            reason: format!("{} shows neither interrupts nor NAPI threads", session.device().name),
            remedy: "leave --pin out, and pin with taskset, or use the mode threaded".to_owned(),
        });
    }
    Ok(cpus)
}

/// Starts the program. It inherits this thread's CPUs, so these are changed around the start.
fn spawn(run: &Run, way: &Way, cpus: Option<&[usize]>, signals: &Signals) -> Result<Child> {
    let mut command = Command::new(&run.command[0]);
    command.args(&run.command[1..]);
    for name in way::VARIABLES {
        command.env_remove(name);
    }
    command.envs(way.environment(run));
    if run.quiet {
        command.env("LULL_QUIET", "1");
    }
    signals.leave_to(&mut command);
    let me = rustix::thread::gettid().as_raw_nonzero().get();
    let pin_failed = |error| Error::os("pin the program", "give it CPUs of its cpuset with taskset instead", error);
    let before = match cpus {
        Some(cpus) => {
            let before = sched::scheduling(me).map_err(pin_failed)?.cpus;
            sched::set_cpus(me, cpus).map_err(pin_failed)?;
            Some(before)
        }
        None => None,
    };
    let child = command.spawn();
    if let Some(before) = before {
        sched::set_cpus(me, &before).map_err(pin_failed)?;
    }
    child.map_err(|error| {
        let what = format!("run {}", run.command[0].to_string_lossy());
        Error::Os { what, remedy: "check that it is a program".to_owned(), source: error, said: None }
    })
}

fn exit_code(status: ExitStatus) -> u8 {
    // Exit statuses have eight bits, and signals are below 65.
    let code = status.code().or_else(|| Some(128 + status.signal()?)).unwrap_or(1);
    u8::try_from(code).unwrap_or(u8::MAX)
}
