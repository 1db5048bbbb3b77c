//! Costs: the service times of the simulated machine, in nanoseconds of one core.
//!
//! Costs are whole nanoseconds, so that a run needs no rounding of its own. They come from [`crate::published`]
//! (calibrated) or from the description of a world.

/// Costs of one core.
#[derive(Clone, Debug, PartialEq)]
pub struct Costs {
    /// A device interrupt: entry, handler, exit.
    pub irq_ns: u32,
    /// A timer interrupt: entry, handler, exit.
    pub timer_irq_ns: u32,
    /// Starting the timer of a NAPI (`hrtimer_start`, with the write to the clock event device). On lull's own host it
    /// is the timer of the interrupt thread, since the host's loop keeps the timers of NAPIs.
    pub timer_start_ns: u32,
    /// How much later than asked a kernel timer wakes a thread that sleeps (on a [`UserHost`](crate::UserHost) only).
    pub timer_late_ns: u32,
    /// An inter-processor interrupt that asks a core to reschedule.
    pub ipi_ns: u32,
    /// Entering `handle_softirqs` and `net_rx_action`.
    pub softirq_ns: u32,
    /// One poll of the driver, whatever it finds.
    pub poll_ns: u32,
    /// Receiving one packet that carries a request: driver, GRO, TCP/IP, socket wake-up.
    pub rx_request_ns: u32,
    /// Receiving one pure acknowledgement.
    pub rx_ack_ns: u32,
    /// Reaping one transmit completion.
    pub tx_done_ns: u32,
    /// Waking a sleeping thread (`try_to_wake_up`), paid by the waker.
    pub wake_ns: u32,
    /// Switching to another thread, or from idle to one.
    pub switch_ns: u32,
    /// One call of `epoll_wait`: entry, and return.
    pub epoll_call_ns: u32,
    /// Going to sleep in it, and coming back: wait queue, schedule.
    pub epoll_sleep_ns: u32,
    /// Copying one event out.
    pub epoll_event_ns: u32,
    /// Entering and leaving the busy loop.
    pub busy_call_ns: u32,
    /// One round of the busy loop without its poll: `cpu_relax`, softirq check, loop end.
    pub busy_round_ns: u32,
    /// The system calls of a request (read, write, transmit).
    pub request_sys_ns: u32,
    /// The user-space part of a request.
    pub request_user_ns: u32,
    /// The mean of a random (exponential) system time that a request takes in addition.
    pub request_random_ns: u32,
    /// A receive call on a socket: entry and return.
    pub recv_call_ns: u32,
    /// Taking a message out of a socket and handling it.
    pub recv_take_ns: u32,
    /// Going to sleep in a receive call: wait queue, schedule.
    pub recv_sleep_ns: u32,
    /// Receiving a frame of a flood's datagram: driver, IP, UDP, socket, without the wake-up.
    pub rx_frame_ns: u32,
    /// The additional cost of a frame that is a fragment.
    pub reassemble_ns: u32,
    /// Copying a byte, in picoseconds.
    pub copy_byte_ps: u32,
    /// A send call on a socket, until the device has the frame (TCP) or the transmit ring has it (AF_XDP).
    pub send_ns: u32,
    /// A send call of a datagram, until its frame is in the intake of a transmit queue with a discipline; running the
    /// queue costs extra.
    pub enqueue_ns: u32,
    /// Starting to busy poll from a send call after the thread has slept, with cold caches.
    pub cold_busy_ns: u32,
    /// Sending one frame of a transmit ring within a poll, or from a queueing discipline.
    pub tx_frame_ns: u32,
    /// Telling the device that frames are on a ring.
    pub doorbell_ns: u32,
    /// One look at a ring or at the clock by a program that spins in user space.
    pub spin_ns: u32,
    /// A look at a member of a group that has nothing.
    pub group_look_ns: u32,
    /// What a group's poller does between two passes: the clock, what is due, who waits.
    pub group_pass_ns: u32,
    /// Taking and giving back a member's claim.
    pub group_claim_ns: u32,
    /// A walk of a member's receive path without a packet.
    pub dry_run_ns: u32,
    /// Leaving a shallow idle state, with the cost of entering it.
    pub idle_shallow_exit_ns: u32,
    /// Leaving a deep idle state.
    pub idle_deep_exit_ns: u32,
    /// Expected idle time from which the governor takes the deep state.
    pub idle_deep_residency_ns: u32,
    /// The share of time between an interrupt out of idle and the next thread that accounting does not charge, in
    /// 1/1024.
    pub uncharged_in_idle: u32,
}

impl Default for Costs {
    /// Round figures of a server of the 2020s. Published worlds do not use them, because they have calibrated ones.
    fn default() -> Costs {
        Costs {
            irq_ns: 600,
            timer_irq_ns: 400,
            timer_start_ns: 0,
            timer_late_ns: 0,
            ipi_ns: 500,
            softirq_ns: 200,
            poll_ns: 200,
            rx_request_ns: 900,
            rx_ack_ns: 500,
            tx_done_ns: 150,
            wake_ns: 400,
            switch_ns: 800,
            epoll_call_ns: 300,
            epoll_sleep_ns: 300,
            epoll_event_ns: 50,
            busy_call_ns: 200,
            busy_round_ns: 150,
            request_sys_ns: 2_600,
            request_user_ns: 1_200,
            request_random_ns: 0,
            recv_call_ns: 200,
            recv_take_ns: 500,
            recv_sleep_ns: 300,
            rx_frame_ns: 600,
            reassemble_ns: 150,
            copy_byte_ps: 100,
            send_ns: 1_500,
            enqueue_ns: 500,
            cold_busy_ns: 0,
            tx_frame_ns: 100,
            doorbell_ns: 100,
            spin_ns: 100,
            group_look_ns: 5,
            group_pass_ns: 50,
            group_claim_ns: 40,
            dry_run_ns: 300,
            idle_shallow_exit_ns: 1_000,
            idle_deep_exit_ns: 40_000,
            idle_deep_residency_ns: 400_000,
            uncharged_in_idle: 1_024,
        }
    }
}
