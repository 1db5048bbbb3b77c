//! Starts the service on the NIC that was asked for.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use lull_core::Mode;

use super::wire::{self, Wire};
use super::{Serve, mem};
use crate::failure::Failure;

/// Serves until a signal comes.
pub fn run(args: Serve, stop: &Arc<AtomicBool>) -> Result<ExitCode, Failure> {
    let mode: Mode = args.mode.parse()?;
    // A mode without timeouts to choose is refused before anything is made.
    args.slo.controller(&mode, mode.napi)?;
    match args.nic.split_once(':') {
        Some(("tap", name)) => wire::run(&args, &Wire::Tap(name), &mode, stop),
        Some(("xdp", spec)) => wire::run(&args, &Wire::Xdp(spec), &mode, stop),
        Some(("packet", name)) => wire::run(&args, &Wire::Packet(name), &mode, stop),
        None if args.nic == "mem" => mem::run(&args, &mode, stop),
        _ => Err(format!("cannot serve on the NIC '{}': use tap:NAME, xdp:DEV, packet:DEV or mem", args.nic).into()),
    }
}
