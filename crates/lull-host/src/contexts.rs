//! Which epoll contexts there are on a host: for tools that show who busy polls, never for a decision.

use std::collections::BTreeMap;
use std::sync::Weak;

use lull_core::EpollParams;

use crate::sync::{Mutex, relock};

/// An epoll context, as far as tools ask it.
pub trait EpollContext: Send + Sync {
    /// How many of its sockets hear from each NAPI, by the NAPI's id.
    fn sockets(&self) -> BTreeMap<u32, usize>;

    /// Its busy-poll parameters.
    fn params(&self) -> EpollParams;
}

#[derive(Default)]
pub(crate) struct Contexts(Mutex<Listed>);

#[derive(Default)]
struct Listed {
    contexts: Vec<Weak<dyn EpollContext>>,
    /// The length at which those that are gone are taken out: twice what was alive the last time.
    sweep_at: usize,
}

impl Contexts {
    pub(crate) fn add(&self, context: Weak<dyn EpollContext>) {
        let mut listed = relock(&self.0);
        if listed.contexts.len() >= listed.sweep_at {
            listed.contexts.retain(|context| context.strong_count() != 0);
            listed.sweep_at = (2 * listed.contexts.len()).max(16);
        }
        listed.contexts.push(context);
    }

    pub(crate) fn list(&self) -> Vec<(BTreeMap<u32, usize>, EpollParams)> {
        let alive: Vec<_> = relock(&self.0).contexts.iter().filter_map(Weak::upgrade).collect();
        alive.iter().map(|context| (context.sockets(), context.params())).collect()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;

    use super::*;

    struct Plain(u32);

    impl EpollContext for Plain {
        fn sockets(&self) -> BTreeMap<u32, usize> {
            BTreeMap::from([(self.0, 1)])
        }

        fn params(&self) -> EpollParams {
            EpollParams::default()
        }
    }

    #[test]
    fn contexts_that_are_gone_are_not_listed_and_take_no_room() {
        let contexts = Contexts::default();
        let kept: Arc<dyn EpollContext> = Arc::new(Plain(7));
        contexts.add(Arc::downgrade(&kept));
        for id in 0..1_000 {
            let gone: Arc<dyn EpollContext> = Arc::new(Plain(id));
            contexts.add(Arc::downgrade(&gone));
        }
        assert_eq!(contexts.list(), [(BTreeMap::from([(7, 1)]), EpollParams::default())]);
        assert!(relock(&contexts.0).contexts.len() <= 17);
    }
}
