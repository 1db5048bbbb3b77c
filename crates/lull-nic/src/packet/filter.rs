//! The classic BPF filter of a packet socket: which frames are copied to it.

use std::net::IpAddr;

use libc::sock_filter;

use crate::wire::{ETHERTYPE_ARP, ETHERTYPE_IPV4, ETHERTYPE_IPV6, PROTOCOL_ICMPV6};

const LOAD_WORD: u16 = 0x20;
const LOAD_HALF: u16 = 0x28;
const LOAD_BYTE: u16 = 0x30;
const AND: u16 = 0x54;
const JUMP_IF_EQUAL: u16 = 0x15;
const RETURN: u16 = 0x06;

/// A whole frame.
const TAKEN: u32 = u32::MAX;
const ETHERTYPE: u32 = 12;
const NEIGHBOUR_SOLICITATION: u32 = 135;

/// The filter for `addresses`; without any, nothing is filtered.
///
/// It is a row of tests: if all of one test's comparisons hold, the frame is taken, else the next one is made. The kernel
/// refuses a frame that is too short for a load, so the tests that look furthest come last.
pub(super) fn of(addresses: &[IpAddr]) -> Vec<sock_filter> {
    if addresses.is_empty() {
        return vec![instruction(RETURN, 0, 0, TAKEN)];
    }
    let mut filter = untagged();
    for address in addresses {
        match address {
            IpAddr::V4(ip) => {
                let ip = u32::from(*ip);
                test(&mut filter, &[(LOAD_HALF, ETHERTYPE, ETHERTYPE_IPV4.into()), (LOAD_WORD, 30, ip)]);
                test(&mut filter, &[(LOAD_HALF, ETHERTYPE, ETHERTYPE_ARP.into()), (LOAD_WORD, 38, ip)]);
            }
            IpAddr::V6(ip) => {
                let mut comparisons = vec![(LOAD_HALF, ETHERTYPE, ETHERTYPE_IPV6.into())];
                comparisons.extend(words(ip.octets(), 38));
                test(&mut filter, &comparisons);
            }
        }
    }
    for address in addresses {
        if let IpAddr::V6(ip) = address {
            let mut comparisons = vec![
                (LOAD_HALF, ETHERTYPE, ETHERTYPE_IPV6.into()),
                (LOAD_BYTE, 20, PROTOCOL_ICMPV6.into()),
                (LOAD_BYTE, 54, NEIGHBOUR_SOLICITATION),
            ];
            comparisons.extend(words(ip.octets(), 62));
            test(&mut filter, &comparisons);
        }
    }
    filter.push(instruction(RETURN, 0, 0, 0));
    filter
}

fn instruction(code: u16, if_true: u8, if_false: u8, value: u32) -> sock_filter {
    sock_filter { code, jt: if_true, jf: if_false, k: value }
}

/// Frames of a VLAN are not ours. The kernel has taken the tag out of the frame.
fn untagged() -> Vec<sock_filter> {
    let beside_the_frame = |what: libc::c_int| (libc::SKF_AD_OFF + what) as u32;
    vec![
        instruction(LOAD_WORD, 0, 0, beside_the_frame(libc::SKF_AD_VLAN_TAG_PRESENT)),
        instruction(JUMP_IF_EQUAL, 4, 0, 0),
        instruction(LOAD_WORD, 0, 0, beside_the_frame(libc::SKF_AD_VLAN_TAG)),
        instruction(AND, 0, 0, 0x0fff),
        // A tag with a priority alone.
        instruction(JUMP_IF_EQUAL, 1, 0, 0),
        instruction(RETURN, 0, 0, 0),
    ]
}

/// A load, where from, and what has to be there.
type Comparison = (u16, u32, u32);

fn words(octets: [u8; 16], at: u32) -> impl Iterator<Item = Comparison> {
    let word = move |index: usize| u32::from_be_bytes(std::array::from_fn(|byte| octets[4 * index + byte]));
    (0..4).map(move |index| (LOAD_WORD, at + 4 * index as u32, word(index)))
}

fn test(filter: &mut Vec<sock_filter>, comparisons: &[Comparison]) {
    for (nth, (load, at, value)) in comparisons.iter().enumerate() {
        // Past the other comparisons and the return.
        let past = 2 * (comparisons.len() - nth - 1) as u8 + 1;
        filter.push(instruction(*load, 0, 0, *at));
        filter.push(instruction(JUMP_IF_EQUAL, 0, past, *value));
    }
    filter.push(instruction(RETURN, 0, 0, TAKEN));
}
