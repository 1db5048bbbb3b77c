//! Epoll contexts: the ready list, and who waits.

use std::collections::VecDeque;

use lull_core::EpollBusy;

use crate::engine::id::{ConnId, ContextId, CpuId, QueueId, ThreadId};
use crate::engine::recorder::Whom;
use crate::engine::sim::{Sim, cx};
use crate::engine::transition::Transition;

/// What has events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Item {
    /// A connection, or a socket of another kind that has one.
    Connection(ConnId),
    /// A source that is no socket.
    Other,
}

/// One context.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) ep: EpollBusy,
    /// Those that have events.
    pub(crate) ready: VecDeque<Item>,
    /// Items that were returned and are looked at once more, because the context is level-triggered.
    pub(crate) stale: u32,
    /// Threads asleep in it, the first to be woken last.
    pub(crate) waiters: Vec<ThreadId>,
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
    pub(crate) fn make_ready(&mut self, context: ContextId, item: Item, cpu: CpuId) {
        self.contexts[context].ready.push_back(item);
        let Item::Connection(conn) = item else {
            self.note(cpu, Whom::Context(context), Transition::OtherEvent);
            return self.wake_waiter(context, cpu);
        };
        let queue = self.clients.connections[conn].queue;
        let id = self.nic.queues[queue].napi.id();
        let before = self.contexts[context].ep.napi_id();
        let left_behind = self.contexts[context].ep.note_napi(id);
        if before != self.contexts[context].ep.napi_id() {
            let changed = if before == 0 { Transition::EpollIdNoted } else { Transition::EpollIdChanged };
            self.note(cpu, Whom::Context(context), changed);
        }
        if let Some(left_behind) = left_behind {
            self.note(cpu, Whom::Context(context), Transition::EpollLeftBehind);
            self.resume(left_behind, cpu);
        }
        self.wake_waiter(context, cpu);
    }

    fn wake_waiter(&mut self, context: ContextId, cpu: CpuId) {
        if let Some(thread) = self.contexts[context].waiters.pop() {
            self.wake(thread, cpu);
        }
    }

    /// The queue whose NAPI has this id (`napi_by_id`).
    pub(crate) fn lookup(&self, id: u32) -> Option<QueueId> {
        self.nic.queues.rows().find(|(_, queue)| queue.napi.id() == id && id != 0).map(|(queue, _)| queue)
    }

    /// `napi_suspend_irqs`.
    pub(crate) fn suspend(&mut self, id: u32, cpu: CpuId) {
        if let Some(queue) = self.lookup(id) {
            self.tally.transitions += 1;
            match self.nic.queues[queue].napi.suspend(&cx(self.now_ns, cpu, &self.sink)) {
                Some(_) => self.sync_timer(queue),
                None => self.note(cpu, Whom::Queue(queue), Transition::SuspendOff),
            }
        }
    }

    /// `napi_resume_irqs`: the caller's next bottom-half enable runs the poll.
    pub(crate) fn resume(&mut self, id: u32, cpu: CpuId) {
        if let Some(queue) = self.lookup(id) {
            self.tally.transitions += 1;
            let owner = self.nic.queues[queue].napi.resume(&cx(self.now_ns, cpu, &self.sink));
            if let Some(owner) = owner {
                self.route(owner, cpu);
            }
        }
    }
}
