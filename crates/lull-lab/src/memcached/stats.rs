//! Counters under memcached's names.

/// Counters of one shard, or their sum. Every name is the one that `stats` prints.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Keys that get, gets, gat and gats asked for and found.
    pub get_hits: u64,
    /// Keys that get, gets, gat and gats asked for and did not find.
    pub get_misses: u64,
    /// Misses of an item that was there but had expired.
    pub get_expired: u64,
    /// Values offered by set, add, replace, append, prepend and cas.
    pub cmd_set: u64,
    /// Keys touched by touch, gat and gats.
    pub cmd_touch: u64,
    /// Touches of a key that was there.
    pub touch_hits: u64,
    /// Touches of a key that was not there.
    pub touch_misses: u64,
    /// Deletions of a key that was there.
    pub delete_hits: u64,
    /// Deletions of a key that was not there.
    pub delete_misses: u64,
    /// Increments of a key that was there.
    pub incr_hits: u64,
    /// Increments of a key that was not there.
    pub incr_misses: u64,
    /// Decrements of a key that was there.
    pub decr_hits: u64,
    /// Decrements of a key that was not there.
    pub decr_misses: u64,
    /// cas commands that stored their value.
    pub cas_hits: u64,
    /// cas commands for a key that was not there.
    pub cas_misses: u64,
    /// cas commands refused because the item had changed.
    pub cas_badval: u64,
    /// Items ever stored.
    pub total_items: u64,
    /// Live items removed to make room.
    pub evictions: u64,
    /// Expired items whose room was reused.
    pub reclaimed: u64,
    /// Items refused because the memory limit leaves no room for them even if everything else is evicted.
    pub store_no_memory: u64,
}

impl Counters {
    /// Adds `other` to these.
    pub fn add(&mut self, other: &Counters) {
        let mut other = *other;
        for (sum, more) in self.fields_mut().into_iter().zip(other.fields_mut()) {
            *sum += *more;
        }
    }

    fn fields_mut(&mut self) -> [&mut u64; 20] {
        [
            &mut self.get_hits,
            &mut self.get_misses,
            &mut self.get_expired,
            &mut self.cmd_set,
            &mut self.cmd_touch,
            &mut self.touch_hits,
            &mut self.touch_misses,
            &mut self.delete_hits,
            &mut self.delete_misses,
            &mut self.incr_hits,
            &mut self.incr_misses,
            &mut self.decr_hits,
            &mut self.decr_misses,
            &mut self.cas_hits,
            &mut self.cas_misses,
            &mut self.cas_badval,
            &mut self.total_items,
            &mut self.evictions,
            &mut self.reclaimed,
            &mut self.store_no_memory,
        ]
    }
}

/// A snapshot of a [`crate::memcached::Store`]. The shards are read one after the other, so under load the sums combine
/// slightly different moments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreStats {
    /// Sums over the shards.
    pub counters: Counters,
    /// Items held now, including expired ones that were not asked for since.
    pub curr_items: u64,
    /// Bytes charged for them (key, value and [`crate::memcached::ITEM_OVERHEAD_BYTES`] each).
    pub bytes: u64,
    /// The memory limit in bytes.
    pub limit_maxbytes: u64,
    /// `flush_all` commands.
    pub cmd_flush: u64,
    /// Items refused because they exceed the item limit.
    pub store_too_large: u64,
    /// Connections open now, as reported by [`crate::memcached::Store::connection_opened`].
    pub curr_connections: u64,
    /// Connections ever opened.
    pub total_connections: u64,
    /// Clients for which there was no slot.
    pub rejected_connections: u64,
    /// Connections closed because they were idle for too long.
    pub idle_kicks: u64,
    /// Bytes received from clients; each connection reports in steps of at most 16 KiB.
    pub bytes_read: u64,
    /// Bytes produced for clients; each connection reports in steps of at most 16 KiB.
    pub bytes_written: u64,
}
