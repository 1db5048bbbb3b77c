//! Virtual time: what is pending is done, in a fixed order, until the machine is quiet.

use super::*;

impl Toy {
    /// When something happens next: an arrival or a timer, or the next round of a busy-polling thread that has something to
    /// find (its empty rounds are left out, but for one at every turn of the machine).
    pub(super) fn next_ns(&self) -> Option<u64> {
        let arrival = self.arrivals.keys().next().map(|&(at_ns, _)| at_ns);
        let timers = self.queues.iter().filter_map(|queue| queue.napi.timer().pending()).map(|(at_ns, _)| at_ns);
        let spinning = (0..self.queues.len())
            .filter(|&queue| self.thread_is_busy(queue) && self.queues[queue].ring > 0)
            .map(|_| self.now_ns + 1_024);
        arrival.into_iter().chain(timers).chain(spinning).min()
    }

    /// Does all that is pending now, in a fixed order, until nothing is.
    pub fn pending(&mut self) {
        for _ in 0..STEPS_MAX {
            let mut any = false;
            while let Some((&(at_ns, seen), &(queue, packets))) = self.arrivals.first_key_value() {
                if at_ns > self.now_ns {
                    break;
                }
                self.arrivals.remove(&(at_ns, seen));
                self.packets(queue, packets);
                any = true;
            }
            for queue in 0..self.queues.len() {
                any |= self.irq(queue);
            }
            for cpu in 0..self.cpus.len() as u16 {
                any |= self.timers(cpu);
                let ksoftirqd = std::mem::take(&mut self.cpus[usize::from(cpu)].ksoftirqd);
                any |= ksoftirqd;
                any |= self.softirq(cpu);
            }
            for queue in 0..self.queues.len() {
                while self.queues[queue].thread_woken {
                    any |= self.thread_round(queue) && !self.thread_is_busy(queue);
                    if self.thread_is_busy(queue) {
                        break;
                    }
                }
            }
            if !any {
                return;
            }
        }
        panic!("the machine does not become quiet");
    }

    /// Lets the machine run until then.
    pub fn run_until(&mut self, until_ns: u64) {
        self.pending();
        while let Some(next_ns) = self.next_ns() {
            if next_ns > until_ns {
                break;
            }
            self.now_ns = self.now_ns.max(next_ns);
            self.pending();
        }
        self.now_ns = self.now_ns.max(until_ns);
    }

    pub fn run_for(&mut self, ns: u64) {
        self.run_until(self.now_ns + ns);
    }

    // ---- invariants ----
}
