//! Which core has which part of the program.

use super::Settings;

/// The cores of one run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// The client's thread: it receives, and sends unless another does.
    pub client: usize,
    /// The client's sending thread.
    pub sender: Option<usize>,
    /// What polls for the client besides its own thread.
    pub client_poller: Option<usize>,
    /// The server's thread.
    pub server: usize,
    /// What polls for the server besides its own thread.
    pub server_poller: Option<usize>,
    /// Interrupts of the client's queue.
    pub client_irq: usize,
    /// Interrupts of the server's queue.
    pub server_irq: usize,
    /// Some core has several of these that spin, so that the scheduler decides about the figures.
    pub oversubscribed: bool,
}

/// A cell that this machine cannot show.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not enough cores: it takes {needs}, and there are {has}")]
pub struct NotEnoughCores {
    /// Cores that it takes.
    pub needs: usize,
    /// Cores that there are.
    pub has: usize,
}

impl Placement {
    /// Deals out `cores`. The letter's interrupts have cores of their own: so here, where some are left.
    ///
    /// # Errors
    /// There are too few, and they are not to be shared (`oversubscribe`).
    pub fn new(settings: &Settings, cores: &[usize], oversubscribe: bool) -> Result<Placement, NotEnoughCores> {
        let pollers = settings.polling.has_poller() || settings.receive_thread;
        let needs = 2 + usize::from(settings.send_thread) + 2 * usize::from(pollers);
        let oversubscribed = cores.len() < needs;
        if cores.is_empty() || (oversubscribed && !oversubscribe) {
            return Err(NotEnoughCores { needs, has: cores.len() });
        }
        let mut dealt = 0;
        let mut next = || {
            dealt += 1;
            cores[(dealt - 1) % cores.len()]
        };
        let (client, server) = (next(), next());
        let sender = settings.send_thread.then(&mut next);
        let (client_poller, server_poller) = (pollers.then(&mut next), pollers.then(&mut next));
        let spare = cores.len() >= needs + 2 && !pollers;
        let (client_irq, server_irq) =
            if spare { (next(), next()) } else { (client_poller.unwrap_or(client), server_poller.unwrap_or(server)) };
        Ok(Placement { client, sender, client_poller, server, server_poller, client_irq, server_irq, oversubscribed })
    }

    /// What the reader has to know of it.
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
            Placement::new(&Settings { send_thread, ..Settings::new(polling) }, cores, oversubscribe)
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
}
