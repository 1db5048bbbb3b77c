//! The threads and contexts that wait for a socket of the shard, and how they are told of its changes.

use std::collections::HashMap;
use std::sync::Arc;

use crate::ready::{Level, WaitList};
use crate::shard::{Change, Ready, SocketId, SocketKind};
use crate::wakes::Wakes;

/// Memory for this many wait lists is always kept.
const LISTS_KEPT: usize = 256;

/// The wait lists of a shard's sockets.
#[derive(Default)]
pub(super) struct Watchers {
    tcp: Vec<Option<WaitList>>,
    others: HashMap<u64, WaitList>,
    /// Threads that were told something. They are woken once the shard's lock is given back.
    wakes: Wakes,
}

#[inline]
fn list<'a>(
    tcp: &'a mut [Option<WaitList>],
    others: &'a mut HashMap<u64, WaitList>,
    id: SocketId,
) -> Option<&'a mut WaitList> {
    match id.kind() {
        SocketKind::Tcp => tcp.get_mut(id.slot())?.as_mut(),
        _ => others.get_mut(&id.to_bits()),
    }
}

impl Watchers {
    #[inline]
    pub(super) fn list(&mut self, id: SocketId) -> Option<&mut WaitList> {
        list(&mut self.tcp, &mut self.others, id)
    }

    /// Makes the wait list of a socket on which `ready` is ready.
    pub(super) fn add(&mut self, id: SocketId, ready: Ready) -> Arc<Level> {
        let list = WaitList::new(ready);
        let level = list.level.clone();
        match id.kind() {
            SocketKind::Tcp => {
                let slot = id.slot();
                if self.tcp.len() <= slot {
                    self.tcp.resize_with(slot + 1, || None);
                }
                self.tcp[slot] = Some(list);
            }
            _ => {
                self.others.insert(id.to_bits(), list);
            }
        }
        level
    }

    pub(super) fn remove(&mut self, id: SocketId) -> Option<WaitList> {
        match id.kind() {
            SocketKind::Tcp => {
                let list = self.tcp.get_mut(id.slot())?.take();
                while self.tcp.pop_if(|list| list.is_none()).is_some() {}
                if self.tcp.capacity() > LISTS_KEPT && self.tcp.len() * 4 < self.tcp.capacity() {
                    self.tcp.shrink_to(self.tcp.len() * 2);
                }
                list
            }
            _ => self.others.remove(&id.to_bits()),
        }
    }

    /// The threads that have to be woken once the lock is given back; `None` if there are none, as in most calls.
    #[inline]
    pub(super) fn take_wakes(&mut self) -> Option<Wakes> {
        if self.wakes.is_empty() { None } else { Some(std::mem::take(&mut self.wakes)) }
    }

    /// Tells the watchers of the changes, and empties the list.
    pub(super) fn tell(&mut self, changes: &mut Vec<Change>, napi_id: u32) {
        if changes.len() > 1 {
            for change in &*changes {
                if let Some(list) = self.list(change.socket) {
                    list.warm();
                }
            }
        }
        let Watchers { tcp, others, wakes } = self;
        for change in changes.drain(..) {
            // A connection that nobody has accepted yet has no list.
            if let Some(list) = list(tcp, others, change.socket) {
                list.tell(change.ready, change.edges, napi_id, wakes);
            }
        }
    }

    /// Says that everything is ready, so that every call returns at once with the error.
    pub(super) fn tell_of_the_end(&mut self) {
        let ready = Ready::READABLE | Ready::WRITABLE | Ready::RDHUP | Ready::HUP | Ready::ERR;
        // They are woken under the lock, so that the code that runs after a panic need not do it.
        let mut wakes = std::mem::take(&mut self.wakes);
        let lists = self.tcp.iter_mut().flatten().chain(self.others.values_mut());
        lists.for_each(|list| list.tell(ready, ready, 0, &mut wakes));
    }
}
