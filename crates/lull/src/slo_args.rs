//! `--slo` and `--cpu-max`: an objective in place of timeouts.

use clap::Args;
use lull_core::{Mode, NapiSettings};
use lull_slo::{Bounds, Controller, Slo};
use lull_units::share_permille;

use crate::failure::Failure;

/// An objective that is kept while something runs.
#[derive(Args, Clone, Debug, Default)]
pub struct SloArgs {
    /// Choose the timeouts while it runs, for an objective of latency: avg, p50, p95 or p99 below a time; several are
    /// joined by commas, such as 'p99<200us,avg<80us'. It begins with the mode and falls back to it: base, deferX,
    /// suspend0 or suspendX. docs/control.md describes the controller.
    #[arg(long, value_name = "OBJECTIVE")]
    slo: Option<String>,
    /// The most CPU that may be used, such as 60%: above it timeouts become longer, whatever the objective.
    #[arg(long, value_name = "SHARE", requires = "slo")]
    cpu_max: Option<String>,
}

impl SloArgs {
    /// Whether there is an objective.
    pub fn is_given(&self) -> bool {
        self.slo.is_some()
    }

    /// Returns the controller that was asked for, if one was. `asked` has the settings of the mode for a NAPI, with
    /// those that were given in their place.
    pub fn controller(&self, mode: &Mode, asked: NapiSettings) -> Result<Option<Controller>, Failure> {
        let Some(text) = &self.slo else { return Ok(None) };
        let slo: Slo = text.parse()?;
        let cpu_max = self.cpu_max.as_deref().map(percent).transpose()?;
        let bounds = Bounds { asked, ..Bounds::new(&slo, mode, cpu_max)? };
        Ok(Some(Controller::new(slo, bounds)))
    }
}

fn percent(text: &str) -> Result<f64, Failure> {
    match share_permille(text) {
        Ok(permille) if (10..=1_000).contains(&permille) => Ok(permille as f64 / 10.0),
        Ok(_) => Err(format!("--cpu-max: {text} is impossible: allowed is 1% to 100%").into()),
        Err(error) => Err(format!("--cpu-max: {error}").into()),
    }
}
