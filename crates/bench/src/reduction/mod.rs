//! What data reduction can do on this machine.
//!
//! [`bench()`] measures the same data everywhere; [`kill()`] ends one of two processes with a
//! dictionary at random points.

mod bench;
mod data;
mod ends;
mod kill;

pub use bench::{
    Captured, Figures, Opener, Part, Plan, Report, Runs, Small, Speed, Speeds, Starter, bench,
};
pub use ends::{EndResult, EndTask, Role, run_end};
pub use kill::{KillPlan, KillReport, kill};
