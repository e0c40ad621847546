//! Results of a test for one direction so far.

use super::RunPlan;
use crate::metrics::{LossBudget, LossVerdict};
use crate::procedure::{BottleneckResult, CountedStream, MtuOutcome, StreamRecord};
use crate::run::RunFigures;

/// Results for one direction so far.
#[derive(Clone, Debug, Default)]
pub struct DirectionResults {
    /// Result of the path MTU search.
    pub path_mtu: Option<MtuOutcome>,
    /// Result of the streams.
    pub bottleneck: Option<BottleneckResult>,
    /// The streams that measured, for plots and for diagnosis.
    pub streams: Vec<StreamRecord>,
    /// The streams that measured and were only counted at the far end.
    pub counted: Vec<CountedStream>,
    /// Loss of the stream below the rate, compared with the budget for the target.
    pub loss: Option<LossCheck>,
    /// The runs.
    pub runs: Vec<RunResult>,
}

impl DirectionResults {
    /// The largest packet that passes, where larger ones that the interface takes vanish.
    #[must_use]
    pub fn black_hole(&self) -> Option<u16> {
        match self.path_mtu? {
            MtuOutcome::Found { mtu, tried } => (mtu < tried).then_some(mtu),
            // The largest size that is known to pass.
            MtuOutcome::Between { passes, .. } => Some(passes),
            MtuOutcome::TooSmall { .. } | MtuOutcome::NoAnswer => None,
        }
    }
}

/// A loss budget and its verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LossCheck {
    /// RFC 8337.
    pub budget: LossBudget,
    /// Packets sent.
    pub sent: u64,
    /// Packets lost.
    pub lost: u64,
    /// The verdict.
    pub verdict: LossVerdict,
}

/// A run that was made.
#[derive(Clone, Debug, PartialEq)]
pub struct RunResult {
    /// Plan of the run.
    pub plan: RunPlan,
    /// Figures of the run in this direction, all connections together; `None` where it failed.
    pub figures: Option<RunFigures>,
}
