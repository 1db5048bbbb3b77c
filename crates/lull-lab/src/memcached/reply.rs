//! The parts of replies: words, items, numbers.

use super::command::Retrieval;
use super::item::{ItemView, StoreOutcome};
use super::store::Store;

pub(super) fn outcome_text(outcome: StoreOutcome) -> &'static [u8] {
    match outcome {
        StoreOutcome::Stored => b"STORED\r\n",
        StoreOutcome::NotStored => b"NOT_STORED\r\n",
        StoreOutcome::Exists => b"EXISTS\r\n",
        StoreOutcome::NotFound => b"NOT_FOUND\r\n",
        StoreOutcome::TooLarge => b"SERVER_ERROR object too large for cache\r\n",
        StoreOutcome::NoMemory => b"SERVER_ERROR out of memory storing object\r\n",
    }
}

/// Prints one item, if it is there.
#[inline]
pub(super) fn look_up(retrieval: Retrieval, key: &[u8], expires_s: u32, out: &mut Vec<u8>, store: &Store, now_s: u32) {
    let print = |item: ItemView<'_>| {
        // The numbers and words around a key and a value take at most 62 bytes.
        out.reserve(key.len() + item.value.len() + 64);
        out.extend_from_slice(b"VALUE ");
        out.extend_from_slice(key);
        out.push(b' ');
        put_number(out, u64::from(item.flags));
        out.push(b' ');
        put_number(out, item.value.len() as u64);
        if retrieval.cas {
            out.push(b' ');
            put_number(out, item.cas);
        }
        out.extend_from_slice(b"\r\n");
        out.extend_from_slice(item.value);
        out.extend_from_slice(b"\r\n");
    };
    if retrieval.touch {
        store.get_and_touch(key, expires_s, now_s, print);
    } else {
        store.get(key, now_s, print);
    }
}

#[inline]
pub(super) fn reply(out: &mut Vec<u8>, noreply: bool, text: &[u8]) {
    if !noreply {
        out.extend_from_slice(text);
    }
}

/// Appends a decimal number.
#[inline]
pub(super) fn put_number(out: &mut Vec<u8>, mut number: u64) {
    if number < 10 {
        out.push(b'0' + number as u8);
        return;
    }
    let mut digits = [0; 20];
    let mut at = digits.len();
    while number > 0 {
        at -= 1;
        digits[at] = b'0' + (number % 10) as u8;
        number /= 10;
    }
    out.extend_from_slice(&digits[at..]);
}
