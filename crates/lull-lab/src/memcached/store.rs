//! The store: shards by key hash, each behind its own lock.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use super::item::{Arithmetic, ITEM_BYTES_MAX, ITEM_OVERHEAD_BYTES, ItemView, KEY_BYTES_MAX, StoreMode, StoreOutcome};
use super::shard::{Offer, Shard};
use super::stats::StoreStats;

/// The least memory limit that `cache_memlimit` sets.
pub const MEMORY_BYTES_MIN: usize = 8 << 20;

/// The configuration of a [`Store`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreConfig {
    /// Memory limit in bytes over all items (memcached's `-m`, there in MiB).
    pub memory_bytes_max: usize,
    /// Limit of one item in bytes, see [`ITEM_BYTES_MAX`].
    pub item_bytes_max: usize,
    /// Shards, each with an equal part of the memory limit. Their number is rounded to a power of two, and lowered
    /// until a shard can hold four items of the largest size.
    pub shards: usize,
    /// Seed of the hash; `None` draws one, so that no client can choose colliding keys.
    pub hash_seed: Option<u64>,
    /// Worker threads, as `stats` reports them.
    pub threads: usize,
}

impl Default for StoreConfig {
    fn default() -> StoreConfig {
        StoreConfig {
            memory_bytes_max: 1 << 30,
            item_bytes_max: ITEM_BYTES_MAX,
            shards: 64,
            hash_seed: None,
            threads: 1,
        }
    }
}

/// A shard, aligned to cache lines of its own, so that workers on different shards do not share one.
#[derive(Debug)]
#[repr(align(128))]
struct Padded(Mutex<Shard>);

/// The shared store of one service. Every method may be called by any thread, and gets the time in unix seconds.
#[derive(Debug)]
pub struct Store {
    shards: Box<[Padded]>,
    hasher: foldhash::quality::FixedState,
    config: StoreConfig,
    memory_bytes_max: AtomicUsize,
    cmd_flush: AtomicU64,
    store_too_large: AtomicU64,
    connections_open: AtomicU64,
    connections_total: AtomicU64,
    connections_refused: AtomicU64,
    connections_idle: AtomicU64,
    bytes_read: AtomicU64,
    bytes_written: AtomicU64,
    verbosity: AtomicU64,
    made: Instant,
}

impl Store {
    /// Makes an empty store.
    pub fn new(config: StoreConfig) -> Store {
        let shards_max = (config.memory_bytes_max / (4 * config.item_bytes_max.max(1))).max(1);
        let shards = 1 << config.shards.clamp(1, shards_max).ilog2();
        let seed = config.hash_seed.unwrap_or_else(|| RandomState::new().hash_one(0u8));
        let hasher = foldhash::quality::FixedState::with_seed(seed);
        let bytes_max = config.memory_bytes_max / shards;
        Store {
            shards: (0..shards)
                .map(|_| Padded(Mutex::new(Shard::new(bytes_max, config.item_bytes_max, hasher.clone()))))
                .collect(),
            hasher,
            config: StoreConfig { shards, ..config },
            memory_bytes_max: AtomicUsize::new(config.memory_bytes_max),
            cmd_flush: AtomicU64::new(0),
            store_too_large: AtomicU64::new(0),
            connections_open: AtomicU64::new(0),
            connections_total: AtomicU64::new(0),
            connections_refused: AtomicU64::new(0),
            connections_idle: AtomicU64::new(0),
            bytes_read: AtomicU64::new(0),
            bytes_written: AtomicU64::new(0),
            verbosity: AtomicU64::new(0),
            made: Instant::now(),
        }
    }

    /// Returns the configuration in force. `shards` is the actual number.
    pub fn config(&self) -> StoreConfig {
        StoreConfig { memory_bytes_max: self.memory_bytes_max.load(Relaxed), ..self.config }
    }

    /// Returns the shard of a key, locked, and the key's hash. The shard is chosen by bits that the table does not use.
    #[inline]
    fn lock(&self, key: &[u8]) -> (MutexGuard<'_, Shard>, u64) {
        let hash = self.hasher.hash_one(key);
        let index = self.shard_of(hash);
        (lock(&self.shards[index].0), hash)
    }

    /// Prefetches the memory that look-ups of `keys` will touch, so that their cache misses overlap. It has no visible
    /// effect.
    pub fn look_ahead<'a>(&self, keys: impl Iterator<Item = &'a [u8]>) {
        const BATCH: usize = 64;
        let mut found = [(0, 0); BATCH];
        let mut count = 0;
        for key in keys.take(BATCH) {
            let hash = self.hasher.hash_one(key);
            let index = self.shard_of(hash);
            if let Some(slot) = lock(&self.shards[index].0).look_ahead(hash) {
                found[count] = (index, slot);
                count += 1;
            }
        }
        for &(index, slot) in &found[..count] {
            lock(&self.shards[index].0).look_at(slot);
        }
    }

    #[inline]
    fn shard_of(&self, hash: u64) -> usize {
        (hash >> 40) as usize & (self.shards.len() - 1)
    }

    /// Reads an item under its shard's lock; `read` should only copy. Returns `None` if the key is not there.
    #[inline]
    pub fn get<R>(&self, key: &[u8], now_s: u32, read: impl FnOnce(ItemView<'_>) -> R) -> Option<R> {
        self.read(key, None, now_s, read)
    }

    /// Reads an item and gives it a new expiry, see [`expiry_s`](super::expiry_s).
    #[inline]
    pub fn get_and_touch<R>(
        &self,
        key: &[u8],
        expires_s: u32,
        now_s: u32,
        read: impl FnOnce(ItemView<'_>) -> R,
    ) -> Option<R> {
        self.read(key, Some(expires_s), now_s, read)
    }

    #[inline]
    fn read<R>(&self, key: &[u8], touch: Option<u32>, now_s: u32, read: impl FnOnce(ItemView<'_>) -> R) -> Option<R> {
        let (mut shard, hash) = self.lock(key);
        let item = shard.get(hash, key, touch, now_s)?;
        Some(read(ItemView { value: item.value(), flags: item.flags, cas: item.cas }))
    }

    /// Whether a value of `value_bytes` under a key of `key_bytes` is within the item limit.
    pub fn fits(&self, key_bytes: usize, value_bytes: usize) -> bool {
        ITEM_OVERHEAD_BYTES + key_bytes + value_bytes <= self.config.item_bytes_max
    }

    /// Stores a value. `expires_s` is a unix second, or 0 for never.
    ///
    /// # Panics
    ///
    /// This panics if the key exceeds [`KEY_BYTES_MAX`].
    pub fn store(
        &self,
        mode: StoreMode,
        key: &[u8],
        value: &[u8],
        flags: u32,
        expires_s: u32,
        now_s: u32,
    ) -> StoreOutcome {
        assert!(key.len() <= KEY_BYTES_MAX, "key of {} bytes", key.len());
        if !self.fits(key.len(), value.len()) {
            return self.refuse_too_large(mode, key, now_s);
        }
        let (mut shard, hash) = self.lock(key);
        shard.store(hash, Offer { mode, key, value, flags, expires_s }, now_s)
    }

    /// Does what storing an item over the limit does, for a caller that has not read the value.
    pub fn refuse_too_large(&self, mode: StoreMode, key: &[u8], now_s: u32) -> StoreOutcome {
        self.store_too_large.fetch_add(1, Relaxed);
        if mode == StoreMode::Set {
            let (mut shard, hash) = self.lock(key);
            shard.forget(hash, key, now_s);
        }
        StoreOutcome::TooLarge
    }

    /// Removes a key. Returns whether it was there.
    pub fn delete(&self, key: &[u8], now_s: u32) -> bool {
        let (mut shard, hash) = self.lock(key);
        shard.delete(hash, key, now_s)
    }

    /// Adds `delta` to the number under `key`, wrapping at 2^64.
    pub fn increment(&self, key: &[u8], delta: u64, now_s: u32) -> Arithmetic {
        let (mut shard, hash) = self.lock(key);
        shard.arithmetic(hash, key, delta, true, now_s)
    }

    /// Subtracts `delta` from the number under `key`, stopping at 0.
    pub fn decrement(&self, key: &[u8], delta: u64, now_s: u32) -> Arithmetic {
        let (mut shard, hash) = self.lock(key);
        shard.arithmetic(hash, key, delta, false, now_s)
    }

    /// Gives a key a new expiry. Returns whether it was there.
    pub fn touch(&self, key: &[u8], expires_s: u32, now_s: u32) -> bool {
        let (mut shard, hash) = self.lock(key);
        shard.touch(hash, key, expires_s, now_s)
    }

    /// Drops the items stored before the unix second `at_s`, at once, or at that time if it is still to come. If `at_s`
    /// is `now_s`, all items are dropped.
    pub fn flush(&self, at_s: u32, now_s: u32) {
        self.cmd_flush.fetch_add(1, Relaxed);
        for shard in &self.shards {
            lock(&shard.0).flush(at_s, now_s);
        }
    }

    /// Changes the memory limit, and evicts at once what no longer fits.
    pub fn set_memory_bytes_max(&self, bytes: usize, now_s: u32) {
        self.memory_bytes_max.store(bytes, Relaxed);
        for shard in &self.shards {
            lock(&shard.0).set_bytes_max(bytes / self.shards.len(), now_s);
        }
    }

    /// Calls `visit(key, value_bytes, expires_s)` on live items until it returns false, one shard locked at a time.
    pub fn visit(&self, now_s: u32, mut visit: impl FnMut(&[u8], usize, u32) -> bool) {
        for shard in &self.shards {
            let more = lock(&shard.0).visit(now_s, &mut |item| visit(item.key(), item.value().len(), item.expires_s));
            if !more {
                return;
            }
        }
    }

    /// Counts a connection, for `stats`.
    pub fn connection_opened(&self) {
        self.connections_open.fetch_add(1, Relaxed);
        self.connections_total.fetch_add(1, Relaxed);
    }

    /// Counts a connection's end, for `stats`. Each call must follow one of [`Store::connection_opened`].
    pub fn connection_closed(&self) {
        self.connections_open.fetch_sub(1, Relaxed);
    }

    /// Counts a client for which there was no slot, for `stats`.
    pub fn connection_refused(&self) {
        self.connections_refused.fetch_add(1, Relaxed);
    }

    /// Counts a connection that is closed because it was idle for too long, for `stats`.
    pub fn connection_idle(&self) {
        self.connections_idle.fetch_add(1, Relaxed);
    }

    pub(super) fn add_traffic(&self, read: u64, written: u64) {
        self.bytes_read.fetch_add(read, Relaxed);
        self.bytes_written.fetch_add(written, Relaxed);
    }

    /// Returns the seconds since the store was made.
    pub(super) fn uptime_s(&self) -> u64 {
        self.made.elapsed().as_secs()
    }

    pub(super) fn verbosity(&self) -> u64 {
        self.verbosity.load(Relaxed)
    }

    pub(super) fn set_verbosity(&self, level: u64) {
        self.verbosity.store(level, Relaxed);
    }

    /// Returns a snapshot of the counters.
    pub fn stats(&self) -> StoreStats {
        let mut stats = StoreStats {
            limit_maxbytes: self.memory_bytes_max.load(Relaxed) as u64,
            cmd_flush: self.cmd_flush.load(Relaxed),
            store_too_large: self.store_too_large.load(Relaxed),
            curr_connections: self.connections_open.load(Relaxed),
            total_connections: self.connections_total.load(Relaxed),
            rejected_connections: self.connections_refused.load(Relaxed),
            idle_kicks: self.connections_idle.load(Relaxed),
            bytes_read: self.bytes_read.load(Relaxed),
            bytes_written: self.bytes_written.load(Relaxed),
            ..StoreStats::default()
        };
        for shard in &self.shards {
            let shard = lock(&shard.0);
            stats.counters.add(&shard.counters);
            stats.curr_items += shard.items() as u64;
            stats.bytes += shard.bytes() as u64;
        }
        stats
    }

    /// Sets the counters of `stats` back to zero. Items, connections and limits do not change.
    pub fn reset_stats(&self) {
        for shard in &self.shards {
            lock(&shard.0).counters = Default::default();
        }
        for counter in [&self.cmd_flush, &self.store_too_large, &self.bytes_read, &self.bytes_written] {
            counter.store(0, Relaxed);
        }
    }
}

/// A panic under the lock is a bug that a test shows. The table itself is consistent between its methods.
fn lock(shard: &Mutex<Shard>) -> MutexGuard<'_, Shard> {
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memcached::expiry_s;

    const NOW: u32 = 1_700_000_000;

    fn small(memory_bytes_max: usize) -> Store {
        Store::new(StoreConfig { memory_bytes_max, shards: 1, hash_seed: Some(1), ..StoreConfig::default() })
    }

    fn set(store: &Store, key: &[u8], value: &[u8], exptime: i64, now_s: u32) -> StoreOutcome {
        store.store(StoreMode::Set, key, value, 0, expiry_s(exptime, now_s), now_s)
    }

    fn has(store: &Store, key: &[u8], now_s: u32) -> bool {
        store.get(key, now_s, |_| ()).is_some()
    }

    #[test]
    fn expiry_is_relative_then_absolute_then_past() {
        let month = 60 * 60 * 24 * 30;
        assert_eq!(expiry_s(0, NOW), 0);
        assert_eq!(expiry_s(-1, NOW), 1);
        assert_eq!(expiry_s(month, NOW), NOW + month as u32);
        assert_eq!(expiry_s(month + 1, NOW), month as u32 + 1);
        assert_eq!(expiry_s(i64::MAX, NOW), u32::MAX);
        let store = small(1 << 20);
        set(&store, b"k", b"v", 10, NOW);
        assert!(has(&store, b"k", NOW + 9));
        assert!(!has(&store, b"k", NOW + 10));
        assert_eq!(store.stats().counters.get_expired, 1);
        assert_eq!(store.stats().curr_items, 0);
    }

    #[test]
    fn the_least_recently_used_goes_first() {
        let store = small(64 * 1024);
        let value = [b'x'; 1000];
        let key = |index: usize| format!("key-{index:04}").into_bytes();
        let fit = 64 * 1024 / (1000 + 8 + ITEM_OVERHEAD_BYTES);
        for index in 0..fit {
            set(&store, &key(index), &value, 0, NOW);
        }
        assert_eq!(store.stats().counters.evictions, 0);
        // Reading moves an item to the front only after a minute, as in memcached.
        assert!(has(&store, &key(0), NOW + 61));
        set(&store, b"one-more", &value, 0, NOW + 61);
        assert!(has(&store, &key(0), NOW + 61));
        assert!(!has(&store, &key(1), NOW + 61));
        assert_eq!(store.stats().counters.evictions, 1);
        assert!(store.stats().bytes <= 64 * 1024);
    }

    #[test]
    fn an_item_beyond_the_memory_is_refused_and_takes_the_old_one_along() {
        let store = small(4096);
        set(&store, b"k", b"old", 0, NOW);
        assert_eq!(set(&store, b"k", &[0; 5000], 0, NOW), StoreOutcome::NoMemory);
        assert!(!has(&store, b"k", NOW));
        assert_eq!(set(&store, b"k", &vec![0; ITEM_BYTES_MAX], 0, NOW), StoreOutcome::TooLarge);
    }

    #[test]
    fn growing_in_place_evicts_others_not_itself() {
        let store = small(8192);
        for index in 0..7 {
            set(&store, format!("{index}").as_bytes(), &[0; 900], 0, NOW);
        }
        assert_eq!(set(&store, b"6", &[1; 4000], 0, NOW), StoreOutcome::Stored);
        assert!(has(&store, b"6", NOW));
        assert!(store.stats().bytes <= 8192);
        store.set_memory_bytes_max(2048, NOW);
        assert_eq!((store.stats().curr_items, store.stats().bytes), (0, 0));
    }

    #[test]
    fn a_delayed_flush_takes_what_is_older_than_it() {
        let store = small(1 << 20);
        set(&store, b"old", b"1", 0, NOW);
        store.flush(NOW + 10, NOW);
        assert!(has(&store, b"old", NOW + 9));
        set(&store, b"new", b"1", 0, NOW + 10);
        assert!(!has(&store, b"old", NOW + 10));
        assert!(has(&store, b"new", NOW + 10));
        store.flush(NOW + 11, NOW + 11);
        assert!(!has(&store, b"new", NOW + 11));
        assert_eq!(store.stats().bytes, 0);
    }

    #[test]
    fn many_items_survive_growth_and_deletion() {
        let store = Store::new(StoreConfig { hash_seed: Some(7), ..StoreConfig::default() });
        for index in 0..20_000u32 {
            set(&store, &index.to_le_bytes(), &index.to_be_bytes(), 0, NOW);
        }
        for index in (0..20_000u32).step_by(3) {
            assert!(store.delete(&index.to_le_bytes(), NOW));
        }
        for index in 0..20_000u32 {
            let value = store.get(&index.to_le_bytes(), NOW, |item| item.value.to_vec());
            assert_eq!(value, (index % 3 != 0).then(|| index.to_be_bytes().to_vec()));
        }
    }

    #[test]
    fn shards_shrink_with_the_memory() {
        let config = StoreConfig { memory_bytes_max: 64 << 20, shards: 60, ..StoreConfig::default() };
        assert_eq!(Store::new(config).config().shards, 16);
        assert_eq!(Store::new(StoreConfig { memory_bytes_max: 0, ..config }).config().shards, 1);
    }
}
