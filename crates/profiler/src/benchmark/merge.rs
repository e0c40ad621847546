//! Counts the documents of several calls of the benchmark together.
//!
//! | part | in the merged document |
//! | --- | --- |
//! | cable: rate, own loss, delay | of the call that sent the most packets over it |
//! | known devices | all draws, whose shares and percentiles are computed again |
//! | foreign devices, reproductions | all rows, whose shares are computed again |
//! | TCP flows, failures, models | all |
//! | times of the parts | sums |
//!
//! A device that two documents have is refused: its two measurements would count twice.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, bail, ensure};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::{ForeignRows, describe_foreign};
use crate::known_devices::KnownDeviceFigures;

/// Parts with draws.
const KNOWN: [&str; 2] = ["known_devices", "known_devices_real_time"];

pub(super) fn merge(documents: &[(String, Value)]) -> Result<Value> {
    for (name, document) in documents {
        ensure!(
            document["bench"] == "profile" && document["figures"].is_object(),
            "{name} is not a result of `trunkline bench profile --json` or `--save`"
        );
    }
    let longest = documents
        .iter()
        .max_by_key(|(_, document)| packets_over_cable(document))
        .context("no document is given")?;
    let mut figures = longest.1["figures"].clone();
    for part in KNOWN {
        if let Some(known) = known_devices(documents, part)? {
            figures[part] = json!(known);
        }
    }
    let flows = lists(documents, |document| &document["figures"]["tcp_flows"]);
    if !flows.is_empty() {
        figures["tcp_flows"] = json!(flows);
    }
    let foreign = foreign_devices(documents)?;
    if !(foreign.comparisons.is_empty() && foreign.uncompared.is_empty()) {
        describe_foreign(&foreign, &mut figures);
    }
    let mut seconds: BTreeMap<&str, f64> = BTreeMap::new();
    let times = documents
        .iter()
        .filter_map(|(_, document)| document["part_times_s"].as_object());
    for (part, time) in times.flatten() {
        *seconds.entry(part).or_default() += time.as_f64().unwrap_or_default();
    }
    // Another call has measured it.
    let is_measured = |failure: &&Value| {
        let failure = failure.as_str().unwrap_or_default();
        foreign
            .devices()
            .any(|device| failure.starts_with(&format!("{device}: ")))
    };
    let mut failures = lists(documents, |document| &document["failures"]);
    failures.retain(|failure| !is_measured(failure));
    let names: Vec<&str> = documents.iter().map(|(name, _)| name.as_str()).collect();
    Ok(json!({
        "bench": "profile",
        "figures": figures,
        "report": longest.1["report"],
        "machine": longest.1["machine"],
        "failures": failures,
        "part_times_s": seconds,
        "foreign_models": lists(documents, |document| &document["foreign_models"]),
        "merged": names,
    }))
}

/// Packets that a call sent over the cable.
fn packets_over_cable(document: &Value) -> u64 {
    let runs = document["report"]["runs"].as_array().into_iter().flatten();
    runs.filter_map(|run| run["sent"].as_u64()).sum()
}

/// The elements of a list that each document may have.
fn lists<'a>(
    documents: &'a [(String, Value)],
    list: impl Fn(&'a Value) -> &'a Value,
) -> Vec<&'a Value> {
    let lists = documents
        .iter()
        .filter_map(|(_, document)| list(document).as_array());
    lists.flatten().collect()
}

/// Draws of one kind; `None` if no document has any.
fn known_devices(documents: &[(String, Value)], part: &str) -> Result<Option<KnownDeviceFigures>> {
    let (mut each, mut unmeasured) = (Vec::new(), Vec::new());
    let mut owners: BTreeMap<u64, &str> = BTreeMap::new();
    for (name, document) in documents {
        let value = &document["figures"][part];
        if value.is_null() {
            continue;
        }
        let known: KnownDeviceFigures = read(value, name, part)?;
        for draw in &known.each {
            if let Some(other) = owners.insert(draw.seed, name) {
                bail!(
                    "{other} and {name} both have the draw {} of {part}; leave one of them out",
                    draw.seed
                );
            }
        }
        each.extend(known.each);
        unmeasured.extend(known.unmeasured);
    }
    each.sort_by_key(|draw| draw.seed);
    // Another call has measured it.
    unmeasured.retain(|one| !owners.contains_key(&one.seed));
    let has_any = !each.is_empty() || !unmeasured.is_empty();
    Ok(has_any.then(|| KnownDeviceFigures::of(each, unmeasured)))
}

/// Rows of all foreign devices.
fn foreign_devices(documents: &[(String, Value)]) -> Result<ForeignRows> {
    let mut all = ForeignRows::default();
    let mut owners: BTreeMap<String, &str> = BTreeMap::new();
    for (name, document) in documents {
        let figures = &document["figures"];
        let rows = ForeignRows {
            comparisons: rows(figures, name, "foreign_devices")?,
            uncompared: rows(figures, name, "foreign_uncompared")?,
            reproductions: rows(figures, name, "reproductions")?,
            void_reproductions: rows(figures, name, "void_reproductions")?,
        };
        let devices: BTreeSet<&str> = rows.devices().collect();
        for device in devices {
            if let Some(other) = owners.insert(device.to_owned(), name) {
                bail!(
                    "{other} and {name} both have the foreign device {device}; leave one of them out"
                );
            }
        }
        all.comparisons.extend(rows.comparisons);
        all.uncompared.extend(rows.uncompared);
        all.reproductions.extend(rows.reproductions);
        all.void_reproductions.extend(rows.void_reproductions);
    }
    Ok(all)
}

impl ForeignRows {
    /// Names of the devices that have a result, several times where they have several runs.
    fn devices(&self) -> impl Iterator<Item = &str> {
        let compared = self.comparisons.iter().map(|row| row.device.as_str());
        let uncompared = self.uncompared.iter().map(|row| row.device.as_str());
        compared.chain(uncompared)
    }
}

/// A list of figures, which may be missing.
fn rows<T: DeserializeOwned>(figures: &Value, name: &str, part: &str) -> Result<Vec<T>> {
    match &figures[part] {
        Value::Null => Ok(Vec::new()),
        list => read(list, name, part),
    }
}

fn read<T: DeserializeOwned>(value: &Value, name: &str, part: &str) -> Result<T> {
    T::deserialize(value)
        .with_context(|| format!("{name}: figures.{part} is damaged, or of another release"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::known_devices::{DrawResult, UnmeasuredDraw};

    fn piece(sent: u64, seeds: &[u64], missing: &[u64]) -> Value {
        let draw = |seed: &u64| DrawResult {
            seed: *seed,
            rate_error_percent: Some(*seed as f64),
            queue_unit_is_right: Some(*seed != 2),
            measurements: 1,
            ..DrawResult::default()
        };
        let unmeasured = |seed: &u64| UnmeasuredDraw {
            seed: *seed,
            reason: "the time of this piece was over".to_owned(),
        };
        let known = KnownDeviceFigures::of(
            seeds.iter().map(draw).collect(),
            missing.iter().map(unmeasured).collect(),
        );
        json!({
            "bench": "profile",
            "figures": { "sent_pps": sent, "known_devices_real_time": known },
            "report": { "runs": [{ "sent": sent }, { "sent": 1 }] },
            "failures": [format!("failure {sent}")],
            "part_times_s": { "known_devices_real_time": 2.5 },
        })
    }

    fn foreign(device: &str, ours: f64) -> Value {
        json!({
            "bench": "profile",
            "figures": { "sent_pps": 0, "foreign_devices": [{
                "device": device, "kind": "complex", "experiment": "bursts", "is_real_time": true,
                "ks_ours": ours, "ks_fifo": 0.5, "ks_hohn": 0.5,
                "p95_error_ours": ours, "p95_error_fifo": 0.5, "p95_error_hohn": 0.5,
                "loss_measured": 0.0, "loss_ours": 0.0, "resolution_ns": 1000,
            }]},
        })
    }

    fn named(documents: Vec<Value>) -> Vec<(String, Value)> {
        (0..)
            .zip(documents)
            .map(|(number, one)| (format!("{number}.json"), one))
            .collect()
    }

    #[test]
    fn draws_of_pieces_count_together() {
        let documents = named(vec![piece(5, &[2], &[3, 4]), piece(900, &[3, 0], &[])]);
        let merged = merge(&documents).unwrap();
        let known = &merged["figures"]["known_devices_real_time"];
        assert_eq!(known["draws"], 3);
        assert_eq!(known["rate_error_p95_percent"], 3.0);
        let share = known["queue_unit_right_share"].as_f64().unwrap();
        assert!((share - 2.0 / 3.0).abs() < 1e-12);
        assert_eq!(known["each"][0]["seed"], 0);
        // Draw 3 has been measured by the other call.
        assert_eq!(known["unmeasured"].as_array().unwrap().len(), 1);
        assert_eq!(known["unmeasured"][0]["seed"], 4);
        assert_eq!(merged["figures"]["sent_pps"], 900);
        assert_eq!(merged["part_times_s"]["known_devices_real_time"], 5.0);
        assert_eq!(merged["failures"], json!(["failure 5", "failure 900"]));
        // A merged document can be merged again.
        let again = merge(&named(vec![merged, piece(1, &[4], &[])])).unwrap();
        assert_eq!(again["figures"]["known_devices_real_time"]["draws"], 4);
    }

    #[test]
    fn rows_of_foreign_devices_count_together() {
        let mut first = foreign("a", 0.1);
        first["failures"] = json!(["b: the time of this piece was over", "c: no nft"]);
        let merged = merge(&named(vec![first, foreign("b", 0.9)])).unwrap();
        assert_eq!(merged["failures"], json!(["c: no nft"]));
        let figures = &merged["figures"];
        assert_eq!(figures["foreign_devices"].as_array().unwrap().len(), 2);
        assert_eq!(figures["foreign_complex_best_share"], 0.5);
    }

    #[test]
    fn device_of_two_documents_is_refused() {
        let error = merge(&named(vec![piece(1, &[2], &[]), piece(1, &[2], &[])])).unwrap_err();
        assert!(
            error
                .to_string()
                .contains("0.json and 1.json both have the draw 2"),
            "{error}"
        );
        let error = merge(&named(vec![foreign("a", 0.1), foreign("a", 0.1)])).unwrap_err();
        assert!(error.to_string().contains("foreign device a"), "{error}");
    }

    #[test]
    fn other_documents_are_refused() {
        let error = merge(&named(vec![json!({"bench": "smb"})])).unwrap_err();
        assert!(
            error.to_string().contains("0.json is not a result"),
            "{error}"
        );
        let mut damaged = piece(1, &[2], &[]);
        damaged["figures"]["known_devices_real_time"] = json!("text");
        let error = merge(&named(vec![damaged])).unwrap_err();
        assert!(error.to_string().contains("damaged"), "{error}");
        assert!(merge(&[]).is_err());
    }
}
