//! Origins that end their TCP connection without a closure alert.

use super::*;

/// Fetches a response; returns the client's bytes, and true if the connection ends with a closure alert.
fn ended(answer: &'static str, more: &[u8], has_alert: bool) -> (Vec<u8>, bool) {
    let (ours, theirs) = (TestAuthority::new("ours"), TestAuthority::new("theirs"));
    let mut origin = TestOrigin::new(&theirs, NAME, NOW + 1_000_000);
    origin.answer = answer;
    origin.more = Bytes::copy_from_slice(more);
    let mut sites = InterceptingSites::new(&ours, &theirs, origin);
    let mut path = sites.connect();
    let mut client = path.client(trusting(&ours));
    client.send(format!("GET /cut HTTP/1.1\r\nHost: {NAME}\r\n\r\n").as_bytes());
    let (mut got, error) = path.converse(&mut client);
    assert_eq!(error, None);
    let now = path.sites.now;
    if has_alert {
        path.own.stream.finish();
        let alert = path.own.stream.take_output();
        let (_, far) = path.halves.as_mut().unwrap();
        far.handle(now, AcceleratorInput::Lan(alert));
    }
    let (_, far) = path.halves.as_mut().unwrap();
    far.handle(now, AcceleratorInput::LanFinished);
    path.settle();
    let received = client.receive(&std::mem::take(&mut path.to_client));
    got.extend_from_slice(&received.plain);
    assert_eq!((path.closed, path.client_finished), (None, true));
    drop(path);
    // Nothing of it answers the next client.
    sites.origin.answer = "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nnew";
    sites.origin.more = Bytes::new();
    let next = sites.fetch(trusting(&ours), "/cut");
    assert!(next.body.ends_with("new"), "{next:?}");
    (got, received.is_finished)
}

#[test]
fn cut_response_reaches_the_client_without_an_alert() {
    let body = vec![b'y'; 300_000];
    for head in [
        "HTTP/1.0 200 OK\r\nCache-Control: max-age=60\r\n\r\n",
        "HTTP/1.1 200 OK\r\nCache-Control: max-age=60\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 300001\r\nCache-Control: max-age=60\r\n\r\n",
    ] {
        for body in [&body[..3], &body[..]] {
            let (got, has_alert) = ended(head, body, false);
            assert!(got.starts_with(b"HTTP/1."), "{head}");
            let end = got.windows(4).position(|end| end == b"\r\n\r\n").unwrap();
            assert_eq!(got[end + 4..], *body, "{head}");
            assert!(!has_alert, "{head}");
        }
    }
}

#[test]
fn alert_of_the_origin_reaches_the_client() {
    let (got, has_alert) = ended("HTTP/1.1 200 OK\r\n\r\n", b"yyy", true);
    assert!(got.ends_with(b"yyy") && has_alert);
}

#[test]
fn excluded_name_has_a_reason_of_its_own() {
    let (ours, theirs) = (TestAuthority::new("ours"), TestAuthority::new("theirs"));
    let mut near = settings(Some(&ours), None);
    near.exclude = vec![NAME.parse().unwrap()];
    let origin = TestOrigin::new(&theirs, NAME, NOW + 1_000_000);
    let far = settings(None, Some(&theirs));
    let mut sites = InterceptingSites::with(near, Some(far), origin);
    let fetched = sites.fetch(trusting(&theirs), "/");
    assert_eq!(fetched.let_go, Some(reasons::TLS_EXCLUDED));
}
