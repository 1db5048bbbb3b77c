//! One step: it reads what is there and writes what is wanted, and tells how that came out.

use serde::Serialize;

use crate::ethtool::Ethtool;
use crate::overwritten::{Interrupt, Target};
use crate::roots::Roots;

/// Says who holds what lasts only while it is held.
const HELD: &str = "no file keeps it, so it is held while `lull apply --watch` or `lull run --dev` has a device; \
                    cpu-resume-latency-us stays by itself";

/// How a step came out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// It was done, or in a dry run would be done.
    Changed,
    /// It was so already.
    Already,
    /// It lasts only while a process holds it, and this says which one does.
    Held(String),
    /// The device or kernel has no such thing.
    Lacking(String),
    /// It was refused.
    Refused(String),
}

/// One step, for people.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct StepReport {
    /// The step.
    pub what: String,
    /// What was there, as far as it could be read.
    pub from: Option<String>,
    /// What was wanted.
    pub to: String,
    /// What it was right after it was written, where the kernel or the driver made something else of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub became: Option<String>,
    /// How it came out.
    pub outcome: Outcome,
}

/// One thing to set.
#[derive(Debug)]
pub(super) struct Step {
    pub(super) what: String,
    /// Where it is set, or why there is no such place.
    pub(super) target: std::result::Result<Target, String>,
    pub(super) to: String,
    /// The interrupt, for a file of one. It is left alone where its number belongs to another one.
    pub(super) interrupt: Option<Interrupt>,
}

impl Step {
    pub(super) fn new(what: String, target: std::result::Result<Target, String>, to: String) -> Step {
        Step { what, target, to, interrupt: None }
    }

    /// Reads what is there now. `settled` is what became of `to` when it was written before, if that is something else.
    pub(super) fn look(&self, settled: Option<&str>, ethtool: &mut Ethtool, roots: &Roots) -> StepReport {
        let report = |from: Option<String>, outcome| {
            let (what, to) = (self.what.clone(), self.to.clone());
            StepReport { what, from, to, became: None, outcome }
        };
        let target = match &self.target {
            Ok(target) => target,
            Err(lacking) => return report(None, Outcome::Lacking(lacking.clone())),
        };
        if *target == Target::CpuDmaLatency {
            let there = roots.dev("cpu_dma_latency").exists();
            let outcome = if there { Outcome::Held(HELD.to_owned()) } else { Outcome::Lacking(target.lacking()) };
            return report(None, outcome);
        }
        if let (Some(interrupt), Some(number)) = (&self.interrupt, target.interrupt())
            && let Some(another) = interrupt.another(number, roots)
        {
            return report(None, Outcome::Lacking(format!("interrupt {number} is {another} now")));
        }
        let is_so =
            |from: &str| target.same(from, &self.to) || settled.is_some_and(|settled| target.same(from, settled));
        match target.read(ethtool, roots) {
            Ok(Some(from)) if is_so(&from) => report(Some(from), Outcome::Already),
            Ok(Some(from)) if from.starts_with("not") => {
                report(None, Outcome::Lacking(format!("the machine says '{from}'")))
            }
            Ok(Some(from)) => report(Some(from), Outcome::Changed),
            Ok(None) => report(None, Outcome::Lacking(target.lacking())),
            Err(error) => report(None, Outcome::Refused(error.to_string())),
        }
    }

    /// Does it, if there is something to do, and looks at what became of it.
    pub(super) fn carry_out(&self, mut report: StepReport, ethtool: &mut Ethtool, roots: &Roots) -> StepReport {
        let (Outcome::Changed, Ok(target)) = (&report.outcome, &self.target) else { return report };
        match target.write(&self.to, ethtool, roots) {
            Ok(()) => {
                let now = target.read(ethtool, roots).ok().flatten();
                report.became = now.filter(|now| !target.same(now, &self.to));
            }
            Err(error) => {
                report.outcome = match error.errno() {
                    Some(libc::EOPNOTSUPP) => Outcome::Lacking(target.lacking()),
                    _ => Outcome::Refused(error.to_string()),
                };
            }
        }
        report
    }
}
