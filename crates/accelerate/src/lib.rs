//! Protocol accelerators, one folder each, and the contract they keep.
//!
//! An accelerator is two state machines, its *halves*: the near half beside the client and the far
//! half beside the server. Both are [`AcceleratorHalf`]s. Bytes from their host arrive as
//! [`AcceleratorInput::Lan`], segments of the other half as [`AcceleratorInput::Wan`], and their
//! actions come out of [`AcceleratorHalf::poll_output`]. They own no socket, task or clock.
//!
//! ```text
//!  client ──Lan──► near half ──ToWan──►  reduce, tunnel  ──Wan──► far half ──ToLan──► server
//!  client ◄─ToLan─ near half ◄──Wan────  tunnel, restore ◄─ToWan─ far half ◄──Lan──── server
//! ```
//!
//! The halves exchange a sequence of [`FlowSegment`](vocab::FlowSegment)s: payload (the user's data, which
//! the dictionary remembers), control (the protocol's bytes around it) and frames (messages between
//! the halves, never shown to a host). Because payload is separate, the same file is recognised in
//! every protocol.
//!
//! The [`registry`] chooses the accelerator of a flow from the server's port alone, because the
//! open leaves before the client has sent anything. [`detect`] names the protocol from the first
//! bytes, for people to read, and never delays a byte. An operator configures an accelerator in a
//! table of its own ([`settings`]). The flows of an accelerator share one value in each engine
//! ([`shared`]).
//!
//! It does no I/O and does not know chunks or sessions. The engine keeps one state between flows
//! for it: the holder of each exclusive claim ([`claims`]).

#![forbid(unsafe_code)]
#![warn(clippy::iter_over_hash_type)]
#![cfg_attr(any(test, feature = "testing"), allow(clippy::unwrap_used))]

pub mod claims;
mod contract;
pub mod credentials;
pub mod detect;
pub mod http;
pub mod pace;
pub mod passthrough;
pub mod registry;
pub mod settings;
pub mod shared;
pub mod smb;
#[cfg(any(test, feature = "testing"))]
pub mod testing;

pub use contract::{
    AcceleratorHalf, AcceleratorInput, AcceleratorOutput, CarriedFlow, CarriedProtocol,
    ContentAbsence, ContentHandle, ContentId, ContentRefusal, ContentReport, ContentRequest,
    FlowOpening, FrameKind, LettingGo, MAX_CONTENT_READS, MAX_CONTENT_STORES, ReasonCode,
    ReasonExplanation, ReasonSource, ServerCommand, ServerConnection, ServerEvent, ServerFailure,
    WanEnd,
};
