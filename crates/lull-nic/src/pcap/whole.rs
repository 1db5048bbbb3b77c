//! A file that has whole records, whatever becomes of the processes that write it.
//!
//! Several processes may write one file, whose position they share since they have inherited it. That position is the
//! end of what is whole: a writer takes a lock, writes behind the position, and moves it when everything is there. A
//! process that is killed in between leaves the position where it was, and the next one to write begins there; where
//! the disk is full, what had room is taken back at once.

use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;

use rustix::fs::{FlockOperation, fcntl_lock};
use rustix::process::{Resource, getrlimit};

/// A file in which each write is there as a whole, or not at all. It must not be open with `O_APPEND`.
///
/// A write fails with `WouldBlock` while another process writes, and is to be tried again: nobody waits for a process
/// that may be stopped.
#[derive(Debug)]
pub struct WholeWrites {
    file: File,
}

impl WholeWrites {
    /// A file whose position is its end.
    pub fn to(file: File) -> WholeWrites {
        WholeWrites { file }
    }

    /// Takes away what a process has left behind that was killed while it wrote.
    ///
    /// # Errors
    /// Those of the file; `WouldBlock` while another process writes.
    pub fn cut(&self) -> io::Result<()> {
        let _alone = Alone::with(&self.file)?;
        match self.end() {
            Some(_) => Ok(()),
            None => Err(io::ErrorKind::NotSeekable.into()),
        }
    }

    /// Where the next write begins; nothing lies behind it. None: it is no regular file.
    fn end(&self) -> Option<u64> {
        let end = (&self.file).stream_position().ok()?;
        let size = self.file.metadata().ok().filter(|file| file.is_file())?.len();
        if size > end {
            self.file.set_len(end).ok()?;
        }
        // Somebody else has cut it: no hole is left.
        Some(end.min(size))
    }

    fn write_at(&self, end: u64, bytes: &[u8]) -> io::Result<()> {
        // The signal that tells of this limit (SIGXFSZ) would end the program.
        let limit = getrlimit(Resource::Fsize).current;
        if limit.is_some_and(|limit| end + bytes.len() as u64 > limit) {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.file.write_all_at(bytes, end)?;
        (&self.file).seek(SeekFrom::Start(end + bytes.len() as u64)).map(drop)
    }

    /// An error, with the name that the file has.
    fn named(&self, error: &io::Error) -> io::Error {
        use std::os::fd::AsRawFd;
        match std::fs::read_link(format!("/proc/self/fd/{}", self.file.as_raw_fd())) {
            Ok(name) => io::Error::new(error.kind(), format!("{}: {error}", name.display())),
            Err(_) => io::Error::new(error.kind(), error.to_string()),
        }
    }
}

impl Write for WholeWrites {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let _alone = Alone::with(&self.file)?;
        let Some(end) = self.end() else {
            // A pipe cannot take back what was written to it.
            return (&self.file).write_all(bytes).map(|()| bytes.len()).map_err(|error| self.named(&error));
        };
        self.write_at(end, bytes).map(|()| bytes.len()).map_err(|error| {
            // It is no longer than it was, which takes no room.
            let _ = self.file.set_len(end);
            self.named(&error)
        })
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// No other process writes meanwhile. The end of a process gives it back.
struct Alone<'a>(Option<&'a File>);

impl Alone<'_> {
    fn with(file: &File) -> io::Result<Alone<'_>> {
        match fcntl_lock(file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Alone(Some(file))),
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::ACCESS) => Err(io::ErrorKind::WouldBlock.into()),
            // There are no locks on that file system: a single process writes whole records all the same.
            Err(_) => Ok(Alone(None)),
        }
    }
}

impl Drop for Alone<'_> {
    fn drop(&mut self) {
        if let Some(file) = self.0 {
            // It is held.
            let _ = fcntl_lock(file, FlockOperation::Unlock);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::io::Read;

    fn empty() -> (File, WholeWrites) {
        static FILES: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let nth = FILES.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("lull-whole-{}-{nth}", std::process::id()));
        let options = File::options().read(true).write(true).create(true).truncate(true).clone();
        let file = options.open(&path).unwrap();
        let seen = File::open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        (seen, WholeWrites::to(file))
    }

    fn text(seen: &mut File) -> String {
        let mut text = String::new();
        seen.rewind().unwrap();
        seen.read_to_string(&mut text).unwrap();
        text
    }

    #[test]
    fn what_a_killed_writer_has_begun_is_gone_before_the_next_write_and_at_the_end() {
        let (mut seen, mut first) = empty();
        // As another process that has inherited it.
        let mut second = WholeWrites::to(first.file.try_clone().unwrap());
        first.write_all(b"one ").unwrap();
        // So far came a process that was killed.
        first.file.write_at(b"torn by a signal", 4).unwrap();
        second.write_all(b"two ").unwrap();
        assert_eq!(text(&mut seen), "one two ");
        first.write_all(b"three").unwrap();
        second.file.write_at(b"torn", 13).unwrap();
        first.cut().unwrap();
        assert_eq!(text(&mut seen), "one two three");
    }

    /// The kernel says by a signal that a file is too long, which would end this process.
    #[test]
    fn a_write_for_which_there_is_no_room_leaves_nothing_and_ends_nobody() {
        let (mut seen, mut file) = empty();
        file.write_all(b"room").unwrap();
        let limit = getrlimit(Resource::Fsize);
        let is_over = |error: io::Error| error.kind() == io::ErrorKind::FileTooLarge;
        // SAFETY: the child makes no call that waits for another thread of this process, and ends at once.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let small = rustix::process::Rlimit { current: Some(6), ..limit };
            let is_refused = rustix::process::setrlimit(Resource::Fsize, small).is_ok()
                && file.write_all(b"none").is_err_and(is_over)
                && file.write_all(b"ok").is_ok();
            // SAFETY: as above.
            unsafe { libc::_exit(i32::from(!is_refused)) };
        }
        let mut status = -1;
        // SAFETY: room for the status.
        let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert_eq!((waited, status), (child, 0));
        assert_eq!(text(&mut seen), "roomok");
    }

    #[test]
    fn who_writes_while_another_process_does_is_told_to_try_again() {
        let (mut seen, mut file) = empty();
        let (mut says, mut hears) = (io::pipe().unwrap(), io::pipe().unwrap());
        // SAFETY: as above.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let alone = Alone::with(&file.file);
            let _ = says.1.write_all(b".");
            let _ = hears.0.read_exact(&mut [0]);
            drop(alone);
            // SAFETY: as above.
            unsafe { libc::_exit(0) };
        }
        says.0.read_exact(&mut [0]).unwrap();
        assert_eq!(file.write(b"now").unwrap_err().kind(), io::ErrorKind::WouldBlock);
        assert_eq!(text(&mut seen), "");
        hears.1.write_all(b".").unwrap();
        // SAFETY: nobody else waits for it.
        unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
        file.write_all(b"later").unwrap();
        assert_eq!(text(&mut seen), "later");
    }
}
