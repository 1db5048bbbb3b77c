//! Checks of a device: NAPIs, queues, what survives a reset, offloads, coalescing.

use super::check::Check;
use super::timers;
use crate::device::Snapshot;
use crate::error::Error;
use crate::ethtool::{Ethtool, Knob};
use crate::machine::version;
use crate::plan::no_napi;
use crate::session::Session;

/// Drivers whose NAPIs keep their settings over a reset (`napi_config`), each with the first kernel in which they do.
const KEEPING: [(&str, (u32, u32)); 13] = [
    ("bnxt_en", (6, 13)),
    ("ice", (6, 13)),
    ("mlx4_en", (6, 13)),
    ("mlx5_core", (6, 13)),
    ("ena", (7, 1)),
    ("bnge", (7, 1)),
    ("iavf", (7, 1)),
    ("idpf", (7, 1)),
    ("igb", (7, 1)),
    ("fbnic", (7, 1)),
    ("rtase", (7, 1)),
    ("virtio_net", (7, 1)),
    ("netdevsim", (7, 1)),
];

pub fn checks(session: &mut Session, snapshot: &Snapshot, kernel: &str) -> Vec<Check> {
    let mut ethtool = Ethtool::new(session.device());
    let mut checks = vec![napis(snapshot), queues(snapshot), persistence(snapshot, kernel)];
    checks.extend(offloads(session, snapshot, &mut ethtool));
    checks.push(coalescing(snapshot, &mut ethtool));
    checks.push(timers::sleepers(snapshot));
    checks.push(state_file(session));
    checks
}

fn napis(snapshot: &Snapshot) -> Check {
    let what = format!("NAPIs of {}", snapshot.device);
    match snapshot.napis.len() {
        0 => refused(what, no_napi(snapshot)),
        count => Check::ok(what, format!("{count}, for {} receive queues", snapshot.rx_queues)),
    }
}

/// A failure in the form of a check, with what was found and what to do.
fn refused(what: String, error: Error) -> Check {
    match error {
        Error::NoNapi { remedy, .. } => Check::wrong(what, "it shows none", remedy),
        Error::StaleState { path, reason, remedy } => {
            Check::wrong(what, format!("{} cannot be used: {reason}", path.display()), remedy)
        }
        Error::Os { what: operation, remedy, source, .. } => {
            Check::wrong(what, format!("cannot {operation}: {source}"), remedy)
        }
        other => Check::wrong(what, other.to_string(), "mend that first"),
    }
}

fn queues(snapshot: &Snapshot) -> Check {
    let what = format!("queues of {}", snapshot.device);
    if snapshot.queues_linked {
        return Check::ok(what, "the driver says which NAPI serves which queue");
    }
    let driver = snapshot.driver.as_deref().unwrap_or("the driver");
    Check::advice(
        what,
        format!("{driver} does not say which NAPI serves which queue: the n-th NAPI by id is taken for queue n"),
        "name no --queues, or check with traffic on one queue",
    )
}

fn persistence(snapshot: &Snapshot, kernel: &str) -> Check {
    let what = format!("settings of {} over a reset", snapshot.device);
    let driver = snapshot.driver.as_deref().unwrap_or("unknown driver");
    let since = KEEPING.iter().find(|(name, _)| *name == driver).map(|(_, since)| *since);
    match since {
        Some(since) if version(kernel) >= Some(since) => Check::ok(
            what,
            format!("{driver} keeps settings and NAPI ids; affinity and policy of threads are not kept"),
        ),
        _ => Check::advice(
            what,
            format!("{driver} is not known to keep them: a link flap or reset may take them away"),
            "`lull apply --watch` applies them again",
        ),
    }
}

fn offloads(session: &mut Session, snapshot: &Snapshot, ethtool: &mut Ethtool) -> Vec<Check> {
    let device = &snapshot.device;
    let features = match ethtool.features() {
        Ok(features) => features,
        Err(error) => {
            return vec![Check::unknown(format!("offloads of {device}"), error.to_string(), "use `ethtool -k`")];
        }
    };
    let mut checks = Vec::new();
    let veth = snapshot.driver.as_deref() == Some("veth");
    checks.push(if features.contains("rx-gro") {
        Check::ok(format!("GRO of {device}"), "on")
    } else if veth {
        Check::wrong(
            format!("GRO of {device}"),
            "off: a veth without it has no NAPIs",
            format!("ethtool -K {device} gro on"),
        )
    } else {
        let remedy = format!("ethtool -K {device} gro on");
        Check::advice(format!("GRO of {device}"), "off: every packet goes up the stack by itself", remedy)
    });
    checks.push(if features.contains("rx-lro") {
        Check::wrong(
            format!("LRO of {device}"),
            "on: packets that the hardware has merged may come in without a NAPI id, and are held back",
            format!("ethtool -K {device} lro off"),
        )
    } else {
        Check::ok(format!("LRO of {device}"), "off")
    });
    if veth {
        checks.push(peer_segmentation(session, snapshot));
    }
    if snapshot.driver.as_deref() == Some("tun") {
        checks.push(tap(device, &|feature| features.contains(feature)));
    }
    checks
}

/// Checks what the user of a TAP lets the kernel leave undone (`TUNSETOFFLOAD`), which the interface's features show.
fn tap(device: &str, has: &dyn Fn(&str) -> bool) -> Check {
    let what = format!("TAP offloads of {device}");
    if has("tx-checksum-ip-generic") && has("tx-tcp-segmentation") {
        return Check::ok(what, "on: its user takes TCP segments of up to 64 KB, and checksums that are not made");
    }
    let found = "off: the kernel makes every checksum, and cuts TCP data into frames of the MTU for its user";
    Check::advice(what, found, "`lull serve --offloads on`, or what the program on it has for that (QEMU: vnet_hdr=on)")
}

/// Checks TSO at the peer of a veth: what it sends with TSO on bypasses the NAPI here, except UDP for a peer that
/// forwards it in GRO (`veth_skb_is_eligible_for_gro`).
fn peer_segmentation(session: &mut Session, snapshot: &Snapshot) -> Check {
    let device = &snapshot.device;
    let what = format!("TSO of the peer of {device}");
    let peer = session.netdev().peer_of(snapshot.ifindex);
    let Some(peer) = peer else {
        return Check::unknown(
            what,
            "the peer is in another network namespace: what it sends with TSO on comes in without a NAPI id",
            "there: ethtool -K PEER tso off",
        );
    };
    let on = Session::open(&peer, &crate::options::Options::default())
        .and_then(|session| Ethtool::new(session.device()).features())
        .map(|features| features.contains("tx-tcp-segmentation"));
    match on {
        Ok(true) => Check::wrong(
            what,
            format!("on at {peer}: what it sends bypasses the NAPI of {device}, and sockets have the NAPI id 0"),
            format!("ethtool -K {peer} tso off"),
        ),
        Ok(false) => Check::ok(what, format!("off at {peer}")),
        Err(error) => Check::unknown(what, error.to_string(), format!("ethtool -k {peer}")),
    }
}

fn coalescing(snapshot: &Snapshot, ethtool: &mut Ethtool) -> Check {
    let what = format!("interrupt coalescing of {}", snapshot.device);
    let (adaptive, usecs) = match (ethtool.get(Knob::AdaptiveRx), ethtool.get(Knob::RxUsecs)) {
        (Ok(adaptive), Ok(usecs)) => (adaptive.map_or(0, |it| it.value), usecs.map_or(0, |it| it.value)),
        (Err(error), _) | (_, Err(error)) => return Check::unknown(what, error.to_string(), "use `ethtool -c`"),
    };
    if adaptive == 0 && usecs == 0 {
        return Check::ok(what, "none on the receive side");
    }
    let found = if adaptive != 0 { "adaptive-rx is on".to_owned() } else { format!("rx-usecs is {usecs}") };
    let remedy = format!("ethtool -C {} adaptive-rx off rx-usecs 0, or `lull prepare`", snapshot.device);
    if snapshot.napis.iter().any(|napi| napi.settings.defers()) {
        return Check::wrong(
            what,
            format!(
                "{found}: the device holds interrupts back as well, so they are late where the mode wants them at once"
            ),
            remedy,
        );
    }
    Check::advice(what, format!("{found}: no matter now, but it fights a mode that defers or suspends"), remedy)
}

fn state_file(session: &Session) -> Check {
    let device = &session.device().name;
    let what = format!("state file of {device}");
    match session.state() {
        Ok(None) => Check::ok(what, "none: nothing was applied"),
        Ok(Some(state)) => {
            let applied = state.is_applied().then(|| format!("`lull undo {device}` gives back what was in force"));
            let prepared = (!state.prepared.is_empty())
                .then(|| format!("`lull prepare {device} --undo` gives back what was before it was prepared"));
            let remedies: Vec<String> = applied.into_iter().chain(prepared).collect();
            Check::ok(what, format!("there: {}", remedies.join(", ")))
        }
        Err(error) => refused(what, error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Verdict;

    #[test]
    fn a_taps_offloads_are_told_by_its_features() {
        let features = ["tx-checksum-ip-generic", "tx-tcp-segmentation"];
        assert_eq!(tap("tap0", &|feature| features.contains(&feature)).verdict, Verdict::Ok);
        let half = tap("tap0", &|feature| feature == features[0]);
        assert_eq!(half.verdict, Verdict::Advice);
        assert!(half.remedy.is_some_and(|remedy| remedy.contains("--offloads on")));
    }
}
