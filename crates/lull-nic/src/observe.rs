//! Wrapping a device's queues so that every frame that passes is seen, and what all decorators pass on unchanged.

use std::sync::Arc;

use crate::device::{Doorbell, Queue, RxQueue, TxQueue};
use crate::frame::{Frame, FramePool, Sender};

/// Which way a frame goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Received: handed to the poller.
    Rx,
    /// Sent: taken by the device for transmission.
    Tx,
}

/// Who looks at frames.
pub(crate) trait Observer: Send + Sync {
    fn see(&self, direction: Direction, queue: usize, frame: &Frame);
}

/// The queue with `observer` looking on. Both interrupt lines are the inner ones.
pub(crate) fn wrap(queue: Queue, observer: Arc<dyn Observer>) -> Queue {
    let Queue { index, rx, tx, irq, tx_irq } = queue;
    Queue {
        index,
        rx: Box::new(ObservedRx { inner: rx, index, observer: observer.clone() }),
        tx: Box::new(ObservedTx { inner: tx, index, observer }),
        irq,
        tx_irq,
    }
}

struct ObservedRx {
    inner: Box<dyn RxQueue>,
    index: usize,
    observer: Arc<dyn Observer>,
}

impl RxQueue for ObservedRx {
    fn poll(&mut self, budget: usize, pool: &mut FramePool, deliver: &mut dyn FnMut(Frame, &mut FramePool)) -> usize {
        let (index, observer) = (self.index, &*self.observer);
        self.inner.poll(budget, pool, &mut |frame, pool| {
            observer.see(Direction::Rx, index, &frame);
            deliver(frame, pool);
        })
    }
}

struct ObservedTx {
    inner: Box<dyn TxQueue>,
    index: usize,
    observer: Arc<dyn Observer>,
}

impl TxQueue for ObservedTx {
    fn transmit(&mut self, frame: Frame) -> Result<(), Frame> {
        if self.inner.free_slots() > 0 {
            self.observer.see(Direction::Tx, self.index, &frame);
            return self.inner.transmit(frame);
        }
        // Only some of the device's rings may be full. A refused frame comes again and must not be seen twice.
        let copy = frame.clone();
        self.inner.transmit(frame)?;
        self.observer.see(Direction::Tx, self.index, &copy);
        Ok(())
    }

    fn doorbell(&mut self) -> Doorbell {
        self.inner.doorbell()
    }

    fn free_slots(&self) -> usize {
        self.inner.free_slots()
    }

    fn room_for(&self, sender: Sender) -> usize {
        self.inner.room_for(sender)
    }

    fn outstanding(&self) -> Option<usize> {
        self.inner.outstanding()
    }

    fn reap_sent(&mut self, pool: &mut FramePool) -> usize {
        self.inner.reap_sent(pool)
    }
}

/// The methods of [`crate::Device`] that a decorator passes on to its field `inner`: all but `take_queue`.
macro_rules! pass_on {
    () => {
        fn info(&self) -> $crate::DeviceInfo {
            self.inner.info()
        }
        fn link(&self) -> $crate::Link {
            self.inner.link()
        }
        fn set_link(&self, link: $crate::Link) -> Result<(), $crate::DeviceError> {
            self.inner.set_link(link)
        }
        fn reset(&self) -> Result<(), $crate::DeviceError> {
            self.inner.reset()
        }
        fn moderation(&self) -> $crate::Moderation {
            self.inner.moderation()
        }
        fn set_moderation(&self, moderation: $crate::Moderation) -> Result<(), $crate::DeviceError> {
            self.inner.set_moderation(moderation)
        }
        fn rss_table(&self) -> Vec<usize> {
            self.inner.rss_table()
        }
        fn set_rss_table(&self, table: &[usize]) -> Result<(), $crate::DeviceError> {
            self.inner.set_rss_table(table)
        }
        fn rss_queue(&self, source: std::net::SocketAddr, destination: std::net::SocketAddr) -> Option<usize> {
            self.inner.rss_queue(source, destination)
        }
        fn counters(&self, queue: usize) -> $crate::Counters {
            self.inner.counters(queue)
        }
        fn watch(&self, watcher: Box<dyn Fn($crate::DeviceEvent) + Send + Sync>) {
            self.inner.watch(watcher);
        }
    };
}
pub(crate) use pass_on;
