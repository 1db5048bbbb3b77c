//! Prints a group of CPUs, for `lull group` and `lull show`.

use lull_control::schema::Group;
use lull_units::counted;

use crate::output::{WriteError, outln};

/// Prints a group with its members and pollers.
pub fn print(group: &Group) -> Result<(), WriteError> {
    let rest = group.rest_ns.map_or("never rests".to_owned(), |ns| format!("rests after {} us", ns / 1_000));
    let percent =
        |percent: Option<u32>| percent.map_or("without limit".to_owned(), |percent| format!("{percent} % of a CPU"));
    outln!(
        "group {}: {}, {}{}, {rest}; empty passes {}, all passes {}; wakes above {} %, parks below {} %",
        group.index,
        counted(group.members.len(), "NAPI"),
        counted(group.pollers.len(), "CPU"),
        group.node.map_or(String::new(), |node| format!(" of node {node}")),
        percent(group.empty_percent),
        percent(group.total_percent),
        group.wake_above,
        group.park_below
    )?;
    for member in &group.members {
        let (queue, weight, polls) = (member.queue, member.weight, member.polls);
        outln!("  NAPI {} ({}:{queue}), weight {weight}: {polls} polls", member.napi_id, member.device)?;
    }
    for poller in &group.pollers {
        let core = poller.core.map_or("any".to_owned(), |core| core.to_string());
        let stats = &poller.stats;
        outln!(
            "  core {core} (thread {}): {}; {} polls, {} of them stray, {} found a lock held; {} transmits of {} frames, {} \
             doorbells; {:.1} ms busy, {:.1} ms empty; woke others {} times, parked {}, rested {}, yielded {}",
            poller.thread,
            poller.state,
            stats.polls,
            stats.strays,
            stats.locked,
            stats.transmits,
            stats.tx_frames,
            stats.doorbells,
            stats.busy_ns as f64 / 1e6,
            stats.empty_ns as f64 / 1e6,
            stats.wakes,
            stats.parks,
            stats.rests,
            stats.yields
        )?;
        // The core reports the age of a claim from 1 ms on (§15).
        if let Some(age_ns) = poller.claim_age_ns.filter(|age_ns| *age_ns > lull_core::group::STALLED_NS) {
            outln!("    it has held its member for {:.1} ms: other threads have its core", age_ns as f64 / 1e6)?;
        }
    }
    Ok(())
}
