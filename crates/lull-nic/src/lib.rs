//! The device contract, and the devices behind it.
//!
//! A [`Device`] is a NIC: some queue pairs, each with a receive half that a NAPI polls, a transmit half that a
//! protocol shard fills, and one interrupt line. Three types to know:
//!
//! - [`Frame`]: an owned packet buffer that outlives the poll that received it;
//! - [`RxQueue`] / [`TxQueue`]: the two halves of a queue, separate because their owners differ;
//! - [`IrqLine`]: mask and unmask with no lost edge.
//!
//! The modules, as a frame meets them:
//!
//! | module | what is in there |
//! | --- | --- |
//! | [`frame`] | the buffer and its pool |
//! | [`mem`] | a pair of ports in one process |
//! | [`tap`], [`namespace`] | the kernel as the peer, and a network namespace to have it in |
//! | [`xdp`] | AF_XDP: some frames of an interface that stays the host's |
//! | [`packet`], `interface` | copies of an interface's frames, where XDP is refused; what the kernel says of one |
//! | [`rss`] | which queue a frame goes to |
//! | `irq`, `room` | publish against unmask, moderation; consume against unmask |
//! | `line`, `writable`, `alarm` | the sink; room that the kernel tells of; the thread behind deadlines |
//! | [`wire`] | header fields and checksums, for whoever reads or writes packets |
//! | [`Afresh`], `fork` | what a child of `fork` makes anew; what of this crate it forgets |
//! | [`EventFdSink`] | an interrupt that a thread can wait for |
//! | [`device`] | the contract, and a whole device as an example |
//! | [`conformance`] | the contract's rules, run against a device |
//! | [`pcap`], [`trace`], [`fault`] | decorators over any device: record, show, break |
//! | [`program`] | a decorator that runs a program on each received frame: pass, drop, transmit, redirect |
//! | `ebpf` | with the feature `ebpf`: XDP programs as they are compiled for Linux, for that decorator |
//!
//! The loop of a driver, over any device:
//!
//! ```
//! use lull_nic::mem::{self, MemConfig};
//! use lull_nic::{Device, EventFdSink, Frame, FramePool, Queue};
//! use std::sync::Arc;
//!
//! const WEIGHT: usize = 64;
//!
//! let (service, client) = mem::pair(MemConfig::default());
//! let mut client = client.take_queue(0)?;
//! client.tx.transmit(Frame::copy_from(b"..a frame of some 14 or more bytes")).expect("an empty ring");
//! client.tx.doorbell();
//!
//! let Queue { mut rx, mut tx, irq, .. } = service.take_queue(0)?;
//! let (sink, mut pool, mut served) = (Arc::new(EventFdSink::new().expect("a descriptor")), FramePool::new(256), 0);
//! irq.connect(sink.clone());
//! irq.unmask();
//! while served < 1 {
//!     sink.wait(None).expect("an interrupt");
//!     // Masked since it was raised: poll until the ring is empty, and only then unmask.
//!     while rx.poll(WEIGHT, &mut pool, &mut |frame, pool| {
//!         served += 1;
//!         // Echo; a full ring loses the frame.
//!         if let Err(frame) = tx.transmit(frame) {
//!             pool.recycle(frame);
//!         }
//!     }) == WEIGHT
//!     {}
//!     tx.doorbell();
//!     tx.reap_sent(&mut pool);
//!     irq.unmask();
//! }
//! assert_eq!(client.rx.poll(WEIGHT, &mut FramePool::new(256), &mut |frame, pool| pool.recycle(frame)), 1);
//! # Ok::<(), lull_nic::DeviceError>(())
//! ```
#![deny(unsafe_op_in_unsafe_fn)]

mod afresh;
mod alarm;
mod checksum;
pub mod conformance;
pub mod device;
#[cfg(feature = "ebpf")]
pub mod ebpf;
mod eventfd;
pub mod fault;
mod fork;
pub mod frame;
mod interface;
mod irq;
mod known;
mod line;
pub mod mem;
pub mod namespace;
mod observe;
pub mod own;
pub mod packet;
pub mod passing;
pub mod pcap;
pub mod prefetch;
pub mod program;
mod room;
pub mod rss;
mod tally;
pub mod tap;
pub mod trace;
pub mod virtio;
mod watch;
mod watchers;
pub mod wire;
mod writable;
pub mod xdp;

pub use afresh::Afresh;
pub use device::{
    Counters, Device, DeviceError, DeviceEvent, DeviceInfo, Doorbell, IrqLine, IrqSink, Link, Moderation, Offloads,
    Queue, RxQueue, TxQueue,
};
pub use eventfd::EventFdSink;
pub use fork::forget_all;
pub use frame::{Checksum, Frame, FramePool, Segmentation};
pub use line::AlwaysRoom;
pub use writable::WritableFd;
