//! The queues over which a device spreads the flows that it receives: the indirection table of its receive-side scaling
//! (`ethtool -x`, `-X`) is narrowed for as long as a program runs, and given back.
//!
//! As with the number of queues (`channels.rs`), the former table is in the state file before the first change.

use std::collections::BTreeSet;
use std::fmt;

use serde::Serialize;

use crate::channels::receive_queues;
use crate::error::{Error, Result};
use crate::os;
use crate::session::Session;
use crate::state::{FormerTable, State};

/// A change of the queues over which flows are spread.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FlowsChange {
    /// The device.
    pub device: String,
    /// Over how many queues they were spread.
    pub from: usize,
    /// Over how many queues they are spread afterwards.
    pub to: usize,
}

impl fmt::Display for FlowsChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "queues with flows of {}: {} -> {}", self.device, self.from, self.to)
    }
}

/// The indirection table of the device.
///
/// # Errors
/// [`Error::Unsupported`] if the driver has none.
fn table(session: &mut Session) -> Result<Vec<u32>> {
    // The ioctl takes the device's name.
    let device = session.name_now()?;
    os::indirection_table(&device).map_err(|error| match error.raw_os_error() {
        Some(libc::EOPNOTSUPP) => Error::Unsupported {
            what: format!("steer the flows of {device}"),
            reason: format!("its driver has no indirection table (`ethtool -x {device}`)"),
            remedy: format!(
                "`--one-napi queues` or `--one-napi timeout` instead, or, where the driver takes rules, a flow at a time: \
                 `ethtool -N {device} flow-type tcp4 dst-port PORT action QUEUE`"
            ),
        },
        _ => Error::os(format!("read the indirection table of {device}"), "`ethtool -x` shows it", error),
    })
}

fn set(session: &mut Session, table: &[u32]) -> Result<()> {
    let device = session.name_now()?;
    os::set_indirection_table(&device, table).map_err(|error| {
        Error::os(format!("set the indirection table of {device}"), "`ethtool -X` says what the driver takes", error)
    })
}

fn spread(table: &[u32]) -> usize {
    table.iter().collect::<BTreeSet<_>>().len()
}

/// Whether this is the default table (`ethtool_rxfh_indir_default`).
fn is_default(table: &[u32], queues: u32) -> bool {
    table.iter().zip(0..).all(|(&queue, entry): (_, u32)| queue == entry % queues.max(1))
}

/// Over how many queues the device spreads flows.
///
/// # Errors
/// [`Error::Unsupported`] if the driver has no indirection table.
pub fn queues_with_flows(session: &mut Session) -> Result<u32> {
    Ok(u32::try_from(spread(&table(session)?)).unwrap_or(u32::MAX))
}

/// Spreads the flows over the first `to` queues. What there was before is on the disk first.
///
/// # Errors
/// The driver's refusal, after which the state file is as it was; [`Error::Locked`]; those of the state file.
pub fn steer(session: &mut Session, to: u32) -> Result<Option<FlowsChange>> {
    let _lock = session.locked()?;
    let now = table(session)?;
    let wanted: Vec<u32> = (0..).take(now.len()).map(|entry: u32| entry % to.max(1)).collect();
    if now == wanted {
        return Ok(None);
    }
    let change = FlowsChange { device: session.device().name.clone(), from: spread(&now), to: spread(&wanted) };
    let before = session.store().load()?;
    let mut state = before.clone().unwrap_or_else(|| session.store().empty());
    let default = receive_queues(session).is_ok_and(|(_, queues)| is_default(&now, queues));
    // A table that is there already is the original one.
    state.flows.get_or_insert(FormerTable { table: now, default });
    session.store().save(&state).map_err(|error| error.left("nothing was changed"))?;
    if let Err(refused) = set(session, &wanted) {
        session.store().save(&before.unwrap_or_else(|| session.store().empty()))?;
        return Err(refused);
    }
    Ok(Some(change))
}

/// The change that giving the flows back would make, if there is something to give back.
pub(crate) fn change_back(session: &mut Session, state: &State) -> Result<Option<FlowsChange>> {
    let Some(former) = &state.flows else { return Ok(None) };
    let now = table(session)?;
    let device = session.device().name.clone();
    Ok((now != former.table).then(|| FlowsChange { device, from: spread(&now), to: spread(&former.table) }))
}

/// Gives the flows back. If that worked, the state no longer has them.
pub(crate) fn give_back(session: &mut Session, state: &mut State) -> Result<Option<FlowsChange>> {
    let change = change_back(session, state)?;
    if let (Some(_), Some(former)) = (&change, &state.flows) {
        set(session, if former.default { &[] } else { &former.table })?;
    }
    state.flows = None;
    Ok(change)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_drivers_own_table_is_known() {
        assert!(is_default(&[0, 1, 2, 0, 1, 2, 0], 3) && is_default(&[0, 0], 1));
        assert!(!is_default(&[0, 1, 0, 1], 4) && !is_default(&[0, 0], 2));
        assert_eq!((spread(&[0, 1, 0, 1]), spread(&[2, 2])), (2, 1));
    }
}
