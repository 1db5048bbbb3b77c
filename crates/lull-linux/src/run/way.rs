//! What is to be run, and how the program's half of a mode is set.

use std::env::{current_exe, var_os};
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use lull_bpf::Instruction;
use lull_bpf::steer::Steer;
use lull_core::settings::{BUSY_POLL_BUDGET_MAX, BUSY_POLL_USECS_MAX, Errno, Limit, SettingError};
use lull_core::{AppPolicy, EpollParams, Mode};

use super::one_napi::OneNapi;
use super::program;
use crate::error::{Error, Result};
use crate::plan::DeviceRequest;
use crate::{attach, os};

/// The preload library's file name.
const LIBRARY: &str = "liblull_preload.so";
/// The variable that says where the library is, for those who keep it elsewhere.
const LIBRARY_VARIABLE: &str = "LULL_PRELOAD";
/// The preload library's variables, as in its documentation.
pub(super) const VARIABLES: [&str; 11] = [
    "LULL_EPOLL_USECS",
    "LULL_EPOLL_BUDGET",
    "LULL_EPOLL_PREFER",
    "LULL_EPOLL_TIMEOUT_MS",
    "LULL_NO_LIFT",
    "LULL_EVENTS_MAX",
    "LULL_SOCKET_BUSY_POLL",
    "LULL_SOCKET_BUDGET",
    "LULL_SOCKET_PREFER",
    "LULL_STEER",
    "LULL_QUIET",
];

/// Busy-poll options of the program's sockets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sockets {
    /// SO_BUSY_POLL in microseconds, in place of the mode's.
    pub busy_poll_usecs: Option<u32>,
    /// SO_BUSY_POLL_BUDGET in packets.
    pub budget: Option<u32>,
    /// SO_PREFER_BUSY_POLL.
    pub prefer: bool,
}

impl Sockets {
    fn usecs(&self, mode: &Mode) -> u32 {
        self.busy_poll_usecs.unwrap_or(mode.socket_busy_poll_usecs)
    }

    fn check(&self, mode: &Mode) -> Result<()> {
        let limit = |setting, value: u32, max| {
            let (value, limit) = (u64::from(value), Limit::AtMost(max));
            if value > max { Err(SettingError { setting, value, limit, errno: Errno::Invalid }) } else { Ok(()) }
        };
        limit("SO_BUSY_POLL", self.usecs(mode), BUSY_POLL_USECS_MAX)?;
        limit("SO_BUSY_POLL_BUDGET", self.budget.unwrap_or(0), BUSY_POLL_BUDGET_MAX)?;
        if self.usecs(mode) == 0 && (self.prefer || self.budget.is_some()) {
            return Err(Error::Input {
                what: "socket options without busy polling".to_owned(),
                remedy: "give the microseconds with --socket-busy-poll".to_owned(),
            });
        }
        Ok(())
    }
}

/// How the program's calls of `epoll_wait` are changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waits {
    /// Whether calls with timeout 0 are left alone in a mode that keeps polling.
    pub no_lift: bool,
    /// The most events that a call returns.
    pub events_max: Option<u32>,
}

/// What is to be run, and how.
#[derive(Clone, Debug)]
pub struct Run {
    /// The mode, with its overrides for the device. Its application half is the program's.
    pub request: DeviceRequest,
    /// The device whose half is applied, if any.
    pub device: Option<String>,
    /// Busy-poll options of the program's sockets, in place of the mode's.
    pub sockets: Sockets,
    /// How the program's calls of `epoll_wait` are changed.
    pub waits: Waits,
    /// What chooses among its listeners that share an address.
    pub steer: Option<attach::Steer>,
    /// What is done on the device for contexts that receive from several of its NAPIs.
    pub one_napi: Option<OneNapi>,
    /// Whether the program is pinned to the CPUs where the device's packets are delivered.
    pub pin: bool,
    /// Whether the preload library keeps silent.
    pub quiet: bool,
    /// The program and its arguments.
    pub command: Vec<OsString>,
}

/// How the program's half of the mode is set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Way {
    /// The mode has no half in the program.
    Nothing,
    /// It is set by the preload library, from the start of each epoll context and socket.
    Preload {
        /// The library.
        library: PathBuf,
    },
    /// It is set from outside, because the program does not load the library.
    Attach {
        /// The reason why it does not.
        reason: String,
    },
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Way::Nothing => f.write_str("nothing is set in the program"),
            Way::Preload { library } => write!(f, "with {}", library.display()),
            Way::Attach { reason } => write!(f, "attached to from outside, because {reason}"),
        }
    }
}

impl Way {
    /// The way for a program and a mode.
    ///
    /// # Errors
    /// There is no such program, there is no preload library where one is needed, the kernel has no epoll parameters,
    /// or only the preload library can put the mode in force and the program does not load it.
    pub fn of(run: &Run) -> Result<Way> {
        let Run { command, request: DeviceRequest { mode, .. }, sockets, waits, steer, .. } = run;
        let name = command.first().ok_or_else(|| Error::Input {
            what: "no program to run".to_owned(),
            remedy: "name one after `--`".to_owned(),
        })?;
        let path = program::find(name)?;
        sockets.check(mode)?;
        let (of_epoll, of_sockets) = (mode.epoll != EpollParams::default(), sockets.usecs(mode) != 0);
        let of_app = of_sockets || mode.app != AppPolicy::Blocking;
        if !of_epoll && !of_app && waits.events_max.is_none() && steer.is_none() {
            return Ok(Way::Nothing);
        }
        if of_epoll {
            kernel_has_parameters()?;
        }
        let read = |error| Error::os(format!("read the program {}", path.display()), "make it readable", error);
        let Some(reason) = program::no_preload(&path).map_err(read)? else {
            return Ok(Way::Preload { library: library()? });
        };
        let refused = |what: &str, remedy: &str| Error::Unsupported {
            what: format!("run {} with {mode}", name.to_string_lossy()),
            reason: format!("{what} a preload library, and {reason}"),
            remedy: remedy.to_owned(),
        };
        if waits.events_max.is_some() {
            return Err(refused("the events of a call are limited by", "leave --events-max out"));
        }
        if !of_epoll && of_app {
            return Err(refused(
                "the options of its sockets are set by",
                "take a mode that prefers busy polling, such as suspend20",
            ));
        }
        Ok(Way::Attach { reason })
    }

    /// The variables that the program is started with.
    pub(super) fn environment(&self, run: &Run) -> Vec<(&'static str, OsString)> {
        let Way::Preload { library } = self else { return Vec::new() };
        let Run { request: DeviceRequest { mode, .. }, sockets, waits, steer, .. } = run;
        let mut variables = vec![("LD_PRELOAD", preloaded(library))];
        let mut set = |name, value: u32| variables.push((name, value.to_string().into()));
        if mode.epoll != EpollParams::default() {
            set("LULL_EPOLL_USECS", mode.epoll.busy_poll_usecs);
            set("LULL_EPOLL_BUDGET", mode.epoll.busy_poll_budget);
            set("LULL_EPOLL_PREFER", mode.epoll.prefer_busy_poll.into());
        }
        if let AppPolicy::TimeoutMs(ms) = mode.app {
            set("LULL_EPOLL_TIMEOUT_MS", ms);
            if waits.no_lift {
                set("LULL_NO_LIFT", 1);
            }
        }
        if let Some(events) = waits.events_max {
            set("LULL_EVENTS_MAX", events);
        }
        if sockets.usecs(mode) != 0 {
            set("LULL_SOCKET_BUSY_POLL", sockets.usecs(mode));
            if let Some(budget) = sockets.budget.filter(|&budget| budget != 0) {
                set("LULL_SOCKET_BUDGET", budget);
            }
            set("LULL_SOCKET_PREFER", sockets.prefer.into());
        }
        variables.extend(steer.as_ref().and_then(steered).map(|steer| ("LULL_STEER", steer.into())));
        variables
    }

    /// What of the mode is not in force, and why.
    pub fn caveats(&self, mode: &Mode, sockets: &Sockets, device: Option<&str>) -> Vec<String> {
        let mut caveats = Vec::new();
        if let Way::Attach { reason } = self {
            caveats.push(format!("{reason}: no preload library, the program is attached to instead"));
            let request = attach::ProgramRequest { mode: Some(mode.clone()), params: mode.epoll };
            caveats.extend(request.not_in_force());
            if sockets.usecs(mode) != 0 {
                caveats.push("the options of its sockets are NOT set".to_owned());
            }
        }
        if let AppPolicy::TimeoutMs(_) = mode.app {
            caveats.push(sleeper(mode, matches!(self, Way::Preload { .. })));
        }
        if device.is_none() && mode.napi != lull_core::NapiSettings::default() {
            caveats.push(format!(
                "no --dev: only the program's half of {mode} is set; it is in force where `lull apply` has put it"
            ));
        }
        if sockets.usecs(mode) != 0 {
            caveats.push(
                "sockets busy poll in recv; in poll and select only while the sysctl net.core.busy_poll is not 0"
                    .to_owned(),
            );
        }
        caveats
    }
}

/// `LULL_STEER`. There is nothing where the kernel's own hash chooses, or a program that is attached from outside.
fn steered(steer: &attach::Steer) -> Option<String> {
    let attach::Steer::Classic(steer) = steer else { return None };
    match steer {
        Steer::Queue => Some("queue".to_owned()),
        Steer::Cpu => Some("cpu".to_owned()),
        Steer::Hash => None,
        Steer::Program(program) => {
            let line = |it: &Instruction| format!(",{} {} {} {}", it.code, it.jt, it.jf, it.k);
            let lines: String = program.instructions().iter().map(line).collect();
            Some(format!("{}{lines}", program.instructions().len()))
        }
    }
}

/// What a mode that keeps polling does to a thread that sleeps.
fn sleeper(mode: &Mode, polls: bool) -> String {
    if polls {
        format!(
            "{mode}: a thread's queues are polled until it has had no event for 100 ms, which takes its whole CPU; the \
             first packet after that, and each one for a thread that waits in poll or select, may wait for the timer \
             (gro_flush_timeout, 5 ms in {mode})"
        )
    } else {
        format!("{mode}: a packet that comes while a thread sleeps may wait for the timer (gro_flush_timeout, 5 ms)")
    }
}

fn kernel_has_parameters() -> Result<()> {
    let epoll = rustix::event::epoll::create(rustix::event::epoll::CreateFlags::CLOEXEC)
        .map_err(|error| Error::os("make an epoll context", "close some descriptors (ulimit -n)", error.into()))?;
    os::epoll_params(epoll.as_fd()).map(drop).map_err(|_| Error::Unsupported {
        what: "set busy-poll parameters of epoll contexts".to_owned(),
        reason: format!("this kernel ({}) has none", crate::machine::kernel_release()),
        remedy: "they take Linux 6.9 or newer".to_owned(),
    })
}

/// The value of LD_PRELOAD: the library after what is there already.
pub(super) fn preloaded(library: &Path) -> OsString {
    let mut preload = var_os("LD_PRELOAD").unwrap_or_default();
    if !preload.is_empty() {
        preload.push(":");
    }
    preload.push(library);
    preload
}

/// The preload library, which is where `LULL_PRELOAD` says, beside this executable, or in `../lib/lull`.
pub(super) fn library() -> Result<PathBuf> {
    let missing = |what: String| Error::Input {
        what,
        remedy: format!("build or install {LIBRARY} beside lull or in ../lib/lull, or name it in {LIBRARY_VARIABLE}"),
    };
    let found = if let Some(named) = var_os(LIBRARY_VARIABLE) {
        let named = PathBuf::from(named);
        if !named.is_file() {
            return Err(missing(format!("no preload library {} ({LIBRARY_VARIABLE})", named.display())));
        }
        named
    } else {
        let executable = current_exe().unwrap_or_default();
        let directory = executable.parent().unwrap_or(OsStr::new("/").as_ref()).to_owned();
        let places = [directory.join(LIBRARY), directory.join("../lib/lull").join(LIBRARY)];
        places
            .into_iter()
            .find(|place| place.is_file())
            .ok_or_else(|| missing(format!("no preload library {LIBRARY} beside {}", executable.display())))?
    };
    let absolute = found.canonicalize().unwrap_or(found);
    if absolute.as_os_str().as_bytes().iter().any(|byte| matches!(byte, b' ' | b':')) {
        return Err(missing(format!("{} cannot be preloaded: LD_PRELOAD takes no blank or colon", absolute.display())));
    }
    Ok(absolute)
}
