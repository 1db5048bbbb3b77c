//! What a panic does: above a queue it takes that queue down and nothing else, anywhere else it ends the process.
//!
//! A receiver (a protocol stack, say) is much code that handles what strangers send. A panic in it must neither leave the
//! CPU's seat held for ever, nor the other queues of the CPU unpolled, nor sockets waiting for what will never come. So
//! every call into a receiver goes through [`Delivery::contain`]. The queue is then *taken down*: its instance refuses to
//! be scheduled, as if a disable were pending; its interrupt is masked; whoever owned it lets it go at the next step; its
//! shard is taken down ([`crate::Shard::take_down`]) and its waiters are told ([`Receiver::failed`]). What remains for the
//! operator is to disable and to remove it.
//!
//! A panic in delivery itself means that the seat, a poll list or an ownership may be in any state, and with them every
//! queue of the CPU. Nobody could mend that, so the process ends with a message that says where.

use std::any::Any;
use std::io::Write;
use std::panic::AssertUnwindSafe;

use lull_core::Owner;

use crate::delivery::{Delivery, Instance, Receiver, TryPoll};
use crate::or_end::or_end;
use crate::sync::{catch_unwind, relock};

/// The message of a panic.
pub(crate) fn message(panic: Box<dyn Any + Send>) -> String {
    let message = match (panic.downcast_ref::<&str>(), panic.downcast_ref::<String>()) {
        (Some(message), _) => (*message).to_owned(),
        (_, Some(message)) => message.clone(),
        _ => "a panic without a message".to_owned(),
    };
    // Dropping a payload of an unknown type could panic once more.
    std::mem::forget(panic);
    message
}

impl Delivery {
    /// Calls into the receiver of `instance`. `None`: its queue is down, since long ago or because the call panicked now.
    /// The caller is in `context`, and holds no shard's lock.
    #[inline]
    pub(crate) fn contain<R>(
        &self,
        instance: &Instance,
        context: &str,
        call: impl FnOnce(&dyn Receiver) -> R,
    ) -> Option<R> {
        if instance.failure().is_some() {
            return None;
        }
        match catch_unwind(AssertUnwindSafe(|| call(&*instance.receiver))) {
            Ok(result) => Some(result),
            Err(panic) => {
                self.take_down(instance, context, message(panic));
                None
            }
        }
    }

    /// A poll that may take `budget` packets; none from a queue that is down.
    #[inline]
    pub(crate) fn contained_poll(
        &self,
        instance: &Instance,
        context: &str,
        budget: u32,
        poll: impl FnOnce(&dyn Receiver) -> u32,
    ) -> u32 {
        self.contain(instance, context, |receiver| within(poll(receiver), budget)).unwrap_or(0)
    }

    /// Softirq's poll. A queue that is down is found empty, so that it is completed and let go.
    #[inline]
    pub(crate) fn contained_try_poll(&self, instance: &Instance, owner: Owner, cpu: u16) -> TryPoll {
        let budget = instance.napi.weight();
        let mut handed_in = Some(owner);
        let polled = self.contain(instance, "softirq", |receiver| {
            let Some(owner) = handed_in.take() else { unreachable!("called once") };
            let polled = receiver.try_poll(self, owner, cpu, budget);
            if let TryPoll::Polled(_, work) = &polled {
                within(*work, budget);
            }
            polled
        });
        match (polled, handed_in) {
            (Some(polled), _) => polled,
            (None, Some(owner)) => TryPoll::Polled(owner, 0),
            // It went down with the panic, unless it was parked: what was parked was let go when the queue was taken down.
            (None, None) => match instance.napi.owner_lost_in_a_panic() {
                Some(owner) => TryPoll::Polled(owner, 0),
                None => TryPoll::Handed,
            },
        }
    }

    fn take_down(&self, instance: &Instance, context: &str, message: String) {
        self.refuse(instance, context, message);
        // Whoever comes second does this, too: an ownership may have been parked on the lock that their panic let go.
        self.tell_failed(instance);
    }

    /// First half of taking a queue down: nobody becomes its owner any more. The first to do so prints the message.
    #[cold]
    pub(crate) fn refuse(&self, instance: &Instance, context: &str, message: String) {
        // This comes before the failure can be seen: whoever sees the failure may rely on nobody taking the instance.
        instance.napi.disable_begin();
        instance.vector.mask();
        let queue = self.queue_name(instance);
        if instance.fail(format!("a panic in {context}: {message}")) {
            // A log that cannot be written must not be a second panic.
            let _ = writeln!(
                std::io::stderr(),
                "lull: {queue} is taken down by a panic in {context}: {message}. Its sockets fail from now on; other queues go on."
            );
        }
    }

    /// Second half: the receiver's waiters are told. No shard's lock is held.
    pub(crate) fn tell_failed(&self, instance: &Instance) {
        or_end(&|| format!("taking down {}", self.queue_name(instance)), || instance.receiver.failed(self));
        instance.wake_thread(self);
    }

    /// A call into a shard, other than by the host, panicked: the queue of instance `index` is taken down. The shard's lock
    /// is not held.
    pub fn take_down_queue(&self, index: u32, context: &str) {
        // Nobody could be told about a removed instance: its device is closed.
        let Some(instance) = self.instance(index).map(|found| found.clone()) else { return };
        self.take_down(&instance, context, "see the panic's own message".to_owned());
    }

    /// As messages name it.
    pub(crate) fn queue_name(&self, instance: &Instance) -> String {
        let devices = relock(&self.devices);
        let name = devices.get(instance.device).map_or("a removed device", |device| &device.name);
        format!("queue {} of {name} (NAPI {})", instance.queue, instance.napi.id())
    }
}

/// A poll that takes more packets than it may is a bug above the queue, too.
#[inline]
pub(crate) fn within(work: u32, budget: u32) -> u32 {
    assert!(work <= budget, "the receiver took {work} packets with a budget of {budget}");
    work
}
