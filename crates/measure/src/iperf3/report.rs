//! Results that each end counted in a test, as JSON.

use std::time::Duration;

use serde_json::{Value, json};
use vocab::ByteCount;

/// Characters of a name that are shown.
const NAME_MAX: usize = 16;

/// Counts of this end for one connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConnectionCount {
    /// Payload sent, or received.
    pub bytes: ByteCount,
    /// Duration.
    pub span: Duration,
    /// UDP packets sent, or the highest number that arrived.
    pub packets: u64,
    /// UDP packets that did not arrive.
    pub lost: u64,
}

/// Results that the server counted.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ServerReport {
    /// Processor load of the test at this end, in percent.
    pub busy_percent: Option<f64>,
    /// The congestion control of its connections.
    pub congestion_control: String,
    /// Each connection, in the order in which they were opened.
    pub streams: Vec<StreamCount>,
}

/// Counts of the server for one connection.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StreamCount {
    /// Payload that its application read or wrote.
    pub bytes: ByteCount,
    /// Segments that it retransmitted; [`None`] where it received, or its system does not report
    /// them.
    pub retransmitted_segments: Option<u64>,
    /// Time that it counted.
    pub span: Duration,
    /// UDP packets that it sent, or the highest number that arrived.
    pub packets: u64,
    /// Jitter of UDP arrivals at the server.
    pub jitter: Duration,
}

impl ServerReport {
    /// Parses the server's results; [`None`] where they do not have iperf3's form.
    #[must_use]
    pub(super) fn parse(value: &Value) -> Option<Self> {
        let name = value
            .get("congestion_used")
            .and_then(Value::as_str)
            .unwrap_or_default();
        let streams = value.get("streams")?.as_array()?;
        Some(Self {
            busy_percent: value.get("cpu_util_total").and_then(Value::as_f64),
            // It is shown to a person, whose terminal must not obey it.
            congestion_control: name
                .chars()
                .filter(|one| one.is_ascii_alphanumeric() || "_-".contains(*one))
                .take(NAME_MAX)
                .collect(),
            streams: streams.iter().map(stream).collect::<Option<_>>()?,
        })
    }
}

fn stream(value: &Value) -> Option<StreamCount> {
    let seconds = value.get("end_time").and_then(Value::as_f64).unwrap_or(0.0);
    Some(StreamCount {
        bytes: ByteCount::new(value.get("bytes")?.as_u64()?),
        // What it does not know it writes as -1, which cJSON makes 2^64 - 1 of.
        retransmitted_segments: value
            .get("retransmits")
            .and_then(Value::as_u64)
            .filter(|count| *count != u64::MAX),
        span: span(seconds),
        packets: value.get("packets").and_then(Value::as_u64).unwrap_or(0),
        jitter: span(value.get("jitter").and_then(Value::as_f64).unwrap_or(0.0)),
    })
}

fn span(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or_default()
}

/// Writes our results. Retransmissions are known here only in bytes, for which iperf3 has no field.
pub(super) fn emit(counted: &[ConnectionCount]) -> Value {
    let streams: Vec<Value> = counted
        .iter()
        .enumerate()
        .map(|(place, one)| {
            json!({
                "id": stream_id(place),
                "bytes": one.bytes.bytes(),
                "retransmits": -1,
                "jitter": 0,
                "errors": one.lost,
                "packets": one.packets,
                "start_time": 0,
                "end_time": one.span.as_secs_f64(),
            })
        })
        .collect();
    json!({
        "cpu_util_total": 0.0,
        "cpu_util_user": 0.0,
        "cpu_util_system": 0.0,
        "sender_has_retransmits": -1,
        "streams": streams,
    })
}

/// The numbers that iperf3 gives connections: 1, 3, 4, 5, … (iperf_add_stream of iperf_api.c). It refuses
/// results of one that it does not know.
fn stream_id(place: usize) -> usize {
    match place {
        0 => 1,
        _ => place + 2,
    }
}
