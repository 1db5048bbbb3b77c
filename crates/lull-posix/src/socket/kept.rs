//! Listeners that stay open over `execve`, and in what a child executes.
//!
//! The number, its socket with name and options, and who else has it are the kernel's to keep. That the socket listens in lull is noted
//! in the memory that the program's processes share (`flows/kept.rs`), and so is one that is only bound (`bound.rs`), where the
//! library of the executed program finds it. To that
//! program it is as if it had been forked: of the processes that ask for its connections the last has the new ones, on a queue of its
//! own or by the pool. One that executes itself in its own place takes all free queues again.

use std::sync::atomic::Ordering;

use libc::c_int;
use lull_fd::say;

use super::listen::{Worlds, awaits, bound_stream, worlds};
use super::options::refused;
use super::pool::Pool;
use super::{Listener, bound};
use crate::files::{self, File, Open};
use crate::flows::{End, Kept, NOT_LISTENING};
use crate::{Errno, Result, elsewhere, epoll, flows, husk, kernel};

/// Called when a program is about to be executed. The listeners that it has open by these numbers become known to it.
/// Returns whether there are any.
pub(crate) fn hand_on() -> bool {
    let mut any = false;
    for number in files::numbers() {
        // What its parent has is in the table of a child as well.
        let Some(file) = files::inherited(number) else { continue };
        if let File::Listener(listener) = &*file
            && listener.stays_open_as(number)
        {
            listener.hand_on(number);
            any = true;
        }
        if husk::is_husk() {
            // How many have it is for the parent to count.
            std::mem::forget(file);
        }
    }
    bound::hand_on() || any
}

/// Called when the library is loaded. Sockets that this process has open and that listen in lull do so here from now
/// on.
pub(crate) fn adopt_kept() {
    for kept in flows::of_the_program().into_iter().flat_map(|flows| flows.kept()) {
        let is_known = files::is_known(kept.number) || bound::is_one(kept.number);
        if !is_known && kernel::inode(kept.number) == Ok(kept.inode) {
            // Otherwise the socket is the kernel's.
            let _ = adopt(&kept);
        }
    }
}

/// Makes a listener of this process of what was kept of it.
pub(crate) fn adopt(kept: &Kept) -> Result<()> {
    adopt_with(kept, || kept.pool.and_then(Pool::handed_on))
}

/// As [`adopt`], with another pool.
pub(crate) fn adopt_with(kept: &Kept, pool: impl FnOnce() -> Option<Pool>) -> Result<()> {
    const NONE: Errno = Errno::new(libc::EINVAL);
    if kept.backlog == NOT_LISTENING {
        bound::adopt(kept, pool());
        return Ok(());
    }
    let is_it = |file: &Open| matches!(&**file, File::Listener(listener) if listener.inode == kept.inode);
    if let Some(open) = files::numbers().filter_map(files::get).find(is_it) {
        return epoll::becomes_lulls(kept.number, || files::put_open(kept.number, open));
    }
    let bound = bound_stream(kept.number).ok_or(NONE)?;
    let worlds = worlds(kept.number, bound).ok_or(NONE)?;
    let listens = kernel::int_option(kept.number, libc::SOL_SOCKET, libc::SO_ACCEPTCONN) == Ok(1);
    let is_placeholder = match worlds {
        Worlds::Both => listens,
        Worlds::Lulls => !listens && !kernel::is_in_use(kept.number),
    };
    if !is_placeholder || refused::is_set(kept.number) {
        return Err(NONE);
    }
    let listener = Listener::new(kept.number, bound, worlds, kept.backlog as usize, kept.called_in, pool())?;
    epoll::becomes_lulls(kept.number, || files::put(kept.number, File::Listener(listener)))?;
    // If the engine runs, connections that come before somebody asks for them are not refused.
    elsewhere::others().inspect(|others| awaits(others, kept.number));
    Ok(())
}

/// How a listener was before a program was to be executed.
pub(crate) struct Before {
    inode: u32,
    /// Connections were asked for here, or for others.
    is_real: bool,
    /// Other processes have the listener as well.
    is_shared: bool,
}

/// The state of the listeners of this process.
pub(crate) fn listeners_before() -> Vec<Before> {
    let of = |file: Open| match &*file {
        File::Listener(listener) => Some(Before {
            inode: listener.inode,
            is_real: listener.if_real().is_some(),
            is_shared: listener.shared().is_some(),
        }),
        _ => None,
    };
    files::numbers().filter_map(files::get).filter_map(of).collect()
}

/// Called when no program was executed after all. Listeners that were closed for it are this process's again, and give
/// others the connections that they ask for.
pub(crate) fn listen_as_before(all: &[Before]) {
    for file in files::numbers().filter_map(files::get) {
        let File::Listener(listener) = &*file else { continue };
        let Some(before) = all.iter().find(|before| before.inode == listener.inode) else { continue };
        if before.is_shared {
            listener.is_inherited_by_a_child();
        }
        match before.is_real.then(|| listener.real()) {
            // Connections that were left to whoever listens next may still be there.
            Some(Ok(_)) => listener.asked_for(),
            Some(Err(error)) => say::line(format_args!(
                "process {} no longer listens at {}, since it failed to execute a program: {error}",
                std::process::id(),
                listener.bound
            )),
            None => {}
        }
    }
}

impl Listener {
    /// The listener was not closed, since others have it, and no program was executed.
    pub(crate) fn stays_for_failed_exec(&self) {
        self.handed_on.store(false, Ordering::Relaxed);
    }

    /// What is kept of the listener for this process, which goes on without the process that it belonged to.
    pub(crate) fn kept(&self, number: c_int) -> Option<Kept> {
        let pool = self.pool.as_ref().and_then(Pool::hand_on);
        let (inode, called_in, noted_in) = (self.inode, self.called_in, std::process::id());
        (!self.stopped.load(Ordering::Relaxed)).then(|| Kept {
            inode,
            number,
            called_in,
            noted_in,
            backlog: self.backlog(),
            pool,
        })
    }

    pub(crate) fn backlog(&self) -> u32 {
        self.backlog.load(Ordering::Relaxed) as u32
    }

    /// Notes the listener under a number, with the pool that the executed program has open.
    pub(super) fn keep(&self, number: c_int, pool: Option<[End; 2]>) {
        let backlog = self.backlog();
        if let Some(flows) = flows::of_the_program() {
            let noted_in = std::process::id();
            flows.keep(&Kept { inode: self.inode, number, called_in: self.called_in, noted_in, backlog, pool });
        }
    }

    /// Whether a program that is executed has it open under this number: it was not shut down, nor closed unseen.
    fn stays_open_as(&self, number: c_int) -> bool {
        let cloexec = kernel::fcntl(number, libc::F_GETFD, 0).map(|flags| flags & libc::FD_CLOEXEC);
        cloexec == Ok(0) && self.is_behind(number) && !self.stopped.load(Ordering::Relaxed)
    }

    /// Whether a number is its placeholder's.
    pub(crate) fn is_behind(&self, number: c_int) -> bool {
        kernel::inode(number) == Ok(self.inode)
    }

    fn hand_on(&self, number: c_int) {
        self.keep(number, self.pool.as_ref().and_then(Pool::hand_on));
    }

    /// Says that it is closed here but not for good, because the program that is executed in this process's place has
    /// it open.
    pub(crate) fn is_closed_for_exec(&self) {
        self.handed_on.store(true, Ordering::Relaxed);
    }
}

/// Called when no program was executed after all. Listeners that were closed for it listen again.
pub(crate) fn keep_here() {
    for file in files::numbers().filter_map(files::inherited) {
        if let File::Listener(Listener { pool: Some(pool), .. }) = &*file {
            pool.keep_here();
        }
        if husk::is_husk() {
            std::mem::forget(file);
        }
    }
    bound::keep_here();
    if !husk::is_husk() {
        adopt_kept();
    }
}
