//! The programs that `SO_ATTACH_REUSEPORT_CBPF` takes (classic BPF), checked and run as the kernel does, and those that
//! `SO_ATTACH_REUSEPORT_EBPF` takes ([`extended`]).
//!
//! There are three types to know: [`Instruction`] (`struct sock_filter`), [`Program`] (instructions that passed the
//! kernel's checks), and [`Packet`] (what a program looks at). [`steer`] has the programs that send a packet to the
//! listener of its own queue or CPU, for both planes; [`Program::parse`] reads what `tcpdump -ddd` and `bpf_asm` print.
//! A [`Chooser`] is a program of either kind.
//!
//! ```
//! use lull_bpf::{Instruction, Packet, Program};
//!
//! struct Bytes<'a>(&'a [u8]);
//! impl Packet for Bytes<'_> {
//!     fn data(&self) -> &[u8] {
//!         self.0
//!     }
//! }
//!
//! // ldb [0]; ret a
//! let program = Program::parse("2,48 0 0 0,22 0 0 0")?;
//! assert_eq!(program.run(&Bytes(&[7, 8])), 7);
//! assert_eq!(program.run(&Bytes(&[])), 0, "what reads past the end returns 0");
//! # Ok::<(), lull_bpf::Refused>(())
//! ```
#![forbid(unsafe_code)]

mod check;
mod chooser;
pub mod extended;
mod parse;
mod run;
pub mod steer;

pub use check::Refused;
pub use chooser::Chooser;
pub use run::Packet;

/// How many instructions a program has at most (`BPF_MAXINSNS`).
pub const INSTRUCTIONS_MAX: usize = 4096;
/// How many words scratch memory has (`BPF_MEMWORDS`).
pub const MEMORY_WORDS: usize = 16;

/// The parts of an operation's code (`include/uapi/linux/bpf_common.h`).
pub mod code {
    #![allow(missing_docs, reason = "the names are the kernel's")]
    pub const LD: u16 = 0x00;
    pub const LDX: u16 = 0x01;
    pub const ST: u16 = 0x02;
    pub const STX: u16 = 0x03;
    pub const ALU: u16 = 0x04;
    pub const JMP: u16 = 0x05;
    pub const RET: u16 = 0x06;
    pub const MISC: u16 = 0x07;

    pub const W: u16 = 0x00;
    pub const H: u16 = 0x08;
    pub const B: u16 = 0x10;

    pub const IMM: u16 = 0x00;
    pub const ABS: u16 = 0x20;
    pub const IND: u16 = 0x40;
    pub const MEM: u16 = 0x60;
    pub const LEN: u16 = 0x80;
    pub const MSH: u16 = 0xa0;

    pub const ADD: u16 = 0x00;
    pub const SUB: u16 = 0x10;
    pub const MUL: u16 = 0x20;
    pub const DIV: u16 = 0x30;
    pub const OR: u16 = 0x40;
    pub const AND: u16 = 0x50;
    pub const LSH: u16 = 0x60;
    pub const RSH: u16 = 0x70;
    pub const NEG: u16 = 0x80;
    pub const MOD: u16 = 0x90;
    pub const XOR: u16 = 0xa0;

    pub const JA: u16 = 0x00;
    pub const JEQ: u16 = 0x10;
    pub const JGT: u16 = 0x20;
    pub const JGE: u16 = 0x30;
    pub const JSET: u16 = 0x40;

    pub const K: u16 = 0x00;
    pub const X: u16 = 0x08;
    pub const A: u16 = 0x10;

    pub const TAX: u16 = 0x00;
    pub const TXA: u16 = 0x80;
}

/// One instruction (`struct sock_filter`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct Instruction {
    /// The operation.
    pub code: u16,
    /// Instructions that are skipped if the condition holds.
    pub jt: u8,
    /// Instructions that are skipped if the condition does not hold.
    pub jf: u8,
    /// The constant.
    pub k: u32,
}

impl Instruction {
    /// An instruction that does not jump.
    pub const fn new(code: u16, k: u32) -> Instruction {
        Instruction { code, jt: 0, jf: 0, k }
    }

    /// A conditional jump.
    pub const fn jump(code: u16, k: u32, jt: u8, jf: u8) -> Instruction {
        Instruction { code, jt, jf, k }
    }
}

/// Where the offsets of data beside the packet begin (`SKF_AD_OFF`).
pub const ANCILLARY_OFFSET: u32 = (-0x1000i32) as u32;
/// Where offsets from the network header begin (`SKF_NET_OFF`).
pub const NETWORK_OFFSET: i32 = -0x10_0000;
/// Where offsets from the link header begin (`SKF_LL_OFF`).
pub const LINK_OFFSET: i32 = -0x20_0000;

/// Data beside the packet, by their offset from [`ANCILLARY_OFFSET`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Ancillary {
    /// The EtherType (`SKF_AD_PROTOCOL`).
    Protocol = 0,
    /// The kind of address that the frame was sent to (`SKF_AD_PKTTYPE`).
    PacketType = 4,
    /// The interface (`SKF_AD_IFINDEX`).
    Interface = 8,
    /// `SO_MARK` (`SKF_AD_MARK`).
    Mark = 20,
    /// The receive queue plus 1, or 0 if the driver does not record it (`SKF_AD_QUEUE`).
    Queue = 24,
    /// The kind of the interface (`SKF_AD_HATYPE`).
    HardwareType = 28,
    /// The device's hash of the flow, or 0 if it has none (`SKF_AD_RXHASH`).
    Hash = 32,
    /// The CPU that the program runs on (`SKF_AD_CPU`).
    Cpu = 36,
    /// The VLAN tag (`SKF_AD_VLAN_TAG`).
    VlanTag = 44,
    /// Whether there is a VLAN tag (`SKF_AD_VLAN_TAG_PRESENT`).
    VlanTagPresent = 48,
    /// A random number (`SKF_AD_RANDOM`).
    Random = 56,
    /// The VLAN tag's protocol (`SKF_AD_VLAN_TPID`).
    VlanProtocol = 60,
}

/// `SKF_AD_ALU_XOR_X` is not a value but an operation: A becomes A ^ X.
const ALU_XOR_X: u32 = 40;
/// Offsets that the kernel has and this interpreter has not: `SKF_AD_NLATTR`, `SKF_AD_NLATTR_NEST`,
/// `SKF_AD_PAY_OFFSET`.
const UNSUPPORTED: [(u32, &str); 3] = [(12, "SKF_AD_NLATTR"), (16, "SKF_AD_NLATTR_NEST"), (52, "SKF_AD_PAY_OFFSET")];

impl Ancillary {
    const ALL: [Ancillary; 12] = [
        Ancillary::Protocol,
        Ancillary::PacketType,
        Ancillary::Interface,
        Ancillary::Mark,
        Ancillary::Queue,
        Ancillary::HardwareType,
        Ancillary::Hash,
        Ancillary::Cpu,
        Ancillary::VlanTag,
        Ancillary::VlanTagPresent,
        Ancillary::Random,
        Ancillary::VlanProtocol,
    ];

    /// Which of these the constant of an absolute load names, if it names one.
    fn named_by(k: u32) -> Option<Ancillary> {
        let offset = k.wrapping_sub(ANCILLARY_OFFSET);
        Ancillary::ALL.into_iter().find(|ancillary| *ancillary as u32 == offset)
    }

    /// The constant of an absolute load of this value.
    pub const fn offset(self) -> u32 {
        ANCILLARY_OFFSET + self as u32
    }
}

/// A program that passed the kernel's checks: it ends, and reads no scratch memory that it has not written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program(Vec<Instruction>);

impl Program {
    /// Checks a program as `bpf_check_classic` does.
    ///
    /// # Errors
    /// The program is refused. The error says what is wrong, and where.
    pub fn new(instructions: Vec<Instruction>) -> Result<Program, Refused> {
        check::check(&instructions)?;
        Ok(Program(instructions))
    }

    /// The program's instructions.
    pub fn instructions(&self) -> &[Instruction] {
        &self.0
    }

    /// Runs the program, and returns what it returns.
    #[inline]
    pub fn run(&self, packet: &impl Packet) -> u32 {
        run::run(&self.0, packet)
    }
}
