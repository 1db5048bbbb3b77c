//! The request for a program's epoll contexts, and what attaching cannot do for it.

use lull_core::{AppPolicy, EpollParams, Mode};

use crate::error::{Error, Result};
use crate::netdev::Netdev;

/// The request for a program's epoll contexts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgramRequest {
    /// The mode whose application half this is, if one was named.
    pub mode: Option<Mode>,
    /// The parameters.
    pub params: EpollParams,
}

impl ProgramRequest {
    /// A mode's application half, with values in place of its own.
    ///
    /// # Errors
    /// There is neither a mode nor a value; a value is above its limit; or the mode's application half does not consist
    /// of epoll parameters.
    pub fn new(mode: Option<Mode>, usecs: Option<u32>, budget: Option<u32>, prefer: bool) -> Result<ProgramRequest> {
        if mode.is_none() && usecs.is_none() && budget.is_none() && !prefer {
            return Err(Error::Input {
                what: "nothing to set".to_owned(),
                remedy: "name a mode with --mode, or give --usecs, --budget, --prefer or --steer".to_owned(),
            });
        }
        if let Some(mode) = mode.as_ref().filter(|mode| mode.socket_busy_poll_usecs != 0) {
            return Err(Error::Unsupported {
                what: format!("attach with mode {mode}"),
                reason: "it sets SO_BUSY_POLL on sockets when they are made, not parameters of epoll contexts"
                    .to_owned(),
                remedy: "start the program with `lull run`".to_owned(),
            });
        }
        if let Some(mode) = &mode {
            crate::plan::check_kernel_has(mode)?;
        }
        let mut params = mode.as_ref().map_or_else(EpollParams::default, |mode| mode.epoll);
        params.busy_poll_usecs = usecs.unwrap_or(params.busy_poll_usecs);
        params.busy_poll_budget = budget.unwrap_or(params.busy_poll_budget);
        params.prefer_busy_poll |= prefer;
        // The kernel decides who may exceed the budget of 64.
        params.check(true)?;
        Ok(ProgramRequest { mode, params })
    }

    /// A request that changes no context, as only listeners are steered.
    pub fn none() -> ProgramRequest {
        ProgramRequest { mode: None, params: EpollParams::default() }
    }

    /// The part of the mode that attaching cannot put in force, in words.
    pub fn not_in_force(&self) -> Option<String> {
        let mode = self.mode.as_ref()?;
        let AppPolicy::TimeoutMs(ms) = mode.app else { return None };
        Some(format!(
            "mode {mode} is NOT fully in force: from outside a program's epoll_wait cannot be made to wait {ms} ms at a \
             time; a call with timeout 0 never busy polls, and a longer one does so once and sleeps; `lull run --mode \
             {mode}` changes the timeouts of programs that load its preload library"
        ))
    }

    /// What attaching cannot do for this mode, or does not do by itself. The devices with its other half are looked up
    /// in the network namespace of the calling thread.
    pub fn caveats(&self) -> Vec<String> {
        let mut caveats = Vec::from_iter(self.not_in_force());
        if let Some(mode) = self.mode.as_ref().filter(|mode| mode.napi != lull_core::NapiSettings::default()) {
            let half = format!("this is the program's half of {mode}");
            caveats.push(match &*devices_with(mode) {
                [] => format!("{half}; `lull apply DEV --mode {mode}` sets the device's"),
                devices => format!("{half}; the device's is in force on {}", devices.join(", ")),
            });
        }
        caveats
    }
}

/// The devices of this network namespace that have a mode's settings on one of their NAPIs.
fn devices_with(mode: &Mode) -> Vec<String> {
    let mut netdev = Netdev::new();
    let links = netdev.links().unwrap_or_default();
    let mut has_it = |ifindex| netdev.napis(ifindex).is_ok_and(|napis| napis.iter().any(|it| it.settings == mode.napi));
    links.into_iter().filter(|link| has_it(link.ifindex)).map(|link| link.name).collect()
}

/// Whether the children of a process are set along with it. They are unless the request says otherwise, but those of
/// process 1 only if the request says so.
///
/// # Errors
/// [`Error::Input`] for process 1 if the request does not say.
pub fn with_children(pid: i32, asked: Option<bool>) -> Result<bool> {
    match asked {
        Some(asked) => Ok(asked),
        None if pid == 1 => Err(Error::Input {
            what: "the children of process 1 are all programs of the machine, or of the container".to_owned(),
            remedy: "name the program's process, or say --children yes for all of them, --children no for none"
                .to_owned(),
        }),
        None => Ok(true),
    }
}
