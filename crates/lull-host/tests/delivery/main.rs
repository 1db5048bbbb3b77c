//! Who delivers, how often, and that nothing is ever left behind. Waits are bounded generously, and no assertion
//! depends on how fast the machine is.

#![cfg(not(loom))]

#[path = "../common/mod.rs"]
mod common;

mod busy_polling;
mod operators;
mod seat;
mod suspension;
mod threads;
mod timers;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

use common::*;
use lull_core::{AfterResume, BusyEnd, NapiSettings, Threaded};
use lull_host::{Host, HostConfig, HostError, Sleep, Woke, Worker};

const MS: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MS;

fn suspension(timeout_ns: u64) -> NapiSettings {
    NapiSettings {
        defer_hard_irqs: 100,
        // Far: nothing but the suspension's own timer may fire within a test.
        gro_flush_timeout_ns: 3_600 * SECOND,
        irq_suspend_timeout_ns: timeout_ns,
        ..NapiSettings::default()
    }
}
