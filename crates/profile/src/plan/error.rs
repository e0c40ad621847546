//! Reasons why a plan is refused.

use thiserror::Error;

/// Reason why a plan is refused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum PlanError {
    /// The text is not TOML, or has an unknown or a missing key.
    #[error("the plan cannot be read: {message}")]
    Syntax {
        /// Description with line and column.
        message: String,
    },
    /// The number of ports is out of range.
    #[error("ports = {ports}: a plan uses 1 to {} ports", super::PLAN_PORTS_MAX)]
    Ports {
        /// The number.
        ports: u16,
    },
    /// There is no experiment, or there are too many.
    #[error("the plan has {count} experiments: 1 to {}", super::EXPERIMENTS_MAX)]
    Experiments {
        /// The number.
        count: usize,
    },
    /// Sizes, subjects and repetitions make too many runs.
    #[error(
        "the plan has {runs} runs, by sizes, subjects and repetitions: at most {}",
        super::RUNS_MAX
    )]
    Runs {
        /// The number.
        runs: usize,
    },
    /// Two experiments have one name.
    #[error("experiment \"{experiment}\" is described twice: give each its own name")]
    SameName {
        /// The name.
        experiment: String,
    },
    /// A setting of an experiment is out of range.
    #[error("experiment \"{experiment}\": {setting}: {rule}")]
    Setting {
        /// Name of the experiment.
        experiment: String,
        /// The setting as written.
        setting: String,
        /// The rule that it breaks, and what to write.
        rule: String,
    },
}
