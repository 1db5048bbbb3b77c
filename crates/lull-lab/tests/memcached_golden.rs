//! A conversation with every command, and every reply to the byte. The replies are those of memcached 1.6.18, except
//! for the version's suffix and the CAS numbers, which memcached counts over all keys and commands.

use lull_lab::memcached::{Session, Store, StoreConfig};

const NOW_S: u32 = 1_700_000_000;

struct Client {
    store: Store,
    session: Session,
    now_s: u32,
}

impl Client {
    fn new() -> Client {
        let config = StoreConfig { shards: 1, hash_seed: Some(1), ..StoreConfig::default() };
        Client { store: Store::new(config), session: Session::new(), now_s: NOW_S }
    }

    fn ask(&mut self, request: &[u8]) -> String {
        let (mut replies, mut out, mut at) = (Vec::new(), Vec::new(), 0);
        loop {
            let fed = self.session.feed(&request[at..], &mut out, &self.store, self.now_s);
            at += fed.consumed;
            replies.append(&mut out);
            if !fed.blocked {
                assert!(fed.close || at == request.len());
                return String::from_utf8(replies).expect("text");
            }
        }
    }

    /// Sends and expects lines in which `|` stands for a line end.
    #[track_caller]
    fn expect(&mut self, request: &str, reply: &str) {
        let got = self.ask(request.replace('|', "\r\n").as_bytes());
        assert_eq!(got.replace("\r\n", "|"), reply, "to {request:?}");
    }
}

const BAD_FORMAT: &str = "CLIENT_ERROR bad command line format|";
const NON_NUMERIC: &str = "CLIENT_ERROR cannot increment or decrement non-numeric value|";
const BAD_DELTA: &str = "CLIENT_ERROR invalid numeric delta argument|";
const BAD_EXPTIME: &str = "CLIENT_ERROR invalid exptime argument|";
const BAD_DELETE: &str = "CLIENT_ERROR bad command line format.  Usage: delete <key> [noreply]|";

#[test]
fn storing_and_reading() {
    let mut client = Client::new();
    client.expect("get a|", "END|");
    client.expect("set a 5 0 5|hello|", "STORED|");
    client.expect("get a|", "VALUE a 5 5|hello|END|");
    client.expect("gets a|", "VALUE a 5 5 1|hello|END|");
    client.expect("bget a|", "VALUE a 5 5|hello|END|");
    client.expect("set a 4294967295 0 0||", "STORED|");
    client.expect("get a b a|", "VALUE a 4294967295 0||VALUE a 4294967295 0||END|");
    client.expect("add a 0 0 1|x|", "NOT_STORED|");
    client.expect("add b 0 0 1|x|", "STORED|");
    client.expect("replace b 7 0 2|yy|", "STORED|");
    client.expect("replace c 7 0 2|yy|", "NOT_STORED|");
    client.expect("append b 0 0 1|z|prepend b 9 0 1|a|get b|", "STORED|STORED|VALUE b 7 4|ayyz|END|");
    client.expect("append c 0 0 1|z|prepend c 9 0 1|a|", "NOT_STORED|NOT_STORED|");
    client.expect("set d 1 0 3 noreply|xyz|get d|", "VALUE d 1 3|xyz|END|");
    client.expect("  set  e  0  0  1 |1|get   e |", "STORED|VALUE e 0 1|1|END|");
    client.expect("set f 0 0 4|a|b|get f|", "STORED|VALUE f 0 4|a|b|END|");
    client.expect("set g 0 0 1 unknown|x|", "STORED|");
}

#[test]
fn compare_and_swap() {
    let mut client = Client::new();
    client.expect("set a 0 0 1|1|gets a|", "STORED|VALUE a 0 1 1|1|END|");
    client.expect("cas a 0 0 1 1|2|gets a|", "STORED|VALUE a 0 1 2|2|END|");
    client.expect("cas a 0 0 1 1|3|", "EXISTS|");
    client.expect("cas b 0 0 1 1|3|", "NOT_FOUND|");
    client.expect("cas a 0 0 1 2 noreply|4|get a|", "VALUE a 0 1|4|END|");
    client.expect("cas a 0 0 1|", "ERROR|");
    client.expect("cas a 0 0 1 x|q|", &format!("{BAD_FORMAT}ERROR|"));
    client.expect("cas a 0 0 1 -1|q|", &format!("{BAD_FORMAT}ERROR|"));
}

#[test]
fn numbers() {
    let mut client = Client::new();
    client.expect("set n 3 0 2|10|incr n 1|decr n 2|", "STORED|11|9|");
    client.expect("get n|", "VALUE n 3 2|9 |END|");
    client.expect("decr n 100|incr n 18446744073709551615|incr n 2|", "0|18446744073709551615|1|");
    client.expect("get n|", "VALUE n 3 20|1                   |END|");
    client.expect("incr n 4 noreply|incr n 0|incr n 1 unknown|", "5|6|");
    client.expect("incr none 1|decr none 1|incr none 1 noreply|", "NOT_FOUND|NOT_FOUND|");
    client.expect("incr n x|", BAD_DELTA);
    client.expect("decr n -1|", BAD_DELTA);
    client.expect("incr n 18446744073709551616|", BAD_DELTA);
    client.expect("incr n|incr n 1 2 3|", "ERROR|ERROR|");
    client.expect("set t 0 0 3|abc|incr t 1|", &format!("STORED|{NON_NUMERIC}"));
    client.expect("set t 0 0 0||incr t 1|", &format!("STORED|{NON_NUMERIC}"));
    client.expect("set t 0 0 3|12x|decr t 1|", &format!("STORED|{NON_NUMERIC}"));
    client.expect("set t 0 0 2|-1|incr t 1|", &format!("STORED|{NON_NUMERIC}"));
    client.expect("set t 0 0 3| 12|incr t 1|", "STORED|13|");
    client.expect("set t 0 0 21|111111111111111111111|incr t 1|", &format!("STORED|{NON_NUMERIC}"));
}

#[test]
fn deleting_touching_and_expiring() {
    let mut client = Client::new();
    client.expect("set a 0 0 1|x|delete a|delete a|", "STORED|DELETED|NOT_FOUND|");
    client.expect("delete|delete a 0|delete a 0 noreply|delete a noreply|", "ERROR|NOT_FOUND|");
    client.expect("delete a 5|", BAD_DELETE);
    client.expect("delete a 0 unknown|", BAD_DELETE);
    client.expect("delete a 0 noreply more|", "ERROR|");
    client.expect("set a 0 -1 1|x|get a|", "STORED|END|");
    client.expect("set a 0 10 1|x|set b 0 0 1|y|", "STORED|STORED|");
    client.expect("touch a 20|touch none 20|touch a 20 noreply|touch a 20 unknown|", "TOUCHED|NOT_FOUND|TOUCHED|");
    client.expect("touch a|touch a 1 2 3|", "ERROR|ERROR|");
    client.expect("touch a x|", BAD_EXPTIME);
    client.now_s += 15;
    client.expect("get a|", "VALUE a 0 1|x|END|");
    client.expect("gat 100 a none b|", "VALUE a 0 1|x|VALUE b 0 1|y|END|");
    client.expect("gats 0 b|", "VALUE b 0 1 4|y|END|");
    client.expect("gat|gat 0|", "ERROR|END|");
    client.expect("gat x a|", BAD_EXPTIME);
    client.now_s += 99;
    client.expect("get a|", "VALUE a 0 1|x|END|");
    client.now_s += 1;
    client.expect("get a b|", "VALUE b 0 1|y|END|");
    // Beyond 30 days the time is absolute.
    client.expect(&format!("set c 0 {} 1|z|get c|", client.now_s + 5), "STORED|VALUE c 0 1|z|END|");
    client.expect("set d 0 2592001 1|z|get d|", "STORED|END|");
    client.now_s += 5;
    client.expect("get c|", "END|");
}

#[test]
fn flushing() {
    let mut client = Client::new();
    client.expect("set a 0 0 1|x|flush_all|get a|", "STORED|OK|END|");
    client.expect("set a 0 0 1|x|flush_all 5|get a|", "STORED|OK|VALUE a 0 1|x|END|");
    client.now_s += 5;
    client.expect("get a|", "END|");
    client.expect("flush_all noreply|flush_all 0 noreply|flush_all x noreply|", "");
    client.expect("flush_all -1|flush_all 0 unknown|flush_all 1 2 3|", "OK|OK|ERROR|");
    client.expect("flush_all x|", BAD_EXPTIME);
}

#[test]
fn flushing_at_a_unix_time() {
    let mut client = Client::new();
    let at = client.now_s + 5;
    client.expect(&format!("set a 0 0 1|x|flush_all {at}|get a|"), "STORED|OK|VALUE a 0 1|x|END|");
    client.now_s += 4;
    client.expect("get a|", "VALUE a 0 1|x|END|");
    client.now_s += 1;
    client.expect("get a|", "END|");
    // A time in the past drops what was stored before it.
    client.expect("set old 0 0 1|x|", "STORED|");
    client.now_s += 10;
    client.expect("set new 0 0 1|y|", "STORED|");
    client.expect(&format!("flush_all {}|get old new|", client.now_s - 5), "OK|VALUE new 0 1|y|END|");
}

#[test]
fn a_nul_in_a_key_is_an_error() {
    let mut client = Client::new();
    client.expect("set a\0b 0 0 1|x|", &format!("{BAD_FORMAT}ERROR|"));
    client.expect("get a\0b|", BAD_FORMAT);
    client.expect("set a 0 0 1|\0|get a|", "STORED|VALUE a 0 1|\0|END|");
    let keys = "a ".repeat(2_000);
    client.expect(
        &format!("get {keys}a\0b|get a|"),
        &format!("{}{BAD_FORMAT}VALUE a 0 1|\0|END|", "VALUE a 0 1|\0|".repeat(2_000)),
    );
}

#[test]
fn http_closes_the_connection_before_its_body() {
    for request in [
        "POST / HTTP/1.1|Host: x||set evil 0 0 1|x|",
        "GET /|set evil 0 0 1|x|",
        "M-SEARCH * HTTP/1.1|set evil 0 0 1|x|",
    ] {
        let mut client = Client::new();
        let mut out = Vec::new();
        let fed = client.session.feed(request.replace('|', "\r\n").as_bytes(), &mut out, &client.store, NOW_S);
        assert!(fed.close, "{request}");
        assert_eq!((client.store.stats().curr_items, out.len()), (0, 0), "{request}");
    }
}

#[test]
fn the_binary_protocol_closes_the_connection_at_its_first_byte() {
    let noop = [&[0x80, 0x0a][..], &[0; 22]].concat();
    for request in [&noop[..1], &noop, b"\x80\nset evil 0 0 1\r\nx\r\n", b"version\r\n\x80version\r\n"] {
        let mut client = Client::new();
        let mut out = Vec::new();
        let fed = client.session.feed(request, &mut out, &client.store, NOW_S);
        assert!(fed.close, "{request:?}");
        let replies = if request[0] == b'v' { "VERSION 1.6.0-lull-lab\r\n" } else { "" };
        assert_eq!((client.store.stats().curr_items, &*String::from_utf8_lossy(&out)), (0, replies), "{request:?}");
    }
    // Within a line or a value it is a byte like any other.
    let mut client = Client::new();
    assert_eq!(client.ask(b"set \x80 0 0 1\r\n\x80\r\n"), "STORED\r\n");
}

#[test]
fn administration() {
    let mut client = Client::new();
    client.expect("version|version more|", "VERSION 1.6.0-lull-lab|VERSION 1.6.0-lull-lab|");
    client.expect("verbosity 1|verbosity 1 noreply|verbosity 1 2|verbosity|verbosity 1 2 3 4|", "OK|OK|ERROR|ERROR|");
    client.expect("verbosity x|verbosity x noreply|", BAD_FORMAT);
    client.expect("cache_memlimit 64|cache_memlimit 64 noreply|", "OK|");
    client.expect("cache_memlimit 7|", "MEMLIMIT_TOO_SMALL cannot set maxbytes to less than 8m|");
    client.expect("cache_memlimit|cache_memlimit x|cache_memlimit 64 2 3|", "ERROR|ERROR|ERROR|");
    client.expect("shutdown|", "ERROR: shutdown not enabled|");
    client.expect("|   |foo|Get a|mg a v|watch|slabs|lru_crawler enable|", &"ERROR|".repeat(8));
    assert_eq!(client.ask(b"\n"), "ERROR\r\n");
    assert_eq!(client.ask(b"get a\n"), "END\r\n");
    client.expect("get|gets|gat|", "ERROR|ERROR|ERROR|");
}

#[test]
fn statistics() {
    let mut client = Client::new();
    client.store.connection_opened();
    client.expect("stats items|", "END|");
    client.expect("set a 0 0 3|abc|get a b|delete b|touch a 0|", "STORED|VALUE a 0 3|abc|END|NOT_FOUND|TOUCHED|");
    let stats = client.ask(b"stats\r\n");
    for line in [
        "time 1700000000",
        "curr_connections 1",
        "total_connections 1",
        "cmd_get 2",
        "cmd_set 1",
        "cmd_touch 1",
        "get_hits 1",
        "get_misses 1",
        "delete_misses 1",
        "touch_hits 1",
        "curr_items 1",
        "total_items 1",
        "bytes 84",
        "evictions 0",
        "limit_maxbytes 1073741824",
        "version 1.6.0-lull-lab",
        "bytes_read 61",
        "bytes_written 56",
    ] {
        assert!(stats.contains(&format!("STAT {line}\r\n")), "{line} is not in {stats}");
    }
    assert!(stats.ends_with("END\r\n"));
    client.expect("stats cachedump 1 0|", "ITEM a [3 b; 0 s]|END|");
    client.expect("stats cachedump 2 0|", "END|");
    client.expect("stats cachedump 1|", "CLIENT_ERROR bad command line|");
    assert!(client.ask(b"stats items\r\n").starts_with("STAT items:1:number 1\r\n"));
    assert!(client.ask(b"stats settings\r\n").contains("STAT item_size_max 1048576\r\n"));
    client.expect("stats reset|", "RESET|");
    assert!(client.ask(b"stats\r\n").contains("STAT cmd_get 0\r\n"));
    client.expect("stats bogus|", "ERROR|");
}

#[test]
fn limits_and_mistakes() {
    let mut client = Client::new();
    let longest = "k".repeat(250);
    let too_long = "k".repeat(251);
    client.expect(&format!("set {longest} 0 0 1|x|get {longest}|"), &format!("STORED|VALUE {longest} 0 1|x|END|"));
    client.expect(&format!("get {too_long}|"), BAD_FORMAT);
    client.expect(&format!("get {longest} {too_long}|"), BAD_FORMAT);
    client.expect(&format!("set {too_long} 0 0 1|x|"), &format!("{BAD_FORMAT}ERROR|"));
    for command in ["delete", "touch", "incr"] {
        let argument = if command == "delete" { "" } else { " 1" };
        client.expect(&format!("{command} {too_long}{argument}|"), BAD_FORMAT);
    }
    for line in ["set a x 0 1", "set a -1 0 1", "set a 0 x 1", "set a 0 0 x", "set a 0 0 -1", "set a 0 0 2147483647"] {
        client.expect(&format!("{line}|y|"), &format!("{BAD_FORMAT}ERROR|"));
        client.expect(&format!("{line} noreply|y|"), "ERROR|");
    }
    client.expect("set a 0 0|set a 0 0 1 2 3 4|add|incr|touch|", "ERROR|ERROR|ERROR|ERROR|ERROR|");
    client.expect("set a 0 0 5|hellox|version|", "CLIENT_ERROR bad data chunk|ERROR|VERSION 1.6.0-lull-lab|");
    client.expect("set a 0 0 5 noreply|hellox|", "ERROR|");
}

#[test]
fn an_item_over_the_limit_is_skipped_and_leaves_no_old_value() {
    let mut client = Client::new();
    let value = "v".repeat(1 << 20);
    let too_large = "SERVER_ERROR object too large for cache|";
    client.expect("set a 0 0 1|x|", "STORED|");
    client
        .expect(&format!("set a 0 0 {}|{value}|version|", value.len()), &format!("{too_large}VERSION 1.6.0-lull-lab|"));
    client.expect("get a|", "END|");
    client.expect(&format!("set a 0 0 {} noreply|{value}|version|", value.len()), "VERSION 1.6.0-lull-lab|");
    let fits = &value[..1_048_000];
    client.expect(&format!("set a 0 0 {}|{fits}|", fits.len()), "STORED|");
    client.expect("append a 0 0 1000|", "");
    client.expect(&format!("{}|", "x".repeat(1000)), "NOT_STORED|");
}

#[test]
fn quitting_and_overlong_lines_close() {
    for (request, replies) in [
        (b"version\r\nquit\r\nversion\r\n".to_vec(), "VERSION 1.6.0-lull-lab\r\n"),
        ([b"version\r\n".to_vec(), vec![b'x'; 2049]].concat(), "VERSION 1.6.0-lull-lab\r\n"),
        ([b"set ".to_vec(), vec![b'x'; 3000], b"\r\n".to_vec()].concat(), ""),
    ] {
        let mut client = Client::new();
        let mut out = Vec::new();
        let fed = client.session.feed(&request, &mut out, &client.store, NOW_S);
        assert!(fed.close);
        assert_eq!(String::from_utf8_lossy(&out), replies);
        let fed = client.session.feed(b"version\r\n", &mut out, &client.store, NOW_S);
        assert_eq!((fed.consumed, fed.close, out.len()), (0, true, replies.len()));
    }
    let mut client = Client::new();
    client.expect(&format!("{}|", "x".repeat(2047)), "ERROR|");
    let keys = "a ".repeat(50_000);
    client.expect(&format!("set a 0 0 1|x|get {keys}|"), &format!("STORED|{}END|", "VALUE a 0 1|x|".repeat(50_000)));
}
