//! The socket calls as POSIX and Linux have them, over lull's sockets and the kernel's at once.
//!
//! Every call is a Rust function that takes numbers, slices and checked structs and returns `Result<_, Errno>`. The crate
//! takes no call over: `lull-preload` decodes what an unmodified program calls and asks here, and a test asks directly. It
//! holds no delivery rule.
//!
//! | module | what is in there |
//! | --- | --- |
//! | `errno` | error numbers as results |
//! | [`handover`] | what the launcher hands on to the program: the NIC's descriptors, addresses, routes, the mode |
//! | [`flows`] | which connections are open, in memory that the launcher shares: a killed program's peers are told |

mod errno;
pub mod flows;
pub mod handover;

pub use errno::Errno;
pub use flows::Flows;
pub use handover::HandOver;
