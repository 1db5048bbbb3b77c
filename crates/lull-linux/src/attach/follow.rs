//! Looks over a program again and again, and gives contexts the parameters that do not have them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use lull_core::EpollParams;

use super::detach::{Restored, restore};
use super::event::Event;
use super::others::Others;
use super::params::{Params, params_of, set_params};
use super::record::{Entry, Known, Opened, Record, Role};
use super::request::ProgramRequest;
use super::sockets::{OnContext, shared_napis};
use super::steer::{self, Steer, Steering};
use super::tree::{Member, Tree};
use crate::error::{Error, Result};
use crate::options::Options;
use crate::os;
use crate::programs::{name_of, polling};
use crate::roots::Roots;

/// How often a program is looked over. A context that it makes has its parameters within twice this time.
pub const LOOK_EVERY: Duration = Duration::from_millis(400);
/// How long a first look waits for others who work on the same contexts. One that only sets parameters and leaves is
/// soon done.
const OTHERS_WITHIN: Duration = Duration::from_secs(2);

/// Which contexts get the parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// All contexts: the operator's wish has precedence over what the program has set by itself.
    All,
    /// Contexts without any parameters. This complements the preload library, which respects what a program sets by
    /// itself.
    Unset,
    /// No contexts: only listeners are steered.
    None,
}

/// A program that is attached to. Dropping it gives nothing back; [`Follower::restore`] does.
pub struct Follower {
    pid: i32,
    /// When it started.
    start: u64,
    tree: Tree,
    roots: Roots,
    state_dir: PathBuf,
    wanted: EpollParams,
    which: Which,
    /// How listeners are steered, if they are.
    steering: Option<Steering>,
    /// `None` if nothing may be changed (`--dry-run`).
    record: Option<Record>,
    /// What contexts had that processes have passed on to those forked from them, by descriptor. A process that has
    /// ended cannot be asked any more which context was its own.
    handed_down: BTreeMap<i32, Params>,
    /// Contexts that were reported already: process, start time, descriptor.
    told: BTreeSet<Key>,
    in_force: Vec<SetContext>,
    warned: BTreeSet<String>,
    looked: bool,
}

/// Looks, one of which at least looks at sockets as long as no traffic was seen: about 6 s.
const LOOKS_WITHOUT_TRAFFIC: u32 = 16;

/// Whether a look, the how manieth it is, looks at sockets: less and less often, since most that is found is found soon, but a
/// program that waits long for its first traffic does not wait as long again for the answer to it.
pub(crate) fn is_due(look: u32, has_traffic: bool) -> bool {
    look.is_power_of_two() || !has_traffic && look.is_multiple_of(LOOKS_WITHOUT_TRAFFIC)
}

/// A context: process, start time, descriptor.
type Key = (i32, u64, i32);

/// A context that has the parameters.
struct SetContext {
    key: Key,
    /// How many looks there were since it has them.
    looks: u32,
    /// Its sockets, once packets have come to them.
    sockets: Option<OnContext>,
}

/// A context that a look has found.
struct Found {
    key: Key,
    now: EpollParams,
    /// Whether its process did not exist at the last look.
    is_new: bool,
}

/// What a look is going to do with the contexts that it has found.
#[derive(Default)]
struct Plan {
    /// Entries that the record needs before anything is set.
    entries: Vec<Entry>,
    /// Contexts that have to be set.
    todo: Vec<Todo>,
    /// Contexts that have the parameters already.
    in_force: Vec<Key>,
    /// Contexts that are reported now and not again, with the event if there is one.
    told: Vec<(Key, Option<Event>)>,
    /// Why contexts are left to others.
    warnings: Vec<String>,
    /// Whether somebody has set a context since it was found.
    is_outdated: bool,
}

/// A context that has to be set.
struct Todo {
    key: Key,
    /// The parameters that it has.
    now: Params,
    /// The parameters that it had before any lull.
    former: Params,
}

/// What a look has changed.
#[derive(Default)]
struct Done {
    /// Contexts, with the parameters that they had when the look began.
    contexts: Vec<(Key, Params)>,
    /// Groups of listeners.
    groups: Vec<steer::Entry>,
}

impl Follower {
    /// Takes a program, and changes nothing yet.
    ///
    /// # Errors
    /// [`Error::NoProcess`]; [`Error::Locked`] if another lull has it; an error if there is no right to look into it;
    /// those of the state file.
    pub fn open(pid: i32, request: &ProgramRequest, which: Which, role: Role, options: &Options) -> Result<Follower> {
        let member = Member::open(pid, &options.roots)?;
        let start = Some(member.start);
        let record = match Record::open(&options.state_dir, pid, start, role, &options.roots)? {
            Opened::Mine(record) => record,
            Opened::HeldBy(holder) => {
                let by = match holder {
                    Some(holder) if holder.role == Role::Attach => format!("process {}, lull attach", holder.pid),
                    Some(holder) => format!("process {}, lull run", holder.pid),
                    None => "which one is unknown".to_owned(),
                };
                return Err(Error::Locked { device: format!("process {pid}"), by });
            }
        };
        Ok(Follower { record: Some(record), ..Follower::over(member, request, which, options) })
    }

    /// Takes a program only to look at it.
    ///
    /// # Errors
    /// [`Error::NoProcess`] if there is no such process.
    pub fn dry(pid: i32, request: &ProgramRequest, which: Which, options: &Options) -> Result<Follower> {
        Ok(Follower::over(Member::open(pid, &options.roots)?, request, which, options))
    }

    fn over(member: Member, request: &ProgramRequest, which: Which, options: &Options) -> Follower {
        Follower {
            pid: member.pid,
            start: member.start,
            tree: Tree::of(member, &options.roots),
            roots: options.roots.clone(),
            state_dir: options.state_dir.clone(),
            wanted: request.params,
            which,
            steering: None,
            record: None,
            handed_down: BTreeMap::new(),
            told: BTreeSet::new(),
            in_force: Vec::new(),
            warned: BTreeSet::new(),
            looked: false,
        }
    }

    /// Restricts it to the process that was named, without its children.
    #[must_use]
    pub fn without_children(mut self) -> Follower {
        self.tree.leave_children_out();
        self
    }

    /// Says that the program was forked by a process with these contexts, which may have ended since. They come from
    /// that follower's [`Follower::handed_down`].
    #[must_use]
    pub fn inheriting(mut self, handed_down: BTreeMap<i32, Params>) -> Follower {
        self.handed_down.extend(handed_down);
        self
    }

    /// What contexts had before they were set, by descriptor. A process that is forked has them under the same numbers.
    pub fn handed_down(&self) -> BTreeMap<i32, Params> {
        let recorded = self.record.as_ref().map_or(&[][..], Record::contexts);
        let formers = recorded.iter().map(|entry| (entry.fd, entry.former));
        self.handed_down.clone().into_iter().chain(formers).collect()
    }

    /// Has its listeners steered as well. With `only_tells`, somebody else does so, and it is only reported here.
    #[must_use]
    pub fn with_steering(mut self, steer: Option<Steer>, only_tells: bool) -> Follower {
        self.steering = steer.map(|steer| Steering::new(steer, only_tells || self.record.is_none()));
        self
    }

    /// How many groups of listeners are steered (or would be, in a dry look).
    pub fn steered(&self) -> usize {
        self.steering.as_ref().map_or(0, Steering::groups)
    }

    /// Why some listeners cannot be steered.
    pub fn not_steered(&self) -> &[String] {
        self.steering.as_ref().map_or(&[], Steering::refused)
    }

    /// When the process that was named started. This tells it from another one that gets its number later.
    pub(crate) fn start(&self) -> u64 {
        self.start
    }

    /// Whether all processes of the program have ended.
    pub fn is_over(&self) -> bool {
        self.tree.members().is_empty()
    }

    /// The processes of the program, as of the last look.
    pub fn processes(&self) -> Vec<i32> {
        self.tree.members().iter().map(|member| member.pid).collect()
    }

    /// How many contexts have the parameters (or would have them, in a dry look).
    pub fn in_force(&self) -> usize {
        self.in_force.len()
    }

    /// Looks the program over and sets what has to be set.
    ///
    /// # Errors
    /// On the first look: whatever keeps a context from being set, or listeners from being steered (what this look has
    /// changed is then taken back, and what an earlier attach has changed stays); [`Error::Locked`] for a context that
    /// another lull follows; [`Error::NoProcess`]. On a later look: the state file cannot be written, and what was set
    /// before waits for [`Follower::restore`]. Everything else that is refused later becomes an event.
    pub fn look(&mut self) -> Result<Vec<Event>> {
        let changes = self.tree.refresh();
        let mut events: Vec<Event> =
            changes.started.iter().map(|&pid| Event::Child { pid, name: name_of(pid, &self.roots) }).collect();
        events.extend(changes.ended.iter().map(|&pid| Event::Ended { pid }));
        if !changes.ended.is_empty() {
            self.handed_down = self.handed_down();
        }
        if let Some(record) = &mut self.record {
            record.forget(&changes.ended);
        }
        if self.is_over() && !self.looked {
            return Err(Error::NoProcess { pid: self.pid });
        }
        let (found, plan) = self.find_and_plan(&changes.started, &mut events)?;
        self.told.retain(|key| found.iter().any(|it| it.key == *key));
        self.in_force.retain(|known| found.iter().any(|it| it.key == known.key));
        let before = self.record.as_ref().map(Record::known).unwrap_or_default();
        let mut done = Done::default();
        // Contexts come first, because they can be given back what they had, and groups of listeners cannot.
        let changed = self.set(&found, plan, &mut done, &mut events).and_then(|()| self.steer(&mut done, &mut events));
        if let Err(error) = changed {
            if !self.looked {
                self.take_back(done, before)?;
            }
            return Err(error);
        }
        self.sockets(&mut events);
        self.looked = true;
        Ok(events)
    }

    /// Steers the listeners that are not steered yet.
    fn steer(&mut self, done: &mut Done, events: &mut Vec<Event>) -> Result<()> {
        let Some(steering) = &mut self.steering else { return Ok(()) };
        let own = (!self.looked).then_some(self.pid);
        let groups = steering.look(self.tree.members(), own, &self.roots)?;
        if let Some(record) = self.record.as_mut().filter(|_| !steering.only_tells() && !groups.is_empty()) {
            let entries = groups.iter().map(|(_, entry)| entry.clone()).collect();
            record.add_steered(entries).map_err(|error| error.left("no listener was steered"))?;
        }
        for (group, entry) in groups {
            match steering.attach(&group, self.tree.members()) {
                Ok(Some(steered)) => {
                    events.push(Event::Steered(steered));
                    if !steering.only_tells() {
                        done.groups.push(entry);
                    }
                }
                Ok(None) => {}
                Err(error) if !self.looked => return Err(error),
                Err(error) => warn(&mut self.warned, events, error.to_string()),
            }
        }
        for text in steering.refused() {
            warn(&mut self.warned, events, text.clone());
        }
        Ok(())
    }

    /// Takes back what this look has changed, and nothing that was changed before it.
    fn take_back(&mut self, done: Done, mut before: Known) -> Result<()> {
        if self.record.is_none() {
            return Ok(());
        }
        for (key, now) in done.contexts {
            // A context that was closed meanwhile needs nothing.
            let _ = self.set_one(key, &now.into());
        }
        let Some(record) = &mut self.record else { return Ok(()) };
        for entry in done.groups {
            match before.steered.iter_mut().find(|known| known.is_of_the_group_of(&entry)) {
                // An earlier attach has steered the group, and by what cannot be told any more.
                Some(known) => *known = entry,
                None if steer::take_away(&entry, &self.roots, false).is_err() => before.steered.push(entry),
                None => {}
            }
        }
        if record.known() == before { Ok(()) } else { record.put_back(before) }
    }

    /// All contexts of the program, and what has to be done with them. A first look waits for others who work on them.
    fn find_and_plan(&mut self, started: &[i32], events: &mut Vec<Event>) -> Result<(Vec<Found>, Plan)> {
        let since = Instant::now();
        loop {
            let found = self.find(started, events)?;
            let planned = self.plan(&found);
            let is_to_wait = match &planned {
                Ok(plan) => plan.is_outdated,
                Err(error) => matches!(error, Error::Locked { .. }),
            };
            if self.looked || !is_to_wait || since.elapsed() > OTHERS_WITHIN {
                return Ok((found, planned?));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// All contexts that the program has now. `started` are its processes that were started since the last look.
    fn find(&mut self, started: &[i32], events: &mut Vec<Event>) -> Result<Vec<Found>> {
        let mut found = Vec::new();
        if self.which == Which::None {
            return Ok(found);
        }
        for member in self.tree.members() {
            let descriptors = match member.process.epoll_descriptors() {
                Ok(descriptors) => descriptors,
                Err(_) if member.has_ended() => continue,
                Err(error) if !self.looked && member.pid == self.pid => return Err(error),
                Err(error) => {
                    warn(&mut self.warned, events, error.to_string());
                    continue;
                }
            };
            let is_new = !self.looked || started.contains(&member.pid);
            for fd in descriptors {
                match member.process.epoll_params(fd) {
                    Ok(now) => found.push(Found { key: (member.pid, member.start, fd), now, is_new }),
                    // The context was closed since it was listed, or the whole process has ended.
                    Err(_) if member.has_ended() => break,
                    Err(error) if error.errno() == Some(libc::EBADF) => {}
                    Err(error) if !self.looked && member.pid == self.pid => return Err(error),
                    Err(error) => warn(&mut self.warned, events, error.to_string()),
                }
            }
        }
        Ok(found)
    }

    /// Decides what has to be done with these contexts, and changes nothing.
    fn plan(&self, found: &[Found]) -> Result<Plan> {
        let mut plan = Plan::default();
        let mut others = None;
        for it in found {
            let (pid, start, fd) = it.key;
            let now = Params::from(it.now);
            let recorded = self.record.as_ref().and_then(|record| record.entry(pid, start, fd));
            let entry = |former, set_earlier| {
                let set = self.wanted.into();
                Entry { pid, start, fd, former, set, set_earlier, followed: true }
            };
            if it.now == self.wanted {
                if !self.told.contains(&it.key) {
                    let former = if recorded.is_none() { self.set_elsewhere(it) } else { None };
                    let had = || Event::Had { pid, name: name_of(pid, &self.roots), fd, now };
                    plan.told.push((it.key, former.is_none().then(had)));
                    plan.entries.extend(former.map(|former| entry(former, None)));
                }
                plan.in_force.push(it.key);
            } else if self.which == Which::Unset && it.now != EpollParams::default() {
                if !self.told.contains(&it.key) {
                    plan.told.push((it.key, Some(Event::Kept { pid, fd, now })));
                }
            } else {
                let others = others.get_or_insert_with(|| Others::read(&self.state_dir, self.pid, &self.roots));
                // The record of what it has may have been removed before the records were read. The next look finds the
                // context anew.
                match self.params_now(it.key) {
                    Ok(again) if again == Some(now) => {}
                    Ok(_) => {
                        plan.is_outdated = true;
                        continue;
                    }
                    Err(error) if !self.looked => return Err(error),
                    Err(error) => {
                        plan.warnings.push(error.to_string());
                        continue;
                    }
                }
                match others.is_free(it.key, &self.state_dir) {
                    Ok(()) => {}
                    Err(error) if !self.looked => return Err(error),
                    Err(error) => {
                        plan.warnings.push(error.to_string());
                        continue;
                    }
                }
                // What an earlier attach has set is not what the program had, whichever process that attach was given.
                let ours = recorded.filter(|known| known.is_ours(now)).map(|known| known.former);
                let ours = ours.or_else(|| others.former(it.key, now));
                let former = ours.unwrap_or(now);
                plan.entries.push(entry(former, ours.map(|_| now)));
                plan.todo.push(Todo { key: it.key, now, former });
            }
        }
        Ok(plan)
    }

    /// Carries out what was planned for contexts.
    fn set(&mut self, found: &[Found], plan: Plan, done: &mut Done, events: &mut Vec<Event>) -> Result<()> {
        for (key, event) in plan.told {
            self.told.insert(key);
            events.extend(event);
        }
        plan.in_force.into_iter().for_each(|key| self.note_in_force(key));
        plan.warnings.into_iter().for_each(|text| warn(&mut self.warned, events, text));
        let is_dry = self.record.is_none();
        if let Some(record) = &mut self.record {
            let is_found = |entry: &Entry| found.iter().any(|it| it.key == (entry.pid, entry.start, entry.fd));
            let added = record.add(plan.entries, is_found, !self.looked);
            added.map_err(|error| error.left("no context was changed"))?;
        }
        for Todo { key, now, former } in plan.todo {
            match if is_dry { Ok(true) } else { self.set_one(key, &self.wanted) } {
                Ok(false) => {}
                Ok(true) => {
                    let (pid, _, fd) = key;
                    let name = name_of(pid, &self.roots);
                    events.push(Event::Set { pid, name, fd, former, now: self.wanted.into() });
                    self.told.insert(key);
                    self.note_in_force(key);
                    done.contexts.push((key, now));
                }
                Err(error) if !self.looked => return Err(error),
                Err(error) => warn(&mut self.warned, events, error.to_string()),
            }
        }
        Ok(())
    }

    /// What a context had that was set under another number, in this process or in one from which it was forked.
    /// Whichever of the two numbers is left at the end gives the parameters back.
    fn set_elsewhere(&self, found: &Found) -> Option<Params> {
        let (pid, _, fd) = found.key;
        let same = |other: &&Entry| os::same_file((other.pid, other.fd), (pid, fd)).unwrap_or(false);
        let known = self.record.as_ref().map_or(&[][..], Record::contexts);
        let former = known.iter().find(same).map(|other| other.former);
        former.or_else(|| self.handed_down.get(&fd).copied().filter(|_| found.is_new))
    }

    fn member(&self, (pid, start, _): Key) -> Option<&Member> {
        self.tree.members().iter().find(|it| (it.pid, it.start) == (pid, start))
    }

    /// The parameters that a context has at this moment; `None` if it has gone.
    fn params_now(&self, key: Key) -> Result<Option<Params>> {
        self.member(key).map_or(Ok(None), |member| params_of(member, key.2))
    }

    /// Sets one context. Returns false if it has gone meanwhile.
    fn set_one(&self, key: Key, params: &EpollParams) -> Result<bool> {
        self.member(key).map_or(Ok(false), |member| set_params(member, key.2, params))
    }

    fn note_in_force(&mut self, key: Key) {
        if !self.in_force.iter().any(|known| known.key == key) {
            self.in_force.push(SetContext { key, looks: 0, sockets: None });
        }
    }

    /// Shows the sockets of contexts once packets have come to them, and at first those without any too; again when they
    /// hear from other NAPIs than before, since the first connection of a context has only one. Looking duplicates every
    /// socket, of which a server may have thousands: so it is done less and less often ([`is_due`]).
    fn sockets(&mut self, events: &mut Vec<Event>) {
        let mut news = false;
        for context in &mut self.in_force {
            context.looks = context.looks.saturating_add(1);
            if !is_due(context.looks, context.sockets.is_some()) {
                continue;
            }
            let (pid, start, fd) = context.key;
            let member = self.tree.members().iter().find(|it| (it.pid, it.start) == (pid, start));
            let Some(sockets) = member.and_then(|it| OnContext::look(&it.process, fd).ok()) else { continue };
            let is_known = context.sockets.as_ref().is_some_and(|known| {
                sockets.by_napi.keys().all(|napi| known.by_napi.contains_key(napi)) || !sockets.has_traffic()
            });
            if is_known {
                continue;
            }
            if sockets.has_traffic() || !self.looked {
                events.push(Event::Sockets(sockets.clone()));
                for text in sockets.warnings() {
                    warn(&mut self.warned, events, text);
                }
            }
            if sockets.has_traffic() {
                context.sockets = Some(sockets);
                news = true;
            }
        }
        if news {
            let others = self.of_other_programs();
            let known: Vec<&OnContext> =
                self.in_force.iter().filter_map(|it| it.sockets.as_ref()).chain(&others).collect();
            for text in shared_napis(&known) {
                warn(&mut self.warned, events, text);
            }
        }
    }

    /// Contexts of other programs that busy poll on the NAPIs of this one, with only these NAPIs.
    fn of_other_programs(&self) -> Vec<OnContext> {
        let ours = |napi: &u32| {
            let mut sockets = self.in_force.iter().filter_map(|it| it.sockets.as_ref());
            sockets.any(|it| it.by_napi.contains_key(napi))
        };
        let is_ours = |pid, fd| {
            let same = |(of, _, number): Key| os::same_file((of, number), (pid, fd)).unwrap_or(false);
            self.in_force.iter().any(|it| same(it.key))
        };
        let others = polling(&self.roots).contexts.into_iter().filter_map(|context| {
            let mut found = OnContext { pid: context.pid, fd: context.fd, ..OnContext::default() };
            for socket in context.sockets.iter().filter(|socket| ours(&socket.napi_id)) {
                found.by_napi.entry(socket.napi_id).or_default().push(socket.fd);
            }
            (!found.by_napi.is_empty() && !is_ours(found.pid, found.fd)).then_some(found)
        });
        others.collect()
    }

    /// Lets a program go that has ended by itself. Its contexts went with it, and a later `detach` says so. What the
    /// record has of processes that are no longer the program's is given back.
    ///
    /// # Errors
    /// Something could not be given back, and is kept in the record; or the state file cannot be written.
    pub fn leave_ended(mut self) -> Result<Restored> {
        let Some(record) = self.record.take() else { return Ok(Restored::default()) };
        let (restored, kept) = restore(&record.known(), &self.roots, false);
        if kept.known.is_empty() {
            record.keep_ended()?
        } else {
            record.close(kept)?
        }
        Ok(restored)
    }

    /// Gives every context back what it had, and lets the program go.
    ///
    /// # Errors
    /// Something could not be given back, and is kept in the record; or the state file cannot be removed.
    pub fn restore(mut self) -> Result<Restored> {
        let Some(record) = self.record.take() else { return Ok(Restored::default()) };
        let (restored, kept) = restore(&record.known(), &self.roots, false);
        record.close(kept)?;
        Ok(restored)
    }
}

fn warn(warned: &mut BTreeSet<String>, events: &mut Vec<Event>, text: String) {
    if warned.insert(text.clone()) {
        events.push(Event::Warning { text });
    }
}
