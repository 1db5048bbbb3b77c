//! Writes settings and parameters as plans and timelines print them.

use lull_core::{EpollParams, NapiSettings, Unpolled};

/// Writes settings by the kernel's names.
pub(super) fn settings(napi: &NapiSettings, threaded: bool) -> String {
    let NapiSettings { defer_hard_irqs, gro_flush_timeout_ns, irq_suspend_timeout_ns, threaded: mode, unpolled } = napi;
    let (gro_us, suspend_us) = (gro_flush_timeout_ns / 1_000, irq_suspend_timeout_ns / 1_000);
    let thread = if threaded { format!(", threaded {mode:?}") } else { String::new() };
    let unpolled = if *unpolled == Unpolled::Interrupt { ", interrupts while unpolled" } else { "" };
    format!("defer {defer_hard_irqs}, gro_flush {gro_us} us, irq_suspend {suspend_us} us{thread}{unpolled}")
}

/// Writes parameters by the kernel's names.
pub(super) fn params(params: &EpollParams) -> String {
    let EpollParams { busy_poll_usecs, busy_poll_budget, prefer_busy_poll } = params;
    format!("usecs {busy_poll_usecs}, budget {busy_poll_budget}, prefer {prefer_busy_poll}")
}
