//! Plan of a campaign: links, workloads, files, passes, repeats. Read from TOML.

use std::path::Path;

use anyhow::{Context, Result, ensure};
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
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CampaignPlan {
    /// Title of the report.
    pub title: String,
    /// Number of times that everything is measured; tables show the median.
    #[serde(default = "one")]
    pub repeats: u32,
    /// Passes to run; all by default.
    #[serde(default = "all_passes")]
    pub passes: Vec<PassKind>,
    /// Tests to run.
    #[serde(rename = "test")]
    pub tests: Vec<PlanTest>,
}

/// Workloads over one link.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlanTest {
    /// The link, as `--link` takes it.
    #[serde(default)]
    pub link: LabLink,
    /// Workloads to run; all by default.
    #[serde(default = "all_workloads")]
    pub workloads: Vec<WorkloadName>,
    /// Files of the set to use; all when empty.
    #[serde(default)]
    pub files: Vec<String>,
}

/// A workload by its name in a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkloadName(pub WorkloadKind);

impl Serialize for WorkloadName {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for WorkloadName {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map(Self).map_err(serde::de::Error::custom)
    }
}

fn one() -> u32 {
    1
}

fn all_passes() -> Vec<PassKind> {
    PassKind::ALL.to_vec()
}

fn all_workloads() -> Vec<WorkloadName> {
    WorkloadKind::ALL.map(WorkloadName).to_vec()
}

impl CampaignPlan {
    /// Reads a plan file.
    ///
    /// # Errors
    /// When it cannot be read or says something impossible; the message points at the line.
    pub fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("reading the plan {}", path.display()))?;
        let plan: Self =
            toml::from_str(&text).with_context(|| format!("in the plan {}", path.display()))?;
        plan.check()
            .with_context(|| format!("in the plan {}", path.display()))?;
        Ok(plan)
    }

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_plans_that_ship_can_be_read() {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios");
        let plan = CampaignPlan::read(&directory.join("waas-3g.toml")).unwrap();
        assert_eq!(plan.workloads().len(), 5);
        assert!(plan.needs_nodes());
        let plan = CampaignPlan::read(&directory.join("access-lines.toml")).unwrap();
        assert_eq!(plan.workloads().len(), 1);
    }

    #[test]
    fn a_wrong_plan_is_pointed_at() {
        let error = toml::from_str::<CampaignPlan>("title = 'x'\n[[test]]\nlink = 'rate=fast'\n");
        let text = error.unwrap_err().to_string();
        assert!(text.contains("line 3") && text.contains("fast"), "{text}");
        let plan: CampaignPlan =
            toml::from_str("title = 'x'\n[[test]]\nfiles = ['x.doc']\n").unwrap();
        assert!(plan.check().unwrap_err().to_string().contains("x.doc"));
    }
}
