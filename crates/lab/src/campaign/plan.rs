//! Plan of the demo: links, workloads, files, passes, repeats.

use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize};

use super::link::LabLink;
use crate::workload::{FileSet, WorkloadKind};

/// More repeats than this is a mistake: a campaign of a hundred takes five hours on the demo's
/// link.
const REPEATS_MOST: u32 = 100;

/// One of the ways a workload is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PassKind {
    /// Without Trunkline: no node runs.
    Baseline,
    /// With both dictionaries empty.
    Cold,
    /// The same files again.
    Warm,
    /// The same files with 1 % of their bytes changed.
    Edited,
}

impl PassKind {
    /// All, in the order they are run.
    pub const ALL: [PassKind; 4] = [
        PassKind::Baseline,
        PassKind::Cold,
        PassKind::Warm,
        PassKind::Edited,
    ];

    /// The name in tables and result files.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            PassKind::Baseline => "baseline",
            PassKind::Cold => "cold",
            PassKind::Warm => "warm",
            PassKind::Edited => "edited",
        }
    }
}

/// A whole campaign.
#[derive(Clone, Debug, PartialEq)]
pub struct CampaignPlan {
    /// Title of the report.
    pub title: String,
    /// Number of times that everything is measured; tables show the median.
    pub repeats: u32,
    /// Passes to run.
    pub passes: Vec<PassKind>,
    /// Tests to run.
    pub tests: Vec<PlanTest>,
}

/// Workloads over one link.
#[derive(Clone, Debug, PartialEq)]
pub struct PlanTest {
    /// The link, as `--link` takes it.
    pub link: LabLink,
    /// Workloads to run.
    pub workloads: Vec<WorkloadName>,
    /// Files of the set to use; all when empty.
    pub files: Vec<String>,
}

/// Workload of the demo.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkloadName(pub WorkloadKind);

impl CampaignPlan {
    /// Checks rules that the types do not express.
    ///
    /// # Errors
    /// Fails when there is nothing to measure, too much, or an unknown file.
    pub fn check(&self) -> Result<()> {
        ensure!(!self.tests.is_empty(), "there is no [[test]]");
        ensure!(!self.passes.is_empty(), "`passes` is empty");
        ensure!(
            (1..=REPEATS_MOST).contains(&self.repeats),
            "`repeats` is {}, not within 1 to {REPEATS_MOST}",
            self.repeats
        );
        for test in &self.tests {
            ensure!(!test.workloads.is_empty(), "`workloads` is empty");
            FileSet::generate(0, &test.files).map(drop)?;
        }
        Ok(())
    }

    /// All workloads of all tests, each once.
    #[must_use]
    pub fn workloads(&self) -> Vec<WorkloadKind> {
        let mut workloads: Vec<WorkloadKind> = self
            .tests
            .iter()
            .flat_map(|test| &test.workloads)
            .map(|name| name.0)
            .collect();
        workloads.sort_unstable();
        workloads.dedup();
        workloads
    }

    /// Tells whether any pass needs nodes.
    #[must_use]
    pub fn needs_nodes(&self) -> bool {
        self.passes.iter().any(|pass| *pass != PassKind::Baseline)
    }
}
