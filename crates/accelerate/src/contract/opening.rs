//! The moment at which a flow is opened at the far node.
//!
//! ```text
//!  AtOnce      client accepted ──Open──► far node; the near half starts
//!  ByNearHalf  client accepted; the near half starts and answers what it can
//!                 ├─ it never needs the far half ──────────► the flow ends here; 0 bytes on the WAN
//!                 ├─ first segment, FinishWan, OpenFlow ───► Open ──► far node, what was put out behind it
//!                 └─ it lets go ───────────────────────────► Open ──► far node, what it held behind it
//! ```
//!
//! Until the open, no frame of the flow crosses the WAN. The open passes the same checks as every
//! open. If the peer cannot be reached, is at a limit or has its share of the flows, the flow goes
//! directly to its server with all bytes of its client that were not answered here. If the client
//! already has a part of an answer, it is reset.
//!
//! A near half with [`FlowOpening::ByNearHalf`] keeps three duties:
//! - After it has put out the whole answer to a request, it says [`crate::AcceleratorOutput::AnsweredHere`] with the length of
//!   that request. Without it the flow cannot go directly any more.
//! - Where a server may speak first, it puts out [`crate::AcceleratorOutput::OpenFlow`] when its client stays silent; nobody else
//!   opens the flow then. A timer of a second is enough.
//! - It puts out what it held before it lets go, as every half does.
//!
//! The flow of a client that was not accepted yet (`accept = "after-server"`, or a server that is
//! not known to be reachable) is opened at once, because its client waits for the server. So is a
//! flow that passes because of an earlier close between the same hosts.

/// The side that decides when a flow is opened at the far node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FlowOpening {
    /// The engine, when the client connects. The open saves a round trip while the client speaks.
    #[default]
    AtOnce,
    /// The near half, which may answer its client without the far node.
    ByNearHalf,
}
