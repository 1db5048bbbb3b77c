//! The memory of a program: its context and its stack, at addresses that stand for nothing else.

use crate::{Ancillary, Packet};

/// Bytes of a stack (`MAX_BPF_STACK`).
const STACK_BYTES: usize = 512;
/// Bytes of `struct __sk_buff`.
const CONTEXT_BYTES: usize = 192;
/// The offsets of the fields of `struct __sk_buff`. The fields between `CB` and `HASH` are the program's own.
const LEN: usize = 0;
const PKT_TYPE: usize = 4;
const MARK: usize = 8;
const QUEUE_MAPPING: usize = 12;
const PROTOCOL: usize = 16;
const VLAN_PRESENT: usize = 20;
const VLAN_TCI: usize = 24;
const VLAN_PROTO: usize = 28;
const IFINDEX: usize = 40;
const CB: usize = 48;
const HASH: usize = 68;

/// The addresses of the context and of the stack. Neither is an address of the process, and only [`Memory`] follows
/// them.
const CONTEXT: u64 = 1 << 56;
const STACK: u64 = 2 << 56;

pub(super) struct Memory {
    context: [u8; CONTEXT_BYTES],
    stack: [u8; STACK_BYTES],
}

impl Memory {
    /// The address of the context.
    pub(super) const CONTEXT: u64 = CONTEXT;
    /// The end of the stack, which grows down from there.
    pub(super) const STACK_END: u64 = STACK + STACK_BYTES as u64;

    pub(super) fn new(packet: &impl Packet) -> Memory {
        let mut memory = Memory { context: [0; CONTEXT_BYTES], stack: [0; STACK_BYTES] };
        let known = |which| packet.ancillary(which);
        let fields = [
            (LEN, packet.data().len() as u32),
            (PKT_TYPE, known(Ancillary::PacketType)),
            (MARK, known(Ancillary::Mark)),
            (QUEUE_MAPPING, known(Ancillary::Queue)),
            // The protocol has the frame's byte order here; a classic program sees it in the machine's.
            (PROTOCOL, u32::from((known(Ancillary::Protocol) as u16).to_be())),
            (VLAN_PRESENT, known(Ancillary::VlanTagPresent)),
            (VLAN_TCI, known(Ancillary::VlanTag)),
            (VLAN_PROTO, u32::from((known(Ancillary::VlanProtocol) as u16).to_be())),
            (IFINDEX, known(Ancillary::Interface)),
            (HASH, known(Ancillary::Hash)),
        ];
        for (at, value) in fields {
            memory.context[at..at + 4].copy_from_slice(&value.to_ne_bytes());
        }
        memory
    }

    /// Loads so many bytes, zero-extended. Returns `None` outside of the memory.
    pub(super) fn load(&self, address: u64, bytes: usize) -> Option<u64> {
        let (part, base): (&[u8], _) = if address >= STACK { (&self.stack, STACK) } else { (&self.context, CONTEXT) };
        let at = usize::try_from(address.checked_sub(base)?).ok()?;
        let found = part.get(at..at.checked_add(bytes)?)?;
        Some(match *found {
            [byte] => byte.into(),
            [a, b] => u16::from_ne_bytes([a, b]).into(),
            [a, b, c, d] => u32::from_ne_bytes([a, b, c, d]).into(),
            [a, b, c, d, e, f, g, h] => u64::from_ne_bytes([a, b, c, d, e, f, g, h]),
            _ => return None,
        })
    }

    /// So many bytes that the program may write. It may write to the stack and to `cb`.
    pub(super) fn at(&mut self, address: u64, bytes: usize) -> Option<&mut [u8]> {
        let (part, base): (&mut [u8], _) = if address >= STACK {
            (&mut self.stack, STACK)
        } else {
            (&mut self.context[CB..HASH], CONTEXT + CB as u64)
        };
        let at = usize::try_from(address.checked_sub(base)?).ok()?;
        part.get_mut(at..at.checked_add(bytes)?)
    }

    /// Stores the lowest bytes of a value. Returns `None` outside of the memory.
    pub(super) fn store(&mut self, address: u64, bytes: usize, value: u64) -> Option<()> {
        let place = self.at(address, bytes)?;
        match bytes {
            1 => place.copy_from_slice(&(value as u8).to_ne_bytes()),
            2 => place.copy_from_slice(&(value as u16).to_ne_bytes()),
            4 => place.copy_from_slice(&(value as u32).to_ne_bytes()),
            _ => place.copy_from_slice(&value.to_ne_bytes()),
        }
        Some(())
    }
}
