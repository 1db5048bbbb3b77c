//! Which epoll contexts there are on a host: for tools that show who busy polls, never for a decision.

use std::sync::{Mutex, Weak};

use lull_core::EpollParams;

use crate::cpu::relock;

/// An epoll context, as far as tools ask it.
pub trait EpollContext: Send + Sync {
    /// The ids of the NAPIs that it polls now.
    fn napi_ids(&self) -> Vec<u32>;

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

    pub(crate) fn list(&self) -> Vec<(Vec<u32>, EpollParams)> {
        let alive: Vec<_> = relock(&self.0).contexts.iter().filter_map(Weak::upgrade).collect();
        alive.iter().map(|context| (context.napi_ids(), context.params())).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    struct Plain(u32);

    impl EpollContext for Plain {
        fn napi_ids(&self) -> Vec<u32> {
            vec![self.0]
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
        assert_eq!(contexts.list(), [(vec![7], EpollParams::default())]);
        assert!(relock(&contexts.0).contexts.len() <= 17);
    }
}
