//! The interpreter.

use crate::code::*;
use crate::{ALU_XOR_X, ANCILLARY_OFFSET, Ancillary, Instruction, LINK_OFFSET, MEMORY_WORDS, NETWORK_OFFSET};

/// A packet, as a program looks at it.
pub trait Packet {
    /// The bytes that offsets from 0 on refer to. For a program that steers they begin with the payload
    /// (`run_bpf_filter`).
    fn data(&self) -> &[u8];

    /// The bytes from the network header on, if they are known.
    fn network(&self) -> Option<&[u8]> {
        None
    }

    /// The bytes from the link header on, if they are known.
    fn link(&self) -> Option<&[u8]> {
        None
    }

    /// Data beside the packet; 0 if they are not known.
    fn ancillary(&self, _which: Ancillary) -> u32 {
        0
    }
}

/// Loads so many `bytes` in network order from `offset`, which may be relative to a header
/// (`bpf_internal_load_pointer_neg_helper`).
pub(crate) fn load(packet: &impl Packet, offset: i32, bytes: usize) -> Option<u32> {
    let (from, at) = if offset >= 0 {
        (packet.data(), offset)
    } else if offset >= NETWORK_OFFSET {
        (packet.network()?, offset - NETWORK_OFFSET)
    } else if offset >= LINK_OFFSET {
        (packet.link()?, offset - LINK_OFFSET)
    } else {
        return None;
    };
    let at = at as usize;
    let bytes = from.get(at..at.checked_add(bytes)?)?;
    Some(bytes.iter().fold(0, |value, byte| value << 8 | u32::from(*byte)))
}

pub(crate) fn size(code: u16) -> usize {
    match code & 0x18 {
        H => 2,
        B => 1,
        _ => 4,
    }
}

/// Computes an arithmetic operation. Returns `None` for a division by 0, which ends the program.
fn arithmetic(operation: u16, a: u32, operand: u32) -> Option<u32> {
    Some(match operation {
        ADD => a.wrapping_add(operand),
        SUB => a.wrapping_sub(operand),
        MUL => a.wrapping_mul(operand),
        DIV => a.checked_div(operand)?,
        MOD => a.checked_rem(operand)?,
        OR => a | operand,
        AND => a & operand,
        XOR => a ^ operand,
        // A shift by X uses only its lowest five bits.
        LSH => a.wrapping_shl(operand),
        RSH => a.wrapping_shr(operand),
        _ => a.wrapping_neg(),
    })
}

/// Runs a program that was checked. If it reads past the end of the packet, or divides by 0, it returns 0.
pub(crate) fn run(program: &[Instruction], packet: &impl Packet) -> u32 {
    let (mut a, mut x, mut memory) = (0u32, 0u32, [0u32; MEMORY_WORDS]);
    let mut at = 0;
    loop {
        let Instruction { code, jt, jf, k } = program[at];
        at += 1;
        let (class, mode) = (code & 7, code & 0xe0);
        match class {
            LD if mode == ABS && k >= ANCILLARY_OFFSET => match Ancillary::named_by(k) {
                Some(which) => a = packet.ancillary(which),
                None => {
                    debug_assert_eq!(k - ANCILLARY_OFFSET, ALU_XOR_X);
                    a ^= x;
                }
            },
            LD if mode == ABS || mode == IND => {
                let offset = if mode == IND { x.wrapping_add(k) } else { k };
                let Some(value) = load(packet, offset as i32, size(code)) else { return 0 };
                a = value;
            }
            LDX if mode == MSH => {
                let Some(value) = load(packet, k as i32, 1) else { return 0 };
                x = 4 * (value & 0xf);
            }
            LD | LDX => {
                let value = match mode {
                    IMM => k,
                    MEM => memory[k as usize],
                    _ => packet.data().len() as u32,
                };
                if class == LD { a = value } else { x = value }
            }
            ST => memory[k as usize] = a,
            STX => memory[k as usize] = x,
            ALU => {
                let operand = if code & X != 0 { x } else { k };
                let Some(value) = arithmetic(code & 0xf0, a, operand) else { return 0 };
                a = value;
            }
            JMP if code & 0xf0 == JA => at += k as usize,
            JMP => {
                let operand = if code & X != 0 { x } else { k };
                let holds = match code & 0xf0 {
                    JEQ => a == operand,
                    JGT => a > operand,
                    JGE => a >= operand,
                    _ => a & operand != 0,
                };
                at += usize::from(if holds { jt } else { jf });
            }
            RET => return if code & A != 0 { a } else { k },
            _ if code & TXA != 0 => a = x,
            _ => x = a,
        }
    }
}
