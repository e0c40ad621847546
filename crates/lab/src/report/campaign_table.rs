//! Results of a campaign for a terminal of 80 columns.

use std::fmt::Write;

use super::statistics;
use super::tables::{baseline_of, own_figure, published_figure, tables};
use crate::cells::{CampaignOutcome, CellResult, CellStatus, FecSetting};
use host::terminal::{WIDTH, write_wrapped};

/// Sentence at the head of the results of a simulation.
pub(super) const SIMULATION: &str = "This is a simulation in virtual time: hosts with scripts over our own TCP, and two \
     engines over the link models. No real server, client or network took part.";

/// Results as text of at most 80 columns.
#[must_use]
pub fn campaign_table(outcome: &CampaignOutcome) -> String {
    let mut out = String::new();
    if outcome.journal.header.is_simulation {
        write_wrapped(&mut out, SIMULATION);
    }
    for table in tables(outcome) {
        write_wrapped(&mut out, &table.title);
        let _ = writeln!(
            out,
            "{:>8} {:>6} {:>4} {:>5} {:>10} {:>21} {:>8} {:>10}",
            "delay", "loss", "mode", "fec", "kB/s", "interval", "benefit", "published"
        );
        for cell in &table.cells {
            write_cell(&mut out, cell, baseline_of(outcome, cell));
        }
        let _ = writeln!(out, "{}", "-".repeat(WIDTH));
    }
    let mut faults = outcome.faults();
    if let Some(files) = outcome.file_results() {
        out += &super::table::tests(&files);
        faults.extend(files.faults());
        // Tests of several modes share the baseline's.
        faults.sort();
        faults.dedup();
        if faults.is_empty() {
            out += "Every file arrived identical.\n";
        }
    }
    write_deviations(&mut out, outcome);
    for fault in faults {
        write_wrapped(&mut out, &format!("NOT IDENTICAL: {fault}"));
    }
    out
}

/// Simulated and real throughput of the cells that have both.
fn write_deviations(out: &mut String, outcome: &CampaignOutcome) {
    let Some(median) = outcome.median_deviation_percent() else {
        return;
    };
    let _ = writeln!(
        out,
        "{:<48} {:>9} {:>9} {:>9}",
        "simulation and real campaign, kB/s", "virtual", "real", "deviation"
    );
    for cell in &outcome.cells {
        if let (Some(own), Some(real), Some(deviation)) =
            (cell.throughput, cell.real_kb_s, cell.deviation_percent())
        {
            let name = cell.cell.name();
            let _ = writeln!(
                out,
                "{name:<48} {:>9.1} {real:>9.1} {deviation:>+8.1}%",
                own.median
            );
        }
    }
    let _ = writeln!(out, "median of the absolute deviations: {median:.1} %");
    let _ = writeln!(out, "{}", "-".repeat(WIDTH));
}

fn write_cell(out: &mut String, result: &CellResult, baseline: Option<&CellResult>) {
    let cell = &result.cell;
    let own = own_figure(result);
    let text = match (result.status, own) {
        (CellStatus::Measured, Some(value)) => format!("{value:.1}"),
        (status, _) => status.name().to_owned(),
    };
    let interval = result
        .throughput
        .and_then(|estimate| estimate.interval)
        .map_or("-".to_owned(), |each| {
            format!("{:.1} to {:.1}", each.low, each.high)
        });
    let benefit = baseline
        .and_then(own_figure)
        .zip(own)
        .and_then(|(base, own)| statistics::benefit_percent(base, own))
        .map_or("-".to_owned(), |percent| format!("{percent:+.1}%"));
    let published = published_figure(result).map_or("-".to_owned(), |value| match value > 0.0 {
        true => format!("{value:.1}"),
        false => "failed".to_owned(),
    });
    let loss = vocab::Probability::from_fraction(cell.figures.loss).unwrap_or_default();
    let _ = writeln!(
        out,
        "{:>8} {:>6} {:>4} {:>5} {text:>10} {interval:>21} {benefit:>8} {published:>10}",
        vocab::format_duration(cell.figures.one_way_delay),
        loss.to_string(),
        cell.mode.letter(),
        cell.fec.map_or("-", FecSetting::name),
    );
}
