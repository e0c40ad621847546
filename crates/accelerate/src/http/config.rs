//! What can be set of the accelerator, and its limits.

/// What the operator decides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// Whether flows to HTTP servers are followed. By default they are reduced and carried like any
    /// other.
    pub is_on: bool,
}

/// Requests of one flow that may be under way. Browsers pipeline none, and other clients some tens; each
/// takes some dozens of bytes.
pub(crate) const PIPELINED_MAX: usize = 1_024;
