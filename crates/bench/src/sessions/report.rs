//! The figures of all measurements of sessions, and what gave none.

use serde::Serialize;

use super::exchanges::{ExchangeTimes, FirstByte, SmallFlow};
use super::shares::QueueShares;
use super::transfers::PathCellResult;

/// What came of it. What was not asked for is `None` or empty.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct SessionReport {
    /// Each path and mode, medians over seeds.
    pub cells: Vec<PathCellResult>,
    /// What those are the medians of.
    pub runs: Vec<PathCellResult>,
    /// First bytes.
    pub first_byte: Option<FirstByte>,
    /// Exchanges, by mode: without loss, then with.
    pub exchanges: Vec<ExchangeTimes>,
    /// Those that nodes were measured with.
    pub exchanges_in_real_time: Vec<ExchangeTimes>,
    /// Small flows.
    pub small_flow: Option<SmallFlow>,
    /// Jain's index of sixteen sessions, by seed.
    pub jain_16_sessions: Vec<f64>,
    /// By rival and queue.
    pub shares: Vec<QueueShares>,
    /// By queue: CUBIC's share beside BBR.
    pub references: Vec<QueueShares>,
    /// What flows cost, by run.
    pub costs: Vec<FlowCost>,
    /// What was asked for and gave nothing.
    pub not_measured: Vec<FailedRun>,
}

/// A run that gave no figure.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FailedRun {
    /// The measurement's name.
    pub measurement: String,
    /// Which of its runs: `auto, seed 3`.
    pub run: String,
    /// Why.
    pub why: String,
}

impl FailedRun {
    /// Why nothing more was begun.
    pub const INTERRUPTED: &str = "interrupted";
}

/// What one flow costs, client and server on the same processors, with no emulator between.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FlowCost {
    /// Whether the flow was reduced.
    pub is_reduced: bool,
    /// Application bytes.
    pub gbit_s: f64,
    /// What frames travelled in.
    pub path: String,
    /// Processor seconds for 10⁹ bytes, of each process or thread.
    pub near_cpu_s_per_gb: f64,
    /// See above.
    pub far_cpu_s_per_gb: f64,
    /// See above.
    pub client_cpu_s_per_gb: f64,
    /// See above.
    pub server_cpu_s_per_gb: f64,
    /// Idle share of the processors.
    pub cpu_idle_percent: f64,
}
