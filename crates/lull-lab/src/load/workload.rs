//! The workload: records with their key and value sizes, the mix of reads and updates, and the bytes of a request.

use super::LoadError;
use super::dist::{Distribution, Rng, mix};

/// Longest key in bytes, memcached's limit.
pub const KEY_BYTES_MAX: usize = 250;
/// Values are cut off at this size unless the configuration names another. One value in 10^5 of `fb_value` is longer.
pub const VALUE_BYTES_MAX_DEFAULT: usize = 32 * 1024;
/// The largest cut-off that can be configured: the size that memcached stores by default, with room for the key.
pub const VALUE_BYTES_MAX: usize = (1 << 20) - 1024;
/// The most records that a workload can have.
pub const RECORDS_MAX: u64 = 1 << 30;
/// Random characters that values are cut from.
const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
/// Starting points of values in the random characters.
const VALUE_OFFSETS: usize = 4096;
/// Longest head of a request: `set <key> 0 0 <bytes>\r\n`.
const HEAD_BYTES_MAX: usize = 4 + KEY_BYTES_MAX + 5 + 10 + 2;

/// The configuration of a workload.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WorkloadConfig {
    /// Number of records (mutilate's `-r`).
    pub records: u64,
    /// Key sizes in bytes; a key is at least as long as the digits of the record count.
    pub key: Distribution,
    /// Value sizes in bytes. A record keeps its size over all updates, so that every answer can be checked (mutilate
    /// draws a size for each update; the sizes on the wire have the same distribution).
    pub value: Distribution,
    /// Larger value sizes are lowered to this many bytes.
    pub value_bytes_max: usize,
    /// Share of requests that are sets (mutilate's `-u`), 0 to 1.
    pub update_ratio: f64,
    /// Seed of sizes and contents. Clients that share a server must share it; their arrivals are seeded apart.
    pub seed: u64,
}

impl Default for WorkloadConfig {
    /// The workload of the published runs at a tenth of their records: `fb_key`, `fb_value`, 3 % updates.
    fn default() -> WorkloadConfig {
        WorkloadConfig {
            records: 100_000,
            key: Distribution::FbKey,
            value: Distribution::FbValue,
            value_bytes_max: VALUE_BYTES_MAX_DEFAULT,
            update_ratio: 0.03,
            seed: 1,
        }
    }
}

/// One request: an operation on a record. It takes only 4 bytes, so that thousands of connections can store their
/// outstanding requests, and make their bytes again when TCP has to retransmit them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Query(u32);

impl Query {
    const SET: u32 = 1 << 31;

    /// Makes a request that reads a record.
    pub fn get(record: u32) -> Query {
        Query(record & !Query::SET)
    }

    /// Makes a request that writes a record.
    pub fn set(record: u32) -> Query {
        Query(record | Query::SET)
    }

    /// Returns the record's index.
    #[inline]
    pub fn record(self) -> u32 {
        self.0 & !Query::SET
    }

    /// Whether the request writes.
    #[inline]
    pub fn is_set(self) -> bool {
        self.0 & Query::SET != 0
    }
}

/// The packed sizes of a record. With 10^5 records and more, the cost of a request depends on how much of the cache
/// this table takes.
#[derive(Clone, Copy, Debug)]
struct Shape(u32);

impl Shape {
    const KEY_BITS: u32 = 8;

    fn new(key_bytes: usize, value_bytes: usize) -> Shape {
        Shape((value_bytes as u32) << Shape::KEY_BITS | key_bytes as u32)
    }

    #[inline]
    fn key_bytes(self) -> usize {
        self.0 as usize & ((1 << Shape::KEY_BITS) - 1)
    }

    #[inline]
    fn value_bytes(self) -> usize {
        (self.0 >> Shape::KEY_BITS) as usize
    }
}

// Both sizes fit their bits.
const _: () = assert!(KEY_BYTES_MAX < 1 << Shape::KEY_BITS && VALUE_BYTES_MAX < 1 << (32 - Shape::KEY_BITS));

/// The records and the encoder of requests on them. Immutable; share it between threads.
#[derive(Debug)]
pub struct Workload {
    config: WorkloadConfig,
    shapes: Box<[Shape]>,
    characters: Box<[u8]>,
    /// A random number below this makes the request an update.
    update_below: u64,
}

impl Workload {
    /// Lays the records out. This fails if a number is outside its limits.
    pub fn new(config: WorkloadConfig) -> Result<Workload, LoadError> {
        let invalid = |what, why| Err(LoadError::Invalid { what, why });
        if !(1..=RECORDS_MAX).contains(&config.records) {
            return invalid("records", format!("{} is not between 1 and {RECORDS_MAX}", config.records));
        }
        if config.value_bytes_max > VALUE_BYTES_MAX {
            return invalid("value size limit", format!("{} exceeds {VALUE_BYTES_MAX}", config.value_bytes_max));
        }
        if !(0.0..=1.0).contains(&config.update_ratio) {
            return invalid("update ratio", format!("{} is not between 0 and 1", config.update_ratio));
        }
        let digits = decimal_digits(config.records);
        let shapes = (0..config.records)
            .map(|record| {
                // Each record has a generator of its own, so that its layout does not depend on the number of records.
                let mut rng = Rng::new(mix(config.seed) ^ record);
                let key = config.key.sample(&mut rng).round().clamp(digits as f64, KEY_BYTES_MAX as f64);
                let value = config.value.sample(&mut rng).round().clamp(0.0, config.value_bytes_max as f64);
                Shape::new(key as usize, value as usize)
            })
            .collect();
        let mut rng = Rng::new(mix(config.seed ^ 0x76616c756573));
        let characters = (0..config.value_bytes_max + VALUE_OFFSETS)
            .map(|_| ALPHABET[rng.below(ALPHABET.len() as u64) as usize])
            .collect();
        // 2^64 itself does not fit, but missing one draw in 2^64 does no harm.
        let update_below = (config.update_ratio * u64::MAX as f64) as u64;
        Ok(Workload { config, shapes, characters, update_below })
    }

    /// Returns the configuration.
    pub fn config(&self) -> &WorkloadConfig {
        &self.config
    }

    /// Returns the number of records.
    pub fn records(&self) -> u32 {
        self.shapes.len() as u32
    }

    /// Draws a request: a record, with equal probability, and whether to read or write it.
    #[inline]
    pub fn draw(&self, rng: &mut Rng) -> Query {
        let record = rng.below(self.shapes.len() as u64) as u32;
        let update = self.update_below > 0 && rng.next_u64() <= self.update_below;
        if update { Query::set(record) } else { Query::get(record) }
    }

    #[inline]
    fn shape(&self, record: u32) -> Shape {
        self.shapes[record as usize]
    }

    /// Returns the size of a record's key in bytes.
    #[inline]
    pub fn key_bytes(&self, record: u32) -> usize {
        self.shape(record).key_bytes()
    }

    /// Returns the size of a record's value in bytes.
    #[inline]
    pub fn value_bytes(&self, record: u32) -> usize {
        self.shape(record).value_bytes()
    }

    /// Writes a record's key, which is its index padded with zeros to the key's size, and returns its length.
    ///
    /// # Panics
    ///
    /// This panics if `to` is shorter than the key.
    #[inline]
    pub fn write_key(&self, record: u32, to: &mut [u8]) -> usize {
        let len = self.key_bytes(record);
        let key = &mut to[..len];
        key.fill(b'0');
        write_decimal(u64::from(record), key);
        len
    }

    /// Returns a record's value.
    #[inline]
    pub fn value(&self, record: u32) -> &[u8] {
        let offset = mix(u64::from(record)) as usize % VALUE_OFFSETS;
        &self.characters[offset..offset + self.value_bytes(record)]
    }

    /// Returns the size of an encoded request in bytes.
    #[inline]
    pub fn request_bytes(&self, request: Query) -> usize {
        let shape = self.shape(request.record());
        let key = shape.key_bytes();
        if request.is_set() {
            let value = shape.value_bytes();
            4 + key + 5 + decimal_digits(value as u64) + 2 + value + 2
        } else {
            4 + key + 2
        }
    }

    /// Returns the size of the expected answer in bytes: the record as it was set, or `STORED`.
    #[inline]
    pub fn response_bytes(&self, request: Query) -> usize {
        if request.is_set() {
            return b"STORED\r\n".len();
        }
        let shape = self.shape(request.record());
        let value = shape.value_bytes();
        6 + shape.key_bytes() + 3 + decimal_digits(value as u64) + 2 + value + 2 + 5
    }

    /// Encodes a whole request into the front of `to` and returns its length.
    ///
    /// # Panics
    ///
    /// This panics if `to` is shorter than [`Workload::request_bytes`].
    #[inline]
    pub fn encode(&self, request: Query, to: &mut [u8]) -> usize {
        if request.is_set() {
            let len = self.request_bytes(request);
            self.encode_range(request, 0, &mut to[..len]);
            return len;
        }
        to[..4].copy_from_slice(b"get ");
        let end = 4 + self.write_key(request.record(), &mut to[4..]);
        to[end..end + 2].copy_from_slice(b"\r\n");
        end + 2
    }

    /// Encodes a request's bytes from `from` on, as many as `to` holds, which makes one segment of a request that is
    /// sent in pieces.
    ///
    /// # Panics
    ///
    /// This panics if the range exceeds the request.
    pub fn encode_range(&self, request: Query, from: usize, to: &mut [u8]) {
        let mut head = [0; HEAD_BYTES_MAX];
        let head_len = self.encode_head(request, &mut head);
        let value = if request.is_set() { self.value(request.record()) } else { &[] };
        let end: &[u8] = if request.is_set() { b"\r\n" } else { b"" };
        let mut skip = from;
        let mut filled = 0;
        for part in [&head[..head_len], value, end] {
            let skipped = skip.min(part.len());
            skip -= skipped;
            let part = &part[skipped..];
            let taken = part.len().min(to.len() - filled);
            to[filled..filled + taken].copy_from_slice(&part[..taken]);
            filled += taken;
        }
        assert_eq!(filled, to.len(), "range of {} bytes from {from} exceeds the request", to.len());
    }

    fn encode_head(&self, request: Query, to: &mut [u8; HEAD_BYTES_MAX]) -> usize {
        to[..4].copy_from_slice(if request.is_set() { b"set " } else { b"get " });
        let mut len = 4 + self.write_key(request.record(), &mut to[4..]);
        if request.is_set() {
            to[len..len + 5].copy_from_slice(b" 0 0 ");
            len += 5;
            let value_bytes = self.value_bytes(request.record()) as u64;
            let digits = decimal_digits(value_bytes);
            write_decimal(value_bytes, &mut to[len..len + digits]);
            len += digits;
        }
        to[len..len + 2].copy_from_slice(b"\r\n");
        len + 2
    }

    /// Calls `store` with the key and value of every record, in order, to preload a store in the same process.
    pub fn for_each_record(&self, mut store: impl FnMut(&[u8], &[u8])) {
        let mut key = [0; KEY_BYTES_MAX];
        for record in 0..self.records() {
            let len = self.write_key(record, &mut key);
            store(&key[..len], self.value(record));
        }
    }
}

/// Returns the number of digits of a number.
#[inline]
pub(super) fn decimal_digits(number: u64) -> usize {
    number.checked_ilog10().unwrap_or(0) as usize + 1
}

/// Writes a number right-aligned into `to`, which must have room for its digits.
#[inline]
fn write_decimal(mut number: u64, to: &mut [u8]) {
    for place in to.iter_mut().rev() {
        *place = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            return;
        }
    }
    debug_assert_eq!(number, 0, "no room for a number");
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    fn workload(records: u64) -> Workload {
        Workload::new(WorkloadConfig { records, ..WorkloadConfig::default() }).expect("the configuration is valid")
    }

    #[test]
    fn keys_are_unique_and_padded() {
        let workload = workload(20_000);
        let mut keys = HashSet::new();
        workload.for_each_record(|key, value| {
            assert!(key.len() >= 5 && key.len() <= KEY_BYTES_MAX);
            assert!(value.len() <= VALUE_BYTES_MAX_DEFAULT);
            assert!(keys.insert(key.to_vec()));
        });
        assert_eq!(keys.len(), 20_000);
    }

    #[test]
    fn a_record_does_not_depend_on_the_number_of_records() {
        let (few, many) = (workload(10_000), workload(99_999));
        for record in 0..10_000 {
            assert_eq!(few.value(record), many.value(record));
            assert_eq!(few.key_bytes(record), many.key_bytes(record));
        }
    }

    #[test]
    fn a_request_in_pieces_is_the_request() {
        let workload = workload(1000);
        let mut rng = Rng::new(9);
        for record in 0..1000 {
            for request in [Query::get(record), Query::set(record)] {
                let mut whole = vec![0; workload.request_bytes(request)];
                assert_eq!(workload.encode(request, &mut whole), whole.len());
                let cut = rng.below(whole.len() as u64) as usize;
                let mut pieces = vec![0; whole.len()];
                let (first, second) = pieces.split_at_mut(cut);
                workload.encode_range(request, 0, first);
                workload.encode_range(request, cut, second);
                assert_eq!(pieces, whole);
            }
        }
        let mut key = [0; KEY_BYTES_MAX];
        let len = workload.write_key(7, &mut key);
        let text = format!("set {} 0 0 {}\r\n", String::from_utf8_lossy(&key[..len]), workload.value_bytes(7));
        let mut whole = vec![0; workload.request_bytes(Query::set(7))];
        workload.encode(Query::set(7), &mut whole);
        assert!(whole.starts_with(text.as_bytes()) && whole.ends_with(b"\r\n"));
    }

    #[test]
    fn updates_come_at_their_ratio() {
        for (update_ratio, low, high) in [(0.0, 0, 0), (0.03, 2700, 3300), (1.0, 100_000, 100_000)] {
            let config = WorkloadConfig { records: 10, update_ratio, ..WorkloadConfig::default() };
            let workload = Workload::new(config).expect("the configuration is valid");
            let mut rng = Rng::new(5);
            let sets = (0..100_000).filter(|_| workload.draw(&mut rng).is_set()).count();
            assert!((low..=high).contains(&sets), "{update_ratio}: {sets}");
        }
    }

    #[test]
    fn limits_are_checked() {
        let config = WorkloadConfig::default();
        assert!(Workload::new(WorkloadConfig { records: 0, ..config }).is_err());
        assert!(Workload::new(WorkloadConfig { update_ratio: 1.1, ..config }).is_err());
        assert!(Workload::new(WorkloadConfig { value_bytes_max: 1 << 20, ..config }).is_err());
    }
}
