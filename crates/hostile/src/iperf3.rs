//! Entry of `measure::iperf3`: what calls itself an iperf3 server.

use std::time::Duration;

use measure::iperf3::{
    COOKIE_BYTES, ClientSession, ConnectionCount, SessionOutput, StampedHeader, TestOrder,
    TestProtocol,
};
use measure::wire::TestDirection;
use vocab::{ByteCount, Time};

use crate::seed::{CorpusSeed, seed};

/// Things that the session may want done in one test: cookie, parameters, connections, start, end, results,
/// the last word and the report.
const OUTPUTS_MAX: usize = 8;

/// All that a server says in one test.
pub(crate) fn session(bytes: &[u8]) {
    let cookie = ClientSession::cookie(&[3; COOKIE_BYTES - 1]);
    let order = TestOrder {
        carried: TestProtocol::Tcp,
        direction: TestDirection::Down,
        connections: 2,
        window: Some(ByteCount::new(65_536)),
        duration: Duration::from_secs(2),
        congestion_control: String::new(),
        dscp: 0,
    };
    // The same bytes, as what travels over UDP.
    if let Some(head) = StampedHeader::parse(bytes) {
        let mut again = Vec::new();
        head.emit(bytes.len(), &mut again);
        assert_eq!(
            StampedHeader::parse(&again).map(|head| head.number),
            Some(head.number)
        );
    }
    let mut session = ClientSession::new(Time::ZERO, &cookie, order);
    let mut outputs = 0;
    // Byte by byte, so that the data ends before the server's next word.
    for byte in bytes {
        session.handle(Time::ZERO, &[*byte]);
        while let Some(output) = session.poll_output() {
            outputs += 1;
            match output {
                SessionOutput::Start => {
                    session.end(Time::ZERO, vec![ConnectionCount::default(); 2])
                }
                SessionOutput::Over(report) => {
                    assert!(report.congestion_control.is_ascii());
                    assert_eq!((session.failure(), session.poll_timeout()), (None, None));
                }
                SessionOutput::Write(_) | SessionOutput::Open => {}
            }
        }
        assert!(outputs <= OUTPUTS_MAX, "a server makes us say no more");
    }
    if let Some(failure) = session.failure() {
        let text = failure.to_string();
        assert!(!text.is_empty() && !text.chars().any(char::is_control));
        return;
    }
    // Whatever came, a silence ends it.
    if let Some(until) = session.poll_timeout() {
        session.handle_timeout(until);
        assert!(session.failure().is_some());
    }
}

/// Recorded messages of servers.
pub(crate) fn session_seeds() -> Vec<CorpusSeed> {
    let results = r#"{"cpu_util_total":2.4879600504700465,"cpu_util_user":2.48,"cpu_util_system":0,"sender_has_retransmits":1,"congestion_used":"bbr","streams":[{"id":1,"bytes":8000,"retransmits":0,"jitter":0,"errors":0,"packets":0,"start_time":0,"end_time":0.056259},{"id":3,"bytes":8000,"retransmits":18446744073709551615,"jitter":0,"errors":0,"packets":0,"start_time":0,"end_time":0.056265}]}"#;
    let begin = vec![9, 10, 1, 2];
    let mut rest = vec![13];
    rest.extend((results.len() as u32).to_be_bytes());
    rest.extend(results.as_bytes());
    rest.push(14);
    let mut refused = vec![9, 0xfe];
    refused.extend([0, 0, 0, 141, 0, 0, 0, 9]);
    vec![
        seed("begin", begin.clone()),
        seed("whole", [begin, rest].concat()),
        seed("denied", [0xff]),
        seed("refused", refused),
        seed("terminated", [9, 10, 11]),
        seed("http", "HTTP/1.1 400 Bad Request\r\n\r\n"),
    ]
}
