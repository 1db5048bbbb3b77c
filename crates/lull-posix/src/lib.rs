//! The socket calls as POSIX and Linux have them, over lull's sockets and the kernel's at once.
//!
//! Every call is a Rust function that takes numbers, slices and checked structs and returns `Result<_, Errno>`. The crate
//! takes no call over: `lull-preload` decodes what an unmodified program calls and asks here, and a test asks directly. It
//! holds no delivery rule.
//!
//! | module | what is in there |
//! | --- | --- |
//! | `errno` | error numbers as results |

mod errno;

pub use errno::Errno;
