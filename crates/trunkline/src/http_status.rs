//! `trunkline node status --http`: what the near node has answered itself, and which origins are slow.

use std::fmt::Write as _;

use serde_json::{Value, json};
use vocab::ByteCount;

/// The columns of an origin's name; a line has 80 at most.
const ORIGIN_COLUMNS: usize = 46;

/// What a node's status says of HTTP, with the ratios that follow from it. `Null` where the node does not say
/// anything of HTTP.
pub(crate) fn summary(status: &Value) -> Value {
    let accelerators = status["accelerators"].as_array();
    let mut accelerators = accelerators.into_iter().flatten();
    let Some(http) = accelerators.find(|accelerator| accelerator["name"] == "http") else {
        return Value::Null;
    };
    let counts = &http["counts"];
    let count = |name: &str| counts[name].as_u64().unwrap_or(0);
    let (hits, confirmed) = (count("hits_total"), count("confirmed_total"));
    let requests = hits + confirmed + count("fetched_total") + count("passed_total");
    let answered = count("answered_bytes_total");
    let bytes = answered + count("fetched_bytes_total");
    let ratio = |part: u64, whole: u64| match whole {
        0 => Value::Null,
        _ => json!(part as f64 / whole as f64),
    };
    json!({
        "counts": counts,
        "requests_total": requests,
        "hit_ratio": ratio(hits, requests),
        "hit_or_confirmed_ratio": ratio(hits + confirmed, requests),
        "byte_hit_ratio": ratio(answered, bytes),
        "wan_bytes_saved_total": answered,
        "slowest_origins": http["slowest_servers"],
    })
}

/// The same as text of at most 80 columns.
pub(crate) fn table(summary: &Value) -> String {
    if summary.is_null() {
        return "The node reports nothing about HTTP, because it has an earlier release.\n"
            .to_owned();
    }
    let counts = &summary["counts"];
    let count = |name: &str| counts[name].as_u64().unwrap_or(0);
    let percent = |name: &str| {
        let ratio = summary[name].as_f64();
        ratio.map_or("-".to_owned(), |ratio| format!("{:.1} %", ratio * 100.0))
    };
    let bytes = |bytes: u64| ByteCount::new(bytes).to_string();
    let mut text = String::new();
    let mut line = |label: &str, value: String| {
        let _ = writeln!(text, "{label:<14}{value}");
    };
    line("requests", summary["requests_total"].to_string());
    let hits = count("hits_total");
    line(
        "answered here",
        format!("{hits} ({})", percent("hit_ratio")),
    );
    line(
        "confirmed",
        format!(
            "{} confirmed by the server, content from the store",
            count("confirmed_total")
        ),
    );
    line("fetched", count("fetched_total").to_string());
    line(
        "passed",
        format!("{} that only the server can answer", count("passed_total")),
    );
    let answered = count("answered_bytes_total");
    line(
        "content",
        format!(
            "{} from the store ({}), {} from servers",
            bytes(answered),
            percent("byte_hit_ratio"),
            bytes(count("fetched_bytes_total"))
        ),
    );
    line(
        "WAN saved",
        format!("{} of content, before reduction", bytes(answered)),
    );
    let origins = summary["slowest_origins"].as_array();
    let origins = origins.map_or(&[][..], Vec::as_slice);
    if !origins.is_empty() {
        let _ = writeln!(
            text,
            "\n{:<ORIGIN_COLUMNS$} {:>8} {:>10} {:>10}",
            "SLOWEST ORIGINS", "ANSWERS", "MEAN", "LONGEST"
        );
    }
    for origin in origins {
        let name = origin["name"].as_str().unwrap_or("-");
        let name = format!("{name} ({})", origin["server"].as_str().unwrap_or("-"));
        let name: String = name.chars().take(ORIGIN_COLUMNS).collect();
        let span = |key: &str| format!("{:.1} ms", origin[key].as_f64().unwrap_or(0.0));
        let _ = writeln!(
            text,
            "{name:<ORIGIN_COLUMNS$} {:>8} {:>10} {:>10}",
            origin["answers"].as_u64().unwrap_or(0),
            span("mean_ms"),
            span("longest_ms")
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status() -> Value {
        json!({ "accelerators": [{
            "name": "http",
            "counts": {
                "hits_total": 6, "confirmed_total": 2, "fetched_total": 1, "passed_total": 1,
                "answered_bytes_total": 900_000, "fetched_bytes_total": 100_000,
            },
            "slowest_servers": [{
                "server": "198.18.2.2:80", "name": "http://www.corp.example", "answers": 4,
                "mean_ms": 101.5, "longest_ms": 203.0,
            }],
        }] })
    }

    #[test]
    fn ratios_are_of_requests_and_of_bytes() {
        let summary = summary(&status());
        assert_eq!(summary["requests_total"], 10);
        assert_eq!(summary["hit_ratio"], 0.6);
        assert_eq!(summary["hit_or_confirmed_ratio"], 0.8);
        assert_eq!(summary["byte_hit_ratio"], 0.9);
        assert_eq!(summary["wan_bytes_saved_total"], 900_000);
    }

    #[test]
    fn the_table_fits_a_terminal_and_names_slow_origins() {
        let text = table(&summary(&status()));
        assert!(text.contains("6 (60.0 %)"), "{text}");
        assert!(text.contains("www.corp.example (198.18.2.2:80)"), "{text}");
        assert!(text.contains("203.0 ms"), "{text}");
        assert!(
            text.lines().all(|line| line.chars().count() <= 80),
            "{text}"
        );
    }

    #[test]
    fn a_node_without_an_account_has_no_ratio() {
        assert!(summary(&json!({})).is_null());
        let idle = json!({ "accelerators": [{ "name": "http", "counts": {} }] });
        assert!(summary(&idle)["hit_ratio"].is_null());
        assert!(table(&summary(&idle)).contains("0 (-)"));
    }
}
