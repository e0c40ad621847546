//! Unsafe requests, purges and cookies while a response is under way.

use super::caching::{CachingSite, ok};
use super::*;

const GET: &str = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
const POST: &str = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n";
const FRESH: &str = "Cache-Control: max-age=60\r\n";

/// Requests `/` for another client; returns if the server was asked, and the response.
fn next(site: &CachingSite) -> (bool, String) {
    let (is_asked, got) = site.get("", &ok("", "new"));
    (is_asked, got[got.len() - 3..].to_owned())
}

#[test]
fn purge_during_a_fetch_keeps_it_out() {
    for prefix in ["", "http://a/"] {
        let old = ok(FRESH, "old");
        // Once within the head of the response, and once within its content.
        for sent in [1, old.len() - 1] {
            let site = CachingSite::new();
            let mut connection = site.connect();
            connection.0.say(WanEnd::Near, GET.as_bytes());
            connection.0.say(WanEnd::Far, &old.as_bytes()[..sent]);
            (site.cache).with(|shared| shared.index.purge(prefix.as_bytes()));
            connection.0.say(WanEnd::Far, &old.as_bytes()[sent..]);
            assert_eq!(connection.0.to_client, old.as_bytes());
            assert_eq!(next(&site), (true, "new".to_owned()), "{prefix} {sent}");
        }
    }
}

#[test]
fn unsafe_request_during_a_fetch_keeps_it_out() {
    let old = ok(FRESH, "old");
    for status in ["200 OK", "500 x"] {
        let done = format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n");
        for sent in [1, old.len() - 1] {
            let site = CachingSite::new();
            let mut reader = site.connect();
            reader.0.say(WanEnd::Near, GET.as_bytes());
            reader.0.say(WanEnd::Far, &old.as_bytes()[..sent]);
            site.ask(POST, &done);
            reader.0.say(WanEnd::Far, &old.as_bytes()[sent..]);
            assert_eq!(reader.0.to_client, old.as_bytes());
            assert_eq!(next(&site), (true, "new".to_owned()), "{status} {sent}");
        }
    }
}

#[test]
fn fetch_between_a_post_and_its_answer_is_not_stored() {
    let site = CachingSite::new();
    let (mut writer, mut reader) = (site.connect(), site.connect());
    writer.0.say(WanEnd::Near, POST.as_bytes());
    reader.0.say(WanEnd::Near, GET.as_bytes());
    writer.0.say(WanEnd::Far, ok("", "").as_bytes());
    reader.0.say(WanEnd::Far, ok(FRESH, "old").as_bytes());
    assert_eq!(next(&site), (true, "new".to_owned()));
    // What is asked for afterwards is stored.
    site.get("", &ok(FRESH, "now"));
    assert_eq!(next(&site), (false, "now".to_owned()));
}

#[test]
fn unsafe_request_for_another_url_changes_nothing() {
    let site = CachingSite::new();
    let mut reader = site.connect();
    reader.0.say(WanEnd::Near, GET.as_bytes());
    site.ask(&POST.replace("/ ", "/other "), &ok("", ""));
    reader.0.say(WanEnd::Far, ok(FRESH, "old").as_bytes());
    assert_eq!(next(&site), (false, "old".to_owned()));
}

#[test]
fn cookie_of_a_confirmation_reaches_its_client_only() {
    let site = CachingSite::new();
    let fields = "ETag: \"1\"\r\nCache-Control: no-cache\r\n";
    site.get("", &ok(fields, "body"));
    let confirmed = "HTTP/1.1 304 Not Modified\r\nETag: \"1\"\r\n";
    let with_cookie = format!("{confirmed}Set-Cookie: s=1; Path=/\r\nSet-Cookie: t=2\r\n\r\n");
    let (_, got) = site.get("", &with_cookie);
    assert!(got.starts_with("HTTP/1.1 200 OK\r\n"), "{got}");
    assert!(
        got.ends_with("\r\nSet-Cookie: s=1; Path=/\r\nSet-Cookie: t=2\r\n\r\nbody"),
        "{got}"
    );
    let (_, other) = site.get("", &format!("{confirmed}\r\n"));
    assert!(other.ends_with("body"), "{other}");
    assert!(!other.contains("Set-Cookie"), "{other}");
}

#[test]
fn malformed_directives_are_not_stored() {
    for (value, is_shared) in [
        ("max-age=60, foo=\"a, b\"", true),
        ("max-age=60, foo=\"a\\\"\", public", true),
        ("max-age=60, foo=\"a, private", false),
        ("max-age=60, foo=\"a\\\", private", false),
        ("max-age=60, pri vate", false),
        ("must-understand, max-age=60, foo=\"", false),
    ] {
        let site = CachingSite::new();
        site.get("", &ok(&format!("Cache-Control: {value}\r\n"), "old"));
        assert_eq!(next(&site).0, !is_shared, "{value}");
    }
}

#[test]
fn prefixes_of_purges_have_the_form_of_keys() {
    for (written, prefix) in [
        ("", ""),
        ("HTTP://Intranet:80/News", "http://intranet/News"),
        ("https://Intranet:443", "https://intranet/"),
        ("https://intranet:80/", "https://intranet:80/"),
        ("http://Intra", "http://intra"),
        ("Intranet/", "Intranet/"),
    ] {
        let found = crate::http::cache::key_prefix(written);
        assert_eq!(String::from_utf8(found).unwrap(), prefix);
    }
}
