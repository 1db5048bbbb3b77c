//! `select`, as `poll` of the descriptors in its sets.

use std::time::Duration;

use libc::{POLLERR, POLLHUP, POLLIN, POLLNVAL, POLLOUT, POLLPRI, POLLRDBAND, POLLRDNORM, POLLWRBAND, POLLWRNORM};
use libc::{c_int, c_short, pollfd};

use super::poll;
use crate::{Errno, Result, files};

/// Bits of a word of an `fd_set`.
pub const WORD_BITS: usize = u64::BITS as usize;

/// The words of the sets for reading, writing and exceptions, any of which may not be there. They are as long as the count of the
/// call has them, rounded up to words.
pub type Sets<'a> = [Option<&'a mut [u64]>; 3];

/// What each set asks of `poll`, and what of its answer counts for it (`POLLIN_SET` and its kin).
const ASKED: [c_short; 3] = [POLLIN | POLLRDNORM | POLLRDBAND, POLLOUT | POLLWRNORM | POLLWRBAND, POLLPRI];
const COUNTS: [c_short; 3] = [ASKED[0] | POLLHUP | POLLERR, ASKED[1] | POLLERR, ASKED[2]];

fn has(sets: &Sets<'_>, set: usize, fd: usize) -> bool {
    sets[set].as_deref().is_some_and(|words| words[fd / WORD_BITS] >> (fd % WORD_BITS) & 1 != 0)
}

/// Whether a call with these sets and this count is lull's business.
pub fn concerns_sets(count: usize, sets: &Sets<'_>) -> bool {
    (0..count).any(|fd| (0..3).any(|set| has(sets, set, fd)) && files::is_lull_to_wait(fd as c_int))
}

/// `select`; a timeout of nothing is for ever. Returns how many bits the sets have afterwards.
pub fn select(count: usize, sets: &mut Sets<'_>, timeout: Option<Duration>) -> Result<usize> {
    let events = |fd: usize| (0..3).filter(|&set| has(sets, set, fd)).fold(0, |all, set| all | ASKED[set]);
    let asked = (0..count).map(|fd| pollfd { fd: fd as c_int, events: events(fd), revents: 0 });
    let mut polled: Vec<pollfd> = asked.filter(|polled| polled.events != 0).collect();
    poll(&mut polled, timeout)?;
    if polled.iter().any(|polled| polled.revents & POLLNVAL != 0) {
        return Err(Errno::new(libc::EBADF));
    }
    let mut bits = 0;
    for (set, words) in sets.iter_mut().enumerate() {
        let Some(words) = words else { continue };
        words.fill(0);
        for polled in polled.iter().filter(|polled| polled.events & ASKED[set] != 0) {
            if polled.revents & COUNTS[set] != 0 {
                words[polled.fd as usize / WORD_BITS] |= 1 << (polled.fd as usize % WORD_BITS);
                bits += 1;
            }
        }
    }
    Ok(bits)
}
