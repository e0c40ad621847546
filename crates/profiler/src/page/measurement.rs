//! Self-contained HTML report of a measurement: delays and losses of cable and device, the published
//! figures beside them, and the differences of the device from a single output queue.
//!
//! The page shows the figures of the JSON report, so both always agree.

use std::fmt::Write;

use anyhow::Result;
use host::html::{STYLE, escape};
use serde_json::Value;

use super::PAGE_STYLE;
use crate::measurement::MeasurementResult;
use crate::report;

/// The whole page.
///
/// # Errors
/// Never for a string; the signature is that of the validation's page.
pub fn measurement_html(result: &MeasurementResult) -> Result<String> {
    let document = report::document(result);
    let title = format!("Measurement by the plan {}", escape(&result.plan));
    let mut out = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
         <title>{title}</title><style>{STYLE}{PAGE_STYLE}</style></head><body>\n<h1>{title}</h1>\n\
         <p class=\"note\">{} of {} runs were measured. Stamps: {}</p>\n",
        result.runs.len(),
        result.planned_runs,
        escape(crate::STAMPS),
    );
    write_list(&mut out, "Findings", rows(&document["findings"]))?;
    write_cells(&mut out, rows(&document["cells"]))?;
    write_published(&mut out, &document["published"])?;
    write_list(
        &mut out,
        "Differences from a single output queue",
        rows(&document["published"]["differences_from_output_queue"]),
    )?;
    out += "</body></html>\n";
    Ok(out)
}

fn rows(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn write_list(out: &mut String, title: &str, sentences: &[Value]) -> Result<()> {
    if sentences.is_empty() {
        return Ok(());
    }
    write!(out, "<h2>{title}</h2>\n<ul>\n")?;
    for sentence in sentences {
        writeln!(out, "<li>{}</li>", escape(&text(sentence)))?;
    }
    *out += "</ul>\n";
    Ok(())
}

fn write_cells(out: &mut String, cells: &[Value]) -> Result<()> {
    *out += "<h2>Delays and losses</h2>\n<div class=\"scroll\"><table><thead><tr>\
             <th class=\"name\">experiment</th><th class=\"name\">path</th><th>bytes</th>\
             <th>sent/s</th><th>p5 µs</th><th>mean µs</th>\
             <th>p95 µs</th><th>mean less cable µs</th><th>loss %</th><th>own loss %</th>\
             <th>void runs</th></tr></thead><tbody>\n";
    for cell in cells {
        let delay = &cell["delay"];
        let figures = [
            micros(&delay["p5_ns"]),
            micros(&delay["mean_ns"]),
            micros(&delay["p95_ns"]),
            micros(&cell["mean_minus_cable_ns"]),
            percent(&cell["loss_ratio"]),
            percent(&cell["own_loss"]),
            text(&cell["void_runs"]),
        ];
        writeln!(
            out,
            "<tr><td class=\"name\">{}</td><td class=\"name\">{}</td><td>{}</td><td>{}</td>{}</tr>",
            escape(&text(&cell["experiment"])),
            escape(&text(&cell["subject"])),
            grouped(&cell["size_bytes"]),
            grouped(&cell["sent_pps"]),
            columns(&figures),
        )?;
    }
    *out += "</tbody></table></div>\n";
    Ok(())
}

/// The published delays and losses, if the plan has their experiments.
fn write_published(out: &mut String, published: &Value) -> Result<()> {
    let delays = rows(&published["delays"]);
    if !delays.is_empty() {
        write!(
            out,
            "<h2>Beside the published figures</h2>\n<p>{}. The cable was a cross-over cable, the device \
             a Cisco 3660.</p>\n<div class=\"scroll\"><table><thead><tr><th class=\"name\">path</th>\
             <th>bytes</th><th>packets/s</th><th>p5 µs published</th><th>here</th>\
             <th>mean µs published</th><th>here</th><th>p95 µs published</th><th>here</th></tr>\
             </thead><tbody>\n",
            escape(&text(&published["source"]))
        )?;
        for row in delays {
            let delay = &row["delay"];
            let figures = [
                micros(&row["published_p5_ns"]),
                micros(&delay["p5_ns"]),
                micros(&row["published_mean_ns"]),
                micros(&delay["mean_ns"]),
                micros(&row["published_p95_ns"]),
                micros(&delay["p95_ns"]),
            ];
            writeln!(
                out,
                "<tr><td class=\"name\">{}</td><td>{}</td><td>{}</td>{}</tr>",
                escape(&text(&row["subject"])),
                grouped(&row["size_bytes"]),
                grouped(&row["rate_pps"]),
                columns(&figures),
            )?;
        }
        *out += "</tbody></table></div>\n";
    }
    let losses = rows(&published["tcp_loss"]);
    if losses.is_empty() {
        return Ok(());
    }
    *out += "<h2>Loss of the TCP connections</h2>\n<div class=\"scroll\"><table><thead><tr>\
             <th class=\"name\">connections</th><th class=\"name\">path</th><th>loss %</th></tr>\
             </thead><tbody>\n";
    let then = rows(&published["published_tcp_loss"]).iter().map(|row| {
        let connections = format!("published, {}", text(&row["tcp"]));
        (connections, text(&row["path"]), percent(&row["loss_ratio"]))
    });
    let now = losses.iter().map(|row| {
        let connections = format!("here, {}", text(&row["experiment"]));
        let path = text(&row["subject"]);
        (connections, path, percent(&row["loss_ratio"]))
    });
    for (connections, path, loss) in then.chain(now) {
        writeln!(
            out,
            "<tr><td class=\"name\">{}</td><td class=\"name\">{}</td><td>{loss}</td></tr>",
            escape(&connections),
            escape(&path)
        )?;
    }
    *out += "</tbody></table></div>\n";
    Ok(())
}

fn columns(figures: &[String]) -> String {
    figures
        .iter()
        .map(|figure| format!("<td>{figure}</td>"))
        .collect()
}

fn micros(nanoseconds: &Value) -> String {
    number(nanoseconds, 1e-3, 2)
}

fn percent(ratio: &Value) -> String {
    number(ratio, 100.0, 4)
}

/// A whole number with separators between the thousands.
fn grouped(value: &Value) -> String {
    let digits = number(value, 1.0, 0);
    let length = digits.chars().count();
    let mut grouped = String::new();
    for (position, digit) in digits.chars().enumerate() {
        if position > 0 && (length - position).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

/// A number times a factor; "–" if it was not measured or not published.
fn number(value: &Value, factor: f64, places: usize) -> String {
    value.as_f64().map_or_else(
        || "–".to_owned(),
        |value| format!("{:.places$}", value * factor),
    )
}

fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => "–".to_owned(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn thousands_are_separated() {
        let shown = [json!(92), json!(9_999.7), json!(1_234_567), json!(null)].map(|n| grouped(&n));
        assert_eq!(shown, ["92", "10,000", "1,234,567", "–"]);
    }
}
