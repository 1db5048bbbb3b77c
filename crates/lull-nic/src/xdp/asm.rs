//! eBPF instructions by name, and labels for their jumps: what a program of a hundred instructions needs instead of a
//! compiler (RFC 9669).

/// A register. R0 holds results, R1 to R5 arguments, which a call destroys; R6 to R9 survive calls; R10 is the end of
/// the stack, which grows down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Register {
    R0,
    R1,
    R2,
    R3,
    R4,
    R5,
    R6,
    R7,
    R8,
    R10 = 10,
}

/// Bytes of a load or store, as the instruction encodes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Width {
    Byte = 0x10,
    Half = 0x08,
    Word = 0x00,
}

/// One instruction, as the kernel reads it (`struct bpf_insn`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub(super) struct Instruction {
    code: u8,
    /// The destination in the low half, the source in the high one.
    registers: u8,
    offset: i16,
    immediate: i32,
}

/// A place in the program that jumps name before it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Label(usize);

/// A program in the making.
#[derive(Debug, Default)]
pub(super) struct Assembler {
    code: Vec<Instruction>,
    places: Vec<Option<usize>>,
    jumps: Vec<(usize, Label)>,
}

const NO_REGISTER: Register = Register::R0;

impl Assembler {
    fn push(&mut self, code: u8, to: Register, from: Register, offset: i16, immediate: i32) {
        self.code.push(Instruction { code, registers: to as u8 | (from as u8) << 4, offset, immediate });
    }

    fn push_jump(&mut self, code: u8, left: Register, right: Register, immediate: i32, target: Label) {
        self.jumps.push((self.code.len(), target));
        self.push(code, left, right, 0, immediate);
    }

    /// A label whose place comes later.
    pub(super) fn label(&mut self) -> Label {
        self.places.push(None);
        Label(self.places.len() - 1)
    }

    /// The next instruction is where `label` is.
    pub(super) fn place(&mut self, label: Label) {
        debug_assert!(self.places[label.0].is_none(), "a label has one place");
        self.places[label.0] = Some(self.code.len());
    }

    /// `to = from`
    pub(super) fn copy(&mut self, to: Register, from: Register) {
        self.push(0xbf, to, from, 0, 0);
    }

    /// `to = value`
    pub(super) fn set(&mut self, to: Register, value: i32) {
        self.push(0xb7, to, NO_REGISTER, 0, value);
    }

    /// `to += value`
    pub(super) fn add(&mut self, to: Register, value: i32) {
        self.push(0x07, to, NO_REGISTER, 0, value);
    }

    /// `to += from`
    pub(super) fn add_register(&mut self, to: Register, from: Register) {
        self.push(0x0f, to, from, 0, 0);
    }

    /// `to &= bits`
    pub(super) fn and(&mut self, to: Register, bits: i32) {
        self.push(0x57, to, NO_REGISTER, 0, bits);
    }

    /// `to |= from`
    pub(super) fn or_register(&mut self, to: Register, from: Register) {
        self.push(0x4f, to, from, 0, 0);
    }

    /// `to <<= count`
    pub(super) fn shift_left(&mut self, to: Register, count: i32) {
        self.push(0x67, to, NO_REGISTER, 0, count);
    }

    /// `to = *(from + offset)`
    pub(super) fn load(&mut self, width: Width, to: Register, from: Register, offset: i16) {
        self.push(0x61 | width as u8, to, from, offset, 0);
    }

    /// `*(to + offset) = from`
    pub(super) fn store(&mut self, width: Width, to: Register, offset: i16, from: Register) {
        self.push(0x63 | width as u8, to, from, offset, 0);
    }

    /// `to =` the map behind a descriptor. It takes the room of two instructions.
    pub(super) fn load_map(&mut self, to: Register, fd: i32) {
        const PSEUDO_MAP_FD: u8 = 1;
        self.code.push(Instruction { code: 0x18, registers: to as u8 | PSEUDO_MAP_FD << 4, offset: 0, immediate: fd });
        self.push(0, NO_REGISTER, NO_REGISTER, 0, 0);
    }

    /// `R0 = helper(R1, ...)`
    pub(super) fn call(&mut self, helper: i32) {
        self.push(0x85, NO_REGISTER, NO_REGISTER, 0, helper);
    }

    /// `return R0`
    pub(super) fn exit(&mut self) {
        self.push(0x95, NO_REGISTER, NO_REGISTER, 0, 0);
    }

    /// `goto target`
    pub(super) fn jump(&mut self, target: Label) {
        self.push_jump(0x05, NO_REGISTER, NO_REGISTER, 0, target);
    }

    /// `if left == value goto target`
    pub(super) fn if_equal(&mut self, left: Register, value: i32, target: Label) {
        self.push_jump(0x15, left, NO_REGISTER, value, target);
    }

    /// `if left != value goto target`
    pub(super) fn if_not_equal(&mut self, left: Register, value: i32, target: Label) {
        self.push_jump(0x55, left, NO_REGISTER, value, target);
    }

    /// `if left < value goto target`, without signs.
    pub(super) fn if_less(&mut self, left: Register, value: i32, target: Label) {
        self.push_jump(0xa5, left, NO_REGISTER, value, target);
    }

    /// `if left > right goto target`, without signs.
    pub(super) fn if_greater(&mut self, left: Register, right: Register, target: Label) {
        self.push_jump(0x2d, left, right, 0, target);
    }

    /// `if left & bits != 0 goto target`
    pub(super) fn if_bits(&mut self, left: Register, bits: i32, target: Label) {
        self.push_jump(0x45, left, NO_REGISTER, bits, target);
    }

    /// The whole program.
    ///
    /// # Panics
    /// If a jump goes to a label that was never placed: a mistake in the program's text.
    pub(super) fn finish(mut self) -> Vec<Instruction> {
        for (at, Label(label)) in self.jumps {
            let Some(place) = self.places[label] else { panic!("instruction {at} jumps to a label without a place") };
            // Relative to the instruction behind the jump; programs here have a few hundred instructions.
            self.code[at].offset = (place as i64 - at as i64 - 1) as i16;
        }
        self.code
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::Register::{R0, R1, R2, R10};
    use super::*;

    fn bytes(instruction: Instruction) -> [u8; 8] {
        let Instruction { code, registers, offset, immediate } = instruction;
        let (o, i) = (offset.to_le_bytes(), immediate.to_le_bytes());
        [code, registers, o[0], o[1], i[0], i[1], i[2], i[3]]
    }

    /// Against encodings that `clang -target bpf` gives.
    #[test]
    fn instructions_are_encoded_as_the_kernel_reads_them() {
        let mut asm = Assembler::default();
        asm.copy(R2, R10);
        asm.add(R2, -4);
        asm.load(Width::Half, R1, R2, 12);
        asm.store(Width::Word, R10, -4, R1);
        asm.load_map(R1, 5);
        asm.call(1);
        let got: Vec<_> = asm.finish().into_iter().map(bytes).collect();
        assert_eq!(
            got,
            [
                [0xbf, 0xa2, 0, 0, 0, 0, 0, 0],
                [0x07, 0x02, 0, 0, 0xfc, 0xff, 0xff, 0xff],
                [0x69, 0x21, 12, 0, 0, 0, 0, 0],
                [0x63, 0x1a, 0xfc, 0xff, 0, 0, 0, 0],
                [0x18, 0x11, 0, 0, 5, 0, 0, 0],
                [0; 8],
                [0x85, 0, 0, 0, 1, 0, 0, 0],
            ]
        );
    }

    #[test]
    fn jumps_count_from_the_instruction_behind_them() {
        let mut asm = Assembler::default();
        let (back, ahead) = (asm.label(), asm.label());
        asm.place(back);
        asm.if_equal(R0, 7, ahead);
        asm.jump(back);
        asm.place(ahead);
        asm.exit();
        let code = asm.finish();
        assert_eq!((code[0].offset, code[1].offset), (1, -2));
    }

    #[test]
    #[should_panic = "a label without a place"]
    fn a_label_that_was_forgotten_is_found_when_the_program_is_made() {
        let mut asm = Assembler::default();
        let nowhere = asm.label();
        asm.jump(nowhere);
        asm.finish();
    }
}
