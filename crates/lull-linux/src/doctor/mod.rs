//! What this kernel, this driver and these rights allow, mode by mode, and what prevents a mode. Each check is one
//! small function that says what it looked at, what it found, why that matters, and what to do.

mod check;
mod device;
mod machine;
mod modes;
mod programs;
mod sampling;
mod timers;

use serde::Serialize;

use crate::error::Result;
use crate::machine::kernel_release;
use crate::netdev::Netdev;
use crate::options::Options;
use crate::programs::Process;
use crate::session::Session;

pub use check::{Check, Verdict};
pub use modes::ModeVerdict;

/// The findings of the doctor.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The kernel's release.
    pub kernel: String,
    /// The device, if one was named.
    pub device: Option<String>,
    /// The checks.
    pub checks: Vec<Check>,
    /// Which modes can be had.
    pub modes: Vec<ModeVerdict>,
}

impl Report {
    /// Whether something makes a mode fail.
    pub fn something_is_wrong(&self) -> bool {
        self.checks.iter().any(|check| check.verdict == Verdict::Wrong)
    }
}

/// Looks at the machine, at a device if one is named, and at a program if one is named.
///
/// # Errors
/// The device or the process is unknown. What cannot be found out is reported by a check.
pub fn doctor(device: Option<&str>, pid: Option<i32>, options: &Options) -> Result<Report> {
    let roots = &options.roots;
    // Names come first, so that a wrong one is reported before anything is looked at.
    let mut session = device.map(|name| Session::open(name, options)).transpose()?;
    let process = pid.map(|pid| Process::open(pid, roots)).transpose()?;
    let policy = Netdev::new().policy()?;
    let kernel = kernel_release();
    let mut checks = machine::checks(roots, &kernel, &policy);
    let snapshot = session.as_mut().map(Session::snapshot).transpose()?;
    if let (Some(session), Some(snapshot)) = (&mut session, &snapshot) {
        checks.extend(device::checks(session, snapshot, &kernel));
    }
    checks.extend(programs::checks(snapshot.as_ref(), process.as_ref(), roots));
    let modes = modes::verdicts(&policy, snapshot.as_ref(), &kernel);
    Ok(Report { kernel, device: device.map(str::to_owned), checks, modes })
}
