//! What busy-polling CPU groups do that takes more cores than most machines have: parking under load that comes and goes,
//! fairness beside a flooded member, a service on many queues, and one at its maximum.

mod fairness;
mod many_queues;
mod parking;
mod saturated;
mod table;

pub use fairness::fairness;
pub use many_queues::many_queues;
pub use parking::parking;
pub use saturated::saturated;
pub use table::CaseTable;
