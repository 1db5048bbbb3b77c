//! The cost of a request, as it was measured.

/// A measured cost of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestCost {
    /// CPU time of the serving thread, user and system, in nanoseconds a request (`request_cost`).
    Thread(u32),
    /// CPU time of everything on the service's cores, in nanoseconds a request (`request_cost_total`).
    Everything(u32),
    /// CPU time of the application's own part, in nanoseconds a request: without `epoll_wait` and delivery
    /// (`request_cost_own`). It is put into the world unchanged.
    Own(u32),
    /// CPU time of an AF_XDP responder for a frame that comes alone, in nanoseconds. It is given part by part
    /// (`receive_cost`, `handle_cost`, `send_cost`), and not calibrated.
    Frame(u32),
}

impl RequestCost {
    /// Returns it in nanoseconds.
    pub fn ns(self) -> u32 {
        let (RequestCost::Thread(ns) | RequestCost::Everything(ns) | RequestCost::Own(ns) | RequestCost::Frame(ns)) =
            self;
        ns
    }
}
