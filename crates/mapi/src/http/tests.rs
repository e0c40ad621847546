//! The two halves between a client and a server of HTTP. The server knows each request's identity,
//! and takes only the sequence cookie that it set last.

use std::collections::{BTreeSet, VecDeque};

use accelerate::credentials::DelegatedKeys;
use accelerate::http::HttpSettings;
use accelerate::http::wire::{BodyExpectation, MessagePart, Requests, Responses};
use accelerate::settings::AcceleratorSettings;
use accelerate::shared::{HalfContext, SharedHandle, SharedState, StartContext};
use accelerate::{
    AcceleratorHalf, AcceleratorInput, AcceleratorOutput, LettingGo, ReasonCode, WanEnd,
};
use bytes::{Bytes, BytesMut};
use vocab::{FlowSegment, SeededRandom, SegmentKind, Time};

use super::{HttpMailFarHalf, HttpMailNearHalf, SequenceTable};
use crate::MapiSettings;
use crate::emsmdb::execute::{answer_body, answer_stub, execute_stub};
use crate::emsmdb::rpc::{RequestEnvelope, RpcRequest, RpcResponse};
use crate::emsmdb::{ContextHandle, ExtendedFlags, PlainBuffer, opnum};
use crate::reasons;
use crate::rop::buffer::{NO_HANDLE, RopBuffer};
use crate::rop::id;
use crate::rop::tactics::tests::server::MailServer;
use crate::rop::tactics::tests::{
    create_message, data_of, logon, noise, open_attachment, open_message, open_stream, plain,
    read_stream, save, server_with, write_stream,
};
use crate::rop::tactics::{SessionPlace, SessionTable};

const CONTEXT: ContextHandle = ContextHandle([9; 20]);
const GUID: &str = "{01234567-89AB-CDEF-0123-456789ABCDEF}";
const META: &str = "PROCESSING\r\nDONE\r\nX-ElapsedTime: 1\r\nX-StartTime: now\r\n\r\n";

/// The way in which the server answers the next Execute request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OriginMood {
    Usual,
    /// It reports that it takes long, and does not end.
    Slow,
    /// It wants a login.
    Refusing,
}

/// The server of HTTP around a mailbox.
struct MailOrigin {
    mailbox: MailServer,
    requests: Requests,
    head: Option<String>,
    body: BytesMut,
    sequence: u32,
    identities: BTreeSet<String>,
    mood: OriginMood,
    is_chunked: bool,
    /// All that it got, in its order.
    received: Vec<u8>,
    kinds: Vec<String>,
}

impl MailOrigin {
    fn new(mailbox: MailServer) -> Self {
        Self {
            mailbox,
            requests: Requests::new(),
            head: None,
            body: BytesMut::new(),
            sequence: 1,
            identities: BTreeSet::new(),
            mood: OriginMood::Usual,
            is_chunked: true,
            received: Vec::new(),
            kinds: Vec::new(),
        }
    }

    fn bytes(&mut self, bytes: &[u8]) -> Vec<u8> {
        self.received.extend_from_slice(bytes);
        let mut answers = Vec::new();
        let mut rest = bytes;
        while !rest.is_empty() {
            let step = self.requests.step(rest).unwrap();
            let run = &rest[..step.length];
            match step.what {
                MessagePart::Head(head, _) => {
                    let text = String::from_utf8(head.bytes.to_vec()).unwrap();
                    self.head = Some(text);
                    self.body.clear();
                }
                MessagePart::Payload => self.body.extend_from_slice(run),
                MessagePart::PartOfHead | MessagePart::Control | MessagePart::Opaque => {}
            }
            rest = &rest[step.length..];
            if step.is_end {
                let head = self.head.take().unwrap();
                answers.extend(self.answer(&head));
            }
        }
        answers
    }

    fn answer(&mut self, head: &str) -> Vec<u8> {
        let field = |name: &str| {
            let mut lines = head.lines();
            let line = lines.find_map(|line| line.strip_prefix(&format!("{name}: ")));
            line.unwrap_or_default().to_owned()
        };
        let kind = field("X-RequestType");
        self.kinds.push(kind.clone());
        let identity = field("X-RequestId");
        match kind.as_str() {
            "Execute" => {}
            "NotificationWait" => {
                return b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nc\r\nPROCESSING\r\n\r\n"
                    .to_vec();
            }
            _ => {
                let body = format!("answer to {}", String::from_utf8_lossy(&self.body));
                let length = body.len();
                return format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n{body}")
                    .into_bytes();
            }
        }
        assert!(self.identities.insert(identity.clone()), "{identity} twice");
        let cookie = format!("MapiContext=abc; MapiSequence={}", self.sequence);
        assert_eq!(field("Cookie"), cookie, "{head}");
        self.sequence += 1;
        let fields = format!(
            "HTTP/1.1 200 OK\r\nContent-Type: application/mapi-http\r\nX-RequestType: Execute\r\n\
             X-RequestId: {identity}\r\nX-ResponseCode: 0\r\n\
             Set-Cookie: MapiSequence={}; path=/mapi/emsmdb\r\n",
            self.sequence
        );
        match self.mood {
            OriginMood::Usual => {}
            OriginMood::Slow => {
                return format!(
                    "{fields}Transfer-Encoding: chunked\r\n\r\n15\r\nPROCESSING\r\nPENDING\r\n\r\n"
                )
                .into_bytes();
            }
            OriginMood::Refusing => {
                self.sequence -= 1;
                return b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 6\r\n\r\nlog in".to_vec();
            }
        }
        let stub = execute_stub(CONTEXT, b"", &self.body);
        let answer = answer_body(&self.mailbox.call(opnum::HTTP_EXECUTE, &stub));
        let body = [META.as_bytes(), &answer].concat();
        let mut out = fields.into_bytes();
        if self.is_chunked {
            out.extend(b"Transfer-Encoding: chunked\r\n\r\n");
            for piece in body.chunks(7_000) {
                out.extend(format!("{:x}\r\n", piece.len()).as_bytes());
                out.extend(piece);
                out.extend(b"\r\n");
            }
            out.extend(b"0\r\n\r\n");
        } else {
            out.extend(format!("Content-Length: {}\r\n\r\n", body.len()).as_bytes());
            out.extend(body);
        }
        out
    }
}

/// One connection through two nodes.
struct HttpFlow {
    near: Option<Box<dyn AcceleratorHalf>>,
    far: Option<Box<dyn AcceleratorHalf>>,
    up: VecDeque<FlowSegment>,
    down: VecDeque<FlowSegment>,
    to_client: BytesMut,
    is_closed: bool,
}

/// The nodes' shared state, and the server.
struct HttpWorld {
    origin: MailOrigin,
    flows: Vec<HttpFlow>,
    sessions: SharedHandle<SessionTable>,
    sequences: SharedHandle<SequenceTable>,
    now: Time,
    /// The sequence cookie that the client has.
    cookie: u32,
    count: u32,
    /// Bytes of a piece in which the hosts' bytes come.
    piece: usize,
    /// Builds the halves of flows that the accelerator `http` owns.
    carriers: Option<[Box<dyn SharedState>; 2]>,
}

impl HttpWorld {
    fn new(mailbox: MailServer) -> Self {
        let mut world = Self {
            origin: MailOrigin::new(mailbox),
            flows: Vec::new(),
            sessions: SharedHandle::new(SessionTable::default()),
            sequences: SharedHandle::new(SequenceTable::default()),
            now: Time::ZERO,
            cookie: 1,
            count: 0,
            piece: usize::MAX,
            carriers: None,
        };
        world.connect();
        world
    }

    /// The same with one connection to port 80, which the accelerator `http` serves. The accelerator
    /// `mapi` is on at the near node, and at the far node if `is_on`.
    fn carried_by_http(mailbox: MailServer, is_on: bool) -> Self {
        let carriers = [true, is_on].map(|is_on| {
            let start = || StartContext {
                memory_max: 1 << 20,
                random: SeededRandom::from_seed(1),
                key: None,
            };
            let settings = MapiSettings {
                is_on,
                ..MapiSettings::default()
            };
            let http = HttpSettings {
                is_on: true,
                ..HttpSettings::default()
            };
            let carried: Vec<_> = settings.start(start()).carried().into_iter().collect();
            let mut http = http.start(start());
            http.carry(&carried);
            http
        });
        let mut world = Self::new(mailbox);
        world.flows.clear();
        world.carriers = Some(carriers);
        world.connect();
        world
    }

    fn connect(&mut self) -> usize {
        let flow = self.flows.len() as u64;
        let (client, server) = ([198, 18, 1, 2].into(), [198, 18, 2, 2].into());
        let place = SessionPlace::new(self.sessions.clone(), flow, client, server);
        let [near, far]: [Box<dyn AcceleratorHalf>; 2] = match &mut self.carriers {
            None => {
                let sequences = self.sequences.clone();
                let far = HttpMailFarHalf::new(true, server, flow, place, sequences);
                [Box::new(HttpMailNearHalf::new(true)), Box::new(far)]
            }
            Some([near, far]) => {
                let context = || HalfContext {
                    flow,
                    client: (client, 50_000).into(),
                    server: (server, 80).into(),
                    delegated: DelegatedKeys::default(),
                    path_bytes: 0,
                    random: SeededRandom::from_seed(flow),
                };
                [
                    near.build(WanEnd::Near, context()),
                    far.build(WanEnd::Far, context()),
                ]
            }
        };
        self.flows.push(HttpFlow {
            near: Some(near),
            far: Some(far),
            up: VecDeque::new(),
            down: VecDeque::new(),
            to_client: BytesMut::new(),
            is_closed: false,
        });
        let at = self.flows.len() - 1;
        self.input(at, WanEnd::Near, AcceleratorInput::Start);
        self.input(at, WanEnd::Far, AcceleratorInput::Start);
        at
    }

    fn input(&mut self, at: usize, end: WanEnd, input: AcceleratorInput) {
        let now = self.now;
        let flow = &mut self.flows[at];
        match (end, input) {
            (WanEnd::Near, input) if flow.near.is_some() => {
                flow.near.as_mut().unwrap().handle(now, input);
            }
            (WanEnd::Far, input) if flow.far.is_some() => {
                flow.far.as_mut().unwrap().handle(now, input);
            }
            // As the engine does without a half.
            (WanEnd::Near, AcceleratorInput::Lan(bytes)) => {
                flow.up.push_back(FlowSegment::payload(bytes));
            }
            (WanEnd::Far, AcceleratorInput::Lan(bytes)) => {
                flow.down.push_back(FlowSegment::payload(bytes));
            }
            (WanEnd::Near, AcceleratorInput::Wan(segment)) => {
                flow.to_client.extend_from_slice(&segment.bytes);
            }
            (WanEnd::Far, AcceleratorInput::Wan(segment)) => {
                let answer = self.origin.bytes(&segment.bytes);
                if !answer.is_empty() {
                    self.flows[at]
                        .down
                        .push_back(FlowSegment::payload(answer.into()));
                }
            }
            _ => {}
        }
        self.drain(at);
    }

    fn drain(&mut self, at: usize) {
        while let Some(output) = poll(&mut self.flows[at].near) {
            let flow = &mut self.flows[at];
            match output {
                AcceleratorOutput::ToLan(bytes) => flow.to_client.extend_from_slice(&bytes),
                AcceleratorOutput::ToWan(segment) => flow.up.push_back(segment),
                AcceleratorOutput::LettingGo(LettingGo::LetGo { .. }) => {
                    flow.near = None;
                    flow.far = None;
                }
                AcceleratorOutput::LettingGo(LettingGo::Close { .. }) => flow.is_closed = true,
                _ => {}
            }
        }
        while let Some(output) = poll(&mut self.flows[at].far) {
            match output {
                AcceleratorOutput::ToLan(bytes) => {
                    let answer = self.origin.bytes(&bytes);
                    for piece in answer.chunks(self.piece) {
                        let bytes = Bytes::copy_from_slice(piece);
                        let far = self.flows[at].far.as_mut().unwrap();
                        far.handle(self.now, AcceleratorInput::Lan(bytes));
                    }
                }
                AcceleratorOutput::ToWan(segment) => self.flows[at].down.push_back(segment),
                AcceleratorOutput::LettingGo(_) => self.flows[at].is_closed = true,
                _ => {}
            }
        }
    }

    /// Delivers what is on its way until nothing is.
    fn settle(&mut self) {
        loop {
            let mut is_quiet = true;
            while let Some(flow) = self.sessions.with(SessionTable::poll_wake) {
                is_quiet = false;
                self.input(flow as usize, WanEnd::Far, AcceleratorInput::Woken);
            }
            for at in 0..self.flows.len() {
                if let Some(segment) = self.flows[at].up.pop_front() {
                    is_quiet = false;
                    self.input(at, WanEnd::Far, AcceleratorInput::Wan(segment));
                }
                if let Some(segment) = self.flows[at].down.pop_front() {
                    is_quiet = false;
                    self.input(at, WanEnd::Near, AcceleratorInput::Wan(segment));
                }
            }
            if is_quiet {
                return;
            }
        }
    }

    fn client(&mut self, at: usize, bytes: &[u8]) {
        for piece in bytes.chunks(self.piece) {
            let bytes = Bytes::copy_from_slice(piece);
            self.input(at, WanEnd::Near, AcceleratorInput::Lan(bytes));
        }
        self.settle();
    }

    fn take(&mut self, at: usize) -> Vec<u8> {
        self.flows[at].to_client.split().to_vec()
    }

    /// A request of plain HTTP, and its answer.
    fn plain(&mut self, at: usize, request: &str) -> String {
        self.client(at, request.as_bytes());
        String::from_utf8(self.take(at)).unwrap()
    }

    fn head(&mut self, kind: &str, length: usize) -> String {
        self.count += 1;
        format!(
            "POST /mapi/emsmdb/?MailboxId=1 HTTP/1.1\r\nHost: mail\r\n\
             Content-Type: application/mapi-http\r\nX-RequestType: {kind}\r\n\
             X-RequestId: {GUID}:{}\r\nCookie: MapiContext=abc; MapiSequence={}\r\n\
             Content-Length: {length}\r\n\r\n",
            self.count, self.cookie
        )
    }

    fn request(&mut self, rops: &[Vec<u8>], handles: &[u32]) -> Vec<u8> {
        let buffer = RopBuffer {
            rops: rops.concat().into(),
            handles: handles.to_vec(),
        };
        let request = RpcRequest {
            context: CONTEXT,
            envelope: RequestEnvelope::Http {
                flags: 0,
                out_max: 0x8008,
                auxiliary: Bytes::from_static(b"aux"),
                request_id: Bytes::new(),
            },
            buffers: vec![PlainBuffer {
                flags: ExtendedFlags(ExtendedFlags::XOR_MAGIC | ExtendedFlags::LAST),
                bytes: buffer.write(),
            }],
        };
        let stub = request.write();
        let body = &stub[22..];
        let head = self.head("Execute", body.len());
        [head.as_bytes(), body].concat()
    }

    /// Execute in one of the connections.
    fn execute(&mut self, at: usize, rops: &[Vec<u8>], handles: &[u32]) -> RpcResponse {
        let request = self.request(rops, handles);
        self.client(at, &request);
        let answer = self.take(at);
        self.read(&answer)
    }

    fn read(&mut self, answer: &[u8]) -> RpcResponse {
        let mut responses = Responses::new();
        responses.expect(BodyExpectation::Usual);
        let mut body = Vec::new();
        let mut rest = answer;
        let mut is_whole = false;
        while !rest.is_empty() {
            assert!(!is_whole, "{}", String::from_utf8_lossy(rest));
            let step = responses.step(rest).unwrap();
            match &step.what {
                MessagePart::Head(head, _) => {
                    assert_eq!(head.status, 200);
                    let identity = format!("{GUID}:{}", self.count);
                    assert_eq!(head.fields.single("x-requestid"), Some(identity.as_bytes()));
                    if let Some(cookie) = head.fields.single("set-cookie") {
                        let text = std::str::from_utf8(cookie).unwrap();
                        let value = text.strip_prefix("MapiSequence=").unwrap();
                        self.cookie = value.split(';').next().unwrap().parse().unwrap();
                    }
                }
                MessagePart::Payload => body.extend_from_slice(&rest[..step.length]),
                _ => {}
            }
            is_whole = step.is_end;
            rest = &rest[step.length..];
        }
        assert!(is_whole, "{}", String::from_utf8_lossy(answer));
        let content = body.strip_prefix(META.as_bytes()).unwrap();
        let stub = answer_stub(CONTEXT, content);
        RpcResponse::read(opnum::HTTP_EXECUTE, &stub).unwrap()
    }

    fn handles(&mut self, rops: &[Vec<u8>], handles: &[u32]) -> Vec<u32> {
        let response = self.execute(0, rops, handles);
        RopBuffer::read(&response.buffers[0].bytes).unwrap().handles
    }

    /// Lets the far half offer itself, and opens the stream of an attachment.
    fn open(&mut self) -> u32 {
        self.plain(0, "GET / HTTP/1.1\r\nHost: mail\r\n\r\n");
        self.open_stream()
    }

    fn open_stream(&mut self) -> u32 {
        let store = self.handles(&[logon()], &[NO_HANDLE])[0];
        let message = self.handles(&[open_message(0, 1, 1)], &[store, NO_HANDLE])[1];
        let rops = [open_attachment(0, 1, 0), open_stream(1, 2, 0)];
        self.handles(&rops, &[message, NO_HANDLE, NO_HANDLE])[2]
    }

    fn read_on(&mut self, at: usize, stream: u32) -> Vec<u8> {
        data_of(&self.execute(at, &[read_stream(0, 30_000)], &[stream]))
    }

    fn answered(&self, at: usize) -> u64 {
        self.flows[at]
            .near
            .as_ref()
            .map_or(0, |near| near.answered())
    }
}

fn poll(half: &mut Option<Box<dyn AcceleratorHalf>>) -> Option<AcceleratorOutput> {
    half.as_mut()?.poll_output()
}

const LENGTH: usize = 2_000_000;

#[test]
fn attachment_is_read_ahead_over_http() {
    for (is_chunked, piece) in [(true, usize::MAX), (false, usize::MAX), (true, 1_000)] {
        let mut world = HttpWorld::new(server_with(LENGTH));
        world.origin.is_chunked = is_chunked;
        world.piece = piece;
        let stream = world.open();
        let mut data = Vec::new();
        while data.len() < LENGTH {
            let more = world.read_on(0, stream);
            assert!(!more.is_empty());
            data.extend(more);
        }
        assert_eq!(data, world.origin.mailbox.contents[&1000]);
        let reads = LENGTH.div_ceil(30_000) as u64;
        assert!(world.answered(0) >= reads - 2, "{}", world.answered(0));
    }
}

/// Opens the stream of an attachment on a connection whose first request is the session's.
fn open_by_first_request(world: &mut HttpWorld) -> u32 {
    let ping = world.head("PING", 0);
    world.plain(0, &ping);
    world.open_stream()
}

#[test]
fn connection_of_http_that_carries_mapi_has_tactics() {
    let mut world = HttpWorld::carried_by_http(server_with(LENGTH), true);
    let stream = open_by_first_request(&mut world);
    let data: Vec<u8> = (0..10).flat_map(|_| world.read_on(0, stream)).collect();
    assert_eq!(data, world.origin.mailbox.contents[&1000][..300_000]);
    assert!(world.answered(0) >= 8, "{}", world.answered(0));
    // A request of another kind passes.
    let answer = world.plain(0, "GET /owa/ HTTP/1.1\r\nHost: mail\r\n\r\n");
    assert!(answer.ends_with("\r\n\r\nanswer to "), "{answer}");
}

#[test]
fn other_first_request_leaves_the_connection_to_http() {
    let mut world = HttpWorld::carried_by_http(server_with(LENGTH), true);
    let stream = world.open();
    let data = [world.read_on(0, stream), world.read_on(0, stream)].concat();
    assert_eq!(data, world.origin.mailbox.contents[&1000][..60_000]);
    assert_eq!(world.answered(0), 0);
}

#[test]
fn carried_mapi_passes_without_the_far_accelerator() {
    let mut world = HttpWorld::carried_by_http(server_with(LENGTH), false);
    let stream = open_by_first_request(&mut world);
    let data = [world.read_on(0, stream), world.read_on(0, stream)].concat();
    assert_eq!(data, world.origin.mailbox.contents[&1000][..60_000]);
    assert_eq!((world.answered(0), world.flows[0].is_closed), (0, false));
}

#[test]
fn attachment_is_written_behind_over_http() {
    let mut world = HttpWorld::new(MailServer::new());
    world.plain(0, "GET / HTTP/1.1\r\nHost: mail\r\n\r\n");
    let store = world.handles(&[logon()], &[NO_HANDLE])[0];
    let rops = [
        create_message(0, 1),
        vec![id::CREATE_ATTACHMENT, 0, 1, 2],
        open_stream(2, 3, 2),
    ];
    let opened = world.handles(&rops, &[store, NO_HANDLE, NO_HANDLE, NO_HANDLE]);
    let [_, message, attachment, stream] = opened[..] else {
        panic!("{opened:?}");
    };
    let data = noise(300_000);
    for piece in data.chunks(30_000) {
        let written = world.execute(0, &[write_stream(0, piece)], &[stream]);
        assert_eq!(written.result, 0);
    }
    assert_eq!(world.answered(0), 10);
    world.execute(0, &[plain(id::COMMIT_STREAM, 0)], &[stream]);
    let ended = [
        save(id::SAVE_CHANGES_ATTACHMENT, 0),
        save(id::SAVE_CHANGES_MESSAGE, 1),
    ];
    world.execute(0, &ended, &[attachment, message]);
    assert!(world.origin.mailbox.kept.values().any(|kept| *kept == data));
}

#[test]
fn refused_write_fails_the_commit() {
    let mut world = HttpWorld::new(MailServer::new());
    world.plain(0, "GET / HTTP/1.1\r\nHost: mail\r\n\r\n");
    let store = world.handles(&[logon()], &[NO_HANDLE])[0];
    let rops = [
        create_message(0, 1),
        vec![id::CREATE_ATTACHMENT, 0, 1, 2],
        open_stream(2, 3, 2),
    ];
    let opened = world.handles(&rops, &[store, NO_HANDLE, NO_HANDLE, NO_HANDLE]);
    let stream = opened[3];
    world.origin.mood = OriginMood::Refusing;
    world.execute(0, &[write_stream(0, &noise(1_000))], &[stream]);
    assert_eq!(world.answered(0), 1);
    world.origin.mood = OriginMood::Usual;
    let committed = world.execute(0, &[plain(id::COMMIT_STREAM, 0)], &[stream]);
    let answer = RopBuffer::read(&committed.buffers[0].bytes).unwrap();
    assert_eq!(answer.rops[2..6], 0x8000_4005_u32.to_le_bytes());
}

#[test]
fn other_requests_pass_unchanged() {
    let mut world = HttpWorld::new(server_with(LENGTH));
    let stream = world.open();
    world.read_on(0, stream);
    let requests = [
        "GET /owa/ HTTP/1.1\r\nHost: mail\r\nX-Odd:  two  spaces \r\n\r\n",
        "POST /ews HTTP/1.1\r\nHost: mail\r\nContent-Length: 5\r\n\r\nhello",
        "POST /ews HTTP/1.1\r\nHost: mail\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    ];
    for piece in [usize::MAX, 1] {
        world.piece = piece;
        for request in requests {
            world.origin.received.clear();
            let answer = world.plain(0, request);
            let body = if request.starts_with("GET") {
                ""
            } else {
                "hello"
            };
            assert!(
                answer.ends_with(&format!("\r\n\r\nanswer to {body}")),
                "{answer}"
            );
            let received = String::from_utf8_lossy(&world.origin.received).into_owned();
            // The lane has ended before.
            assert!(received.ends_with(request), "{received}");
        }
    }
    assert_eq!(
        world.read_on(0, stream),
        world.origin.mailbox.contents[&1000][30_000..60_000]
    );
}

#[test]
fn bytes_that_are_no_http_pass_unchanged() {
    for (bytes, reason) in [
        (&b"\x16\x03\x01\x02\x00\x01\x00"[..], reasons::TLS),
        (b"\x05\x00\x0b\x03", ReasonCode::UNSUPPORTED),
        (b"PRI * HTTP/2.0\r\n\r\n", ReasonCode::UNSUPPORTED),
    ] {
        let mut near = HttpMailNearHalf::new(true);
        near.handle(
            Time::ZERO,
            AcceleratorInput::Lan(Bytes::copy_from_slice(bytes)),
        );
        let mut passed = Vec::new();
        let mut let_go = None;
        while let Some(output) = near.poll_output() {
            match output {
                AcceleratorOutput::ToWan(segment) => {
                    assert_ne!(segment.kind, SegmentKind::Frame);
                    passed.extend(segment.bytes);
                }
                AcceleratorOutput::LettingGo(LettingGo::LetGo { reason }) => let_go = Some(reason),
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(let_go, Some(reason));
        assert_eq!(passed, bytes);
    }
}

#[test]
fn notification_wait_is_answered_by_the_server_alone() {
    let mut world = HttpWorld::new(server_with(LENGTH));
    let stream = world.open();
    let mut data = [world.read_on(0, stream), world.read_on(0, stream)].concat();
    assert_eq!(world.answered(0), 1);
    let wait = world.head("NotificationWait", 4) + "wait";
    world.client(0, wait.as_bytes());
    let begun = String::from_utf8(world.take(0)).unwrap();
    assert!(begun.ends_with("c\r\nPROCESSING\r\n\r\n"), "{begun}");
    assert_eq!(world.origin.kinds.last().unwrap(), "NotificationWait");
    // The session goes on in another connection at once, where the client's cursor is.
    let second = world.connect();
    world.plain(second, "GET / HTTP/1.1\r\nHost: mail\r\n\r\n");
    data.extend(world.read_on(second, stream));
    data.extend(world.read_on(second, stream));
    assert_eq!(data, world.origin.mailbox.contents[&1000][..120_000]);
    assert_eq!(world.answered(0), 1);
}

#[test]
fn client_sees_that_a_server_takes_long() {
    let mut world = HttpWorld::new(server_with(LENGTH));
    let stream = world.open();
    world.origin.mood = OriginMood::Slow;
    let request = world.request(&[read_stream(0, 30_000)], &[stream]);
    world.client(0, &request);
    let begun = String::from_utf8(world.take(0)).unwrap();
    assert!(begun.ends_with("PROCESSING\r\nPENDING\r\n\r\n"), "{begun}");
    let end = b"4\r\nDONE\r\n0\r\n\r\n";
    world.input(
        0,
        WanEnd::Far,
        AcceleratorInput::Lan(Bytes::from_static(end)),
    );
    world.settle();
    assert_eq!(world.take(0), end);
    world.cookie += 1;
    world.origin.mood = OriginMood::Usual;
    assert_eq!(world.read_on(0, stream).len(), 30_000);
}

#[test]
fn refusal_passes_and_the_next_request_is_served() {
    let mut world = HttpWorld::new(server_with(LENGTH));
    let stream = world.open();
    world.origin.mood = OriginMood::Refusing;
    let request = world.request(&[read_stream(0, 30_000)], &[stream]);
    world.client(0, &request);
    let answer = String::from_utf8(world.take(0)).unwrap();
    assert!(answer.starts_with("HTTP/1.1 401 "), "{answer}");
    world.origin.mood = OriginMood::Usual;
    assert_eq!(
        world.read_on(0, stream),
        world.origin.mailbox.contents[&1000][..30_000]
    );
}

#[test]
fn pause_ends_what_is_ahead() {
    let mut world = HttpWorld::new(server_with(LENGTH));
    let stream = world.open();
    let first = world.read_on(0, stream);
    let at = world.flows[0].near.as_ref().unwrap().poll_timeout();
    world.now = at.expect("a lane is ahead");
    world.input(0, WanEnd::Near, AcceleratorInput::Timeout);
    world.settle();
    let near = world.flows[0].near.as_ref().unwrap();
    assert_eq!(near.poll_timeout(), None);
    // The server's cursor is the client's.
    let body = {
        let request = world.request(&[read_stream(0, 30_000)], &[stream]);
        let start = request
            .windows(4)
            .position(|four| four == b"\r\n\r\n")
            .unwrap();
        request[start + 4..].to_vec()
    };
    let stub = execute_stub(CONTEXT, b"", &body);
    let answer = world.origin.mailbox.call(opnum::HTTP_EXECUTE, &stub);
    let answer = RpcResponse::read(opnum::HTTP_EXECUTE, &answer).unwrap();
    let data = [first, data_of(&answer)].concat();
    assert_eq!(data, world.origin.mailbox.contents[&1000][..60_000]);
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    let mut world = HttpWorld::new(server_with(LENGTH));
    let stream = world.open();
    world.read_on(0, stream);
    let first = world.request(&[read_stream(0, 30_000)], &[stream]);
    let then = b"GET /next HTTP/1.1\r\nHost: mail\r\n\r\n";
    world.client(0, &[&first[..], then].concat());
    let answer = world.take(0);
    let tail = b"answer to ";
    assert!(answer.ends_with(tail));
    let head = b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n";
    let length = answer.len() - tail.len() - head.len();
    assert_eq!(&answer[length..length + head.len()], head);
    let data = data_of(&world.read(&answer[..length]));
    assert_eq!(data, world.origin.mailbox.contents[&1000][30_000..60_000]);
}

#[test]
fn frames_that_lie_close_or_let_go() {
    let mut random = SeededRandom::from_seed(3);
    let samples = super::testing::http_samples();
    for _ in 0..300 {
        let (_, sample) = &samples[random.below(samples.len() as u64) as usize];
        let mut steps = sample.clone();
        for _ in 0..random.below(6) {
            let mut bytes = vec![0; 1 + random.below(60) as usize];
            random.fill(&mut bytes);
            bytes[0] = [7, 8, 9, 10, 32, 33, 50, 51][random.below(8) as usize];
            let half = 2 + random.below(2) as u8;
            steps.extend([half, 0, bytes.len() as u8]);
            steps.extend(bytes);
            steps.extend(sample);
        }
        super::testing::http_halves(&steps);
    }
}

#[test]
fn damaged_conversations_never_panic() {
    let mut random = SeededRandom::from_seed(4);
    for (_, sample) in super::testing::http_samples() {
        super::testing::http_halves(&sample);
        for _ in 0..100 {
            let mut steps = sample.clone();
            for _ in 0..1 + random.below(4) {
                let at = random.below(steps.len() as u64) as usize;
                steps[at] = random.next_u64() as u8;
            }
            super::testing::http_halves(&steps);
        }
    }
}
