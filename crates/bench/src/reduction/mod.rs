//! Data reduction by itself: two dictionaries, and flows between them without a network.
//!
//! ```text
//!  files, captures ─► Stream ─► encoder ══ frames, counted ══► decoder ─► compared
//!                                  │  ◄═ acknowledgements, repairs ═ │
//!                             dictionary                        dictionary ─► segment files
//! ```
//! A [`Pair`] is what reduction is in two nodes, with the same settings; nothing about it is
//! modelled. [`estimate()`] sends somebody's data through one and says what it would cost on the wire;
//! [`bench()`] measures the same data everywhere; [`kill()`] ends one of the two at random points.

mod bench;
mod data;
mod ends;
mod estimate;
mod files;
mod kill;
mod pair;

pub use bench::{
    Captured, Figures, Opener, Part, Plan, Report, Runs, Small, Speed, Speeds, Starter, bench,
};
pub use ends::{EndResult, EndTask, Role, run_end};
pub use estimate::{CaptureNotes, Estimate, Item, Recognition, estimate};
pub use files::{Input, Skipped, check};
pub use kill::{KillPlan, KillReport, kill};
pub use pair::{Disk, FRAMING, Pair, PairConfig, Side, Stream, Tally};
