//! The busy-polling CPU group that polls a network's queues, where a mode asks for one.

use lull_core::mode::GroupPolling;
use lull_core::settings::WEIGHT_DEFAULT;
use lull_host::{GroupId, GroupOptions, HostError};

use super::{Network, NetworkError, lock};

impl Network {
    /// Checks what can be refused before anything is changed.
    pub(super) fn check_group(&self, wanted: Option<GroupPolling>) -> Result<(), NetworkError> {
        if wanted.is_some() && self.0.group_cpus.as_ref().is_none_or(|group| group.cpus.is_empty()) {
            return Err(NetworkError::NoGroupCpus { device: self.0.device.info().name });
        }
        Ok(())
    }

    /// Makes the group that is wanted, unless it is the one that polls now, in which an operator's changes stay. It
    /// gets its CPUs at once, so that a refusal has changed nothing. Only the CPUs of the group that polls now follow
    /// later, as they are free when that group has ended.
    pub(super) fn make_group(&self, wanted: Option<GroupPolling>) -> Result<Option<GroupId>, NetworkError> {
        let current = *lock(&self.0.group);
        let (Some(polling), Some(given)) = (wanted, &self.0.group_cpus) else { return Ok(None) };
        if current.is_some_and(|(_, current)| current == polling) {
            return Ok(None);
        }
        let mut options: GroupOptions = given.options;
        options.config.rest_ns = polling.rest_ns;
        let id = self.0.host.new_group(options)?;
        let of_current = current.map_or_else(Vec::new, |(current, _)| self.cpus_of(current));
        if let Err(error) = self.attach_cpus_but(&of_current, id) {
            self.0.host.remove_group(id)?;
            return Err(error);
        }
        Ok(Some(id))
    }

    /// The CPUs that a group has now.
    fn cpus_of(&self, id: GroupId) -> Vec<u16> {
        let groups = self.0.host.groups();
        let pollers = groups.iter().filter(|group| group.id == id).flat_map(|group| &group.pollers);
        pollers.map(|poller| poller.info.cpu).collect()
    }

    fn attach_cpus_but(&self, others: &[u16], id: GroupId) -> Result<(), NetworkError> {
        let cpus = self.0.group_cpus.iter().flat_map(|given| &given.cpus).filter(|cpu| !others.contains(cpu));
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

    /// Makes all queues members of the group that was made. A queue that a panic took down leaves the others alone.
    pub(super) fn fill_group(&self, id: GroupId, polling: GroupPolling) -> Result<(), NetworkError> {
        let host = &self.0.host;
        self.attach_cpus_but(&self.cpus_of(id), id)?;
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
