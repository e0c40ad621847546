//! The near half with a cache: what it answers itself, what it asks anew, and what it never shares.

use std::net::SocketAddr;

use super::*;
use crate::http::config::INDEX_MAX;
use crate::http::shared::HttpCalendar;

/// 1 January 2026, 00:00:00 GMT.
const EPOCH_MS: u64 = 1_767_225_600_000;

fn cache() -> SharedCache {
    let server = SocketAddr::from(([198, 18, 2, 2], 80));
    let calendar = HttpCalendar {
        now: Time::ZERO,
        since_1970: Duration::from_millis(EPOCH_MS),
    };
    SharedCache::new(calendar, INDEX_MAX).for_flow(0, server)
}

/// Clients of one site, one after the other, each on its own connection.
pub(super) struct CachingSite {
    pub(super) cache: SharedCache,
    now: Time,
}

/// One connection of a client.
pub(super) struct ClientConnection(pub(super) HttpHalfPair);

impl CachingSite {
    pub(super) fn new() -> Self {
        Self {
            cache: cache(),
            now: Time::ZERO,
        }
    }

    pub(super) fn wait(&mut self, seconds: u64) {
        self.now += Duration::from_secs(seconds);
    }

    /// The connection of a client, with this number.
    pub(super) fn connect_as(&self, flow: u64) -> HttpHalfPair {
        let server = SocketAddr::from(([198, 18, 2, 2], 80));
        let mut pair = HttpHalfPair::with(Some(self.cache.for_flow(flow, server)));
        pair.now = self.now;
        pair.flow = flow;
        pair
    }

    pub(super) fn connect(&self) -> ClientConnection {
        let mut pair = HttpHalfPair::with(Some(self.cache.clone()));
        pair.now = self.now;
        ClientConnection(pair)
    }

    /// Asks on a new connection: what the server is asked, and what the client gets once it has answered so.
    pub(super) fn ask(&self, request: &str, response: &str) -> (String, String) {
        self.connect().ask(request, response)
    }

    /// The same for a GET of `/`, with more fields; whether the server was asked, and the answer.
    pub(super) fn get(&self, fields: &str, response: &str) -> (bool, String) {
        let request = format!("GET / HTTP/1.1\r\nHost: a\r\n{fields}\r\n");
        let (asked, got) = self.ask(&request, response);
        (!asked.is_empty(), got)
    }
}

impl ClientConnection {
    fn ask(&mut self, request: &str, response: &str) -> (String, String) {
        let before = (self.0.to_server.len(), self.0.to_client.len());
        self.0.say(WanEnd::Near, request.as_bytes());
        let asked = self.0.to_server[before.0..].to_vec();
        if !asked.is_empty() {
            self.0.say(WanEnd::Far, response.as_bytes());
        }
        let got = self.0.to_client[before.1..].to_vec();
        (
            String::from_utf8(asked).unwrap(),
            String::from_utf8(got).unwrap(),
        )
    }
}

pub(super) fn ok(fields: &str, content: &str) -> String {
    let length = content.len();
    format!("HTTP/1.1 200 OK\r\n{fields}Content-Length: {length}\r\n\r\n{content}")
}

#[test]
fn a_fresh_response_answers_the_next_client_with_its_age() {
    let mut site = CachingSite::new();
    let response = ok("Cache-Control: max-age=60\r\nX: y\r\n", "hello");
    assert_eq!(site.get("", &response), (true, response.clone()));
    site.wait(59);
    let (asked, got) = site.get("", "");
    assert!(!asked);
    assert!(
        got.starts_with(
            "HTTP/1.1 200 OK\r\nCache-Control: max-age=60\r\nX: y\r\nContent-Length: 5\r\n"
        ),
        "{got}"
    );
    assert!(
        got.contains("\r\nAge: 59\r\n") && got.ends_with("\r\n\r\nhello"),
        "{got}"
    );
    site.wait(1);
    let newer = ok("Cache-Control: max-age=60\r\n", "newer");
    assert_eq!(site.get("", &newer), (true, newer.clone()));
    assert!(site.get("", "").1.ends_with("newer"));
}

#[test]
fn confirmation_with_too_many_fields_is_used_once() {
    let mut site = CachingSite::new();
    let fields = |from: u32| (from..from + 150).map(|n| format!("X-{n}: y\r\n"));
    let tagged = "Cache-Control: max-age=10\r\nETag: \"1\"\r\n".to_owned();
    let stored = ok(&(tagged + &fields(0).collect::<String>()), "hello");
    site.get("", &stored);
    site.wait(11);
    let more: String = fields(150).collect();
    let confirmed = format!("HTTP/1.1 304 Not Modified\r\nETag: \"1\"\r\n{more}\r\n");
    let (asked, got) = site.get("", &confirmed);
    assert!(asked && got.ends_with("hello"), "{got}");
    assert_eq!(site.get("", &stored), (true, stored));
}

#[test]
fn unknown_confirmation_is_followed_by_the_whole_request() {
    let mut site = CachingSite::new();
    site.get(
        "",
        &ok("Cache-Control: max-age=10\r\nETag: \"1\"\r\n", "hello"),
    );
    site.wait(11);
    let mut connection = site.connect();
    // The response that the server speaks of was never here.
    let other = "HTTP/1.1 304 Not Modified\r\nETag: \"2\"\r\n\r\n";
    let request = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
    let next = "GET /next HTTP/1.1\r\nHost: a\r\n\r\n";
    connection
        .0
        .say(WanEnd::Near, [request, next].concat().as_bytes());
    let before = connection.0.to_server.len();
    connection.0.say(WanEnd::Far, other.as_bytes());
    assert_eq!(connection.0.to_client, b"");
    let asked = String::from_utf8_lossy(&connection.0.to_server[before..]).into_owned();
    assert!(asked.starts_with(request), "{asked}");
    let newer = ok("Cache-Control: max-age=10\r\nETag: \"2\"\r\n", "world");
    connection.0.say(WanEnd::Far, newer.as_bytes());
    connection.0.say(WanEnd::Far, ok("", "next").as_bytes());
    let got = String::from_utf8_lossy(&connection.0.to_client).into_owned();
    assert_eq!(got, [newer, ok("", "next")].concat());
    assert!(connection.0.to_server.ends_with(next.as_bytes()));
    assert!(site.get("", "").1.ends_with("world"));
}

#[test]
fn confirmation_speaks_of_the_response_asked_about() {
    let mut site = CachingSite::new();
    let response = |tag: u8, content: &str| {
        let fields = format!("Cache-Control: max-age=10\r\nETag: \"{tag}\"\r\n");
        ok(&fields, content)
    };
    site.get("", &response(1, "hello"));
    site.wait(11);
    let mut connection = site.connect();
    let request = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
    connection.0.say(WanEnd::Near, request.as_bytes());
    // Another client has fetched a newer one since.
    site.get("Cache-Control: no-cache\r\n", &response(2, "world"));
    site.wait(5);
    connection.0.now = site.now;
    connection
        .0
        .say(WanEnd::Far, b"HTTP/1.1 304 Not Modified\r\n\r\n");
    let got = String::from_utf8_lossy(&connection.0.to_client).into_owned();
    assert!(
        got.contains("ETag: \"1\"") && got.ends_with("hello"),
        "{got}"
    );
    let (asked, got) = site.get("", "");
    assert!(
        !asked && got.contains("\r\nAge: 5\r\n") && got.ends_with("world"),
        "{got}"
    );
}

#[test]
fn a_chunked_response_is_stored_without_its_chunks() {
    let site = CachingSite::new();
    let response = "HTTP/1.1 200 OK\r\nCache-Control: max-age=60\r\nTransfer-Encoding: chunked\r\n\r\n\
        3\r\nabc\r\n2\r\nde\r\n0\r\nTrailer: x\r\n\r\n";
    assert_eq!(site.get("", response), (true, response.to_owned()));
    let (asked, got) = site.get("", "");
    assert!(
        !asked && got.ends_with("\r\n\r\nabcde") && !got.contains("ransfer"),
        "{got}"
    );
    // A HEAD gets the head alone.
    let (asked, got) = site.ask("HEAD / HTTP/1.1\r\nHost: a\r\n\r\n", "");
    assert!(asked.is_empty() && got.contains("Content-Length: 5\r\n") && got.ends_with("\r\n\r\n"));
}

#[test]
fn a_stale_response_costs_one_conditional_request() {
    let mut site = CachingSite::new();
    let response = ok(
        "Cache-Control: max-age=10\r\nETag: \"1\"\r\nX: old\r\n",
        "hello",
    );
    site.get("", &response);
    site.wait(11);
    let mut connection = site.connect();
    let confirmed = "HTTP/1.1 304 Not Modified\r\nETag: \"1\"\r\nX: new\r\n\r\n";
    let (asked, got) = connection.ask("GET / HTTP/1.1\r\nHost: a\r\n\r\n", confirmed);
    assert_eq!(
        asked,
        "GET / HTTP/1.1\r\nHost: a\r\nIf-None-Match: \"1\"\r\n\r\n"
    );
    assert!(
        got.starts_with("HTTP/1.1 200 OK\r\n") && got.contains("X: new\r\n"),
        "{got}"
    );
    assert!(
        !got.contains("old") && got.ends_with("\r\n\r\nhello"),
        "{got}"
    );
    // It is fresh again.
    site.wait(5);
    assert!(!site.get("", "").0);
    // And it goes when there is a new one.
    site.wait(11);
    let newer = ok("Cache-Control: max-age=10\r\nETag: \"2\"\r\n", "world");
    assert_eq!(site.get("", &newer), (true, newer.clone()));
    assert!(site.get("", "").1.ends_with("world"));
}

#[test]
fn pipelined_answers_keep_their_order() {
    let site = CachingSite::new();
    let get = |path: &str| format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n");
    site.ask(
        &get("/stored"),
        &ok("Cache-Control: max-age=60\r\n", "stored"),
    );
    let mut pair = site.connect().0;
    let requests = [get("/1"), get("/stored"), get("/2"), get("/stored")].concat();
    pair.say(WanEnd::Near, requests.as_bytes());
    // What is stored waits for its turn, and so does what comes behind it.
    assert_eq!(pair.to_server, get("/1").as_bytes());
    assert_eq!(pair.to_client, b"");
    pair.say(WanEnd::Far, ok("", "first").as_bytes());
    assert_eq!(pair.to_server, [get("/1"), get("/2")].concat().as_bytes());
    pair.say(WanEnd::Far, ok("", "second").as_bytes());
    let got = String::from_utf8(pair.to_client).unwrap();
    let places = ["first", "stored", "second", "stored"];
    let mut rest = &got[..];
    for place in places {
        let at = rest.find(&format!("\r\n\r\n{place}")).expect(place);
        rest = &rest[at + 4 + place.len()..];
    }
    assert_eq!(rest, "");
}

/// Two clients and a private response: it is never shared, whichever of the ways says that it is private.
#[test]
fn a_private_response_is_never_given_to_another_client() {
    let authorized = "Authorization: Basic eDp5\r\n";
    for (request, response) in [
        ("", "Cache-Control: private, max-age=60\r\n"),
        ("", "Cache-Control: max-age=60, private=\"x-user\"\r\n"),
        (
            "",
            "Cache-Control: no-store\r\nExpires: Fri, 01 Jan 2027 00:00:00 GMT\r\n",
        ),
        (
            "",
            "Cache-Control: max-age=60\r\nCDN-Cache-Control: private\r\n",
        ),
        ("", "Cache-Control: max-age=60\r\nSet-Cookie: session=1\r\n"),
        ("", "Cache-Control: max-age=60\r\nVary: *\r\n"),
        (authorized, "Cache-Control: max-age=60\r\n"),
        (authorized, "Expires: Fri, 01 Jan 2027 00:00:00 GMT\r\n"),
        (
            "Cache-Control: no-store\r\n",
            "Cache-Control: max-age=60\r\n",
        ),
    ] {
        let site = CachingSite::new();
        let secret = ok(response, "secret");
        assert_eq!(site.get(request, &secret), (true, secret.clone()));
        let other = ok("", "other");
        for fields in ["", request, "Cache-Control: max-stale\r\n"] {
            assert_eq!(
                site.get(fields, &other),
                (true, other.clone()),
                "{response}"
            );
        }
        let (_, got) = site.get("Cache-Control: only-if-cached\r\n", "");
        assert!(got.starts_with("HTTP/1.1 504 "), "{got}");
    }
}

#[test]
fn variants_are_told_apart_by_the_fields_that_vary_names() {
    let site = CachingSite::new();
    let variant = |content: &str| {
        ok(
            "Cache-Control: max-age=60\r\nVary: Accept-Language, X\r\n",
            content,
        )
    };
    let german = "Accept-Language: de\r\n";
    assert!(site.get(german, &variant("deutsch")).0);
    assert!(site.get("Accept-Language: en\r\n", &variant("english")).0);
    assert!(site.get("", &variant("none")).0);
    assert!(
        site.get("Accept-Language: de\r\nX: 1\r\n", &variant("deutsch 1"))
            .0
    );
    for (fields, content) in [
        ("Accept-Language: DE\r\n", "deutsch"),
        ("Accept-Language: en\r\nAccept: x\r\n", "english"),
        ("", "none"),
        ("X: 1\r\nAccept-Language: de\r\n", "deutsch 1"),
    ] {
        let (asked, got) = site.get(fields, "");
        assert!(
            !asked && got.ends_with(&format!("\r\n\r\n{content}")),
            "{got}"
        );
    }
}

#[test]
fn many_variants_displace_each_other_and_take_no_more_memory() {
    let site = CachingSite::new();
    for number in 0..10_000 {
        let response = ok("Cache-Control: max-age=60\r\nVary: User-Agent\r\n", "x");
        assert!(site.get(&format!("User-Agent: {number}\r\n"), &response).0);
    }
    site.cache.with(|shared| {
        let index = &shared.index;
        assert!(index.len() <= 16 && index.held() < 64 * 1024, "{index:?}");
    });
}

#[test]
fn an_unsafe_request_that_succeeds_invalidates_what_it_changes() {
    for (status, is_gone) in [
        (200, true),
        (204, true),
        (302, true),
        (404, false),
        (500, false),
    ] {
        let site = CachingSite::new();
        site.get("", &ok("Cache-Control: max-age=60\r\n", "old"));
        site.ask(
            "GET /other HTTP/1.1\r\nHost: a\r\n\r\n",
            &ok("Cache-Control: max-age=60\r\n", "old"),
        );
        let changed =
            format!("HTTP/1.1 {status} x\r\nLocation: /other\r\nContent-Length: 0\r\n\r\n");
        let changed = changed.replace(
            "Content-Length: 0\r\n",
            if status == 204 {
                ""
            } else {
                "Content-Length: 0\r\n"
            },
        );
        site.ask(
            "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\nx",
            &changed,
        );
        assert_eq!(site.get("", &ok("", "new")).0, is_gone, "{status}");
        let (asked, _) = site.ask("GET /other HTTP/1.1\r\nHost: a\r\n\r\n", &ok("", "new"));
        assert_eq!(!asked.is_empty(), is_gone, "{status}");
    }
}

/// Cache poisoning: what is not part of the key must not reach another client.
#[test]
fn hosts_servers_and_targets_are_kept_apart() {
    let site = CachingSite::new();
    let response = ok("Cache-Control: max-age=60\r\n", "a");
    site.get("", &response);
    let other = ok("", "other");
    let ask = |request: &str| site.ask(request, &other).0;
    // Another Host, another target, another server.
    assert!(!ask("GET / HTTP/1.1\r\nHost: b\r\n\r\n").is_empty());
    assert!(!ask("GET /?x HTTP/1.1\r\nHost: a\r\n\r\n").is_empty());
    let elsewhere = SocketAddr::from(([198, 18, 2, 3], 80));
    let elsewhere = CachingSite {
        cache: site.cache.for_flow(0, elsewhere),
        now: site.now,
    };
    assert!(elsewhere.get("", &other).0);
    // The same URL in absolute form is the same; with another Host beside it takes no part.
    assert!(ask("GET http://A:80/ HTTP/1.1\r\nHost: a\r\n\r\n").is_empty());
    assert!(!ask("GET http://a/ HTTP/1.1\r\nHost: b\r\n\r\n").is_empty());
    let poison = ok("Cache-Control: max-age=60\r\n", "poison");
    site.ask("GET http://a/p HTTP/1.1\r\nHost: evil\r\n\r\n", &poison);
    for host in ["a", "evil"] {
        assert!(!ask(&format!("GET /p HTTP/1.1\r\nHost: {host}\r\n\r\n")).is_empty());
    }
    // A fragment, or a byte that servers read differently, is not stored.
    site.ask("GET /q#x HTTP/1.1\r\nHost: a\r\n\r\n", &poison);
    assert!(!ask("GET /q#x HTTP/1.1\r\nHost: a\r\n\r\n").is_empty());
}

#[test]
fn a_response_that_is_cut_short_is_not_stored() {
    let site = CachingSite::new();
    let mut pair = site.connect().0;
    pair.say(WanEnd::Near, b"GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    pair.say(
        WanEnd::Far,
        b"HTTP/1.1 200 OK\r\nCache-Control: max-age=60\r\nContent-Length: 5\r\n\r\nhel",
    );
    pair.tell(WanEnd::Far, AcceleratorInput::LanFinished);
    assert!(pair.client_finished);
    assert!(site.get("", &ok("", "whole")).0);
    // So is one whose end is the connection's, since a cut looks the same.
    let mut pair = site.connect().0;
    pair.say(WanEnd::Near, b"GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    pair.say(
        WanEnd::Far,
        b"HTTP/1.1 200 OK\r\nCache-Control: max-age=60\r\n\r\nhel",
    );
    pair.tell(WanEnd::Far, AcceleratorInput::LanFinished);
    assert!(site.get("", &ok("", "whole")).0);
}

#[test]
fn stale_responses_stand_in_for_errors_only_where_that_is_allowed() {
    let error = "HTTP/1.1 503 x\r\nContent-Length: 4\r\n\r\nfail";
    for (fields, stands_in) in [
        (
            "Cache-Control: max-age=10, stale-if-error=60\r\nETag: \"1\"\r\n",
            true,
        ),
        ("Cache-Control: max-age=10\r\nETag: \"1\"\r\n", false),
        (
            "Cache-Control: max-age=10, stale-if-error=60, must-revalidate\r\nETag: \"1\"\r\n",
            false,
        ),
        (
            "Cache-Control: s-maxage=10, stale-if-error=60\r\nETag: \"1\"\r\n",
            false,
        ),
        (
            "Cache-Control: max-age=10, stale-if-error=3\r\nETag: \"1\"\r\n",
            false,
        ),
    ] {
        let mut site = CachingSite::new();
        site.get("", &ok(fields, "stored"));
        site.wait(15);
        let (asked, got) = site.get("", error);
        assert!(asked);
        assert_eq!(got.ends_with("stored"), stands_in, "{fields}: {got}");
        assert_eq!(got == error, !stands_in);
    }
}

#[test]
fn stale_while_revalidate_answers_at_once_and_asks_behind_it() {
    let mut site = CachingSite::new();
    site.get(
        "",
        &ok(
            "Cache-Control: max-age=10, stale-while-revalidate=60\r\nETag: \"1\"\r\n",
            "one",
        ),
    );
    site.wait(20);
    let mut connection = site.connect();
    let newer = ok(
        "Cache-Control: max-age=10, stale-while-revalidate=60\r\nETag: \"2\"\r\n",
        "two",
    );
    let (asked, got) = connection.ask("GET / HTTP/1.1\r\nHost: a\r\n\r\n", &newer);
    assert!(asked.contains("If-None-Match: \"1\""), "{asked}");
    assert!(got.ends_with("\r\n\r\none"), "{got}");
    let (asked, got) = connection.ask("GET / HTTP/1.1\r\nHost: a\r\n\r\n", "");
    assert!(asked.is_empty() && got.ends_with("\r\n\r\ntwo"), "{got}");
}

#[test]
fn long_responses_are_stored_behind_a_slow_answer() {
    let mut site = CachingSite::new();
    let fields = "Cache-Control: max-age=10, stale-while-revalidate=60\r\nETag: \"1\"\r\n";
    site.get("", &ok(fields, "one"));
    site.wait(20);
    let mut pair = site.connect().0;
    pair.contents.is_paused = true;
    pair.say(WanEnd::Near, b"GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    let newer = "two".repeat(1 << 20);
    let fields = fields.replace("\"1\"", "\"2\"");
    pair.say(WanEnd::Far, ok(&fields, &newer).as_bytes());
    assert_eq!((pair.closed, pair.to_client.len()), (None, 0));
    pair.contents.is_paused = false;
    pair.tell(WanEnd::Near, AcceleratorInput::Timeout);
    assert!(pair.to_client.ends_with(b"\r\n\r\none"));
    assert!(site.get("", "").1.ends_with(&newer));
}

#[test]
fn bytes_behind_a_revalidation_count_for_read_credit() {
    let mut site = CachingSite::new();
    site.get(
        "",
        &ok("Cache-Control: max-age=10\r\nETag: \"1\"\r\n", "one"),
    );
    site.wait(20);
    let mut pair = site.connect().0;
    pair.say(WanEnd::Near, b"GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    let behind = b"POST / HTTP/1.1\r\nHost: a\r\n";
    pair.say(WanEnd::Near, behind);
    let waiting = |pair: &HttpHalfPair| pair.halves.as_ref().unwrap().0.waiting_host_bytes();
    assert_eq!(waiting(&pair), behind.len());
    pair.say(WanEnd::Far, b"HTTP/1.1 304 Not Modified\r\n\r\n");
    assert_eq!(waiting(&pair), 0);
}

#[test]
fn one_range_of_a_response_is_answered_here() {
    let site = CachingSite::new();
    let fields = "Cache-Control: max-age=60\r\nETag: \"1\"\r\n\
        Date: Thu, 01 Jan 2026 00:00:00 GMT\r\nLast-Modified: Wed, 31 Dec 2025 00:00:00 GMT\r\n";
    site.get("", &ok(fields, "0123456789"));
    for (request, part, content) in [
        ("bytes=2-4", "2-4", "234"),
        ("bytes=8-", "8-9", "89"),
        ("bytes=-1", "9-9", "9"),
        ("bytes=0-1\r\nIf-Range: \"1\"", "0-1", "01"),
        (
            "bytes=0-1\r\nIf-Range: Wed, 31 Dec 2025 00:00:00 GMT",
            "0-1",
            "01",
        ),
    ] {
        let (asked, got) = site.get(&format!("Range: {request}\r\n"), "");
        assert!(!asked && got.starts_with("HTTP/1.1 206 Partial Content\r\n"));
        let length = content.len();
        let lines = format!("Content-Range: bytes {part}/10\r\nContent-Length: {length}\r\n");
        assert!(got.contains(&lines), "{got}");
        assert!(got.ends_with(&format!("\r\n\r\n{content}")), "{got}");
    }
    // A condition that does not hold asks for everything.
    for condition in ["\"2\"", "W/\"1\"", "Thu, 01 Jan 2026 00:00:00 GMT"] {
        let request = format!("Range: bytes=2-4\r\nIf-Range: {condition}\r\n");
        let (asked, got) = site.get(&request, "");
        assert!(!asked && got.starts_with("HTTP/1.1 200 ") && got.ends_with("0123456789"));
    }
    let (asked, got) = site.get("Range: bytes=2-4\r\nIf-None-Match: \"1\"\r\n", "");
    assert!(!asked && got.starts_with("HTTP/1.1 304 "), "{got}");
}

#[test]
fn other_ranges_are_the_servers_to_answer() {
    let mut site = CachingSite::new();
    site.get("", &ok("Cache-Control: max-age=60\r\n", "0123456789"));
    let part = "HTTP/1.1 206 Partial Content\r\nContent-Range: bytes 0-0/10\r\n\
        Content-Length: 1\r\n\r\n0";
    for request in ["bytes=0-0,2-3", "bytes=10-", "lines=1-2"] {
        let fields = format!("Range: {request}\r\n");
        assert_eq!(site.get(&fields, part), (true, part.to_owned()));
    }
    // A part is not stored, and the whole stays.
    assert!(site.get("", "").1.ends_with("0123456789"));
    site.wait(61);
    let asked = site.get("Range: bytes=0-0\r\n", part);
    assert_eq!(asked, (true, part.to_owned()));
}

#[test]
fn a_client_s_own_conditions_are_answered_from_what_is_stored() {
    let site = CachingSite::new();
    site.get("", &ok("Cache-Control: max-age=60\r\nETag: W/\"1\"\r\nLast-Modified: Thu, 01 Jan 2015 00:00:00 GMT\r\n", "x"));
    for (fields, status) in [
        ("If-None-Match: \"0\", \"1\"\r\n", "304"),
        ("If-None-Match: *\r\n", "304"),
        (
            "If-None-Match: \"2\"\r\nIf-Modified-Since: Thu, 01 Jan 2015 00:00:00 GMT\r\n",
            "200",
        ),
        (
            "If-Modified-Since: Thu, 01 Jan 2015 00:00:00 GMT\r\n",
            "304",
        ),
        (
            "If-Modified-Since: Wed, 31 Dec 2014 00:00:00 GMT\r\n",
            "200",
        ),
    ] {
        let (asked, got) = site.get(fields, "");
        assert!(
            !asked && got.starts_with(&format!("HTTP/1.1 {status} ")),
            "{fields}{got}"
        );
        assert!(got.contains("ETag: W/\"1\"\r\n"));
    }
}

#[test]
fn a_response_that_cannot_be_followed_closes_a_flow_whose_request_was_altered() {
    let mut site = CachingSite::new();
    site.get(
        "",
        &ok("Cache-Control: max-age=10\r\nETag: \"1\"\r\n", "one"),
    );
    site.wait(20);
    let mut pair = site.connect().0;
    pair.say(WanEnd::Near, b"GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    pair.say(
        WanEnd::Far,
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
    );
    assert_eq!(pair.closed, Some(ReasonCode::VIOLATION));
    assert_eq!(pair.to_client, b"");
}

#[test]
fn a_client_that_ends_the_connection_gets_its_answer_first() {
    let site = CachingSite::new();
    site.get("", &ok("Cache-Control: max-age=60\r\n", "one"));
    let mut pair = site.connect().0;
    pair.say(
        WanEnd::Near,
        b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
    );
    let got = String::from_utf8(pair.to_client).unwrap();
    assert!(
        got.contains("Connection: close\r\n") && got.ends_with("one"),
        "{got}"
    );
    assert!(pair.client_finished && pair.server_finished);
}

#[test]
fn content_that_is_gone_is_a_miss_and_never_a_wrong_byte() {
    let mut site = CachingSite::new();
    let response = ok("Cache-Control: max-age=10\r\nETag: \"1\"\r\n", "stored");
    site.get("", &response);
    // Fresh, and gone before the first byte: the server is asked.
    let mut connection = site.connect();
    connection.0.contents.gone_after = Some(0);
    let request = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
    let (asked, got) = connection.ask(request, &response);
    assert_eq!((&asked[..], &got), (request, &response));
    // It was stored anew by that. Stale, confirmed, and gone: the server is asked once more.
    site.wait(20);
    let mut connection = site.connect();
    connection.0.contents.gone_after = Some(0);
    let confirmed = "HTTP/1.1 304 Not Modified\r\nETag: \"1\"\r\n\r\n";
    let (asked, got) = connection.ask(request, confirmed);
    assert!(
        asked.contains("If-None-Match") && got.is_empty(),
        "{asked}{got}"
    );
    assert!(connection.0.to_server.ends_with(request.as_bytes()));
    connection.0.say(WanEnd::Far, response.as_bytes());
    assert_eq!(connection.0.to_client, response.as_bytes());
    // Gone in the middle: the client sees that it is not whole.
    let mut connection = site.connect();
    connection.0.contents.gone_after = Some(1);
    let (_, got) = connection.ask(request, "");
    assert!(got.ends_with("\r\n\r\nst"), "{got}");
    assert_eq!(connection.0.closed, Some(reasons::CONTENT_GONE));
}

#[test]
fn shrinking_removes_the_least_recently_used_first() {
    let site = CachingSite::new();
    for number in 0..100 {
        let request = format!("GET /{number} HTTP/1.1\r\nHost: a\r\n\r\n");
        site.ask(&request, &ok("Cache-Control: max-age=60\r\n", "x"));
    }
    let half = site.cache.with(|shared| shared.index.held()) / 2;
    site.cache.with(|shared| shared.index.shrink(half));
    let held = site.cache.with(|shared| shared.index.held());
    assert!(held <= half && held > half - 4_096, "{held} of {half}");
    for (number, is_asked) in [(0, true), (99, false)] {
        let request = format!("GET /{number} HTTP/1.1\r\nHost: a\r\n\r\n");
        let (asked, _) = site.ask(&request, &ok("Cache-Control: max-age=60\r\n", "x"));
        assert_eq!(!asked.is_empty(), is_asked, "/{number}");
    }
}

/// What a client behind the first gets for `/`: a response that was stored, or the server's next.
fn is_shared_after(site: &CachingSite) -> bool {
    let newer = ok("Cache-Control: no-store\r\n", "newer");
    !site.get("", &newer).0
}

#[test]
fn empty_lines_hide_no_head_request() {
    let site = CachingSite::new();
    let mut connection = site.connect();
    let head = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n";
    let (_, got) = connection.ask("\r\nHEAD /big HTTP/1.1\r\nHost: a\r\n\r\n", head);
    assert_eq!(got, head);
    let response = ok("Cache-Control: max-age=60\r\n", "hello");
    let (_, got) = connection.ask("GET / HTTP/1.1\r\nHost: a\r\n\r\n", &response);
    assert_eq!(got, response);
    assert!(site.get("", "").1.ends_with("hello"));
}

#[test]
fn nothing_is_stored_behind_a_connection_login() {
    let fresh = ok("Cache-Control: max-age=60\r\n", "hello");
    let request = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
    for (fields, response) in [
        ("Authorization: NTLM TlRMTVNTUAADAAAA\r\n", ok("", "in")),
        ("Authorization: negotiate YII=\r\n", ok("", "in")),
        (
            "",
            "HTTP/1.1 401 x\r\nWWW-Authenticate: Basic, NTLM\r\nContent-Length: 0\r\n\r\n".into(),
        ),
        ("", ok("Persistent-Auth: true\r\n", "in")),
    ] {
        let site = CachingSite::new();
        let mut connection = site.connect();
        let login = format!("GET /in HTTP/1.1\r\nHost: a\r\n{fields}\r\n");
        connection.ask(&login, &response);
        assert_eq!(connection.ask(request, &fresh).1, fresh);
        assert!(!is_shared_after(&site), "{fields} {response}");
    }
    let site = CachingSite::new();
    let mut connection = site.connect();
    connection.ask(
        "GET /in HTTP/1.1\r\nHost: a\r\nAuthorization: Basic eA==\r\n\r\n",
        &ok("", "in"),
    );
    connection.ask(request, &fresh);
    assert!(is_shared_after(&site));
}

#[test]
fn personal_responses_are_not_stored() {
    let modified = "Last-Modified: Mon, 01 Dec 2025 00:00:00 GMT\r\n";
    let fresh = "Cache-Control: max-age=60\r\n";
    for (request, response, is_shared) in [
        ("", modified, true),
        ("Cookie: user=1\r\n", modified, false),
        ("Cookie: user=1\r\n", fresh, true),
        (
            "Authorization: Basic eA==\r\n",
            "Cache-Control: max-age=60, must-revalidate\r\n",
            false,
        ),
        (
            "Authorization: Basic eA==\r\n",
            "Cache-Control: max-age=60, public\r\n",
            true,
        ),
        (
            "",
            "Cache-Control: private\r\nCDN-Cache-Control: max-age=60\r\n",
            false,
        ),
        (
            "",
            "Cache-Control: no-store\r\nCDN-Cache-Control: max-age=60\r\n",
            false,
        ),
        (
            "",
            "Cache-Control: max-age=0\r\nCDN-Cache-Control: max-age=60\r\n",
            true,
        ),
    ] {
        let site = CachingSite::new();
        site.get(request, &ok(response, "hello"));
        assert_eq!(is_shared_after(&site), is_shared, "{request} {response}");
    }
}

#[test]
fn requests_with_content_and_failed_conditions_are_not_stored() {
    let site = CachingSite::new();
    let fresh = ok("Cache-Control: max-age=60\r\n", "hello");
    site.ask(
        "GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\nq",
        &fresh,
    );
    assert!(!is_shared_after(&site));
    let failed = "HTTP/1.1 412 x\r\nCache-Control: max-age=60\r\nContent-Length: 0\r\n\r\n";
    site.ask(
        "GET / HTTP/1.1\r\nHost: a\r\nIf-Match: \"x\"\r\n\r\n",
        failed,
    );
    assert!(!is_shared_after(&site));
}
