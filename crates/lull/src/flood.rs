//! `lull flood`.

use std::process::ExitCode;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use clap::{Args, ValueEnum};
use lull_core::Mode;
use lull_lab::flood::crowd::Crowd;
use lull_lab::flood::fairness::Fairness;
use lull_lab::flood::{Flood, FloodMode, Path};
use lull_linux::sched::ThreadPolicy;

use crate::benches::Plane;
use crate::failure::Failure;
use crate::group_args::GroupArgs;
use crate::measure_args::MeasureArgs;
use crate::{modes, units};

/// The NIC that is flooded on lull's own stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum FloodNic {
    /// The in-memory NIC, which needs no root. A full ring loses frames, as a wire does.
    Mem,
    /// A TAP; the senders are the kernel's sockets, in a private network namespace.
    Tap,
}

/// Floods of another shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum FloodCase {
    /// One flooded queue of eight: how long the frames of the others wait.
    Fairness,
    /// More applications that busy poll than there are cores, against a group of one.
    Crowd,
}

/// Arguments of `lull flood`.
#[derive(Args)]
pub struct FloodArgs {
    /// A flood of another shape, with a table of its own.
    #[arg(long, value_enum)]
    case: Option<FloodCase>,
    /// Whose stack is flooded: lull's own, or Linux's over a veth pair in network namespaces of its own (root).
    #[arg(long, value_enum, default_value = "user")]
    plane: Plane,
    /// The NIC under lull's own stack [default: mem].
    #[arg(long, value_enum)]
    nic: Option<FloodNic>,
    /// Payloads of the datagrams, in bytes [default: 64].
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    bytes: Vec<usize>,
    /// Numbers of flows, each with a sink thread and a socket [default: 1,25,200].
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    flows: Vec<usize>,
    /// Measure the sizes and flows of the published table, and print its columns beside the measured ones.
    #[arg(long, conflicts_with_all = ["bytes", "flows", "case"])]
    table: bool,
    /// Who delivers: softirq-fifo (interrupt contexts with SCHED_FIFO, like interrupts), softirq (in ordinary threads;
    /// on the kernel plane as Linux runs it), threaded, threaded-busy, group, groupX. With --case: any delivery modes.
    #[arg(long, value_delimiter = ',')]
    modes: Vec<String>,
    /// Datagrams per second of all flows together; with --case crowd requests per second [default: as many as one core
    /// sends; 20K].
    #[arg(long, value_name = "RATE", value_parser = lull_units::rate_per_s)]
    rate: Option<u64>,
    /// --case crowd: numbers of applications on one core [default: 1,2,4,8].
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    applications: Vec<usize>,
    /// The policy of NAPI threads: other:-10, fifo:50, rr:50, batch:5, deadline:200us/1ms.
    #[arg(long, value_name = "POLICY")]
    thread_policy: Option<ThreadPolicy>,
    /// The core of sinks and delivery, then the generator's; by default these are the first two.
    #[arg(long, value_parser = units::cores)]
    cores: Option<std::vec::Vec<usize>>,
    #[command(flatten)]
    group: GroupArgs,
    /// Seconds measured per run [default: 1].
    #[arg(long, value_parser = units::seconds, allow_negative_numbers = true)]
    seconds: Option<Duration>,
    #[command(flatten)]
    measure: MeasureArgs,
}

/// Sizes and flows of the published table.
const TABLE_BYTES: [usize; 6] = [1, 64, 256, 1_438, 4_096, 64_000];
const TABLE_FLOWS: [usize; 5] = [1, 25, 50, 100, 200];

/// Floods, and writes what was asked for.
pub fn run(args: &FloodArgs, stop: &AtomicBool) -> Result<ExitCode, Failure> {
    args.refuse_of_others()?;
    let cores = args.cores.clone().unwrap_or_default();
    args.measure.run(args.seconds, stop, |effort| {
        Ok(match args.case {
            None => args.flood(cores)?.run(effort)?,
            Some(FloodCase::Fairness) => Fairness { modes: args.modes(&["softirq", "group"])?, cores }.run(effort)?,
            Some(FloodCase::Crowd) => {
                let applications = or(&args.applications, &[1, 2, 4, 8]);
                let per_second = args.rate.unwrap_or(20_000);
                Crowd { applications, modes: args.modes(&["softirq", "fullbusy", "group"])?, per_second, cores }
                    .run(effort)?
            }
        })
    })
}

/// Returns the named values, or the default ones if there are none.
fn or<T: Clone>(named: &[T], default: &[T]) -> Vec<T> {
    if named.is_empty() { default.to_vec() } else { named.to_vec() }
}

impl FloodArgs {
    /// Refuses options that do not belong together.
    fn refuse_of_others(&self) -> Result<(), Failure> {
        let kernel = self.plane == Plane::Kernel;
        let of_flood = [
            ("--plane", kernel),
            ("--nic", self.nic.is_some()),
            ("--bytes", !self.bytes.is_empty()),
            ("--flows", !self.flows.is_empty()),
            ("--thread-policy", self.thread_policy.is_some()),
        ];
        let of_group = self.group.given().first().map(|option| (*option, true));
        let (what, others): (&str, Vec<(&str, bool)>) = match self.case {
            None if kernel => ("--plane kernel", [("--nic", self.nic.is_some())].into_iter().chain(of_group).collect()),
            None => ("this flood", Vec::new()),
            Some(FloodCase::Fairness) => {
                let rate = [("--rate", self.rate.is_some())];
                ("--case fairness", of_flood.into_iter().chain(rate).chain(of_group).collect())
            }
            Some(FloodCase::Crowd) => ("--case crowd", of_flood.into_iter().chain(of_group).collect()),
        };
        let applications = ("--applications", !self.applications.is_empty() && self.case != Some(FloodCase::Crowd));
        match others.into_iter().chain([applications]).find(|(_, given)| *given) {
            Some((option, _)) => Err(format!("cannot use {option} with {what}: leave it out").into()),
            None => Ok(()),
        }
    }

    /// The modes of a case; softirq means base.
    fn modes(&self, default: &[&str]) -> Result<Vec<Mode>, Failure> {
        let mode = |name: &str| if name == "softirq" { "base".parse() } else { name.parse() };
        Ok(modes::named(&self.modes, default).into_iter().map(mode).collect::<Result<_, _>>()?)
    }

    fn flood(&self, cores: Vec<usize>) -> Result<Flood, Failure> {
        let default: &[&str] = match self.plane {
            Plane::User => &["softirq-fifo", "softirq", "threaded", "group"],
            Plane::Kernel => &["softirq", "threaded", "threaded-busy"],
        };
        let names = modes::named(&self.modes, default);
        let modes: Vec<FloodMode> = names.into_iter().map(str::parse).collect::<Result<_, String>>()?;
        let core_modes: Vec<Mode> = modes.iter().map(|mode| mode.mode().clone()).collect();
        let group = if self.group.given().is_empty() { None } else { self.group.setup(&core_modes)? };
        let path = match (self.plane, self.nic) {
            (Plane::Kernel, _) => Path::Kernel,
            (Plane::User, Some(FloodNic::Tap)) => {
                lull_nic::namespace::enter_private()?;
                Path::Tap
            }
            (Plane::User, _) => Path::Mem,
        };
        let (bytes, flows) = match self.table {
            true => (TABLE_BYTES.to_vec(), TABLE_FLOWS.to_vec()),
            false => (or(&self.bytes, &[64]), or(&self.flows, &[1, 25, 200])),
        };
        let per_second = self.rate.map(|rate| rate as f64);
        Ok(Flood { bytes, flows, modes, path, per_second, cores, policy: self.thread_policy, group })
    }
}
