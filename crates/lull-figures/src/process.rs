//! Figures of processes with lull's user plane, from what their control sockets show.

use lull_control::place::Places;
use lull_control::schema::{self, Answer, Group, Request, Shown};
use lull_control::{Client, Offer, Program};
use lull_core::EpollParams;
use lull_linux::recognise::{Programs, Recognised, recognise};

use crate::{Cpu, Error, Figures, Napi, Poller, Source, Subject};

/// Returns the mode that the settings of a NAPI amount to, with the epoll contexts that have sockets there. If a group
/// polls the NAPI, only the group matters.
pub fn mode_of(napi: &schema::Napi, shown: &Shown) -> Recognised {
    if let Some(group) = group_of(napi, shown) {
        let outside = napi.qdisc.is_none() && !is_sent_by_group(napi, shown);
        let mode = match group.rest_ns {
            None if outside => "group-rx".to_owned(),
            None => "group".to_owned(),
            Some(ns) => format!("group{}", ns / 1_000),
        };
        let cores = group.pollers.iter().map(|it| it.core.map_or("any".to_owned(), |core| core.to_string()));
        let cores = cores.collect::<Vec<_>>().join(",");
        let does = if napi.qdisc.is_some() { "sends from it" } else { "polls it" };
        let tx = if outside { "; tx outside: applications send" } else { "" };
        let index = group.index;
        let note = format!("group {index} {does}, on core {cores}: nothing suspends or defers it meanwhile{tx}");
        return Recognised { mode, note: Some(note) };
    }
    let there = shown.contexts.iter().filter(|context| context.sockets.contains_key(&napi.id));
    let polling = there.map(|context| context.params).filter(|params| *params != EpollParams::default());
    recognise(&napi.settings, &Programs { polling: polling.collect(), some_hidden: false, busy_poll_usecs: 0 })
}

/// Whether the transmit queue beside a NAPI's queue is a member of a group.
fn is_sent_by_group(napi: &schema::Napi, shown: &Shown) -> bool {
    let sends =
        |it: &&schema::Napi| it.qdisc.is_some() && it.queue == napi.queue && it.device == format!("{}-tx", napi.device);
    shown.napis.iter().find(sends).is_some_and(|sends| group_of(sends, shown).is_some())
}

/// The group that polls a NAPI.
fn group_of<'s>(napi: &schema::Napi, shown: &'s Shown) -> Option<&'s Group> {
    let is_member = |group: &&Group| group.members.iter().any(|member| member.napi_id == napi.id);
    shown.groups.iter().find(is_member).filter(|_| napi.id != 0)
}

/// The figures in what a process shows.
pub fn figures(shown: &Shown) -> Figures {
    let napi = |napi: &schema::Napi| Napi {
        device: napi.device.clone(),
        queue: napi.queue.to_string(),
        id: napi.id,
        mode: mode_of(napi, shown).mode,
        settings: napi.settings,
        counted: true,
        polls: vec![
            (Poller::Softirq, napi.stats.softirq_polls),
            (Poller::BusyPoll, napi.stats.busy_polls),
            (Poller::NapiThread, napi.stats.thread_polls),
            (Poller::Group, napi.stats.group_polls),
        ],
        packets: napi.stats.work,
        empty_polls: napi.stats.empty_polls,
        deferrals: napi.stats.deferrals,
        suspensions: Some(napi.stats.suspends),
        interrupts: Some(napi.interrupts),
        answers: napi.answers.clone(),
    };
    let cpu =
        |cpu: &schema::Cpu| Cpu { index: cpu.index, core: cpu.core, softirq_ns: cpu.softirq_ns, wakeups: cpu.wakeups };
    Figures {
        subject: Subject { name: shown.service.clone(), pid: Some(shown.pid) },
        now_ns: shown.now_ns,
        cpu_ns: cpu_ns(shown.pid),
        napis: shown.napis.iter().map(napi).collect(),
        cpus: shown.cpus.iter().map(cpu).collect(),
        controller: shown.controller.as_deref().cloned(),
        missing: Vec::new(),
    }
}

/// Returns the CPU time of a process in nanoseconds, or `None` once it is gone.
fn cpu_ns(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name may contain anything, so fields 14 and 15 of proc_pid_stat(5) are counted from its closing bracket on.
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace().skip(11);
    let mut ticks = || fields.next()?.parse::<u64>().ok();
    Some((ticks()? + ticks()?) * (1_000_000_000 / rustix::param::clock_ticks_per_second()))
}

/// The processes that are asked.
#[derive(Clone, Debug)]
pub enum Which {
    /// This process; it is an error if it does not answer.
    Process(u32),
    /// The processes of a program, which come and go.
    Program(Program),
    /// All processes that this user may ask, which come and go.
    All,
}

/// Asks processes over their control sockets.
#[derive(Debug)]
pub struct Asked(pub Which);

impl Source for Asked {
    fn read(&mut self) -> Result<Vec<Figures>, Error> {
        match &self.0 {
            Which::Process(pid) => {
                let mut client = Client::connect(*pid, &Places::default())?;
                let answer = client.ask(&Request::Show)?;
                Ok(shown(client.pid(), answer).iter().map(figures).collect())
            }
            Which::Program(program) => {
                Ok(of_all(program.clients(&Places::default()).into_iter().filter_map(|(_, client)| client.ok())))
            }
            Which::All => Ok(of_all(Client::connect_all(&Places::default()).into_iter())),
        }
    }
}

/// Returns the figures of those that answer; a process that is ending does not.
fn of_all(clients: impl Iterator<Item = Client>) -> Vec<Figures> {
    let shows = |mut client: Client| shown(client.pid(), client.ask(&Request::Show).ok()?);
    clients.filter_map(shows).map(|shown| figures(&shown)).collect()
}

/// In another PID namespace the process knows itself by another number; commands take the number of this namespace.
fn shown(pid: u32, answer: Answer) -> Option<Shown> {
    match answer {
        Answer::Shown(shown) => Some(Shown { pid, ..shown }),
        _ => None,
    }
}

/// Reads the figures of this process itself.
#[derive(Debug)]
pub struct Own(pub std::sync::Arc<Offer>);

impl Source for Own {
    fn read(&mut self) -> Result<Vec<Figures>, Error> {
        Ok(shown(std::process::id(), self.0.ask(&Request::Show)).iter().map(figures).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_works_uses_cpu_time_and_one_that_is_gone_has_none() {
        let (own, before) = (std::process::id(), cpu_ns(std::process::id()).unwrap());
        while cpu_ns(own).unwrap() == before {
            std::hint::spin_loop();
        }
        assert_eq!(cpu_ns(u32::MAX), None);
    }
}
