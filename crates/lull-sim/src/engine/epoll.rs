//! Epoll contexts: the ready list, and who waits.

use std::collections::VecDeque;

use lull_core::EpollBusy;

use crate::engine::recorder::Whom;
use crate::engine::sim::{Sim, cx};
use crate::engine::transition::Transition;

/// A ready event of a source that is no socket.
pub(crate) const OTHER_EVENT: u32 = u32::MAX;

/// One context.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) ep: EpollBusy,
    /// Connections (or [`OTHER_EVENT`]) with events.
    pub(crate) ready: VecDeque<u32>,
    /// Items that were returned and are looked at once more, because the context is level-triggered.
    pub(crate) stale: u32,
    /// Threads asleep in it, the first to be woken last.
    pub(crate) waiters: Vec<u32>,
    /// Threads that are inside of `epoll_wait`.
    pub(crate) inside: u32,
}

impl Context {
    pub(crate) fn new(ep: EpollBusy) -> Context {
        Context { ep, ready: VecDeque::with_capacity(1_024), stale: 0, waiters: Vec::with_capacity(4), inside: 0 }
    }

    /// Whether the ready list is not empty, stale items included (`ep_events_available`).
    pub(crate) fn is_available(&self) -> bool {
        !self.ready.is_empty() || self.stale > 0
    }
}

impl Sim {
    /// `ep_poll_callback`: an event for `context`, by a poll on `cpu`.
    pub(crate) fn make_ready(&mut self, context: u32, item: u32, cpu: u16) {
        let index = context as usize;
        self.contexts[index].ready.push_back(item);
        if item == OTHER_EVENT {
            self.note(cpu, Whom::Context(context), Transition::OtherEvent);
        } else {
            let queue = self.connections[item as usize].queue;
            let id = self.queues[queue as usize].napi.id();
            let before = self.contexts[index].ep.napi_id();
            let left_behind = self.contexts[index].ep.note_napi(id);
            if before != self.contexts[index].ep.napi_id() {
                let changed = if before == 0 { Transition::EpollIdNoted } else { Transition::EpollIdChanged };
                self.note(cpu, Whom::Context(context), changed);
            }
            if let Some(left_behind) = left_behind {
                self.note(cpu, Whom::Context(context), Transition::EpollLeftBehind);
                self.resume(left_behind, cpu);
            }
        }
        if let Some(thread) = self.contexts[index].waiters.pop() {
            self.wake(thread, cpu);
        }
    }

    /// The queue whose NAPI has this id (`napi_by_id`).
    pub(crate) fn lookup(&self, id: u32) -> Option<u32> {
        self.queues.iter().position(|queue| queue.napi.id() == id && id != 0).map(|queue| queue as u32)
    }

    /// `napi_suspend_irqs`.
    pub(crate) fn suspend(&mut self, id: u32, cpu: u16) {
        if let Some(queue) = self.lookup(id) {
            self.transitions += 1;
            match self.queues[queue as usize].napi.suspend(&cx(self.now_ns, cpu, &self.sink)) {
                Some(_) => self.sync_timer(queue),
                None => self.note(cpu, Whom::Queue(queue), Transition::SuspendOff),
            }
        }
    }

    /// `napi_resume_irqs`: the caller's next bottom-half enable runs the poll.
    pub(crate) fn resume(&mut self, id: u32, cpu: u16) {
        if let Some(queue) = self.lookup(id) {
            self.transitions += 1;
            let owner = self.queues[queue as usize].napi.resume(&cx(self.now_ns, cpu, &self.sink));
            if let Some(owner) = owner {
                self.route(owner, cpu);
            }
        }
    }
}
