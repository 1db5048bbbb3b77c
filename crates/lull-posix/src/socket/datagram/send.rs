//! Sending datagrams to both worlds.

use std::io::IoSlice;
use std::net::SocketAddr;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use libc::c_int;
use lull_net::{Interest, SendOptions};

use super::{Datagram, control};
use crate::errno::WOULD_BLOCK;
use crate::{Errno, Result, address, block, engine, kernel};

/// "Do not send. Only probe path f.e. for MTU" (`include/linux/socket.h`): nothing leaves (`ip_make_skb`).
pub(crate) const MSG_PROBE: c_int = 0x10;

impl Datagram {
    /// Sends one datagram, to the address `to` if it has bytes.
    pub(crate) fn send(
        &self,
        fd: c_int,
        data: &[IoSlice<'_>],
        to: &[u8],
        ancillary: &[u8],
        flags: c_int,
    ) -> Result<usize> {
        let dont_wait = self.is_nonblocking() || flags & libc::MSG_DONTWAIT != 0;
        // Whatever else is wrong with the call (`inet_send_prepare`).
        self.find_port(fd)?;
        // On a socket of IPv6 the destination is looked at before the data, on one of IPv4 behind them (`udpv6_sendmsg`, `udp_sendmsg`).
        if self.domain == libc::AF_INET6 && !self.cork.waits() {
            match to {
                [] if !self.has_peer() => return Err(Errno::new(libc::EDESTADDRREQ)),
                [] => {}
                to => drop(self.address_of(to)?),
            }
        }
        let bytes = data.iter().map(|part| part.len()).sum::<usize>();
        if bytes > usize::from(u16::MAX) {
            return Err(Errno::new(libc::EMSGSIZE));
        }
        if flags & libc::MSG_OOB != 0 {
            return Err(Errno::new(libc::EOPNOTSUPP));
        }
        if self.cork.waits() {
            return self.append(data, flags);
        }
        let to_address = if to.is_empty() { None } else { Some(self.destination(to)?) };
        // Without a destination the datagram goes to the peer, which is lull's: a peer of the kernel's would have made
        // the socket the kernel's.
        if let Some(to_address) = to_address
            && self.wildcard.load(Relaxed)
            && !engine::reaches(to_address.ip())
        {
            // A pending error belongs to the socket, whichever half it came to.
            if let Some(error) = self.sockets.take_error()? {
                return Err(error);
            }
            let call = || kernel::sendmsg(fd, data, to, ancillary, flags | libc::MSG_DONTWAIT);
            return match call() {
                Err(WOULD_BLOCK) if !dont_wait => block::until_taken(fd, self.options.send_timeout(), call),
                sent => sent,
            };
        }
        if let Some(to_address) = to_address
            && engine::is_broadcast(to_address.ip())
            && kernel::int_option(fd, libc::SOL_SOCKET, libc::SO_BROADCAST) != Ok(1)
        {
            return Err(Errno::new(libc::EACCES));
        }
        let asked = self.asked(ancillary, to_address)?;
        if flags & MSG_PROBE != 0 {
            let has_where = to_address.is_some() || self.has_peer();
            return if has_where { Ok(bytes) } else { Err(Errno::new(libc::EDESTADDRREQ)) };
        }
        if flags & libc::MSG_MORE != 0 || self.cork.is_on() {
            return self.begin(data, to_address, asked);
        }
        self.send_whole(data, to_address, asked, flags)
    }

    /// What is asked for a datagram by ancillary data, and by the socket's options.
    #[inline]
    fn asked(&self, ancillary: &[u8], to_address: Option<SocketAddr>) -> Result<SendOptions> {
        let each_bytes = self.each_bytes.load(Relaxed);
        if ancillary.is_empty() {
            return Ok(SendOptions { each_bytes, ..SendOptions::default() });
        }
        let goes_to = match to_address {
            Some(to) => to,
            None => self.peer().ok_or(Errno::new(libc::EDESTADDRREQ))??,
        };
        let asked = control::asked(ancillary, each_bytes, self.domain, goes_to.is_ipv6())?;
        match asked.from {
            // `ip_route_output_key_hash_rcu`, `ip6_datagram_send_ctl`.
            Some(from) if !engine::is_own(from) => {
                Err(Errno::new(if from.is_ipv4() { libc::ENETUNREACH } else { libc::EINVAL }))
            }
            _ => Ok(asked),
        }
    }

    /// Sends one datagram by lull, or several at once.
    pub(super) fn send_whole(
        &self,
        data: &[IoSlice<'_>],
        to_address: Option<SocketAddr>,
        asked: SendOptions,
        flags: c_int,
    ) -> Result<usize> {
        let dont_wait = self.is_nonblocking() || flags & libc::MSG_DONTWAIT != 0;
        let mut until = None;
        loop {
            match self.sockets.send(data, to_address, asked) {
                Err(WOULD_BLOCK) if !dont_wait => {}
                sent => return sent,
            }
            let timeout = self.options.send_timeout();
            let until = *until.get_or_insert_with(|| timeout.map(|timeout| Instant::now() + timeout));
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            if !block::until_ready(&self.sockets, Interest::WRITABLE, None, left)? {
                return Err(WOULD_BLOCK);
            }
        }
    }

    fn destination(&self, to: &[u8]) -> Result<SocketAddr> {
        let to = self.address_of(to)?;
        if to.port() == 0 { Err(Errno::new(libc::EINVAL)) } else { Ok(to) }
    }

    /// `udp_sendmsg`, `udpv6_sendmsg`: an IPv4 address will do for an IPv6 socket, and one without a family for an IPv4 one.
    fn address_of(&self, to: &[u8]) -> Result<SocketAddr> {
        let family = address::family(to).ok_or(Errno::new(libc::EINVAL))?;
        if (family, self.domain) == (libc::AF_UNSPEC, libc::AF_INET) {
            let named = [&(libc::AF_INET as u16).to_ne_bytes(), &to[2..]].concat();
            return self.address_of(&named);
        }
        let fits = family == self.domain || self.domain == libc::AF_INET6 && family == libc::AF_INET;
        if !fits {
            return Err(Errno::new(if self.domain == libc::AF_INET { libc::EAFNOSUPPORT } else { libc::EINVAL }));
        }
        address::parse(to).ok_or(Errno::new(libc::EINVAL))
    }
}
