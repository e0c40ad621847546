//! What a test has found of a direction so far.

use super::RunPlan;
use crate::metrics::{LossBudget, LossVerdict};
use crate::procedure::{BottleneckResult, CountedStream, MtuOutcome, StreamRecord};
use crate::run::RunFigures;

/// What is known of a direction.
#[derive(Clone, Debug, Default)]
pub struct DirectionResults {
    /// From the search.
    pub path_mtu: Option<MtuOutcome>,
    /// From the streams.
    pub bottleneck: Option<BottleneckResult>,
    /// The streams that measured, for plots and for diagnosis.
    pub streams: Vec<StreamRecord>,
    /// The streams that measured and were only counted at the far end.
    pub counted: Vec<CountedStream>,
    /// What the stream below the rate lost, against the budget for the target.
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

/// A loss budget and what it was held against.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LossCheck {
    /// RFC 8337.
    pub budget: LossBudget,
    /// Packets sent.
    pub sent: u64,
    /// Packets lost.
    pub lost: u64,
    /// What follows.
    pub verdict: LossVerdict,
}

/// A run that was made.
#[derive(Clone, Debug, PartialEq)]
pub struct RunResult {
    /// As planned.
    pub plan: RunPlan,
    /// Its figures in this direction, all connections together; none where it failed.
    pub figures: Option<RunFigures>,
}
