//! Scripts with unmodified programs on the user plane, each in namespaces of its own.
#![allow(dead_code)] // Each test file uses a part of it.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Once;

/// Returns the reason why this machine cannot run a test that needs `program`, if it cannot.
pub fn missing(program: &str) -> Option<String> {
    if std::fs::OpenOptions::new().read(true).write(true).open("/dev/net/tun").is_err() {
        return Some("/dev/net/tun cannot be opened".to_owned());
    }
    let namespace = Command::new("unshare").args(["-Urn", "--pid", "--fork", "--mount-proc", "true"]).output();
    if !namespace.is_ok_and(|output| output.status.success()) {
        return Some("no unprivileged user namespaces (unshare -Urn --pid --fork --mount-proc)".to_owned());
    }
    let found = Command::new("sh").args(["-c", program]).output().is_ok_and(|output| output.status.success());
    (!found).then(|| format!("`{program}` fails: the program is not installed"))
}

/// Builds the preload library beside the `lull` that is tested, because `cargo test -p lull` alone does not build it.
/// It is built together with a test of the workspace, so that its dependencies have the same features as under `cargo
/// test --workspace`, which has built them already.
pub fn build_preload() {
    static BUILT: Once = Once::new();
    BUILT.call_once(|| {
        let directory = Path::new(env!("CARGO_BIN_EXE_lull")).parent().unwrap();
        let mut build = Command::new(env!("CARGO"));
        build
            .args(["build", "--quiet", "--workspace", "--lib", "--test", "preload", "--target-dir"])
            .arg(directory.parent().unwrap());
        if directory.ends_with("release") {
            build.arg("--release");
        }
        assert!(build.current_dir(env!("CARGO_MANIFEST_DIR")).status().unwrap().success());
    });
}

/// Runs a script as root of a user namespace, if the machine has what it needs.
pub fn run(script: &str, needs: &str, mode: &str, argument: &str) {
    if let Some(reason) = missing(needs) {
        println!("SKIP: {script} on the user plane: {reason}");
        return;
    }
    run_in(&["-Urn"], script, mode, argument);
}

/// Runs a script in namespaces that `unshare` makes by these options.
pub fn run_in(namespaces: &[&str], script: &str, mode: &str, argument: &str) {
    build_preload();
    let name = format!("lull-user-{script}-{mode}-{argument}-{}", std::process::id());
    let scratch = std::env::temp_dir().join(name.replace(' ', "-"));
    std::fs::create_dir_all(&scratch).unwrap();
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/programs").join(format!("{script}.sh"));
    let output = Command::new("unshare")
        .args(namespaces)
        // Processes that a failed script leaves behind end with its PID namespace.
        .args(["--pid", "--fork", "--kill-child", "--mount-proc"])
        .arg("bash")
        .arg(path)
        .args([env!("CARGO_BIN_EXE_lull"), mode, argument])
        .current_dir(&scratch)
        .output()
        .unwrap();
    let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    std::fs::remove_dir_all(&scratch).unwrap();
    assert!(output.status.success() && said.contains("done"), "{script} in mode {mode}: {said}");
}
