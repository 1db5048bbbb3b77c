//! Quantities and lists as people write them: a number and its unit, such as `20us`, `400K`, `100Gbit/s` or `30%`, and
//! lists of numbers such as `0-3,5`. Every crate reads and prints them by this one, so that each reads what another
//! prints.
//!
//! A quantity that has a unit is refused without one: `20` could be nanoseconds or milliseconds. Only 0 is 0 in any unit.
//!
//! ```
//! assert_eq!(lull_units::time_ns("1.5ms"), Ok(1_500_000));
//! assert_eq!(lull_units::time_text(1_500_000), "1.5ms");
//! assert_eq!(lull_units::numbers("0-3,5"), Ok(vec![0, 1, 2, 3, 5]));
//! assert_eq!(lull_units::numbers_text(&[0, 1, 2, 3, 5]), "0-3,5");
//! assert_eq!(lull_units::counted(1, "queue"), "1 queue");
//! assert_eq!(lull_units::counted(0, "queue"), "0 queues");
//! ```
#![forbid(unsafe_code)]

mod counted;
mod list;
mod quantity;

pub use counted::counted;
pub use list::{NUMBER_MAX, numbers, numbers_text};
pub use quantity::{bits_per_s, bytes, count, hz, rate_per_s, rate_text, share_permille, time_ns, time_text};
