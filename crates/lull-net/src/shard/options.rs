//! TCP options: what a SYN offers, and the options of the segments that this shard builds itself.

use smoltcp::wire::TcpOption;

use super::wire;

/// The largest window scale there is (RFC 7323 section 2.3).
pub(super) const WINDOW_SCALE_MAX: u8 = 14;
/// No peer has segments made smaller (`tcp_min_snd_mss`, and smoltcp's own bound), whatever it says.
const MSS_MIN: u16 = 48;
/// What a SYN without an MSS option means (RFC 9293 section 3.7.1).
pub(super) const MSS_DEFAULT: u16 = 536;
const MSS: u8 = 2;
const WINDOW_SCALE: u8 = 3;
const SACK_PERMITTED: u8 = 4;
const TIMESTAMP: u8 = 8;
const NOP: u8 = 1;

/// What a SYN offers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Offer {
    /// `None`: the option was absent, or 0, which counts as absent (`tcp_parse_options`).
    pub(super) mss: Option<u16>,
    pub(super) window_scale: Option<u8>,
    pub(super) sack: bool,
    /// Value and echo of the timestamp option.
    pub(super) timestamp: Option<(u32, u32)>,
}

impl Offer {
    /// Reads the options of a SYN that were found well formed before.
    pub(super) fn read(mut options: &[u8]) -> Offer {
        let mut offer = Offer::default();
        while let Ok((rest, option)) = TcpOption::parse(options) {
            match option {
                TcpOption::EndOfList => break,
                TcpOption::MaxSegmentSize(mss) => offer.mss = Some(mss.max(MSS_MIN)).filter(|_| mss != 0),
                TcpOption::WindowScale(scale) => offer.window_scale = Some(scale.min(WINDOW_SCALE_MAX)),
                TcpOption::SackPermitted => offer.sack = true,
                TcpOption::TimeStamp { tsval, tsecr } => offer.timestamp = Some((tsval, tsecr)),
                _ => {}
            }
            options = rest;
        }
        offer
    }

    /// The options as they stand in a SYN or SYN-ACK.
    pub(super) fn write(&self) -> OptionBytes {
        let mut bytes = OptionBytes { bytes: [0; 40], length: 0 };
        if let Some(mss) = self.mss {
            let [high, low] = mss.to_be_bytes();
            bytes.push(&[MSS, 4, high, low]);
        }
        if let Some(scale) = self.window_scale {
            bytes.push(&[NOP, WINDOW_SCALE, 3, scale]);
        }
        if self.sack {
            bytes.push(&[NOP, NOP, SACK_PERMITTED, 2]);
        }
        if let Some((value, echo)) = self.timestamp {
            bytes.push(&[NOP, NOP, TIMESTAMP, 10]);
            bytes.push(&value.to_be_bytes());
            bytes.push(&echo.to_be_bytes());
        }
        bytes
    }
}

/// The ranges of a selective acknowledgement, each from its first number to behind its last. The options were found
/// well formed before.
pub(super) fn selectively_acknowledged(mut options: &[u8]) -> impl Iterator<Item = (u32, u32)> {
    let mut ranges = [None; 3];
    while let Ok((rest, option)) = TcpOption::parse(options) {
        match option {
            TcpOption::EndOfList => break,
            TcpOption::SackRange(found) => ranges = found,
            _ => {}
        }
        options = rest;
    }
    ranges.into_iter().flatten()
}

/// Scales windows by more than the option of this SYN says, if it has one.
pub(super) fn raise_window_scale(tcp: &mut [u8], by: u8) {
    let mut at = wire::TCP;
    let header = usize::from(tcp[12] >> 4) * 4;
    while at + 2 < header {
        match tcp[at] {
            0 => return,
            NOP => at += 1,
            WINDOW_SCALE => {
                tcp[at + 2] += by;
                return;
            }
            // smoltcp wrote it, and every option but the padding has its length.
            _ => at += usize::from(tcp[at + 1].max(2)),
        }
    }
}

/// Options in wire form, a multiple of four bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct OptionBytes {
    bytes: [u8; 40],
    length: usize,
}

impl OptionBytes {
    fn push(&mut self, option: &[u8]) {
        self.bytes[self.length..self.length + option.len()].copy_from_slice(option);
        self.length += option.len();
    }
}

impl std::ops::Deref for OptionBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        for mss in [None, Some(1460)] {
            for window_scale in [None, Some(0), Some(14)] {
                for (sack, timestamp) in [(false, None), (true, Some((1, u32::MAX)))] {
                    let offer = Offer { mss, window_scale, sack, timestamp };
                    let bytes = offer.write();
                    assert_eq!(bytes.len() % 4, 0);
                    assert_eq!(Offer::read(&bytes), offer);
                }
            }
        }
    }

    #[test]
    fn a_peer_has_no_segments_made_of_single_bytes() {
        let said =
            |mss| Offer::read(&Offer { mss: Some(mss), window_scale: None, sack: false, timestamp: None }.write()).mss;
        assert_eq!([0, 1, 47, 48, 1460].map(said), [None, Some(48), Some(48), Some(48), Some(1460)]);
    }
}
