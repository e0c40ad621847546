//! Account of requests: answered here, confirmed by the server, fetched, or passed through.
//!
//! ```text
//!  near half ─► FlowAccount ─► `why` of its flow
//!                    └───────► HttpTotals ─► `node status --http`, metrics
//! ```
//! A request is counted when it is answered here, or when its final response begins: once, unless the dictionary has
//! lost what it was to be answered with.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::time::Duration;

use vocab::printable;

use crate::shared::{AcceleratorReport, REPORTED_SERVERS_MAX, ServerReport, SharedHandle};

/// Origins whose times are kept. A branch uses some hundred; when there are more, the one with the fewest answers
/// makes room.
const ORIGINS_MAX: usize = 256;

/// Bytes of an origin's name that are kept: a host name has 253 at most.
const NAME_MAX: usize = 260;

/// The reason for which a request passed through without the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PassReason {
    /// Its method is another than GET and HEAD.
    Method,
    /// It asks for a part, has conditions of its own kind, or is of another version than HTTP/1.1.
    Form,
    /// Its URL has two readings.
    Url,
    /// The cache is switched off.
    NoCache,
}

impl PassReason {
    /// The reason as a clause.
    fn text(self) -> &'static str {
        match self {
            Self::Method => "the method is neither GET nor HEAD",
            Self::Form => {
                "only the server can answer a request of this form (a range, an upgrade or similar)"
            }
            Self::Url => "the URL is ambiguous",
            Self::NoCache => "the configuration switches the cache off",
        }
    }
}

/// Counts of the outcomes of one flow's requests, and the totals that they are added to.
#[derive(Clone, Debug)]
pub(super) struct FlowAccount {
    fetched: u64,
    passed: u64,
    /// Reason why the last request passed through.
    pass_reason: Option<PassReason>,
    totals: SharedHandle<HttpTotals>,
}

impl Default for FlowAccount {
    /// An account that is added to nothing else.
    fn default() -> Self {
        Self::new(SharedHandle::new(HttpTotals::default()))
    }
}

impl FlowAccount {
    /// An account whose counts are added to these totals.
    pub(super) fn new(totals: SharedHandle<HttpTotals>) -> Self {
        Self {
            fetched: 0,
            passed: 0,
            pass_reason: None,
            totals,
        }
    }

    /// A request was answered here.
    pub(super) fn hit(&mut self) {
        self.totals.with(|totals| totals.hits += 1);
    }

    /// The server said that what is stored still holds.
    pub(super) fn confirmed(&mut self) {
        self.totals.with(|totals| totals.confirmed += 1);
    }

    /// The server sent a response that the cache did not have, or not as it is now.
    pub(super) fn fetched(&mut self) {
        self.fetched += 1;
        self.totals.with(|totals| totals.fetched += 1);
    }

    /// The server answered a request that passed through.
    pub(super) fn passed(&mut self, reason: PassReason) {
        self.passed += 1;
        self.pass_reason = Some(reason);
        self.totals.with(|totals| totals.passed += 1);
    }

    /// Stored content is sent to the client.
    pub(super) fn answered_bytes(&mut self, bytes: u64) {
        self.totals.with(|totals| totals.answered_bytes += bytes);
    }

    /// Content of a server is sent to the client.
    pub(super) fn fetched_bytes(&mut self, bytes: usize) {
        self.totals
            .with(|totals| totals.fetched_bytes += bytes as u64);
    }

    /// A server's answer began this long after its request; the URL names the origin.
    pub(super) fn answer_time(&mut self, server: SocketAddr, url: &[u8], took: Duration) {
        let name = origin_of(url);
        self.totals
            .with(|totals| totals.note_time(server, name, took));
    }

    /// Note for the operator, beside the counts of answered and confirmed requests.
    pub(super) fn note(&self) -> Option<String> {
        let mut text = String::new();
        if self.fetched > 0 {
            let _ = write!(text, "{} answered by the server", requests(self.fetched));
        }
        if let Some(reason) = self.pass_reason {
            let joint = if text.is_empty() { "" } else { "; " };
            let (passed, reason) = (requests(self.passed), reason.text());
            let _ = write!(
                text,
                "{joint}{passed} sent on without the cache (the last because: {reason})"
            );
        }
        (!text.is_empty()).then_some(text)
    }
}

fn requests(count: u64) -> String {
    match count {
        1 => "1 request".to_owned(),
        _ => format!("{count} requests"),
    }
}

/// The scheme, host and port of a URL, without what could act on a terminal.
fn origin_of(url: &[u8]) -> String {
    let scheme = url.windows(3).position(|three| three == b"://");
    let host = scheme.map_or(0, |at| at + 3);
    let end = url[host..].iter().position(|byte| *byte == b'/');
    let end = end.map_or(url.len(), |end| host + end).min(host + NAME_MAX);
    printable(&String::from_utf8_lossy(&url[..end]))
}

/// Counts of the outcomes of all requests since the node started.
#[derive(Debug, Default)]
pub(super) struct HttpTotals {
    hits: u64,
    confirmed: u64,
    fetched: u64,
    passed: u64,
    answered_bytes: u64,
    fetched_bytes: u64,
    origins: HashMap<(SocketAddr, String), OriginTimes>,
}

/// The times of an origin's answers.
#[derive(Clone, Copy, Debug, Default)]
struct OriginTimes {
    answers: u64,
    sum: Duration,
    longest: Duration,
}

impl HttpTotals {
    fn note_time(&mut self, server: SocketAddr, name: String, took: Duration) {
        let key = (server, name);
        if self.origins.len() >= ORIGINS_MAX && !self.origins.contains_key(&key) {
            let fewest = self
                .origins
                .iter()
                .min_by_key(|(key, times)| (times.answers, *key));
            if let Some(fewest) = fewest.map(|(key, _)| key.clone()) {
                self.origins.remove(&fewest);
            }
        }
        let times = self.origins.entry(key).or_default();
        times.answers += 1;
        times.sum = times.sum.saturating_add(took);
        times.longest = times.longest.max(took);
    }

    /// The account for the operator.
    pub(super) fn report(&self) -> AcceleratorReport {
        let servers = self
            .origins
            .iter()
            .map(|((server, name), times)| ServerReport {
                server: *server,
                name: Some(name.clone()),
                answers: times.answers,
                mean: times.sum / u32::try_from(times.answers).unwrap_or(u32::MAX).max(1),
                longest: times.longest,
            });
        let mut slowest_servers: Vec<ServerReport> = servers.collect();
        slowest_servers.sort_by(|one, other| {
            let by_time = other.mean.cmp(&one.mean);
            by_time.then_with(|| (one.server, &one.name).cmp(&(other.server, &other.name)))
        });
        slowest_servers.truncate(REPORTED_SERVERS_MAX);
        AcceleratorReport {
            counts: vec![
                ("hits_total", self.hits),
                ("confirmed_total", self.confirmed),
                ("fetched_total", self.fetched),
                ("passed_total", self.passed),
                ("answered_bytes_total", self.answered_bytes),
                ("fetched_bytes_total", self.fetched_bytes),
            ],
            slowest_servers,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(host: u8) -> SocketAddr {
        SocketAddr::from(([198, 18, 2, host], 80))
    }

    #[test]
    fn the_slowest_origins_are_named_first() {
        let totals = SharedHandle::new(HttpTotals::default());
        let mut account = FlowAccount::new(totals.clone());
        let ms = Duration::from_millis;
        for (host, url, took) in [
            (1, "http://fast.example/a", 10),
            (2, "http://slow.example:8080/b?c=http://x/", 300),
            (2, "http://slow.example:8080/d", 100),
        ] {
            account.answer_time(server(host), url.as_bytes(), ms(took));
        }
        let report = totals.with(|totals| totals.report());
        let slowest = &report.slowest_servers;
        assert_eq!(slowest.len(), 2);
        assert_eq!(slowest[0].name.as_deref(), Some("http://slow.example:8080"));
        assert_eq!((slowest[0].answers, slowest[0].mean), (2, ms(200)));
        assert_eq!(slowest[0].longest, ms(300));
    }

    #[test]
    fn origins_have_a_limit() {
        let mut totals = HttpTotals::default();
        for number in 0..2 * ORIGINS_MAX {
            let name = format!("http://{number}.example");
            totals.note_time(server(1), name, Duration::from_millis(1));
        }
        assert_eq!(totals.origins.len(), ORIGINS_MAX);
        assert_eq!(totals.report().slowest_servers.len(), REPORTED_SERVERS_MAX);
    }

    #[test]
    fn a_note_says_why_requests_pass() {
        let mut account = FlowAccount::new(SharedHandle::new(HttpTotals::default()));
        assert_eq!(account.note(), None);
        account.fetched();
        account.passed(PassReason::Method);
        let note = account.note().unwrap();
        assert!(
            note.contains("1 request answered by the server")
                && note.contains("neither GET nor HEAD"),
            "{note}"
        );
    }
}
