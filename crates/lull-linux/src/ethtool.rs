//! The generic netlink family `ethtool` (Linux 5.6 and newer): features, rings, channels and interrupt coalescing of
//! one device. What a driver does not have is `None` and not an error.

use std::collections::BTreeSet;
use std::fmt;
use std::io;

use netlink_bindings::ethtool::{PushHeader, Request};
use netlink_bindings::traits::Pusher;
use netlink_bindings::utils::ErrorContext;
use netlink_socket2::{NetlinkSocket, ReplyError};
use serde::{Deserialize, Serialize};

use crate::device::Device;
use crate::error::Result;
use crate::netdev::refused;

/// The `enum` of the messages to the kernel in `linux/ethtool_netlink_generated.h`. It is set by hand in every request,
/// because netlink-bindings 0.3.5 gives most requests of this family the number of another one.
mod command {
    pub const FEATURES_GET: u8 = 11;
    pub const RINGS_GET: u8 = 15;
    pub const RINGS_SET: u8 = 16;
    pub const CHANNELS_GET: u8 = 17;
    pub const CHANNELS_SET: u8 = 18;
    pub const COALESCE_GET: u8 = 19;
    pub const COALESCE_SET: u8 = 20;
}

/// A number that a driver allows to be set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Knob {
    /// Receive queues (`ethtool -L rx`).
    RxQueues,
    /// Transmit queues (`ethtool -L tx`).
    TxQueues,
    /// Queues for both directions (`ethtool -L combined`).
    CombinedQueues,
    /// Receive descriptors (`ethtool -G rx`).
    RxRing,
    /// Transmit descriptors (`ethtool -G tx`).
    TxRing,
    /// Adaptive receive coalescing, 0 or 1 (`ethtool -C adaptive-rx`).
    AdaptiveRx,
    /// Adaptive transmit coalescing, 0 or 1.
    AdaptiveTx,
    /// Microseconds that a receive interrupt waits (`ethtool -C rx-usecs`).
    RxUsecs,
    /// Microseconds that a transmit interrupt waits.
    TxUsecs,
    /// How many frames a receive interrupt waits for at most (`ethtool -C rx-frames`).
    RxFrames,
    /// How many frames a transmit interrupt waits for at most.
    TxFrames,
}

impl Knob {
    /// The name that ethtool gives it.
    pub fn name(self) -> &'static str {
        match self {
            Knob::RxQueues => "rx queues",
            Knob::TxQueues => "tx queues",
            Knob::CombinedQueues => "combined queues",
            Knob::RxRing => "rx ring",
            Knob::TxRing => "tx ring",
            Knob::AdaptiveRx => "adaptive-rx",
            Knob::AdaptiveTx => "adaptive-tx",
            Knob::RxUsecs => "rx-usecs",
            Knob::TxUsecs => "tx-usecs",
            Knob::RxFrames => "rx-frames",
            Knob::TxFrames => "tx-frames",
        }
    }
}

impl fmt::Display for Knob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A knob's value, and its maximum if the driver reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading {
    /// The value.
    pub value: u32,
    /// The maximum.
    pub max: Option<u32>,
}

/// Ethtool on one device.
pub struct Ethtool {
    socket: NetlinkSocket,
    ifindex: u32,
    name: String,
}

type Raw<T> = std::result::Result<T, ReplyError>;

impl Ethtool {
    /// Opens the settings of a device.
    pub fn new(device: &Device) -> Ethtool {
        Ethtool { socket: NetlinkSocket::new(), ifindex: device.ifindex, name: device.name.clone() }
    }

    fn header<P: Pusher>(&self, header: PushHeader<P>) {
        let _ = header.push_dev_index(self.ifindex).end_nested();
    }

    /// The features that are on, by the kernel's names (`rx-gro`, `tx-tcp-segmentation`).
    ///
    /// # Errors
    /// The kernel has no ethtool family.
    pub fn features(&mut self) -> Result<BTreeSet<String>> {
        self.features_raw()
            .map_err(|error| refused(&format!("read the features of {}", self.name), "it takes Linux 5.7", error))
    }

    fn features_raw(&mut self) -> Raw<BTreeSet<String>> {
        let mut request = Request::new().op_features_get_do();
        request.header_mut().cmd = command::FEATURES_GET;
        self.header(request.encode().nested_header());
        let mut reply = self.socket.request(&request)?;
        let features = reply.recv_one()?;
        let names = features.get_active()?.get_bits()?.get_bit();
        Ok(names.filter_map(|bit| bit.get_name().ok().map(|name| name.to_string_lossy().into_owned())).collect())
    }

    /// Reads a knob; `None` if the driver does not have it.
    ///
    /// # Errors
    /// The device is gone, or the kernel refuses.
    pub fn get(&mut self, knob: Knob) -> Result<Option<Reading>> {
        match self.get_raw(knob) {
            Ok(reading) => Ok(reading),
            Err(error) if error.as_io_error().raw_os_error() == Some(libc::EOPNOTSUPP) => Ok(None),
            Err(error) => Err(refused(&format!("read {knob} of {}", self.name), "`ethtool` shows what it has", error)),
        }
    }

    fn get_raw(&mut self, knob: Knob) -> Raw<Option<Reading>> {
        fn known(value: std::result::Result<u32, ErrorContext>, max: Option<u32>) -> Option<Reading> {
            // Drivers report a maximum of 0 for something that they do not have.
            value.ok().filter(|_| max != Some(0)).map(|value| Reading { value, max })
        }
        match knob {
            Knob::RxQueues | Knob::TxQueues | Knob::CombinedQueues => {
                let mut request = Request::new().op_channels_get_do();
                request.header_mut().cmd = command::CHANNELS_GET;
                self.header(request.encode().nested_header());
                let mut reply = self.socket.request(&request)?;
                let it = reply.recv_one()?;
                Ok(match knob {
                    Knob::RxQueues => known(it.get_rx_count(), it.get_rx_max().ok()),
                    Knob::TxQueues => known(it.get_tx_count(), it.get_tx_max().ok()),
                    _ => known(it.get_combined_count(), it.get_combined_max().ok()),
                })
            }
            Knob::RxRing | Knob::TxRing => {
                let mut request = Request::new().op_rings_get_do();
                request.header_mut().cmd = command::RINGS_GET;
                self.header(request.encode().nested_header());
                let mut reply = self.socket.request(&request)?;
                let it = reply.recv_one()?;
                Ok(match knob {
                    Knob::RxRing => known(it.get_rx(), it.get_rx_max().ok()),
                    _ => known(it.get_tx(), it.get_tx_max().ok()),
                })
            }
            Knob::AdaptiveRx | Knob::AdaptiveTx | Knob::RxUsecs | Knob::TxUsecs | Knob::RxFrames | Knob::TxFrames => {
                let mut request = Request::new().op_coalesce_get_do();
                request.header_mut().cmd = command::COALESCE_GET;
                self.header(request.encode().nested_header());
                let mut reply = self.socket.request(&request)?;
                let it = reply.recv_one()?;
                Ok(match knob {
                    Knob::AdaptiveRx => known(it.get_use_adaptive_rx().map(u32::from), None),
                    Knob::AdaptiveTx => known(it.get_use_adaptive_tx().map(u32::from), None),
                    Knob::RxUsecs => known(it.get_rx_usecs(), None),
                    Knob::TxUsecs => known(it.get_tx_usecs(), None),
                    Knob::RxFrames => known(it.get_rx_max_frames(), None),
                    _ => known(it.get_tx_max_frames(), None),
                })
            }
        }
    }

    /// Sets a knob.
    ///
    /// # Errors
    /// EOPNOTSUPP if the driver does not have it, EINVAL for a value that the driver does not accept, EPERM without
    /// CAP_NET_ADMIN.
    pub fn set(&mut self, knob: Knob, value: u32) -> Result<()> {
        self.set_raw(knob, value).map_err(|error| {
            let what = format!("set {knob} of {} to {value}", self.name);
            refused(&what, "`ethtool` shows what the driver takes", error)
        })
    }

    fn set_raw(&mut self, knob: Knob, value: u32) -> Raw<()> {
        match knob {
            Knob::RxQueues | Knob::TxQueues | Knob::CombinedQueues => {
                let mut request = Request::new().op_channels_set_do();
                request.header_mut().cmd = command::CHANNELS_SET;
                self.header(request.encode().nested_header());
                let push = request.encode();
                let _ = match knob {
                    Knob::RxQueues => push.push_rx_count(value),
                    Knob::TxQueues => push.push_tx_count(value),
                    _ => push.push_combined_count(value),
                };
                self.socket.request(&request)?.recv_ack()
            }
            Knob::RxRing | Knob::TxRing => {
                let mut request = Request::new().op_rings_set_do();
                request.header_mut().cmd = command::RINGS_SET;
                self.header(request.encode().nested_header());
                let push = request.encode();
                let _ = if knob == Knob::RxRing { push.push_rx(value) } else { push.push_tx(value) };
                self.socket.request(&request)?.recv_ack()
            }
            Knob::AdaptiveRx | Knob::AdaptiveTx | Knob::RxUsecs | Knob::TxUsecs | Knob::RxFrames | Knob::TxFrames => {
                let mut request = Request::new().op_coalesce_set_do();
                request.header_mut().cmd = command::COALESCE_SET;
                self.header(request.encode().nested_header());
                let push = request.encode();
                let adaptive = matches!(knob, Knob::AdaptiveRx | Knob::AdaptiveTx);
                if adaptive && value > 1 {
                    return Err(io::Error::from_raw_os_error(libc::EINVAL).into());
                }
                let flag = u8::from(value != 0);
                let _ = match knob {
                    Knob::AdaptiveRx => push.push_use_adaptive_rx(flag),
                    Knob::AdaptiveTx => push.push_use_adaptive_tx(flag),
                    Knob::RxUsecs => push.push_rx_usecs(value),
                    Knob::TxUsecs => push.push_tx_usecs(value),
                    Knob::RxFrames => push.push_rx_max_frames(value),
                    _ => push.push_tx_max_frames(value),
                };
                self.socket.request(&request)?.recv_ack()
            }
        }
    }
}
