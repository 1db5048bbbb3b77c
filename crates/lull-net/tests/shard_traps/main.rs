//! What smoltcp does not do for a server with many connections: there is one test per trap, which is named for it.

mod addresses;
mod beside;
mod hand_on;
mod life;
mod segments;
#[path = "../shard_harness/mod.rs"]
mod shard_harness;

use std::net::SocketAddr;
use std::sync::Arc;

use lull_net::shard::{ConnectOptions, ListenOptions, Neighbours, NetError, Ready, Shutdown, SocketId};
use lull_nic::Checksum;
use shard_harness::*;
