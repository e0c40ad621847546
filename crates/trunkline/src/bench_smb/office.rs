//! `trunkline bench smb --clients office`: the requests of office programs and file managers.

use std::fmt::Write as _;
use std::time::Instant;

use anyhow::{Result, ensure};
use bench::smb::fixed_link::{FixedLinkCell, ONE_WAY_DELAY_MS, RATE};
use bench::smb::office::{self, OfficeCell, OfficeReport, OfficeSelection};
use bench::smb::{AccelerationMode, ClientPython};

use super::{BenchSmb, fixed_link, python};
use crate::environment::environment;
use crate::progress::progress;

/// Measures and prints.
pub(super) fn run(arguments: &BenchSmb) -> Result<()> {
    let selection = OfficeSelection {
        cells: cells(&arguments.cells),
        captures: arguments.captures.clone(),
    };
    ensure!(
        !selection.cells.is_empty(),
        "no cell has this name; a cell has a name such as {}",
        OfficeCell::every()[0].name()
    );
    let clients = ClientPython::find(&python()?)?;
    let display = progress();
    let began = Instant::now();
    let report = office::measure(&environment()?, &clients, &selection, &display)?;
    display.finish();
    fixed_link::print(
        arguments.json,
        report.document(),
        &table(&report),
        began.elapsed(),
        &["smbd"],
    )
}

fn cells(words: &[String]) -> Vec<OfficeCell> {
    match words.is_empty() {
        true => OfficeCell::every(),
        false => fixed_link::chosen(OfficeCell::every(), words),
    }
}

fn table(report: &OfficeReport) -> String {
    let mut text = format!(
        "SMB 3.1.1, {:.0} Mbit/s, RTT {} ms; round trips of an action (time by RTT)\n\
         {:<18}{:<11}{:>9}{:>9}{:>9}{:>12}\n",
        RATE.bits_per_second() as f64 / 1e6,
        2 * ONE_WAY_DELAY_MS,
        "action",
        "signing",
        "requests",
        "direct",
        "through",
        "of direct",
    );
    let row_of = |cell: &OfficeCell| OfficeCell {
        mode: AccelerationMode::Baseline,
        ..*cell
    };
    for (row, result) in fixed_link::rows(report, row_of) {
        let trips = |mode| {
            let cell = OfficeCell { mode, ..row };
            let found = report.cells.iter().find(|other| other.cell == cell);
            found.map(|result| result.figures.round_trips_per_action)
        };
        let (direct, through) = (
            trips(AccelerationMode::Baseline),
            trips(AccelerationMode::Application),
        );
        let figure = |figure: Option<f64>| {
            figure.map_or_else(|| "-".to_owned(), |figure| format!("{figure:.2}"))
        };
        let _ = writeln!(
            text,
            "{:<18}{:<11}{:>9}{:>9}{:>9}{:>12}",
            row.pattern.name(),
            row.protection.signing(),
            result.figures.requests_per_action,
            figure(direct),
            figure(through),
            figure(
                through
                    .zip(direct)
                    .map(|(through, direct)| through / direct)
            ),
        );
    }
    text + &fixed_link::faults(report)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_choose_from_all_office_cells() {
        let chosen = |word: &str| cells(&[word.to_owned()]).len();
        assert_eq!(chosen("word-save"), 6);
        assert_eq!(chosen("browse+encrypted/application"), 2);
        assert_eq!(chosen("serial-64k"), 0);
        assert_eq!(cells(&[]).len(), OfficeCell::every().len());
        assert_eq!(OfficeReport::default().document()["bench"], "smb");
    }
}
