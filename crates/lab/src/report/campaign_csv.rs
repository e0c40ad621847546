//! Every cell of a campaign as CSV (RFC 4180): a line for each cell, with the keys of the JSON document.
//!
//! The lines are made of the same values as [`campaign_json`](super::campaign_json), so both agree. A pair, such as
//! an interval, has a column for each end. The elements of other lists stand in one field, with `; ` between them. A
//! value that does not exist is an empty field. The CSV also has the cells without a figure, which the JSON document
//! only names in `cells_left`: their line ends after what the plan says.

use serde_json::Value;

use super::campaign_json::cell_json;
use super::tables::baseline_of;
use crate::cells::CampaignOutcome;

/// Columns in their order, each with the key of the JSON document and the element of its list, if the list has a fixed
/// length.
const COLUMNS: [(&str, &str, Option<usize>); 38] = [
    ("cell", "cell", None),
    ("protocol", "protocol", None),
    ("workload", "workload", None),
    ("link", "link", None),
    ("link_settings", "link_settings", None),
    ("one_way_delay_ms", "one_way_delay_ms", None),
    ("loss", "loss", None),
    ("mode", "mode", None),
    ("fec", "fec", None),
    ("cache", "cache", None),
    ("status", "status", None),
    ("throughput_kB_s", "throughput_kB_s", None),
    ("interval_low_kB_s", "interval_kB_s", Some(0)),
    ("interval_high_kB_s", "interval_kB_s", Some(1)),
    ("interval_coverage", "interval_coverage", None),
    ("repeats_kB_s", "repeats_kB_s", None),
    ("published_kB_s", "published_kB_s", None),
    ("benefit_percent", "benefit_percent", None),
    ("difference_from_baseline", "difference_from_baseline", None),
    ("identical", "identical", None),
    (
        "repeated_for_foreign_traffic",
        "repeated_for_foreign_traffic",
        None,
    ),
    ("attempts", "attempts", None),
    ("bytes", "bytes", None),
    ("shortened", "shortened", None),
    ("elapsed_s", "elapsed_s", None),
    ("wan_bytes_up", "wan_bytes_up", None),
    ("wan_bytes_down", "wan_bytes_down", None),
    ("wan_round_trips", "wan_round_trips", None),
    ("ping_before_ms", "ping_before_ms", None),
    ("ping_after_ms", "ping_after_ms", None),
    ("foreign_share", "foreign_share", None),
    ("retransmitted_share", "retransmitted_share", None),
    ("dropped_by_link_packets", "dropped_by_link_packets", None),
    ("cpu_busy", "cpu_busy", None),
    ("host_limits", "host_limits", None),
    ("failures", "failures", None),
    ("real_kB_s", "real_kB_s", None),
    ("deviation_percent", "deviation_percent", None),
];

/// Separator of the elements of a list in one field.
const SEPARATOR: &str = "; ";

/// All cells as CSV, with the names of the columns in the first line.
#[must_use]
pub fn campaign_csv(outcome: &CampaignOutcome) -> String {
    let mut out = COLUMNS.map(|(name, ..)| name).join(",") + "\r\n";
    for result in &outcome.cells {
        let cell = cell_json(result, baseline_of(outcome, result));
        let fields = COLUMNS.map(|(_, key, element)| {
            let value = cell.get(key).unwrap_or(&Value::Null);
            field(match element {
                Some(index) => value.get(index).unwrap_or(&Value::Null),
                None => value,
            })
        });
        out += &fields.join(",");
        out += "\r\n";
    }
    out
}

/// A value as a field, in quotation marks where RFC 4180 wants them.
fn field(value: &Value) -> String {
    let text = text_of(value);
    match text.contains([',', '"', '\r', '\n']) {
        true => format!("\"{}\"", text.replace('"', "\"\"")),
        false => text,
    }
}

fn text_of(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        Value::Array(elements) => {
            let texts: Vec<String> = elements.iter().map(text_of).collect();
            texts.join(SEPARATOR)
        }
        Value::Bool(_) | Value::Number(_) | Value::Object(_) => value.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::campaign_json;
    use super::*;
    use crate::cells::{RealFigures, sample_outcome};

    const LEFT: &str = "CIFS/T1/30ms/loss=0%/A/fec=auto/random-once";

    /// Fields of each line, by a reader that knows quotation marks.
    fn read(csv: &str) -> Vec<Vec<String>> {
        let mut lines = vec![vec![String::new()]];
        let mut is_quoted = false;
        let mut letters = csv.chars().peekable();
        while let Some(letter) = letters.next() {
            let line = lines.last_mut().expect("there is a line");
            let field = line.last_mut().expect("there is a field");
            match letter {
                '"' if is_quoted && letters.peek() == Some(&'"') => {
                    let _ = letters.next();
                    field.push('"');
                }
                '"' => is_quoted = !is_quoted,
                ',' if !is_quoted => line.push(String::new()),
                '\r' if !is_quoted => assert_eq!(letters.next(), Some('\n')),
                _ => field.push(letter),
            }
            if letter == '\r' && !is_quoted {
                lines.push(vec![String::new()]);
            }
        }
        assert_eq!(lines.pop(), Some(vec![String::new()]), "the last line ends");
        lines
    }

    #[test]
    fn every_cell_has_a_line_with_the_fields_of_the_json() {
        let mut journal = sample_outcome(6, LEFT).journal;
        journal.header.is_simulation = true;
        let compared = "CIFS/OC-1/250ms/loss=0%/A/fec=auto/random-once";
        journal.real = Some(RealFigures {
            started: "2026-11-27T04:26:37+00:00".to_owned(),
            throughputs_kb_s: [(compared.to_owned(), 1_000.0)].into(),
        });
        let outcome = CampaignOutcome::of(journal).unwrap();
        let lines = read(&campaign_csv(&outcome));
        let (names, lines) = lines.split_first().unwrap();
        assert_eq!(lines.len(), 110);
        let column = |name: &str| names.iter().position(|own| own == name).expect(name);
        let mut found_keys = 0;
        let document = campaign_json(&outcome);
        for cell in document["cells"].as_array().unwrap() {
            let line = lines.iter().find(|line| line[0] == cell["cell"]).unwrap();
            assert_eq!(line.len(), names.len());
            for (key, value) in cell.as_object().unwrap() {
                if key == "interval_kB_s" {
                    assert_eq!(line[column("interval_low_kB_s")], text_of(&value[0]));
                    assert_eq!(line[column("interval_high_kB_s")], text_of(&value[1]));
                } else {
                    assert_eq!(line[column(key)], text_of(value), "{key}");
                }
            }
            found_keys = found_keys.max(cell.as_object().unwrap().len());
        }
        // Each column is a key of the JSON document, and an interval has two.
        assert_eq!(found_keys + 1, names.len());
        let left = lines.iter().find(|line| line[0] == LEFT).unwrap();
        assert_eq!(left[column("status")], "not-measured");
        assert_eq!(left[column("throughput_kB_s")], "");
        assert_eq!(left[column("published_kB_s")], "79.4");
    }

    #[test]
    fn text_with_separators_is_one_field() {
        let mut outcome = sample_outcome(1, "none");
        let text = "smbd said \"no\", and\r\nended";
        outcome.cells[0].failures = vec![text.to_owned(), "again".to_owned()];
        let lines = read(&campaign_csv(&outcome));
        let at = lines[0].iter().position(|name| name == "failures").unwrap();
        assert_eq!(lines[1][at], format!("{text}; again"));
        assert!(lines.iter().all(|line| line.len() == lines[0].len()));
    }
}
