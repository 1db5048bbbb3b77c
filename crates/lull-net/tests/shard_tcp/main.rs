//! TCP through the shard, between two stacks or with a client that the test drives by hand.

mod data;
mod ends;
mod lost;
mod opening;
#[path = "../shard_harness/mod.rs"]
mod shard_harness;

use lull_net::shard::{
    BufferGrowth, ConnectOptions, Keepalive, ListenOptions, NetError, Ready, Shutdown, SocketId, StackConfig,
    SynCookies,
};
use shard_harness::*;
