//! A device of the user's under the service. Its NAPIs are set as `lull apply` sets them, so that `lull undo` can
//! restore their earlier settings if this process cannot.

use std::net::TcpListener;

use lull_core::Mode;
use lull_linux::device::Snapshot;
use lull_linux::ethtool::{Ethtool, Knob};
use lull_linux::{DeviceRequest, Options, Session, apply, undo};
use lull_sim::calibration::{Held, Interrupts};
use lull_units::{counted, numbers};

use super::pair::{Side, linux};
use crate::bench::{BenchConfig, BenchError, PORT};

/// The device, and the command that reaches its peer.
#[derive(Clone, Debug)]
pub struct DeviceSetup {
    /// The device's name.
    pub device: String,
    /// The command that runs lull on the peer, in a shell's words.
    pub load_by: String,
    /// Where lull keeps the settings that were in force before.
    pub options: Options,
}

/// The device, which is held until its earlier settings are restored.
pub(super) struct UsersDevice {
    session: Session,
    pub(super) side: Side,
    snapshot: Snapshot,
}

impl UsersDevice {
    /// Takes the device. The interrupts of its queues have to be on the service's cores.
    pub(super) fn take(setup: &DeviceSetup, config: &BenchConfig, cores: &[usize]) -> Result<UsersDevice, BenchError> {
        let name = &setup.device;
        let mut session = Session::open(name, &setup.options).map_err(linux)?;
        session.hold().map_err(linux)?;
        if session.state().map_err(linux)?.is_some() {
            return Err(BenchError::Invalid(format!(
                "cannot measure over {name}: a mode that lull applied is in force on it, and would be taken back; `lull undo \
                 {name}` takes it back first"
            )));
        }
        let snapshot = session.snapshot().map_err(linux)?;
        fits(&snapshot, config.queues(), cores).map_err(BenchError::Invalid)?;
        let side = Side::here(name)?;
        let address = (side.address(), PORT);
        TcpListener::bind(address).map_err(|error| {
            let (ip, port) = address;
            BenchError::Invalid(format!("cannot serve on {ip}:{port} of {name}: {error}; end what listens there"))
        })?;
        Ok(UsersDevice { session, side, snapshot })
    }

    pub(super) fn session(&mut self) -> &mut Session {
        &mut self.session
    }

    /// Puts a mode's settings in force.
    pub(super) fn set(&mut self, mode: &Mode) -> Result<(), BenchError> {
        apply(&mut self.session, &DeviceRequest::new(mode.clone())).map_err(linux)?;
        Ok(())
    }

    pub(super) fn interrupts(&self) -> Interrupts {
        let mut ethtool = Ethtool::new(self.session.device());
        let completions = self.snapshot.napis.iter().any(|napi| napi.irq.is_some());
        let value = |knob| ethtool.get(knob).ok().flatten().map(|reading| reading.value);
        Interrupts { completions, ..moderation(value) }
    }
}

/// Returns how a device holds interrupts back, by what its driver reports for each knob.
fn moderation(mut value: impl FnMut(Knob) -> Option<u32>) -> Interrupts {
    // If a driver does not report a knob, it holds nothing back.
    let mut known = |knob| value(knob).unwrap_or(0);
    let rx = Held { usecs: known(Knob::RxUsecs), frames: known(Knob::RxFrames) };
    let adaptive = known(Knob::AdaptiveRx) != 0;
    let finds_tx_itself = adaptive && known(Knob::AdaptiveTx) != 0;
    // A driver that does not report a knob for sent frames raises one interrupt for both directions.
    let tx_usecs = value(Knob::TxUsecs).filter(|_| !finds_tx_itself);
    let tx = tx_usecs.map(|usecs| Held { usecs, frames: value(Knob::TxFrames).unwrap_or(0) });
    Interrupts { adaptive, rx, tx, completions: false }
}

impl Drop for UsersDevice {
    fn drop(&mut self) {
        if let Err(error) = undo(&mut self.session) {
            let name = &self.session.device().name;
            eprintln!("lull: {name} could not be given back what it had: {error}; `lull undo {name}` tries again");
        }
    }
}

/// Checks that the device fits the model's machine: one queue per worker, each with a NAPI, and its interrupt on a
/// worker's core.
fn fits(snapshot: &Snapshot, queues: usize, cores: &[usize]) -> Result<(), String> {
    let name = &snapshot.device;
    if !snapshot.up {
        return Err(format!("cannot measure over {name}: it is down; `ip link set {name} up`"));
    }
    let napis = snapshot.napis.len();
    if napis != queues {
        return Err(format!(
            "cannot measure over {name} with {}: it shows {}, and each worker has a queue of its own; \
             give --workers {napis}, or the device as many queues (`ethtool -L {name}`; a veth shows NAPIs with `ethtool -K \
             {name} gro on`, and settings per NAPI take Linux 6.13)",
            counted(queues, "worker"),
            counted(napis, "NAPI")
        ));
    }
    for napi in &snapshot.napis {
        let Some((irq, on)) = napi.irq.as_ref().and_then(|irq| Some((irq.number, irq.effective_cpus.as_ref()?))) else {
            continue;
        };
        let away = numbers(on).is_ok_and(|on| on.iter().any(|cpu| !cores.contains(cpu)));
        if away {
            let list: Vec<String> = cores.iter().map(ToString::to_string).collect();
            let (key, list) = (napi.key, list.join(","));
            return Err(format!(
                "cannot measure over {name}: interrupt {irq} of its queue {key} is raised on CPU {on}, and the service has core \
                 {list}; move it (echo {list} > /proc/irq/{irq}/smp_affinity_list), or name the cores with --cores"
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moderation_is_read_by_time_and_frames_of_both_sides() {
        let of = |says: &[(Knob, u32)]| {
            moderation(|knob| says.iter().find(|(known, _)| *known == knob).map(|(_, value)| *value))
        };
        let held = |usecs, frames| Held { usecs, frames };
        assert_eq!(of(&[]), Interrupts::default());
        let both = of(&[(Knob::RxUsecs, 50), (Knob::RxFrames, 32), (Knob::TxUsecs, 16), (Knob::TxFrames, 8)]);
        assert_eq!((both.adaptive, both.rx, both.tx), (false, held(50, 32), Some(held(16, 8))));
        let receive = of(&[(Knob::RxUsecs, 50), (Knob::RxFrames, 32)]);
        assert_eq!((receive.rx, receive.tx), (held(50, 32), None), "one interrupt for both");
        let adaptive = [(Knob::AdaptiveRx, 1), (Knob::TxUsecs, 16), (Knob::TxFrames, 8)];
        assert_eq!((of(&adaptive).adaptive, of(&adaptive).tx), (true, Some(held(16, 8))));
        let wholly = [&adaptive[..], &[(Knob::AdaptiveTx, 1)]].concat();
        assert_eq!((of(&wholly).adaptive, of(&wholly).tx), (true, None));
    }
}
