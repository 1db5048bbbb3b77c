//! The rules of delivery, by section of `napi_semantics`: deferral (§4), the softirq loop (§5), busy polling (§7), NAPI
//! threads (§10), disable and enable (§11).
#![cfg(not(loom))]

#[path = "../toy/mod.rs"]
mod toy;

mod busy_polling;
mod completion;
mod disable;
mod softirq;
mod threads;

use lull_core::{
    BusyEnd, BusyPlan, Completion, DeviceConfig, DisableClaim, EpollOptions, GroFlush, NAPI_ID_MIN, Napi, NapiSettings,
    NapiThread, NetRx, Polled, Route, RxEnd, RxStep, Schedule, SoftirqNext, SoftirqRun, Softnet, Sysctl, ThreadStep,
    ThreadedOff, state,
};
use toy::{By, MS, Toy, US, Waited, one_round, settings, suspending};

const GRO_FLUSH: u64 = 20 * US;
const SUSPEND: u64 = 20 * MS;
