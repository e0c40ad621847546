//! Protocol accelerators, one folder each, and the contract they keep.
//!
//! An accelerator is two machines, its *halves*: the near half beside the client and the far
//! half beside the server. Both are [`AcceleratorHalf`]s: bytes from their host come in as
//! [`AcceleratorInput::Lan`], what the other half said as [`AcceleratorInput::Wan`], and what they want done comes out
//! of [`AcceleratorHalf::poll_output`]. They own no socket, task or clock.
//!
//! ```text
//!  client ──Lan──► near half ──ToWan──►  reduce, tunnel  ──Wan──► far half ──ToLan──► server
//!  client ◄─ToLan─ near half ◄──Wan────  tunnel, restore ◄─ToWan─ far half ◄──Lan──── server
//! ```
//!
//! What crosses between the halves is a sequence of [`Segment`](vocab::FlowSegment)s: payload (the
//! user's data, which the dictionary remembers), control (the protocol's bytes around it) and
//! frames (what the halves say to each other, never shown to a host). Keeping payload apart is
//! what lets the same file be recognised whichever protocol carried it.
//!
//! Which accelerator serves a flow is decided by the [`registry`] from the server's port alone,
//! because the open leaves before the client has said anything; [`detect`] names the protocol
//! from the first bytes, for people to read, and never delays a byte. What an operator can set of an
//! accelerator is in a table of its own ([`settings`]), and what its flows share is one value in each
//! engine ([`shared`]).
//!
//! It does no I/O and knows nothing of chunks or sessions. Between flows the engine keeps one thing of it: which of
//! them holds an exclusive claim ([`claims`]).

#![forbid(unsafe_code)]
#![warn(clippy::iter_over_hash_type)]
#![cfg_attr(any(test, feature = "testing"), allow(clippy::unwrap_used))]

pub mod claims;
mod contract;
pub mod credentials;
pub mod detect;
pub mod http;
pub mod passthrough;
pub mod registry;
pub mod settings;
pub mod shared;
pub mod smb;
#[cfg(any(test, feature = "testing"))]
pub mod testing;

pub use contract::{
    AcceleratorHalf, AcceleratorInput, AcceleratorOutput, ContentAbsence, ContentHandle, ContentId,
    ContentRefusal, ContentReport, ContentRequest, FlowOpening, FrameKind, LettingGo,
    MAX_CONTENT_READS, MAX_CONTENT_STORES, ReasonCode, ReasonExplanation, ReasonSource,
    ServerCommand, ServerConnection, ServerEvent, ServerFailure, WanEnd,
};
