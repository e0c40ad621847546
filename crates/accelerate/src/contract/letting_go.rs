//! The ways in which an accelerator stops helping.
//!
//! An accelerator that meets something that it does not understand stops helping; it never guesses.
//! There are two ways, and a half's state table says which one applies where:
//!
//! ```text
//!             ┌───────────── transparent: bytes pass as they came ─────────────┐
//!             │ LetGo: the engine drops both halves, bytes are never touched    │
//!             └─────────────────────────────────────────────────────────────────┘
//!   renumbered or rewritten ── Close: both ends see a reset, with the reason on record
//! ```
//!
//! `LetGo` works from either half. The half that lets go has put out everything it held before
//! it says so. The engine drops it, tells the other side with a
//! [`FrameKind::Released`](crate::FrameKind) frame in its place in the order, and the engine there does
//! the same with the other half. The frame's second byte, which releases before 0.2 did not send, is the
//! code of the reason ([`ReasonCode::to_byte`]).

use super::ReasonCode;

/// The form in which an accelerator stops helping (see the head of this file).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LettingGo {
    /// Bytes pass untouched from here on, in both directions and for ever.
    LetGo {
        /// The reason, for the operator.
        reason: ReasonCode,
    },
    /// The flow cannot continue safely and is reset at both ends.
    Close {
        /// The reason, for the operator.
        reason: ReasonCode,
    },
}

impl LettingGo {
    /// The reason, for the operator.
    #[must_use]
    pub fn reason(self) -> ReasonCode {
        match self {
            Self::LetGo { reason } | Self::Close { reason } => reason,
        }
    }
}
