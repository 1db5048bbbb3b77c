//! The busy-polling CPU group that polls a network's queues, where a mode asks for one.

use lull_core::mode::GroupPolling;
use lull_core::settings::WEIGHT_DEFAULT;
use lull_host::GroupOptions;

use super::{Network, NetworkError, lock};

impl Network {
    /// What can be refused before anything is changed.
    pub(super) fn check_group(&self, wanted: Option<GroupPolling>) -> Result<(), NetworkError> {
        if wanted.is_some() && self.0.group_cpus.as_ref().is_none_or(|group| group.cpus.is_empty()) {
            return Err(NetworkError::NoGroupCpus { device: self.0.device.info().name });
        }
        Ok(())
    }

    /// Ends the group that polls now, unless it is the one that is wanted: what an operator has made of that stays.
    pub(super) fn leave_other_group(&self, wanted: Option<GroupPolling>) -> Result<(), NetworkError> {
        let mut current = lock(&self.0.group);
        if let Some((id, polling)) = *current
            && wanted != Some(polling)
        {
            *current = None;
            self.0.host.remove_group(id)?;
        }
        Ok(())
    }

    /// Makes the group that is wanted, and all queues its members; or leaves everything to interrupts and fails.
    pub(super) fn enter_group(&self, wanted: Option<GroupPolling>) -> Result<(), NetworkError> {
        let mut current = lock(&self.0.group);
        let (Some(polling), None, Some(given)) = (wanted, *current, &self.0.group_cpus) else { return Ok(()) };
        let mut options: GroupOptions = given.options;
        options.config.rest_ns = polling.rest_ns;
        let host = &self.0.host;
        let id = host.new_group(options)?;
        let filled = given.cpus.iter().try_for_each(|cpu| host.group_attach(id, *cpu)).and_then(|()| {
            let transmits = if polling.transmit { self.transmit_napis() } else { Vec::new() };
            let receives = self.0.queues.iter().map(|queue| queue.napi());
            receives.chain(transmits).try_for_each(|napi| host.group_add(id, napi, WEIGHT_DEFAULT))
        });
        if let Err(error) = filled {
            host.remove_group(id)?;
            return Err(error.into());
        }
        *current = Some((id, polling));
        Ok(())
    }
}
