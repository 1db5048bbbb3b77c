//! Clients that are threads of one generator, one for each context ([`GeneratorSpec`](crate::GeneratorSpec)): their turns.

use super::Clients;
use super::asking::Generator;
use crate::engine::agenda::{Event, PacketKind};
use crate::engine::env::Env;
use crate::engine::id::{ConnId, ContextId};

/// Requests that a turn sends at the most (the lab's wire client).
const SENT_MAX: usize = 32;

impl Clients {
    pub(super) fn start_generators(&mut self, env: &Env) {
        let threads = if env.world.net.generator.is_some() { env.world.contexts.len() } else { 0 };
        self.generators = (0..threads).map(|_| Generator::default()).collect();
    }

    /// The thread that has this connection, if one does.
    fn generator_of(&self, env: &Env, conn: ConnId) -> Option<ContextId> {
        self.connections[conn].context.filter(|_| env.world.net.generator.is_some())
    }

    /// A request is due. False if there is no thread to send it.
    pub(super) fn generator_sends(&mut self, env: &mut Env, conn: ConnId) -> bool {
        let Some(context) = self.generator_of(env, conn) else { return false };
        self.generators[context].due.push(conn);
        self.plan_turn(env, context);
        true
    }

    /// An answer has come. False if there is no thread to take it.
    pub(super) fn generator_takes(&mut self, env: &mut Env, conn: ConnId) -> bool {
        let Some(context) = self.generator_of(env, conn) else { return false };
        self.generators[context].answers.push(conn);
        self.plan_turn(env, context);
        true
    }

    /// What this connection sent has interrupted the server, which takes the sender its time.
    pub(super) fn generator_raises(&mut self, env: &Env, conn: ConnId) {
        if let (Some(context), Some(spec)) = (self.generator_of(env, conn), env.world.net.generator) {
            let thread = &mut self.generators[context];
            thread.busy_until_ns = thread.busy_until_ns.max(env.now_ns) + u64::from(spec.raise_ns);
        }
    }

    fn plan_turn(&mut self, env: &mut Env, context: ContextId) {
        let thread = &mut self.generators[context];
        if !std::mem::replace(&mut thread.has_turn, true) {
            env.agenda.push(thread.busy_until_ns.max(env.now_ns), Event::Generator { context });
        }
    }

    /// A turn: all answers that are there count as taken now, then what is due is sent, and all of it is seen by the device when
    /// the doorbell rings at the end.
    pub(crate) fn generator_turn(&mut self, env: &mut Env, context: ContextId) {
        let Some(spec) = env.world.net.generator else { return };
        self.generators[context].has_turn = false;
        if self.generators[context].busy_until_ns > env.now_ns {
            // It was interrupting the server when this turn was to begin.
            return self.plan_turn(env, context);
        }
        // What is issued meanwhile plans no turn of its own.
        self.generators[context].has_turn = true;
        let answers = std::mem::take(&mut self.generators[context].answers);
        for &conn in &answers {
            self.answered(env, conn);
        }
        let thread = &mut self.generators[context];
        let sent: Vec<ConnId> = thread.due.drain(..thread.due.len().min(SENT_MAX)).collect();
        let cost_ns = answers.len() as u64 * u64::from(spec.answer_ns) + sent.len() as u64 * u64::from(spec.send_ns);
        thread.busy_until_ns = env.now_ns + cost_ns;
        thread.has_turn = false;
        let goes_on = !thread.due.is_empty();
        let at_ns = thread.busy_until_ns + u64::from(env.world.net.request_ns);
        for conn in sent {
            env.agenda.push(at_ns, Event::Arrive { conn, kind: PacketKind::Request });
        }
        if goes_on {
            self.plan_turn(env, context);
        }
    }
}
