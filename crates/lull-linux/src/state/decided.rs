//! What the controller of a device has decided, in a file beside the device's state. It is there for `lull show` and
//! `lull top`, which are other processes.

use std::fs;
use std::time::Duration;

use lull_slo::Decided;

use super::{Store, with};

/// A controller decides at least once a second. An older file is from one that was killed or stopped.
const HOLDS_FOR: Duration = Duration::from_secs(10);
const EXTENSION: &str = "decided";

impl Store {
    /// Writes down what was decided. Nobody depends on it, so a failure is ignored.
    pub(crate) fn decide(&self, decided: &Decided) {
        let (file, new) = (with(&self.stem(), EXTENSION), with(&self.stem(), "deciding"));
        let written = serde_json::to_vec(decided).map_err(std::io::Error::other).and_then(|text| fs::write(&new, text));
        // The file is whole at any time.
        let _ = written.and_then(|()| fs::rename(&new, &file));
    }

    /// Removes the file, as the controller is over.
    pub(crate) fn forget_decided(&self) {
        let _ = fs::remove_file(with(&self.stem(), EXTENSION));
    }

    /// What the controller of the device has decided, if it has one.
    pub fn decided(&self) -> Option<Decided> {
        let file = with(&self.stem(), EXTENSION);
        let age = fs::metadata(&file).and_then(|file| file.modified()).ok()?.elapsed().unwrap_or_default();
        let text = fs::read(&file).ok().filter(|_| age < HOLDS_FOR)?;
        serde_json::from_slice(&text).ok()
    }
}
