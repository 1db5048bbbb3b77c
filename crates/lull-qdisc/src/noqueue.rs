//! `noqueue`: the only frame that waits is one that the ring did not take.

use crate::Packet;

#[derive(Debug)]
pub(crate) struct NoQueue<F>(Option<Packet<F>>);

impl<F> Default for NoQueue<F> {
    fn default() -> NoQueue<F> {
        NoQueue(None)
    }
}

impl<F> NoQueue<F> {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    #[inline]
    pub(crate) fn enqueue(&mut self, packet: Packet<F>) -> Result<(), Packet<F>> {
        if self.0.is_some() {
            return Err(packet);
        }
        self.0 = Some(packet);
        Ok(())
    }

    #[inline]
    pub(crate) fn dequeue(&mut self) -> Option<Packet<F>> {
        self.0.take()
    }
}
