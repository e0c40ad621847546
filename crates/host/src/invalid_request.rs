//! Error type that distinguishes an invalid request from a failure, at any layer.

use anyhow::Error;

/// Invalid request: malformed, contradictory, or more than this host provides. Nothing was started
/// or changed, and retrying will not help.
#[derive(Debug, thiserror::Error)]
#[error("{0:#}")]
pub struct InvalidRequest(Error);

impl InvalidRequest {
    /// Makes a refusal of an error, which reads as before.
    #[must_use]
    pub fn because(error: impl Into<Error>) -> Error {
        Error::new(Self(error.into()))
    }

    /// Returns `true` if an invalid request is the cause of this error.
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
    fn invalid_request_is_found_under_any_context() {
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
