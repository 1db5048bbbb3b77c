//! What an operator does to devices and instances: make them known, enable, disable, set.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use lull_core::{DeviceConfig, DisableClaim, NapiSettings, Schedule, Threaded, ThreadedOff};
use lull_nic::IrqSink;

use crate::cpu::relock;
use crate::error::HostError;
use crate::host::{Device, DeviceId, Host, NapiBinding};
use crate::instance::Instance;
use crate::parker::Parker;
use crate::registry::NapiChange;
use crate::threads;
use crate::vector::{RoomSink, VectorSink};

impl Host {
    /// Makes a device known. `persistent` says whether its queues keep their settings and ids over a disable.
    pub fn add_device(&self, name: &str, queues: usize, persistent: bool) -> DeviceId {
        let mut devices = relock(&self.inner().devices);
        let id = DeviceId(devices.len());
        let ifindex = devices.len() as u32 + 1;
        devices.push(Device {
            name: name.to_owned(),
            ifindex,
            config: DeviceConfig::new(queues, persistent),
            napis: vec![None; queues],
        });
        id
    }

    /// The device's index, as NAPIs are keyed by.
    pub fn ifindex(&self, device: DeviceId) -> u32 {
        relock(&self.inner().devices)[device.0].ifindex
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
        let index = inner.instance_count.load(Ordering::Acquire);
        let Some(slot) = inner.instances.get(index as usize) else {
            return Err(HostError::Full { what: "NAPI instances", max: inner.instances.len() });
        };
        let (device, queue, cpu) = (binding.device, binding.queue, binding.cpu);
        let instance = slot.get_or_init(|| Instance::new(index, binding));
        inner.instance_count.store(index + 1, Ordering::Release);
        // Last, for a line that was raised before raises at once.
        instance.vector.line.connect(Arc::new(VectorSink { host: Arc::downgrade(inner), napi: index }));
        if instance.vector.is_fd() {
            let what = "watch the device's descriptor";
            let watched = inner.cpu(cpu).add_fd_vector(instance);
            watched.map_err(|source| HostError::Os { what: what.to_owned(), source })?;
        }
        devices[device.0].napis[queue] = Some(index);
        Ok(index)
    }

    /// Where the room interrupt of an instance's transmit ring goes ([`lull_nic::Queue::tx_irq`]): it schedules the
    /// instance. While the instance is disabled it is lost, as any interrupt: whoever enables it looks for room.
    pub fn room_sink(&self, index: u32) -> Arc<dyn IrqSink> {
        Arc::new(RoomSink { host: Arc::downgrade(self.inner()), napi: index })
    }

    /// `napi_enable`: gives the instance its id and settings, lets it go and unmasks its interrupt.
    ///
    /// # Errors
    /// It is enabled already, a panic took its queue down, or its NAPI thread cannot be started.
    pub fn enable(&self, index: u32) -> Result<u32, HostError> {
        let inner = self.inner();
        let instance = inner.instance(index);
        let control = relock(&inner.control);
        if instance.enabled.load(Ordering::Relaxed) {
            return Err(HostError::Enabled { napi: index });
        }
        if let Some(why) = instance.failure() {
            return Err(HostError::Failed { napi: index, why: why.to_owned() });
        }
        let (ifindex, id, settings) = {
            let mut devices = relock(&inner.devices);
            let device = &mut devices[instance.device.0];
            let (id, settings) = device.config.enabled(instance.queue, || inner.registry.fresh_id());
            (device.ifindex, id, settings)
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
        drop(control);
        inner.registry.tell(NapiChange::Enabled { ifindex, id });
        Ok(id)
    }

    /// `napi_disable`: waits until nobody owns the instance, and takes it. Settings are kept if the device keeps them.
    ///
    /// # Errors
    /// It is not enabled: waiting for the owner would be waiting for the disable that came first.
    pub fn disable(&self, index: u32) -> Result<(), HostError> {
        let inner = self.inner();
        let instance = inner.instance(index);
        let control = relock(&inner.control);
        if !instance.enabled.swap(false, Ordering::Relaxed) {
            return Err(HostError::Disabled { napi: index });
        }
        let id = instance.napi.id();
        instance.napi.disable_begin();
        instance.wake_thread(inner);
        while instance.napi.disable_claim() == DisableClaim::Owned {
            std::thread::sleep(std::time::Duration::from_micros(50));
        }
        instance.vector.mask();
        instance.napi.disable_end(&inner.cx(instance.cpu(), self.now_ns()));
        let ifindex = {
            let mut devices = relock(&inner.devices);
            let device = &mut devices[instance.device.0];
            device.config.disabled(instance.queue, id);
            device.ifindex
        };
        inner.registry.disabled(ifindex, id);
        drop(control);
        inner.registry.tell(NapiChange::Disabled { ifindex, id });
        Ok(())
    }

    /// Settings of one instance (`napi-set`), in force from the next decision on and kept over a disable.
    ///
    /// # Errors
    /// A value above its limit, or a NAPI thread that cannot be started; nothing is changed then.
    pub fn set_napi(&self, index: u32, settings: &NapiSettings) -> Result<(), HostError> {
        settings.check()?;
        let inner = self.inner();
        let instance = inner.instance(index);
        let control = relock(&inner.control);
        if settings.threaded != Threaded::Off {
            self.start_napi_thread(instance)?;
        }
        let ifindex = {
            let mut devices = relock(&inner.devices);
            let device = &mut devices[instance.device.0];
            device.config.set_queue(instance.queue, settings)?;
            device.ifindex
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
        let inner = self.inner();
        let queues: Vec<(u32, NapiSettings)> = {
            let mut devices = relock(&inner.devices);
            let device = &mut devices[device.0];
            device.config.set_device(settings)?;
            let napis = device.napis.iter().enumerate();
            napis.filter_map(|(queue, napi)| napi.map(|index| (index, device.config.queue(queue)))).collect()
        };
        for (index, settings) in queues {
            self.set_napi(index, &settings)?;
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
                    std::thread::sleep(std::time::Duration::from_micros(50));
                }
                // The thread leaves the instance at its next completion; it stays for the next time.
                while instance.napi.thread_has_round() {
                    std::thread::sleep(std::time::Duration::from_micros(200));
                }
            }
            Threaded::On => instance.napi.threaded_on(false),
            Threaded::BusyPoll => {
                instance.napi.threaded_on(true);
                self.kick(instance);
            }
        }
    }

    /// Busy-poll threads start lazily, with the first schedule. There is no reason to wait for a packet with it.
    fn kick(&self, instance: &Instance) {
        self.schedule(instance.napi.index());
    }

    fn start_napi_thread(&self, instance: &Instance) -> Result<(), HostError> {
        if instance.thread.get().is_some() {
            return Ok(());
        }
        let os = |source| HostError::Os { what: "start a NAPI thread".to_owned(), source };
        let parker = Arc::new(Parker::new().map_err(os)?);
        let index = instance.napi.index();
        let name = format!("napi/{}", index);
        let (join, tid) = threads::napi_thread(self.inner(), index, parker.clone(), name).map_err(os)?;
        if instance.thread.set(threads::NapiThreadHandle { parker, tid }).is_err() {
            unreachable!("NAPI threads are started under the control lock");
        }
        relock(&self.inner().joins).push(join);
        Ok(())
    }

    /// Schedules an instance as its interrupt would.
    pub fn schedule(&self, index: u32) {
        let inner = self.inner();
        let instance = inner.instance(index);
        let cx = inner.cx(instance.cpu(), self.now_ns());
        if let Schedule::Owned(owner) = instance.napi.schedule(&cx) {
            inner.route_outside(inner.cpu(instance.cpu()), owner, &cx);
        }
    }
}
