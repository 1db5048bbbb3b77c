//! What `/proc/P/stat` says of a process: its parent, and when it started, which tells it from another that gets its
//! number later.

use std::io;

use crate::roots::Roots;

/// When a process started. There is nothing if no process has that number, or if only a zombie of one is left.
pub(crate) fn start_of(pid: i32, roots: &Roots) -> Option<u64> {
    stat(pid, roots).filter(|stat| !matches!(stat.state, 'Z' | 'X')).map(|stat| stat.start)
}

/// A process as its parent and the kernel know it.
pub(crate) struct Stat {
    state: char,
    pub(crate) parent: i32,
    /// When it started, in clock ticks since the boot.
    pub(crate) start: u64,
}

/// What is known of a process. There is nothing if no process has that number.
pub(crate) fn stat(pid: i32, roots: &Roots) -> Option<Stat> {
    try_stat(pid, roots).ok().flatten()
}

/// The same as [`stat`], for callers that have to tell a process that cannot be looked at from one that has ended.
///
/// # Errors
/// Those of reading, such as when no descriptor is left.
pub(crate) fn try_stat(pid: i32, roots: &Roots) -> io::Result<Option<Stat>> {
    match roots.read_proc(&format!("{pid}/stat")) {
        Ok(line) => Ok(parse_stat(&line)),
        // A process may end between the opening and the reading.
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ESRCH)) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Fields 3, 4 and 22. The name in field 2 may hold blanks and parentheses.
fn parse_stat(line: &str) -> Option<Stat> {
    let (_, fields) = line.rsplit_once(')')?;
    let mut fields = fields.split_whitespace();
    let state = fields.next()?.chars().next()?;
    let parent = fields.next()?.parse().ok()?;
    let start = fields.nth(17)?.parse().ok()?;
    Some(Stat { state, parent, start })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_with_parentheses_do_not_shift_the_fields() {
        let line = "42 (a) b (c)) S 7 42 42 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 314159 1 2 3";
        let stat = parse_stat(line).unwrap();
        assert_eq!((stat.state, stat.parent, stat.start), ('S', 7, 314_159));
        assert!(parse_stat("42 (a").is_none());
    }
}
