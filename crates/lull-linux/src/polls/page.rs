//! A page of the kernel's ring buffer as `trace_pipe_raw` hands it out (`ring_buffer.h`, `events/header_page`).

use std::io::{self, Read};

use super::error::PollsError;
use super::format::field;

/// The types of the 5-bit `type_len` that are no data (`enum ring_buffer_type`).
const PADDING: u32 = 29;
const TIME_EXTEND: u32 = 30;
const TIME_STAMP: u32 = 31;
/// Bits of the time in an event's header, and its mask.
const DELTA_BITS: u32 = 27;
const DELTA_MASK: u64 = (1 << DELTA_BITS) - 1;
/// The bits of `commit` that are its length. The two highest of the 32 say that events were lost before the page.
const LENGTH_MASK: u64 = (1 << 30) - 1;

/// The reason why a ring buffer could not be drained.
#[derive(Debug)]
pub(super) enum DrainError {
    /// It cannot be read.
    Read(io::Error),
    /// A page is not understood.
    Page(PollsError),
}

/// Where a page's parts lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    commit_at: usize,
    commit_bytes: usize,
    data_at: usize,
    data_bytes: usize,
}

impl Layout {
    pub fn parse(text: &str) -> Result<Layout, PollsError> {
        let find = |name: &str| {
            let found = text.lines().filter_map(field).find(|field| field.0 == name);
            found.ok_or_else(|| PollsError::Format(format!("a page of the ring buffer has no {name}")))
        };
        let ((_, commit_at, commit_bytes), (_, data_at, data_bytes)) = (find("commit")?, find("data")?);
        if find("timestamp")?.1 != 0 || !matches!(commit_bytes, 4 | 8) || data_at < commit_at + commit_bytes {
            return Err(PollsError::Format("a page of the ring buffer has its parts elsewhere".to_owned()));
        }
        Ok(Layout { commit_at, commit_bytes, data_at, data_bytes })
    }

    pub fn page_bytes(&self) -> usize {
        self.data_at + self.data_bytes
    }

    /// Hands each event of a page to `each`, with its time. Returns the time that the page ends with.
    pub fn events(&self, page: &[u8], mut each: impl FnMut(u64, &[u8])) -> Result<u64, PollsError> {
        let torn = || PollsError::Format("a page of the ring buffer ends within an event".to_owned());
        let u32_at = |at: usize| Some(u32::from_ne_bytes(page.get(at..at + 4)?.try_into().ok()?));
        let u64_at = |at: usize| Some(u64::from_ne_bytes(page.get(at..at + 8)?.try_into().ok()?));
        let mut time = u64_at(0).ok_or_else(torn)?;
        let commit = match self.commit_bytes {
            4 => u32_at(self.commit_at).map(u64::from),
            _ => u64_at(self.commit_at),
        };
        let length = (commit.ok_or_else(torn)? & LENGTH_MASK) as usize;
        let (mut at, end) = (self.data_at, self.data_at + length);
        while at + 4 <= end {
            let header = u32_at(at).ok_or_else(torn)?;
            let (kind, delta) = (header & 31, u64::from(header >> 5));
            let long = || u32_at(at + 4).map(u64::from).ok_or_else(torn);
            let extended = || long().map(|high| (high << DELTA_BITS) | delta);
            let next = match kind {
                // The rest of the page is empty.
                PADDING if delta == 0 => break,
                PADDING => {
                    time += delta;
                    at + 4 + long()? as usize
                }
                TIME_EXTEND => {
                    time += extended()?;
                    at + 8
                }
                TIME_STAMP => {
                    // The five highest bits did not fit, and are the same as before.
                    time = (time & !((DELTA_MASK << 32) | u64::from(u32::MAX))) | extended()?;
                    at + 8
                }
                _ => {
                    time += delta;
                    let (from, to) = match kind {
                        0 => (at + 8, at + 4 + long()? as usize),
                        words => (at + 4, at + 4 + 4 * words as usize),
                    };
                    each(time, page.get(from..to).ok_or_else(torn)?);
                    to
                }
            };
            if next <= at {
                return Err(torn());
            }
            at = next;
        }
        Ok(time)
    }

    /// Hands each event of the pages that `buffer` has to `each`, up to the page that ends after `until_ns`. What is
    /// recorded in the meantime is left for the next call, as a reader that is slower than the kernel never sees its
    /// buffer empty.
    pub fn drain(
        &self,
        buffer: &mut impl Read,
        page: &mut [u8],
        until_ns: u64,
        mut each: impl FnMut(u64, &[u8]),
    ) -> Result<(), DrainError> {
        loop {
            let got = match buffer.read(page) {
                Ok(0) => return Ok(()),
                Ok(got) => got,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(DrainError::Read(error)),
            };
            if self.events(&page[..got], &mut each).map_err(DrainError::Page)? > until_ns {
                return Ok(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout() -> Layout {
        let text = "\tfield: u64 timestamp;\toffset:0;\tsize:8;\tsigned:0;\n\
            \tfield: local_t commit;\toffset:8;\tsize:8;\tsigned:1;\n\
            \tfield: int overwrite;\toffset:8;\tsize:1;\tsigned:1;\n\
            \tfield: char data;\toffset:16;\tsize:4080;\tsigned:0;\n";
        Layout::parse(text).unwrap()
    }

    fn page(words: &[u32]) -> Vec<u8> {
        let mut page = 1_000_u64.to_ne_bytes().to_vec();
        // This one has the mark of lost events.
        page.extend(((1 << 31) | (4 * words.len() as u64)).to_ne_bytes());
        page.extend(words.iter().flat_map(|word| word.to_ne_bytes()));
        page
    }

    fn events(words: &[u32]) -> Result<Vec<(u64, Vec<u8>)>, PollsError> {
        let mut all = Vec::new();
        layout().events(&page(words), |at, event| all.push((at, event.to_vec()))).map(|_| all)
    }

    #[test]
    fn times_add_up_over_every_kind_of_event() {
        let header = |kind: u32, delta: u32| (delta << 5) | kind;
        let words = [
            header(1, 5),
            7, // four bytes
            header(0, 1),
            8,
            9, // a long one, whose length counts itself
            header(TIME_EXTEND, 3),
            1, // 2^27 + 3
            header(PADDING, 2),
            4, // discarded
            header(1, 0),
            11,
            header(PADDING, 0),
            0,
            99,
        ];
        let seven = 7_u32.to_ne_bytes().to_vec();
        let nine = 9_u32.to_ne_bytes().to_vec();
        let eleven = 11_u32.to_ne_bytes().to_vec();
        let late = 1_006 + (1 << 27) + 5;
        assert_eq!(events(&words).unwrap(), [(1_005, seven), (1_006, nine), (late, eleven)]);
    }

    #[test]
    fn an_absolute_time_replaces_the_sum() {
        assert_eq!(events(&[(6 << 5) | TIME_STAMP, 2, 1, 7]).unwrap()[0].0, (2 << 27) + 6);
    }

    /// A buffer that a NAPI thread fills as fast as it is read: pages of one event every 100 ns, without end.
    struct Busy {
        pages: u64,
    }

    impl Read for Busy {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            let mut page = page(&[(5 << 5) | 1, 7]);
            page[..8].copy_from_slice(&(100 * self.pages).to_ne_bytes());
            self.pages += 1;
            into[..page.len()].copy_from_slice(&page);
            Ok(page.len())
        }
    }

    #[test]
    fn a_buffer_that_is_filled_as_fast_as_it_is_read_is_drained_up_to_now() {
        let (mut busy, mut seen) = (Busy { pages: 0 }, Vec::new());
        let mut drain = |until_ns| {
            layout().drain(&mut busy, &mut [0; 4096], until_ns, |at, _| seen.push(at)).unwrap();
            std::mem::take(&mut seen)
        };
        assert_eq!(drain(210), [5, 105, 205, 305], "what was there, and the page that is later");
        assert_eq!(drain(210), [405], "nothing twice, and nothing left out");
    }

    #[test]
    fn a_buffer_is_drained_until_it_is_empty() {
        let both = [page(&[(5 << 5) | 1, 7]), page(&[(6 << 5) | 1, 7])].concat();
        let length = both.len() / 2;
        let (mut buffer, mut seen) = (&both[..], Vec::new());
        layout().drain(&mut buffer, &mut vec![0; length], u64::MAX, |at, _| seen.push(at)).unwrap();
        assert_eq!(seen, [1_005, 1_006]);
    }

    #[test]
    fn a_torn_page_is_an_error_and_not_a_panic() {
        assert!(events(&[3]).is_err());
        assert!(events(&[0, 400]).is_err());
        assert!(layout().events(&[0; 12], |_, _| ()).is_err());
        assert_eq!(layout().page_bytes(), 4096);
    }
}
