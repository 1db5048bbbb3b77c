//! What somebody in control does to an instance, apart from its delivery: settings, threading on and off (§10), disable and
//! enable (§11).

use crate::event::{Cx, EventKind};
use crate::napi::Napi;
use crate::owner::Owner;
use crate::settings::{NapiSettings, Threaded};
use crate::state::{DISABLE, DisableClaim, NPSVC, SCHED, SCHED_THREADED, ThreadedOff};

impl Napi {
    /// The settings in force.
    pub fn settings(&self) -> NapiSettings {
        self.settings.get()
    }

    /// Puts settings in force, from the next decision on. They are checked by [`NapiSettings::check`] and kept by
    /// [`crate::DeviceConfig`]; the executor starts the thread of a threaded instance before this call, and stops it
    /// after.
    pub fn set(&self, settings: &NapiSettings) {
        self.settings.set(settings);
    }

    /// Turns threading on (the thread exists and waits) or changes its kind. The round in progress stays where it is.
    pub fn threaded_on(&self, busy_poll: bool) {
        self.state.set_threaded(true, busy_poll);
    }

    /// Tries to turn threading off: refused while somebody other than the thread owns the instance. After success the
    /// caller waits until [`Napi::thread_has_round`] is false, then stops the thread. Whoever gave the thread its last
    /// round may still be about to wake it ([`crate::Route::Thread`]), so the thing by which it is woken has to outlive
    /// the thread.
    pub fn threaded_off(&self) -> ThreadedOff {
        self.state.threaded_off()
    }

    /// Whether the NAPI thread owns a round (or is about to).
    pub fn thread_has_round(&self) -> bool {
        self.state.load().has(SCHED_THREADED)
    }

    /// First step of `napi_disable`: schedules are refused from now on. Then call [`Napi::disable_claim`], sleeping 20 to
    /// 200 us between attempts.
    pub fn disable_begin(&self) {
        self.state.disable_begin();
    }

    /// Claims the instance if it is free. From SUSPENDED or DEFERRED this succeeds at once.
    pub fn disable_claim(&self) -> DisableClaim {
        self.state.disable_claim()
    }

    /// Last step: the timer is cancelled and the id withdrawn. The caller masks the interrupt.
    pub fn disable_end(&self, cx: &Cx<'_>) {
        self.timer.cancel();
        self.set_id(0);
        self.state.disable_end();
        cx.emit(self.index(), EventKind::Disable);
    }

    /// `napi_enable`: takes `id`, puts `settings` (if given) in force, and lets the instance go. The caller unmasks the
    /// interrupt. Only for a disabled instance.
    pub fn enable(&self, id: u32, settings: Option<&NapiSettings>) {
        if let Some(settings) = settings {
            self.set(settings);
        }
        self.set_credits(0);
        self.may_defer_again();
        self.set_id(id);
        let threaded = self.settings().threaded;
        self.state.enable(threaded != Threaded::Off, threaded == Threaded::BusyPoll);
    }

    /// Returns the ownership that a panic destroyed with its [`Owner`], so that the executor can let the instance go.
    /// Only an executor that knows of no other owner may call this: [`Napi::disable_begin`] came before, and keeps new
    /// owners away.
    pub fn owner_lost_in_a_panic(&self) -> Option<Owner> {
        let state = self.state.load();
        assert!(state.has(DISABLE), "an ownership can only be replaced while nobody can take the instance");
        (state.has(SCHED) && !state.has(NPSVC)).then(|| Owner::new(self.index()))
    }
}
