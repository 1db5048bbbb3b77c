//! A thread of the program's, whose calls may block: whoever gives it one sees whether it does.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};

use libc::c_int;

use super::call::Outcome;
use super::words;

type Job = Box<dyn FnOnce() -> Outcome + Send>;

/// The thread, and what it is at.
pub struct Thread {
    jobs: Sender<Job>,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    tid: AtomicI32,
    pthread: AtomicU64,
    begun: AtomicBool,
    done: AtomicBool,
    outcome: Mutex<Option<Outcome>>,
    handled: AtomicU32,
}

const INTERRUPTS: c_int = libc::SIGUSR1;
const RESTARTS: c_int = libc::SIGUSR2;

thread_local! {
    /// What a handler counts by in this thread.
    static HANDLED: Cell<*const AtomicU32> = const { Cell::new(std::ptr::null()) };
}

extern "C" fn handler(_signal: c_int) {
    let handled = HANDLED.get();
    // SAFETY: it is null, or the thread's own for as long as that lives.
    if let Some(handled) = unsafe { handled.as_ref() } {
        handled.fetch_add(1, Ordering::SeqCst);
    }
}

/// From now on there are handlers for both signals.
pub fn handle_signals() {
    for (signal, flags) in [(INTERRUPTS, 0), (RESTARTS, libc::SA_RESTART)] {
        // SAFETY: plain data, for which zeroes are a value.
        let mut asked: libc::sigaction = unsafe { std::mem::zeroed() };
        (asked.sa_sigaction, asked.sa_flags) = (handler as extern "C" fn(c_int) as usize, flags);
        lull_posix::signals::sigaction(signal, Some(&asked), libc::sigaction).unwrap();
    }
}

/// The C library blocks all signals in a thread that forks, for a moment. A child that ends within it leaves SIGCHLD queued, and
/// whichever thread the kernel chooses to hear of it returns from its call.
fn without_signals_of_children() {
    // SAFETY: a set of the C library's, filled in by it.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, libc::SIGCHLD);
        assert_eq!(libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()), 0);
    }
}

impl Thread {
    pub fn start() -> Thread {
        let (jobs, todo) = channel::<Job>();
        let shared = Arc::new(Shared::default());
        let own = shared.clone();
        std::thread::spawn(move || {
            without_signals_of_children();
            // SAFETY: always there.
            let (tid, pthread) = unsafe { (libc::gettid(), libc::pthread_self()) };
            own.tid.store(tid, Ordering::SeqCst);
            own.pthread.store(pthread, Ordering::SeqCst);
            HANDLED.set(&raw const own.handled);
            for job in todo {
                own.begun.store(true, Ordering::SeqCst);
                let outcome = job();
                *own.outcome.lock().unwrap() = Some(outcome);
                own.done.store(true, Ordering::SeqCst);
            }
        });
        Thread { jobs, shared }
    }

    pub fn give(&self, job: Job) {
        self.shared.begun.store(false, Ordering::SeqCst);
        self.shared.done.store(false, Ordering::SeqCst);
        self.jobs.send(job).expect("it lives as long as this");
    }

    pub fn is_done(&self) -> bool {
        self.shared.done.load(Ordering::SeqCst)
    }

    /// Whether it sleeps inside the call that it was given.
    pub fn is_asleep_inside(&self) -> bool {
        if !self.shared.begun.load(Ordering::SeqCst) || self.is_done() {
            return false;
        }
        let path = format!("/proc/self/task/{}/stat", self.shared.tid.load(Ordering::SeqCst));
        let stat = std::fs::read_to_string(path).unwrap_or_default();
        let sleeps = stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('S'));
        // If it had been asleep after the call, it would be done.
        sleeps && !self.is_done()
    }

    /// What the call returned, once it is done.
    pub fn take(&self) -> Outcome {
        self.shared.outcome.lock().unwrap().take().expect("it is done")
    }

    /// What the call returned, in words, if it is done.
    pub fn returned(&self) -> Option<String> {
        self.shared.outcome.lock().unwrap().as_ref().filter(|_| self.is_done()).map(words::brief)
    }

    /// Sends the thread a signal whose handler interrupts calls, or restarts them.
    pub fn signal(&self, restarts: bool) {
        let pthread = self.shared.pthread.load(Ordering::SeqCst);
        // SAFETY: the thread lives for as long as this.
        unsafe { libc::pthread_kill(pthread, if restarts { RESTARTS } else { INTERRUPTS }) };
    }

    /// How many signals it has handled.
    pub fn handled(&self) -> u32 {
        self.shared.handled.load(Ordering::SeqCst)
    }
}
