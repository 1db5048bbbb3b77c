//! A connection's life: how it is opened, what its deadlines do, and how it ends.

use super::super::connection::{Connection, NEVER, State};
use super::super::packet::{ACK, FIN, Fields, RST, SYN};
use super::{NOBODY, PORT_FIRST, Phase, REOPEN_NS, WireClient};
use crate::load::clock::Clock;

/// The number of connections that are being opened at a time, which fits into the queue of any listener.
const OPENING_MAX: usize = 64;
/// The interval at which deadlines are checked.
const SWEEP_NS: u64 = 5_000_000;
/// The number of retransmissions of a segment after which the connection counts as lost.
const RETRIES_MAX: u8 = 8;

impl<C: Clock> WireClient<C> {
    /// Handles the server's FIN: the client's goes out at once, and the connection is opened again from another port.
    pub(super) fn server_closes(&mut self, connection: u32, now_ns: u64) {
        let line = &self.connections[connection as usize];
        if line.state == State::FinSent {
            self.send_ack(connection);
        } else {
            // If this FIN is lost, the server's next segment is answered with a reset, which ends the connection as
            // well.
            let seq = line.snd_nxt;
            self.send_bare(connection, seq, FIN | ACK);
        }
        self.lose(connection, now_ns, "connection closed by the server");
    }

    pub(super) fn send_fin(&mut self, connection: u32, now_ns: u64) {
        let line = &mut self.connections[connection as usize];
        if line.state == State::Established {
            line.state = State::FinSent;
            self.established -= 1;
            line.snd_nxt = line.snd_end;
            line.snd_end = line.snd_end.wrapping_add(1);
            line.snd_max = line.snd_end;
        }
        line.rto_at = now_ns + self.round_trip.timeout_ns(line.retries);
        let (rto_at, seq) = (line.rto_at, line.snd_end.wrapping_sub(1));
        line.snd_nxt = line.snd_end;
        self.lower_deadline(connection, rto_at);
        self.send_bare(connection, seq, FIN | ACK);
    }

    /// Resets a connection.
    pub(super) fn abort(&mut self, connection: u32, now_ns: u64, why: &'static str) {
        let seq = self.connections[connection as usize].snd_nxt;
        self.send_bare(connection, seq, RST | ACK);
        self.lose(connection, now_ns, why);
    }

    /// Handles the loss of a connection: its requests count as lost, and it is opened again later.
    pub(super) fn lose(&mut self, connection: u32, now_ns: u64, why: &'static str) {
        let line = &mut self.connections[connection as usize];
        self.ports[usize::from(line.port)] = NOBODY;
        match line.state {
            State::SynSent => self.opening -= 1,
            State::Established => {
                self.established -= 1;
                self.lost_connections += 1;
                let lost = if self.phase == Phase::Idle { 0 } else { self.schedule.down(connection) };
                self.recorder.lost(lost);
            }
            State::Waiting | State::FinSent | State::Closed => {}
        }
        let closed = line.state == State::FinSent;
        *line = Connection::new();
        if closed {
            line.state = State::Closed;
            return;
        }
        self.last_failure = why;
        line.rto_at = now_ns + REOPEN_NS;
        self.lower_deadline(connection, now_ns + REOPEN_NS);
    }

    /// Opens some of the connections that wait for it, a few at a time.
    pub(super) fn open_more(&mut self, now_ns: u64) {
        if !self.peer_known {
            if now_ns >= self.next_arp_ns {
                self.next_arp_ns = now_ns + REOPEN_NS;
                let us = (self.config.local_mac, self.config.local_ip);
                self.egress.arp(true, us, ([0; 6], self.config.peer_ip));
            }
            return;
        }
        while self.opening < OPENING_MAX {
            let Some(connection) = self.to_open.pop_front() else { return };
            let port = self.free_port();
            self.ports[usize::from(port)] = connection;
            let isn = self.rng.next_u64() as u32;
            let line = &mut self.connections[connection as usize];
            *line = Connection::new();
            line.port = port;
            line.state = State::SynSent;
            (line.snd_una, line.snd_nxt) = (isn, isn.wrapping_add(1));
            (line.snd_max, line.snd_end) = (line.snd_nxt, line.snd_nxt);
            self.opening += 1;
            self.send_syn(connection, now_ns);
        }
    }

    /// Returns the next port that is not in use and whose answers come back. The limit on connections is less than half
    /// of all ports, and several clients that share a device have addresses of their own.
    fn free_port(&mut self) -> u16 {
        loop {
            let port = self.next_port;
            self.next_port = if port == u16::MAX { PORT_FIRST } else { port + 1 };
            let comes_back = self.comes_back.as_ref().is_none_or(|comes_back| comes_back(port));
            if self.ports[usize::from(port)] == NOBODY && comes_back {
                return port;
            }
        }
    }

    fn send_syn(&mut self, connection: u32, now_ns: u64) {
        let line = &mut self.connections[connection as usize];
        line.rto_at = now_ns + self.round_trip.timeout_ns(line.retries);
        let rto_at = line.rto_at;
        let fields = Fields { port: line.port, seq: line.snd_una, ack: 0, flags: SYN };
        self.egress.syn(fields, self.config.mss_bytes);
        self.lower_deadline(connection, rto_at);
    }

    /// Checks all deadlines.
    pub(super) fn sweep(&mut self, now_ns: u64) {
        self.next_sweep_ns = now_ns + SWEEP_NS;
        for connection in 0..self.deadlines.len() as u32 {
            if self.deadlines[connection as usize] <= now_ns {
                // It is set before the deadline is handled, which may lower it.
                self.deadlines[connection as usize] = NEVER;
                self.expire(connection, now_ns);
                let deadline = self.connections[connection as usize].deadline();
                self.lower_deadline(connection, deadline);
            }
        }
    }

    fn expire(&mut self, connection: u32, now_ns: u64) {
        let line = &mut self.connections[connection as usize];
        if line.ack_at <= now_ns {
            self.send_ack(connection);
        }
        let line = &mut self.connections[connection as usize];
        if line.rto_at > now_ns {
            return;
        }
        line.rto_at = NEVER;
        match line.state {
            State::Closed => return,
            State::Waiting => {
                self.to_open.push_back(connection);
                return;
            }
            State::SynSent | State::Established | State::FinSent => {}
        }
        if line.retries >= RETRIES_MAX {
            self.abort(connection, now_ns, "no answer to retransmissions");
            return;
        }
        line.retries += 1;
        line.timed_at = 0;
        match line.state {
            State::SynSent => self.send_syn(connection, now_ns),
            State::FinSent => self.send_fin(connection, now_ns),
            _ => {
                line.snd_nxt = line.snd_una;
                // A window of 0 is probed with a byte (RFC 9293, 3.8.6.1).
                line.snd_wnd = line.snd_wnd.max(1);
                self.pump(connection, now_ns);
            }
        }
    }
}
