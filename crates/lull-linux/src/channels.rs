//! The number of receive queues of a device (`ethtool -L`), which is limited for as long as a program runs, and given
//! back.
//!
//! The state file has the former number beside the settings of the NAPIs. An undo gives the queues back first, because
//! a queue that is taken away shows no NAPI to which anything could be given back.

use std::fmt;

use serde::Serialize;

use crate::error::{Error, Result};
use crate::ethtool::{Ethtool, Knob};
use crate::session::Session;
use crate::state::{FormerQueues, State};

/// A change of the number of queues.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct QueuesChange {
    /// The device.
    pub device: String,
    /// Which queues.
    pub knob: Knob,
    /// How many queues there were.
    pub from: u32,
    /// How many queues there are afterwards.
    pub to: u32,
}

impl fmt::Display for QueuesChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}: {} -> {}", self.knob, self.device, self.from, self.to)
    }
}

/// The number of queues on which packets are received, in the form in which the driver can set it: combined queues, or
/// else receive queues.
///
/// # Errors
/// [`Error::Unsupported`] if the driver cannot set either.
pub fn receive_queues(session: &Session) -> Result<(Knob, u32)> {
    let mut ethtool = Ethtool::new(session.device());
    for knob in [Knob::CombinedQueues, Knob::RxQueues] {
        if let Some(reading) = ethtool.get(knob)?.filter(|reading| reading.value != 0) {
            return Ok((knob, reading.value));
        }
    }
    let device = &session.device().name;
    Err(Error::Unsupported {
        what: format!("set the number of receive queues of {device}"),
        reason: format!("its driver has none to set (`ethtool -l {device}`)"),
        remedy: "`--one-napi timeout` shortens the stall instead".to_owned(),
    })
}

/// Gives the device `to` receive queues. What it had before is on the disk first.
///
/// # Errors
/// The driver's refusal, after which the state file is as it was; [`Error::Locked`]; those of the state file.
pub fn set_receive_queues(session: &mut Session, to: u32) -> Result<Option<QueuesChange>> {
    let _lock = session.locked()?;
    let (knob, from) = receive_queues(session)?;
    if from == to {
        return Ok(None);
    }
    let before = session.store().load()?;
    let mut state = before.clone().unwrap_or_else(|| session.store().empty());
    // A number that is there already is the original one.
    state.queues.get_or_insert(FormerQueues { knob, former: from });
    session.store().save(&state).map_err(|error| error.left("nothing was changed"))?;
    if let Err(refused) = Ethtool::new(session.device()).set(knob, to) {
        session.store().save(&before.unwrap_or_else(|| session.store().empty()))?;
        return Err(refused);
    }
    Ok(Some(QueuesChange { device: session.device().name.clone(), knob, from, to }))
}

/// The change that giving the queues back would make, if there is something to give back.
pub(crate) fn change_back(session: &Session, state: &State) -> Result<Option<QueuesChange>> {
    let Some(FormerQueues { knob, former }) = state.queues else { return Ok(None) };
    let now = Ethtool::new(session.device()).get(knob)?.map_or(former, |reading| reading.value);
    let device = session.device().name.clone();
    Ok((now != former).then_some(QueuesChange { device, knob, from: now, to: former }))
}

/// Gives the queues back. If that worked, the state no longer has them.
pub(crate) fn give_back(session: &Session, state: &mut State) -> Result<Option<QueuesChange>> {
    let change = change_back(session, state)?;
    if let Some(change) = &change {
        Ethtool::new(session.device()).set(change.knob, change.to)?;
    }
    state.queues = None;
    Ok(change)
}
