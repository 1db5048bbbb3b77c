//! The interpreter.

use std::sync::OnceLock;
use std::time::Instant;

use super::check::REGISTERS;
use super::code::*;
use super::memory::Memory;
use super::{Instruction, STEPS_MAX, helper};
use crate::code as classic;
use crate::run::load;
use crate::{Ancillary, Packet};

/// The error that `bpf_skb_load_bytes` returns for bytes that are not there.
const EFAULT: i64 = 14;
/// `BPF_HDR_START_MAC` and `BPF_HDR_START_NET`.
const FROM_LINK: u64 = 0;
const FROM_NETWORK: u64 = 1;

/// Runs a program. Returns `None` if it leaves its memory or its instructions, or exceeds its steps.
pub(super) fn run(program: &[Instruction], packet: &impl Packet) -> Option<u32> {
    let mut registers = [0_u64; REGISTERS];
    let mut memory = Memory::new(packet);
    registers[1] = Memory::CONTEXT;
    registers[REGISTERS - 1] = Memory::STACK_END;
    let mut at = 0_usize;
    for _ in 0..STEPS_MAX {
        let instruction = *program.get(at)?;
        at += 1;
        let (to, from) = (usize::from(instruction.to), usize::from(instruction.from));
        let operand = if instruction.is_by_register() { registers[from] } else { i64::from(instruction.k) as u64 };
        let size = instruction.size();
        match instruction.class() {
            classic::LD if instruction.is_wide() => {
                registers[to] = u64::from(instruction.k as u32) | u64::from(program.get(at)?.k as u32) << 32;
                at += 1;
            }
            classic::LD => {
                let index = if instruction.mode() == classic::IND { registers[from] as u32 } else { 0 };
                let Some(value) = load(packet, (instruction.k as u32).wrapping_add(index) as i32, size) else {
                    return Some(0);
                };
                registers[0] = value.into();
            }
            classic::LDX => {
                let value = memory.load(moved(registers[from], instruction.offset), size)?;
                let is_signed = instruction.mode() == MEM_SIGNED;
                registers[to] = if is_signed { extended(value, 8 * size as u32) } else { value };
            }
            classic::ST => {
                memory.store(moved(registers[to], instruction.offset), size, i64::from(instruction.k) as u64)?;
            }
            classic::STX => {
                memory.store(moved(registers[to], instruction.offset), size, registers[from])?;
            }
            ALU64 | classic::ALU if instruction.operation() == END => {
                registers[to] = in_order(instruction, registers[to]);
            }
            ALU64 => registers[to] = arithmetic_64(instruction, registers[to], operand),
            // The upper half of the result is 0, even if the lower half does not change.
            classic::ALU => {
                registers[to] = arithmetic_32(instruction, registers[to] as u32, operand as u32).into();
            }
            class => match instruction.operation() {
                EXIT => return Some(registers[0] as u32),
                CALL => registers[0] = call(instruction.k, &registers, &mut memory, packet)?,
                operation => {
                    let distance = match (operation, class) {
                        (0, JMP32) => instruction.k,
                        (0, _) => instruction.offset.into(),
                        _ if compare(operation, class == JMP32, registers[to], operand) => instruction.offset.into(),
                        _ => 0,
                    };
                    at = at.checked_add_signed(isize::try_from(distance).ok()?)?;
                }
            },
        }
    }
    None
}

fn moved(address: u64, offset: i16) -> u64 {
    address.wrapping_add_signed(offset.into())
}

/// The lowest `bits` of a value, extended by their sign.
fn extended(value: u64, bits: u32) -> u64 {
    let unused = 64 - bits;
    ((value << unused) as i64 >> unused) as u64
}

/// Swaps the lowest bytes of a value into network order, or into that which is not the machine's. The rest is cleared.
fn in_order(instruction: Instruction, value: u64) -> u64 {
    let swaps = instruction.class() == ALU64 || instruction.is_by_register() == cfg!(target_endian = "little");
    match instruction.k {
        16 => u64::from(if swaps { (value as u16).swap_bytes() } else { value as u16 }),
        32 => u64::from(if swaps { (value as u32).swap_bytes() } else { value as u32 }),
        _ if swaps => value.swap_bytes(),
        _ => value,
    }
}

/// The arithmetic operations on words of one size. A shift is by less than that size; the verifier demands this of
/// constants.
macro_rules! arithmetic {
    ($name:ident, $unsigned:ty, $signed:ty) => {
        fn $name(instruction: Instruction, a: $unsigned, b: $unsigned) -> $unsigned {
            let shift = b as u32 & (<$unsigned>::BITS - 1);
            let is_signed = instruction.offset == 1;
            match instruction.operation() {
                MOV if instruction.offset != 0 => extended(b.into(), instruction.offset as u32) as $unsigned,
                MOV => b,
                ARSH => (a as $signed >> shift) as $unsigned,
                classic::ADD => a.wrapping_add(b),
                classic::SUB => a.wrapping_sub(b),
                classic::MUL => a.wrapping_mul(b),
                classic::DIV if b == 0 => 0,
                classic::DIV if is_signed => (a as $signed).wrapping_div(b as $signed) as $unsigned,
                classic::DIV => a / b,
                classic::MOD if b == 0 => a,
                classic::MOD if is_signed => (a as $signed).wrapping_rem(b as $signed) as $unsigned,
                classic::MOD => a % b,
                classic::OR => a | b,
                classic::AND => a & b,
                classic::XOR => a ^ b,
                classic::LSH => a << shift,
                classic::RSH => a >> shift,
                _ => a.wrapping_neg(),
            }
        }
    };
}

arithmetic!(arithmetic_64, u64, i64);
arithmetic!(arithmetic_32, u32, i32);

fn compare(operation: u16, is_32: bool, a: u64, b: u64) -> bool {
    let (a, b, a_signed, b_signed) = if is_32 {
        (u64::from(a as u32), u64::from(b as u32), i64::from(a as i32), i64::from(b as i32))
    } else {
        (a, b, a as i64, b as i64)
    };
    match operation {
        JNE => a != b,
        JSGT => a_signed > b_signed,
        JSGE => a_signed >= b_signed,
        JLT => a < b,
        JLE => a <= b,
        JSLT => a_signed < b_signed,
        JSLE => a_signed <= b_signed,
        classic::JEQ => a == b,
        classic::JGT => a > b,
        classic::JGE => a >= b,
        _ => a & b != 0,
    }
}

/// Calls a helper, with its arguments in registers 1 to 5. Returns `None` if it leaves the memory.
fn call(number: i32, registers: &[u64; REGISTERS], memory: &mut Memory, packet: &impl Packet) -> Option<u64> {
    Some(match number {
        helper::KTIME_GET_NS => since_first_asked_ns(),
        helper::GET_PRANDOM_U32 => packet.ancillary(Ancillary::Random).into(),
        helper::GET_SMP_PROCESSOR_ID => packet.ancillary(Ancillary::Cpu).into(),
        _ => {
            let (offset, bytes) = (registers[2] as u32, registers[4] as u32 as usize);
            let from = match (number, registers[5]) {
                (helper::SKB_LOAD_BYTES, _) => Some(packet.data()),
                (_, FROM_LINK) => packet.link(),
                (_, FROM_NETWORK) => packet.network(),
                _ => None,
            };
            let place = memory.at(registers[3], bytes)?;
            let start = offset as usize;
            match from.and_then(|from| from.get(start..start.checked_add(bytes)?)) {
                Some(found) => {
                    place.copy_from_slice(found);
                    0
                }
                None => {
                    place.fill(0);
                    (-EFAULT) as u64
                }
            }
        }
    })
}

/// The time since the first call. The zero of this clock means nothing, like that of the kernel's.
fn since_first_asked_ns() -> u64 {
    static ZERO: OnceLock<Instant> = OnceLock::new();
    ZERO.get_or_init(Instant::now).elapsed().as_nanos() as u64
}
