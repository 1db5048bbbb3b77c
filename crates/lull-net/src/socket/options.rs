//! The options and addresses that connections and UDP sockets have in common.

macro_rules! socket_options {
    ($socket:ident) => {
        impl $socket {
            /// Another handle of the same socket, as `clone` gives.
            ///
            /// # Errors
            /// There is none: the result has the shape of `std::net`'s.
            pub fn try_clone(&self) -> io::Result<$socket> {
                Ok(self.clone())
            }

            /// Whether calls that would block return `WouldBlock` instead (O_NONBLOCK).
            ///
            /// # Errors
            /// There is none: the result has the shape of `std::net`'s.
            pub fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
                self.0.nonblocking.store(nonblocking, Ordering::Relaxed);
                Ok(())
            }

            /// Sets how long a blocking read waits (SO_RCVTIMEO); with `None` it waits for ever.
            ///
            /// # Errors
            /// `InvalidInput` for a timeout of zero.
            pub fn set_read_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
                self.0.read_timeout_ns.store(timeout_to_ns(timeout)?, Ordering::Relaxed);
                Ok(())
            }

            /// Sets how long a blocking write waits (SO_SNDTIMEO); with `None` it waits for ever.
            ///
            /// # Errors
            /// `InvalidInput` for a timeout of zero.
            pub fn set_write_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
                self.0.write_timeout_ns.store(timeout_to_ns(timeout)?, Ordering::Relaxed);
                Ok(())
            }

            /// How long a blocking read waits (SO_RCVTIMEO); `None` stands for ever.
            ///
            /// # Errors
            /// There is none: the result has the shape of `std::net`'s.
            pub fn read_timeout(&self) -> io::Result<Option<Duration>> {
                Ok(ns_to_timeout(self.0.read_timeout_ns.load(Ordering::Relaxed)))
            }

            /// How long a blocking write waits (SO_SNDTIMEO); `None` stands for ever.
            ///
            /// # Errors
            /// There is none: the result has the shape of `std::net`'s.
            pub fn write_timeout(&self) -> io::Result<Option<Duration>> {
                Ok(ns_to_timeout(self.0.write_timeout_ns.load(Ordering::Relaxed)))
            }

            /// What is ready now, which is what `poll` would report.
            pub fn ready(&self) -> Ready {
                self.0.part.level()
            }

            /// The NAPI through which this socket's packets come (SO_INCOMING_NAPI_ID); 0 while it is disabled.
            pub fn incoming_napi_id(&self) -> u32 {
                self.0.part.napi_id()
            }

            /// Sets how long a read that finds nothing busy polls, in microseconds (SO_BUSY_POLL); 0 turns that off.
            ///
            /// # Errors
            /// The time is more than 2^31-1.
            pub fn set_busy_poll(&self, usecs: u32) -> Result<(), SettingError> {
                self.0.set_busy_poll(usecs)
            }

            /// SO_BUSY_POLL.
            pub fn busy_poll(&self) -> u32 {
                self.0.busy().usecs()
            }

            /// Polls the socket's queue if SO_BUSY_POLL is not 0 (`sk_busy_loop`). If `nonblocking`, it polls for one
            /// round, as poll and select do before they look at a socket (`sock_poll`); otherwise until there is
            /// something to read or the time is up. Returns whether SO_BUSY_POLL is not 0.
            pub fn busy_loop(&self, nonblocking: bool) -> bool {
                if self.0.busy().usecs() == 0 {
                    return false;
                }
                self.0.busy_poll(nonblocking);
                true
            }

            /// SO_PREFER_BUSY_POLL.
            ///
            /// # Errors
            /// It is set without `privileged` (CAP_NET_ADMIN).
            pub fn set_prefer_busy_poll(&self, prefer: bool, privileged: bool) -> Result<(), SettingError> {
                self.0.busy().set_prefer(prefer, privileged)
            }

            /// SO_PREFER_BUSY_POLL.
            pub fn prefer_busy_poll(&self) -> bool {
                self.0.busy().prefer()
            }

            /// SO_BUSY_POLL_BUDGET, in packets.
            ///
            /// # Errors
            /// The budget is more than 65535, or it is raised without `privileged` (CAP_NET_ADMIN).
            pub fn set_busy_poll_budget(&self, budget: u32, privileged: bool) -> Result<(), SettingError> {
                self.0.busy().set_budget(budget, privileged)
            }

            /// SO_BUSY_POLL_BUDGET.
            pub fn busy_poll_budget(&self) -> u32 {
                self.0.busy().budget()
            }

            /// Sets SO_MAX_PACING_RATE, in bytes a second; with `None` the socket is not paced. It takes effect if the
            /// network's queueing discipline is `fq`.
            ///
            /// # Errors
            /// The socket is gone, or the rate is 0 (`InvalidInput`).
            pub fn set_max_pacing_rate(&self, bytes_per_s: Option<u64>) -> io::Result<()> {
                if bytes_per_s == Some(0) {
                    return Err(io::ErrorKind::InvalidInput.into());
                }
                Ok(self.0.part.call(|stack, id, _| stack.set_pacing(id, bytes_per_s.unwrap_or(0)))?)
            }

            /// SO_MAX_PACING_RATE.
            ///
            /// # Errors
            /// The socket is gone.
            pub fn max_pacing_rate(&self) -> io::Result<Option<u64>> {
                let rate = self.0.part.call(|stack, id, _| stack.pacing(id))?;
                Ok((rate != 0).then_some(rate))
            }

            /// Sets SO_PRIORITY, from 0 to 6, or with `privileged` (CAP_NET_ADMIN) up to 15. It takes effect if the
            /// network's queueing discipline is `pfifo_fast`; `fq` lets 7 (`TC_PRIO_CONTROL`) pass all others.
            ///
            /// # Errors
            /// The priority is higher (`InvalidInput`), or the socket is gone.
            pub fn set_priority(&self, priority: u8, privileged: bool) -> io::Result<()> {
                Ok(self.0.part.call(|stack, id, _| stack.set_priority(id, priority, privileged))?)
            }

            /// SO_PRIORITY.
            ///
            /// # Errors
            /// The socket is gone.
            pub fn priority(&self) -> io::Result<u8> {
                Ok(self.0.part.call(|stack, id, _| stack.priority(id))?)
            }

            /// Sets fields of the IP headers of the socket's packets over IPv4 or IPv6 (IP_TOS and IP_TTL, IPV6_TCLASS
            /// and IPV6_UNICAST_HOPS), from the next packet on.
            ///
            /// # Errors
            /// The socket is gone.
            pub fn set_ip_fields(&self, is_v6: bool, fields: IpFields) -> io::Result<()> {
                Ok(self.0.part.call(|stack, id, _| stack.set_ip_fields(id, is_v6, fields))?)
            }

            /// Takes the pending error (SO_ERROR).
            ///
            /// # Errors
            /// The socket is gone.
            pub fn take_error(&self) -> io::Result<Option<io::Error>> {
                let error = self.0.part.call(|stack, id, _| stack.take_error(id))?;
                Ok(error.map(io::Error::from))
            }

            /// The socket's own address (getsockname).
            ///
            /// # Errors
            /// The socket is gone.
            pub fn local_addr(&self) -> io::Result<SocketAddr> {
                Ok(self.0.part.call(|stack, id, _| stack.local_addr(id))?)
            }

            /// The peer's address (getpeername).
            ///
            /// # Errors
            /// `NotConnected` if the socket has no peer.
            pub fn peer_addr(&self) -> io::Result<SocketAddr> {
                Ok(self.0.part.call(|stack, id, _| stack.peer_addr(id))?)
            }

            /// Closes one direction or both.
            ///
            /// # Errors
            /// `NotConnected` if the socket is not connected.
            pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
                Ok(self.0.part.call(|stack, id, io| stack.shutdown(id, how, io))?)
            }
        }

        impl Source for $socket {
            fn parts(&self) -> Vec<Part> {
                vec![self.0.part.clone()]
            }

            fn identity(&self) -> usize {
                self.0.identity()
            }
        }

        impl std::fmt::Debug for $socket {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_struct(stringify!($socket)).field("ready", &self.ready()).finish_non_exhaustive()
            }
        }
    };
}
pub(super) use socket_options;
