//! What is done while the program runs: signals are passed on, and the program and the device are looked over.

use std::os::fd::AsFd;
use std::process::{Child, ExitStatus};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use lull_core::{EpollParams, Mode};
use lull_slo::WINDOW_NS_MIN;
use rustix::event::Timespec;

use super::background::{self, Background};
use super::in_force::InForce;
use super::one_napi::Queues;
use super::signals::{self, Signals};
use super::supervisor::Supervisor;
use super::way::{Run, Way};
use crate::attach::{self, Event, Follower, LOOK_EVERY, Role, Which};
use crate::control::Controlling;
use crate::error::{Error, Result};
use crate::options::Options;
use crate::plan::DeviceRequest;
use crate::session::Session;
use crate::watch::Again;

/// What is kept in force on the device.
pub(super) enum Kept {
    /// The mode that was asked for.
    Mode(Again),
    /// The timeouts that a controller chooses. What is lost is set again after its next window.
    Objective(Box<Controlling>),
}

/// The device's half, kept in force.
pub(super) struct OnDevice<'a> {
    pub(super) session: &'a mut Session,
    pub(super) kept: Kept,
    pub(super) request: &'a DeviceRequest,
    /// The number of its queues, if that follows the program's contexts.
    pub(super) queues: Option<Queues>,
}

impl OnDevice<'_> {
    fn look(&mut self, say: &mut dyn FnMut(&str)) -> Result<()> {
        let OnDevice { session, kept, request, .. } = self;
        match kept {
            Kept::Mode(again) => again.look(session, request, Duration::ZERO, say),
            Kept::Objective(controlling) => {
                let goes_on = AtomicBool::new(false);
                controlling.look(session, request, Duration::ZERO, &goes_on, say).map(|_| ())
            }
        }
    }
}

/// A process of the program with its children, which is looked over for as long as that works.
struct Followed {
    follower: Follower,
    looks: bool,
}

/// A program under way.
pub(super) struct Serving<'a> {
    run: &'a Run,
    options: &'a Options,
    way: &'a Way,
    signals: &'a Signals,
    device: Option<OnDevice<'a>>,
    supervisor: Option<&'a mut Supervisor>,
    followed: Vec<Followed>,
    in_force: Option<InForce>,
}

impl<'a> Serving<'a> {
    pub(super) fn of(
        run: &'a Run,
        options: &'a Options,
        way: &'a Way,
        signals: &'a Signals,
        device: Option<OnDevice<'a>>,
        supervisor: Option<&'a mut Supervisor>,
    ) -> Serving<'a> {
        Serving { run, options, way, signals, device, supervisor, followed: Vec::new(), in_force: None }
    }

    /// Serves until the program has ended, and what it has put into the background if there is something to undo.
    /// Returns the status of the process that was started.
    pub(super) fn until_the_end(&mut self, child: &mut Child, say: &mut dyn FnMut(&str)) -> Result<ExitStatus> {
        let (pid, pidfd) = signals::watched(child)?;
        self.follow(pid.as_raw_nonzero().get(), say);
        let status = loop {
            self.look(say);
            self.sleep([pidfd.as_fd()].into_iter())?;
            self.signals.pass_on(&pidfd, pid, say)?;
            if let Some(supervisor) = &self.supervisor {
                background::reap(&[supervisor.pid(), child.id()], &self.options.roots);
            }
            if let Some(status) = child.try_wait().map_err(signals::failed)? {
                break status;
            }
        };
        if self.supervisor.is_some() {
            self.background(say)?;
        }
        Ok(status)
    }

    /// Serves what is left of the program in the background, until it has ended or this process is told twice to end.
    fn background(&mut self, say: &mut dyn FnMut(&str)) -> Result<()> {
        let supervisor = self.supervisor.as_ref().map(|supervisor| supervisor.pid());
        let mut background = Background::default();
        loop {
            for pid in background.refresh(supervisor, &self.options.roots, &self.run.request.mode, say) {
                self.follow(pid, say);
            }
            if background.is_empty() {
                return Ok(());
            }
            self.look(say);
            self.sleep(background.pidfds())?;
            if background.pass_on(self.signals, say)? {
                return Ok(());
            }
        }
    }

    /// Follows a process. If it is attached to, everything is set by this. Under the preload library, this sets what
    /// the library misses.
    fn follow(&mut self, pid: i32, say: &mut dyn FnMut(&str)) {
        let mode = &self.run.request.mode;
        let of_epoll = mode.epoll != EpollParams::default();
        let which = match self.way {
            Way::Attach { .. } if of_epoll => Which::All,
            Way::Preload { .. } if of_epoll => Which::Unset,
            Way::Attach { .. } | Way::Preload { .. } if self.run.steer.is_some() => Which::None,
            _ => return,
        };
        if self.in_force.is_none() && which != Which::None {
            let device = self.device.as_ref().map(|it| it.session.device().name.clone());
            self.in_force = Some(InForce::new(mode.name(), device));
        }
        let request = attach::ProgramRequest { mode: Some(mode.clone()), params: mode.epoll };
        match Follower::open(pid, &request, which, Role::Run, self.options) {
            Ok(follower) => {
                // The supervisor is told before anything is set.
                if let (Some(supervisor), Way::Attach { .. }) = (&mut self.supervisor, self.way) {
                    supervisor.program(pid, follower.start());
                }
                let handed_down = self.followed.iter().flat_map(|it| it.follower.handed_down()).collect();
                let follower = follower.inheriting(handed_down);
                // The preload library steers each group from its start, but not by a program that only the kernel has.
                let is_steered = matches!(self.way, Way::Preload { .. })
                    && matches!(self.run.steer, Some(attach::Steer::Classic(_)));
                let follower = follower.with_steering(self.run.steer.clone(), is_steered);
                self.followed.push(Followed { follower, looks: true });
            }
            // The process may have ended already.
            Err(Error::NoProcess { .. }) => {}
            Err(error) => say(&not_followed(self.way, mode, &error)),
        }
    }

    /// Looks the program and the device over.
    fn look(&mut self, say: &mut dyn FnMut(&str)) {
        for it in self.followed.iter_mut().filter(|it| it.looks) {
            let events = match it.follower.look() {
                Ok(events) => events,
                Err(Error::NoProcess { .. }) => Vec::new(),
                Err(error) => {
                    // What it has set so far is given back at the end nevertheless.
                    say(&error.to_string());
                    it.looks = false;
                    continue;
                }
            };
            for event in &events {
                tell(event, self.way, say);
            }
            if let Some(OnDevice { session, queues: Some(queues), .. }) = &mut self.device {
                queues.look(&events, session, say);
            }
            let Some(in_force) = &mut self.in_force else { continue };
            if in_force.wants_napis(&events)
                && let Some(snapshot) = self.device.as_mut().and_then(|it| it.session.snapshot().ok())
            {
                in_force.device_has(snapshot.napis.iter().map(|napi| napi.id).collect());
            }
            if let Some(line) = in_force.look(&it.follower, &events, &self.options.roots) {
                say(&line);
            }
        }
        if let Some(it) = &mut self.device
            && let Err(gone) = it.look(say)
        {
            say(&gone.to_string());
            self.device = None;
        }
    }

    /// Sleeps until one of the processes has ended, a signal has come, or it is time to look again.
    fn sleep<'b>(&self, pidfds: impl Iterator<Item = std::os::fd::BorrowedFd<'b>>) -> Result<()> {
        let is_controlled = self.device.as_ref().is_some_and(|it| matches!(it.kept, Kept::Objective(_)));
        let every = if is_controlled { Duration::from_nanos(WINDOW_NS_MIN) } else { LOOK_EVERY };
        let timeout = Timespec { tv_sec: every.as_secs() as i64, tv_nsec: every.subsec_nanos().into() };
        let looks = !self.followed.is_empty() || self.device.is_some() || self.supervisor.is_some();
        self.signals.sleep(pidfds, looks.then_some(&timeout))
    }

    /// Gives back what was set in processes of the program, and says the last word on the mode.
    pub(super) fn end(self, say: &mut dyn FnMut(&str)) {
        for Followed { follower, .. } in self.followed {
            // What is left of the program are processes that it has put into the background.
            if let Err(error) = follower.restore() {
                say(&error.to_string());
            }
        }
        if let Some(line) = self.in_force.and_then(|in_force| in_force.at_end()) {
            say(&line);
        }
    }
}

fn not_followed(way: &Way, mode: &Mode, error: &Error) -> String {
    match way {
        Way::Attach { .. } => format!("{mode} is NOT in force in the program: {error}"),
        _ => format!("contexts that the preload library misses are not found: {error}"),
    }
}

fn tell(event: &Event, way: &Way, say: &mut dyn FnMut(&str)) {
    match (event, way) {
        // The library polls through contexts of its own, which soon are gone (`lull_fd::linux::Poller`).
        (Event::Kept { now, .. }, Way::Preload { .. }) if now.prefer_busy_poll && now.busy_poll_usecs == 0 => {}
        (Event::Set { .. }, Way::Preload { .. }) => {
            say(&format!("made past the preload library, set from outside: {event}"));
        }
        (Event::Set { .. } | Event::Steered(_) | Event::Kept { .. } | Event::Warning { .. }, _) => {
            say(&event.to_string());
        }
        (Event::Had { .. } | Event::Sockets(_) | Event::Child { .. } | Event::Ended { .. }, _) => {}
    }
}
