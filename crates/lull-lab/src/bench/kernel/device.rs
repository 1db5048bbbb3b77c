//! A device of the user's under the service: its NAPIs are set as `lull apply` sets them, so that `lull undo` gives back what
//! they had if this process cannot.

use std::net::TcpListener;

use lull_core::Mode;
use lull_linux::device::Snapshot;
use lull_linux::ethtool::{Ethtool, Knob};
use lull_linux::{DeviceRequest, Options, Session, apply, undo};
use lull_units::numbers;

use super::pair::{Side, linux};
use crate::bench::{BenchConfig, BenchError, PORT};

/// Which device, and what reaches its peer.
#[derive(Clone, Debug)]
pub struct DeviceSetup {
    /// The device's name.
    pub device: String,
    /// What runs lull on the peer, in a shell's words.
    pub load_by: String,
    /// Where lull keeps what was in force before.
    pub options: Options,
}

/// How the device holds interrupts back, as far as a world file says it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Coalescing {
    /// Whether it finds the time itself.
    pub adaptive: bool,
    /// The time, if it does not.
    pub rx_usecs: u32,
    /// Whether it has interrupts at all.
    pub interrupts: bool,
}

/// The device, held until it is given back.
pub(super) struct UsersDevice {
    session: Session,
    pub(super) side: Side,
    snapshot: Snapshot,
}

impl UsersDevice {
    /// Takes the device, whose queues' interrupts have to be on the service's cores.
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

    pub(super) fn coalescing(&self) -> Coalescing {
        let mut ethtool = Ethtool::new(self.session.device());
        // A driver that does not say holds nothing back.
        let mut value = |knob| ethtool.get(knob).ok().flatten().map_or(0, |reading| reading.value);
        Coalescing {
            adaptive: value(Knob::AdaptiveRx) != 0,
            rx_usecs: value(Knob::RxUsecs),
            interrupts: self.snapshot.napis.iter().any(|napi| napi.irq.is_some()),
        }
    }
}

impl Drop for UsersDevice {
    fn drop(&mut self) {
        if let Err(error) = undo(&mut self.session) {
            let name = &self.session.device().name;
            eprintln!("lull: {name} could not be given back what it had: {error}; `lull undo {name}` tries again");
        }
    }
}

/// Whether the model's machine is this one: a queue a worker, each with a NAPI, and its interrupt on a worker's core.
fn fits(snapshot: &Snapshot, queues: usize, cores: &[usize]) -> Result<(), String> {
    let name = &snapshot.device;
    if !snapshot.up {
        return Err(format!("cannot measure over {name}: it is down; `ip link set {name} up`"));
    }
    let napis = snapshot.napis.len();
    if napis != queues {
        return Err(format!(
            "cannot measure over {name} with {queues} workers: it shows {napis} NAPIs, and each worker has a queue of its own; \
             give --workers {napis}, or the device as many queues (`ethtool -L {name}`; a veth shows NAPIs with `ethtool -K \
             {name} gro on`, and settings per NAPI take Linux 6.13)"
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
