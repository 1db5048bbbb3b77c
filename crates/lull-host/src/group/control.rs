//! What an operator does to groups: make them, attach and detach CPUs, add and remove NAPIs, while they poll.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use lull_core::group::watch::GROUP_POLLERS_MAX;
use lull_core::group::{AttachRefused, EnterRefused, Entered, GROUP_MEMBERS_MAX, PollerInfo, Removal};
use lull_core::{Cx, Group, Threaded, state};

use crate::affinity::usable_cores;
use crate::delivery::{Delivery, Instance};
use crate::error::HostError;
use crate::group::error::GroupError;
use crate::group::nodes::node_of;
use crate::group::parts::{GroupId, GroupInfo, GroupOptions, GroupPollerInfo, HostGroup, PollerThread, membership};
use crate::group::thread;
use crate::host::Host;
use crate::parker::Parker;
use crate::registry::NapiChange;
use crate::sync::{Mutex, a_short_while, relock, thread::current};

/// How long to wait for an owner that was asked to yield. Softirq yields within a poll; only a busy poller that is
/// never out of its loop takes longer.
const OWNED_MAX: Duration = Duration::from_secs(2);

impl Host {
    /// Makes a group, without CPUs and members.
    ///
    /// # Errors
    /// Options outside their limits.
    pub fn new_group(&self, options: GroupOptions) -> Result<GroupId, HostError> {
        let _control = relock(&self.inner().control);
        let mut groups = self.inner().groups.write().unwrap_or_else(|poisoned| poisoned.into_inner());
        let index = groups.len() as u32;
        let group = Group::new(index, options.config).map_err(GroupError::Config)?;
        groups.push(Some(Arc::new(HostGroup {
            group,
            options,
            threads: Mutex::new([const { None }; GROUP_POLLERS_MAX]),
            node: Mutex::new(None),
        })));
        Ok(GroupId(index))
    }

    /// Attaches a CPU to a group, and starts its poller.
    ///
    /// # Errors
    /// No such group or CPU, the CPU is in a group or on another node, no core would be left, or the thread cannot be started.
    pub fn group_attach(&self, id: GroupId, cpu: u16) -> Result<(), HostError> {
        let inner = self.inner();
        let _control = relock(&inner.control);
        let group = inner.group(id)?;
        let index = id.0;
        if usize::from(cpu) >= inner.cpu_count() {
            return Err(GroupError::NoCpu { group: index, cpu, last: inner.cpu_count() - 1 }.into());
        }
        let all = inner.all_groups();
        let pollers = |group: &HostGroup| group.group.pollers();
        if let Some(by) = all.iter().find(|other| pollers(other).iter().any(|poller| poller.cpu == cpu)) {
            return Err(GroupError::CpuTaken { group: index, cpu, by: by.group.index() }.into());
        }
        let (there, cores) = (all.iter().map(|group| pollers(group).len()).sum::<usize>(), usable_cores().len());
        if there + 1 >= cores && !group.options.oversubscribe {
            return Err(GroupError::Oversubscribed { group: index, cpu, pollers: there + 1, cores }.into());
        }
        let node = inner.cpu(cpu).core.and_then(node_of);
        inner.same_node(&group, node, || format!("CPU {cpu}"))?;
        self.start_poller(&group, cpu)?;
        relock(&group.node).get_or_insert_with(|| node.unwrap_or(0));
        Ok(())
    }

    fn start_poller(&self, group: &Arc<HostGroup>, cpu: u16) -> Result<(), HostError> {
        let inner = self.inner();
        let os = |source| HostError::Os { what: format!("start the poller of CPU {cpu}"), source };
        let parker = Arc::new(Parker::new().map_err(os)?);
        let cx = inner.cx(cpu, self.now_ns());
        let poller = group.group.attach(cpu, &cx).map_err(|refused| match refused {
            AttachRefused::Full => GroupError::PollersFull { group: group.group.index(), max: GROUP_POLLERS_MAX },
            _ => GroupError::CpuTaken { group: group.group.index(), cpu, by: group.group.index() },
        })?;
        let slot = usize::from(poller.slot());
        // The thread is listed before anybody can wake it; what it is listed with is known once it runs.
        relock(&group.threads)[slot] = Some(PollerThread { parker: parker.clone(), tid: 0, join: current().id(), cpu });
        match thread::start(inner, group.clone(), poller, cpu, parker) {
            Ok((join, tid)) => {
                if let Some(thread) = &mut relock(&group.threads)[slot] {
                    (thread.tid, thread.join) = (tid, join.thread().id());
                }
                relock(&inner.joins).push(join);
                Ok(())
            }
            Err(source) => {
                // No other poller was woken on its account: operators take turns, and pollers wake only those that are
                // needed.
                self.give_up_poller(group, cpu);
                Err(os(source))
            }
        }
    }

    /// The thread of a CPU that was just attached could not be started: its place is drained here.
    fn give_up_poller(&self, group: &Arc<HostGroup>, cpu: u16) {
        let inner = self.inner();
        if let Ok(wake) = group.group.detach(cpu) {
            let cx = inner.cx(cpu, self.now_ns());
            if let Some(heir) = group.group.drained(wake.slot, &cx) {
                inner.wake_poller(group, &heir);
            }
            relock(&group.threads)[usize::from(wake.slot)] = None;
        }
    }

    /// Detaches a CPU from a group. Its poller lets go of everything first, and its thread has ended on return. If it is the
    /// last, all members leave first: they go back to interrupts.
    ///
    /// # Errors
    /// No such group, or it does not have the CPU.
    pub fn group_detach(&self, id: GroupId, cpu: u16) -> Result<(), HostError> {
        let control = relock(&self.inner().control);
        let group = self.inner().group(id)?;
        let left = self.detach(&group, cpu)?;
        drop(control);
        self.tell(left);
        Ok(())
    }

    fn detach(&self, group: &Arc<HostGroup>, cpu: u16) -> Result<Vec<(u32, u32)>, HostError> {
        let inner = self.inner();
        let index = group.group.index();
        let mut left = Vec::new();
        let wake = match group.group.detach(cpu) {
            Err(AttachRefused::Last) => {
                for member in group.group.members() {
                    if let Some(instance) = inner.instance(member.napi).map(|found| found.clone()) {
                        self.take_out_of_group(group, &instance, true)?;
                        left.push((instance.device.ifindex(), instance.napi.id()));
                    }
                }
                group.group.detach(cpu)
            }
            other => other,
        };
        let wake = wake.map_err(|_| GroupError::NotAttached { group: index, cpu })?;
        inner.wake_poller(group, &wake);
        let thread = relock(&group.threads)[usize::from(wake.slot)].as_ref().map(|thread| (thread.join, thread.tid));
        if let Some((join, tid)) = thread {
            let ended = {
                let mut joins = relock(&inner.joins);
                joins.extract_if(.., |handle| handle.thread().id() == join).collect::<Vec<_>>()
            };
            // A delivery thread that panics ends the process.
            ended.into_iter().for_each(|handle| drop(handle.join()));
            relock(&inner.threads).retain(|known| known.tid != tid);
        }
        relock(&group.threads)[usize::from(wake.slot)] = None;
        if group.group.pollers().is_empty() {
            *relock(&group.node) = None;
        }
        Ok(left)
    }

    /// Makes an instance a member of a group: from now on its pollers alone poll it, up to `weight` packets a visit. It stays a
    /// member over a disable and a reset.
    ///
    /// # Errors
    /// No such group, the group has no CPU or no room, the instance was removed, is in a group, has a NAPI thread, has an owner
    /// that does not let go of it, or a panic took its queue down.
    pub fn group_add(&self, id: GroupId, napi: u32, weight: u32) -> Result<(), HostError> {
        let inner = self.inner();
        let control = relock(&inner.control);
        let group = inner.group(id)?;
        let instance = self.found(napi)?;
        inner.refuse_failed(&instance)?;
        if !(1..=instance.napi.weight()).contains(&weight) {
            return Err(GroupError::Weight { weight, max: instance.napi.weight() }.into());
        }
        if let Some((by, _)) = self.kept_membership(&instance)? {
            return Err(GroupError::NapiTaken { group: id.0, napi, by }.into());
        }
        if self.kept_settings(&instance)?.threaded != Threaded::Off {
            return Err(GroupError::Threaded { group: id.0, napi }.into());
        }
        let node = inner.cpu(instance.cpu()).core.and_then(node_of);
        inner.same_node(&group, node, || format!("NAPI {napi}"))?;
        if instance.enabled.load(Ordering::Relaxed) {
            inner.enter_group(&group, &instance, weight)?;
        } else if group.group.pollers().is_empty() {
            return Err(GroupError::NoPoller { group: id.0, napi }.into());
        }
        relock(&inner.devices).get_mut(instance.device)?.groups[instance.queue] = Some((id.0, weight));
        let (ifindex, id) = (instance.device.ifindex(), instance.napi.id());
        drop(control);
        inner.registry.tell(NapiChange::Settings { ifindex, id });
        Ok(())
    }

    /// Takes an instance out of its group: it goes back to interrupts, or to the deferral that its settings ask for.
    ///
    /// # Errors
    /// No such group, or the instance is not in it.
    pub fn group_remove(&self, id: GroupId, napi: u32) -> Result<(), HostError> {
        let control = relock(&self.inner().control);
        let group = self.inner().group(id)?;
        let instance = self.found(napi)?;
        if self.kept_membership(&instance)?.is_none_or(|(of, _)| of != id.0) {
            return Err(GroupError::NotMember { group: id.0, napi }.into());
        }
        self.take_out_of_group(&group, &instance, true)?;
        let changed = (instance.device.ifindex(), instance.napi.id());
        drop(control);
        self.tell(vec![changed]);
        Ok(())
    }

    /// Removes a group: its members leave, its CPUs are detached.
    ///
    /// # Errors
    /// No such group.
    pub fn remove_group(&self, id: GroupId) -> Result<(), HostError> {
        let inner = self.inner();
        let control = relock(&inner.control);
        let group = inner.group(id)?;
        let mut left = Vec::new();
        for poller in group.group.pollers() {
            left.extend(self.detach(&group, poller.cpu)?);
        }
        for device in relock(&inner.devices).all_mut() {
            for kept in &mut device.groups {
                *kept = kept.filter(|(of, _)| *of != id.0);
            }
        }
        inner.groups.write().unwrap_or_else(|poisoned| poisoned.into_inner())[id.0 as usize] = None;
        drop(control);
        self.tell(left);
        Ok(())
    }

    /// Lists all groups.
    pub fn groups(&self) -> Vec<GroupInfo> {
        let inner = self.inner();
        let now_ns = self.now_ns();
        let info = |group: Arc<HostGroup>| {
            let threads = relock(&group.threads);
            let tid =
                |cpu: u16| threads.iter().flatten().find(|thread| thread.cpu == cpu).map_or(0, |thread| thread.tid);
            let poller = |info: PollerInfo| GroupPollerInfo {
                info,
                core: inner.cpu(info.cpu).core,
                tid: tid(info.cpu),
                claim_age_ns: info.serves.map(|(_, since_ns)| now_ns.saturating_sub(since_ns)),
            };
            GroupInfo {
                id: GroupId(group.group.index()),
                options: group.options,
                node: *relock(&group.node),
                members: group.group.members().map(|member| (member.napi, group.group.weight(member.slot))).collect(),
                pollers: group.group.pollers().into_iter().map(poller).collect(),
                census: group.group.census(),
            }
        };
        inner.all_groups().into_iter().map(info).collect()
    }

    fn tell(&self, changed: Vec<(u32, u32)>) {
        for (ifindex, id) in changed {
            self.inner().registry.tell(NapiChange::Settings { ifindex, id });
        }
    }

    /// The group and weight that the queue of an instance keeps, over a disable as well.
    pub(crate) fn kept_membership(&self, instance: &Instance) -> Result<Option<(u32, u32)>, HostError> {
        Ok(relock(&self.inner().devices).get_mut(instance.device)?.groups[instance.queue])
    }

    fn kept_settings(&self, instance: &Instance) -> Result<lull_core::NapiSettings, HostError> {
        Ok(relock(&self.inner().devices).get_mut(instance.device)?.config.queue(instance.queue))
    }

    /// Refuses what a group's member cannot have. The control lock is held.
    pub(crate) fn refuse_threaded_member(&self, instance: &Instance, threaded: Threaded) -> Result<(), HostError> {
        match self.kept_membership(instance)? {
            Some((group, _)) if threaded != Threaded::Off => {
                Err(GroupError::Grouped { napi: instance.napi.index(), group }.into())
            }
            _ => Ok(()),
        }
    }

    /// Has a member leave: on return nobody of the group polls it any more. With `for_good` it does not come back when
    /// it is enabled. The control lock is held.
    pub(crate) fn take_out_of_group(
        &self,
        group: &Arc<HostGroup>,
        instance: &Instance,
        for_good: bool,
    ) -> Result<(), HostError> {
        let inner = self.inner();
        if for_good {
            relock(&inner.devices).get_mut(instance.device)?.groups[instance.queue] = None;
        }
        let Some((_, slot)) = inner.group_of(instance) else { return Ok(()) };
        let cx = inner.cx(instance.cpu(), self.now_ns());
        match group.group.remove(slot, &instance.napi, &cx) {
            Removal::Mine(stop) => inner.leave_group(instance, stop),
            Removal::Holders | Removal::Absent => {
                while instance.napi.snapshot().has(state::GROUPED) {
                    a_short_while();
                }
            }
        }
        instance.group.store(0, Ordering::Release);
        Ok(())
    }
}

impl Delivery {
    pub(crate) fn group(&self, id: GroupId) -> Result<Arc<HostGroup>, GroupError> {
        let groups = self.groups.read().unwrap_or_else(|poisoned| poisoned.into_inner());
        groups.get(id.0 as usize).cloned().flatten().ok_or(GroupError::NoGroup { group: id.0 })
    }

    pub(crate) fn all_groups(&self) -> Vec<Arc<HostGroup>> {
        self.groups.read().unwrap_or_else(|poisoned| poisoned.into_inner()).iter().flatten().cloned().collect()
    }

    fn same_node(&self, group: &HostGroup, node: Option<usize>, what: impl Fn() -> String) -> Result<(), GroupError> {
        match (*relock(&group.node), node) {
            (Some(of), Some(node)) if node != of && !group.options.any_node => {
                Err(GroupError::OtherNode { group: group.group.index(), what: what(), node, of })
            }
            _ => Ok(()),
        }
    }

    /// A transmit queue has two words, its own and its NAPI's: the group becomes its runner first, and takes that back
    /// if the NAPI does not enter.
    fn try_enter(
        &self,
        group: &HostGroup,
        instance: &Instance,
        weight: u32,
        cx: &Cx<'_>,
    ) -> Result<Entered, EnterRefused> {
        let Some(transmitter) = instance.receiver.transmitter() else {
            return group.group.enter(&instance.napi, weight, cx);
        };
        transmitter.group_enter().map_err(|_| EnterRefused::Owned)?;
        let entered = group.group.enter_transmit(&instance.napi, weight, cx);
        if entered.is_err() {
            transmitter.group_leave(self);
        }
        entered
    }

    /// An enabled instance enters a group. The control lock is held.
    pub(crate) fn enter_group(
        &self,
        group: &Arc<HostGroup>,
        instance: &Instance,
        weight: u32,
    ) -> Result<(), HostError> {
        let (index, napi) = (group.group.index(), instance.napi.index());
        let began = Instant::now();
        let entered = loop {
            let cx = self.cx(instance.cpu(), self.clock.now_ns());
            match self.try_enter(group, instance, weight, &cx) {
                Ok(entered) => break entered,
                Err(EnterRefused::Owned | EnterRefused::Disabled) if began.elapsed() < OWNED_MAX => {
                    // It is enabled: only a panic takes it away meanwhile.
                    self.refuse_failed(instance)?;
                    a_short_while();
                }
                Err(EnterRefused::Owned | EnterRefused::Disabled) => {
                    let waited_ms = began.elapsed().as_millis() as u64;
                    return Err(GroupError::Owned { group: index, napi, waited_ms }.into());
                }
                Err(EnterRefused::Full) => {
                    return Err(GroupError::MembersFull { group: index, napi, max: GROUP_MEMBERS_MAX }.into());
                }
                Err(EnterRefused::NoCpu) => return Err(GroupError::NoPoller { group: index, napi }.into()),
                Err(EnterRefused::Threaded) => return Err(GroupError::Threaded { group: index, napi }.into()),
                Err(refused) => unreachable!("NAPI {napi} is in no group by the host's books: {refused:?}"),
            }
        };
        // The interrupt is masked, as after a schedule; the first visit polls what came before.
        instance.vector.mask();
        instance.group.store(membership(index, entered.slot), Ordering::Release);
        if let Some(wake) = entered.wake {
            self.wake_poller(group, &wake);
        }
        // An interrupt that found the instance GROUPED but not yet listed went nowhere.
        self.member_raised(instance, &self.cx(instance.cpu(), self.clock.now_ns()));
        Ok(())
    }
}
