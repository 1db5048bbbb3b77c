//! The turns of clients that are threads of one generator, one for each context
//! ([`GeneratorSpec`](crate::GeneratorSpec)).

use super::Clients;
use super::asking::Generator;
use crate::engine::agenda::{Event, PacketKind};
use crate::engine::env::Env;
use crate::engine::id::{ConnId, ContextId};

/// How many requests a turn sends at the most (as the lab's wire client).
const SENT_MAX: usize = 32;

impl Clients {
    pub(super) fn start_generators(&mut self, env: &Env) {
        let threads = if env.world.net.generator.is_some() { env.world.contexts.len() } else { 0 };
        self.generators = (0..threads).map(|_| Generator::default()).collect();
    }

    /// Returns the thread that has this connection, if one does.
    fn generator_of(&self, env: &Env, conn: ConnId) -> Option<ContextId> {
        self.connections[conn].context.filter(|_| env.world.net.generator.is_some())
    }

    /// A request is due. Returns false if there is no thread to send it.
    pub(super) fn generator_sends(&mut self, env: &mut Env, conn: ConnId) -> bool {
        let Some(context) = self.generator_of(env, conn) else { return false };
        self.generators[context].due.push(conn);
        self.plan_turn(env, context);
        true
    }

    /// An answer has come. Returns false if there is no thread to take it.
    pub(super) fn generator_takes(&mut self, env: &mut Env, conn: ConnId) -> bool {
        let Some(context) = self.generator_of(env, conn) else { return false };
        self.generators[context].answers.push(conn);
        self.plan_turn(env, context);
        true
    }

    /// A packet of this connection has interrupted the server, which costs the sending thread its time.
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

    /// Runs a turn: all answers that are there are taken now, then the due requests are sent, and the device sees all
    /// of them when the doorbell rings at the end.
    pub(crate) fn generator_turn(&mut self, env: &mut Env, context: ContextId) {
        let Some(spec) = env.world.net.generator else { return };
        self.generators[context].has_turn = false;
        if self.generators[context].busy_until_ns > env.now_ns {
            // The thread was interrupting the server when this turn was to begin.
            return self.plan_turn(env, context);
        }
        // Requests that are issued meanwhile plan no turn of their own.
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
