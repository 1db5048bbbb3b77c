//! Opens connections, and opens lost ones again.

use std::io;

use rustix::event::epoll;

use super::Worker;
use crate::load::LoadError;
use crate::load::clock::Clock;
use crate::load::kernel::link::{self, Link, State};

/// The number of connections that are being opened at a time, which fits into the queue of any listener.
const OPENING_MAX: usize = 64;
/// The time after which a lost connection is opened again.
const REOPEN_NS: u64 = 100_000_000;

impl Worker {
    /// Handles a socket that was connecting and has come up or failed.
    pub(super) fn connected(&mut self, index: u32) -> Result<(), LoadError> {
        let now_ns = self.clock.now_ns();
        let line = &mut self.links[index as usize];
        let State::Connecting(fd) = std::mem::replace(&mut line.state, State::Waiting) else {
            return Ok(());
        };
        self.opening -= 1;
        if let Err(error) = link::connect_result(&fd) {
            drop(fd);
            self.lose(index, now_ns, error.to_string());
            return Ok(());
        }
        line.state = State::Up(fd);
        self.established += 1;
        self.watch(index, false)?;
        self.last_progress_ns = now_ns;
        if self.running {
            self.schedule.up(index, now_ns);
        }
        Ok(())
    }

    /// Handles the loss of a connection: its requests count as lost, and it is opened again later.
    pub(super) fn lose(&mut self, index: u32, now_ns: u64, why: String) {
        let line = &mut self.links[index as usize];
        if let State::Up(_) = line.state {
            self.established -= 1;
            self.lost_connections += 1;
            let lost = if self.running { self.schedule.down(index) } else { 0 };
            self.recorder.lost(lost);
        }
        // Closing the descriptor takes it out of the epoll set.
        *line = Link::new();
        self.to_reopen.push_back((now_ns + REOPEN_NS, index));
        self.last_failure = why;
    }

    /// Opens some of the connections that wait for it, a few at a time.
    pub(super) fn open_more(&mut self, now_ns: u64) -> Result<(), LoadError> {
        while let Some((at_ns, index)) = self.to_reopen.front().copied()
            && at_ns <= now_ns
        {
            self.to_reopen.pop_front();
            self.to_open.push_back(index);
        }
        while self.opening < OPENING_MAX {
            let Some(index) = self.to_open.pop_front() else { break };
            match link::open(self.config.server) {
                Ok(fd) => {
                    let data = epoll::EventData::new_u64(u64::from(index));
                    epoll::add(&self.epoll, &fd, data, epoll::EventFlags::OUT)
                        .map_err(|error| LoadError::Os { what: "watch a socket", source: error.into() })?;
                    self.links[index as usize].state = State::Connecting(fd);
                    self.opening += 1;
                }
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                    self.lose(index, now_ns, error.to_string());
                }
                Err(source) => return Err(LoadError::Os { what: "open a connection", source }),
            }
        }
        Ok(())
    }
}
