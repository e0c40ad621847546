//! `trunkline bench smb --clients kernel`: the Linux kernel's SMB client in a virtual machine.

use std::fmt::Write as _;
use std::time::Instant;

use anyhow::{Result, ensure};
use bench::smb::AccelerationMode;
use bench::smb::fixed_link::{FixedLinkCell, ONE_WAY_DELAY_MS, RATE};
use bench::smb::kernel::{self, KernelCell, KernelCellResult, KernelReport, KernelSelection};
use serde_json::{Value, json};

use super::{BenchSmb, fixed_link};
use crate::environment::environment;
use crate::installed_python::cache_directory;
use crate::progress::progress;

/// Measures and prints.
pub(super) fn run(arguments: &BenchSmb) -> Result<()> {
    let cells = cells(&arguments.cells, arguments.full);
    ensure!(
        !cells.is_empty(),
        "no cell has this name; a cell has a name such as {}",
        KernelCell::of_default()[0].name()
    );
    let selection = KernelSelection {
        cells,
        cache: cache_directory()?,
        captures: arguments.captures.clone(),
    };
    let display = progress();
    let began = Instant::now();
    let report = kernel::measure(&environment()?, &selection, &display)?;
    display.finish();
    fixed_link::print(
        arguments.json,
        document(&report),
        &table(&report),
        began.elapsed(),
        &["smbd", lab::machine::PROGRAM],
    )
}

fn cells(words: &[String], is_full: bool) -> Vec<KernelCell> {
    match (words.is_empty(), is_full) {
        (true, false) => KernelCell::of_default(),
        (true, true) => KernelCell::every(),
        (false, _) => fixed_link::chosen(KernelCell::every(), words),
    }
}

fn document(report: &KernelReport) -> Value {
    let mut document = report.measured.document();
    document["kernel"] = json!(report.kernel);
    document
}

fn table(report: &KernelReport) -> String {
    let mut text = format!(
        "Linux {}, {:.0} Mbit/s, RTT {} ms; round trips per item (time by RTT), goodput in kB/s\n\
         {:<20}{:<10}{:<8}{:<11}{:>9}{:>9}{:>11}{:>11}\n",
        report.kernel,
        RATE.bits_per_second() as f64 / 1e6,
        2 * ONE_WAY_DELAY_MS,
        "client",
        "item",
        "dialect",
        "signing",
        "direct",
        "through",
        "kB/s",
        "through",
    );
    let row_of = |cell: &KernelCell| KernelCell {
        mode: AccelerationMode::Baseline,
        ..*cell
    };
    for (row, _) in fixed_link::rows(&report.measured, row_of) {
        let figure = |mode, of: &dyn Fn(&KernelCellResult) -> String| {
            let cell = KernelCell { mode, ..row };
            let found = report
                .measured
                .cells
                .iter()
                .find(|other| other.cell == cell);
            found.map_or_else(|| "-".to_owned(), of)
        };
        let trips =
            |result: &KernelCellResult| format!("{:.2}", result.figures.round_trips_per_item);
        let rate = |result: &KernelCellResult| format!("{:.0}", result.figures.goodput_kb_s);
        let (direct, through) = (AccelerationMode::Baseline, AccelerationMode::Application);
        let _ = writeln!(
            text,
            "{:<20}{:<10}{:<8}{:<11}{:>9}{:>9}{:>11}{:>11}",
            row.client.name(),
            row.client.item(),
            row.dialect.name(),
            row.protection.signing(),
            figure(direct, &trips),
            figure(through, &trips),
            figure(direct, &rate),
            figure(through, &rate),
        );
    }
    text + &fixed_link::faults(&report.measured)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_choose_from_all_kernel_cells() {
        let words = |word: &str| cells(&[word.to_owned()], false);
        assert_eq!(words("kernel-walk/2.1").len(), 4);
        assert!(words("serial-64k").is_empty());
        assert_eq!(cells(&[], false), KernelCell::of_default());
        assert_eq!(document(&KernelReport::default())["bench"], "smb");
    }
}
