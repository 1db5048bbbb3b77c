//! The queues of an interface are opened, with what each refusal takes to mend.

use std::fs::File;
use std::io;

use super::{NAME_BYTES_MAX, QUEUES_MAX, TapConfig, os};
use crate::device::DeviceError;
use crate::virtio;

pub(super) fn check(config: &TapConfig) -> Result<(), DeviceError> {
    let invalid = |what, why| Err(DeviceError::Invalid { device: config.name.clone(), what, why });
    let length = config.name.len();
    if length == 0 || length > NAME_BYTES_MAX {
        return invalid("the name", format!("{length} bytes; an interface name has 1 to {NAME_BYTES_MAX}"));
    }
    if config.name.contains(|c: char| c == '/' || c == ':' || c == '\0' || c.is_whitespace()) {
        return invalid("the name", "an interface name has no slash, colon, zero or space".to_owned());
    }
    if !(1..=QUEUES_MAX).contains(&config.queues) {
        return invalid("queues", format!("{}; a TAP has 1 to {QUEUES_MAX}", config.queues));
    }
    Ok(())
}

/// Opens one descriptor a queue; the interface's full name and the descriptors.
pub(super) fn open_queues(config: &TapConfig) -> Result<(String, Vec<File>), DeviceError> {
    let mut name = config.name.clone();
    let mut files = Vec::with_capacity(config.queues);
    for queue in 0..config.queues {
        let file = os::open_tun().map_err(|source| DeviceError::Os {
            device: config.name.clone(),
            what: format!("open {}", os::TUN_PATH),
            remedy: match source.kind() {
                io::ErrorKind::NotFound => "load the kernel's TUN driver (modprobe tun)",
                io::ErrorKind::PermissionDenied => "allow this user to read and write it, or run as root",
                _ => "raise the limit on open files (ulimit -n)",
            },
            source,
        })?;
        if config.offloads && !os::knows_virtio(&file) {
            let why = "this kernel's TAP has no virtio-net headers; open it without".to_owned();
            return Err(DeviceError::Invalid { device: config.name.clone(), what: "offloads", why });
        }
        let virtio = if config.offloads { libc::IFF_VNET_HDR } else { 0 };
        let several = if config.queues > 1 { libc::IFF_MULTI_QUEUE } else { 0 };
        let attached = match os::attach(&file, &name, virtio | several) {
            // An interface made with multi_queue takes its single queue only so.
            Err(error) if config.queues == 1 && error.raw_os_error() == Some(libc::EINVAL) => {
                os::attach(&file, &name, virtio | libc::IFF_MULTI_QUEUE)
            }
            attached => attached,
        };
        name = attached.map_err(|source| DeviceError::Os {
            device: config.name.clone(),
            what: format!("attach queue {queue}"),
            remedy: attach_remedy(&source),
            source,
        })?;
        set_offloads(&file, config.offloads).map_err(|source| DeviceError::Os {
            device: config.name.clone(),
            what: format!("set the offloads of queue {queue}"),
            remedy: "open it without offloads",
            source,
        })?;
        files.push(file);
    }
    Ok((name, files))
}

/// What the kernel leaves undone in frames for us is set either way: an existing interface keeps what its last user set.
fn set_offloads(file: &File, on: bool) -> io::Result<()> {
    if !on {
        return os::set_offload(file, 0);
    }
    os::set_virtio_header(file, virtio::BYTES)?;
    os::set_offload(file, libc::TUN_F_CSUM | libc::TUN_F_TSO4 | libc::TUN_F_TSO6)
}

fn attach_remedy(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::EPERM) => {
            "needs CAP_NET_ADMIN: run as root, in a private namespace (unshare -Urn), or on an interface made for \
             this user (ip tuntap add NAME mode tap user USER)"
        }
        Some(libc::EBUSY) => "another program has it open: end that program, or take another name",
        Some(libc::EINVAL) => {
            "it exists and is not a TAP, or was made without multi_queue: delete it, or take another name"
        }
        Some(libc::E2BIG) => "its queues are all taken: ask for fewer",
        _ => "take another name",
    }
}
