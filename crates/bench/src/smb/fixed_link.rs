//! Benchmarks of SMB clients over one link, whose cells are measured one after the other.
//!
//! ```text
//!  cells ─► grouped by mode ─► for each: share and path made ready ─► action ─► FixedLinkResult
//! ```
//! A cell that fails is reported with its reason, its lab is built anew, and the rest goes on. Round trips are
//! the time divided by the RTT: they contain the time that data need on the link.

use anyhow::{Result, ensure};
use serde::Serialize;
use serde::ser::{SerializeStruct, Serializer};
use serde_json::{Value, json};
use vocab::Bitrate;

use super::cells::AccelerationMode;
use super::stand::SmbLane;
use crate::lanes::FailedCell;
use crate::reasons::{AccelerationReason, load_average};
use host::kernel;
use host::machine::ProcessorTime;
use host::progress::ProgressReporter;

/// Rate of the link.
pub const RATE: Bitrate = Bitrate::from_bits_per_second(20_000_000);
/// Delay each way, in milliseconds.
pub const ONE_WAY_DELAY_MS: u32 = 50;
/// Queue in front of the link: one BDP.
const QUEUE: &str = "250000B";
/// Bytes that make the path known in each direction: 3 s at the link's rate.
pub(super) const WARM_UP_BYTES: u64 = 7 << 20;

/// One figure of such a benchmark.
pub trait FixedLinkCell: Copy + PartialEq {
    /// The name, whose parts are separated by `/`.
    fn name(&self) -> String;

    /// Mode of Trunkline.
    fn mode(&self) -> AccelerationMode;

    /// The name as a part of file names.
    fn file_stem(&self) -> String {
        self.name().replace('/', "_")
    }

    /// Tells whether the name contains all parts of a word such as `walk+3.1.1`.
    fn is_chosen_by(&self, word: &str) -> bool {
        let name = self.name();
        word.split('+').all(|part| name.contains(part))
    }
}

/// Result of a cell.
#[derive(Clone, Debug, Serialize)]
pub struct FixedLinkResult<C, F> {
    /// The cell.
    #[serde(flatten)]
    pub cell: C,
    /// Time of the whole action.
    pub seconds: f64,
    /// Figures that only cells of this kind have.
    #[serde(flatten)]
    pub figures: F,
    /// True if both ends have the same bytes, names and sizes.
    pub identical: bool,
    /// Accelerate stage of the near node for the flow; `None` without nodes.
    pub accelerate: Option<AccelerationReason>,
    /// Load of this machine meanwhile.
    #[serde(flatten)]
    pub load: MachineLoad,
}

/// Load of a machine while a cell is measured.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct MachineLoad {
    /// The share of time in which the processors were busy, in percent.
    pub cpu_busy_percent: f64,
    /// Processes that waited for a processor, on average over the minute before.
    pub load_average: f64,
}

/// Results of a benchmark.
#[derive(Clone, Debug, Serialize)]
pub struct FixedLinkReport<C, F> {
    /// Cells in the order of the request.
    pub cells: Vec<FixedLinkResult<C, F>>,
    /// Cells that failed, and the reasons.
    pub not_measured: Vec<FailedCell>,
    /// True if somebody ended it early.
    pub is_interrupted: bool,
}

impl<C, F> Default for FixedLinkReport<C, F> {
    fn default() -> Self {
        Self {
            cells: Vec::new(),
            not_measured: Vec::new(),
            is_interrupted: false,
        }
    }
}

impl<C: Serialize, F: Serialize> FixedLinkReport<C, F> {
    /// The report as the benchmark's JSON object.
    #[must_use]
    pub fn document(&self) -> Value {
        json!({
            "bench": "smb",
            "figures": { "cells": self.cells },
            "not_measured": self.not_measured,
            "is_interrupted": self.is_interrupted,
        })
    }
}

/// The lab of such a benchmark.
pub(super) trait FixedLinkBench: Sized {
    /// One figure.
    type Cell: FixedLinkCell;
    /// Figures of a cell.
    type Figures;

    /// Measures one cell.
    ///
    /// # Errors
    /// Fails when a program of the lab fails.
    fn measure(&mut self, cell: &Self::Cell) -> Result<FixedLinkResult<Self::Cell, Self::Figures>>;
}

/// Measures cells in labs that `create` builds, grouped by mode: nodes are started once for each mode.
///
/// # Errors
/// Fails when nothing is selected, or a lab cannot be built.
pub(super) fn measure_each<B: FixedLinkBench>(
    cells: &[B::Cell],
    mut create: impl FnMut() -> Result<B>,
    progress: &dyn ProgressReporter,
) -> Result<FixedLinkReport<B::Cell, B::Figures>> {
    ensure!(!cells.is_empty(), "nothing is to be measured");
    let mut bench = create()?;
    let mut report = FixedLinkReport::default();
    let mut order = cells.to_vec();
    order.sort_by_key(FixedLinkCell::mode);
    for (number, cell) in order.iter().enumerate() {
        progress.step(number as f64 / order.len() as f64, &cell.name());
        match bench.measure(cell) {
            Ok(result) => report.cells.push(result),
            Err(_) if kernel::interrupted() => break,
            Err(error) => {
                let (cell, reason) = (cell.name(), format!("{error:#}"));
                report.not_measured.push(FailedCell { cell, reason });
                // Whatever broke shall not break the next.
                drop(bench);
                bench = create()?;
            }
        }
    }
    report.is_interrupted = kernel::interrupted();
    let place = |cell: &B::Cell| cells.iter().position(|each| each == cell);
    report.cells.sort_by_key(|result| place(&result.cell));
    Ok(report)
}

/// Puts the link between the two sites of a lane.
///
/// # Errors
/// Fails when the emulator does not start.
pub(super) fn set_link(lane: &mut SmbLane) -> Result<()> {
    set_link_with(lane, &[])
}

/// Makes the bench's link with further arguments of `trunkline emulate run`.
///
/// # Errors
/// Fails when the emulator does not start.
pub(super) fn set_link_with(lane: &mut SmbLane, further: &[&str]) -> Result<()> {
    let words = [
        ("--rate", format!("{}bit", RATE.bits_per_second())),
        ("--delay", format!("{ONE_WAY_DELAY_MS}ms")),
        ("--queue", QUEUE.to_owned()),
        ("--seed", "1".to_owned()),
    ];
    let words = words.into_iter();
    lane.set_words(
        words
            .flat_map(|(name, word)| [name.to_owned(), word])
            .chain(further.iter().map(|word| (*word).to_owned()))
            .collect(),
    )
}

/// Carries out an action, and returns how busy this machine was meanwhile.
///
/// # Errors
/// Fails when the action fails.
pub(super) fn under_load<T>(act: impl FnOnce() -> Result<T>) -> Result<(T, MachineLoad)> {
    let load_average = load_average();
    let before = ProcessorTime::now()?;
    let outcome = act()?;
    let cpu_busy_percent = ProcessorTime::now()?.busy_since(before) * 100.0;
    let load = MachineLoad {
        cpu_busy_percent,
        load_average,
    };
    Ok((outcome, load))
}

/// A time as round trips of the link.
pub(super) fn round_trips(seconds: f64) -> f64 {
    seconds / (2.0 * f64::from(ONE_WAY_DELAY_MS) / 1e3)
}

/// Writes a cell as the other cells of the benchmark of SMB are written.
pub(super) fn serialize_cell<S: Serializer>(
    serializer: S,
    mode: AccelerationMode,
    (client, dialect, signing): (&str, &str, &str),
) -> Result<S::Ok, S::Error> {
    let mut fields = serializer.serialize_struct("FixedLinkCell", 7)?;
    fields.serialize_field("client", client)?;
    fields.serialize_field("dialect", dialect)?;
    fields.serialize_field("signing", signing)?;
    fields.serialize_field("mode", mode.stage())?;
    fields.serialize_field("consistency", &mode.consistency())?;
    fields.serialize_field("one_way_delay_ms", &ONE_WAY_DELAY_MS)?;
    fields.serialize_field("rate_bit_s", &RATE.bits_per_second())?;
    fields.end()
}
