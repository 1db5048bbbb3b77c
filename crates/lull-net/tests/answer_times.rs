//! How long requests take from the ring to the answer.

mod pair;

use lull_core::NapiSettings;
use lull_core::state::SCHED;
use lull_net::TcpStream;
use pair::Pair;

/// How many requests a run makes.
const REQUESTS: u64 = 10;

struct Ends {
    pair: Pair,
    server: TcpStream,
    client: TcpStream,
}

impl Ends {
    /// Makes a request. Returns how long it was on the way at least, and at most.
    fn ask(&self) -> (u64, u64) {
        let host = &self.pair.host;
        // A request that comes while the one before is still being completed raises its interrupt when that is done. On
        // a busy machine this may take long, and the request is timed from then on.
        let napi = self.pair.server.napis()[0];
        pair::until("the server's NAPI is complete", || !host.napis()[napi as usize].state.has(SCHED));
        let before = host.now_ns();
        self.client.send(b"?").unwrap();
        // The request is in the server's ring by now.
        let sent = host.now_ns();
        self.server.recv(&mut [0; 8]).unwrap();
        let answers = host.now_ns();
        self.server.send(b"!").unwrap();
        let answered = host.now_ns();
        self.client.recv(&mut [0; 8]).unwrap();
        (answers - sent, answered - before)
    }

    /// How many requests were timed so far at the server's end and at the client's, and the sum of the server's times
    /// in nanoseconds.
    fn timed(&self) -> (u64, u64, u64) {
        let of = |network: &lull_net::Network| self.pair.host.answer_times(network.napis()[0]).unwrap();
        let (server, client) = (of(&self.pair.server), of(&self.pair.client));
        (server.len(), client.len(), server.sum_ns())
    }
}

fn with_ends(napi: NapiSettings, test: impl FnOnce(Ends)) {
    let pair = Pair::with(1, |device| device, napi);
    // The port belongs to the service for as long as somebody listens.
    let listener = pair.listener(80);
    let client = pair.connect(80);
    let (server, _) = listener.accept().unwrap();
    test(Ends { pair, server, client });
}

#[test]
fn a_request_is_timed_at_the_end_that_serves_for_as_long_as_somebody_wants_that() {
    with_ends(NapiSettings::default(), |ends| {
        let host = &ends.pair.host;
        let napi = ends.pair.server.napis()[0];
        ends.ask();
        assert_eq!(host.answer_times(napi), None, "nobody wants to know");
        host.time_answers(true);
        let on_ns = host.now_ns();
        let least: u64 = (0..REQUESTS).map(|_| ends.ask().0).sum();
        let (of_server, of_client, sum_ns) = ends.timed();
        // What the client receives are answers, and what it sends afterwards are requests.
        assert_eq!((of_server, of_client), (REQUESTS, 0));
        assert!(sum_ns >= least, "{sum_ns} {least}");
        assert!(sum_ns <= REQUESTS * (host.now_ns() - on_ns), "{sum_ns}");
        // Data that the application sends by itself are no answer.
        ends.server.send(b"news").unwrap();
        ends.client.recv(&mut [0; 8]).unwrap();
        assert_eq!(ends.timed().0, REQUESTS);
        host.time_answers(false);
        assert_eq!(host.answer_times(napi), None);
    });
}

#[test]
fn the_wait_in_the_ring_for_a_deferred_poll_counts() {
    let deferred = NapiSettings { defer_hard_irqs: 1_000, gro_flush_timeout_ns: 20_000_000, ..NapiSettings::default() };
    with_ends(deferred, |ends| {
        // From the first poll on there is a timer in place of the interrupt.
        ends.ask();
        ends.pair.host.time_answers(true);
        let bounds: Vec<(u64, u64)> = (0..REQUESTS).map(|_| ends.ask()).collect();
        let least: u64 = bounds.iter().map(|(least, _)| least).sum();
        let (count, _, sum_ns) = ends.timed();
        assert_eq!(count, REQUESTS);
        assert!(sum_ns >= least, "{sum_ns} of at least {least}: {bounds:?}");
        // Most of the requests have waited for a timer.
        assert!(least > REQUESTS * 1_000_000, "{bounds:?}");
    });
}
