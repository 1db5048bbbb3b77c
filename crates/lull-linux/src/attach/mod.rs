//! The application's half from outside: epoll busy-poll parameters of a running program, set and given back.
//!
//! The parameters live on the open file (`fs/eventpoll.c`), so a duplicate of the program's descriptor sets them
//! (`pidfd_getfd(2)`, then EPIOCSPARAMS). The duplicate is closed at once: kept, it would keep the context alive after
//! the program has closed it. Programs of any language can be reached, statically linked ones too.
//!
//! | module | what is in there |
//! | --- | --- |
//! | `request`, `params` | what is asked for; the parameters of a context, set through a duplicate of its descriptor |
//! | `tree` | which processes belong to the program: it, its children, theirs |
//! | `record` | what their contexts had before: a file for each program attached to, written before the first change |
//! | `follow`, `event` | one look over the program after the other, setting what is new; what it tells |
//! | `detach` | giving back |
//! | `sockets` | what is on a context, and what keeps busy polling from working there |
//!
//! A `fork` is seen at the next look. A child whose parent has ended before that look is nobody's child any more, and
//! is not found: attach to a daemon after it has put itself into the background.

mod detach;
mod event;
mod follow;
mod params;
mod record;
mod request;
mod sockets;
mod tree;

pub use detach::{Context, Detached, Given, Restored, detach, detach_and_forget, detach_diff};
pub use event::Event;
pub use follow::{Follower, LOOK_EVERY, Which};
pub use params::Params;
pub use record::Role;
pub use request::{ProgramRequest, with_children};
pub use sockets::OnContext;
pub(crate) use tree::{children, start_of};
