//! A memcached service as a library: the text protocol over any byte stream, and the store behind it.
//!
//! Nothing here knows a socket, a thread or a clock: bytes and the time go in, bytes come out. Three types to know:
//!
//! - [`Store`]: the shared hash table, sharded, with memcached's expiry, CAS and LRU eviction;
//! - [`Session`]: one connection's protocol state, fed with whatever bytes arrived;
//! - [`Fed`]: what a feeding did and what the connection's owner has to do next.
//!
//! The replies, down to the text of the errors, are those of memcached 1.6.18 as observed by talking to it; where this
//! service differs, the difference is documented at the command that has it (see [`Session`]).
//!
//! ```
//! use lull_lab::memcached::{Session, Store, StoreConfig};
//!
//! let store = Store::new(StoreConfig::default());
//! let mut session = Session::new();
//! let mut out = Vec::new();
//! let fed = session.feed(b"set answer 0 0 2\r\n42\r\nget answer\r\n", &mut out, &store, 1_700_000_000);
//! assert!(!fed.close);
//! assert_eq!(out, b"STORED\r\nVALUE answer 0 2\r\n42\r\nEND\r\n");
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

/// What `version` answers. Clients gate commands on the numbers, and some accept nothing else in their place: they are
/// those of the first memcached that answers mistakes as this does (libmemcached's `memccapable` expects other answers
/// of older ones). The rest says what this is.
pub const VERSION: &str = "1.6.0-lull-lab";
