//! Errors of a session, by the side at fault.

use thiserror::Error;
use vocab::{FlowId, NodeId, TruncatedInput};

/// Reason to close the link. The flows remain and continue over the next link.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SessionError {
    /// Bytes that are no frame of this protocol.
    #[error("the peer sent bytes that are no frame: {0}; is something else on that port?")]
    InvalidMessage(&'static str),
    /// A peer whose versions and ours have none in common.
    #[error(
        "the peer speaks versions {least} to {newest} of the WAN session and this node {ours_least} to {ours_newest}; update the older node"
    )]
    PeerIncompatible {
        /// The oldest version that the peer accepts.
        least: u16,
        /// The newest version that the peer speaks.
        newest: u16,
        /// The oldest version that this node accepts.
        ours_least: u16,
        /// The newest version that this node speaks.
        ours_newest: u16,
    },
    /// A peer that is not the node this session is for.
    #[error("node {0} answered where another was expected; check the peer's address")]
    WrongNode(NodeId),
    /// A well-formed frame that breaks the rules of the session.
    #[error("the peer broke the session's rules: {0}")]
    PeerMisbehaved(&'static str),
    /// A well-formed frame that breaks the rules of one flow.
    #[error("the peer broke the rules of flow {flow}: {what}")]
    PeerMisbehavedOnFlow {
        /// The flow.
        flow: FlowId,
        /// Description of the violation.
        what: &'static str,
    },
}

impl From<TruncatedInput> for SessionError {
    fn from(_: TruncatedInput) -> Self {
        Self::InvalidMessage("a frame ends in the middle of a field")
    }
}

/// Reason why no flow can be opened now; the connection should be bypassed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum OpenError {
    /// The peer was never heard, or not for so long that its flows were given up.
    #[error("there is no session with the peer")]
    NotConnected,
    /// This node said that it is leaving.
    #[error("this node is stopping")]
    Leaving,
    /// The peer said that it is leaving.
    #[error("the peer is stopping")]
    PeerLeaving,
    /// The limit on open flows is reached.
    #[error("the limit of open flows is reached")]
    TooManyFlows,
}
