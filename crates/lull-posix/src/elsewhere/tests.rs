use std::os::fd::AsRawFd;

use lull_net::lull_nic::passing::inbox;

use super::*;

const HERE: &str = "10.0.0.2:80";

/// Others of a process that has queue 1 of two, and the end that is read of queue 0's inbox.
fn others(flows: &Arc<Flows>) -> (Others, OwnedFd) {
    let (reads, writes) = inbox().unwrap();
    let (_, own) = inbox().unwrap();
    let (inboxes, lobby) = (vec![writes, own], inbox().unwrap());
    (
        Others {
            flows: flows.clone(),
            own: vec![1],
            is_alone: false,
            inboxes,
            lobby,
            secret: 7,
            listeners: Mutex::default(),
            unasked: Mutex::default(),
        },
        reads,
    )
}

fn heard(at: SocketAddr) -> Heard {
    Heard { at, v6_only: false }
}

#[test]
fn a_wildcard_hears_the_other_family_only_as_linux_has_it() {
    let local = |text: &str| text.parse::<SocketAddr>().unwrap();
    let (v4, v6) = (local("10.0.0.2:80"), local("[fd00::2]:80"));
    let hears = |at: &str, v6_only| {
        let heard = Heard { at: local(at), v6_only };
        (heard.is_at(v4), heard.is_at(v6))
    };
    assert_eq!(hears("0.0.0.0:80", false), (true, false));
    assert_eq!(hears("[::]:80", false), (true, true));
    assert_eq!(hears("[::]:80", true), (false, true));
    assert_eq!(hears("10.0.0.2:80", false), (true, false));
    assert_eq!(hears("[::]:81", false), (false, false));
}

/// By whom the frame was seen that came to an inbox.
fn came(inbox: &OwnedFd) -> Option<u32> {
    let mut bytes = [0; 8 + 64];
    let count = crate::kernel::recv(inbox.as_raw_fd(), &mut bytes, libc::MSG_DONTWAIT).ok()?;
    assert_eq!(count, 8 + 60);
    Some(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
}

/// Another process, which has queue 0, until it is dropped.
struct Other(libc::pid_t);

impl Other {
    #[allow(unsafe_code)]
    fn with_queue_0(flows: &Flows) -> Other {
        // SAFETY: the child makes system calls only, and is ended by its parent.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let _ = flows.claim(0);
            loop {
                std::thread::sleep(std::time::Duration::from_secs(1));
            }
        }
        while flows.holder(0).is_none() {
            std::thread::yield_now();
        }
        Other(child)
    }
}

impl Drop for Other {
    #[allow(unsafe_code)]
    fn drop(&mut self) {
        // SAFETY: its number, which is waited for here alone.
        unsafe {
            libc::kill(self.0, libc::SIGKILL);
            libc::waitpid(self.0, std::ptr::null_mut(), 0);
        }
    }
}

#[test]
fn a_syn_goes_back_to_a_process_that_listens_only_since_it_saw_it() {
    let flows = Arc::new(Flows::create().unwrap());
    let _other = Other::with_queue_0(&flows);
    let (others, inbox) = others(&flows);
    let mut frame = Frame::copy_from(&[1; 60]);
    let local = Some(HERE.parse().unwrap());
    // It was at queue 0 first, where nobody listened yet, and nobody does: it is refused.
    frame.set_seen_by(1);
    assert!(!others.takes_stranger(local, &frame) && came(&inbox).is_none());
    flows.listens(7, 80, 0);
    // Queue 0's process may have closed it again before it comes, and listen again when it is back here.
    for mark in [ALL_QUEUES, EVERYBODY] {
        assert!(others.takes_stranger(local, &frame));
        assert_eq!(came(&inbox), Some(mark));
        frame.set_seen_by(mark);
    }
    assert!(!others.takes_stranger(local, &frame) && came(&inbox).is_none(), "it does not go round");
    let elsewhere = Some("10.0.0.2:81".parse().unwrap());
    frame.set_seen_by(1);
    assert!(!others.takes_stranger(elsewhere, &frame) && came(&inbox).is_none(), "nobody listens at that port");
}

#[test]
fn a_syn_for_a_listener_that_is_being_closed_is_asked_for_again() {
    let flows = Arc::new(Flows::create().unwrap());
    let (others, _inbox) = others(&flows);
    let mut frame = Frame::copy_from(&[1; 60]);
    frame.set_seen_by(1);
    let at: SocketAddr = "0.0.0.0:80".parse().unwrap();
    others.listens(heard(at), 7);
    assert!(others.takes_stranger(Some(HERE.parse().unwrap()), &frame), "the stack has it no more, and others not yet");
    others.listens_no_more(7, false);
    assert!(!others.takes_stranger(Some(HERE.parse().unwrap()), &frame));
}

/// It would come again after a second.
#[test]
fn a_syn_waits_for_who_begins_to_listen() {
    let flows = Arc::new(Flows::create().unwrap());
    let _other = Other::with_queue_0(&flows);
    let (others, inbox) = others(&flows);
    let (at, local) = ("0.0.0.0:80".parse().unwrap(), HERE.parse().unwrap());
    let mut frame = Frame::copy_from(&[1; 60]);
    frame.set_seen_by(1);
    others.listens(heard(at), 7);
    others.listens_no_more(7, true);
    assert!(others.takes_stranger(Some(local), &frame));
    assert_eq!(others.kept().iter().map(|frame| frame.seen_by()).collect::<Vec<_>>(), [1]);
    // It begins to before what waits is there.
    assert!(others.takes_stranger(Some(local), &frame));
    flows.listens(7, 80, 0);
    assert!(others.keep(local, &frame) && others.kept().is_empty());
    assert_eq!([came(&inbox), came(&inbox), came(&inbox)], [Some(1), Some(1), None]);
    // Many leave room for connections.
    flows.listens_no_more(7, 0, true);
    frame.set_seen_by(1);
    (0..1_000).for_each(|_| assert!(others.takes_stranger(Some(local), &frame), "it is nobody else's"));
    frame.set_seen_by(EVERYBODY);
    assert_eq!(others.keeps(local, &frame, 2), HandedOn::Given);
    let kept: Vec<_> = others.kept().iter().map(|frame| frame.seen_by()).collect();
    assert!((2..1_000).contains(&kept.len()) && kept.last() == Some(&EVERYBODY), "{kept:?}");
}

/// The last that began to ends, or has died, and another listens still.
#[test]
fn of_several_processes_one_that_listens_still_has_what_comes_to_those_that_do_not() {
    let flows = Arc::new(Flows::create().unwrap());
    let other = Other::with_queue_0(&flows);
    let (others, _inbox) = others(&flows);
    let at = HERE.parse().unwrap();
    flows.listens(7, 80, 0);
    others.listens(heard(at), 7);
    assert!(others.share(7) && !others.share(8));
    flows.listens(7, 80, 5);
    assert_eq!(flows.who_listens(7), Some(5));
    flows.begins_with(5, |_| false);
    assert_eq!(flows.who_listens(7), Some(0), "whoever had queue 5 has died");
    others.listens(heard(at), 7);
    others.listens_no_more(7, true);
    assert_eq!((flows.who_listens(7), flows.sharers(7)), (Some(0), 1));
    flows.listens(7, 80, 5);
    let takers = others.takers(at);
    assert_eq!((takers.now, takers.soon), (Some(0), false), "whoever has queue 5 has died");
    others.listens(heard(at), 7);
    drop(other);
    assert!(!others.share(7), "it has died");
    others.listens_no_more(7, true);
    assert_eq!(flows.listeners_at(80).collect::<Vec<_>>(), [(7, None)]);
}

/// The queue that it takes first may have what came to the process before, which noted nowhere that it listened.
#[test]
fn a_syn_for_a_listener_that_is_being_made_is_kept_for_it() {
    let flows = Arc::new(Flows::create().unwrap());
    let (others, _inbox) = others(&flows);
    let (frame, at) = (Frame::copy_from(&[7; 60]), "10.0.0.2:7001".parse().unwrap());
    assert!(!others.takes_stranger(Some(at), &frame), "nobody is about to listen there");
    let expected = expects(heard("0.0.0.0:7001".parse().unwrap()));
    assert!(others.takes_stranger(Some(at), &frame) && others.kept().len() == 1);
    drop(expected);
    assert!(!others.takes_stranger(Some(at), &frame));
}

/// A process that has two listeners takes its queues when it first asks for connections of one of them.
#[test]
fn a_syn_for_a_listener_that_nobody_has_asked_yet_is_kept_for_it_until_it_is_closed() {
    let flows = Arc::new(Flows::create().unwrap());
    let (others, _inbox) = others(&flows);
    let (frame, at) = (Frame::copy_from(&[7; 60]), "10.0.0.2:7002".parse().unwrap());
    let unasked = [(heard("0.0.0.0:7002".parse().unwrap()), 5), (heard("10.0.0.3:7002".parse().unwrap()), 6)];
    others.unasked().extend(unasked);
    assert!(others.takes_stranger(Some(at), &frame) && others.kept().len() == 1);
    others.listens(unasked[0].0, 5);
    assert!(
        others.takes_stranger(Some(at), &frame) && others.kept().len() == 1,
        "it comes just before the listener is real"
    );
    others.listens_no_more(5, false);
    assert!(!others.takes_stranger(Some(at), &frame), "it is closed, and the one that is left has another address");
    others.never_listens(6);
    assert!(others.unasked().is_empty());
}

/// Nobody else takes it.
#[test]
fn where_one_process_has_all_queues_what_it_has_closed_is_refused_at_once() {
    let flows = Arc::new(Flows::create().unwrap());
    let (mut others, _inbox) = others(&flows);
    let (frame, at) = (Frame::copy_from(&[7; 60]), "10.0.0.2:7003".parse().unwrap());
    for is_alone in [false, true] {
        others.is_alone = is_alone;
        others.may_listen(heard(at), 5);
        assert!(others.takes_stranger(Some(at), &frame));
        others.listens(heard(at), 5);
        others.listens_no_more(5, true);
        assert_eq!((others.takes_stranger(Some(at), &frame), others.is_nobody()), (!is_alone, is_alone));
    }
}

/// Two processes have the listener. The other asks for its connections by now, and the SYN has been at both before it did.
#[test]
fn a_syn_for_a_listener_that_another_process_has_too_is_not_refused_until_this_one_has_closed_it() {
    let flows = Arc::new(Flows::create().unwrap());
    let _other = Other::with_queue_0(&flows);
    let (others, inbox) = others(&flows);
    let mut frame = Frame::copy_from(&[1; 60]);
    frame.set_seen_by(EVERYBODY);
    let (at, local) = ("0.0.0.0:80".parse().unwrap(), Some(HERE.parse().unwrap()));
    others.listens(heard(at), 7);
    flows.listens(7, 80, 0);
    assert!(others.takes_stranger(local, &frame), "it is dropped, and asked for again");
    let elsewhere = Some("10.0.0.2:81".parse().unwrap());
    assert!(!others.takes_stranger(elsewhere, &frame), "nobody listens at that port");
    others.listens_no_more(7, true);
    assert!(!others.takes_stranger(local, &frame), "it is nobody's here");
    assert!(came(&inbox).is_none(), "it does not go round again");
}

/// What nobody has accepted goes to who has the same listener, then to who listens at the port, and waits for who will.
#[test]
fn a_connection_goes_to_who_listens_and_waits_for_who_will() {
    let flows = Arc::new(Flows::create().unwrap());
    let _other = Other::with_queue_0(&flows);
    let (others, inbox) = others(&flows);
    let frame = Frame::copy_from(&[1; 60]);
    let (at, local) = ("0.0.0.0:80".parse().unwrap(), HERE.parse().unwrap());
    others.listens(heard(at), 7);
    assert_eq!(others.takes_over(local, &frame), HandedOn::Later, "it is being closed");
    others.listens_no_more(7, true);
    assert_eq!(others.takes_over(local, &frame), HandedOn::Later, "who made the listener has it");
    assert!(came(&inbox).is_none());
    flows.listens(7, 80, 0);
    assert_eq!((others.takes_over(local, &frame), came(&inbox)), (HandedOn::Given, Some(EVERYBODY)));
    assert_eq!(others.takes_over("10.0.0.2:81".parse().unwrap(), &frame), HandedOn::Nobody, "another port");
    flows.listens_no_more(7, 0, false);
    assert_eq!(others.takes_over(local, &frame), HandedOn::Nobody, "all have closed it");
    // Another listener of the port.
    others.listens(heard(at), 7);
    flows.listens(8, 80, 0);
    assert_eq!((others.takes_over(local, &frame), came(&inbox)), (HandedOn::Given, Some(EVERYBODY)));
    // Its process takes nothing.
    while others.pass_on(0, &frame, EVERYBODY) {}
    assert_eq!(others.takes_over(local, &frame), HandedOn::Later);
}

#[test]
fn where_no_other_process_has_a_queue_the_end_of_a_handshake_is_kept_too() {
    let flows = Arc::new(Flows::create().unwrap());
    let (others, _inbox) = others(&flows);
    let local: SocketAddr = HERE.parse().unwrap();
    others.listens(heard(local), 7);
    others.listens_no_more(7, true);
    let mut frame = Frame::copy_from(&[1; 60]);
    frame.set_seen_by(passing::LAST_ROUND);
    assert_eq!(others.keeps(local, &frame, 0), HandedOn::Given);
    assert_eq!(others.kept().iter().map(|frame| frame.seen_by()).collect::<Vec<_>>(), [passing::LAST_ROUND]);
}

/// The last that listened has ended, and the next begins: at once, so that it has looked already, or later.
#[test]
fn what_is_kept_goes_to_who_begins_to_listen() {
    let flows = Arc::new(Flows::create().unwrap());
    let _other = Other::with_queue_0(&flows);
    let (others, inbox) = others(&flows);
    let local: SocketAddr = HERE.parse().unwrap();
    let mut frame = Frame::copy_from(&[1; 60]);
    for seen_by in [0, passing::LAST_ROUND, EVERYBODY] {
        frame.set_seen_by(seen_by);
        assert_eq!(others.keeps(local, &frame, 0), HandedOn::Nobody, "nobody has a listener there");
    }
    others.listens(heard(local), 7);
    others.listens_no_more(7, true);
    frame.set_seen_by(EVERYBODY);
    assert!(others.keeps(local, &frame, 0) == HandedOn::Given && others.kept().is_empty());
    assert_eq!(came(&inbox), Some(EVERYBODY), "it may listen, though it was not the last that began to");
    assert_eq!(others.keeps(local, &frame, 2), HandedOn::Given, "it does not");
    let kept: Vec<_> = others.kept().iter().map(|frame| (frame.data().to_vec(), frame.seen_by())).collect();
    assert_eq!((kept, came(&inbox)), (vec![(vec![1; 60], EVERYBODY)], None), "what it says is not changed");
    frame.set_seen_by(passing::LAST_ROUND);
    assert_eq!(others.keeps(local, &frame, 0), HandedOn::Later, "another process may hear what follows");
    assert!(others.kept().is_empty() && came(&inbox).is_none());
    flows.listens(7, 80, 0);
    assert_eq!(others.keeps(local, &frame, 0), HandedOn::Later, "all are asked again");
    assert!(came(&inbox).is_none());
    frame.set_seen_by(EVERYBODY);
    assert!(others.keeps(local, &frame, 0) == HandedOn::Given && others.kept().is_empty());
    assert_eq!(came(&inbox), Some(EVERYBODY), "somebody listens since it was asked last");
    // Of another listener at the port the process has ended, so that one is still waited for.
    flows.listens(8, 80, 5);
    assert!(others.keeps(local, &frame, 0) == HandedOn::Given && others.kept().is_empty());
    assert_eq!(came(&inbox), Some(EVERYBODY));
}

/// Each of the others is asked once.
#[test]
fn whoever_may_listen_is_asked_in_turn() {
    let asked = |own, others: &[u32]| (0..4).map(|asked| next_in_ring(own, others, asked)).collect::<Vec<_>>();
    assert_eq!(asked(1, &[0, 2, 3]), [Some(2); 4]);
    assert_eq!(asked(3, &[0, 2]), [Some(0), Some(0), Some(0), None]);
    assert_eq!(asked(1, &[0]), [Some(0), Some(0), None, None]);
    assert_eq!(asked(0, &[]), [None; 4]);
}

#[test]
#[allow(unsafe_code)]
fn what_finds_the_inbox_of_another_process_full_is_lost_and_not_nobodys() {
    const SENT: usize = 2_000;
    let (here, there) = (passing::inbox().unwrap(), passing::inbox().unwrap());
    let flows = Arc::new(Flows::create().unwrap());
    // This process has queue 1, and does not look into its inbox.
    flows.claim(1).unwrap();
    let (own, inboxes, listeners) = (vec![0], vec![here.1, there.1], Mutex::default());
    let others = Others {
        flows,
        own,
        is_alone: false,
        inboxes,
        lobby: passing::inbox().unwrap(),
        secret: 7,
        listeners,
        unasked: Mutex::default(),
    };
    let frame = Frame::copy_from(&[0; 1400]);
    // SAFETY: the child passes frames on, and ends without running anything of the parent's.
    let status = match unsafe { libc::fork() } {
        0 => {
            let taken = (0..SENT).filter(|_| others.takes_stranger(None, &frame)).count();
            let last_round = others.takes_last_acknowledgement(&frame);
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(i32::from(taken != SENT || !last_round)) }
        }
        child => {
            let mut status = 0;
            // SAFETY: waits for the child that was made here.
            assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
            status
        }
    };
    assert_eq!(status, 0, "a frame was said to be nobody's");
    let mut buffer = [0; 2000];
    let waited = std::iter::from_fn(|| rustix::io::read(&there.0, &mut buffer[..]).ok()).count();
    assert!(0 < waited && waited < SENT, "the inbox was full after {waited} frames");
}
