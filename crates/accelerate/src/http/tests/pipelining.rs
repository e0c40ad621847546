//! Pipelined requests and their responses keep their order, whatever has to wait for what.

use super::caching::{CachingSite, ok};
use super::*;
use vocab::FlowSegment;

fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n")
}

/// A site that has stored this response to a request for a path.
fn storing(path: &str, response: &str) -> CachingSite {
    let site = CachingSite::new();
    store(&site, path, response);
    site
}

fn store(site: &CachingSite, path: &str, response: &str) {
    let mut pair = site.connect_as(100);
    pair.say(WanEnd::Near, get(path).as_bytes());
    pair.say(WanEnd::Far, response.as_bytes());
}

/// Bytes that the client has received, without the fields that the cache adds.
fn contents(pair: &HttpHalfPair) -> Vec<String> {
    let text = String::from_utf8(pair.to_client.clone()).unwrap();
    let messages = text.split("HTTP/1.1 ").skip(1);
    let content = |message: &str| {
        let (head, content) = message.split_once("\r\n\r\n").unwrap();
        format!("{} {content}", &head[..3])
    };
    messages.map(content).collect()
}

#[test]
fn stored_answer_waits_for_the_late_one_before() {
    let site = storing("/fresh", &ok("Cache-Control: max-age=60\r\n", "fresh"));
    let mut pair = site.connect_as(1);
    let upload = "POST /p HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc";
    let asked = [get("/late"), get("/fresh"), upload.to_owned()].concat();
    for piece in asked.as_bytes().chunks(7) {
        pair.say(WanEnd::Near, piece);
    }
    assert_eq!(pair.to_server, get("/late").as_bytes());
    assert_eq!(pair.to_client, b"");
    for piece in ok("", "late").as_bytes().chunks(7) {
        pair.say(WanEnd::Far, piece);
    }
    assert_eq!(contents(&pair), ["200 late", "200 fresh"]);
    assert_eq!(
        pair.to_server,
        [get("/late").as_str(), upload].concat().as_bytes()
    );
    pair.say(WanEnd::Far, ok("", "posted").as_bytes());
    assert_eq!(contents(&pair), ["200 late", "200 fresh", "200 posted"]);
}

#[test]
fn requests_behind_two_waits_keep_their_order() {
    let mut site = storing("/fresh", &ok("Cache-Control: max-age=60\r\n", "fresh"));
    let stale = "Cache-Control: max-age=1\r\nETag: \"1\"\r\n";
    store(&site, "/stale", &ok(stale, "stale"));
    site.wait(2);
    let mut pair = site.connect_as(1);
    pair.contents.is_paused = true;
    pair.say(WanEnd::Near, get("/fresh").as_bytes());
    // Behind the answer that is being read, in two pieces: a request that is confirmed first, and one with content.
    let upload = "POST /p HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc";
    let (begin, end) = upload.split_at(30);
    pair.say(
        WanEnd::Near,
        [get("/stale").as_str(), begin].concat().as_bytes(),
    );
    pair.say(WanEnd::Near, end.as_bytes());
    pair.contents.is_paused = false;
    pair.tell(WanEnd::Near, AcceleratorInput::Timeout);
    let conditional = get("/stale").replace("\r\n\r\n", "\r\nIf-None-Match: \"1\"\r\n\r\n");
    assert_eq!(pair.to_server, conditional.as_bytes());
    pair.say(WanEnd::Far, b"HTTP/1.1 304 Not Modified\r\n\r\n");
    let asked = [conditional.as_str(), upload].concat();
    assert_eq!(String::from_utf8_lossy(&pair.to_server), asked);
    pair.say(WanEnd::Far, ok("", "posted").as_bytes());
    assert_eq!(contents(&pair), ["200 fresh", "200 stale", "200 posted"]);
}

/// Three requests whose stored responses stand for errors, and one that passes.
#[test]
fn responses_behind_two_waits_keep_their_order() {
    let mut site = CachingSite::new();
    let fields = "Cache-Control: max-age=1, stale-if-error=60\r\n";
    for path in ["/1", "/2", "/3"] {
        store(&site, path, &ok(fields, path));
    }
    site.wait(2);
    let mut pair = site.connect_as(1);
    let asked = ["/1", "/2", "/3", "/4"].map(get).concat();
    pair.say(WanEnd::Near, asked.as_bytes());
    assert_eq!(pair.to_server, asked.as_bytes());
    pair.contents.is_paused = true;
    let error = "HTTP/1.1 503 x\r\nContent-Length: 3\r\n\r\nerr";
    let answered = [error.repeat(3), ok("", "four")].concat();
    // The first piece ends behind the first error, the second within the third.
    let ends = [
        error.len(),
        2 * error.len() + 20,
        answered.len() - 2,
        answered.len(),
    ];
    let mut begin = 0;
    for end in ends {
        // A far half that follows no messages sends what comes in one piece.
        let piece = Bytes::copy_from_slice(&answered.as_bytes()[begin..end]);
        let segment = FlowSegment::payload(piece);
        pair.tell(WanEnd::Near, AcceleratorInput::Wan(segment));
        begin = end;
    }
    pair.contents.is_paused = false;
    pair.tell(WanEnd::Near, AcceleratorInput::Timeout);
    assert_eq!(pair.closed, None);
    assert_eq!(contents(&pair), ["200 /1", "200 /2", "200 /3", "200 four"]);
}

/// Bytes that wait behind an answer of the cache pass when the node cannot follow the responses any more.
#[test]
fn unknown_bytes_behind_a_wait_pass_unchanged() {
    let mut site = storing(
        "/1",
        &ok("Cache-Control: max-age=1, stale-if-error=60\r\n", "one"),
    );
    site.wait(2);
    let mut pair = site.connect_as(1);
    pair.say(WanEnd::Near, ["/1", "/2"].map(get).concat().as_bytes());
    pair.contents.is_paused = true;
    pair.say(WanEnd::Far, b"HTTP/1.1 503 x\r\nContent-Length: 0\r\n\r\n");
    let pieces = [&b"no HTTP\r\n"[..], b"and more ", b"of it"];
    for piece in pieces {
        pair.say(WanEnd::Far, piece);
    }
    pair.contents.is_paused = false;
    pair.tell(WanEnd::Near, AcceleratorInput::Timeout);
    assert_eq!(pair.let_go, Some(ReasonCode::VIOLATION));
    let got = String::from_utf8_lossy(&pair.to_client).into_owned();
    assert!(
        got.ends_with("\r\n\r\noneno HTTP\r\nand more of it"),
        "{got}"
    );
}
