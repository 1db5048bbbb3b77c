//! `lull calibrate --dev` for a device of the machine, whose peer runs `lull load`. The tests assert structure, because
//! the precision of the figures depends on what else the machine does.

use lull_sim::WorldFile;

use crate::kernel::World;

/// The near end's NAPI has these settings before: they are neither zero nor a mode's.
const BEFORE: [&str; 3] = ["defer=7", "gro=30000", "suspend=5000000"];

/// Returns a world of one queue with settings of its own, and the command that runs lull at its other end.
fn world(test: &str) -> Option<(World, String)> {
    if lull_host::usable_cores().len() < 2 {
        println!("SKIP: {test}: calibration takes two cores");
        return None;
    }
    let world = World::new(test, 1)?;
    std::fs::create_dir_all(&world.state).unwrap();
    world.set_raw(world.raw()[0].id, &BEFORE);
    let load_by = format!("ip netns exec {} {}", world.far, env!("CARGO_BIN_EXE_lull"));
    Some((world, load_by))
}

/// Runs `lull calibrate --plane kernel --dev va` with the peer reached by a command.
fn calibrate(world: &World, load_by: &str, out: &str) -> std::process::Output {
    let mut words =
        vec![env!("CARGO_BIN_EXE_lull"), "calibrate", "--plane", "kernel", "--service", "own", "--dev", "va"];
    words.extend(["--load-by", load_by, "--limit", "5", "--out", out]);
    world.command(&words).output().unwrap()
}

#[test]
fn a_device_is_calibrated_with_its_peer_and_given_back() {
    let Some((world, load_by)) = world("calibrate a device") else { return };
    let before = world.raw();
    let path = world.state.join("machine.toml");
    let output = calibrate(&world, &load_by, path.to_str().unwrap());
    let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{said}");
    for part in ["costs.irq", "base at MAX", "suspend20 at 50% was not used", "lull predict"] {
        assert!(said.contains(part), "{part} is not in\n{said}");
    }
    assert_eq!(world.raw(), before);
    assert_eq!(world.state_file(), None);
    let file = WorldFile::read(&path).unwrap();
    assert!(file.host.is_none() && file.calibrated_over == Some("device"), "{file:?}");
    let over_a_pair = format!("compare --plane kernel --predict {}", path.display());
    world.refused(&over_a_pair, &["calibrated over device instead of veth"]);
}

#[test]
fn what_cannot_be_had_is_refused_and_changes_nothing() {
    let Some((world, load_by)) = world("calibrate refuses") else { return };
    let path = world.state.join("machine.toml").display().to_string();
    let refused = |options: &str, words: &[&str]| world.refused(&format!("calibrate --out {path} {options}"), words);
    refused("--dev va", &["cannot calibrate lull's own stack over va", "--plane kernel"]);
    refused("--plane kernel --dev va", &["cannot calibrate over va alone", "--load-by 'ssh client lull'"]);
    refused("--plane kernel --load-by lull", &["cannot use --load-by without --dev"]);
    refused("--plane kernel --dev none --load-by x", &["no device 'none'", "va"]);

    world.run(&["ip", "link", "set", "va", "down"]);
    refused("--plane kernel --dev va --load-by x", &["it is down", "ip link set va up"]);
    world.run(&["ip", "link", "set", "va", "up"]);
    world.run(&["ip", "addr", "flush", "dev", "va"]);
    refused("--plane kernel --dev va --load-by x", &["it has no IPv4 address"]);
    world.run(&["ip", "addr", "add", "10.99.0.1/24", "dev", "va"]);
    if let Some(two) = World::new("calibrate two queues", 2) {
        let options = format!("calibrate --out {path} --plane kernel --dev va --load-by x");
        two.refused(&options, &["with 1 worker: it shows 2 NAPIs", "--workers 2", "ethtool -L va"]);
    }

    // A link that was down and up again has another NAPI.
    world.set_raw(world.raw()[0].id, &BEFORE);
    let before = world.raw();

    // This peer fails with a reason.
    let output = calibrate(&world, "echo no such peer >&2; false", &path);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("no such peer") && said.contains("the peer has to reach 10.99.0.1:11211"), "{said}");
    assert_eq!(world.raw(), before);
    assert_eq!(world.state_file(), None);

    // A mode that was applied before would be undone with those that are measured, so it is refused.
    world.ok("apply va --mode defer50");
    let output = calibrate(&world, &load_by, &path);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("`lull undo va` takes it back first"), "{said}");
    world.ok("undo va");
    assert_eq!(world.raw(), before);
}
