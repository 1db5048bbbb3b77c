//! Checks busy-polling groups of CPUs of processes on lull's user plane: whether a group sends for the queues that it
//! receives from. An operator adds receive and transmit queues to a group one by one, and may forget the latter.

use lull_control::Client;
use lull_control::place::Places;
use lull_control::schema::{Answer, Group, Request, Shown};
use lull_linux::doctor::{Check, Verdict};

/// Returns a check for each group of process `pid`, or of all processes that this user may ask. With a `device`, only
/// the groups that receive from it are checked.
pub(super) fn checks(device: Option<&str>, pid: Option<i32>) -> Vec<Check> {
    let places = Places::default();
    let clients = match pid.map(u32::try_from) {
        None => Client::connect_all(&places),
        // A program without a user plane has no groups.
        Some(pid) => pid.ok().and_then(|pid| Client::connect(pid, &places).ok()).into_iter().collect(),
    };
    clients.into_iter().flat_map(|mut client| of(&mut client, device)).collect()
}

fn of(client: &mut Client, device: Option<&str>) -> Vec<Check> {
    // A process that ends meanwhile needs no remedy.
    let Ok(Answer::Shown(mut shown)) = client.ask(&Request::Show) else { return Vec::new() };
    shown.pid = client.pid();
    shown.groups.iter().filter_map(|group| check(&shown, group, device)).collect()
}

/// Returns `None` if the group receives from no queue of the device.
fn check(shown: &Shown, group: &Group, device: Option<&str>) -> Option<Check> {
    let is_member = |id: u32| shown.groups.iter().flat_map(|group| &group.members).any(|member| member.napi_id == id);
    let sends = |id: u32| shown.napis.iter().any(|napi| napi.id == id && napi.qdisc.is_some());
    let receives = || {
        let of_device = |name: &str| device.is_none_or(|device| device == name);
        group.members.iter().filter(move |member| !sends(member.napi_id) && of_device(&member.device))
    };
    let (mut outside, mut addable) = (Vec::new(), Vec::new());
    for member in receives() {
        let transmit = format!("{}-tx", member.device);
        let napi = shown.napis.iter().find(|napi| napi.device == transmit && napi.queue == member.queue);
        match napi.map(|napi| napi.id) {
            Some(id) if is_member(id) => {}
            id => {
                outside.push(format!("{}:{}", member.device, member.queue));
                addable.extend(id.filter(|id| *id != 0));
            }
        }
    }
    receives().next()?;
    let what = format!("group {} of process {}", group.index, shown.pid);
    if outside.is_empty() {
        let reason = "it sends for each queue that it receives from".to_owned();
        return Some(Check { what, verdict: Verdict::Ok, reason, remedy: None });
    }
    let reason = format!(
        "tx outside: no group sends for {}; an application that sends there drains the queue for others as well, and rings \
         each doorbell",
        outside.join(", ")
    );
    let add = |id: u32| format!("`lull group add {} {id}`", shown.pid);
    let remedy = if addable.is_empty() {
        "the modes group and groupX send by the group, group-rx does not".to_owned()
    } else {
        addable.into_iter().map(add).collect::<Vec<_>>().join(", ")
    };
    Some(Check { what, verdict: Verdict::Advice, reason, remedy: Some(remedy) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use lull_control::schema::{GroupMember, Napi};

    /// Makes a process with two queues that receive, both members of its group, and transmit NAPIs for the queues in
    /// `sends`, of which those in `has` are members.
    fn shown(sends: &[u32], has: &[u32]) -> Shown {
        let napi = |device: &str, queue: u32, id: u32, qdisc: Option<&str>| Napi {
            device: device.to_owned(),
            queue: queue as usize,
            id,
            qdisc: qdisc.map(str::to_owned),
            ..Napi::default()
        };
        let mut napis: Vec<Napi> = (0..2).map(|queue| napi("lull0", queue, 100 + queue, None)).collect();
        napis.extend(sends.iter().map(|queue| napi("lull0-tx", *queue, 200 + queue, Some("fq"))));
        let member = |napi: &Napi| GroupMember {
            napi_id: napi.id,
            device: napi.device.clone(),
            queue: napi.queue,
            ..GroupMember::default()
        };
        let is_member = |napi: &&Napi| napi.qdisc.is_none() || has.contains(&(napi.queue as u32));
        let members = napis.iter().filter(is_member).map(member).collect();
        let groups = vec![Group { members, ..Group::default() }];
        Shown { pid: 7, napis, groups, ..Shown::default() }
    }

    fn found(sends: &[u32], has: &[u32]) -> Check {
        let shown = shown(sends, has);
        check(&shown, &shown.groups[0], Some("lull0")).unwrap()
    }

    #[test]
    fn a_group_that_does_not_send_for_a_queue_is_told_which_and_what_to_add() {
        assert_eq!(found(&[0, 1], &[0, 1]).verdict, Verdict::Ok);
        let one = found(&[0, 1], &[0]);
        assert_eq!(one.verdict, Verdict::Advice);
        assert!(one.reason.starts_with("tx outside: no group sends for lull0:1;"), "{}", one.reason);
        assert_eq!(one.remedy.as_deref(), Some("`lull group add 7 201`"));
        let none = found(&[], &[]);
        assert!(none.reason.contains("lull0:0, lull0:1"), "{}", none.reason);
        assert!(none.remedy.unwrap().contains("group-rx does not"));
    }

    #[test]
    fn a_group_of_another_device_or_that_only_sends_is_not_looked_at() {
        let mut shown = shown(&[0, 1], &[0, 1]);
        assert_eq!(check(&shown, &shown.groups[0], Some("eth0")), None);
        shown.groups[0].members.retain(|member| member.device == "lull0-tx");
        assert_eq!(check(&shown, &shown.groups[0], None), None);
        // It is also right if another group sends.
        let sends = shown.groups[0].clone();
        let members = shown.napis.iter().take(2).map(|napi| GroupMember {
            napi_id: napi.id,
            device: napi.device.clone(),
            queue: napi.queue,
            ..GroupMember::default()
        });
        shown.groups = vec![Group { members: members.collect(), ..Group::default() }, sends];
        assert_eq!(check(&shown, &shown.groups[0], None).unwrap().verdict, Verdict::Ok);
    }
}
