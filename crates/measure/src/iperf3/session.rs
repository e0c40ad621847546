//! Client side of one test's control connection.

use std::collections::VecDeque;
use std::time::Duration;

use serde_json::{Value, json};
use vocab::{Bitrate, ByteCount, Time};

use super::report::{ConnectionCount, ServerReport, emit};
use crate::wire::TestDirection;

/// Bytes of the cookie: 36 letters and digits and a zero (COOKIE_SIZE).
pub const COOKIE_BYTES: usize = 37;
/// Time limit for the server's next message. It reads the results of many connections meanwhile.
pub const SILENCE_MAX: Duration = Duration::from_secs(10);
/// Time limit for the server's result beyond the test's own duration.
const TEST_LATE_MAX: Duration = Duration::from_secs(20);
/// The longest JSON that is read: two hundred bytes for each of 128 connections are a fortieth of it.
const JSON_MAX: usize = 1 << 20;
/// Block size of the server's reads and writes (DEFAULT_TCP_BLKSIZE).
const BLOCK_BYTES: u32 = 128 * 1024;
/// Version that is sent to the server: that of the protocol.
const VERSION: &str = "3.12";

/// The states that travel (iperf_api.h).
mod state {
    pub(super) const TEST_START: u8 = 1;
    pub(super) const TEST_RUNNING: u8 = 2;
    pub(super) const TEST_END: u8 = 4;
    pub(super) const PARAM_EXCHANGE: u8 = 9;
    pub(super) const CREATE_STREAMS: u8 = 10;
    pub(super) const SERVER_TERMINATE: u8 = 11;
    pub(super) const EXCHANGE_RESULTS: u8 = 13;
    pub(super) const DISPLAY_RESULTS: u8 = 14;
    pub(super) const IPERF_DONE: u8 = 16;
    pub(super) const ACCESS_DENIED: u8 = 0xff;
    pub(super) const SERVER_ERROR: u8 = 0xfe;
}

/// Transport protocol of a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TestProtocol {
    /// TCP, as fast as it goes.
    Tcp,
    /// UDP packets at a constant rate, in either direction.
    Udp {
        /// Bytes above UDP of each.
        payload_bytes: u16,
        /// Rate of these bytes.
        rate: Bitrate,
    },
}

/// Parameters of a test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TestOrder {
    /// Transport protocol.
    pub carried: TestProtocol,
    /// Direction of the data; down is iperf3's `-R`.
    pub direction: TestDirection,
    /// Number of connections.
    pub connections: u16,
    /// Size of the server's socket buffers, from which its kernel derives a window; `None` leaves
    /// the default.
    pub window: Option<ByteCount>,
    /// Duration.
    pub duration: Duration,
    /// The server's congestion control; empty for its system's own.
    pub congestion_control: String,
    /// The code point of the server's packets.
    pub dscp: u8,
}

impl TestOrder {
    fn parameters(&self) -> Value {
        let mut value = json!({
            "omit": 0,
            "time": self.duration.as_secs_f64().ceil() as u64,
            "num": 0,
            "blockcount": 0,
            "parallel": self.connections,
            "pacing_timer": 1000,
            "client_version": VERSION,
        });
        let fields = value.as_object_mut().expect("it was made as an object");
        let mut put = |name: &str, value: Value| fields.insert(name.to_owned(), value);
        match self.carried {
            TestProtocol::Tcp => {
                put("tcp", true.into());
                put("len", BLOCK_BYTES.into());
            }
            TestProtocol::Udp {
                payload_bytes,
                rate,
            } => {
                put("udp", true.into());
                put("len", payload_bytes.into());
                put("bandwidth", rate.bits_per_second().into());
                put("udp_counters_64bit", 1.into());
            }
        }
        if self.direction == TestDirection::Down {
            put("reverse", true.into());
        }
        if let Some(window) = self.window {
            put("window", window.bytes().into());
        }
        if !self.congestion_control.is_empty() {
            put("congestion", self.congestion_control.as_str().into());
        }
        if self.dscp > 0 {
            put("TOS", (u32::from(self.dscp) << 2).into());
        }
        value
    }
}

/// Action for the shell.
#[derive(Clone, Debug, PartialEq)]
pub enum SessionOutput {
    /// Write this on the control connection.
    Write(Vec<u8>),
    /// Open the data connections, each beginning with the cookie, or greet at the server's UDP port.
    Open,
    /// Data may flow; after the time that was ordered, [`ClientSession::end`].
    Start,
    /// The test is over; these are the server's counts.
    Over(ServerReport),
}

/// Why a test came to nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TestFailure {
    /// PeerMisbehaved: it is something else, or does not follow its protocol.
    #[error("what answers is no iperf3 server, or one of another protocol ({0})")]
    Foreign(&'static str),
    /// PeerIncompatible: one test at a time.
    #[error("the iperf3 server is busy with another test; it serves one at a time")]
    Busy,
    /// PeerIncompatible: it will not, with iperf3's number for the reason and its system's.
    #[error("the iperf3 server refuses: {}{}", reason(.code), system(.errno))]
    Refused {
        /// `i_errno` of iperf_api.h.
        code: u32,
        /// `errno` of its system; 0 where there is none.
        errno: u32,
    },
    /// The server was terminated.
    #[error("somebody ended the iperf3 server")]
    Terminated,
    /// The server sends nothing.
    #[error(
        "the iperf3 server said nothing for {} s {when}: it is busy with another test, hangs, or the link is \
         down", SILENCE_MAX.as_secs()
    )]
    Silent {
        /// The request that it did not answer.
        when: &'static str,
    },
    /// The server closed the connection.
    #[error("the iperf3 server closed the control connection {0}")]
    Closed(&'static str),
}

/// Error number for a refused `SO_RCVBUF` or `SO_SNDBUF`.
const BUFFER_REFUSED: u32 = 141;

impl TestFailure {
    /// Tells whether the server's system refused the window.
    #[must_use]
    pub fn is_of_window(&self) -> bool {
        matches!(self, TestFailure::Refused { code, .. } if *code == BUFFER_REFUSED)
    }
}

/// Text for iperf3's error number (iperf_api.h), where a person can act on it.
fn reason(code: &u32) -> String {
    let known = match *code {
        5 => "the test is longer than it allows",
        6 => "more connections than it allows",
        27 => "a higher rate than it allows",
        121 => "it is busy with another test",
        130 | BUFFER_REFUSED => {
            "its system does not give a socket buffer of this window (net.core.rmem_max and wmem_max there)"
        }
        134 => "its system does not have this congestion control",
        142 => "it wants a user name and a password, which are not spoken here",
        200..=208 => "a data connection failed at its end",
        _ => return format!("iperf3's error {code}"),
    };
    format!("{known} (iperf3's error {code})")
}

fn system(errno: &u32) -> String {
    match *errno {
        0 => String::new(),
        errno => format!(", errno {errno} there"),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SessionState {
    Greeting,
    Proposed,
    Opening,
    Starting,
    Running,
    Ending,
    Reporting,
    /// The report has arrived, and the last message is expected.
    Displaying,
    Done,
    Failed,
}

impl SessionState {
    /// Name of the expected message, for errors.
    fn name(self) -> &'static str {
        match self {
            SessionState::Greeting => "after the cookie",
            SessionState::Proposed => "after the parameters",
            SessionState::Opening => "while the connections were opened",
            SessionState::Starting => "before the test",
            SessionState::Running => "during the test",
            SessionState::Ending | SessionState::Reporting | SessionState::Displaying => {
                "after the test"
            }
            SessionState::Done | SessionState::Failed => "after everything",
        }
    }
}

/// One test.
#[derive(Debug)]
pub struct ClientSession {
    order: TestOrder,
    state: SessionState,
    /// Received bytes that were not parsed yet; at most one JSON document and its length.
    input: Vec<u8>,
    output: VecDeque<SessionOutput>,
    until: Time,
    counted: Vec<ConnectionCount>,
    report: Option<ServerReport>,
    failure: Option<TestFailure>,
}

impl ClientSession {
    /// A test on a control connection that has just been opened.
    #[must_use]
    pub fn new(now: Time, cookie: &[u8; COOKIE_BYTES], order: TestOrder) -> Self {
        Self {
            order,
            state: SessionState::Greeting,
            input: Vec::new(),
            output: VecDeque::from([SessionOutput::Write(cookie.to_vec())]),
            until: now + SILENCE_MAX,
            counted: Vec::new(),
            report: None,
            failure: None,
        }
    }

    /// A cookie of letters and digits from random bytes (make_cookie of iperf_util.c).
    #[must_use]
    pub fn cookie(random: &[u8; COOKIE_BYTES - 1]) -> [u8; COOKIE_BYTES] {
        const LETTERS: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
        let mut cookie = [0; COOKIE_BYTES];
        for (letter, byte) in cookie.iter_mut().zip(random) {
            *letter = LETTERS[usize::from(byte % 32)];
        }
        cookie
    }

    /// Next action for the shell.
    pub fn poll_output(&mut self) -> Option<SessionOutput> {
        self.output.pop_front()
    }

    /// Time of the next call of [`ClientSession::handle_timeout`].
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        self.is_open().then_some(self.until)
    }

    /// Why it came to nothing.
    #[must_use]
    pub fn failure(&self) -> Option<&TestFailure> {
        self.failure.as_ref()
    }

    fn is_open(&self) -> bool {
        !matches!(self.state, SessionState::Done | SessionState::Failed)
    }

    /// Fails if the server was silent too long.
    pub fn handle_timeout(&mut self, now: Time) {
        if self.is_open() && now >= self.until {
            let when = self.state.name();
            self.fail(TestFailure::Silent { when });
        }
    }

    /// Processes bytes from the control connection.
    pub fn handle(&mut self, now: Time, bytes: &[u8]) {
        if !self.is_open() {
            return;
        }
        self.input.extend_from_slice(bytes);
        while self.is_open() && self.step(now) {}
        if !self.is_open() {
            self.input.clear();
        }
    }

    /// Processes the end of the control connection by the server.
    pub fn closed(&mut self) {
        if self.is_open() {
            let when = self.state.name();
            self.fail(TestFailure::Closed(when));
        }
    }

    /// Ends the data transfer at its end or early. `counted` has the counts of each connection, in
    /// order.
    pub fn end(&mut self, now: Time, counted: Vec<ConnectionCount>) {
        if self.state == SessionState::Running {
            self.counted = counted;
            self.write(vec![state::TEST_END]);
            self.go(now, SessionState::Ending);
        }
    }

    fn go(&mut self, now: Time, state: SessionState) {
        self.state = state;
        self.until = now + SILENCE_MAX;
        if state == SessionState::Running {
            self.until += self.order.duration + TEST_LATE_MAX;
        }
    }

    fn write(&mut self, bytes: Vec<u8>) {
        self.output.push_back(SessionOutput::Write(bytes));
    }

    fn write_json(&mut self, value: &Value) {
        let text = value.to_string();
        let length = u32::try_from(text.len()).expect("what is written here is short");
        let mut bytes = length.to_be_bytes().to_vec();
        bytes.extend(text.as_bytes());
        self.write(bytes);
    }

    fn fail(&mut self, failure: TestFailure) {
        self.failure = Some(failure);
        self.state = SessionState::Failed;
        self.output.clear();
    }

    /// Understands one thing more; whether it did.
    fn step(&mut self, now: Time) -> bool {
        if self.state == SessionState::Reporting && self.report.is_none() {
            return self.read_report(now);
        }
        let Some(said) = self.input.first().copied() else {
            return false;
        };
        if said == state::SERVER_ERROR {
            return self.read_error();
        }
        self.input.remove(0);
        match (self.state, said) {
            (_, state::ACCESS_DENIED) => self.fail(TestFailure::Busy),
            (_, state::SERVER_TERMINATE) => self.fail(TestFailure::Terminated),
            (SessionState::Greeting, state::PARAM_EXCHANGE) => {
                let parameters = self.order.parameters();
                self.write_json(&parameters);
                self.go(now, SessionState::Proposed);
            }
            (SessionState::Proposed, state::CREATE_STREAMS) => {
                self.output.push_back(SessionOutput::Open);
                self.go(now, SessionState::Opening);
            }
            (SessionState::Opening, state::TEST_START) => self.go(now, SessionState::Starting),
            (SessionState::Starting, state::TEST_RUNNING) => {
                self.output.push_back(SessionOutput::Start);
                self.go(now, SessionState::Running);
            }
            (SessionState::Ending, state::EXCHANGE_RESULTS) => {
                let counted = std::mem::take(&mut self.counted);
                self.write_json(&emit(&counted));
                self.go(now, SessionState::Reporting);
            }
            (SessionState::Displaying, state::DISPLAY_RESULTS) => {
                self.write(vec![state::IPERF_DONE]);
                let report = self.report.take().unwrap_or_default();
                self.output.push_back(SessionOutput::Over(report));
                self.go(now, SessionState::Done);
            }
            (state, _) => self.fail(TestFailure::Foreign(state.name())),
        }
        true
    }

    /// Two numbers behind the state (iperf_client_api.c, SERVER_ERROR).
    fn read_error(&mut self) -> bool {
        let Some(numbers) = self.input.get(1..9) else {
            return false;
        };
        let word = |at: usize| {
            let four = numbers[at..at + 4].try_into().expect("four of eight");
            u32::from_be_bytes(four)
        };
        let (code, errno) = (word(0), word(4));
        self.fail(TestFailure::Refused { code, errno });
        true
    }

    fn read_report(&mut self, now: Time) -> bool {
        const WHEN: &str = "its results";
        // Before its results it may still say that it failed; no JSON is this long.
        if self.input.first() == Some(&state::SERVER_ERROR) {
            return self.read_error();
        }
        let Some(length) = self.input.first_chunk::<4>() else {
            return false;
        };
        let length = u32::from_be_bytes(*length) as usize;
        if length > JSON_MAX {
            self.fail(TestFailure::Foreign(WHEN));
            return true;
        }
        let Some(text) = self.input.get(4..4 + length) else {
            return false;
        };
        let report = serde_json::from_slice(text)
            .ok()
            .and_then(|value| ServerReport::parse(&value));
        let Some(report) = report else {
            self.fail(TestFailure::Foreign(WHEN));
            return true;
        };
        self.input.drain(..4 + length);
        self.report = Some(report);
        self.go(now, SessionState::Displaying);
        true
    }
}
