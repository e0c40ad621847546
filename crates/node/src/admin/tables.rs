//! What `status`, `flows` and `why` print: tables of at most 80 columns.

/// The state of a node.
#[must_use]
pub fn status(status: &serde_json::Value) -> String {
    format!("{status:#}\n")
}
/// Flows.
#[must_use]
pub fn flows(flows: &serde_json::Value) -> String {
    format!("{flows:#}\n")
}
/// The reason why.
#[must_use]
pub fn why(why: &serde_json::Value) -> String {
    format!("{why:#}\n")
}
