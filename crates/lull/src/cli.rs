//! The commands of `lull`, from which `--help`, the manual pages and the completions are made.

use clap::{Parser, Subcommand};

use crate::apply::{ApplyArgs, DiffArgs};
use crate::attach::{AttachArgs, DetachArgs};
use crate::calibrate::Calibrate;
use crate::compare::Compare;
use crate::doctor::DoctorArgs;
use crate::flood::FloodArgs;
use crate::forward::ForwardArgs;
use crate::group::GroupArgs;
use crate::load::LoadArgs;
use crate::manual::{CompletionsArgs, ManArgs};
use crate::merge::MergeArgs;
use crate::predict::Predict;
use crate::prepare::PrepareArgs;
use crate::run::{RunArgs, SuperviseArgs};
use crate::serve::Serve;
use crate::set::SetArgs;
use crate::show::ShowArgs;
use crate::sim::SimArgs;
use crate::ss::SsArgs;
use crate::stat::StatArgs;
use crate::top::TopArgs;
use crate::tune::Tune;
use crate::undo::UndoArgs;
use crate::xsk_rr::XskRrArgs;

/// How packets reach a network service: by interrupt when idle, by polling when busy.
///
/// lull implements the NAPI delivery model (IRQ deferral, busy polling, preferred busy polling, IRQ suspension, NAPI
/// threads) on three planes: in user space (compare, serve), as Linux's own settings under unmodified programs (doctor,
/// apply, attach, run, show, stat, undo), and simulated (predict, tune, sim).
#[derive(Parser)]
#[command(version, about, max_term_width = 110)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Subcommand)]
pub enum Command {
    /// Measures every delivery mode on a memcached service and prints one table.
    Compare(Compare),
    /// Floods sinks on one core with datagrams, and shows how many each delivery mode lets them receive and where the
    /// rest is dropped.
    Flood(FloodArgs),
    /// Forwards between two devices in NAPI context, in a mode that needs no application, or measures this.
    Forward(ForwardArgs),
    /// Puts mutilate's load on a memcached server over the kernel's sockets.
    Load(LoadArgs),
    /// Adds up what several generators of `lull load --hdr` measured at the same time.
    Merge(MergeArgs),
    /// Measures AF_XDP request/response by who polls, on lull's packet sockets or the kernel's AF_XDP sockets.
    XskRr(XskRrArgs),
    /// Measures what this machine's operations take, and writes a file that describes it for `predict` and `tune`.
    Calibrate(Calibrate),
    /// Predicts every delivery mode for a machine and a service described in a file, by simulation.
    Predict(Predict),
    /// Finds the mode and timeout that meet a latency objective at the least CPU, by simulation.
    Tune(Tune),
    /// The simulated plane: published tables as worlds, their calibration, and random worlds that check the core.
    Sim(SimArgs),
    /// Runs a memcached service on lull's own stack over a NIC.
    Serve(Serve),
    /// Shows the delivery settings in force on a device of the kernel, or in a process that runs lull's user plane.
    Show(ShowArgs),
    /// Says for each mode whether this kernel, this driver and your rights allow it, and what stands in the way.
    Doctor(DoctorArgs),
    /// Puts a delivery mode in force on a device of the kernel, until `lull undo`.
    Apply(ApplyArgs),
    /// Shows what `lull apply` would change.
    Diff(DiffArgs),
    /// Sets single settings of the NAPIs of a device or a process, until `lull undo`.
    Set(SetArgs),
    /// Shows and changes the busy-polling groups of CPUs of a process: cores and NAPIs can be added and removed while
    /// the group polls.
    Group(GroupArgs),
    /// Restores what a device, all devices or a process had before `lull apply` and `lull set`.
    Undo(UndoArgs),
    /// Sets the epoll busy-poll parameters inside a running program, and follows it.
    Attach(AttachArgs),
    /// Restores what a program's epoll contexts had before `lull attach`.
    Detach(DetachArgs),
    /// Runs a program with a mode in force, and undoes it when the program has ended.
    Run(RunArgs),
    /// Cleans up after a `lull run` that was killed.
    #[command(hide = true)]
    Supervise(SuperviseArgs),
    /// Shows who polls the queues of a device of the kernel or of a process on the user plane: softirq, NAPI thread,
    /// busy poll ...
    Stat(StatArgs),
    /// Shows everything on one screen, refreshed each second: who polls each NAPI, the mode in force, packets, CPU.
    Top(TopArgs),
    /// Shows the sockets of processes on lull's user plane, as `ss` shows the kernel's: state, queues, round trip, drops.
    Ss(SsArgs),
    /// Sets a device and the machine up for low latency, by the steps of a profile.
    Prepare(PrepareArgs),
    /// Prints a manual page, or writes those of all commands into a directory.
    Man(ManArgs),
    /// Prints a completion script for a shell.
    Completions(CompletionsArgs),
}
