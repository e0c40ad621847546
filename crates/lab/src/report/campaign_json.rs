//! Results of a campaign for programs (docs/guides/campaigns.md describes the keys).
//!
//! `{"cells": [...], "cells_left": [...], "rows": [...], ...}`: an entry per cell over its repeats,
//! and a row per file of file sets, as the demo has them. `cells_left` has the names of the cells
//! that have no figure yet, so `throughput_kB_s` is `null` only where `status` is `not-simulated`.

use serde_json::{Value, json};

use super::json::json as rows_json;
use super::published;
use super::statistics::{self, ComparisonVerdict};
use super::tables::baseline_of;
use crate::cells::{
    CampaignOutcome, CellPass, CellResult, CellStatus, FecSetting, PublishedEvaluation,
};
use crate::workload::WorkloadKind;
use host::median::median;

/// Results as one JSON document.
#[must_use]
pub fn campaign_json(outcome: &CampaignOutcome) -> Value {
    let is_left =
        |cell: &&CellResult| cell.status == CellStatus::NotMeasured && cell.throughput.is_none();
    let left = outcome.cells.iter().filter(is_left);
    let left: Vec<String> = left.map(|cell| cell.cell.name()).collect();
    let cells: Vec<Value> = outcome
        .cells
        .iter()
        .filter(|cell| !is_left(cell))
        .map(|cell| cell_json(cell, baseline_of(outcome, cell)))
        .collect();
    let files = outcome.file_results();
    let rows = files.as_ref().map(rows_json);
    let mut rows = rows.map_or_else(|| json!([]), |document| document["rows"].clone());
    if outcome.plan.published == Some(PublishedEvaluation::Waas3g) {
        add_published(&mut rows);
        add_published_documents(&mut rows);
    }
    add_missing_keys(&mut rows);
    let header = &outcome.journal.header;
    // A simulation is the same on every day and on every machine.
    let is_real = !header.is_simulation;
    let mut document = json!({
        "title": outcome.plan.title,
        "simulation": header.is_simulation,
        "started": is_real.then_some(&header.started),
        "took_s": outcome.took_s(),
        "seed": outcome.plan.seed,
        "repeats": outcome.plan.repeats.get_ref(),
        "span_s": header.span_s,
        "cells": cells,
        "cells_left": left,
        "rows": rows,
        "attempts": outcome.journal.attempts.len(),
        "faults": outcome.faults(),
        "calibration": outcome.journal.calibration,
        "certificate": header.certificate,
        "machine": is_real.then_some(&header.machine),
    });
    if let Some(real) = &outcome.journal.real {
        document["real"] = json!({
            "started": real.started,
            "median_deviation_percent": outcome.median_deviation_percent(),
        });
    }
    document
}

/// Adds the published seconds to rows of the published tests.
fn add_published(rows: &mut Value) {
    let tests = published::tests();
    for row in rows.as_array_mut().into_iter().flatten() {
        let test = tests.iter().find(|test| row["workload"] == test.workload);
        let time = test.and_then(|test| test.times.iter().find(|time| row["file"] == *time.file));
        if let Some(time) = time {
            row["published_baseline_s"] = json!(time.baseline_s);
            row["published_cold_s"] = json!(time.cold_s);
            row["published_warm_s"] = json!(time.warm_s);
        }
    }
}

/// Adds the published seconds to open and to save to rows of documents.
fn add_published_documents(rows: &mut Value) {
    let published = published::documents();
    for row in rows.as_array_mut().into_iter().flatten() {
        if row["workload"] != WorkloadKind::SmbOffice.name() {
            continue;
        }
        let document = published
            .iter()
            .find(|document| row["file"] == *document.file);
        let Some(document) = document else {
            continue;
        };
        for (pass, [open_s, save_s]) in [
            ("baseline", document.baseline_s),
            ("cold", document.cold_s),
            ("warm", document.warm_s),
        ] {
            row[format!("published_{pass}_open_s")] = json!(open_s);
            row[format!("published_{pass}_save_s")] = json!(save_s);
        }
    }
}

/// Adds the keys of documents to rows of other files.
fn add_missing_keys(rows: &mut Value) {
    for row in rows.as_array_mut().into_iter().flatten() {
        for key in ["open_s", "save_s"] {
            if row.get(key).is_none() {
                row[key] = Value::Null;
            }
        }
    }
}

/// A cell's figures; `baseline` is the cell that it is compared with.
pub(super) fn cell_json(result: &CellResult, baseline: Option<&CellResult>) -> Value {
    let cell = &result.cell;
    let passes = || result.passes.iter();
    let middle = |figure: fn(&CellPass) -> f64| median(passes().map(figure));
    let throughput = result.throughput.map(|estimate| estimate.median);
    let interval = result.throughput.and_then(|estimate| estimate.interval);
    let base = baseline.and_then(|base| base.throughput);
    let verdict = match (&base, &result.throughput) {
        (Some(base), Some(own)) => Some(statistics::compare(base, own)),
        _ => None,
    };
    let mut document = json!({
        "cell": cell.name(),
        "protocol": cell.protocol,
        "workload": cell.workload.name(),
        "link": cell.link,
        "link_settings": cell.settings.to_string(),
        "one_way_delay_ms": cell.figures.one_way_delay.as_secs_f64() * 1e3,
        "mode": cell.mode.letter(),
        "loss": cell.figures.loss,
        "fec": cell.fec.map(FecSetting::name),
        "cache": cell.cache.name(),
        "status": result.status.name(),
        "throughput_kB_s": throughput,
        "interval_kB_s": interval.map(|interval| [interval.low, interval.high]),
        "interval_coverage": interval.map(|interval| interval.coverage),
        "repeats_kB_s": result.throughputs_kb_s,
        "published_kB_s": result.published.map(|published| published.kb_s),
        "benefit_percent": base.zip(throughput)
            .and_then(|(base, own)| statistics::benefit_percent(base.median, own)),
        "difference_from_baseline": verdict.map(verdict_name),
        "identical": match result.passes.is_empty() {
            true => None,
            false => Some(result.is_identical()),
        },
        "repeated_for_foreign_traffic": result.repeated_for_foreign_traffic,
        "attempts": result.attempts,
        "bytes": result.bytes,
        "shortened": result.is_shortened,
        "elapsed_s": middle(CellPass::elapsed_s),
        "wan_bytes_up": middle(|pass| pass.wan_bytes_up as f64),
        "wan_bytes_down": middle(|pass| pass.wan_bytes_down as f64),
        "wan_round_trips": middle(|pass| f64::from(pass.wan_round_trips)),
        "ping_before_ms": median(passes().flat_map(|pass| pass.pings_before_ms.iter().copied())),
        "ping_after_ms": median(passes().flat_map(|pass| pass.pings_after_ms.iter().copied())),
        "foreign_share": middle(CellPass::foreign_share),
        "retransmitted_share": middle(CellPass::retransmitted_share),
        "dropped_by_link_packets": middle(|pass| pass.dropped_by_link_packets as f64),
        "cpu_busy": middle(|pass| pass.cpu_busy),
        "host_limits": result.host_limits,
        "failures": result.failures,
    });
    if let Some(real) = result.real_kb_s {
        document["real_kB_s"] = json!(real);
        document["deviation_percent"] = json!(result.deviation_percent());
    }
    document
}

const fn verdict_name(verdict: ComparisonVerdict) -> &'static str {
    match verdict {
        ComparisonVerdict::Higher => "higher",
        ComparisonVerdict::Lower => "lower",
        ComparisonVerdict::NoDifference => "none",
        ComparisonVerdict::NotTested => "not-tested",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cells::sample_outcome;

    #[test]
    fn only_cells_not_simulated_have_no_throughput() {
        let document = campaign_json(&sample_outcome(1, "CIFS/T1/30ms/loss=0%/A"));
        let cells = document["cells"].as_array().expect("cells are a list");
        for cell in cells {
            let is_null = cell["throughput_kB_s"].is_null();
            assert_eq!(is_null, cell["status"] == "not-simulated", "{cell}");
        }
        let left = "CIFS/T1/30ms/loss=0%/A/fec=auto/random-once";
        assert_eq!(document["cells_left"], json!([left]));
        assert_eq!(cells.len(), 109);
    }
}
