//! Settings: what `lull apply` can put in force, and the lines to type for it.

use std::fmt;

use lull_core::{AppPolicy, Mode, ModeError};

use crate::units::time_text;

/// Families of settings that differ in one timeout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// `deferX`.
    Defer,
    /// `suspendX`.
    Suspend,
    /// `napibusy` with another `gro_flush_timeout`.
    NapiBusy,
}

impl Family {
    /// All of them.
    pub const ALL: [Family; 3] = [Family::Defer, Family::Suspend, Family::NapiBusy];

    /// Its member of this timeout, in microseconds.
    pub(crate) fn member(self, us: u32) -> Result<Setting, ModeError> {
        let setting = match self {
            Family::Defer => Setting::of_mode(&format!("defer{us}"))?,
            Family::Suspend => Setting::of_mode(&format!("suspend{us}"))?,
            Family::NapiBusy => {
                let mut setting = Setting::of_mode("napibusy")?;
                let ns = u64::from(us) * 1_000;
                setting.flush_override_ns = (setting.mode.napi.gro_flush_timeout_ns != ns).then_some(ns);
                setting.mode.napi.gro_flush_timeout_ns = ns;
                setting
            }
        };
        Ok(Setting { family: Some((self, us)), ..setting })
    }
}

/// One setting: a mode, perhaps with another timeout than its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// The mode as it would be in force.
    pub mode: Mode,
    /// Its place in a family.
    pub family: Option<(Family, u32)>,
    /// `gro_flush_timeout` in place of the mode's, in nanoseconds.
    flush_override_ns: Option<u64>,
}

impl Setting {
    /// A mode as it stands.
    ///
    /// # Errors
    /// A name that is no mode.
    pub fn of_mode(name: &str) -> Result<Setting, ModeError> {
        Ok(Setting { mode: name.parse()?, family: None, flush_override_ns: None })
    }

    /// What to type on the machine, given the device's name.
    pub fn apply_line(&self, dev: &str) -> String {
        let timeout =
            self.flush_override_ns.map_or(String::new(), |ns| format!(" --gro-flush-timeout {}", time_text(ns)));
        format!("lull apply {dev} --mode {}{timeout}", self.mode)
    }

    /// The application's half, where the mode needs one: what to type for a program that runs, or is to be started.
    pub fn program_line(&self) -> Option<String> {
        let mode = &self.mode;
        if matches!(mode.app, AppPolicy::TimeoutMs(_)) {
            return Some(format!("lull run --mode {mode} -- COMMAND"));
        }
        mode.epoll.prefer_busy_poll.then(|| format!("lull attach --pid PID --mode {mode}"))
    }

    /// What else it takes, if anything.
    pub fn caveat(&self) -> Option<&'static str> {
        match self.mode.name() {
            "threaded-busy" => Some("needs Linux 6.19"),
            _ if self.mode.suspends() => Some("needs Linux 6.13"),
            _ => None,
        }
    }
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.flush_override_ns {
            None => f.pad(self.mode.name()),
            Some(ns) => f.pad(&format!("{}/{}", self.mode, time_text(ns))),
        }
    }
}

/// Modes without a timeout to choose.
const FIXED: [&str; 5] = ["base", "suspend0", "fullbusy", "threaded", "threaded-busy"];
/// Timeouts that the search begins with, in microseconds: two to three a decade.
const GRID_US: [u32; 7] = [5, 10, 20, 50, 100, 200, 500];
/// The same for napibusy, whose timeout only bounds the wait after its busy loop has ended.
const NAPIBUSY_GRID_US: [u32; 3] = [20, 50, 200];

/// What the search begins with.
///
/// # Errors
/// None in practice: all names are modes.
pub(crate) fn grid() -> Result<Vec<Setting>, ModeError> {
    let mut settings = FIXED.iter().map(|name| Setting::of_mode(name)).collect::<Result<Vec<_>, _>>()?;
    for family in Family::ALL {
        let timeouts = if family == Family::NapiBusy { NAPIBUSY_GRID_US.as_slice() } else { GRID_US.as_slice() };
        for &us in timeouts {
            settings.push(family.member(us)?);
        }
    }
    Ok(settings)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lines_to_type_are_those_of_the_command() {
        let lines = |setting: Setting| (setting.to_string(), setting.apply_line("eth0"), setting.program_line());
        let (name, apply, program) = lines(Family::Suspend.member(35).unwrap());
        assert_eq!((name.as_str(), apply.as_str()), ("suspend35", "lull apply eth0 --mode suspend35"));
        assert_eq!(program.unwrap(), "lull attach --pid PID --mode suspend35");
        let (name, apply, _) = lines(Family::NapiBusy.member(50).unwrap());
        assert_eq!(
            (name.as_str(), apply.as_str()),
            ("napibusy/50us", "lull apply eth0 --mode napibusy --gro-flush-timeout 50us")
        );
        assert_eq!(Family::NapiBusy.member(200).unwrap().apply_line("eth0"), "lull apply eth0 --mode napibusy");
        assert_eq!(lines(Setting::of_mode("defer20").unwrap()).2, None);
        assert_eq!(lines(Setting::of_mode("fullbusy").unwrap()).2.unwrap(), "lull run --mode fullbusy -- COMMAND");
    }

    #[test]
    fn the_grid_has_every_mode_once() {
        let grid = grid().unwrap();
        let mut names: Vec<String> = grid.iter().map(ToString::to_string).collect();
        assert_eq!(names[0], "base");
        names.sort();
        names.dedup();
        assert_eq!(names.len(), grid.len());
    }
}
