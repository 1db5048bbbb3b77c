//! The kernel is the reference for extended programs as well: it loads and runs the same ones (`BPF_PROG_TEST_RUN`), if
//! this process has the right to that.

use std::cell::Cell;
use std::io::{Error, Result};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use lull_bpf::extended::{Program, Refused, SOCKET_FILTER, STEPS_MAX};
use lull_bpf::{Ancillary, Packet};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

const ETHERNET: usize = 14;
const PROG_LOAD: libc::c_int = 5;
const PROG_TEST_RUN: libc::c_int = 10;

/// `EF` in front of bytes that are no real IPv4 packet: nothing here looks at more than bytes.
struct Frame(Vec<u8>);

impl Packet for Frame {
    fn data(&self) -> &[u8] {
        &self.0[ETHERNET..]
    }

    fn network(&self) -> Option<&[u8]> {
        Some(self.data())
    }

    fn link(&self) -> Option<&[u8]> {
        Some(&self.0)
    }

    fn ancillary(&self, which: Ancillary) -> u32 {
        match which {
            Ancillary::Protocol => u32::from(u16::from_be_bytes([self.0[12], self.0[13]])),
            _ => 0,
        }
    }
}

fn frame() -> Frame {
    // Nothing parses this EtherType.
    let mut bytes = vec![0xef; 12];
    bytes.extend([0x88, 0xb5]);
    bytes.extend((0..60_u8).map(|n| n.wrapping_mul(37).wrapping_add(11)));
    Frame(bytes)
}

type Op = [u8; 8];

/// Encodes an instruction, with its registers in the order of the machine's bit fields.
fn op(code: u8, to: u8, from: u8, offset: i16, k: i32) -> Op {
    let registers = if cfg!(target_endian = "little") { from << 4 | to } else { to << 4 | from };
    let ([o0, o1], [k0, k1, k2, k3]) = (offset.to_ne_bytes(), k.to_ne_bytes());
    [code, registers, o0, o1, k0, k1, k2, k3]
}

fn wide(to: u8, value: u64) -> [Op; 2] {
    [op(0x18, to, 0, 0, value as u32 as i32), op(0, 0, 0, 0, (value >> 32) as u32 as i32)]
}

const EXIT: Op = [0x95, 0, 0, 0, 0, 0, 0, 0];

fn bpf(command: libc::c_int, attributes: &mut [u64]) -> Result<libc::c_long> {
    // SAFETY: the command reads and writes no more than the attributes, as far as it knows them, and they outlive the
    // call.
    let result = unsafe {
        libc::syscall(libc::SYS_bpf, command, attributes.as_mut_ptr(), size_of_val(attributes) as libc::c_uint)
    };
    if result < 0 { Err(Error::last_os_error()) } else { Ok(result) }
}

fn two(low: u32, high: u32) -> u64 {
    u64::from_ne_bytes([low.to_ne_bytes(), high.to_ne_bytes()].as_flattened().try_into().unwrap())
}

/// Loads a program into the kernel, if the kernel takes it.
fn load(code: &[Op]) -> Result<OwnedFd> {
    let mut attributes = [two(SOCKET_FILTER, code.len() as u32), code.as_ptr() as u64, c"GPL".as_ptr() as u64, 0, 0, 0];
    let fd = bpf(PROG_LOAD, &mut attributes)?;
    // SAFETY: the call has just made the descriptor, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as libc::c_int) })
}

/// Returns what a run in the kernel returns for the frame.
fn run_by_the_kernel(program: &OwnedFd, frame: &Frame) -> Result<u32> {
    let mut attributes = [
        two(program.as_raw_fd() as u32, 0),
        two(frame.0.len() as u32, 0),
        frame.0.as_ptr() as u64,
        0,
        two(1, 0),
        0,
        0,
        0,
    ];
    bpf(PROG_TEST_RUN, &mut attributes)?;
    Ok(u32::from_ne_bytes(attributes[0].to_ne_bytes()[4..].try_into().unwrap()))
}

/// Whether the kernel loads and runs a program for this process. If not, the reason is printed.
fn is_there() -> bool {
    match load(&[op(0xb7, 0, 0, 0, 7), EXIT]).and_then(|program| run_by_the_kernel(&program, &frame())) {
        Ok(result) => {
            assert_eq!(result, 7);
            true
        }
        Err(error) => {
            println!("SKIP: the kernel runs no program for this process ({error}): it takes CAP_BPF and CAP_NET_ADMIN");
            false
        }
    }
}

fn run(code: &[Op]) -> u32 {
    Program::new(code.as_flattened()).unwrap().run(&frame())
}

/// Sets registers 0, 2 to 5 and 7 to 9; the context stays in 6. It also writes four words of the stack.
fn beginning(values: &[u64; 8]) -> Vec<Op> {
    let mut code = vec![op(0xbf, 6, 1, 0, 0)];
    for (register, value) in [0, 2, 3, 4, 5, 7, 8, 9].into_iter().zip(values) {
        code.extend(wide(register, *value));
    }
    code.extend((1..=4).map(|word| op(0x7b, 10, 6 + if word > 3 { 3 } else { word }, -8 * i16::from(word), 0)));
    code
}

/// Makes one number of all registers, of their upper and lower halves.
fn end() -> Vec<Op> {
    let mut code: Vec<Op> =
        [2, 3, 4, 5, 7, 8, 9].into_iter().flat_map(|from| [op(0x27, 0, 0, 0, 31), op(0xaf, 0, from, 0, 0)]).collect();
    code.extend([op(0xbf, 2, 0, 0, 0), op(0x77, 2, 0, 0, 32), op(0xaf, 0, 2, 0, 0), EXIT]);
    code
}

fn held(code: &[Op]) -> Option<(u32, u32)> {
    let kernel = load(code).ok()?;
    Some((run(code), run_by_the_kernel(&kernel, &frame()).unwrap()))
}

fn registers() -> impl Strategy<Value = u8> {
    prop::sample::select(vec![0_u8, 2, 3, 4, 5, 7, 8, 9])
}

/// A number that is often one at which results change.
fn number() -> impl Strategy<Value = u64> {
    let edges = vec![0, 1, 7, 0x7fff_ffff, 0x8000_0000, 0xffff_ffff, 1 << 63, u64::MAX, u64::MAX - 1];
    prop_oneof![prop::sample::select(edges), any::<u64>()]
}

fn piece() -> impl Strategy<Value = Vec<Op>> {
    let arithmetic = (
        prop::sample::select(vec![0x04_u8, 0x07]),
        0_u8..=0xc,
        any::<bool>(),
        registers(),
        registers(),
        prop_oneof![Just(0_i16), Just(0), Just(1)],
        number(),
    )
        .prop_map(|(class, operation, by_register, to, from, signed, k)| {
            let bits = if class == 4 { 31 } else { 63 };
            let (is_division, is_shift) = (matches!(operation, 3 | 9), matches!(operation, 6 | 7 | 0xc));
            let offset = if is_division { signed } else { 0 };
            if operation == 8 {
                return vec![op(class | 0x80, to, 0, 0, 0)];
            }
            if by_register {
                return vec![op(class | operation << 4 | 8, to, from, offset, 0)];
            }
            let k = match k as i32 {
                0 if is_division => 3,
                k if is_shift => k & bits,
                k => k,
            };
            vec![op(class | operation << 4, to, 0, offset, k)]
        });
    let moves = (
        prop::sample::select(vec![0xbc_u8, 0xbf]),
        registers(),
        registers(),
        prop::sample::select(vec![0_i16, 8, 16, 32]),
    )
        .prop_map(|(code, to, from, bits)| {
            vec![op(code, to, from, if code == 0xbc && bits == 32 { 0 } else { bits }, 0)]
        });
    let swaps = (prop::sample::select(vec![0xd4_u8, 0xdc, 0xd7]), registers(), prop::sample::select(vec![16, 32, 64]))
        .prop_map(|(code, to, bits)| vec![op(code, to, 0, 0, bits)]);
    let jumps = (
        prop::sample::select(vec![0x05_u8, 0x06]),
        prop::sample::select(vec![0_u8, 1, 2, 3, 4, 5, 6, 7, 0xa, 0xb, 0xc, 0xd]),
        any::<bool>(),
        registers(),
        registers(),
        number(),
    )
        .prop_map(|(class, operation, by_register, a, b, k)| {
            let skipped = op(0x07, a, 0, 0, 12_345);
            // The verifier refuses instructions that no way leads to.
            let on_some_way = op(0x1d, a, b, 1, 0);
            let jump = match (operation, class) {
                (0, 6) => return vec![on_some_way, op(0x06, 0, 0, 0, 1), skipped],
                (0, _) => return vec![on_some_way, op(0x05, 0, 0, 1, 0), skipped],
                _ if by_register => op(class | operation << 4 | 8, a, b, 1, 0),
                _ => op(class | operation << 4, a, 0, 1, k as i32),
            };
            vec![jump, skipped]
        });
    let memory = (
        prop::sample::select(vec![(0x71_u8, 1_i16), (0x69, 2), (0x61, 4), (0x79, 8), (0x91, 1), (0x89, 2), (0x81, 4)]),
        registers(),
        0_i16..32,
    )
        .prop_map(|((code, size), to, at)| vec![op(code, to, 10, -32 + at / size * size, 0)]);
    let stores = (
        prop::sample::select(vec![(0_u8, 4_i16), (8, 2), (0x10, 1), (0x18, 8)]),
        any::<bool>(),
        registers(),
        0_i16..32,
        any::<i32>(),
    )
        .prop_map(|((size, bytes), by_register, from, at, k)| {
            let at = -32 + at / bytes * bytes;
            vec![if by_register { op(0x63 | size, 10, from, at, 0) } else { op(0x62 | size, 10, 0, at, k) }]
        });
    // These loads are of the length, of the EtherType, and of bytes of the packet: at its headers, within it, and past
    // its end.
    let context =
        (registers(), prop::sample::select(vec![0_i16, 16])).prop_map(|(to, at)| vec![op(0x61, to, 6, at, 0)]);
    let packet = (
        prop::sample::select(vec![0x20_u8, 0x28, 0x30, 0x40, 0x48, 0x50]),
        prop_oneof![8 => 0_i32..50, 2 => -0x10_0000..-0x10_0000 + 50, 2 => -0x20_0000..-0x20_0000 + 60, 1 => 50_i32..70],
        prop::array::uniform4(number()),
        0_u64..4,
    )
        .prop_map(|(code, k, values, index)| {
            let mut code = [&wide(7, index)[..], &[op(code, 0, 7, 0, k)]].concat();
            if code[2][0] < 0x40 {
                code[2] = op(code[2][0], 0, 0, 0, k);
            }
            // The call leaves registers 1 to 5 in a state in which nobody may read them.
            code.extend([2, 3, 4, 5].into_iter().zip(values).flat_map(|(register, value)| wide(register, value)));
            code
        });
    prop_oneof![6 => arithmetic, 1 => moves, 1 => swaps, 3 => jumps, 2 => memory, 2 => stores, 1 => context, 1 => packet]
}

/// Compares the kernel's run with this interpreter's for each random program that the kernel takes.
#[test]
fn random_programs_run_as_they_do_in_the_kernel() {
    if !is_there() {
        return;
    }
    let programs = (prop::array::uniform8(number()), prop::collection::vec(piece(), 1..24));
    let (compared, refused) = (Cell::new(0), Cell::new(0));
    let count = std::env::var("LULL_BPF_PROGRAMS").map_or(2_000, |count| count.parse().unwrap());
    let mut runner = TestRunner::new(Config { cases: count, failure_persistence: None, ..Config::default() });
    runner
        .run(&programs, |(values, pieces)| {
            let code = [beginning(&values), pieces.concat(), end()].concat();
            match held(&code) {
                Some((ours, kernels)) => {
                    compared.set(compared.get() + 1);
                    prop_assert_eq!(ours, kernels);
                }
                None => refused.set(refused.get() + 1),
            }
            Ok(())
        })
        .unwrap();
    let (compared, refused) = (compared.get(), refused.get());
    println!("{compared} programs ran as in the kernel, which refused {refused}");
    assert!(compared > refused, "{compared} programs were taken by the kernel, and {refused} were not");
}

/// This tests a helper that writes into the program's memory, and its result for bytes that are not there.
#[test]
fn bytes_of_the_packet_are_copied_to_the_stack() {
    let copied = |helper, offset, bytes, from| {
        vec![
            op(0x7a, 10, 0, -8, -1),
            op(0xb7, 2, 0, 0, offset),
            op(0xbf, 3, 10, 0, 0),
            op(0x07, 3, 0, 0, -8),
            op(0xb7, 4, 0, 0, bytes),
            op(0xb7, 5, 0, 0, from),
            op(0x85, 0, 0, 0, helper),
            op(0x61, 2, 10, -8, 0),
            op(0x27, 0, 0, 0, 1_000),
            op(0x0f, 0, 2, 0, 0),
            EXIT,
        ]
    };
    let word = |bytes: [u8; 4]| u32::from_ne_bytes(bytes);
    let missed = (-14_000_i32) as u32;
    let (data, frame) = (frame().data().to_vec(), frame().0);
    let cases = [
        (copied(26, 3, 4, 0), word(data[3..7].try_into().unwrap())),
        (copied(26, 58, 4, 0), missed),
        (copied(68, 10, 4, 0), word(frame[10..14].try_into().unwrap())),
        (copied(68, 0, 4, 1), word(data[..4].try_into().unwrap())),
    ];
    let is_there = is_there();
    for (code, expected) in cases {
        assert_eq!(run(&code), expected);
        if is_there {
            assert_eq!(held(&code), Some((expected, expected)), "the kernel");
        }
    }
}

#[test]
fn the_fields_of_a_packet_are_read_from_the_context() {
    struct Known;
    impl Packet for Known {
        fn data(&self) -> &[u8] {
            &[1, 2, 3]
        }

        fn ancillary(&self, which: Ancillary) -> u32 {
            which as u32 + 1
        }
    }
    let read = |at| Program::new([op(0x61, 0, 1, at, 0), EXIT].as_flattened()).unwrap().run(&Known);
    let network = |which: Ancillary| u32::from((which as u16 + 1).to_be());
    assert_eq!(
        [0, 4, 8, 12, 40, 68].map(read),
        [3, 5, 21, 25, 9, 33],
        "len, pkt_type, mark, queue_mapping, ifindex, hash"
    );
    assert_eq!([16, 28].map(read), [network(Ancillary::Protocol), network(Ancillary::VlanProtocol)]);
    assert_eq!([20, 24, 76, 188].map(read), [49, 45, 0, 0]);
    let call = |helper| Program::new([op(0x85, 0, 0, 0, helper), EXIT].as_flattened()).unwrap().run(&Known);
    assert_eq!([8, 7].map(call), [37, 57], "the CPU, a random number");
    // During a run, cb is the program's own.
    let own = [op(0x62, 1, 0, 52, 77), op(0x61, 0, 1, 52, 0), EXIT];
    assert_eq!(Program::new(own.as_flattened()).unwrap().run(&Known), 77);
}

#[test]
fn a_program_that_the_verifier_has_not_seen_does_no_harm() {
    let nobody = u32::MAX;
    for (why, code) in [
        ("it goes on for ever", vec![op(0x05, 0, 0, -1, 0)]),
        ("its end is no exit", vec![op(0xb7, 0, 0, 0, 0)]),
        ("it jumps in front of itself", vec![op(0x05, 0, 0, -2, 0), EXIT]),
        ("it reads where there is nothing", vec![op(0x61, 0, 0, 0, 0), EXIT]),
        ("it reads behind its stack", vec![op(0x79, 0, 10, -4, 0), EXIT]),
        ("it reads in front of its stack", vec![op(0x79, 0, 10, -520, 0), EXIT]),
        ("it reads behind its context", vec![op(0x61, 0, 1, 190, 0), EXIT]),
        ("it writes what is not its own of its context", vec![op(0x62, 1, 0, 0, 1), EXIT]),
        (
            "a helper writes behind its stack",
            [0_u8, 1]
                .map(|_| op(0xbf, 3, 10, 0, 0))
                .into_iter()
                .chain([op(0xb7, 4, 0, 0, 4), op(0x85, 0, 0, 0, 26), EXIT])
                .collect(),
        ),
    ] {
        assert_eq!(run(&code), nobody, "{why}");
    }
    // The longest possible run is a loop of two instructions with one in front of it and one behind; a second run has
    // one step too many.
    let rounds = (STEPS_MAX as i32 - 2) / 2;
    let counted = [op(0xb7, 0, 0, 0, rounds), op(0x17, 0, 0, 0, 1), op(0x55, 0, 0, -2, 0), EXIT];
    assert_eq!((run(&counted), run(&[&[op(0xb7, 2, 0, 0, 0)][..], &counted].concat())), (0, nobody));
}

proptest! {
    #![proptest_config(Config { cases: 1_000, failure_persistence: None, ..Config::default() })]

    /// Every program that is taken runs to an end.
    #[test]
    fn any_bytes_are_refused_or_run(code in prop::collection::vec(any::<[u8; 8]>(), 1..12)) {
        // Most codes are no operations, and most numbers no registers; these often are.
        let likely = |[code, registers, rest @ ..]: [u8; 8]| {
            let [o0, o1, k @ ..] = rest;
            [code, registers & 0x77, o0 & 7, o1 & 0x80, k[0], k[1], k[2], k[3]]
        };
        let likely: Vec<Op> = code.iter().copied().map(likely).chain([EXIT]).collect();
        for code in [&code, &likely] {
            let _ = Program::new(code.as_flattened()).map(|program| program.run(&frame()));
        }
        // Each instruction by itself is refused less often than all of them together.
        for code in likely {
            let _ = Program::new([code, EXIT].as_flattened()).map(|program| program.run(&frame()));
        }
    }
}

#[test]
fn unsupported_instructions_are_refused_by_name() {
    let refused = |code: &[Op]| Program::new(code.as_flattened()).unwrap_err().to_string();
    assert_eq!(Program::new(&[0; 7]), Err(Refused::Length(7)));
    assert_eq!(Program::new(&[]), Err(Refused::Length(0)));
    let map = [op(0x18, 1, 1, 0, 3), op(0, 0, 0, 0, 0), EXIT];
    assert_eq!(refused(&map), "instruction 0: maps are not supported here");
    assert_eq!(refused(&[op(0x85, 0, 0, 0, 1), EXIT]), "instruction 0: helper 1 is not supported here");
    assert_eq!(refused(&[op(0x85, 0, 1, 0, 0), EXIT]), "instruction 0: calls of functions are not supported here");
    assert_eq!(refused(&[EXIT, op(0xdb, 10, 1, -8, 0)]), "instruction 1: there is no operation 0xdb", "an atomic one");
    // These are the first half of a wide constant, a register that does not exist, a write to the end of the stack, and
    // two operations that do not exist.
    for none in
        [op(0x18, 0, 0, 0, 0), op(0xb7, 11, 0, 0, 0), op(0xb7, 10, 0, 0, 0), op(0xe7, 0, 0, 0, 0), op(0xe5, 0, 0, 0, 0)]
    {
        let expected = format!("instruction 0: there is no operation {:#04x}", none[0]);
        assert_eq!(refused(&[none, EXIT]), expected);
    }
}
