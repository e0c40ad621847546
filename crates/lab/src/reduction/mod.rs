//! Data reduction by itself: two dictionaries, and flows between them without a network.
//!
//! ```text
//!  files, captures ─► Stream ─► encoder ══ frames, counted ══► decoder ─► compared
//!                                  │  ◄═ acknowledgements, repairs ═ │
//!                             dictionary                        dictionary ─► segment files
//! ```
//! A [`Pair`] is what reduction is in two nodes, with the same settings; nothing about it is
//! modelled. [`estimate()`] sends somebody's data through one and says what it would cost on the wire.

mod estimate;
mod files;
mod pair;

pub use estimate::{CaptureNotes, Estimate, Item, Recognition, estimate};
pub use files::{Input, Skipped, check};
pub use pair::{Disk, FRAMING, Pair, PairConfig, Side, Stream, Tally};
