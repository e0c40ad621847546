//! Measurements of sessions, in virtual time or in real time, and the selection among them.

use tunnel::fec::RepairMode;

use super::cells::{PathCell, all_cells};
use super::shares::RivalController;

/// The loss of the path on which exchanges are measured, each way.
pub(super) const EXCHANGE_LOSS: f64 = 0.01;

/// A measurement that can be selected.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum SessionMeasurement {
    /// A bulk flow on one path.
    Cell(PathCell),
    /// Time until the first byte of an answer.
    FirstByte,
    /// Short exchanges where packets are lost.
    Exchanges,
    /// A small flow beside bulk flows of its session.
    SmallFlow,
    /// Sixteen sessions on one path.
    Sessions,
    /// A session beside another one with another controller.
    Beside(RivalController),
    /// CUBIC and BBR beside each other, without a flow of ours: a reference for their own fairness.
    Reference,
    /// Processor time that a flow costs; in real time only.
    Cpu,
}

impl SessionMeasurement {
    /// All there are.
    #[must_use]
    pub fn all() -> Vec<Self> {
        let mut all: Vec<Self> = all_cells().into_iter().map(Self::Cell).collect();
        all.extend([
            Self::FirstByte,
            Self::Exchanges,
            Self::SmallFlow,
            Self::Sessions,
            Self::Beside(RivalController::Cubic),
            Self::Beside(RivalController::Bbr),
            Self::Beside(RivalController::BbrV1),
            Self::Reference,
            Self::Cpu,
        ]);
        all
    }

    /// A name for a person and for `--cells`.
    #[must_use]
    pub fn name(&self) -> String {
        match self {
            Self::Cell(cell) => cell.name(),
            Self::FirstByte => "first-byte".to_owned(),
            Self::Exchanges => "exchanges".to_owned(),
            Self::SmallFlow => "small-flow".to_owned(),
            Self::Sessions => "sessions".to_owned(),
            Self::Beside(rival) => format!("beside-{}", rival.name()),
            Self::Reference => "beside-reference".to_owned(),
            Self::Cpu => "cpu".to_owned(),
        }
    }
}

/// Selection of measurements.
#[derive(Clone, Debug)]
pub struct SessionSelection {
    /// Measurements to make.
    pub measurements: Vec<SessionMeasurement>,
    /// With which modes of correction the paths are measured.
    pub modes: Vec<RepairMode>,
    /// With how many seeds each.
    pub repeat: u64,
    /// The first of them; the others follow it.
    pub seed: u64,
}
