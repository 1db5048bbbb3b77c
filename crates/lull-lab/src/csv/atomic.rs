//! Writes a file whole or not at all.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Writes `bytes` to `path` by way of a temporary file beside it and a rename, so that a reader (or a crash) never sees
/// half of it. A symbolic link keeps its target. A path that is no regular file (a pipe, `/dev/stdout`) is written to
/// directly, because it cannot be replaced.
///
/// # Errors
///
/// This fails with the operating system's error, with the path in the message. The old file is then untouched.
pub fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    try_write(path, bytes)
        .map_err(|error| io::Error::new(error.kind(), format!("cannot write {}: {error}", path.display())))
}

fn try_write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let target = match fs::metadata(path) {
        Ok(found) if !found.is_file() => return fs::OpenOptions::new().write(true).open(path)?.write_all(bytes),
        Ok(_) => fs::canonicalize(path)?,
        Err(_) => path.to_path_buf(),
    };
    let temporary = beside(&target);
    // A killed process of the same id may have left it, which is usual in containers, where ids are small.
    let _ = fs::remove_file(&temporary);
    let written = File::create_new(&temporary)
        .and_then(|mut file| file.write_all(bytes).and_then(|()| file.sync_all()))
        .and_then(|()| fs::rename(&temporary, &target));
    if written.is_err() {
        // The first error is the one to report.
        let _ = fs::remove_file(&temporary);
    }
    written
}

fn beside(target: &Path) -> PathBuf {
    let mut name = std::ffi::OsString::from(".");
    name.push(target.file_name().unwrap_or_default());
    name.push(format!(".{}.tmp", std::process::id()));
    target.with_file_name(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn directory(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("lull-atomic-{}-{name}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        path
    }

    #[test]
    fn replaces_whole_files_and_leaves_nothing_beside_them() {
        let directory = directory("replace");
        let path = directory.join("table.csv");
        write(&path, b"first").unwrap();
        write(&path, b"second").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"second");
        assert_eq!(fs::read_dir(&directory).unwrap().count(), 1);
        fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn follows_links_and_names_the_path_of_a_failure() {
        let directory = directory("link");
        let (file, link) = (directory.join("file"), directory.join("link"));
        fs::write(&file, b"old").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        write(&link, b"new").unwrap();
        assert_eq!(fs::read(&file).unwrap(), b"new");
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        write(Path::new("/dev/null"), b"gone").unwrap();
        let error = write(&directory.join("no/such/table.csv"), b"x").unwrap_err();
        assert!(error.to_string().contains("no/such/table.csv"), "{error}");
        fs::remove_dir_all(directory).unwrap();
    }
}
