//! The table of flows, as several processes see it.

use super::*;

fn flow(port: u16) -> (SocketAddr, SocketAddr) {
    (SocketAddr::new("10.0.0.2".parse().unwrap(), 11211), SocketAddr::new("10.0.0.1".parse().unwrap(), port))
}

#[test]
fn who_shares_the_table_sees_what_is_open() {
    let flows = Flows::create().unwrap();
    let other = Flows::open(flows.as_fd().try_clone_to_owned().unwrap()).unwrap();
    let v6 = ("[fd00::2]:80".parse().unwrap(), "[fd00::1]:4096".parse().unwrap());
    let first = flows.opened(flow(1).0, flow(1).1, 0).unwrap();
    let second = flows.opened(flow(2).0, flow(2).1, 0).unwrap();
    let _third = flows.opened(v6.0, v6.1, 0).unwrap();
    assert_eq!(other.all(), [flow(1), flow(2), v6]);
    flows.closed(first);
    assert_eq!(other.all(), [flow(2), v6]);
    flows.closed(second);
}

#[test]
fn a_full_table_says_so_and_a_slot_that_is_given_back_is_used_again() {
    let flows = Flows::create().unwrap();
    let mut taken: Vec<Taken> =
        (0..FLOWS_MAX).map(|nth| flows.opened(flow(nth as u16).0, flow(nth as u16).1, 0).unwrap()).collect();
    assert_eq!(flows.opened(flow(1).0, flow(1).1, 0), None);
    flows.closed(taken.pop().unwrap());
    assert!(flows.opened(flow(7).0, flow(7).1, 0).is_some());
    assert_eq!(flows.all().len(), FLOWS_MAX);
}

/// Forks: the child's answer is its exit status.
fn in_a_child(f: impl FnOnce() -> bool) -> bool {
    // SAFETY: the child makes system calls only, and ends without running anything of the parent's.
    match unsafe { libc::fork() } {
        // SAFETY: ends the child at once.
        0 => unsafe { libc::_exit(i32::from(!f())) },
        child => {
            let mut status = 0;
            // SAFETY: waits for the child that was made here.
            assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
            libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0
        }
    }
}

#[test]
fn a_queue_has_one_process_until_that_has_ended() {
    let flows = Flows::create().unwrap();
    assert!(in_a_child(|| flows.claim(0).is_ok()), "a child that ends gives it back");
    flows.claim(0).unwrap();
    flows.claim(0).unwrap();
    let me = std::process::id() as libc::pid_t;
    assert!(
        in_a_child(|| matches!(flows.claim(0), Err(NotClaimed::Taken { pid }) if pid == me)),
        "it is not inherited"
    );
    assert!(in_a_child(|| flows.claim(1).is_ok()), "each queue by itself");
    assert!(in_a_child(|| flows.holder(0) == Some(me) && flows.holder(1).is_none()));
    flows.release(0);
    assert!(in_a_child(|| flows.claim(0).is_ok()), "given back");
}

#[test]
fn another_file_is_not_taken_for_the_table() {
    let file = rustix::fs::memfd_create(c"other", MemfdFlags::CLOEXEC).unwrap();
    assert_eq!(Flows::open(file).err().unwrap().kind(), io::ErrorKind::InvalidData);
}

/// Whether a task sleeps in the kernel, or has ended.
fn is_asleep(task: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{task}/stat"));
    stat.is_ok_and(|stat| stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with(['S', 'Z'])))
}

/// The kernel takes it for a deadlock: the process that the other one waits for waits for that, by another of its threads.
#[test]
fn who_waits_for_a_process_that_waits_for_it_by_another_thread_has_its_turn_once_that_one_is_done() {
    let flows = Flows::create().unwrap();
    let go = crate::kernel::pipe().unwrap();
    let says = crate::kernel::pipe().unwrap();
    // SAFETY: the child makes system calls only, and ends without running anything of the parent's.
    let child = unsafe { libc::fork() };
    if child == 0 {
        flows.asks();
        let told = rustix::io::write(&says[1], &[1]).is_ok();
        let begins = rustix::io::read(&go[0], &mut [0; 1]) == Ok(1);
        let done = flows.alone(|| ()).is_ok();
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(i32::from(!(told && begins && done))) };
    }
    rustix::io::read(&says[0], &mut [0; 1]).unwrap();
    let thread = std::sync::atomic::AtomicI32::new(0);
    let until = |task: &dyn Fn() -> Option<String>| {
        while !task().is_some_and(|task| is_asleep(&task)) {
            std::thread::yield_now();
        }
        (0..1000).for_each(|_| std::thread::yield_now());
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // SAFETY: a number.
            thread.store(unsafe { libc::gettid() }, Ordering::Release);
            flows.until_nobody_asks();
        });
        flows
            .alone(|| {
                let id = || Some(thread.load(Ordering::Acquire)).filter(|id| *id != 0);
                until(&|| id().map(|id| format!("self/task/{id}")));
                rustix::io::write(&go[1], &[1]).unwrap();
                until(&|| Some(child.to_string()));
            })
            .unwrap();
    });
    let mut status = 0;
    // SAFETY: waits for the child that was made here.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0, "{status:#x}");
}

#[test]
fn of_processes_that_end_together_the_last_one_leaves_no_queue() {
    let flows = Flows::create().unwrap();
    let (go, says) = (crate::kernel::pipe().unwrap(), crate::kernel::pipe().unwrap());
    flows.claim(1).unwrap();
    // SAFETY: the child makes system calls only, and ends without running anything of the parent's.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let has = flows.claim(0).is_ok() && flows.others_stay(|queue| queue == 0);
        let told = rustix::io::write(&says[1], &[1]).is_ok() && rustix::io::read(&go[0], &mut [0; 1]) == Ok(1);
        flows.has_taken_out(0);
        // It has not ended yet.
        let told = told && rustix::io::write(&says[1], &[1]).is_ok();
        let goes = rustix::io::read(&go[0], &mut [0; 1]) == Ok(1);
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(i32::from(!(has && told && goes))) };
    }
    let hears = || rustix::io::read(&says[0], &mut [0; 1]).unwrap();
    let is_own = |queue| queue == 1;
    hears();
    assert!(flows.others_stay(is_own));
    rustix::io::write(&go[1], &[1]).unwrap();
    hears();
    assert!(flows.holder(0).is_some() && !flows.others_stay(is_own), "the kernel sends to this one alone");
    rustix::io::write(&go[1], &[1]).unwrap();
    let mut status = 0;
    // SAFETY: waits for the child that was made here.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0);
}
