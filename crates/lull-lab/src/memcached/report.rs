//! The output of `stats`.

use super::VERSION;
use super::command::{self, BAD_FORMAT, ERROR};
use super::item::KEY_BYTES_MAX;
use super::reply::put_number;
use super::stats::StoreStats;
use super::store::Store;

/// The number of output bytes at which `stats cachedump` stops (memcached's limit).
const DUMP_BYTES_MAX: usize = 2 << 20;

/// Appends the reply to `stats <topic> <arguments>`.
pub(super) fn stats(topic: &[u8], arguments: [&[u8]; 2], out: &mut Vec<u8>, store: &Store, now_s: u32) {
    match topic {
        b"" => {
            let stats = store.stats();
            for (name, value) in general_stats(&stats, store, now_s) {
                put_stat(out, name, value);
            }
            for part in ["STAT version ", VERSION, "\r\n"] {
                out.extend_from_slice(part.as_bytes());
            }
        }
        b"settings" => {
            let config = store.config();
            put_stat(out, "maxbytes", config.memory_bytes_max as u64);
            put_stat(out, "item_size_max", config.item_bytes_max as u64);
            put_stat(out, "num_threads", config.threads as u64);
            put_stat(out, "verbosity", store.verbosity());
            for flag in ["evictions on", "cas_enabled yes", "flush_enabled yes", "dump_enabled yes"] {
                for part in ["STAT ", flag, "\r\n"] {
                    out.extend_from_slice(part.as_bytes());
                }
            }
        }
        b"items" => {
            let stats = store.stats();
            // There are no slab classes: all items are in class 1.
            if stats.curr_items > 0 {
                put_stat(out, "items:1:number", stats.curr_items);
                put_stat(out, "items:1:mem_requested", stats.bytes);
                put_stat(out, "items:1:evicted", stats.counters.evictions);
                put_stat(out, "items:1:reclaimed", stats.counters.reclaimed);
                put_stat(out, "items:1:outofmemory", stats.counters.store_no_memory);
            }
        }
        b"reset" => {
            store.reset_stats();
            out.extend_from_slice(b"RESET\r\n");
            return;
        }
        b"cachedump" => {
            if arguments.iter().any(|argument| argument.is_empty()) {
                out.extend_from_slice(b"CLIENT_ERROR bad command line\r\n");
                return;
            }
            let [Some(class), Some(items_max)] = arguments.map(command::unsigned) else {
                out.extend_from_slice(BAD_FORMAT);
                return;
            };
            if class == 1 {
                cachedump(items_max, out, store, now_s);
            }
        }
        _ => {
            out.extend_from_slice(ERROR);
            return;
        }
    }
    out.extend_from_slice(b"END\r\n");
}

fn put_stat(out: &mut Vec<u8>, name: &str, value: u64) {
    out.extend_from_slice(b"STAT ");
    out.extend_from_slice(name.as_bytes());
    out.push(b' ');
    put_number(out, value);
    out.extend_from_slice(b"\r\n");
}

fn general_stats(stats: &StoreStats, store: &Store, now_s: u32) -> [(&'static str, u64); 39] {
    let counters = &stats.counters;
    [
        ("pid", u64::from(std::process::id())),
        ("uptime", store.uptime_s()),
        ("time", u64::from(now_s)),
        ("pointer_size", u64::from(usize::BITS)),
        ("threads", store.config().threads as u64),
        ("curr_connections", stats.curr_connections),
        ("total_connections", stats.total_connections),
        ("rejected_connections", stats.rejected_connections),
        ("idle_kicks", stats.idle_kicks),
        ("cmd_get", counters.get_hits + counters.get_misses),
        ("cmd_set", counters.cmd_set),
        ("cmd_flush", stats.cmd_flush),
        ("cmd_touch", counters.cmd_touch),
        ("cmd_meta", 0),
        ("get_hits", counters.get_hits),
        ("get_misses", counters.get_misses),
        ("get_expired", counters.get_expired),
        ("delete_misses", counters.delete_misses),
        ("delete_hits", counters.delete_hits),
        ("incr_misses", counters.incr_misses),
        ("incr_hits", counters.incr_hits),
        ("decr_misses", counters.decr_misses),
        ("decr_hits", counters.decr_hits),
        ("cas_misses", counters.cas_misses),
        ("cas_hits", counters.cas_hits),
        ("cas_badval", counters.cas_badval),
        ("touch_hits", counters.touch_hits),
        ("touch_misses", counters.touch_misses),
        ("store_too_large", stats.store_too_large),
        ("store_no_memory", counters.store_no_memory),
        ("bytes_read", stats.bytes_read),
        ("bytes_written", stats.bytes_written),
        ("limit_maxbytes", stats.limit_maxbytes),
        ("bytes", stats.bytes),
        ("curr_items", stats.curr_items),
        ("total_items", counters.total_items),
        ("evictions", counters.evictions),
        ("reclaimed", counters.reclaimed),
        ("auth_errors", 0),
    ]
}

/// Runs `stats cachedump`: up to `items_max` keys (0 for any number), within memcached's limit on the output.
fn cachedump(items_max: u64, out: &mut Vec<u8>, store: &Store, now_s: u32) {
    let out_max = out.len() + DUMP_BYTES_MAX;
    let mut left = if items_max == 0 { u64::MAX } else { items_max };
    store.visit(now_s, |key, value_bytes, expires_s| {
        if left == 0 || out.len() + KEY_BYTES_MAX + 64 > out_max {
            return false;
        }
        left -= 1;
        out.extend_from_slice(b"ITEM ");
        out.extend_from_slice(key);
        out.extend_from_slice(b" [");
        put_number(out, value_bytes as u64);
        out.extend_from_slice(b" b; ");
        put_number(out, u64::from(expires_s));
        out.extend_from_slice(b" s]\r\n");
        true
    });
}
