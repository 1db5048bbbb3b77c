//! What is in force on a device, with the mode that it amounts to and the programs that busy poll there.

use lull_slo::Decided;
use serde::Serialize;

use crate::device::{NapiState, Snapshot};
use crate::error::Result;
use crate::machine::core_sysctl;
use crate::programs::{self, EpollContext, Polling};
use crate::recognise::{Programs, Recognised, recognise, unknown};
use crate::roots::Roots;
use crate::session::Session;
use crate::spans::{SpanningProgram, spanning};

/// A device as `lull show` prints it.
#[derive(Clone, Debug, Serialize)]
pub struct Show {
    /// The device and its defaults.
    #[serde(flatten)]
    pub snapshot: Snapshot,
    /// The NAPIs of the snapshot, in its order, with what their settings amount to.
    pub napis: Vec<NapiShow>,
    /// The contexts that busy poll or prefer to, and receive from no device now, as their clients have left or have not
    /// come yet.
    pub idle_programs: Vec<Program>,
    /// The programs with contexts that receive from several NAPIs, where that makes packets wait.
    pub spanning_programs: Vec<SpanningProgram>,
    /// The process that keeps it so until it is told to end (`apply --watch`, `run --dev`). Nobody else changes the
    /// device in the meantime.
    pub kept_by: Option<u32>,
    /// Processes that could not be looked into.
    pub processes_hidden: usize,
    /// What the controller of its timeouts has decided, if it has one (`apply --slo`, `run --slo`).
    pub controller: Option<Decided>,
}

/// One NAPI, and what its settings amount to.
#[derive(Clone, Debug, Serialize)]
pub struct NapiShow {
    /// What is in force on it.
    #[serde(flatten)]
    pub state: NapiState,
    /// The mode in force, `custom` or `unknown`, and what is missing.
    #[serde(flatten)]
    pub recognised: Recognised,
    /// The mode that was applied, if one was and can be undone.
    pub applied: Option<String>,
    /// The programs whose epoll contexts busy poll on it, or prefer to.
    pub programs: Vec<Program>,
}

/// An epoll context that busy polls on a NAPI.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Program {
    /// The process.
    pub pid: i32,
    /// Its name.
    pub name: String,
    /// The descriptor of the context.
    pub epoll_fd: i32,
    /// How long it busy polls, in microseconds.
    pub busy_poll_usecs: u32,
    /// How many packets a poll takes.
    pub busy_poll_budget: u32,
    /// Whether it prefers busy polling.
    pub prefer_busy_poll: bool,
    /// How many of its sockets receive from this NAPI.
    pub sockets: usize,
}

/// Looks at a device.
///
/// # Errors
/// Those of [`Session::snapshot`].
pub fn show(session: &mut Session) -> Result<Show> {
    let snapshot = session.snapshot()?;
    let polling = programs::polling(session.roots());
    let busy_poll_usecs = core_sysctl("busy_poll", session.roots()).unwrap_or(0);
    // A stale file says nothing about this device, and `undo` and `apply` report it.
    let state = session.state().ok().flatten();
    let napis = snapshot.napis.iter().map(|napi| {
        let former =
            state.as_ref().and_then(|state| state.former_of(napi.key, napi.id, &snapshot).map(|nth| &state.napis[nth]));
        let programs = programs_on(napi, &polling, session);
        let known = Programs {
            polling: programs.iter().map(Program::params).collect(),
            some_hidden: polling.hidden != 0,
            busy_poll_usecs,
        };
        let in_force = napi.in_force(snapshot.defaults.as_ref());
        NapiShow {
            state: NapiState { settings: in_force.unwrap_or(napi.settings), ..napi.clone() },
            recognised: in_force.map_or_else(unknown, |settings| recognise(&settings.into(), &known)),
            applied: former.map(|former| former.mode.clone()),
            programs,
        }
    });
    let napis = napis.collect();
    let silent = |context: &&EpollContext| context.sockets.iter().all(|socket| socket.napi_id == 0);
    let idle = polling.contexts.iter().filter(silent).map(|context| Program::of(context, 0, session.roots()));
    let idle_programs = idle.collect();
    let spanning_programs = spanning(&polling.contexts, &snapshot.napis, session.roots());
    let (processes_hidden, controller) = (polling.hidden, session.store().decided());
    let kept_by = session.store().kept_by();
    Ok(Show { napis, idle_programs, spanning_programs, kept_by, processes_hidden, controller, snapshot })
}

impl Program {
    fn of(context: &EpollContext, sockets: usize, roots: &Roots) -> Program {
        Program {
            pid: context.pid,
            name: programs::name_of(context.pid, roots),
            epoll_fd: context.fd,
            busy_poll_usecs: context.params.busy_poll_usecs,
            busy_poll_budget: context.params.busy_poll_budget,
            prefer_busy_poll: context.params.prefer_busy_poll,
            sockets,
        }
    }

    fn params(&self) -> lull_core::EpollParams {
        lull_core::EpollParams {
            busy_poll_usecs: self.busy_poll_usecs,
            busy_poll_budget: self.busy_poll_budget,
            prefer_busy_poll: self.prefer_busy_poll,
        }
    }
}

fn programs_on(napi: &NapiState, polling: &Polling, session: &Session) -> Vec<Program> {
    let of_context = |context: &EpollContext| {
        let sockets = context.sockets.iter().filter(|socket| socket.napi_id == napi.id).count();
        (sockets != 0).then(|| Program::of(context, sockets, session.roots()))
    };
    polling.contexts.iter().filter_map(of_context).collect()
}
