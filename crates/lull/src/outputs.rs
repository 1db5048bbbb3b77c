//! `--csv`, `--json` and `--html`, which every command has that writes its results to files.

use std::path::{Path, PathBuf};

use clap::Args;
use lull_lab::csv::atomic;
use lull_lab::document::Document;
use rustix::fs::{Access, AtFlags};

use crate::failure::Failure;

/// The files that are written besides what is printed.
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
    /// Whether any file was asked for.
    pub fn any(&self) -> bool {
        self.paths().next().is_some()
    }

    fn paths(&self) -> impl Iterator<Item = &PathBuf> {
        [&self.csv, &self.json, &self.html].into_iter().flatten()
    }

    /// Refuses a file that cannot be written, or that would replace another, before the work is done.
    pub fn check(&self) -> Result<(), Failure> {
        self.paths().try_for_each(|path| writable(path))?;
        let mut targets = Vec::new();
        for path in self.paths() {
            let target = target(path);
            if targets.contains(&target) && !is_written_on(&target) {
                let path = path.display();
                return Err(format!(
                    "cannot write two outputs to {path}: the second would replace the first; name another file"
                )
                .into());
            }
            targets.push(target);
        }
        Ok(())
    }

    /// Writes the files that were asked for, each one whole or not at all.
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

/// Checks that a file can be written there, before the work is done.
pub fn writable(path: &Path) -> Result<(), Failure> {
    let parent = parent(path);
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
    let target = target(path);
    let (what, needs) = match target.parent() {
        Some(directory) if !is_written_on(&target) => (directory, Access::WRITE_OK | Access::EXEC_OK),
        _ => (target.as_path(), Access::WRITE_OK),
    };
    rustix::fs::accessat(rustix::fs::CWD, what, needs, AtFlags::EACCESS).map_err(|error| {
        let what = what.display();
        format!("cannot write {}: {what} cannot be written ({error}); name another file", path.display()).into()
    })
}

/// Returns the file that a path leads to. It is written as a new file in the same directory, which then replaces it.
fn target(path: &Path) -> PathBuf {
    let whole = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
    match (path.exists(), path.file_name()) {
        (false, Some(name)) => whole(parent(path)).join(name),
        _ => whole(path),
    }
}

/// Whether the target is a pipe or a device, for example, which is written to and not replaced.
fn is_written_on(target: &Path) -> bool {
    target.metadata().is_ok_and(|found| !found.is_file())
}

fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}
