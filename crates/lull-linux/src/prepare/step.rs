//! One step: what is there is read, and what is wanted is written; and how it came out.

use serde::Serialize;

use crate::ethtool::Ethtool;
use crate::overwritten::Target;
use crate::roots::Roots;

/// Who holds what lasts only while it is held.
const HELD: &str = "no file keeps it, so it is held while `lull apply --watch` or `lull run --dev` has a device; \
                    cpu-resume-latency-us stays by itself";

/// How a step came out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// Done; in a dry run, would be done.
    Changed,
    /// It was so already.
    Already,
    /// It lasts only while a process holds it, and this says which does.
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
    /// How it came out.
    pub outcome: Outcome,
}

/// One thing to set.
#[derive(Debug)]
pub(super) struct Step {
    pub(super) what: String,
    /// Where, or why there is no such place.
    pub(super) target: std::result::Result<Target, String>,
    pub(super) to: String,
}

impl Step {
    /// Reads what is there now.
    pub(super) fn look(&self, ethtool: &mut Ethtool, roots: &Roots) -> StepReport {
        let report =
            |from: Option<String>, outcome| StepReport { what: self.what.clone(), from, to: self.to.clone(), outcome };
        let target = match &self.target {
            Ok(target) => target,
            Err(lacking) => return report(None, Outcome::Lacking(lacking.clone())),
        };
        if *target == Target::CpuDmaLatency {
            let there = roots.dev("cpu_dma_latency").exists();
            let outcome = if there { Outcome::Held(HELD.to_owned()) } else { Outcome::Lacking(target.lacking()) };
            return report(None, outcome);
        }
        match target.read(ethtool, roots) {
            Ok(Some(from)) if target.same(&from, &self.to) => report(Some(from), Outcome::Already),
            Ok(Some(from)) if from.starts_with("not") => {
                report(None, Outcome::Lacking(format!("the machine says '{from}'")))
            }
            Ok(Some(from)) => report(Some(from), Outcome::Changed),
            Ok(None) => report(None, Outcome::Lacking(target.lacking())),
            Err(error) => report(None, Outcome::Refused(error.to_string())),
        }
    }

    /// Does it, if there is something to do.
    pub(super) fn carry_out(&self, mut report: StepReport, ethtool: &mut Ethtool, roots: &Roots) -> StepReport {
        if let (Outcome::Changed, Ok(target)) = (&report.outcome, &self.target)
            && let Err(error) = target.write(&self.to, ethtool, roots)
        {
            report.outcome = match error.errno() {
                Some(libc::EOPNOTSUPP) => Outcome::Lacking(target.lacking()),
                _ => Outcome::Refused(error.to_string()),
            };
        }
        report
    }
}
