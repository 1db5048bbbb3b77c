//! Programs as text.

use crate::{Instruction, Program, Refused};

impl Program {
    /// Reads a program as `tcpdump -ddd` prints it (the number of instructions in a line, then one instruction a line)
    /// or as `bpf_asm` does (the same with commas). An instruction is four decimal numbers: the operation, the jump if
    /// true, the jump if false, and the constant.
    ///
    /// # Errors
    /// A part of the text is no number, the number of instructions is wrong, or [`Program::new`] refuses the program.
    pub fn parse(text: &str) -> Result<Program, Refused> {
        let refused = |why: String| Refused::Text(why);
        let mut parts = text.split([',', '\n']).map(str::trim).filter(|part| !part.is_empty());
        let count = parts.next().ok_or_else(|| refused("there is no program: the text is empty".to_owned()))?;
        let count: usize = count.parse().map_err(|_| {
            refused(format!("'{count}' is no count of instructions: write them as tcpdump -ddd or bpf_asm prints them"))
        })?;
        let instructions = parts.map(instruction).collect::<Result<Vec<_>, _>>()?;
        if instructions.len() != count {
            return Err(refused(format!("the program says {count} instructions and has {}", instructions.len())));
        }
        Program::new(instructions)
    }
}

fn instruction(text: &str) -> Result<Instruction, Refused> {
    let numbers: Vec<&str> = text.split_ascii_whitespace().collect();
    let read = || -> Option<Instruction> {
        let [code, jt, jf, k] = numbers[..] else { return None };
        // tcpdump prints the constant as an unsigned number.
        Some(Instruction { code: code.parse().ok()?, jt: jt.parse().ok()?, jf: jf.parse().ok()?, k: k.parse().ok()? })
    };
    read().ok_or_else(|| Refused::Text(format!("'{text}' is no instruction: it has four numbers, such as '48 0 0 0'")))
}
