//! Prefetches and recalled revalidations inside TLS, by both versions of HTTP.

use super::http2::{Http2Client, URL, read, sites};
use super::*;

const PAGE: &str =
    "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 15\r\n\r\n<img src=a.png>";
const STORED: &str = "HTTP/1.1 200 OK\r\nDate: Thu, 01 Jan 2026 00:00:00 GMT\r\nETag: \"1\"\r\n\
    Cache-Control: no-cache\r\nContent-Length: 5\r\n\r\nhello";
const UNCHANGED: &str = "HTTP/1.1 304 Not Modified\r\nDate: Thu, 01 Jan 2026 00:00:02 GMT\r\nETag: \"1\"\r\n\
    Cache-Control: no-cache\r\n\r\n";

fn get(target: &str) -> String {
    format!("GET {target} HTTP/1.1\r\nHost: {NAME}\r\n\r\n")
}

/// Targets that the origin was asked for, on all connections.
fn asked(path: &TestPath<'_>) -> Vec<String> {
    let ends = path.further.values().chain([&path.own]);
    let logs = ends.map(|end| String::from_utf8(end.log.clone()).unwrap());
    let mut targets: Vec<String> = logs
        .flat_map(|log| {
            let targets = log.split("GET ").skip(1);
            let target = |request: &str| request.split(' ').next().unwrap().to_owned();
            targets.map(target).collect::<Vec<_>>()
        })
        .collect();
    targets.sort();
    targets
}

#[test]
fn page_inside_tls_is_fetched_ahead() {
    let (ours, theirs) = (TestAuthority::new("ours"), TestAuthority::new("theirs"));
    let mut sites = sites(&ours, &theirs);
    sites.origin.page = PAGE;
    let mut path = sites.connect();
    let mut client = path.client(trusting(&ours));
    client.send(get("/page.html").as_bytes());
    let (page, error) = path.converse(&mut client);
    assert_eq!(error, None);
    assert!(page.ends_with(b"<img src=a.png>"));
    assert_eq!(asked(&path), ["/a.png", "/page.html"]);
    path.segments.clear();
    client.send(get("/a.png").as_bytes());
    let (image, _) = path.converse(&mut client);
    assert!(image.ends_with(b"\r\n\r\nhello"));
    assert_eq!(path.segments, []);
}

#[test]
fn page_of_a_stream_is_fetched_ahead() {
    let (ours, theirs) = (TestAuthority::new("ours"), TestAuthority::new("theirs"));
    let mut sites = sites(&ours, &theirs);
    sites.origin.page = PAGE;
    let mut path = sites.connect();
    let mut client = Http2Client::new(&mut path, &ours);
    for round in 0..2 {
        let future = client.get(&format!("{URL}/page.html"));
        let mut response = client.response(&mut path, future);
        assert_eq!(read(response.body_mut()), b"<img src=a.png>");
        path.segments.clear();
        let future = client.get(&format!("{URL}/a.png"));
        let mut response = client.response(&mut path, future);
        assert_eq!(read(response.body_mut()), b"hello");
        assert_eq!(path.segments, [], "{round}");
    }
    // It is stored now, and not fetched again.
    assert_eq!(asked(&path), ["/a.png", "/page.html", "/page.html"]);
}

/// Nothing enters a dictionary without the consent of both nodes, so nothing is fetched ahead either.
#[test]
fn nothing_is_fetched_ahead_that_may_not_be_stored() {
    let (ours, theirs) = (TestAuthority::new("ours"), TestAuthority::new("theirs"));
    let mut near = settings(Some(&ours), None);
    near.may_store_decrypted = false;
    let far = settings(None, Some(&theirs));
    let origin = TestOrigin::new(&theirs, NAME, NOW + 1_000_000);
    let mut sites = InterceptingSites::with(near, Some(far), origin);
    sites.origin.page = PAGE;
    let mut path = sites.connect();
    let mut client = Http2Client::new(&mut path, &ours);
    let future = client.get(&format!("{URL}/page.html"));
    let mut response = client.response(&mut path, future);
    assert_eq!(read(response.body_mut()), b"<img src=a.png>");
    assert_eq!(asked(&path), ["/page.html"]);
}

#[test]
fn revalidation_inside_tls_costs_frames_only() {
    let (ours, theirs) = (TestAuthority::new("ours"), TestAuthority::new("theirs"));
    let mut sites = sites(&ours, &theirs);
    sites.origin.answer = STORED;
    assert!(sites.fetch(trusting(&ours), "/c").body.ends_with("hello"));
    sites.origin.answer = UNCHANGED;
    sites.now += Duration::from_secs(2);
    let mut path = sites.connect();
    let mut client = path.client(trusting(&ours));
    client.send(get("/c").as_bytes());
    let (body, _) = path.converse(&mut client);
    assert!(body.ends_with(b"\r\n\r\nhello"));
    assert!(!path.segments.is_empty());
    let is_frame = |kind: &SegmentKind| *kind == SegmentKind::Frame;
    assert!(path.segments.iter().all(is_frame), "{:?}", path.segments);
}

#[test]
fn revalidation_of_a_stream_costs_frames_only() {
    let (ours, theirs) = (TestAuthority::new("ours"), TestAuthority::new("theirs"));
    let mut sites = sites(&ours, &theirs);
    for (answer, costs_frames_only) in [(STORED, false), (UNCHANGED, true), (UNCHANGED, true)] {
        sites.origin.answer = answer;
        sites.now += Duration::from_secs(2);
        let mut path = sites.connect();
        let mut client = Http2Client::new(&mut path, &ours);
        client.run(&mut path);
        path.segments.clear();
        let future = client.get(&format!("{URL}/c"));
        let mut response = client.response(&mut path, future);
        assert_eq!(read(response.body_mut()), b"hello");
        let is_frame = |kind: &SegmentKind| *kind == SegmentKind::Frame;
        assert_eq!(path.segments.iter().all(is_frame), costs_frames_only);
        assert!(!path.segments.is_empty());
    }
}
