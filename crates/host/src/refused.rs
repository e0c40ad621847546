//! What tells a refusal from a failure, whoever of several layers it was that refused.

use anyhow::Error;

/// What was asked for is not to be had: badly written, contradictory, or more than this host
/// holds. Nothing was started or changed, and asking the same again gives the same.
#[derive(Debug, thiserror::Error)]
#[error("{0:#}")]
pub struct InvalidRequest(Error);

impl InvalidRequest {
    /// Makes a refusal of an error, which reads as before.
    #[must_use]
    pub fn because(error: impl Into<Error>) -> Error {
        Error::new(Self(error.into()))
    }

    /// Whether a refusal is the cause of this error.
    #[must_use]
    pub fn is_cause_of(error: &Error) -> bool {
        error.chain().any(|cause| cause.is::<Self>())
    }
}

#[cfg(test)]
mod tests {
    use anyhow::{Context, Result, anyhow};

    use super::*;

    #[test]
    fn a_refusal_reads_as_its_cause_and_is_found_under_any_context() {
        let cause: Result<()> = Err(anyhow!("zero")).context("`rate`");
        let refused = cause
            .map_err(InvalidRequest::because)
            .context("the way back");
        let refused = refused.unwrap_err();
        assert_eq!(format!("{refused:#}"), "the way back: `rate`: zero");
        assert!(InvalidRequest::is_cause_of(&refused));
        assert!(!InvalidRequest::is_cause_of(
            &anyhow!("zero").context("`rate`")
        ));
    }
}
