//! A memcached service as a library: the text protocol over any byte stream, and the store behind it.
//!
//! Nothing here uses a socket, a thread or a clock: bytes and the time go in, and bytes come out. The three main types
//! are:
//!
//! - [`Store`]: the shared hash table, sharded, with memcached's expiry, CAS and LRU eviction;
//! - [`Session`]: one connection's protocol state, which is fed with the bytes that arrive;
//! - [`Fed`]: what a call has done, and what the connection's owner has to do next.
//!
//! The replies, down to the text of the errors, are those of memcached 1.6.18 as observed by talking to it. If this
//! service differs, the difference is documented at the command that has it (see [`Session`]).
//!
//! ```
//! use lull_lab::memcached::{Session, Store, StoreConfig};
//!
//! let store = Store::new(StoreConfig::default()); let mut session = Session::new(); let mut out = Vec::new(); let fed = session.feed(b"set answer 0 0 2\r\n42\r\nget answer\r\n", &mut out, &store, 1_700_000_000); assert!(!fed.close); assert_eq!(out, b"STORED\r\nVALUE answer 0 2\r\n42\r\nEND\r\n");
//! ```

mod command;
mod item;
mod lru;
mod protocol;
mod reply;
mod report;
mod shard;
mod stats;
mod store;

pub use item::{
    Arithmetic, ITEM_BYTES_MAX, ITEM_OVERHEAD_BYTES, ItemView, KEY_BYTES_MAX, StoreMode, StoreOutcome, expiry_s,
};
pub use protocol::{Fed, LINE_BYTES_MAX, OUTPUT_PAUSE_BYTES, Session};
pub use stats::{Counters, StoreStats};
pub use store::{MEMORY_BYTES_MIN, Store, StoreConfig};

/// The answer to `version`. Clients enable commands by the numbers, and some accept only numbers there. They are those
/// of the first memcached that answers mistakes as this service does (libmemcached's `memccapable` expects other
/// answers of older ones). The rest names this service.
pub const VERSION: &str = "1.6.0-lull-lab";
