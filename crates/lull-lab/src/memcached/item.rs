//! The properties of an item: its limits, its expiry, the condition under which it is stored, and the outcome.

/// Longest key in bytes (memcached's `KEY_MAX_LENGTH`).
pub const KEY_BYTES_MAX: usize = 250;
/// Default limit of an item, its key, value and [`ITEM_OVERHEAD_BYTES`] together (memcached's `-I`).
pub const ITEM_BYTES_MAX: usize = 1 << 20;
/// Bytes that an item is charged beyond its key and value: its slot of 64 and its share of the table.
pub const ITEM_OVERHEAD_BYTES: usize = 80;
/// Expiry times up to this are relative to now, and larger ones are unix times (30 days, as in memcached).
const RELATIVE_EXPTIME_MAX_S: i64 = 60 * 60 * 24 * 30;

/// Returns the unix second at which an item stored at `now_s` with the client's `exptime` expires, or 0 if it never
/// does.
///
/// An `exptime` of 0 never expires, a negative one has expired already, one of up to 30 days is relative, and a larger
/// one is a unix time.
pub fn expiry_s(exptime: i64, now_s: u32) -> u32 {
    match exptime {
        0 => 0,
        ..0 => 1,
        1..=RELATIVE_EXPTIME_MAX_S => now_s.saturating_add(exptime as u32),
        _ => u32::try_from(exptime).unwrap_or(u32::MAX),
    }
}

/// The condition under which a value is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreMode {
    /// Always.
    Set,
    /// Only if the key is not there.
    Add,
    /// Only if the key is there.
    Replace,
    /// Appends to the value that is there. Its flags and expiry do not change.
    Append,
    /// Prepends to the value that is there. Its flags and expiry do not change.
    Prepend,
    /// Only if the item still has this CAS number.
    Cas(u64),
}

/// The outcome of an offered value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreOutcome {
    /// It is stored.
    Stored,
    /// The condition did not hold, or an append would exceed the item limit.
    NotStored,
    /// The CAS number differs.
    Exists,
    /// The key of a cas is not there.
    NotFound,
    /// The item exceeds the item limit. A set has removed the old value, so that it is not read in place of the new
    /// one.
    TooLarge,
    /// The shard's part of the memory limit cannot hold it.
    NoMemory,
}

/// The result of incr or decr.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arithmetic {
    /// The new value.
    Value(u64),
    /// The key is not there.
    NotFound,
    /// The value is not a number.
    NonNumeric,
}

/// An item as a reader sees it, under the shard's lock.
#[derive(Clone, Copy, Debug)]
pub struct ItemView<'a> {
    /// The value.
    pub value: &'a [u8],
    /// The client's flags.
    pub flags: u32,
    /// The CAS number.
    pub cas: u64,
}
