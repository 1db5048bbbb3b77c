//! What a device calls when it raises: a frame came, or its transmit ring has room again.

use std::sync::Weak;

use lull_nic::IrqSink;

use crate::delivery::{Delivery, Instance};

/// What a device calls when it raises its interrupt.
pub(crate) struct VectorSink {
    pub(crate) host: Weak<Delivery>,
    pub(crate) instance: Weak<Instance>,
}

impl IrqSink for VectorSink {
    fn raise(&self) {
        // The line of an instance that was removed raises nothing.
        if let (Some(host), Some(instance)) = (self.host.upgrade(), self.instance.upgrade())
            && !instance.is_removed()
        {
            instance.receiver.raised(&host);
            host.raise_irq(&instance);
        }
    }
}

/// What a device calls when the queue's transmit ring has room again: it schedules the same instance, whose poll serves
/// those who wait, as a transmit completion does in a driver.
pub(crate) struct RoomSink {
    pub(crate) host: Weak<Delivery>,
    pub(crate) napi: u32,
}

impl IrqSink for RoomSink {
    fn raise(&self) {
        if let Some(host) = self.host.upgrade()
            && let Some(instance) = host.instance(self.napi)
        {
            // A scheduled instance has its interrupt masked, whichever reason it was scheduled for (§4). If somebody
            // completes it at this very moment, it is polled unmasked once, which costs an interrupt at worst.
            instance.vector.mask();
            host.raise_irq(&instance);
        }
    }
}
