//! What cores share, and where workers run.

/// Caches and memory that cores share, and whether the scheduler moves workers between cores.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CoresSpec {
    /// How many cores share an L3 cache, in the order of their numbers; with 0 all do.
    pub per_l3: u16,
    /// How many cores a NUMA node has, in the order of their numbers; with 0 there is one node. A queue's memory is on the node
    /// of its interrupt's CPU.
    pub per_node: u16,
    /// Whether a worker that wakes may be moved to another of the service's cores; otherwise it stays on its own.
    pub workers_move: bool,
}

impl CoresSpec {
    /// Whether two cores are on one NUMA node.
    #[inline]
    pub fn share_node(&self, one: u16, other: u16) -> bool {
        self.per_node == 0 || one / self.per_node == other / self.per_node
    }

    /// Whether two cores share an L3 cache.
    #[inline]
    pub fn share_l3(&self, one: u16, other: u16) -> bool {
        self.per_l3 == 0 || one / self.per_l3 == other / self.per_l3
    }
}
