//! Which programs are taken: those of whose instructions the interpreter has every one.

use super::code::*;
use super::{INSTRUCTION_BYTES, INSTRUCTIONS_MAX, Instruction, helper};
use crate::code as classic;

/// How many registers there are. The last one holds the end of the stack.
pub(super) const REGISTERS: usize = 11;

/// Why a program is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refused {
    /// It does not consist of whole instructions, has none, or has too many.
    #[error(
        "a program has 1 to {INSTRUCTIONS_MAX} instructions of {INSTRUCTION_BYTES} bytes each, and this one has {0} bytes"
    )]
    Length(usize),
    /// It has maps.
    #[error("instruction {at}: maps are not supported here")]
    Map {
        /// The instruction's place.
        at: usize,
    },
    /// It calls a helper that is not supported here.
    #[error("instruction {at}: helper {number} is not supported here")]
    Helper {
        /// The instruction's place.
        at: usize,
        /// The helper's number (`enum bpf_func_id`).
        number: i32,
    },
    /// It calls a function of its own, or one of the kernel's.
    #[error("instruction {at}: calls of functions are not supported here")]
    Function {
        /// The instruction's place.
        at: usize,
    },
    /// It has another operation that is not supported here, or none.
    #[error("instruction {at}: there is no operation {code:#04x}")]
    Code {
        /// The instruction's place.
        at: usize,
        /// The operation.
        code: u8,
    },
}

pub(super) fn check(program: &[Instruction]) -> Result<(), Refused> {
    let mut at = 0;
    while let Some(instruction) = program.get(at) {
        let is_wide = instruction.is_wide();
        check_one(*instruction, at)?;
        if is_wide && program.get(at + 1).is_none_or(|second| second.code != 0) {
            return Err(Refused::Code { at, code: instruction.code });
        }
        at += 1 + usize::from(is_wide);
    }
    Ok(())
}

fn check_one(instruction: Instruction, at: usize) -> Result<(), Refused> {
    let no = Err(Refused::Code { at, code: instruction.code });
    let is_read_only = |register: u8| usize::from(register) == REGISTERS - 1;
    if usize::from(instruction.to) >= REGISTERS || usize::from(instruction.from) >= REGISTERS {
        return no;
    }
    match instruction.class() {
        classic::LD if instruction.is_wide() => match instruction.from {
            0 if !is_read_only(instruction.to) => Ok(()),
            0 => no,
            _ => Err(Refused::Map { at }),
        },
        classic::LD => match instruction.mode() {
            classic::ABS | classic::IND if instruction.size() < 8 => Ok(()),
            _ => no,
        },
        classic::LDX | classic::ALU | ALU64 if is_read_only(instruction.to) => no,
        classic::LDX => match instruction.mode() {
            MEM_SIGNED if instruction.size() < 8 => Ok(()),
            classic::MEM => Ok(()),
            _ => no,
        },
        classic::ST | classic::STX if instruction.mode() == classic::MEM => Ok(()),
        classic::ALU | ALU64 if arithmetic(instruction) => Ok(()),
        classic::JMP | JMP32 => jump(instruction, at),
        _ => no,
    }
}

/// Whether there is such an arithmetic operation.
fn arithmetic(instruction: Instruction) -> bool {
    let is_64 = instruction.class() == ALU64;
    let by_register = instruction.is_by_register();
    match (instruction.operation(), instruction.offset) {
        (END, 0) => matches!(instruction.k, 16 | 32 | 64) && !(is_64 && by_register),
        // These moves extend the sign of 8, 16 or 32 bits.
        (MOV, 8 | 16) => by_register,
        (MOV, 32) => by_register && is_64,
        (operation, offset) => {
            let is_signed = offset == 1 && matches!(operation, classic::DIV | classic::MOD);
            (offset == 0 || is_signed) && operation <= ARSH
        }
    }
}

fn jump(instruction: Instruction, at: usize) -> Result<(), Refused> {
    let is_32 = instruction.class() == JMP32;
    match instruction.operation() {
        CALL | EXIT if is_32 => Err(Refused::Code { at, code: instruction.code }),
        CALL if instruction.from != 0 || instruction.is_by_register() => Err(Refused::Function { at }),
        CALL if !helper::ALL.contains(&instruction.k) => Err(Refused::Helper { at, number: instruction.k }),
        operation if operation > JSLE => Err(Refused::Code { at, code: instruction.code }),
        _ => Ok(()),
    }
}
