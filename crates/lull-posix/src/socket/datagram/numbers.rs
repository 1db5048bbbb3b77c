//! Keeps the numbers of one socket from when it becomes the kernel's alone until it gets a half of lull's again.
//!
//! Once the socket is the kernel's, lull is told nothing more of its numbers. So the numbers that it had beside the one
//! that the program used are noted together with the socket's inode, by which it is seen whether they still stand for
//! it.

use std::sync::{Mutex, PoisonError};

use libc::c_int;
use lull_net::lull_nic::Afresh;

use crate::files::{self, Open};
use crate::{Result, epoll, kernel};

/// A number, and the inode of the socket that it named.
type Noted = (c_int, u32);

static NOTED: Afresh<Mutex<Vec<Noted>>> = Afresh::new();

/// Called in a child of `fork`, which has no sockets of lull's.
pub(crate) fn forget() {
    NOTED.forget();
}

fn with_noted<R>(work: impl FnOnce(&mut Vec<Noted>) -> R) -> R {
    // Every operation leaves what is inside complete.
    work(&mut NOTED.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner))
}

fn is_current(&(number, inode): &Noted) -> bool {
    kernel::inode(number) == Ok(inode)
}

/// Makes a socket the kernel's alone from now on, by all its numbers. `kernels` is the kernel's half.
pub(crate) fn leave(kernels: c_int, file: &Open, nonblocking: bool) -> Result<()> {
    let numbers = files::hand_back(kernels, file, nonblocking);
    if numbers.len() > 1 {
        let inode = kernel::inode(kernels)?;
        with_noted(|noted| {
            noted.retain(is_current);
            noted.extend(numbers.iter().map(|number| (*number, inode)));
        });
    }
    numbers.into_iter().try_for_each(epoll::becomes_kernels)
}

/// Makes a socket of the kernel's `file` from now on, by `fd` and by the numbers that it had when it became the
/// kernel's.
pub(super) fn join(fd: c_int, file: Open) -> Result<()> {
    epoll::becomes_lulls(fd, || files::put_open(fd, file.clone()))?;
    let inode = kernel::inode(fd)?;
    let others = with_noted(|noted| {
        let others: Vec<Noted> = noted.extract_if(.., |noted| noted.1 == inode).collect();
        others.into_iter().filter(|other| other.0 != fd && is_current(other)).map(|other| other.0)
    });
    for other in others {
        epoll::becomes_lulls(other, || files::put_open(other, file.clone()))?;
    }
    Ok(())
}
