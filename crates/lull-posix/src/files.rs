//! The open files of this process that are lull's, by their numbers.

use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use libc::{c_int, c_uint};
use lull_fd::linux::{KeptError, set_error};

use crate::epoll::{self, EpollFile};
use crate::socket::{Datagram, Listener, Stream, bound};
use lull_net::lull_nic::{Afresh, own};

use crate::{Errno, Result, husk, inherit, is_involved, kernel, netlink, signals, silence};

/// An open file that is lull's, at least by half.
pub(crate) enum File {
    /// A listening TCP socket.
    Listener(Listener),
    /// A TCP connection.
    Stream(Stream),
    /// A UDP socket.
    Datagram(Datagram),
    /// An epoll context.
    Epoll(EpollFile),
}

/// A reference to one.
pub(crate) type Open = lull_fd::Open<File>;

static FILES: lull_fd::Files<File> = lull_fd::Files::new();

/// A thread that puts another file under numbers of lull's holds this alone, because a number that was closed meanwhile
/// may be somebody else's.
static CHANGING: Afresh<RwLock<()>> = Afresh::new();

fn changing() -> &'static RwLock<()> {
    CHANGING.get_or_init(RwLock::default)
}

/// Until this is dropped, no number of lull's is closed, nor gets another file by others.
pub(crate) fn changes_alone() -> RwLockWriteGuard<'static, ()> {
    changing().write().unwrap_or_else(PoisonError::into_inner)
}

fn changes() -> RwLockReadGuard<'static, ()> {
    changing().read().unwrap_or_else(PoisonError::into_inner)
}

/// In any child of `fork`: whoever changes something is another process's thread.
pub(crate) fn forget_changing() {
    CHANGING.forget();
}

/// Whether a number is lull's. A call on any other number goes to the kernel untouched. That includes what the child of
/// a process with an engine inherited, whose connections this call makes the kernel's (`inherit.rs`).
#[inline]
pub fn is_lull(fd: c_int) -> bool {
    is_in_table(fd) && (!husk::is_husk() || uses(fd))
}

#[inline]
fn is_in_table(fd: c_int) -> bool {
    FILES.contains(fd) || inherit::is_again(fd)
}

/// As [`is_lull`], for a call that waits: a listener that such a child inherited is asked for connections by it.
#[inline]
pub fn is_lull_to_wait(fd: c_int) -> bool {
    is_in_table(fd) && (!husk::is_husk() || asks(fd))
}

#[cold]
fn asks(fd: c_int) -> bool {
    is_own_after(fd, inherit::asks)
}

/// A child makes a call on what was its parent's, and `uses` makes that the kernel's. If the parent has ended, it is
/// the child's own from then on.
fn is_own_after(fd: c_int, uses: fn(c_int)) -> bool {
    if !inherit::goes_on() {
        uses(fd);
        // It stays what it was if it cannot be passed on, for example by a parent that is ending.
        if !is_in_table(fd) || !inherit::goes_on_soon() {
            return false;
        }
    }
    FILES.contains(fd)
}

/// As [`is_lull`], for a call that only sends.
#[inline]
pub fn is_lull_to_send(fd: c_int) -> bool {
    is_in_table(fd) && (!husk::is_husk() || uses_to_send(fd))
}

#[cold]
fn uses_to_send(fd: c_int) -> bool {
    is_own_after(fd, inherit::uses_to_send)
}

/// Whether reading and writing a number is lull's: it is lull's, or a UDP socket that this process has from a parent whose it is.
#[inline]
pub fn takes_data(fd: c_int) -> bool {
    is_lull(fd) || inherit::has_datagrams(fd)
}

/// A child is about to use what was its parent's.
#[cold]
fn uses(fd: c_int) -> bool {
    is_own_after(fd, inherit::uses)
}

/// Whether a number is in the table: also what the child of a process with an engine inherited, and does not use by this.
#[inline]
pub fn is_known(fd: c_int) -> bool {
    FILES.contains(fd)
}

/// What a number of such a child was in its parent.
pub(crate) fn inherited(fd: c_int) -> Option<Open> {
    FILES.get(fd)
}

/// Whether it was a listener there.
pub(crate) fn is_listener_of_the_parents(fd: c_int) -> bool {
    let Some(file) = inherited(fd).filter(|_| husk::is_husk()) else { return false };
    let is_one = matches!(&*file, File::Listener(listener) if listener.is_behind(fd));
    // The count of who has it is the parent's.
    std::mem::forget(file);
    is_one
}

/// A number of such a child has nothing of its parent's any more. The count of who has that is the parent's.
pub(crate) fn forget_inherited(fd: c_int) {
    std::mem::forget(FILES.take(fd));
}

/// The open file behind a number.
#[inline]
pub(crate) fn get(fd: c_int) -> Option<Open> {
    get_used_by(fd, uses)
}

/// As [`get`], for a call that only sends.
#[inline]
pub(crate) fn get_to_send(fd: c_int) -> Option<Open> {
    get_used_by(fd, uses_to_send)
}

#[inline]
fn get_used_by(fd: c_int, uses: fn(c_int) -> bool) -> Option<Open> {
    // What the child of a process with an engine has here is its parent's.
    if husk::is_husk() && !(FILES.contains(fd) && uses(fd)) {
        return None;
    }
    FILES.get(fd)
}

/// Makes the number stand for `file`. The number is a descriptor of the kernel's already, the placeholder.
pub(crate) fn put(fd: c_int, file: File) -> Result<()> {
    put_open(fd, open(file)?)
}

/// An open file without a number.
pub(crate) fn open(file: File) -> Result<Open> {
    FILES.open(file).ok_or(Errno::new(libc::ENFILE))
}

/// Makes the number stand for what is open already.
pub(crate) fn put_open(fd: c_int, file: Open) -> Result<()> {
    put_in_place(fd, file).map(drop)
}

/// As [`put_open`]. Returns what the number stood for before.
fn put_in_place(fd: c_int, file: Open) -> Result<Option<Open>> {
    // What it stood for before was closed unseen.
    netlink::forget(fd);
    bound::forget(fd);
    FILES.install(fd, file).map_err(|_| Errno::new(libc::EMFILE))
}

/// The kernel gave out this number for something that is not lull's: whatever it stood for before was closed unseen.
#[inline]
pub fn forget(fd: c_int) {
    match is_noted(fd) {
        // Dropping it closes descriptors of lull's own, which nobody else may close, and takes locks that handlers
        // would wait for.
        true => signals::section(|| drop(forgotten(fd))),
        false => drop(forgotten(fd)),
    }
}

/// As [`forget`]. Returns what it stood for before.
fn forgotten(fd: c_int) -> Option<Open> {
    if own::is_own(fd) {
        own::unmark(fd);
    }
    netlink::forget(fd);
    bound::forget(fd);
    inherit::streams::is_no_more(fd);
    if is_known(fd) { taken(fd) } else { None }
}

/// A listener that was shut down is a socket as before.
pub(crate) fn hand_back_ended(fd: c_int) {
    let Some(file) = get(fd) else { return };
    if let File::Listener(listener) = &*file
        && listener.stopped.load(Ordering::Acquire)
    {
        hand_back(fd, &file, listener.nonblocking.load(Ordering::Relaxed));
    }
}

/// What a call of the kernel's returned that gives out a number.
#[inline]
pub fn given_out(number: c_int) -> c_int {
    if number >= 0 && is_involved() {
        forget(number);
    }
    number
}

/// What a call of the kernel's returned that makes `to` another number for what `fd` stands for.
#[inline]
pub fn duplicated(fd: c_int, to: c_int) -> c_int {
    if fd != to {
        given_out(to);
        if to >= 0 && is_involved() {
            stands_beside(to, fd);
        }
    }
    to
}

/// `number` has what stands beside `fd`, a socket of the kernel's, or what a child inherited by that.
fn stands_beside(number: c_int, fd: c_int) {
    netlink::duplicated(fd, number);
    bound::duplicated(fd, number);
    inherited_by(number, fd);
}

/// A child's `number` stands for what `fd` does: if that is a listener of its parent's, a program that the child executes may find it
/// under either.
fn inherited_by(number: c_int, fd: c_int) {
    if !husk::is_husk() {
        return;
    }
    let Some(file) = inherited(fd) else { return };
    match &*file {
        // Beyond the table it is the kernel's, as a listener of the parent's is to the child itself.
        File::Listener(listener) if listener.is_behind(number) => std::mem::forget(FILES.install(number, file)),
        // The count of who has it is the parent's.
        _ => std::mem::forget(file),
    }
}

/// Every number of a file is the kernel's again; the placeholder, behind `kernels`, has what was kept beside it. Returns these
/// numbers. The caller has one reference to the file: if there is another one, this looks at all numbers, for what is rare.
pub(crate) fn hand_back(kernels: c_int, file: &Open, nonblocking: bool) -> Vec<c_int> {
    kernel::put_nonblocking(kernels, nonblocking);
    let is_taken = |number: &c_int| FILES.take_if(*number, file).is_some();
    let first = is_taken(&kernels).then_some(kernels);
    let others = (file.references() > 1).then(|| FILES.numbers().filter(is_taken));
    first.into_iter().chain(others.into_iter().flatten()).collect()
}

/// Whether `close` has anything of lull's to see to: what a number is, or what stands beside a socket of the kernel's.
#[inline]
pub fn is_noted(fd: c_int) -> bool {
    is_known(fd) || netlink::is_one(fd) || bound::is_one(fd)
}

/// `close`. The number is free only after the tables have forgotten it, so nobody who gets it next finds what it was.
pub fn close(fd: c_int) -> Result<()> {
    netlink::forget(fd);
    bound::forget(fd);
    let changes = changes();
    let file = taken(fd);
    let closed = kernel::close(fd);
    drop(changes);
    drop(file);
    closed
}

/// What a number stood for, which the caller drops when everything is done. What was its parent's, a child says it has closed.
fn taken(fd: c_int) -> Option<Open> {
    if !husk::is_husk() {
        return FILES.take(fd);
    }
    inherit::number_closed(fd);
    if let Some(file) = FILES.take(fd) {
        inherit::closed(&file);
        std::mem::forget(file);
    }
    None
}

/// Closes a number by `close`; nothing if it is lull's own, and it is the program that closes it ([`may_close`]).
#[inline]
pub fn closed(fd: c_int, close: impl FnOnce() -> c_int) -> Option<c_int> {
    if own::is_own(fd) { lull_calls().then(|| own::closed(fd, close)) } else { Some(close()) }
}

/// Whether the program, or lull itself, may put another file in a number's place. A descriptor of lull's own is
/// closed to the program, which does not know of it.
#[inline]
pub fn may_close(fd: c_int) -> bool {
    !own::is_own(fd) || lull_closes(fd)
}

/// Whether the program, or lull itself, may set the flags of a number. What a program gives FD_CLOEXEC that it did not open (Ruby's
/// `exec`, all numbers), the one that it executes in its place would not have.
pub fn may_set_flags(fd: c_int) -> bool {
    !own::is_own(fd) || lull_calls()
}

/// Whether it is lull that closes a descriptor of its own.
#[cold]
fn lull_closes(fd: c_int) -> bool {
    let is_lull = lull_calls();
    if is_lull {
        own::unmark(fd);
    }
    is_lull
}

/// Whether a call is lull's, or that of a thread of the engine.
fn lull_calls() -> bool {
    signals::is_inside() || kernel::thread_name().starts_with(b"lull-")
}

/// Calls with the parts of a range of numbers between descriptors of lull's own, until one fails.
fn without_hidden(first: c_uint, last: c_uint, mut call: impl FnMut(c_uint, c_uint) -> c_int) -> c_int {
    let _none_is_made = own::none_is_made();
    let mut from = first;
    while let Some(hidden) = own::next(from).filter(|hidden| *hidden <= last) {
        if hidden > from {
            let result = call(from, hidden - 1);
            if result != 0 {
                return result;
            }
        }
        from = hidden + 1;
    }
    if from <= last { call(from, last) } else { 0 }
}

/// `close_range`: what is lull's in the range is closed as lull's, and `kernels` closes the rest, part by part. Descriptors of lull's
/// own stay open.
pub fn close_range(
    first: c_uint,
    last: c_uint,
    flags: c_int,
    mut kernels: impl FnMut(c_uint, c_uint) -> c_int,
) -> c_int {
    const FLAGS: c_uint = libc::CLOSE_RANGE_UNSHARE | libc::CLOSE_RANGE_CLOEXEC;
    if first > last || flags as c_uint & !FLAGS != 0 {
        // The kernel refuses it.
        return kernels(first, last);
    }
    if is_involved() && flags & libc::CLOSE_RANGE_CLOEXEC as c_int == 0 {
        signals::section(|| close_lulls(first, last));
    }
    // A handler that came meanwhile could make a descriptor itself, and would wait for this thread.
    signals::section(|| without_hidden(first, last, kernels))
}

/// Closes the numbers of a range that are lull's, or that have answers of lull's.
fn close_lulls(first: c_uint, last: c_uint) {
    let range = i64::from(first)..=i64::from(last);
    FILES
        .numbers()
        .chain(netlink::numbers())
        .chain(bound::numbers())
        .filter(|number| range.contains(&i64::from(*number)))
        .for_each(|number| {
            // A number that another thread closes at the same time is closed.
            let _ = close(number);
        });
}

/// The process exits, and stays for others: what else the program has open is closed to others, as by the kernel, since somebody may
/// wait for the end of a pipe, or for a lock. Standard error stays, for what lull says.
pub(crate) fn close_kernels() {
    // No other file may get the numbers of what is written to without being asked for.
    if let Ok(null) = std::fs::File::options().read(true).write(true).open("/dev/null") {
        let written_to = |number: &c_int| {
            !FILES.contains(*number) && (*number != libc::STDERR_FILENO || inherit::is_relay(libc::STDERR_FILENO))
        };
        for number in (0..=libc::STDERR_FILENO).filter(written_to) {
            // It is as it was, if not.
            let _ = kernel::dup3(null.as_raw_fd(), number, 0);
        }
    } else {
        // Nobody waits for more of these.
        for number in (0..=libc::STDERR_FILENO).filter(|number| inherit::is_relay(*number)) {
            let _ = kernel::shutdown(number, libc::SHUT_RDWR);
        }
    }
    let is_kernels = |number| number > libc::STDERR_FILENO && !FILES.contains(number) && !own::is_own(number);
    if silence::silence(is_kernels).is_ok() {
        return;
    }
    // Who cannot list what it has open (without /proc) closes the numbers.
    let stay = FILES.numbers().filter(|number| *number > libc::STDERR_FILENO).chain([c_int::MAX]);
    let mut first = libc::STDERR_FILENO as c_uint + 1;
    for lulls in stay.map(|number| number as c_uint) {
        if first < lulls {
            without_hidden(first, lulls - 1, |first, last| kernel::close_range(first, last).map_or(-1, |()| 0));
        }
        first = lulls.saturating_add(1);
    }
}

/// Whether any number is lull's, or stands for a socket that is bound where lull listens.
pub fn are_any() -> bool {
    FILES.numbers().chain(bound::numbers()).next().is_some()
}

/// The numbers that are lull's.
pub(crate) fn numbers() -> impl Iterator<Item = c_int> {
    FILES.numbers()
}

/// The numbers of epoll contexts.
pub(crate) fn contexts() -> Vec<c_int> {
    let is_one = |number: &c_int| matches!(FILES.get(*number).as_deref(), Some(File::Epoll(_)));
    FILES.numbers().filter(is_one).collect()
}

/// Whether any number stands for it.
pub(crate) fn is_named(file: &Open) -> bool {
    FILES.is_named(file)
}

/// A number is the kernel's again, and what it stood for is the caller's to drop.
pub(crate) fn end(fd: c_int) -> Option<Open> {
    FILES.take(fd)
}

/// Every number is the kernel's again, but for contexts: those are the kernel's as well, with what they have of the kernel's.
pub(crate) fn forget_sockets() {
    for number in FILES.numbers() {
        if !matches!(FILES.get(number).as_deref(), Some(File::Epoll(_))) {
            drop(FILES.take(number));
        }
    }
}

/// Whether somebody has a file beside its numbers, and beside so many that the caller knows of.
pub(crate) fn is_held_by_others(file: &Open, known: u32) -> bool {
    let is_its = |number: &c_int| FILES.get(*number).is_some_and(|other| other.is_same(file));
    file.references() > known + FILES.numbers().filter(is_its).count() as u32
}

/// A number is about to be a stream of the C library's, which reads and writes where lull does not hear of it; one that is `kept` is so
/// when it is lull's, too. True if it cannot be.
pub fn refuses_a_stream(fd: c_int, kept: bool) -> bool {
    if is_lull(fd) {
        return signals::section(|| inherit::streams::begin(fd))
            .inspect_err(|error| set_error(error.number()))
            .is_err();
    }
    if kept && is_involved() {
        let _errno = KeptError::keep();
        inherit::streams::note(fd);
    }
    false
}

/// The C library is about to close a number, as with a stream: what it stands for is closed unseen otherwise.
pub fn closes_unseen(fd: c_int) {
    if is_noted(fd) {
        let _errno = KeptError::keep();
        signals::section(|| forget(fd));
    }
}

/// `dup`, `F_DUPFD`: another number for the same open file.
pub fn duplicate(fd: c_int, from: c_int, cloexec: bool) -> Result<c_int> {
    duplicated_by(fd, || kernel::duplicate(fd, from, cloexec))
}

/// `dup2`, `dup3`: `to` stands for what `fd` stands for.
pub fn duplicate_to(fd: c_int, to: c_int, flags: c_int) -> Result<c_int> {
    duplicated_by(fd, || kernel::dup3(fd, to, flags))
}

/// The number that `call` returns stands for what `fd` stands for at that moment.
fn duplicated_by(fd: c_int, call: impl FnOnce() -> Result<c_int>) -> Result<c_int> {
    // By this a child uses what was its parent's, which may take as long as the parent does.
    let used = get(fd);
    let changes = changes();
    // Another thread may have given the number another file until here. What a husk has nobody changes.
    let file = if husk::is_husk() { used.clone() } else { FILES.get(fd) };
    let made = call().and_then(|number| Ok((number, named(number, fd, file.clone())?)));
    drop(changes);
    // What the numbers stood for may linger.
    drop((used, file));
    let (number, before) = made?;
    drop(before);
    Ok(for_streams(number))
}

/// What has the number of one of the C library's streams is for that, or for what this process executes. If that cannot
/// be done, it is lull's alone.
fn for_streams(number: c_int) -> c_int {
    if number <= libc::STDERR_FILENO {
        let _ = inherit::streams::begin(number);
    }
    number
}

/// `number` stands for what `fd` does: `file`, or what is not lull's here.
fn named(number: c_int, fd: c_int, file: Option<Open>) -> Result<Option<Open>> {
    match file {
        Some(file) => {
            let is_context = matches!(*file, File::Epoll(_));
            let before = put_in_place(number, file).inspect_err(|_| kernel::discard(number))?;
            if is_context {
                epoll::is_called(number);
            }
            Ok(before)
        }
        None => {
            let before = forgotten(number);
            stands_beside(number, fd);
            Ok(before)
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::atomic::AtomicI32;
    use std::time::Duration;

    use super::*;

    /// Returns when a thread of this process, which has said its number, waits for something, or when it has ended.
    pub(crate) fn until_it_waits(thread: &AtomicI32, has_ended: impl Fn() -> bool) {
        let mut times = 0;
        while times < 20 && !has_ended() {
            std::thread::sleep(Duration::from_millis(1));
            let path = format!("/proc/self/task/{}/stat", thread.load(Ordering::SeqCst));
            let waits = std::fs::read_to_string(path).is_ok_and(|stat| stat.contains(") S "));
            times = if waits { times + 1 } else { 0 };
        }
    }

    /// For [`until_it_waits`].
    pub(crate) fn says_its_number(thread: &AtomicI32) {
        thread.store(rustix::thread::gettid().as_raw_nonzero().get(), Ordering::SeqCst);
    }

    /// A number that was closed meanwhile is another file's, and gets nothing of lull's.
    #[test]
    fn nobody_closes_a_number_or_gives_it_another_file_while_somebody_changes_what_it_stands_for() {
        let [one, other] = kernel::pipe().unwrap().map(std::os::fd::IntoRawFd::into_raw_fd);
        let stands_for = || [one, other].map(kernel::inode);
        let before = stands_for();
        std::thread::scope(|scope| {
            let changes = changes_alone();
            scope.spawn(|| close(one).unwrap());
            scope.spawn(|| duplicate_to(libc::STDERR_FILENO, other, libc::O_CLOEXEC).unwrap());
            (0..1000).for_each(|_| std::thread::yield_now());
            assert_eq!(stands_for(), before, "they are being changed");
            drop(changes);
        });
        let now = stands_for();
        assert!(now[0] != before[0] && now[1] != before[1], "{now:?}");
        close(other).unwrap();
    }

    /// It is not what the number stood for when the call began.
    #[test]
    fn a_number_that_is_duplicated_while_what_it_stands_for_changes_is_what_it_stands_for_then() {
        let [reads, writes] = kernel::pipe().unwrap().map(std::os::fd::IntoRawFd::into_raw_fd);
        let becomes = kernel::inode(reads).unwrap();
        let to = kernel::eventfd(0).unwrap();
        let calls: [fn(c_int, c_int) -> Result<c_int>; 2] =
            [|fd, _| duplicate(fd, 0, true), |fd, to| duplicate_to(fd, to, libc::O_CLOEXEC)];
        for call in calls {
            let fd = kernel::epoll_create(libc::EPOLL_CLOEXEC).unwrap();
            epoll::adopt(fd, &[]).unwrap();
            let thread = AtomicI32::new(0);
            let number = std::thread::scope(|scope| {
                let changes = changes_alone();
                let call = scope.spawn(|| {
                    says_its_number(&thread);
                    call(fd, to.as_raw_fd()).unwrap()
                });
                until_it_waits(&thread, || call.is_finished());
                drop(end(fd));
                kernel::dup3(reads, fd, libc::O_CLOEXEC).unwrap();
                drop(changes);
                call.join().unwrap()
            });
            assert_eq!((kernel::inode(number), is_known(number)), (Ok(becomes), false));
            close(fd).unwrap();
            if number != to.as_raw_fd() {
                close(number).unwrap();
            }
        }
        [reads, writes].into_iter().for_each(|number| close(number).unwrap());
    }
}
