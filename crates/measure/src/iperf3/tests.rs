//! Tests with recorded exchanges of the iperf3 3.12 server, and with servers that deviate from
//! them.

use std::time::Duration;

use serde_json::Value;
use vocab::{Bitrate, ByteCount, Time};

use super::*;
use crate::wire::TestDirection;

/// Results that the server sent at the end of an upload test: one connection, 100,000 bytes.
const UP_RESULTS: &str = r#"{"cpu_util_total":0.092162218813735833,"cpu_util_user":0.092162218813735833,"cpu_util_system":0,"sender_has_retransmits":18446744073709551615,"congestion_used":"bbr","streams":[{"id":1,"bytes":100000,"retransmits":18446744073709551615,"jitter":0,"errors":0,"packets":0,"start_time":0,"end_time":0.300539}]}"#;
/// ... and of one down, two connections.
const DOWN_RESULTS: &str = r#"{"cpu_util_total":2.4879600504700465,"cpu_util_user":2.4897371647918112,"cpu_util_system":0,"sender_has_retransmits":1,"congestion_used":"bbr","streams":[{"id":1,"bytes":8000,"retransmits":0,"jitter":0,"errors":0,"packets":0,"start_time":0,"end_time":0.056259},{"id":3,"bytes":8000,"retransmits":0,"jitter":0,"errors":0,"packets":0,"start_time":0,"end_time":0.056265}]}"#;

/// ... of a stream of UDP up, and of one down.
const UDP_UP_RESULTS: &str = r#"{"cpu_util_total":0.11085320686583325,"cpu_util_user":0.11094868766416729,"cpu_util_system":0,"sender_has_retransmits":18446744073709551615,"streams":[{"id":1,"bytes":125120,"retransmits":18446744073709551615,"jitter":3.3421372463555811e-05,"errors":0,"packets":85,"start_time":0,"end_time":1.047324}]}"#;
const UDP_DOWN_RESULTS: &str = r#"{"cpu_util_total":1.7099505510139734,"cpu_util_user":0,"cpu_util_system":1.7099505510139734,"sender_has_retransmits":0,"streams":[{"id":1,"bytes":131008,"retransmits":18446744073709551615,"jitter":5.2408142171793547e-05,"errors":0,"packets":89,"start_time":0,"end_time":1.040255}]}"#;

fn order(direction: TestDirection, connections: u16) -> TestOrder {
    TestOrder {
        carried: TestProtocol::Tcp,
        direction,
        connections,
        window: Some(ByteCount::new(14_600)),
        duration: Duration::from_millis(1_500),
        congestion_control: "cubic".to_owned(),
        dscp: 10,
    }
}

fn begin(direction: TestDirection, connections: u16) -> ClientSession {
    begin_order(order(direction, connections))
}

fn begin_order(order: TestOrder) -> ClientSession {
    let cookie = ClientSession::cookie(&[7; COOKIE_BYTES - 1]);
    ClientSession::new(Time::ZERO, &cookie, order)
}

fn outputs(session: &mut ClientSession) -> Vec<SessionOutput> {
    std::iter::from_fn(|| session.poll_output()).collect()
}

fn framed(json: &str) -> Vec<u8> {
    let mut bytes = (json.len() as u32).to_be_bytes().to_vec();
    bytes.extend(json.as_bytes());
    bytes
}

/// The JSON of a write, behind its length.
fn json_of(output: &SessionOutput) -> Value {
    let SessionOutput::Write(bytes) = output else {
        panic!("{output:?}");
    };
    let (length, text) = bytes.split_first_chunk::<4>().unwrap();
    assert_eq!(u32::from_be_bytes(*length) as usize, text.len());
    serde_json::from_slice(text).unwrap()
}

/// Goes through a whole test; the recorded bytes arrive in pieces of `grain` bytes.
fn whole(
    direction: TestDirection,
    connections: u16,
    results: &str,
    grain: usize,
) -> (Value, ServerReport) {
    whole_order(order(direction, connections), results, grain)
}

fn whole_order(order: TestOrder, results: &str, grain: usize) -> (Value, ServerReport) {
    let now = Time::ZERO;
    let connections = order.connections;
    let mut session = begin_order(order);
    let hear = |session: &mut ClientSession, bytes: &[u8]| {
        for piece in bytes.chunks(grain) {
            session.handle(now, piece);
        }
        outputs(session)
    };
    let cookie = outputs(&mut session);
    assert!(
        matches!(&cookie[..], [SessionOutput::Write(bytes)] if bytes.len() == 37 && bytes[36] == 0)
    );
    let parameters = json_of(&hear(&mut session, &[9])[0]);
    assert_eq!(hear(&mut session, &[10]), [SessionOutput::Open]);
    assert_eq!(hear(&mut session, &[1, 2]), [SessionOutput::Start]);
    let counted = vec![ConnectionCount::default(); usize::from(connections)];
    session.end(now, counted);
    assert_eq!(outputs(&mut session), [SessionOutput::Write(vec![4])]);
    let ours = json_of(&hear(&mut session, &[13])[0]);
    let ids: Vec<u64> = ours["streams"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|one| one["id"].as_u64())
        .collect();
    assert_eq!(ids, &[1, 3, 4, 5][..usize::from(connections)]);
    assert_eq!(hear(&mut session, &framed(results)), []);
    let last = hear(&mut session, &[14]);
    let [SessionOutput::Write(done), SessionOutput::Over(report)] = &last[..] else {
        panic!("{last:?}");
    };
    assert_eq!(done, &[16]);
    assert_eq!((session.failure(), session.poll_timeout()), (None, None));
    (parameters, report.clone())
}

#[test]
fn recorded_upload_parses_in_pieces_of_any_size() {
    for grain in [1, 7, 4_096] {
        let (parameters, report) = whole(TestDirection::Up, 1, UP_RESULTS, grain);
        assert_eq!(parameters["tcp"], true);
        assert_eq!(parameters["time"], 2);
        assert_eq!(parameters["parallel"], 1);
        assert_eq!(parameters["window"], 14_600);
        assert_eq!(parameters["congestion"], "cubic");
        assert_eq!(parameters["TOS"], 40);
        assert_eq!(parameters.get("reverse"), None);
        assert_eq!(report.congestion_control, "bbr");
        assert_eq!(report.streams[0].bytes, ByteCount::new(100_000));
        assert_eq!(report.streams[0].retransmitted_segments, None);
    }
}

#[test]
fn recorded_download_gives_the_retransmissions() {
    let (parameters, report) = whole(TestDirection::Down, 2, DOWN_RESULTS, 100);
    assert_eq!(parameters["reverse"], true);
    assert_eq!(report.streams.len(), 2);
    assert_eq!(report.streams[1].retransmitted_segments, Some(0));
    assert_eq!(report.streams[1].span, Duration::from_micros(56_265));
}

/// A UDP stream: the request as the recorded client sent it, and the server's counts.
#[test]
fn recorded_udp_test_gives_sent_and_received_counts() {
    let udp = |direction| TestOrder {
        carried: TestProtocol::Udp {
            payload_bytes: 1_472,
            rate: Bitrate::from_bits_per_second(1_000_000),
        },
        window: None,
        congestion_control: String::new(),
        ..order(direction, 1)
    };
    let (parameters, report) = whole_order(udp(TestDirection::Up), UDP_UP_RESULTS, 50);
    assert_eq!(parameters.get("tcp"), None);
    for (name, value) in [
        ("len", 1_472),
        ("bandwidth", 1_000_000),
        ("udp_counters_64bit", 1),
    ] {
        assert_eq!(parameters[name], value, "{name}");
    }
    assert_eq!(parameters["udp"], true);
    let came = report.streams[0];
    assert_eq!((came.bytes.bytes(), came.packets), (85 * 1_472, 85));
    assert_eq!(came.jitter, Duration::from_nanos(33_421));
    let (parameters, report) = whole_order(udp(TestDirection::Down), UDP_DOWN_RESULTS, 50);
    assert_eq!(parameters["reverse"], true);
    assert_eq!(report.streams[0].packets, 89);
}

fn failure(said: &[u8]) -> String {
    let mut session = begin(TestDirection::Up, 1);
    let _ = outputs(&mut session);
    session.handle(Time::ZERO, said);
    let failure = session.failure().expect("it failed").to_string();
    // But for the parameters, which were asked for before.
    assert!(outputs(&mut session).is_empty());
    assert_eq!(session.poll_timeout(), None);
    failure
}

#[test]
fn a_server_that_will_not_is_understood() {
    assert!(failure(&[0xff]).contains("busy with another test"));
    assert!(failure(&[9, 11]).contains("somebody ended"));
    // Recorded: a window of 2 GB.
    let refused = failure(&[9, 0xfe, 0, 0, 0, 141, 0, 0, 0, 9]);
    assert!(
        refused.contains("socket buffer of this window"),
        "{refused}"
    );
    assert!(refused.contains("errno 9"), "{refused}");
    let unknown = failure(&[9, 0xfe, 0, 0, 9, 9, 0, 0, 0, 0]);
    assert!(unknown.ends_with("iperf3's error 2313"), "{unknown}");
    assert!(failure(&[9, 0xfe, 0, 0, 0, 142, 0, 0, 0, 0]).contains("user name"));
}

#[test]
fn a_server_of_something_else_is_named() {
    for said in [&b"HTTP/1.1 400 Bad Request"[..], &[9, 9], &[2], &[0]] {
        let text = failure(said);
        assert!(text.contains("no iperf3 server"), "{text}");
    }
}

#[test]
fn results_that_are_none_end_the_test() {
    let results = [
        vec![0xff, 0xff, 0xff, 0xff],
        framed("[]"),
        framed("{\"streams\":[{\"bytes\":-1}]}"),
        framed(&"[".repeat(10_000)),
    ];
    for bytes in results {
        let mut session = begin(TestDirection::Up, 1);
        session.handle(Time::ZERO, &[9, 10, 1, 2]);
        session.end(Time::ZERO, Vec::new());
        session.handle(Time::ZERO, &[13]);
        session.handle(Time::ZERO, &bytes);
        let failure = session.failure().expect("that was no report");
        assert_eq!(failure, &TestFailure::Foreign("its results"));
    }
}

#[test]
fn silent_or_closed_server_ends_the_test() {
    let mut session = begin(TestDirection::Up, 1);
    let until = session.poll_timeout().unwrap();
    assert_eq!(until, Time::ZERO + SILENCE_MAX);
    session.handle_timeout(until - Duration::from_nanos(1));
    assert_eq!(session.failure(), None);
    session.handle_timeout(until);
    let text = session.failure().unwrap().to_string();
    assert!(
        text.contains("said nothing for 10 s after the cookie"),
        "{text}"
    );
    let mut session = begin(TestDirection::Down, 1);
    session.handle(Time::ZERO, &[9, 10, 1, 2]);
    // It sends data for as long as was ordered and has nothing to say meanwhile.
    assert!(session.poll_timeout().unwrap() > Time::ZERO + SILENCE_MAX);
    session.closed();
    let text = session.failure().unwrap().to_string();
    assert!(
        text.ends_with("control connection during the test"),
        "{text}"
    );
}

/// Text for people must not contain terminal control sequences.
#[test]
fn names_from_the_server_are_plain() {
    let results = UP_RESULTS.replace("\"bbr\"", "\"b\\u001b[2Jbr with a long tail of letters\"");
    let (_, report) = whole(TestDirection::Up, 1, &results, 4_096);
    assert_eq!(report.congestion_control, "b2Jbrwithalongta");
}
