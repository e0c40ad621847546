//! Benchmark of data reduction on this machine.
//!
//! [`bench()`] measures the same data everywhere; [`kill()`] ends one of two processes with a
//! dictionary at random points.

mod bench;
mod data;
mod ends;
mod kill;

pub use bench::{
    CapturedBytes, CodecSpeed, DictionaryOpener, ProcessStarter, ReductionFigures, ReductionPart,
    ReductionPlan, ReductionReport, ReductionRuns, SmallTransfer, SpeedTable, bench,
};
pub use ends::{EndResult, EndTask, ProcessRole, run_end};
pub use kill::{KillPlan, KillReport, kill};
