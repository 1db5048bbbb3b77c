//! A machine in a directory, for tests that change settings of the whole machine.

use std::fs;
use std::path::PathBuf;

use super::{Options, Roots, Session};

/// A copy of `/sys` and `/proc` with the device `lo` in it, which is removed with its test.
pub struct Tree(pub PathBuf);

impl Tree {
    pub fn new(test: &str) -> Tree {
        let root = std::env::temp_dir().join(format!("lull-prepare-{test}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        let tree = Tree(root);
        tree.write("proc/sys/kernel/random/boot_id", "a boot\n");
        // `lo` is number 1 in every network namespace.
        tree.write("sys/class/net/lo/ifindex", "1\n");
        tree.write("sys/class/net/lo/queues/rx-0/rps_cpus", "0000,0000000f\n");
        tree.write("sys/class/net/lo/queues/rx-0/rps_flow_cnt", "4096\n");
        tree.write("sys/devices/virtual/workqueue/cpumask", "ff\n");
        tree.write("proc/sys/kernel/timer_migration", "1\n");
        tree.write("proc/sys/kernel/sched_rt_runtime_us", "950000\n");
        tree.write("sys/devices/system/cpu/smt/control", "notsupported\n");
        tree
    }

    pub fn write(&self, path: &str, content: &str) {
        let path = self.0.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    pub fn read(&self, path: &str) -> String {
        fs::read_to_string(self.0.join(path)).unwrap().trim_end().to_owned()
    }

    pub fn session(&self) -> Session {
        let roots = Roots { sys: self.0.join("sys"), proc: self.0.join("proc") };
        Session::open("lo", &Options { state_dir: self.0.join("state"), roots }).unwrap()
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
