//! Status of a link as Prometheus metrics (text format 0.0.4), over a minimal HTTP server.
//!
//! The metrics are the counters of the status, one for one: a new counter there is a new metric
//! here. Limits: one request per connection, any method and path, a head of at most 8 KiB, five
//! seconds, one scraper at a time.

use std::fmt::Write as _;
use std::io::{self, Read, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::Value;

use super::control::ControlledLink;

const LONGEST_HEAD: usize = 8 * 1024;
const TIMEOUT: Duration = Duration::from_secs(5);

/// Metrics that are gauges; all others are counters.
const GAUGES: [&str; 5] = [
    "held_packets",
    "held_bytes",
    "lateness_p50_us",
    "lateness_p99_us",
    "lateness_max_us",
];

/// Writes the metrics of a status, as [`ControlledLink::status`] gives it.
#[must_use]
pub fn prometheus(status: &Value) -> String {
    let mut text = String::new();
    let link = status["ends"][0].as_str().unwrap_or("");
    let link = link.replace('\\', "\\\\").replace('"', "\\\"");
    let one = |text: &mut String, name: &str, help: &str, value: u64| {
        // Writing to a string does not fail.
        let _ = writeln!(text, "# HELP {name} {help}");
        let _ = writeln!(text, "# TYPE {name} gauge");
        let _ = writeln!(text, "{name}{{link=\"{link}\"}} {value}");
    };
    let uptime = status["uptime_s"].as_u64().unwrap_or(0);
    one(
        &mut text,
        "trunkline_link_uptime_seconds",
        "Since the link started.",
        uptime,
    );
    let held = u64::from(status["held"].as_bool().unwrap_or(false));
    one(
        &mut text,
        "trunkline_link_held",
        "1 while the host has always held what the link is set to.",
        held,
    );
    let forced = u64::from(status["forced"].is_string());
    one(
        &mut text,
        "trunkline_link_forced",
        "1 if the link was set by force to what this host was not seen to carry.",
        forced,
    );
    let Some(forward) = status["forward"].as_object() else {
        return text;
    };
    for name in forward.keys() {
        let values = ["forward", "back"].map(|way| (way, status[way][name].as_u64()));
        if values.iter().any(|(_, value)| value.is_none()) {
            continue;
        }
        let is_gauge = GAUGES.contains(&name.as_str());
        let (kind, suffix) = if is_gauge {
            ("gauge", "")
        } else {
            ("counter", "_total")
        };
        let metric = format!("trunkline_link_{name}{suffix}");
        let help = name.replace('_', " ");
        let _ = writeln!(text, "# HELP {metric} The link's account: {help}.");
        let _ = writeln!(text, "# TYPE {metric} {kind}");
        for (way, value) in values {
            let value = value.unwrap_or(0);
            let _ = writeln!(
                text,
                "{metric}{{link=\"{link}\",direction=\"{way}\"}} {value}"
            );
        }
    }
    text
}

/// Answers scrapers at this address, for as long as the process lives; returns the address.
///
/// # Errors
/// Fails when the address cannot be used.
pub fn serve(address: SocketAddr, link: Arc<ControlledLink>) -> Result<SocketAddr> {
    let listener =
        TcpListener::bind(address).with_context(|| format!("cannot serve metrics at {address}"))?;
    let address = listener.local_addr()?;
    thread::Builder::new()
        .name("metrics".to_owned())
        .spawn(move || {
            for stream in listener.incoming() {
                let answered = stream.and_then(|stream| answer(stream, &link));
                if let Err(error) = answered {
                    tracing::debug!(%error, "a scraper was given up");
                }
            }
        })
        .context("cannot start the metrics' thread")?;
    Ok(address)
}

fn answer(mut stream: TcpStream, link: &ControlledLink) -> io::Result<()> {
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    let mut head: Vec<u8> = Vec::new();
    let mut piece = [0; 1_024];
    while !head.windows(4).any(|four| four == b"\r\n\r\n") {
        let count = stream.read(&mut piece)?;
        if count == 0 || head.len() + count > LONGEST_HEAD {
            return Ok(());
        }
        head.extend(&piece[..count]);
    }
    let (line, body) = match link.status() {
        Ok(status) => ("200 OK", prometheus(&status)),
        Err(error) => ("503 Service Unavailable", format!("{error:#}\n")),
    };
    write!(
        stream,
        "HTTP/1.1 {line}\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    )
}

#[cfg(test)]
mod tests {
    use super::super::report::{DirectionReport, LinkReport};
    use super::*;

    #[test]
    fn every_number_of_the_account_is_a_metric() {
        let way = DirectionReport {
            delivered_packets: 7,
            held_bytes: 3,
            ..DirectionReport::default()
        };
        let report = LinkReport {
            forward: way.clone(),
            back: DirectionReport::default(),
            forced: Some("10Gbit forced".to_owned()),
        };
        let mut status = serde_json::to_value(&report).unwrap();
        status["ends"] = serde_json::json!(["wan\"a", "wan-b"]);
        status["held"] = true.into();
        let text = prometheus(&status);
        let delivered =
            "trunkline_link_delivered_packets_total{link=\"wan\\\"a\",direction=\"forward\"} 7\n";
        assert!(text.contains(delivered), "{text}");
        assert!(
            text.contains("# TYPE trunkline_link_held_bytes gauge\n"),
            "{text}"
        );
        assert!(
            text.contains("trunkline_link_held{link=\"wan\\\"a\"} 1\n"),
            "{text}"
        );
        assert!(
            text.contains("trunkline_link_forced{link=\"wan\\\"a\"} 1\n"),
            "{text}"
        );
        let numbers = serde_json::to_value(&way).unwrap();
        let numbers = numbers.as_object().unwrap().values();
        let numbers = numbers.filter(|value| value.is_u64()).count();
        let types = text.matches("# TYPE trunkline_link_").count();
        assert_eq!(types, numbers + 3);
    }
}
