//! Error of a test that could not begin.

/// Reason why nothing could be measured.
#[derive(Debug, thiserror::Error)]
#[error("could not measure: {0:#}")]
pub struct MeasurementFailure(pub anyhow::Error);
