//! The kernel is the reference: the same program is attached to a real socket (`SO_ATTACH_FILTER`), which cuts each
//! datagram to as many bytes as the program returns.

use std::os::fd::AsRawFd;
use std::os::unix::net::UnixDatagram;

use lull_bpf::code::*;
use lull_bpf::{Ancillary, Instruction, Packet, Program, Refused};
use proptest::prelude::*;

/// This is longer than the lengths that programs return here, so that a length tells the value.
const DATAGRAM: usize = 1 << 16;

struct Bytes<'a>(&'a [u8]);

impl Packet for Bytes<'_> {
    fn data(&self) -> &[u8] {
        self.0
    }

    fn ancillary(&self, which: Ancillary) -> u32 {
        match which {
            // The filter is run by the test's own thread, when it sends.
            // SAFETY: it takes no arguments.
            Ancillary::Cpu => unsafe { libc::sched_getcpu() as u32 },
            _ => 0,
        }
    }
}

fn attach(socket: &UnixDatagram, program: &[Instruction]) -> std::io::Result<()> {
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_ptr() as *mut libc::sock_filter };
    // SAFETY: the instructions have the layout of `struct sock_filter`. The call reads them, and they outlive it.
    let set = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_FILTER,
            (&raw const filter).cast(),
            size_of_val(&filter) as libc::socklen_t,
        )
    };
    if set < 0 { Err(std::io::Error::last_os_error()) } else { Ok(()) }
}

/// A pair of sockets with room for a datagram.
fn pair() -> (UnixDatagram, UnixDatagram) {
    let (sender, receiver) = UnixDatagram::pair().unwrap();
    receiver.set_nonblocking(true).unwrap();
    let room: libc::c_int = 1 << 20;
    // SAFETY: the value outlives the call.
    let set =
        unsafe { libc::setsockopt(sender.as_raw_fd(), libc::SOL_SOCKET, libc::SO_SNDBUF, (&raw const room).cast(), 4) };
    assert_eq!(set, 0);
    (sender, receiver)
}

/// Returns what the kernel's program returned for `packet`, up to the packet's length.
fn kernel(program: &[Instruction], packet: &[u8]) -> usize {
    let (sender, receiver) = pair();
    attach(&receiver, program).unwrap();
    // If the program returns 0 it drops the datagram, and the sender is told nothing of that.
    let _ = sender.send(packet);
    let mut buffer = vec![0; packet.len() + 1];
    receiver.recv(&mut buffer).unwrap_or(0)
}

/// Returns programs for all 32 bits of A. The first one's `ret a` returns one half, and the second one's the other
/// half, each with a bit above it that tells it from a drop.
fn halves(body: &[Instruction]) -> [Vec<Instruction>; 2] {
    let half = |select: &[Instruction]| {
        let mut program = body.to_vec();
        program.extend(select);
        program.extend([
            Instruction::new(ALU | AND | K, 0x7fff),
            Instruction::new(ALU | OR | K, 0x8000),
            Instruction::new(RET | A, 0),
        ]);
        program
    };
    [half(&[]), half(&[Instruction::new(ALU | RSH | K, 15)])]
}

fn same(body: &[Instruction], packet: &[u8]) {
    for program in halves(body) {
        let ours = Program::new(program.clone()).unwrap_or_else(|refused| panic!("{refused}: {program:?}"));
        assert_eq!(ours.run(&Bytes(packet)) as usize, kernel(&program, packet), "{program:?}");
    }
}

fn packet() -> Vec<u8> {
    (0..DATAGRAM).map(|at| (at * 31 + at / 256) as u8).collect()
}

#[test]
fn every_arithmetic_operation_with_constants_and_with_x() {
    let packet = packet();
    let values = [0, 1, 2, 5, 31, 32, 33, 0x7fff_ffff, 0x8000_0000, 0xffff_ffff, 0x1234_5678];
    for operation in [ADD, SUB, MUL, DIV, OR, AND, LSH, RSH, MOD, XOR] {
        for a in [0, 1, 7, 0x8000_0001, 0xffff_ffff] {
            for operand in values {
                let load = Instruction::new(LD | IMM, a);
                let by_x = [load, Instruction::new(LDX | IMM, operand), Instruction::new(ALU | operation | X, 0)];
                same(&by_x, &packet);
                let by_k = [load, Instruction::new(ALU | operation | K, operand)];
                if Program::new(halves(&by_k)[0].clone()).is_ok() {
                    same(&by_k, &packet);
                }
            }
        }
    }
    same(&[Instruction::new(LD | IMM, 5), Instruction::new(ALU | NEG, 0)], &packet);
}

#[test]
fn every_load_store_and_move() {
    let packet = packet();
    let x = Instruction::new(LDX | IMM, 70);
    for size in [W, H, B] {
        for k in [0, 1, 3, 100, DATAGRAM as u32 - 4, DATAGRAM as u32 - 1, DATAGRAM as u32, 0x7fff_ffff] {
            same(&[Instruction::new(LD | size | ABS, k)], &packet);
            same(&[x, Instruction::new(LD | size | IND, k)], &packet);
            same(&[Instruction::new(LDX | IMM, 0u32.wrapping_sub(k)), Instruction::new(LD | size | IND, k)], &packet);
        }
    }
    for k in [0, 1, 15, DATAGRAM as u32 - 1, DATAGRAM as u32] {
        same(&[Instruction::new(LDX | B | MSH, k), Instruction::new(MISC | TXA, 0)], &packet);
    }
    same(&[Instruction::new(LD | LEN, 0)], &packet);
    same(&[Instruction::new(LDX | LEN, 0), Instruction::new(MISC | TXA, 0)], &packet);
    same(&[x, Instruction::new(LD | IMM, 3), Instruction::new(LD | W | ABS, lull_bpf::ANCILLARY_OFFSET + 40)], &packet);
    for slot in [0, 7, 15] {
        let store = [
            Instruction::new(LD | IMM, 11),
            Instruction::new(ST, slot),
            x,
            Instruction::new(STX, 15 - slot),
            Instruction::new(MISC | TAX, 0),
            Instruction::new(LD | MEM, slot),
            Instruction::new(LDX | MEM, 15 - slot),
            Instruction::new(ALU | ADD | X, 0),
        ];
        same(&store, &packet);
    }
    same(&[], &packet);
}

#[test]
fn every_jump_both_ways() {
    let packet = packet();
    for jump in [JEQ, JGT, JGE, JSET] {
        for (a, operand) in [(5, 5), (5, 4), (4, 5), (0x8000_0000, 1), (1, 0x8000_0000), (6, 2), (6, 1), (0, 0)] {
            for source in [K, X] {
                same(
                    &[
                        Instruction::new(LDX | IMM, operand),
                        Instruction::new(LD | IMM, a),
                        Instruction::jump(JMP | jump | source, operand, 1, 0),
                        Instruction::new(ALU | ADD | K, 1000),
                        Instruction::new(ALU | ADD | K, 100),
                    ],
                    &packet,
                );
            }
        }
    }
    let skip = [Instruction::new(LD | IMM, 1), Instruction::new(JMP | JA, 1), Instruction::new(LD | IMM, 2)];
    same(&[&skip[..], &[Instruction::new(ALU | ADD | K, 4)]].concat(), &packet);
}

#[test]
fn the_cpu_is_the_one_that_the_program_runs_on() {
    // SAFETY: the set is ours, and a thread may always stay on the CPU that it is on.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(libc::sched_getcpu() as usize, &mut set);
        assert_eq!(libc::sched_setaffinity(0, size_of_val(&set), &set), 0);
    }
    same(&[Instruction::new(LD | W | ABS, Ancillary::Cpu.offset())], &packet());
}

/// Checks that a program which is refused on one side is refused on the other.
fn taken_alike(program: &[Instruction]) -> Result<(), TestCaseError> {
    let (_sender, receiver) = pair();
    let (theirs, ours) = (attach(&receiver, program), Program::new(program.to_vec()));
    match (theirs, ours) {
        (Ok(()), Ok(_)) | (Err(_), Err(_)) => Ok(()),
        (Ok(()), Err(Refused::Unsupported { .. })) => Ok(()),
        (theirs, ours) => Err(TestCaseError::fail(format!("kernel {theirs:?}, ours {ours:?}"))),
    }
}

#[test]
fn what_the_kernel_refuses_is_refused() {
    let end = Instruction::new(RET | K, 0);
    for code in 0..=0x1ff {
        taken_alike(&[Instruction::new(code, 1), end, end]).unwrap();
    }
    for offset in 0..=80 {
        for size in [W, H, B] {
            taken_alike(&[Instruction::new(LD | size | ABS, lull_bpf::ANCILLARY_OFFSET + offset), end]).unwrap();
        }
    }
    for (code, k) in [
        (ALU | DIV | K, 0),
        (ALU | MOD | K, 0),
        (ALU | LSH | K, 31),
        (ALU | LSH | K, 32),
        (ALU | RSH | K, 32),
        (ST, 15),
        (ST, 16),
        (STX, 16),
        (LD | MEM, 0),
        (LDX | MEM, 16),
        (JMP | JA, 0),
        (JMP | JA, 1),
        (JMP | JA, u32::MAX),
    ] {
        taken_alike(&[Instruction::new(code, k), end]).unwrap();
    }
    taken_alike(&[Instruction::new(LD | IMM, 0)]).unwrap();
    taken_alike(&[Instruction::jump(JMP | JEQ | K, 0, 1, 0), end]).unwrap();
    taken_alike(&[Instruction::jump(JMP | JEQ | K, 0, 0, 1), end]).unwrap();
    // One way writes M[0], and the other does not.
    let read = Instruction::new(LD | MEM, 0);
    taken_alike(&[Instruction::jump(JMP | JEQ | K, 0, 1, 0), Instruction::new(ST, 0), read, end]).unwrap();
    taken_alike(&[Instruction::new(ST, 0), Instruction::jump(JMP | JEQ | K, 0, 1, 0), end, read, end]).unwrap();
    assert!(Program::new(Vec::new()).is_err());
}

fn instruction() -> impl Strategy<Value = Instruction> {
    let codes = (0..=0xffu16).prop_filter("an operation", |code| {
        Program::new(vec![Instruction::new(*code, 1), Instruction::new(RET | K, 0), Instruction::new(RET | K, 0)])
            .is_ok()
            || code & 7 == LD
            || code & 7 == LDX
    });
    let constants = prop_oneof![0..20u32, any::<u32>(), (0..64u32).prop_map(|k| lull_bpf::ANCILLARY_OFFSET + k)];
    (codes, 0..6u8, 0..6u8, constants).prop_map(|(code, jt, jf, k)| Instruction { code, jt, jf, k })
}

/// Whether this loads a value that differs from call to call, or that a datagram socket does not have.
fn is_of_the_moment(instruction: &Instruction) -> bool {
    instruction.code & 7 == LD && instruction.code & 0xe0 == ABS && instruction.k >= lull_bpf::NETWORK_OFFSET as u32
        || instruction.code & 0xe0 == IND
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, failure_persistence: None, ..ProptestConfig::default() })]

    /// Random programs are taken by both sides or by neither, and return the same.
    #[test]
    fn random_programs_are_taken_and_run_alike(mut program in prop::collection::vec(instruction(), 1..12)) {
        program.push(Instruction::new(RET | A, 0));
        taken_alike(&program)?;
        if let Ok(ours) = Program::new(program.clone())
            && !program.iter().any(is_of_the_moment)
        {
            let packet: Vec<u8> = (0..600).map(|at| at as u8).collect();
            let returned = ours.run(&Bytes(&packet)) as usize;
            prop_assert_eq!(returned.min(packet.len()), kernel(&program, &packet), "{:?}", program);
        }
    }
}
