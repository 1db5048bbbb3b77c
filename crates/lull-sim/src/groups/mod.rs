//! Cases of busy-polling CPU groups that take more cores than most machines have: parking under load that comes and
//! goes, fairness beside a flooded member, a service on many queues, a service at its maximum, the transmit trap, and
//! overload.

mod fairness;
mod many_queues;
mod overload;
mod parking;
mod saturated;
mod table;
mod tx_trap;

pub use fairness::fairness;
pub use many_queues::many_queues;
pub use overload::overload;
pub use parking::parking;
pub use saturated::saturated;
pub use table::CaseTable;
pub use tx_trap::tx_trap;
