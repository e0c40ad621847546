//! What can be measured of sessions, in virtual time or in real time, and what was chosen of it.

use tunnel::fec::RepairMode;

use super::cells::{PathCell, all_cells};
use super::shares::RivalController;

/// The loss of the path on which exchanges are measured, each way.
pub(super) const EXCHANGE_LOSS: f64 = 0.01;

/// Something that can be asked for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum SessionMeasurement {
    /// A bulk flow on one path.
    Cell(PathCell),
    /// When the first byte of an answer comes.
    FirstByte,
    /// Short exchanges where packets are lost.
    Exchanges,
    /// A small flow beside bulk flows of its session.
    SmallFlow,
    /// Sixteen sessions on one path.
    Sessions,
    /// A session beside another one with another controller.
    Beside(RivalController),
    /// CUBIC and BBR beside each other, with nothing of ours: what they leave whom they share a
    /// queue with is theirs.
    Reference,
    /// What a flow costs in processor time; in real time alone.
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

/// What is to be measured.
#[derive(Clone, Debug)]
pub struct SessionSelection {
    /// What.
    pub measurements: Vec<SessionMeasurement>,
    /// With which modes of correction the paths are measured.
    pub modes: Vec<RepairMode>,
    /// With how many seeds each.
    pub repeat: u64,
    /// The first of them; the others follow it.
    pub seed: u64,
}
