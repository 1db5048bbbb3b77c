//! Extended BPF: what `SO_ATTACH_REUSEPORT_EBPF` takes. Such a program is of the type `BPF_PROG_TYPE_SOCKET_FILTER`
//! (RFC 9669, and the kernel's `LD_ABS` and `LD_IND`).
//!
//! The kernel's verifier has seen a program before it comes here. So only one thing is checked when it is taken: that
//! this interpreter has each of its instructions. While it runs, each access of memory is checked, and its steps are
//! counted ([`STEPS_MAX`]). A program that the verifier has not seen thus does no harm: it returns a number that no
//! socket has.
//!
//! Of `struct __sk_buff` there are `len`, `pkt_type`, `mark`, `queue_mapping`, `protocol`, the VLAN tag, `ifindex`,
//! `cb` and `hash`; the rest is 0. Of the helpers there are `bpf_ktime_get_ns`, `bpf_get_prandom_u32`,
//! `bpf_get_smp_processor_id`, `bpf_skb_load_bytes` and `bpf_skb_load_bytes_relative`. A program with maps, functions,
//! atomic operations or other helpers is refused, and told the reason.
//!
//! ```
//! use lull_bpf::{Packet, extended::Program};
//!
//! struct Bytes<'a>(&'a [u8]);
//! impl Packet for Bytes<'_> {
//!     fn data(&self) -> &[u8] {
//!         self.0
//!     }
//! }
//!
//! // r6 = r1; r0 = the byte at 0; exit
//! let code = [[0xbf, 0x16, 0, 0, 0, 0, 0, 0], [0x30, 0, 0, 0, 0, 0, 0, 0], [0x95, 0, 0, 0, 0, 0, 0, 0]];
//! let program = Program::new(code.as_flattened())?;
//! assert_eq!(program.run(&Bytes(&[7, 8])), 7);
//! assert_eq!(program.run(&Bytes(&[])), 0, "what reads past the end returns 0");
//! # Ok::<(), lull_bpf::extended::Refused>(())
//! ```

mod check;
mod memory;
mod run;

pub use check::Refused;

use crate::Packet;

/// How many instructions a program has at most, as without `CAP_BPF` (`BPF_MAXINSNS`).
pub const INSTRUCTIONS_MAX: usize = 4_096;
/// How many instructions a run has at most. The verifier allows a million, but no packet waits for so many here.
pub const STEPS_MAX: usize = 1 << 16;

/// `BPF_PROG_TYPE_SOCKET_FILTER`, the type of the programs here. It is one of the two types that a reuseport group
/// takes (`sk_reuseport_attach_bpf` of `net/core/filter.c`).
pub const SOCKET_FILTER: u32 = 1;
/// `BPF_PROG_TYPE_SK_REUSEPORT`, the other one: such a program chooses by maps of the kernel's sockets.
pub const SK_REUSEPORT: u32 = 21;

const INSTRUCTION_BYTES: usize = 8;

/// The parts of an operation's code (`include/uapi/linux/bpf.h`); those of classic BPF are in [`crate::code`].
mod code {
    pub(super) const JMP32: u16 = 0x06;
    pub(super) const ALU64: u16 = 0x07;
    pub(super) const DW: u16 = 0x18;
    /// A load that extends the sign.
    pub(super) const MEM_SIGNED: u16 = 0x80;
    pub(super) const MOV: u16 = 0xb0;
    pub(super) const ARSH: u16 = 0xc0;
    pub(super) const END: u16 = 0xd0;
    pub(super) const JNE: u16 = 0x50;
    pub(super) const JSGT: u16 = 0x60;
    pub(super) const JSGE: u16 = 0x70;
    pub(super) const CALL: u16 = 0x80;
    pub(super) const EXIT: u16 = 0x90;
    pub(super) const JLT: u16 = 0xa0;
    pub(super) const JLE: u16 = 0xb0;
    pub(super) const JSLT: u16 = 0xc0;
    pub(super) const JSLE: u16 = 0xd0;
}

/// The kernel's functions that a program may call, by their numbers (`enum bpf_func_id`).
mod helper {
    pub(super) const KTIME_GET_NS: i32 = 5;
    pub(super) const GET_PRANDOM_U32: i32 = 7;
    pub(super) const GET_SMP_PROCESSOR_ID: i32 = 8;
    pub(super) const SKB_LOAD_BYTES: i32 = 26;
    pub(super) const SKB_LOAD_BYTES_RELATIVE: i32 = 68;
    pub(super) const ALL: [i32; 5] =
        [KTIME_GET_NS, GET_PRANDOM_U32, GET_SMP_PROCESSOR_ID, SKB_LOAD_BYTES, SKB_LOAD_BYTES_RELATIVE];
}

/// `struct bpf_insn`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Instruction {
    code: u8,
    to: u8,
    from: u8,
    offset: i16,
    k: i32,
}

impl Instruction {
    fn new([code, registers, o0, o1, k0, k1, k2, k3]: [u8; INSTRUCTION_BYTES]) -> Instruction {
        // Bit fields begin at the low end on a little-endian machine.
        let (to, from) = if cfg!(target_endian = "little") {
            (registers & 0xf, registers >> 4)
        } else {
            (registers >> 4, registers & 0xf)
        };
        let (offset, k) = (i16::from_ne_bytes([o0, o1]), i32::from_ne_bytes([k0, k1, k2, k3]));
        Instruction { code, to, from, offset, k }
    }

    fn class(self) -> u16 {
        u16::from(self.code) & 0x07
    }

    /// The code of an arithmetic operation or a jump.
    fn operation(self) -> u16 {
        u16::from(self.code) & 0xf0
    }

    /// Whether the operand is a register, and not the constant.
    fn is_by_register(self) -> bool {
        self.code & 0x08 != 0
    }

    /// How many bytes a load or a store moves.
    fn size(self) -> usize {
        match u16::from(self.code) & 0x18 {
            code::DW => 8,
            size => crate::run::size(size),
        }
    }

    /// The mode of a load or a store.
    fn mode(self) -> u16 {
        u16::from(self.code) & 0xe0
    }

    /// Whether it is the first half of a load of a 64-bit constant.
    fn is_wide(self) -> bool {
        self.class() == crate::code::LD && self.mode() == crate::code::IMM && self.size() == 8
    }
}

/// A program each of whose instructions this interpreter has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program(Vec<Instruction>);

impl Program {
    /// Takes a program, as the bytes of its instructions (`struct bpf_insn`).
    ///
    /// # Errors
    /// The program has something that is not supported here. The error says what, and where.
    pub fn new(code: &[u8]) -> Result<Program, Refused> {
        let (instructions, rest) = code.as_chunks::<INSTRUCTION_BYTES>();
        if !rest.is_empty() || !(1..=INSTRUCTIONS_MAX).contains(&instructions.len()) {
            return Err(Refused::Length(code.len()));
        }
        let instructions: Vec<Instruction> = instructions.iter().copied().map(Instruction::new).collect();
        check::check(&instructions)?;
        Ok(Program(instructions))
    }

    /// Runs the program, and returns what it returns. One that leaves its memory or its instructions, or exceeds
    /// [`STEPS_MAX`], returns the greatest number, which no socket has.
    #[inline]
    pub fn run(&self, packet: &impl Packet) -> u32 {
        run::run(&self.0, packet).unwrap_or(u32::MAX)
    }
}
