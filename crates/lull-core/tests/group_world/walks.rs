//! Walks of a member's receive path without a packet.

use lull_core::group::Walk;
use lull_core::{Cx, GroupStep};

use super::{Did, PASS_NS, World};

/// What a walk costs.
pub const WALK_NS: u64 = 300;

impl World {
    /// A walk, whole: nothing of the instance changes, and nothing is taken from its ring.
    pub(super) fn walk(&mut self, index: usize, walk: &Walk) -> Did {
        let queue = walk.napi as usize;
        let seen = |world: &World| {
            let it = &world.queues[queue];
            (it.napi.snapshot(), it.napi.stats(), it.napi.timer().pending(), it.ring, it.masked, it.polls.len())
        };
        let before = seen(self);
        self.queues[queue].walks.push(self.now_ns);
        self.now_ns += WALK_NS;
        let left = self.end_walk(index, walk);
        assert!(left || seen(self) == before, "a walk changed something: {before:?}, {:?}", seen(self));
        Did::Other
    }

    /// The poller walks, and is stopped in the middle.
    pub fn begin_walk(&mut self, index: usize) -> Walk {
        for _ in 0..10_000 {
            match self.ask(index, false, false) {
                GroupStep::DryRun(walk) => return walk,
                GroupStep::Spin => self.now_ns += PASS_NS,
                GroupStep::Yield => {}
                other => panic!("no walk but {other:?}"),
            }
        }
        panic!("no walk in ten thousand steps");
    }

    /// The walk ends. Whether the member left then.
    pub fn end_walk(&mut self, index: usize, walk: &Walk) -> bool {
        let queue = walk.napi as usize;
        let cx = Cx::new(self.pollers[index].cpu, self.now_ns);
        let stop = self.pollers[index].machine.dry_ran(&self.group, &self.queues[queue].napi, &cx);
        stop.map(|stop| self.leave(queue, stop)).is_some()
    }
}
