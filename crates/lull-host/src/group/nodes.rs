//! The NUMA node of a core, as Linux tells it.

use std::path::Path;

/// The node of a core; `None` on a machine without nodes, or for a core that is in none.
pub(crate) fn node_of(core: usize) -> Option<usize> {
    node_in(Path::new("/sys/devices/system/cpu"), core)
}

/// Each core's directory has a link `nodeN`.
fn node_in(cpus: &Path, core: usize) -> Option<usize> {
    let entries = std::fs::read_dir(cpus.join(format!("cpu{core}"))).ok()?;
    let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    names.filter_map(|name| name.strip_prefix("node")?.parse().ok()).next()
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_core_is_in_the_node_that_its_directory_names() {
        let cpus = std::env::temp_dir().join(format!("lull-nodes-{}", std::process::id()));
        for path in ["cpu0/node0", "cpu3/node1", "cpu3/cache", "cpu4"] {
            std::fs::create_dir_all(cpus.join(path)).unwrap();
        }
        let nodes = [0, 3, 4, 9].map(|core| node_in(&cpus, core));
        std::fs::remove_dir_all(&cpus).unwrap();
        assert_eq!(nodes, [Some(0), Some(1), None, None]);
    }
}
