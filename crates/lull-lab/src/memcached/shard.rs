//! One shard of the store: a hash table over the slots of an LRU list, with its own memory limit and counters.

use hashbrown::HashTable;
use lull_nic::prefetch::{prefetch, prefetch_bytes};
use std::hash::BuildHasher;

use super::item::{Arithmetic, ITEM_OVERHEAD_BYTES, StoreMode, StoreOutcome};
use super::lru::{Item, Lru, NONE};
use super::stats::Counters;

/// An item moves to the front of the list at most once in this many seconds, as in memcached. So a hot key causes few
/// changes of the list, and the eviction order is exact to a minute.
const BUMP_INTERVAL_S: u32 = 60;
/// The longest value that incr and decr read: the digits of `u64::MAX`.
const NUMBER_DIGITS_MAX: usize = 20;

/// How much of an item is prefetched before its look-up.
const LOOK_AHEAD_BYTES: usize = 512;

/// The item to store.
#[derive(Clone, Copy)]
pub(super) struct Offer<'a> {
    pub mode: StoreMode,
    pub key: &'a [u8],
    pub value: &'a [u8],
    pub flags: u32,
    pub expires_s: u32,
}

#[derive(Debug)]
pub(super) struct Shard {
    table: HashTable<u32>,
    lru: Lru,
    hasher: foldhash::quality::FixedState,
    bytes: usize,
    bytes_max: usize,
    item_bytes_max: usize,
    last_cas: u64,
    /// The unix second at which items stored before it are dropped, or 0 if no flush is pending.
    flush_at_s: u32,
    pub counters: Counters,
}

impl Shard {
    pub fn new(bytes_max: usize, item_bytes_max: usize, hasher: foldhash::quality::FixedState) -> Shard {
        Shard {
            table: HashTable::new(),
            lru: Lru::new(),
            hasher,
            bytes: 0,
            bytes_max,
            item_bytes_max,
            last_cas: 0,
            flush_at_s: 0,
            counters: Counters::default(),
        }
    }

    pub fn items(&self) -> usize {
        self.table.len()
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the slot of the live item under `key`. An expired one is removed.
    #[inline]
    fn find(&mut self, hash: u64, key: &[u8], now_s: u32) -> Option<u32> {
        if self.flush_at_s != 0 && self.flush_at_s <= now_s {
            self.run_pending_flush();
        }
        let lru = &self.lru;
        let slot = *self.table.find(hash, |slot| lru.item(*slot).key() == key)?;
        if self.lru.item(slot).expired(now_s) {
            self.remove(slot);
            self.counters.reclaimed += 1;
            return None;
        }
        Some(slot)
    }

    /// Returns the slot that probably has the key, without reading the item, and prefetches the item for the look-up.
    #[inline]
    pub fn look_ahead(&self, hash: u64) -> Option<u32> {
        let slot = *self.table.find(hash, |_| true)?;
        prefetch(self.lru.item(slot));
        Some(slot)
    }

    /// Prefetches the bytes of an item that [`Shard::look_ahead`] found.
    #[inline]
    pub fn look_at(&self, slot: u32) {
        if let Some(item) = self.lru.get(slot) {
            prefetch_bytes(item.bytes.as_ptr(), item.bytes.len().min(LOOK_AHEAD_BYTES));
        }
    }

    /// Looks a key up for reading, counts the hit or miss and keeps the LRU order. `touch` sets a new expiry.
    #[inline]
    pub fn get(&mut self, hash: u64, key: &[u8], touch: Option<u32>, now_s: u32) -> Option<&Item> {
        let reclaimed_before = self.counters.reclaimed;
        let found = self.find(hash, key, now_s);
        if touch.is_some() {
            self.counters.cmd_touch += 1;
        }
        let Some(slot) = found else {
            self.counters.get_misses += 1;
            self.counters.get_expired += self.counters.reclaimed - reclaimed_before;
            self.counters.touch_misses += u64::from(touch.is_some());
            return None;
        };
        self.counters.get_hits += 1;
        if now_s.saturating_sub(self.lru.item(slot).bumped_s) >= BUMP_INTERVAL_S {
            self.lru.bump(slot, now_s);
        }
        if let Some(expires_s) = touch {
            self.counters.touch_hits += 1;
            self.lru.item_mut(slot).expires_s = expires_s;
        }
        Some(self.lru.item(slot))
    }

    pub fn touch(&mut self, hash: u64, key: &[u8], expires_s: u32, now_s: u32) -> bool {
        self.counters.cmd_touch += 1;
        let Some(slot) = self.find(hash, key, now_s) else {
            self.counters.touch_misses += 1;
            return false;
        };
        self.counters.touch_hits += 1;
        self.lru.item_mut(slot).expires_s = expires_s;
        self.lru.bump(slot, now_s);
        true
    }

    pub fn delete(&mut self, hash: u64, key: &[u8], now_s: u32) -> bool {
        let Some(slot) = self.find(hash, key, now_s) else {
            self.counters.delete_misses += 1;
            return false;
        };
        self.counters.delete_hits += 1;
        self.remove(slot);
        true
    }

    /// Removes a key without counting a deletion, because a refused `set` must not leave the old value behind.
    pub fn forget(&mut self, hash: u64, key: &[u8], now_s: u32) {
        if let Some(slot) = self.find(hash, key, now_s) {
            self.remove(slot);
        }
    }

    pub fn store(&mut self, hash: u64, offer: Offer<'_>, now_s: u32) -> StoreOutcome {
        self.counters.cmd_set += 1;
        let found = self.find(hash, offer.key, now_s);
        match (offer.mode, found) {
            (StoreMode::Set, _) | (StoreMode::Add, None) | (StoreMode::Replace, Some(_)) => {
                self.write(hash, found, offer, now_s)
            }
            (StoreMode::Add, Some(slot)) => {
                // memcached also moves an item to the front if an add finds it.
                self.lru.bump(slot, now_s);
                StoreOutcome::NotStored
            }
            (StoreMode::Replace | StoreMode::Append | StoreMode::Prepend, None) => StoreOutcome::NotStored,
            (StoreMode::Append | StoreMode::Prepend, Some(slot)) => self.extend(hash, slot, offer, now_s),
            (StoreMode::Cas(_), None) => {
                self.counters.cas_misses += 1;
                StoreOutcome::NotFound
            }
            (StoreMode::Cas(cas), Some(slot)) if self.lru.item(slot).cas != cas => {
                self.counters.cas_badval += 1;
                StoreOutcome::Exists
            }
            (StoreMode::Cas(_), Some(_)) => {
                self.counters.cas_hits += 1;
                self.write(hash, found, offer, now_s)
            }
        }
    }

    /// Appends or prepends. The flags and the expiry of the item do not change.
    fn extend(&mut self, hash: u64, slot: u32, offer: Offer<'_>, now_s: u32) -> StoreOutcome {
        let item = self.lru.item(slot);
        let grown = item.value().len() + offer.value.len();
        if ITEM_OVERHEAD_BYTES + offer.key.len() + grown > self.item_bytes_max {
            return StoreOutcome::NotStored;
        }
        let mut value = Vec::with_capacity(grown);
        if offer.mode == StoreMode::Prepend {
            value.extend_from_slice(offer.value);
        }
        value.extend_from_slice(item.value());
        if offer.mode == StoreMode::Append {
            value.extend_from_slice(offer.value);
        }
        let joined = Offer { value: &value, flags: item.flags, expires_s: item.expires_s, ..offer };
        self.write(hash, Some(slot), joined, now_s)
    }

    /// Writes an item over `found` or as a new one.
    fn write(&mut self, hash: u64, found: Option<u32>, offer: Offer<'_>, now_s: u32) -> StoreOutcome {
        let needed = offer.key.len() + offer.value.len();
        if ITEM_OVERHEAD_BYTES + needed > self.bytes_max {
            // As with an item over the limit, the value that it would have replaced must not survive it.
            if let Some(slot) = found {
                self.remove(slot);
            }
            self.counters.store_no_memory += 1;
            return StoreOutcome::NoMemory;
        }
        let slot = match found {
            Some(slot) => {
                self.overwrite(slot, offer.value);
                self.lru.bump(slot, now_s);
                slot
            }
            None => {
                let mut bytes = Vec::with_capacity(needed);
                bytes.extend_from_slice(offer.key);
                bytes.extend_from_slice(offer.value);
                let charge = charge(&bytes);
                self.evict(charge, now_s);
                let Some(slot) = self.lru.insert(bytes, offer.key.len() as u8, now_s) else {
                    self.counters.store_no_memory += 1;
                    return StoreOutcome::NoMemory;
                };
                let (lru, hasher) = (&self.lru, &self.hasher);
                self.table.insert_unique(hash, slot, |slot| hasher.hash_one(lru.item(*slot).key()));
                self.bytes += charge;
                slot
            }
        };
        self.last_cas += 1;
        self.counters.total_items += 1;
        let item = self.lru.item_mut(slot);
        item.cas = self.last_cas;
        item.flags = offer.flags;
        item.expires_s = offer.expires_s;
        item.stored_s = now_s;
        // An overwritten item may have grown. It is the newest, so older ones are evicted to make room.
        self.evict(0, now_s);
        StoreOutcome::Stored
    }

    /// Replaces the value in a slot, in the same buffer if it fits without wasting more than half of it.
    fn overwrite(&mut self, slot: u32, value: &[u8]) {
        let item = self.lru.item_mut(slot);
        self.bytes -= charge(&item.bytes);
        let key_len = usize::from(item.key_len);
        let needed = key_len + value.len();
        if needed <= item.bytes.capacity() && item.bytes.capacity() <= 2 * needed {
            item.bytes.truncate(key_len);
        } else {
            let mut bytes = Vec::with_capacity(needed);
            bytes.extend_from_slice(item.key());
            item.bytes = bytes;
        }
        item.bytes.extend_from_slice(value);
        self.bytes += charge(&item.bytes);
    }

    pub fn arithmetic(&mut self, hash: u64, key: &[u8], delta: u64, up: bool, now_s: u32) -> Arithmetic {
        let Some(slot) = self.find(hash, key, now_s) else {
            *(if up { &mut self.counters.incr_misses } else { &mut self.counters.decr_misses }) += 1;
            return Arithmetic::NotFound;
        };
        let Some(old) = number(self.lru.item(slot).value()) else { return Arithmetic::NonNumeric };
        *(if up { &mut self.counters.incr_hits } else { &mut self.counters.decr_hits }) += 1;
        let new = if up { old.wrapping_add(delta) } else { old.saturating_sub(delta) };
        let mut text = new.to_string().into_bytes();
        let width = self.lru.item(slot).value().len();
        if text.len() < width {
            // A number that got shorter keeps its item's length, because clients may have cached the length, and
            // memcached pads too.
            text.resize(width, b' ');
        }
        self.overwrite(slot, &text);
        self.last_cas += 1;
        self.lru.item_mut(slot).cas = self.last_cas;
        self.lru.bump(slot, now_s);
        self.evict(0, now_s);
        Arithmetic::Value(new)
    }

    /// Drops everything stored before `at_s`. If that time is to come, this happens at the first look-up from then on;
    /// if it is past, at once; and if it is now, every item is dropped, whenever it was stored.
    pub fn flush(&mut self, at_s: u32, now_s: u32) {
        if at_s > now_s {
            self.flush_at_s = at_s;
            return;
        }
        if at_s < now_s {
            self.flush_at_s = at_s;
            self.run_pending_flush();
            return;
        }
        self.flush_at_s = 0;
        self.table.clear();
        self.lru = Lru::new();
        self.bytes = 0;
    }

    fn run_pending_flush(&mut self) {
        let at_s = std::mem::take(&mut self.flush_at_s);
        let mut slot = self.lru.newest();
        while slot != NONE {
            let older = self.lru.older_than(slot);
            if self.lru.item(slot).stored_s < at_s {
                self.remove(slot);
            }
            slot = older;
        }
    }

    pub fn set_bytes_max(&mut self, bytes_max: usize, now_s: u32) {
        self.bytes_max = bytes_max;
        self.evict(0, now_s);
    }

    /// Calls `visit` on the live items, most recently used first, until it returns false.
    pub fn visit(&self, now_s: u32, visit: &mut dyn FnMut(&Item) -> bool) -> bool {
        let mut slot = self.lru.newest();
        while slot != NONE {
            let item = self.lru.item(slot);
            if !item.expired(now_s) && !visit(item) {
                return false;
            }
            slot = self.lru.older_than(slot);
        }
        true
    }

    /// Evicts the oldest items until `more` bytes fit.
    fn evict(&mut self, more: usize, now_s: u32) {
        while self.bytes + more > self.bytes_max {
            let slot = self.lru.oldest();
            if slot == NONE {
                return;
            }
            if self.lru.item(slot).expired(now_s) {
                self.counters.reclaimed += 1;
            } else {
                self.counters.evictions += 1;
            }
            self.remove(slot);
        }
    }

    fn remove(&mut self, slot: u32) {
        let hash = self.hasher.hash_one(self.lru.item(slot).key());
        if let Ok(entry) = self.table.find_entry(hash, |candidate| *candidate == slot) {
            entry.remove();
        } else {
            debug_assert!(false, "slot {slot} is on the list and not in the table");
        }
        self.bytes -= charge(&self.lru.item(slot).bytes);
        self.lru.remove(slot);
    }
}

/// Returns the bytes that an item counts for.
fn charge(bytes: &Vec<u8>) -> usize {
    ITEM_OVERHEAD_BYTES + bytes.capacity()
}

/// Returns the decimal number that a value holds, with blanks around it allowed (as `strtoull` reads it).
fn number(value: &[u8]) -> Option<u64> {
    if value.len() > NUMBER_DIGITS_MAX {
        return None;
    }
    let text = value.trim_ascii();
    let digits = text.strip_prefix(b"+").unwrap_or(text);
    if digits.is_empty() {
        return None;
    }
    digits.iter().try_fold(0u64, |sum, byte| {
        let digit = byte.is_ascii_digit().then(|| u64::from(byte - b'0'))?;
        sum.checked_mul(10)?.checked_add(digit)
    })
}
