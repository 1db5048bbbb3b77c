//! The kinds of worlds that are drawn.

/// The kind of worlds that are drawn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Shape {
    /// Three in ten have busy-polling CPU groups.
    #[default]
    Any,
    /// All have busy-polling CPU groups.
    Groups,
    /// All have such groups, and transmit queues with a discipline.
    Transmit,
}
