//! A fragment comes: it is kept with the others of its packet, or makes it whole.

use lull_nic::Frame;

use super::demux::{Cast, Packet, Reason};
use super::reassembly::{Fit, HELD_BYTES_MAX, Piece, REFUSED};
use super::stack::{Io, Stack};

impl Stack {
    /// Takes a fragment. Returns its packet if that is whole now.
    #[cold]
    pub(super) fn reassemble(&mut self, frame: Frame, packet: &Packet, io: &mut Io<'_>) -> Option<Frame> {
        let result = self.fragment_input(&frame, packet, io);
        let (seen_by, rss_hash) = (frame.seen_by(), frame.rss_hash());
        io.pool.recycle(frame);
        match result {
            Ok(whole) => {
                let mut whole = whole?;
                whole.set_seen_by(seen_by);
                whole.set_rss_hash(rss_hash);
                Some(whole)
            }
            Err(reason) => {
                *reason(&mut self.counters) += 1;
                None
            }
        }
    }

    fn fragment_input(&mut self, frame: &Frame, packet: &Packet, io: &mut Io<'_>) -> Result<Option<Frame>, Reason> {
        let piece = Piece::of(frame, packet);
        if !self.allows(packet, frame) {
            return Err(|counters| &mut counters.drop_not_allowed);
        }
        if !piece.is_sound() {
            return Err(REFUSED);
        }
        match self.reassembly.add(&piece, frame, packet, io.now_ns) {
            (Fit::Contradiction, _) => {
                self.reassembly.remove(&piece.name);
                self.counters.reassembly_failures += 1;
                Err(REFUSED)
            }
            (Fit::Known, _) => Err(REFUSED),
            (Fit::New, true) => {
                self.counters.packets_reassembled += 1;
                let partial = self.reassembly.remove(&piece.name);
                Ok(partial.and_then(|partial| partial.into_whole(io.pool)))
            }
            (Fit::New, false) => {
                self.counters.fragments_kept += 1;
                self.make_room_for_fragments();
                Ok(None)
            }
        }
    }

    /// Forgets the oldest packets until there is room.
    fn make_room_for_fragments(&mut self) {
        while self.reassembly.held_bytes > HELD_BYTES_MAX
            && let Some((_, name)) = self.reassembly.by_age.first().copied()
        {
            self.reassembly.remove(&name);
            self.counters.reassembly_failures += 1;
        }
    }

    /// Forgets what has waited too long, and tells its sender (`ip_expire`, `ip6frag_expire_frag_queue`).
    pub(super) fn run_reassembly(&mut self, io: &mut Io<'_>) {
        while let Some(((until_ns, _), name)) = self.reassembly.by_age.first().copied()
            && until_ns <= io.now_ns
        {
            let partial = self.reassembly.remove(&name);
            self.counters.reassembly_failures += 1;
            if let Some((first, packet)) = partial.and_then(|partial| partial.first)
                && packet.cast == Cast::Unicast
            {
                self.send_reassembly_time_exceeded(&first, &packet, io);
            }
        }
    }
}
