//! Which Ethernet address a next hop has: one table for all shards, and each shard's packets that wait for an answer.
//!
//! An answer arrives on *one* queue. With a table per shard the others would never learn it and would ask for ever.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use lull_nic::Frame;

use super::timers::NEVER_NS;
use super::wire::Mac;

/// For how long an entry that was set does not give way to what nobody asked for. Linux: `neigh/default/locktime`.
const LOCK_NS: u64 = 1_000_000_000;

/// Most entries kept by default. Linux: `neigh/default/gc_thresh3`.
pub const NEIGHBOURS_MAX: usize = 1024;

/// The neighbour table (ARP and neighbour discovery), shared by all shards of an interface.
///
/// A connection remembers its next hop's Ethernet address together with [`Neighbours::version`] and asks again only
/// when that has moved: on the fast path the table costs one load of a word that hardly ever changes.
#[derive(Debug)]
pub struct Neighbours {
    version: AtomicU64,
    entries: RwLock<HashMap<IpAddr, Entry>>,
    entries_max: usize,
    /// The next hops that packets wait for, and how many shards have such packets: an answer may come by another one's queue.
    wanted: Mutex<HashMap<IpAddr, u32>>,
}

#[derive(Debug)]
struct Entry {
    mac: Mac,
    /// Version at which it was last set: the order of age.
    since: u64,
    /// When it was last learned, by the clock of the shard that learned it; 0 if it was only suggested.
    updated_ns: u64,
    permanent: bool,
    /// When a packet of any shard first went there, or it was asked for again; 0: none went yet.
    used_ns: AtomicU64,
    /// When it was asked for again because a peer was silent; 0: it was not.
    asked_ns: AtomicU64,
}

impl Default for Neighbours {
    fn default() -> Neighbours {
        Neighbours::new(NEIGHBOURS_MAX)
    }
}

impl Neighbours {
    /// An empty table that keeps at most `entries_max` learned entries; the oldest makes room.
    pub fn new(entries_max: usize) -> Neighbours {
        Neighbours {
            version: AtomicU64::new(1),
            entries: RwLock::new(HashMap::new()),
            entries_max: entries_max.max(1),
            wanted: Mutex::new(HashMap::new()),
        }
    }

    /// Moves whenever an entry appears or changes, and begins again after 2^32 times. Never 0.
    #[inline]
    pub fn version(&self) -> u32 {
        // Acquire pairs with the release in `set`: who sees the version sees the entry.
        (self.version.load(Ordering::Acquire) as u32).max(1)
    }

    /// The Ethernet address of `ip`, if it is known.
    pub fn lookup(&self, ip: IpAddr) -> Option<[u8; 6]> {
        self.read().get(&ip).map(|entry| entry.mac)
    }

    /// Notes that `ip` is at `mac` at the time `now_ns`, overriding what was known unless it is permanent. Returns whether
    /// that is news.
    pub fn learn(&self, ip: IpAddr, mac: [u8; 6], now_ns: u64) -> bool {
        self.set(ip, mac, false, true, now_ns.max(1))
    }

    /// The same from a message that nobody asked for: it overrides only what has stood for a second, so that of several
    /// answers the first is kept (`arp_process`, `neigh/default/locktime`).
    pub fn refresh(&self, ip: IpAddr, mac: [u8; 6], now_ns: u64) -> bool {
        let locked = |entry: &Entry| entry.updated_ns != 0 && now_ns < entry.updated_ns.saturating_add(LOCK_NS);
        let overriding = !self.read().get(&ip).is_some_and(locked);
        self.set(ip, mac, false, overriding, now_ns.max(1))
    }

    /// The same from a packet that only suggests it (its source address): nothing known is overridden, and
    /// whatever is said overrides it.
    pub fn suggest(&self, ip: IpAddr, mac: [u8; 6]) -> bool {
        self.set(ip, mac, false, false, 0)
    }

    /// Sets an entry that nothing learned overrides (`ip neighbour add ... nud permanent`).
    pub fn add_permanent(&self, ip: IpAddr, mac: [u8; 6]) {
        self.set(ip, mac, true, true, 0);
    }

    /// As [`Neighbours::lookup`], with when a packet first went there, or it was asked for again; 0: none went yet.
    pub(super) fn find(&self, ip: IpAddr) -> Option<(Mac, u64)> {
        self.read().get(&ip).map(|entry| (entry.mac, entry.used_ns.load(Ordering::Relaxed)))
    }

    /// A packet goes to `ip`, and its shard knows of no other that went there lately. Returns since when what is known
    /// of the station has aged, and whether it is so old that the station is to be asked for again; only one of all
    /// shards is told to ask. What an operator has set never grows old.
    #[cold]
    pub(super) fn grows_old(&self, ip: IpAddr, now_ns: u64) -> (u64, bool) {
        let now_ns = now_ns.max(1);
        let entries = self.read();
        let Some(entry) = entries.get(&ip).filter(|entry| !entry.permanent) else { return (now_ns, false) };
        let used_ns = entry.used_ns.load(Ordering::Relaxed);
        if is_young(used_ns, now_ns) {
            return (used_ns, false);
        }
        match entry.used_ns.compare_exchange(used_ns, now_ns, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => (now_ns, used_ns != 0),
            Err(used_ns) => (used_ns, false),
        }
    }

    /// Whether to ask for `ip` again because a peer behind it is silent. Of many connections to it one asks, and none
    /// does a moment later. Returns `None` if nothing is known of it.
    pub(super) fn may_be_asked(&self, ip: IpAddr, now_ns: u64) -> Option<bool> {
        let now_ns = now_ns.max(1);
        let entries = self.read();
        let entry = entries.get(&ip)?;
        let asked_ns = entry.asked_ns.load(Ordering::Relaxed);
        let is_due = asked_ns == 0 || now_ns >= asked_ns.saturating_add(REQUEST_INTERVAL_NS);
        let take = || entry.asked_ns.compare_exchange(asked_ns, now_ns, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        let may = is_due && take();
        if may {
            entry.used_ns.store(now_ns, Ordering::Relaxed);
        }
        Some(may)
    }

    /// Whether a shard has packets that wait for `ip`.
    pub(super) fn is_wanted(&self, ip: IpAddr) -> bool {
        self.wanted().contains_key(&ip)
    }

    /// A shard has packets that wait for `ip`.
    fn want(&self, ip: IpAddr) {
        *self.wanted().entry(ip).or_insert(0) += 1;
    }

    /// It has none any more.
    fn unwant(&self, ip: IpAddr) {
        let mut wanted = self.wanted();
        if let Some(shards) = wanted.get_mut(&ip) {
            *shards -= 1;
            if *shards == 0 {
                wanted.remove(&ip);
            }
        }
    }

    /// Forgets `ip`. Connections that use it keep on until they ask again.
    pub fn remove(&self, ip: IpAddr) -> bool {
        let removed = self.write().remove(&ip).is_some();
        if removed {
            self.version.fetch_add(1, Ordering::Release);
        }
        removed
    }

    /// How many entries there are.
    pub fn len(&self) -> usize {
        self.read().len()
    }

    /// Whether nothing is known.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn set(&self, ip: IpAddr, mac: Mac, permanent: bool, overriding: bool, now_ns: u64) -> bool {
        if mac[0] & 1 != 0 || mac == [0; 6] {
            return false;
        }
        let stays = |entry: &Entry| {
            !permanent && (entry.mac == mac || entry.permanent || !overriding) || entry.mac == mac && entry.permanent
        };
        // It was only suggested, and is learned now.
        let is_confirmed = |entry: &Entry| {
            overriding && !permanent && !entry.permanent && entry.mac == mac && entry.updated_ns == 0 && now_ns != 0
        };
        if self.read().get(&ip).is_some_and(|entry| stays(entry) && !is_confirmed(entry)) {
            return false;
        }
        let mut entries = self.write();
        if let Some(entry) = entries.get_mut(&ip).filter(|entry| stays(entry)) {
            if is_confirmed(entry) {
                (entry.updated_ns, entry.since) = (now_ns, self.version.load(Ordering::Relaxed));
            }
            return false;
        }
        if !entries.contains_key(&ip) && !permanent && entries.len() >= self.entries_max {
            // A mere suggestion, which anybody's datagrams can make, never takes the place of something that was
            // learned.
            let gives_way = |entry: &Entry| !entry.permanent && (overriding || entry.updated_ns == 0);
            let oldest =
                entries.iter().filter(|(_, entry)| gives_way(entry)).min_by_key(|(ip, entry)| (entry.since, **ip));
            let Some(oldest) = oldest.map(|(&ip, _)| ip) else { return false };
            entries.remove(&oldest);
        }
        let since = self.version.load(Ordering::Relaxed) + 1;
        let times = |entry: &Entry| [&entry.used_ns, &entry.asked_ns].map(|time| time.load(Ordering::Relaxed));
        let [used_ns, asked_ns] = entries.get(&ip).map_or([0; 2], times).map(AtomicU64::new);
        entries.insert(ip, Entry { mac, since, updated_ns: now_ns, permanent, used_ns, asked_ns });
        self.version.fetch_add(1, Ordering::Release);
        true
    }

    // A panic while the lock is held leaves a usable map: every change is one insertion or removal.
    fn read(&self) -> RwLockReadGuard<'_, HashMap<IpAddr, Entry>> {
        self.entries.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, HashMap<IpAddr, Entry>> {
        self.entries.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn wanted(&self) -> MutexGuard<'_, HashMap<IpAddr, u32>> {
        self.wanted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Requests before a next hop counts as unreachable. Linux: `neigh/default/mcast_solicit`.
pub(super) const REQUESTS_MAX: u8 = 3;
/// Between requests. Linux: `neigh/default/retrans_time_ms` = 1000.
pub(super) const REQUEST_INTERVAL_NS: u64 = 1_000_000_000;
/// First look whether another shard got the answer; doubled each time up to the last value.
const RECHECK_NS: u64 = 200_000;
const RECHECK_NS_MAX: u64 = 50_000_000;
/// Packets that wait for one next hop, at least a datagram of 64 KB in fragments (Linux: about as many, `unres_qlen_bytes`). TCP
/// waits in its sockets here.
const FRAMES_MAX: usize = 101;
/// Next hops asked for at a time. A scan of the network by a spoofed source must not grow memory.
pub(super) const HOPS_MAX: usize = 256;

/// What waits for one next hop.
#[derive(Debug)]
pub(super) struct Waiting {
    /// IP packets without their Ethernet header.
    pub(super) frames: Vec<Frame>,
    /// Connections, by slab index and generation.
    pub(super) connections: Vec<(u32, u32)>,
    requests: u8,
    request_at_ns: u64,
    recheck_at_ns: u64,
    recheck_step_ns: u64,
}

/// What a next hop's turn came to.
pub(super) enum Turn {
    /// Ask (again).
    Request(IpAddr),
    /// Look into the shared table.
    Recheck(IpAddr),
    /// It does not answer.
    GiveUp(Waiting),
}

/// The next hops that one shard waits for. All shards know of them ([`Neighbours::is_wanted`]).
#[derive(Debug)]
pub(super) struct Unresolved {
    hops: HashMap<IpAddr, Waiting>,
    neighbours: Arc<Neighbours>,
}

impl Drop for Unresolved {
    fn drop(&mut self) {
        self.hops.keys().for_each(|hop| self.neighbours.unwant(*hop));
    }
}

impl Unresolved {
    pub(super) fn new(neighbours: Arc<Neighbours>) -> Unresolved {
        Unresolved { hops: HashMap::new(), neighbours }
    }

    /// The waiting list of `hop`; a new one is due for its first request at once. `None`: too many already.
    pub(super) fn entry(&mut self, hop: IpAddr, now_ns: u64) -> Option<&mut Waiting> {
        if self.hops.len() >= HOPS_MAX && !self.hops.contains_key(&hop) {
            return None;
        }
        Some(self.hops.entry(hop).or_insert_with(|| {
            self.neighbours.want(hop);
            Waiting {
                frames: Vec::new(),
                connections: Vec::new(),
                requests: 0,
                request_at_ns: now_ns,
                recheck_at_ns: now_ns + RECHECK_NS,
                recheck_step_ns: RECHECK_NS,
            }
        }))
    }

    pub(super) fn take(&mut self, hop: IpAddr) -> Option<Waiting> {
        self.hops.remove(&hop).inspect(|_| self.neighbours.unwant(hop))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.hops.is_empty()
    }

    /// All next hops that are waited for, in a fixed order: a run must not depend on a map's.
    pub(super) fn hops(&self) -> Vec<IpAddr> {
        let mut hops: Vec<IpAddr> = self.hops.keys().copied().collect();
        hops.sort_unstable();
        hops
    }

    #[inline]
    pub(super) fn next_deadline_ns(&self) -> u64 {
        if self.hops.is_empty() {
            return NEVER_NS;
        }
        self.hops.values().map(|waiting| waiting.request_at_ns.min(waiting.recheck_at_ns)).min().unwrap_or(NEVER_NS)
    }

    /// Returns what is due now for `hop`, if anything.
    pub(super) fn turn(&mut self, hop: IpAddr, now_ns: u64) -> Option<Turn> {
        let waiting = self.hops.get_mut(&hop)?;
        if waiting.request_at_ns <= now_ns {
            if waiting.requests >= REQUESTS_MAX {
                return self.take(hop).map(Turn::GiveUp);
            }
            waiting.requests += 1;
            waiting.request_at_ns = now_ns + REQUEST_INTERVAL_NS;
            return Some(Turn::Request(hop));
        }
        if waiting.recheck_at_ns <= now_ns {
            waiting.recheck_step_ns = (waiting.recheck_step_ns * 2).min(RECHECK_NS_MAX);
            waiting.recheck_at_ns = now_ns + waiting.recheck_step_ns;
            return Some(Turn::Recheck(hop));
        }
        None
    }
}

impl Waiting {
    /// Queues a packet, or gives back the oldest for which there is no room.
    pub(super) fn push(&mut self, frame: Frame) -> Option<Frame> {
        self.frames.push(frame);
        (self.frames.len() > FRAMES_MAX).then(|| self.frames.remove(0))
    }
}

/// Slots of the shard's own view of the neighbour table.
pub(super) const HOPS: usize = 256;
/// After this long a station to which packets still go is asked for again. Linux:
/// `neigh/default/base_reachable_time_ms`.
const REACHABLE_NS: u64 = 30_000_000_000;

#[derive(Clone, Copy)]
pub(super) struct Hop {
    pub(super) ip: IpAddr,
    pub(super) mac: Mac,
    pub(super) version: u32,
    /// When a packet first went there by what is known, or it was asked for again, as far as this shard knows; 0: none went yet.
    pub(super) used_ns: u64,
}

impl Hop {
    /// Whether what is known of it may be used without a look at its age in the table.
    #[inline]
    pub(super) fn is_young(&self, now_ns: u64) -> bool {
        is_young(self.used_ns, now_ns)
    }
}

#[inline]
fn is_young(used_ns: u64, now_ns: u64) -> bool {
    used_ns != 0 && now_ns < used_ns.saturating_add(REACHABLE_NS)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAC: Mac = [2, 0, 0, 0, 0, 1];
    const OTHER: Mac = [2, 0, 0, 0, 0, 2];

    fn ip(last: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, last])
    }

    #[test]
    fn news_move_the_version_and_nothing_else_does() {
        let table = Neighbours::new(8);
        let before = table.version();
        assert!(table.learn(ip(1), MAC, 0));
        let after = table.version();
        assert_ne!(before, after);
        assert!(!table.learn(ip(1), MAC, 0));
        assert!(!table.suggest(ip(1), OTHER));
        assert_eq!(table.version(), after);
        assert!(table.learn(ip(1), OTHER, 0));
        assert_eq!(table.lookup(ip(1)), Some(OTHER));
        assert!(!table.learn(ip(2), [0xff; 6], 0), "a group address is nobody's");
    }

    #[test]
    fn the_oldest_makes_room_and_permanent_entries_stay() {
        let table = Neighbours::new(2);
        table.add_permanent(ip(1), MAC);
        assert!(!table.learn(ip(1), OTHER, 0));
        for last in 2..20 {
            table.learn(ip(last), OTHER, 0);
        }
        assert_eq!((table.len(), table.lookup(ip(1)), table.lookup(ip(19))), (2, Some(MAC), Some(OTHER)));
    }

    #[test]
    fn what_is_suggested_displaces_what_was_suggested_and_nothing_else() {
        let table = Neighbours::new(2);
        table.learn(ip(1), MAC, 1);
        for last in 2..20 {
            assert!(table.suggest(ip(last), OTHER));
        }
        assert_eq!((table.len(), table.lookup(ip(1)), table.lookup(ip(19))), (2, Some(MAC), Some(OTHER)));
        assert!(table.learn(ip(2), OTHER, 2) && table.learn(ip(3), OTHER, 3));
        assert_eq!((table.lookup(ip(1)), table.suggest(ip(4), OTHER)), (None, false));
    }

    #[test]
    fn what_was_suggested_and_is_confirmed_gives_way_as_what_was_learned() {
        let table = Neighbours::new(2);
        assert!(table.suggest(ip(1), MAC));
        let version = table.version();
        assert!(!table.learn(ip(1), MAC, 0), "no news");
        assert_eq!(table.version(), version);
        for last in 2..20 {
            assert!(table.suggest(ip(last), OTHER));
        }
        assert_eq!(table.lookup(ip(1)), Some(MAC));
        // An answer that nobody asked for does not override it within a second, as it would what was suggested.
        assert!(!table.refresh(ip(1), OTHER, 2) && table.refresh(ip(1), OTHER, LOCK_NS + 1));
    }

    #[test]
    fn of_all_shards_one_is_told_that_a_station_has_grown_old() {
        let table = Neighbours::new(2);
        table.learn(ip(1), MAC, 1);
        assert_eq!((table.grows_old(ip(1), 5), table.grows_old(ip(1), 6)), ((5, false), (5, false)));
        let then_ns = 5 + REACHABLE_NS;
        assert_eq!(table.grows_old(ip(1), then_ns), (then_ns, true));
        assert_eq!(table.grows_old(ip(1), then_ns), (then_ns, false));
        // Its age is its own, whatever Ethernet address it has.
        table.learn(ip(1), OTHER, then_ns);
        assert_eq!(table.find(ip(1)), Some((OTHER, then_ns)));
    }
}
