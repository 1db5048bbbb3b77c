//! How a socket's frames are to leave: priority and rate, which queueing disciplines heed, and what their IP headers say.
//!
//! Few sockets ask for either, and a connection has no room for what few need, so those of connections are in a table
//! of their own.

use super::device::Leaving;
use super::error::NetError;
use super::socket::{Egress, SocketId, SocketKind};
use super::stack::Stack;
use super::wire::IpFields;

/// The largest priority that takes no privilege (`sk_setsockopt`: 0 to 6 without CAP_NET_ADMIN).
pub const PRIORITY_MAX: u8 = 6;
/// The largest that a discipline tells from others (`TC_PRIO_MAX`).
pub const PRIORITY_PRIVILEGED_MAX: u8 = lull_qdisc::PRIORITY_MAX;

impl Stack {
    /// How the frames of a connection leave.
    #[inline]
    pub(super) fn leaves_as(&self, index: u32) -> Leaving {
        if !self.egress.is_empty() {
            return self.leaves_as_asked(index);
        }
        let generation = self.connections.generation(index);
        Leaving { sender: Egress::default().sender(SocketKind::Tcp, index, generation), ip: IpFields::default() }
    }

    #[cold]
    fn leaves_as_asked(&self, index: u32) -> Leaving {
        let egress = self.egress_of(index);
        let is_v6 = self.connections.get(index).is_some_and(|connection| connection.flow.remote().is_ipv6());
        let sender = egress.sender(SocketKind::Tcp, index, self.connections.generation(index));
        Leaving { sender, ip: egress.ip[usize::from(is_v6)] }
    }

    #[cold]
    pub(super) fn egress_of(&self, index: u32) -> Egress {
        self.egress.get(&index).copied().unwrap_or_default()
    }

    fn egress(&self, id: SocketId) -> Result<Egress, NetError> {
        match id.kind() {
            SocketKind::Udp => Ok(self.udp(id)?.egress),
            SocketKind::Tcp => self.connection(id).map(|_| self.egress_of(id.index())),
            SocketKind::Listener => Err(NetError::InvalidSocket),
        }
    }

    fn set_egress(&mut self, id: SocketId, egress: Egress) -> Result<(), NetError> {
        match id.kind() {
            SocketKind::Udp => self.udp_mut(id)?.egress = egress,
            SocketKind::Tcp if egress == Egress::default() => {
                self.connection(id)?;
                self.egress.remove(&id.index());
            }
            SocketKind::Tcp => {
                self.connection(id)?;
                self.egress.insert(id.index(), egress);
            }
            SocketKind::Listener => return Err(NetError::InvalidSocket),
        }
        Ok(())
    }

    /// SO_MAX_PACING_RATE, in bytes a second; 0: none. In force where the queue has the discipline `fq`.
    ///
    /// # Errors
    /// [`NetError::InvalidSocket`].
    pub fn set_pacing(&mut self, id: SocketId, bytes_per_s: u64) -> Result<(), NetError> {
        let egress = self.egress(id)?;
        self.set_egress(id, Egress { pacing_bytes_per_s: bytes_per_s, ..egress })
    }

    /// SO_MAX_PACING_RATE; 0: none.
    ///
    /// # Errors
    /// [`NetError::InvalidSocket`].
    pub fn pacing(&self, id: SocketId) -> Result<u64, NetError> {
        Ok(self.egress(id)?.pacing_bytes_per_s)
    }

    /// SO_PRIORITY. In force where the queue has the discipline `pfifo_fast`.
    ///
    /// # Errors
    /// [`NetError::InvalidSocket`]; [`NetError::Invalid`]: above [`PRIORITY_MAX`] without `privileged`, or above
    /// [`PRIORITY_PRIVILEGED_MAX`].
    pub fn set_priority(&mut self, id: SocketId, priority: u8, privileged: bool) -> Result<(), NetError> {
        if priority > if privileged { PRIORITY_PRIVILEGED_MAX } else { PRIORITY_MAX } {
            return Err(NetError::Invalid);
        }
        let egress = self.egress(id)?;
        self.set_egress(id, Egress { priority, ..egress })
    }

    /// What the headers of the socket's packets say over IPv4, or over IPv6 (IP_TOS and IP_TTL, IPV6_TCLASS and IPV6_UNICAST_HOPS).
    ///
    /// # Errors
    /// [`NetError::InvalidSocket`].
    pub fn set_ip_fields(&mut self, id: SocketId, is_v6: bool, fields: IpFields) -> Result<(), NetError> {
        let mut egress = self.egress(id)?;
        egress.ip[usize::from(is_v6)] = fields;
        self.set_egress(id, egress)
    }

    /// SO_PRIORITY.
    ///
    /// # Errors
    /// [`NetError::InvalidSocket`].
    pub fn priority(&self, id: SocketId) -> Result<u8, NetError> {
        Ok(self.egress(id)?.priority)
    }
}
