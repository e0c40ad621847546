//! Both halves between a TLS client and a TLS server in memory.

mod ahead;
mod carried;
mod closure;
mod http2;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use rustls::pki_types::ServerName;
use rustls::server::WebPkiClientVerifier;
use rustls::sign::SingleCertAndKey;
use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection};
use rustls::{Error, SupportedProtocolVersion};
use vocab::{SeededRandom, SegmentKind, Time};
use zeroize::Zeroizing;

use super::authority::{LeafAuthority, NewAuthority};
use super::config::TlsSettings;
use super::facts::OriginFacts;
use super::stream::TlsStream;
use super::{FarTls, NearTls, TlsState, testing};
use crate::http::account::HttpTotals;
use crate::http::carried::CarriedProtocols;
use crate::http::parts::{FarHalfParts, NearHalfParts};
use crate::http::prefetch::{AheadTable, FarMemory, PrefetchSettings};
use crate::http::reasons;
use crate::http::recall::RecallMemory;
use crate::http::shared::{HttpCalendar, SharedCache};
use crate::http::tests::ContentFixture;
use crate::shared::SharedHandle;
use crate::{
    AcceleratorHalf, AcceleratorInput, AcceleratorOutput, CarriedFlow, CarriedProtocol, LettingGo,
    ReasonCode, ServerCommand, ServerConnection as Further, ServerEvent,
};

const NOW: i64 = 1_767_225_600;
const NAME: &str = "wiki.corp.example";
const SERVER: ([u8; 4], u16) = ([10, 2, 0, 9], 443);

fn client_address() -> SocketAddr {
    SocketAddr::from(([10, 1, 0, 5], 40_000))
}

/// An authority as PEM, and what trusts it.
struct TestAuthority {
    certificate: String,
    key: Zeroizing<String>,
}

impl TestAuthority {
    fn new(name: &str) -> Self {
        let new = NewAuthority {
            name: name.to_owned(),
            permitted: vec!["corp.example".to_owned()],
            now: NOW,
            life: Duration::from_secs(86_400 * 365),
        };
        let (certificate, key) = new.make().unwrap();
        Self { certificate, key }
    }

    fn authority(&self) -> LeafAuthority {
        LeafAuthority::parse(self.certificate.as_bytes(), self.key.as_bytes()).unwrap()
    }

    fn roots(&self) -> RootCertStore {
        use rustls::pki_types::CertificateDer;
        use rustls::pki_types::pem::PemObject;
        let mut roots = RootCertStore::empty();
        let certificate = CertificateDer::from_pem_slice(self.certificate.as_bytes()).unwrap();
        roots.add(certificate).unwrap();
        roots
    }
}

/// The origin's configuration.
struct TestOrigin {
    config: Arc<ServerConfig>,
    /// Its response to every request.
    answer: &'static str,
    /// Its response to a request for `/page.html`.
    page: &'static str,
    /// Bytes that follow the response.
    more: Bytes,
}

impl TestOrigin {
    fn new(authority: &TestAuthority, name: &str, not_after: i64) -> Self {
        Self::named(authority, &[name], not_after)
    }

    /// An origin with several names.
    fn named(authority: &TestAuthority, names: &[&str], not_after: i64) -> Self {
        let facts = OriginFacts {
            names: names.iter().map(|name| (*name).to_owned()).collect(),
            not_before: NOW - 1_000_000,
            not_after,
            may_store: true,
        };
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let leaf = authority
            .authority()
            .sign_leaf(&provider, NOW, names, &facts);
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(SingleCertAndKey::from(leaf.unwrap())));
        Self {
            config: Arc::new(config),
            answer: "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nCache-Control: max-age=60\r\n\r\nhello",
            page: "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n",
            more: Bytes::new(),
        }
    }

    /// The same, but it asks for certificates of clients.
    fn asking_for_certificates(authority: &TestAuthority, optional: bool) -> Self {
        let mut origin = Self::new(authority, NAME, NOW + 1_000_000);
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let roots = Arc::new(authority.roots());
        let verifier = WebPkiClientVerifier::builder_with_provider(roots, Arc::clone(&provider));
        let verifier = match optional {
            true => verifier.allow_unauthenticated().build().unwrap(),
            false => verifier.build().unwrap(),
        };
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_client_cert_verifier(verifier)
            .with_cert_resolver(Arc::clone(&origin.config.cert_resolver));
        origin.config = Arc::new(config);
        origin
    }
}

/// One connection at the origin.
struct TestOriginEnd {
    stream: TlsStream,
    heard: Vec<u8>,
    /// All that it has heard.
    log: Vec<u8>,
    answer: &'static str,
    page: &'static str,
    more: Bytes,
}

impl TestOriginEnd {
    fn new(origin: &TestOrigin) -> Self {
        let connection = ServerConnection::new(Arc::clone(&origin.config)).unwrap();
        Self {
            stream: TlsStream::new(connection),
            heard: Vec::new(),
            log: Vec::new(),
            answer: origin.answer,
            page: origin.page,
            more: origin.more.clone(),
        }
    }

    fn hear(&mut self, bytes: &[u8]) -> Bytes {
        let received = self.stream.receive(bytes);
        self.heard.extend_from_slice(&received.plain);
        self.log.extend_from_slice(&received.plain);
        while let Some(end) = self.heard.windows(4).position(|end| end == b"\r\n\r\n") {
            // A body in chunks is taken to its end.
            let is_chunked = self.heard.starts_with(b"POST ");
            if is_chunked && !self.heard.ends_with(b"\r\n0\r\n\r\n") {
                break;
            }
            let length = match is_chunked {
                true => self.heard.len(),
                false => end + 4,
            };
            let request: Vec<u8> = self.heard.drain(..length).collect();
            if request.starts_with(b"GET /page.html ") {
                self.stream.send(self.page.as_bytes());
                continue;
            }
            // Some requests are never answered.
            if !request.starts_with(b"GET /slow") {
                self.stream.send(self.answer.as_bytes());
                self.stream.send(&self.more);
            }
        }
        self.stream.take_output()
    }
}

/// State that outlives a connection.
struct InterceptingSites {
    near: TlsState,
    far: TlsState,
    cache: SharedCache,
    contents: ContentFixture,
    origin: TestOrigin,
    ahead: SharedHandle<AheadTable>,
    far_memory: SharedHandle<FarMemory>,
    recall: SharedHandle<RecallMemory>,
    flows: u64,
    carriable: Arc<[Arc<dyn CarriedProtocol>]>,
    now: Time,
}

fn settings(authority: Option<&TestAuthority>, roots: Option<&TestAuthority>) -> TlsSettings {
    let mut settings = TlsSettings {
        may_store_decrypted: true,
        ..TlsSettings::default()
    };
    if let Some(authority) = authority {
        settings.intercept = vec!["*.corp.example".parse().unwrap()];
        settings.authority = Some(Arc::new(authority.authority()));
    }
    settings.trusted = roots.map(|roots| Arc::new(roots.roots()));
    settings
}

impl InterceptingSites {
    fn new(ours: &TestAuthority, theirs: &TestAuthority, origin: TestOrigin) -> Self {
        Self::with(
            settings(Some(ours), None),
            Some(settings(None, Some(theirs))),
            origin,
        )
    }

    fn with(near: TlsSettings, far: Option<TlsSettings>, origin: TestOrigin) -> Self {
        let near = TlsState::new(Some(Arc::new(near)));
        let far = TlsState::new(far.map(Arc::new));
        let since_1970 = Duration::from_secs(NOW as u64);
        near.set_calendar(Time::ZERO, since_1970);
        far.set_calendar(Time::ZERO, since_1970);
        let calendar = HttpCalendar {
            now: Time::ZERO,
            since_1970,
        };
        let mut far_memory = FarMemory::new(1);
        far_memory.set_calendar(calendar);
        let recall = RecallMemory::new(1 << 20, SeededRandom::from_seed(1));
        Self {
            near,
            far,
            cache: SharedCache::new(calendar, 1 << 20),
            contents: ContentFixture::default(),
            origin,
            ahead: SharedHandle::new(AheadTable::new(7)),
            far_memory: SharedHandle::new(far_memory),
            recall: SharedHandle::new(recall),
            flows: 0,
            now: Time::ZERO,
            carriable: Arc::default(),
        }
    }

    fn carried(&self, flow: u64) -> CarriedProtocols {
        CarriedProtocols {
            known: Arc::clone(&self.carriable),
            flow: CarriedFlow {
                flow,
                client: client_address(),
                server: SERVER.into(),
                may_store: true,
            },
        }
    }

    /// Parts of the near halves of the next flow.
    fn near_parts(&mut self) -> NearHalfParts {
        self.flows += 1;
        NearHalfParts {
            flow: self.flows,
            client: client_address().ip(),
            totals: SharedHandle::new(HttpTotals::default()),
            prefetch: Some((self.ahead.clone(), Arc::default())),
            carried: self.carried(self.flows),
        }
    }

    fn connect(&mut self) -> TestPath<'_> {
        let server = SocketAddr::from(SERVER);
        let near_parts = self.near_parts();
        let prefetch = Arc::new(PrefetchSettings::default());
        let far_parts = FarHalfParts {
            client: client_address().ip(),
            server,
            prefetch: Some((self.far_memory.clone(), prefetch)),
            recall: self.recall.clone(),
            carried: self.carried(self.flows),
        };
        let cache = Some(self.cache.clone());
        let near = self.near.near(server, cache, near_parts);
        let mut path = TestPath {
            halves: Some((near, self.far.far(far_parts))),
            far_started: false,
            own: TestOriginEnd::new(&self.origin),
            further: BTreeMap::new(),
            to_client: Vec::new(),
            client_finished: false,
            let_go: None,
            closed: None,
            note: None,
            to_server: Vec::new(),
            segments: Vec::new(),
            is_far_deaf: false,
            is_far_slow: false,
            on_its_way: Vec::new(),
            paused: BTreeSet::new(),
            resets: 0,
            sites: self,
        };
        path.near(AcceleratorInput::Start);
        path
    }

    /// A request of a client with these settings, on a connection of its own.
    fn fetch(&mut self, config: ClientConfig, target: &str) -> FetchedPage {
        let mut path = self.connect();
        let mut client = path.client(config);
        let request = format!("GET {target} HTTP/1.1\r\nHost: {NAME}\r\n\r\n");
        client.send(request.as_bytes());
        let (body, error) = path.converse(&mut client);
        FetchedPage {
            body: String::from_utf8(body).unwrap(),
            error,
            let_go: path.let_go,
            closed: path.closed,
            note: path.note.take(),
            crossed: path.segments.len(),
            payload: path.segments.contains(&SegmentKind::Payload),
        }
    }
}

/// Outcome of a request.
#[derive(Debug)]
struct FetchedPage {
    body: String,
    error: Option<Error>,
    let_go: Option<ReasonCode>,
    closed: Option<ReasonCode>,
    note: Option<String>,
    /// Segments that crossed the WAN.
    crossed: usize,
    /// Some of them were payload.
    payload: bool,
}

/// One client's connection through both nodes.
struct TestPath<'a> {
    sites: &'a mut InterceptingSites,
    halves: Option<(NearTls, FarTls)>,
    far_started: bool,
    own: TestOriginEnd,
    further: BTreeMap<Further, TestOriginEnd>,
    to_client: Vec<u8>,
    client_finished: bool,
    let_go: Option<ReasonCode>,
    closed: Option<ReasonCode>,
    note: Option<String>,
    /// Bytes that the far half has written to the server's connection.
    to_server: Vec<u8>,
    segments: Vec<SegmentKind>,
    /// The far half hears nothing, as one of an earlier release.
    is_far_deaf: bool,
    /// True while the far half's segments are kept in `on_its_way`.
    is_far_slow: bool,
    on_its_way: Vec<AcceleratorOutput>,
    /// Further connections that the far half reads no more of.
    paused: BTreeSet<Further>,
    /// Further connections that it has reset.
    resets: usize,
}

impl TestPath<'_> {
    fn client(&mut self, config: ClientConfig) -> TlsStream {
        let name = ServerName::try_from(NAME).unwrap();
        let connection = ClientConnection::new(Arc::new(config), name).unwrap();
        TlsStream::new(connection)
    }

    /// Carries bytes between the client and the near half until neither has any.
    fn converse(&mut self, client: &mut TlsStream) -> (Vec<u8>, Option<Error>) {
        let mut plain = Vec::new();
        let mut error = None;
        loop {
            let output = client.take_output();
            if !output.is_empty() {
                self.near(AcceleratorInput::Lan(output));
            }
            let bytes = std::mem::take(&mut self.to_client);
            if bytes.is_empty() {
                return (plain, error);
            }
            let received = client.receive(&bytes);
            plain.extend_from_slice(&received.plain);
            error = error.or(received.error);
        }
    }

    fn near(&mut self, input: AcceleratorInput) {
        let now = self.sites.now;
        match (&mut self.halves, input) {
            (Some((near, _)), input) => near.handle(now, input),
            (None, AcceleratorInput::Lan(bytes)) => {
                let answer = self.own.hear(&bytes);
                self.to_client.extend_from_slice(&answer);
            }
            (None, _) => {}
        }
        self.settle();
    }

    /// Does what engines do, until both halves are silent.
    fn settle(&mut self) {
        let now = self.sites.now;
        while let Some((near, far)) = &mut self.halves {
            // All of what a half says is taken before another hears anything, as engines do.
            if let Some(output) = near.poll_output() {
                let opens = matches!(
                    output,
                    AcceleratorOutput::ToWan(_) | AcceleratorOutput::OpenFlow
                ) || matches!(
                    output,
                    AcceleratorOutput::LettingGo(LettingGo::LetGo { .. })
                );
                if opens && !std::mem::replace(&mut self.far_started, true) {
                    far.handle(now, AcceleratorInput::Start);
                }
                match output {
                    AcceleratorOutput::ToLan(bytes) => self.to_client.extend_from_slice(&bytes),
                    AcceleratorOutput::FinishLan => self.client_finished = true,
                    AcceleratorOutput::ToWan(segment) => {
                        self.segments.push(segment.kind);
                        let is_frame = segment.kind == SegmentKind::Frame;
                        if !(self.is_far_deaf && is_frame) {
                            far.handle(now, AcceleratorInput::Wan(segment));
                        }
                    }
                    AcceleratorOutput::FinishWan if self.far_started => {
                        far.handle(now, AcceleratorInput::WanFinished)
                    }
                    AcceleratorOutput::Content(request) => self.sites.contents.take(request),
                    AcceleratorOutput::LettingGo(LettingGo::LetGo { reason }) => {
                        self.let_go = Some(reason);
                        self.note = near.note();
                    }
                    AcceleratorOutput::LettingGo(LettingGo::Close { reason }) => {
                        self.closed = Some(reason);
                        self.halves = None;
                        return;
                    }
                    _ => {}
                }
            } else if let Some(report) = self.sites.contents.reports.pop_front() {
                near.handle(now, AcceleratorInput::Content(report));
            } else if let Some(output) = far.poll_output() {
                match matches!(output, AcceleratorOutput::ToWan(_)) && self.is_far_slow {
                    true => self.on_its_way.push(output),
                    false => self.far_output(output),
                }
            } else {
                if self.let_go.is_some() {
                    self.halves = None;
                }
                return;
            }
        }
    }

    fn far_output(&mut self, output: AcceleratorOutput) {
        let now = self.sites.now;
        let Some((near, far)) = &mut self.halves else {
            return;
        };
        match output {
            AcceleratorOutput::ToLan(bytes) => {
                self.to_server.extend_from_slice(&bytes);
                let answer = self.own.hear(&bytes);
                if self.let_go.is_some() {
                    self.to_client.extend_from_slice(&answer);
                } else if !answer.is_empty() {
                    far.handle(now, AcceleratorInput::Lan(answer));
                }
            }
            AcceleratorOutput::ToWan(segment) => {
                self.segments.push(segment.kind);
                near.handle(now, AcceleratorInput::Wan(segment));
            }
            AcceleratorOutput::FinishWan => near.handle(now, AcceleratorInput::WanFinished),
            AcceleratorOutput::Server(which, ServerCommand::Open) => {
                self.further
                    .insert(which, TestOriginEnd::new(&self.sites.origin));
                far.handle(now, AcceleratorInput::Server(which, ServerEvent::Connected));
            }
            AcceleratorOutput::Server(which, ServerCommand::Write(bytes)) => {
                let taken = ServerEvent::Taken(bytes.len());
                far.handle(now, AcceleratorInput::Server(which, taken));
                if let Some(end) = self.further.get_mut(&which) {
                    let answer = end.hear(&bytes);
                    if !answer.is_empty() {
                        let received = ServerEvent::Received(answer);
                        far.handle(now, AcceleratorInput::Server(which, received));
                    }
                }
            }
            AcceleratorOutput::Server(which, ServerCommand::PauseReading) => {
                self.paused.insert(which);
            }
            AcceleratorOutput::Server(which, ServerCommand::ResumeReading) => {
                self.paused.remove(&which);
            }
            AcceleratorOutput::Server(which, ServerCommand::Reset) => {
                self.resets += 1;
                self.paused.remove(&which);
                self.further.remove(&which);
            }
            AcceleratorOutput::Server(which, ServerCommand::Finish) => {
                self.further.remove(&which);
                far.handle(now, AcceleratorInput::Server(which, ServerEvent::Closed));
            }
            AcceleratorOutput::LettingGo(LettingGo::Close { reason }) => {
                self.closed = Some(reason);
                self.halves = None;
            }
            _ => {}
        }
    }
}

fn trusting(authority: &TestAuthority) -> ClientConfig {
    testing::client_config(authority.roots())
}

fn limited_to(version: &'static SupportedProtocolVersion, roots: RootCertStore) -> ClientConfig {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let clock = super::clock::WallClock::default();
    clock.set_calendar(Time::ZERO, Duration::from_secs(NOW as u64));
    ClientConfig::builder_with_details(provider, Arc::new(clock))
        .with_protocol_versions(&[version])
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth()
}

#[test]
fn both_versions_of_tls_are_intercepted() {
    let (ours, theirs) = (TestAuthority::new("ours"), TestAuthority::new("theirs"));
    for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
        let origin = TestOrigin::new(&theirs, NAME, NOW + 1_000_000);
        let mut sites = InterceptingSites::new(&ours, &theirs, origin);
        // The client trusts our authority alone, so it is our leaf that it has accepted.
        let fetched = sites.fetch(limited_to(version, ours.roots()), "/");
        assert_eq!(fetched.error, None);
        assert_eq!(fetched.let_go, None);
        assert!(fetched.body.ends_with("\r\n\r\nhello"), "{fetched:?}");
        assert!(fetched.payload);
    }
}

#[test]
fn a_stored_page_needs_no_round_trip() {
    let (ours, theirs) = (TestAuthority::new("ours"), TestAuthority::new("theirs"));
    let origin = TestOrigin::new(&theirs, NAME, NOW + 1_000_000);
    let mut sites = InterceptingSites::new(&ours, &theirs, origin);
    let first = sites.fetch(trusting(&ours), "/page");
    assert!(first.crossed > 0);
    let second = sites.fetch(trusting(&ours), "/page");
    assert_eq!(second.crossed, 0, "{second:?}");
    assert!(second.body.ends_with("hello"), "{second:?}");
    let other = sites.fetch(trusting(&ours), "/other");
    assert!(other.crossed > 0);
}

#[test]
fn an_invalid_certificate_stays_invalid_for_the_client() {
    let (ours, theirs) = (TestAuthority::new("ours"), TestAuthority::new("theirs"));
    let strangers = TestAuthority::new("strangers");
    for (origin, note) in [
        (TestOrigin::new(&theirs, NAME, NOW - 10), "expired"),
        (
            TestOrigin::new(&theirs, "other.corp.example", NOW + 1_000_000),
            "another name",
        ),
        (
            TestOrigin::new(&strangers, NAME, NOW + 1_000_000),
            "no trusted authority",
        ),
    ] {
        let mut sites = InterceptingSites::new(&ours, &theirs, origin);
        let mut roots = theirs.roots();
        roots.extend(ours.roots().roots);
        let fetched = sites.fetch(testing::client_config(roots.clone()), "/");
        assert_eq!(fetched.let_go, Some(reasons::ORIGIN_CERTIFICATE), "{note}");
        assert!(
            fetched
                .note
                .as_ref()
                .is_some_and(|text| text.contains(note)),
            "{fetched:?}"
        );
        assert!(
            matches!(fetched.error, Some(Error::InvalidCertificate(_))),
            "{fetched:?}"
        );
        assert_eq!(fetched.body, "");
        // The next connection is not held up for it.
        let again = sites.fetch(testing::client_config(roots), "/");
        assert_eq!(again.let_go, Some(reasons::ORIGIN_CERTIFICATE), "{note}");
        assert_eq!(again.crossed, 1, "{again:?}");
    }
}

#[test]
fn origins_that_ask_for_client_certificates_pass() {
    let (ours, theirs) = (TestAuthority::new("ours"), TestAuthority::new("theirs"));
    for optional in [true, false] {
        let origin = TestOrigin::asking_for_certificates(&theirs, optional);
        let mut sites = InterceptingSites::new(&ours, &theirs, origin);
        for _ in 0..2 {
            let fetched = sites.fetch(trusting(&theirs), "/");
            assert_eq!(
                fetched.let_go,
                Some(reasons::CLIENT_CERTIFICATE),
                "{optional}"
            );
            assert_eq!(fetched.body.ends_with("hello"), optional, "{fetched:?}");
        }
    }
}

#[test]
fn a_client_that_refuses_us_is_left_alone() {
    let (ours, theirs) = (TestAuthority::new("ours"), TestAuthority::new("theirs"));
    for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
        let origin = TestOrigin::new(&theirs, NAME, NOW + 1_000_000);
        let mut sites = InterceptingSites::new(&ours, &theirs, origin);
        let pinned = || limited_to(version, theirs.roots());
        let refused = sites.fetch(pinned(), "/");
        assert!(refused.error.is_some());
        assert_eq!(refused.let_go, None);
        let second = sites.fetch(pinned(), "/");
        assert_eq!(second.let_go, Some(reasons::TLS_PINNED));
        assert!(second.body.ends_with("hello"), "{second:?}");
        // Others, and this one after an hour, are intercepted.
        sites.now += Duration::from_secs(3_601);
        let later = sites.fetch(trusting(&ours), "/");
        assert!(
            later.let_go.is_none() && later.body.ends_with("hello"),
            "{later:?}"
        );
    }
}

#[test]
fn client_that_closes_in_handshakes_is_left_alone() {
    let (ours, theirs) = (TestAuthority::new("ours"), TestAuthority::new("theirs"));
    let origin = TestOrigin::new(&theirs, NAME, NOW + 1_000_000);
    let mut sites = InterceptingSites::new(&ours, &theirs, origin);
    for number in 1..=3 {
        let mut path = sites.connect();
        let mut client = path.client(trusting(&ours));
        let hello = client.take_output();
        path.near(AcceleratorInput::Lan(hello));
        assert!(!path.to_client.is_empty() && path.let_go.is_none());
        // It sees the certificate and only closes.
        path.near(AcceleratorInput::LanFinished);
        let note = path.halves.as_ref().unwrap().0.note().unwrap();
        assert!(note.contains(&format!("{number} times")), "{note}");
    }
    let left_alone = sites.fetch(trusting(&theirs), "/");
    assert_eq!(left_alone.let_go, Some(reasons::TLS_HANDSHAKE));
    assert!(left_alone.body.ends_with("hello"), "{left_alone:?}");
    sites.now += Duration::from_secs(3_601);
    assert_eq!(sites.fetch(trusting(&ours), "/").let_go, None);
}

/// A response that is fresh for longer than what is known of its origin.
const LONG_LIVED: &str = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nETag: \"1\"\r\nCache-Control: max-age=86400\r\n\r\nhello";

#[test]
fn stored_pages_need_a_current_certificate() {
    let (ours, theirs) = (TestAuthority::new("ours"), TestAuthority::new("theirs"));
    // The facts are an hour old, or the certificate has expired.
    for (valid_for, seconds) in [(1_000_000, 3_600), (100, 100)] {
        let mut origin = TestOrigin::new(&theirs, NAME, NOW + valid_for);
        origin.answer = LONG_LIVED;
        let mut sites = InterceptingSites::new(&ours, &theirs, origin);
        let mut path = sites.connect();
        let mut client = path.client(trusting(&ours));
        let mut get = |path: &mut TestPath<'_>, field: &str| {
            let before = path.segments.len();
            client.send(format!("GET / HTTP/1.1\r\nHost: {NAME}\r\n{field}\r\n").as_bytes());
            let (body, error) = path.converse(&mut client);
            assert_eq!(error, None);
            let body = String::from_utf8(body).unwrap();
            (body, path.segments.len() - before)
        };
        assert!(get(&mut path, "").1 > 0);
        path.sites.now += Duration::from_secs(seconds - 1);
        let (body, crossed) = get(&mut path, "");
        assert!(body.ends_with("hello") && crossed == 0, "{body}");
        path.sites.now += Duration::from_secs(1);
        for _ in 0..2 {
            let (body, crossed) = get(&mut path, "");
            assert!(body.ends_with("hello") && crossed > 0, "{body}");
        }
        let (body, _) = get(&mut path, "Cache-Control: only-if-cached\r\n");
        assert!(body.starts_with("HTTP/1.1 504 "), "{body}");
    }
}

#[test]
fn expired_certificate_ends_connections_with_stored_pages() {
    let (ours, theirs) = (TestAuthority::new("ours"), TestAuthority::new("theirs"));
    let mut origin = TestOrigin::new(&theirs, NAME, NOW + 100);
    origin.answer = LONG_LIVED;
    let mut sites = InterceptingSites::new(&ours, &theirs, origin);
    assert!(sites.fetch(trusting(&ours), "/").body.ends_with("hello"));
    let mut path = sites.connect();
    let mut client = path.client(trusting(&ours));
    let request = format!("GET / HTTP/1.1\r\nHost: {NAME}\r\n\r\n");
    client.send(request.as_bytes());
    assert!(path.converse(&mut client).0.ends_with(b"hello"));
    assert!(path.segments.is_empty());
    path.sites.now += Duration::from_secs(101);
    client.send(request.as_bytes());
    assert_eq!(path.converse(&mut client).0, b"");
    assert_eq!(path.closed, Some(reasons::ORIGIN_CERTIFICATE));
}

#[test]
fn request_is_not_sent_to_an_unusable_origin() {
    let (ours, theirs) = (TestAuthority::new("ours"), TestAuthority::new("theirs"));
    let origin = TestOrigin::new(&theirs, NAME, NOW + 1_000_000);
    let mut sites = InterceptingSites::new(&ours, &theirs, origin);
    assert!(sites.fetch(trusting(&ours), "/").body.ends_with("hello"));
    sites.origin = TestOrigin::asking_for_certificates(&theirs, true);
    let mut path = sites.connect();
    let mut client = path.client(trusting(&ours));
    let request = format!("POST / HTTP/1.1\r\nHost: {NAME}\r\nContent-Length: 4\r\n\r\nbuy\n");
    client.send(request.as_bytes());
    path.converse(&mut client);
    assert_eq!(path.closed, Some(reasons::CLIENT_CERTIFICATE));
    // The client sends it again on a connection that passes untouched.
    let log = String::from_utf8_lossy(&path.own.log);
    assert_eq!(log, "");
}

#[test]
fn flows_from_before_a_reload_keep_their_leaf() {
    let (ours, theirs) = (TestAuthority::new("ours"), TestAuthority::new("theirs"));
    let next = TestAuthority::new("next");
    let origin = TestOrigin::new(&theirs, NAME, NOW + 1_000_000);
    let mut sites = InterceptingSites::new(&ours, &theirs, origin);
    let mut path = sites.connect();
    let reloaded = settings(Some(&next), None);
    path.sites.near.configure(Some(Arc::new(reloaded)));
    let mut client = path.client(trusting(&ours));
    client.send(format!("GET / HTTP/1.1\r\nHost: {NAME}\r\n\r\n").as_bytes());
    assert!(path.converse(&mut client).0.ends_with(b"hello"));
    let fetched = sites.fetch(trusting(&next), "/");
    assert_eq!(fetched.error, None);
    assert!(fetched.body.ends_with("hello"), "{fetched:?}");
}

#[test]
fn pages_of_excluded_hosts_are_not_stored() {
    let (ours, theirs) = (TestAuthority::new("ours"), TestAuthority::new("theirs"));
    let names = [NAME, "mail.corp.example"];
    let origin = TestOrigin::named(&theirs, &names, NOW + 1_000_000);
    let mut near = settings(Some(&ours), None);
    near.exclude = vec!["mail.corp.example".parse().unwrap()];
    let far = settings(None, Some(&theirs));
    let mut sites = InterceptingSites::with(near, Some(far), origin);
    for _ in 0..2 {
        let mut path = sites.connect();
        let mut client = path.client(trusting(&ours));
        client.send(b"GET / HTTP/1.1\r\nHost: mail.corp.example\r\n\r\n");
        assert!(path.converse(&mut client).0.ends_with(b"hello"));
        assert!(!path.segments.is_empty());
    }
}

#[test]
fn what_is_not_listed_passes_byte_for_byte() {
    let (ours, theirs) = (TestAuthority::new("ours"), TestAuthority::new("theirs"));
    let cases: [(Vec<u8>, ReasonCode); 5] = [
        (
            testing::hello("bank.example", &["http/1.1"]),
            reasons::TLS_NOT_LISTED,
        ),
        (testing::hello("corp.example", &[]), reasons::TLS_NOT_LISTED),
        (testing::hello(NAME, &["imap"]), reasons::TLS_PROTOCOL),
        (
            testing::hello("10.0.0.1", &["http/1.1"]),
            reasons::TLS_NO_NAME,
        ),
        (b"SSH-2.0-x\r\n".to_vec(), reasons::TLS_MISSING),
    ];
    for (bytes, reason) in cases {
        let origin = TestOrigin::new(&theirs, NAME, NOW + 1_000_000);
        let mut sites = InterceptingSites::new(&ours, &theirs, origin);
        let server = SocketAddr::from(SERVER);
        let parts = sites.near_parts();
        let mut near = sites.near.near(server, None, parts);
        near.handle(Time::ZERO, AcceleratorInput::Start);
        let mut passed = Vec::new();
        let mut let_go = None;
        for piece in bytes.chunks(11) {
            match let_go {
                None => near.handle(
                    Time::ZERO,
                    AcceleratorInput::Lan(Bytes::copy_from_slice(piece)),
                ),
                Some(_) => passed.extend_from_slice(piece),
            }
            while let Some(output) = near.poll_output() {
                match output {
                    AcceleratorOutput::ToWan(segment) => {
                        assert_eq!(segment.kind, SegmentKind::Payload);
                        passed.extend_from_slice(&segment.bytes);
                    }
                    AcceleratorOutput::LettingGo(LettingGo::LetGo { reason }) => {
                        let_go = Some(reason)
                    }
                    other => panic!("{other:?}"),
                }
            }
        }
        assert_eq!(let_go, Some(reason));
        assert_eq!(passed, bytes);
        sites.now = Time::ZERO;
    }
}

#[test]
fn a_certificate_that_becomes_invalid_ends_interception() {
    let (ours, theirs) = (TestAuthority::new("ours"), TestAuthority::new("theirs"));
    let origin = TestOrigin::new(&theirs, NAME, NOW + 1_000_000);
    let mut sites = InterceptingSites::new(&ours, &theirs, origin);
    assert!(sites.fetch(trusting(&ours), "/a").body.ends_with("hello"));
    sites.origin = TestOrigin::new(&theirs, NAME, NOW - 10);
    let fetched = sites.fetch(trusting(&ours), "/b");
    assert_eq!(fetched.closed, Some(reasons::ORIGIN_CERTIFICATE));
    assert_eq!(fetched.body, "");
    let next = sites.fetch(trusting(&ours), "/b");
    assert_eq!(next.let_go, Some(reasons::ORIGIN_CERTIFICATE));
}

#[test]
fn decrypted_content_is_stored_only_where_both_nodes_say_so() {
    let (ours, theirs) = (TestAuthority::new("ours"), TestAuthority::new("theirs"));
    for (near_stores, far_stores) in [(false, true), (true, false)] {
        let origin = TestOrigin::new(&theirs, NAME, NOW + 1_000_000);
        let mut near = settings(Some(&ours), None);
        let mut far = settings(None, Some(&theirs));
        near.may_store_decrypted = near_stores;
        far.may_store_decrypted = far_stores;
        let mut sites = InterceptingSites::with(near, Some(far), origin);
        for _ in 0..2 {
            let fetched = sites.fetch(trusting(&ours), "/");
            assert!(fetched.body.ends_with("hello"), "{fetched:?}");
            assert!(!fetched.payload && fetched.crossed > 0, "{fetched:?}");
        }
    }
}

#[test]
fn a_far_node_without_consent_or_answer_is_no_obstacle() {
    let (ours, theirs) = (TestAuthority::new("ours"), TestAuthority::new("theirs"));
    let origin = TestOrigin::new(&theirs, NAME, NOW + 1_000_000);
    let mut sites = InterceptingSites::with(settings(Some(&ours), None), None, origin);
    let fetched = sites.fetch(trusting(&theirs), "/");
    assert_eq!(fetched.let_go, Some(reasons::TLS_OFF));
    assert!(fetched.body.ends_with("hello"), "{fetched:?}");

    let origin = TestOrigin::new(&theirs, NAME, NOW + 1_000_000);
    let mut sites = InterceptingSites::new(&ours, &theirs, origin);
    let mut path = sites.connect();
    path.is_far_deaf = true;
    let mut client = path.client(trusting(&theirs));
    client.send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(path.converse(&mut client).0, b"");
    path.sites.now += Duration::from_secs(15);
    path.near(AcceleratorInput::Timeout);
    assert_eq!(path.let_go, Some(reasons::TLS_OFF));
    assert!(path.converse(&mut client).0.ends_with(b"hello"));
}

#[test]
fn consent_withdrawn_after_the_proof_costs_one_connection() {
    let (ours, theirs) = (TestAuthority::new("ours"), TestAuthority::new("theirs"));
    for protocol in ["http/1.1", "h2"] {
        let origin = TestOrigin::new(&theirs, NAME, NOW + 1_000_000);
        let mut sites = InterceptingSites::new(&ours, &theirs, origin);
        assert!(sites.fetch(trusting(&ours), "/a").body.ends_with("hello"));
        sites.far.configure(None);
        let mut config = trusting(&ours);
        config.alpn_protocols = vec![protocol.into()];
        let mut path = sites.connect();
        let mut client = path.client(config);
        let secret = format!("GET /b HTTP/1.1\r\nHost: {NAME}\r\nCookie: secret\r\n\r\n");
        // The preface, SETTINGS, and HEADERS of a GET of `/`.
        let mut frames = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0".to_vec();
        frames.extend_from_slice(b"\0\0\x16\x01\x05\0\0\0\x01\x82\x87\x84\x41\x11");
        frames.extend_from_slice(NAME.as_bytes());
        client.send(match protocol {
            "h2" => &frames,
            _ => secret.as_bytes(),
        });
        path.is_far_slow = true;
        path.converse(&mut client);
        for output in std::mem::take(&mut path.on_its_way) {
            path.far_output(output);
        }
        path.settle();
        assert_eq!(path.closed, Some(reasons::TLS_OFF), "{protocol}");
        assert_eq!(path.to_server, b"", "{protocol}");
        let next = sites.fetch(trusting(&theirs), "/b");
        assert_eq!(next.let_go, Some(reasons::TLS_OFF), "{protocol}");
        assert!(next.body.ends_with("hello"), "{next:?}");
    }
}

#[test]
fn upgraded_connections_pass_inside_tls() {
    let (ours, theirs) = (TestAuthority::new("ours"), TestAuthority::new("theirs"));
    let mut origin = TestOrigin::new(&theirs, NAME, NOW + 1_000_000);
    origin.answer =
        "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\nfirst";
    let mut sites = InterceptingSites::new(&ours, &theirs, origin);
    let mut path = sites.connect();
    let mut client = path.client(trusting(&ours));
    let request =
        "GET / HTTP/1.1\r\nHost: wiki.corp.example\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n";
    client.send(request.as_bytes());
    assert!(path.converse(&mut client).0.ends_with(b"first"));
    path.own.answer = "pong";
    client.send(b"ping\r\n\r\n");
    assert_eq!(path.converse(&mut client).0, b"pong");
    assert!(path.let_go.is_none() && path.closed.is_none());
}

#[test]
fn keys_of_hosts_that_were_not_proved_are_none() {
    let (ours, theirs) = (TestAuthority::new("ours"), TestAuthority::new("theirs"));
    let origin = TestOrigin::new(&theirs, NAME, NOW + 1_000_000);
    let mut sites = InterceptingSites::new(&ours, &theirs, origin);
    for _ in 0..2 {
        let mut path = sites.connect();
        let mut client = path.client(trusting(&ours));
        client.send(b"GET / HTTP/1.1\r\nHost: mail.corp.example\r\n\r\n");
        assert!(path.converse(&mut client).0.ends_with(b"hello"));
        // It was not stored for anybody.
        assert!(!path.segments.is_empty());
    }
}
