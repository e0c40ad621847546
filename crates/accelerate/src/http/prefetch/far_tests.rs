//! The far half alone, between a near half and a server that the tests play.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use vocab::{FlowSegment, SegmentKind, Time};

use super::frames::{PageId, PrefetchFrame, PrefetchId};
use super::subresource::SubresourceKind::{Image, Style};
use super::*;
use crate::http::far::HttpFarHalf;
use crate::http::shared::HttpCalendar;
use crate::shared::SharedHandle;
use crate::{
    AcceleratorHalf, AcceleratorInput, AcceleratorOutput, ServerCommand, ServerConnection,
    ServerEvent, ServerFailure,
};

const PAGE: &str = "GET /d/ HTTP/1.1\r\nHost: a\r\nCookie: c=1\r\n\r\n";

/// Segments that the near half gets.
#[derive(Clone, Debug, PartialEq, Eq)]
enum SentItem {
    Frame(PrefetchFrame),
    Bytes(Bytes),
}

struct FarStand {
    far: HttpFarHalf,
    now: Time,
    sent: Vec<SentItem>,
    commands: VecDeque<(ServerConnection, ServerCommand)>,
}

fn memory() -> SharedHandle<FarMemory> {
    let mut memory = FarMemory::new(1);
    memory.set_calendar(HttpCalendar {
        now: Time::ZERO,
        since_1970: Duration::from_secs(1_767_225_600),
    });
    SharedHandle::new(memory)
}

impl FarStand {
    fn new() -> Self {
        Self::with(memory(), PrefetchSettings::default())
    }

    fn with(memory: SharedHandle<FarMemory>, settings: PrefetchSettings) -> Self {
        Self::for_client(2, memory, settings)
    }

    fn for_client(client: u8, memory: SharedHandle<FarMemory>, settings: PrefetchSettings) -> Self {
        let client = IpAddr::from([198, 18, 1, client]);
        let server = SocketAddr::from(([198, 18, 2, 2], 80));
        let prefetch = FarPrefetch::new(memory, Arc::new(settings), client, server);
        let mut stand = Self {
            far: HttpFarHalf::new().with_prefetch(prefetch),
            now: Time::ZERO,
            sent: Vec::new(),
            commands: VecDeque::new(),
        };
        stand.input(AcceleratorInput::Start);
        stand.hear(&PrefetchFrame::Allows {
            site: 1,
            objects: OBJECTS_PER_PAGE,
        });
        stand
    }

    fn input(&mut self, input: AcceleratorInput) {
        self.far.handle(self.now, input);
        while let Some(output) = self.far.poll_output() {
            match output {
                AcceleratorOutput::ToWan(segment) => self.sent.push(match segment.kind {
                    SegmentKind::Frame => {
                        let frame = PrefetchFrame::parse(&segment.bytes);
                        SentItem::Frame(frame.unwrap().unwrap())
                    }
                    SegmentKind::Payload | SegmentKind::Control => SentItem::Bytes(segment.bytes),
                }),
                AcceleratorOutput::Server(connection, command) => {
                    self.commands.push_back((connection, command));
                }
                _ => {}
            }
        }
    }

    fn hear(&mut self, frame: &PrefetchFrame) {
        self.input(AcceleratorInput::Wan(frame.to_segment()));
    }

    /// The client asks so, and the server answers so.
    fn pass(&mut self, request: &str, response: &str) {
        let request = Bytes::copy_from_slice(request.as_bytes());
        self.input(AcceleratorInput::Wan(FlowSegment::control(request)));
        self.answer(response);
    }

    fn answer(&mut self, response: &str) {
        let response = Bytes::copy_from_slice(response.as_bytes());
        self.input(AcceleratorInput::Lan(response));
    }

    fn page(&mut self, content: &str) {
        self.pass(PAGE, &page(content));
    }

    fn event(&mut self, connection: ServerConnection, event: ServerEvent) {
        self.input(AcceleratorInput::Server(connection, event));
    }

    fn receive(&mut self, connection: ServerConnection, response: &str) {
        let response = Bytes::copy_from_slice(response.as_bytes());
        self.event(connection, ServerEvent::Received(response));
    }

    fn wait(&mut self, span: Duration) {
        let end = self.now + span;
        while let Some(at) = self.far.poll_timeout().filter(|at| *at <= end) {
            self.now = self.now.max(at);
            self.input(AcceleratorInput::Timeout);
        }
        self.now = end;
    }

    /// Requests on further server connections since the last call.
    fn asked(&mut self) -> Vec<(ServerConnection, String)> {
        let commands = std::mem::take(&mut self.commands);
        let asked = commands.into_iter().filter_map(|(connection, command)| {
            let ServerCommand::Write(bytes) = command else {
                return None;
            };
            let head = String::from_utf8(bytes.to_vec()).unwrap();
            Some((connection, head))
        });
        asked.collect()
    }

    /// The targets that were asked for since this was last called.
    fn targets(&mut self) -> Vec<String> {
        let asked = self.asked().into_iter();
        asked
            .map(|(_, head)| head.split(' ').nth(1).unwrap().to_owned())
            .collect()
    }

    fn resets(&mut self) -> usize {
        let commands = std::mem::take(&mut self.commands);
        let is_reset = |(_, command): &(_, ServerCommand)| *command == ServerCommand::Reset;
        commands.iter().filter(|command| is_reset(command)).count()
    }

    fn frames(&mut self) -> Vec<PrefetchFrame> {
        let sent = std::mem::take(&mut self.sent).into_iter();
        sent.filter_map(|sent| match sent {
            SentItem::Frame(frame) => Some(frame),
            SentItem::Bytes(_) => None,
        })
        .collect()
    }
}

fn page(content: &str) -> String {
    ok("Content-Type: text/html\r\n", content)
}

fn ok(fields: &str, content: &str) -> String {
    let length = content.len();
    format!("HTTP/1.1 200 OK\r\n{fields}Content-Length: {length}\r\n\r\n{content}")
}

fn promises(first: u32, named: &[(subresource::SubresourceKind, &str)]) -> PrefetchFrame {
    let named = named
        .iter()
        .map(|(kind, target)| document::NamedSubresource {
            kind: *kind,
            target: target.as_bytes().to_vec(),
        });
    PrefetchFrame::Promises {
        page: PageId(1),
        first: PrefetchId(first),
        named: named.collect(),
    }
}

#[test]
fn what_a_page_names_is_promised_before_the_page_passes() {
    let mut stand = FarStand::new();
    stand.page("<img src=a.png>");
    let Some(SentItem::Bytes(content)) = stand.sent.last() else {
        panic!("{:?}", stand.sent);
    };
    assert_eq!(content, "<img src=a.png>");
    let at = stand
        .sent
        .iter()
        .position(|sent| *sent == SentItem::Frame(promises(1, &[(Image, "/d/a.png")])));
    assert!(at.is_some_and(|at| at + 1 < stand.sent.len()));
    let asked = stand.asked();
    assert!(asked[0].1.contains("\r\nCookie: c=1\r\n"), "{asked:?}");
    assert!(
        asked[0].1.contains("\r\nReferer: http://a/d/\r\n"),
        "{asked:?}"
    );
}

#[test]
fn fetched_response_is_sent_with_its_content_in_one_piece() {
    let mut stand = FarStand::new();
    stand.page("<img src=a.png>");
    let (connection, _) = stand.asked()[0];
    stand.sent.clear();
    let response = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n";
    stand.receive(connection, response);
    assert_eq!(stand.sent, []);
    stand.receive(connection, "0\r\n\r\n");
    let id = PrefetchId(1);
    let head = &response[..response.find("3\r\n").unwrap()];
    let head = Bytes::copy_from_slice(head.as_bytes());
    let part = |length, content: &'static str| {
        [
            SentItem::Frame(PrefetchFrame::Part { id, length }),
            SentItem::Bytes(Bytes::from(content)),
        ]
    };
    let expected = [SentItem::Frame(PrefetchFrame::Head { id, head })]
        .into_iter()
        .chain(part(3, "abc"))
        .chain(part(2, "de"))
        .chain([SentItem::Frame(PrefetchFrame::Done(id))]);
    assert_eq!(stand.sent, expected.collect::<Vec<_>>());
    // The connection serves the next page.
    stand.page("<img src=b.png>");
    assert_eq!(stand.asked()[0].0, connection);
}

#[test]
fn third_level_is_fetched_and_no_fourth() {
    let mut stand = FarStand::new();
    stand.page("<link rel=stylesheet href=a.css>");
    let (connection, _) = stand.asked()[0];
    let sheet = ok(
        "Content-Type: text/css\r\n",
        "@import 'b.css'; a{b:url(c.png)}",
    );
    stand.receive(connection, &sheet);
    let frames = stand.frames();
    let third = promises(2, &[(Style, "/d/b.css"), (Image, "/d/c.png")]);
    let promised = frames.iter().position(|frame| *frame == third);
    let sent = frames
        .iter()
        .position(|frame| matches!(frame, PrefetchFrame::Head { .. }));
    assert!(promised.unwrap() < sent.unwrap(), "{frames:?}");
    let asked = stand.asked();
    let (connection, _) = asked
        .iter()
        .find(|(_, head)| head.contains("/d/b.css"))
        .unwrap();
    stand.receive(
        *connection,
        &ok("Content-Type: text/css\r\n", "a{b:url(e.png)}"),
    );
    assert_eq!(stand.targets(), Vec::<String>::new());
}

#[test]
fn preload_links_and_early_hints_are_fetched() {
    let mut stand = FarStand::new();
    let early = "HTTP/1.1 103 Early Hints\r\nLink: </a.css>; rel=preload; as=style\r\n\r\n";
    stand.pass(PAGE, early);
    assert_eq!(stand.targets(), ["/a.css"]);
    let link = "Content-Type: text/html\r\nLink: </a.css>; rel=preload; as=style, </b.js>; rel=preload; as=script\r\n";
    stand.answer(&ok(link, "x"));
    assert_eq!(stand.targets(), ["/b.js"]);
}

#[test]
fn nothing_is_fetched_unless_the_near_half_allows_it() {
    let settings = PrefetchSettings::default();
    let mut stand = FarStand::with(memory(), settings.clone());
    stand.hear(&PrefetchFrame::Allows {
        site: 1,
        objects: 0,
    });
    stand.page("<img src=a.png>");
    assert_eq!(stand.targets(), Vec::<String>::new());
    stand.hear(&PrefetchFrame::Allows {
        site: 1,
        objects: 1,
    });
    stand.page("<img src=a.png><img src=b.png>");
    assert_eq!(stand.targets(), ["/d/a.png"]);
    let excluded = PrefetchSettings {
        excluded: vec!["a".parse().unwrap()],
        ..settings
    };
    for settings in [excluded, PrefetchSettings::OFF] {
        let mut stand = FarStand::with(memory(), settings);
        stand.page("<img src=a.png>");
        assert_eq!(stand.targets(), Vec::<String>::new());
        assert_eq!(stand.frames(), []);
    }
}

#[test]
fn page_that_ends_its_connection_is_left_alone() {
    for (request, response) in [
        (
            PAGE.replace("Cookie", "Connection: close\r\nCookie"),
            page("<img src=a.png>"),
        ),
        (
            PAGE.to_owned(),
            page("<img src=a.png>").replace("Content-Type", "Connection: close\r\nContent-Type"),
        ),
        (
            PAGE.to_owned(),
            "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n<img src=a.png>".to_owned(),
        ),
        (
            PAGE.to_owned(),
            page("<img src=a.png>").replace("200", "404"),
        ),
        (PAGE.replace("GET", "POST"), page("<img src=a.png>")),
        (
            PAGE.replace("Cookie", "Sec-Fetch-Dest: empty\r\nCookie"),
            page("<img src=a.png>"),
        ),
    ] {
        let mut stand = FarStand::new();
        stand.pass(&request, &response);
        assert_eq!(stand.frames(), [], "{request}{response}");
    }
}

#[test]
fn url_with_query_is_fetched_once_its_client_asked() {
    let (memory, settings) = (memory(), PrefetchSettings::default());
    let mut stand = FarStand::with(memory.clone(), settings.clone());
    stand.page("<img src='a.png?v=1'>");
    assert_eq!(stand.targets(), Vec::<String>::new());
    let request = PAGE.replace("/d/", "/d/a.png?v=1");
    stand.pass(&request, &ok("Content-Type: image/png\r\n", "x"));
    stand.wait(ASKED_FOR);
    stand.page("<img src='a.png?v=1'>");
    assert_eq!(stand.targets(), ["/d/a.png?v=1"]);
    // Another client does not learn by it what this one has asked for.
    let mut other = FarStand::for_client(3, memory, settings);
    other.wait(2 * ASKED_FOR);
    other.page("<img src='a.png?v=1'>");
    assert_eq!(other.targets(), Vec::<String>::new());
}

#[test]
fn credentials_of_one_use_are_not_repeated() {
    let page = page("<img src=a.png>");
    for (field, targets) in [
        ("Authorization: Basic eDp5", &["/d/a.png"][..]),
        ("Authorization: Bearer abc", &["/d/a.png"]),
        ("Authorization: Digest username=\"u\", nonce=\"n\"", &[]),
        ("Authorization: NTLM TlRM", &[]),
        ("Authorization: Negotiate YII=", &[]),
    ] {
        let mut stand = FarStand::new();
        let request = PAGE.replace("Cookie: c=1", field);
        stand.pass(&request, &page);
        assert_eq!(stand.targets(), targets, "{field}");
    }
    // Behind such a login, requests on the same connection have no credentials.
    let offer =
        "HTTP/1.1 401 Unauthorized\r\nWWW-Authenticate: Negotiate\r\nContent-Length: 0\r\n\r\n";
    let login = PAGE.replace("Cookie: c=1", "Authorization: Negotiate YII=");
    for (request, response) in [(PAGE, offer), (&login, &page)] {
        let mut stand = FarStand::new();
        stand.pass(request, response);
        stand.page("<img src=b.png>");
        assert_eq!(stand.targets(), Vec::<String>::new(), "{request}");
    }
}

#[test]
fn failing_host_is_left_alone_for_a_while() {
    let fail = |stand: &mut FarStand, number: u32, status: &str| {
        stand.page(&format!("<img src={number}.png>"));
        let asked = stand.asked();
        let Some((connection, _)) = asked.first() else {
            return false;
        };
        let response = format!("HTTP/1.1 {status} x\r\nContent-Length: 0\r\n\r\n");
        stand.receive(*connection, &response);
        true
    };
    for (status, attempts) in [("404", FAILURES_MAX), ("401", 1), ("429", 1)] {
        let memory = memory();
        let mut stand = FarStand::with(memory.clone(), PrefetchSettings::default());
        for number in 0..attempts {
            assert!(fail(&mut stand, number, status), "{status} {number}");
        }
        assert!(!fail(&mut stand, 90, status), "{status}");
        // The host is the same for other clients.
        let mut other = FarStand::for_client(3, memory, PrefetchSettings::default());
        assert!(!fail(&mut other, 91, status), "{status}");
        other.wait(STOPPED_FOR);
        assert!(fail(&mut other, 92, status), "{status}");
    }
    // What comes well in between begins the count anew.
    let mut stand = FarStand::new();
    for number in 0..2 * FAILURES_MAX {
        assert!(fail(&mut stand, 2 * number, "404"), "{number}");
        stand.page(&format!("<img src={}.png>", 2 * number + 1));
        let (connection, _) = stand.asked()[0];
        stand.receive(connection, &ok("", "x"));
    }
}

#[test]
fn pending_fetches_of_a_refusing_host_are_cancelled() {
    let mut stand = FarStand::new();
    let names: String = (0..10)
        .map(|number| format!("<img src={number}.png>"))
        .collect();
    stand.page(&names);
    let asked = stand.asked();
    assert_eq!(asked.len(), CONNECTIONS_MAX);
    stand.sent.clear();
    let refusal = "HTTP/1.1 401 x\r\nContent-Length: 0\r\n\r\n";
    stand.receive(asked[0].0, refusal);
    assert_eq!(stand.targets(), Vec::<String>::new());
    assert_eq!(stand.frames().len(), 1 + 10 - CONNECTIONS_MAX);
}

#[test]
fn what_the_near_half_holds_is_not_fetched() {
    let memory = memory();
    let mut stand = FarStand::with(memory.clone(), PrefetchSettings::default());
    let request = PAGE.replace("/d/", "/d/a.png");
    let fields = "Content-Type: image/png\r\nCache-Control: max-age=60\r\n";
    stand.pass(&request, &ok(fields, "x"));
    stand.wait(ASKED_FOR);
    stand.page("<img src=a.png>");
    assert_eq!(stand.targets(), Vec::<String>::new());
    // A near node that has begun anew holds nothing.
    stand.hear(&PrefetchFrame::Allows {
        site: 2,
        objects: 9,
    });
    stand.page("<img src=a.png>");
    assert_eq!(stand.targets(), ["/d/a.png"]);
    stand.hear(&PrefetchFrame::Allows {
        site: 1,
        objects: 9,
    });
    stand.wait(Duration::from_secs(60));
    stand.page("<img src=a.png>");
    assert_eq!(stand.targets(), ["/d/a.png"]);
}

#[test]
fn what_the_client_asks_for_meanwhile_is_not_fetched() {
    let mut stand = FarStand::new();
    let images: String = (0..7)
        .map(|number| format!("<img src={number}.png>"))
        .collect();
    stand.page(&images);
    // Six are asked for at a time; the client asks for the seventh itself.
    let asked = stand.asked();
    assert_eq!(asked.len(), 6);
    stand.now += Duration::from_millis(1);
    let request = PAGE.replace("/d/", "/d/6.png");
    stand.pass(&request, &ok("Content-Type: image/png\r\n", "x"));
    stand.sent.clear();
    stand.receive(asked[0].0, &ok("", "x"));
    assert_eq!(stand.targets(), Vec::<String>::new());
    assert!(
        stand
            .frames()
            .contains(&PrefetchFrame::Cancelled(PrefetchId(7)))
    );
}

#[test]
fn unfit_responses_are_not_sent() {
    let long = format!("Content-Length: {}\r\n", OBJECT_MAX + 1);
    for head in [
        "404 Not Found\r\nContent-Length: 0\r\n",
        "302 Found\r\nLocation: /login\r\nContent-Length: 0\r\n",
        "206 Partial Content\r\nContent-Range: bytes 0-0/2\r\nContent-Length: 1\r\n",
        "200 OK\r\nSet-Cookie: c=2\r\nContent-Length: 1\r\n",
        "200 OK\r\nContent-Type: text/html\r\nContent-Length: 1\r\n",
        "200 OK\r\n",
        &format!("200 OK\r\n{long}"),
        "200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n",
    ] {
        let mut stand = FarStand::new();
        stand.page("<img src=a.png>");
        let (connection, _) = stand.asked()[0];
        stand.sent.clear();
        stand.receive(connection, &format!("HTTP/1.1 {head}\r\nx"));
        let cancelled = PrefetchFrame::Cancelled(PrefetchId(1));
        assert_eq!(stand.frames(), [cancelled], "{head}");
        assert_eq!(stand.resets(), 1, "{head}");
    }
}

#[test]
fn bytes_and_objects_of_a_page_are_bounded() {
    let mut stand = FarStand::new();
    let images: String = (0..=OBJECTS_PER_PAGE)
        .map(|number| format!("<img src={number}.png>"))
        .collect();
    stand.page(&images);
    let mut fetched = 0;
    let mut asked: VecDeque<_> = stand.asked().into();
    let mut total = asked.len();
    let megabyte = "x".repeat(OBJECT_MAX as usize);
    while let Some((connection, _)) = asked.pop_front() {
        stand.sent.clear();
        stand.receive(connection, &ok("", &megabyte));
        let frames = stand.frames();
        fetched += frames
            .iter()
            .filter(|frame| matches!(frame, PrefetchFrame::Done(_)))
            .count() as u64;
        let more = stand.asked();
        total += more.len();
        asked.extend(more);
    }
    assert_eq!(total, usize::from(OBJECTS_PER_PAGE));
    assert_eq!(fetched, BYTES_PER_PAGE / OBJECT_MAX - 1);
}

#[test]
fn prefetches_yield_to_the_clients_own_response() {
    let mut stand = FarStand::new();
    stand.page("<img src=a.png><img src=b.png>");
    let asked = stand.asked();
    let download = ok("Content-Type: video/mp4\r\n", &"v".repeat(1_000));
    stand.pass(&PAGE.replace("/d/", "/v"), &download[..500]);
    stand.sent.clear();
    stand.receive(asked[0].0, &ok("", "a"));
    stand.receive(asked[1].0, &ok("", "b"));
    assert_eq!(stand.frames(), []);
    // One that a client waits for goes on.
    stand.hear(&PrefetchFrame::Wanted(PrefetchId(2)));
    assert!(stand.frames().contains(&PrefetchFrame::Done(PrefetchId(2))));
    // A response that pauses holds up nothing, and neither does one that has ended.
    stand.wait(YIELDS_FOR);
    assert!(stand.frames().contains(&PrefetchFrame::Done(PrefetchId(1))));
}

#[test]
fn everything_ends_with_the_client() {
    for end in [AcceleratorInput::WanFinished, AcceleratorInput::LanFinished] {
        let memory = memory();
        let mut stand = FarStand::with(memory.clone(), PrefetchSettings::default());
        let images: String = (0..9)
            .map(|number| format!("<img src={number}.png>"))
            .collect();
        stand.page(&images);
        assert_eq!(stand.asked().len(), CONNECTIONS_MAX);
        stand.sent.clear();
        stand.input(end);
        assert_eq!(stand.frames().len(), 9);
        assert_eq!(stand.resets(), CONNECTIONS_MAX);
        assert_eq!(stand.far.poll_timeout(), None);
        let server = SocketAddr::from(([198, 18, 2, 2], 80));
        let mut places = 0;
        while memory.with(|memory| memory.take_connection(server)) {
            places += 1;
        }
        assert_eq!(places, SERVER_CONNECTIONS_MAX);
    }
}

#[test]
fn dropped_half_gives_its_places_back() {
    let memory = memory();
    let mut stand = FarStand::with(memory.clone(), PrefetchSettings::default());
    stand.page("<img src=a.png>");
    drop(stand);
    let server = SocketAddr::from(([198, 18, 2, 2], 80));
    for _ in 0..SERVER_CONNECTIONS_MAX {
        assert!(memory.with(|memory| memory.take_connection(server)));
    }
}

#[test]
fn stop_is_answered_when_nothing_more_comes() {
    let mut stand = FarStand::new();
    stand.page("<img src=a.png>");
    stand.sent.clear();
    stand.hear(&PrefetchFrame::Stop);
    let expected = [
        PrefetchFrame::Cancelled(PrefetchId(1)),
        PrefetchFrame::Stopped,
    ];
    assert_eq!(stand.frames(), expected);
    stand.page("<img src=b.png>");
    assert_eq!(stand.frames(), []);
}

#[test]
fn declined_response_is_not_fetched() {
    let mut stand = FarStand::new();
    let images: String = (0..7)
        .map(|number| format!("<img src={number}.png>"))
        .collect();
    stand.page(&images);
    let asked = stand.asked();
    stand.hear(&PrefetchFrame::Declined(PrefetchId(1)));
    // The seventh has its place.
    assert_eq!(stand.targets(), ["/d/6.png"]);
    stand.hear(&PrefetchFrame::Declined(PrefetchId(7)));
    stand.sent.clear();
    stand.receive(asked[1].0, &ok("", "x"));
    assert!(stand.frames().contains(&PrefetchFrame::Done(PrefetchId(2))));
}

#[test]
fn silent_server_is_given_up() {
    let mut stand = FarStand::new();
    stand.page("<img src=a.png>");
    stand.asked();
    stand.sent.clear();
    stand.wait(STALLED_AFTER);
    assert_eq!(stand.frames(), [PrefetchFrame::Cancelled(PrefetchId(1))]);
    assert_eq!(stand.resets(), 1);
}

#[test]
fn idle_connection_is_closed() {
    let mut stand = FarStand::new();
    stand.page("<img src=a.png>");
    let (connection, _) = stand.asked()[0];
    stand.receive(connection, &ok("", "x"));
    stand.commands.clear();
    stand.wait(IDLE_FOR);
    assert_eq!(stand.commands, [(connection, ServerCommand::Finish)]);
    // A server that does not close it has it reset.
    stand.wait(CLOSED_WITHIN);
    assert_eq!(
        stand.commands.back(),
        Some(&(connection, ServerCommand::Reset))
    );
    assert_eq!(stand.far.poll_timeout(), None);
}

#[test]
fn connection_that_the_server_had_closed_is_tried_again_once() {
    let mut stand = FarStand::new();
    stand.page("<img src=a.png>");
    let (connection, _) = stand.asked()[0];
    stand.receive(connection, &ok("", "x"));
    stand.page("<img src=b.png>");
    assert_eq!(stand.targets(), ["/d/b.png"]);
    stand.event(connection, ServerEvent::Failed);
    let asked = stand.asked();
    assert!(asked[0].1.starts_with("GET /d/b.png "), "{asked:?}");
    stand.sent.clear();
    stand.event(asked[0].0, ServerEvent::Failed);
    assert_eq!(stand.frames(), [PrefetchFrame::Cancelled(PrefetchId(2))]);
}

#[test]
fn refused_connections_cancel_what_waits() {
    let mut stand = FarStand::new();
    stand.page("<img src=a.png><img src=b.png>");
    let asked = stand.asked();
    stand.sent.clear();
    let failed = ServerEvent::ConnectFailed(ServerFailure::Limit);
    stand.event(asked[0].0, failed.clone());
    // The other one may still be opened.
    assert_eq!(stand.frames(), []);
    stand.event(asked[1].0, failed);
    assert_eq!(stand.frames().len(), 2);
    assert_eq!(stand.targets(), Vec::<String>::new());
}

#[test]
fn long_response_is_streamed_and_paused_before_its_turn() {
    let mut stand = FarStand::new();
    stand.page("<img src=a.png><img src=b.png>");
    let asked = stand.asked();
    let half = "x".repeat(STREAMED_FROM);
    let head = format!(
        "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n",
        2 * STREAMED_FROM
    );
    stand.sent.clear();
    stand.receive(asked[0].0, &format!("{head}{half}"));
    let frames = stand.frames();
    assert!(
        matches!(
            frames[..],
            [PrefetchFrame::Head { .. }, PrefetchFrame::Part { .. }]
        ),
        "{frames:?}"
    );
    stand.receive(asked[1].0, &format!("{head}{half}"));
    assert_eq!(stand.frames(), []);
    let paused = (asked[1].0, ServerCommand::PauseReading);
    assert_eq!(stand.commands.back(), Some(&paused));
    stand.receive(asked[0].0, &half);
    let frames = stand.frames();
    assert!(
        frames.contains(&PrefetchFrame::Done(PrefetchId(1))),
        "{frames:?}"
    );
    assert!(frames.iter().any(|frame| matches!(
        frame,
        PrefetchFrame::Head {
            id: PrefetchId(2),
            ..
        }
    )));
    let resumed = (asked[1].0, ServerCommand::ResumeReading);
    assert!(stand.commands.contains(&resumed));
}
