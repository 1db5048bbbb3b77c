//! The list of raised interrupts.

use loom::sync::Arc;
use loom::thread;

use super::{Bed, check};
use crate::raised::{Link, Raised};
use crate::seat::{IRQ_THREAD, Seat};
use crate::sync::{AtomicBool, Ordering};

/// Two raises of one interrupt and one of another, against a holder that takes them: each raise is taken, or found
/// another that is yet to be taken and covers it. Three preemptions.
#[test]
fn loom_raised_is_taken_once_and_covers_those_who_found_it_queued() {
    check(3, || {
        struct World {
            raised: Raised,
            links: [Link; 2],
            /// What each raise published, and on which link.
            published: [(AtomicBool, usize); 3],
            seat: Seat,
            irq: Bed,
        }
        let world = Arc::new(World {
            raised: Raised::new(),
            links: [Link::new(), Link::new()],
            published: [0, 0, 1].map(|link| (AtomicBool::new(false), link)),
            seat: Seat::new(),
            irq: Bed::new(),
        });
        let devices: Vec<_> = [vec![0], vec![1, 2]]
            .into_iter()
            .map(|raises| {
                let world = world.clone();
                thread::spawn(move || {
                    for raise in raises {
                        let (published, link) = &world.published[raise];
                        published.store(true, Ordering::Relaxed);
                        if world.raised.push(*link as u32, &world.links[*link])
                            && let Some(holder) = world.seat.raise()
                        {
                            assert_eq!(holder, IRQ_THREAD);
                            world.irq.wake();
                        }
                    }
                })
            })
            .collect();
        let mut seen = 0;
        while seen < 3 {
            world.irq.park();
            assert!(world.seat.take(IRQ_THREAD));
            loop {
                world.seat.begin();
                let mut at = world.raised.take();
                while let Some(index) = at {
                    at = Raised::next(&world.links[index as usize]);
                    for (published, link) in &world.published {
                        if *link == index as usize && published.load(Ordering::Relaxed) {
                            published.store(false, Ordering::Relaxed);
                            seen += 1;
                        }
                    }
                }
                if world.seat.pass(IRQ_THREAD) {
                    break;
                }
            }
        }
        devices.into_iter().for_each(|device| device.join().unwrap());
    });
}
