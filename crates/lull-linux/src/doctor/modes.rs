//! Says for each mode whether it can be had here, and if not, why.

use lull_core::Mode;
use lull_core::mode::{CATALOGUE, Plane};
use serde::Serialize;

use crate::device::Snapshot;
use crate::error::Error;
use crate::netdev::Policy;
use crate::plan::{check_policy, no_napi};

/// These microseconds stand for all X of a family of modes.
const X_US: &str = "20";

/// Whether a mode can be had.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ModeVerdict {
    /// The mode.
    pub mode: String,
    /// Whether it can be put in force.
    pub possible: bool,
    /// Why it cannot be, or what else it needs.
    pub reason: Option<String>,
}

pub fn verdicts(policy: &Policy, snapshot: Option<&Snapshot>, kernel: &str) -> Vec<ModeVerdict> {
    let entries = CATALOGUE.iter().filter(|entry| entry.planes.contains(&Plane::Kernel));
    let modes = entries.filter_map(|entry| entry.form.replace('X', X_US).parse::<Mode>().ok());
    modes.map(|mode| verdict(&mode, policy, snapshot, kernel)).collect()
}

fn verdict(mode: &Mode, policy: &Policy, snapshot: Option<&Snapshot>, kernel: &str) -> ModeVerdict {
    let no = |reason: String| ModeVerdict { mode: mode.name().to_owned(), possible: false, reason: Some(reason) };
    match check_policy(mode.name(), &mode.napi, policy, kernel) {
        // The mode's name is printed beside the reason.
        Err(Error::Unsupported { reason, remedy, .. }) => return no(format!("{reason}; {remedy}")),
        Err(error) => return no(error.to_string()),
        Ok(()) => {}
    }
    if let Some(snapshot) = snapshot.filter(|snapshot| snapshot.napis.is_empty()) {
        return no(no_napi(snapshot).to_string());
    }
    let takes = if mode.epoll.prefer_busy_poll {
        Some("takes programs that prefer busy polling: `lull attach --pid PID --mode MODE` or `lull run`".to_owned())
    } else if mode.socket_busy_poll_usecs != 0 {
        Some("takes programs whose sockets have SO_BUSY_POLL: `lull run`".to_owned())
    } else {
        None
    };
    ModeVerdict { mode: mode.name().to_owned(), possible: true, reason: takes }
}
