//! `lull ss`: the sockets of processes on lull's user plane, as `ss` and `nstat` show the kernel's.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::process::ExitCode;

use clap::Args;
use lull_control::place::Places;
use lull_control::schema::{Answer, Request, Socket, Sockets};
use lull_control::{Client, Error};
use lull_units::counted;
use serde::Serialize;

use crate::failure::Failure;
use crate::output::{WriteError, outln};
use crate::target::Target;

/// Counters of losses that Linux has as well, with Linux's names (`nstat`); all others keep their own names.
const LINUX_NAMES: [(&str, &str); 14] = [
    ("drop_malformed", "IpInHdrErrors"),
    ("drop_not_ours", "IpInAddrErrors"),
    ("drop_protocol", "IpInUnknownProtos"),
    ("reassembly_failures", "IpReasmFails"),
    ("drop_no_socket", "UdpNoPorts"),
    ("drop_socket_full", "UdpRcvbufErrors"),
    ("drop_backlog_full", "TcpExtListenDrops"),
    ("drop_syn_backlog_full", "TcpExtTCPReqQFullDrop"),
    ("drop_paws", "TcpExtPAWSEstab"),
    ("listen_overflows", "TcpExtListenOverflows"),
    ("syncookies_failed", "TcpExtSyncookiesFailed"),
    ("out_of_window_icmps", "TcpExtOutOfWindowIcmps"),
    ("timeout_user", "TcpExtTCPAbortOnTimeout"),
    ("embryonic_rsts", "TcpExtEmbryonicRsts"),
];

/// Arguments of `lull ss`.
#[derive(Args)]
pub struct SsArgs {
    /// The process, or the device whose processes are shown; by default all that run lull's user plane.
    #[arg(value_name = "PID|DEV")]
    target: Option<Target>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// The sockets of one process, as `--json` prints them.
#[derive(Serialize)]
struct Shown {
    #[serde(flatten)]
    sockets: Sockets,
    /// The number of drops by reason, under Linux's names where it has them.
    drops: BTreeMap<String, u64>,
}

/// Shows the sockets.
pub fn run(args: &SsArgs) -> Result<ExitCode, Failure> {
    let shown = match &args.target {
        Some(Target::Process(pid)) => vec![of(&mut Client::connect(*pid, &Places::default())?)?],
        Some(Target::Device(device)) => {
            let mut clients = Client::connect_all(&Places::default());
            clients.retain_mut(|client| has(client, device));
            if clients.is_empty() {
                return Err(format!(
                    "no process that you may ask has {device} on lull's user plane: `lull show` lists those there are, and `ss` \
                     shows the kernel's sockets"
                )
                .into());
            }
            of_those_left(&mut clients, of)?
        }
        // A process that ends meanwhile is left out.
        None => Client::connect_all(&Places::default()).iter_mut().filter_map(|client| of(client).ok()).collect(),
    };
    if args.json {
        outln!("{}", serde_json::to_string_pretty(&shown)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    for (nth, shown) in shown.iter().enumerate() {
        if nth > 0 {
            outln!()?;
        }
        print(shown)?;
    }
    if shown.is_empty() {
        outln!("no process runs lull's user plane; `ss` shows the kernel's sockets")?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Whether a process has NAPIs of a device.
fn has(client: &mut Client, device: &str) -> bool {
    let Ok(Answer::Shown(shown)) = client.ask(&Request::Show) else { return false };
    shown.napis.iter().any(|napi| napi.device == device)
}

/// Asks each client; those whose process ends meanwhile are left out, unless all do.
fn of_those_left<C, S>(clients: &mut [C], mut of: impl FnMut(&mut C) -> Result<S, Failure>) -> Result<Vec<S>, Failure> {
    let (mut left, mut ended) = (Vec::new(), None);
    for client in clients {
        match of(client) {
            Ok(shown) => left.push(shown),
            Err(failure) if has_ended(&failure) => ended = Some(failure),
            Err(failure) => return Err(failure),
        }
    }
    ended.filter(|_| left.is_empty()).map_or(Ok(left), Err)
}

/// Whether a process could not answer because it has ended, or executed another program.
fn has_ended(failure: &Failure) -> bool {
    const ENDED: [ErrorKind; 3] = [ErrorKind::UnexpectedEof, ErrorKind::ConnectionReset, ErrorKind::BrokenPipe];
    match failure.downcast_ref() {
        Some(Error::Gone { .. } | Error::NoSocket { .. }) => true,
        Some(Error::Silent { source, .. }) => ENDED.contains(&source.kind()),
        _ => false,
    }
}

fn of(client: &mut Client) -> Result<Shown, Failure> {
    match client.ask(&Request::Sockets)? {
        Answer::Sockets(mut sockets) => {
            // In another PID namespace the process knows itself by another number; commands take the number of this
            // namespace.
            sockets.pid = client.pid();
            sockets.sockets.sort_by(|a, b| rank(a).cmp(&rank(b)));
            let drops = drops(&sockets.counters);
            Ok(Shown { sockets, drops })
        }
        other => Err(format!("process {} answered a question for its sockets with {other:?}", client.pid()).into()),
    }
}

/// The order of sockets: listeners first, then by address.
fn rank(socket: &Socket) -> (bool, &str, &str, usize) {
    (socket.state != "LISTEN", &socket.local, socket.peer.as_deref().unwrap_or_default(), socket.queue)
}

/// Returns the number of drops by reason; reasons that did not occur are left out.
fn drops(counters: &BTreeMap<String, u64>) -> BTreeMap<String, u64> {
    let linux = |name: &str| LINUX_NAMES.iter().find(|(own, _)| *own == name).map(|(_, linux)| *linux);
    let is_loss = |name: &str| name.starts_with("drop_") || name == "tx_dropped" || linux(name).is_some();
    let lost = counters.iter().filter(|(name, count)| **count != 0 && is_loss(name));
    lost.map(|(name, count)| (linux(name).unwrap_or(name).to_owned(), *count)).collect()
}

const HEAD: [&str; 12] = [
    "netid",
    "state",
    "recv-q",
    "send-q",
    "local address",
    "peer address",
    "queue",
    "napi",
    "rtt",
    "retrans",
    "prio",
    "pacing",
];

fn print(shown: &Shown) -> Result<(), WriteError> {
    let Sockets { pid, service, sockets, .. } = &shown.sockets;
    outln!("process {pid}: {service} on lull's user plane, {}", counted(sockets.len(), "socket"))?;
    let rows = sockets.iter().map(|it| {
        [
            it.protocol.clone(),
            it.state.clone(),
            it.receive_queue.to_string(),
            it.send_queue.to_string(),
            it.local.clone(),
            it.peer.clone().unwrap_or_else(|| "*".to_owned()),
            it.queue.to_string(),
            it.napi_id.to_string(),
            it.rtt_us.map_or("-".to_owned(), |us| format!("{:.3}ms", f64::from(us) / 1_000.0)),
            it.retransmits.to_string(),
            it.priority.to_string(),
            it.pacing_bytes_per_s.map_or("-".to_owned(), |bytes| format!("{bytes}B/s")),
        ]
    });
    let rows: Vec<[String; 12]> = std::iter::once(HEAD.map(str::to_owned)).chain(rows).collect();
    let width = |column: usize| rows.iter().map(|row| row[column].len()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..HEAD.len()).map(width).collect();
    for row in &rows {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        outln!("  {}", cells.collect::<Vec<_>>().join("  ").trim_end())?;
    }
    if !shown.drops.is_empty() {
        let drops = shown.drops.iter().map(|(name, count)| format!("{name} {count}")).collect::<Vec<_>>();
        outln!("  drops: {}", drops.join(", "))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drops_have_linuxs_names_where_it_has_them() {
        let counters =
            [("drop_paws", 3), ("drop_vlan", 2), ("drop_icmp", 0), ("packets_reassembled", 9), ("listen_overflows", 1)];
        let counters = counters.map(|(name, count)| (name.to_owned(), count)).into();
        let named: Vec<_> = drops(&counters).into_iter().collect();
        let expected = [("TcpExtListenOverflows", 1), ("TcpExtPAWSEstab", 3), ("drop_vlan", 2)];
        assert_eq!(named, expected.map(|(name, count)| (name.to_owned(), count)));
    }

    #[test]
    fn a_process_that_ends_while_it_is_asked_is_passed_over_unless_it_is_the_last_one() {
        let answer = |pid: &mut u32| match *pid {
            1 => Err(Error::Gone { pid: 1, path: "/run/lull/1.sock".into() }.into()),
            2 => Err(Error::Silent { pid: 2, source: ErrorKind::UnexpectedEof.into() }.into()),
            3 => Err(Error::Refused { pid: 3, why: "it is told to".to_owned() }.into()),
            pid => Ok(pid),
        };
        let asked = |mut pids: Vec<u32>| of_those_left(&mut pids, answer).map_err(|failure| failure.to_string());
        assert_eq!(asked(vec![1, 4, 2, 5]), Ok(vec![4, 5]));
        assert!(asked(vec![1, 2]).unwrap_err().contains("process 2 did not answer"));
        assert!(asked(vec![4, 3]).unwrap_err().contains("process 3 refused"), "it is there");
    }

    #[test]
    fn every_name_is_a_counter_of_the_stack() {
        let counters: Vec<&str> = lull_net::StackCounters::default().iter().map(|(name, _)| name).collect();
        assert!(LINUX_NAMES.iter().all(|(own, _)| counters.contains(own)));
    }
}
