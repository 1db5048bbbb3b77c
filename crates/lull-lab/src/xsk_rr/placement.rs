//! The placement of the program's parts on cores.

use super::Settings;

/// The cores of one run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// The core of the client's thread, which receives, and also sends unless another thread does.
    pub client: usize,
    /// The core of the client's sending thread.
    pub sender: Option<usize>,
    /// The core that polls for the client besides its own thread's.
    pub client_poller: Option<usize>,
    /// The core of the server's thread.
    pub server: usize,
    /// The core that polls for the server besides its own thread's.
    pub server_poller: Option<usize>,
    /// The core of the interrupts of the client's queue.
    pub client_irq: usize,
    /// The core of the interrupts of the server's queue.
    pub server_irq: usize,
    /// Whether threads that spin share a core, so that the figures depend on the scheduler.
    pub oversubscribed: bool,
}

/// The ends that run in this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Here {
    /// Both client and server.
    Both,
    /// The client; the server is another program.
    Client,
    /// The server; the client is another program.
    Server,
}

/// This machine has too few cores for a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not enough cores: it takes {needs}, and there are {has}")]
pub struct NotEnoughCores {
    /// The number of cores that it takes.
    pub needs: usize,
    /// The number of cores that there are.
    pub has: usize,
}

impl Placement {
    /// Deals out `cores` to both ends, or to the one that runs here. As in the letter, interrupts have cores of their
    /// own, if some are left.
    ///
    /// # Errors
    ///
    /// This fails if there are too few and they are not to be shared (`oversubscribe`).
    pub fn new(
        settings: &Settings,
        here: Here,
        cores: &[usize],
        oversubscribe: bool,
    ) -> Result<Placement, NotEnoughCores> {
        let (has_client, has_server) = (here != Here::Server, here != Here::Client);
        let pollers = settings.polling.has_poller() || settings.receive_thread;
        let send_thread = has_client && settings.send_thread;
        let ends = usize::from(has_client) + usize::from(has_server);
        let needs = ends + usize::from(send_thread) + ends * usize::from(pollers);
        let oversubscribed = cores.len() < needs;
        if cores.is_empty() || (oversubscribed && !oversubscribe) {
            return Err(NotEnoughCores { needs, has: cores.len() });
        }
        let mut dealt = 0;
        let mut next = |wanted: bool| {
            dealt += usize::from(wanted);
            wanted.then(|| cores[(dealt - 1) % cores.len()])
        };
        let (client, server) = (next(has_client), next(has_server));
        let sender = next(send_thread);
        let (client_poller, server_poller) = (next(pollers && has_client), next(pollers && has_server));
        let spare = cores.len() >= needs + ends && !pollers;
        let irqs = (next(spare && has_client), next(spare && has_server));
        // An end that is not here runs nothing, so its cores do not matter.
        let (client, server) = (client.or(server).unwrap_or(cores[0]), server.or(client).unwrap_or(cores[0]));
        let client_irq = irqs.0.or(client_poller).unwrap_or(client);
        let server_irq = irqs.1.or(server_poller).unwrap_or(server);
        Ok(Placement { client, sender, client_poller, server, server_poller, client_irq, server_irq, oversubscribed })
    }

    /// Returns what the reader has to know about it.
    pub fn note(&self) -> Option<&'static str> {
        if self.oversubscribed {
            return Some("threads that spin share a core: the scheduler decides about these figures");
        }
        let own_irq = self.client_poller.is_some() || self.client_irq != self.client;
        (!own_irq).then_some("interrupts share the core of the thread that receives")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::xsk_rr::Polling;

    #[test]
    fn what_spins_has_a_core_of_its_own_or_is_refused() {
        let four: Vec<usize> = (10..14).collect();
        let place = |polling, send_thread, cores: &[usize], oversubscribe| {
            Placement::new(&Settings { send_thread, ..Settings::new(polling) }, Here::Both, cores, oversubscribe)
        };
        let inline = place(Polling::Inline, false, &four[..2], false).unwrap();
        assert_eq!((inline.client, inline.server, inline.client_irq, inline.oversubscribed), (10, 11, 10, false));
        assert!(inline.note().unwrap().contains("interrupts share"));
        let interrupts = place(Polling::Interrupts, false, &four, false).unwrap();
        assert_eq!((interrupts.client_irq, interrupts.server_irq, interrupts.note()), (12, 13, None));
        let separate = place(Polling::Separate, false, &four, false).unwrap();
        assert_eq!((separate.client_poller, separate.server_poller), (Some(12), Some(13)));
        for polling in [Polling::Separate, Polling::Threaded, Polling::ThreadedBusy, Polling::Group] {
            let refused = place(polling, true, &four, false).unwrap_err();
            assert_eq!(refused, NotEnoughCores { needs: 5, has: 4 });
            assert!(place(polling, true, &four, true).unwrap().oversubscribed);
        }
        assert!(place(Polling::Inline, false, &[], true).is_err());
    }

    #[test]
    fn one_end_takes_the_cores_of_one() {
        let settings = Settings { send_thread: true, ..Settings::new(Polling::Group) };
        let server = Placement::new(&settings, Here::Server, &[4, 5], false).unwrap();
        assert_eq!((server.server, server.server_poller, server.server_irq), (4, Some(5), 5));
        assert_eq!((server.sender, server.client_poller), (None, None));
        let lacking = Placement::new(&settings, Here::Client, &[4, 5], false).unwrap_err();
        assert_eq!(lacking, NotEnoughCores { needs: 3, has: 2 });
        let client = Placement::new(&settings, Here::Client, &[4, 5, 6], false).unwrap();
        assert_eq!((client.client, client.sender, client.client_poller, client.client_irq), (4, Some(5), Some(6), 6));
        let interrupts = Placement::new(&Settings::new(Polling::Interrupts), Here::Server, &[4, 5], false).unwrap();
        assert_eq!((interrupts.server, interrupts.server_irq), (4, 5));
    }
}
