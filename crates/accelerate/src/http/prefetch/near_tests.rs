//! Near halves of one node, between clients and a far half that the tests play.

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use vocab::{FlowSegment, SegmentKind, Time};

use super::document::NamedSubresource;
use super::frames::{PageId, PrefetchFrame, PrefetchId};
use super::subresource::SubresourceKind::Image;
use super::*;
use crate::http::config::INDEX_MAX;
use crate::http::near::HttpNearHalf;
use crate::http::reasons;
use crate::http::shared::{HttpCalendar, SharedCache};
use crate::shared::SharedHandle;
use crate::{
    AcceleratorHalf, AcceleratorInput, AcceleratorOutput, ContentHandle, ContentId, ContentRefusal,
    ContentReport, ContentRequest, LettingGo, ReasonCode,
};

/// A browser's request for the page, and for an image that it names.
const PAGE: &str = "GET / HTTP/1.1\r\nHost: a\r\nAccept: text/html\r\nCookie: c=1\r\n\r\n";
const IMAGE: &str = "GET /a.png HTTP/1.1\r\nHost: a\r\nAccept: image/*\r\nCookie: c=1\r\n\r\n";

/// Near halves that share one cache, by the number of their flow. Flow 1 is the page's.
struct NearStand {
    cache: SharedCache,
    table: SharedHandle<AheadTable>,
    flows: BTreeMap<u64, NearFlow>,
    now: Time,
    /// The dictionary stores nothing.
    refuses: bool,
}

struct NearFlow {
    near: HttpNearHalf,
    to_client: Vec<u8>,
    frames: Vec<PrefetchFrame>,
    to_server: Vec<u8>,
    storing: BTreeMap<ContentId, Vec<u8>>,
    letting_go: Option<LettingGo>,
}

impl NearStand {
    fn new() -> Self {
        let server = SocketAddr::from(([198, 18, 2, 2], 80));
        let calendar = HttpCalendar {
            now: Time::ZERO,
            since_1970: Duration::from_secs(1_767_225_600),
        };
        Self {
            cache: SharedCache::new(calendar, INDEX_MAX).for_flow(1, server),
            table: SharedHandle::new(AheadTable::new(1)),
            flows: BTreeMap::new(),
            now: Time::ZERO,
            refuses: false,
        }
    }

    /// With a page that was asked for on flow 1, for which an image was promised.
    fn promised() -> Self {
        let mut stand = Self::new();
        stand.connect(1, 2);
        stand.say(1, PAGE);
        stand.promise(1, 1);
        stand
    }

    fn connect(&mut self, flow: u64, client: u8) {
        let asker = AskingClient {
            lane: FlowLane { flow, number: 0 },
            client: IpAddr::from([198, 18, 1, client]),
        };
        let settings = Arc::new(PrefetchSettings::default());
        let prefetch = NearPrefetch::new(self.table.clone(), settings, asker);
        let server = SocketAddr::from(([198, 18, 2, 2], 80));
        let cache = self.cache.for_flow(flow, server);
        let near = HttpNearHalf::new(Some(cache)).with_prefetch(prefetch);
        self.flows.insert(
            flow,
            NearFlow {
                near,
                to_client: Vec::new(),
                frames: Vec::new(),
                to_server: Vec::new(),
                storing: BTreeMap::new(),
                letting_go: None,
            },
        );
        self.input(flow, AcceleratorInput::Start);
    }

    fn input(&mut self, flow: u64, input: AcceleratorInput) {
        self.handle(flow, input);
        while let Some(woken) = self.table.with(AheadTable::poll_wake) {
            self.handle(woken, AcceleratorInput::Woken);
        }
    }

    fn handle(&mut self, number: u64, input: AcceleratorInput) {
        let Some(flow) = self.flows.get_mut(&number) else {
            return;
        };
        flow.near.handle(self.now, input);
        let mut reports = VecDeque::new();
        loop {
            let Some(output) = flow.near.poll_output() else {
                let Some(report) = reports.pop_front() else {
                    return;
                };
                flow.near
                    .handle(self.now, AcceleratorInput::Content(report));
                continue;
            };
            assert!(
                flow.letting_go.is_none(),
                "{output:?} after {:?}",
                flow.letting_go
            );
            match output {
                AcceleratorOutput::ToWan(segment) if segment.kind == SegmentKind::Frame => {
                    let frame = PrefetchFrame::parse(&segment.bytes);
                    flow.frames.push(frame.unwrap().unwrap());
                }
                AcceleratorOutput::ToWan(segment) => {
                    flow.to_server.extend_from_slice(&segment.bytes);
                }
                AcceleratorOutput::ToLan(bytes) => flow.to_client.extend_from_slice(&bytes),
                AcceleratorOutput::LettingGo(letting_go) => flow.letting_go = Some(letting_go),
                AcceleratorOutput::Content(request) => match request {
                    ContentRequest::Store { id } if self.refuses => {
                        let refusal = ContentRefusal::Policy;
                        reports.push_back(ContentReport::Refused { id, refusal });
                    }
                    ContentRequest::Store { id } => drop(flow.storing.insert(id, Vec::new())),
                    ContentRequest::Append { id, bytes } => {
                        if let Some(body) = flow.storing.get_mut(&id) {
                            body.extend_from_slice(&bytes);
                        }
                    }
                    ContentRequest::Finish { id } => {
                        if let Some(body) = flow.storing.remove(&id) {
                            let length = body.len() as u64;
                            let handle = ContentHandle::from_bytes(body.into());
                            reports.push_back(ContentReport::Stored { id, handle, length });
                        }
                    }
                    ContentRequest::Read { id, handle, .. } => {
                        let bytes = handle.to_bytes();
                        reports.push_back(ContentReport::Piece { id, bytes });
                        reports.push_back(ContentReport::Ended { id });
                    }
                    _ => {}
                },
                _ => {}
            }
        }
    }

    fn say(&mut self, flow: u64, bytes: &str) {
        let bytes = Bytes::copy_from_slice(bytes.as_bytes());
        self.input(flow, AcceleratorInput::Lan(bytes));
    }

    fn frame(&mut self, flow: u64, frame: &PrefetchFrame) {
        self.input(flow, AcceleratorInput::Wan(frame.to_segment()));
    }

    fn payload(&mut self, flow: u64, bytes: &str) {
        let bytes = Bytes::copy_from_slice(bytes.as_bytes());
        let segment = FlowSegment::payload(bytes);
        self.input(flow, AcceleratorInput::Wan(segment));
    }

    /// The image is promised under this number.
    fn promise(&mut self, flow: u64, id: u32) {
        let head = Bytes::copy_from_slice(PAGE.as_bytes());
        let page = PageId(1);
        self.frame(flow, &PrefetchFrame::Context { page, head });
        let named = vec![NamedSubresource {
            kind: Image,
            target: b"/a.png".to_vec(),
        }];
        let first = PrefetchId(id);
        self.frame(flow, &PrefetchFrame::Promises { page, first, named });
    }

    /// The image comes, with these fields.
    fn bring(&mut self, flow: u64, id: u32, fields: &str) {
        let id = PrefetchId(id);
        let head = format!("HTTP/1.1 200 OK\r\n{fields}Content-Length: 5\r\n\r\n");
        let head = Bytes::from(head);
        self.frame(flow, &PrefetchFrame::Head { id, head });
        for part in ["im", "age"] {
            let length = part.len() as u32;
            self.frame(flow, &PrefetchFrame::Part { id, length });
            self.payload(flow, part);
        }
        self.frame(flow, &PrefetchFrame::Done(id));
    }

    /// Asks on a new connection of a client; what the server is asked, and what the client gets.
    fn ask(&mut self, client: u8, request: &str) -> (String, String) {
        let flow = self.flows.keys().last().unwrap() + 1;
        self.connect(flow, client);
        self.say(flow, request);
        let told = (self.to_server(flow), self.to_client(flow));
        if !told.0.is_empty() {
            // Nobody waits for what this one asked.
            self.flows.remove(&flow);
        }
        told
    }

    fn to_server(&self, flow: u64) -> String {
        String::from_utf8(self.flows[&flow].to_server.clone()).unwrap()
    }

    fn to_client(&self, flow: u64) -> String {
        String::from_utf8(self.flows[&flow].to_client.clone()).unwrap()
    }

    fn frames(&mut self, flow: u64) -> Vec<PrefetchFrame> {
        std::mem::take(&mut self.flows.get_mut(&flow).unwrap().frames)
    }

    /// Time passes, with the timeouts of a flow.
    fn wait(&mut self, flow: u64, span: Duration) {
        let end = self.now + span;
        while let Some(at) = self.flows[&flow]
            .near
            .poll_timeout()
            .filter(|at| *at <= end)
        {
            self.now = self.now.max(at);
            self.input(flow, AcceleratorInput::Timeout);
        }
        self.now = end;
        self.table.with(|table| table.timeout(end));
    }
}

#[test]
fn far_half_is_told_how_much_may_come() {
    let mut stand = NearStand::promised();
    let allows = PrefetchFrame::Allows {
        site: 1,
        objects: OBJECTS_PER_PAGE,
    };
    assert_eq!(stand.frames(1), [allows]);
    assert_eq!(stand.to_server(1), PAGE);
}

#[test]
fn response_ahead_may_come_behind_the_page() {
    let mut stand = NearStand::promised();
    stand.payload(1, "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\npage");
    stand.bring(1, 1, "");
    let (asked, got) = stand.ask(2, IMAGE);
    assert_eq!(asked, "");
    assert!(got.ends_with("\r\n\r\nimage"), "{got}");
}

#[test]
fn response_ahead_answers_its_client_once() {
    let mut stand = NearStand::promised();
    stand.bring(1, 1, "Cache-Control: private\r\n");
    let (asked, got) = stand.ask(2, IMAGE);
    assert_eq!(asked, "");
    assert!(got.starts_with("HTTP/1.1 200 OK\r\n") && got.ends_with("\r\n\r\nimage"));
    assert_eq!(stand.ask(2, IMAGE).0, IMAGE);
    // Nothing of it went to the client of the page.
    assert_eq!(stand.to_client(1), "");
}

#[test]
fn private_response_ahead_answers_nobody_else() {
    for fields in [
        "Cache-Control: private, max-age=60\r\n",
        "Cache-Control: no-store\r\n",
        "",
    ] {
        let mut stand = NearStand::promised();
        stand.bring(1, 1, fields);
        assert_eq!(stand.ask(3, IMAGE).0, IMAGE, "{fields}");
        for (from, to) in [
            ("Cookie: c=1", "Cookie: c=2"),
            ("Cookie: c=1\r\n", ""),
            ("Cookie", "Authorization: Basic eDp5\r\nCookie"),
            ("Host: a", "Host: b"),
            ("/a.png", "/a.png?x"),
            ("GET", "POST"),
        ] {
            let other = IMAGE.replace(from, to);
            let (asked, got) = stand.ask(2, &other);
            assert!(asked.ends_with(&other) && got.is_empty(), "{fields}{other}");
        }
    }
}

#[test]
fn shareable_response_ahead_answers_all_clients() {
    let mut stand = NearStand::promised();
    stand.bring(1, 1, "Cache-Control: max-age=60\r\n");
    for client in [3, 2, 3] {
        let (asked, got) = stand.ask(client, &IMAGE.replace("c=1", "c=2"));
        assert!(asked.is_empty() && got.ends_with("\r\n\r\nimage"));
    }
}

#[test]
fn request_waits_for_what_is_on_its_way() {
    let mut stand = NearStand::promised();
    stand.frames(1);
    assert_eq!(stand.ask(2, IMAGE), (String::new(), String::new()));
    // Another client does not wait for it, and the far half hears that one does.
    assert_eq!(stand.ask(3, IMAGE).0, IMAGE);
    assert_eq!(stand.frames(1), [PrefetchFrame::Wanted(PrefetchId(1))]);
    stand.bring(1, 1, "");
    assert!(stand.to_client(2).ends_with("\r\n\r\nimage"));
    assert_eq!(stand.to_server(2), "");
    // Its connection goes on.
    stand.say(2, IMAGE);
    assert!(stand.to_server(2).ends_with(IMAGE));
}

#[test]
fn request_goes_to_the_server_when_nothing_comes() {
    let mut stand = NearStand::promised();
    stand.ask(2, IMAGE);
    stand.frame(1, &PrefetchFrame::Cancelled(PrefetchId(1)));
    assert!(stand.to_server(2).ends_with(IMAGE));

    let mut stand = NearStand::promised();
    stand.ask(2, IMAGE);
    stand.flows.remove(&1);
    stand.table.with(|table| table.flow_ended(1));
    stand.input(2, AcceleratorInput::Woken);
    assert!(stand.to_server(2).ends_with(IMAGE));
}

#[test]
fn request_waits_no_longer_than_patience_without_progress() {
    let mut stand = NearStand::promised();
    stand.ask(2, IMAGE);
    stand.frames(1);
    stand.wait(2, PATIENCE / 2);
    // Something else comes on the same flow.
    let id = PrefetchId(9);
    stand.frame(1, &PrefetchFrame::Part { id, length: 1 });
    stand.payload(1, "x");
    stand.wait(2, PATIENCE - Duration::from_millis(1));
    assert_eq!(stand.to_server(2), "");
    stand.wait(2, Duration::from_millis(1));
    assert!(stand.to_server(2).ends_with(IMAGE));
    let declined = PrefetchFrame::Declined(PrefetchId(1));
    assert_eq!(stand.frames(1).last(), Some(&declined));
    assert_eq!(stand.flows[&2].near.poll_timeout(), None);
    // What comes all the same is passed over.
    stand.bring(1, 1, "");
    assert_eq!(stand.to_client(2), "");
}

#[test]
fn held_response_is_forgotten_in_time() {
    let mut stand = NearStand::promised();
    stand.bring(1, 1, "");
    stand.wait(1, HELD_FOR);
    assert_eq!(stand.ask(2, IMAGE).0, IMAGE);
    assert_eq!(stand.table.with(|table| table.held()), 0);
    let note = stand.flows[&1].near.note().unwrap();
    assert_eq!(
        note,
        "prefetch: 1 responses (5 bytes) arrived before their requests; clients requested 0 of them, and 1 \
         expired unused"
    );
}

#[test]
fn unsafe_request_forgets_what_came_before() {
    let mut stand = NearStand::promised();
    stand.bring(1, 1, "");
    let post = "POST /b HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n";
    stand.ask(2, post);
    assert_eq!(stand.ask(2, IMAGE).0, IMAGE);
}

/// A request that changes something, and the head of an image that anybody may have.
const POST: &str = "POST /b HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n";
const SHAREABLE: &str = "Cache-Control: max-age=60\r\n";

#[test]
fn response_from_before_a_change_is_not_stored() {
    // The client changes something at the server, or another one changes this URL.
    let of_image = POST.replace("/b", "/a.png");
    for (client, post) in [(2, POST), (3, &of_image)] {
        let mut stand = NearStand::promised();
        stand.ask(client, post);
        stand.bring(1, 1, SHAREABLE);
        for asker in [2, 3] {
            assert_eq!(stand.ask(asker, IMAGE).0, IMAGE, "{post}");
        }
    }
    // Another client's change of another URL does not count.
    let mut stand = NearStand::promised();
    stand.ask(3, POST);
    stand.bring(1, 1, SHAREABLE);
    assert_eq!(stand.ask(2, IMAGE).0, "");
}

#[test]
fn response_fetched_during_a_change_is_not_stored() {
    let mut stand = NearStand::new();
    stand.connect(1, 2);
    stand.say(1, PAGE);
    stand.connect(2, 2);
    stand.say(2, POST);
    stand.promise(1, 1);
    let response = Bytes::from("HTTP/1.1 204 No Content\r\n\r\n");
    let response = FlowSegment::control(response);
    stand.input(2, AcceleratorInput::Wan(response));
    stand.bring(1, 1, SHAREABLE);
    assert_eq!(stand.ask(2, IMAGE).0, IMAGE);
}

#[test]
fn heads_of_responses_ahead_count_as_memory() {
    let mut stand = NearStand::promised();
    let (promised, buffered) = {
        let table = stand.table.with(|table| table.held());
        (table, stand.flows[&1].near.buffered())
    };
    let long = "x".repeat(4_000);
    let head = format!("HTTP/1.1 200 OK\r\nX: {long}\r\nContent-Length: 0\r\n\r\n");
    let (id, head) = (PrefetchId(1), Bytes::from(head));
    stand.frame(1, &PrefetchFrame::Head { id, head });
    assert!(stand.flows[&1].near.buffered() >= buffered + 4_000);
    stand.frame(1, &PrefetchFrame::Done(id));
    assert!(stand.table.with(|table| table.held()) >= promised + 4_000);
    stand.table.with(AheadTable::forget_all);
    assert_eq!(stand.table.with(|table| table.held()), 0);
}

#[test]
fn purge_and_shrinking_forget_what_is_held() {
    let mut stand = NearStand::promised();
    stand.bring(1, 1, "");
    stand.table.with(|table| table.purge(b"http://a/a."));
    assert_eq!(stand.ask(2, IMAGE).0, IMAGE);
    stand.promise(1, 2);
    stand.bring(1, 2, "");
    stand.table.with(AheadTable::forget_all);
    assert_eq!(stand.table.with(|table| table.held()), 0);
}

#[test]
fn client_with_the_same_copy_gets_304() {
    let mut stand = NearStand::promised();
    stand.bring(1, 1, "ETag: \"1\"\r\nCache-Control: private\r\n");
    let conditional = IMAGE.replace("Cookie", "If-None-Match: \"1\"\r\nCookie");
    let (asked, got) = stand.ask(2, &conditional);
    assert!(
        asked.is_empty() && got.starts_with("HTTP/1.1 304 "),
        "{got}"
    );
}

#[test]
fn response_that_varies_by_what_differs_is_not_used() {
    let mut stand = NearStand::promised();
    stand.bring(1, 1, "Vary: Accept\r\n");
    let other = IMAGE.replace("image/*", "image/webp");
    assert_eq!(stand.ask(2, &other).0, other);
}

#[test]
fn what_is_fresh_here_is_declined() {
    let mut stand = NearStand::promised();
    stand.bring(1, 1, "Cache-Control: max-age=60\r\n");
    stand.frames(1);
    stand.promise(1, 2);
    assert_eq!(stand.frames(1), [PrefetchFrame::Declined(PrefetchId(2))]);
}

/// Nothing that comes ahead reaches the client when the half stops helping.
#[test]
fn flow_is_let_go_when_nothing_more_comes_ahead() {
    let mut stand = NearStand::promised();
    stand.frames(1);
    let response = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
    stand.payload(1, response);
    let tunnel = "CONNECT b:443 HTTP/1.1\r\nHost: b:443\r\n\r\n";
    stand.say(1, &[tunnel, "\x16"].concat());
    assert_eq!(stand.frames(1), [PrefetchFrame::Stop]);
    assert_eq!(stand.flows[&1].letting_go, None);
    stand.bring(1, 1, "");
    stand.payload(1, "answer");
    stand.say(1, "more");
    assert_eq!(stand.to_client(1), [response, "answer"].concat());
    stand.frame(1, &PrefetchFrame::Stopped);
    let reason = reasons::UPGRADED;
    assert_eq!(
        stand.flows[&1].letting_go,
        Some(LettingGo::LetGo { reason })
    );
    assert_eq!(stand.to_server(1), [PAGE, tunnel, "\x16more"].concat());
}

#[test]
fn malformed_frame_closes_the_flow() {
    let violation = Some(LettingGo::Close {
        reason: ReasonCode::VIOLATION,
    });
    let id = PrefetchId(1);
    let part = PrefetchFrame::Part { id, length: 2 }.to_segment();
    let head = Bytes::from_static(b"nonsense\r\n\r\n");
    let cases = [
        vec![FlowSegment::frame(Bytes::from_static(&[20]))],
        vec![PrefetchFrame::Head { id, head }.to_segment()],
        // Content of a part has to come first.
        vec![part.clone(), part],
    ];
    for segments in cases {
        let mut stand = NearStand::promised();
        for segment in segments {
            stand.input(1, AcceleratorInput::Wan(segment));
        }
        assert_eq!(stand.flows[&1].letting_go, violation);
    }
    // A far half may send nothing ahead before it was told that it may.
    let mut stand = NearStand::new();
    stand.connect(1, 2);
    stand.frame(1, &PrefetchFrame::Done(id));
    assert_eq!(stand.flows[&1].letting_go, violation);
}

#[test]
fn nothing_more_is_taken_where_content_may_not_be_stored() {
    let mut stand = NearStand::promised();
    stand.refuses = true;
    stand.frames(1);
    stand.ask(2, IMAGE);
    stand.bring(1, 1, "");
    assert!(stand.to_server(2).ends_with(IMAGE));
    let allows = PrefetchFrame::Allows {
        site: 1,
        objects: 0,
    };
    assert!(stand.frames(1).contains(&allows));
}

#[test]
fn hosts_with_few_hits_are_fetched_less() {
    let mut stand = NearStand::new();
    stand.connect(1, 2);
    stand.say(1, PAGE);
    let key = |stand: &NearStand| {
        let head = Bytes::from_static(PAGE.as_bytes());
        let head = crate::http::wire::RequestHead::parse(head).unwrap();
        stand.cache.key(&head).unwrap()
    };
    let key = key(&stand);
    let objects = |stand: &NearStand| stand.table.with(|table| table.objects(&key));
    let mut id = 0;
    let mut bring = |stand: &mut NearStand, is_used: bool| {
        id += 1;
        stand.promise(1, id);
        stand.bring(1, id, "");
        if is_used {
            stand.ask(2, IMAGE);
        }
        stand.wait(1, HELD_FOR);
    };
    for _ in 0..JUDGED_MIN - 1 {
        bring(&mut stand, false);
    }
    assert_eq!(objects(&stand), OBJECTS_PER_PAGE);
    bring(&mut stand, false);
    assert_eq!(objects(&stand), OBJECTS_MIN);
    for _ in 0..JUDGED_MIN / 3 {
        bring(&mut stand, true);
    }
    let few = objects(&stand);
    assert!(few > OBJECTS_MIN && few < OBJECTS_PER_PAGE, "{few}");
    for _ in 0..JUDGED_MIN {
        bring(&mut stand, true);
    }
    assert_eq!(objects(&stand), OBJECTS_PER_PAGE);
}

#[test]
fn purges_begin_a_new_site() {
    let mut stand = NearStand::new();
    stand.connect(1, 2);
    stand.say(1, PAGE);
    let answer = b"HTTP/1.1 200 OK\r\nCache-Control: no-store\r\nContent-Length: 0\r\n\r\n";
    let answer = FlowSegment::control(Bytes::from_static(answer));
    stand.input(1, AcceleratorInput::Wan(answer));
    stand.table.with(|table| table.begin_site(9));
    stand.say(1, PAGE);
    let frames = stand.frames(1);
    let sites: Vec<u64> = frames
        .into_iter()
        .filter_map(|frame| match frame {
            PrefetchFrame::Allows { site, .. } => Some(site),
            _ => None,
        })
        .collect();
    assert_eq!(sites, [1, 9]);
}
