//! The programs that send a packet to the listener of its own queue or CPU. The listeners of a group are numbered in the order
//! in which they were bound; a number that no listener has leaves the choice to the hash.

use crate::code::*;
use crate::{Ancillary, Instruction, Program};

/// More than any group has listeners.
const NOBODY: u32 = u32::MAX;

fn program(instructions: Vec<Instruction>) -> Program {
    match Program::new(instructions) {
        Ok(program) => program,
        Err(refused) => unreachable!("a program of this file: {refused}"),
    }
}

/// Listener `n` gets what came by receive queue `n`, modulo the number of listeners. Where the driver records no queue, the
/// hash chooses.
///
/// # Panics
/// For no listeners.
pub fn by_queue(listeners: u32) -> Program {
    assert!(listeners > 0, "a group has a listener");
    program(vec![
        Instruction::new(LD | W | ABS, Ancillary::Queue.offset()),
        Instruction::jump(JMP | JEQ | K, 0, 3, 0),
        Instruction::new(ALU | SUB | K, 1),
        Instruction::new(ALU | MOD | K, listeners),
        Instruction::new(RET | A, 0),
        Instruction::new(RET | K, NOBODY),
    ])
}

/// Listener `n` gets what is delivered on CPU `n`, modulo the number of listeners.
///
/// # Panics
/// For no listeners.
pub fn by_cpu(listeners: u32) -> Program {
    assert!(listeners > 0, "a group has a listener");
    program(vec![
        Instruction::new(LD | W | ABS, Ancillary::Cpu.offset()),
        Instruction::new(ALU | MOD | K, listeners),
        Instruction::new(RET | A, 0),
    ])
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
