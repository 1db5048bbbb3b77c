//! The engine of this process: what lull's sockets live on. It starts at the first call that needs it.

use std::cell::RefCell;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread;

use lull_control::Offer;
use lull_net::lull_host::Waker;
use lull_net::lull_nic::{Afresh, own};
use lull_net::{Host, Mode, Network, Worker};

use crate::kernel::NoSignals;
use crate::{Errno, Flows, Result, Routing, cancel, claimed, flows, fork, husk, signals};

/// A running engine.
pub struct Engine {
    /// Its CPUs.
    pub host: Host,
    /// Its device, with the stacks on it.
    pub network: Network,
    /// The mode in force; the epoll contexts of the program get their half of it.
    pub mode: Mode,
    /// Where open connections are told to whoever outlives this process.
    pub flows: Option<Arc<Flows>>,
    /// Where `lull show`, `lull stat` and `lull set` ask; without it they do not see this process.
    pub control: Option<Offer>,
}

/// How much of the NIC a process asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Share {
    /// All queues that nobody has: for a process that began to listen, or to connect, itself.
    All,
    /// One queue: for a child that inherited its listener. Others may want one, too.
    One,
}

/// Makes the engine of this process alone. It is called once, with every signal blocked, so that no thread that it starts ever
/// runs a handler of the program.
pub type Start = Box<dyn FnOnce() -> std::result::Result<Engine, StartError> + Send>;

/// Makes the engine of any process of the program, as [`Start`]: it is called in each that needs one, and again after a failure. A child
/// may be forked while it runs, and call it as well.
pub type StartEach = Box<dyn Fn(Share) -> std::result::Result<Engine, StartError> + Send + Sync>;

/// Why the engine did not start, in words for whoever started the program.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct StartError(pub String);

/// Who may have an engine.
enum Starter {
    Alone(Mutex<Option<Start>>),
    Each(StartEach),
}

/// What this process has of lull.
struct World {
    routing: Routing,
    /// Listeners become real where connections are first asked for, and not where `listen` is called.
    lazily: bool,
    /// The process that loaded the library: no child of `fork`.
    loaded_in: u32,
    start: Starter,
    /// One thread of the process at a time starts it.
    starting: Afresh<Mutex<()>>,
    engine: Afresh<Engine>,
    /// The process in which it could not be started, and the one in which that was said.
    refused_in: AtomicU32,
    said_in: AtomicU32,
    say: fn(&StartError),
}

static WORLD: OnceLock<World> = OnceLock::new();

/// Makes the addresses of `routing` lull's in this process. `start` runs at the first call that needs an engine; if it
/// fails, `say` is told once, and those calls fail with ENETDOWN. Only the first call counts; false for a later one.
pub fn engage(routing: Routing, start: Start, say: fn(&StartError)) -> bool {
    engage_as(routing, false, Starter::Alone(Mutex::new(Some(start))), say)
}

/// As [`engage`], for a program of several processes: each that asks for connections of a listener, or makes one, has an engine
/// of its own. The process that calls `listen` alone has none.
pub fn engage_each(routing: Routing, start: StartEach, say: fn(&StartError)) -> bool {
    engage_as(routing, true, Starter::Each(start), say)
}

fn engage_as(routing: Routing, lazily: bool, start: Starter, say: fn(&StartError)) -> bool {
    let world = World {
        routing,
        lazily,
        loaded_in: std::process::id(),
        start,
        starting: Afresh::new(),
        engine: Afresh::new(),
        refused_in: AtomicU32::new(0),
        said_in: AtomicU32::new(0),
        say,
    };
    let is_first = WORLD.set(world).is_ok();
    if is_first {
        fork::may_come();
    }
    is_first
}

/// Whether lull has addresses in this process. Without, nothing here is ever lull's.
#[inline]
pub fn is_engaged() -> bool {
    world().is_some()
}

/// Whether numbers of this process may be in the table of what is lull's: its own, or its parent's, whose engine runs.
#[inline]
pub fn is_involved() -> bool {
    WORLD.get().is_some()
}

/// What this process has of lull; nothing in the child of a process whose engine ran.
#[inline]
fn world() -> Option<&'static World> {
    WORLD.get().filter(|_| !husk::is_husk())
}

/// What of the network is lull's, in a child of the process that has it.
#[inline]
pub(crate) fn parents_routing() -> Option<&'static Routing> {
    WORLD.get().filter(|_| husk::is_husk()).map(|world| &world.routing)
}

/// What of the network is lull's, in this process or in the one that it is a child of.
pub(crate) fn routing() -> Option<&'static Routing> {
    WORLD.get().map(|world| &world.routing)
}

/// Whether a listener waits with becoming real until connections are asked for.
pub(crate) fn listens_lazily() -> bool {
    world().is_some_and(|world| world.lazily)
}

/// Whether an address is lull's to bind.
pub(crate) fn is_own(ip: IpAddr) -> bool {
    world().is_some_and(|world| world.routing.is_own(ip))
}

/// Whether what is bound to this port can be lull's.
pub(crate) fn takes(port: u16) -> bool {
    world().is_some_and(|world| world.routing.takes(port))
}

/// Whether an address is lull's to connect to.
pub(crate) fn reaches(ip: IpAddr) -> bool {
    world().is_some_and(|world| world.routing.reaches(ip))
}

/// Whether an address is everybody's on one of lull's networks.
pub(crate) fn is_broadcast(ip: IpAddr) -> bool {
    world().is_some_and(|world| world.routing.is_broadcast(ip))
}

/// Whether lull has addresses of the family of `ip`, or of any family if that is `[::]`, which stands for both.
pub(crate) fn has_family(ip: IpAddr, v6_only: bool) -> bool {
    world().is_some_and(|world| world.routing.has_family(ip, v6_only))
}

/// The engine if it runs.
#[inline]
pub fn running() -> Option<&'static Engine> {
    world()?.engine.get()
}

/// The engine, started if it does not run yet, with what a process asks for that needs it for itself.
pub(crate) fn engine() -> Result<&'static Engine> {
    let inherited = world().is_some_and(|world| world.loaded_in != std::process::id());
    engine_with(if inherited { Share::One } else { Share::All })
}

/// The engine, started with this share of the NIC if it does not run yet.
pub(crate) fn engine_with(share: Share) -> Result<&'static Engine> {
    const DOWN: Errno = Errno::new(libc::ENETDOWN);
    let world = world().ok_or(DOWN)?;
    if let Some(engine) = world.engine.get() {
        return Ok(engine);
    }
    let process = std::process::id();
    let _one_at_a_time = world.starting.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner);
    // Another thread may have been first.
    if let Some(engine) = world.engine.get() {
        return Ok(engine);
    }
    if world.refused_in.load(Ordering::Relaxed) == process {
        return Err(DOWN);
    }
    own::begin();
    let starting = fork::engine_starts();
    let _no_signals = NoSignals::begin();
    let started = match &world.start {
        Starter::Alone(start) => {
            let start = start.lock().unwrap_or_else(PoisonError::into_inner).take().ok_or(DOWN)?;
            on_a_stack_of_its_own(start)
        }
        Starter::Each(start) => on_a_stack_of_its_own(|| start(share)),
    };
    match started {
        Ok(engine) => {
            starting.runs();
            Ok(world.engine.get_or_init(|| engine))
        }
        Err(error) => {
            world.refused_in.store(process, Ordering::Relaxed);
            if world.said_in.swap(process, Ordering::Relaxed) != process {
                (world.say)(&error);
            }
            Err(DOWN)
        }
    }
}

/// The size of the stack on which an engine starts: without optimisation that takes more than the 80 KiB that Varnish's
/// threads have.
const STACK_BYTES: usize = 2 << 20;

/// Starts the engine in a thread that ends with it. It has the caller's mask of signals.
fn on_a_stack_of_its_own(
    start: impl FnOnce() -> std::result::Result<Engine, StartError> + Send,
) -> std::result::Result<Engine, StartError> {
    thread::scope(|scope| {
        let starts = thread::Builder::new().name("lull-start".to_owned()).stack_size(STACK_BYTES);
        let starts = starts.spawn_scoped(scope, || signals::section(start));
        let starts = starts.map_err(|error| StartError(format!("cannot start the engine's threads: {error}")))?;
        starts.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// An engine that could not be started may be by now: the process that had the queues has ended.
pub(crate) fn may_start_again() {
    if let Some(world) = world() {
        world.refused_in.store(0, Ordering::Relaxed);
    }
}

/// Whether this process has no queue because others have them all. Sockets by which it connects or sends, and which it
/// has not bound to an address of lull's, go by the kernel then, as a child's do.
pub(crate) fn has_no_queue() -> bool {
    if engine().is_ok() || !claimed::others_have_all() {
        return false;
    }
    if flows::of_the_program().is_some_and(|flows| flows.holders().next().is_none()) {
        // They have ended since.
        may_start_again();
    }
    engine().is_err() && claimed::others_have_all()
}

thread_local! {
    /// The calling thread's places on the engine's CPUs, made when they are needed.
    static WORKERS: RefCell<Kept> = const { RefCell::new(Kept(Vec::new())) };
}

/// The places of a thread. They are given back when it ends.
struct Kept(Vec<Place>);

impl Drop for Kept {
    fn drop(&mut self) {
        // What is closed here is lull's, and lull's to close.
        signals::section(|| self.0.clear());
    }
}

/// A place, with what ends the sleep of the thread that has it.
struct Place {
    worker: Worker,
    waker: Box<Waker>,
}

/// In any child of `fork`: whoever was starting an engine is another process's thread.
pub(crate) fn forget_starting() {
    WORLD.get().inspect(|world| world.starting.forget());
}

/// The calling thread is the only one of a child of `fork`: the engine is its parent's, and so are the thread's places in it, which it
/// must not give back.
pub(crate) fn forget() {
    WORLD.get().inspect(|world| world.engine.forget());
    let _ = WORKERS
        .try_with(|places| places.try_borrow_mut().map(|mut places| std::mem::forget(std::mem::take(&mut places.0))));
}

impl Engine {
    /// Calls `with` with the calling thread's place on CPU `cpu`. A call inside it, from a signal handler, gets another place.
    pub(crate) fn with_worker<R>(&self, cpu: u16, with: impl FnOnce(&Worker) -> R) -> Result<R> {
        let kept = |places: &RefCell<Kept>| {
            let mut places = places.try_borrow_mut().ok()?;
            let nth = places.0.iter().position(|place| place.worker.cpu() == cpu)?;
            Some(places.0.swap_remove(nth))
        };
        let place = match WORKERS.try_with(kept).ok().flatten() {
            Some(place) => place,
            None => self.new_place(cpu)?,
        };
        let before = signals::set_waker(&raw const *place.waker);
        let result = with(&place.worker);
        signals::set_waker(before);
        // A thread that is ending keeps nothing.
        let _ = WORKERS.try_with(|places| places.try_borrow_mut().map(|mut places| places.0.push(place)));
        Ok(result)
    }

    #[cold]
    fn new_place(&self, cpu: u16) -> Result<Place> {
        let worker = Worker::new(&self.host, cpu).map_err(|error| Errno::from(std::io::Error::from(error)))?;
        let waker = Box::new(worker.waker());
        cancel::can_be_woken_by(worker.waker());
        Ok(Place { worker, waker })
    }

    /// The CPU whose queues a context of this NAPI hears from; the first if there is none yet.
    pub(crate) fn cpu_of(&self, napi_id: u32) -> u16 {
        if self.host.cpus() == 1 || napi_id == 0 {
            return 0;
        }
        self.host.napi_by_id(napi_id).and_then(|index| self.host.napi_cpu(index)).unwrap_or(0)
    }
}
