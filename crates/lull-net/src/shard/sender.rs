//! What a connection knows and keeps in order to make losses good, from the first sign of a loss for as long as the
//! connection is busy. smoltcp goes on to hold the stream and to send what is new; what it would send again does not
//! leave.
//!
//! - *What* is lost is said by the [`Scoreboard`], from acknowledgements, as long as the path overtakes nothing; by the
//!   time, a quarter of a round trip after the peer had something behind it, and more where that was too short
//!   (`tcp_rack_detect_loss`); by the answer to a probe of the last segment; and by the retransmission timer (RFC
//!   6298).
//! - *When* something may leave is said by the congestion window ([`Cubic`]): smoltcp is shown a window of the peer's
//!   that ends where the congestion window does.
//! - What is sent again is cut from a copy: smoltcp's buffer cannot be read a second time.

use std::collections::VecDeque;

use super::clock::{ACK_DELAY_NS_MAX, RTO_NS_MIN};
use super::cubic::Cubic;
use super::ranges::{Range, earlier, later};
use super::scoreboard::Scoreboard;
use super::timers::NEVER_NS;
use super::wire::seq_lt;

/// Something is lost when this many segments behind it have come (RFC 5681: DupThresh).
const SEGMENTS: u32 = 3;
/// The longest time by which something may be overtaken, in quarters of a round trip.
const REORDERING_MAX: u32 = 4;
/// The time by which something may be overtaken while no round trip is known.
const REORDERING_NS: u64 = 10_000_000;
/// The longest time that the timer runs at first while no round trip is known (`TCP_TIMEOUT_FALLBACK`).
const FIRST_RTO_NS_MAX: u64 = 3_000_000_000;
/// The longest time that the retransmission timer runs (`TCP_RTO_MAX`).
const RTO_NS_MAX: u64 = 120_000_000_000;

/// The shortest time before a probe, since the peer may be busy for as long.
const PROBE_NS_MIN: u64 = 10_000_000;

/// How long nothing has to be acknowledged before the last segment is sent again as a probe (RFC 8985 section 7.2), if
/// a round trip is known.
pub(super) fn tail_probe_after_ns(rtt_us: u32) -> Option<u64> {
    (rtt_us != 0).then(|| (u64::from(rtt_us) * 2000).max(PROBE_NS_MIN))
}

/// What an acknowledgement says came twice (RFC 2883): its first range, if that is of what it acknowledges, or lies in the second.
fn came_twice(ack: u32, ranges: &[Range]) -> Option<Range> {
    let &(start, end) = ranges.first()?;
    let is_in_next = ranges.get(1).is_some_and(|next| !seq_lt(start, next.0) && !seq_lt(next.1, end));
    (!seq_lt(ack, end) || is_in_next).then_some((start, end))
}

/// How far a loss has been made good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Episode {
    /// Nothing is lost.
    None,
    /// An acknowledgement, or the time, has told of a loss; it is made good once all before `until` is acknowledged.
    Fast { until: u32 },
    /// The retransmission timer has told of a loss.
    Slow { until: u32 },
}

/// The last segment on its way is sent again if nothing tells whether it came (a tail loss probe, RFC 8985 section 7):
/// the answer says what is missing, long before the retransmission timer would.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Probe {
    None,
    /// It leaves then.
    At {
        ns: u64,
    },
    /// It leaves as soon as there is room in the ring.
    Due(Range),
    /// It has left, behind all before this.
    Sent {
        until: u32,
    },
}

/// What there was before a loss, in case there was none: then the peer says of all that was sent again that it came
/// twice.
#[derive(Debug)]
struct Undo {
    cubic: Option<Cubic>,
    /// How many bytes were sent again since.
    again: u32,
    /// How many of those bytes came twice.
    twice: u32,
}

#[derive(Debug)]
pub(super) struct Sender {
    board: Scoreboard,
    /// What was sent and is not acknowledged, from `kept_from` on.
    kept: VecDeque<u8>,
    kept_from: u32,
    /// The number of our FIN, once it was sent.
    fin_at: Option<u32>,
    /// A part of the copy is missing, so smoltcp has to send again what is lost.
    is_broken: bool,
    mss: u32,
    /// The peer selectively acknowledges.
    says: bool,
    cubic: Option<Cubic>,
    /// How much might be on its way before anything was lost.
    may_be: u32,
    /// All before this left while the congestion window held back more.
    limited_to: Option<u32>,
    episode: Episode,
    /// What is missing before this number counts as lost at this time.
    overdue: Option<(u32, u64)>,
    /// By how much time segments may be overtaken, in quarters of a round trip; 0 if none was by so much that it seemed
    /// lost.
    reordering: u32,
    /// `reordering` may become longer once all before this is acknowledged.
    reordering_until: Option<u32>,
    undo: Option<Undo>,
    probe: Probe,
    /// When all that is on its way counts as lost.
    timeout_ns: u64,
    backoff: u32,
    /// How long the timer runs while no round trip is known.
    first_rto_ns: u64,
    rtt_us: u32,
    rtt_var_us: u32,
    /// What tells the next round trip: the acknowledgement of all before this number, which left at this time.
    timed: Option<(u32, u64)>,
}

/// What is known of a connection of which a sender takes charge.
#[derive(Debug)]
pub(super) struct Start {
    /// The first that is not acknowledged, and behind the last that was sent, which may be our FIN.
    pub(super) una: u32,
    pub(super) next: u32,
    pub(super) has_fin: bool,
    /// What was sent, from `una` on. It may hold more, since smoltcp sends whole segments, or less, where the peer has taken back what
    /// it offered: then smoltcp sends the rest later.
    pub(super) kept: Vec<u8>,
    pub(super) mss: u32,
    /// The peer selectively acknowledges.
    pub(super) says: bool,
    /// The round trip, and how far round trips lie from it; 0 if none is known.
    pub(super) rtt_us: u32,
    pub(super) rtt_var_us: u32,
    /// How much might have been on its way before anything was lost.
    pub(super) may_be: u32,
    /// How long ago the last acknowledgement came, or the first segment left that is to be acknowledged.
    pub(super) waited_ns: u64,
    /// What [`Sender::reordering`] was when a sender was last in charge.
    pub(super) reordering: u32,
}

/// What an acknowledgement says, and when.
#[derive(Clone, Copy, Debug)]
pub(super) struct Heard<'a> {
    pub(super) ack: u32,
    /// What it selectively acknowledges.
    pub(super) ranges: &'a [Range],
    /// It has no data, and acknowledges the same number and tells the same window as the one before.
    pub(super) is_again: bool,
    /// How long ago our clock showed the value that it echoes, if both ends have timestamps.
    pub(super) echoed_after_ns: Option<u64>,
    pub(super) now_ns: u64,
}

impl Sender {
    /// Takes charge.
    pub(super) fn new(start: Start, now_ns: u64) -> Sender {
        let Start { una, next, has_fin, kept, mss, says, rtt_us, rtt_var_us, may_be, waited_ns, reordering } = start;
        let end = una.wrapping_add(kept.len() as u32);
        let mut board = Scoreboard::new(una, later(next, end), mss);
        board.is_still_to_be_sent((next, end));
        let mut sender = Sender {
            board,
            kept: kept.into(),
            kept_from: una,
            is_broken: false,
            fin_at: has_fin.then(|| next.wrapping_sub(1)),
            mss,
            says,
            cubic: None,
            may_be,
            limited_to: None,
            episode: Episode::None,
            overdue: None,
            reordering,
            reordering_until: None,
            undo: None,
            probe: Probe::None,
            timeout_ns: NEVER_NS,
            backoff: 0,
            first_rto_ns: waited_ns.clamp(RTO_NS_MIN, FIRST_RTO_NS_MAX),
            rtt_us,
            rtt_var_us,
            timed: None,
        };
        sender.start_timer(now_ns);
        sender
    }

    /// Behind the last that was sent.
    pub(super) fn next(&self) -> u32 {
        self.board.next()
    }

    /// Whether nothing is on its way.
    pub(super) fn is_all_acknowledged(&self) -> bool {
        self.board.is_all_acknowledged()
    }

    /// Whether something is lost, and not made good yet.
    pub(super) fn is_recovering(&self) -> bool {
        self.episode != Episode::None
    }

    /// How long segments may be overtaken, in quarters of a round trip, as far as was seen.
    pub(super) fn reordering(&self) -> u32 {
        self.reordering
    }

    /// Whether nothing of a loss, or of what looked like one, has to be kept any more. As long as something is on its
    /// way it has to be, because another copy of that would cost as much as this one did.
    pub(super) fn is_of_no_use(&self) -> bool {
        let is_calm = self.probe == Probe::None || matches!(self.probe, Probe::At { .. });
        let is_over = self.is_all_acknowledged() && !self.is_recovering() && self.board.is_clean() && is_calm;
        self.is_broken || self.cubic.is_none() && is_over
    }

    /// Whether it cannot be in charge any longer.
    pub(super) fn is_broken(&self) -> bool {
        self.is_broken
    }

    pub(super) fn congestion_window(&self) -> Option<u32> {
        self.cubic.as_ref().map(Cubic::window)
    }

    /// When it has to be looked at.
    pub(super) fn deadline_ns(&self) -> u64 {
        if self.is_all_acknowledged() {
            return NEVER_NS;
        }
        let probe_ns = if let Probe::At { ns } = self.probe { ns } else { NEVER_NS };
        self.timeout_ns.min(self.overdue.map_or(NEVER_NS, |(_, at_ns)| at_ns)).min(probe_ns)
    }

    /// The path carries segments of this size.
    pub(super) fn set_mss(&mut self, mss: u32) {
        self.mss = mss;
        self.board.set_mss(mss);
    }

    /// Notes how much may be on its way as long as nothing is lost.
    pub(super) fn may_have_on_its_way(&mut self, bytes: u32) {
        if self.cubic.is_none() {
            self.may_be = bytes;
        }
    }

    /// RFC 6298 section 2, with Linux's floor.
    fn rto_ns(&self) -> u64 {
        let us = u64::from(self.rtt_us) + (u64::from(self.rtt_var_us) * 4).max(ACK_DELAY_NS_MAX / 1000);
        let ns = if self.rtt_us == 0 { self.first_rto_ns } else { (us * 1000).max(RTO_NS_MIN) };
        ns.saturating_mul(1 << self.backoff.min(20)).min(RTO_NS_MAX)
    }

    fn start_timer(&mut self, now_ns: u64) {
        self.timeout_ns = now_ns.saturating_add(self.rto_ns());
    }

    /// Sets the time after which the last segment is sent again if there is no answer.
    fn waits_to_probe(&mut self, now_ns: u64) {
        if matches!(self.probe, Probe::None | Probe::At { .. }) {
            let may = self.says && self.episode == Episode::None && !self.board.has_hole();
            let wait_ns = tail_probe_after_ns(self.rtt_us).filter(|_| may && self.board.in_flight() > self.mss);
            self.probe = wait_ns.map_or(Probe::None, |wait_ns| Probe::At { ns: now_ns + wait_ns });
        }
    }

    /// The probe is due now, if the last segment is in the copy.
    fn probes(&mut self) {
        let (next, known_to) = (self.next(), self.known_to());
        let range = (later(self.board.una(), next.wrapping_sub(self.mss)), earlier(next, known_to));
        self.probe = if seq_lt(range.0, range.1) { Probe::Due(range) } else { Probe::None };
    }

    /// Learns what an acknowledgement says of the probe (`tcp_process_tlp_ack`); `came_twice` says that it came twice.
    /// Returns whether what left before the probe was missing.
    fn hears_of_probe(&mut self, ack: u32, came_twice: bool) -> bool {
        match self.probe {
            Probe::Due(_) => self.probe = Probe::None,
            Probe::Sent { until } => {
                if self.board.has_hole() {
                    return true;
                } else if came_twice {
                    self.probe = Probe::None;
                } else if seq_lt(until, ack) {
                    // The probe itself has made good a loss, of which nothing else tells.
                    self.probe = Probe::None;
                    let in_flight = self.board.in_flight();
                    let cubic = self.window_at(in_flight);
                    cubic.lost(in_flight);
                    cubic.recovered();
                }
            }
            Probe::None | Probe::At { .. } => {}
        }
        false
    }

    /// Whether a segment probes a peer that has acknowledged all.
    pub(super) fn is_probe(&self, seq: u32) -> bool {
        self.is_all_acknowledged() && seq != self.next()
    }

    /// smoltcp has sent this segment. Returns whether it leaves, which it does if it is new. New bytes in a segment
    /// that does not leave are to be sent from here.
    pub(super) fn takes(&mut self, seq: u32, payload: &[u8], has_fin: bool, now_ns: u64) -> bool {
        let next = self.next();
        let end = seq.wrapping_add(payload.len() as u32).wrapping_add(has_fin.into());
        let is_new = !seq_lt(seq, next);
        if self.is_all_acknowledged() {
            (self.kept_from, self.timeout_ns) = (seq, NEVER_NS);
            self.kept = VecDeque::new();
            self.board = Scoreboard::new(seq, seq, self.mss);
        }
        let kept_to = self.kept_to();
        if seq_lt(kept_to, seq) {
            self.is_broken = true;
            return true;
        }
        if has_fin {
            self.fin_at = Some(end.wrapping_sub(1));
        }
        if let Some(new) = payload.get(kept_to.wrapping_sub(seq) as usize..) {
            self.kept.extend(new);
        }
        if self.timeout_ns == NEVER_NS {
            self.start_timer(now_ns);
        }
        self.board.sent_to(end);
        if is_new {
            if self.timed.is_none() {
                self.timed = Some((end, now_ns));
            }
            if let Some(cubic) = &mut self.cubic {
                cubic.sent(end.wrapping_sub(seq));
            }
            self.waits_to_probe(now_ns);
        } else if seq_lt(next, end) {
            self.board.is_still_to_be_sent((next, end));
        }
        is_new
    }

    /// An acknowledgement of what has been sent has come.
    pub(super) fn hears(&mut self, heard: Heard<'_>) {
        let Heard { ack, ranges, is_again, now_ns, .. } = heard;
        let came_twice = came_twice(ack, ranges);
        // An acknowledgement that was overtaken says nothing new, but its ranges are true.
        let ack = later(ack, self.board.una());
        // A probe of a closed window is not counted as sent until then.
        self.board.sent_to(ack);
        let had_in_flight = self.board.in_flight();
        let limits = self.is_limited(had_in_flight);
        let advances = seq_lt(self.board.una(), ack);
        let is_duplicate = is_again && !self.says && !self.is_all_acknowledged();
        let is_told = self.tells_round_trip(Heard { ack, ..heard }, advances);
        let was_overtaken = self.board.has_hole() && !self.board.has_sent_again();
        if let Some(range) = came_twice {
            self.hears_what_came_twice(ack, range);
        }
        let mut news = self.board.acknowledged(ack, ranges, is_duplicate, self.segments_behind());
        if was_overtaken && advances && self.says {
            // This was missing and was not sent again, so it was overtaken.
            self.reordering = self.reordering.max(1);
        }
        let gone = ack.wrapping_sub(self.kept_from).min(self.kept.len() as u32);
        self.kept.drain(..gone as usize);
        self.kept_from = ack;
        match self.episode {
            Episode::Fast { until } | Episode::Slow { until } if !seq_lt(ack, until) => self.is_made_good(),
            Episode::Fast { .. } if advances && !self.says => news.lost |= self.board.is_partly_acknowledged(),
            _ => {}
        }
        if self.hears_of_probe(ack, came_twice.is_some() || is_again && ranges.is_empty())
            && let Some(edge) = self.board.first_behind_what_is_missing()
        {
            news.lost |= self.board.is_lost_before(edge);
        }
        if is_told {
            // Not earlier: a round trip that is longer than the timeout would never become known
            // (`tcp_ack_update_rtt`).
            self.backoff = 0;
        }
        if advances {
            self.start_timer(now_ns);
        }
        if news.lost {
            self.is_lost(had_in_flight);
        }
        let in_flight = self.board.in_flight();
        if let Some(cubic) = &mut self.cubic {
            cubic.delivered(news.delivered, limits, now_ns, self.rtt_us);
            cubic.reduce(news.delivered, in_flight, advances && !news.lost);
        }
        self.overdue = self.overdue.filter(|&(edge, _)| seq_lt(ack, edge));
        self.waits_for_what_is_missing(now_ns);
        if advances || self.board.has_hole() {
            self.waits_to_probe(now_ns);
        }
    }

    /// Whether the congestion window holds back more with `in_flight` bytes on their way, or has done so in the same
    /// round trip.
    fn is_limited(&mut self, in_flight: u32) -> bool {
        if self.cubic.as_ref().is_some_and(|cubic| cubic.limits(in_flight)) {
            self.limited_to = Some(self.next());
        }
        self.limited_to = self.limited_to.filter(|&to| seq_lt(self.board.una(), to));
        self.limited_to.is_some()
    }

    /// The congestion window of a connection that has lost something with `in_flight` bytes on their way.
    fn window_at(&mut self, in_flight: u32) -> &mut Cubic {
        self.cubic.get_or_insert_with(|| Cubic::new(in_flight, self.may_be, self.mss))
    }

    /// What is missing now counts as lost if it does not come within the time by which it may be overtaken
    /// (`tcp_rack_detect_loss`).
    fn waits_for_what_is_missing(&mut self, now_ns: u64) {
        if self.says && self.overdue.is_none() {
            let at_ns = now_ns + self.reordering_ns();
            self.overdue = self.board.first_behind_what_is_missing().map(|edge| (edge, at_ns));
        }
    }

    /// The time by which something may be overtaken: a quarter of a round trip, and one quarter more for each round
    /// trip in which something that was sent again came twice, up to a whole one (RFC 8985 section 6.2, step 4).
    fn reordering_ns(&self) -> u64 {
        let quarters = u64::from(self.reordering.max(1));
        if self.rtt_us == 0 { REORDERING_NS * quarters } else { u64::from(self.rtt_us / 4) * 1000 * quarters }
    }

    /// How many segments behind something say that it is lost. As long as none was overtaken these are three;
    /// afterwards the time says it instead. For what was sent again a number is always given, because nobody knows when
    /// the peer had which copy.
    fn segments_behind(&self) -> (Option<u32>, u32) {
        (Some(SEGMENTS).filter(|_| self.reordering == 0), SEGMENTS << (2 * self.reordering))
    }

    /// The peer says what came twice: what was sent again was not lost.
    fn hears_what_came_twice(&mut self, ack: u32, (start, end): Range) {
        if matches!(self.probe, Probe::Sent { .. }) {
            return;
        }
        if self.reordering_until.is_none_or(|until| !seq_lt(ack, until)) {
            self.reordering = (self.reordering + 1).min(REORDERING_MAX);
            self.reordering_until = Some(self.next());
        }
        if let Some(undo) = &mut self.undo {
            undo.twice = undo.twice.saturating_add(end.wrapping_sub(start));
            if undo.again != 0 && undo.twice >= undo.again {
                self.undoes();
            }
        }
    }

    /// Nothing was lost: the congestion window is what it was (`tcp_try_undo_dsack`).
    fn undoes(&mut self) {
        let Some(undo) = self.undo.take() else { return };
        self.cubic = match (undo.cubic, self.cubic.take()) {
            (Some(before), Some(now)) => Some(if now.window() > before.window() { now } else { before }),
            _ => None,
        };
        self.episode = Episode::None;
    }

    /// Something seems to be lost; notes the state in case nothing was.
    fn may_be_undone(&mut self) {
        self.undo = Some(Undo { cubic: self.cubic.clone(), again: 0, twice: 0 });
    }

    /// Something of `in_flight` bytes is lost.
    fn is_lost(&mut self, in_flight: u32) {
        if self.episode == Episode::None {
            (self.episode, self.probe) = (Episode::Fast { until: self.next() }, Probe::None);
            self.may_be_undone();
            self.window_at(in_flight).lost(in_flight);
        }
    }

    fn is_made_good(&mut self) {
        self.episode = Episode::None;
        self.board.recovered();
        if let Some(cubic) = &mut self.cubic {
            cubic.recovered();
        }
    }

    /// All that a router could not pass is lost, which says nothing of congestion (`tcp_simple_retransmit`).
    pub(super) fn is_too_large_for_the_path(&mut self) {
        self.board.timed_out();
    }

    /// smoltcp's timer told of the loss, before this sender was in charge, and `sent_again` has been sent again.
    pub(super) fn began_with_a_timeout(&mut self, sent_again: Range, now_ns: u64) {
        self.times_out(now_ns);
        self.is_sent_again(sent_again, now_ns);
    }

    /// This sender begins with a probe of the last segment, because nothing was acknowledged for `waited_ns`.
    pub(super) fn began_with_a_probe(&mut self, waited_ns: u64, now_ns: u64) {
        self.timeout_ns = self.timeout_ns.saturating_sub(waited_ns).max(now_ns + 1);
        self.probes();
    }

    /// Begins with a congestion window, although nothing is lost yet.
    pub(super) fn keeps_a_congestion_window(&mut self) {
        self.window_at(self.board.in_flight());
    }

    /// The time has come that it waited for.
    pub(super) fn looks(&mut self, now_ns: u64) {
        if self.timeout_ns <= now_ns {
            self.times_out(now_ns);
        } else if let Some((edge, _)) = self.overdue.filter(|&(_, at_ns)| at_ns <= now_ns) {
            self.overdue = None;
            let in_flight = self.board.in_flight();
            if self.board.is_lost_before(edge) {
                self.is_lost(in_flight);
                let left = self.board.in_flight();
                if let Some(cubic) = &mut self.cubic {
                    cubic.reduce(0, left, false);
                }
            }
            self.waits_for_what_is_missing(now_ns);
        } else if matches!(self.probe, Probe::At { ns } if ns <= now_ns) {
            self.probes();
        }
    }

    fn times_out(&mut self, now_ns: u64) {
        let anew = self.episode == Episode::None;
        if anew {
            self.may_be_undone();
        }
        self.window_at(self.board.in_flight()).timed_out(anew);
        self.board.timed_out();
        (self.episode, self.overdue, self.timed) = (Episode::Slow { until: self.next() }, None, None);
        self.probe = Probe::None;
        self.backoff += 1;
        self.start_timer(now_ns);
    }

    fn kept_to(&self) -> u32 {
        self.kept_from.wrapping_add(self.kept.len() as u32)
    }

    /// The number behind the last that can be sent again: the end of the copy, or of our FIN if that stands there.
    fn known_to(&self) -> u32 {
        let kept_to = self.kept_to();
        if self.fin_at == Some(kept_to) { kept_to.wrapping_add(1) } else { kept_to }
    }

    /// Whether our FIN stands at the end of a range.
    pub(super) fn ends_with_fin(&self, range: Range) -> bool {
        self.fin_at.is_some_and(|at| at.wrapping_add(1) == range.1)
    }

    /// What is to be sent again now, if it may leave.
    pub(super) fn to_send_again(&self) -> Option<Range> {
        let probe = if let Probe::Due(range) = self.probe { Some(range) } else { None };
        let (start, end) = probe.or_else(|| self.board.first_lost(self.mss))?;
        let range = (start, earlier(end, self.known_to()));
        if !seq_lt(range.0, range.1) {
            return None;
        }
        let window = self.congestion_window().unwrap_or(u32::MAX);
        let in_flight = self.board.in_flight();
        // The first segment of a loss leaves whatever else is on its way, and so does a probe.
        let may =
            in_flight == 0 || probe.is_some() || in_flight.saturating_add(range.1.wrapping_sub(range.0)) <= window;
        may.then_some(range)
    }

    /// The bytes of a range, as far as they are data: a FIN may stand behind them.
    pub(super) fn copy(&self, (start, end): Range) -> impl Iterator<Item = &[u8]> {
        let from = (start.wrapping_sub(self.kept_from) as usize).min(self.kept.len());
        let to = (end.wrapping_sub(self.kept_from) as usize).min(self.kept.len());
        let (front, back) = self.kept.as_slices();
        let cut = |slice: &[u8], before: usize| {
            (from.saturating_sub(before).min(slice.len()), to.saturating_sub(before).min(slice.len()))
        };
        let (a, b) = (cut(front, 0), cut(back, front.len()));
        [&front[a.0..a.1], &back[b.0..b.1]].into_iter()
    }

    /// It has been sent again.
    pub(super) fn is_sent_again(&mut self, range: Range, now_ns: u64) {
        self.board.sent_again(range);
        if matches!(self.probe, Probe::Due(_)) {
            self.probe = Probe::Sent { until: self.next() };
        } else if let Some(undo) = &mut self.undo {
            undo.again = undo.again.saturating_add(range.1.wrapping_sub(range.0));
        }
        if let Some(cubic) = &mut self.cubic {
            cubic.sent(range.1.wrapping_sub(range.0));
        }
        // Nobody knows which of the two is acknowledged (Karn's rule).
        self.timed = self.timed.filter(|&(end, _)| seq_lt(range.1, end) || seq_lt(end, range.0));
        if self.timeout_ns == NEVER_NS {
            self.start_timer(now_ns);
        }
    }

    /// How much may be sent for the first time now, in bytes: whole segments.
    pub(super) fn room(&self) -> usize {
        let in_flight = self.board.in_flight();
        match self.congestion_window() {
            _ if self.board.first_lost(1).is_some() => 0,
            Some(window) if in_flight != 0 => (window.saturating_sub(in_flight) / self.mss * self.mss) as usize,
            Some(window) => window.max(self.mss) as usize,
            None => usize::MAX / 2,
        }
    }

    /// The window to show smoltcp with an acknowledgement of all before `ack`, in units of `unit` bytes: what is on its
    /// way, and what may be sent besides. The last unit may hold more than that; this is less than a segment, and so
    /// does not leave ([`Sender::room`]), unless a unit is larger than a segment.
    pub(super) fn window_from(&self, ack: u32, unit: usize) -> usize {
        let bytes = (self.next().wrapping_sub(ack) as usize).saturating_add(self.room());
        if unit <= self.mss as usize { bytes.div_ceil(unit) } else { bytes / unit }
    }

    /// Notes a round trip, if what tells it has come (`tcp_rtt_estimator`): an acknowledgement of what was sent once,
    /// or a time of ours that the peer echoes.
    fn tells_round_trip(&mut self, heard: Heard<'_>, advances: bool) -> bool {
        let Heard { ack, ranges, now_ns, echoed_after_ns, .. } = heard;
        let took_ns = match self.timed {
            Some((end, sent_ns)) => {
                let has_come = |start: u32, behind: u32| seq_lt(start, end) && !seq_lt(behind, end);
                if seq_lt(ack, end) && !ranges.iter().any(|&(start, behind)| has_come(start, behind)) {
                    return false;
                }
                self.timed = None;
                now_ns.saturating_sub(sent_ns)
            }
            None => match echoed_after_ns.filter(|_| advances) {
                Some(echoed_after_ns) => echoed_after_ns,
                None => return false,
            },
        };
        let sample = u32::try_from(took_ns / 1000).unwrap_or(u32::MAX).max(1);
        if self.rtt_us == 0 {
            (self.rtt_us, self.rtt_var_us) = (sample, sample / 2);
        } else {
            self.rtt_var_us = self.rtt_var_us - self.rtt_var_us / 4 + self.rtt_us.abs_diff(sample) / 4;
            self.rtt_us = self.rtt_us - self.rtt_us / 8 + sample / 8;
        }
        true
    }
}
