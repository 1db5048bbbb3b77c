//! Stays with a device, and applies again what a link flap, a change of queues or a reset takes away.
//!
//! It is woken by link events (rtnetlink), device events (`netdev`) and settings changed with ethtool. A slow read-back
//! finds what notifies nobody, such as drivers that lose settings in a soft reset.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use netlink_bindings::{netdev, nlctrl, rt_link};
use netlink_socket2::MulticastSocketRaw;

use crate::apply::{AppliedAgain, Session, Undone, apply, apply_again, undo};
use crate::error::{Error, Result};
use crate::netdev::Netdev;
use crate::plan::DeviceRequest;
use crate::prepare::Keeping;
use crate::spans;

/// How often settings are read back where nothing was notified.
pub const READ_BACK: Duration = Duration::from_secs(2);
/// How often the stop flag is checked.
const TICK: Duration = Duration::from_millis(100);
/// Events come in crowds. Those that follow within this time of the first count as one.
const SETTLE: Duration = Duration::from_millis(20);

/// Applies `request`, and applies it again whenever it is no longer in force, until `stop` is set. Then it undoes it.
/// Everything that happens is reported to `log`, in a line each.
///
/// # Errors
/// Those of the first [`apply`], with nothing changed. Later failures are logged and tried again, but if the device has
/// vanished, that ends it.
pub fn watch(
    session: &mut Session,
    request: &DeviceRequest,
    read_back: Duration,
    stop: &AtomicBool,
    log: &mut dyn FnMut(&str),
) -> Result<Undone> {
    session.hold()?;
    let mut again = Again::new(session, read_back);
    let applied = apply(session, request)?;
    for change in &applied.changes {
        log(&change.to_string());
    }
    // The mode stays in force, whether this can be found out or not.
    for program in spans::programs_on(session).unwrap_or_default() {
        log(&format!("{program}; what helps: {}", program.remedy()));
    }
    log(&format!("{} on {}: applied, watching", request.mode, session.device().name));
    service_is_ready();
    while !stop.load(Ordering::Relaxed) {
        if let Err(gone) = again.look(session, request, TICK, log) {
            // Its settings are gone with it, and a device that takes its name must not get them.
            session.forget()?;
            return Err(gone);
        }
    }
    let undone = undo(session)?;
    for change in &undone.changes {
        log(&format!("undone: {change}"));
    }
    Ok(undone)
}

/// Tells a service manager that waits for it (`sd_notify(3)`) that the mode is applied. Without one, nothing happens.
pub(crate) fn service_is_ready() {
    let Some(path) = std::env::var_os("NOTIFY_SOCKET") else { return };
    let address = match path.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => SocketAddr::from_pathname(&path),
    };
    // If this fails, the service manager waits in vain and says so.
    let _ = address.and_then(|address| UnixDatagram::unbound()?.send_to_addr(b"READY=1", &address));
}

/// Applies again what is no longer in force, of the mode and of what was prepared.
pub(crate) struct Again {
    events: Receiver<&'static str>,
    read_back: Duration,
    due: Instant,
    complaint: Option<String>,
    /// The queues that the request names and that show no NAPI, as already reported.
    missing: Vec<u32>,
    /// Why NAPIs are not as the request wants them, as already reported.
    unseen: Vec<String>,
    keeping: Keeping,
}

impl Again {
    /// Listens from now on, in this thread's network namespace.
    pub(crate) fn new(session: &mut Session, read_back: Duration) -> Again {
        // A look is due at once, as what was prepared is to be kept from the beginning.
        let (events, due) = (listen(session.netdev()), Instant::now());
        Again {
            events,
            read_back,
            due,
            complaint: None,
            missing: Vec::new(),
            unseen: Vec::new(),
            keeping: Keeping::default(),
        }
    }

    /// Waits at most this long for a reason to look, and if there is one, applies the request again. What is refused is
    /// logged once, and tried again at the next look.
    ///
    /// # Errors
    /// [`Error::UnknownDevice`], if the device has vanished.
    pub(crate) fn look(
        &mut self,
        session: &mut Session,
        request: &DeviceRequest,
        at_most: Duration,
        log: &mut dyn FnMut(&str),
    ) -> Result<()> {
        let Some(reason) = self.reason(at_most) else { return Ok(()) };
        // The queues and rings come first, as setting them may take the settings of NAPIs away.
        self.keeping.look(session, reason, log);
        let looked = apply_again(session, request);
        self.due = Instant::now() + self.read_back;
        match looked {
            Ok(AppliedAgain { applied, missing, unseen }) => {
                for change in &applied.changes {
                    log(&format!("again, after {reason}: {change}"));
                }
                self.complaint = None;
                if missing != self.missing && !missing.is_empty() {
                    let device = &session.device().name;
                    let queues = missing.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
                    log(&format!("after {reason}: {device} shows no NAPI for queue {queues} now; the others are kept"));
                }
                self.missing = missing;
                let unseen: Vec<String> = unseen.iter().map(ToString::to_string).collect();
                for why in unseen.iter().filter(|why| !self.unseen.contains(why)) {
                    log(&format!("after {reason}: {why}; the others are kept"));
                }
                self.unseen = unseen;
            }
            Err(gone @ Error::UnknownDevice { .. }) => return Err(gone),
            Err(error) => {
                let told = error.to_string();
                if self.complaint.as_ref() != Some(&told) {
                    log(&format!("after {reason}: {told}"));
                }
                self.complaint = Some(told);
            }
        }
        Ok(())
    }

    fn reason(&self, at_most: Duration) -> Option<&'static str> {
        let left = self.due.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Some("a read-back");
        }
        match self.events.recv_timeout(at_most.min(left)) {
            Ok(reason) => {
                std::thread::sleep(SETTLE);
                while self.events.try_recv().is_ok() {}
                return Some(reason);
            }
            Err(RecvTimeoutError::Timeout) => {}
            // This kernel has no notifications, so the read-back is all there is.
            Err(RecvTimeoutError::Disconnected) => std::thread::sleep(at_most.min(left)),
        }
        None
    }
}

/// Starts one thread for each kind of notification that the kernel has. They end with the first event after the
/// receiver is dropped.
fn listen(netlink: &mut Netdev) -> Receiver<&'static str> {
    let (sender, receiver) = sync_channel(1);
    spawn(rt_link::PROTONUM, Some(libc::RTNLGRP_LINK), "a link event", sender.clone());
    let of_netdev = netlink.group(netdev::PROTONAME, netdev::NotifGroup::MGMT);
    spawn(nlctrl::PROTONUM, of_netdev, "a device event", sender.clone());
    let of_ethtool = netlink.group("ethtool", "monitor");
    spawn(nlctrl::PROTONUM, of_ethtool, "a change by ethtool", sender);
    receiver
}

fn spawn(protocol: u16, group: Option<u32>, reason: &'static str, sender: SyncSender<&'static str>) {
    let Some(group) = group else { return };
    // The socket is made here, so that it is of the caller's network namespace.
    let Ok(mut socket) = MulticastSocketRaw::new(protocol) else { return };
    if socket.listen(group).is_err() {
        return;
    }
    let listening = move || loop {
        // An overrun (ENOBUFS) means that something happened as well.
        match socket.recv() {
            Ok(_) => {}
            Err(error) if error.as_io_error().raw_os_error() == Some(libc::ENOBUFS) => {}
            Err(_) => return,
        }
        if let Err(std::sync::mpsc::TrySendError::Disconnected(_)) = sender.try_send(reason) {
            return;
        }
    };
    // Without the thread, the read-back is left.
    let _ = std::thread::Builder::new().name("netlink-events".to_owned()).spawn(listening);
}
