//! Which worlds are drawn.

/// Which worlds are drawn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Shape {
    /// Three in ten have busy-polling CPU groups.
    #[default]
    Any,
    /// All have.
    Groups,
    /// All have, and transmit queues with a discipline.
    Transmit,
}
