//! A program of either kind.

use crate::{Packet, Program, extended};

/// A program of either kind that chooses among the sockets of a reuseport group: it returns the number of the one that
/// gets a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Chooser {
    /// A program of `SO_ATTACH_REUSEPORT_CBPF`.
    Classic(Program),
    /// A program of `SO_ATTACH_REUSEPORT_EBPF`.
    Extended(extended::Program),
}

impl Chooser {
    /// Runs the program, and returns what it returns.
    #[inline]
    pub fn run(&self, packet: &impl Packet) -> u32 {
        match self {
            Chooser::Classic(program) => program.run(packet),
            Chooser::Extended(program) => program.run(packet),
        }
    }
}

impl From<Program> for Chooser {
    fn from(program: Program) -> Chooser {
        Chooser::Classic(program)
    }
}

impl From<extended::Program> for Chooser {
    fn from(program: extended::Program) -> Chooser {
        Chooser::Extended(program)
    }
}
