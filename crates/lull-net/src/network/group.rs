//! The busy-polling CPU group that polls a network's queues, where a mode asks for one.

use lull_core::mode::GroupPolling;
use lull_core::settings::WEIGHT_DEFAULT;
use lull_host::{GroupId, GroupOptions, HostError};

use super::{Network, NetworkError, lock};

impl Network {
    /// What can be refused before anything is changed.
    pub(super) fn check_group(&self, wanted: Option<GroupPolling>) -> Result<(), NetworkError> {
        if wanted.is_some() && self.0.group_cpus.as_ref().is_none_or(|group| group.cpus.is_empty()) {
            return Err(NetworkError::NoGroupCpus { device: self.0.device.info().name });
        }
        Ok(())
    }

    /// Makes the group that is wanted, unless it is the one that polls now: what an operator has made of that stays. Where no group
    /// polls, it gets its CPUs at once, so that a refusal has changed nothing.
    pub(super) fn make_group(&self, wanted: Option<GroupPolling>) -> Result<Option<GroupId>, NetworkError> {
        let current = *lock(&self.0.group);
        let (Some(polling), Some(given)) = (wanted, &self.0.group_cpus) else { return Ok(None) };
        if current.is_some_and(|(_, current)| current == polling) {
            return Ok(None);
        }
        let mut options: GroupOptions = given.options;
        options.config.rest_ns = polling.rest_ns;
        let id = self.0.host.new_group(options)?;
        if current.is_none()
            && let Err(error) = self.attach_cpus(id)
        {
            self.0.host.remove_group(id)?;
            return Err(error);
        }
        Ok(Some(id))
    }

    fn attach_cpus(&self, id: GroupId) -> Result<(), NetworkError> {
        let cpus = self.0.group_cpus.iter().flat_map(|given| &given.cpus);
        cpus.into_iter().try_for_each(|cpu| self.0.host.group_attach(id, *cpu)).map_err(NetworkError::from)
    }

    /// Ends the group that polls now, unless it is the one that is wanted.
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

    /// All queues become members of the group that was made. One that a panic took down leaves the others alone.
    pub(super) fn fill_group(&self, id: GroupId, polling: GroupPolling) -> Result<(), NetworkError> {
        let host = &self.0.host;
        if host.groups().iter().any(|group| group.id == id && group.pollers.is_empty()) {
            self.attach_cpus(id)?;
        }
        let transmits = if polling.transmit { self.transmit_napis() } else { Vec::new() };
        let receives = self.0.queues.iter().map(|queue| queue.napi());
        for napi in receives.chain(transmits) {
            match host.group_add(id, napi, WEIGHT_DEFAULT) {
                Ok(()) | Err(HostError::Failed { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        *lock(&self.0.group) = Some((id, polling));
        Ok(())
    }
}
