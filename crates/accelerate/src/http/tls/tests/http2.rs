//! A client of HTTP/2 before both halves.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use ::h2::client::{self, Connection, ResponseFuture, SendRequest};
use ::h2::{Reason, RecvStream};
use http::{Request, Response};

use super::*;
use crate::http::h2::pipe::MemoryPipe;

/// A client's end of HTTP/2 inside TLS.
pub(super) struct Http2Client {
    tls: TlsStream,
    pipe: MemoryPipe,
    sender: SendRequest<Bytes>,
    connection: Connection<MemoryPipe, Bytes>,
    is_over: bool,
}

impl Http2Client {
    pub(super) fn new(path: &mut TestPath<'_>, authority: &TestAuthority) -> Self {
        let mut config = trusting(authority);
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        let tls = path.client(config);
        let pipe = MemoryPipe::default();
        let mut context = Context::from_waker(Waker::noop());
        let mut builder = client::Builder::new();
        builder.initial_window_size(65_535);
        let mut handshake = Box::pin(builder.handshake::<_, Bytes>(pipe.clone()));
        let Poll::Ready(opened) = handshake.as_mut().poll(&mut context) else {
            panic!("a pipe takes all at once");
        };
        let (sender, connection) = opened.unwrap();
        Self {
            tls,
            pipe,
            sender,
            connection,
            is_over: false,
        }
    }

    pub(super) fn get(&mut self, url: &str) -> ResponseFuture {
        let request = Request::get(url).body(()).unwrap();
        self.sender.send_request(request, true).unwrap().0
    }

    /// Carries bytes both ways until nothing moves.
    pub(super) fn run(&mut self, path: &mut TestPath<'_>) {
        let mut context = Context::from_waker(Waker::noop());
        loop {
            let before = self.pipe.moved();
            if !self.is_over {
                let connection = Pin::new(&mut self.connection);
                self.is_over = connection.poll(&mut context).is_ready();
            }
            let output = self.pipe.take_output();
            let is_silent = output.is_empty();
            self.tls.send(&output);
            let (plain, error) = path.converse(&mut self.tls);
            assert_eq!(error, None);
            if !plain.is_empty() {
                self.pipe.push(plain.into());
            } else if is_silent && self.pipe.moved() == before {
                return;
            }
        }
    }

    pub(super) fn response(
        &mut self,
        path: &mut TestPath<'_>,
        future: ResponseFuture,
    ) -> Response<RecvStream> {
        self.run(path);
        poll(future).expect("it has come").unwrap()
    }
}

fn poll<T>(future: impl Future<Output = T>) -> Option<T> {
    let mut context = Context::from_waker(Waker::noop());
    match Box::pin(future).as_mut().poll(&mut context) {
        Poll::Ready(done) => Some(done),
        Poll::Pending => None,
    }
}

/// Returns the part of a body that has come, and opens the windows for more.
pub(super) fn read(body: &mut RecvStream) -> Vec<u8> {
    let mut context = Context::from_waker(Waker::noop());
    let mut read = Vec::new();
    while let Poll::Ready(Some(Ok(bytes))) = body.poll_data(&mut context) {
        read.extend_from_slice(&bytes);
        body.flow_control().release_capacity(bytes.len()).unwrap();
    }
    read
}

pub(super) fn sites(ours: &TestAuthority, theirs: &TestAuthority) -> InterceptingSites {
    let origin = TestOrigin::new(theirs, NAME, NOW + 1_000_000);
    InterceptingSites::new(ours, theirs, origin)
}

pub(super) const URL: &str = "https://wiki.corp.example";

#[test]
fn a_slow_response_holds_up_no_other() {
    let (ours, theirs) = (TestAuthority::new("ours"), TestAuthority::new("theirs"));
    let mut sites = sites(&ours, &theirs);
    let mut path = sites.connect();
    let mut client = Http2Client::new(&mut path, &ours);
    client.run(&mut path);
    let slow = client.get(&format!("{URL}/slow"));
    let quick = client.get(&format!("{URL}/quick"));
    let mut response = client.response(&mut path, quick);
    assert_eq!(response.status(), 200);
    assert_eq!(read(response.body_mut()), b"hello");
    assert!(poll(slow).is_none());
}

#[test]
fn stored_pages_answer_streams_without_a_round_trip() {
    let (ours, theirs) = (TestAuthority::new("ours"), TestAuthority::new("theirs"));
    let mut sites = sites(&ours, &theirs);
    let fetched = sites.fetch(trusting(&ours), "/page");
    assert!(fetched.body.ends_with("hello"));
    let mut path = sites.connect();
    let mut client = Http2Client::new(&mut path, &ours);
    for _ in 0..20 {
        let future = client.get(&format!("{URL}/page"));
        let mut response = client.response(&mut path, future);
        assert_eq!(read(response.body_mut()), b"hello");
        assert!(response.headers().contains_key("age"));
    }
    assert!(path.segments.is_empty(), "{:?}", path.segments);
}

#[test]
fn more_requests_than_lanes_are_all_answered() {
    let (ours, theirs) = (TestAuthority::new("ours"), TestAuthority::new("theirs"));
    let mut sites = sites(&ours, &theirs);
    let mut path = sites.connect();
    let mut client = Http2Client::new(&mut path, &ours);
    client.run(&mut path);
    let futures: Vec<_> = (0..60)
        .map(|number| client.get(&format!("{URL}/{number}")))
        .collect();
    client.run(&mut path);
    for future in futures {
        let mut response = poll(future).expect("it has come").unwrap();
        assert_eq!(read(response.body_mut()), b"hello");
    }
    assert!(path.further.len() <= usize::from(super::super::lanes::LINKS_MAX));
}

#[test]
fn requests_wait_for_connections_beside_the_origin() {
    let (ours, theirs) = (TestAuthority::new("ours"), TestAuthority::new("theirs"));
    let mut sites = sites(&ours, &theirs);
    let mut path = sites.connect();
    let mut client = Http2Client::new(&mut path, &ours);
    client.run(&mut path);
    let mut slow: Vec<_> = (0..super::super::lanes::LINKS_MAX)
        .map(|_| {
            let request = Request::get(format!("{URL}/slow")).body(()).unwrap();
            client.sender.send_request(request, true).unwrap()
        })
        .collect();
    client.run(&mut path);
    path.segments.clear();
    let futures: Vec<_> = (0..20)
        .map(|number| client.get(&format!("{URL}/{number}")))
        .collect();
    client.run(&mut path);
    let heads = path.segments.iter();
    let heads = heads.filter(|kind| **kind == SegmentKind::Control);
    assert_eq!(heads.count(), 20);
    // One connection serves them one after the other.
    slow[0].1.send_reset(Reason::CANCEL);
    client.run(&mut path);
    for future in futures {
        let mut response = poll(future).expect("it has come").unwrap();
        assert_eq!(read(response.body_mut()), b"hello");
    }
}

#[test]
fn origins_that_close_behind_each_response_answer_all() {
    let (ours, theirs) = (TestAuthority::new("ours"), TestAuthority::new("theirs"));
    let mut sites = sites(&ours, &theirs);
    sites.origin.answer = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello";
    let mut path = sites.connect();
    let mut client = Http2Client::new(&mut path, &ours);
    client.run(&mut path);
    let futures: Vec<_> = (0..30)
        .map(|number| client.get(&format!("{URL}/{number}")))
        .collect();
    client.run(&mut path);
    for future in futures {
        let mut response = poll(future).expect("it has come").unwrap();
        assert_eq!(read(response.body_mut()), b"hello");
    }
    assert_eq!(path.resets, 30);
}

#[test]
fn requests_without_an_answer_are_repeated_once() {
    let (ours, theirs) = (TestAuthority::new("ours"), TestAuthority::new("theirs"));
    let mut sites = sites(&ours, &theirs);
    let mut path = sites.connect();
    let mut client = Http2Client::new(&mut path, &ours);
    client.run(&mut path);
    let future = client.get(&format!("{URL}/slow"));
    for _ in 0..2 {
        client.run(&mut path);
        let links: Vec<Further> = path.further.keys().copied().collect();
        assert_eq!(links.len(), 1);
        path.further.clear();
        let now = path.sites.now;
        let (_, far) = path.halves.as_mut().unwrap();
        far.handle(now, AcceleratorInput::Server(links[0], ServerEvent::Failed));
        path.settle();
    }
    assert_eq!(client.response(&mut path, future).status(), 502);
}

#[test]
fn hosts_that_the_origin_has_not_proved_are_misdirected() {
    let (ours, theirs) = (TestAuthority::new("ours"), TestAuthority::new("theirs"));
    let mut sites = sites(&ours, &theirs);
    let mut path = sites.connect();
    let mut client = Http2Client::new(&mut path, &ours);
    client.run(&mut path);
    let future = client.get("https://mail.corp.example/");
    assert_eq!(client.response(&mut path, future).status(), 421);
}

#[test]
fn excluded_hosts_are_misdirected() {
    let (ours, theirs) = (TestAuthority::new("ours"), TestAuthority::new("theirs"));
    for (excluded, status) in [("mail.corp.example", 421), ("other.corp.example", 200)] {
        let names = [NAME, "mail.corp.example"];
        let origin = TestOrigin::named(&theirs, &names, NOW + 1_000_000);
        let mut near = settings(Some(&ours), None);
        near.exclude = vec![excluded.parse().unwrap()];
        let far = settings(None, Some(&theirs));
        let mut sites = InterceptingSites::with(near, Some(far), origin);
        let mut path = sites.connect();
        let mut client = Http2Client::new(&mut path, &ours);
        client.run(&mut path);
        let future = client.get("https://mail.corp.example/");
        let response = client.response(&mut path, future);
        assert_eq!(response.status(), status, "{excluded}");
    }
}

#[test]
fn streams_need_a_current_certificate_for_stored_pages() {
    let (ours, theirs) = (TestAuthority::new("ours"), TestAuthority::new("theirs"));
    let mut sites = sites(&ours, &theirs);
    sites.origin.answer = LONG_LIVED;
    assert!(
        sites
            .fetch(trusting(&ours), "/page")
            .body
            .ends_with("hello")
    );
    let mut path = sites.connect();
    let mut client = Http2Client::new(&mut path, &ours);
    for (seconds, crosses) in [(3_599, false), (1, true), (1, true)] {
        path.sites.now += Duration::from_secs(seconds);
        let before = path.segments.len();
        let future = client.get(&format!("{URL}/page"));
        let mut response = client.response(&mut path, future);
        assert_eq!(read(response.body_mut()), b"hello");
        assert_eq!(path.segments.len() > before, crosses);
    }
}

/// Begins a response that is stored while it comes, and one that is read from the store.
fn client_with_transfers(
    path: &mut TestPath<'_>,
    ours: &TestAuthority,
) -> (Http2Client, Vec<::h2::SendStream<Bytes>>) {
    let mut client = Http2Client::new(path, ours);
    client.run(path);
    path.sites.contents.is_stalled = true;
    let mut streams = Vec::new();
    for target in ["/stored", "/coming"] {
        let request = Request::get(format!("{URL}{target}")).body(()).unwrap();
        let (future, stream) = client.sender.send_request(request, true).unwrap();
        client.run(path);
        drop(future);
        streams.push(stream);
    }
    let contents = &path.sites.contents;
    assert_eq!((contents.storing.len(), contents.reading.len()), (1, 1));
    (client, streams)
}

/// The page `/stored` is stored, and responses from here on stop in the middle.
fn sites_with_half_responses(ours: &TestAuthority, theirs: &TestAuthority) -> InterceptingSites {
    let mut sites = sites(ours, theirs);
    assert!(
        sites
            .fetch(trusting(ours), "/stored")
            .body
            .ends_with("hello")
    );
    sites.origin.answer =
        "HTTP/1.1 200 OK\r\nContent-Length: 9\r\nCache-Control: max-age=60\r\n\r\nhello";
    sites
}

#[test]
fn streams_that_are_given_up_end_their_transfers() {
    let (ours, theirs) = (TestAuthority::new("ours"), TestAuthority::new("theirs"));
    let mut sites = sites_with_half_responses(&ours, &theirs);
    let mut path = sites.connect();
    let (mut client, streams) = client_with_transfers(&mut path, &ours);
    for mut stream in streams {
        stream.send_reset(Reason::CANCEL);
    }
    client.run(&mut path);
    let contents = &path.sites.contents;
    assert_eq!((contents.storing.len(), contents.reading.len()), (0, 0));
}

#[test]
fn connections_that_end_end_their_transfers() {
    let (ours, theirs) = (TestAuthority::new("ours"), TestAuthority::new("theirs"));
    let mut sites = sites_with_half_responses(&ours, &theirs);
    let mut path = sites.connect();
    let (_client, _streams) = client_with_transfers(&mut path, &ours);
    path.near(AcceleratorInput::LanFinished);
    let contents = &path.sites.contents;
    assert_eq!((contents.storing.len(), contents.reading.len()), (0, 0));
}

#[test]
fn a_client_that_does_not_read_stops_the_origin() {
    let (ours, theirs) = (TestAuthority::new("ours"), TestAuthority::new("theirs"));
    let mut sites = sites(&ours, &theirs);
    let body: Vec<u8> = (0..4_000_000_u32).map(|n| (n >> 8) as u8).collect();
    sites.origin.answer = "HTTP/1.1 200 OK\r\nContent-Length: 4000000\r\n\r\n";
    sites.origin.more = body.clone().into();
    let mut path = sites.connect();
    let mut client = Http2Client::new(&mut path, &ours);
    client.run(&mut path);
    let future = client.get(&format!("{URL}/big"));
    let mut response = client.response(&mut path, future);
    assert_eq!(path.paused.len(), 1);
    let mut got = Vec::new();
    loop {
        let piece = read(response.body_mut());
        if piece.is_empty() {
            break;
        }
        got.extend_from_slice(&piece);
        client.run(&mut path);
    }
    assert!(got == body, "{} bytes", got.len());
    assert!(path.paused.is_empty());
}

#[test]
fn a_stream_that_is_given_up_frees_its_lane() {
    let (ours, theirs) = (TestAuthority::new("ours"), TestAuthority::new("theirs"));
    let mut sites = sites(&ours, &theirs);
    let mut path = sites.connect();
    let mut client = Http2Client::new(&mut path, &ours);
    client.run(&mut path);
    for _ in 0..20 {
        let request = Request::get(format!("{URL}/slow")).body(()).unwrap();
        let (future, mut stream) = client.sender.send_request(request, true).unwrap();
        client.run(&mut path);
        stream.send_reset(Reason::CANCEL);
        client.run(&mut path);
        drop(future);
    }
    assert_eq!(path.resets, 20);
    let future = client.get(&format!("{URL}/quick"));
    let mut response = client.response(&mut path, future);
    assert_eq!(read(response.body_mut()), b"hello");
}

#[test]
fn a_lane_that_the_origin_closed_is_replaced() {
    let (ours, theirs) = (TestAuthority::new("ours"), TestAuthority::new("theirs"));
    let mut sites = sites(&ours, &theirs);
    let mut path = sites.connect();
    let mut client = Http2Client::new(&mut path, &ours);
    for number in 0..3 {
        let future = client.get(&format!("{URL}/{number}"));
        let mut response = client.response(&mut path, future);
        assert_eq!(read(response.body_mut()), b"hello");
        let lanes: Vec<Further> = path.further.keys().copied().collect();
        for lane in lanes {
            let now = path.sites.now;
            path.further.remove(&lane);
            let (_, far) = path.halves.as_mut().unwrap();
            far.handle(now, AcceleratorInput::Server(lane, ServerEvent::Finished));
        }
        path.settle();
    }
}

#[test]
fn a_body_without_a_length_is_sent_in_chunks() {
    let (ours, theirs) = (TestAuthority::new("ours"), TestAuthority::new("theirs"));
    let mut sites = sites(&ours, &theirs);
    let mut path = sites.connect();
    let mut client = Http2Client::new(&mut path, &ours);
    client.run(&mut path);
    let request = Request::post(format!("{URL}/form")).body(()).unwrap();
    let (future, mut stream) = client.sender.send_request(request, false).unwrap();
    stream.send_data(Bytes::from_static(b"abc"), false).unwrap();
    stream
        .send_data(Bytes::from_static(b"defgh"), true)
        .unwrap();
    let mut response = client.response(&mut path, future);
    assert_eq!(read(response.body_mut()), b"hello");
    let heard = path.further.values().next().unwrap();
    let all = String::from_utf8_lossy(&heard.log).into_owned();
    assert!(
        all.contains("transfer-encoding: chunked\r\n\r\n3\r\nabc\r\n5\r\ndefgh\r\n0\r\n\r\n"),
        "{all}"
    );
}
