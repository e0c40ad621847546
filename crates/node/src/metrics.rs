//! Prometheus metrics in the text format 0.0.4, over just enough HTTP/1.1 for a scraper.
//!
//! One request a connection, any method and path, a head of at most 8 KiB, five seconds, eight
//! scrapers at a time. Names end in their unit; counters in `_total`.

use std::fmt::Write as _;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::admin::AdminContext;
use crate::places::{PlaceLimits, PlacePool, SourceStanding};

const LONGEST_HEAD: usize = 8 * 1024;
const TIMEOUT: Duration = Duration::from_secs(5);
/// The limit of simultaneous scrapers, in total and of one address. A connection that has sent
/// nothing within a second may lose its place to another.
const SHARING: PlaceLimits = PlaceLimits {
    places: 8,
    per_source: 4,
    time_to_finish: Duration::from_secs(1),
};
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The name, kind, help text, and the path of the value in the status.
type MetricRow = (&'static str, &'static str, &'static str, &'static str);

const NODE: &[MetricRow] = &[
    (
        "trunkline_uptime_seconds",
        "gauge",
        "Seconds since the node started.",
        "/uptime_s",
    ),
    (
        "trunkline_flows",
        "gauge",
        "Flows that sessions carry now.",
        "/flows",
    ),
    (
        "trunkline_at_share_total",
        "counter",
        "Connections that were bypassed because their client had reached its share of the flows.",
        "/at_share_total",
    ),
    (
        "trunkline_flows_total",
        "counter",
        "Flows that sessions carried since the node started.",
        "/flows_total",
    ),
    (
        "trunkline_flows_failed_total",
        "counter",
        "Flows that failed.",
        "/flows_failed_total",
    ),
    (
        "trunkline_direct_connections",
        "gauge",
        "Accepted connections that the node now carries without a peer.",
        "/direct",
    ),
    (
        "trunkline_direct_connections_total",
        "counter",
        "Accepted connections that the node carried without a peer.",
        "/direct_total",
    ),
    (
        "trunkline_avoided_servers",
        "gauge",
        "Servers that the node bypasses now, because a connection to them failed.",
        "/interception/avoided",
    ),
    (
        "trunkline_interception_withdrawn",
        "gauge",
        "1 while the node does not intercept an address family, because this machine's packet filter drops \
         its connections.",
        "/interception/withdrawn",
    ),
    (
        "trunkline_intercepted_syns_total",
        "counter",
        "SYNs that were intercepted since the rules were last installed.",
        "/interception/syns_taken",
    ),
    (
        "trunkline_intercepted_syns_lost_total",
        "counter",
        "Intercepted SYNs that this machine's packet filter dropped and that the client sent again.",
        "/interception/syns_lost",
    ),
    (
        "trunkline_surviving_connections",
        "gauge",
        "Connections of the ports in [intercept.reset_surviving] that bypass the node now.",
        "/interception/surviving/passing",
    ),
    (
        "trunkline_surviving_connections_reset_total",
        "counter",
        "Connections that the node reset, so that they connect again through the node.",
        "/interception/surviving/reset",
    ),
    (
        "trunkline_lan_bytes_total",
        "counter",
        "Bytes of the hosts in flows that sessions carried.",
        "/lan_bytes",
    ),
    (
        "trunkline_wan_bytes_total",
        "counter",
        "Bytes on the WAN for these flows, without the headers of TLS and TCP.",
        "/wan_bytes",
    ),
    (
        "trunkline_buffered_bytes",
        "gauge",
        "Bytes that all flows buffer now.",
        "/buffered_bytes",
    ),
    (
        "trunkline_dictionary_chunks",
        "gauge",
        "Number of chunks that the dictionary contains.",
        "/dictionary/chunks",
    ),
    (
        "trunkline_dictionary_memory_bytes",
        "gauge",
        "Bytes of memory that the dictionary uses.",
        "/dictionary/memory_bytes",
    ),
    (
        "trunkline_dictionary_disk_bytes",
        "gauge",
        "Bytes on disk that the dictionary uses.",
        "/dictionary/disk_bytes",
    ),
    (
        "trunkline_dictionary_disk_waiting_bytes",
        "gauge",
        "Bytes of the dictionary that wait to be written to disk.",
        "/dictionary/disk_waiting_bytes",
    ),
    (
        "trunkline_dictionary_content_requests_total",
        "counter",
        "Requests to peers for content that they referred to and that this node's dictionary lacked.",
        "/dictionary/content_requests_total",
    ),
    (
        "trunkline_dictionary_link_requests_total",
        "counter",
        "Requests to peers for chunk runs: the node asked which chunks follow a chunk in the dictionary.",
        "/dictionary/link_requests_total",
    ),
    (
        "trunkline_dictionary_unwritten_chunks_total",
        "counter",
        "Chunks stored in memory only, because the disk was full, failing or too slow.",
        "/dictionary/unwritten_chunks_total",
    ),
    (
        "trunkline_dictionary_damaged_records_total",
        "counter",
        "Damaged parts of the dictionary's log, and chunks that failed verification.",
        "/dictionary/damaged_records_total",
    ),
    (
        "trunkline_disk_faults_total",
        "counter",
        "Failed disk requests.",
        "/dictionary/disk_faults_total",
    ),
];

const RULE_SYNS: MetricRow = (
    "trunkline_intercept_rule_syns_total",
    "counter",
    "SYNs that matched an [[intercept.rule]] since the rules were last installed.",
    "",
);

const PEER: &[MetricRow] = &[
    (
        "trunkline_peer_flows",
        "gauge",
        "Flows that the session with the peer carries now.",
        "/flows",
    ),
    (
        "trunkline_peer_refused_by_policy_total",
        "counter",
        "Flows of the peer that this node refused because of serve, or of the peer's prefixes.",
        "/refused_by_policy_total",
    ),
    (
        "trunkline_peer_refused_at_share_total",
        "counter",
        "Flows of the peer that this node refused because the peer had reached its share of the flows.",
        "/refused_at_share_total",
    ),
    (
        "trunkline_peer_rtt_milliseconds",
        "gauge",
        "The last measured round-trip time.",
        "/rtt_ms",
    ),
    (
        "trunkline_peer_sent_bytes_total",
        "counter",
        "Bytes sent to the peer, by links and UDP together.",
        "/sent_bytes",
    ),
    (
        "trunkline_peer_received_bytes_total",
        "counter",
        "Bytes received from the peer, by links and UDP together.",
        "/received_bytes",
    ),
    (
        "trunkline_peer_link_sent_bytes_total",
        "counter",
        "Bytes sent on links, before TLS and TCP.",
        "/link_sent_bytes",
    ),
    (
        "trunkline_peer_link_received_bytes_total",
        "counter",
        "Bytes received on links, before TLS and TCP.",
        "/link_received_bytes",
    ),
    (
        "trunkline_peer_violations_total",
        "counter",
        "Messages of the peer that broke the rules of the protocol.",
        "/violations_total",
    ),
    (
        "trunkline_peer_retransmitted_bytes_total",
        "counter",
        "Bytes that were sent again after the session moved to a new link.",
        "/retransmitted_bytes",
    ),
    (
        "trunkline_peer_link_changes_total",
        "counter",
        "Number of times that the session moved to a new link.",
        "/link_changes",
    ),
    (
        "trunkline_peer_path_fallbacks_total",
        "counter",
        "Number of times that flows moved from UDP back to TLS.",
        "/path/fallbacks_total",
    ),
    (
        "trunkline_peer_udp_rate_bits_per_second",
        "gauge",
        "The rate of the UDP path, as congestion control estimates it.",
        "/path/udp/rate_bit_s",
    ),
    (
        "trunkline_peer_udp_sent_bytes_total",
        "counter",
        "Bytes of UDP packets sent since the link came up, headers included.",
        "/path/udp/sent_bytes",
    ),
    (
        "trunkline_peer_udp_loss_percent",
        "gauge",
        "Percentage of the sent UDP packets that the network lost.",
        "/path/udp/loss_percent",
    ),
    (
        "trunkline_peer_udp_loss_after_repair_percent",
        "gauge",
        "Percentage of the sent UDP packets that were still missing after error correction.",
        "/path/udp/loss_after_repair_percent",
    ),
    (
        "trunkline_peer_udp_repair_percent",
        "gauge",
        "Percentage of the sent UDP packets that were repair packets.",
        "/path/udp/repair_percent",
    ),
    (
        "trunkline_peer_udp_rtt_milliseconds",
        "gauge",
        "The last round-trip time over UDP.",
        "/path/udp/rtt_ms",
    ),
    (
        "trunkline_peer_udp_queueing_milliseconds",
        "gauge",
        "The delay that queues add to the lowest round-trip time.",
        "/path/udp/queueing_ms",
    ),
];

/// Serves metrics until dropped.
pub(crate) async fn listen(listener: TcpListener, asked: Arc<AdminContext>) {
    let places = PlacePool::new(SHARING);
    loop {
        let Ok((stream, from)) = listener.accept().await else {
            tokio::time::sleep(ACCEPT_PAUSE).await;
            continue;
        };
        let Some(place) = places.enter(from.ip(), SourceStanding::Unknown) else {
            continue;
        };
        let asked = Arc::clone(&asked);
        tokio::spawn(async move {
            let timely = tokio::time::timeout(TIMEOUT, serve(stream, &asked));
            let _ = place.hold(timely).await;
        });
    }
}

async fn serve(mut stream: TcpStream, asked: &AdminContext) -> io::Result<()> {
    let mut head = Vec::with_capacity(1024);
    while !head.windows(4).any(|four| four == b"\r\n\r\n") {
        if head.len() >= LONGEST_HEAD || stream.read_buf(&mut head).await? == 0 {
            return Ok(());
        }
    }
    let body = exposition(&asked.status().await);
    let answer = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(answer.as_bytes()).await?;
    stream.shutdown().await
}

/// The status as metrics. Values that are not there are left out.
fn exposition(status: &Value) -> String {
    let mut text = String::new();
    for metric in NODE {
        describe(&mut text, metric);
        sample(&mut text, metric.0, "", status.pointer(metric.3));
    }
    describe(&mut text, &RULE_SYNS);
    let rules = status["interception"]["rules"].as_array();
    for rule in rules.into_iter().flatten() {
        let action = rule["action"].as_str().unwrap_or("");
        let labels = format!("{{rule=\"{}\",action=\"{action}\"}}", rule["rule"]);
        sample(&mut text, RULE_SYNS.0, &labels, rule.get("syns"));
    }
    accelerators(&mut text, &status["accelerators"]);
    let peers = status["peers"].as_array().map_or(&[][..], Vec::as_slice);
    describe(
        &mut text,
        &(
            "trunkline_peer_up",
            "gauge",
            "1 while the peer's session is up.",
            "",
        ),
    );
    for peer in peers {
        let up = Value::from(u8::from(peer["state"] == "up"));
        sample(&mut text, "trunkline_peer_up", &label(peer), Some(&up));
    }
    for metric in PEER {
        describe(&mut text, metric);
        for peer in peers {
            sample(&mut text, metric.0, &label(peer), peer.pointer(metric.3));
        }
    }
    text
}

/// The counts of accelerators, each under its accelerator's name.
fn accelerators(text: &mut String, accelerators: &Value) {
    for accelerator in accelerators.as_array().into_iter().flatten() {
        let accelerator_name = accelerator["name"].as_str().unwrap_or_default();
        for (count, value) in accelerator["counts"].as_object().into_iter().flatten() {
            let name = format!("trunkline_{accelerator_name}_{count}");
            let words = count.trim_end_matches("_total").replace('_', " ");
            let help = format!("Accelerator {accelerator_name}: {words}, since the node started.");
            let _ = write!(text, "# HELP {name} {help}\n# TYPE {name} counter\n");
            sample(text, &name, "", Some(value));
        }
    }
}

fn describe(text: &mut String, (name, kind, help, _): &MetricRow) {
    let _ = write!(text, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
}

fn sample(text: &mut String, name: &str, labels: &str, value: Option<&Value>) {
    if let Some(value) = value.filter(|value| value.is_number()) {
        let _ = writeln!(text, "{name}{labels} {value}");
    }
}

/// Names of peers are letters, digits and `-`: nothing that would need escaping.
fn label(peer: &Value) -> String {
    format!("{{peer=\"{}\"}}", peer["name"].as_str().unwrap_or(""))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn every_sample_is_described_and_has_a_number() {
        let status = json!({
            "flows": 3, "lan_bytes": 20_000_000, "interception": {
                "avoided": 1, "withdrawn": 1, "rules": [{ "rule": 1, "action": "bypass", "syns": 7 }],
            },
            "accelerators": [{ "name": "web", "counts": { "hits_total": 12 } }],
            "peers": [{ "name": "far", "state": "up", "rtt_ms": 30.5, "flows": 3 }],
        });
        let text = exposition(&status);
        assert!(text.contains("# TYPE trunkline_flows gauge\ntrunkline_flows 3\n"));
        assert!(text.contains("trunkline_avoided_servers 1\n"));
        assert!(text.contains("# TYPE trunkline_web_hits_total counter\n"));
        assert!(text.contains("trunkline_web_hits_total 12\n"));
        assert!(text.contains("trunkline_interception_withdrawn 1\n"));
        let rule = "trunkline_intercept_rule_syns_total{rule=\"1\",action=\"bypass\"} 7\n";
        assert!(text.contains(rule));
        assert!(text.contains("trunkline_peer_up{peer=\"far\"} 1\n"));
        assert!(text.contains("trunkline_peer_rtt_milliseconds{peer=\"far\"} 30.5\n"));
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let (name, value) = line.rsplit_once(' ').unwrap();
            let name = name.split('{').next().unwrap();
            assert!(text.contains(&format!("# TYPE {name} ")), "{line}");
            value.parse::<f64>().unwrap();
        }
    }

    #[test]
    fn stopping_node_has_no_samples() {
        let text = exposition(&json!({ "error": "the node is stopping" }));
        assert!(text.lines().all(|line| line.starts_with('#')));
    }
}
