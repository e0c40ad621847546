//! Campaigns: a plan says what to measure, [`execute`] does it, [`Results`] hold what came out.

mod execute;
mod link;
mod plan;
mod results;

pub use execute::{Options, execute};
pub use link::{Direction, Link};
pub use plan::{Pass, Plan, Test, WorkloadName};
pub use results::{FORMAT_VERSION, Results, Sample, Seeds, TestResults, WorkloadRun};
