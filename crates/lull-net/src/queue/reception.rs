//! Reception: a poll takes frames off the ring, and passes them through GRO and up into the stack.

use std::hint::black_box;
use std::sync::atomic::Ordering;

use lull_core::GroFlush;
use lull_host::Delivery;
use lull_nic::{Frame, RxQueue};

use super::{Inside, Queue};
use crate::epoch::epoch_ns;
use crate::shard::Gro;

/// The receive half of a shard's ring, and what is on its way up.
pub(super) struct Reception {
    rx: Box<dyn RxQueue>,
    /// The frames of the present poll.
    batch: Vec<Frame>,
    /// Segments that are held for others that continue them; `None` if GRO is off.
    gro: Option<Gro>,
}

impl Reception {
    pub(super) fn new(rx: Box<dyn RxQueue>, gro: bool) -> Reception {
        Reception { rx, batch: Vec::with_capacity(256), gro: gro.then(Gro::default) }
    }

    /// Whether GRO is on.
    #[inline]
    pub(super) fn has_gro(&self) -> bool {
        self.gro.is_some()
    }

    /// Whether GRO holds segments.
    #[inline]
    pub(super) fn holds(&self) -> bool {
        self.gro.as_ref().is_some_and(|gro| !gro.is_empty())
    }

    /// Drops all that is on its way up.
    pub(super) fn clear(&mut self) {
        self.batch.clear();
        self.gro = self.gro.take().map(|_| Gro::default());
    }
}

impl Inside {
    /// Makes a dry run of a segment and its answer, through a buffer of the pool, the stack, and the transmit ring.
    pub(super) fn walk(&mut self) {
        let mut frame = self.pool.alloc();
        self.stack.walk(&mut frame);
        self.pool.recycle(frame);
        black_box((self.sending.tx.free_slots(), &self.watchers, &self.changes));
    }
}

impl Queue {
    /// Polls the receive half, and passes up its frames and whatever GRO holds.
    #[inline]
    pub(super) fn poll_inside(&self, host: &Delivery, inside: &mut Inside, budget: u32) -> u32 {
        let work = self.poll_holding(host, inside, budget);
        if inside.reception.holds() {
            self.flush_inside(host, inside, GroFlush::All);
        }
        work
    }

    /// Passes up what GRO holds.
    #[cold]
    pub(super) fn flush_inside(&self, host: &Delivery, inside: &mut Inside, flush: GroFlush) {
        let now_ns = host.now_ns();
        let (stack, mut io, Reception { gro, .. }) = inside.parts(now_ns);
        let Some(gro) = gro else { return };
        let mut pass = |frame| stack.receive(frame, &mut io);
        match flush {
            GroFlush::All => gro.flush(&mut pass),
            GroFlush::Old => gro.flush_old(now_ns, &mut pass),
        }
        self.gro_held.store(!gro.is_empty(), Ordering::Relaxed);
    }

    /// Polls the receive half, and passes up what GRO does not hold.
    #[inline]
    pub(super) fn poll_holding(&self, host: &Delivery, inside: &mut Inside, budget: u32) -> u32 {
        let looked_ns = self.answers.looks_at_ns(host);
        let Inside { reception: Reception { rx, batch, .. }, pool, .. } = inside;
        let (inbox, budget) = (self.inbox(), budget as usize);
        // A quarter of the budget is for the inbox, even while the ring is never empty.
        let first = if inbox.has_frames() { inbox.take(budget.div_ceil(4), batch) } else { 0 };
        let mut work = first + rx.poll(budget - first, pool, &mut |frame, _| batch.push(frame));
        // If the poll has budget left, it has emptied both.
        if inbox.has_frames() {
            work += inbox.take(budget - work, batch);
        }
        if work == 0 && !inside.waits_for_room() {
            self.answers.seen_empty(looked_ns);
            return 0;
        }
        let now_ns = host.now_ns();
        inside.stack.keep_time(now_ns, || epoch_ns(|| host.now_ns()));
        if looked_ns.is_some() {
            inside.stack.came_since(self.answers.came_since_ns(now_ns));
            // A full poll has left frames behind.
            self.answers.seen_empty(looked_ns.filter(|_| work < budget));
        }
        let (stack, mut io, Reception { batch, gro, .. }) = inside.parts(now_ns);
        stack.warm(batch);
        match gro {
            None => batch.drain(..).for_each(|frame| stack.receive(frame, &mut io)),
            Some(gro) => batch.drain(..).for_each(|frame| {
                let joins = stack.joins_datagrams(&frame);
                let mut pass = |frame| stack.receive(frame, &mut io);
                match joins {
                    true => gro.receive_datagram(frame, now_ns, &mut pass),
                    false => gro.receive(frame, now_ns, &mut pass),
                }
            }),
        }
        if inside.waits_for_room() {
            inside.use_room(now_ns);
        }
        work as u32
    }

    /// Delivers what was sent to own addresses, before the lock is given back. If there is very much of it, the rest is
    /// delivered by a timer that is due at once.
    #[cold]
    pub(super) fn deliver_looped(&self, host: &Delivery, inside: &mut Inside) {
        let now_ns = host.now_ns();
        inside.call(now_ns, |stack, io| stack.deliver_looped(io));
        if inside.stack.has_looped() {
            host.set_receiver_deadline(self.napi(), now_ns);
        }
    }
}
