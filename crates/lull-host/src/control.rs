//! What an operator does to devices and instances: make them known, enable, disable, set.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use lull_core::{DeviceConfig, DisableClaim, NapiSettings, Schedule, Threaded, ThreadedOff};
use lull_nic::IrqSink;

use crate::delivery::{Delivery, Instance, NapiBinding, NapiThreadHandle};
use crate::devices::{Device, DeviceId};
use crate::error::HostError;
use crate::group::error::GroupError;
use crate::group::parts::GroupId;
use crate::host::Host;
use crate::parker::Parker;
use crate::registry::NapiChange;
use crate::sinks::{RoomSink, VectorSink};
use crate::sync::{a_short_while, relock};
use crate::threads;

impl Host {
    /// Makes a device known. `persistent` says whether its queues keep their settings and ids over a disable.
    pub fn add_device(&self, name: &str, queues: usize, persistent: bool) -> DeviceId {
        let mut devices = relock(&self.inner().devices);
        devices.add(Device {
            name: name.to_owned(),
            config: DeviceConfig::new(queues, persistent),
            napis: vec![None; queues],
            groups: vec![None; queues],
        })
    }

    /// The device's index, as NAPIs are keyed by.
    pub fn ifindex(&self, device: DeviceId) -> u32 {
        device.ifindex()
    }

    /// Makes the instance of a queue, disabled. Returns its place in the host's table.
    ///
    /// # Errors
    /// No such CPU, the table is full, or the interrupt's descriptor cannot be watched.
    pub fn add_napi(&self, binding: NapiBinding) -> Result<u32, HostError> {
        let inner = self.inner();
        if usize::from(binding.cpu) >= inner.cpu_count() {
            return Err(HostError::NoCpu { cpu: binding.cpu, cpus: inner.cpu_count() });
        }
        let mut devices = relock(&inner.devices);
        let (queue, cpu) = (binding.queue, inner.cpu(binding.cpu));
        let device = devices.get_mut(binding.device)?;
        let Some(index) = inner.instances.reserve() else {
            let what = "NAPI instances (HostConfig::napis_max): remove those of devices that are gone, or raise it";
            return Err(HostError::Full { what, max: inner.instances.max() });
        };
        let instance = Instance::new(index, binding);
        if instance.vector.is_fd()
            && let Err(source) = cpu.add_fd_vector(&instance.vector, index)
        {
            inner.instances.release(index);
            return Err(HostError::Os { what: "watch the device's descriptor".to_owned(), source });
        }
        inner.instances.fill(index, instance.cpu(), instance.clone());
        inner.timed(cpu).put(&instance);
        device.napis[queue] = Some(index);
        drop(devices);
        // This comes last, because a line that was raised before raises at once.
        let sink = VectorSink { host: Arc::downgrade(inner), instance: Arc::downgrade(&instance) };
        instance.vector.line.connect(Arc::new(sink));
        Ok(index)
    }

    pub(crate) fn found(&self, index: u32) -> Result<Arc<Instance>, HostError> {
        let found = self.inner().instance(index).map(|found| found.clone());
        found.ok_or(HostError::Removed { napi: index })
    }

    /// Removes a disabled instance (`netif_napi_del`): its index leads nowhere any more, and its place is free for another.
    /// Sockets, contexts and lines that still have its index or its id find nothing. If it has a NAPI thread, the thread has
    /// ended on return; not to be called by that thread.
    ///
    /// # Errors
    /// It is enabled, or was removed already.
    pub fn remove_napi(&self, index: u32) -> Result<(), HostError> {
        let _control = relock(&self.inner().control);
        let instance = self.found(index)?;
        if instance.enabled.load(Ordering::Relaxed) {
            return Err(HostError::InUse { napi: index });
        }
        self.take_out(&instance);
        Ok(())
    }

    /// Removes a device, and the instances of its queues.
    ///
    /// # Errors
    /// One of them is enabled, and nothing was removed; or the device was removed already.
    pub fn remove_device(&self, device: DeviceId) -> Result<(), HostError> {
        let inner = self.inner();
        let _control = relock(&inner.control);
        let napis: Vec<u32> = relock(&inner.devices).get_mut(device)?.napis.iter().copied().flatten().collect();
        let instances = napis.into_iter().map(|index| self.found(index)).collect::<Result<Vec<_>, _>>()?;
        if let Some(enabled) = instances.iter().find(|instance| instance.enabled.load(Ordering::Relaxed)) {
            return Err(HostError::InUse { napi: enabled.napi.index() });
        }
        instances.iter().for_each(|instance| self.take_out(instance));
        relock(&inner.devices).remove(device);
        Ok(())
    }

    /// Nobody owns the instance, and nobody can become its owner: it is disabled, and the control lock is held. Whoever
    /// else still has it (a busy loop, an interrupt, a look at deadlines) finds it disabled, and keeps it until he is
    /// done with it.
    fn take_out(&self, instance: &Arc<Instance>) {
        let inner = self.inner();
        let index = instance.napi.index();
        if let Ok(device) = relock(&inner.devices).get_mut(instance.device) {
            device.napis[instance.queue].take_if(|napi| *napi == index);
        }
        inner.instances.remove(index, instance, || self.let_go(instance));
    }

    /// Whoever knows the instance other than by its index forgets it.
    fn let_go(&self, instance: &Arc<Instance>) {
        let inner = self.inner();
        inner.timed.iter().for_each(|listed| listed.take(instance));
        if instance.vector.is_fd() {
            inner.cpu(instance.cpu()).remove_fd_vector(&instance.vector, instance.napi.index());
        }
        if let Some(thread) = instance.thread.get() {
            instance.wake_thread(inner);
            let joins = {
                let mut joins = relock(&inner.joins);
                joins.extract_if(.., |join| join.thread().id() == thread.thread).collect::<Vec<_>>()
            };
            // A delivery thread that panics ends the process.
            joins.into_iter().for_each(|join| drop(join.join()));
            relock(&inner.threads).retain(|known| known.tid != thread.tid);
        }
    }

    /// Where the room interrupt of an instance's transmit ring goes ([`lull_nic::Queue::tx_irq`]): it schedules the
    /// instance. While the instance is disabled it is lost, as any interrupt: whoever enables it looks for room.
    pub fn room_sink(&self, index: u32) -> Arc<dyn IrqSink> {
        Arc::new(RoomSink { host: Arc::downgrade(self.inner()), napi: index })
    }

    /// `napi_enable`: gives the instance its id and settings, lets it go and unmasks its interrupt. One that was a member of a
    /// CPU group before is one again; where its group cannot have it any more, its membership ends, interrupts serve it, and
    /// stderr says so.
    ///
    /// # Errors
    /// It is enabled already, it was removed, a panic took its queue down, or its NAPI thread cannot be started.
    pub fn enable(&self, index: u32) -> Result<u32, HostError> {
        let inner = self.inner();
        let control = relock(&inner.control);
        let instance = &self.found(index)?;
        if instance.enabled.load(Ordering::Relaxed) {
            return Err(HostError::Enabled { napi: index });
        }
        inner.refuse_failed(instance)?;
        let (ifindex, id, settings) = {
            let mut devices = relock(&inner.devices);
            let device = devices.get_mut(instance.device)?;
            let (id, settings) = device.config.enabled(instance.queue, || inner.registry.fresh_id());
            (instance.device.ifindex(), id, settings)
        };
        if settings.threaded != Threaded::Off {
            self.start_napi_thread(instance)?;
        }
        instance.enabled.store(true, Ordering::Relaxed);
        instance.napi.enable(id, Some(&settings));
        inner.registry.enabled(ifindex, id, index);
        inner.unmask(instance, false);
        if settings.threaded == Threaded::BusyPoll {
            self.kick(instance);
        }
        self.re_enter_group(instance);
        drop(control);
        inner.registry.tell(NapiChange::Enabled { ifindex, id });
        Ok(id)
    }

    /// An instance that was a member before it was disabled is one again, if its group can have it. The control lock is held.
    fn re_enter_group(&self, instance: &Instance) {
        let inner = self.inner();
        let Ok(Some((group, weight))) = self.kept_membership(instance) else { return };
        let group = inner.group(GroupId::from_index(group)).map_err(HostError::from);
        let Err(why) = group.and_then(|group| inner.enter_group(&group, instance, weight)) else { return };
        if let Ok(device) = relock(&inner.devices).get_mut(instance.device) {
            device.groups[instance.queue] = None;
        }
        let queue = inner.queue_name(instance);
        // A log that cannot be written changes nothing.
        let _ =
            writeln!(std::io::stderr(), "lull: {queue} is enabled outside its group, and interrupts serve it: {why}");
    }

    /// `napi_disable`: waits until nobody owns the instance, and takes it. Settings are kept if the device keeps them.
    ///
    /// # Errors
    /// It was removed, or is not enabled: to wait for the owner would be to wait for the disable that came first.
    pub fn disable(&self, index: u32) -> Result<(), HostError> {
        let inner = self.inner();
        let control = relock(&inner.control);
        let instance = &self.found(index)?;
        if !instance.enabled.swap(false, Ordering::Relaxed) {
            return Err(HostError::Disabled { napi: index });
        }
        let id = instance.napi.id();
        instance.napi.disable_begin();
        instance.wake_thread(inner);
        if let Some((group, _)) = inner.group_of(instance) {
            self.take_out_of_group(&group, instance, false)?;
        }
        while instance.napi.disable_claim() == DisableClaim::Owned {
            a_short_while();
        }
        instance.vector.mask();
        instance.napi.disable_end(&inner.cx(instance.cpu(), self.now_ns()));
        let ifindex = {
            let mut devices = relock(&inner.devices);
            let device = devices.get_mut(instance.device)?;
            device.config.disabled(instance.queue, id);
            instance.device.ifindex()
        };
        inner.registry.disabled(ifindex, id);
        drop(control);
        inner.registry.tell(NapiChange::Disabled { ifindex, id });
        Ok(())
    }

    /// Settings of one instance (`napi-set`), in force from the next decision on and kept over a disable.
    ///
    /// # Errors
    /// A value above its limit, a NAPI thread that cannot be started, or the instance was removed; nothing is changed then.
    pub fn set_napi(&self, index: u32, settings: &NapiSettings) -> Result<(), HostError> {
        settings.check()?;
        let inner = self.inner();
        let control = relock(&inner.control);
        let instance = &self.found(index)?;
        self.refuse_threaded_member(instance, settings.threaded)?;
        if settings.threaded != Threaded::Off {
            self.start_napi_thread(instance)?;
        }
        let ifindex = {
            let mut devices = relock(&inner.devices);
            let device = devices.get_mut(instance.device)?;
            device.config.set_queue(instance.queue, settings)?;
            instance.device.ifindex()
        };
        self.put_in_force(instance, settings);
        drop(control);
        inner.registry.tell(NapiChange::Settings { ifindex, id: instance.napi.id() });
        Ok(())
    }

    /// Device-level settings (sysfs): overwrite every queue's, but for `irq_suspend_timeout`, which has no device level.
    ///
    /// # Errors
    /// As [`Host::set_napi`].
    pub fn set_device(&self, device: DeviceId, settings: &NapiSettings) -> Result<(), HostError> {
        settings.check()?;
        let inner = self.inner();
        let control = relock(&inner.control);
        let napis = {
            let mut devices = relock(&inner.devices);
            let device = devices.get_mut(device)?;
            if settings.threaded != Threaded::Off
                && let Some((napi, group)) = device.first_member()
            {
                return Err(GroupError::Grouped { napi, group }.into());
            }
            device.napis.clone()
        };
        let instances = napis.into_iter().flatten().map(|index| self.found(index)).collect::<Result<Vec<_>, _>>()?;
        if settings.threaded != Threaded::Off {
            instances.iter().try_for_each(|instance| self.start_napi_thread(instance))?;
        }
        let of_queues: Vec<NapiSettings> = {
            let mut devices = relock(&inner.devices);
            let device = devices.get_mut(device)?;
            device.config.set_device(settings)?;
            instances.iter().map(|instance| device.config.queue(instance.queue)).collect()
        };
        for (instance, settings) in instances.iter().zip(&of_queues) {
            self.put_in_force(instance, settings);
        }
        drop(control);
        for instance in &instances {
            let (ifindex, id) = (instance.device.ifindex(), instance.napi.id());
            inner.registry.tell(NapiChange::Settings { ifindex, id });
        }
        Ok(())
    }

    fn put_in_force(&self, instance: &Instance, settings: &NapiSettings) {
        let before = instance.napi.settings().threaded;
        instance.napi.set(settings);
        if before == settings.threaded || instance.napi.id() == 0 {
            return;
        }
        match settings.threaded {
            Threaded::Off => {
                while instance.napi.threaded_off() == ThreadedOff::Owned {
                    a_short_while();
                }
                // The thread leaves the instance at its next completion; it stays for the next time.
                while instance.napi.thread_has_round() {
                    a_short_while();
                }
            }
            Threaded::On => instance.napi.threaded_on(false),
            Threaded::BusyPoll => {
                instance.napi.threaded_on(true);
                self.kick(instance);
            }
        }
    }

    /// Busy-poll threads start lazily, with the first schedule. There is no reason to wait for a packet before the
    /// thread starts.
    fn kick(&self, instance: &Instance) {
        self.schedule(instance.napi.index());
    }

    fn start_napi_thread(&self, instance: &Arc<Instance>) -> Result<(), HostError> {
        if instance.thread.get().is_some() {
            return Ok(());
        }
        let os = |source| HostError::Os { what: "start a NAPI thread".to_owned(), source };
        let parker = Arc::new(Parker::new().map_err(os)?);
        let index = instance.napi.index();
        let name = format!("napi/{}", index);
        let (join, tid) = threads::napi_thread(self.inner(), instance.clone(), parker.clone(), name).map_err(os)?;
        if instance.thread.set(NapiThreadHandle { parker, tid, thread: join.thread().id() }).is_err() {
            unreachable!("NAPI threads are started under the control lock");
        }
        relock(&self.inner().joins).push(join);
        Ok(())
    }

    /// Schedules an instance as its interrupt would; nothing if it was removed.
    pub fn schedule(&self, index: u32) {
        self.inner().schedule(index);
    }
}

impl Delivery {
    /// Refuses an instance whose queue a panic took down.
    pub(crate) fn refuse_failed(&self, instance: &Instance) -> Result<(), HostError> {
        let failed = |why: &str| HostError::Failed { napi: instance.napi.index(), why: why.to_owned() };
        instance.failure().map_or(Ok(()), |why| Err(failed(why)))
    }

    /// Schedules an instance as its interrupt would; nothing if it was removed.
    pub fn schedule(&self, index: u32) {
        let Some(instance) = self.instance(index) else { return };
        let cx = self.cx(instance.cpu(), self.clock.now_ns());
        match instance.napi.schedule(&cx) {
            Schedule::Owned(owner) => self.route_outside(self.cpu(instance.cpu()), &instance, owner, &cx),
            Schedule::Group => self.member_raised(&instance, &cx),
            Schedule::Missed | Schedule::Disabled => {}
        }
    }
}
