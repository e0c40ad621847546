//! Figures of all session measurements, and the failures.

use serde::Serialize;

use super::exchanges::{ExchangeTimes, FirstByte, SmallFlow};
use super::shares::QueueShares;
use super::transfers::PathCellResult;

/// Results. A value that was not requested is `None` or empty.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct SessionReport {
    /// Each path and mode, medians over seeds.
    pub cells: Vec<PathCellResult>,
    /// Single runs behind those medians.
    pub runs: Vec<PathCellResult>,
    /// First bytes.
    pub first_byte: Option<FirstByte>,
    /// Exchanges, by mode: without loss, then with.
    pub exchanges: Vec<ExchangeTimes>,
    /// Exchanges measured with nodes.
    pub exchanges_in_real_time: Vec<ExchangeTimes>,
    /// Small flows.
    pub small_flow: Option<SmallFlow>,
    /// Jain's index of sixteen sessions, by seed.
    pub jain_16_sessions: Vec<f64>,
    /// Shares by rival and queue.
    pub shares: Vec<QueueShares>,
    /// CUBIC's share beside BBR, by queue.
    pub references: Vec<QueueShares>,
    /// Costs of flows, by run.
    pub costs: Vec<FlowCost>,
    /// Measurements that were requested and failed.
    pub not_measured: Vec<FailedRun>,
}

/// A run that gave no figure.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FailedRun {
    /// The measurement's name.
    pub measurement: String,
    /// The run: `auto, seed 3`.
    pub run: String,
    /// Why.
    pub why: String,
}

impl FailedRun {
    /// Why nothing more was begun.
    pub const INTERRUPTED: &str = "interrupted";
}

/// Cost of one flow, client and server on the same processors, with no emulator between.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FlowCost {
    /// True if the flow was reduced.
    pub is_reduced: bool,
    /// Application bytes.
    pub gbit_s: f64,
    /// Path that frames took.
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
