//! The NAPIs of lull's device, in whichever processes of the program they are.

use std::collections::BTreeSet;
use std::os::fd::BorrowedFd;

use lull_control::schema::{Answer, Change, Napi, Request, Set};
use lull_control::{Client, Offer, place::Places};

use super::Device;
use super::responder::Plane;
use crate::{engine, flows, kernel};

pub(super) struct Live<'a> {
    pub(super) device: &'a Device,
}

impl Live<'_> {
    /// The other processes that have queues of the device.
    fn others(&self) -> BTreeSet<u32> {
        let table: BorrowedFd<'static> = kernel::borrow(self.device.flows);
        let holder = |queue| flows::holder(table, queue).and_then(|pid| u32::try_from(pid).ok());
        // Nobody can be asked who is in another PID namespace.
        (0..self.device.queues).filter_map(holder).filter(|pid| *pid != 0).collect()
    }
}

/// What this process itself has running, and can be asked for.
fn own() -> Option<&'static Offer> {
    engine::running()?.control.as_ref()
}

fn enabled(answer: Answer) -> Option<Vec<Napi>> {
    match answer {
        // Those of transmit queues with a discipline are on a device of their own, which the program does not know.
        Answer::Shown(shown) => {
            Some(shown.napis.into_iter().filter(|napi| napi.id != 0 && napi.qdisc.is_none()).collect())
        }
        _ => None,
    }
}

fn change_of(id: u32, change: Change) -> Request {
    Request::Set(Set { napi_ids: vec![id], change })
}

fn changed(answer: Answer) -> Result<(), String> {
    match answer {
        Answer::Changed(_) => Ok(()),
        Answer::Refused(words) => Err(words),
        other => Err(format!("a change was answered with {other:?}")),
    }
}

impl Plane for Live<'_> {
    fn ifindex(&self) -> u32 {
        self.device.ifindex
    }

    fn napis(&mut self, start: bool) -> Option<Vec<Napi>> {
        let mut found = own().and_then(|own| enabled(own.ask(&Request::Show)));
        for pid in self.others() {
            let answer = Client::connect(pid, &Places::default()).and_then(|mut client| client.ask(&Request::Show));
            if let Some(napis) = answer.ok().and_then(enabled) {
                found.get_or_insert_default().extend(napis);
            }
        }
        if found.is_none() && start && self.others().is_empty() {
            engine::engine().ok()?;
            found = own().and_then(|own| enabled(own.ask(&Request::Show)));
        }
        found
    }

    fn set(&mut self, id: u32, change: Change) -> Result<(), String> {
        let has = |napis: Option<Vec<Napi>>| napis.is_some_and(|napis| napis.iter().any(|napi| napi.id == id));
        if let Some(own) = own().filter(|own| has(enabled(own.ask(&Request::Show)))) {
            return changed(own.ask(&change_of(id, change)));
        }
        for pid in self.others() {
            let Ok(mut client) = Client::connect(pid, &Places::default()) else { continue };
            if has(client.ask(&Request::Show).ok().and_then(enabled)) {
                return changed(client.ask(&change_of(id, change)).map_err(|error| error.to_string())?);
            }
        }
        Err("it is gone".to_owned())
    }
}
