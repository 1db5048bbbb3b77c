//! `--csv`, `--json` and `--html`, which every command has that writes what it found.

use std::path::{Path, PathBuf};

use clap::Args;
use lull_lab::csv::atomic;
use lull_lab::document::Document;

use crate::failure::Failure;

/// Files to write besides what is printed.
#[derive(Args, Default)]
pub struct Outputs {
    /// Write the table as CSV.
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    /// Write everything as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write a self-contained page with charts.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

impl Outputs {
    /// Whether any was asked for.
    pub fn any(&self) -> bool {
        self.paths().next().is_some()
    }

    fn paths(&self) -> impl Iterator<Item = &PathBuf> {
        [&self.csv, &self.json, &self.html].into_iter().flatten()
    }

    /// A file that cannot be written is said before the work is done.
    pub fn check(&self) -> Result<(), Failure> {
        self.paths().try_for_each(|path| writable(path))
    }

    /// Writes what was asked for, each file whole or not at all.
    pub fn write(&self, document: &dyn Document) -> Result<(), Failure> {
        if let Some(path) = &self.csv {
            atomic::write(path, document.csv().as_bytes())?;
        }
        if let Some(path) = &self.json {
            atomic::write(path, document.json()?.as_bytes())?;
        }
        if let Some(path) = &self.html {
            atomic::write(path, document.html().as_bytes())?;
        }
        Ok(())
    }
}

/// Whether a file can be there, said before the work is done.
pub fn writable(path: &Path) -> Result<(), Failure> {
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    if !parent.is_dir() {
        return Err(
            format!("cannot write {}: {} is not a directory; make it first", path.display(), parent.display()).into()
        );
    }
    if path == Path::new("-") {
        return Err("cannot write -: it would be a file of that name; name a file, or /dev/stdout".into());
    }
    if path.is_dir() {
        return Err(format!("cannot write {}: it is a directory; name a file", path.display()).into());
    }
    Ok(())
}
