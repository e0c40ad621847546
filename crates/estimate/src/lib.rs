//! Data reduction alone: two dictionaries, and flows between them without a network.
//!
//! ```text
//!  files, captures ─► stream ─► encoder ══ frames, counted ══► decoder ─► compared
//!                                  │  ◄═ acknowledgements, repairs ═ │
//!                             dictionary                        dictionary ─► segment files
//! ```
//! A [`NodePair`] is the reduction of two nodes, with the same settings; nothing about it is
//! modelled. [`estimate()`] sends given data through one and reports its size on the wire.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod estimate;
mod files;
pub mod pair;

pub use estimate::{CaptureNotes, CaptureRecognition, EstimateItem, ReductionEstimate, estimate};
pub use files::{InputSource, SkippedInput, check};
pub use pair::{DictionaryDisk, FRAMING, NodePair, PairConfig, PairSide, PairStream, TrafficTally};
