//! One large download with the accelerator and without, between nodes that nothing slows down.
//!
//! Every download is of a file that nobody has seen, so in both modes its bytes cross the WAN once.

use std::time::Instant;

use anyhow::{Context, Result};
use serde_json::json;

use super::HttpChoice;
use super::report::CellFigures;
use super::stand::{HttpStand, NodeHttpMode};
use host::ProgramEnvironment;
use host::median::median;
use lab::topology::OffloadMode;

/// Bytes of a file: seconds, for nodes of a release build.
const FILE_BYTES: usize = 200_000_000;

/// Measures the cell: pairs of downloads, as many as there are repeats, the mode that begins alternating.
///
/// # Errors
/// When a file does not arrive.
pub(super) fn measure(
    environment: &ProgramEnvironment,
    choice: &HttpChoice,
    step: &dyn Fn(&str),
) -> Result<CellFigures> {
    let mut stand = HttpStand::create(environment, OffloadMode::Kept, false)?;
    stand.join_directly()?;
    let (mut with, mut without) = (Vec::new(), Vec::new());
    for repeat in 1..=choice.repeats {
        let mut modes = [NodeHttpMode::Off, NodeHttpMode::On];
        if repeat % 2 == 0 {
            modes.reverse();
        }
        for mode in modes {
            step(&format!("{mode:?} {repeat}"));
            stand.start_nodes(mode, &[])?;
            stand.empty()?;
            let path = "/fresh/large";
            let seed = 1 + 2 * repeat as u64 + u64::from(mode == NodeHttpMode::On);
            let content = stand.origin().publish(path, FILE_BYTES, seed)?;
            let began = Instant::now();
            stand.client().fetch(path, &content)?;
            let mbit_s = FILE_BYTES as f64 * 8.0 / 1e6 / began.elapsed().as_secs_f64();
            match mode {
                NodeHttpMode::On => with.push(mbit_s),
                NodeHttpMode::Off => without.push(mbit_s),
            }
        }
    }
    let mut figures = CellFigures::default();
    let ratios: Vec<f64> = with
        .iter()
        .zip(&without)
        .map(|(with, without)| with / without)
        .collect();
    figures.add_median("throughput_ratio", &ratios);
    figures.add("throughput_mbit_s", median(with.iter().copied()));
    let passthrough = median(without.iter().copied()).context("nothing was downloaded")?;
    figures.add("passthrough_mbit_s", passthrough);
    figures.raw =
        json!({ "http_mbit_s": with, "passthrough_mbit_s": without, "bytes": FILE_BYTES });
    Ok(figures)
}
