//! The program executes another one in its place.
//!
//! Linux keeps what has no FD_CLOEXEC open over `execve`. A connection of lull's is memory of this process, and cannot be kept. So
//! before the call what would be closed anyway is closed, as by `close`: its peers get what was written, and the end of the
//! stream. What would have stayed open is reset, and named on standard error; its number stands for a socket without a peer. The
//! queues of the NIC are given back, for the executed program to take.
//!
//! In a child the connections are its parent's. One that it has not used, and that stays open, is left to the executed program
//! (`inherit/left.rs`).
//!
//! A listener does stay open: the executed program finds it (`socket/kept.rs`), also one that a child executes. It is given the
//! library for that where its environment has none (`environment`), and so is one that goes on in this one's place and makes its
//! listeners anew.
//!
//! Nothing is done for a call that is going to fail, as far as that can be known beforehand: most programs that search
//! along PATH try names that are not there.

pub(crate) mod environment;

use std::ffi::{CStr, CString, OsString, c_char};
use std::os::unix::ffi::OsStringExt;
use std::time::{Duration, Instant};

use libc::c_int;
use lull_fd::say;

use crate::files::{self, File, Open};
use crate::inherit::{self, left::Left, streams};
use crate::{claimed, engine, husk, kernel, leave, socket};

/// How long what was written may take to be acknowledged. Linux would go on for as long as TCP tries; here nobody is left then.
const DELIVERY: Duration = Duration::from_secs(1);
/// The stack tells nobody of a last acknowledgement.
const LOOKS_APART: Duration = Duration::from_millis(1);
/// The most sockets that are named; if there are more, their number is told.
const NAMED_MAX: usize = 8;

/// What was done for a call that is to execute a program, for the case that the call returns, and so has failed.
#[must_use = "a call that fails has to be told of"]
pub struct Executing {
    /// How much was closed, and for what, where the process has an engine.
    closed: Option<(usize, String)>,
    /// The program has a listener of lull's open.
    listens: bool,
    /// The connections of its parent that a child leaves to the executed program.
    left: Left,
    /// The listeners that children of this process, or its other threads, have as well: they were not closed.
    held: Vec<(c_int, Open)>,
    /// How the listeners were that the program has open.
    before: Vec<socket::Before>,
    environment: Option<environment::Made>,
}

/// A program is about to be executed, found by its path as seen from the directory `at`. Nothing is done for one that cannot be. In
/// the child of `vfork` or of `fork` nothing is closed: what it has here is its parent's.
pub fn begins(at: c_int, path: &CStr) -> Option<Executing> {
    let has_engine = engine::running().is_some() && husk::is_engines_process();
    if !has_engine && !files::are_any() || !kernel::is_executable(at, path) {
        return None;
    }
    let listens = socket::hand_on();
    let left = inherit::left::leave_to_what_is_executed();
    let (mut held, mut before) = (Vec::new(), Vec::new());
    let closed = has_engine.then(|| {
        let program = match path.is_empty() {
            true => format!("the program behind descriptor {at}"),
            false => path.to_string_lossy().into_owned(),
        };
        lull_net::about_to_wait();
        let pools = socket::pool::others_wait_at();
        before = socket::listeners_before();
        socket::pool::ends_for_exec(DELIVERY);
        let closed;
        (closed, held) = close_all(&program);
        leave::to_who_listens(DELIVERY);
        claimed::give_back();
        pools.into_iter().for_each(|pool| pool.have_them_look());
        (closed, program)
    });
    let is_any = listens || has_engine || !left.is_empty();
    is_any.then_some(Executing { closed, listens, left, held, before, environment: None })
}

/// As [`begins`], for a name that is searched along PATH unless it has a slash (`execvp`).
pub fn begins_along_path(name: &CStr) -> Option<Executing> {
    (files::are_any() || engine::running().is_some()).then_some(())?;
    if name.to_bytes().contains(&b'/') {
        return begins(libc::AT_FDCWD, name);
    }
    // `_CS_PATH` is what the C library takes without PATH.
    let path = std::env::var_os("PATH").unwrap_or_else(|| OsString::from("/bin:/usr/bin")).into_vec();
    let found = path.split(|byte| *byte == b':').find_map(|directory| {
        let directory = if directory.is_empty() { b"." } else { directory };
        let candidate = CString::new([directory, b"/", name.to_bytes()].concat()).ok()?;
        kernel::is_executable(libc::AT_FDCWD, &candidate).then_some(candidate)
    })?;
    begins(libc::AT_FDCWD, &found)
}

impl Executing {
    /// The environment for the call: what the program has given, with what the executed one takes to have its listeners, or to make
    /// them anew in the place of a program that had lull's sockets.
    pub fn environment(&mut self, given: *const *const c_char) -> *const *const c_char {
        if self.listens || self.closed.is_some() {
            self.environment = environment::Made::of(given);
        }
        self.environment.as_ref().map_or(given, environment::Made::as_ptr)
    }

    /// The call has failed: this process goes on, without what was closed. What it serves to others, its children among them, it serves
    /// again.
    pub fn failed(self) {
        if self.closed.is_some() {
            claimed::take_again();
        }
        for (number, file) in self.held {
            if let File::Listener(listener) = &*file {
                listener.stays_for_failed_exec();
            }
            // One whose number another thread has closed meanwhile is its children's alone.
            let is_its = matches!(&*file, File::Listener(listener) if listener.is_behind(number));
            let _ = (is_its && !files::is_known(number)).then(|| files::put_open(number, file));
        }
        if self.listens {
            socket::keep_here();
        }
        socket::listen_as_before(&self.before);
        if self.closed.is_some() {
            // This comes after it, because what the program has again need not be made again for others alone.
            socket::pool::goes_on_after_exec();
        }
        self.left.are_used();
        if let Some((closed, program)) = self.closed.filter(|(closed, _)| *closed > 0) {
            say::line(format_args!(
                "{program} could not be executed after {closed} of lull's sockets were closed for it"
            ));
        }
    }
}

/// What is lull's, each once, with one of its numbers and whether one stays open.
fn all_open() -> Vec<(Open, c_int, bool)> {
    let mut files: Vec<(Open, c_int, bool)> = Vec::new();
    for number in files::numbers() {
        let Some(file) = files::get(number) else { continue };
        let stays = kernel::fcntl(number, libc::F_GETFD, 0).is_ok_and(|flags| flags & libc::FD_CLOEXEC == 0);
        match files.iter_mut().find(|(known, ..)| known.is_same(&file)) {
            Some((.., known)) => *known |= stays,
            None => files.push((file, number, stays)),
        }
    }
    files.retain(|(file, ..)| !matches!(**file, File::Epoll(_)));
    files
}

/// Closes lull's half of everything. Returns how much there was that does not listen on, and the listeners that others
/// have open as well.
fn close_all(program: &str) -> (usize, Vec<(c_int, Open)>) {
    let mut files = streams::end(DELIVERY);
    files.extend(all_open());
    let stays_open = |file: &File| matches!(file, File::Listener(_));
    let mut lost = 0;
    for (file, number, stays) in &files {
        match &**file {
            File::Listener(listener) if *stays => listener.is_closed_for_exec(),
            // One that cannot be is over already.
            File::Stream(stream) if *stays => drop(stream.stream.set_reset_on_close(true)),
            File::Stream(stream) => drop(stream.stream.shutdown(lull_net::Shutdown::Write)),
            _ => {}
        }
        if *stays && !stays_open(file) {
            lost += 1;
            if lost <= NAMED_MAX {
                say_lost(program, file, *number);
            }
        }
    }
    if lost > NAMED_MAX {
        say::line(format_args!("{} more sockets of lull's end with the exec of {program}", lost - NAMED_MAX));
    }
    deliver(&files);
    let mut held = Vec::new();
    for number in files::numbers() {
        // What is among those that are `files` is held by that, too.
        if let Some(file) = files::get(number).filter(|file| stays_open(file) && files::is_held_by_others(file, 2)) {
            held.push((number, file));
        }
    }
    files::forget_sockets();
    let closed = files.iter().filter(|(file, number, stays)| {
        let is_held = held.iter().any(|(held, _)| held == number);
        !(*stays && stays_open(file) || is_held)
    });
    (closed.count(), held)
}

fn say_lost(program: &str, file: &File, number: c_int) {
    match file {
        File::Stream(stream) => match (stream.stream.local_addr(), stream.stream.peer_addr()) {
            (Ok(local), Ok(peer)) => say::line(format_args!(
                "descriptor {number}, the connection {local} - {peer}, cannot stay open over the exec of {program}: it is reset"
            )),
            _ => say::line(format_args!(
                "descriptor {number}, a socket of lull's, cannot stay open over the exec of {program}: it is closed"
            )),
        },
        _ => say::line(format_args!(
            "descriptor {number}, a datagram socket of lull's, cannot stay lull's over the exec of {program}: it is closed"
        )),
    }
}

/// Waits until the peers have what was written to the connections that are closed.
fn deliver(files: &[(Open, c_int, bool)]) {
    let began = Instant::now();
    let is_under_way = |(file, _, stays): &(Open, c_int, bool)| match &**file {
        // Data that nobody read makes closing a reset (`tcp_close`), which waits for nothing.
        File::Stream(stream) if !stays && stream.stream.unread().is_ok_and(|unread| unread == 0) => {
            stream.stream.unacknowledged().is_ok_and(|bytes| bytes != 0)
        }
        _ => false,
    };
    while files.iter().any(is_under_way) && began.elapsed() < DELIVERY {
        std::thread::sleep(LOOKS_APART);
    }
}
