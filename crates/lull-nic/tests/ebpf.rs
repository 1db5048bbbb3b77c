//! XDP programs on lull's receive path against the same programs in the kernel (BPF_PROG_TEST_RUN): verdict and frame.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;

use lull_nic::ebpf::{EbpfProgram, Refused};
use lull_nic::mem::{self, MemConfig};
use lull_nic::program::{Action, FrameProgram, Programmed};
use lull_nic::{Device, Frame, FramePool};

const PROG_LOAD: libc::c_int = 5;
const PROG_TEST_RUN: libc::c_int = 10;
const PROG_TYPE_XDP: u32 = 6;
/// Random programs that are held against the kernel.
const PROGRAMS: u64 = 500;

/// One instruction: operation, target, source, offset, immediate.
fn op(code: u8, to: u8, from: u8, offset: i16, immediate: i32) -> [u8; 8] {
    let (o, i) = (offset.to_le_bytes(), immediate.to_le_bytes());
    [code, to | from << 4, o[0], o[1], i[0], i[1], i[2], i[3]]
}

const fn exit() -> [u8; 8] {
    [0x95, 0, 0, 0, 0, 0, 0, 0]
}

/// A program in the kernel.
struct InKernel(OwnedFd);

fn bpf<T>(command: libc::c_int, attributes: &mut T) -> io::Result<i32> {
    // SAFETY: the attributes are as long as is said, and what they point to outlives the call.
    let result =
        unsafe { libc::syscall(libc::SYS_bpf, command, std::ptr::from_mut(attributes), std::mem::size_of::<T>()) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result as i32) }
}

#[repr(C)]
#[derive(Default)]
struct Load {
    kind: u32,
    count: u32,
    instructions: u64,
    license: u64,
}

#[repr(C)]
#[derive(Default)]
struct TestRun {
    program: u32,
    verdict: u32,
    bytes_in: u32,
    bytes_out: u32,
    data_in: u64,
    data_out: u64,
    repeat: u32,
    duration: u32,
}

impl InKernel {
    /// `None`, and a line that says so, where the kernel does not let this user.
    fn load(code: &[u8]) -> Option<InKernel> {
        let (instructions, license) = (code.as_ptr() as u64, c"Apache-2.0 OR MIT".as_ptr() as u64);
        let mut load = Load { kind: PROG_TYPE_XDP, count: (code.len() / 8) as u32, instructions, license };
        match bpf(PROG_LOAD, &mut load) {
            // SAFETY: the kernel has just made this descriptor for us.
            Ok(fd) => Some(InKernel(unsafe { OwnedFd::from_raw_fd(fd) })),
            Err(error) if matches!(error.raw_os_error(), Some(libc::EPERM | libc::ENOSYS)) => {
                println!("SKIP: the kernel's side: bpf(2): {error}");
                None
            }
            Err(error) => panic!("the kernel does not take the program: {error}"),
        }
    }

    fn run(&self, frame: &[u8]) -> (u32, Vec<u8>) {
        let mut out = vec![0; frame.len()];
        let mut run = TestRun {
            program: self.0.as_raw_fd() as u32,
            bytes_in: frame.len() as u32,
            bytes_out: out.len() as u32,
            data_in: frame.as_ptr() as u64,
            data_out: out.as_mut_ptr() as u64,
            repeat: 1,
            ..TestRun::default()
        };
        bpf(PROG_TEST_RUN, &mut run).expect("a test run");
        assert_eq!(run.bytes_out as usize, frame.len());
        (run.verdict, out)
    }
}

/// The same here.
fn here(program: &EbpfProgram, data: &[u8]) -> (u32, Vec<u8>) {
    let mut frame = Frame::copy_from(data);
    let verdict = match program.clone().run(&mut frame) {
        Action::Drop => 1,
        Action::Pass => 2,
        Action::Transmit => 3,
        other => panic!("{other:?}"),
    };
    (verdict, frame.data().to_vec())
}

/// R6 = data, R7 = data_end; frames of fewer than `bytes` pass.
fn bounded(bytes: i32, rest: &[[u8; 8]]) -> Vec<u8> {
    let mut code = vec![
        op(0x61, 6, 1, 0, 0),     // r6 = ctx->data
        op(0x61, 7, 1, 4, 0),     // r7 = ctx->data_end
        op(0xbf, 2, 6, 0, 0),     // r2 = r6
        op(0x07, 2, 0, 0, bytes), // r2 += bytes
        op(0xb7, 0, 0, 0, 2),     // r0 = XDP_PASS
        op(0xbd, 2, 7, 1, 0),     // if r2 <= r7 skip the exit
        exit(),
    ];
    code.extend_from_slice(rest);
    code.concat()
}

/// Drops ARP.
fn drops_arp() -> Vec<u8> {
    bounded(
        14,
        &[
            op(0x69, 2, 6, 12, 0),     // r2 = ethertype, in network order
            op(0xdc, 2, 0, 0, 16),     // r2 = be16(r2)
            op(0x55, 2, 0, 1, 0x0806), // if r2 != ARP skip
            op(0xb7, 0, 0, 0, 1),      // r0 = XDP_DROP
            exit(),
        ],
    )
}

/// Sends each frame back to who sent it.
fn reflects() -> Vec<u8> {
    let mut rest = Vec::new();
    for half in [0, 2, 4] {
        rest.push(op(0x69, 2, 6, half, 0));
        rest.push(op(0x69, 3, 6, half + 6, 0));
        rest.push(op(0x6b, 6, 3, half, 0));
        rest.push(op(0x6b, 6, 2, half + 6, 0));
    }
    rest.extend([op(0xb7, 0, 0, 0, 3), exit()]);
    bounded(14, &rest)
}

/// Drops what is longer than 100 bytes, by a copy of the context and the stack.
fn drops_long() -> Vec<u8> {
    [
        op(0xbf, 8, 1, 0, 0),   // r8 = ctx
        op(0x61, 2, 8, 4, 0),   // r2 = r8->data_end
        op(0x61, 3, 8, 0, 0),   // r3 = r8->data
        op(0x1f, 2, 3, 0, 0),   // r2 -= r3
        op(0x7b, 10, 2, -8, 0), // *(r10 - 8) = r2
        op(0x79, 4, 10, -8, 0), // r4 = *(r10 - 8)
        op(0xb7, 0, 0, 0, 2),   // r0 = XDP_PASS
        op(0xb5, 4, 0, 1, 100), // if r4 <= 100 skip
        op(0xb7, 0, 0, 0, 1),   // r0 = XDP_DROP
        exit(),
    ]
    .concat()
}

/// Frames of many lengths and two EtherTypes.
fn frames() -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    for bytes in [14, 15, 60, 63, 64, 100, 101, 1_514] {
        for ethertype in [0x0800_u16, 0x0806] {
            let mut frame: Vec<u8> = (0..bytes).map(|at| (at * 7 + 3) as u8).collect();
            frame[12..14].copy_from_slice(&ethertype.to_be_bytes());
            frames.push(frame);
        }
    }
    frames
}

#[test]
fn programs_say_and_write_what_they_do_in_the_kernel() {
    let mut verdicts = [0; 4];
    for code in [drops_arp(), reflects(), drops_long()] {
        let program = EbpfProgram::new(&code).unwrap();
        let kernel = InKernel::load(&code);
        for frame in frames() {
            let ours = here(&program, &frame);
            verdicts[ours.0 as usize] += 1;
            if let Some(kernel) = &kernel {
                assert_eq!(ours, kernel.run(&frame), "{} bytes", frame.len());
            }
        }
    }
    assert_eq!(verdicts, [0, 8 + 4, 8 + 12, 16]);
}

/// A generator that needs no crate (splitmix64).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (x ^ x >> 31) % bound
    }
}

/// Calculates with what is in the frame, and writes the results back.
fn calculates(random: &mut Random) -> Vec<u8> {
    const REGISTERS: u64 = 6;
    let mut rest = Vec::new();
    for register in 0..REGISTERS as u8 {
        let width = [0x61, 0x69, 0x71, 0x79][random.below(4) as usize];
        rest.push(op(width, register, 6, (8 * random.below(7)) as i16, 0));
    }
    for _ in 0..24 {
        let (to, from) = (random.below(REGISTERS) as u8, random.below(REGISTERS) as u8);
        let class = [0x04, 0x07][random.below(2) as usize];
        let operation = 0x10 * random.below(14) as u8;
        let bits = if class == 0x07 { 64 } else { 32 };
        let immediate = match operation {
            // A division by a constant 0, or too long a shift, no kernel takes.
            0x30 | 0x90 => 1 + random.below(1 << 20) as i32,
            0x60 | 0x70 | 0xc0 => random.below(bits) as i32,
            _ => random.below(1 << 32) as u32 as i32,
        };
        rest.push(match operation {
            0x80 => op(class | operation, to, 0, 0, 0),
            0xd0 => op(0xd4 | [0, 8][random.below(2) as usize], to, 0, 0, [16, 32, 64][random.below(3) as usize]),
            _ if random.below(2) == 0 => op(class | operation | 0x08, to, from, 0, 0),
            _ => op(class | operation, to, 0, 0, immediate),
        });
        if random.below(4) == 0 {
            let condition =
                [0x10, 0x20, 0x30, 0x40, 0x50, 0x60, 0x70, 0xa0, 0xb0, 0xc0, 0xd0][random.below(11) as usize];
            let class = [0x05, 0x06][random.below(2) as usize];
            rest.push(op(class | condition | 0x08, to, from, 1, 0));
            rest.push(op(0x07, to, 0, 0, 12_345));
        }
    }
    for register in 0..REGISTERS as u8 {
        rest.push(op(0x7b, 6, register, 8 * i16::from(register), 0));
    }
    rest.extend([op(0xb7, 0, 0, 0, 3), exit()]);
    bounded(64, &rest)
}

#[test]
fn random_calculations_are_the_kernels() {
    let mut random = Random(1);
    for number in 0..PROGRAMS {
        let code = calculates(&mut random);
        let program = EbpfProgram::new(&code).unwrap_or_else(|refused| panic!("program {number}: {refused}"));
        let frame: Vec<u8> = (0..80).map(|_| random.below(256) as u8).collect();
        let ours = here(&program, &frame);
        let Some(kernel) = InKernel::load(&code) else { return };
        assert_eq!(ours, kernel.run(&frame), "program {number}: {code:02x?}");
    }
}

#[test]
fn the_queue_is_known_and_what_reads_outside_the_frame_fails_on_it() {
    // r0 = ctx->rx_queue_index; exit
    let queue = EbpfProgram::new(&[op(0x61, 0, 1, 16, 0), exit()].concat()).unwrap();
    let mut frame = Frame::copy_from(&[0; 60]);
    assert!(matches!(queue.on_queue(1).run(&mut frame), Action::Drop));
    assert!(matches!(queue.on_queue(3).run(&mut frame), Action::Transmit));
    assert!(matches!(queue.on_queue(4).run(&mut frame), Action::Aborted), "XDP_REDIRECT has no target");
    // r1 = ctx->data_end; r0 = *(u8 *)r1; exit: the kernel would not take it.
    let outside = [op(0x61, 1, 1, 4, 0), op(0x71, 0, 1, 0, 0), exit()].concat();
    let before = frame.data().to_vec();
    assert!(matches!(EbpfProgram::new(&outside).unwrap().run(&mut frame), Action::Aborted));
    assert_eq!(frame.data(), before);
    // A frame whose memory has no room in front.
    let mut short = Frame::copy_from(&[7; 60]);
    short.push_front(short.headroom()).fill(7);
    let reflected = EbpfProgram::new(&reflects()).unwrap();
    assert!(matches!(reflected.clone().run(&mut short), Action::Transmit));
}

#[test]
fn what_cannot_be_had_is_refused_by_name() {
    let loaded = |code: &[[u8; 8]]| EbpfProgram::new(&code.concat()).unwrap_err();
    assert_eq!(EbpfProgram::new(&[0; 7]).unwrap_err(), Refused::Length(7));
    assert_eq!(EbpfProgram::new(&[]).unwrap_err(), Refused::Length(0));
    assert!(matches!(loaded(&[op(0xff, 0, 0, 0, 0), exit()]), Refused::Malformed(_)));
    let pass = op(0xb7, 0, 0, 0, 2);
    for (code, says) in [
        (vec![op(0x85, 0, 0, 0, 1), exit()], "helper 1"),
        (vec![op(0x18, 1, 1, 0, 5), [0; 8], exit()], "map"),
        (vec![pass, op(0x05, 0, 0, -2, 0), exit()], "jumps back"),
        (vec![op(0x61, 0, 1, 12, 0), exit()], "ingress_ifindex"),
        (vec![op(0x79, 0, 1, 0, 0), exit()], "offset 0 of this size"),
        (vec![op(0x63, 1, 2, 0, 0), exit()], "writes to its context"),
        (vec![op(0x7b, 10, 1, -8, 0), exit()], "into memory"),
        (vec![op(0x07, 1, 0, 0, 4), exit()], "address of its context"),
        (vec![op(0xb7, 0, 0, 0, 1), op(0x37, 0, 0, 0, 0), exit()], "divides by 0"),
        // On one way R1 is the context, on the other a number.
        (vec![pass, op(0x15, 0, 0, 1, 2), op(0xb7, 1, 0, 0, 0), op(0x61, 0, 1, 0, 0), exit()], "one way only"),
    ] {
        let refused = loaded(&code).to_string();
        assert!(refused.contains(says), "{says}: {refused}");
    }
}

/// On a device, whose poll runs it.
#[test]
fn a_program_runs_on_a_devices_receive_path() {
    let (service, client) = mem::pair(MemConfig::default());
    let program = EbpfProgram::new(&reflects()).unwrap();
    let service = Programmed::new(Arc::new(service), move |queue| Box::new(program.on_queue(queue)));
    let (mut ours, mut theirs) = (service.take_queue(0).unwrap(), client.take_queue(0).unwrap());
    let sent: Vec<u8> = (0..60).collect();
    theirs.tx.transmit(Frame::copy_from(&sent)).unwrap();
    theirs.tx.doorbell();
    let mut pool = FramePool::new(8);
    assert_eq!(ours.rx.poll(8, &mut pool, &mut |_, _| panic!("it was sent back")), 1);
    let mut came = Vec::new();
    assert_eq!(theirs.rx.poll(8, &mut pool, &mut |frame, _| came = frame.data().to_vec()), 1);
    assert_eq!((&came[..6], &came[6..12], &came[12..]), (&sent[6..12], &sent[..6], &sent[12..]));
    assert_eq!(service.counts().transmitted, 1);
}
