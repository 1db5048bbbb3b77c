//! Netlink's messages and attributes (`include/uapi/linux/netlink.h`), read and written.

/// Bytes of a message's header (`struct nlmsghdr`).
pub(crate) const HEADER: usize = 16;
/// What a receiver of generic netlink has room for at least; longer answers are cut into several datagrams.
const DATAGRAM_BYTES_MAX: usize = 4096;
/// The bits of an attribute's type that are its name (`NLA_TYPE_MASK`).
const TYPE_MASK: u16 = 0x3fff;

/// One message of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Message<'a> {
    pub(crate) kind: u16,
    pub(crate) flags: u16,
    pub(crate) seq: u32,
    /// What follows the header.
    pub(crate) payload: &'a [u8],
    /// The message with its header.
    pub(crate) whole: &'a [u8],
}

/// The messages of a datagram; nothing if it is not made of whole messages.
pub(crate) fn messages(mut datagram: &[u8]) -> Option<Vec<Message<'_>>> {
    let mut messages = Vec::new();
    while !datagram.is_empty() {
        let length = u32_at(datagram, 0)? as usize;
        let whole = datagram.get(..length).filter(|whole| whole.len() >= HEADER)?;
        messages.push(Message {
            kind: u16_at(whole, 4)?,
            flags: u16_at(whole, 6)?,
            seq: u32_at(whole, 8)?,
            payload: &whole[HEADER..],
            whole,
        });
        datagram = datagram.get(aligned(length)..).unwrap_or_default();
    }
    Some(messages)
}

/// Name and content of each attribute; nothing if they are cut off in the middle.
pub(crate) fn attributes(mut bytes: &[u8]) -> Option<Vec<(u16, &[u8])>> {
    let mut found = Vec::new();
    while !bytes.is_empty() {
        let length = usize::from(u16_at(bytes, 0)?);
        let content = bytes.get(4..length)?;
        found.push((u16_at(bytes, 2)? & TYPE_MASK, content));
        bytes = bytes.get(aligned(length)..).unwrap_or_default();
    }
    Some(found)
}

/// An attribute of the type `uint` or `u32`: four bytes, or eight where the value needs them.
pub(crate) fn uint(content: &[u8]) -> Option<u64> {
    match content.len() {
        4 => u32_at(content, 0).map(u64::from),
        8 => Some(u64::from_ne_bytes(content.try_into().ok()?)),
        _ => None,
    }
}

fn aligned(length: usize) -> usize {
    length.next_multiple_of(4)
}

pub(crate) fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

/// A message under construction.
pub(crate) struct Writer(Vec<u8>);

impl Writer {
    pub(crate) fn new(kind: u16, flags: u16, seq: u32, port: u32) -> Writer {
        let mut bytes = vec![0; 4];
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(flags.to_ne_bytes());
        bytes.extend(seq.to_ne_bytes());
        bytes.extend(port.to_ne_bytes());
        Writer(bytes)
    }

    /// Bytes of the message's own, before its attributes.
    pub(crate) fn bytes(mut self, bytes: &[u8]) -> Writer {
        self.0.extend(bytes);
        self.0.resize(aligned(self.0.len()), 0);
        self
    }

    pub(crate) fn attribute(mut self, name: u16, content: &[u8]) -> Writer {
        self.0.extend((4 + content.len() as u16).to_ne_bytes());
        self.0.extend(name.to_ne_bytes());
        self.bytes(content)
    }

    pub(crate) fn u32(self, name: u16, value: u32) -> Writer {
        self.attribute(name, &value.to_ne_bytes())
    }

    /// As `nla_put_uint`: as short as it can be.
    pub(crate) fn uint(self, name: u16, value: u64) -> Writer {
        match u32::try_from(value) {
            Ok(short) => self.u32(name, short),
            Err(_) => self.attribute(name, &value.to_ne_bytes()),
        }
    }

    pub(crate) fn end(mut self) -> Vec<u8> {
        let length = self.0.len() as u32;
        self.0[..4].copy_from_slice(&length.to_ne_bytes());
        self.0
    }
}

/// Messages in as few datagrams as any receiver has room for.
pub(crate) fn datagrams(messages: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    let mut datagrams: Vec<Vec<u8>> = Vec::new();
    for message in messages {
        match datagrams.last_mut() {
            Some(last) if last.len() + message.len() <= DATAGRAM_BYTES_MAX => last.extend(message),
            _ => datagrams.push(message),
        }
    }
    datagrams
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let one = Writer::new(20, 1, 7, 9).bytes(&[11, 1, 0, 0]).u32(1, 5).uint(7, u64::from(u32::MAX) + 1).end();
        let two = Writer::new(21, 0, 8, 9).attribute(2, b"abc").end();
        let both = [one.clone(), two].concat();
        let read = messages(&both).unwrap();
        assert_eq!((read[0].kind, read[0].flags, read[0].seq, read[0].whole), (20, 1, 7, &one[..]));
        let of_one = attributes(&read[0].payload[4..]).unwrap();
        assert_eq!(
            of_one.iter().map(|(name, value)| (*name, uint(value))).collect::<Vec<_>>(),
            [(1, Some(5)), (7, Some(u64::from(u32::MAX) + 1))]
        );
        assert_eq!(attributes(read[1].payload).unwrap(), [(2, &b"abc"[..])]);
    }

    #[test]
    fn what_is_cut_off_is_refused() {
        let whole = Writer::new(20, 1, 7, 9).u32(1, 5).end();
        for length in 1..whole.len() {
            assert!(messages(&whole[..length]).is_none(), "{length}");
        }
        let mut short = whole.clone();
        short[0] = 15;
        assert!(messages(&short).is_none(), "shorter than its header");
        assert!(attributes(&[3, 0, 1, 0]).is_none() && attributes(&[8, 0, 1, 0, 0]).is_none());
    }

    #[test]
    fn long_answers_come_in_several_datagrams() {
        let all = datagrams(vec![vec![0; 1000]; 9]);
        assert_eq!(all.iter().map(Vec::len).collect::<Vec<_>>(), [4000, 4000, 1000]);
    }
}
