//! A device whose queues are changed on their way to the network.

use std::net::SocketAddr;
use std::sync::Arc;

use lull_nic::{Counters, Device, DeviceError, DeviceEvent, DeviceInfo, Link, Moderation, Queue};

/// It is told of a device's events.
pub type Watcher = Arc<dyn Fn(DeviceEvent) + Send + Sync>;

pub struct Wrapped {
    pub inner: Arc<dyn Device>,
    pub queue: Box<dyn Fn(Queue) -> Queue + Send + Sync>,
    /// This is called with the source of each flow that the device is asked for, under the lock of a shard.
    pub rss_asked: Box<dyn Fn(SocketAddr) + Send + Sync>,
    pub dear_doorbell: bool,
    /// Whether the device says by which queue a flow comes.
    pub tells_queues: bool,
    /// Returns the MTU that the device reports, given that of `inner`.
    pub mtu_bytes: Box<dyn Fn(usize) -> usize + Send + Sync>,
    /// This is called with each watcher.
    pub watched: Box<dyn Fn(Watcher) + Send + Sync>,
}

impl Wrapped {
    /// A device `inner` whose queues `queue` changes.
    pub fn new(inner: Arc<dyn Device>, queue: impl Fn(Queue) -> Queue + Send + Sync + 'static) -> Wrapped {
        Wrapped {
            inner,
            queue: Box::new(queue),
            rss_asked: Box::new(|_| ()),
            dear_doorbell: false,
            tells_queues: true,
            mtu_bytes: Box::new(|mtu_bytes| mtu_bytes),
            watched: Box::new(|_| ()),
        }
    }
}

impl Device for Wrapped {
    fn info(&self) -> DeviceInfo {
        let info = self.inner.info();
        DeviceInfo { dear_doorbell: self.dear_doorbell, mtu_bytes: (self.mtu_bytes)(info.mtu_bytes), ..info }
    }
    fn take_queue(&self, index: usize) -> Result<Queue, DeviceError> {
        self.inner.take_queue(index).map(&self.queue)
    }
    fn link(&self) -> Link {
        self.inner.link()
    }
    fn set_link(&self, link: Link) -> Result<(), DeviceError> {
        self.inner.set_link(link)
    }
    fn reset(&self) -> Result<(), DeviceError> {
        self.inner.reset()
    }
    fn moderation(&self) -> Moderation {
        self.inner.moderation()
    }
    fn set_moderation(&self, moderation: Moderation) -> Result<(), DeviceError> {
        self.inner.set_moderation(moderation)
    }
    fn rss_table(&self) -> Vec<usize> {
        self.inner.rss_table()
    }
    fn set_rss_table(&self, table: &[usize]) -> Result<(), DeviceError> {
        self.inner.set_rss_table(table)
    }
    fn rss_queue(&self, source: SocketAddr, destination: SocketAddr) -> Option<usize> {
        (self.rss_asked)(source);
        self.inner.rss_queue(source, destination).filter(|_| self.tells_queues)
    }
    fn counters(&self, queue: usize) -> Counters {
        self.inner.counters(queue)
    }
    fn watch(&self, watcher: Box<dyn Fn(DeviceEvent) + Send + Sync>) {
        let watcher = Watcher::from(watcher);
        (self.watched)(watcher.clone());
        self.inner.watch(Box::new(move |event| watcher(event)));
    }
}
