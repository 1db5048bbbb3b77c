//! The softirq loop (§5).

use super::*;

#[test]
fn a_pass_takes_the_budget_in_weights_and_squeezes() {
    let mut toy = Toy::new(1, settings(0, 0, 0));
    toy.packets(0, 10_000);
    toy.irq(0);
    assert!(toy.net_rx(0));
    // Alone on its CPU an instance is polled once a pass: its repoll is put back, and the softirq raised again.
    assert_eq!(toy.polls_since(0), [(By::Softirq, 64)]);
    assert_eq!(toy.cpus[0].softnet.time_squeeze(), 0);

    let mut toy = Toy::new(12, settings(0, 0, 0));
    for queue in 0..6 {
        toy.packets(2 * queue, 64);
        toy.irq(2 * queue);
    }
    assert!(toy.net_rx(0));
    assert_eq!(toy.polls_since(0), [(By::Softirq, 64); 5], "320 packets: the budget of 300 is looked at after a poll");
    assert_eq!(toy.cpus[0].softnet.time_squeeze(), 1);
}

/// A list of instances to be polled, without the toy: exactly who is polled in which order.
struct Lists {
    napis: Vec<Napi>,
    softnet: Softnet,
    sysctl: Sysctl,
    now_ns: u64,
}

impl Lists {
    fn new(instances: u32) -> Lists {
        let napis: Vec<_> = (0..instances).map(Napi::new).collect();
        for napi in &napis {
            napi.enable(NAPI_ID_MIN + napi.index(), None);
        }
        Lists { napis, softnet: Softnet::new(), sysctl: Sysctl::default(), now_ns: 0 }
    }

    fn cx(&self) -> lull_core::Cx<'static> {
        lull_core::Cx::new(0, self.now_ns)
    }

    fn schedule(&mut self, index: usize) {
        let napi = &self.napis[index];
        let Schedule::Owned(owner) = napi.schedule(&self.cx()) else { panic!("{index} is scheduled already") };
        let Route::Softirq(owner) = napi.route(owner, &self.cx()) else { panic!("no thread") };
        self.softnet.push(owner);
    }

    fn begin(&mut self) -> NetRx {
        self.softnet.begin(&self.sysctl, self.now_ns)
    }

    /// Polls the next instance, which takes `work`; who it was, or how the pass ended.
    fn poll(&mut self, rx: &mut NetRx, work: u32, cost_ns: u64) -> Result<usize, RxEnd> {
        match rx.next(&mut self.softnet) {
            RxStep::End(end) => Err(end),
            RxStep::Poll(owner) => {
                let index = owner.napi() as usize;
                self.now_ns += cost_ns;
                let polled = self.napis[index].softirq_polled(owner, work, false, &self.cx(), |_| ());
                match rx.polled(polled, work, self.now_ns) {
                    None => {}
                    Some(Completion::Released(release)) => {
                        let _ = release.settle(&self.napis[index], &self.cx());
                    }
                    Some(owed) => panic!("nobody else schedules: {owed:?}"),
                }
                Ok(index)
            }
        }
    }

    /// The order of the list, by running it off.
    fn order(&mut self) -> Vec<usize> {
        self.sysctl.netdev_budget = u32::MAX >> 1;
        let mut rx = self.begin();
        let mut order = Vec::new();
        while let Ok(index) = self.poll(&mut rx, 0, 0) {
            order.push(index);
        }
        order
    }
}

#[test]
fn what_is_left_is_put_back_as_unfinished_newly_arrived_repolls() {
    let mut lists = Lists::new(8);
    lists.sysctl.netdev_budget = 128;
    (0..4).for_each(|index| lists.schedule(index));
    let mut rx = lists.begin();
    assert_eq!(lists.poll(&mut rx, 64, 0), Ok(0));
    lists.schedule(6);
    lists.schedule(5);
    assert!(!lists.softnet.is_raised(), "net_rx_action runs here: it will look");
    assert_eq!(lists.poll(&mut rx, 64, 0), Ok(1));
    assert_eq!(lists.poll(&mut rx, 64, 0), Err(RxEnd { squeezed: true, raised: true }));
    assert_eq!(lists.order(), [2, 3, 6, 5, 0, 1]);
}

#[test]
fn a_refilled_list_goes_on_with_the_same_budget_and_only_without_repolls() {
    let mut lists = Lists::new(4);
    lists.sysctl.netdev_budget = 100;
    lists.schedule(0);
    let mut rx = lists.begin();
    assert_eq!(lists.poll(&mut rx, 63, 0), Ok(0));
    lists.schedule(1);
    lists.schedule(2);
    assert_eq!(lists.poll(&mut rx, 37, 0), Ok(1), "the list was refilled");
    assert_eq!(lists.poll(&mut rx, 0, 0), Err(RxEnd { squeezed: true, raised: true }), "the budget was not");
    assert_eq!(lists.order(), [2]);

    // With an instance to be polled again the pass ends, so that it takes its turn behind the new ones.
    let mut lists = Lists::new(4);
    lists.schedule(0);
    let mut rx = lists.begin();
    assert_eq!(lists.poll(&mut rx, 64, 0), Ok(0));
    lists.schedule(1);
    assert_eq!(lists.poll(&mut rx, 0, 0), Err(RxEnd { squeezed: false, raised: true }));
    assert_eq!(lists.order(), [1, 0]);
}

#[test]
fn a_pass_ends_at_its_deadline_even_when_nothing_is_left() {
    let mut lists = Lists::new(3);
    (0..3).for_each(|index| lists.schedule(index));
    let mut rx = lists.begin();
    assert_eq!(lists.poll(&mut rx, 1, 2 * MS - 1), Ok(0));
    assert_eq!(lists.poll(&mut rx, 1, 1), Ok(1));
    assert_eq!(lists.poll(&mut rx, 1, 0), Err(RxEnd { squeezed: true, raised: true }));
    let mut rx = lists.begin();
    assert_eq!(lists.poll(&mut rx, 1, 2 * MS), Ok(2));
    assert_eq!(lists.poll(&mut rx, 1, 0), Err(RxEnd { squeezed: true, raised: false }));
    assert_eq!(lists.softnet.time_squeeze(), 2);
}

#[test]
fn ksoftirqd_takes_over_after_ten_passes() {
    let mut toy = Toy::new(1, settings(0, 0, 0));
    toy.packets(0, 10_000);
    toy.irq(0);
    toy.softirq(0);
    assert_eq!(toy.polls.len(), 10, "the first pass and nine restarts");
    assert!(toy.cpus[0].ksoftirqd);
    toy.pending();
    assert_eq!(toy.queues[0].ring, 0);
    assert_eq!(toy.cpus[0].ksoftirqd_wakes, 10_000 / 640);
}

#[test]
fn ksoftirqd_takes_over_after_two_milliseconds_or_when_a_thread_waits() {
    let mut run = SoftirqRun::begin(5 * MS);
    assert_eq!(run.after_pass(true, false, 7 * MS - 1), SoftirqNext::Again);
    assert_eq!(run.after_pass(true, false, 7 * MS), SoftirqNext::Ksoftirqd);
    let mut run = SoftirqRun::begin(0);
    assert_eq!(run.after_pass(true, true, 0), SoftirqNext::Ksoftirqd);
    assert_eq!(SoftirqRun::begin(0).after_pass(false, true, 9 * MS), SoftirqNext::Done, "nothing is left");

    let mut toy = Toy::new(1, settings(0, 0, 0));
    toy.cpus[0].need_resched = true;
    toy.packets(0, 65);
    toy.irq(0);
    toy.softirq(0);
    assert_eq!((toy.polls.len(), toy.cpus[0].ksoftirqd), (1, true));
}

#[test]
fn a_full_poll_under_a_pending_disable_completes_and_leaves_the_interrupt_masked() {
    let mut toy = Toy::new(1, settings(0, 0, 0));
    toy.packets(0, 1_000);
    toy.irq(0);
    toy.during_poll(|toy| toy.napi(0).disable_begin());
    toy.softirq(0);
    assert_eq!(toy.polls_since(0), [(By::Softirq, 64)]);
    assert!(toy.queues[0].masked, "the completion is not the driver's: nobody unmasks");
    assert!(toy.disable_try(0));
}
