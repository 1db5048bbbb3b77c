//! SYN cookies (RFC 4987 section 3.6, `net/ipv4/syncookies.c`): a handshake that costs no memory.
//!
//! When the queue of half-open connections is full, the SYN-ACK's sequence number itself remembers the SYN: a keyed hash of
//! the 4-tuple, a counter of minutes, and the MSS as an index into a table of four. The acknowledgement of it brings all of
//! it back.
//!
//! Linux adds the SYN's own sequence number. Then, in a connection whose two sides have sent about as much as each
//! other (an echo), every later segment would look like the acknowledgement of a cookie. Stacks here go on with each
//! other's handshakes, so a segment that comes late could make a connection without a peer. Therefore the SYN's number
//! is multiplied by an odd number that depends on the 4-tuple.

use std::net::IpAddr;

use super::flow::FlowKey;
use super::isn::Secret;

/// Below the counter's byte (`COOKIEBITS`).
const DATA_BITS: u32 = 24;
const DATA_MASK: u32 = (1 << DATA_BITS) - 1;
/// How long the counter stands (`TCP_SYNCOOKIE_PERIOD`).
const PERIOD_NS: u64 = 60_000_000_000;
/// Counters back for which a cookie is good (`MAX_SYNCOOKIE_AGE`).
const PERIODS_MAX: u32 = 2;
/// For how long after a cookie was sent acknowledgements are looked at for one (`TCP_SYNCOOKIE_VALID`).
pub(super) const VALID_NS: u64 = PERIOD_NS * PERIODS_MAX as u64;
/// The window of a SYN-ACK, at most: its field is not scaled.
const WINDOW_MAX: u32 = u16::MAX as u32;
/// The segment sizes that a cookie can hold (Linux's `msstab` of each family).
const MSS_V4: [u16; 4] = [536, 1300, 1440, 1460];
const MSS_V6: [u16; 4] = [1280 - 60, 1480 - 60, 1500 - 60, 9000 - 60];

fn table(ip: IpAddr) -> &'static [u16; 4] {
    if ip.is_ipv4() { &MSS_V4 } else { &MSS_V6 }
}

/// The inverse of an odd number modulo 2^32, by Newton's method: each step doubles the number of right bits.
fn inverse(odd: u32) -> u32 {
    (0..4).fold(odd, |inverse, _| inverse.wrapping_mul(2_u32.wrapping_sub(odd.wrapping_mul(inverse))))
}

impl Secret {
    fn cookie_hash(&self, flow: &FlowKey, count: Option<u32>) -> u32 {
        match count {
            None => self.hash(3, flow) as u32,
            Some(count) => self.hash(4, &(*flow, count)) as u32,
        }
    }

    /// The initial sequence number that stands for a SYN with sequence number `peer_isn` (`secure_tcp_syn_cookie`). An
    /// MSS is rounded down to one of the table.
    pub(super) fn cookie(&self, flow: &FlowKey, peer_isn: u32, mss: u16, now_ns: u64) -> u32 {
        let index = table(flow.local().ip()).iter().rposition(|&known| mss >= known).unwrap_or(0) as u32;
        let count = (self.common_ns(now_ns) / PERIOD_NS) as u32;
        let data = self.cookie_hash(flow, Some(count)).wrapping_add(index) & DATA_MASK;
        self.cookie_base(flow, peer_isn).wrapping_add(count << DATA_BITS).wrapping_add(data)
    }

    /// The part of a cookie that depends neither on the time nor on the MSS.
    fn cookie_base(&self, flow: &FlowKey, peer_isn: u32) -> u32 {
        self.cookie_hash(flow, None).wrapping_add(peer_isn.wrapping_mul(self.cookie_factor(flow)))
    }

    /// The number is odd, so it has an inverse.
    fn cookie_factor(&self, flow: &FlowKey) -> u32 {
        self.hash(6, flow) as u32 | 1
    }

    /// Whether `seq` is that of a segment behind the one that ends the handshake of a cookie of ours, within what its
    /// peer may send before it hears more. The numbers of an open connection whose peer has sent more than it has heard
    /// may look so, too.
    pub(super) fn is_behind_a_cookie(&self, flow: &FlowKey, seq: u32, cookie: u32, now_ns: u64) -> bool {
        if self.cookie_mss(flow, seq.wrapping_sub(1), cookie, now_ns).is_some() {
            return false;
        }
        let now = (self.common_ns(now_ns) / PERIOD_NS) as u32;
        let sizes = 0..table(flow.local().ip()).len() as u32;
        let inverse = inverse(self.cookie_factor(flow));
        (0..PERIODS_MAX).any(|age| {
            let count = now.wrapping_sub(age);
            let hash = self.cookie_hash(flow, Some(count));
            sizes.clone().any(|index| {
                let rest = (count << DATA_BITS).wrapping_add(hash.wrapping_add(index) & DATA_MASK);
                let peer_isn = cookie.wrapping_sub(self.cookie_base(flow, 0)).wrapping_sub(rest).wrapping_mul(inverse);
                let behind = seq.wrapping_sub(peer_isn).wrapping_sub(1);
                (1..=WINDOW_MAX).contains(&behind)
            })
        })
    }

    /// The MSS that a cookie remembers, if it is one of ours and not too old (`check_tcp_syn_cookie`).
    pub(super) fn cookie_mss(&self, flow: &FlowKey, peer_isn: u32, cookie: u32, now_ns: u64) -> Option<u16> {
        let count = (self.common_ns(now_ns) / PERIOD_NS) as u32;
        let rest = cookie.wrapping_sub(self.cookie_base(flow, peer_isn));
        let age = count.wrapping_sub(rest >> DATA_BITS) & (u32::MAX >> DATA_BITS);
        if age >= PERIODS_MAX {
            return None;
        }
        let index = rest.wrapping_sub(self.cookie_hash(flow, Some(count.wrapping_sub(age)))) & DATA_MASK;
        table(flow.local().ip()).get(index as usize).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow(port: u16) -> FlowKey {
        FlowKey::new(6, IpAddr::from([10, 0, 0, 1]), 80, IpAddr::from([10, 0, 0, 2]), port)
    }

    #[test]
    fn a_cookie_is_good_for_its_flow_and_a_minute_or_two() {
        let secret = Secret::new(7);
        for (offered, remembered) in [(100, 536), (536, 536), (1400, 1300), (1460, 1460), (9000, 1460)] {
            for second in [0u64, 59, 61, 255 * 60 + 59] {
                let now_ns = second * 1_000_000_000;
                let cookie = secret.cookie(&flow(5000), 0xffff_fff0, offered, now_ns);
                let mss = |flow: &FlowKey, isn, later_ns| secret.cookie_mss(flow, isn, cookie, now_ns + later_ns);
                assert_eq!(mss(&flow(5000), 0xffff_fff0, 0), Some(remembered));
                assert_eq!(mss(&flow(5000), 0xffff_fff0, PERIOD_NS), Some(remembered));
                assert_eq!(mss(&flow(5000), 0xffff_fff0, 2 * PERIOD_NS), None, "too old");
                assert_eq!(mss(&flow(5001), 0xffff_fff0, 0), None, "another flow");
                assert_eq!(mss(&flow(5000), 1, 0), None, "another SYN");
            }
        }
    }

    /// By the sums of their numbers many would be.
    #[test]
    fn no_later_segment_of_a_connection_is_the_end_of_its_handshake() {
        let secret = Secret::new(7);
        let (flow, peer_isn) = (flow(5000), 0xffff_fff0_u32);
        let isn = secret.cookie(&flow, peer_isn, 1460, 0);
        let is_one = |sent: u32, heard: u32| {
            secret.cookie_mss(&flow, peer_isn.wrapping_add(sent), isn.wrapping_add(heard), 0).is_some()
        };
        assert!(is_one(0, 0));
        for sent in 0..200 {
            for heard in u32::from(sent == 0)..200 {
                assert!(!is_one(sent, heard), "{sent} bytes, and {heard} back");
            }
        }
        assert!((0..1000).all(|n: u32| inverse(n | 1).wrapping_mul(n | 1) == 1) && inverse(u32::MAX) == u32::MAX);
    }

    #[test]
    fn a_guess_is_good_once_in_millions() {
        let secret = Secret::new(7);
        let good = (0..100_000u32)
            .filter(|guess| secret.cookie_mss(&flow(5000), 1, guess.wrapping_mul(0x9e37_79b1), 0).is_some())
            .count();
        assert_eq!(good, 0);
    }
}
