//! The device contract, and the devices behind it.
//!
//! A [`Device`] is a NIC: some queue pairs, each with a receive half that a NAPI polls, a transmit half that a
//! protocol shard fills, and one interrupt line. Three types to know:
//!
//! - [`Frame`]: an owned packet buffer that outlives the poll that received it;
//! - [`RxQueue`] / [`TxQueue`]: the two halves of a queue, separate because their owners differ;
//! - [`IrqLine`]: mask and unmask with no lost edge.
#![deny(unsafe_op_in_unsafe_fn)]

pub mod device;
pub mod frame;

pub use device::{
    Counters, Device, DeviceError, DeviceEvent, DeviceInfo, IrqLine, IrqSink, Link, Moderation, Offloads, Queue,
    RxQueue, TxQueue,
};
pub use frame::{Checksum, Frame, FramePool, Segmentation};
