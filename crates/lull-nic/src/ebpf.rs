//! XDP programs as they are compiled for Linux (eBPF), on the receive path of any device: a [`FrameProgram`] whose verdicts are
//! XDP's. The feature `ebpf` has it.
//!
//! `clang -O2 -target bpf -c drop.c && llvm-objcopy -O binary --only-section=xdp drop.o drop.bin` makes what
//! [`EbpfProgram::new`] takes. It is interpreted (`rbpf`), and each access is checked while it runs: this is for trying
//! a program without a kernel, not for speed. A program that reads outside the frame, where Linux would not have loaded
//! it, fails on that frame, which is dropped and counted ([`Action::Aborted`]).
//!
//! Of `struct xdp_md` it has `data`, `data_end`, `data_meta` (which is `data`: there is no metadata) and
//! `rx_queue_index`. A program with maps, helpers, loops, atomic operations or `ingress_ifindex` is refused when it is
//! loaded, and the error names what it is. So each run ends after as many steps as the program has instructions.
//! Without a helper there is no redirection, and the verdict XDP_REDIRECT fails on the frame, as it does in Linux
//! without a target. Of a chain of frames a program sees the first.
//!
//! ```
//! use std::sync::Arc;
//! use lull_nic::ebpf::EbpfProgram;
//! use lull_nic::mem::{self, MemConfig};
//! use lull_nic::program::Programmed;
//!
//! // r0 = 1 (XDP_DROP); exit
//! let program = EbpfProgram::new(&[0xb7, 0, 0, 0, 1, 0, 0, 0, 0x95, 0, 0, 0, 0, 0, 0, 0])?;
//! let (service, _client) = mem::pair(MemConfig::default());
//! let service = Programmed::new(Arc::new(service), move |queue| Box::new(program.on_queue(queue)));
//! # Ok::<(), lull_nic::ebpf::Refused>(())
//! ```

use std::sync::Arc;

use rbpf::EbpfVmRaw;

use crate::frame::Frame;
use crate::program::{Action, FrameProgram};

/// Instructions that a program has at most (`BPF_MAXINSNS`).
pub const INSTRUCTIONS_MAX: usize = 4_096;

const INSTRUCTION_BYTES: usize = 8;
/// What a program has for its context, in front of the frame: the addresses of `data` and `data_end`, then the queue.
const CONTEXT_BYTES: usize = 24;
const CONTEXT_DATA_END: i16 = 8;
const CONTEXT_QUEUE: i16 = 16;

/// `XDP_DROP`, `XDP_PASS`, `XDP_TX` of `linux/bpf.h`.
const XDP_DROP: u32 = 1;
const XDP_PASS: u32 = 2;
const XDP_TX: u32 = 3;

/// Why a program is not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refused {
    /// No whole instructions, none at all, or too many.
    #[error("a program has 1 to {INSTRUCTIONS_MAX} instructions of 8 bytes, and this has {0} bytes")]
    Length(usize),
    /// An instruction that is none.
    #[error("{0}")]
    Malformed(String),
    /// Linux has this, or refuses it itself; here it cannot be had.
    #[error("instruction {at}: {what}")]
    Unsupported {
        /// Where.
        at: usize,
        /// What.
        what: String,
    },
}

/// A program that was checked. Clones share its code.
#[derive(Clone, Debug)]
pub struct EbpfProgram {
    code: Arc<[u8]>,
    queue: u32,
}

impl EbpfProgram {
    /// Checks a program, as bytes of instructions.
    ///
    /// # Errors
    /// What it has that cannot be had here, and where.
    pub fn new(code: &[u8]) -> Result<EbpfProgram, Refused> {
        let count = code.len() / INSTRUCTION_BYTES;
        if !code.len().is_multiple_of(INSTRUCTION_BYTES) || !(1..=INSTRUCTIONS_MAX).contains(&count) {
            return Err(Refused::Length(code.len()));
        }
        EbpfVmRaw::new(Some(code)).map_err(|error| Refused::Malformed(error.to_string()))?;
        let mut code = code.to_vec();
        Pass::over(&mut code)?;
        Ok(EbpfProgram { code: with_whole_remainders(&code).into(), queue: 0 })
    }

    /// The same for frames of this receive queue (`rx_queue_index`).
    #[must_use]
    pub fn on_queue(&self, queue: usize) -> EbpfProgram {
        EbpfProgram { code: self.code.clone(), queue: u32::try_from(queue).unwrap_or(u32::MAX) }
    }

    /// Runs it on a context with the frame behind it. Nothing is returned for an access outside of both.
    fn verdict(&self, memory: &mut [u8]) -> Option<u32> {
        let start = memory.as_ptr() as u64;
        let end = start + memory.len() as u64;
        memory[..8].copy_from_slice(&(start + CONTEXT_BYTES as u64).to_ne_bytes());
        memory[8..16].copy_from_slice(&end.to_ne_bytes());
        memory[16..20].copy_from_slice(&self.queue.to_ne_bytes());
        memory[20..24].fill(0);
        let mut machine = EbpfVmRaw::new(None).ok()?;
        // It was checked when it was made.
        machine.set_verifier(|_| Ok(())).ok()?;
        machine.set_program(&self.code).ok()?;
        // Verdicts have 32 bits.
        machine.execute_program(memory).ok().map(|verdict| verdict as u32)
    }
}

impl FrameProgram for EbpfProgram {
    fn run(&mut self, frame: &mut Frame) -> Action {
        let verdict = if frame.headroom() >= CONTEXT_BYTES {
            frame.push_front(CONTEXT_BYTES);
            let verdict = self.verdict(frame.data_mut());
            frame.pull_front(CONTEXT_BYTES);
            verdict
        } else {
            let mut memory = vec![0; CONTEXT_BYTES];
            memory.extend_from_slice(frame.data());
            let verdict = self.verdict(&mut memory);
            frame.data_mut().copy_from_slice(&memory[CONTEXT_BYTES..]);
            verdict
        };
        match verdict {
            Some(XDP_DROP) => Action::Drop,
            Some(XDP_PASS) => Action::Pass,
            Some(XDP_TX) => Action::Transmit,
            _ => Action::Aborted,
        }
    }
}

/// The code with a move behind each remainder of 32 bits by a register: by 0 it leaves the low half of its target and clears the
/// high one (RFC 9669 section 4.1), which the interpreter leaves as well.
fn with_whole_remainders(code: &[u8]) -> Vec<u8> {
    const REMAINDER: u8 = 0x9c;
    const MOVE: u8 = 0xbc;
    let instructions = code.as_chunks::<INSTRUCTION_BYTES>().0;
    let mut places = Vec::with_capacity(instructions.len());
    let mut count = 0_i64;
    for instruction in instructions {
        places.push(count);
        count += 1 + i64::from(instruction[0] == REMAINDER);
    }
    let mut whole = Vec::with_capacity(code.len());
    for (at, instruction) in instructions.iter().enumerate() {
        let mut instruction = *instruction;
        let [code, registers, low, high, ..] = instruction;
        // Only jumps and exits are left of these classes, and an exit goes nowhere.
        if matches!(code & 0x07, 0x05 | 0x06) && code != 0x95 {
            let to = at as i64 + 1 + i64::from(i16::from_le_bytes([low, high]));
            let to = usize::try_from(to).ok().and_then(|to| places.get(to)).unwrap_or(&count);
            // Twice the longest program is within its range.
            let offset = (to - places[at] - 1) as i16;
            instruction[2..4].copy_from_slice(&offset.to_le_bytes());
        }
        whole.extend_from_slice(&instruction);
        if code == REMAINDER {
            let target = registers & 0xf;
            whole.extend_from_slice(&[MOVE, target | target << 4, 0, 0, 0, 0, 0, 0]);
        }
    }
    whole
}

/// Registers that hold the context, a bit each: on every way to an instruction, and on any.
#[derive(Clone, Copy)]
struct Context {
    on_every: u16,
    on_any: u16,
}

/// No way leads there yet.
const UNREACHED: Context = Context { on_every: u16::MAX, on_any: 0 };

/// One look at each instruction, in order, which is enough as no jump goes back. Loads of the context become loads of what
/// stands for it here, as the kernel converts them (`xdp_convert_ctx_access`).
struct Pass<'a> {
    code: &'a mut [u8],
    at: usize,
    entries: Vec<Context>,
    now: Context,
}

impl Pass<'_> {
    fn over(code: &mut [u8]) -> Result<(), Refused> {
        let count = code.len() / INSTRUCTION_BYTES;
        // R1 is the context.
        let now = Context { on_every: 1 << 1, on_any: 1 << 1 };
        let mut pass = Pass { code, at: 0, entries: vec![UNREACHED; count], now };
        while pass.at < count {
            let entry = pass.entries[pass.at];
            pass.now = Context { on_every: pass.now.on_every & entry.on_every, on_any: pass.now.on_any | entry.on_any };
            let length = pass.step()?;
            pass.at += length;
        }
        Ok(())
    }

    fn refused<T>(&self, what: impl Into<String>) -> Result<T, Refused> {
        Err(Refused::Unsupported { at: self.at, what: what.into() })
    }

    fn byte(&self, at: usize) -> u8 {
        self.code[self.at * INSTRUCTION_BYTES + at]
    }

    fn target(&self) -> u8 {
        self.byte(1) & 0xf
    }

    fn source(&self) -> u8 {
        self.byte(1) >> 4
    }

    fn offset(&self) -> i16 {
        i16::from_le_bytes([self.byte(2), self.byte(3)])
    }

    fn immediate(&self) -> i32 {
        i32::from_le_bytes([self.byte(4), self.byte(5), self.byte(6), self.byte(7)])
    }

    fn is_context(&self, register: u8) -> bool {
        self.now.on_any & 1 << register != 0
    }

    /// A register holds something else from here on.
    fn clear(&mut self, register: u8) {
        self.now.on_every &= !(1 << register);
        self.now.on_any &= !(1 << register);
    }

    /// Checks one instruction; how many places it takes.
    fn step(&mut self) -> Result<usize, Refused> {
        let code = self.byte(0);
        match code & 0x07 {
            0x00 if code == 0x18 => {
                if self.source() != 0 {
                    return self.refused("it loads the address of a map or a function, and there are none here");
                }
                self.clear(self.target());
                return Ok(2);
            }
            0x01 if code & 0xe0 == 0x60 => self.load()?,
            0x02 | 0x03 if code & 0xe0 == 0x60 => {
                if self.is_context(self.target()) {
                    return self.refused("it writes to its context, which XDP lets nobody do");
                }
                if code & 0x07 == 0x03 && self.is_context(self.source()) {
                    return self.refused("it puts its context into memory; compile it with -O2");
                }
            }
            0x00..=0x03 => {
                return self
                    .refused(format!("operation {code:#04x} (atomic, sign-extending or absolute) is not had here"));
            }
            0x04 | 0x07 => self.arithmetic(code)?,
            _ => self.jump(code)?,
        }
        Ok(1)
    }

    fn load(&mut self) -> Result<(), Refused> {
        let base = self.source();
        if self.is_context(base) {
            if self.now.on_every & 1 << base == 0 {
                return self.refused("it loads from what is its context on one way only");
            }
            let is_word = self.byte(0) == 0x61;
            let (code, offset) = match self.offset() {
                // An address: the kernel's are converted to 64 bits as well.
                0 | 8 if is_word => (0x79, 0),
                4 if is_word => (0x79, CONTEXT_DATA_END),
                16 if is_word => (0x61, CONTEXT_QUEUE),
                12 => return self.refused("ingress_ifindex is not known here"),
                other => return self.refused(format!("its context has nothing at offset {other} of this size")),
            };
            let at = self.at * INSTRUCTION_BYTES;
            self.code[at] = code;
            self.code[at + 2..at + 4].copy_from_slice(&offset.to_le_bytes());
        }
        self.clear(self.target());
        Ok(())
    }

    fn arithmetic(&mut self, code: u8) -> Result<(), Refused> {
        const MOVE: u8 = 0xb0;
        const BY_REGISTER: u8 = 0x08;
        let (operation, by_register) = (code & 0xf0, code & BY_REGISTER != 0);
        if self.offset() != 0 {
            return self.refused("signed division and sign-extending moves are not had here");
        }
        if code == MOVE | BY_REGISTER | 0x07 {
            let (from, to) = (self.source(), self.target());
            let bit = |mask: u16| (mask >> from & 1) << to;
            let (every, any) = (bit(self.now.on_every), bit(self.now.on_any));
            self.clear(to);
            self.now = Context { on_every: self.now.on_every | every, on_any: self.now.on_any | any };
            return Ok(());
        }
        // Of a byte swap (0xd0) the source bit says which one.
        let of_source = by_register && operation != 0xd0 && self.is_context(self.source());
        if of_source || operation != MOVE && self.is_context(self.target()) {
            return self.refused("it calculates with the address of its context");
        }
        if matches!(operation, 0x30 | 0x90) && !by_register && self.immediate() == 0 {
            return self.refused("it divides by 0");
        }
        let bits = if code & 0x07 == 0x07 { 64 } else { 32 };
        if matches!(operation, 0x60 | 0x70 | 0xc0) && !by_register && !(0..bits).contains(&self.immediate()) {
            return self.refused("it shifts by more bits than there are");
        }
        self.clear(self.target());
        Ok(())
    }

    fn jump(&mut self, code: u8) -> Result<(), Refused> {
        match code {
            0x85 => {
                let what = match self.source() {
                    0 => format!("it calls helper {}, and none is had here", self.immediate()),
                    _ => "it calls a function of its own: have it inlined".to_owned(),
                };
                return self.refused(what);
            }
            0x95 => self.now = UNREACHED,
            0x06 => return self.refused("far jumps are not had here"),
            _ => {
                let Ok(skip) = usize::try_from(self.offset()) else {
                    return self.refused("it jumps back: loops are not had here, unroll them");
                };
                let now = self.now;
                if let Some(entry) = self.entries.get_mut(self.at + 1 + skip) {
                    entry.on_every &= now.on_every;
                    entry.on_any |= now.on_any;
                }
                if code == 0x05 {
                    self.now = UNREACHED;
                }
            }
        }
        Ok(())
    }
}
