//! A connection that its own process uses by the C library's streams (`fdopen`, `dprintf`, and `printf` where it stands for 0, 1 or 2).
//!
//! The streams read and write inside the C library, where lull hears of nothing. So the connection's numbers become one end of a relay,
//! as they do in a child, and the other end stays in the same process: from then on whatever is done with them is the kernel's to do.

use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use libc::c_int;
use lull_fd::say;
use lull_net::lull_nic::Afresh;
use lull_net::lull_nic::own;

use super::parent::Relay;
use super::{child, named, outlived, passing};
use crate::files::{self, File, Open};
use crate::kernel::{self, NoSignals};
use crate::socket::{Stream, pool};
use crate::{Errno, Result, address, epoll};

/// Between two looks whether a relay has ended.
const LOOKS_APART: Duration = Duration::from_millis(1);

/// A relay of a connection that this process uses itself.
struct Own {
    relay: Weak<Relay>,
    /// Of the socket that the program has.
    inode: u32,
}

static OWN: Afresh<Mutex<Vec<Own>>> = Afresh::new();
static BECOMING: Afresh<Mutex<()>> = Afresh::new();

fn all_own() -> MutexGuard<'static, Vec<Own>> {
    // What is inside is changed by whole operations.
    OWN.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner)
}

/// Numbers that can be noted: the kernel's usual limit for a service.
const NOTED_MAX: usize = 1 << 16;
/// Numbers that streams have whose sockets are not connected yet. A number that is given out anew is none.
static NOTED: [AtomicU64; NOTED_MAX / 64] = [const { AtomicU64::new(0) }; NOTED_MAX / 64];

fn noted(number: c_int) -> Option<(&'static AtomicU64, u64)> {
    let number = usize::try_from(number).ok()?;
    Some((NOTED.get(number / 64)?, 1 << (number % 64)))
}

/// A stream has a number that is not lull's. If it is a socket, `connect` may make it so.
pub(crate) fn note(fd: c_int) {
    let is_tcp = kernel::int_option(fd, libc::SOL_SOCKET, libc::SO_PROTOCOL) == Ok(libc::IPPROTO_TCP);
    if let Some((word, bit)) = noted(fd).filter(|_| is_tcp && !kernel::is_in_use(fd)) {
        word.fetch_or(bit, Ordering::Relaxed);
    }
}

/// What a number was is not what it is.
#[inline]
pub(crate) fn is_no_more(fd: c_int) {
    if let Some((word, bit)) = noted(fd).filter(|(word, bit)| word.load(Ordering::Relaxed) & bit != 0) {
        word.fetch_and(!bit, Ordering::Relaxed);
    }
}

/// A number is connected by lull. If a stream had it before, that reads and writes it.
pub(crate) fn is_connected(fd: c_int) {
    if noted(fd).is_some_and(|(word, bit)| word.load(Ordering::Relaxed) & bit != 0) {
        // Where it cannot be, which is said, the connection is lull's alone.
        let _ = begin(fd);
        is_no_more(fd);
    }
}

/// A number is about to be a stream's. A connection of lull's is passed on to it from here on; nothing is done for what is none.
pub(crate) fn begin(fd: c_int) -> Result<()> {
    let Some(file) = files::get(fd) else { return Ok(()) };
    let File::Stream(stream) = &*file else { return Ok(()) };
    become_relay(fd, &file, stream).inspect_err(|error| say_refused(fd, *error))
}

fn become_relay(fd: c_int, file: &Open, stream: &Stream) -> Result<()> {
    // Of two threads that write to it first at the same moment one makes the relay.
    let _one_at_a_time = BECOMING.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner);
    let is_it = |number: &c_int| files::get(*number).is_some_and(|other| other.is_same(file));
    if !is_it(&fd) {
        return Ok(());
    }
    let (mine, theirs) = passing::relay(fd, stream)?;
    let inode = kernel::inode(theirs.as_raw_fd())?;
    let relay = {
        let _no_signals = NoSignals::begin();
        // A process that exits stays until the peer has what was written.
        let relay = Relay::new(file.clone(), mine, Some(Box::new(pool::used_by_another())))?;
        relay.clone().begin()?;
        Arc::downgrade(&relay)
    };
    let mut all = all_own();
    all.retain(|own| own.relay.strong_count() > 0);
    all.push(Own { relay, inode });
    drop(all);
    let changes = files::changes_alone();
    // A call of another thread's finds the connection, or the relay.
    for number in files::numbers().filter(is_it) {
        // One that another thread has closed meanwhile stands for nothing.
        let _ = child::stand_under(number, theirs.as_raw_fd());
    }
    let numbers = files::hand_back(fd, file, stream.is_nonblocking());
    drop(changes);
    epoll::is_the_kernels(&numbers, stream.stream());
    child::has_relays();
    Ok(())
}

fn say_refused(fd: c_int, error: Errno) {
    say::line(format_args!(
        "process {} cannot use connection {fd} by streams of the C library ({error}): it has to be established, and takes three \
         descriptors and two threads",
        std::process::id()
    ));
}

/// This process is about to execute a program. What was written to its own relays goes to their connections, within `at_most`, and the
/// relays end. Returns the connections, each with one of its numbers, and whether one stays open.
pub(crate) fn end(at_most: Duration) -> Vec<(Open, c_int, bool)> {
    let (mut ended, mut relays) = (Vec::new(), Vec::new());
    for own in all_own().drain(..) {
        let Some(relay) = own.relay.upgrade() else { continue };
        let is_its = |number: &c_int| named::names(*number).is_some() && kernel::inode(*number) == Ok(own.inode);
        let numbers: Vec<c_int> = child::numbers_of_programs().filter(is_its).collect();
        if let Some(first) = numbers.first() {
            let stays =
                |number: &c_int| kernel::fcntl(*number, libc::F_GETFD, 0).is_ok_and(|it| it & libc::FD_CLOEXEC == 0);
            // To the relay it is as if the program had closed it.
            let _ = kernel::shutdown(*first, libc::SHUT_RDWR);
            ended.push((relay.file().clone(), *first, numbers.iter().any(stays)));
        }
        relays.push(Arc::downgrade(&relay));
    }
    let began = Instant::now();
    while relays.iter().any(|relay| relay.strong_count() > 0) && began.elapsed() < at_most {
        std::thread::sleep(LOOKS_APART);
    }
    ended
}

/// Whether a descriptor of lull's own is a socket of the kernel's that a thread of the parent's has, and that has a port: a child's copy
/// would keep that taken, and the listener that it is duplicated from open.
fn is_of_the_parents(number: c_int) -> bool {
    let name = kernel::getsockname(number).ok().and_then(|name| address::parse(name.as_bytes()));
    name.is_some_and(|name| name.port() != 0) && !outlived::is_kept(number)
}

/// A child of `fork` has no relays. Its copies of their ends would keep those open that it has the other end of when its parent is gone.
pub(crate) fn forget() {
    OWN.forget();
    BECOMING.forget();
    let mut from = 0;
    while let Some(number) = own::next(from) {
        from = number + 1;
        let number = number as c_int;
        if named::is_owners_end(number) || is_of_the_parents(number) {
            own::unmark(number);
            kernel::discard(number);
        }
    }
}
