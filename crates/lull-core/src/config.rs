//! Device defaults and the per-queue settings that outlive a reset (`napi_config`, §11).

use crate::settings::{NapiSettings, SettingError};

/// The lowest valid NAPI id. Linux's are above NR_CPUS, so that 0 and CPU numbers are never ids; ours are above any CPU
/// index that a timer can be pinned to.
pub const NAPI_ID_MIN: u32 = 8192;

/// What a queue keeps while its instance is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Slot {
    settings: NapiSettings,
    id: u32,
}

/// The delivery settings of one device: its defaults, and a slot per queue if its driver keeps them.
#[derive(Debug)]
pub struct DeviceConfig {
    defaults: NapiSettings,
    slots: Vec<Slot>,
    persistent: bool,
}

impl DeviceConfig {
    /// A device of `queues` queues. `persistent` says whether its driver registers a slot per queue; without one, a
    /// disabled queue forgets its settings and comes back with another id.
    pub fn new(queues: usize, persistent: bool) -> DeviceConfig {
        let slot = Slot { settings: NapiSettings::default(), id: 0 };
        DeviceConfig { defaults: NapiSettings::default(), slots: vec![slot; queues], persistent }
    }

    /// The device's defaults.
    pub fn defaults(&self) -> NapiSettings {
        self.defaults
    }

    /// The settings that queue `queue` has, or will have when it is enabled.
    pub fn queue(&self, queue: usize) -> NapiSettings {
        self.slots[queue].settings
    }

    /// A device-level write (sysfs): overwrites every queue's `defer_hard_irqs`, `gro_flush_timeout` and `threaded`, those
    /// without a live instance included. `irq_suspend_timeout` has no device-level value and stays.
    ///
    /// # Errors
    /// A value above its limit; nothing is changed then.
    pub fn set_device(&mut self, settings: &NapiSettings) -> Result<(), SettingError> {
        settings.check()?;
        self.defaults = NapiSettings { irq_suspend_timeout_ns: 0, ..*settings };
        for slot in &mut self.slots {
            slot.settings = NapiSettings { irq_suspend_timeout_ns: slot.settings.irq_suspend_timeout_ns, ..*settings };
        }
        Ok(())
    }

    /// A write to one queue (netlink `napi-set`).
    ///
    /// # Errors
    /// A value above its limit; nothing is changed then.
    pub fn set_queue(&mut self, queue: usize, settings: &NapiSettings) -> Result<(), SettingError> {
        settings.check()?;
        self.slots[queue].settings = *settings;
        Ok(())
    }

    /// Queue `queue` is being disabled: its id and settings are kept, or forgotten if the driver has no slots.
    pub fn disabled(&mut self, queue: usize, id: u32) {
        self.slots[queue].id = id;
        if !self.persistent {
            self.slots[queue] = Slot { settings: self.defaults, id: 0 };
        }
    }

    /// Queue `queue` is being enabled: its settings, and its id, which is `fresh()` if it has none to return to.
    pub fn enabled(&mut self, queue: usize, fresh: impl FnOnce() -> u32) -> (u32, NapiSettings) {
        let slot = &mut self.slots[queue];
        if slot.id == 0 {
            slot.id = fresh();
        }
        (slot.id, slot.settings)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const ONE: NapiSettings = NapiSettings {
        defer_hard_irqs: 100,
        gro_flush_timeout_ns: 20_000,
        irq_suspend_timeout_ns: 20_000_000,
        threaded: crate::Threaded::Off,
        unpolled: crate::Unpolled::Deferral,
    };

    #[test]
    fn settings_and_id_outlive_a_reset_only_with_a_slot() {
        for (persistent, after) in [(true, ONE), (false, NapiSettings::default())] {
            let mut device = DeviceConfig::new(2, persistent);
            let (first, _) = device.enabled(1, || 9000);
            device.set_queue(1, &ONE).unwrap();
            device.disabled(1, first);
            let (second, settings) = device.enabled(1, || 9001);
            assert_eq!(settings, after);
            assert_eq!(second == first, persistent);
        }
    }

    #[test]
    fn a_device_write_overwrites_every_queue_but_not_its_suspend_timeout() {
        let mut device = DeviceConfig::new(2, true);
        device.set_queue(0, &ONE).unwrap();
        let write = NapiSettings { defer_hard_irqs: 7, gro_flush_timeout_ns: 9, ..NapiSettings::default() };
        device.set_device(&write).unwrap();
        assert_eq!(device.queue(0), NapiSettings { irq_suspend_timeout_ns: 20_000_000, ..write });
        assert_eq!(device.queue(1), write);
        let bad = NapiSettings { defer_hard_irqs: u32::MAX, ..write };
        assert!(device.set_device(&bad).is_err() && device.queue(1) == write);
    }
}
