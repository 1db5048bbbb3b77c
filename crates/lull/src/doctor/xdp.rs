//! `lull doctor xdp:DEV` finds out what AF_XDP supports on an interface by opening it for a moment.

use std::net::{IpAddr, Ipv4Addr};

use lull_linux::doctor::{Check, Report, Verdict};
use lull_linux::machine::kernel_release;
use lull_nic::xdp::{BusyPoll, Xdp, XdpAddress, XdpConfig, XdpMode, XdpReport};

use crate::failure::Failure;
use crate::xdp::named;

/// Opens the interface with a program that takes no frames, examines it, and closes it.
pub(super) fn examine(spec: &str) -> Result<Report, Failure> {
    let (name, queues) = named(spec)?;
    // Nobody sends to this address, so the program takes no frames.
    let nobody = XdpAddress { ip: IpAddr::V4(Ipv4Addr::UNSPECIFIED), is_hosts: false };
    let config = XdpConfig { name: name.clone(), queues, addresses: vec![nobody], ..XdpConfig::default() };
    let checks = match Xdp::open(&config) {
        Ok(device) => checks(&device.report()),
        Err(error) => vec![check("AF_XDP", Verdict::Wrong, error.to_string(), "")],
    };
    Ok(Report { kernel: kernel_release().to_string(), device: Some(format!("xdp:{name}")), checks, modes: Vec::new() })
}

fn check(what: &str, verdict: Verdict, reason: String, remedy: &str) -> Check {
    let remedy = Some(remedy.to_owned()).filter(|remedy| !remedy.is_empty());
    Check { what: what.to_owned(), verdict, reason, remedy }
}

fn checks(report: &XdpReport) -> Vec<Check> {
    vec![program(report), copying(report), pieces(report), queues(report), busy_poll(report), memory(report)]
}

fn program(report: &XdpReport) -> Check {
    match (&report.mode, &report.native_refused) {
        (XdpMode::Native, _) => check("XDP program", Verdict::Ok, "native: it runs in the driver".to_owned(), ""),
        (XdpMode::Generic, why) => {
            let why = why.as_deref().unwrap_or("it gave no reason");
            let reason = format!("generic: it runs above the driver, which refused it ({why})");
            check("XDP program", Verdict::Advice, reason, "a lower MTU or fewer queues let some drivers take it")
        }
    }
}

fn copying(report: &XdpReport) -> Check {
    let zero_copy = report.zero_copy.iter().all(|zero_copy| *zero_copy);
    let reason = match (zero_copy, report.is_veth) {
        (true, _) => "zero-copy: the driver reads and writes the frames' memory itself".to_owned(),
        (false, true) => "copy: veth has no zero-copy".to_owned(),
        (false, false) => "copy: the driver has no zero-copy; sending takes a system call for each batch".to_owned(),
    };
    check("copying", Verdict::Ok, reason, "")
}

fn pieces(report: &XdpReport) -> Check {
    let length = report.frame_bytes_max;
    let reason = if report.several_chunks {
        format!("frames of {length} bytes pass, in several buffers if need be")
    } else {
        format!("frames of {length} bytes pass, in one buffer: kernel (before Linux 6.6) or driver lacks several")
    };
    check("frame length", Verdict::Ok, reason, "")
}

fn queues(report: &XdpReport) -> Check {
    let queues: Vec<_> = report.queues.iter().map(|queue| *queue as usize).collect();
    check("queues", Verdict::Ok, format!("{} can have a socket", lull_units::numbers_text(&queues)), "")
}

fn busy_poll(report: &XdpReport) -> Check {
    const WHAT: &str = "busy polling of the driver";
    match &report.busy_poll {
        BusyPoll::Refused(why) => {
            check(WHAT, Verdict::Advice, format!("refused: {why}"), "setting it takes CAP_NET_ADMIN and Linux 5.11")
        }
        BusyPoll::NoNapi if report.is_veth => {
            let reason = "set, but without effect: veth has no NAPI that a socket could poll".to_owned();
            check(WHAT, Verdict::Ok, reason, "")
        }
        BusyPoll::NoNapi => {
            let reason = "set; it is in force once a received frame has named the driver's NAPI".to_owned();
            check(WHAT, Verdict::Unknown, reason, "`lull serve --nic xdp:DEV` says so when it ends")
        }
        BusyPoll::InForce(ids) => check(WHAT, Verdict::Ok, format!("in force, by NAPI ids {ids:?}"), ""),
    }
}

fn memory(report: &XdpReport) -> Check {
    const WHAT: &str = "memory";
    let kibibytes = report.umem_bytes / 1024;
    let wanted = format!("{kibibytes} KiB are pinned for each queue");
    let all = report.umem_bytes as u64 * report.queues.len() as u64;
    match report.memlock_bytes {
        Some(limit) if limit < all => check(
            WHAT,
            Verdict::Advice,
            format!(
                "{wanted}; RLIMIT_MEMLOCK ({} KiB) is too little for all, and limits all users but root",
                limit / 1024
            ),
            "raise it (ulimit -l, LimitMEMLOCK=), or take smaller rings",
        ),
        Some(limit) => check(WHAT, Verdict::Ok, format!("{wanted}; RLIMIT_MEMLOCK is {} KiB", limit / 1024), ""),
        None => check(WHAT, Verdict::Ok, format!("{wanted}; RLIMIT_MEMLOCK is unlimited"), ""),
    }
}
