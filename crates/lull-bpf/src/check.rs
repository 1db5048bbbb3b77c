//! Which programs may run: the rules of `bpf_check_classic` and `check_load_and_stores`.

use crate::code::*;
use crate::{ALU_XOR_X, ANCILLARY_OFFSET, Ancillary, INSTRUCTIONS_MAX, Instruction, MEMORY_WORDS, UNSUPPORTED};

/// Why a program is refused. The kernel answers EINVAL in each of these cases but that of something that is not
/// supported here.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refused {
    /// It has no instructions, or too many.
    #[error("a program has 1 to {INSTRUCTIONS_MAX} instructions, and this one has {0}")]
    Length(usize),
    /// There is no such operation.
    #[error("instruction {at}: there is no operation {code:#06x}")]
    Code {
        /// The instruction's place.
        at: usize,
        /// The operation.
        code: u16,
    },
    /// It divides by a constant 0.
    #[error("instruction {at}: it divides by 0")]
    DivisionByZero {
        /// The instruction's place.
        at: usize,
    },
    /// It shifts by 32 or more.
    #[error("instruction {at}: it shifts by {k}, and words have 32 bits")]
    Shift {
        /// The instruction's place.
        at: usize,
        /// By how much.
        k: u32,
    },
    /// There is no such word of scratch memory.
    #[error("instruction {at}: there is no M[{k}], only M[0] to M[{}]", MEMORY_WORDS - 1)]
    Memory {
        /// The instruction's place.
        at: usize,
        /// The word.
        k: u32,
    },
    /// It reads a word that may not have been written.
    #[error("instruction {at}: M[{k}] is read, and on some way here nothing has written it")]
    NotWritten {
        /// The instruction's place.
        at: usize,
        /// The word.
        k: u32,
    },
    /// It jumps out of the program.
    #[error("instruction {at}: it jumps out of the program")]
    Jump {
        /// The instruction's place.
        at: usize,
    },
    /// The last instruction is no return.
    #[error("the last instruction is no return")]
    NoReturn,
    /// It loads from an offset that names nothing.
    #[error("instruction {at}: the offset {k:#x} names nothing (SKF_AD_OFF and above)")]
    Offset {
        /// The instruction's place.
        at: usize,
        /// The offset.
        k: u32,
    },
    /// It uses what the kernel has and this interpreter has not.
    #[error("instruction {at}: {what} is not supported here")]
    Unsupported {
        /// The instruction's place.
        at: usize,
        /// What it uses.
        what: &'static str,
    },
    /// A text is no program.
    #[error("{0}")]
    Text(String),
}

fn is_operation(code: u16) -> bool {
    if code > 0xff {
        return false;
    }
    let (class, rest) = (code & 7, code & !7);
    match class {
        LD => matches!(rest, IMM | LEN | MEM) || (matches!(rest & 0xe0, ABS | IND) && matches!(rest & 0x18, W | H | B)),
        LDX => matches!(rest, IMM | LEN | MEM) || code == LDX | B | MSH,
        ST | STX => rest == 0,
        ALU => {
            let operation = rest & 0xf0;
            rest == NEG || (operation <= XOR && operation != NEG && matches!(rest & 0x0f, K | X))
        }
        JMP => rest == JA || (matches!(rest & 0xf0, JEQ | JGT | JGE | JSET) && matches!(rest & 0x0f, K | X)),
        RET => matches!(rest, K | A),
        _ => matches!(rest, TAX | TXA),
    }
}

/// Checks one instruction by itself.
fn check_one(at: usize, instruction: Instruction, length: usize) -> Result<(), Refused> {
    let Instruction { code, jt, jf, k } = instruction;
    if !is_operation(code) {
        return Err(Refused::Code { at, code });
    }
    let behind = |skip: u64| at as u64 + 1 + skip < length as u64;
    match (code & 7, code & 0xf8) {
        (ALU, operation) if (operation == DIV | K || operation == MOD | K) && k == 0 => {
            return Err(Refused::DivisionByZero { at });
        }
        (ALU, operation) if (operation == LSH | K || operation == RSH | K) && k >= 32 => {
            return Err(Refused::Shift { at, k });
        }
        (LD | LDX, MEM) | (ST | STX, _) if k as usize >= MEMORY_WORDS => return Err(Refused::Memory { at, k }),
        (JMP, JA) if !behind(u64::from(k)) => return Err(Refused::Jump { at }),
        (JMP, operation) if operation != JA && !(behind(u64::from(jt)) && behind(u64::from(jf))) => {
            return Err(Refused::Jump { at });
        }
        (LD, mode) if mode & 0xe0 == ABS && k >= ANCILLARY_OFFSET => {
            let offset = k - ANCILLARY_OFFSET;
            if let Some((_, what)) = UNSUPPORTED.into_iter().find(|(unsupported, _)| *unsupported == offset) {
                return Err(Refused::Unsupported { at, what });
            }
            if Ancillary::named_by(k).is_none() && offset != ALU_XOR_X {
                return Err(Refused::Offset { at, k });
            }
        }
        _ => {}
    }
    Ok(())
}

pub(crate) fn check(program: &[Instruction]) -> Result<(), Refused> {
    if program.is_empty() || program.len() > INSTRUCTIONS_MAX {
        return Err(Refused::Length(program.len()));
    }
    for (at, instruction) in program.iter().enumerate() {
        check_one(at, *instruction, program.len())?;
    }
    if program.last().is_none_or(|last| last.code & 7 != RET) {
        return Err(Refused::NoReturn);
    }
    check_memory(program)
}

/// Checks that every way to a load has written what it reads. All jumps go forward, so that one look at each
/// instruction is enough.
fn check_memory(program: &[Instruction]) -> Result<(), Refused> {
    // The words that are written on every way that jumps to an instruction.
    let mut at_entry = vec![u16::MAX; program.len()];
    let mut written = 0u16;
    for (at, instruction) in program.iter().enumerate() {
        written &= at_entry[at];
        let Instruction { code, jt, jf, k } = *instruction;
        match (code & 7, code & 0xf8) {
            (ST | STX, _) => written |= 1 << k,
            (LD | LDX, MEM) if written & (1 << k) == 0 => return Err(Refused::NotWritten { at, k }),
            (JMP, JA) => {
                at_entry[at + 1 + k as usize] &= written;
                written = u16::MAX;
            }
            (JMP, _) => {
                at_entry[at + 1 + usize::from(jt)] &= written;
                at_entry[at + 1 + usize::from(jf)] &= written;
                written = u16::MAX;
            }
            _ => {}
        }
    }
    Ok(())
}
