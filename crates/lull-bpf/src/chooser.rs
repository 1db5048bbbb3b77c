//! A program of either kind.

use crate::{Packet, Program, extended};

/// What chooses among the sockets of a reuseport group: a program of either kind that returns which of them gets a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Chooser {
    /// Of `SO_ATTACH_REUSEPORT_CBPF`.
    Classic(Program),
    /// Of `SO_ATTACH_REUSEPORT_EBPF`.
    Extended(extended::Program),
}

impl Chooser {
    /// Runs it; what it returns.
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
