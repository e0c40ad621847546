//! The tables that `status`, `flows` and `why` print: text of at most 80 columns, made from the
//! same JSON that `--json` shows.
//!
//! Fields that are missing (an older or newer node) are shown as `-`, never an error.

use std::fmt::Write as _;

use serde_json::Value;
use vocab::ByteCount;

/// The widest line.
const COLUMNS: usize = 80;
/// The column where values begin after their labels.
const LABEL: usize = 14;

/// The state of a node.
#[must_use]
pub fn status(status: &Value) -> String {
    let mut text = String::new();
    let mut line = |label: &str, value: String| wrapped(&mut text, label, &value);
    let id = string(&status["node"]);
    line(
        "node",
        format!(
            "{} ({}), version {}, process {}, up {}",
            string(&status["name"]),
            short(&id),
            string(&status["version"]),
            number(&status["process"]),
            span(&status["uptime_s"])
        ),
    );
    let interception = &status["interception"];
    line(
        "interception",
        match string(&status["mode"]).as_str() {
            "off" => "off".to_owned(),
            mode => format!("{mode}, rules {}", string(&interception["state"])),
        },
    );
    line("destinations", list(&interception["destinations"]));
    line("serves", list(&status["serves"]));
    line("at share", list(&status["shares_reached"]));
    for blocked in interception["blocked"].as_array().into_iter().flatten() {
        line(
            "dropped here",
            format!(
                "{} ({}): rules of this machine's packet filter at hook {} drop these packets: {}. One of \
                 these commands allows them:",
                string(&blocked["what"]),
                string(&blocked["family"]),
                string(&blocked["hook"]),
                list(&blocked["chains"])
            ),
        );
        for cure in blocked["cures"].as_array().into_iter().flatten() {
            line("", string(cure));
        }
    }
    let partly = list(&interception["partly_dropped"]);
    if partly != "none" {
        line(
            "dropped here",
            format!(
                "rules of this machine's packet filter drop connections of some clients ({partly}); the \
                 node bypasses these connections"
            ),
        );
    }
    for rule in interception["rules"].as_array().into_iter().flatten() {
        line(
            &format!("rule {}", number(&rule["rule"])),
            format!(
                "{}, {} SYNs",
                string(&rule["action"]),
                number(&rule["syns"])
            ),
        );
    }
    let surviving = &interception["surviving"];
    if surviving.is_object() {
        line(
            "surviving",
            format!(
                "{} connections bypass the node now, {} reset since the start, {} found in use, {} did not \
                 answer",
                number(&surviving["passing"]),
                number(&surviving["reset"]),
                number(&surviving["in_use"]),
                number(&surviving["unanswered"])
            ),
        );
    }
    line(
        "flows",
        format!(
            "{} now, {} since the start, {} failed",
            number(&status["flows"]),
            number(&status["flows_total"]),
            number(&status["flows_failed_total"])
        ),
    );
    line(
        "direct",
        format!(
            "{} now, {} since the start{}",
            number(&status["direct"]),
            number(&status["direct_total"]),
            bypassed_servers(count(&interception["avoided"]))
        ),
    );
    let routes = &interception["bypassed_routes"];
    if routes.as_array().is_some_and(|routes| !routes.is_empty()) {
        line("asymmetric", format!("{}: bypassed", list(routes)));
    }
    let (lan, wan) = (count(&status["lan_bytes"]), count(&status["wan_bytes"]));
    line(
        "bytes",
        format!(
            "{} on the LAN, {} on the WAN, {} saved",
            bytes(lan),
            bytes(wan),
            saved(lan, wan)
        ),
    );
    line("buffered", bytes(count(&status["buffered_bytes"])));
    let limits = list(&status["limits_reached"]);
    if limits != "none" {
        line(
            "limits",
            format!("reached: {limits}; the node bypasses new connections"),
        );
    }
    let dictionary = &status["dictionary"];
    line(
        "dictionary",
        format!(
            "{} chunks, {} in memory, {} on disk{}{}",
            number(&dictionary["chunks"]),
            bytes(count(&dictionary["memory_bytes"])),
            bytes(count(&dictionary["disk_bytes"])),
            if dictionary["ready"] == Value::Bool(false) {
                ", still recovering"
            } else {
                ""
            },
            match count(&dictionary["disk_faults_total"]) {
                0 => String::new(),
                faults => format!(", {faults} disk faults"),
            }
        ),
    );
    for accelerator in status["accelerators"].as_array().into_iter().flatten() {
        let counts = accelerator["counts"].as_object().into_iter().flatten();
        let counts = counts.filter(|(_, value)| count(value) > 0);
        let counts: Vec<String> = counts
            .map(|(name, value)| {
                let words = name.trim_end_matches("_total").replace('_', " ");
                format!("{} {words}", count(value))
            })
            .collect();
        if !counts.is_empty() {
            line(&string(&accelerator["name"]), counts.join(", "));
        }
    }
    let unpaired = list(&status["unpaired_peers"]);
    if unpaired != "none" {
        line("not paired", unpaired);
    }
    for damaged in status["damaged_pins"].as_array().into_iter().flatten() {
        let (peer, error) = (string(&damaged["peer"]), string(&damaged["error"]));
        line("damaged pin", format!("{peer}: {error}"));
    }
    text.push('\n');
    text.push_str(&peers(&status["peers"]));
    text
}

fn peers(peers: &Value) -> String {
    let mut text = format!(
        "{:<16} {:<8} {:<7} {:>5} {:>9} {:>9} {:>9} {:>6}\n",
        "PEER", "NODE", "STATE", "FLOWS", "RTT", "SENT", "RECEIVED", "MOVES"
    );
    for peer in peers.as_array().into_iter().flatten() {
        let rtt = peer["rtt_ms"]
            .as_f64()
            .map_or("-".to_owned(), |rtt| format!("{rtt:.1} ms"));
        let _ = writeln!(
            text,
            "{:<16} {:<8} {:<7} {:>5} {:>9} {:>9} {:>9} {:>6}",
            cut(&string(&peer["name"]), 16),
            short(&string(&peer["node"])),
            cut(&string(&peer["state"]), 7),
            number(&peer["flows"]),
            rtt,
            bytes(count(&peer["sent_bytes"])),
            bytes(count(&peer["received_bytes"])),
            count(&peer["link_changes"]),
        );
    }
    for peer in peers.as_array().into_iter().flatten() {
        text.push_str(&path(&string(&peer["name"]), &peer["path"]));
        let violations = count(&peer["violations_total"]);
        if violations > 0 {
            let value = format!(
                "{} sent {violations} messages that break the rules of the protocol; the log has the details",
                string(&peer["name"])
            );
            text.push('\n');
            wrapped(&mut text, "violations", &value);
        }
    }
    text
}

/// Describes the transport of a peer's flows, and the state of UDP.
fn path(name: &str, path: &Value) -> String {
    let mut text = String::new();
    let udp = &path["udp"];
    let label = format!("\npath to {}", cut(name, 16));
    match (path["carries"].as_str(), udp.is_object()) {
        (Some("udp"), _) => {
            let _ = writeln!(text, "{label}: UDP");
        }
        (Some("tls"), _) => {
            let why = match path["fallback"].is_string() {
                true => string(&path["fallback"]),
                false => "no reason given".to_owned(),
            };
            let _ = writeln!(text, "{label}: TLS over TCP ({why})");
        }
        _ => return text,
    }
    if !udp.is_object() {
        return text;
    }
    let mut line = |label: &str, value: String| wrapped(&mut text, label, &value);
    let milliseconds = |value: &Value| {
        value
            .as_f64()
            .map_or("-".to_owned(), |value| format!("{value:.1} ms"))
    };
    let percent = |value: &Value| format!("{:.2} %", value.as_f64().unwrap_or(0.0));
    line(
        "  rate",
        format!(
            "{}, paced at {} ({}); window {}, {} in flight",
            bits(count(&udp["rate_bit_s"])),
            bits(count(&udp["pacing_bit_s"])),
            string(&udp["congestion"]),
            bytes(count(&udp["window_bytes"])),
            bytes(count(&udp["in_flight_bytes"])),
        ),
    );
    line(
        "  round trip",
        format!(
            "{} now, {} lowest, {} added by queues; packet size {}",
            milliseconds(&udp["rtt_ms"]),
            milliseconds(&udp["rtt_min_ms"]),
            milliseconds(&udp["queueing_ms"]),
            bytes(count(&udp["mtu_bytes"])),
        ),
    );
    line(
        "  packets",
        format!(
            "{} sent ({}), {} delivered; {} lost, {} lost after error correction; {} repair packets",
            count(&udp["sent_packets"]),
            bytes(count(&udp["sent_bytes"])),
            count(&udp["delivered_packets"]),
            percent(&udp["loss_percent"]),
            percent(&udp["loss_after_repair_percent"]),
            percent(&udp["repair_percent"]),
        ),
    );
    let fallbacks = count(&path["fallbacks_total"]);
    if fallbacks > 0 {
        line(
            "  fallbacks",
            format!("{fallbacks} times from UDP back to TLS"),
        );
    }
    text
}

/// Lists the flows, each on two lines: its identity, and the sizes of its bytes.
#[must_use]
pub fn flows(answer: &Value) -> String {
    let mut text = format!(
        "{:>6} {:<6} {:<5} {:<8} {:>9} {:>9} {:>7} {:>7}  {:<12}\n",
        "FLOW", "STATE", "HALF", "PROTOCOL", "LAN", "WAN", "SAVED", "AGE", "PEER"
    );
    for flow in answer["flows"].as_array().into_iter().flatten() {
        let lan = count(&flow["sent_lan_bytes"]) + count(&flow["received_lan_bytes"]);
        let wan = count(&flow["sent_wan_bytes"]) + count(&flow["received_wan_bytes"]);
        let state = string(&flow["state"]);
        let state = match state.as_str() {
            "open" | "closed" => state,
            _ => "failed".to_owned(),
        };
        let _ = writeln!(
            text,
            "{:>6} {:<6} {:<5} {:<8} {:>9} {:>9} {:>7} {:>7}  {}",
            number(&flow["flow"]),
            state,
            cut(&string(&flow["half"]), 5),
            cut(&string(&flow["protocol"]), 8),
            bytes(lan),
            bytes(wan),
            saved(lan, wan),
            span(&flow["age_s"]),
            cut(&string(&flow["peer"]), 12),
        );
        let _ = writeln!(
            text,
            "       {}",
            cut(
                &format!("{} > {}", string(&flow["client"]), string(&flow["server"])),
                COLUMNS - 7
            )
        );
        if let Some(accelerated) = flow["accelerated"].as_str() {
            let _ = writeln!(text, "       {}", cut(accelerated, COLUMNS - 7));
        }
    }
    text
}

/// The reason why: a paragraph for each stage.
#[must_use]
pub fn why(why: &Value) -> String {
    let flow = &why["flow"];
    let mut text = String::new();
    wrapped(
        &mut text,
        &format!("flow {}", number(&flow["flow"])),
        &format!("{} > {}", string(&flow["client"]), string(&flow["server"])),
    );
    let state = format!(
        "{}, {} half, peer {}, {}",
        string(&flow["state"]),
        string(&flow["half"]),
        string(&flow["peer"]),
        span(&flow["age_s"])
    );
    wrapped(&mut text, "state", &state);
    let mut direction = |label: &str, lan: &Value, wan: &Value| {
        let (lan, wan) = (count(lan), count(wan));
        let value = format!(
            "{} on the LAN, {} on the WAN, {} saved",
            bytes(lan),
            bytes(wan),
            saved(lan, wan)
        );
        wrapped(&mut text, label, &value);
    };
    direction("sent", &flow["sent_lan_bytes"], &flow["sent_wan_bytes"]);
    direction(
        "received",
        &flow["received_lan_bytes"],
        &flow["received_wan_bytes"],
    );
    for stage in why["stages"].as_array().into_iter().flatten() {
        text.push('\n');
        wrapped(&mut text, &string(&stage["stage"]), &string(&stage["did"]));
        if let Some(saved) = stage["saved_bytes"].as_i64() {
            let value = match u64::try_from(saved) {
                Ok(saved) => bytes(saved),
                Err(_) => format!("-{}", bytes(saved.unsigned_abs())),
            };
            wrapped(&mut text, "  saved", &value);
        }
        for (label, key) in [("  why not", "why_not"), ("  remedy", "remedy")] {
            if stage[key].is_string() {
                wrapped(&mut text, label, &string(&stage[key]));
            }
        }
    }
    text
}

/// A label and its value, broken between words.
fn wrapped(text: &mut String, label: &str, value: &str) {
    let mut line = format!("{label:<LABEL$} ");
    let mut at_start = true;
    for word in value.split(' ') {
        if !at_start && line.chars().count() + 1 + word.chars().count() > COLUMNS {
            let _ = writeln!(text, "{}", line.trim_end());
            line = " ".repeat(LABEL + 1);
            at_start = true;
        }
        if !at_start {
            line.push(' ');
        }
        line.push_str(word);
        at_start = false;
    }
    let _ = writeln!(text, "{}", line.trim_end());
}

/// Returns text for a terminal; a name in it may come from any host.
fn string(value: &Value) -> String {
    vocab::printable(value.as_str().unwrap_or("-"))
}

fn number(value: &Value) -> String {
    value.as_u64().map_or("-".to_owned(), |n| n.to_string())
}

/// Servers that are bypassed because a connection to them failed.
fn bypassed_servers(count: u64) -> String {
    match count {
        0 => String::new(),
        1 => "; 1 server bypassed (a connection to it failed)".to_owned(),
        count => format!("; {count} servers bypassed (a connection to each failed)"),
    }
}

fn count(value: &Value) -> u64 {
    value.as_u64().unwrap_or(0)
}

/// Three digits and a decimal unit, as narrow as a column needs.
fn bytes(count: u64) -> String {
    const UNITS: [&str; 5] = ["B", "kB", "MB", "GB", "TB"];
    let mut value = count as f64;
    let mut unit = 0;
    while value >= 999.5 && unit + 1 < UNITS.len() {
        value /= 1000.0;
        unit += 1;
    }
    match unit {
        0 => ByteCount::new(count).to_string(),
        _ if value < 9.995 => format!("{value:.2}{}", UNITS[unit]),
        _ if value < 99.95 => format!("{value:.1}{}", UNITS[unit]),
        _ => format!("{value:.0}{}", UNITS[unit]),
    }
}

fn bits(per_second: u64) -> String {
    vocab::Bitrate::from_bits_per_second(per_second).to_string()
}

fn saved(lan: u64, wan: u64) -> String {
    if lan == 0 {
        return "-".to_owned();
    }
    let percent = 100.0 * (1.0 - wan as f64 / lan as f64);
    // A tenth tells 99.8 % from nothing left; rounding must not make a loss of a saving.
    match percent {
        p if p.abs() < 0.05 => "0%".to_owned(),
        p if (99.0..100.0).contains(&p) => format!("{:.1}%", p.min(99.9)),
        p => format!("{:.0}%", p.max(-999.0)),
    }
}

fn span(seconds: &Value) -> String {
    let Some(seconds) = seconds.as_f64() else {
        return "-".to_owned();
    };
    match seconds {
        s if s < 9.95 => format!("{s:.1}s"),
        s if s < 120.0 => format!("{s:.0}s"),
        s if s < 7200.0 => format!("{:.0}min", s / 60.0),
        s if s < 172_800.0 => format!("{:.0}h", s / 3600.0),
        s => format!("{:.0}d", s / 86_400.0),
    }
}

fn list(values: &Value) -> String {
    let words: Vec<String> = values
        .as_array()
        .into_iter()
        .flatten()
        .map(string)
        .collect();
    if words.is_empty() {
        return "none".to_owned();
    }
    words.join(", ")
}

fn short(id: &str) -> String {
    id.chars().take(8).collect()
}

fn cut(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    let kept: String = text.chars().take(width.saturating_sub(1)).collect();
    format!("{kept}~")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn sample_flow() -> Value {
        json!({
            "flow": 123_456, "state": "reset by the server, which is a long story", "peer": "a-peer-with-a-long-name",
            "half": "near", "client": "[2001:2:0:1:ffff:ffff:ffff:ffff]:65535",
            "server": "[2001:2:0:2:ffff:ffff:ffff:ffff]:65535", "protocol": "passthrough", "age_s": 3.25,
            "sent_lan_bytes": 1_000, "sent_wan_bytes": 1_100,
            "received_lan_bytes": 123_456_789, "received_wan_bytes": 20_000,
        })
    }

    fn fits(text: &str) {
        for line in text.lines() {
            assert!(line.chars().count() <= COLUMNS, "{line}");
        }
    }

    #[test]
    fn tables_fit_eighty_columns_whatever_is_in_them() {
        let peer = json!({
            "name": "a-peer-with-a-long-name", "node": "ab".repeat(32), "state": "silent",
            "flows": 10_000, "rtt_ms": 1234.5, "sent_bytes": u64::MAX,
            "received_bytes": 123_456_789_012_u64, "link_changes": 99, "violations_total": u64::MAX,
            "path": {
                "carries": "udp", "fallbacks_total": 12,
                "udp": {
                    "rate_bit_s": 987_654_321_098_u64, "pacing_bit_s": 987_654_321_098_u64,
                    "sent_packets": u64::MAX, "sent_bytes": u64::MAX, "delivered_packets": u64::MAX,
                    "loss_percent": 12.3456, "loss_after_repair_percent": 0.0012,
                    "repair_percent": 25.0, "rtt_min_ms": 1234.56, "rtt_ms": 2345.67,
                    "queueing_ms": 1111.1, "congestion": "probe down", "window_bytes": u64::MAX,
                    "in_flight_bytes": u64::MAX, "mtu_bytes": 1500,
                },
            },
        });
        let by_tls = json!({
            "name": "b", "path": {
                "carries": "tls", "fallback": "the peer does not answer by UDP any more",
            },
        });
        let prefixes: Vec<String> = (0..40).map(|n| format!("2001:db8:{n}::/48")).collect();
        let status_value = json!({
            "name": "near", "node": "ab".repeat(32), "peers": [peer, by_tls], "mode": "transparent",
            "interception": { "state": "in place", "destinations": prefixes, "avoided": 3,
                "bypassed_routes": ["198.18.1.0/24 to 198.18.2.0/24"] },
            "dictionary": { "ready": false, "disk_faults_total": 7 },
            "limits_reached": ["flows"], "unpaired_peers": ["third"],
        });
        let text = status(&status_value);
        fits(&text);
        assert!(text.contains("reached: flows"));
        assert!(text.contains("asymmetric     198.18.1.0/24 to 198.18.2.0/24: bypassed"));
        assert!(text.contains("not paired     third"));
        assert!(text.contains("\npath to a-peer-"), "{text}");
        assert!(
            text.contains("12.35 % lost, 0.00 % lost after error correction"),
            "{text}"
        );
        assert!(
            text.contains("path to b: TLS over TCP (the peer does not answer by UDP"),
            "{text}"
        );
        fits(&flows(&json!({ "flows": [sample_flow()] })));
    }

    #[test]
    fn why_tells_each_stage_with_its_remedy() {
        let text = why(&json!({
            "flow": sample_flow(),
            "stages": [{
                "stage": "reduce", "did": "referred to 40 chunks", "saved_bytes": -20,
                "why_not": "the content is encrypted ".repeat(8), "remedy": "none",
            }],
        }));
        fits(&text);
        assert!(text.contains("reduce         referred to 40 chunks"));
        assert!(text.contains("  saved        -20B"));
        assert!(text.contains("  remedy       none"));
    }

    #[test]
    fn terminal_escapes_from_hosts_are_not_printed() {
        let evil = "\x1b[2J\r\n\u{9b}\u{202e}x";
        let flow = json!({
            "flow": 1, "state": evil, "peer": evil, "half": evil, "client": evil, "server": evil,
            "protocol": evil,
        });
        let stage = json!({ "stage": evil, "did": evil, "why_not": evil, "remedy": evil });
        let path = json!({ "carries": "tls", "fallback": evil });
        let by_udp = json!({ "carries": "udp", "udp": { "congestion": evil } });
        let texts = [
            why(&json!({ "flow": flow, "stages": [stage] })),
            flows(&json!({ "flows": [flow] })),
            status(&json!({
                "name": evil, "node": evil, "version": evil, "mode": evil,
                "interception": { "state": evil, "destinations": [evil] },
                "limits_reached": [evil], "unpaired_peers": [evil],
                "damaged_pins": [{ "peer": evil, "error": evil }],
                "peers": [
                    { "name": evil, "node": evil, "state": evil, "path": path },
                    { "name": evil, "path": by_udp },
                ],
            })),
        ];
        for text in texts {
            assert!(text.contains("?[2J"), "{text:?}");
            let acts = |letter: char| letter.is_control() && letter != '\n' || letter == '\u{202e}';
            assert!(!text.contains(acts), "{text:?}");
        }
    }

    #[test]
    fn missing_values_are_shown_as_missing() {
        fits(&status(&json!({})));
        fits(&flows(&json!({})));
        fits(&why(&json!({})));
    }

    #[test]
    fn bytes_have_three_digits() {
        assert_eq!(bytes(999), "999B");
        assert_eq!(bytes(1_000), "1.00kB");
        assert_eq!(bytes(20_000_000), "20.0MB");
        assert_eq!(bytes(999_600), "1.00MB");
    }
}
