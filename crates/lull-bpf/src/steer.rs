//! Choices among the listeners of a reuseport group, and the programs that send a packet to the listener of its own
//! queue or CPU. The listeners of a group are numbered in the order in which they joined it. If a program returns a
//! number that no listener has, the hash chooses.

use std::fmt;

use crate::code::*;
use crate::{Ancillary, Instruction, Program};

/// A number that no listener has, as it is greater than any group is large.
const NOBODY: u32 = u32::MAX;

fn program(instructions: Vec<Instruction>) -> Program {
    match Program::new(instructions) {
        Ok(program) => program,
        Err(refused) => unreachable!("a program of this file: {refused}"),
    }
}

/// How a listener of a group is chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Steer {
    /// By the queue that the packet came by.
    Queue,
    /// By the CPU that delivered the packet.
    Cpu,
    /// By the 4-tuple's hash, as without a program.
    Hash,
    /// By a program of the operator's.
    Program(Program),
}

impl Steer {
    /// The program for this many listeners, or `None` if the hash chooses.
    pub fn program(&self, listeners: u32) -> Option<Program> {
        let listeners = listeners.max(1);
        Some(match self {
            Steer::Queue => by_queue(listeners),
            Steer::Cpu => by_cpu(listeners),
            Steer::Hash => return None,
            Steer::Program(program) => program.clone(),
        })
    }
}

impl fmt::Display for Steer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Steer::Queue => f.write_str("queue"),
            Steer::Cpu => f.write_str("CPU"),
            Steer::Hash => f.write_str("hash"),
            Steer::Program(program) => match program.instructions().len() {
                1 => f.write_str("a program of 1 instruction"),
                many => write!(f, "a program of {many} instructions"),
            },
        }
    }
}

/// A program by which listener `n` gets the packets of receive queue `n`, modulo the number of listeners. If the driver
/// records no queue, the hash chooses.
///
/// # Panics
/// If there are no listeners.
pub fn by_queue(listeners: u32) -> Program {
    assert!(listeners > 0, "a group has a listener");
    program(queue_instructions(listeners).to_vec())
}

/// The instructions of [`by_queue`], for callers that may not allocate.
pub const fn queue_instructions(listeners: u32) -> [Instruction; 6] {
    [
        Instruction::new(LD | W | ABS, Ancillary::Queue.offset()),
        Instruction::jump(JMP | JEQ | K, 0, 3, 0),
        Instruction::new(ALU | SUB | K, 1),
        Instruction::new(ALU | MOD | K, listeners),
        Instruction::new(RET | A, 0),
        Instruction::new(RET | K, NOBODY),
    ]
}

/// A program by which listener `n` gets the packets that are delivered on CPU `n`, modulo the number of listeners.
///
/// # Panics
/// If there are no listeners.
pub fn by_cpu(listeners: u32) -> Program {
    assert!(listeners > 0, "a group has a listener");
    program(cpu_instructions(listeners).to_vec())
}

/// The instructions of [`by_cpu`], for callers that may not allocate.
pub const fn cpu_instructions(listeners: u32) -> [Instruction; 3] {
    [
        Instruction::new(LD | W | ABS, Ancillary::Cpu.offset()),
        Instruction::new(ALU | MOD | K, listeners),
        Instruction::new(RET | A, 0),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Packet;

    struct From {
        queue: u32,
        cpu: u32,
    }

    impl Packet for From {
        fn data(&self) -> &[u8] {
            &[]
        }

        fn ancillary(&self, which: Ancillary) -> u32 {
            match which {
                Ancillary::Queue => self.queue,
                Ancillary::Cpu => self.cpu,
                _ => 0,
            }
        }
    }

    #[test]
    fn queues_and_cpus_go_round_the_listeners() {
        let queue = |queue| by_queue(3).run(&From { queue, cpu: 9 });
        assert_eq!([1, 2, 3, 4, 7].map(queue), [0, 1, 2, 0, 0]);
        assert_eq!(queue(0), NOBODY, "no queue is recorded");
        let cpu = |cpu| by_cpu(2).run(&From { queue: 9, cpu });
        assert_eq!([0, 1, 2, 5].map(cpu), [0, 1, 0, 1]);
    }
}
