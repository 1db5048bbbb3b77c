//! What receivers and sockets ask of their host, besides busy polling (`busy`) and the shard's lock (`unlock`).

use std::sync::Weak;

use crate::contexts::EpollContext;
use crate::delivery::Delivery;
use crate::seat::GUEST;

/// The grain of receivers' timers.
const RECEIVER_TICK_NS: u64 = 10_000_000;

impl Delivery {
    /// Lists an epoll context among those that tools are shown, for as long as it lives.
    pub fn list_context(&self, context: Weak<dyn EpollContext>) {
        self.contexts.add(context);
    }

    /// The receiver of instance `index` wants [`crate::Receiver::timers`] to be called at `deadline_ns`. An earlier deadline
    /// replaces a later one, never the other way round: being called too early is harmless, and far ones are cheap.
    /// It is put off to the next tick of 10 ms, a jiffy of Linux at HZ=100: protocol timers are coarse, and fewer
    /// deadlines are fewer kernel timers.
    #[inline]
    pub fn set_receiver_deadline(&self, index: u32, deadline_ns: u64) {
        let tick_ns = deadline_ns.div_ceil(RECEIVER_TICK_NS).saturating_mul(RECEIVER_TICK_NS);
        self.set_exact_receiver_deadline(index, tick_ns);
    }

    /// As [`Delivery::set_receiver_deadline`], but not put off to a tick, for timers that a peer waits for.
    pub fn set_exact_receiver_deadline(&self, index: u32, deadline_ns: u64) {
        // A removed instance is asked for nothing any more.
        let Some(instance) = self.instance(index) else { return };
        if instance.set_receiver_deadline(deadline_ns) {
            let cpu = self.cpu(instance.cpu());
            cpu.note_deadline(deadline_ns);
            self.cover(cpu);
        }
    }

    /// Now, in nanoseconds of the host's clock.
    #[inline]
    pub fn now_ns(&self) -> u64 {
        self.clock.now_ns()
    }

    /// Runs what is due on the CPU of instance `index`, if anything is: every call into lull begins with it. Returns the
    /// time.
    #[inline]
    pub fn poll_point(&self, index: u32) -> u64 {
        let cpu = self.cpu(self.instances.cpu(index));
        let now_ns = self.clock.now_ns();
        if cpu.is_due(now_ns) && cpu.seat.is_free() {
            self.visit(cpu, GUEST);
            return self.clock.now_ns();
        }
        now_ns
    }
}
