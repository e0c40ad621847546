//! Campaigns: a plan defines the measurements, [`execute`] makes them, and [`CampaignResults`] hold
//! the results.

mod execute;
mod link;
mod plan;
mod results;

pub(crate) use execute::last_json;
pub use execute::{CampaignOptions, execute};
pub use link::{DirectionSummary, LabLink};
pub use plan::{CampaignPlan, PassKind, PlanTest, WorkloadName};
pub use results::{
    CampaignResults, CampaignSeeds, FORMAT_VERSION, FileSample, TestNodes, TestResults, WorkloadRun,
};
