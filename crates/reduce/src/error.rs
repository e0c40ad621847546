//! Errors in bytes from the other side. Each ends its flow; none panics.

use thiserror::Error;

/// Error in an encoded stream, a repair request or a repair answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ReductionError {
    /// The bytes are not what the format says.
    #[error("the reduced stream is not well-formed: {0}")]
    InvalidMessage(&'static str),
    /// The peer writes a version of the format that this node does not read.
    #[error("the peer writes version {0} of the reduced stream; upgrade the older node")]
    PeerIncompatible(u8),
    /// The bytes are well-formed, but what they say cannot be true.
    #[error("the peer broke the rules of the reduced stream: {0}")]
    PeerMisbehaved(&'static str),
}

impl From<vocab::TruncatedInput> for ReductionError {
    fn from(_: vocab::TruncatedInput) -> Self {
        Self::InvalidMessage("a value is cut short")
    }
}
