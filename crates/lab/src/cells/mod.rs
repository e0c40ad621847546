//! Campaigns of cells: a plan in TOML, its expansion, its resumable execution, and its results.
//!
//! ```text
//!  plan.toml ─► CellPlan ─► PlannedCell × n ─► CellSeries in random order ─► journal.jsonl ─► report
//! ```
//! A **cell** is one measurement: a protocol over a link in a mode, with a cache state, once. Cells
//! whose cache states build on each other (cold, warm, edited) form a **series**, which runs and is
//! repeated as a whole. The journal is the only result: every finished attempt is one line of it, so a
//! killed campaign continues where it was, and a report can be made at any time.
//!
//! `runner.rs` measures in the lab, in lanes side by side (`lanes.rs`, `rounds.rs`), `simulated.rs` in virtual time. Both read figures from captures by
//! the same code (`pass.rs`).

mod calibration;
mod expansion;
mod journal;
mod lanes;
mod pass;
mod plan;
mod results;
mod rounds;
mod runner;
mod simulated;
mod sizes;

pub use calibration::{CalibratedQuantity, CalibrationRow, LinkCalibration};
pub use expansion::{CellLoad, CellSelection, CellSeries, PlannedCell, expand, series};
pub use journal::{
    CampaignHeader, CampaignJournal, CellPass, FILE_NAME as JOURNAL_FILE, RealFigures,
    SeriesAttempt,
};
pub use lanes::DEFAULT_JOBS;
pub use plan::{CacheState, CellMode, CellPlan, FecSetting, PlanProblem, PublishedEvaluation};
#[cfg(test)]
pub(crate) use results::tests::{outcome_of, sample_outcome};
pub use results::{CampaignOutcome, CellResult, CellStatus};
pub use runner::{RunOptions, run};
pub use simulated::{SimulationOptions, run_simulation};
pub use sizes::{CellSizes, LinkFigures, SeriesEstimate, expected_time};
