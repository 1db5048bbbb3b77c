//! `--prometheus`: the metrics of a command that keeps running, for Prometheus to scrape.

use std::net::SocketAddr;

use clap::Args;
use lull_figures::Source;
use lull_figures::exporter::Exporter;
use lull_linux::os;

use crate::failure::Failure;
use crate::output::say;

/// Where metrics are served.
#[derive(Args)]
pub struct MetricsArgs {
    /// Serve metrics for Prometheus at http://ADDR/metrics, such as 127.0.0.1:9200.
    #[arg(long, value_name = "ADDR")]
    pub prometheus: Option<SocketAddr>,
}

impl MetricsArgs {
    /// If metrics were asked for, serves what a source reads, until the returned exporter is dropped.
    ///
    /// # Errors
    ///
    /// This fails if there is no such source, or the address cannot be listened on.
    pub fn serve(
        &self,
        source: impl FnOnce() -> Result<Box<dyn Source>, Failure>,
    ) -> Result<Option<Exporter>, Failure> {
        let Some(address) = self.prometheus else { return Ok(None) };
        // Its threads take no signals: a signal that one of them took would end a command that passes signals on.
        let started = os::deaf(|| Ok::<_, Failure>(Exporter::start(address, source()?)?));
        let exporter =
            started.map_err(|error| format!("cannot serve metrics: signals stay as they are: {error}"))??;
        say!("lull: metrics are at http://{}/metrics", exporter.address());
        Ok(Some(exporter))
    }
}
