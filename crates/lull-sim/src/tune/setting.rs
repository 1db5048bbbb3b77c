//! Settings that `lull apply` can put in force, and the commands for it.

use std::fmt;

use lull_core::{AppPolicy, Mode, ModeError, NapiSettings};

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

    /// Returns its member with this timeout, in microseconds.
    pub(crate) fn member(self, us: u32) -> Result<Setting, ModeError> {
        let setting = match self {
            Family::Defer => Setting::of_mode(&format!("defer{us}"))?,
            Family::Suspend => Setting::of_mode(&format!("suspend{us}"))?,
            Family::NapiBusy => {
                let mut setting = Setting::of_mode("napibusy")?;
                setting.mode.napi.gro_flush_timeout_ns = u64::from(us) * 1_000;
                setting
            }
        };
        Ok(Setting { family: Some((self, us)), ..setting })
    }
}

/// One setting: a mode, which may have other values than its own for `gro_flush_timeout`, `irq_suspend_timeout` and
/// `defer_hard_irqs`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// The mode as it would be in force.
    pub mode: Mode,
    /// Its place in a family.
    pub family: Option<(Family, u32)>,
    /// The settings that the mode's name alone puts in force.
    own: NapiSettings,
}

impl Setting {
    /// Makes the setting of a mode without changes.
    ///
    /// # Errors
    ///
    /// This fails for a name that is no mode.
    pub fn of_mode(name: &str) -> Result<Setting, ModeError> {
        let mode: Mode = name.parse()?;
        Ok(Setting { own: mode.napi, mode, family: None })
    }

    /// Returns the same setting with another `irq_suspend_timeout`, in nanoseconds.
    pub fn with_suspend_timeout(&self, ns: u64) -> Setting {
        let mut setting = self.clone();
        setting.mode.napi.irq_suspend_timeout_ns = ns;
        setting
    }

    /// Returns the same setting with another `defer_hard_irqs`.
    pub fn with_defer(&self, times: u32) -> Setting {
        let mut setting = self.clone();
        setting.mode.napi.defer_hard_irqs = times;
        setting
    }

    /// Whether `irq_suspend_timeout` or `defer_hard_irqs` are not the mode's own.
    pub fn is_refined(&self) -> bool {
        let (napi, own) = (&self.mode.napi, &self.own);
        napi.irq_suspend_timeout_ns != own.irq_suspend_timeout_ns || napi.defer_hard_irqs != own.defer_hard_irqs
    }

    /// Returns the same setting with the mode's own `irq_suspend_timeout` and `defer_hard_irqs`.
    pub fn unrefined(&self) -> Setting {
        self.with_suspend_timeout(self.own.irq_suspend_timeout_ns).with_defer(self.own.defer_hard_irqs)
    }

    /// Returns the values that are not the mode's own, each as its option of `lull apply` and its value.
    fn overrides(&self) -> Vec<(&'static str, String)> {
        let (napi, own) = (&self.mode.napi, &self.own);
        let time = |option, now_ns: u64, own_ns: u64| (now_ns != own_ns).then(|| (option, whole_time_text(now_ns)));
        let defer = (napi.defer_hard_irqs != own.defer_hard_irqs)
            .then(|| ("defer-hard-irqs", napi.defer_hard_irqs.to_string()));
        [
            time("gro-flush-timeout", napi.gro_flush_timeout_ns, own.gro_flush_timeout_ns),
            time("irq-suspend-timeout", napi.irq_suspend_timeout_ns, own.irq_suspend_timeout_ns),
            defer,
        ]
        .into_iter()
        .flatten()
        .collect()
    }

    /// Returns the command for the machine, given the device's name.
    pub fn apply_line(&self, dev: &str) -> String {
        let options: String = self.overrides().iter().map(|(option, value)| format!(" --{option} {value}")).collect();
        format!("lull apply {dev} --mode {}{options}", self.mode)
    }

    /// Returns the command for the application's half, if the mode has one: for a program that runs, or is to be
    /// started.
    pub fn program_line(&self) -> Option<String> {
        let mode = &self.mode;
        if matches!(mode.app, AppPolicy::TimeoutMs(_)) {
            return Some(format!("lull run --mode {mode} -- COMMAND"));
        }
        if mode.socket_busy_poll_usecs != 0 {
            return Some(format!("lull run --mode {mode} -- COMMAND"));
        }
        mode.epoll.prefer_busy_poll.then(|| format!("lull attach --pid PID --mode {mode} --once"))
    }

    /// Returns the commands for a program on lull's own stack: the one that starts it, and one that changes single
    /// settings while it runs, if the mode's name does not give them.
    pub fn user_lines(&self) -> (String, Option<String>) {
        let settings: String = self.overrides().iter().map(|(option, value)| format!(" {option}={value}")).collect();
        let run = format!("lull run --nic NIC --addr IP/PREFIX --mode {} -- COMMAND", self.mode);
        (run, (!settings.is_empty()).then(|| format!("lull set PID{settings}")))
    }

    /// Returns what else it needs on Linux, if anything.
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
        let mut name = self.mode.name().to_owned();
        for (option, value) in self.overrides() {
            let what = match option {
                "irq-suspend-timeout" => "suspend=",
                "defer-hard-irqs" => "defer=",
                _ => "",
            };
            name += &format!("/{what}{value}");
        }
        f.pad(&name)
    }
}

/// Writes a time as `lull apply` reads it: a whole number of the largest unit that divides it.
fn whole_time_text(ns: u64) -> String {
    match ns {
        ns if ns % 1_000_000_000 == 0 => format!("{}s", ns / 1_000_000_000),
        ns if ns % 1_000_000 == 0 => format!("{}ms", ns / 1_000_000),
        ns if ns % 1_000 == 0 => format!("{}us", ns / 1_000),
        ns => format!("{ns}ns"),
    }
}

/// Modes without a timeout to choose.
const FIXED: [&str; 6] = ["base", "suspend0", "fullbusy", "threaded", "threaded-busy", "busyread"];
/// The timeouts with which the search begins, in microseconds: two to three a decade.
const GRID_US: [u32; 7] = [5, 10, 20, 50, 100, 200, 500];
/// The same for napibusy, whose timeout only limits the wait after its busy loop has ended.
const NAPIBUSY_GRID_US: [u32; 3] = [20, 50, 200];

/// The values of `defer_hard_irqs` that are tried around a setting; the modes' own is 100.
const DEFER_GRID: [u32; 4] = [1, 5, 20, 1_000];
/// The values of `irq_suspend_timeout` that are tried around a setting, in microseconds; the modes' own is 20 ms.
const SUSPEND_GRID_US: [u64; 4] = [200, 1_000, 5_000, 100_000];

/// The fractions of a timeout that are tried with the largest `defer_hard_irqs`.
const SHORTER: [u32; 3] = [2, 5, 10];
/// The shortest timeout of a family, in microseconds.
const SHORTEST_US: u32 = 5;

/// Returns the settings that differ from this one in `irq_suspend_timeout` or in `defer_hard_irqs`, as far as its mode
/// uses them. A gap between packets is bridged by timeout times `defer_hard_irqs`, so shorter timeouts are tried with
/// the largest.
pub(crate) fn around(setting: &Setting) -> Vec<Setting> {
    let mut settings = Vec::new();
    if setting.mode.deferral_ns().is_some() {
        settings.extend(DEFER_GRID.iter().map(|&times| setting.with_defer(times)));
    }
    if let Some((family, us)) = setting.family.filter(|_| !setting.is_refined()) {
        let shorter = SHORTER.iter().map(|part| us / part).filter(|us| *us >= SHORTEST_US);
        let largest = DEFER_GRID[DEFER_GRID.len() - 1];
        settings.extend(shorter.filter_map(|us| family.member(us).ok()).map(|setting| setting.with_defer(largest)));
    }
    if setting.mode.suspends() {
        settings.extend(SUSPEND_GRID_US.iter().map(|&us| setting.with_suspend_timeout(us * 1_000)));
    }
    settings.retain(|one| one != setting);
    settings
}

/// Returns the settings with which the search begins.
///
/// # Errors
///
/// This does not happen in practice, because all names are modes.
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
        assert_eq!(program.unwrap(), "lull attach --pid PID --mode suspend35 --once");
        let (name, apply, _) = lines(Family::NapiBusy.member(50).unwrap());
        assert_eq!(
            (name.as_str(), apply.as_str()),
            ("napibusy/50us", "lull apply eth0 --mode napibusy --gro-flush-timeout 50us")
        );
        assert_eq!(Family::NapiBusy.member(200).unwrap().apply_line("eth0"), "lull apply eth0 --mode napibusy");
        let refined = Family::Suspend.member(20).unwrap().with_suspend_timeout(1_500_000).with_defer(5);
        let (name, apply, program) = lines(refined.clone());
        assert_eq!(name, "suspend20/suspend=1500us/defer=5");
        assert_eq!(apply, "lull apply eth0 --mode suspend20 --irq-suspend-timeout 1500us --defer-hard-irqs 5");
        assert_eq!(program.unwrap(), "lull attach --pid PID --mode suspend20 --once");
        assert!(refined.is_refined() && refined.unrefined() == Family::Suspend.member(20).unwrap());
        let run = "lull run --nic NIC --addr IP/PREFIX --mode suspend20 -- COMMAND";
        let set = "lull set PID irq-suspend-timeout=1500us defer-hard-irqs=5".to_owned();
        assert_eq!(refined.user_lines(), (run.to_owned(), Some(set)));
        assert_eq!(refined.unrefined().user_lines(), (run.to_owned(), None));
        assert!(!Family::NapiBusy.member(50).unwrap().is_refined());
        assert_eq!(lines(Setting::of_mode("defer20").unwrap()).2, None);
        assert_eq!(lines(Setting::of_mode("fullbusy").unwrap()).2.unwrap(), "lull run --mode fullbusy -- COMMAND");
    }

    #[test]
    fn what_is_tried_around_a_setting_is_what_its_mode_uses() {
        let names = |setting: Setting| around(&setting).iter().map(ToString::to_string).collect::<Vec<_>>();
        assert!(names(Setting::of_mode("base").unwrap()).is_empty());
        assert_eq!(names(Setting::of_mode("defer20").unwrap())[0], "defer20/defer=1");
        assert_eq!(names(Setting::of_mode("defer20").unwrap()).len(), 4);
        assert!(names(Family::Defer.member(20).unwrap()).contains(&"defer10/defer=1000".to_owned()));
        let around = names(Family::Suspend.member(20).unwrap());
        assert!(around.len() == 8 + 1 && around.contains(&"suspend20/suspend=5ms".to_owned()), "{around:?}");
        // suspend0 has no deferral to count.
        assert_eq!(names(Setting::of_mode("suspend0").unwrap()).len(), 4);
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
