//! The counters of a link as a table, which `run` prints at its end and `status` while it runs; and
//! the link's settings, which both print first.

use std::io::{self, Write};

use host::terminal::write_hanging;
use serde_json::Value;

/// Label, and the key under which both directions have it.
type CounterRow = (&'static str, &'static str);

/// Always shown.
const ROWS: [CounterRow; 8] = [
    ("offered, packets", "offered_packets"),
    ("offered, bytes", "offered_bytes"),
    ("delivered, packets", "delivered_packets"),
    ("delivered, bytes", "delivered_bytes"),
    ("dropped by the queue, packets", "dropped_by_queue_packets"),
    ("dropped by the queue, bytes", "dropped_by_queue_bytes"),
    (
        "lost by the loss setting, packets",
        "dropped_by_loss_packets",
    ),
    ("lost by the loss setting, bytes", "dropped_by_loss_bytes"),
];

/// Shown where there were any.
const ROWS_IF_ANY: [CounterRow; 10] = [
    ("lost in an outage, packets", "dropped_by_outage_packets"),
    ("lost in an outage, bytes", "dropped_by_outage_bytes"),
    (
        "dropped by the policer, packets",
        "dropped_by_policer_packets",
    ),
    ("dropped by the policer, bytes", "dropped_by_policer_bytes"),
    ("dropped by AQM, packets", "dropped_by_aqm_packets"),
    ("dropped by AQM, bytes", "dropped_by_aqm_bytes"),
    ("marked by AQM, packets", "marked_packets"),
    ("duplicated, packets", "duplicated_packets"),
    ("corrupted, packets", "corrupted_packets"),
    ("sent late, packets", "reordered_packets"),
];

/// Always shown, behind the others.
const LAST_ROWS: [CounterRow; 6] = [
    ("still in the link, packets", "held_packets"),
    ("still in the link, bytes", "held_bytes"),
    ("over 1 ms late, packets", "late_packets"),
    ("lateness, median, us", "lateness_p50_us"),
    ("lateness, 99 of 100, us", "lateness_p99_us"),
    ("lateness, largest, us", "lateness_max_us"),
];

/// Counters of packets that the host lost, and not the model.
const LOST_OUTSIDE: [&str; 4] = [
    "unread_packets",
    "dropped_by_limit_packets",
    "untaken_packets",
    "failed_writes_packets",
];

/// Prints the settings of one direction after `first`, in lines that break between settings.
pub(super) fn in_lines(first: &str, indent: usize, mut settings: Vec<String>) -> String {
    if let Some((_, others)) = settings.split_last_mut() {
        for setting in others {
            setting.push(',');
        }
    }
    let mut lines = String::new();
    write_hanging(&mut lines, first, indent, settings);
    lines
}

/// Prints the table of a report, as JSON has it.
pub(super) fn print(out: &mut impl Write, (a, b): (&str, &str), report: &Value) -> io::Result<()> {
    let value = |way: &str, key: &str| report[way][key].as_u64().unwrap_or(0);
    let mut row = |label: &str, forward: &str, back: &str| {
        writeln!(out, "{label:<34}{forward:>22}{back:>22}")
    };
    row("", &format!("{a} to {b}"), &format!("{b} to {a}"))?;
    let shown_if_any = ROWS_IF_ANY
        .iter()
        .filter(|(_, key)| value("forward", key) + value("back", key) > 0);
    for (label, key) in ROWS.iter().chain(shown_if_any) {
        let [forward, back] = ["forward", "back"].map(|way| value(way, key).to_string());
        row(label, &forward, &back)?;
    }
    let [forward, back] = ["forward", "back"].map(|way| {
        let lost: u64 = LOST_OUTSIDE.iter().map(|key| value(way, key)).sum();
        lost.to_string()
    });
    row("lost by this host, packets", &forward, &back)?;
    for (label, key) in &LAST_ROWS {
        let [forward, back] = ["forward", "back"].map(|way| value(way, key).to_string());
        row(label, &forward, &back)?;
    }
    if let Some(forced) = report["forced"].as_str() {
        writeln!(out, "FORCED: {forced}")?;
    }
    Ok(())
}
