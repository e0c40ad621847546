//! Both halves of several flows, with one memory of tags.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use vocab::{FlowSegment, SeededRandom, SegmentKind, Time};

use super::*;
use crate::http::config::INDEX_MAX;
use crate::http::far::HttpFarHalf;
use crate::http::near::HttpNearHalf;
use crate::http::prefetch::{
    AheadTable, AskingClient, FarMemory, FarPrefetch, FlowLane, NearPrefetch, PrefetchSettings,
};
use crate::http::shared::{HttpCalendar, SharedCache};
use crate::http::tests::ContentFixture;
use crate::http::wire::ResponseHead;
use crate::shared::SharedHandle;
use crate::{AcceleratorHalf, AcceleratorInput, AcceleratorOutput};

const REQUEST: &str = "GET /a HTTP/1.1\r\nHost: a\r\nAccept: */*\r\n\r\n";
const HELD: &str = "Server: s\r\nETag: \"1\"\r\nCache-Control: no-cache\r\n";

/// Two nodes. Each request has a flow of its own.
struct RecallStand {
    cache: SharedCache,
    table: SharedHandle<AheadTable>,
    far_memory: SharedHandle<FarMemory>,
    memory: SharedHandle<RecallMemory>,
    flows: u64,
    now: Time,
    far_reads_frames: bool,
}

/// The result of one request.
#[derive(Debug, Default)]
struct RecallOutcome {
    to_server: String,
    to_client: String,
    /// Bytes of heads and frames that crossed, towards the server and towards the client.
    crossed: [usize; 2],
}

impl RecallStand {
    fn new() -> Self {
        let calendar = HttpCalendar {
            now: Time::ZERO,
            since_1970: Duration::from_secs(1_767_225_600),
        };
        let random = SeededRandom::from_seed(1);
        Self {
            cache: SharedCache::new(calendar, INDEX_MAX),
            table: SharedHandle::new(AheadTable::new(7)),
            far_memory: SharedHandle::new(FarMemory::new(1)),
            memory: SharedHandle::new(RecallMemory::new(1 << 20, random)),
            flows: 0,
            now: Time::ZERO,
            far_reads_frames: true,
        }
    }

    /// Asks on a new connection; the server answers so.
    fn ask(&mut self, request: &str, response: &str) -> RecallOutcome {
        self.flows += 1;
        let (flow, now) = (self.flows, self.now);
        let server = SocketAddr::from(([198, 18, 2, 2], 80));
        let client = IpAddr::from([198, 18, 1, 2]);
        let settings = Arc::new(PrefetchSettings::default());
        let asker = AskingClient {
            lane: FlowLane { flow, number: 0 },
            client,
        };
        let ahead = NearPrefetch::new(self.table.clone(), Arc::clone(&settings), asker);
        let cache = self.cache.for_flow(flow, server);
        let mut near = HttpNearHalf::new(Some(cache)).with_prefetch(ahead);
        let ahead = FarPrefetch::new(self.far_memory.clone(), settings, client, server);
        let mut far = HttpFarHalf::new().with_prefetch(ahead);
        if self.far_reads_frames {
            far = far.with_recall(FarRecall::new(self.memory.clone(), server));
        }
        let mut contents = ContentFixture::default();
        let mut outcome = RecallOutcome::default();
        near.handle(now, AcceleratorInput::Start);
        far.handle(now, AcceleratorInput::Start);
        near.handle(
            now,
            AcceleratorInput::Lan(Bytes::copy_from_slice(request.as_bytes())),
        );
        let mut is_answered = false;
        loop {
            if let Some(output) = near.poll_output() {
                match output {
                    AcceleratorOutput::ToWan(segment) => {
                        outcome.crossed[0] += crossing(&segment);
                        far.handle(now, AcceleratorInput::Wan(segment));
                    }
                    AcceleratorOutput::ToLan(bytes) => outcome.to_client += text(&bytes),
                    AcceleratorOutput::Content(request) => contents.take(request),
                    AcceleratorOutput::LettingGo(why) => panic!("{why:?}"),
                    _ => {}
                }
            } else if let Some(report) = contents.reports.pop_front() {
                near.handle(now, AcceleratorInput::Content(report));
            } else if let Some(output) = far.poll_output() {
                match output {
                    AcceleratorOutput::ToWan(segment) => {
                        outcome.crossed[1] += crossing(&segment);
                        near.handle(now, AcceleratorInput::Wan(segment));
                    }
                    AcceleratorOutput::ToLan(bytes) => outcome.to_server += text(&bytes),
                    _ => {}
                }
            } else if !is_answered && outcome.to_server.ends_with("\r\n\r\n") {
                is_answered = true;
                let response = Bytes::copy_from_slice(response.as_bytes());
                far.handle(now, AcceleratorInput::Lan(response));
            } else {
                return outcome;
            }
        }
    }

    /// With one response stored, and the next request a second later.
    fn stored() -> Self {
        let mut stand = Self::new();
        let first = stand.ask(REQUEST, &ok("01", HELD, "hello"));
        assert_eq!(first.to_server, REQUEST);
        stand.now += Duration::from_secs(1);
        stand
    }
}

fn text(bytes: &Bytes) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

fn crossing(segment: &FlowSegment) -> usize {
    match segment.kind {
        SegmentKind::Payload => 0,
        SegmentKind::Control | SegmentKind::Frame => segment.bytes.len(),
    }
}

fn date(second: &str) -> String {
    format!("Date: Thu, 01 Jan 2026 00:00:{second} GMT\r\n")
}

fn ok(second: &str, fields: &str, content: &str) -> String {
    let length = content.len();
    let date = date(second);
    format!("HTTP/1.1 200 OK\r\n{date}{fields}Content-Length: {length}\r\n\r\n{content}")
}

fn unchanged(second: &str, fields: &str) -> String {
    format!("HTTP/1.1 304 Not Modified\r\n{}{fields}\r\n", date(second))
}

fn conditional() -> String {
    let head = REQUEST.strip_suffix("\r\n").unwrap();
    format!("{head}If-None-Match: \"1\"\r\n\r\n")
}

#[test]
fn a_repeated_revalidation_costs_two_short_frames() {
    let mut stand = RecallStand::stored();
    for second in ["02", "03"] {
        let outcome = stand.ask(REQUEST, &unchanged(second, HELD));
        assert_eq!(outcome.to_server, conditional());
        assert!(outcome.to_client.starts_with("HTTP/1.1 200 OK\r\n"));
        assert!(outcome.to_client.contains(&date(second)), "{outcome:?}");
        assert!(outcome.to_client.ends_with("\r\n\r\nhello"));
        // One frame each way, beside the one that says how much may come ahead.
        assert_eq!(outcome.crossed, [12 + 9, 9]);
    }
}

#[test]
fn another_request_head_is_sent_as_it_is() {
    let mut stand = RecallStand::stored();
    let other = REQUEST.replace("*/*", "text/html");
    let outcome = stand.ask(&other, &unchanged("02", HELD));
    assert!(
        outcome
            .to_server
            .contains("Accept: text/html\r\nIf-None-Match")
    );
    assert!(outcome.to_client.ends_with("\r\n\r\nhello"));
}

#[test]
fn a_304_with_news_is_sent_whole() {
    let mut stand = RecallStand::stored();
    let outcome = stand.ask(REQUEST, &unchanged("02", &format!("{HELD}X: new\r\n")));
    assert!(outcome.to_client.contains("X: new\r\n"), "{outcome:?}");
    assert!(outcome.crossed[1] > 100);
    // It has a tag of its own.
    let outcome = stand.ask(REQUEST, &unchanged("03", &format!("{HELD}X: new\r\n")));
    assert!(outcome.to_client.contains("X: new\r\n"), "{outcome:?}");
    assert_eq!(outcome.crossed[1], 9);
}

#[test]
fn a_changed_object_replaces_the_tagged_one() {
    let mut stand = RecallStand::stored();
    let newer = HELD.replace("\"1\"", "\"2\"");
    let outcome = stand.ask(REQUEST, &ok("02", &newer, "world"));
    assert_eq!(outcome.to_server, conditional());
    assert!(outcome.to_client.ends_with("\r\n\r\nworld"));
    let outcome = stand.ask(REQUEST, &unchanged("03", &newer));
    assert!(outcome.to_server.contains("If-None-Match: \"2\""));
    assert!(outcome.to_client.ends_with("\r\n\r\nworld"));
    assert_eq!(outcome.crossed[1], 9);
}

#[test]
fn forgotten_tags_cost_one_more_request() {
    let mut stand = RecallStand::stored();
    stand.memory.with(RecallMemory::forget);
    let outcome = stand.ask(REQUEST, &unchanged("02", HELD));
    assert_eq!(outcome.to_server, conditional());
    assert!(outcome.to_client.ends_with("\r\n\r\nhello"));
    let outcome = stand.ask(REQUEST, &unchanged("03", HELD));
    assert_eq!(outcome.crossed, [12 + 9, 9]);
}

#[test]
fn tags_of_an_earlier_site_are_not_sent() {
    let mut stand = RecallStand::stored();
    stand.table.with(|table| table.begin_site(8));
    let outcome = stand.ask(REQUEST, &unchanged("02", HELD));
    assert_eq!(outcome.to_server, conditional());
    assert!(outcome.crossed[0] > conditional().len());
    let outcome = stand.ask(REQUEST, &unchanged("03", HELD));
    assert_eq!(outcome.crossed, [12 + 9, 9]);
}

#[test]
fn far_halves_of_earlier_releases_get_whole_requests() {
    let mut stand = RecallStand::new();
    stand.far_reads_frames = false;
    stand.ask(REQUEST, &ok("01", HELD, "hello"));
    let outcome = stand.ask(REQUEST, &unchanged("02", HELD));
    assert_eq!(outcome.to_server, conditional());
    assert!(outcome.to_client.ends_with("\r\n\r\nhello"));
}

#[test]
fn private_responses_and_credentials_get_no_tag() {
    for (request, fields) in [
        (
            REQUEST.to_owned(),
            "ETag: \"1\"\r\nCache-Control: private\r\n",
        ),
        (REQUEST.to_owned(), "ETag: \"1\"\r\nSet-Cookie: a=b\r\n"),
        (
            REQUEST.replace("Accept", "Authorization: Basic eDp5\r\nAccept"),
            "ETag: \"1\"\r\nCache-Control: public\r\n",
        ),
    ] {
        let mut stand = RecallStand::new();
        stand.ask(&request, &ok("01", fields, "hello"));
        assert_eq!(stand.memory.with(|memory| memory.held()), 0, "{fields}");
    }
}

#[test]
fn tags_are_valid_for_their_near_node_only() {
    let stand = RecallStand::stored();
    stand.memory.with(|memory| {
        let server = SocketAddr::from(([198, 18, 2, 2], 80));
        let response = ResponseHead::parse(unchanged("02", HELD).into()).unwrap();
        let tag = memory.keep((1, server), Bytes::from_static(b"\r\n"), response);
        assert!(memory.find((1, server), tag).is_some());
        assert!(memory.find((2, server), tag).is_none());
        let other = SocketAddr::from(([198, 18, 2, 3], 80));
        assert!(memory.find((1, other), tag).is_none());
    });
}

#[test]
fn kept_exchanges_have_a_limit() {
    let random = SeededRandom::from_seed(1);
    let mut memory = RecallMemory::new(10_000, random);
    let server = SocketAddr::from(([198, 18, 2, 2], 80));
    for _ in 0..100 {
        let response = ResponseHead::parse(unchanged("02", HELD).into()).unwrap();
        memory.keep((1, server), Bytes::from_static(b"\r\n"), response);
        assert!(memory.held() <= 10_000);
    }
    assert!(memory.held() > 8_000);
}

#[test]
fn frames_are_read_as_they_were_written() {
    for frame in [
        RecallFrame::Recall(1),
        RecallFrame::Tagged(u64::MAX),
        RecallFrame::Confirmed(2),
        RecallFrame::Unknown(3),
    ] {
        let bytes = frame.to_segment().bytes;
        assert_eq!(RecallFrame::parse(&bytes), Some(Ok(frame)));
        assert!(matches!(
            RecallFrame::parse(&bytes.slice(..8)),
            Some(Err(_))
        ));
    }
    assert_eq!(RecallFrame::parse(&Bytes::from_static(&[99, 1])), None);
}
